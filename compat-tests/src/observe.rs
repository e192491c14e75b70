//! Reads the operator's commands: the one place that knows the shape of their JSON.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::target::{Gateway, http};

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
    // The gateway names a service with its layout's root before it.
    let named = |s: &&Value| {
        s["service"]
            .as_str()
            .is_some_and(|full| full == name || full.ends_with(&format!("/{name}")))
    };
    Ok(services.iter().find(named).map(|s| {
        let number = |field: &str| s[field].as_u64().unwrap_or_default();
        Service {
            visible: number("instances"),
            live: number("live"),
            held: number("held"),
            expected: number("expected"),
            protected: s["protected"].as_bool().unwrap_or_default(),
        }
    }))
}

/// Keys that look like registrations and that no layout claims, with the layout that would fit.
pub fn unclaimed(gateway: &Gateway) -> Result<Vec<(String, String)>> {
    let reply = gateway.causeway_json(&["services"])?;
    let keys = reply["unclaimed"].as_array().context("unclaimed")?;
    let text = |key: &Value, field: &str| key[field].as_str().unwrap_or_default().to_string();
    Ok(keys
        .iter()
        .map(|key| (text(key, "key"), text(key, "would_fit")))
        .collect())
}

/// Where a registration is, as `causeway explain` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Places {
    /// Clients see it.
    pub visible: bool,
    /// The legacy store of its protocol has it.
    pub legacy: bool,
    /// The new registry has it.
    pub registry: bool,
}

/// Where the registration with the raw key `key` is; nowhere when the gateway knows none.
pub fn places(gateway: &Gateway, key: &str) -> Result<Places> {
    let reply = gateway.causeway_json(&["explain", key])?;
    let found = reply["registrations"].as_array().context("registrations")?;
    let said = |item: &Value, field: &str| item[field].as_bool().unwrap_or_default();
    Ok(found
        .iter()
        .find(|item| item["key"] == key)
        .map_or_else(Places::default, |item| Places {
            visible: said(item, "visible"),
            legacy: said(item, "in_legacy"),
            registry: said(item, "in_registry"),
        }))
}

/// The phase of the cluster default.
pub fn phase(gateway: &Gateway) -> Result<String> {
    Ok(status(gateway)?["phase"]
        .as_str()
        .context("phase")?
        .to_string())
}

/// The alarms that stand now and those that were raised lately, as text.
pub fn alarms(gateway: &Gateway) -> Result<Vec<String>> {
    let (code, body) = http(gateway.admin_port(), "GET", "/v1/alarms", "")?;
    ensure!(code == 200, "{code} {body}");
    let reply: Value = serde_json::from_str(&body)?;
    let list = |name: &str| {
        reply[name]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    Ok(list("standing")
        .iter()
        .chain(list("recent"))
        .map(Value::to_string)
        .collect())
}

/// The whole status.
pub fn status(gateway: &Gateway) -> Result<Value> {
    gateway.causeway_json(&["status"])
}
