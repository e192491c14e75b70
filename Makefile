# Each target installs what it needs first; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run test compat demo fmt lint bench

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

run: ## build and run a gateway: ZooKeeper on 2181, etcd on 2379, admin API on 8500
	@scripts/bootstrap run
	@scripts/with-tools cargo build --workspace --bin causeway
	@target/debug/causeway serve $(ARGS)

test: ## everything: format, lints, documentation, unit tests, real servers and clients, the demonstration
	@scripts/bootstrap test
	@scripts/test

compat: ## every client x scenario x target, then docs/compatibility.md; SUBJECT=etcd CLIENT=jetcd SCENARIO=lock TARGET=etcd-3.7 narrow it
	@scripts/bootstrap test
	@scripts/compat $(if $(SUBJECT),--subject $(SUBJECT)) $(if $(CLIENT),--client $(CLIENT)) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(TARGET),--target $(TARGET))

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
