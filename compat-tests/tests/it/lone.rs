//! A gateway with no legacy store: a whole ZooKeeper and a whole etcd by itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::settings::{CURATOR_BASE, curator, grpc};
use causeway_compat_tests::target::{Legacy, http};
use causeway_compat_tests::{Gateway, Settings, Work, observe, until};

use crate::drop_in::{self, TIMEOUT};

#[test]
fn a_gateway_alone_passes_the_scenarios() {
    Work::scenario("lone", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        drop_in::all(work, &gateway.target(), "lone")
    });
}

#[test]
fn a_gateway_alone_has_nothing_to_migrate() {
    Work::scenario("lone-phase", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let refused = |args: &[&str]| -> Result<()> {
            let answer = gateway
                .causeway(args)
                .map_or_else(|e| format!("{e:#}"), |_| "it went".into());
            ensure!(
                answer.contains("legacy"),
                "{args:?} names what is missing: {answer}"
            );
            Ok(())
        };
        refused(&["advance"])?;
        refused(&["take-over"])
    });
}

#[test]
fn registrations_that_no_layout_claims_are_listed() {
    Work::scenario("unclaimed", |work| {
        let legacy = Legacy::start(work)?;
        for (name, settings) in [
            ("alone", Settings::default()),
            ("proxy", legacy.settings("proxy")),
        ] {
            let gateway = Gateway::start(work, name, &settings)?;
            let target = gateway.target();
            let (path, value) = curator("orders", "one", "10.20.10.1", 7000);
            let stray = (path.replace(CURATOR_BASE, "/elsewhere"), value);
            let held = target.kazoo().register(
                work,
                &format!("{name}-stray"),
                std::slice::from_ref(&stray),
            )?;
            let key = (
                "billing/10.20.10.1:9000".to_string(),
                grpc("10.20.10.1", 9000).1,
            );
            let leased = target.etcdctl().register(
                work,
                &format!("{name}-leased"),
                TIMEOUT,
                std::slice::from_ref(&key),
            )?;
            for (key, fits) in [(&stray.0, "curator"), (&key.0, "grpc-endpoints")] {
                until(
                    Duration::from_secs(10),
                    &format!("{key} is listed ({name})"),
                    || {
                        let found = observe::unclaimed(&gateway)?;
                        let fit = found.iter().find(|(listed, _)| listed == key);
                        ensure!(fit.is_some_and(|(_, fit)| fit.contains(fits)), "{found:?}");
                        Ok(())
                    },
                )?;
            }
            held.deregister()?;
            leased.revoke()?;
        }
        Ok(())
    });
}

#[test]
fn health_and_readiness_are_answered() {
    Work::scenario("lone-health", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let get = |port: u16, path: &str| -> Result<String> {
            let (status, body) = http(port, "GET", path, "")?;
            ensure!(status == 200, "{path}: {status} {body}");
            Ok(body)
        };
        get(gateway.admin_port(), "/healthz")?;
        get(gateway.admin_port(), "/readyz")?;
        let metrics = get(gateway.admin_port(), "/metrics")?;
        ensure!(
            metrics.contains("causeway_"),
            "metrics have our names: {metrics}"
        );
        Ok(())
    });
}
