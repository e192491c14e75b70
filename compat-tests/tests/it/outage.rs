//! The legacy stores die, hang or come back while clients work.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::{Held, Leased, STEP};
use causeway_compat_tests::settings::{CURATOR_BASE, GRPC_TARGET, curator, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::wait::stays;
use causeway_compat_tests::{Gateway, Program, Work, until};

use crate::drop_in::{AT_ONCE, TIMEOUT};

/// Longer than every session timeout and lease here: whoever depends on the store has lost it by then.
const OUTAGE: Duration = Duration::from_secs(15);

struct Clients {
    zookeeper: Held,
    etcd: Leased,
    watch_zookeeper: Program,
    watch_etcd: Program,
}

fn clients(work: &Work, gateway: &Gateway) -> Result<Clients> {
    let target = gateway.target();
    let nodes = [
        curator("steady", "one", "10.20.8.1", 7000),
        curator("steady", "two", "10.20.8.2", 7000),
    ];
    let keys = [grpc("10.20.8.1", 9000), grpc("10.20.8.2", 9000)];
    Ok(Clients {
        zookeeper: target.kazoo().register(work, "steady-zk", &nodes)?,
        etcd: target
            .etcdctl()
            .register(work, "steady-etcd", TIMEOUT, &keys)?,
        watch_zookeeper: target.kazoo().watch(
            work,
            "steady-watch-zk",
            &format!("{CURATOR_BASE}/steady"),
        )?,
        watch_etcd: target.etcdctl().watch(
            work,
            "steady-watch-etcd",
            &format!("{GRPC_TARGET}/"),
        )?,
    })
}

fn both_are_seen(gateway: &Gateway) -> Result<()> {
    let target = gateway.target();
    let names = target.kazoo().names(&format!("{CURATOR_BASE}/steady"))?;
    ensure!(names == ["one", "two"], "ZooKeeper readers see {names:?}");
    let keys = target.etcdctl().keys(&format!("{GRPC_TARGET}/10.20.8."))?;
    ensure!(keys.len() == 2, "etcd readers see {keys:?}");
    Ok(())
}

#[test]
fn killing_both_stores_in_merge_new_disturbs_nobody() {
    Work::scenario("outage", |work| {
        let mut legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings("merge-new"))?;
        let mut clients = clients(work, &gateway)?;
        both_are_seen(&gateway)?;
        clients.zookeeper.program.drain();
        clients.watch_zookeeper.drain();
        clients.watch_etcd.drain();

        legacy.zookeeper.kill();
        legacy.etcd.kill();
        stays(OUTAGE, "readers see both instances", || {
            both_are_seen(&gateway)
        })?;

        // A newcomer registers, is seen by the watchers, and leaves again.
        let target = gateway.target();
        let node = curator("steady", "three", "10.20.8.3", 7000);
        let key = grpc("10.20.8.3", 9000);
        let held = target
            .kazoo()
            .register(work, "newcomer-zk", std::slice::from_ref(&node))?;
        let leased = target.etcdctl().register(
            work,
            "newcomer-etcd",
            TIMEOUT,
            std::slice::from_ref(&key),
        )?;
        clients
            .watch_zookeeper
            .expect("children one,three,two", STEP)?;
        clients.watch_etcd.expect(&key.0, STEP)?;
        held.deregister()?;
        leased.revoke()?;
        clients
            .watch_zookeeper
            .expect("children one,two", AT_ONCE)?;
        clients.watch_etcd.expect("DELETE", AT_ONCE)?;

        for program in [&mut clients.zookeeper.program, &mut clients.watch_zookeeper] {
            let lines = program.drain();
            ensure!(
                !lines.iter().any(|line| line.starts_with("state")),
                "no connection broke: {lines:?}"
            );
        }
        ensure!(
            clients.etcd.keeper.drain().len() > 2,
            "the lease was kept alive all the time"
        );

        // Back again, with what they had: nothing changes for readers, and the stores are made right.
        legacy.zookeeper.restart()?;
        legacy.etcd.restart()?;
        until(
            Duration::from_secs(30),
            "the stores have the registrations again",
            || {
                let found = legacy
                    .zookeeper
                    .kazoo()
                    .discover(&format!("{CURATOR_BASE}/steady"))?;
                ensure!(
                    found.keys().collect::<Vec<_>>() == ["one", "two"],
                    "ZooKeeper: {found:?}"
                );
                ensure!(
                    found.values().all(|node| node.owner != 0),
                    "ephemeral: {found:?}"
                );
                let found = legacy
                    .etcd
                    .etcdctl()
                    .get(&format!("{GRPC_TARGET}/10.20.8."))?;
                ensure!(
                    found.len() == 2 && found.values().all(|pair| pair.lease != 0),
                    "etcd: {found:?}"
                );
                Ok(())
            },
        )?;
        both_are_seen(&gateway)
    });
}

#[test]
fn stores_that_come_back_empty_remove_nothing() {
    Work::scenario("outage-empty", |work| {
        let mut legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings("merge-new"))?;
        let _clients = clients(work, &gateway)?;
        both_are_seen(&gateway)?;
        legacy.zookeeper.wipe()?;
        legacy.etcd.wipe()?;
        stays(
            Duration::from_secs(10),
            "readers see both instances",
            || both_are_seen(&gateway),
        )?;
        until(
            Duration::from_secs(30),
            "the empty stores are filled again",
            || {
                let found = legacy
                    .zookeeper
                    .kazoo()
                    .names(&format!("{CURATOR_BASE}/steady"))?;
                ensure!(found == ["one", "two"], "ZooKeeper: {found:?}");
                let found = legacy
                    .etcd
                    .etcdctl()
                    .keys(&format!("{GRPC_TARGET}/10.20.8."))?;
                ensure!(found.len() == 2, "etcd: {found:?}");
                Ok(())
            },
        )
    });
}

#[test]
fn stores_that_hang_do_not_hang_registrations() {
    Work::scenario("outage-hang", |work| {
        let mut legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings("merge-new"))?;
        let _clients = clients(work, &gateway)?;
        legacy.zookeeper.server().freeze(true);
        legacy.etcd.server().freeze(true);
        stays(Duration::from_secs(8), "readers see both instances", || {
            both_are_seen(&gateway)
        })?;
        let node = curator("steady", "three", "10.20.8.3", 7000);
        let target = gateway.target();
        let held = target
            .kazoo()
            .register(work, "during-zk", std::slice::from_ref(&node))?;
        let key = grpc("10.20.9.3", 9000);
        let leased =
            target
                .etcdctl()
                .register(work, "during-etcd", TIMEOUT, std::slice::from_ref(&key))?;
        held.deregister()?;
        leased.revoke()?;
        legacy.zookeeper.server().freeze(false);
        legacy.etcd.server().freeze(false);
        both_are_seen(&gateway)
    });
}

#[test]
fn a_store_that_is_away_at_start_is_waited_for() {
    Work::scenario("outage-start", |work| {
        let mut legacy = Legacy::start(work)?;
        let settings = legacy.settings("merge-new");
        legacy.zookeeper.kill();
        legacy.etcd.kill();
        let mut gateway = Gateway::start_unready(work, "gateway", &settings)?;
        std::thread::sleep(Duration::from_secs(2));
        gateway.server().check_alive()?;
        let log = gateway.server().log().to_lowercase();
        ensure!(
            log.contains("zookeeper") && log.contains("etcd"),
            "it says which is away: {log}"
        );
        legacy.zookeeper.restart()?;
        legacy.etcd.restart()?;
        gateway.wait_ready()?;
        let _clients = clients(work, &gateway)?;
        both_are_seen(&gateway)
    });
}
