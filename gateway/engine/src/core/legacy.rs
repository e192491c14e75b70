//! The legacy stores: what they show, what it means here, and what they lack.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use causeway_registry::{Health, LeaseKind, RecordKey, StoreKind};

use super::registrations::{From, hash, is_late, path_of};
use super::{Core, Effects, LegacyEntry, LegacyEvent, LegacyMeta, Registration};
use crate::converge::{Absence, Action, InLegacy, InNew, LegacyOwner, Situation, converge};
use crate::key_space::{KeyCommand, KeyValue};
use crate::layout::NodeKind;
use crate::merge::{Presence, Sources, visible};
use crate::phase::LegacyCopy;
use crate::protection::{Cause, Input};
use crate::route::Mode;
use crate::znode_tree::{Acl, Stat, TreeCommand, perms};

/// How long the sessions and leases behind ended ones are remembered after L was seen whole.
pub(super) const ENDED_MS: i64 = 3_600_000;

/// Whose session or lease an entry in L shall have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedOwner {
    /// The session behind this client's session.
    Session(i64),
    /// The lease with the client's own id.
    Lease(i64),
    /// A session or lease of the gateway's own (bridges).
    Gateway,
    /// None: it stays until removed.
    Nobody,
}

/// One step toward what L shall have.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// What to do.
    pub action: Action,
    /// Which registration.
    pub key: RecordKey,
    /// The wanted value.
    pub value: Option<Bytes>,
    /// Its owner in L.
    pub owner: WantedOwner,
    /// What L had when last seen: the condition of the write.
    pub seen: Option<LegacyEntry>,
    /// ACL of a znode.
    pub acl: Vec<Acl>,
}

/// The feeds.
impl Core {
    pub(super) fn legacy_event(
        &mut self,
        store: StoreKind,
        event: &LegacyEvent,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        match event {
            LegacyEvent::SnapshotStart => {
                if let Some(feed) = self.st.feeds.get_mut(&store) {
                    feed.seen = Some(BTreeSet::new());
                    feed.rejected.clear();
                }
            }
            LegacyEvent::Put(entry) => {
                if let Some(seen) = self.st.feeds.get_mut(&store).and_then(|f| f.seen.as_mut()) {
                    seen.insert(entry.key.clone());
                }
                self.legacy_put(store, entry, now_ms, fx);
            }
            LegacyEvent::Delete { key, mark } => {
                self.seen_mark(store, *mark);
                let key = RecordKey::new(store, key.clone());
                let stale = self
                    .st
                    .registrations
                    .get(&key)
                    .and_then(|r| r.legacy.as_ref())
                    .is_some_and(|l| l.mark > *mark);
                if !stale {
                    self.legacy_gone(vec![key], *mark, Absence::WhileWatched, now_ms, fx);
                }
            }
            LegacyEvent::SnapshotDone { mark } => self.legacy_whole(store, *mark, now_ms, fx),
            LegacyEvent::Lost { reason } => {
                if let Some(feed) = self.st.feeds.get_mut(&store) {
                    feed.whole = false;
                    feed.seen = None;
                    feed.trouble = Some(reason.clone());
                }
                // A store that never was whole has shown nothing that it could take back.
                if self.st.imported.contains(&store) {
                    let input = Input::SourceFrozen {
                        source: store.name().into(),
                        reason: reason.clone(),
                    };
                    let outputs = self.st.protection.handle(input, now_ms);
                    self.carry_out(outputs, now_ms, fx);
                }
            }
        }
    }

    fn legacy_whole(&mut self, store: StoreKind, mark: i64, now_ms: i64, fx: &mut Effects) {
        let Some(feed) = self.st.feeds.get_mut(&store) else {
            return;
        };
        let Some(seen) = feed.seen.take() else { return };
        feed.whole = true;
        feed.listed_at = mark;
        feed.trouble = None;
        let rejected = std::mem::take(&mut feed.rejected);
        let doubt = feed.doubt.take();
        match mark < feed.highest {
            false => self.seen_mark(store, mark),
            true if doubt.is_some_and(|doubt| mark < doubt) => {
                self.went_back(store, mark, &rejected, now_ms, fx)
            }
            true => {
                feed.doubt = Some(feed.highest);
                fx.resync.push(store);
            }
        }
        self.follow_number(store, mark);
        if self.st.imported.insert(store) {
            self.begin_above(store, mark, now_ms);
        }
        let old = now_ms - ENDED_MS;
        self.st.ended.retain(|(s, _), at| *s != store || *at > old);
        let missing: Vec<RecordKey> = self
            .st
            .registrations
            .iter()
            .filter(|(k, r)| k.store == store && r.legacy.is_some() && !seen.contains(&k.key))
            .map(|(k, _)| k.clone())
            .collect();
        self.legacy_gone(missing, mark, Absence::StoreLost, now_ms, fx);
        // What shall be there and was never confirmed is looked at again as well.
        let all: Vec<RecordKey> = self
            .st
            .registrations
            .keys()
            .filter(|k| k.store == store)
            .cloned()
            .collect();
        self.dirty.extend(all);
        let outputs = self.st.protection.handle(
            Input::SourceWhole {
                source: store.name().into(),
            },
            now_ms,
        );
        self.carry_out(outputs, now_ms, fx);
    }

    /// L gave this mark.
    pub(super) fn seen_mark(&mut self, store: StoreKind, mark: i64) {
        // Adapters say the largest number where they have none.
        if let Some(feed) = self.st.feeds.get_mut(&store).filter(|_| mark < i64::MAX) {
            feed.highest = feed.highest.max(mark);
        }
    }

    /// L came back older than it was: its marks begin anew, and what they spoke against is looked at.
    fn went_back(
        &mut self,
        store: StoreKind,
        mark: i64,
        rejected: &[LegacyEntry],
        now_ms: i64,
        fx: &mut Effects,
    ) {
        if let Some(feed) = self.st.feeds.get_mut(&store) {
            feed.highest = mark;
        }
        for (_, reg) in self
            .st
            .registrations
            .iter_mut()
            .filter(|(k, _)| k.store == store)
        {
            (reg.gone_mark, reg.above, reg.shown) = (0, 0, 0);
        }
        for entry in rejected {
            if let Some(reg) = self
                .st
                .registrations
                .get_mut(&RecordKey::new(store, entry.key.clone()))
            {
                reg.legacy = None;
            }
            self.legacy_put(store, entry, now_ms, fx);
        }
    }

    /// While L gives out the numbers they are followed.
    fn follow_number(&mut self, store: StoreKind, mark: i64) {
        if self.mode(store) != Mode::Relay {
            return;
        }
        match store {
            StoreKind::Zookeeper => self.st.zxid.follow(mark),
            StoreKind::Etcd => {
                self.st.revision.follow(mark);
                self.st.keys.raise_revision(mark);
            }
            StoreKind::Native => {}
        }
    }

    /// Numbers of ours begin above those that L has given out, also where the take-over came with a fresh
    /// data folder.
    fn begin_above(&mut self, store: StoreKind, mark: i64, now_ms: i64) {
        if self.mode(store) != Mode::TakenOver {
            return;
        }
        let scheme = super::ticks(self.st.node.config().member);
        match store {
            StoreKind::Zookeeper => {
                let seen = mark.max(self.st.tree.last_zxid());
                if seen > self.st.zxid.last() {
                    self.st.zxid.own(scheme, seen, now_ms);
                }
            }
            StoreKind::Etcd => {
                let seen = mark.max(self.st.keys.revision());
                if seen > self.st.revision.last() {
                    self.st.revision.own(scheme, seen, now_ms);
                    self.st.keys.raise_revision(self.st.revision.last());
                }
            }
            StoreKind::Native => {}
        }
    }

    fn legacy_put(&mut self, store: StoreKind, entry: &LegacyEntry, now_ms: i64, fx: &mut Effects) {
        let key = RecordKey::new(store, entry.key.clone());
        self.follow_number(store, entry.mark);
        self.seen_mark(store, entry.mark);
        let old = |reg: &Registration| {
            reg.gone_mark >= entry.mark
                || reg
                    .legacy
                    .as_ref()
                    .is_some_and(|known| known.mark > entry.mark)
        };
        if self.st.registrations.get(&key).is_some_and(old) {
            if let Some(feed) = self.st.feeds.get_mut(&store).filter(|f| f.seen.is_some()) {
                feed.rejected.push(entry.clone());
            }
            return;
        }
        let reg = self.st.registrations.get(&key);
        let repeated = reg
            .and_then(|r| r.legacy.as_ref())
            .is_some_and(|known| known.is_same(entry));
        if self.mode(store) == Mode::Relay {
            let projected = reg.is_some_and(|r| !r.removed && r.bridge_of.is_some());
            if self.st.own_owners.contains(&(store, entry.owner)) {
                // Our own projection, or what is left of one.
                if !projected {
                    self.remember_removed(&key, now_ms);
                }
                self.note(&key, entry);
                self.touch(&key);
                return;
            }
            self.show(&key, entry, now_ms, fx);
            self.note(&key, entry);
            return;
        }
        let (ours, ended) = (
            self.is_ours(&key, entry),
            self.st.ended.contains_key(&(store, entry.owner)),
        );
        let (removed, imported, above) =
            reg.map_or((false, false, 0), |r| (r.removed, r.imported, r.above));
        let in_new = self.st.node.get(&key).map(|r| r.health);
        let news = !repeated && entry.mark > above;
        let import = match (in_new, removed, ours) {
            // Our own copy: N's record or tombstone is the truth.
            (Some(_), _, true) | (_, true, true) => false,
            // A direct writer's newer entry: of a record that is imported anyway, that has no owner there, or
            // whose owner here is gone. A living client's record is not overwritten by it; the difference is
            // shown.
            (Some(health), _, false) => news && (imported || entry.owner == 0 || is_late(health)),
            (None, true, false) => news,
            (None, false, true) => !ended && self.st.node.tombstone(&key).is_none(),
            (None, false, false) => true,
        };
        if import {
            self.show(&key, entry, now_ms, fx);
        } else if in_new.is_none() && !removed {
            // Written by us for somebody who is over: it is to go there.
            self.remember_removed(&key, now_ms);
        }
        self.note(&key, entry);
        self.touch(&key);
        if let Some(reg) = self
            .st
            .registrations
            .get_mut(&key)
            .filter(|_| import && !ours)
        {
            reg.imported = true;
        }
        // A view that counts L shows what L confirms.
        let lacks = !self.in_view(&key);
        if lacks
            && self
                .st
                .registrations
                .get(&key)
                .is_some_and(|r| self.shall_be_visible(&key, r))
        {
            self.show_legacy(&key, now_ms, fx);
        }
    }

    fn remember_removed(&mut self, key: &RecordKey, now_ms: i64) {
        if !self.owns(key.store, &key.key) || self.st.registrations.contains_key(key) {
            return;
        }
        let reg = Registration {
            removed: true,
            removed_ms: now_ms,
            letting_go: true,
            ..Registration::new(String::new(), NodeKind::Persistent, now_ms)
        };
        self.st.registrations.insert(key.clone(), reg);
    }

    /// Keeps what L shows of a registration.
    fn note(&mut self, key: &RecordKey, entry: &LegacyEntry) {
        let withdraws = self.st.phase.phase().legacy_copy() == LegacyCopy::Withdrawn;
        let Some(reg) = self.st.registrations.get_mut(key) else {
            return;
        };
        if !reg
            .legacy
            .as_ref()
            .is_some_and(|known| known.is_same(entry))
        {
            reg.letting_go = reg.removed || (withdraws && !reg.imported);
            self.excused.remove(key);
        }
        if reg.removed {
            self.fading.remove(&(reg.removed_ms, key.clone()));
        }
        reg.legacy = Some(entry.clone());
    }

    /// Whether an entry in L is Causeway's own writing for one of its clients.
    fn is_ours(&self, key: &RecordKey, entry: &LegacyEntry) -> bool {
        let owner = (key.store, entry.owner);
        if self.st.own_owners.contains(&owner) || self.st.ended.contains_key(&owner) {
            return true;
        }
        match key.store {
            StoreKind::Zookeeper if entry.owner != 0 => {
                self.st.sessions.by_legacy_owner(entry.owner).is_some()
            }
            StoreKind::Etcd if entry.owner != 0 => self.st.keys.lease(entry.owner).is_some(),
            _ => {
                // Without an owner only the content can tell.
                let value = entry.value.as_deref().unwrap_or_default();
                let same = self.seen(key).is_some_and(|s| s.value == value);
                let reg = self.st.registrations.get(key);
                let echo = reg.is_some_and(|r| r.sent.contains(&hash(value)));
                (same || echo) && !reg.is_some_and(|r| r.imported)
            }
        }
    }

    /// The session or lease in L that stands for a registration's owner now; 0 for a record without one.
    fn owner_in_legacy(&self, key: &RecordKey) -> Option<i64> {
        match self.wanted_owner(key) {
            WantedOwner::Session(id) => self.st.sessions.get(id)?.legacy.as_ref().map(|l| l.id),
            WantedOwner::Lease(id) => Some(id),
            WantedOwner::Gateway => None,
            WantedOwner::Nobody => Some(0),
        }
    }

    /// Puts an entry of L into the view, and so into N.
    fn show(&mut self, key: &RecordKey, entry: &LegacyEntry, now_ms: i64, fx: &mut Effects) {
        if !self.owns(key.store, &key.key) {
            return;
        }
        // Records begin with the numbers that L gave them, as long as no client has seen ours.
        let as_given =
            self.mode(key.store) == Mode::Relay || !self.st.imported.contains(&key.store);
        let changed = match (&entry.meta, key.store) {
            (LegacyMeta::Znode { stat, acl }, StoreKind::Zookeeper) => {
                let path = path_of(key);
                let owner = self
                    .st
                    .sessions
                    .by_legacy_owner(entry.owner)
                    .map_or(entry.owner, |s| s.id);
                let number = if as_given {
                    entry.mark
                } else {
                    self.st.zxid.next(now_ms)
                };
                let acl = if acl.is_empty() {
                    vec![Acl::world(perms::ALL)]
                } else {
                    acl.clone()
                };
                let stat = if as_given {
                    Stat {
                        ephemeral_owner: owner,
                        ..*stat
                    }
                } else {
                    let here = self.st.tree.node(&path).map(|n| n.stat());
                    Stat {
                        czxid: here.map_or(number, |s| s.czxid),
                        mzxid: number,
                        pzxid: here.map_or(number, |s| s.pzxid),
                        version: here.map_or(0, |s| s.version.wrapping_add(1)),
                        cversion: here.map_or(0, |s| s.cversion),
                        num_children: here.map_or(0, |s| s.num_children),
                        ephemeral_owner: owner,
                        ..*stat
                    }
                };
                let (at, mzxid) = (path.clone(), stat.mzxid);
                let import = TreeCommand::Import {
                    path,
                    data: entry.value.clone(),
                    acl,
                    stat,
                };
                self.apply_tree(&import, number, now_ms, fx);
                let node = self.st.tree.node(&at);
                node.is_some_and(|node| node.stat().mzxid == mzxid)
            }
            (
                LegacyMeta::Pair {
                    create_revision,
                    version,
                },
                StoreKind::Etcd,
            ) => {
                let revision = |core: &Core| core.st.keys.get(&key.key).map(|kv| kv.mod_revision);
                let before = revision(self);
                // A store that went back to an older state gives lower numbers than are here.
                let rises = self
                    .st
                    .keys
                    .get(&key.key)
                    .is_none_or(|kv| kv.mod_revision < entry.mark);
                let (create_revision, mod_revision, version) = if as_given && rises {
                    (*create_revision, entry.mark, *version)
                } else {
                    (0, 0, 0)
                };
                let kv = KeyValue {
                    key: key.key.clone(),
                    value: entry.value.clone().unwrap_or_default(),
                    create_revision,
                    mod_revision,
                    version,
                    lease: entry.owner,
                };
                self.apply_keys(&KeyCommand::Import { kv }, now_ms, fx);
                revision(self) != before
            }
            _ => return,
        };
        self.sync_present(key, From::Legacy, now_ms, fx);
        if let Some(reg) = self.st.registrations.get_mut(key).filter(|_| changed) {
            reg.shown = entry.mark;
        }
    }

    /// Entries that L does not have any more.
    fn legacy_gone(
        &mut self,
        keys: Vec<RecordKey>,
        mark: i64,
        absence: Absence,
        now_ms: i64,
        fx: &mut Effects,
    ) {
        let copies = matches!(
            self.st.phase.phase().legacy_copy(),
            LegacyCopy::BeforeReply | LegacyCopy::Converges
        );
        let mut gone: BTreeMap<(String, String), Vec<RecordKey>> = BTreeMap::new();
        let mut others = Vec::new();
        for key in keys {
            let relay = self.mode(key.store) == Mode::Relay;
            self.follow_number(key.store, mark);
            let current = self.owner_in_legacy(&key);
            let shown = self.seen(&key).map(|seen| seen.value);
            let Some(reg) = self.st.registrations.get_mut(&key) else {
                continue;
            };
            let entry = reg.legacy.take();
            if absence == Absence::WhileWatched && mark < i64::MAX {
                reg.gone_mark = reg.gone_mark.max(mark);
            }
            if reg.removed {
                // Remembered for a while: what was listed before the removal may still arrive.
                let at = (reg.removed_ms, key.clone());
                self.fading.insert(at);
                self.dirty.remove(&key);
                continue;
            }
            let letting_go = std::mem::take(&mut reg.letting_go);
            if reg.bridge_of.is_some() || (!relay && !reg.imported) {
                // Its owner's truth stands. Only an entry of its present owner that L was to keep can have
                // been deleted by somebody; converge decides between that and a loss.
                if let Some(entry) = entry {
                    // What a client wrote here after that entry is not what was deleted.
                    let latest = entry.mark > reg.above
                        && current == Some(entry.owner)
                        && shown.as_deref() == Some(entry.value.as_deref().unwrap_or_default());
                    let wanted = copies && !letting_go && reg.bridge_of.is_none() && latest;
                    reg.absence = if wanted { absence } else { Absence::NeverThere };
                    self.asked.remove(&key);
                }
                self.touch(&key);
                continue;
            }
            reg.absence = absence;
            match (key.store, entry.filter(|e| relay && e.owner != 0)) {
                (StoreKind::Zookeeper, Some(entry)) => {
                    if let Some(id) = self.st.sessions.by_legacy_owner(entry.owner).map(|s| s.id) {
                        self.st.sessions.set_lost(id);
                    }
                }
                (_, Some(entry)) => {
                    self.st.lost_leases.insert(entry.owner);
                }
                (_, None) => {}
            }
            let Some(reg) = self.st.registrations.get(&key) else {
                continue;
            };
            match reg.instance.clone() {
                Some(instance) => gone.entry(instance).or_default().push(key),
                None => others.push(key),
            }
        }
        let mut missing: BTreeMap<(String, StoreKind), BTreeSet<String>> = BTreeMap::new();
        let mut at_once = Vec::new();
        for (instance, keys) in gone {
            let lives = |k: &RecordKey| {
                let relay = self.mode(k.store) == Mode::Relay;
                relay || self.st.node.get(k).is_some_and(|r| !is_late(r.health))
            };
            let rest = self.instances.get(&instance).into_iter().flatten();
            if rest.filter(|k| !keys.contains(k)).any(lives) {
                at_once.extend(keys);
                continue;
            }
            for key in keys {
                self.st.node.set_health(&key, Health::Expired);
                missing
                    .entry((instance.0.clone(), key.store))
                    .or_default()
                    .insert(instance.1.clone());
                if self.mode(key.store) == Mode::Relay {
                    at_once.push(key);
                }
            }
        }
        // Before the take-over L's verdict stands and protection only reports.
        let inputs = missing
            .into_iter()
            .map(|((service, store), instances)| Input::Missing {
                service,
                instances,
                source: store.name().into(),
                cause: Cause::Unknown,
            })
            .collect();
        let outputs = self.st.protection.handle_all(inputs, now_ms);
        self.carry_out(outputs, now_ms, fx);
        at_once.extend(others.into_iter().filter(|key| {
            let frozen = self.st.feeds.get(&key.store).is_some_and(|f| f.frozen);
            self.mode(key.store) == Mode::Relay || !(frozen && absence == Absence::StoreLost)
        }));
        let at_once = self.without_parents(at_once);
        self.remove_judged(&at_once, now_ms, fx);
    }

    /// Without the parents of what stays: a parent's removal in L is not taken over while it has children
    /// here.
    fn without_parents(&self, keys: Vec<RecordKey>) -> Vec<RecordKey> {
        let going: BTreeSet<String> = keys
            .iter()
            .filter(|k| k.store == StoreKind::Zookeeper)
            .map(path_of)
            .collect();
        let mut stays: BTreeSet<String> = BTreeSet::new();
        // Children before parents, since a path sorts after its own prefix.
        for path in going.iter().rev() {
            let Some(node) = self.st.tree.node(path) else {
                continue;
            };
            let child_stays = |name: &std::sync::Arc<str>| {
                let child = format!("{path}/{name}");
                !going.contains(&child) || stays.contains(&child)
            };
            if node.children().iter().any(child_stays) {
                stays.insert(path.clone());
            }
        }
        let known = |key: &RecordKey| self.st.registrations.contains_key(key) && self.in_view(key);
        keys.into_iter()
            .filter(|key| {
                known(key) && !(key.store == StoreKind::Zookeeper && stays.contains(&path_of(key)))
            })
            .collect()
    }

    /// Notes that L has acknowledged what the view holds.
    pub(super) fn confirm(&mut self, key: &RecordKey, mark: i64) {
        let Some(seen) = self.seen(key) else { return };
        let newer = |entry: &LegacyEntry| entry.mark >= mark;
        let reg = self.st.registrations.get(key);
        if reg.and_then(|r| r.legacy.as_ref()).is_some_and(newer) {
            // The feed was here first, and knows more than the acknowledgement.
            self.touch(key);
            return;
        }
        let owner = match key.store {
            StoreKind::Zookeeper => self
                .st
                .sessions
                .get(seen.owner)
                .and_then(|s| s.legacy.as_ref())
                .map_or(seen.owner, |l| l.id),
            _ => seen.owner,
        };
        // L counts a node's versions from 0; not every reply shows them, and -1 says that it is not known.
        let before = self.st.registrations.get(key).map(|r| &r.legacy);
        let version = match before.map(|l| l.as_ref().map(|entry| &entry.meta)) {
            Some(Some(LegacyMeta::Znode { stat, .. })) if stat.version >= 0 => {
                stat.version.wrapping_add(1)
            }
            Some(Some(_)) | None => -1,
            Some(None) => 0,
        };
        let meta = match key.store {
            StoreKind::Zookeeper => {
                let node = self.st.tree.node(&path_of(key));
                LegacyMeta::Znode {
                    stat: Stat {
                        version,
                        mzxid: mark,
                        ..node.map(|n| n.stat()).unwrap_or_default()
                    },
                    acl: node.map(|n| n.acl().to_vec()).unwrap_or_default(),
                }
            }
            _ => LegacyMeta::Pair {
                create_revision: 0,
                version: 0,
            },
        };
        let entry = LegacyEntry {
            key: key.key.clone(),
            value: Some(seen.value),
            owner,
            mark,
            meta,
        };
        self.note(key, &entry);
        self.touch(key);
    }

    /// Somebody removed a living owner's entry in L while L was whole: a foreign removal.
    pub(super) fn take_removal(&mut self, key: &RecordKey, now_ms: i64, fx: &mut Effects) {
        let still = |r: &&Registration| {
            !r.removed && !r.imported && r.legacy.is_none() && r.absence == Absence::WhileWatched
        };
        // Its client may have written it again since.
        let Some(reg) = self.st.registrations.get(key).filter(still) else {
            return;
        };
        if let Some(instance) = reg.instance.clone() {
            let last = self
                .instances
                .get(&instance)
                .is_some_and(|keys| keys.len() == 1);
            let ids: BTreeSet<String> = [instance.1].into();
            if last
                && self.st.protection.would_refuse_foreign(
                    &instance.0,
                    &ids,
                    super::REGISTRY,
                    now_ms,
                )
            {
                // Held: the owner's truth is asserted again.
                if let Some(reg) = self.st.registrations.get_mut(key) {
                    reg.absence = Absence::StoreLost;
                }
                self.touch(key);
                return;
            }
        } else if self.without_parents(vec![key.clone()]).is_empty() {
            if let Some(reg) = self.st.registrations.get_mut(key) {
                reg.absence = Absence::StoreLost;
            }
            self.touch(key);
            return;
        }
        self.remove_from_view(std::slice::from_ref(key), now_ms, fx);
        self.sync_absent(key, Cause::Foreign, now_ms, fx);
    }
}

/// Convergence.
impl Core {
    /// Registrations that a store may have to follow, in order from `after` on and then from the first, at
    /// most `limit`: whoever asks with the last one it got comes to all of them.
    pub fn dirty(
        &self,
        store: StoreKind,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Vec<RecordKey> {
        let of_store = |key: &&RecordKey| key.store == store;
        let behind: Box<dyn Iterator<Item = &RecordKey>> = match after {
            Some(after) => {
                let later = self.dirty.range((Bound::Excluded(after), Bound::Unbounded));
                Box::new(later.chain(self.dirty.range(..=after)))
            }
            None => Box::new(self.dirty.iter()),
        };
        behind.filter(of_store).take(limit).cloned().collect()
    }

    /// Those of both stores, for tests.
    #[cfg(test)]
    pub(super) fn all_dirty(&self, limit: usize) -> Vec<RecordKey> {
        self.dirty.iter().take(limit).cloned().collect()
    }

    /// Number of registrations that L may have to follow.
    pub fn backlog(&self) -> usize {
        self.dirty.len()
    }

    /// The registration was brought to what L shall have. It stays on the list when it changed meanwhile.
    pub fn settled(&mut self, key: &RecordKey) {
        let done = self
            .wanted(key, LegacyOwner::Unknown)
            .is_none_or(|wanted| wanted.action == Action::Nothing);
        if done {
            self.dirty.remove(key);
        }
    }

    /// L has nothing of a registration's owner: what it does not have any more went with the owner.
    fn excuse(&mut self, key: &RecordKey) {
        let lease = self.st.node.get(key).and_then(|r| r.lease);
        let keys = lease
            .into_iter()
            .flat_map(|lease| self.st.node.by_lease(lease))
            .map(|r| r.key.clone());
        self.excused.extend(keys);
        self.excused.insert(key.clone());
    }

    /// Whose session or lease shall own the entry in L.
    pub fn wanted_owner(&self, key: &RecordKey) -> WantedOwner {
        if self
            .st
            .registrations
            .get(key)
            .is_some_and(|r| r.bridge_of.is_some())
        {
            return WantedOwner::Gateway;
        }
        match self.st.node.get(key).and_then(|r| r.lease) {
            Some(lease) if lease.kind == LeaseKind::Session => WantedOwner::Session(lease.id),
            Some(lease) if lease.kind == LeaseKind::Lease => WantedOwner::Lease(lease.id),
            _ => WantedOwner::Nobody,
        }
    }

    /// The next step toward what L shall have of a registration. `owner` is what the shell knows of the
    /// owner's session or lease there.
    pub fn wanted(&mut self, key: &RecordKey, owner: LegacyOwner) -> Option<Wanted> {
        if owner == LegacyOwner::Gone && !self.excused.contains(key) {
            self.excuse(key);
        }
        let reg = self.st.registrations.get(key)?;
        let feed = self.st.feeds.get(&key.store)?;
        if reg.removed && reg.legacy.is_none() {
            return None;
        }
        let relay = self.mode(key.store) == Mode::Relay;
        let own = reg
            .legacy
            .as_ref()
            .is_some_and(|e| self.st.own_owners.contains(&(key.store, e.owner)));
        if (relay && reg.bridge_of.is_none() && !own)
            || (reg.imported && !reg.removed)
            || feed.frozen
        {
            return None;
        }
        // Only what sessions and leases own is withdrawn: parents and configuration stay where they are, for
        // whoever still goes there directly.
        let withdraws = self.st.phase.phase().legacy_copy() == crate::phase::LegacyCopy::Withdrawn;
        if withdraws && !reg.node.is_owned() {
            return None;
        }
        let seen = self.seen(key);
        let new = match (self.st.node.get(key), reg.removed) {
            (_, true) => InNew::Tombstone,
            (Some(r), false) if is_late(r.health) => InNew::Held,
            (Some(_), false) => InNew::Live,
            (None, false) => InNew::None,
        };
        let legacy = match &reg.legacy {
            None => InLegacy::Absent,
            Some(entry) => {
                let owned = match self.wanted_owner(key) {
                    WantedOwner::Session(id) => {
                        let current = self
                            .st
                            .sessions
                            .get(id)
                            .and_then(|s| s.legacy.as_ref())
                            .map(|l| l.id);
                        Some(entry.owner) == current
                    }
                    WantedOwner::Lease(id) => entry.owner == id,
                    WantedOwner::Gateway => self.st.own_owners.contains(&(key.store, entry.owner)),
                    WantedOwner::Nobody => true,
                };
                let same = seen
                    .as_ref()
                    .is_some_and(|s| s.value == entry.value.clone().unwrap_or_default());
                // What a client wrote here later supersedes it, whoever wrote it there.
                let ours = self.is_ours(key, entry) || entry.mark <= reg.above;
                match (owned, same, ours) {
                    (true, true, _) => InLegacy::Ours,
                    (true, false, _) | (false, _, true) => InLegacy::OursOld,
                    (false, _, false) => InLegacy::Foreign,
                }
            }
        };
        let phase = self.st.phase.phase();
        let absence = if self.excused.contains(key) {
            Absence::StoreLost
        } else {
            reg.absence
        };
        let mut action = converge(Situation {
            phase,
            new,
            legacy,
            owner,
            absence,
        });
        if action == Action::TakeRemoval && self.asked.insert(key.clone()) {
            // What is known of the owner may be older than the removal: L is asked before it is judged.
            action = Action::AskLegacy;
        }
        let acl = match key.store {
            StoreKind::Zookeeper => self
                .st
                .tree
                .node(&path_of(key))
                .map(|n| n.acl().to_vec())
                .unwrap_or_default(),
            _ => Vec::new(),
        };
        Some(Wanted {
            action,
            key: key.clone(),
            value: seen.map(|s| s.value),
            owner: self.wanted_owner(key),
            seen: reg.legacy.clone(),
            acl,
        })
    }
}

/// What readers see of a registration.
impl Core {
    pub(super) fn shall_be_visible(&self, key: &RecordKey, reg: &Registration) -> bool {
        if reg.bridge_of.is_some() && !reg.removed {
            // It follows the instance that it shows, whatever the phase reads.
            return true;
        }
        let record = self.st.node.get(key);
        let present = |p: bool| {
            if p {
                Presence::Present
            } else {
                Presence::Absent
            }
        };
        // What N has of Causeway's own clients is on its way to L, or withdrawn from it by us.
        let asserted = record.is_some() && !reg.imported;
        let sources = Sources {
            legacy: present(reg.legacy.is_some() || asserted),
            new: present(record.is_some()),
            removed_by_owner: reg.removed,
            held: record.is_some_and(|r| r.health == Health::Held),
        };
        visible(self.st.phase.phase(), sources)
    }

    /// Shows what L alone has, when a phase begins to count L.
    pub(super) fn show_legacy(&mut self, key: &RecordKey, now_ms: i64, fx: &mut Effects) {
        if let Some(entry) = self
            .st
            .registrations
            .get(key)
            .and_then(|r| r.legacy.clone())
        {
            self.show(key, &entry, now_ms, fx);
        }
    }
}
