//! Reads the operator's commands: the one place that knows the shape of their JSON.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::target::Gateway;

/// A service as `causeway services` lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Instances that clients see.
    pub visible: u64,
    /// Instances with proof of life.
    pub live: u64,
    /// Instances that protection holds.
    pub held: u64,
    /// The expected size.
    pub expected: u64,
    /// Whether protection is on for it.
    pub protected: bool,
}

/// The service `name`, or nothing when the gateway lists none of that name.
pub fn service(gateway: &Gateway, name: &str) -> Result<Option<Service>> {
    let reply = gateway.causeway_json(&["services"])?;
    let services = reply["services"].as_array().context("services")?;
    Ok(services.iter().find(|s| s["service"] == name).map(|s| {
        let number = |field: &str| s[field].as_u64().unwrap_or_default();
        Service {
            visible: number("visible"),
            live: number("live"),
            held: number("held"),
            expected: number("expected"),
            protected: s["protected"].as_bool().unwrap_or_default(),
        }
    }))
}

/// Keys that look like registrations and that no layout claims.
pub fn unclaimed(gateway: &Gateway) -> Result<Vec<String>> {
    let reply = gateway.causeway_json(&["services"])?;
    let keys = reply["unclaimed"].as_array().context("unclaimed")?;
    Ok(keys
        .iter()
        .filter_map(|k| Some(k["key"].as_str()?.to_string()))
        .collect())
}

/// Whether `causeway explain` says that `source` (`zookeeper`, `etcd` or `registry`) has the instance whose
/// raw key is `key`.
pub fn present(gateway: &Gateway, key: &str, source: &str) -> Result<bool> {
    let reply = gateway.causeway_json(&["explain", key])?;
    let sources = reply["sources"].as_array().context("sources")?;
    Ok(sources
        .iter()
        .any(|s| s["source"] == source && s["present"] == true))
}

/// The phase of the cluster default.
pub fn phase(gateway: &Gateway) -> Result<String> {
    Ok(status(gateway)?["phase"]
        .as_str()
        .context("phase")?
        .to_string())
}

/// The names of alarms that stand now.
pub fn alarms(gateway: &Gateway) -> Result<Vec<String>> {
    let reply = status(gateway)?;
    let alarms = reply["alarms"].as_array().context("alarms")?;
    Ok(alarms.iter().map(Value::to_string).collect())
}

/// The whole status.
pub fn status(gateway: &Gateway) -> Result<Value> {
    gateway.causeway_json(&["status"])
}
