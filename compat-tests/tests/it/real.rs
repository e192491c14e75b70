//! The real stores pass the same scenarios: otherwise a scenario says nothing about the gateway.

use std::time::Duration;

use anyhow::ensure;
use causeway_compat_tests::Work;
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::settings::{curator, grpc};
use causeway_compat_tests::target::Legacy;

use crate::drop_in;

#[test]
fn real_stores_pass_the_scenarios() {
    Work::scenario("real", |work| {
        let legacy = Legacy::start(work)?;
        drop_in::all(work, &legacy.target(), "real")
    });
}

#[test]
fn real_stores_can_be_killed_restarted_frozen_and_wiped() {
    Work::scenario("real-verbs", |work| {
        let mut legacy = Legacy::start(work)?;
        let mut kazoo = legacy.zookeeper.kazoo();
        kazoo.timeout = Duration::from_secs(20);
        let node = curator("kept", "one", "10.20.3.1", 7000);
        let key = grpc("10.20.3.1", 9000);
        let etcdctl = legacy.etcd.etcdctl();
        let mut held = kazoo.register(work, "kept-zk", std::slice::from_ref(&node))?;
        let mut leased = etcdctl.register(
            work,
            "kept-etcd",
            Duration::from_secs(20),
            std::slice::from_ref(&key),
        )?;
        legacy.zookeeper.restart()?;
        legacy.etcd.restart()?;
        held.program
            .expect_that(STEP, "the session comes back", |line| {
                line.ends_with("CONNECTED").then_some(())
            })?;
        leased.keeper.drain();
        leased.keeper.expect("lease", STEP)?;
        ensure!(
            kazoo.discover("/discovery/kept")?["one"].owner == held.sessions[&node.0],
            "the same node"
        );
        ensure!(
            etcdctl.get("orders")?[&key.0].lease == leased.number()?,
            "the same lease"
        );

        legacy.etcd.server().freeze(true);
        let answer = etcdctl.keys("orders");
        legacy.etcd.server().freeze(false);
        ensure!(
            answer.is_err(),
            "a frozen store answers nothing: {answer:?}"
        );

        legacy.zookeeper.wipe()?;
        legacy.etcd.wipe()?;
        ensure!(
            legacy
                .zookeeper
                .kazoo()
                .names("/discovery/kept")?
                .is_empty(),
            "an empty tree"
        );
        ensure!(etcdctl.keys("orders")?.is_empty(), "an empty key space");
        Ok(())
    });
}
