//! `causeway-compat run`: chooses what is played, plays it and says how it stands.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::bench::client;
use causeway_compat_tests::bench::result::Outcome;
use causeway_compat_tests::bench::run::{self, Playbill, Run};
use causeway_compat_tests::bench::{Protocol, Scenario, families, known, result, scenario};
use causeway_compat_tests::target::{self, Fault, Kind, Running};
use clap::Args;

use crate::{build, servers};

#[derive(Args, Default)]
pub(crate) struct Selection {
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

pub(crate) fn play(selection: &Selection) -> Result<bool> {
    let start = Instant::now();
    let runs = selection.runs()?;
    servers()?;
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
        nonce: None,
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
