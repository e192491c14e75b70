//! What is known of each registration beside the structures that clients see, and how the new registry,
//! protection and the bridges follow a change there.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use causeway_registry::{Endpoint, Health, LeaseId, LeaseState, RecordBody, RecordKey, StoreKind};
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
    /// When it was removed, in milliseconds.
    pub(super) removed_ms: i64,
    /// L removed it at this mark: what its feed still shows at or below it is old.
    pub(super) gone_mark: i64,
    /// A client wrote here after L had shown this mark: entries of L at or below it are superseded.
    pub(super) above: i64,
    /// The view last changed because L showed this mark: a write that L acknowledged at or below it is
    /// there already.
    pub(super) shown: i64,
    /// L shall not have the entry that it has (or may get from an attempt under way): when it goes there,
    /// that is no news.
    pub(super) letting_go: bool,
    /// Hashes of values without an owner that were written here and may come back from L as an echo.
    pub(super) sent: Vec<u64>,
    /// When it was first seen, in milliseconds.
    pub(super) since_ms: i64,
}

/// Where a record in the view comes from.
#[derive(Debug, Clone)]
pub(super) enum From<'a> {
    /// A client wrote it.
    Client(Actor<'a>),
    /// L shows it.
    Legacy,
    /// Nobody wrote: the books are brought up to it.
    Same,
    /// It is a projection of this registration.
    Bridge(&'a RecordKey),
}

/// Removals that one command brings about, to be judged together.
pub(super) type Leaving = Vec<(RecordKey, (String, String), Cause)>;

impl Registration {
    /// Whether the view has what L acknowledged at this mark, or something that came after it there. Marks
    /// up to `listed_at`, L's last whole listing, may be of another life of the store and tell nothing.
    pub(super) fn knows(&self, mark: i64, listed_at: i64) -> bool {
        let later = |entry: &LegacyEntry| entry.mark > mark;
        self.shown >= mark || (mark > listed_at && self.legacy.as_ref().is_some_and(later))
    }
}

/// Who writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor<'a> {
    pub(super) peer: &'a str,
    /// Session or lease; 0 for none.
    pub(super) owner: i64,
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
        self.projections = BTreeMap::new();
        self.fading = BTreeSet::new();
        for (key, reg) in &self.st.registrations {
            if reg.removed {
                if reg.legacy.is_none() {
                    self.fading.insert((reg.removed_ms, key.clone()));
                }
                continue;
            }
            if let Some(source) = &reg.bridge_of {
                self.projections
                    .entry(source.clone())
                    .or_default()
                    .insert(key.clone());
            }
            if let Some(instance) = reg.instance.as_ref().filter(|_| self.in_view(key)) {
                self.instances
                    .entry(instance.clone())
                    .or_default()
                    .insert(key.clone());
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
                let owner = if kind == NodeKind::Ephemeral {
                    owner
                } else {
                    0
                };
                Some(Seen {
                    value: node.data().cloned().unwrap_or_default(),
                    kind,
                    owner,
                })
            }
            StoreKind::Etcd => {
                let kv = self.st.keys.get(&key.key)?;
                let kind = if kv.lease == 0 {
                    NodeKind::Unleased
                } else {
                    NodeKind::Leased
                };
                Some(Seen {
                    value: kv.value.clone(),
                    kind,
                    owner: kv.lease,
                })
            }
            StoreKind::Native => None,
        }
    }

    /// Follows a record that is in the view (again, or with other content).
    pub(super) fn sync_present(
        &mut self,
        key: &RecordKey,
        from: From<'_>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let Some(seen) = self.seen(key) else { return };
        let lease = (key.store == StoreKind::Etcd && seen.owner != 0).then_some(seen.owner);
        let classified = self.settings.layouts.classify(
            protocol(key.store),
            &key.key,
            &seen.value,
            seen.kind,
            lease,
        );
        let (layout, instance) = match &classified {
            Classified::General => return,
            Classified::Companion { layout, .. } => (layout.as_str().to_owned(), None),
            Classified::Instance(i) => (i.layout.as_str().to_owned(), Some(i.as_ref())),
        };
        let was = self.st.registrations.get(key).cloned();
        let identity = instance.map(|i| (i.service.clone(), i.identity.clone()));
        let left = was
            .as_ref()
            .filter(|r| !r.removed)
            .and_then(|r| r.instance.clone())
            .filter(|old| Some(old) != identity.as_ref());
        self.unfade(key, was.as_ref());
        if let Some(source) = was.as_ref().and_then(|r| r.bridge_of.as_ref()) {
            self.unproject(source, key);
        }
        let reg = entry_of(
            key,
            &from,
            was,
            &seen,
            identity.clone(),
            layout.clone(),
            now_ms,
        );
        if let Some(source) = &reg.bridge_of {
            self.projections
                .entry(source.clone())
                .or_default()
                .insert(key.clone());
        }
        self.st.registrations.insert(key.clone(), reg);
        if self.mode(key.store) != Mode::Relay || self.st.phase.phase().writes_new() {
            self.write_node(key, &seen, &from, &layout, instance, now_ms, fx);
        }
        if let Some(identity) = &identity {
            self.instances
                .entry(identity.clone())
                .or_default()
                .insert(key.clone());
            self.enforce(key.store, &identity.0, now_ms, fx);
            // What a stranger writes into a held record does not bring its owner back.
            if !self.st.node.get(key).is_some_and(|r| is_late(r.health)) {
                let ttl_ms = lease_of(key.store, seen.owner)
                    .and_then(|l| self.st.node.lease(l))
                    .map_or(0, |l| i64::try_from(l.ttl_ms).unwrap_or(0));
                let (service, instance) = identity.clone();
                let input = Input::Registered {
                    service,
                    instance,
                    source: REGISTRY.to_owned(),
                    ttl_ms,
                };
                let outputs = self.st.protection.handle(input, now_ms);
                self.carry_out(outputs, now_ms, fx);
            }
        }
        if let Some(old) = left {
            self.unbridge(key, Some(&old), now_ms, fx);
            // Its owner turned it into something else: as good as a removal by the owner. After the new
            // one is there, so that a service that moves whole keeps its expected size.
            self.leave(vec![(key.clone(), old, Cause::Explicit)], now_ms, fx);
        }
        self.touch(key);
        match instance {
            Some(instance) => self.bridge(key, instance, now_ms, fx),
            None => self.unbridge(key, None, now_ms, fx),
        }
    }

    /// A service of a protocol without a legacy store is protected from the start: that protocol counts as
    /// taken over.
    fn enforce(&mut self, store: StoreKind, service: &str, now_ms: i64, fx: &mut Effects) {
        let relays = self.settings.has_legacy() && !self.st.phase.taken_over();
        if !relays
            || self.mode(store) != Mode::Embedded
            || !self.st.enforced.insert(service.to_owned())
        {
            return;
        }
        let outputs = self.st.protection.handle(
            Input::ReportOnly {
                prefix: service.to_owned(),
                on: false,
            },
            now_ms,
        );
        self.carry_out(outputs, now_ms, fx);
    }

    #[allow(clippy::too_many_arguments)] // One record, seen from all sides.
    fn write_node(
        &mut self,
        key: &RecordKey,
        seen: &Seen,
        from: &From<'_>,
        layout: &str,
        instance: Option<&Instance>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let body = body(seen, layout, instance);
        let owner = lease_of(key.store, seen.owner);
        let lease = owner.filter(|l| {
            self.st
                .node
                .lease(*l)
                .is_some_and(|l| l.state != LeaseState::Over)
        });
        if let Some(lease) = lease {
            self.heard(lease, now_ms, fx);
        }
        let was = self.st.node.get(key).map(|r| r.health);
        let loser = self.late_owner(key).filter(|l| Some(*l) != lease);
        let written = self.st.node.overwrite(key.clone(), body, lease, ms(now_ms));
        debug_assert!(written.is_ok(), "an open lease takes records");
        let orphan = owner.is_some() && lease.is_none();
        match (from, was) {
            // Its owner is over: it stays as late as it was, and waits for its verdict.
            (From::Client(_) | From::Same, Some(was)) if orphan && is_late(was) => {
                self.st.node.set_health(key, was);
            }
            _ => {}
        }
        if let Some(loser) = loser {
            self.finish(loser, now_ms, fx);
        }
    }

    /// The owner of a record, when it is late: with the loss of the record it is over, since it cannot come
    /// back whole.
    fn late_owner(&self, key: &RecordKey) -> Option<LeaseId> {
        self.st
            .node
            .get(key)
            .filter(|r| is_late(r.health))
            .and_then(|r| r.lease)
    }

    /// An owner is heard through a write of its own.
    fn heard(&mut self, lease: LeaseId, now_ms: i64, fx: &mut Effects) {
        let late = self
            .st
            .node
            .lease(lease)
            .is_some_and(|l| matches!(l.state, LeaseState::Silent | LeaseState::Expired));
        if late {
            self.returned(lease, now_ms, fx);
        }
    }

    /// Follows a record that left the view for a reason that was not judged: its owner, or somebody whom
    /// protection let pass.
    pub(super) fn sync_absent(
        &mut self,
        key: &RecordKey,
        cause: Cause,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        self.sync_all_absent(&[(key.clone(), cause)], now_ms, fx);
    }

    /// Likewise for all that one command removed: judged together.
    pub(super) fn sync_all_absent(
        &mut self,
        keys: &[(RecordKey, Cause)],
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let mut leaving = Leaving::new();
        let mut losers = BTreeSet::new();
        for (key, cause) in keys {
            losers.extend(self.late_owner(key));
            self.st.node.deregister(key, ms(now_ms));
            leaving.extend(
                self.forget(key, now_ms, fx)
                    .map(|instance| (key.clone(), instance, *cause)),
            );
        }
        self.leave(leaving, now_ms, fx);
        for loser in losers {
            self.finish(loser, now_ms, fx);
        }
    }

    /// Takes a registration off the books; a tombstone stays until L cannot have it any more. Gives the
    /// instance that it belonged to.
    pub(super) fn forget(
        &mut self,
        key: &RecordKey,
        now_ms: i64,
        fx: &mut Effects,
    ) -> Option<(String, String)> {
        let follows = self.st.feeds.contains_key(&key.store);
        let reg = self.st.registrations.get_mut(key).filter(|r| !r.removed)?;
        let (instance, source) = (reg.instance.clone(), reg.bridge_of.clone());
        self.excused.remove(key);
        if follows {
            // Even without an entry there: an attempt may be under way.
            reg.removed = true;
            reg.removed_ms = now_ms;
            reg.letting_go = true;
            if reg.legacy.is_none() {
                self.fading.insert((now_ms, key.clone()));
            }
        } else {
            self.st.registrations.remove(key);
        }
        if let Some(source) = source {
            self.unproject(&source, key);
        }
        self.touch(key);
        self.unbridge(key, instance.as_ref(), now_ms, fx);
        instance
    }

    /// Registrations of instances went; protection hears of each that was its instance's last.
    pub(super) fn leave(&mut self, leaving: Leaving, now_ms: i64, fx: &mut Effects) {
        let mut inputs = Vec::new();
        let mut lost: BTreeMap<(String, Cause), BTreeSet<String>> = BTreeMap::new();
        for (key, instance, cause) in leaving {
            if !self.unindex(&key, &instance) {
                continue;
            }
            let (service, instance) = instance;
            match cause {
                Cause::Explicit => inputs.push(Input::Removed { service, instance }),
                Cause::Expired | Cause::Foreign | Cause::Unknown => {
                    lost.entry((service, cause)).or_default().insert(instance);
                }
            }
        }
        inputs.extend(
            lost.into_iter()
                .map(|((service, cause), instances)| Input::Missing {
                    service,
                    instances,
                    source: REGISTRY.to_owned(),
                    cause,
                }),
        );
        if !inputs.is_empty() {
            let outputs = self.st.protection.handle_all(inputs, now_ms);
            self.carry_out(outputs, now_ms, fx);
        }
    }

    /// The registration is there again, or is forgotten for good.
    pub(super) fn unfade(&mut self, key: &RecordKey, reg: Option<&Registration>) {
        if let Some(reg) = reg.filter(|r| r.removed) {
            self.fading.remove(&(reg.removed_ms, key.clone()));
        }
    }

    /// Drops a registration and what is kept beside it.
    pub(super) fn drop_registration(&mut self, key: &RecordKey) {
        let reg = self.st.registrations.remove(key);
        self.unfade(key, reg.as_ref());
        self.dirty.remove(key);
        self.excused.remove(key);
    }

    /// Forgets removed registrations that no attempt of ours can bring back in L any more.
    pub(super) fn fade(&mut self, now_ms: i64) {
        while let Some((at, key)) = self.fading.first().cloned() {
            let whole = self.st.feeds.get(&key.store).is_none_or(|f| f.whole);
            if at > now_ms - FADE_MS || !whole {
                return;
            }
            self.drop_registration(&key);
        }
    }

    /// Whether that was the instance's last registration.
    pub(super) fn unindex(&mut self, key: &RecordKey, instance: &(String, String)) -> bool {
        let Some(set) = self.instances.get_mut(instance) else {
            return false;
        };
        let was_there = set.remove(key);
        let last = set.is_empty();
        if last {
            self.instances.remove(instance);
        }
        was_there && last
    }

    /// Notes that L may have to follow.
    pub(super) fn touch(&mut self, key: &RecordKey) {
        if self.st.feeds.contains_key(&key.store) {
            self.dirty.insert(key.clone());
        }
    }

    /// The health of an instance as its registrations have it: the best of them.
    pub(super) fn instance_health(&self, instance: &(String, String)) -> Option<Health> {
        let keys = self.instances.get(instance)?;
        keys.iter()
            .filter_map(|k| self.st.node.get(k))
            .map(|r| r.health)
            .min()
    }

    fn unproject(&mut self, source: &RecordKey, key: &RecordKey) {
        if let Some(keys) = self.projections.get_mut(source) {
            keys.remove(key);
            if keys.is_empty() {
                self.projections.remove(source);
            }
        }
    }

    /// Shows an instance in the layouts that bridges name for it, and nowhere else.
    fn bridge(&mut self, source: &RecordKey, instance: &Instance, now_ms: i64, fx: &mut Effects) {
        let projected = self
            .st
            .registrations
            .get(source)
            .is_some_and(|r| r.bridge_of.is_some());
        if projected || (self.bridges.is_empty() && !self.projections.contains_key(source)) {
            return;
        }
        let mut shown = Vec::new();
        for bridge in self.bridges.clone().iter() {
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
                    fx.notices.push(format!(
                        "bridge to {}: {} is not shown: {refusal}",
                        bridge.target(),
                        instance.identity
                    ));
                }
            }
        }
        for key in self
            .projections(source)
            .into_iter()
            .filter(|k| !shown.contains(k))
        {
            self.remove_from_view(std::slice::from_ref(&key), now_ms, fx);
            self.sync_absent(&key, Cause::Explicit, now_ms, fx);
        }
    }

    fn projections(&self, source: &RecordKey) -> Vec<RecordKey> {
        self.projections
            .get(source)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Brings all projections up to the bridges in force, which may have changed over a restart.
    pub(super) fn bridge_anew(&mut self, now_ms: i64, fx: &mut Effects) {
        let sources: BTreeSet<RecordKey> = match self.bridges.is_empty() {
            true => self.projections.keys().cloned().collect(),
            false => {
                let all = self
                    .st
                    .registrations
                    .iter()
                    .filter(|(_, r)| !r.removed && r.bridge_of.is_none());
                all.map(|(k, _)| k.clone())
                    .chain(self.projections.keys().cloned())
                    .collect()
            }
        };
        for source in sources {
            self.bridge_again(&source, now_ms, fx);
        }
    }

    /// Projects what the view holds of a registration.
    fn bridge_again(&mut self, source: &RecordKey, now_ms: i64, fx: &mut Effects) {
        let seen = self.seen(source);
        let classified = seen.as_ref().map(|seen| {
            let lease = (source.store == StoreKind::Etcd && seen.owner != 0).then_some(seen.owner);
            self.settings.layouts.classify(
                protocol(source.store),
                &source.key,
                &seen.value,
                seen.kind,
                lease,
            )
        });
        match classified {
            Some(Classified::Instance(instance)) => self.bridge(source, &instance, now_ms, fx),
            _ => self.unbridge(source, None, now_ms, fx),
        }
    }

    fn show_bridged(
        &mut self,
        source: &RecordKey,
        key: &RecordKey,
        value: Bytes,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let occupied = self
            .st
            .registrations
            .get(key)
            .is_some_and(|r| !r.removed && r.bridge_of.as_ref() != Some(source));
        if occupied || (self.in_view(key) && !self.st.registrations.contains_key(key)) {
            fx.notices
                .push(format!("bridge: {key} is somebody else's and stays"));
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
                let kv = KeyValue {
                    key: key.key.clone(),
                    value,
                    lease: BRIDGE_OWNER,
                    ..KeyValue::default()
                };
                self.apply_keys(&KeyCommand::Import { kv }, now_ms, fx);
            }
            StoreKind::Native => return,
        }
        self.sync_present(key, From::Bridge(source), now_ms, fx);
    }

    /// Takes the projections of a registration away, or gives them to another registration of the same
    /// instance, which has the same ones.
    fn unbridge(
        &mut self,
        source: &RecordKey,
        instance: Option<&(String, String)>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let Some(keys) = self.projections.remove(source) else {
            return;
        };
        let others = instance
            .and_then(|i| self.instances.get(i))
            .into_iter()
            .flatten();
        let heir = others
            .filter(|k| *k != source && !keys.contains(k))
            .find(|k| {
                self.st
                    .registrations
                    .get(k)
                    .is_some_and(|r| !r.removed && r.bridge_of.is_none())
            });
        match heir.cloned() {
            Some(heir) => {
                for key in &keys {
                    if let Some(reg) = self.st.registrations.get_mut(key) {
                        reg.bridge_of = Some(heir.clone());
                    }
                }
                self.projections
                    .entry(heir.clone())
                    .or_default()
                    .extend(keys);
                self.bridge_again(&heir, now_ms, fx);
            }
            None => {
                let keys: Vec<RecordKey> = keys.into_iter().collect();
                self.remove_from_view(&keys, now_ms, fx);
                let gone: Vec<(RecordKey, Cause)> =
                    keys.into_iter().map(|k| (k, Cause::Explicit)).collect();
                self.sync_all_absent(&gone, now_ms, fx);
            }
        }
    }
}

/// How long a removed registration is remembered although L does not show it: longer than any attempt to
/// write it there takes.
const FADE_MS: i64 = 15 * 60_000;

/// Values without an owner that are remembered for their echo: as many as clients write while one of them is on its
/// way to L and back. An echo that was forgotten would be taken for a direct writer's, and undo what was written since.
const ECHOES: usize = 4096;

/// Whether a record is there without proof of life.
pub(super) fn is_late(health: Health) -> bool {
    matches!(health, Health::Expired | Health::Held)
}

/// FNV-1a: equal over restarts and versions, which the standard library's hash does not promise.
pub(super) fn hash(value: &[u8]) -> u64 {
    value.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The entry in the books for what the view holds now.
fn entry_of(
    key: &RecordKey,
    from: &From<'_>,
    was: Option<Registration>,
    seen: &Seen,
    instance: Option<(String, String)>,
    layout: String,
    now_ms: i64,
) -> Registration {
    let mut reg = was.unwrap_or_else(|| Registration::new(layout.clone(), seen.kind, now_ms));
    if reg.removed {
        (reg.since_ms, reg.bridge_of, reg.imported, reg.peer) =
            (now_ms, None, false, String::new());
    }
    (reg.instance, reg.layout, reg.node, reg.removed) = (instance, layout, seen.kind, false);
    match from {
        From::Client(actor) => {
            reg.peer = actor.peer.to_owned();
            reg.bridge_of = None;
        }
        From::Bridge(source) => reg.bridge_of = Some((*source).clone()),
        From::Legacy | From::Same => return reg,
    }
    reg.imported = false;
    // Whatever became of an earlier entry in L: this one was written after it.
    reg.absence = Absence::NeverThere;
    reg.above = reg
        .legacy
        .as_ref()
        .map_or(reg.above, |l| l.mark.max(reg.above));
    if seen.owner == 0 && key.store != StoreKind::Native {
        reg.sent.push(hash(&seen.value));
        if reg.sent.len() > ECHOES {
            reg.sent.remove(0);
        }
    }
    reg
}

impl Registration {
    /// One that nothing is known of yet.
    pub(super) fn new(layout: String, node: NodeKind, now_ms: i64) -> Self {
        Registration {
            instance: None,
            layout,
            node,
            peer: String::new(),
            legacy: None,
            absence: Absence::NeverThere,
            imported: false,
            bridge_of: None,
            removed: false,
            removed_ms: 0,
            gone_mark: 0,
            above: 0,
            shown: 0,
            letting_go: false,
            sent: Vec::new(),
            since_ms: now_ms,
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
        body.attributes = i
            .public_metadata()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
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
