//! The form that a snapshot holds: each pair once, though the space shares it in three places.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::KeySpace;
use super::clocks::Clocks;
use super::cluster::Cluster;
use super::history::{Change, History};
use super::release::Release;
use super::types::*;

#[derive(Serialize, Deserialize)]
struct Saved {
    revision: i64,
    compacted: i64,
    floor: i64,
    dropped_delete: i64,
    leases: BTreeMap<i64, (i64, bool)>,
    changes: Vec<SavedChange>,
    current: Vec<SavedPair>,
    cluster: Cluster,
}

#[derive(Serialize, Deserialize)]
struct SavedChange {
    revision: i64,
    at_ms: i64,
    events: Vec<SavedEvent>,
}

#[derive(Serialize, Deserialize)]
struct SavedEvent {
    kind: EventKind,
    kv: Arc<KeyValue>,
    prev: Prev,
}

#[derive(Serialize, Deserialize)]
enum Prev {
    Absent,
    /// What the key's event before in this snapshot left.
    Left,
    Given(Arc<KeyValue>),
}

#[derive(Serialize, Deserialize)]
enum SavedPair {
    /// What the last event of the key left.
    Left(Bytes),
    Given(Arc<KeyValue>),
}

impl Serialize for KeySpace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut left: BTreeMap<&Bytes, &Arc<KeyValue>> = BTreeMap::new();
        let mut changes = Vec::new();
        for change in self.history.changes() {
            let mut events = Vec::with_capacity(change.events.len());
            for event in change.events.iter() {
                let prev = match &event.prev {
                    None => Prev::Absent,
                    Some(prev) => match left.get(&event.kv.key) {
                        Some(own) if Arc::ptr_eq(own, prev) => Prev::Left,
                        _ => Prev::Given(prev.clone()),
                    },
                };
                left.insert(&event.kv.key, &event.kv);
                events.push(SavedEvent {
                    kind: event.kind,
                    kv: event.kv.clone(),
                    prev,
                });
            }
            changes.push(SavedChange {
                revision: change.revision,
                at_ms: change.at_ms,
                events,
            });
        }
        let current = self.current.iter().map(|(key, kv)| match left.get(key) {
            Some(own) if Arc::ptr_eq(own, kv) => SavedPair::Left(key.clone()),
            _ => SavedPair::Given(kv.clone()),
        });
        Saved {
            revision: self.revision,
            compacted: self.compacted,
            floor: self.history.floor(),
            dropped_delete: self.history.dropped_delete(),
            leases: self
                .leases
                .iter()
                .map(|(id, lease)| (*id, (lease.ttl_s, lease.known)))
                .collect(),
            changes,
            current: current.collect(),
            cluster: self.cluster.clone(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeySpace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let saved = Saved::deserialize(deserializer)?;
        let missing = || serde::de::Error::custom("a pair refers to an event that is not there");
        let mut left: BTreeMap<Bytes, Arc<KeyValue>> = BTreeMap::new();
        let mut changes = Vec::with_capacity(saved.changes.len());
        for change in saved.changes {
            let mut events = Vec::with_capacity(change.events.len());
            for event in change.events {
                let prev = match event.prev {
                    Prev::Absent => None,
                    Prev::Left => Some(left.get(&event.kv.key).cloned().ok_or_else(missing)?),
                    Prev::Given(prev) => Some(prev),
                };
                left.insert(event.kv.key.clone(), event.kv.clone());
                events.push(KeyEvent {
                    kind: event.kind,
                    kv: event.kv,
                    prev,
                });
            }
            changes.push(Change {
                revision: change.revision,
                at_ms: change.at_ms,
                events: events.into(),
            });
        }
        let mut space = KeySpace {
            revision: saved.revision,
            compacted: saved.compacted,
            current: BTreeMap::new(),
            leases: BTreeMap::new(),
            history: History::restore(saved.floor, saved.dropped_delete, changes.into_iter()),
            clocks: Clocks::default(),
            cluster: saved.cluster,
            release: Release::default(),
        };
        for (id, (ttl_s, known)) in saved.leases {
            space.leases.insert(
                id,
                Lease {
                    ttl_s,
                    known,
                    keys: Default::default(),
                },
            );
        }
        for pair in saved.current {
            let kv = match pair {
                SavedPair::Left(key) => left.get(&key).cloned().ok_or_else(missing)?,
                SavedPair::Given(kv) => kv,
            };
            space.attach(kv.lease, &kv.key);
            space.current.insert(kv.key.clone(), kv);
        }
        Ok(space)
    }
}
