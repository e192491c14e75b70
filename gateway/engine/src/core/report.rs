//! What operators are told.

use causeway_registry::{Health, RecordKey, StoreKind};
use serde::Serialize;

use super::Core;
use super::registrations::{lease_of, path_of, protocol};
use crate::layout::{NodeKind, Suggestion, redact};

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceRow {
    /// Layout of its registrations.
    pub layout: String,
    /// Service.
    pub service: String,
    /// Instances in the view.
    pub instances: usize,
    /// Those with proof of life.
    pub live: usize,
    /// Those silent for half their timeout.
    pub silent: usize,
    /// Those that protection holds.
    pub held: usize,
    /// Expected size.
    pub expected: u64,
    /// Whether the service is protected.
    pub protected: bool,
}

/// An ephemeral or leased key that no layout claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unclaimed {
    /// Store.
    pub store: String,
    /// Key, without secrets.
    pub key: String,
    /// Session or lease, in hexadecimal.
    pub owner: String,
    /// Layout that would fit.
    pub would_fit: Option<String>,
}

/// Everything known of one registration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    /// Store whose protocol wrote it.
    pub home: String,
    /// Raw key, without secrets.
    pub key: String,
    /// Layout.
    pub layout: String,
    /// Service.
    pub service: Option<String>,
    /// Identity.
    pub identity: Option<String>,
    /// Whether clients see it.
    pub visible: bool,
    /// Whether the legacy store has it.
    pub in_legacy: bool,
    /// Session or lease in the legacy store, in hexadecimal.
    pub legacy_owner: Option<String>,
    /// zxid or revision in the legacy store.
    pub legacy_mark: Option<i64>,
    /// Whether the new registry has it.
    pub in_registry: bool,
    /// Whether the owner is heard.
    pub health: Option<String>,
    /// Session or lease as its client knows it, in hexadecimal.
    pub owner: Option<String>,
    /// Milliseconds until the owner runs out.
    pub ttl_left_ms: Option<u64>,
    /// Written by a client that goes to the legacy store directly.
    pub imported: bool,
    /// The registration it is a projection of.
    pub bridge_of: Option<String>,
    /// Phase in force.
    pub phase: String,
    /// Whether it waits to be removed from the legacy store.
    pub removed: bool,
    /// Since when it is known, in milliseconds since the Unix epoch.
    pub since_ms: i64,
}

impl Core {
    /// Services with their sizes.
    pub fn services(&self) -> Vec<ServiceRow> {
        let mut rows: std::collections::BTreeMap<(String, String), ServiceRow> =
            std::collections::BTreeMap::new();
        for ((service, id), keys) in &self.instances {
            let layout = keys
                .iter()
                .next()
                .and_then(|k| self.st.registrations.get(k))
                .map_or_else(String::new, |r| r.layout.clone());
            let row = rows
                .entry((service.clone(), layout.clone()))
                .or_insert_with(|| {
                    let report = self.st.protection.service(service);
                    ServiceRow {
                        layout,
                        service: service.clone(),
                        instances: 0,
                        live: 0,
                        silent: 0,
                        held: 0,
                        expected: report.as_ref().map_or(0, |r| r.expected),
                        protected: report.as_ref().is_some_and(|r| r.protected),
                    }
                });
            row.instances += 1;
            match self.instance_health(&(service.clone(), id.clone())) {
                Some(Health::Silent) => row.silent += 1,
                Some(Health::Expired | Health::Held) => row.held += 1,
                Some(Health::Live) | None => row.live += 1,
            }
        }
        rows.into_values().collect()
    }

    /// Number of instances in the view.
    pub fn instance_count(&self) -> usize {
        self.instances.len()
    }

    /// Number of instances that protection holds.
    pub fn held_count(&self) -> usize {
        self.held()
    }

    /// Ephemerals and leased keys of the view that no layout claims, at most `limit`.
    pub fn unclaimed(&self, limit: usize) -> Vec<Unclaimed> {
        let mut out = Vec::new();
        for (owner, _) in self.st.tree.ephemeral_owners() {
            for path in self.st.tree.ephemerals(owner) {
                let value = self
                    .st
                    .tree
                    .node(path)
                    .and_then(|n| n.data().cloned())
                    .unwrap_or_default();
                if out.len() >= limit {
                    return out;
                }
                out.extend(self.unclaimed_one(
                    StoreKind::Zookeeper,
                    path.as_bytes(),
                    &value,
                    NodeKind::Ephemeral,
                    owner,
                ));
            }
        }
        for (owner, lease) in self.st.keys.leases() {
            for key in &lease.keys {
                if out.len() >= limit {
                    return out;
                }
                let value = self
                    .st
                    .keys
                    .get(key)
                    .map(|kv| kv.value.clone())
                    .unwrap_or_default();
                out.extend(self.unclaimed_one(
                    StoreKind::Etcd,
                    key,
                    &value,
                    NodeKind::Leased,
                    owner,
                ));
            }
        }
        out.truncate(limit);
        out
    }

    /// An ephemeral or leased key, if no layout claims it, with the layout that would fit.
    pub fn unclaimed_one(
        &self,
        store: StoreKind,
        key: &[u8],
        value: &[u8],
        node: NodeKind,
        owner: i64,
    ) -> Option<Unclaimed> {
        if self.owns(store, key) {
            return None;
        }
        let lease = (store == StoreKind::Etcd).then_some(owner);
        let fit = self
            .settings
            .layouts
            .suggest(protocol(store), key, value, node, lease);
        Some(Unclaimed {
            store: store.name().into(),
            key: redact(key),
            owner: format!("{owner:x}"),
            would_fit: fit.map(|s| match s {
                Suggestion::Fits { layout, setting } => format!("{layout} ({setting})"),
                Suggestion::NotRegistration(what) => format!("none: {what}"),
            }),
        })
    }

    /// Registrations whose key, identity or service contains the text.
    pub fn explain(&self, text: &str, now_ms: i64) -> Vec<Explained> {
        let matches = |key: &RecordKey, reg: &super::Registration| {
            path_of(key).contains(text)
                || reg.instance.as_ref().is_some_and(|(service, id)| {
                    service == text || id.contains(text) || id.contains(&text.replacen(':', "|", 1))
                })
        };
        self.st
            .registrations
            .iter()
            .filter(|(k, r)| matches(k, r))
            .take(100)
            .map(|(key, reg)| {
                let record = self.st.node.get(key);
                let seen = self.seen(key);
                let owner = seen.as_ref().map_or(0, |s| s.owner);
                Explained {
                    home: key.store.name().into(),
                    key: redact(&key.key),
                    layout: reg.layout.clone(),
                    service: reg.instance.as_ref().map(|i| i.0.clone()),
                    identity: reg.instance.as_ref().map(|i| i.1.clone()),
                    visible: self.in_view(key),
                    in_legacy: reg.legacy.is_some(),
                    legacy_owner: reg
                        .legacy
                        .as_ref()
                        .filter(|l| l.owner != 0)
                        .map(|l| format!("{:x}", l.owner)),
                    legacy_mark: reg.legacy.as_ref().map(|l| l.mark),
                    in_registry: record.is_some(),
                    health: record.map(|r| format!("{:?}", r.health).to_lowercase()),
                    owner: (owner != 0).then(|| format!("{owner:x}")),
                    ttl_left_ms: lease_of(key.store, owner).and_then(|l| self.ttl_left(l, now_ms)),
                    imported: reg.imported,
                    bridge_of: reg.bridge_of.as_ref().map(|k| redact(&k.key)),
                    phase: self.st.phase.phase().name().into(),
                    removed: reg.removed,
                    since_ms: reg.since_ms,
                }
            })
            .collect()
    }

    /// Owners of registrations that were written to L directly, as far as L shows them; at most `limit`.
    pub fn direct_writers(&self, limit: usize) -> Vec<String> {
        let mut owners: std::collections::BTreeMap<(StoreKind, i64), usize> =
            std::collections::BTreeMap::new();
        for (key, reg) in &self.st.registrations {
            if let Some(entry) = reg.legacy.as_ref().filter(|l| reg.imported && l.owner != 0) {
                *owners.entry((key.store, entry.owner)).or_default() += 1;
            }
        }
        owners
            .into_iter()
            .take(limit)
            .map(|((store, owner), n)| {
                format!("{} owner {owner:x} ({n} registrations)", store.name())
            })
            .collect()
    }

    /// State of a store's feed: `None` without such a legacy store, else whether it is whole, and why not.
    pub fn feed(&self, store: StoreKind) -> Option<(bool, Option<String>)> {
        let feed = self.st.feeds.get(&store)?;
        let trouble = if feed.frozen {
            Some("frozen by the source brake".to_owned())
        } else {
            feed.trouble.clone()
        };
        Some((feed.whole && !feed.frozen, trouble))
    }
}
