//! Tombstones: what is remembered of a removed record, and for how long.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::origin::{Dot, VersionVector};
use crate::record::{LeaseId, RecordKey, Stamp, Version};

/// What is kept of a removed record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The registration that was removed.
    pub key: RecordKey,
    /// The removal's stamp; after an expiry the stamp of the client's last action.
    pub stamp: Stamp,
    /// The holder's transitions, the removal among them.
    pub sub: u32,
    /// The write that removed it.
    pub dot: Dot,
    /// Whose record it was.
    pub lease: Option<LeaseId>,
    /// The namespace it was in.
    pub namespace: String,
    /// The service it was in.
    pub service: String,
    /// The instance it stood for.
    pub instance: String,
    /// Something outside the registry still needs it (a legacy store has not confirmed the removal):
    /// neither age nor lack of space collects it.
    pub pinned: bool,
}

impl Tombstone {
    /// The version that decides against a value of the same key.
    pub fn version(&self) -> Version {
        Version {
            stamp: self.stamp,
            dead: true,
            sub: self.sub,
        }
    }

    /// An estimate of what it costs in memory, in bytes.
    pub fn cost(&self) -> usize {
        // The key stands in the log and in the queue by age, too (shared bytes), with tree overhead.
        256 + self.key.key.len() + self.namespace.len() + self.service.len() + self.instance.len()
    }
}

/// All tombstones of a member, with the order in which they grow old.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tombstones {
    by_key: BTreeMap<RecordKey, (Tombstone, u64)>,
    /// Unpinned ones by the time they were made (or unpinned); the dot makes the entry unique.
    by_age: BTreeSet<(u64, Dot, RecordKey)>,
    bytes: usize,
}

impl Tombstones {
    pub(crate) fn get(&self, key: &RecordKey) -> Option<&Tombstone> {
        self.by_key.get(key).map(|(tombstone, _)| tombstone)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        self.by_key.values().map(|(tombstone, _)| tombstone)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn insert(&mut self, tombstone: Tombstone, now: u64) {
        self.remove(&tombstone.key.clone());
        self.bytes += tombstone.cost();
        if !tombstone.pinned {
            self.by_age
                .insert((now, tombstone.dot, tombstone.key.clone()));
        }
        self.by_key.insert(tombstone.key.clone(), (tombstone, now));
    }

    pub(crate) fn remove(&mut self, key: &RecordKey) -> Option<Tombstone> {
        let (tombstone, since) = self.by_key.remove(key)?;
        self.bytes -= tombstone.cost();
        self.by_age.remove(&(since, tombstone.dot, key.clone()));
        Some(tombstone)
    }

    /// False when there is no such tombstone.
    pub(crate) fn pin(&mut self, key: &RecordKey, pinned: bool, now: u64) -> bool {
        let Some(mut tombstone) = self.remove(key) else {
            return false;
        };
        tombstone.pinned = pinned;
        self.insert(tombstone, now);
        true
    }

    /// Every age starts anew: the time between stop and start is unknown.
    pub(crate) fn rebase(&mut self, now: u64) {
        let all: Vec<Tombstone> = self.iter().cloned().collect();
        for tombstone in all {
            self.insert(tombstone, now);
        }
    }

    /// When the oldest unpinned tombstone reaches `age_ms`.
    pub(crate) fn next_due(&self, age_ms: u64) -> Option<u64> {
        self.by_age
            .first()
            .map(|(since, _, _)| since.saturating_add(age_ms))
    }

    /// Takes out up to `limit` that are at least `age_ms` old and covered by `seen`. Only as many are looked at, oldest
    /// first: while somebody is away nearly all are not covered.
    pub(crate) fn pop_settled(
        &mut self,
        seen: &VersionVector,
        age_ms: u64,
        limit: usize,
        now: u64,
    ) -> Vec<Tombstone> {
        let settled: Vec<RecordKey> = self
            .by_age
            .iter()
            .take(limit)
            .take_while(|(since, _, _)| since.saturating_add(age_ms) <= now)
            .filter(|(_, dot, _)| seen.covers(*dot))
            .map(|(_, _, key)| key.clone())
            .collect();
        settled.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The oldest one that may go: too old, or all together too large.
    pub(crate) fn pop(&mut self, age_ms: u64, budget: usize, now: u64) -> Option<Tombstone> {
        let (since, _, key) = self.by_age.first()?;
        if since.saturating_add(age_ms) > now && self.bytes <= budget {
            return None;
        }
        let key = key.clone();
        self.remove(&key)
    }
}
