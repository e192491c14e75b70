//! Both legacy stores behind the gateway, in each phase: what clients see, and where a registration lands.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::settings::{CURATOR_BASE, GRPC_TARGET, curator, go_zero, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::{Gateway, Work, observe, until};

use crate::drop_in::{self, SLACK, TIMEOUT};

/// How long a copy may take where the client's reply does not wait for it.
const CONVERGES: Duration = Duration::from_secs(10);

/// Where a registration has to be in a phase.
#[derive(Clone, Copy)]
struct Lands {
    phase: &'static str,
    in_legacy: bool,
    in_registry: bool,
    /// Whether what a client writes straight to the legacy store is seen through the gateway.
    direct_seen: bool,
}

const fn lands(
    phase: &'static str,
    in_legacy: bool,
    in_registry: bool,
    direct_seen: bool,
) -> Lands {
    Lands {
        phase,
        in_legacy,
        in_registry,
        direct_seen,
    }
}

const PROXY: Lands = lands("proxy", true, false, true);
const MIRROR: Lands = lands("mirror", true, true, true);
const MERGE_LEGACY: Lands = lands("merge-legacy", true, true, true);
const MERGE_NEW: Lands = lands("merge-new", true, true, true);
const NEW: Lands = lands("new", true, true, true);
const DRAIN: Lands = lands("drain", false, true, true);
const DONE: Lands = lands("done", false, true, false);

fn check(expected: Lands) {
    Work::scenario(&format!("phase-{}", expected.phase), |work| {
        let legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings(expected.phase))?;
        ensure!(
            observe::phase(&gateway)? == expected.phase,
            "phase {}",
            observe::phase(&gateway)?
        );
        landing(work, &gateway, &legacy, expected)?;
        direct(work, &gateway, &legacy, expected)?;
        drop_in::all(work, &gateway.target(), expected.phase)
    });
}

#[test]
fn proxy() {
    check(PROXY);
}

#[test]
fn mirror() {
    check(MIRROR);
}

#[test]
fn merge_legacy() {
    check(MERGE_LEGACY);
}

#[test]
fn merge_new() {
    check(MERGE_NEW);
}

#[test]
fn new() {
    check(NEW);
}

#[test]
fn drain() {
    check(DRAIN);
}

#[test]
fn done() {
    check(DONE);
}

/// A registration through the gateway is in its real store under an owner of its own and in the registry, as
/// the phase says; killing the client removes it everywhere.
fn landing(work: &Work, gateway: &Gateway, legacy: &Legacy, expected: Lands) -> Result<()> {
    let dir = format!("{CURATOR_BASE}/billing");
    let one = curator("billing", "one", "10.20.4.1", 7000);
    let two = curator("billing", "two", "10.20.4.2", 7000);
    let stays = curator("billing", "stays", "10.20.4.3", 7000);
    let key = grpc("10.20.4.1", 9000);
    let kept = grpc("10.20.4.3", 9000);

    let through = gateway.target();
    let pair = through
        .kazoo()
        .register(work, "landing-zk", &[one.clone(), two.clone()])?;
    let rest = through
        .kazoo()
        .register(work, "landing-zk-stays", std::slice::from_ref(&stays))?;
    let leased =
        through
            .etcdctl()
            .register(work, "landing-etcd", TIMEOUT, std::slice::from_ref(&key))?;
    let spare = through.etcdctl().register(
        work,
        "landing-etcd-stays",
        TIMEOUT,
        std::slice::from_ref(&kept),
    )?;
    // go-zero puts the lease id into the key, so the key needs the grant first.
    let granted = through
        .etcdctl()
        .register(work, "landing-go-zero", TIMEOUT, &[])?;
    let rpc = go_zero(granted.number()?, "10.20.4.1", 8080);
    through
        .etcdctl()
        .run(&["put", &rpc.0, &rpc.1, "--lease", &granted.id])?;

    let direct_zk = legacy.zookeeper.kazoo();
    let direct_etcd = legacy.etcd.etcdctl();
    if expected.in_legacy {
        until(CONVERGES, "the znodes are in the real ZooKeeper", || {
            let found = direct_zk.discover(&dir)?;
            ensure!(found.len() == 3, "{found:?}");
            ensure!(found["one"].value == one.1, "byte for byte: {found:?}");
            ensure!(
                found.values().all(|node| node.owner != 0),
                "ephemeral: {found:?}"
            );
            ensure!(
                found["one"].owner != found["two"].owner,
                "of its own session: {found:?}"
            );
            if matches!(expected.phase, "proxy" | "mirror") {
                ensure!(
                    found["one"].owner == pair.sessions[&one.0],
                    "of the client's session: {found:?}"
                );
            }
            Ok(())
        })?;
        until(
            CONVERGES,
            "the keys are in the real etcd with their lease",
            || {
                let found = direct_etcd.get("orders")?;
                ensure!(found.len() == 3, "{found:?}");
                ensure!(found[&key.0].value == key.1, "byte for byte: {found:?}");
                ensure!(
                    found[&key.0].lease == leased.number()?,
                    "with its lease: {found:?}"
                );
                ensure!(
                    found[&rpc.0].lease == granted.number()?,
                    "with its lease: {found:?}"
                );
                ensure!(
                    direct_etcd.lease_keys(&leased.id)? == [key.0.clone()],
                    "the lease lives there"
                );
                Ok(())
            },
        )?;
    } else {
        ensure!(
            direct_zk.names(&dir)?.is_empty(),
            "nothing is written to ZooKeeper"
        );
        ensure!(
            direct_etcd.keys("orders")?.is_empty(),
            "nothing is written to etcd"
        );
    }
    for path in [&one.0, &key.0, &rpc.0] {
        until(
            CONVERGES,
            &format!("{path} in the registry: {}", expected.in_registry),
            || {
                let present = observe::places(gateway, path)?.registry;
                ensure!(present == expected.in_registry, "present: {present}");
                Ok(())
            },
        )?;
    }
    ensure!(
        through.kazoo().names(&dir)? == ["one", "stays", "two"],
        "the gateway shows them"
    );

    // Two go and one stays of each service, all younger than a minute: nothing is held.
    pair.kill();
    leased.kill();
    granted.kill();
    until(
        TIMEOUT + SLACK,
        "what was killed is gone everywhere",
        || {
            let shown = through.kazoo().names(&dir)?;
            ensure!(shown == ["stays"], "the gateway shows {shown:?}");
            let shown = through.etcdctl().keys("orders")?;
            ensure!(shown == [kept.0.clone()], "the gateway shows {shown:?}");
            let left = direct_zk.names(&dir)?;
            ensure!(
                left.iter().all(|name| name == "stays"),
                "ZooKeeper has {left:?}"
            );
            let left = direct_etcd.keys("orders")?;
            ensure!(left.iter().all(|key| *key == kept.0), "etcd has {left:?}");
            for path in [&one.0, &key.0, &rpc.0] {
                let places = observe::places(gateway, path)?;
                ensure!(!places.registry && !places.visible, "{path}: {places:?}");
            }
            Ok(())
        },
    )?;
    rest.deregister()?;
    spare.revoke()
}

/// What is written straight to a legacy store is seen through the gateway, and what is removed there goes.
fn direct(work: &Work, gateway: &Gateway, legacy: &Legacy, expected: Lands) -> Result<()> {
    let dir = format!("{CURATOR_BASE}/direct");
    let node = curator("direct", "one", "10.20.5.1", 7000);
    let key = grpc("10.20.5.1", 9000);
    let through = gateway.target();
    let held = legacy
        .zookeeper
        .kazoo()
        .register(work, "direct-zk", std::slice::from_ref(&node))?;
    let leased =
        legacy
            .etcd
            .etcdctl()
            .register(work, "direct-etcd", TIMEOUT, std::slice::from_ref(&key))?;
    if expected.direct_seen {
        until(CONVERGES, "the direct registrations are seen", || {
            let found = through.kazoo().discover(&dir)?;
            ensure!(
                found.len() == 1 && found["one"].value == node.1,
                "ZooKeeper's: {found:?}"
            );
            let found = through.etcdctl().get(&format!("{GRPC_TARGET}/"))?;
            ensure!(
                found.len() == 1 && found[&key.0].value == key.1,
                "etcd's: {found:?}"
            );
            Ok(())
        })?;
    } else {
        std::thread::sleep(Duration::from_secs(2));
    }
    held.deregister()?;
    leased.revoke()?;
    // Younger than a minute, the service expects nobody yet, so protection lets its last instance go.
    until(CONVERGES, "they go", || {
        let left = through.kazoo().names(&dir)?;
        ensure!(left.is_empty(), "ZooKeeper's: {left:?}");
        let left = through.etcdctl().keys(&format!("{GRPC_TARGET}/"))?;
        ensure!(left.is_empty(), "etcd's: {left:?}");
        Ok(())
    })
}
