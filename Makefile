# Each target installs what it needs first; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run test demo fmt lint bench

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

run: ## build and run a gateway: ZooKeeper on 2181, etcd on 2379, admin API on 8500
	@scripts/bootstrap run
	@scripts/with-tools cargo build --workspace --bin causeway
	@target/debug/causeway serve $(ARGS)

test: ## everything: format, lints, documentation, unit tests, real servers and clients, the demonstration
	@scripts/bootstrap test
	@scripts/test

demo: ## the whole migration in a few minutes, on real stores started for it
	@scripts/bootstrap test
	@scripts/demo

fmt: ## format the code
	@scripts/with-tools cargo fmt --all

lint: ## clippy and the house checks
	@scripts/bootstrap run
	@scripts/with-tools cargo clippy --workspace --all-targets -- -D warnings
	@scripts/with-tools cargo run --quiet --package xtask -- tidy

bench: ## CPU time per operation beside the real stores
	@scripts/bootstrap test
	@scripts/bench
