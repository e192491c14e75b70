//! The rule against mass removal, seen by unmodified clients.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::Held;
use causeway_compat_tests::settings::{CURATOR_BASE, curator, grpc};
use causeway_compat_tests::target::{Legacy, Target};
use causeway_compat_tests::wait::stays;
use causeway_compat_tests::{Gateway, Settings, Work, observe, until};

use crate::drop_in::{AT_ONCE, SLACK, TIMEOUT};

/// With the short times of [`Settings::quick_protection`], instances count for the expected size after this.
const SETTLES: Duration = Duration::from_secs(20);

/// A gateway in `phase` (`lone`: without legacy stores), with what it needs.
fn gateway(work: &Work, phase: &str) -> Result<(Option<Legacy>, Gateway)> {
    if phase == "lone" {
        let settings = Settings {
            quick_protection: true,
            ..Settings::default()
        };
        return Ok((None, Gateway::start(work, "gateway", &settings)?));
    }
    let legacy = Legacy::start(work)?;
    let settings = Settings {
        quick_protection: true,
        ..legacy.settings(phase)
    };
    let gateway = Gateway::start(work, "gateway", &settings)?;
    Ok((Some(legacy), gateway))
}

/// Ten instances of `service`, `lost` of them in a program of their own.
fn ten(work: &Work, target: &Target, service: &str, lost: usize) -> Result<(Held, Held)> {
    let nodes: Vec<_> = (0..10)
        .map(|n| curator(service, &format!("i{n}"), &format!("10.20.6.{n}"), 7000))
        .collect();
    let (doomed, safe) = nodes.split_at(lost);
    let doomed = target
        .kazoo()
        .register(work, &format!("{service}-doomed"), doomed)?;
    let safe = target
        .kazoo()
        .register(work, &format!("{service}-safe"), safe)?;
    Ok((doomed, safe))
}

fn settled(gateway: &Gateway, service: &str, size: u64) -> Result<()> {
    until(
        SETTLES,
        &format!("{service} is expected to have {size}"),
        || {
            let found = observe::service(gateway, service)?.unwrap_or_default();
            ensure!(found.expected == size, "{found:?}");
            Ok(())
        },
    )
}

fn shown(target: &Target, service: &str) -> Result<usize> {
    Ok(target
        .kazoo()
        .names(&format!("{CURATOR_BASE}/{service}"))?
        .len())
}

/// Losing five of ten at once removes none and alarms; losing four removes four; ten that say goodbye go.
fn after_the_take_over(phase: &str) {
    Work::scenario(&format!("protection-{phase}"), |work| {
        let (_legacy, gateway) = gateway(work, phase)?;
        let target = gateway.target();
        let (five, rest_of_five) = ten(work, &target, "five", 5)?;
        let (four, rest_of_four) = ten(work, &target, "four", 4)?;
        let (all, none) = ten(work, &target, "goodbye", 10)?;
        for service in ["five", "four", "goodbye"] {
            settled(&gateway, service, 10)?;
        }
        let mut watcher =
            target
                .kazoo()
                .watch(work, "five-watch", &format!("{CURATOR_BASE}/five"))?;

        five.kill();
        four.kill();
        until(TIMEOUT + SLACK, "four of ten are removed", || {
            let left = shown(&target, "four")?;
            ensure!(left == 6, "{left} are shown");
            Ok(())
        })?;
        until(
            TIMEOUT + SLACK,
            "five of ten are held, with an alarm",
            || {
                let found = observe::service(&gateway, "five")?.unwrap_or_default();
                ensure!(
                    found.protected && found.held == 5 && found.visible == 10,
                    "{found:?}"
                );
                let alarms = observe::alarms(&gateway)?;
                ensure!(
                    alarms.iter().any(|alarm| alarm.contains("five")),
                    "alarms: {alarms:?}"
                );
                Ok(())
            },
        )?;
        stays(Duration::from_secs(5), "all ten are shown", || {
            let left = shown(&target, "five")?;
            ensure!(left == 10, "{left} are shown");
            Ok(())
        })?;
        let events: Vec<String> = watcher
            .drain()
            .into_iter()
            .filter(|line| line.starts_with("children"))
            .collect();
        ensure!(
            events.len() <= 1,
            "held instances cause no event: {events:?}"
        );

        // While protected, an owner's own goodbye still passes at once.
        rest_of_five.deregister()?;
        until(AT_ONCE, "those that say goodbye go", || {
            let left = shown(&target, "five")?;
            ensure!(left == 5, "{left} are shown");
            Ok(())
        })?;
        all.deregister()?;
        none.deregister()?;
        until(AT_ONCE, "ten that deregister are gone", || {
            let left = shown(&target, "goodbye")?;
            ensure!(left == 0, "{left} are shown");
            Ok(())
        })?;
        drop(rest_of_four);
        Ok(())
    });
}

#[test]
fn alone() {
    after_the_take_over("lone");
}

#[test]
fn in_merge_legacy() {
    after_the_take_over("merge-legacy");
}

#[test]
fn in_merge_new() {
    after_the_take_over("merge-new");
}

#[test]
fn in_new() {
    after_the_take_over("new");
}

#[test]
fn in_drain() {
    after_the_take_over("drain");
}

#[test]
fn in_done() {
    after_the_take_over("done");
}

#[test]
fn before_the_take_over_it_only_reports() {
    Work::scenario("protection-mirror", |work| {
        let (_legacy, gateway) = gateway(work, "mirror")?;
        let target = gateway.target();
        let (doomed, safe) = ten(work, &target, "five", 5)?;
        settled(&gateway, "five", 10)?;
        doomed.kill();
        until(TIMEOUT + SLACK, "the store's verdict stands", || {
            let left = shown(&target, "five")?;
            ensure!(left == 5, "{left} are shown");
            Ok(())
        })?;
        until(SLACK, "the loss is reported", || {
            let alarms = observe::alarms(&gateway)?;
            ensure!(
                alarms.iter().any(|alarm| alarm.contains("five")),
                "alarms: {alarms:?}"
            );
            Ok(())
        })?;
        drop(safe);
        Ok(())
    });
}

#[test]
fn leases_are_protected_as_sessions_are() {
    Work::scenario("protection-etcd", |work| {
        let (_legacy, gateway) = gateway(work, "lone")?;
        let etcdctl = gateway.target().etcdctl();
        let keys: Vec<_> = (0..10)
            .map(|n| grpc(&format!("10.20.7.{n}"), 9000))
            .collect();
        let (doomed, safe) = keys.split_at(5);
        let doomed = etcdctl.register(work, "doomed", TIMEOUT, doomed)?;
        let safe = etcdctl.register(work, "safe", TIMEOUT, safe)?;
        settled(&gateway, "orders-grpc", 10)?;
        doomed.kill();
        until(TIMEOUT + SLACK, "they are held", || {
            let found = observe::service(&gateway, "orders-grpc")?.unwrap_or_default();
            ensure!(found.held == 5, "{found:?}");
            Ok(())
        })?;
        ensure!(
            etcdctl.keys("orders-grpc/")?.len() == 10,
            "all ten are read"
        );
        safe.revoke()?;
        until(AT_ONCE, "a revoke passes", || {
            let left = etcdctl.keys("orders-grpc/")?;
            ensure!(left.len() == 5, "{left:?}");
            Ok(())
        })
    });
}
