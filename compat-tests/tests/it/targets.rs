//! Every kind of target serves, and does what its verbs say.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use causeway_compat_tests::clients::{output, python};
use causeway_compat_tests::link::Link;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::target::{self, Fault, Options, Running, catalogue};
use causeway_compat_tests::{Etcdctl, Work, until};

/// What is tried on a kind beside kill, start, stop, continue and restart.
#[derive(Clone, Copy, Default)]
struct Has {
    clock: bool,
    disk: bool,
}

fn check(kind: &str, has: Has) {
    Work::scenario(&format!("target-{kind}"), |work| {
        let options = Options {
            clock: has.clock,
            small_disk: has.disk,
            ..Options::default()
        };
        let mut target = target::start(work, kind, &options)?;
        let store = Store::of(&*target);
        let target = &mut *target;
        store.put("kept", "one")?;
        killed_and_started(target, &store)?;
        stopped_and_continued(target, &store)?;
        over_a_link(&store)?;
        if has.clock {
            clock_is_stepped(target, &store)?;
        } else {
            refused(target, "clock +30", "Options::clock")
                .or_else(|_| refused(target, "clock +30", "libfaketime cannot step"))?;
        }
        if has.disk {
            disk_is_filled(target, &store)?;
        } else {
            refused(target, "fill-disk", "Options::small_disk")?;
        }
        store.expect("kept", "one")?;
        act(target, "restart empty")?;
        store.expect("kept", "")?;
        refused(target, "kill 2", "member 2 of 1")?;
        refused(target, "legacy kill", "no such store")
    });
}

#[test]
fn zookeeper_3_9() {
    check(
        "zookeeper-3.9",
        Has {
            clock: true,
            disk: true,
        },
    );
}

#[test]
fn zookeeper_3_8() {
    check("zookeeper-3.8", Has::default());
}

#[test]
fn etcd_3_7() {
    check(
        "etcd-3.7",
        Has {
            disk: true,
            ..Has::default()
        },
    );
}

#[test]
fn etcd_3_4() {
    check("etcd-3.4", Has::default());
}

#[test]
fn causeway_embedded() {
    check(
        "causeway-embedded",
        Has {
            clock: true,
            disk: true,
        },
    );
}

/// An ensemble serves without one member and not without two; a member without data learns it again.
fn check_three(kind: &str, back_from_nothing: bool) {
    Work::scenario(&format!("target-{kind}"), |work| {
        let mut target = target::start(work, kind, &Options::default())?;
        let store = Store::of(&*target);
        let target = &mut *target;
        ensure!(
            store.addresses().iter().all(|list| list.len() == 3),
            "an address per member: {:?}",
            store.addresses()
        );
        store.put("kept", "one")?;
        act(target, "kill 1")?;
        store.until_put("without one", "two")?;
        act(target, "kill 2")?;
        store.takes_nothing("one of three decides nothing")?;
        act(target, "start 2")?;
        store.until_put("with two", "three")?;
        if back_from_nothing {
            act(target, "restart 1 empty")?;
        } else {
            refused(target, "restart 1 empty", "removed and added")?;
            act(target, "start 1")?;
        }
        let first = store.only(0);
        for (name, value) in [
            ("kept", "one"),
            ("without one", "two"),
            ("with two", "three"),
        ] {
            first.until(name, value)?;
        }
        act(target, "restart")?;
        store.until("with two", "three")?;
        act(target, "restart empty")?;
        store.until("with two", "")
    });
}

#[test]
fn zookeeper_3_9_x3() {
    check_three("zookeeper-3.9-x3", true);
}

#[test]
fn etcd_3_7_x3() {
    check_three("etcd-3.7-x3", false);
}

#[test]
fn a_gateway_and_what_is_behind_it_fail_apart() {
    Work::scenario("target-relay", |work| {
        let mut target = target::start(work, "causeway-relay", &Options::default())?;
        let store = Store::of(&*target);
        let target = &mut *target;
        store.put("kept", "one")?;
        act(target, "legacy kill")?;
        store.takes_nothing("a relay keeps nothing itself")?;
        refused(target, "start", "runs already")?;
        act(target, "legacy start")?;
        store.until("kept", "one")?;
        act(target, "restart")?;
        store.until("kept", "one")?;
        act(target, "legacy etcd restart empty")?;
        let ([zookeeper], [etcd]) = (&store.parts(true)[..], &store.parts(false)[..]) else {
            return Err(anyhow!("both protocols, not {:?}", store.addresses()));
        };
        etcd.until("kept", "")?;
        zookeeper.until("kept", "one")?;
        target.clear()?;
        store.until("kept", "")?;
        store.put("kept", "two")?;
        store.until("kept", "two")
    });
}

#[test]
fn etcd_grpc_proxy() {
    Work::scenario("target-grpc-proxy", |work| {
        let mut target = target::start(work, "etcd-grpc-proxy", &Options::default())?;
        let store = Store::of(&*target);
        let target = &mut *target;
        ensure!(
            target.version().contains("grpc-proxy"),
            "{}",
            target.version()
        );
        store.put("kept", "one")?;
        act(target, "restart")?;
        store.expect("kept", "one")?;
        refused(target, "restart empty", "keeps nothing")?;
        act(target, "legacy restart empty")?;
        store.until("kept", "")?;
        store.put("kept", "two")?;
        target.clear()?;
        store.until("kept", "")
    });
}

#[test]
fn a_gateway_serves_in_every_phase() {
    for kind in catalogue() {
        if kind.real || ["causeway-embedded", "causeway-relay"].contains(&kind.name) {
            continue;
        }
        Work::scenario(kind.name, |work| {
            let target = target::start(work, kind.name, &Options::default())?;
            let phase = kind.name.trim_start_matches("causeway-");
            ensure!(
                target
                    .version()
                    .contains(&format!("in phase {phase} before")),
                "{}",
                target.version()
            );
            let store = Store::of(&*target);
            store.put("kept", "one")?;
            store.expect("kept", "one")
        });
    }
}

#[test]
fn a_go_server_has_no_clock_to_step() {
    Work::scenario("target-go-clock", |work| {
        let options = Options {
            clock: true,
            ..Options::default()
        };
        let error = target::start(work, "etcd-3.4", &options).err();
        let error = format!("{:#}", error.context("it must not pretend")?);
        ensure!(error.contains("without libc"), "{error}");
        Ok(())
    });
}

#[test]
fn a_layout_claims_the_names_that_the_caller_gives() {
    Work::scenario("target-names", |work| {
        let options = Options {
            grpc_targets: vec!["first-target".into(), "second-target".into()],
            ..Options::default()
        };
        let target = target::start(work, "causeway-embedded", &options)?;
        let etcdctl = Etcdctl::new(&target.one_address(Protocol::Etcd)?);
        let registration = |name: &str| {
            let key = format!("{name}/10.20.3.1:9000");
            (key, "{\"Op\":0,\"Addr\":\"10.20.3.1:9000\"}".to_string())
        };
        let keys = ["first-target", "second-target", "third-target"].map(registration);
        let _held = etcdctl.register(work, "names", Duration::from_secs(20), &keys)?;
        let admin = format!("http://{}", target.admin().context("admin")?);
        let text = output(
            Command::new(target::binary()?).args(["services", "--json", "--admin", &admin]),
        )?;
        let (claimed, unclaimed) = text.split_once("\"unclaimed\"").context("unclaimed")?;
        for (name, claims) in [
            ("first-target", true),
            ("second-target", true),
            ("third-target", false),
        ] {
            let side = if claims { claimed } else { unclaimed };
            ensure!(side.contains(name), "{name}, claimed {claims}: {text}");
        }
        Ok(())
    });
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known() {
    Work::scenario("target-unknown", |work| {
        let error = target::start(work, "consul", &Options::default()).err();
        let error = format!("{:#}", error.context("there is no such target")?);
        for kind in catalogue() {
            ensure!(error.contains(kind.name), "{error}");
        }
        Ok(())
    });
}

fn killed_and_started(target: &mut dyn Running, store: &Store) -> Result<()> {
    refused(target, "start", "runs already")?;
    act(target, "kill")?;
    store.pulse(Pulse::Refuses)?;
    refused(target, "kill", "is down already")?;
    refused(target, "stop", "is down")?;
    act(target, "start")?;
    store.expect("kept", "one")?;
    act(target, "restart")?;
    store.expect("kept", "one")
}

fn stopped_and_continued(target: &mut dyn Running, store: &Store) -> Result<()> {
    refused(target, "continue", "is not stopped")?;
    act(target, "stop")?;
    store.pulse(Pulse::Hangs)?;
    refused(target, "stop", "stopped already")?;
    act(target, "continue")?;
    until(Duration::from_secs(10), "it goes on", || {
        store.pulse(Pulse::Answers)
    })
}

fn over_a_link(store: &Store) -> Result<()> {
    for part in [store.parts(true), store.parts(false)].concat() {
        let link = Link::start(&part.list().join(","))?;
        let far = part.at(link.address());
        far.expect("kept", "one")?;
        link.cut()?;
        far.pulse(Pulse::Refuses)?;
        link.blackhole()?;
        far.pulse(Pulse::Hangs)?;
        link.mend()?;
        far.pulse(Pulse::Answers)?;
        link.slow(Duration::from_millis(200))?;
        let begun = Instant::now();
        far.pulse(Pulse::Answers)?;
        let took = begun.elapsed();
        ensure!(
            took >= Duration::from_millis(400),
            "both ways are slow: {took:?}"
        );
    }
    Ok(())
}

/// The time of a write follows the clock: at once in ZooKeeper. Causeway reads the clock when it starts and goes
/// on by itself, so that its times never fall; there a restart shows the step.
fn clock_is_stepped(target: &mut dyn Running, store: &Store) -> Result<()> {
    const HOUR_MS: i64 = 3_600_000;
    const SLACK_MS: i64 = 120_000;
    let zookeeper = target.one_address(Protocol::ZooKeeper)?;
    let own = target.version().starts_with("causeway");
    let mut written = |verb: &str, restart: bool| -> Result<i64> {
        act(target, verb)?;
        if restart {
            act(target, "restart")?;
        }
        Ok(tree(&zookeeper, &["put", "/bench/clock", "tick"])?.parse()?)
    };
    let before = written("clock +0", false)?;
    let forth = written("clock +3600", own)? - before;
    ensure!((HOUR_MS..HOUR_MS + SLACK_MS).contains(&forth), "{forth} ms");
    let back = written("clock -3600", own)? - before;
    ensure!((0..SLACK_MS).contains(&back), "{back} ms");
    store.expect("kept", "one")
}

/// On a full disk a write fails where the client can see it; whatever was acknowledged before is there once
/// there is room again.
fn disk_is_filled(target: &mut dyn Running, store: &Store) -> Result<()> {
    refused(target, "free-disk", "was not filled")?;
    for part in [store.parts(true), store.parts(false)].concat() {
        act(target, "fill-disk")?;
        let large = "x".repeat(100_000);
        let mut acknowledged = Vec::new();
        let mut refusal = None;
        for number in 0..40 {
            let name = format!("large-{number}");
            match part.put(&name, &large) {
                Ok(()) => acknowledged.push(name),
                Err(error) => {
                    refusal = Some(format!("{error:#}"));
                    break;
                }
            }
        }
        let refusal = refusal.context("4 MB found room on a full disk")?;
        eprintln!(
            "{}: on a full disk {} writes are taken, then: {}",
            target.version(),
            acknowledged.len(),
            refusal.lines().last().unwrap_or_default()
        );
        act(target, "free-disk")?;
        act(target, "restart")?;
        part.expect("kept", "one")?;
        for name in acknowledged {
            part.expect(&name, &large)?;
        }
        part.put("room", "again")?;
    }
    Ok(())
}

fn act(target: &mut dyn Running, verb: &str) -> Result<()> {
    target.fault(&verb.parse::<Fault>()?)
}

fn refused(target: &mut dyn Running, verb: &str, reason: &str) -> Result<()> {
    let error = act(target, verb).err();
    let error = format!("{:#}", error.with_context(|| format!("{verb} was done"))?);
    ensure!(
        error.contains(verb) && error.contains(reason),
        "{verb}: {error}"
    );
    Ok(())
}

/// A kazoo application: `put PATH VALUE` prints the time of the write in milliseconds, `get PATH` the value.
const TREE: &str = r#"
import sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=10)
client.start(timeout=8)
if sys.argv[2] == "put":
    client.ensure_path(sys.argv[3])
    print(client.set(sys.argv[3], sys.argv[4].encode()).mtime)
elif client.exists(sys.argv[3]):
    client.sync(sys.argv[3])
    print(client.get(sys.argv[3])[0].decode())
client.stop()
"#;

fn tree(address: &str, args: &[&str]) -> Result<String> {
    tree_within(20, address, args)
}

fn tree_within(seconds: u32, address: &str, args: &[&str]) -> Result<String> {
    let text = output(
        Command::new("timeout")
            .arg(seconds.to_string())
            .arg(python())
            .args(["-c", TREE, address])
            .args(args),
    )?;
    Ok(text.trim().to_string())
}

/// What a server does with a question that needs no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pulse {
    Answers,
    Hangs,
    Refuses,
}

/// What a target serves, as a place for text under a name.
#[derive(Debug, Clone)]
struct Store {
    zookeeper: Option<String>,
    etcd: Option<String>,
}

impl Store {
    fn of(target: &dyn Running) -> Store {
        Store {
            zookeeper: target.address(Protocol::ZooKeeper),
            etcd: target.address(Protocol::Etcd),
        }
    }

    /// The part that speaks ZooKeeper's protocol, or etcd's; none or one.
    fn parts(&self, zookeeper: bool) -> Vec<Store> {
        let part = Store {
            zookeeper: self.zookeeper.clone().filter(|_| zookeeper),
            etcd: self.etcd.clone().filter(|_| !zookeeper),
        };
        let serves = part.zookeeper.is_some() || part.etcd.is_some();
        serves.then_some(part).into_iter().collect()
    }

    /// The same at another address.
    fn at(&self, address: &str) -> Store {
        let moved = |old: &Option<String>| old.as_ref().map(|_| address.to_string());
        Store {
            zookeeper: moved(&self.zookeeper),
            etcd: moved(&self.etcd),
        }
    }

    fn only(&self, member: usize) -> Store {
        let pick = |list: &Option<String>| {
            let one = list.as_ref()?.split(',').nth(member)?;
            Some(one.to_string())
        };
        Store {
            zookeeper: pick(&self.zookeeper),
            etcd: pick(&self.etcd),
        }
    }

    fn addresses(&self) -> Vec<Vec<String>> {
        [&self.zookeeper, &self.etcd]
            .into_iter()
            .flatten()
            .map(|list| list.split(',').map(str::to_string).collect())
            .collect()
    }

    fn list(&self) -> Vec<String> {
        self.addresses().concat()
    }

    fn put(&self, name: &str, value: &str) -> Result<()> {
        self.put_within(20, name, value)
    }

    fn put_within(&self, seconds: u32, name: &str, value: &str) -> Result<()> {
        if let Some(address) = &self.zookeeper {
            tree_within(seconds, address, &["put", &format!("/bench/{name}"), value])?;
        }
        if let Some(address) = &self.etcd {
            let limit = format!("--command-timeout={seconds}s");
            Etcdctl::new(address).run(&[&limit, "put", &format!("bench/{name}"), value])?;
        }
        Ok(())
    }

    /// Fails when any protocol takes a write.
    fn takes_nothing(&self, why: &str) -> Result<()> {
        for part in [true, false].into_iter().flat_map(|zk| self.parts(zk)) {
            ensure!(part.put_within(4, "lost", "x").is_err(), "{why}: {part:?}");
        }
        Ok(())
    }

    fn until_put(&self, name: &str, value: &str) -> Result<()> {
        until(Duration::from_secs(20), "a write is taken", || {
            self.put(name, value)
        })
    }

    /// Fails unless every protocol has `value` there, an empty text for nothing.
    fn expect(&self, name: &str, value: &str) -> Result<()> {
        let mut found = Vec::new();
        if let Some(address) = &self.zookeeper {
            found.push(tree(address, &["get", &format!("/bench/{name}")])?);
        }
        if let Some(address) = &self.etcd {
            let key = format!("bench/{name}");
            let text = Etcdctl::new(address).run(&["get", &key, "--print-value-only"])?;
            found.push(text.trim().to_string());
        }
        ensure!(!found.is_empty(), "the target serves nothing");
        ensure!(
            found.iter().all(|one| one == value),
            "{name} is {value:?}, not {found:?}"
        );
        Ok(())
    }

    fn until(&self, name: &str, value: &str) -> Result<()> {
        until(Duration::from_secs(20), "a read", || {
            self.expect(name, value)
        })
    }

    /// Fails unless every address has this pulse.
    fn pulse(&self, expected: Pulse) -> Result<()> {
        // To hang is to be silent for longer than an answer takes; an answer has time on a busy machine.
        let patience = Duration::from_millis(if expected == Pulse::Hangs { 700 } else { 5000 });
        let ask = |list: &Option<String>, question: &[u8]| -> Result<()> {
            for address in list.iter().flat_map(|list| list.split(',')) {
                let pulse = pulse(address, question, patience)?;
                ensure!(pulse == expected, "{address} {pulse:?}, not {expected:?}");
            }
            Ok(())
        };
        ask(&self.zookeeper, b"ruok")?;
        ask(&self.etcd, b"GET /health HTTP/1.0\r\n\r\n")
    }
}

fn pulse(address: &str, question: &[u8], patience: Duration) -> Result<Pulse> {
    let mut stream = match TcpStream::connect(address) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(Pulse::Refuses),
        Err(error) => return Err(error.into()),
    };
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(question)?;
    match stream.read(&mut [0; 16]) {
        Ok(0) => Err(anyhow!("{address} closes without a word")),
        Ok(_) => Ok(Pulse::Answers),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Pulse::Hangs),
        Err(error) => Err(error.into()),
    }
}
