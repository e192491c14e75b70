//! A gateway with no legacy store: a whole ZooKeeper and a whole etcd by itself.

use anyhow::{Result, ensure};
use causeway_compat_tests::target::http;
use causeway_compat_tests::{Gateway, Settings, Work};

use crate::drop_in;

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
