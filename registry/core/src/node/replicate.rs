//! What other members wrote, in this member's table: the part of [`Node`] that replication drives.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::{Node, Output};
use crate::merge::{Entry, Value};
use crate::origin::{Dot, Origin, VersionVector};
use crate::record::{Health, LeaseId, Record, RecordBody, RecordKey, StoreKind, Version};
use crate::service::{Change, ChangeKind};
use crate::tombstone::Tombstone;

/// The timeout of an inherited lease whose holder never told it: long enough for a client to be heard.
const UNKNOWN_TTL_MS: u64 = 30_000;

/// Before every key.
const FIRST_KEY: RecordKey = RecordKey {
    store: StoreKind::Zookeeper,
    key: Bytes::new(),
};

/// What became of entries that were offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// How many replaced what was here.
    pub taken: usize,
    /// Records of which only the holder's marks changed.
    pub marked: Vec<RecordKey>,
}

/// How far one merge has come.
#[derive(Default)]
struct Merging {
    merged: Merged,
    changes: Vec<Change>,
}

impl Node {
    /// Takes over what other members wrote, as one change: of each key the greater of what is here and what comes.
    /// The positions of logs stay as they are: they rise when
    /// everything up to some position is here.
    ///
    /// Entries of lives that are past are ignored, and so are this life's own: only this process writes them. What an
    /// earlier life of this member wrote stays in that life's log until the replicator takes it over.
    ///
    /// # Errors
    /// A position is taken by another key: two processes wrote under one id. Nothing was changed.
    pub fn merge(&mut self, entries: Vec<Entry>, now: u64) -> Result<Merged, Dot> {
        let now = self.see(now);
        let mut seen: BTreeSet<Dot> = BTreeSet::new();
        for entry in &entries {
            let taken = self.logs.key_at(entry.dot);
            if taken.is_some_and(|key| *key != entry.key) || !seen.insert(entry.dot) {
                return Err(entry.dot);
            }
        }
        let mut merging = Merging::default();
        for entry in entries {
            self.merge_one(entry, &mut merging, now);
        }
        self.emit(merging.changes);
        Ok(merging.merged)
    }

    /// Everything that `origin` wrote up to `through` is in the table by now, or was superseded.
    pub(crate) fn reach(&mut self, origin: Origin, through: u64) {
        if origin != self.origin {
            self.logs.reach(origin, through);
        }
    }

    /// Tombstones of `origin` up to `floor` may be missing here.
    pub(crate) fn raise_floor(&mut self, origin: Origin, floor: u64) {
        self.logs.raise_floor(origin, floor);
    }

    /// The keys of a segment whose hash is above `after`, alive or removed, by rising hash.
    pub(crate) fn segment(
        &self,
        segment: u8,
        after: Option<u64>,
    ) -> impl Iterator<Item = (u64, &RecordKey)> {
        let first = u64::from(segment) << 56;
        let last = first | (u64::MAX >> 8);
        self.places
            .range((first, FIRST_KEY)..)
            .take_while(move |(hash, _)| *hash <= last)
            .filter(move |(hash, _)| after.is_none_or(|after| *hash > after))
            .map(|(hash, key)| (*hash, key))
    }

    /// The keys with this hash: one, if not two share it.
    pub(crate) fn keys_at(&self, hash: u64) -> impl Iterator<Item = &RecordKey> {
        self.places
            .range((hash, FIRST_KEY)..)
            .take_while(move |(at, _)| *at == hash)
            .map(|(_, key)| key)
    }

    /// A hash over what decides about a key that is here.
    pub(crate) fn version_hash(&self, key: &RecordKey) -> Option<u64> {
        let (version, _) = self.known(key)?;
        Some(self.digest.version_hash(key, version))
    }

    /// What the log of its holder says of a key.
    pub fn entry(&self, key: &RecordKey) -> Option<Entry> {
        if let Some(record) = self.records.get(key) {
            let ttl = |lease| (lease, self.leases.ttl(lease).unwrap_or(0));
            return Some(Entry {
                key: record.key.clone(),
                stamp: record.stamp,
                sub: record.sub,
                dot: record.dot,
                lease: record.lease.map(ttl),
                value: Value::Living {
                    body: RecordBody::clone(&record.body),
                    health: record.health,
                },
            });
        }
        let tombstone = self.tombstones.get(key)?;
        Some(Entry {
            key: tombstone.key.clone(),
            stamp: tombstone.stamp,
            sub: tombstone.sub,
            dot: tombstone.dot,
            lease: tombstone.lease.map(|lease| (lease, 0)),
            value: Value::Dead {
                namespace: tombstone.namespace.clone(),
                service: tombstone.service.clone(),
                instance: tombstone.instance.clone(),
            },
        })
    }

    /// The timeout of a record's lease in milliseconds, as its holder counts it; None without a lease, 0 when it was
    /// never told.
    pub fn lease_ttl(&self, record: &Record) -> Option<u64> {
        record
            .lease
            .map(|lease| self.leases.ttl(lease).unwrap_or(0))
    }

    /// How far this member's clock would be behind `wall_ms`, in milliseconds; 0 when it is not.
    pub fn clock_behind(&self, wall_ms: u64, now: u64) -> u64 {
        wall_ms.saturating_sub(self.clock.physical(now.max(self.now)))
    }

    /// Sets the wall clock that stamps come from forward.
    pub(crate) fn follow_clock(&mut self, behind_ms: u64) {
        let wall = self.clock.physical(self.now).saturating_add(behind_ms);
        self.clock.anchor(wall, self.now);
    }

    /// The hybrid clock's last value, and the wall clock in milliseconds as this member counts it.
    pub fn clock(&self, now: u64) -> (u64, u64) {
        (self.clock.last(), self.clock.physical(now.max(self.now)))
    }

    /// Takes a new incarnation, at least `at_least`, while the process goes on: everything this member holds is written
    /// again under it. Leases and connections are not touched. Marks given to subscribers begin anew, so each gets the
    /// whole list once.
    pub fn renew_incarnation(&mut self, at_least: u64, now: u64) -> Origin {
        let now = self.see(now);
        let last = self.origin;
        let incarnation = at_least
            .max(self.origin.incarnation.saturating_add(1))
            .max(self.clock.physical(now));
        self.origin.incarnation = incarnation;
        self.config.incarnation = incarnation;
        self.changes = 0;
        self.services.start_life();
        self.renew_own_writes(Some(last));
        self.origin
    }

    /// Holds back every removal by expiry, or no longer.
    pub fn protect(&mut self, protected: bool) {
        self.protected = protected;
    }

    /// Every lease gets its whole timeout from now on, and the records of owners that were late are live again: nobody
    /// is removed because of what could not be heard.
    pub fn rebase_leases(&mut self, now: u64) {
        let now = self.see(now);
        for id in self.leases.rebase(now) {
            self.revive(id);
            self.outputs.push_back(Output::LeaseReturned(id));
        }
    }

    /// Sets what all tombstones may cost, in bytes.
    pub fn limit_tombstones(&mut self, bytes: usize) {
        self.config.tombstone_bytes = bytes;
    }

    /// Collects up to `limit` tombstones that are at least `age_ms` old and that everybody has seen, and raises the floors
    /// of their logs.
    pub fn collect_settled(&mut self, seen: &VersionVector, age_ms: u64, limit: usize, now: u64) {
        let now = self.see(now);
        for tombstone in self.tombstones.pop_settled(seen, age_ms, limit, now) {
            self.collect(&tombstone);
        }
    }

    /// True when a value of this life, or of an earlier one of the same member, is here.
    pub(crate) fn has_values_of(&self, last: Origin) -> bool {
        let mut lives = self.logs.lives(last.member);
        lives.any(|origin| {
            origin.incarnation <= last.incarnation && self.logs.above(origin, 0).next().is_some()
        })
    }

    /// Takes over what this life of another member, and its earlier ones, left: records and tombstones are written into
    /// this member's log, leases begin anew here. The lives are past from then on. Returns how many records moved.
    pub(crate) fn inherit_life(&mut self, last: Origin, now: u64) -> usize {
        let now = self.see(now);
        let mut moved = 0;
        for key in self.keys_of(last) {
            if let Some(record) = self.records.get(&key) {
                let lease = self.lease_ttl(record);
                let lease = record.lease.zip(lease);
                self.inherit_one(&key, lease, now);
                moved += 1;
            } else if let Some(mut tombstone) = self.tombstones.get(&key).cloned() {
                tombstone.dot = self.write_log(&key);
                tombstone.sub = tombstone.sub.saturating_add(1);
                self.tombstones.insert(tombstone, now);
            }
        }
        self.logs.end(last);
        moved
    }

    /// Removes, as one change, what this life of a member and its earlier ones left, without tombstones: nobody takes
    /// any of it any more. The lives are past from then on.
    pub(crate) fn drop_life(&mut self, last: Origin, now: u64) -> usize {
        self.see(now);
        let keys = self.keys_of(last);
        let dropped = self.drop_values(&keys, ChangeKind::Expired);
        self.logs.end(last);
        dropped
    }

    /// Removes, as one change, records whose removal another member has seen.
    pub(crate) fn drop_removed(&mut self, keys: &[RecordKey], now: u64) -> usize {
        self.see(now);
        self.drop_values(keys, ChangeKind::Removed)
    }

    /// Writes a record that this member holds once more into its log, so that everybody gets it again.
    pub(crate) fn write_again(&mut self, key: &RecordKey) {
        if let Some(record) = self.records.get(key) {
            let health = record.health;
            self.transition(key, health);
        }
    }

    fn keys_of(&self, last: Origin) -> Vec<RecordKey> {
        self.logs
            .lives(last.member)
            .filter(|origin| origin.incarnation <= last.incarnation)
            .flat_map(|origin| self.logs.above(origin, 0))
            .map(|(_, key)| key.clone())
            .collect()
    }

    fn drop_values(&mut self, keys: &[RecordKey], kind: ChangeKind) -> usize {
        let mut changes = Vec::new();
        for key in keys {
            if let Some(record) = self.records.remove(key) {
                let mark = self.next_mark(kind == ChangeKind::Removed);
                self.unindex(&record, Some(mark));
                self.logs.remove(record.dot);
                self.displace(key);
                changes.push(part(kind, record));
            } else if let Some(tombstone) = self.tombstones.remove(key) {
                self.logs.remove(tombstone.dot);
                self.displace(key);
            }
        }
        let dropped = changes.len();
        self.emit(changes);
        dropped
    }

    fn merge_one(&mut self, entry: Entry, merging: &mut Merging, now: u64) {
        let origin = entry.dot.origin;
        let of_this_member = origin.member == self.config.member;
        // A later life of this member is not known to be over: the replicator finds out first.
        let later_self = of_this_member && origin.incarnation >= self.origin.incarnation;
        if self.logs.is_past(origin) || later_self {
            return;
        }
        self.clock.observe(entry.stamp.hlc, now);
        let version = entry.version();
        let known = self.known(&entry.key);
        if known.is_some_and(|known| (version, entry.dot) <= known) {
            return;
        }
        if self.outlives(&entry) {
            // Judged where its holder could not be heard: the holder, which hears the owner, knows better.
            self.reassert(&entry.key, entry.stamp.hlc, now);
            merging.merged.taken += 1;
            return;
        }
        merging.merged.taken += 1;
        let key = entry.key.clone();
        let lease = entry.lease;
        let superseded = known.map(|(_, dot)| dot);
        self.logs.insert(entry.dot, key.clone(), superseded);
        if superseded.is_none() {
            self.place(&key);
        }
        let previous = self.records.remove(&key);
        self.tombstones.remove(&key);
        let was_own = previous.as_ref().is_some_and(|previous| {
            previous.dot.origin.member == self.config.member
                && previous.lease == lease.map(|(id, _)| id)
        });
        match entry.value {
            Value::Living { body, health } => {
                let record = Record {
                    key: key.clone(),
                    body: Arc::new(body),
                    lease: lease.map(|(id, _)| id),
                    stamp: entry.stamp,
                    sub: entry.sub,
                    dot: entry.dot,
                    health,
                };
                self.put_merged(previous, record, merging);
                if let Some((id, ttl_ms)) = lease {
                    if was_own {
                        self.leases.moved(id);
                    }
                    self.leases.attach_elsewhere(id, ttl_ms, key);
                }
            }
            Value::Dead {
                namespace,
                service,
                instance,
            } => {
                if let Some(previous) = previous {
                    // A verdict keeps the client's stamp; a removal by its owner has a later one.
                    let explicit = entry.stamp > previous.stamp;
                    let mark = self.next_mark(explicit);
                    self.unindex(&previous, Some(mark));
                    let kind = if explicit {
                        ChangeKind::Removed
                    } else {
                        ChangeKind::Expired
                    };
                    merging.changes.push(part(kind, previous));
                }
                let tombstone = Tombstone {
                    key: key.clone(),
                    stamp: entry.stamp,
                    sub: entry.sub,
                    dot: entry.dot,
                    lease: lease.map(|(id, _)| id),
                    namespace,
                    service,
                    instance,
                    pinned: false,
                };
                self.tombstones.insert(tombstone, now);
            }
        }
    }

    /// True when the entry is a verdict on a record that is held here and whose owner is heard.
    fn outlives(&self, entry: &Entry) -> bool {
        let dead = matches!(entry.value, Value::Dead { .. });
        dead && self.records.get(&entry.key).is_some_and(|record| {
            let open = record.lease.is_some_and(|id| self.leases.is_open(id));
            let here = record.dot.origin == self.origin && record.health == Health::Live;
            // A removal by the owner has a later stamp than what it removes.
            here && open && record.stamp == entry.stamp
        })
    }

    /// Writes a record that is held here under a new stamp.
    fn reassert(&mut self, key: &RecordKey, above: u64, now: u64) {
        let Some(record) = self.records.get(key) else {
            return;
        };
        let (body, lease) = (Arc::clone(&record.body), record.lease);
        self.write(key.clone(), body, lease, above, now);
    }

    /// Puts a record that won into the table, and says what is visible of it.
    fn put_merged(&mut self, previous: Option<Record>, record: Record, merging: &mut Merging) {
        let mark = self.next_mark(true);
        let Some(previous) = previous else {
            self.index(&record, Some(mark));
            self.records.insert(record.key.clone(), record.clone());
            merging.changes.push(part(ChangeKind::Added, record));
            return;
        };
        let changed = previous.body != record.body;
        self.unindex(&previous, changed.then_some(mark));
        self.index(&record, changed.then_some(mark));
        self.records.insert(record.key.clone(), record.clone());
        if previous.stamp == record.stamp {
            merging.merged.marked.push(record.key);
        } else if previous.service() == record.service() {
            merging.changes.push(Change {
                kind: ChangeKind::Updated,
                record,
                previous: Some(previous),
            });
        } else {
            // For subscribers of the service it leaves, it is gone.
            merging.changes.push(part(ChangeKind::Removed, previous));
            merging.changes.push(part(ChangeKind::Added, record));
        }
    }

    /// A record that another life of a member left is written into this member's log: from now on it is held here, its
    /// lease begins anew, and it ends as any other does.
    fn inherit_one(&mut self, key: &RecordKey, lease: Option<(LeaseId, u64)>, now: u64) {
        let Some(own) = self
            .records
            .get(key)
            .map(|record| record.dot.origin.member == self.config.member)
        else {
            return;
        };
        if let Some((id, told)) = lease {
            let ttl_ms = self.leases.ttl(id).unwrap_or(0).max(told);
            // Counted anew: as a record that is held here.
            self.leases.detach(id, key, own);
            if !self.leases.is_open(id) {
                let ttl_ms = if ttl_ms == 0 { UNKNOWN_TTL_MS } else { ttl_ms };
                for left in self.leases.open(id, ttl_ms, now) {
                    self.leases.attach_elsewhere(id, 0, left);
                }
            }
            // One that ran out before the record was this member's to judge has no timer.
            self.leases.renew(id, now);
            self.leases.attach(id, key.clone());
        }
        self.transition(key, Health::Live);
    }

    /// What decides against another value of the key, and where it stands.
    pub(crate) fn known(&self, key: &RecordKey) -> Option<(Version, Dot)> {
        if let Some(record) = self.records.get(key) {
            return Some((record.version(), record.dot));
        }
        let tombstone = self.tombstones.get(key)?;
        Some((tombstone.version(), tombstone.dot))
    }
}

fn part(kind: ChangeKind, record: Record) -> Change {
    Change {
        kind,
        record,
        previous: None,
    }
}
