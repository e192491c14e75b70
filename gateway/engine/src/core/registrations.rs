//! What is known of each registration beside the structures that clients see, and how the new registry,
//! protection and the bridges follow a change there.

use std::collections::BTreeMap;

use bytes::Bytes;
use causeway_registry::{Endpoint, Health, LeaseId, RecordBody, RecordKey, StoreKind};
use serde::{Deserialize, Serialize};

use super::{Core, Effects, LegacyEntry, REGISTRY, ms};
use crate::converge::Absence;
use crate::key_space::{KeyCommand, KeyValue};
use crate::layout::{Classified, Instance, NodeKind};
use crate::path::Protocol;
use crate::protection::{Cause, Input};
use crate::route::Mode;
use crate::znode_tree::{self, Acl, Stat, TreeCommand, perms};

/// Owner that a bridged record shows: a session or lease of the gateway's own, so that readers which
/// look for an owner find one.
pub(super) const BRIDGE_OWNER: i64 = (crate::session::SESSION_HIGH_BYTE << 56) | 1;

/// Beside the record in the view and the record in N.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Registration {
    /// Service and identity, when it is an instance.
    pub(super) instance: Option<(String, String)>,
    /// Layout that claims it.
    pub(super) layout: String,
    /// How the record lives.
    pub(super) node: NodeKind,
    /// Address that last wrote it; empty when it came from L.
    pub(super) peer: String,
    /// L's entry, as last seen.
    pub(super) legacy: Option<LegacyEntry>,
    /// Why L lacks it.
    pub(super) absence: Absence,
    /// The content is a direct writer's, imported from L.
    pub(super) imported: bool,
    /// The registration that it is a projection of.
    pub(super) bridge_of: Option<RecordKey>,
    /// Removed here; L has not confirmed the removal yet.
    pub(super) removed: bool,
    /// When it was first seen, in milliseconds.
    pub(super) since_ms: i64,
}

/// Who writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor<'a> {
    pub(super) peer: &'a str,
    /// Session or lease; 0 for none.
    pub(super) owner: i64,
}

impl Actor<'_> {
    /// A change that no client made.
    pub(super) const NOBODY: Actor<'static> = Actor { peer: "", owner: 0 };
}

/// A record as the view holds it.
pub(super) struct Seen {
    pub(super) value: Bytes,
    pub(super) kind: NodeKind,
    /// Session or lease; 0 for none.
    pub(super) owner: i64,
}

pub(super) fn protocol(store: StoreKind) -> Protocol {
    match store {
        StoreKind::Etcd => Protocol::Etcd,
        StoreKind::Zookeeper | StoreKind::Native => Protocol::Zookeeper,
    }
}

pub(super) fn path_of(key: &RecordKey) -> String {
    String::from_utf8_lossy(&key.key).into_owned()
}

/// The lease of an owner as a protocol shows it.
pub(super) fn lease_of(store: StoreKind, owner: i64) -> Option<LeaseId> {
    match store {
        _ if owner == 0 => None,
        StoreKind::Zookeeper => Some(LeaseId::session(owner)),
        StoreKind::Etcd => Some(LeaseId::lease(owner)),
        StoreKind::Native => Some(LeaseId::native(owner)),
    }
}

impl Core {
    pub(super) fn rebuild_indexes(&mut self) {
        self.instances = BTreeMap::new();
        for (key, reg) in &self.st.registrations {
            if reg.removed || !self.in_view(key) {
                continue;
            }
            if let Some(instance) = &reg.instance {
                self.instances.entry(instance.clone()).or_default().insert(key.clone());
            }
        }
    }

    /// Whether clients see the record.
    pub(super) fn in_view(&self, key: &RecordKey) -> bool {
        match key.store {
            StoreKind::Zookeeper => self.st.tree.contains(&path_of(key)),
            StoreKind::Etcd => self.st.keys.get(&key.key).is_some(),
            StoreKind::Native => self.st.node.get(key).is_some(),
        }
    }

    pub(super) fn seen(&self, key: &RecordKey) -> Option<Seen> {
        match key.store {
            StoreKind::Zookeeper => {
                let path = path_of(key);
                let node = self.st.tree.node(&path)?;
                let owner = self.st.tree.owner_of(&path).unwrap_or(0);
                let kind = match node.kind() {
                    znode_tree::NodeKind::Persistent => NodeKind::Persistent,
                    znode_tree::NodeKind::Ephemeral => NodeKind::Ephemeral,
                    znode_tree::NodeKind::Container => NodeKind::Container,
                    znode_tree::NodeKind::Ttl { .. } => NodeKind::Ttl,
                };
                let owner = if kind == NodeKind::Ephemeral { owner } else { 0 };
                Some(Seen { value: node.data().cloned().unwrap_or_default(), kind, owner })
            }
            StoreKind::Etcd => {
                let kv = self.st.keys.get(&key.key)?;
                let kind = if kv.lease == 0 { NodeKind::Unleased } else { NodeKind::Leased };
                Some(Seen { value: kv.value.clone(), kind, owner: kv.lease })
            }
            StoreKind::Native => None,
        }
    }

    /// Follows a record that is in the view (again, or with other content).
    pub(super) fn sync_present(&mut self, key: &RecordKey, actor: Actor<'_>, now_ms: i64, fx: &mut Effects) {
        let Some(seen) = self.seen(key) else { return };
        let lease = (key.store == StoreKind::Etcd && seen.owner != 0).then_some(seen.owner);
        let classified =
            self.settings.layouts.classify(protocol(key.store), &key.key, &seen.value, seen.kind, lease);
        let (layout, instance) = match &classified {
            Classified::General => return,
            Classified::Companion { layout, .. } => (layout.as_str().to_owned(), None),
            Classified::Instance(i) => (i.layout.as_str().to_owned(), Some(i.as_ref())),
        };
        let was = self.st.registrations.get(key).cloned();
        let identity = instance.map(|i| (i.service.clone(), i.identity.clone()));
        if let Some(old) = was.as_ref().filter(|r| !r.removed).and_then(|r| r.instance.clone()) {
            if Some(&old) != identity.as_ref() {
                // Its owner turned it into something else: as good as a removal by the owner.
                self.leave(key, &old, Cause::Explicit, now_ms, fx);
            }
        }
        let reg = Registration {
            instance: identity.clone(),
            layout: layout.clone(),
            node: seen.kind,
            peer: actor.peer.to_owned(),
            legacy: was.as_ref().and_then(|r| r.legacy.clone()),
            absence: was.as_ref().map_or(Absence::NeverThere, |r| r.absence),
            imported: false,
            bridge_of: was.as_ref().and_then(|r| r.bridge_of.clone()),
            removed: false,
            since_ms: was.as_ref().map_or(now_ms, |r| r.since_ms),
        };
        self.st.registrations.insert(key.clone(), reg);
        if self.mode(key.store) != Mode::Relay || self.st.phase.phase().writes_new() {
            self.write_node(key, &seen, &layout, instance, now_ms);
        }
        if let Some((service, id)) = identity {
            let set = self.instances.entry((service.clone(), id.clone())).or_default();
            set.insert(key.clone());
            let ttl_ms = lease_of(key.store, seen.owner)
                .and_then(|l| self.st.node.lease(l))
                .map_or(0, |l| i64::try_from(l.ttl_ms).unwrap_or(0));
            let source = REGISTRY.to_owned();
            let input = Input::Registered { service, instance: id, source, ttl_ms };
            let outputs = self.st.protection.handle(input, now_ms);
            self.carry_out(outputs, now_ms, fx);
        }
        self.touch(key);
        match instance {
            Some(instance) => self.bridge(key, instance, now_ms, fx),
            None => self.unbridge(key, now_ms, fx),
        }
    }

    fn write_node(
        &mut self,
        key: &RecordKey,
        seen: &Seen,
        layout: &str,
        instance: Option<&Instance>,
        now_ms: i64,
    ) {
        let body = body(seen, layout, instance);
        let lease = lease_of(key.store, seen.owner).filter(|l| self.st.node.lease(*l).is_some());
        if self.st.node.overwrite(key.clone(), body.clone(), lease, ms(now_ms)).is_err() {
            // The lease is over while its record was kept: without an owner it waits for a verdict.
            let _ = self.st.node.overwrite(key.clone(), body, None, ms(now_ms));
        }
    }

    /// Follows a record that left the view for a reason that was not judged: its owner, or somebody whom
    /// protection let pass.
    pub(super) fn sync_absent(&mut self, key: &RecordKey, cause: Cause, now_ms: i64, fx: &mut Effects) {
        self.st.node.deregister(key, ms(now_ms));
        self.forget(key, Some(cause), now_ms, fx);
    }

    /// Takes a registration off the books; the tombstone stays until L has confirmed the removal.
    pub(super) fn forget(&mut self, key: &RecordKey, cause: Option<Cause>, now_ms: i64, fx: &mut Effects) {
        let Some(reg) = self.st.registrations.get_mut(key) else { return };
        let instance = reg.instance.clone();
        if reg.removed {
            return;
        }
        if reg.legacy.is_some() {
            reg.removed = true;
        } else {
            self.st.registrations.remove(key);
        }
        self.touch(key);
        if let Some(instance) = &instance {
            match cause {
                Some(cause) => self.leave(key, instance, cause, now_ms, fx),
                None => {
                    self.unindex(key, instance);
                }
            }
        }
        self.unbridge(key, now_ms, fx);
    }

    /// A registration of an instance goes; protection hears of it when it was the last.
    fn leave(&mut self, key: &RecordKey, instance: &(String, String), cause: Cause, now_ms: i64, fx: &mut Effects) {
        if !self.unindex(key, instance) {
            return;
        }
        let (service, id) = instance.clone();
        let input = match cause {
            Cause::Explicit => Input::Removed { service, instance: id },
            Cause::Expired | Cause::Foreign | Cause::Unknown => {
                Input::Missing { service, instances: [id].into(), source: REGISTRY.to_owned(), cause }
            }
        };
        let outputs = self.st.protection.handle(input, now_ms);
        self.carry_out(outputs, now_ms, fx);
    }

    /// Whether that was the instance's last registration.
    pub(super) fn unindex(&mut self, key: &RecordKey, instance: &(String, String)) -> bool {
        let Some(set) = self.instances.get_mut(instance) else { return false };
        let was_there = set.remove(key);
        let last = set.is_empty();
        if last {
            self.instances.remove(instance);
        }
        was_there && last
    }

    /// Notes that L may have to follow.
    pub(super) fn touch(&mut self, key: &RecordKey) {
        if self.feeds.contains_key(&key.store) {
            self.dirty.insert(key.clone());
        }
    }

    /// The health of an instance as its registrations have it: the best of them.
    pub(super) fn instance_health(&self, instance: &(String, String)) -> Option<Health> {
        let keys = self.instances.get(instance)?;
        keys.iter().filter_map(|k| self.st.node.get(k)).map(|r| r.health).min()
    }

    /// Shows an instance in the layouts that bridges name for it, and nowhere else.
    fn bridge(&mut self, source: &RecordKey, instance: &Instance, now_ms: i64, fx: &mut Effects) {
        if self.settings.bridges.is_empty() || self.st.registrations.get(source).is_some_and(|r| r.bridge_of.is_some()) {
            return;
        }
        let mut shown = Vec::new();
        for bridge in self.settings.bridges.clone() {
            if !bridge.covers(instance) {
                continue;
            }
            match bridge.project(&self.settings.layouts, instance) {
                Ok(projection) => {
                    let store = match projection.protocol {
                        Protocol::Zookeeper => StoreKind::Zookeeper,
                        Protocol::Etcd => StoreKind::Etcd,
                    };
                    for record in projection.records {
                        let key = RecordKey::new(store, record.key);
                        self.show_bridged(source, &key, record.value.into(), now_ms, fx);
                        shown.push(key);
                    }
                }
                Err(refusal) => {
                    fx.notices.push(format!("bridge to {}: {} is not shown: {refusal}", bridge.target(), instance.identity));
                }
            }
        }
        for key in self.projections(source).into_iter().filter(|k| !shown.contains(k)) {
            self.remove_from_view(std::slice::from_ref(&key), now_ms, fx);
            self.sync_absent(&key, Cause::Explicit, now_ms, fx);
        }
    }

    fn projections(&self, source: &RecordKey) -> Vec<RecordKey> {
        if self.settings.bridges.is_empty() {
            return Vec::new();
        }
        self.st
            .registrations
            .iter()
            .filter(|(_, r)| !r.removed && r.bridge_of.as_ref() == Some(source))
            .map(|(k, _)| k.clone())
            .collect()
    }

    fn show_bridged(&mut self, source: &RecordKey, key: &RecordKey, value: Bytes, now_ms: i64, fx: &mut Effects) {
        let occupied = self.st.registrations.get(key).is_some_and(|r| !r.removed && r.bridge_of.as_ref() != Some(source));
        if occupied || (self.in_view(key) && !self.st.registrations.contains_key(key)) {
            fx.notices.push(format!("bridge: {key} is somebody else's and stays"));
            return;
        }
        if self.seen(key).is_some_and(|s| s.value == value) {
            return;
        }
        match key.store {
            StoreKind::Zookeeper => {
                let number = self.st.zxid.next(now_ms);
                let stat = Stat {
                    czxid: number,
                    mzxid: number,
                    pzxid: number,
                    ctime: now_ms,
                    mtime: now_ms,
                    ephemeral_owner: BRIDGE_OWNER,
                    ..Stat::default()
                };
                let import = TreeCommand::Import {
                    path: path_of(key),
                    data: Some(value),
                    acl: vec![Acl::world(perms::ALL)],
                    stat,
                };
                self.apply_tree(&import, number, now_ms, fx);
            }
            StoreKind::Etcd => {
                let kv = KeyValue { key: key.key.clone(), value, lease: BRIDGE_OWNER, ..KeyValue::default() };
                self.apply_keys(&KeyCommand::Import { kv }, now_ms, fx);
            }
            StoreKind::Native => return,
        }
        self.sync_present(key, Actor::NOBODY, now_ms, fx);
        if let Some(reg) = self.st.registrations.get_mut(key) {
            reg.bridge_of = Some(source.clone());
        }
    }

    fn unbridge(&mut self, source: &RecordKey, now_ms: i64, fx: &mut Effects) {
        for key in self.projections(source) {
            self.remove_from_view(std::slice::from_ref(&key), now_ms, fx);
            self.sync_absent(&key, Cause::Explicit, now_ms, fx);
        }
    }
}

fn body(seen: &Seen, layout: &str, instance: Option<&Instance>) -> RecordBody {
    let mut body = RecordBody {
        value: seen.value.clone(),
        layout: layout.to_owned(),
        companion: instance.is_none(),
        ..RecordBody::default()
    };
    if let Some(i) = instance {
        body.namespace = i.namespace.clone();
        body.service = i.service.clone();
        body.instance = i.identity.clone();
        body.attributes = i.public_metadata().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        body.endpoints = i
            .endpoints
            .iter()
            .map(|e| Endpoint {
                scheme: e.scheme.clone().unwrap_or_default(),
                host: e.host.clone(),
                port: e.port.unwrap_or(0),
            })
            .collect();
    }
    body
}
