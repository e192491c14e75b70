//! The bench's command line: `causeway-compat help`.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::bench::client::{self, Family};
use causeway_compat_tests::bench::result::Outcome;
use causeway_compat_tests::bench::run::{self, Playbill, Run};
use causeway_compat_tests::bench::{Protocol, Scenario, families, known, report, result, scenario};
use causeway_compat_tests::target::{self, Fault, Kind, Running};
use clap::{Args, Parser, Subcommand};

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
        /// Families of clients (java, go, python, …); all of them when none is named
        families: Vec<String>,
    },
    /// Show targets, clients and the scenarios that each client plays
    List,
    /// Play scenarios on targets
    Run(Selection),
    /// Write docs/compatibility.md from the results so far
    Report,
}

#[derive(Args, Default)]
struct Selection {
    /// Only scenarios and clients of this protocol
    #[arg(long)]
    subject: Option<Protocol>,
    /// Only these scenarios (`lock`, or `etcd/lock`); may be repeated
    #[arg(long)]
    scenario: Vec<String>,
    /// Only these clients; may be repeated
    #[arg(long)]
    client: Vec<String>,
    /// Only these targets; may be repeated. `ci` stands for those that every change has to pass
    #[arg(long)]
    target: Vec<String>,
    /// A server that runs already, instead of a target: HOST:PORT, with --subject. Scenarios that kill the server are
    /// left out
    #[arg(long, requires = "subject", conflicts_with = "target")]
    at: Option<String>,
    /// Runs side by side
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Writes what ran, failed and was skipped into this folder, a file a target
    #[arg(long)]
    ledger: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Prepare { families } => prepare(&families).map(|()| true),
        Command::List => list().map(|()| true),
        Command::Run(selection) => play(&selection),
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
            all.iter().any(|family| family.name() == name),
            "there is no family {name}"
        );
    }
    for family in all {
        if names.is_empty() || names.iter().any(|name| name == family.name()) {
            build(family)?;
        }
    }
    servers()
}

fn servers() -> Result<()> {
    // Its program is the real etcd too.
    let go = families::all()
        .into_iter()
        .find(|family| family.name() == "go");
    if let Some(go) = go {
        build(go)?;
    }
    if client::prepare_servers()? {
        println!("fetched ZooKeeper 3.9");
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

/// The targets that every change has to pass.
const CI: &[&str] = &[
    "zookeeper-3.9",
    "etcd-3.7",
    "causeway-embedded",
    "causeway-merge-new",
];

impl Selection {
    fn runs(&self) -> Result<Vec<Run>> {
        let scenarios = scenario::all()?;
        let named =
            |scenario: &Scenario, name: &str| scenario.name == name || scenario.to_string() == name;
        for name in &self.scenario {
            ensure!(
                scenarios.iter().any(|scenario| named(scenario, name)),
                "there is no scenario {name}"
            );
        }
        let players = client::players();
        for name in &self.client {
            ensure!(
                players.iter().any(|player| player.client.name == name),
                "there is no client {name}"
            );
        }
        let mut runs = Vec::new();
        for player in players {
            if !self.client.is_empty() && !self.client.iter().any(|name| name == player.client.name)
            {
                continue;
            }
            for scenario in player.plays(&scenarios)? {
                let wanted = self.subject.is_none_or(|s| s == scenario.protocol)
                    && (self.scenario.is_empty()
                        || self.scenario.iter().any(|name| named(&scenario, name)))
                    && !(self.at.is_some() && scenario.faults);
                if wanted {
                    runs.push(Run { player, scenario });
                }
            }
        }
        ensure!(!runs.is_empty(), "no client plays what was asked for");
        Ok(runs)
    }

    fn kinds(&self) -> Result<Vec<&'static Kind>> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.target {
            match name.as_str() {
                "ci" => names.extend(CI),
                name => names.push(name),
            }
        }
        if names.is_empty() {
            return Ok(target::catalogue().iter().collect());
        }
        names
            .into_iter()
            .map(|name| {
                target::catalogue()
                    .iter()
                    .find(|kind| kind.name == name)
                    .with_context(|| format!("there is no target {name}"))
            })
            .collect()
    }
}

fn play(selection: &Selection) -> Result<bool> {
    let start = Instant::now();
    let runs = selection.runs()?;
    let mut versions = BTreeMap::new();
    for family in families::all() {
        if runs
            .iter()
            .any(|run| run.player.family.name() == family.name())
        {
            build(family)?;
            versions.extend(family.versions(&client::sources(family), &client::built(family))?);
        }
    }
    servers()?;
    let known = known::list()?;
    let mut good = true;
    let mut played = 0;
    if let (Some(address), Some(protocol)) = (&selection.at, selection.subject) {
        let work = Work::new("external")?;
        let target = Box::new(External {
            protocol,
            address: address.clone(),
        });
        let outcomes = act(&work, target, "external", runs, selection, &versions)?;
        good = tell("external", &outcomes, &[], selection)?;
        played += outcomes.len();
    } else {
        for kind in selection.kinds()? {
            let of = |run: &&Run| match run.scenario.protocol {
                Protocol::ZooKeeper => kind.zookeeper,
                Protocol::Etcd => kind.etcd,
            };
            let runs: Vec<Run> = runs.iter().filter(of).cloned().collect();
            if runs.is_empty() {
                continue;
            }
            let mut work = Work::new(kind.name)?;
            let target = target::start(&work, kind.name, &options(&runs))?;
            let outcomes = act(&work, target, kind.name, runs, selection, &versions)?;
            let came_through = tell(kind.name, &outcomes, &known, selection)?;
            if !came_through {
                println!("logs of servers and clients: {}", work.dir().display());
                work.keep();
            }
            good &= came_through;
            result::keep(&outcomes)?;
            played += outcomes.len();
        }
    }
    ensure!(played > 0, "no target speaks what was asked for");
    println!("{played} runs in {:.0} s", start.elapsed().as_secs_f32());
    Ok(good)
}

/// What the gateway has to know beforehand of the runs.
fn options(runs: &[Run]) -> target::Options {
    let mut grpc_targets: Vec<String> = runs
        .iter()
        .filter(|run| run.scenario.protocol == Protocol::Etcd)
        .map(|run| run::registration_target(run.player.client.name))
        .collect();
    grpc_targets.sort();
    grpc_targets.dedup();
    target::Options {
        grpc_targets,
        ..target::Options::default()
    }
}

fn act(
    work: &Work,
    target: Box<dyn Running + Send>,
    name: &str,
    runs: Vec<Run>,
    selection: &Selection,
    versions: &BTreeMap<String, String>,
) -> Result<Vec<Outcome>> {
    let all = runs.len();
    println!("{name}: {all} runs, {} side by side", selection.jobs);
    let count = AtomicUsize::new(0);
    let progress = |outcome: &Outcome| {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        let end = match &outcome.failure {
            None => "ok".to_string(),
            Some((step, why)) => format!("FAILED at {step}: {}", why.replace('\n', " ")),
        };
        println!(
            "  [{number}/{all}] {:28} {:22} {:5.1} s  {end}",
            outcome.key.scenario,
            outcome.key.client,
            Duration::from_millis(outcome.took_ms).as_secs_f32()
        );
    };
    let bill = Playbill {
        target: name,
        runs,
        jobs: selection.jobs,
        versions,
        progress: &progress,
    };
    run::play(work, target, &bill)
}

/// Says how the outcomes of one target stand, and notes it.
fn tell(
    target: &str,
    outcomes: &[Outcome],
    known: &[known::Known],
    selection: &Selection,
) -> Result<bool> {
    let verdict = known::judge(outcomes, known);
    for fault in &verdict.faults {
        println!("{target}: {fault}");
    }
    println!(
        "{target}: {} passed, {} failed as known, {} failed",
        verdict.passed,
        verdict.known,
        verdict.faults.len()
    );
    if let Some(folder) = &selection.ledger {
        fs::create_dir_all(folder)?;
        let failed = verdict.faults.len();
        // What fails as known has run and is reported by name; it counts neither as passed nor as failed.
        fs::write(
            folder.join(format!("compat--{target}.tsv")),
            format!(
                "compat/{target}\t{}\t{failed}\t0\n",
                verdict.passed + failed
            ),
        )?;
    }
    Ok(verdict.faults.is_empty())
}

fn write_report() -> Result<()> {
    let outcomes = result::kept()?;
    ensure!(
        !outcomes.is_empty(),
        "there are no results yet: `causeway-compat run` makes them"
    );
    let targets: Vec<(&str, &str)> = target::catalogue()
        .iter()
        .map(|kind| (kind.name, kind.about))
        .collect();
    let page = report::page(&outcomes, &scenario::all()?, &targets, &known::list()?);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    println!(
        "{} results, written to docs/compatibility.md",
        outcomes.len()
    );
    Ok(())
}

/// A server that the bench did not start.
struct External {
    protocol: Protocol,
    address: String,
}

impl Running for External {
    fn zookeeper(&self) -> Option<String> {
        (self.protocol == Protocol::ZooKeeper).then(|| self.address.clone())
    }

    fn etcd(&self) -> Option<String> {
        (self.protocol == Protocol::Etcd).then(|| self.address.clone())
    }

    fn version(&self) -> String {
        "external".to_string()
    }

    fn fault(&mut self, fault: &Fault) -> Result<()> {
        bail!("{fault}: the bench did not start this server")
    }
}
