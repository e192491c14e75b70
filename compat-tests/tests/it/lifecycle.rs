//! Stopping, killing and starting the gateway itself.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::settings::{CURATOR_BASE, GRPC_TARGET, curator, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::{Gateway, Settings, Work, until};

use crate::drop_in::AT_ONCE;

/// Long enough that a restart fits into it.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn it_starts_at_once() {
    Work::scenario("start", |work| {
        let begun = Instant::now();
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let took = begun.elapsed();
        // A second on an idle machine; a test machine is not idle.
        ensure!(took < Duration::from_secs(10), "it took {took:?}");
        ensure!(
            gateway.target().kazoo().names("/")? == ["zookeeper"],
            "an empty tree"
        );
        Ok(())
    });
}

/// Sessions, leases and records outlive the gateway's process, whether it is killed or told to stop.
fn keeps_its_clients(
    name: &str,
    settings: impl Fn(&Work) -> Result<(Option<Legacy>, Settings)>,
    stop: fn(&mut Gateway) -> Result<()>,
) {
    Work::scenario(name, |work| {
        let (_legacy, settings) = settings(work)?;
        let mut gateway = Gateway::start(work, "gateway", &settings)?;
        let target = gateway.target();
        let mut kazoo = target.kazoo();
        kazoo.timeout = LONG;
        let nodes = [
            curator("lasting", "one", "10.20.3.1", 7000),
            curator("lasting", "two", "10.20.3.2", 7000),
        ];
        let key = grpc("10.20.3.1", 9000);
        let mut held = kazoo.register(work, "lasting-zk", &nodes)?;
        let leased =
            target
                .etcdctl()
                .register(work, "lasting-etcd", LONG, std::slice::from_ref(&key))?;
        let before = kazoo.discover(&format!("{CURATOR_BASE}/lasting"))?;
        let revision = target.etcdctl().get(&key.0)?[&key.0].mod_revision;

        stop(&mut gateway)?;
        gateway.restart()?;

        for _ in &nodes {
            let state = held
                .program
                .expect_that(STEP, "a session comes back", |line| {
                    (line.ends_with("CONNECTED") || line.ends_with("LOST"))
                        .then(|| line.to_string())
                })?;
            ensure!(state.ends_with("CONNECTED"), "no session is lost: {state}");
        }
        let after = kazoo.discover(&format!("{CURATOR_BASE}/lasting"))?;
        ensure!(
            after == before,
            "the same nodes of the same sessions: {before:?} {after:?}"
        );
        let found = target.etcdctl().get(&format!("{GRPC_TARGET}/"))?;
        ensure!(
            found[&key.0].lease == leased.number()?,
            "the same lease: {found:?}"
        );
        ensure!(
            found[&key.0].mod_revision >= revision,
            "revisions do not fall: {found:?}"
        );

        held.deregister()?;
        until(AT_ONCE, "a goodbye still works", || {
            let names = kazoo.names(&format!("{CURATOR_BASE}/lasting"))?;
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })?;
        leased.revoke()
    });
}

fn killed(gateway: &mut Gateway) -> Result<()> {
    gateway.kill();
    Ok(())
}

fn drained(gateway: &mut Gateway) -> Result<()> {
    let begun = Instant::now();
    let status = gateway.terminate(Duration::from_secs(15))?;
    ensure!(
        status.success(),
        "SIGTERM ends it well, not with {status}: {:?}",
        begun.elapsed()
    );
    Ok(())
}

fn alone(_: &Work) -> Result<(Option<Legacy>, Settings)> {
    Ok((None, Settings::default()))
}

fn merge_new(work: &Work) -> Result<(Option<Legacy>, Settings)> {
    let legacy = Legacy::start(work)?;
    let settings = legacy.settings("merge-new");
    Ok((Some(legacy), settings))
}

fn mirror(work: &Work) -> Result<(Option<Legacy>, Settings)> {
    let legacy = Legacy::start(work)?;
    let settings = legacy.settings("mirror");
    Ok((Some(legacy), settings))
}

#[test]
fn killed_alone() {
    keeps_its_clients("killed-alone", alone, killed);
}

#[test]
fn drained_alone() {
    keeps_its_clients("drained-alone", alone, drained);
}

#[test]
fn killed_in_merge_new() {
    keeps_its_clients("killed-merge-new", merge_new, killed);
}

#[test]
fn drained_in_merge_new() {
    keeps_its_clients("drained-merge-new", merge_new, drained);
}

#[test]
fn killed_in_mirror() {
    keeps_its_clients("killed-mirror", mirror, killed);
}

#[test]
fn the_phase_of_a_data_folder_outlives_the_flag() {
    Work::scenario("phase-kept", |work| {
        let legacy = Legacy::start(work)?;
        let mut gateway = Gateway::start(work, "gateway", &legacy.settings("proxy"))?;
        gateway.causeway(&["advance"])?;
        gateway.restart()?;
        let phase = causeway_compat_tests::observe::phase(&gateway)?;
        ensure!(
            phase == "mirror",
            "--phase is for a fresh folder only; it is {phase}"
        );
        Ok(())
    });
}
