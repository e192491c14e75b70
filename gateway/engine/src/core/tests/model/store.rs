//! A small legacy store: entries under sessions or leases, marks, outages, wipes, and a feed that lags.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use causeway_registry::StoreKind;

use crate::core::{LegacyEntry, LegacyEvent, LegacyMeta};
use crate::znode_tree::Stat;

/// Timeout of every session and lease in L.
pub(super) const TTL_MS: i64 = 10_000;

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Bytes,
    pub(super) owner: i64,
    pub(super) mark: i64,
    created: i64,
    version: i64,
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Any,
    Absent,
    Mark(i64),
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) kind: StoreKind,
    pub(super) up: bool,
    entries: BTreeMap<Bytes, Entry>,
    /// Sessions or leases, and when each ends unless it is heard.
    owners: BTreeMap<i64, i64>,
    mark: i64,
    feed: VecDeque<LegacyEvent>,
    fed: bool,
}

impl Store {
    pub(super) fn new(kind: StoreKind) -> Self {
        Store {
            kind,
            up: true,
            entries: BTreeMap::new(),
            owners: BTreeMap::new(),
            mark: 100_000_000,
            feed: VecDeque::new(),
            fed: false,
        }
    }

    pub(super) fn get(&self, key: &Bytes) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Bytes, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn open(&mut self, id: i64, now: i64) {
        self.owners.insert(id, now + TTL_MS);
    }

    pub(super) fn has_owner(&self, id: i64) -> bool {
        self.owners.contains_key(&id)
    }

    /// False when it is gone.
    pub(super) fn heard(&mut self, id: i64, now: i64) -> bool {
        let until = self.owners.get_mut(&id);
        until.map(|until| *until = now + TTL_MS).is_some()
    }

    pub(super) fn put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        owner: i64,
        expect: Expect,
    ) -> Option<i64> {
        let old = self.entries.get(key);
        let allowed = match expect {
            Expect::Any => true,
            Expect::Absent => old.is_none(),
            Expect::Mark(mark) => old.is_some_and(|e| e.mark == mark),
        };
        if !allowed || (owner != 0 && !self.owners.contains_key(&owner)) {
            return None;
        }
        self.mark += 1;
        let (created, version) = old.map_or((self.mark, 0), |e| (e.created, e.version + 1));
        let entry = Entry {
            value: value.clone(),
            owner,
            mark: self.mark,
            created,
            version,
        };
        self.entries.insert(key.clone(), entry);
        if let Some(entry) = self.told(key) {
            self.tell(LegacyEvent::Put(entry));
        }
        Some(self.mark)
    }

    pub(super) fn delete(&mut self, key: &Bytes, expect: Expect) -> Option<i64> {
        let old = self.entries.get(key)?;
        if matches!(expect, Expect::Mark(mark) if mark != old.mark) || expect == Expect::Absent {
            return None;
        }
        self.mark += 1;
        self.entries.remove(key);
        self.tell(LegacyEvent::Delete {
            key: key.clone(),
            mark: self.mark,
        });
        Some(self.mark)
    }

    /// Ends a session or lease with all it owns, as one change.
    pub(super) fn close(&mut self, id: i64) {
        if self.owners.remove(&id).is_none() {
            return;
        }
        let keys: Vec<Bytes> = self
            .entries
            .iter()
            .filter(|(_, e)| e.owner == id)
            .map(|(k, _)| k.clone())
            .collect();
        self.mark += 1;
        for key in keys {
            self.entries.remove(&key);
            self.tell(LegacyEvent::Delete {
                key,
                mark: self.mark,
            });
        }
    }

    /// Time passes; what was not heard ends. A store that is down ends nothing.
    pub(super) fn pass(&mut self, now: i64) {
        if self.up {
            let over: Vec<i64> = self
                .owners
                .iter()
                .filter(|(_, until)| **until <= now)
                .map(|(id, _)| *id)
                .collect();
            for id in over {
                self.close(id);
            }
        }
    }

    pub(super) fn fail(&mut self) {
        self.up = false;
        self.feed.clear();
        if std::mem::take(&mut self.fed) {
            self.feed.push_back(LegacyEvent::Lost {
                reason: "the model's outage".into(),
            });
        }
    }

    /// Back, with everything (and every owner's whole timeout anew), or without anything, its marks fallen.
    pub(super) fn recover(&mut self, wiped: bool, now: i64) {
        self.up = true;
        if wiped {
            self.entries.clear();
            self.owners.clear();
            // Far lower than before, as a fresh store's are.
            self.mark /= 10;
        }
        for until in self.owners.values_mut() {
            *until = now + TTL_MS;
        }
        self.list();
    }

    /// A whole snapshot, then what follows.
    pub(super) fn list(&mut self) {
        if !self.up {
            return;
        }
        self.feed.clear();
        self.fed = true;
        self.feed.push_back(LegacyEvent::SnapshotStart);
        let keys: Vec<Bytes> = self.entries.keys().cloned().collect();
        for key in keys {
            if let Some(entry) = self.told(&key) {
                self.feed.push_back(LegacyEvent::Put(entry));
            }
        }
        self.feed
            .push_back(LegacyEvent::SnapshotDone { mark: self.mark });
    }

    /// The next event that has arrived.
    pub(super) fn next_event(&mut self) -> Option<LegacyEvent> {
        self.feed.pop_front()
    }

    pub(super) fn lags(&self) -> bool {
        !self.feed.is_empty()
    }

    /// An entry as L tells of it.
    pub(super) fn told(&self, key: &Bytes) -> Option<LegacyEntry> {
        let e = self.entries.get(key)?;
        let meta = match self.kind {
            StoreKind::Zookeeper => LegacyMeta::Znode {
                stat: Stat {
                    czxid: e.created,
                    mzxid: e.mark,
                    pzxid: e.created,
                    version: i32::try_from(e.version).unwrap_or(0),
                    ephemeral_owner: e.owner,
                    data_length: i32::try_from(e.value.len()).unwrap_or(0),
                    ..Stat::default()
                },
                acl: Vec::new(),
            },
            _ => LegacyMeta::Pair {
                create_revision: e.created,
                version: e.version + 1,
            },
        };
        Some(LegacyEntry {
            key: key.clone(),
            value: Some(e.value.clone()),
            owner: e.owner,
            mark: e.mark,
            meta,
        })
    }

    fn tell(&mut self, event: LegacyEvent) {
        if self.fed {
            self.feed.push_back(event);
        }
    }
}
