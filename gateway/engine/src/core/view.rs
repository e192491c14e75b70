//! Writes to the two structures that clients see, with their events, and what follows from them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use causeway_registry::{Health, LeaseId, LeaseState, RecordBody, RecordKey, StoreKind};

use super::registrations::{Actor, path_of, protocol};
use super::{Core, Effects, REGISTRY, Reply, ms};
use crate::key_space::{KeyCommand, KeyReply, Op, Txn};
use crate::layout::Class;
use crate::protection::{Cause, Input};
use crate::route::Mode;
use crate::session::{Origin, Session};
use crate::znode_tree::{
    Change, ChangeKind, CreateMode, MultiOp, OpResult, Stat, TreeCommand, TreeReply, perms, permits,
};

/// Sessions and leases.
impl Core {
    pub(super) fn open_session(&mut self, id: i64, password: [u8; 16], timeout_ms: u32, now_ms: i64) {
        self.st.sessions.open(Session {
            id,
            password,
            timeout_ms,
            origin: Origin::Own,
            claim: 0,
            legacy: None,
            former: Vec::new(),
            bound: false,
            connection: None,
        });
        self.st.node.open_lease(LeaseId::session(id), u64::from(timeout_ms), ms(now_ms));
    }

    pub(super) fn adopt_session(
        &mut self,
        id: i64,
        password: [u8; 16],
        timeout_ms: u32,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        if self.st.sessions.get(id).is_none() {
            let legacy = Some(crate::session::LegacySession { id, password, timeout_ms });
            self.st.sessions.open(Session {
                id,
                password,
                timeout_ms,
                origin: Origin::Legacy,
                claim: 0,
                legacy,
                former: Vec::new(),
                bound: false,
                connection: None,
            });
        }
        if self.st.phase.taken_over() {
            self.own(LeaseId::session(id), u64::from(timeout_ms), now_ms, fx);
        }
    }

    pub(super) fn adopt_lease(&mut self, id: i64, ttl_s: i64, now_ms: i64, fx: &mut Effects) {
        self.apply_keys(&KeyCommand::AdoptLease { id, ttl_s }, now_ms, fx);
        if self.st.phase.taken_over() {
            let ttl_ms = u64::try_from(ttl_s.max(1)).unwrap_or(1).saturating_mul(1000);
            self.own(LeaseId::lease(id), ttl_ms, now_ms, fx);
        }
    }

    /// An owner that L gave out is judged by Causeway from now on, with all that it owns.
    pub(super) fn own(&mut self, lease: LeaseId, ttl_ms: u64, now_ms: i64, fx: &mut Effects) {
        self.st.node.open_lease(lease, ttl_ms, ms(now_ms));
        let keys: Vec<RecordKey> = match lease.kind {
            causeway_registry::LeaseKind::Session => self
                .st
                .tree
                .ephemerals(lease.id)
                .map(|p| RecordKey::new(StoreKind::Zookeeper, p.as_bytes().to_vec()))
                .collect(),
            causeway_registry::LeaseKind::Lease => {
                self.st.keys.lease_keys(lease.id).map(|k| RecordKey::new(StoreKind::Etcd, k.clone())).collect()
            }
            _ => Vec::new(),
        };
        for key in keys {
            self.sync_present(&key, Actor::NOBODY, now_ms, fx);
        }
    }

    /// The client closed its session: all it owns goes as one change, at once.
    pub(super) fn close_session(&mut self, id: i64, now_ms: i64, fx: &mut Effects) {
        if self.mode(StoreKind::Zookeeper) == Mode::Relay {
            fx.over.extend(self.st.sessions.close(id));
            return;
        }
        let number = self.st.zxid.next(now_ms);
        fx.number = number;
        fx.reply = Some(Reply::None);
        let lease = LeaseId::session(id);
        let keep = self.held_back(lease, now_ms);
        let command = TreeCommand::CloseSession { session: id, keep: keep.iter().map(path_of).collect() };
        let changes = self.apply_tree(&command, number, now_ms, fx);
        self.end_lease(lease, &keep, now_ms);
        for path in changes {
            let key = RecordKey::new(StoreKind::Zookeeper, path.into_bytes());
            self.sync_absent(&key, Cause::Explicit, now_ms, fx);
        }
        if let Some(session) = self.st.sessions.close(id) {
            fx.close.extend(session.connection);
            fx.over.push(session);
        }
    }

    /// Instances that `hold --explicit` keeps although their owner ends.
    fn held_back(&self, lease: LeaseId, now_ms: i64) -> Vec<RecordKey> {
        if self.st.explicit_hold_until_ms <= now_ms {
            return Vec::new();
        }
        self.st.node.by_lease(lease).filter(|r| !r.body.companion).map(|r| r.key.clone()).collect()
    }

    /// Ends a lease in the registry; records in `keep` stay there, held.
    fn end_lease(&mut self, lease: LeaseId, keep: &[RecordKey], now_ms: i64) {
        if keep.is_empty() {
            self.st.node.close_lease(lease, ms(now_ms));
            return;
        }
        let all: Vec<RecordKey> = self.st.node.by_lease(lease).map(|r| r.key.clone()).collect();
        for key in all {
            if keep.contains(&key) {
                self.st.node.set_health(&key, Health::Held);
            } else {
                self.st.node.deregister(&key, ms(now_ms));
            }
        }
        self.st.node.mark_lease(lease, LeaseState::Over);
    }
}

/// The tree.
impl Core {
    /// Applies to the tree and collects the events. Gives the paths that changed.
    pub(super) fn apply_tree(
        &mut self,
        command: &TreeCommand,
        number: i64,
        now_ms: i64,
        fx: &mut Effects,
    ) -> Vec<String> {
        let applied = self.st.tree.apply(command, number, now_ms);
        self.fire(&applied.changes, fx);
        applied.changes.into_iter().map(|c| c.path.to_string()).collect()
    }

    fn fire(&mut self, changes: &[Change], fx: &mut Effects) {
        let Core { tree_watches, auth, .. } = self;
        for change in changes {
            let events = tree_watches.fire(change, |watcher, acl| {
                permits(acl, perms::READ, auth.get(&watcher).map_or(&[], Vec::as_slice))
            });
            fx.tree_events.extend(events);
        }
    }

    pub(super) fn write_tree(
        &mut self,
        peer: &str,
        session: i64,
        op: &TreeCommand,
        acknowledged: Option<i64>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let actor = Actor { peer, owner: session };
        // ZooKeeper: a failed write consumes a zxid too.
        let number = self.st.zxid.next(now_ms);
        fx.number = number;
        if acknowledged.is_none() {
            if let Some(service) = self.refused(&deleted_paths(op), actor, now_ms) {
                fx.reply = Some(Reply::Refused { service });
                return;
            }
        }
        let op = self.create_over(op, session, number, now_ms);
        let applied = self.st.tree.apply(&op, number, now_ms);
        let mut changes = applied.changes;
        let mut result = applied.result;
        let failed = match &result {
            Ok(reply) => reply.is_failed_multi(),
            Err(_) => true,
        };
        if failed && acknowledged.is_some() {
            // L is the authority here and has done it: the view follows.
            result = Ok(self.force(&op, session, number, now_ms, &mut changes));
        }
        if let (TreeCommand::Import { path, .. }, Ok(TreeReply::Imported { .. })) = (&*op, &result) {
            if let Some(stat) = self.st.tree.node(path).map(|n| n.stat()) {
                result = Ok(TreeReply::Created { path: path.as_str().into(), stat });
            }
        }
        self.fire(&changes, fx);
        let mut done = BTreeSet::new();
        for change in &changes {
            if !done.insert(change.path.clone()) {
                continue;
            }
            let key = RecordKey::new(StoreKind::Zookeeper, change.path.as_bytes().to_vec());
            self.follow(&key, actor, acknowledged, now_ms, fx);
        }
        fx.reply = Some(Reply::Tree(result));
    }

    /// What a registration's books do after a client's write to it.
    fn follow(
        &mut self,
        key: &RecordKey,
        actor: Actor<'_>,
        acknowledged: Option<i64>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        if self.in_view(key) {
            self.sync_present(key, actor, now_ms, fx);
            if let Some(mark) = acknowledged {
                self.confirm(key, mark);
            }
            return;
        }
        if !self.st.registrations.contains_key(key) {
            return;
        }
        let cause = self.cause_of_delete(key, actor);
        if acknowledged.is_some() {
            if let Some(reg) = self.st.registrations.get_mut(key) {
                reg.legacy = None;
            }
        }
        self.sync_absent(key, cause, now_ms, fx);
    }

    /// Explicit when the owner does it, or the address that last wrote the record; foreign otherwise.
    fn cause_of_delete(&self, key: &RecordKey, actor: Actor<'_>) -> Cause {
        let owner = self.st.node.get(key).and_then(|r| r.lease).map(|l| l.id);
        let peer = self.st.registrations.get(key).map(|r| r.peer.as_str());
        if owner == Some(actor.owner) || (!actor.peer.is_empty() && peer == Some(actor.peer)) {
            Cause::Explicit
        } else {
            Cause::Foreign
        }
    }

    /// The service for whose sake a client's delete is refused: somebody else's instance whose removal
    /// protection would hold, or any while `hold --explicit` is in force.
    fn refused(&self, keys: &[RecordKey], actor: Actor<'_>, now_ms: i64) -> Option<String> {
        let mut foreign: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for key in keys {
            let Some((service, id)) = self.st.registrations.get(key).filter(|r| !r.removed).and_then(|r| r.instance.clone())
            else {
                continue;
            };
            if self.st.explicit_hold_until_ms > now_ms {
                return Some(service);
            }
            let last = self.instances.get(&(service.clone(), id.clone())).is_some_and(|s| s.len() == 1);
            if last && self.cause_of_delete(key, actor) == Cause::Foreign {
                foreign.entry(service).or_default().insert(id);
            }
        }
        foreign
            .into_iter()
            .find(|(service, ids)| self.st.protection.would_refuse_foreign(service, ids, REGISTRY, now_ms))
            .map(|(service, _)| service)
    }

    /// A create over a record whose owner is gone or held succeeds and takes over: a dead owner must not
    /// answer NodeExists. Watchers see at most a change of data.
    fn create_over<'a>(&self, op: &'a TreeCommand, session: i64, number: i64, now_ms: i64) -> Cow<'a, TreeCommand> {
        let TreeCommand::Create { path, data, acl, mode, auth, .. } = op else { return Cow::Borrowed(op) };
        let key = RecordKey::new(StoreKind::Zookeeper, path.clone().into_bytes());
        let Some(record) = self.st.node.get(&key) else { return Cow::Borrowed(op) };
        let late = matches!(record.health, Health::Held | Health::Expired);
        if !late || !self.st.tree.contains(path) || !matches!(mode, CreateMode::Ephemeral | CreateMode::Persistent) {
            return Cow::Borrowed(op);
        }
        let owner = if *mode == CreateMode::Ephemeral { session } else { 0 };
        let acl = crate::znode_tree::resolve_acl(acl, auth).unwrap_or_else(|_| acl.clone());
        Cow::Owned(TreeCommand::Import {
            path: path.clone(),
            data: data.clone(),
            acl,
            stat: Stat {
                czxid: number,
                mzxid: number,
                pzxid: number,
                ctime: now_ms,
                mtime: now_ms,
                ephemeral_owner: owner,
                ..Stat::default()
            },
        })
    }

    /// Does what L has acknowledged although the view's own state speaks against it.
    fn force(
        &mut self,
        op: &TreeCommand,
        session: i64,
        number: i64,
        now_ms: i64,
        changes: &mut Vec<Change>,
    ) -> TreeReply {
        let mut one = |core: &mut Core, op: &MultiOp| -> OpResult {
            let command = match op {
                MultiOp::Create { path, data, acl, mode } => TreeCommand::Import {
                    path: path.clone(),
                    data: data.clone(),
                    acl: acl.clone(),
                    stat: Stat {
                        czxid: number,
                        mzxid: number,
                        pzxid: number,
                        ctime: now_ms,
                        mtime: now_ms,
                        ephemeral_owner: if mode.is_ephemeral() { session } else { 0 },
                        ..Stat::default()
                    },
                },
                MultiOp::Delete { path, .. } => TreeCommand::RemoveAll { paths: vec![path.clone()] },
                MultiOp::SetData { path, data, .. } => {
                    let stat = core.st.tree.node(path).map(|n| n.stat()).unwrap_or_default();
                    TreeCommand::Import {
                        path: path.clone(),
                        data: data.clone(),
                        acl: core.st.tree.node(path).map(|n| n.acl().to_vec()).unwrap_or_default(),
                        stat: Stat { mzxid: number, mtime: now_ms, version: stat.version.wrapping_add(1), ..stat },
                    }
                }
                MultiOp::Check { .. } => return OpResult::Checked,
            };
            changes.extend(core.st.tree.apply(&command, number, now_ms).changes);
            match op {
                MultiOp::Delete { .. } => OpResult::Deleted,
                MultiOp::Check { .. } => OpResult::Checked,
                MultiOp::SetData { path, .. } => {
                    OpResult::Set(core.st.tree.node(path).map(|n| n.stat()).unwrap_or_default())
                }
                MultiOp::Create { path, .. } => OpResult::Created {
                    path: path.as_str().into(),
                    stat: core.st.tree.node(path).map(|n| n.stat()).unwrap_or_default(),
                },
            }
        };
        match op {
            TreeCommand::Multi { ops, .. } => TreeReply::Multi(ops.iter().map(|op| one(self, op)).collect()),
            TreeCommand::Create { path, data, acl, mode, .. } => {
                let op = MultiOp::Create { path: path.clone(), data: data.clone(), acl: acl.clone(), mode: *mode };
                match one(self, &op) {
                    OpResult::Created { path, stat } => TreeReply::Created { path, stat },
                    _ => TreeReply::Deleted,
                }
            }
            TreeCommand::SetData { path, data, version, .. } => {
                let op = MultiOp::SetData { path: path.clone(), data: data.clone(), version: *version };
                match one(self, &op) {
                    OpResult::Set(stat) => TreeReply::Set(stat),
                    _ => TreeReply::Deleted,
                }
            }
            TreeCommand::Delete { path, version, .. } => {
                one(self, &MultiOp::Delete { path: path.clone(), version: *version });
                TreeReply::Deleted
            }
            _ => TreeReply::Deleted,
        }
    }

    pub(super) fn reap(&mut self, now_ms: i64, fx: &mut Effects) {
        let paths: Vec<String> = self.st.tree.due_for_reap(now_ms).iter().map(ToString::to_string).collect();
        let number = self.st.zxid.next(now_ms);
        for path in self.apply_tree(&TreeCommand::Reap { paths }, number, now_ms, fx) {
            let key = RecordKey::new(StoreKind::Zookeeper, path.into_bytes());
            self.sync_absent(&key, Cause::Explicit, now_ms, fx);
        }
    }
}

/// The key space.
impl Core {
    /// Applies to the key space and collects the events. Gives the keys that changed.
    pub(super) fn apply_keys(&mut self, command: &KeyCommand, now_ms: i64, fx: &mut Effects) -> Vec<bytes::Bytes> {
        let number = self.st.revision.peek(now_ms);
        let applied = self.st.keys.apply(command, number, now_ms);
        self.dispatch(&applied, now_ms, fx);
        applied.events.iter().map(|e| e.kv.key.clone()).collect()
    }

    fn dispatch(&mut self, applied: &crate::key_space::Applied, now_ms: i64, fx: &mut Effects) {
        if applied.revision_used {
            self.st.revision.next(now_ms);
            let revision = applied.revision;
            let deliveries = self.key_watches.dispatch(revision, &applied.events);
            fx.key_events.extend(deliveries.into_iter().map(|delivery| super::KeyDispatch { revision, delivery }));
        }
        fx.number = applied.revision;
    }

    pub(super) fn write_keys(
        &mut self,
        peer: &str,
        op: &KeyCommand,
        acknowledged: Option<i64>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let owner = match op {
            KeyCommand::LeaseRevoke { id, .. } => *id,
            _ => 0,
        };
        let actor = Actor { peer, owner };
        fx.number = self.st.keys.revision();
        if acknowledged.is_none() {
            if let Some(service) = self.refused(&self.deleted_keys(op), actor, now_ms) {
                fx.reply = Some(Reply::Refused { service });
                return;
            }
        }
        let op = match op {
            KeyCommand::LeaseRevoke { id, .. } => {
                let keep = self.held_back(LeaseId::lease(*id), now_ms);
                Cow::Owned(KeyCommand::LeaseRevoke { id: *id, keep: keep.into_iter().map(|k| k.key).collect() })
            }
            other => Cow::Borrowed(other),
        };
        let number = self.st.revision.peek(now_ms);
        let applied = self.st.keys.apply(&op, number, now_ms);
        self.dispatch(&applied, now_ms, fx);
        match (&*op, &applied.result) {
            (_, Ok(KeyReply::LeaseGrant { id, ttl_s })) => {
                let ttl_ms = u64::try_from(*ttl_s).unwrap_or(1).saturating_mul(1000);
                self.st.node.open_lease(LeaseId::lease(*id), ttl_ms, ms(now_ms));
            }
            (KeyCommand::LeaseRevoke { id, keep }, Ok(_)) => {
                let keep: Vec<RecordKey> = keep.iter().map(|k| RecordKey::new(StoreKind::Etcd, k.clone())).collect();
                self.end_lease(LeaseId::lease(*id), &keep, now_ms);
                fx.leases_over.push(*id);
            }
            _ => {}
        }
        let mut done = BTreeSet::new();
        for event in applied.events.iter() {
            if !done.insert(event.kv.key.clone()) {
                continue;
            }
            let key = RecordKey::new(StoreKind::Etcd, event.kv.key.clone());
            if matches!(&*op, KeyCommand::LeaseRevoke { .. }) {
                self.sync_absent(&key, Cause::Explicit, now_ms, fx);
            } else {
                self.follow(&key, actor, acknowledged, now_ms, fx);
            }
        }
        fx.reply = Some(Reply::Keys(applied.result));
    }

    /// Registrations that a write would delete.
    fn deleted_keys(&self, op: &KeyCommand) -> Vec<RecordKey> {
        let mut out = Vec::new();
        let mut range = |key: &bytes::Bytes, range_end: &bytes::Bytes| {
            out.extend(self.st.keys.pairs(key, range_end).map(|kv| RecordKey::new(StoreKind::Etcd, kv.key.clone())));
        };
        fn walk(txn: &Txn, range: &mut impl FnMut(&bytes::Bytes, &bytes::Bytes)) {
            for op in txn.success.iter().chain(&txn.failure) {
                match op {
                    Op::DeleteRange { key, range_end, .. } => range(key, range_end),
                    Op::Txn(inner) => walk(inner, range),
                    _ => {}
                }
            }
        }
        match op {
            KeyCommand::DeleteRange { key, range_end, .. } => range(key, range_end),
            KeyCommand::Txn(txn) => walk(txn, &mut range),
            _ => {}
        }
        out
    }
}

/// Either structure.
impl Core {
    /// Takes records out of the view, each store's under one number.
    pub(super) fn remove_from_view(&mut self, keys: &[RecordKey], now_ms: i64, fx: &mut Effects) {
        let of = |store: StoreKind| keys.iter().filter(move |k| k.store == store);
        let paths: Vec<String> = of(StoreKind::Zookeeper).map(path_of).collect();
        if !paths.is_empty() {
            let number = self.st.zxid.next(now_ms);
            self.apply_tree(&TreeCommand::RemoveAll { paths }, number, now_ms, fx);
        }
        let keys: Vec<bytes::Bytes> = of(StoreKind::Etcd).map(|k| k.key.clone()).collect();
        if !keys.is_empty() {
            self.apply_keys(&KeyCommand::RemoveAll { keys }, now_ms, fx);
        }
    }

    /// Whether a layout owns the key.
    pub fn owns(&self, store: StoreKind, key: &[u8]) -> bool {
        matches!(self.settings.layouts.class(protocol(store), key), Class::Owned { .. })
    }

    pub(super) fn register_native(
        &mut self,
        key: &RecordKey,
        body: &RecordBody,
        lease: Option<LeaseId>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let result = self.st.node.register(key.clone(), body.clone(), lease, ms(now_ms));
        if result.is_ok() && !body.companion {
            let service = format!("{}/{}", body.namespace, body.service);
            let instance = (service.clone(), body.instance.clone());
            let reg = self.native_registration(instance.clone(), now_ms);
            self.st.registrations.insert(key.clone(), reg);
            self.instances.entry(instance).or_default().insert(key.clone());
            let ttl_ms = lease.and_then(|l| self.st.node.lease(l)).map_or(0, |l| i64::try_from(l.ttl_ms).unwrap_or(0));
            let source = REGISTRY.to_owned();
            let input = Input::Registered { service, instance: body.instance.clone(), source, ttl_ms };
            let outputs = self.st.protection.handle(input, now_ms);
            self.carry_out(outputs, now_ms, fx);
        }
        fx.reply = Some(Reply::Registered(result));
    }

    fn native_registration(&self, instance: (String, String), now_ms: i64) -> super::Registration {
        super::Registration {
            instance: Some(instance),
            layout: "native".into(),
            node: crate::layout::NodeKind::Leased,
            peer: String::new(),
            legacy: None,
            absence: crate::converge::Absence::NeverThere,
            imported: false,
            bridge_of: None,
            removed: false,
            since_ms: now_ms,
        }
    }

    pub(super) fn deregister_native(&mut self, key: &RecordKey, now_ms: i64, fx: &mut Effects) {
        let found = self.st.node.get(key).is_some();
        if found {
            self.sync_absent(key, Cause::Explicit, now_ms, fx);
        }
        fx.reply = Some(Reply::Deregistered(found));
    }

    pub(super) fn close_native_lease(&mut self, id: LeaseId, now_ms: i64, fx: &mut Effects) {
        let keys: Vec<RecordKey> = self.st.node.by_lease(id).map(|r| r.key.clone()).collect();
        self.st.node.close_lease(id, ms(now_ms));
        for key in keys {
            self.forget(&key, Some(Cause::Explicit), now_ms, fx);
        }
    }
}

fn deleted_paths(op: &TreeCommand) -> Vec<RecordKey> {
    let key = |path: &String| RecordKey::new(StoreKind::Zookeeper, path.clone().into_bytes());
    match op {
        TreeCommand::Delete { path, .. } => vec![key(path)],
        TreeCommand::Multi { ops, .. } => ops
            .iter()
            .filter_map(|op| match op {
                MultiOp::Delete { path, .. } => Some(key(path)),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[allow(unused_imports)] // Named in the documentation of this file's functions.
use ChangeKind as _;
