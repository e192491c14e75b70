//! `causeway-compat applications`: applications of service frameworks on a real server and on Causeway.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::applications::{
    Course, FRAMEWORKS, Framework, Heard, courses, kept, run,
};
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::workers;
use clap::Args;

use crate::chosen;

/// `causeway-compat applications`
#[derive(Args)]
pub(crate) struct Applications {
    /// Only these targets, or `take-over`, `whole-way` and `killed-way`, which begin as a relay and go through the phases; may
    /// be repeated. `-outage` after a target takes the server away for longer than leases last. `ci` stands for those that every
    /// change has to pass. The real servers are always among them
    #[arg(long)]
    target: Vec<String>,
    /// Only these frameworks; may be repeated
    #[arg(long)]
    framework: Vec<String>,
    /// Targets side by side
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Adds what was logged on the real server to compat-tests/applications, and holds nothing against it
    #[arg(long)]
    learn: bool,
    /// Writes what ran and failed into this folder, a file a target
    #[arg(long)]
    ledger: Option<PathBuf>,
}

/// What the others are held against, and what those with an outage.
const MODELS: &[&str] = &["zookeeper-3.9", "etcd-3.7"];
const OUTAGE: &str = "etcd-3.7-outage";
/// The targets that every change has to pass.
const CI: &[&str] = &[
    "killed-way",
    "causeway-merge-new-outage",
    "causeway-embedded",
    "take-over",
];

/// How one course came out.
struct Outcome {
    course: String,
    real: bool,
    outage: bool,
    heard: Vec<Heard>,
    failure: Option<String>,
    work: Work,
}

impl Applications {
    pub(crate) fn run(&self) -> Result<bool> {
        let frameworks = self.frameworks()?;
        let courses = self.courses(&frameworks)?;
        crate::servers()?;
        // Those on etcd are built with etcd.
        if frameworks.iter().any(|f| f.protocol == Protocol::ZooKeeper) {
            crate::applications()?;
        }
        let outcomes = Mutex::new(Vec::new());
        let begun = Instant::now();
        // The real server's run takes no longer than the others.
        workers::side_by_side(
            self.jobs,
            courses,
            || (),
            |(), course| {
                let outcome = self.play(&course, &frameworks);
                workers::lock(&outcomes).push(outcome);
            },
        );
        let outcomes = outcomes
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        let good = self.judge(&frameworks, &mut outcomes)?;
        println!(
            "{} runs in {:.0} s",
            outcomes.len(),
            begun.elapsed().as_secs_f32()
        );
        Ok(good)
    }

    fn frameworks(&self) -> Result<Vec<&'static Framework>> {
        for name in &self.framework {
            ensure!(
                FRAMEWORKS.iter().any(|framework| framework.name == name),
                "there is no framework {name}"
            );
        }
        let wanted = |framework: &&Framework| {
            self.framework.is_empty() || self.framework.iter().any(|name| name == framework.name)
        };
        Ok(FRAMEWORKS.iter().filter(wanted).collect())
    }

    fn courses(&self, frameworks: &[&'static Framework]) -> Result<Vec<Course>> {
        let mut names = BTreeSet::from_iter(MODELS.iter().copied());
        for name in &self.target {
            match name.as_str() {
                "ci" => names.extend(CI),
                name => drop(names.insert(name)),
            }
        }
        if names.iter().any(|name| name.ends_with("-outage")) {
            names.insert(OUTAGE);
        }
        let all = courses();
        for name in &names {
            ensure!(
                all.iter().any(|course| course.name == *name),
                "there is no target {name}"
            );
        }
        let wanted = |course: &Course| {
            let named = self.target.is_empty() || names.contains(course.name.as_str());
            let learns = !self.learn || course.real;
            named && learns && frameworks.iter().any(|f| course.plays(f))
        };
        Ok(all.into_iter().filter(wanted).collect())
    }

    fn play(&self, course: &Course, frameworks: &[&'static Framework]) -> Result<Outcome> {
        let work = Work::new(&course.name)?;
        let tell = |what: &str| println!("{:24} {what}", course.name);
        let result = run(&work, course, frameworks, &tell);
        let mut outcome = Outcome {
            course: course.name.clone(),
            real: course.real,
            outage: course.outage,
            heard: Vec::new(),
            failure: None,
            work,
        };
        match result {
            Ok(heard) => outcome.heard = heard,
            Err(error) => outcome.failure = Some(format!("{error:#}")),
        }
        Ok(outcome)
    }

    /// Prints how it stands; says whether all is well.
    fn judge(&self, frameworks: &[&'static Framework], outcomes: &mut [Outcome]) -> Result<bool> {
        let mut model = BTreeMap::new();
        for framework in frameworks {
            let mut real = kept::of(framework)?;
            for (outcome, heard) in of_real(outcomes, framework) {
                let fresh: BTreeSet<String> = heard.messages.difference(&real).cloned().collect();
                for message in &fresh {
                    println!("{:24} new from a real server: {message}", outcome.course);
                }
                if self.learn {
                    kept::add(framework, &fresh)?;
                }
                real.extend(fresh);
            }
            model.insert(framework.name, real);
        }
        let mut most = BTreeMap::new();
        for framework in frameworks {
            for (outcome, heard) in of_real(outcomes, framework) {
                most.insert((framework.name, outcome.outage), heard.writes.clone());
            }
        }
        let mut good = true;
        for outcome in outcomes {
            let mut failed = 0;
            if let Some(failure) = &outcome.failure {
                println!("{:24} FAILED: {failure}", outcome.course);
                failed += 1;
            }
            for heard in &outcome.heard {
                let framework = heard.framework.name;
                for message in heard.messages.difference(&model[framework]) {
                    println!(
                        "{:24} {framework} never logs on a real server: {message}",
                        outcome.course
                    );
                    failed += 1;
                }
                if !heard.framework.counted {
                    continue;
                }
                println!("{:24} {framework} wrote {:?}", outcome.course, heard.writes);
                let due = most.get(&(framework, outcome.outage));
                if let Err(error) = as_often(&heard.writes, due, outcome.outage) {
                    println!("{:24} {framework}: {error:#}", outcome.course);
                    failed += 1;
                }
            }
            if failed == 0 {
                println!("{:24} good", outcome.course);
            } else {
                outcome.work.leave();
            }
            good &= failed == 0;
            if let Some(folder) = &self.ledger {
                // For each framework: that it came through, that its logs are as they are on a real server, and its writes.
                let ran: usize = outcome
                    .heard
                    .iter()
                    .map(|heard| 2 + usize::from(heard.framework.counted))
                    .sum();
                let ran = ran.max(failed);
                let suite = format!("applications/{}", outcome.course);
                chosen::note(folder, &suite, ran, failed.min(ran), 0)?;
            }
        }
        Ok(good)
    }
}

/// What the real servers' runs say of a framework.
fn of_real<'a>(
    outcomes: &'a [Outcome],
    framework: &'a Framework,
) -> impl Iterator<Item = (&'a Outcome, &'a Heard)> {
    let real = outcomes.iter().filter(|outcome| outcome.real);
    real.flat_map(|outcome| outcome.heard.iter().map(move |heard| (outcome, heard)))
        .filter(|(_, heard)| heard.framework.name == framework.name)
}

/// Fails unless applications wrote what they write on a real server, each call as often. After an outage a try more or less is the
/// machine's; none may write more than twice what is due without a loss.
fn as_often(
    writes: &BTreeMap<String, usize>,
    due: Option<&BTreeMap<String, usize>>,
    outage: bool,
) -> Result<()> {
    let due = due.context("no real server ran that course")?;
    ensure!(!due.is_empty(), "on a real server nothing was written");
    if !outage {
        ensure!(writes == due, "on a real server they wrote {due:?}");
        return Ok(());
    }
    for (call, often) in writes {
        let limit = due.get(call).copied().unwrap_or(0).max(2);
        ensure!(*often <= limit, "{call} at most {limit} times, not {often}");
    }
    Ok(())
}
