//! The bench's command line: `causeway-compat help`.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

mod applications;
mod chosen;
mod differential;
mod play;
mod transcripts;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::bench::client::{self, Family};
use causeway_compat_tests::bench::{families, known, report, result, scenario};
use causeway_compat_tests::target;
use clap::{Parser, Subcommand};

/// Holds Causeway against real ZooKeeper and etcd servers, through real clients.
#[derive(Parser)]
#[command(name = "causeway-compat", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the clients and fetch the servers; quick when nothing changed
    Prepare {
        /// Families of clients (java, go, python, …) and `applications`; all of them when none is named
        families: Vec<String>,
    },
    /// Show targets, clients and the scenarios that each client plays
    List,
    /// Play scenarios on targets
    Run(play::Selection),
    /// Let applications of Dubbo and Spring Cloud find each other through restarts and phase steps, and compare their logs
    Applications(applications::Applications),
    /// Search for differences between two targets by random sequences of operations
    Diff(differential::Search),
    /// Run scripts of operations on two targets and hold what they show against what they expect
    Replay(differential::Replay),
    /// Write what may differ into docs/divergences.md
    Divergences,
    /// Record what clients and servers say, send it again, and check it for calls that are not known
    Transcripts(transcripts::Transcripts),
    /// Write docs/compatibility.md from the results so far
    Report,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Prepare { families } => prepare(&families).map(|()| true),
        Command::List => list().map(|()| true),
        Command::Run(selection) => play::play(&selection),
        Command::Applications(applications) => applications.run(),
        Command::Diff(search) => search.run(),
        Command::Replay(replay) => replay.run(),
        Command::Divergences => differential::write_divergences().map(|()| true),
        Command::Transcripts(transcripts) => transcripts.run(),
        Command::Report => write_report().map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("causeway-compat: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn prepare(names: &[String]) -> Result<()> {
    let all = families::all();
    for name in names {
        ensure!(
            name == APPLICATIONS || all.iter().any(|family| family.name() == name),
            "there is no family {name}"
        );
    }
    let wanted = |wanted: &str| names.is_empty() || names.iter().any(|name| name == wanted);
    servers()?;
    for family in all {
        if wanted(family.name()) {
            build(family)?;
        }
    }
    if wanted(APPLICATIONS) {
        applications()?;
    }
    Ok(())
}

/// What `prepare` calls the applications of service frameworks.
const APPLICATIONS: &str = "applications";

fn applications() -> Result<()> {
    let start = Instant::now();
    if client::prepare_applications()? {
        println!(
            "built the applications in {:.0} s",
            start.elapsed().as_secs_f32()
        );
    }
    Ok(())
}

/// Before the clients: some are of the servers' own release.
fn servers() -> Result<()> {
    // Its program is the real etcd too.
    let go = families::all()
        .into_iter()
        .find(|family| family.name() == "go");
    if let Some(go) = go {
        build(go)?;
    }
    if client::prepare_servers()? {
        println!("fetched the releases of ZooKeeper");
    }
    Ok(())
}

fn build(family: &dyn Family) -> Result<()> {
    let start = Instant::now();
    if client::prepare(family)? {
        println!(
            "built the {} clients in {:.0} s",
            family.name(),
            start.elapsed().as_secs_f32()
        );
    }
    Ok(())
}

fn list() -> Result<()> {
    let scenarios = scenario::all()?;
    println!("targets");
    for kind in target::catalogue() {
        println!("  {:24} {}", kind.name, kind.about);
    }
    println!("clients and what they play");
    for player in client::players() {
        let plays: Vec<String> = player
            .plays(&scenarios)?
            .into_iter()
            .map(|scenario| scenario.name)
            .collect();
        println!(
            "  {:24} {:10} {}",
            player.client.name,
            player.client.protocol,
            plays.join(" ")
        );
    }
    Ok(())
}

fn write_report() -> Result<()> {
    let scenarios = scenario::all()?;
    let outcomes = report::current(result::kept()?, &scenarios)?;
    ensure!(
        !outcomes.is_empty(),
        "there are no results yet: `causeway-compat run` makes them"
    );
    let targets: Vec<(&str, &str)> = target::catalogue()
        .iter()
        .map(|kind| (kind.name, kind.about))
        .collect();
    let page = report::page(&outcomes, &scenarios, &targets, &known::list()?);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    println!(
        "{} results, written to docs/compatibility.md",
        outcomes.len()
    );
    Ok(())
}
