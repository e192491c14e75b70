//! Writes to the two structures that clients see, with their events, and what follows from them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use causeway_registry::{Health, LeaseId, LeaseState, RecordBody, RecordKey, StoreKind};

use super::registrations::{Actor, From, is_late, path_of, protocol};
use super::{Core, Effects, LegacyEntry, REGISTRY, Reply, ms};
use crate::converge::Absence;
use crate::key_space::{KeyCommand, KeyReply, Op, OpReply, PutReply, RangeRequest, Txn, TxnReply};
use crate::layout::Class;
use crate::protection::{Cause, Input};
use crate::route::Mode;
use crate::session::{Origin, Session};
use crate::znode_tree::{
    Acl, AuthId, Change, CreateMode, MultiOp, OpResult, Stat, TreeCommand, TreeError, TreeReply,
    permits, perms,
};

/// Sessions and leases.
impl Core {
    pub(super) fn open_session(
        &mut self,
        id: i64,
        password: [u8; 16],
        timeout_ms: u32,
        now_ms: i64,
    ) {
        self.st.sessions.open(Session {
            id,
            password,
            timeout_ms,
            origin: Origin::Own,
            claim: 0,
            legacy: None,
            former: Vec::new(),
            bound: false,
            lost: false,
            connection: None,
        });
        self.st
            .node
            .open_lease(LeaseId::session(id), u64::from(timeout_ms), ms(now_ms));
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
            let legacy = Some(crate::session::LegacySession {
                id,
                password,
                timeout_ms,
            });
            self.st.sessions.open(Session {
                id,
                password,
                timeout_ms,
                origin: Origin::Legacy,
                claim: 0,
                legacy,
                former: Vec::new(),
                bound: false,
                lost: false,
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
            let ttl_ms = u64::try_from(ttl_s.max(1))
                .unwrap_or(1)
                .saturating_mul(1000);
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
            causeway_registry::LeaseKind::Lease => self
                .st
                .keys
                .lease_keys(lease.id)
                .map(|k| RecordKey::new(StoreKind::Etcd, k.clone()))
                .collect(),
            _ => Vec::new(),
        };
        for key in keys {
            self.sync_present(&key, From::Same, now_ms, fx);
        }
    }

    pub(super) fn set_timeout(&mut self, id: i64, timeout_ms: u32, now_ms: i64, fx: &mut Effects) {
        if !self.st.sessions.set_timeout(id, timeout_ms) {
            return;
        }
        let lease = LeaseId::session(id);
        if self
            .st
            .node
            .lease(lease)
            .is_some_and(|l| l.state != LeaseState::Over)
        {
            self.st
                .node
                .open_lease(lease, u64::from(timeout_ms), ms(now_ms));
            self.returned(lease, now_ms, fx);
        }
    }

    /// The session behind a client's session is another one now, or none: what the former one owned and
    /// lost in L was lost with it.
    pub(super) fn set_legacy_session(
        &mut self,
        id: i64,
        legacy: Option<crate::session::LegacySession>,
    ) {
        self.st.sessions.set_legacy(id, legacy);
        let keys: Vec<RecordKey> = self
            .st
            .node
            .by_lease(LeaseId::session(id))
            .map(|r| r.key.clone())
            .collect();
        for key in keys {
            if let Some(reg) = self.st.registrations.get_mut(&key) {
                reg.absence = Absence::NeverThere;
            }
            self.touch(&key);
        }
    }

    /// Takes a session off the table; what it still owns in L is remembered as nobody's.
    pub(super) fn drop_session(&mut self, id: i64, now_ms: i64) -> Option<Session> {
        let session = self.st.sessions.close(id)?;
        for owner in session
            .legacy
            .iter()
            .map(|l| l.id)
            .chain(session.former.iter().copied())
        {
            self.end_owner(StoreKind::Zookeeper, owner, now_ms);
        }
        Some(session)
    }

    /// Remembers what stood behind an ended owner in L, for as long as its entries may still show there.
    pub(super) fn end_owner(&mut self, store: StoreKind, owner: i64, now_ms: i64) {
        if !self.st.feeds.contains_key(&store) {
            return;
        }
        self.st.ended.insert((store, owner), now_ms);
        // Now and then, so that it costs little; never while L may come back with what it had.
        if self.st.ended.len().is_power_of_two() && self.st.feeds.values().all(|f| f.whole) {
            self.st
                .ended
                .retain(|_, at| *at > now_ms - super::legacy::ENDED_MS);
        }
    }

    /// L let a session go that lives by L's word. Its client is told so, and comes back with another
    /// session: what it registered waits for it one more timeout, and is judged then.
    pub(super) fn legacy_session_gone(&mut self, id: i64, now_ms: i64, fx: &mut Effects) {
        let Some(session) = self.drop_session(id, now_ms) else {
            return;
        };
        if self.mode(StoreKind::Zookeeper) != Mode::Relay {
            self.returned(LeaseId::session(id), now_ms, fx);
        }
        fx.close.extend(session.connection);
        fx.over.push(session);
    }

    /// The client closed its session: all it owns goes as one change, at once.
    pub(super) fn close_session(&mut self, id: i64, now_ms: i64, fx: &mut Effects) {
        if self.mode(StoreKind::Zookeeper) == Mode::Relay {
            fx.over.extend(self.drop_session(id, now_ms));
            return;
        }
        let number = self.st.zxid.next(now_ms);
        fx.number = number;
        fx.reply = Some(Reply::None);
        let lease = LeaseId::session(id);
        let keep = self.held_back(lease, now_ms);
        let command = TreeCommand::CloseSession {
            session: id,
            keep: keep.keys().map(path_of).collect(),
        };
        let changes = self.apply_tree(&command, number, now_ms, fx);
        self.end_lease(lease, &keep, now_ms, fx);
        let gone: Vec<(RecordKey, Cause)> = changes
            .into_iter()
            .map(|path| {
                (
                    RecordKey::new(StoreKind::Zookeeper, path.into_bytes()),
                    Cause::Explicit,
                )
            })
            .collect();
        self.sync_all_absent(&gone, now_ms, fx);
        if let Some(session) = self.drop_session(id, now_ms) {
            fx.close.extend(session.connection);
            fx.closed.push(session);
        }
    }

    /// Whether `hold --explicit` keeps even what a service's owners remove.
    fn holds_explicit(&self, service: &str, now_ms: i64) -> bool {
        ["", service].iter().any(|s| {
            self.st
                .explicit_holds
                .get(*s)
                .is_some_and(|until| *until > now_ms)
        })
    }

    /// Instances that `hold --explicit` keeps although their owner ends.
    fn held_back(&self, lease: LeaseId, now_ms: i64) -> BTreeMap<RecordKey, (String, String)> {
        if self.st.explicit_holds.is_empty() {
            return BTreeMap::new();
        }
        let registrations = self.st.node.by_lease(lease).filter_map(|r| {
            let instance = self
                .st
                .registrations
                .get(&r.key)
                .filter(|r| !r.removed)?
                .instance
                .clone()?;
            Some((r.key.clone(), instance))
        });
        registrations
            .filter(|(key, instance)| {
                // Another owner's registration keeps the instance there without this one.
                let others = self
                    .instances
                    .get(instance)
                    .into_iter()
                    .flatten()
                    .filter(|k| *k != key);
                let elsewhere = others
                    .filter_map(|k| self.st.node.get(k))
                    .any(|r| r.lease != Some(lease) && !is_late(r.health));
                self.holds_explicit(&instance.0, now_ms) && !elsewhere
            })
            .collect()
    }

    /// Ends a lease in the registry; records in `keep` stay there, held until the order ends.
    fn end_lease(
        &mut self,
        lease: LeaseId,
        keep: &BTreeMap<RecordKey, (String, String)>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        if keep.is_empty() {
            self.st.node.close_lease(lease, ms(now_ms));
            return;
        }
        let all: Vec<RecordKey> = self
            .st
            .node
            .by_lease(lease)
            .map(|r| r.key.clone())
            .collect();
        for key in all {
            if keep.contains_key(&key) {
                self.st.node.set_health(&key, Health::Held);
            } else {
                self.st.node.deregister(&key, ms(now_ms));
            }
        }
        self.st.node.mark_lease(lease, LeaseState::Over);
        let inputs = keep
            .values()
            .cloned()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|(service, instance)| Input::Removed { service, instance })
            .collect();
        let outputs = self.st.protection.handle_all(inputs, now_ms);
        self.carry_out(outputs, now_ms, fx);
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
        applied
            .changes
            .into_iter()
            .map(|c| c.path.to_string())
            .collect()
    }

    fn fire(&mut self, changes: &[Change], fx: &mut Effects) {
        let Core {
            tree_watches, auth, ..
        } = self;
        for change in changes {
            let events = tree_watches.fire(change, |watcher, acl| {
                permits(
                    acl,
                    perms::READ,
                    auth.get(&watcher).map_or(&[], Vec::as_slice),
                )
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
        let actor = Actor {
            peer,
            owner: session,
        };
        // ZooKeeper: a failed write consumes a zxid too.
        let number = match acknowledged {
            // Before the take-over the numbers are L's.
            Some(mark) if self.mode(StoreKind::Zookeeper) == Mode::Relay => {
                self.st.zxid.follow(mark);
                mark
            }
            _ => self.st.zxid.next(now_ms),
        };
        fx.number = number;
        if acknowledged.is_none() {
            if let Some(service) = self.tree_refusal(peer, session, op, now_ms) {
                fx.reply = Some(Reply::Refused { service });
                return;
            }
            if self.lacks_session(op, session) {
                fx.reply = Some(Reply::Tree(Err(TreeError::SessionExpired)));
                return;
            }
        }
        if let Some((key, reply)) = acknowledged.and_then(|mark| self.shown_write(op, mark)) {
            self.follow(&[key], actor, acknowledged, now_ms, fx);
            fx.reply = Some(Reply::Tree(Ok(reply)));
            return;
        }
        let taken = self.taken_paths(op, session);
        let plain = without(op, &taken);
        let applied = self.st.tree.apply(&plain, number, now_ms);
        let mut changes = applied.changes;
        let mut result = applied.result;
        let failed = match &result {
            Ok(reply) => reply.is_failed_multi(),
            Err(_) => true,
        };
        if failed && acknowledged.is_some() {
            // L is the authority here and has done it: the view follows.
            result = Ok(self.force(op, session, number, now_ms, &mut changes));
        }
        let mut touched: BTreeSet<String> = changes.iter().map(|c| c.path.to_string()).collect();
        if !failed {
            for (path, import) in self.take_over_paths(op, &taken, session, number, now_ms) {
                changes.extend(self.st.tree.apply(&import, number, now_ms).changes);
                let stat = self
                    .st
                    .tree
                    .node(&path)
                    .map(|n| n.stat())
                    .unwrap_or_default();
                patch_created(&mut result, op, &path, stat);
                touched.insert(path);
            }
        }
        self.fire(&changes, fx);
        let keys: Vec<RecordKey> = touched
            .into_iter()
            .map(|p| RecordKey::new(StoreKind::Zookeeper, p.into_bytes()))
            .collect();
        self.follow(&keys, actor, acknowledged, now_ms, fx);
        fx.reply = Some(Reply::Tree(result));
    }

    fn listed_at(&self, store: StoreKind) -> i64 {
        self.st
            .feeds
            .get(&store)
            .filter(|f| f.whole)
            .map_or(i64::MAX, |f| f.listed_at)
    }

    /// A write that L has acknowledged at this mark and that its feed has shown before: done a second time it
    /// would be a second version. With what the client is answered.
    fn shown_write(&self, op: &TreeCommand, mark: i64) -> Option<(RecordKey, TreeReply)> {
        let (TreeCommand::Create { path, .. } | TreeCommand::SetData { path, .. }) = op else {
            return None;
        };
        let key = RecordKey::new(StoreKind::Zookeeper, path.as_bytes().to_vec());
        let listed_at = self.listed_at(StoreKind::Zookeeper);
        let reg = self
            .st
            .registrations
            .get(&key)
            .filter(|r| !r.removed && r.knows(mark, listed_at))?;
        let mut stat = self.st.tree.node(path)?.stat();
        if reg.shown < mark {
            // Another client's later write was acknowledged first and stands. A version that is not the
            // present one keeps this client from building on what it has not read.
            stat.version = stat.version.wrapping_sub(1);
        }
        let reply = match op {
            TreeCommand::Create { path, .. } => TreeReply::Created {
                path: path.as_str().into(),
                stat,
            },
            _ => TreeReply::Set(stat),
        };
        Some((key, reply))
    }

    /// Whether an ephemeral would be written for a session that is not there (ZooKeeper: SessionExpired).
    fn lacks_session(&self, op: &TreeCommand, session: i64) -> bool {
        let gone = |id: i64| self.st.sessions.get(id).is_none();
        match op {
            TreeCommand::Create { mode, session, .. } => mode.is_ephemeral() && gone(*session),
            TreeCommand::Multi {
                ops, session: own, ..
            } => {
                let id = if *own == 0 { session } else { *own };
                let ephemeral = |op: &MultiOp| matches!(op, MultiOp::Create { mode, .. } if mode.is_ephemeral());
                ops.iter().any(ephemeral) && gone(id)
            }
            _ => false,
        }
    }

    /// What the books do after a client's write: what is there first, so that an instance that only
    /// changes its key does not leave.
    fn follow(
        &mut self,
        keys: &[RecordKey],
        actor: Actor<'_>,
        acknowledged: Option<i64>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let mut gone = Vec::new();
        if let (Some(mark), Some(key)) = (acknowledged, keys.first()) {
            self.seen_mark(key.store, mark);
        }
        for key in keys {
            if self.in_view(key) {
                self.sync_present(key, From::Client(actor), now_ms, fx);
                if let Some(mark) = acknowledged {
                    self.confirm(key, mark);
                }
            } else if self.st.registrations.contains_key(key) {
                gone.push((key.clone(), self.cause_of_delete(key, actor)));
            }
        }
        if let Some(mark) = acknowledged {
            for (key, _) in &gone {
                if let Some(reg) = self.st.registrations.get_mut(key) {
                    reg.legacy = None;
                    reg.gone_mark = reg.gone_mark.max(mark);
                }
            }
        }
        self.sync_all_absent(&gone, now_ms, fx);
    }

    /// Explicit when the owner does it, or the address that last wrote the record; foreign otherwise.
    fn cause_of_delete(&self, key: &RecordKey, actor: Actor<'_>) -> Cause {
        let owner = self.st.node.get(key).and_then(|r| r.lease).map(|l| l.id);
        let peer = self.st.registrations.get(key).map(|r| r.peer.as_str());
        let host = actor.peer;
        if owner == Some(actor.owner) || (!host.is_empty() && peer == Some(host)) {
            Cause::Explicit
        } else {
            Cause::Foreign
        }
    }

    /// The service for whose sake a client's write to the tree is refused, if it is. To be asked before a
    /// write goes to L; [`Command::Tree`](super::Command::Tree) asks by itself.
    pub fn tree_refusal(
        &self,
        peer: &str,
        session: i64,
        op: &TreeCommand,
        now_ms: i64,
    ) -> Option<String> {
        let key = |path: &String| RecordKey::new(StoreKind::Zookeeper, path.clone().into_bytes());
        let mut set = Vec::new();
        match op {
            TreeCommand::SetData { path, .. } => set.push(key(path)),
            TreeCommand::Multi { ops, .. } => {
                set.extend(ops.iter().filter_map(|op| match op {
                    MultiOp::SetData { path, .. } => Some(key(path)),
                    _ => None,
                }));
            }
            _ => {}
        }
        let bridged = |key: &RecordKey| {
            let reg = self
                .st
                .registrations
                .get(key)
                .filter(|r| !r.removed && r.bridge_of.is_some())?;
            Some(
                reg.instance
                    .as_ref()
                    .map_or_else(String::new, |i| i.0.clone()),
            )
        };
        set.iter().find_map(bridged).or_else(|| {
            self.refused(
                &deleted_paths(op),
                Actor {
                    peer,
                    owner: session,
                },
                now_ms,
            )
        })
    }

    /// Likewise for the key space.
    pub fn keys_refusal(&self, peer: &str, op: &KeyCommand, now_ms: i64) -> Option<String> {
        self.refused(&self.deleted_keys(op), Actor { peer, owner: 0 }, now_ms)
    }

    /// The service for whose sake `hold --explicit` would keep instances of a lease that is revoked. Asked
    /// where L acknowledges first, since what L has ended cannot be kept.
    pub fn revoke_refusal(&self, lease: i64, now_ms: i64) -> Option<String> {
        let held = self.held_back(LeaseId::lease(lease), now_ms);
        held.into_values().next().map(|(service, _)| service)
    }

    /// The service for whose sake a client's delete is refused: somebody else's instances whose removal
    /// protection would hold, any while `hold --explicit` is in force, and projections, which only follow.
    fn refused(&self, keys: &[RecordKey], actor: Actor<'_>, now_ms: i64) -> Option<String> {
        let mut instances: BTreeMap<(String, String), BTreeSet<&RecordKey>> = BTreeMap::new();
        for key in keys {
            let Some(reg) = self.st.registrations.get(key).filter(|r| !r.removed) else {
                continue;
            };
            let Some(instance) = reg.instance.clone() else {
                continue;
            };
            if reg.bridge_of.is_some() {
                return Some(instance.0);
            }
            instances.entry(instance).or_default().insert(key);
        }
        let mut foreign: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (instance, keys) in instances {
            if !self
                .instances
                .get(&instance)
                .is_some_and(|all| all.iter().all(|k| keys.contains(k)))
            {
                // Another registration keeps it there.
                continue;
            }
            if self.holds_explicit(&instance.0, now_ms) {
                return Some(instance.0);
            }
            if keys
                .iter()
                .any(|key| self.cause_of_delete(key, actor) == Cause::Foreign)
            {
                foreign.entry(instance.0).or_default().insert(instance.1);
            }
        }
        foreign
            .into_iter()
            .find(|(service, ids)| {
                self.st
                    .protection
                    .would_refuse_foreign(service, ids, REGISTRY, now_ms)
            })
            .map(|(service, _)| service)
    }

    /// Paths that a create may have although something is there: a record whose owner is gone or held, or
    /// a projection. A dead owner must not answer NodeExists.
    fn taken_paths(&self, op: &TreeCommand, session: i64) -> BTreeSet<String> {
        let takes = |path: &String, mode: CreateMode, by: i64| {
            let plain = matches!(mode, CreateMode::Ephemeral | CreateMode::Persistent);
            plain && self.may_be_taken(path, by)
        };
        let mut out = BTreeSet::new();
        match op {
            // Whatever else speaks against it still does.
            TreeCommand::Create {
                path,
                mode,
                session,
                ..
            } if takes(path, *mode, *session)
                && self.st.tree.check(op) == Err(TreeError::NodeExists) =>
            {
                out.insert(path.clone());
            }
            TreeCommand::Multi { ops, .. } => {
                let mut deleted = BTreeSet::new();
                for op in ops {
                    match op {
                        MultiOp::Delete { path, .. } => {
                            deleted.insert(path);
                        }
                        MultiOp::Create { path, mode, .. }
                            if !deleted.contains(path) && takes(path, *mode, session) =>
                        {
                            out.insert(path.clone());
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        out
    }

    fn may_be_taken(&self, path: &str, by: i64) -> bool {
        let Some(owner) = self.st.tree.owner_of(path) else {
            return false;
        };
        let key = RecordKey::new(StoreKind::Zookeeper, path.as_bytes().to_vec());
        let Some(reg) = self.st.registrations.get(&key).filter(|r| !r.removed) else {
            return false;
        };
        if self.mode(StoreKind::Zookeeper) == Mode::Relay || owner == by {
            return false;
        }
        let late = self.st.node.get(&key).is_some_and(|r| is_late(r.health));
        late || reg.bridge_of.is_some() || (!reg.imported && self.st.sessions.get(owner).is_none())
    }

    /// Gives the taken paths of a write to their new owner. Watchers see at most a change of data.
    fn take_over_paths(
        &self,
        op: &TreeCommand,
        taken: &BTreeSet<String>,
        session: i64,
        number: i64,
        now_ms: i64,
    ) -> Vec<(String, TreeCommand)> {
        let import = |path: &String,
                      data: &Option<bytes::Bytes>,
                      acl: &[Acl],
                      auth: &[AuthId],
                      mode: CreateMode,
                      by: i64| {
            let acl = crate::znode_tree::resolve_acl(acl, auth).unwrap_or_else(|_| acl.to_vec());
            let stat = Stat {
                czxid: number,
                mzxid: number,
                pzxid: number,
                ctime: now_ms,
                mtime: now_ms,
                ephemeral_owner: if mode.is_ephemeral() { by } else { 0 },
                ..Stat::default()
            };
            (
                path.clone(),
                TreeCommand::Import {
                    path: path.clone(),
                    data: data.clone(),
                    acl,
                    stat,
                },
            )
        };
        match op {
            TreeCommand::Create {
                path,
                data,
                acl,
                mode,
                auth,
                session,
            } if taken.contains(path) => {
                vec![import(path, data, acl, auth, *mode, *session)]
            }
            TreeCommand::Multi { ops, auth, .. } => ops
                .iter()
                .filter_map(|op| match op {
                    MultiOp::Create {
                        path,
                        data,
                        acl,
                        mode,
                    } if taken.contains(path) => {
                        Some(import(path, data, acl, auth, *mode, session))
                    }
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
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
                MultiOp::Create {
                    path,
                    data,
                    acl,
                    mode,
                } => TreeCommand::Import {
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
                MultiOp::Delete { path, .. } => TreeCommand::RemoveAll {
                    paths: vec![path.clone()],
                },
                MultiOp::SetData { path, data, .. } => {
                    let stat = core
                        .st
                        .tree
                        .node(path)
                        .map(|n| n.stat())
                        .unwrap_or_default();
                    TreeCommand::Import {
                        path: path.clone(),
                        data: data.clone(),
                        acl: core
                            .st
                            .tree
                            .node(path)
                            .map(|n| n.acl().to_vec())
                            .unwrap_or_default(),
                        stat: Stat {
                            mzxid: number,
                            mtime: now_ms,
                            version: stat.version.wrapping_add(1),
                            ..stat
                        },
                    }
                }
                MultiOp::Check { .. } => return OpResult::Checked,
            };
            changes.extend(core.st.tree.apply(&command, number, now_ms).changes);
            match op {
                MultiOp::Delete { .. } => OpResult::Deleted,
                MultiOp::Check { .. } => OpResult::Checked,
                MultiOp::SetData { path, .. } => OpResult::Set(
                    core.st
                        .tree
                        .node(path)
                        .map(|n| n.stat())
                        .unwrap_or_default(),
                ),
                MultiOp::Create { path, .. } => OpResult::Created {
                    path: path.as_str().into(),
                    stat: core
                        .st
                        .tree
                        .node(path)
                        .map(|n| n.stat())
                        .unwrap_or_default(),
                },
            }
        };
        match op {
            TreeCommand::Multi { ops, .. } => {
                TreeReply::Multi(ops.iter().map(|op| one(self, op)).collect())
            }
            TreeCommand::Create {
                path,
                data,
                acl,
                mode,
                ..
            } => {
                let op = MultiOp::Create {
                    path: path.clone(),
                    data: data.clone(),
                    acl: acl.clone(),
                    mode: *mode,
                };
                match one(self, &op) {
                    OpResult::Created { path, stat } => TreeReply::Created { path, stat },
                    _ => TreeReply::Deleted,
                }
            }
            TreeCommand::SetData {
                path,
                data,
                version,
                ..
            } => {
                let op = MultiOp::SetData {
                    path: path.clone(),
                    data: data.clone(),
                    version: *version,
                };
                match one(self, &op) {
                    OpResult::Set(stat) => TreeReply::Set(stat),
                    _ => TreeReply::Deleted,
                }
            }
            TreeCommand::Delete { path, version, .. } => {
                one(
                    self,
                    &MultiOp::Delete {
                        path: path.clone(),
                        version: *version,
                    },
                );
                TreeReply::Deleted
            }
            _ => TreeReply::Deleted,
        }
    }

    pub(super) fn reap(&mut self, now_ms: i64, fx: &mut Effects) {
        let mut gone: Vec<(RecordKey, Cause)> = Vec::new();
        for path in self.st.tree.due_for_reap(now_ms) {
            // ZooKeeper: a request of its own for each (ContainerManager.checkContainers).
            let number = self.st.zxid.next(now_ms);
            let command = TreeCommand::Reap {
                paths: vec![path.to_string()],
            };
            let removed = self.apply_tree(&command, number, now_ms, fx);
            gone.extend(removed.into_iter().map(|path| {
                let key = RecordKey::new(StoreKind::Zookeeper, path.into_bytes());
                (key, Cause::Explicit)
            }));
        }
        self.sync_all_absent(&gone, now_ms, fx);
    }
}

/// The key space.
impl Core {
    /// Applies to the key space and collects the events. Gives the keys that changed.
    pub(super) fn apply_keys(
        &mut self,
        command: &KeyCommand,
        now_ms: i64,
        fx: &mut Effects,
    ) -> Vec<bytes::Bytes> {
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
            fx.key_events.extend(
                deliveries
                    .into_iter()
                    .map(|delivery| super::KeyDispatch { revision, delivery }),
            );
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
        if acknowledged.is_none()
            && self.mode(StoreKind::Etcd) == Mode::Embedded
            && let Some(error) = self.st.keys.alarm_refusal(op)
        {
            fx.reply = Some(Reply::Keys(Err(error)));
            return;
        }
        if let Some(mark) = acknowledged.filter(|_| self.mode(StoreKind::Etcd) == Mode::Relay) {
            // Before the take-over the numbers are L's: this change has L's.
            self.st.revision.follow(mark.saturating_sub(1));
        }
        if let Some(service) = self
            .keys_refusal(peer, op, now_ms)
            .filter(|_| acknowledged.is_none())
        {
            fx.reply = Some(Reply::Refused { service });
            return;
        }
        let mut held = BTreeMap::new();
        let op = match op {
            KeyCommand::LeaseRevoke { id, .. } => {
                held = self.held_back(LeaseId::lease(*id), now_ms);
                Cow::Owned(KeyCommand::LeaseRevoke {
                    id: *id,
                    keep: held.keys().map(|k| k.key.clone()).collect(),
                })
            }
            other => Cow::Borrowed(other),
        };
        let shown = acknowledged.map_or_else(BTreeSet::new, |mark| self.shown_puts(&op, mark));
        if let KeyCommand::Put { key, prev_kv, .. } = &*op
            && shown.contains(key)
        {
            self.follow_shown(&shown, actor, acknowledged, now_ms, fx);
            let reply = self.shown_reply(key, *prev_kv);
            fx.reply = Some(Reply::Keys(Ok(KeyReply::Put(reply))));
            return;
        }
        let (asked, op) = match &*op {
            KeyCommand::Txn(txn) if !shown.is_empty() => {
                let rest = KeyCommand::Txn(without_puts(txn, &shown));
                (Some(txn.clone()), Cow::Owned(rest))
            }
            _ => (None, op),
        };
        let number = self.st.revision.peek(now_ms);
        let mut applied = self.st.keys.apply(&op, number, now_ms);
        self.dispatch(&applied, now_ms, fx);
        if let (Some(asked), Ok(KeyReply::Txn(reply))) = (&asked, &mut applied.result) {
            self.answer_shown(asked, reply);
            self.follow_shown(&shown, actor, acknowledged, now_ms, fx);
        }
        let changed: BTreeSet<bytes::Bytes> =
            applied.events.iter().map(|e| e.kv.key.clone()).collect();
        let changed: Vec<RecordKey> = changed
            .into_iter()
            .map(|k| RecordKey::new(StoreKind::Etcd, k))
            .collect();
        match (&*op, &applied.result) {
            (_, Ok(KeyReply::LeaseGrant { id, ttl_s })) => {
                let ttl_ms = u64::try_from(*ttl_s).unwrap_or(1).saturating_mul(1000);
                self.st.ended.remove(&(StoreKind::Etcd, *id));
                self.st
                    .node
                    .open_lease(LeaseId::lease(*id), ttl_ms, ms(now_ms));
            }
            (KeyCommand::LeaseRevoke { id, .. }, Ok(_)) => {
                self.end_lease(LeaseId::lease(*id), &held, now_ms, fx);
                self.end_owner(StoreKind::Etcd, *id, now_ms);
                fx.revoked.push(*id);
                let gone: Vec<(RecordKey, Cause)> = changed
                    .iter()
                    .map(|k| (k.clone(), Cause::Explicit))
                    .collect();
                self.sync_all_absent(&gone, now_ms, fx);
            }
            (KeyCommand::ForgetLease { id }, Ok(_)) => {
                self.st.bound_leases.remove(id);
            }
            _ => {}
        }
        if !matches!(&*op, KeyCommand::LeaseRevoke { .. }) {
            self.follow(&changed, actor, acknowledged, now_ms, fx);
        }
        fx.reply = Some(Reply::Keys(applied.result));
    }

    /// Keys of puts that L has acknowledged at this mark and that its feed has shown before: done a second
    /// time they would be another version and another event.
    fn shown_puts(&self, op: &KeyCommand, mark: i64) -> BTreeSet<bytes::Bytes> {
        fn walk<'a>(txn: &'a Txn, each: &mut impl FnMut(&'a bytes::Bytes)) {
            for op in txn.success.iter().chain(&txn.failure) {
                match op {
                    Op::Put { key, .. } => each(key),
                    Op::Txn(inner) => walk(inner, each),
                    _ => {}
                }
            }
        }
        let mut out = BTreeSet::new();
        let mut each = |key: &bytes::Bytes| {
            let reg = self
                .st
                .registrations
                .get(&RecordKey::new(StoreKind::Etcd, key.clone()));
            if reg.is_some_and(|r| r.knows(mark, self.listed_at(StoreKind::Etcd)))
                && self.st.keys.get(key).is_some()
            {
                out.insert(key.clone());
            }
        };
        match op {
            KeyCommand::Put { key, .. } => each(key),
            KeyCommand::Txn(txn) => walk(txn, &mut each),
            _ => {}
        }
        out
    }

    /// What L's feed showed was this client's write.
    fn follow_shown(
        &mut self,
        shown: &BTreeSet<bytes::Bytes>,
        actor: Actor<'_>,
        mark: Option<i64>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        for key in shown {
            let key = RecordKey::new(StoreKind::Etcd, key.clone());
            let reg = self.st.registrations.get(&key);
            // Above its mark somebody else's is there by now.
            if reg.is_some_and(|r| Some(r.shown) == mark) {
                self.sync_present(&key, From::Client(actor), now_ms, fx);
            }
        }
    }

    /// The answer to a put that is there already.
    fn shown_reply(&self, key: &bytes::Bytes, prev_kv: bool) -> PutReply {
        let revision = self.st.keys.get(key).map_or(0, |kv| kv.mod_revision);
        let before = RangeRequest {
            key: key.clone(),
            revision: revision.saturating_sub(1),
            ..RangeRequest::default()
        };
        let prev_kv = (prev_kv && before.revision > 0)
            .then(|| self.st.keys.range(&before).ok())
            .flatten()
            .and_then(|found| found.kvs.into_iter().next());
        PutReply { revision, prev_kv }
    }

    /// Puts the answers to puts that were there already where their reads were.
    fn answer_shown(&self, asked: &Txn, reply: &mut TxnReply) {
        let branch = if reply.succeeded {
            &asked.success
        } else {
            &asked.failure
        };
        for (op, reply) in branch.iter().zip(&mut reply.replies) {
            match (op, reply) {
                (Op::Put { key, prev_kv, .. }, reply @ OpReply::Range(_)) => {
                    *reply = OpReply::Put(self.shown_reply(key, *prev_kv));
                }
                (Op::Txn(inner), OpReply::Txn(reply)) => self.answer_shown(inner, reply),
                _ => {}
            }
        }
    }

    /// Registrations that a write would delete.
    fn deleted_keys(&self, op: &KeyCommand) -> Vec<RecordKey> {
        let mut out = Vec::new();
        let mut range = |key: &bytes::Bytes, range_end: &bytes::Bytes| {
            out.extend(
                self.st
                    .keys
                    .pairs(key, range_end)
                    .map(|kv| RecordKey::new(StoreKind::Etcd, kv.key.clone())),
            );
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
        matches!(
            self.settings.layouts.class(protocol(store), key),
            Class::Owned { .. }
        )
    }

    /// L's entry of a registration as last seen: its version is what a write to L is conditional on.
    pub fn legacy_entry(&self, key: &RecordKey) -> Option<&LegacyEntry> {
        self.st.registrations.get(key)?.legacy.as_ref()
    }

    pub(super) fn register_native(
        &mut self,
        key: &RecordKey,
        body: &RecordBody,
        lease: Option<LeaseId>,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let result = self
            .st
            .node
            .register(key.clone(), body.clone(), lease, ms(now_ms));
        if result.is_ok() && !body.companion {
            let service = format!("{}/{}", body.namespace, body.service);
            let instance = (service.clone(), body.instance.clone());
            let mut reg =
                super::Registration::new("native".into(), crate::layout::NodeKind::Leased, now_ms);
            reg.instance = Some(instance.clone());
            let was = self
                .st
                .registrations
                .insert(key.clone(), reg)
                .and_then(|r| r.instance);
            self.instances
                .entry(instance.clone())
                .or_default()
                .insert(key.clone());
            let ttl_ms = lease
                .and_then(|l| self.st.node.lease(l))
                .map_or(0, |l| i64::try_from(l.ttl_ms).unwrap_or(0));
            let source = REGISTRY.to_owned();
            let input = Input::Registered {
                service,
                instance: body.instance.clone(),
                source,
                ttl_ms,
            };
            let outputs = self.st.protection.handle(input, now_ms);
            self.carry_out(outputs, now_ms, fx);
            if let Some(old) = was.filter(|old| *old != instance) {
                self.leave(vec![(key.clone(), old, Cause::Explicit)], now_ms, fx);
            }
        }
        fx.reply = Some(Reply::Registered(result));
    }

    pub(super) fn deregister_native(&mut self, key: &RecordKey, now_ms: i64, fx: &mut Effects) {
        let held = self
            .st
            .registrations
            .get(key)
            .and_then(|r| r.instance.clone());
        if let Some((service, _)) = held.filter(|(service, _)| self.holds_explicit(service, now_ms))
        {
            fx.reply = Some(Reply::Refused { service });
            return;
        }
        let found = self.st.node.get(key).is_some();
        if found {
            self.sync_absent(key, Cause::Explicit, now_ms, fx);
        }
        fx.reply = Some(Reply::Deregistered(found));
    }

    pub(super) fn close_native_lease(&mut self, id: LeaseId, now_ms: i64, fx: &mut Effects) {
        let keep = self.held_back(id, now_ms);
        let keys: Vec<RecordKey> = self.st.node.by_lease(id).map(|r| r.key.clone()).collect();
        self.end_lease(id, &keep, now_ms, fx);
        let gone: Vec<(RecordKey, Cause)> = keys
            .into_iter()
            .filter(|key| !keep.contains_key(key))
            .map(|key| (key, Cause::Explicit))
            .collect();
        self.sync_all_absent(&gone, now_ms, fx);
    }
}

/// The write without its creates over taken paths, which are done beside it.
fn without<'a>(op: &'a TreeCommand, taken: &BTreeSet<String>) -> Cow<'a, TreeCommand> {
    match op {
        _ if taken.is_empty() => Cow::Borrowed(op),
        TreeCommand::Multi { ops, session, auth } => {
            let ops = ops
                .iter()
                .map(|op| match op {
                    MultiOp::Create { path, .. } if taken.contains(path) => {
                        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                        let path = if parent.is_empty() { "/" } else { parent };
                        MultiOp::Check {
                            path: path.to_owned(),
                            version: -1,
                        }
                    }
                    other => other.clone(),
                })
                .collect();
            Cow::Owned(TreeCommand::Multi {
                ops,
                session: *session,
                auth: auth.clone(),
            })
        }
        // One create: nothing is left of it.
        _ => Cow::Owned(TreeCommand::RemoveAll { paths: Vec::new() }),
    }
}

/// Puts the outcome of a create over a taken path into the reply.
fn patch_created(
    result: &mut Result<TreeReply, TreeError>,
    op: &TreeCommand,
    path: &str,
    stat: Stat,
) {
    match (op, result) {
        (TreeCommand::Multi { ops, .. }, Ok(TreeReply::Multi(results))) => {
            for (op, result) in ops.iter().zip(results) {
                if matches!(op, MultiOp::Create { path: p, .. } if p == path) {
                    *result = OpResult::Created {
                        path: path.into(),
                        stat,
                    };
                }
            }
        }
        (_, result) => {
            *result = Ok(TreeReply::Created {
                path: path.into(),
                stat,
            })
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

/// The same transaction with reads where puts of these keys are.
fn without_puts(txn: &Txn, keys: &BTreeSet<bytes::Bytes>) -> Txn {
    let op = |op: &Op| match op {
        Op::Put { key, .. } if keys.contains(key) => Op::Range(RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        }),
        Op::Txn(inner) => Op::Txn(without_puts(inner, keys)),
        other => other.clone(),
    };
    Txn {
        compare: txn.compare.clone(),
        success: txn.success.iter().map(op).collect(),
        failure: txn.failure.iter().map(op).collect(),
    }
}
