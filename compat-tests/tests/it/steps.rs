//! The walk from the first phase to the last and back, with clients that stay connected all the time.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::settings::{CURATOR_BASE, GRPC_TARGET, curator, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::{Gateway, Settings, Work, observe, until};

use crate::drop_in::TIMEOUT;

const FORWARD: &[&str] = &[
    "mirror",
    "merge-legacy",
    "merge-new",
    "new",
    "drain",
    "done",
];

fn says(gateway: &Gateway, args: &[&str], words: &[&str]) -> Result<()> {
    let answer = match gateway.causeway(args) {
        Ok(text) => anyhow::bail!("{args:?} was not refused: {text}"),
        Err(error) => format!("{error:#}"),
    };
    for word in words {
        ensure!(
            answer.contains(word),
            "{args:?} has to name {word:?}: {answer}"
        );
    }
    Ok(())
}

/// Advances once; a gate that cannot be told is passed with a reason, as an operator would.
fn advance(gateway: &Gateway, to: &str) -> Result<()> {
    until(Duration::from_secs(60), &format!("advance to {to}"), || {
        if observe::phase(gateway)? == to {
            return Ok(());
        }
        match gateway.causeway(&["advance"]) {
            Err(error) if format!("{error:#}").contains("census") => {
                gateway.causeway(&[
                    "advance",
                    "--force",
                    "--reason",
                    "test: nobody else uses the stores",
                ])?;
            }
            other => {
                other?;
            }
        }
        let phase = observe::phase(gateway)?;
        ensure!(phase == to, "the phase is {phase}");
        Ok(())
    })
}

#[test]
fn the_whole_way_with_clients_connected() {
    Work::scenario("steps", |work| {
        let legacy = Legacy::start(work)?;
        let settings = Settings {
            quick_gates: true,
            ..legacy.settings("proxy")
        };
        let gateway = Gateway::start(work, "gateway", &settings)?;
        let target = gateway.target();
        let nodes: Vec<_> = (0..3)
            .map(|n| curator("walk", &format!("i{n}"), &format!("10.20.1.{n}"), 7000))
            .collect();
        let keys: Vec<_> = (0..3)
            .map(|n| grpc(&format!("10.20.1.{n}"), 9000))
            .collect();
        let held = target.kazoo().register(work, "walk-zk", &nodes)?;
        let leased = target
            .etcdctl()
            .register(work, "walk-etcd", TIMEOUT, &keys)?;
        let dir = format!("{CURATOR_BASE}/walk");
        let mut watcher = target.kazoo().watch(work, "walk-watch", &dir)?;
        watcher.drain();
        let everyone = |when: &str| -> Result<()> {
            until(STEP, &format!("all are seen {when}"), || {
                let found = target.kazoo().discover(&dir)?;
                ensure!(found.len() == 3, "ZooKeeper readers: {found:?}");
                for (path, session) in &held.sessions {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    ensure!(
                        found[name].owner == *session,
                        "the owner is still the client's session: {found:?}"
                    );
                }
                let found = target.etcdctl().get(&format!("{GRPC_TARGET}/"))?;
                ensure!(found.len() == 3, "etcd readers: {found:?}");
                ensure!(
                    found
                        .values()
                        .all(|pair| leased.number().is_ok_and(|id| id == pair.lease)),
                    "{found:?}"
                );
                Ok(())
            })
        };
        everyone("in proxy")?;

        says(&gateway, &["advance", "--force"], &["--reason"])?;
        let mut zxid = 0;
        let mut revision = 0;
        for to in FORWARD {
            if *to == "merge-legacy" {
                says(&gateway, &["advance"], &["take-over"])?;
                gateway.causeway(&["take-over"])?;
                everyone("after the take-over")?;
                says(&gateway, &["take-over"], &["already"])?;
            }
            advance(&gateway, to)?;
            everyone(&format!("in {to}"))?;
            // The numbers that clients see never fall.
            let text = target.etcdctl().run(&["get", "nothing", "-w", "json"])?;
            let reply: serde_json::Value = serde_json::from_str(&text)?;
            let now = reply["header"]["revision"].as_i64().unwrap_or_default();
            ensure!(
                now >= revision,
                "the revision fell from {revision} to {now} in {to}"
            );
            revision = now;
            let probe = format!("/general/probe-{to}");
            target.kazoo().everyday(&probe)?;
            let czxid = target.kazoo().czxid(&format!("{dir}/i0"))?;
            ensure!(
                zxid == 0 || czxid == zxid,
                "an untouched record keeps its czxid: {zxid} {czxid}"
            );
            zxid = czxid;
        }
        let direct = legacy.zookeeper.kazoo().names(&dir)?;
        ensure!(
            direct.is_empty(),
            "the real ZooKeeper is emptied of ours: {direct:?}"
        );
        let direct = legacy.etcd.etcdctl().keys(&format!("{GRPC_TARGET}/"))?;
        ensure!(
            direct.is_empty(),
            "the real etcd is emptied of ours: {direct:?}"
        );
        let events: Vec<String> = watcher
            .drain()
            .into_iter()
            .filter(|line| line.starts_with("children"))
            .collect();
        ensure!(
            events.iter().all(|line| line == "children i0,i1,i2"),
            "no watcher ever saw fewer: {events:?}"
        );
        held.deregister()?;
        leased.revoke()
    });
}

#[test]
fn every_step_back_is_as_safe() {
    Work::scenario("steps-back", |work| {
        let legacy = Legacy::start(work)?;
        let settings = Settings {
            quick_gates: true,
            ..legacy.settings("new")
        };
        let gateway = Gateway::start(work, "gateway", &settings)?;
        let target = gateway.target();
        let nodes = [
            curator("back", "one", "10.20.2.1", 7000),
            curator("back", "two", "10.20.2.2", 7000),
        ];
        let held = target.kazoo().register(work, "back-zk", &nodes)?;
        let dir = format!("{CURATOR_BASE}/back");
        let seen = |where_: &str| -> Result<()> {
            until(STEP, where_, || {
                let names = target.kazoo().names(&dir)?;
                ensure!(names == ["one", "two"], "the gateway shows {names:?}");
                let names = legacy.zookeeper.kazoo().names(&dir)?;
                ensure!(names == ["one", "two"], "ZooKeeper has {names:?}");
                Ok(())
            })
        };
        seen("in new")?;
        advance(&gateway, "drain")?;
        until(STEP, "ours are withdrawn", || {
            let names = legacy.zookeeper.kazoo().names(&dir)?;
            ensure!(names.is_empty(), "ZooKeeper has {names:?}");
            Ok(())
        })?;
        for to in ["new", "merge-new", "merge-legacy", "mirror"] {
            until(
                Duration::from_secs(60),
                &format!("roll back to {to}"),
                || {
                    if observe::phase(&gateway)? != to {
                        gateway.causeway(&["rollback"])?;
                    }
                    let phase = observe::phase(&gateway)?;
                    ensure!(phase == to, "the phase is {phase}");
                    Ok(())
                },
            )?;
            seen(&format!("back in {to}"))?;
        }
        held.deregister()?;
        until(STEP, "a goodbye reaches both", || {
            ensure!(target.kazoo().names(&dir)?.is_empty(), "the gateway");
            ensure!(
                legacy.zookeeper.kazoo().names(&dir)?.is_empty(),
                "ZooKeeper"
            );
            Ok(())
        })
    });
}

#[test]
fn done_is_the_last_step() {
    Work::scenario("steps-done", |work| {
        let legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings("done"))?;
        says(&gateway, &["advance"], &["done"])?;
        says(&gateway, &["rollback"], &["done"])
    });
}
