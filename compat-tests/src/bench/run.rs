//! Plays client × scenario on one target.
//!
//! Most runs go side by side, since most of their time is waiting. A scenario that changes the whole server runs
//! with nothing beside it. In one with faults all its clients run together and meet: the server is killed once, when
//! each has asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::client::Player;
use super::result::{Key, Outcome};
use super::scenario::Place;
use super::{Protocol, Scenario};
use crate::clients::Program;
use crate::link::Link;
use crate::process::Work;
use crate::target::{self, Fault, Running};
use crate::workers::{lock, side_by_side};

/// A run to be done.
#[derive(Clone)]
pub struct Run {
    /// Who plays.
    pub player: Player,
    /// What.
    pub scenario: Scenario,
}

impl Run {
    /// Where it works. The same run on the same server finds its place empty again, since each start counts.
    pub fn prefix(&self, nonce: &str) -> String {
        let client = self.player.client.name;
        match (self.scenario.protocol, self.scenario.place) {
            (Protocol::ZooKeeper, Place::General) => {
                format!("/compat-{}-{client}-{nonce}", self.scenario.name)
            }
            (Protocol::ZooKeeper, Place::Registrations) => format!("/discovery/{client}-{nonce}"),
            (Protocol::Etcd, Place::General) => {
                format!("compat-{}-{client}-{nonce}", self.scenario.name)
            }
            (Protocol::Etcd, Place::Registrations) => registration_target(client),
        }
    }
}

/// The name under which a client of etcd registers. A layout has to name it beforehand, so that it cannot be fresh
/// each time; the scenario takes everything away again.
fn registration_target(client: &str) -> String {
    format!("compat-grpc-{client}")
}

/// How a target is started for these players: a gateway has to know beforehand the names under which they register.
pub fn options<'a>(players: impl IntoIterator<Item = &'a Player>) -> target::Options {
    let names: BTreeSet<String> = players
        .into_iter()
        .filter(|player| player.client.protocol == Protocol::Etcd)
        .map(|player| registration_target(player.client.name))
        .collect();
    target::Options {
        grpc_targets: names.into_iter().collect(),
        ..target::Options::default()
    }
}

/// What to play on one target, and how.
pub struct Playbill<'a> {
    /// The target's name.
    pub target: &'a str,
    /// What to play.
    pub runs: Vec<Run>,
    /// Runs side by side.
    pub jobs: usize,
    /// The version of each client library.
    pub versions: &'a BTreeMap<String, String>,
    /// The end of the prefixes; one of its own when not given.
    pub nonce: Option<String>,
    /// Told each outcome as it comes.
    pub progress: &'a (dyn Fn(&Outcome) + Sync),
}

/// Plays all of it.
///
/// # Errors
/// The bench itself failed; a client's failure is an outcome.
pub fn play(work: &Work, target: Box<dyn Running>, bill: &Playbill<'_>) -> Result<Vec<Outcome>> {
    let stage = Stage {
        work,
        bill,
        nonce: bill.nonce.clone().unwrap_or_else(nonce),
        version: target.version(),
        addresses: Protocol::ALL
            .map(|protocol| (protocol, target.address(protocol)))
            .into(),
        target: Mutex::new(target),
        outcomes: Mutex::new(Vec::new()),
    };
    let (mut alone, mut together, mut beside) =
        (Vec::new(), BTreeMap::<String, Vec<Run>>::new(), Vec::new());
    for run in &bill.runs {
        if run.scenario.faults {
            together
                .entry(run.scenario.to_string())
                .or_default()
                .push(run.clone());
        } else if run.scenario.exclusive {
            alone.push(run.clone());
        } else {
            beside.push(run.clone());
        }
    }
    side_by_side(
        bill.jobs,
        beside,
        || (),
        |(), run| {
            stage.play(&run, None);
        },
    );
    for (index, run) in alone.iter().enumerate() {
        let is_last = index + 1 == alone.len() && together.is_empty();
        if !stage.play(run, None) && !is_last {
            stage.clear(run);
        }
    }
    for runs in together.values() {
        let meeting = Meeting::new(runs.len(), PATIENCE);
        std::thread::scope(|scope| {
            for run in runs {
                scope.spawn(|| {
                    stage.play(run, Some(&meeting));
                    meeting.leave();
                });
            }
        });
    }
    Ok(stage
        .outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

struct Stage<'a> {
    work: &'a Work,
    bill: &'a Playbill<'a>,
    nonce: String,
    version: String,
    addresses: BTreeMap<Protocol, Option<String>>,
    target: Mutex<Box<dyn Running>>,
    outcomes: Mutex<Vec<Outcome>>,
}

impl Stage<'_> {
    /// Plays one run; says whether it came through.
    fn play(&self, run: &Run, meeting: Option<&Meeting>) -> bool {
        let start = Instant::now();
        let mut told = Told::default();
        let failure = match self.perform(run, meeting, &mut told) {
            Ok(()) => None,
            Err(error) => Some((told.failed.take().unwrap_or_default(), format!("{error:#}"))),
        };
        let client = run.player.client.name;
        let outcome = Outcome {
            key: Key {
                scenario: run.scenario.to_string(),
                client: client.to_string(),
                target: self.bill.target.to_string(),
            },
            client_version: self.bill.versions.get(client).cloned().unwrap_or_default(),
            target_version: self.version.clone(),
            passed: told.passed,
            lacks: told.lacks,
            notes: told.notes,
            failure,
            took_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let came_through = outcome.failure.is_none();
        (self.bill.progress)(&outcome);
        lock(&self.outcomes).push(outcome);
        came_through
    }

    /// Makes the target as it was at its start: a run that had all of it and failed half-way may have left users, an
    /// alarm or its load behind, and what is played next would fail of it.
    fn clear(&self, failed: &Run) {
        let mut target = lock(&self.target);
        if let Err(error) = target.clear() {
            eprintln!(
                "{}: not made clean after {} by {}: {error:#}",
                self.bill.target, failed.scenario, failed.player.client.name
            );
        }
    }

    fn perform(&self, run: &Run, meeting: Option<&Meeting>, told: &mut Told) -> Result<()> {
        let scenario = &run.scenario;
        let address = self.addresses[&scenario.protocol]
            .as_deref()
            .context("this target does not speak the protocol")?;
        let link = scenario.link.then(|| Link::start(address)).transpose()?;
        let mut command = run.player.command();
        command.args([&scenario.name, address, &run.prefix(&self.nonce)]);
        if let Some(link) = &link {
            command.env("COMPAT_LINK", link.address());
        }
        let name = format!(
            "{}-{}-{}",
            self.bill.target, run.player.client.name, scenario.name
        );
        let mut program = Program::spawn(self.work, &name, &mut command)?;
        let end = Instant::now() + scenario.limit();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = program.expect_that(left, "the next line", |line| Some(line.to_string()))?;
            match told.hear(&line, scenario)? {
                Next::Line => {}
                Next::Do(fault) => {
                    let answer = match self.fault(&fault, link.as_ref(), meeting) {
                        Ok(()) => "done".to_string(),
                        Err(error) => format!("cannot {error:#}").replace('\n', " "),
                    };
                    program.say(&answer)?;
                }
                Next::Done => break,
            }
        }
        let status = program.finish(Duration::from_secs(15))?;
        ensure!(status.success(), "said done and ended with {status}");
        Ok(())
    }

    fn fault(&self, verb: &str, link: Option<&Link>, meeting: Option<&Meeting>) -> Result<()> {
        match (verb, link, meeting) {
            ("cut", Some(link), _) => link.cut(),
            ("mend", Some(link), _) => link.mend(),
            ("cut" | "mend", None, _) => bail!("the scenario's file does not say `link = true`"),
            (_, _, Some(meeting)) => {
                let fault: Fault = verb.parse()?;
                meeting.meet(verb, || lock(&self.target).fault(&fault))
            }
            (_, _, None) => bail!("the scenario's file does not say `faults = true`"),
        }
    }
}

/// What a client has reported so far.
#[derive(Debug, Default)]
struct Told {
    passed: Vec<String>,
    lacks: Vec<(String, String)>,
    notes: Vec<String>,
    /// The step that failed, or was next when the program ended.
    failed: Option<String>,
}

enum Next {
    Line,
    Do(String),
    Done,
}

impl Told {
    /// Takes one line of a client.
    ///
    /// # Errors
    /// The client reports a failure, leaves a step out, or says what is no report.
    fn hear(&mut self, line: &str, scenario: &Scenario) -> Result<Next> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let due = scenario.steps.get(self.passed.len() + self.lacks.len());
        let due = due.map(|(step, _)| step.as_str());
        self.failed = due.map(str::to_string);
        match word {
            "ok" => {
                ensure!(due == Some(rest), "reported {rest:?} when {due:?} was due");
                self.passed.push(rest.to_string());
                self.failed = self.next(scenario);
                Ok(Next::Line)
            }
            "lacks" => {
                let (step, why) = rest.split_once(' ').unwrap_or((rest, ""));
                ensure!(due == Some(step), "reported {step:?} when {due:?} was due");
                ensure!(!why.is_empty(), "lacks {step} without a reason");
                self.lacks.push((step.to_string(), why.to_string()));
                self.failed = self.next(scenario);
                Ok(Next::Line)
            }
            "fail" => {
                let (step, why) = rest.split_once(' ').unwrap_or((rest, ""));
                self.failed = Some(step.to_string());
                bail!("{why}")
            }
            "do" => Ok(Next::Do(rest.to_string())),
            "note" => {
                ensure!(!rest.is_empty(), "notes nothing");
                self.notes.push(rest.to_string());
                Ok(Next::Line)
            }
            "done" => {
                ensure!(due.is_none(), "done when {due:?} was due");
                ensure!(!self.passed.is_empty(), "done, and no step was checked");
                Ok(Next::Done)
            }
            _ => bail!("said what is no report: {line:?}"),
        }
    }

    fn next(&self, scenario: &Scenario) -> Option<String> {
        let next = scenario.steps.get(self.passed.len() + self.lacks.len());
        next.map(|(step, _)| step.clone())
    }
}

/// Clients that wait for each other before the server is killed under all of them.
struct Meeting {
    room: Mutex<Room>,
    change: Condvar,
    /// A client may come this much later than the first.
    patience: Duration,
}

struct Room {
    /// Clients that still run.
    members: usize,
    /// Those that wait for the present round.
    waiting: usize,
    /// What they wait for.
    verb: Option<String>,
    /// Rounds that are over, and how the last one went.
    rounds: u64,
    last: Option<String>,
}

const PATIENCE: Duration = Duration::from_secs(90);

impl Meeting {
    fn new(members: usize, patience: Duration) -> Meeting {
        Meeting {
            room: Mutex::new(Room {
                members,
                waiting: 0,
                verb: None,
                rounds: 0,
                last: None,
            }),
            change: Condvar::new(),
            patience,
        }
    }

    /// Waits until every client that still runs asks for `verb`; the last one acts.
    fn meet(&self, verb: &str, act: impl Fn() -> Result<()>) -> Result<()> {
        let mut room = lock(&self.room);
        match &room.verb {
            Some(asked) if asked != verb => bail!("another client asked for {asked:?} first"),
            _ => room.verb = Some(verb.to_string()),
        }
        room.waiting += 1;
        let round = room.rounds;
        let end = Instant::now() + self.patience;
        while room.rounds == round && room.waiting < room.members {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The others shall not take this one for somebody who waits.
                room.waiting -= 1;
                if room.waiting == 0 {
                    room.verb = None;
                }
                bail!("the other clients did not come this far");
            }
            room = self
                .change
                .wait_timeout(room, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        if room.rounds == round {
            room.last = act().err().map(|error| format!("{error:#}"));
            room.rounds += 1;
            room.waiting = 0;
            room.verb = None;
            self.change.notify_all();
        }
        match &room.last {
            None => Ok(()),
            Some(error) => bail!("{error}"),
        }
    }

    /// A client has ended.
    fn leave(&self) {
        lock(&self.room).members -= 1;
        self.change.notify_all();
    }
}

/// Tells runs on one server apart.
fn nonce() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{:x}", now.unwrap_or_default().as_millis() & 0xfff_ffff)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn scenario() -> Scenario {
        let steps = ["one", "two"].map(|step| (step.to_string(), String::new()));
        Scenario {
            protocol: Protocol::Etcd,
            name: "x".into(),
            about: String::new(),
            rule: String::new(),
            link: false,
            faults: false,
            exclusive: false,
            place: Place::General,
            steps: steps.to_vec(),
        }
    }

    #[test]
    fn a_client_reports_every_step_in_order() {
        // The lines; how many are taken; the step that a failure is put down to.
        let check = |lines: &[&str], taken: usize, failed: Option<&str>| {
            let mut told = Told::default();
            let heard = lines
                .iter()
                .take_while(|line| told.hear(line, &scenario()).is_ok())
                .count();
            assert_eq!(
                (heard, told.failed.as_deref()),
                (taken, failed),
                "{lines:?}"
            );
        };
        check(&["ok one", "ok two", "done"], 3, None);
        check(&["ok one", "note x", "lacks two no call", "done"], 4, None);
        check(&["ok two"], 0, Some("one"));
        check(&["ok one", "done"], 1, Some("two"));
        check(&["ok one", "fail two it is not so"], 1, Some("two"));
        check(&["lacks one"], 0, Some("one"));
        check(&["ok one", "Traceback"], 1, Some("two"));
        check(&["lacks one x", "lacks two x", "done"], 2, None);
        check(&["done"], 0, Some("one"));
    }

    #[test]
    fn the_last_one_acts_once_for_all() {
        let meeting = Meeting::new(4, PATIENCE);
        let acts = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| meeting.leave());
            for _ in 0..3 {
                scope.spawn(|| {
                    let act = || {
                        acts.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    meeting.meet("restart", act).expect("met");
                    meeting.meet("kill", act).expect("met again");
                });
            }
        });
        assert_eq!(acts.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_fault_that_fails_is_told_to_all() {
        let meeting = Meeting::new(2, PATIENCE);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    assert!(meeting.meet("restart", || bail!("no")).is_err());
                });
            }
        });
    }

    #[test]
    fn one_who_loses_patience_counts_no_more() {
        let meeting = Meeting::new(3, Duration::from_millis(20));
        let acts = AtomicUsize::new(0);
        let act = || {
            acts.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        assert!(meeting.meet("restart", act).is_err());
        meeting.leave();
        // One of the two that are left comes, the other is still on its way.
        assert!(meeting.meet("kill", act).is_err());
        assert_eq!(acts.load(Ordering::SeqCst), 0);
        meeting.leave();
        meeting.meet("kill", act).expect("the last one");
        assert_eq!(acts.load(Ordering::SeqCst), 1);
    }
}
