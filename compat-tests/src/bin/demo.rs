//! The demonstration: a migration from the first phase to the last, on real stores and with unmodified
//! clients, told step by step. Whatever it says it has checked first; it ends with an error otherwise.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::clients::{Held, Leased};
use causeway_compat_tests::settings::{BRIDGED_TARGET, CURATOR_BASE, GRPC_TARGET, curator, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::wait::stays;
use causeway_compat_tests::{Gateway, Settings, Work, observe, until};

/// For what a client's reply waits for, and a little.
const SOON: Duration = Duration::from_secs(10);
/// For a step of the migration with its gates.
const STEP: Duration = Duration::from_secs(60);
/// Lease and session timeout of the clients.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Counts what was shown.
struct Story {
    begun: Instant,
    chapter: usize,
    shown: usize,
}

impl Story {
    fn chapter(&mut self, title: &str) {
        self.chapter += 1;
        println!(
            "\n{}. {title}   [{:.0} s]",
            self.chapter,
            self.begun.elapsed().as_secs_f32()
        );
    }

    /// Something that was just seen to be so.
    fn so(&mut self, what: &str) {
        self.shown += 1;
        println!("   + {what}");
    }

    /// Something that is said, and not checked.
    fn say(&self, what: &str) {
        println!("     {what}");
    }

    fn table(&self, text: &str) {
        for line in text.lines() {
            println!("     | {line}");
        }
    }
}

fn main() -> ExitCode {
    let mut story = Story {
        begun: Instant::now(),
        chapter: 0,
        shown: 0,
    };
    let outcome = Work::new("demo").and_then(|mut work| {
        let outcome = tell(&mut story, &work);
        if outcome.is_err() {
            work.print_logs();
            work.leave();
        }
        outcome
    });
    let failed = u32::from(outcome.is_err());
    if let Some(path) = std::env::var_os("CAUSEWAY_LEDGER") {
        let line = format!("demo\t{}\t{failed}\t0\n", story.shown as u32 + failed);
        if let Err(error) = std::fs::write(&path, line) {
            eprintln!("the ledger {path:?} cannot be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    match outcome {
        Ok(()) => {
            let took = story.begun.elapsed().as_secs();
            println!(
                "\nAll of it was so: {} things shown in {took} s.",
                story.shown
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nNOT SO, in chapter {}: {error:?}", story.chapter);
            ExitCode::FAILURE
        }
    }
}

struct Scene {
    legacy: Legacy,
    gateway: Gateway,
}

impl Scene {
    /// Names of the instances of `service` that a ZooKeeper client of the gateway sees.
    fn names(&self, service: &str) -> Result<Vec<String>> {
        self.gateway
            .target()
            .kazoo()
            .names(&format!("{CURATOR_BASE}/{service}"))
    }

    /// The same, straight from the real ZooKeeper.
    fn legacy_names(&self, service: &str) -> Result<Vec<String>> {
        self.legacy
            .zookeeper
            .kazoo()
            .names(&format!("{CURATOR_BASE}/{service}"))
    }

    /// Keys of the grpc target that an etcd client of the gateway sees.
    fn keys(&self) -> Result<Vec<String>> {
        self.gateway
            .target()
            .etcdctl()
            .keys(&format!("{GRPC_TARGET}/"))
    }

    /// The same, straight from the real etcd.
    fn legacy_keys(&self) -> Result<Vec<String>> {
        self.legacy.etcd.etcdctl().keys(&format!("{GRPC_TARGET}/"))
    }

    fn advance(&self, story: &mut Story, to: &str) -> Result<()> {
        let mut forced = None;
        until(STEP, &format!("advance to {to}"), || {
            if observe::phase(&self.gateway)? == to {
                return Ok(());
            }
            if let Err(error) = self.gateway.causeway(&["advance"]) {
                let text = format!("{error:#}");
                ensure!(text.contains("cannot tell"), "{text}");
                let reason = "demonstration: nobody else was given the stores' addresses";
                self.gateway
                    .causeway(&["advance", "--force", "--reason", reason])?;
                forced = Some(reason);
            }
            let phase = observe::phase(&self.gateway)?;
            ensure!(phase == to, "the phase is {phase}");
            Ok(())
        })?;
        match forced {
            None => story.so(&format!("`causeway advance`: the gates of {to} are met, the phase is {to}")),
            Some(reason) => story.so(&format!(
                "the census of direct users cannot tell, so `causeway advance` is refused; `--force --reason \
                 \"{reason}\"` is audited, and the phase is {to}"
            )),
        }
        Ok(())
    }

    fn everybody(&self, story: &mut Story, orders: &[&str], keys: usize) -> Result<()> {
        until(SOON, "everybody is seen", || {
            let names = self.names("orders")?;
            ensure!(names == orders, "ZooKeeper readers see {names:?}");
            let seen = self.keys()?;
            ensure!(seen.len() == keys, "etcd readers see {seen:?}");
            Ok(())
        })?;
        story.so(&format!(
            "readers of both protocols see everybody: {} and {keys} keys",
            orders.join(", ")
        ));
        Ok(())
    }
}

fn tell(story: &mut Story, work: &Work) -> Result<()> {
    story.chapter("A real ZooKeeper, a real etcd, and a gateway in front of both");
    let legacy = Legacy::start(work)?;
    let settings = Settings {
        quick_gates: true,
        quick_protection: true,
        bridge: true,
        ..legacy.settings("proxy")
    };
    let gateway = Gateway::start(work, "gateway", &settings)?;
    let mut scene = Scene { legacy, gateway };
    let target = scene.gateway.target();
    story.say(&format!(
        "ZooKeeper {}   etcd {}",
        scene.legacy.zookeeper.address(),
        scene.legacy.etcd.address()
    ));
    story.say(&format!(
        "gateway: ZooKeeper's protocol {}, etcd's {}",
        target.zookeeper, target.etcd
    ));
    ensure!(
        observe::phase(&scene.gateway)? == "proxy",
        "a fresh gateway is in proxy"
    );
    story.so("the gateway is in `proxy`: clients may be pointed at it, and the stores answer");

    story.chapter("Applications register, through the gateway and past it");
    let (orders, grpc_orders) = register(story, work, &scene)?;
    let straight = curator("orders", "straight", "10.20.0.9", 7000);
    let direct = scene.legacy.zookeeper.kazoo().register(
        work,
        "direct-zk",
        std::slice::from_ref(&straight),
    )?;
    let key = grpc("10.20.0.9", 9000);
    let direct_lease = scene.legacy.etcd.etcdctl().register(
        work,
        "direct-etcd",
        TIMEOUT,
        std::slice::from_ref(&key),
    )?;
    story.so("one more of each registers straight in the real stores, unaware of the gateway");
    let everyone = ["one", "straight", "two"];
    scene.everybody(story, &everyone, 3)?;
    let found = target.kazoo().discover(&format!("{CURATOR_BASE}/orders"))?;
    ensure!(
        found["straight"].value == straight.1,
        "byte for byte: {found:?}"
    );
    story.so(
        "the value that comes back through the gateway is the one that was written, byte for byte",
    );

    story.chapter("`mirror`: the new registry fills, the stores still answer");
    scene.advance(story, "mirror")?;
    let key_of_one = curator("orders", "one", "10.20.0.1", 7000).0;
    until(SOON, "both places have it", || {
        ensure!(
            observe::places(&scene.gateway, &key_of_one)?.registry,
            "the registry lacks {key_of_one}"
        );
        let key = grpc("10.20.0.1", 9000).0;
        ensure!(
            observe::places(&scene.gateway, &key)?.registry,
            "the registry lacks {key}"
        );
        Ok(())
    })?;
    story.so("each registration is in its home store and in the registry");
    let found = scene
        .legacy
        .zookeeper
        .kazoo()
        .discover(&format!("{CURATOR_BASE}/orders"))?;
    ensure!(
        found["one"].owner == orders.sessions[&key_of_one],
        "of the client's session: {found:?}"
    );
    story.so("in the real ZooKeeper it is an ephemeral node of the client's own session");
    let found = scene
        .legacy
        .etcd
        .etcdctl()
        .get(&format!("{GRPC_TARGET}/"))?;
    let lease = grpc_orders.number()?;
    ensure!(
        found[&grpc("10.20.0.1", 9000).0].lease == lease,
        "with the client's lease: {found:?}"
    );
    story.so("in the real etcd it hangs on the client's own lease");
    story.table(&scene.gateway.causeway(&["explain", &key_of_one])?);

    story.chapter("The take-over: from here on sessions, leases and numbers are Causeway's");
    let refused = scene
        .gateway
        .causeway(&["advance"])
        .err()
        .context("advance was not refused")?;
    ensure!(
        format!("{refused:#}").contains("take-over"),
        "it names the take-over: {refused:#}"
    );
    story.so("`causeway advance` to merge-legacy is refused: it names the take-over");
    scene.gateway.causeway(&["take-over"])?;
    scene.everybody(story, &everyone, 3)?;
    scene.advance(story, "merge-legacy")?;
    scene.everybody(story, &everyone, 3)?;
    story.table(&scene.gateway.causeway(&["services"])?);

    story.chapter("A bridge: what is registered in ZooKeeper is read as a grpc name in etcd");
    until(SOON, "the bridge shows the service", || {
        let pairs = target.etcdctl().get(&format!("{BRIDGED_TARGET}/"))?;
        ensure!(
            pairs
                .values()
                .any(|pair| pair.value.contains("10.20.0.1:7000")),
            "{pairs:?}"
        );
        Ok(())
    })?;
    story.so(
        "an etcd client finds 10.20.0.1:7000 under the grpc target, written by a ZooKeeper client",
    );
    until(SOON, "the bridge reaches the real etcd", || {
        let pairs = scene
            .legacy
            .etcd
            .etcdctl()
            .get(&format!("{BRIDGED_TARGET}/"))?;
        ensure!(
            pairs
                .values()
                .any(|pair| pair.value.contains("10.20.0.1:7000") && pair.lease != 0),
            "{pairs:?}"
        );
        Ok(())
    })?;
    story.so("so does a client that goes to the real etcd directly: there it hangs on a lease of the gateway's own");

    story.chapter("A mass disappearance: five of ten instances stop answering at once");
    mass_disappearance(story, work, &scene)?;

    story.chapter("`merge-new`: the registry answers, the stores follow. Both stores are killed");
    scene.advance(story, "merge-new")?;
    scene.legacy.zookeeper.kill();
    scene.legacy.etcd.kill();
    stays(TIMEOUT * 2, "everybody is seen", || {
        let (names, keys) = (scene.names("orders")?, scene.keys()?);
        ensure!(names == everyone && keys.len() == 3, "{names:?} {keys:?}");
        Ok(())
    })?;
    story.so("kill -9 of ZooKeeper and etcd: for twice the session timeout nobody disappears");
    let late = curator("orders", "late", "10.20.0.3", 7000);
    let late = target
        .kazoo()
        .register(work, "late", std::slice::from_ref(&late))?;
    scene.everybody(story, &["late", "one", "straight", "two"], 3)?;
    story.so("a new instance registers and is found while both stores are down");
    scene.legacy.zookeeper.restart()?;
    scene.legacy.etcd.restart()?;
    until(STEP, "the stores are made right", || {
        let (names, keys) = (scene.legacy_names("orders")?, scene.legacy_keys()?);
        ensure!(
            names.contains(&"late".to_string()),
            "ZooKeeper has {names:?}"
        );
        ensure!(
            keys.contains(&grpc("10.20.0.1", 9000).0),
            "etcd has {keys:?}"
        );
        Ok(())
    })?;
    story.so("the stores are back, and have been given what was registered in the meantime");

    story.chapter("`new`, and one step back: every step can be taken back");
    direct.close()?;
    direct_lease.revoke()?;
    scene.advance(story, "new")?;
    scene.gateway.causeway(&["rollback"])?;
    ensure!(
        observe::phase(&scene.gateway)? == "merge-new",
        "rolled back"
    );
    story.so("`causeway rollback`: merge-new again, and nothing is missing in the stores");
    scene.advance(story, "new")?;

    story.chapter("`drain` and `done`: the registrations leave the stores");
    scene.advance(story, "drain")?;
    until(STEP, "ours are withdrawn", || {
        let (names, keys) = (scene.legacy_names("orders")?, scene.legacy_keys()?);
        ensure!(
            names.is_empty() && keys.is_empty(),
            "left: {names:?} {keys:?}"
        );
        Ok(())
    })?;
    story.so("the real stores hold none of our registrations any more");
    scene.advance(story, "done")?;
    scene.legacy.zookeeper.kill();
    scene.legacy.etcd.kill();
    story.say("both stores are killed for good");
    let ours = ["late", "one", "two"];
    stays(TIMEOUT * 2, "everybody is seen", || {
        let (names, keys) = (scene.names("orders")?, scene.keys()?);
        ensure!(names == ours && keys.len() == 2, "{names:?} {keys:?}");
        Ok(())
    })?;
    story.so("clients of both protocols go on finding everybody, for twice the session timeout");
    late.deregister()?;
    until(SOON, "a goodbye", || {
        let names = scene.names("orders")?;
        ensure!(names == ["one", "two"], "{names:?}");
        Ok(())
    })?;
    story.so("an instance says goodbye and is gone at once");
    story.table(&scene.gateway.causeway(&["status"])?);
    let status = scene.gateway.terminate(SOON)?;
    ensure!(status.success(), "the gateway ended with {status}");
    story.so("SIGTERM: the gateway drains and ends well");
    Ok(())
}

fn register(story: &mut Story, work: &Work, scene: &Scene) -> Result<(Held, Leased)> {
    let target = scene.gateway.target();
    let nodes = [
        curator("orders", "one", "10.20.0.1", 7000),
        curator("orders", "two", "10.20.0.2", 7000),
    ];
    let held = target.kazoo().register(work, "orders-zk", &nodes)?;
    story.so("kazoo registers two instances in Curator's layout through the gateway");
    let keys = [grpc("10.20.0.1", 9000), grpc("10.20.0.2", 9000)];
    let leased = target
        .etcdctl()
        .register(work, "orders-etcd", TIMEOUT, &keys)?;
    story.so("etcdctl registers two endpoints of a grpc target, with a lease, through the gateway");
    Ok((held, leased))
}

fn mass_disappearance(story: &mut Story, work: &Work, scene: &Scene) -> Result<()> {
    let kazoo = scene.gateway.target().kazoo();
    let nodes: Vec<_> = (0..10)
        .map(|n| curator("stock", &format!("s{n}"), &format!("10.20.7.{n}"), 7000))
        .collect();
    let doomed = kazoo.register(work, "stock-doomed", &nodes[..5])?;
    let safe = kazoo.register(work, "stock-safe", &nodes[5..])?;
    until(STEP, "ten are expected", || {
        let found = observe::service(&scene.gateway, "stock")?.unwrap_or_default();
        ensure!(found.expected == 10, "{found:?}");
        Ok(())
    })?;
    story.so("`stock` has ten instances, and the gateway has learnt to expect ten");
    doomed.kill();
    until(SOON + TIMEOUT, "the five are held", || {
        let found = observe::service(&scene.gateway, "stock")?.unwrap_or_default();
        ensure!(found.protected && found.held == 5, "{found:?}");
        Ok(())
    })?;
    let names = scene.names("stock")?;
    ensure!(names.len() == 10, "{names:?}");
    story.so(
        "kill -9 of five of them: 50% is more than 40%, so none is removed, and an alarm stands",
    );
    story.table(&scene.gateway.causeway(&["services"])?);
    let back = kazoo.register(work, "stock-back", &nodes[..5])?;
    until(SOON, "they are back", || {
        let found = observe::service(&scene.gateway, "stock")?.unwrap_or_default();
        ensure!(found.held == 0 && found.live == 10, "{found:?}");
        Ok(())
    })?;
    story.so(
        "they start again and register over what was held: ten live ones, and no reader saw fewer",
    );
    back.deregister()?;
    safe.deregister()?;
    until(SOON, "all say goodbye", || {
        let names = scene.names("stock")?;
        ensure!(names.is_empty(), "{names:?}");
        Ok(())
    })?;
    story.so("all ten say goodbye themselves: that is obeyed at once, even though it is everybody");
    Ok(())
}
