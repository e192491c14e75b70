//! The causeway binary: a gateway (`serve`), a check of its configuration, and the operator's commands.

// A binary's modules are its own: `pub` marks what other files of it use.
#![allow(unreachable_pub)]

mod admin;
mod app;
mod cli;
mod config;
mod front;
mod gateway;
mod journal;
mod legacy;
mod mailbox;
mod native;
mod shards;
mod tls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Moves a live service registry off ZooKeeper or etcd without touching its clients.
#[derive(Debug, Parser)]
#[command(name = "causeway", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a gateway.
    Serve(Box<config::Flags>),
    /// Check a configuration and name every error.
    Check(Box<config::Flags>),
    #[command(flatten)]
    Operator(cli::Operator),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Serve(flags) => serve(&flags),
        Command::Check(flags) => check(&flags),
        Command::Operator(command) => cli::run(command),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("causeway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(flags: &config::Flags) -> anyhow::Result<ExitCode> {
    let config = config::Config::load(flags)?;
    println!(
        "configuration is valid: zookeeper {}, etcd {}, admin {}, phase of a fresh folder {}",
        config.zookeeper_listen, config.etcd_listen, config.admin_listen, config.phase
    );
    Ok(ExitCode::SUCCESS)
}

fn serve(flags: &config::Flags) -> anyhow::Result<ExitCode> {
    let config = config::Config::load(flags)?;
    init_logs(config.log_json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(app::serve(config))?;
    // Blocking readers of a dead store must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    Ok(ExitCode::SUCCESS)
}

fn init_logs(json: bool) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("CAUSEWAY_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,hickory_server=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false);
    if json {
        builder.json().init();
    } else {
        builder.init();
    }
}
