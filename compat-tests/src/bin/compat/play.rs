//! `causeway-compat run`: chooses what is played, plays it and says how it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::bench::result::Outcome;
use causeway_compat_tests::bench::run::{self, Playbill, Run};
use causeway_compat_tests::bench::{Protocol, known, result};
use causeway_compat_tests::target::{self, Fault, Kind, Running};
use clap::Args;

use crate::chosen::{self, Chosen};

#[derive(Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    chosen: Chosen,
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
        let mut runs = self.chosen.runs()?;
        if self.at.is_some() {
            runs.retain(|run| !run.scenario.faults);
            ensure!(!runs.is_empty(), "what was asked for kills its server");
        }
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
        names.into_iter().map(target::kind).collect()
    }
}

pub(crate) fn play(selection: &Selection) -> Result<bool> {
    let start = Instant::now();
    let runs = selection.runs()?;
    let kinds = selection.kinds()?;
    let versions = chosen::ready(&runs, selection.at.is_none())?;
    let known = known::list()?;
    let mut good = true;
    let mut played = 0;
    if let (Some(address), Some(protocol)) = (&selection.at, selection.chosen.subject) {
        let external = External {
            protocol,
            address: address.clone(),
        };
        good = Work::judged("external", |work| {
            let outcomes = act(
                work,
                Box::new(external),
                "external",
                runs,
                selection,
                &versions,
            )?;
            played += outcomes.len();
            tell("external", &outcomes, &[], selection)
        })?;
    } else {
        for kind in kinds {
            let of = |run: &&Run| kind.speaks(run.scenario.protocol);
            let runs: Vec<Run> = runs.iter().filter(of).cloned().collect();
            if runs.is_empty() {
                continue;
            }
            good &= Work::judged(kind.name, |work| {
                let options = run::options(runs.iter().map(|run| &run.player));
                let target = target::start(work, kind.name, &options)?;
                let outcomes = act(work, target, kind.name, runs, selection, &versions)?;
                played += outcomes.len();
                result::keep(&outcomes)?;
                tell(kind.name, &outcomes, &known, selection)
            })?;
        }
    }
    ensure!(played > 0, "no target speaks what was asked for");
    println!("{played} runs in {:.0} s", start.elapsed().as_secs_f32());
    Ok(good)
}

fn act(
    work: &Work,
    target: Box<dyn Running>,
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
        let failed = verdict.faults.len();
        // What fails as known has run and is reported by name; it counts neither as passed nor as failed.
        let suite = format!("compat/{target}");
        chosen::note(folder, &suite, verdict.passed + failed, failed, 0)?;
    }
    Ok(verdict.faults.is_empty())
}

/// A server that the bench did not start.
struct External {
    protocol: Protocol,
    address: String,
}

impl Running for External {
    fn address(&self, protocol: Protocol) -> Option<String> {
        (self.protocol == protocol).then(|| self.address.clone())
    }

    fn version(&self) -> String {
        "external".to_string()
    }

    fn fault(&mut self, fault: &Fault) -> Result<()> {
        bail!("{fault}: the bench did not start this server")
    }
}
