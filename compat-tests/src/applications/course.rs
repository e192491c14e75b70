//! What happens to the applications, the same on every target.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::cast::{CONSUMER, Cast};
use super::{Framework, SESSION_MS, log};
use crate::clients::output;
use crate::process::Work;
use crate::protocol::Protocol;
use crate::target::{self, Fault, Options, Running, Stores};
use crate::wait::{stays, until};

/// A target, and what is done to it while the applications run.
#[derive(Debug)]
pub struct Course {
    /// Its name on the command line: the target's, unless phase steps make it another.
    pub name: String,
    /// The target.
    target: &'static str,
    /// Commands of the operator between two restarts: `take-over`, phases to advance to, and `back PHASE`.
    steps: &'static [&'static str],
    /// Whether the consumer is stopped while the provider that died is still listed, as it is where Causeway holds it.
    early: bool,
    /// The server is away for longer than leases last, instead of a shorter restart.
    pub outage: bool,
    /// `kill -9` of the gateway and of its etcd by turns between the steps.
    killed: bool,
    /// Only applications on this protocol take part.
    only: Option<Protocol>,
    /// Whether this is a real server, against which the others are held.
    pub real: bool,
}

/// From `proxy` to the end; the first four end in `merge-new`.
const WAY: &[&str] = &[
    "mirror",
    "take-over",
    "merge-legacy",
    "merge-new",
    "new",
    "drain",
    "done",
];

/// The same with a step back.
const WAY_AND_BACK: &[&str] = &[
    "mirror",
    "take-over",
    "merge-legacy",
    "merge-new",
    "back merge-legacy",
    "merge-new",
    "new",
    "drain",
    "done",
];

/// Every course: each target as it is, outages, and the way through the phases.
pub fn courses() -> Vec<Course> {
    let of = |kind: &'static target::Kind| Course {
        name: kind.name.to_string(),
        target: kind.name,
        steps: &[],
        early: false,
        outage: false,
        killed: false,
        only: None,
        real: kind.real,
    };
    let relay = |name: &str, steps| Course {
        name: name.to_string(),
        target: "causeway-relay",
        steps,
        early: false,
        outage: false,
        killed: false,
        only: None,
        real: false,
    };
    // What takes longest comes first, so that the others are done beside it.
    let mut courses = vec![Course {
        killed: true,
        only: Some(Protocol::Etcd),
        ..relay("killed-way", WAY_AND_BACK)
    }];
    // An ensemble that is killed whole needs longer than the sessions have to elect a leader; go-zero takes no etcd as old as 3.4;
    // etcd's proxy is no model, and loses watches in a restart.
    let applicable = |kind: &&target::Kind| {
        !kind.name.ends_with("-x3") && !["etcd-3.4", "etcd-grpc-proxy"].contains(&kind.name)
    };
    for kind in target::catalogue().iter().filter(applicable) {
        if kind.etcd {
            courses.push(Course {
                name: format!("{}-outage", kind.name),
                outage: true,
                only: Some(Protocol::Etcd),
                ..of(kind)
            });
        }
        courses.push(of(kind));
        if kind.name == "zookeeper-3.9" {
            courses.push(Course {
                name: "zookeeper-3.9-early".to_string(),
                early: true,
                ..of(kind)
            });
        }
    }
    courses.push(relay("take-over", &WAY[..4]));
    courses.push(relay("whole-way", WAY));
    courses
}

/// How one framework came through a course.
#[derive(Debug)]
pub struct Heard {
    /// The framework.
    pub framework: &'static Framework,
    /// What its applications logged, as [`log::messages`] gives it.
    pub messages: BTreeSet<String>,
    /// How often each application wrote into the registry, by its name and the call.
    pub writes: BTreeMap<String, usize>,
}

/// The server is away for so long at a restart: long enough for every client to notice, short enough for every session.
const AWAY: Duration = Duration::from_secs(3);
/// The server is away for so long in an outage: every owner has given its lease up, and none its tries to register again (Kratos
/// makes five, of 3 s each).
const OUTAGE: Duration = Duration::from_millis(SESSION_MS as u64 + 1_500);
/// A list that has to change changes within this. Dubbo collects changes for some seconds, and asks again after ten.
const FOLLOWS: Duration = Duration::from_secs(40);
/// Every session that has not come back is over after this: its timeout, and the ticks of a server that rounds up.
const EXPIRES: Duration = Duration::from_millis(SESSION_MS as u64 + 4_000);
/// Longest until a dead provider is out of the lists.
const GONE: Duration = Duration::from_millis(SESSION_MS as u64 + 20_000);
/// Long enough for a step's own doings: connections closed and opened again, lists read anew.
const SETTLES: Duration = Duration::from_secs(5);

/// The last provider of a service goes at its timeout as any other, and though other services lose theirs too.
const NO_HOLD: &str =
    "[protection]\nlast_instance_services_percent = 100\n[protection.rule]\nlast_instance_ms = 1\n";

/// Plays a course with those of the `frameworks` that take part, side by side on one target.
///
/// # Errors
/// What an application should have seen and did not, or the bench itself failed.
pub fn run(
    work: &Work,
    course: &Course,
    frameworks: &[&'static Framework],
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Vec<Heard>> {
    let mut options = Options::default();
    options.settings.quick_gates = true;
    let held = holds(course);
    if held {
        // Expected sizes are known at once, so that a last provider is held by rule and not by the time of the run.
        options.settings.quick_protection = true;
    } else {
        options.settings.extra = NO_HOLD.to_string();
    }
    // As the real server beside it; go-zero refuses an etcd two minor releases older than its client.
    options.settings.extra += "[etcd]\nversion = \"3.7.3\"\n";
    let mut target = target::start(work, course.target, &options)?;
    let mut stage = Stage {
        casts: Vec::new(),
        start: Instant::now(),
        tell,
    };
    for framework in frameworks.iter().filter(|f| course.plays(f)) {
        let address = target
            .address(framework.protocol)
            .with_context(|| format!("{} does not speak {}", course.target, framework.protocol))?;
        stage.casts.push(Cast::new(framework, work, &address));
    }
    stage.come_up()?;

    if course.outage {
        stage.outage(target.as_mut())?;
    } else {
        stage.restart(target.as_mut())?;
    }
    for (at, step) in course.steps.iter().enumerate() {
        if course.killed && at % 2 == 0 {
            stage.restart_store(target.as_mut())?;
        } else if course.killed {
            stage.restart(target.as_mut())?;
        }
        stage.step(target.as_ref(), step)?;
    }
    if !course.steps.is_empty() {
        stage.restart(target.as_mut())?;
    }
    stage.calm(EXPIRES, "for a session's time")?;

    stage.leave("b")?;
    if course.early {
        stage.each(|cast| cast.kill("a"))?;
    } else {
        stage.die("a", held.then_some(target.as_ref()))?;
    }
    stage.end()?;
    stage
        .casts
        .iter_mut()
        .map(|cast| {
            let mut messages = BTreeSet::new();
            for name in ["a", "b", CONSUMER] {
                let text = fs::read_to_string(cast.log(name))?;
                messages.append(&mut log::messages(&text, &work.dir().display().to_string()));
            }
            Ok(Heard {
                framework: cast.framework,
                messages,
                writes: cast.writes()?,
            })
        })
        .collect()
}

/// Whether Causeway's protection holds the last provider. Not before the take-over, when the ensemble decides; and not on the
/// target that is to be as the real server in this too, so that the applications see an empty list on it.
fn holds(course: &Course) -> bool {
    let before = ["causeway-relay", "causeway-mirror"].contains(&course.target);
    let stays_before = before && !course.steps.contains(&"take-over");
    !course.real && course.target != "causeway-embedded" && !stays_before
}

struct Stage<'a> {
    casts: Vec<Cast<'a>>,
    start: Instant,
    tell: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Stage<'a> {
    fn say(&self, what: &str) {
        (self.tell)(&format!(
            "{:5.1} s  {what}",
            self.start.elapsed().as_secs_f32()
        ));
    }

    fn each(&mut self, mut act: impl FnMut(&mut Cast<'a>) -> Result<()>) -> Result<()> {
        self.casts
            .iter_mut()
            .try_for_each(|cast| act(cast).with_context(|| cast.framework.name))
    }

    /// Starts a provider, the consumer, and the second provider, and sees that they find each other.
    fn come_up(&mut self) -> Result<()> {
        // Starting is what costs; more at a time would run into the frameworks' own timeouts.
        static STARTING: Mutex<()> = Mutex::new(());
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        self.start("a")?;
        self.each(|cast| cast.start(CONSUMER))?;
        self.each(|cast| cast.ready(CONSUMER))?;
        self.found("the consumer finds it and calls it")?;
        self.start("b")?;
        self.found("the consumer finds both and calls both")
    }

    fn start(&mut self, name: &'static str) -> Result<()> {
        self.each(|cast| cast.start(name))?;
        self.each(|cast| cast.ready(name))?;
        self.each(|cast| {
            cast.listed.insert(name);
            Ok(())
        })?;
        self.say(&format!("{name} is up"));
        Ok(())
    }

    /// Waits until every list is as it is due, and everyone in it was called since.
    fn found(&mut self, what: &str) -> Result<()> {
        until(FOLLOWS, what, || self.each(Cast::lists_are_due))?;
        self.each(Cast::mark)?;
        until(FOLLOWS, what, || {
            self.each(|cast| {
                let listed = cast.listed.clone();
                cast.all_are_called(&listed)
            })
        })?;
        self.say(what);
        Ok(())
    }

    /// Kills the server, and starts it again while every session could still come back.
    fn restart(&mut self, target: &mut dyn Running) -> Result<()> {
        self.each(Cast::mark)?;
        target.fault(&Fault::Kill)?;
        std::thread::sleep(AWAY);
        target.fault(&Fault::Start)?;
        self.reconnect("the restart")
    }

    /// Kills the etcd behind the gateway, and starts it again.
    fn restart_store(&mut self, target: &mut dyn Running) -> Result<()> {
        let store = |fault| Fault::Legacy(Stores::Etcd, Box::new(fault));
        self.each(Cast::mark)?;
        target.fault(&store(Fault::Kill))?;
        std::thread::sleep(AWAY);
        target.fault(&store(Fault::Start))?;
        self.reconnect("the store's restart")
    }

    /// Kills the server, and starts it again when every lease that it had is over for its owner. Everyone registers once more: at
    /// once, or when the old lease is over.
    fn outage(&mut self, target: &mut dyn Running) -> Result<()> {
        self.each(Cast::mark)?;
        target.fault(&Fault::Kill)?;
        std::thread::sleep(OUTAGE);
        target.fault(&Fault::Start)?;
        stays(EXPIRES, "steady after the outage", || {
            self.each(|cast| {
                if cast.framework.blinks {
                    return Ok(());
                }
                cast.steady()
            })
        })?;
        self.found("everything is as before the outage")
    }

    /// A command of the operator.
    fn step(&mut self, target: &dyn Running, step: &str) -> Result<()> {
        self.each(Cast::mark)?;
        let operator = Operator::of(target)?;
        if step == "take-over" {
            operator.causeway(&["take-over"])?;
            // It closes every connection once.
            return self.reconnect(step);
        }
        match step.strip_prefix("back ") {
            Some(phase) => operator.back(phase)?,
            None => operator.advance(step)?,
        }
        self.calm(SETTLES, &format!("after {step}"))
    }

    /// Connections were lost: clients come back, and everything is as before.
    fn reconnect(&mut self, after: &str) -> Result<()> {
        stays(SETTLES, &format!("steady after {after}"), || {
            self.each(Cast::steady)
        })?;
        until(FOLLOWS, &format!("everything as before {after}"), || {
            self.each(Cast::lists_are_due)
        })?;
        let mut noticed = Vec::new();
        self.each(|cast| {
            noticed.push(cast.noticed()?);
            Ok(())
        })?;
        self.say(&format!("after {after}: {}", noticed.join("; ")));
        self.found(&format!("everything is as before {after}"))
    }

    /// For all of `span` nobody notices anything: no list changes, no call fails; and everyone was called at its end.
    fn calm(&mut self, span: Duration, when: &str) -> Result<()> {
        stays(span, when, || self.each(Cast::nothing_noticed))?;
        self.each(Cast::nothing_noticed)?;
        self.each(|cast| {
            let listed = cast.listed.clone();
            cast.all_are_called(&listed)
        })
        .with_context(|| when.to_string())?;
        self.say(&format!("nobody noticed anything {when}"));
        Ok(())
    }

    /// A provider is stopped as by its platform: it is out of the lists at once.
    fn leave(&mut self, name: &'static str) -> Result<()> {
        self.each(|cast| {
            cast.listed.remove(name);
            cast.stop(name)
        })?;
        until(FOLLOWS, &format!("{name} is out of the lists"), || {
            self.each(Cast::lists_are_due)
        })?;
        self.each(|cast| cast.ended(name))?;
        self.found(&format!("{name} left; the consumer calls the other"))
    }

    /// A provider dies: it is out of the lists when its session is over. When `holding`, it was the last one, and
    /// Causeway goes on showing it.
    fn die(&mut self, name: &'static str, holding: Option<&dyn Running>) -> Result<()> {
        self.each(|cast| cast.kill(name))?;
        let Some(target) = holding else {
            self.each(|cast| {
                cast.listed.remove(name);
                Ok(())
            })?;
            until(GONE, &format!("{name} is out of the lists"), || {
                self.each(Cast::lists_are_due)
            })?;
            self.say(&format!("{name} died and is out of the lists"));
            return Ok(());
        };
        let operator = Operator::of(target)?;
        let services: Vec<&str> = self
            .casts
            .iter()
            .flat_map(|cast| cast.framework.services)
            .copied()
            .collect();
        until(GONE, &format!("{name} is held"), || {
            self.each(Cast::lists_are_due)?;
            let held = operator.held()?;
            for service in &services {
                ensure!(
                    held.get(*service) == Some(&1),
                    "{service}: held are {held:?}"
                );
            }
            Ok(())
        })?;
        // A consumer that was told otherwise would say so by now.
        stays(SETTLES, &format!("{name} is shown"), || {
            self.each(Cast::lists_are_due)
        })?;
        self.say(&format!("{name} died and is held, as the last one"));
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.each(|cast| cast.stop(CONSUMER))?;
        self.each(|cast| cast.ended(CONSUMER))?;
        self.say("the consumer is stopped");
        Ok(())
    }
}

/// Who gives the commands of an operator.
struct Operator {
    admin: String,
}

impl Operator {
    fn of(target: &dyn Running) -> Result<Operator> {
        let admin = target.admin().context("the target has no operator")?;
        Ok(Operator {
            admin: format!("http://{admin}"),
        })
    }

    fn causeway(&self, arguments: &[&str]) -> Result<String> {
        output(
            Command::new(target::binary()?)
                .args(arguments)
                .args(["--admin", &self.admin]),
        )
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.causeway(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed {text}"))
    }

    /// To a phase, by one step.
    fn advance(&self, phase: &str) -> Result<()> {
        until(
            Duration::from_secs(60),
            &format!("advance to {phase}"),
            || {
                if let Err(error) = self.causeway(&["advance"]) {
                    // Nobody but the applications uses the store here, which no measure can tell.
                    ensure!(format!("{error:#}").contains("census"), "{error:#}");
                    self.causeway(&[
                        "advance",
                        "--force",
                        "--reason",
                        "nobody else uses the store",
                    ])?;
                }
                let now = self.json(&["status"])?["phase"].clone();
                ensure!(now == phase, "the phase is {now}");
                Ok(())
            },
        )
    }

    /// Back to a phase, by one step.
    fn back(&self, phase: &str) -> Result<()> {
        until(Duration::from_secs(60), &format!("back to {phase}"), || {
            self.causeway(&["rollback"])?;
            let now = self.json(&["status"])?["phase"].clone();
            ensure!(now == phase, "the phase is {now}");
            Ok(())
        })
    }

    /// How many instances of each service are held.
    fn held(&self) -> Result<BTreeMap<String, u64>> {
        let reply = self.json(&["services"])?;
        let services = reply["services"].as_array().context("services")?;
        Ok(services
            .iter()
            .filter_map(|service| {
                let name = service["service"].as_str()?.to_string();
                Some((name, service["held"].as_u64()?))
            })
            .collect())
    }
}

impl Course {
    /// Whether applications of the framework take part.
    pub fn plays(&self, framework: &Framework) -> bool {
        let protocol = framework.protocol;
        self.only.is_none_or(|only| only == protocol)
            && target::kind(self.target).is_ok_and(|kind| kind.speaks(protocol))
    }
}
