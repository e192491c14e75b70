//! The etcd key space: pairs with revisions, leases and a bounded past.
//!
//! One structure for two uses: Causeway's embedded etcd store, and the merged view of
//! registrations. It is a state machine over [`KeyCommand`]s. Numbers and times come with the
//! command, so the same commands give the same state, and an old state can be replayed from a log.
//!
//! - Input: [`KeySpace::apply`]; [`KeySpace::check`] says beforehand whether it would be refused.
//! - Output: [`Applied`] with the reply and the events, to be given to [`crate::key_watch`].
//! - Queries: [`KeySpace::range`], [`KeySpace::get`], [`KeySpace::lease`], [`KeySpace::history`].
//!
//! Numbers only rise and need not be consecutive. It knows nothing of registrations, and no clock:
//! a lease here is its keys and its granted time, when it ends is decided outside.

mod clocks;
mod cluster;
mod history;
mod range;
mod records;
mod release;
mod saved;
pub(crate) mod span;
#[cfg(test)]
pub(crate) mod tests;
mod txn;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use clocks::Clocks;
pub use cluster::{Alarm, Cluster};
use history::{Change, History};
pub use records::{HistoryMoved, Reading, Record, hashed};
pub use release::Release;
use span::Span;
use txn::{Put, check_key};
pub use types::*;

/// The key space. See the module's page.
#[derive(Debug, Clone)]
pub struct KeySpace {
    revision: i64,
    /// Revision of the last client compaction, -1 before the first (etcd: compactMainRev).
    compacted: i64,
    current: BTreeMap<Bytes, Arc<KeyValue>>,
    leases: BTreeMap<i64, Lease>,
    history: History,
    clocks: Clocks,
    cluster: Cluster,
    /// What clients take this for. It changes refusals and what reads leave out, never the state, and so is in no
    /// snapshot.
    release: Release,
}

impl KeySpace {
    /// An empty space whose header shows `first_revision` (etcd's own starts at 1); the first
    /// change must have a higher number.
    pub fn new(first_revision: i64) -> Self {
        KeySpace {
            revision: first_revision,
            compacted: -1,
            current: BTreeMap::new(),
            leases: BTreeMap::new(),
            history: History::default(),
            clocks: Clocks::default(),
            cluster: Cluster::default(),
            release: Release::default(),
        }
    }

    /// Imitates this release from now on.
    pub fn set_release(&mut self, release: Release) {
        self.release = release;
    }

    /// The release that is imitated.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Alarms and downgrade.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What the raised alarms do not let a client do. A request that is wrong in itself is refused for that.
    pub fn alarm_refusal(&self, command: &KeyCommand) -> Option<KeyError> {
        let refusal = self.cluster.refusal(command, self.release)?;
        self.check_shape(command).is_ok().then_some(refusal)
    }

    /// Applies one entry of the log: all of it, or nothing and an error.
    ///
    /// `revision` is the number to use if the command changes something; one that does not rise
    /// is raised to the next free one, so that a faulty caller cannot make numbers fall. `now_ms`
    /// only dates the change for [`KeyCommand::TrimHistory`].
    pub fn apply(&mut self, command: &KeyCommand, revision: i64, now_ms: i64) -> Applied {
        let revision = revision.max(self.revision.saturating_add(1));
        let path = match self.check_with_path(command) {
            Ok(path) => path,
            Err(error) => {
                return Applied {
                    result: Err(error),
                    events: Arc::new([]),
                    revision: self.revision,
                    revision_used: false,
                };
            }
        };
        let mut writer = Writer {
            space: self,
            revision,
            events: Vec::new(),
        };
        let reply = writer.run(command, &path, now_ms);
        let events: Arc<[KeyEvent]> = writer.events.into();
        let revision_used = !events.is_empty();
        if revision_used {
            self.revision = revision;
            self.history.push(Change {
                revision,
                at_ms: now_ms,
                events: events.clone(),
            });
        }
        Applied {
            result: Ok(reply),
            events,
            revision: self.revision,
            revision_used,
        }
    }

    /// Whether [`KeySpace::apply`] would refuse the command now, and why.
    pub fn check(&self, command: &KeyCommand) -> Result<(), KeyError> {
        self.check_with_path(command).map(|_| ())
    }

    /// The pair of a key.
    pub fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.current.get(key).map(|kv| kv.as_ref())
    }

    /// All pairs of a range, in key order.
    pub fn pairs(&self, key: &Bytes, range_end: &Bytes) -> impl Iterator<Item = &Arc<KeyValue>> {
        Span::new(key, range_end)
            .of(&self.current)
            .map(|(_, kv)| kv)
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.current.len()
    }

    /// No pairs.
    pub fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// A lease that was granted or adopted and has not ended.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id).filter(|lease| lease.known)
    }

    /// Keys that show a lease, also one that is not known (any more): imported or kept pairs.
    pub fn lease_keys(&self, id: i64) -> impl Iterator<Item = &Bytes> {
        self.leases
            .get(&id)
            .into_iter()
            .flat_map(|lease| &lease.keys)
    }

    /// All known leases, by id.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases
            .iter()
            .filter(|(_, lease)| lease.known)
            .map(|(id, lease)| (*id, lease))
    }

    /// Number of the last change, or the first revision: what a header shows.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Raises what the header shows without a change, for numbers given out elsewhere.
    pub fn raise_revision(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// Revision of the last client compaction; -1 before the first, as in etcd.
    pub fn compact_revision(&self) -> i64 {
        self.compacted
    }

    /// Lowest revision that can be read or watched from, through compaction and trimming.
    pub fn history_floor(&self) -> i64 {
        self.history.floor()
    }

    /// About the bytes that the past takes.
    pub fn history_bytes(&self) -> u64 {
        self.history.bytes()
    }

    /// A number that differs whenever anything in the range has changed since, for replies that
    /// are cached outside. It costs a look-up and may also move for a change nearby: of a range,
    /// changes below the same last `/` count. It means nothing after a restart or in another copy
    /// of the space.
    pub fn range_version(&self, key: &Bytes, range_end: &Bytes) -> u64 {
        self.clocks.of_range(key, range_end)
    }

    /// All changes of a range from a revision on, grouped by revision, oldest first.
    ///
    /// Fails with [`KeyError::Compacted`] when not all of them are kept.
    pub fn history(
        &self,
        from_revision: i64,
        key: &Bytes,
        range_end: &Bytes,
    ) -> Result<impl Iterator<Item = RevisionEvents> + use<'_>, KeyError> {
        self.check_floor(from_revision)?;
        let span = Span::new(key, range_end);
        Ok(self.history.since(from_revision).filter_map(move |change| {
            select(&change.events, |event| span.contains(&event.kv.key)).map(|events| {
                RevisionEvents {
                    revision: change.revision,
                    events,
                }
            })
        }))
    }

    /// The answer to a reader whose number `from` was not given out by this space: what is there
    /// as puts and what went as deletes, grouped by each pair's `mod_revision`, rising.
    ///
    /// Fails with [`KeyError::Compacted`] when a deletion was dropped that the reader may not have
    /// seen: one whose number is not at least [`FOREIGN_SKEW`] below `from`.
    pub fn foreign_history(
        &self,
        from: i64,
        key: &Bytes,
        range_end: &Bytes,
    ) -> Result<Vec<RevisionEvents>, KeyError> {
        let dropped = self.history.dropped_delete();
        if dropped > 0 && dropped.saturating_add(FOREIGN_SKEW) > from {
            return Err(KeyError::Compacted {
                compact_revision: self.history.floor(),
            });
        }
        let span = Span::new(key, range_end);
        let puts = span.of(&self.current).map(|(_, kv)| KeyEvent {
            kind: EventKind::Put,
            kv: kv.clone(),
            prev: None,
        });
        let deletes = self
            .history
            .gone(&self.current, &span)
            .map(|(key, revision, before)| KeyEvent {
                kind: EventKind::Delete,
                kv: Arc::new(KeyValue {
                    key: key.clone(),
                    mod_revision: revision,
                    ..KeyValue::default()
                }),
                prev: before.clone(),
            });
        let mut groups: BTreeMap<i64, Vec<KeyEvent>> = BTreeMap::new();
        for event in puts.chain(deletes) {
            groups.entry(event.kv.mod_revision).or_default().push(event);
        }
        Ok(groups
            .into_iter()
            .map(|(revision, events)| RevisionEvents {
                revision,
                events: events.into(),
            })
            .collect())
    }

    fn check_floor(&self, from_revision: i64) -> Result<(), KeyError> {
        let floor = self.history.floor();
        if from_revision < floor {
            Err(KeyError::Compacted {
                compact_revision: floor,
            })
        } else {
            Ok(())
        }
    }

    /// Whether the state at a revision above 0 can be read.
    fn check_revision(&self, revision: i64) -> Result<(), KeyError> {
        if revision > self.revision {
            Err(KeyError::FutureRevision)
        } else {
            self.check_floor(revision)
        }
    }

    /// What can be said without the state.
    pub(crate) fn check_shape(&self, command: &KeyCommand) -> Result<(), KeyError> {
        match command {
            KeyCommand::Put { key, value, .. } => {
                if let Some(put) = command.as_put() {
                    put.check_shape()?;
                }
                check_size(key.len() + value.len())
            }
            KeyCommand::DeleteRange { key, range_end, .. } => {
                check_key(key)?;
                check_size(key.len() + range_end.len())
            }
            KeyCommand::Txn(txn) => {
                txn.check_shape(self.release)?;
                check_size(txn.size())
            }
            _ => Ok(()),
        }
    }

    /// All checks; of a transaction also the branches it takes.
    fn check_with_path(&self, command: &KeyCommand) -> Result<Vec<bool>, KeyError> {
        self.check_shape(command)?;
        match command {
            KeyCommand::Put { .. } => {
                if let Some(put) = command.as_put() {
                    put.check_state(self)?;
                }
            }
            KeyCommand::DeleteRange { .. } => {}
            KeyCommand::Txn(txn) => {
                let path = txn.path(self);
                txn.check_state(self, &path)?;
                return Ok(path);
            }
            KeyCommand::Compact { revision } => {
                if *revision <= self.compacted {
                    return Err(KeyError::Compacted {
                        compact_revision: self.compacted,
                    });
                }
                if *revision > self.revision {
                    return Err(KeyError::FutureRevision);
                }
            }
            KeyCommand::LeaseGrant { id, ttl_s } => {
                // etcd's lessor takes id 0 for "no lease" (Grant: NoLease).
                if *id == 0 {
                    return Err(KeyError::LeaseNotFound);
                }
                if *ttl_s > MAX_LEASE_TTL_S {
                    return Err(KeyError::LeaseTtlTooLarge);
                }
                if self.lease(*id).is_some() {
                    return Err(KeyError::LeaseExists);
                }
            }
            KeyCommand::LeaseRevoke { id, .. } | KeyCommand::ForgetLease { id } => {
                if self.lease(*id).is_none() {
                    return Err(KeyError::LeaseNotFound);
                }
            }
            KeyCommand::AdoptLease { id, .. } => {
                if *id == 0 {
                    return Err(KeyError::LeaseNotFound);
                }
            }
            KeyCommand::Import { kv } => check_key(&kv.key)?,
            KeyCommand::ImportAll { kvs, .. } => {
                kvs.iter().try_for_each(|kv| check_key(&kv.key))?
            }
            KeyCommand::RemoveAll { .. } | KeyCommand::TrimHistory { .. } => {}
            KeyCommand::Alarm { active, alarm } => self.cluster.check_alarm(*active, *alarm)?,
            KeyCommand::Downgrade { enable } => self.cluster.check_downgrade(*enable)?,
        }
        Ok(Vec::new())
    }

    fn attach(&mut self, lease: i64, key: &Bytes) {
        if lease != 0 {
            let unknown = || Lease {
                ttl_s: 0,
                known: false,
                keys: Default::default(),
            };
            self.leases
                .entry(lease)
                .or_insert_with(unknown)
                .keys
                .insert(key.clone());
        }
    }

    fn detach(&mut self, lease: i64, key: &Bytes) {
        if let Some(entry) = self.leases.get_mut(&lease) {
            entry.keys.remove(key);
            if !entry.known && entry.keys.is_empty() {
                self.leases.remove(&lease);
            }
        }
    }

    /// Ends a lease; what is still attached keeps showing it.
    fn forget(&mut self, id: i64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.known = false;
            lease.ttl_s = 0;
            if lease.keys.is_empty() {
                self.leases.remove(&id);
            }
        }
    }
}

/// How far numbers of two gateways may differ for changes of the same time: an hour of ticks at
/// 32 ticks per millisecond and 64 numbers per tick.
pub const FOREIGN_SKEW: i64 = 3_600_000 * 32 * 64;

/// The events that pass, shared when all do; `None` when none does.
pub(crate) fn select(
    events: &Arc<[KeyEvent]>,
    pass: impl Fn(&KeyEvent) -> bool,
) -> Option<Arc<[KeyEvent]>> {
    let count = events.iter().filter(|event| pass(event)).count();
    if count == 0 {
        None
    } else if count == events.len() {
        Some(events.clone())
    } else {
        Some(events.iter().filter(|event| pass(event)).cloned().collect())
    }
}

fn check_size(bytes: usize) -> Result<(), KeyError> {
    if bytes > MAX_REQUEST_BYTES {
        Err(KeyError::RequestTooLarge)
    } else {
        Ok(())
    }
}

impl KeyCommand {
    fn as_put(&self) -> Option<Put<'_>> {
        match self {
            KeyCommand::Put {
                key,
                value,
                lease,
                prev_kv,
                ignore_value,
                ignore_lease,
            } => Some(Put {
                key,
                value,
                lease: *lease,
                prev_kv: *prev_kv,
                ignore_value: *ignore_value,
                ignore_lease: *ignore_lease,
            }),
            _ => None,
        }
    }
}

/// One command at work: collects the events that all get one revision. Its steps cannot fail.
pub(crate) struct Writer<'a> {
    space: &'a mut KeySpace,
    revision: i64,
    events: Vec<KeyEvent>,
}

impl Writer<'_> {
    /// The header's revision at this point of the command.
    pub(crate) fn revision(&self) -> i64 {
        if self.events.is_empty() {
            self.space.revision
        } else {
            self.revision
        }
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> RangeReply {
        self.space.range_at(request, self.revision())
    }

    /// A kept value or lease whose pair an earlier deletion of the same transaction took is empty:
    /// the check looked at the state before, and etcd itself panics there.
    pub(crate) fn put(&mut self, put: Put<'_>) -> PutReply {
        let before = self.space.current.get(put.key).cloned();
        let kept = before.as_deref();
        let value = match kept {
            Some(kv) if put.ignore_value => kv.value.clone(),
            _ => put.value.clone(),
        };
        let lease = match kept {
            Some(kv) if put.ignore_lease => kv.lease,
            _ => put.lease,
        };
        self.store(KeyValue {
            key: put.key.clone(),
            value,
            create_revision: kept.map_or(self.revision, |kv| kv.create_revision),
            mod_revision: self.revision,
            version: kept.map_or(1, |kv| kv.version.saturating_add(1)),
            lease,
        });
        PutReply {
            revision: self.revision(),
            prev_kv: before.filter(|_| put.prev_kv),
        }
    }

    pub(crate) fn delete_range(
        &mut self,
        key: &Bytes,
        range_end: &Bytes,
        prev_kv: bool,
    ) -> DeleteRangeReply {
        let keys: Vec<Bytes> = Span::new(key, range_end)
            .of(&self.space.current)
            .map(|(key, _)| key.clone())
            .collect();
        let gone: Vec<Arc<KeyValue>> = keys.iter().filter_map(|key| self.remove(key)).collect();
        DeleteRangeReply {
            revision: self.revision(),
            deleted: gone.len() as i64,
            prev_kvs: if prev_kv { gone } else { Vec::new() },
        }
    }

    fn run(&mut self, command: &KeyCommand, path: &[bool], now_ms: i64) -> KeyReply {
        match command {
            KeyCommand::Put { .. } => match command.as_put() {
                Some(put) => KeyReply::Put(self.put(put)),
                None => KeyReply::Done,
            },
            KeyCommand::DeleteRange {
                key,
                range_end,
                prev_kv,
            } => KeyReply::DeleteRange(self.delete_range(key, range_end, *prev_kv)),
            KeyCommand::Txn(txn) => KeyReply::Txn(txn.run(self, path)),
            KeyCommand::Compact { revision } => {
                self.space.compacted = *revision;
                self.space.history.compact(&self.space.current, *revision);
                KeyReply::Done
            }
            KeyCommand::LeaseGrant { id, ttl_s } => {
                let ttl_s = (*ttl_s).max(MIN_LEASE_TTL_S);
                self.know(*id, ttl_s);
                KeyReply::LeaseGrant { id: *id, ttl_s }
            }
            KeyCommand::AdoptLease { id, ttl_s } => {
                self.know(*id, *ttl_s);
                KeyReply::Done
            }
            KeyCommand::LeaseRevoke { id, keep } => {
                let kept: std::collections::BTreeSet<&Bytes> = keep.iter().collect();
                let keys: Vec<Bytes> = self
                    .space
                    .lease_keys(*id)
                    .filter(|key| !kept.contains(key))
                    .cloned()
                    .collect();
                let removed = keys.iter().filter_map(|key| self.remove(key)).count();
                self.space.forget(*id);
                KeyReply::Changed(removed)
            }
            KeyCommand::ForgetLease { id } => {
                self.space.forget(*id);
                KeyReply::Done
            }
            KeyCommand::RemoveAll { keys } => KeyReply::Changed(self.remove_all(keys)),
            KeyCommand::Import { kv } => {
                self.import(kv);
                KeyReply::Changed(self.events.len())
            }
            KeyCommand::ImportAll { kvs, removed } => {
                self.remove_all(removed);
                for kv in kvs {
                    self.import(kv);
                }
                KeyReply::Changed(self.events.len())
            }
            KeyCommand::TrimHistory {
                keep_ms,
                keep_bytes,
            } => {
                let oldest_ms = now_ms.saturating_sub(*keep_ms);
                self.space
                    .history
                    .trim(&self.space.current, oldest_ms, *keep_bytes);
                KeyReply::Done
            }
            KeyCommand::Alarm { active, alarm } => {
                KeyReply::Changed(self.space.cluster.set_alarm(*active, *alarm).into())
            }
            KeyCommand::Downgrade { enable } => {
                self.space.cluster.set_downgrade(*enable);
                KeyReply::Done
            }
        }
    }

    fn know(&mut self, id: i64, ttl_s: i64) {
        let lease = self.space.leases.entry(id).or_insert_with(|| Lease {
            ttl_s,
            known: true,
            keys: Default::default(),
        });
        lease.ttl_s = ttl_s;
        lease.known = true;
    }

    fn remove_all(&mut self, keys: &[Bytes]) -> usize {
        let ordered: std::collections::BTreeSet<&Bytes> = keys.iter().collect();
        ordered
            .into_iter()
            .filter_map(|key| self.remove(key))
            .count()
    }

    fn import(&mut self, given: &KeyValue) {
        let here = self.space.current.get(&given.key).cloned();
        let changed = here
            .as_ref()
            .is_none_or(|here| here.value != given.value || here.lease != given.lease);
        let newer = match given.mod_revision {
            0 => changed,
            number => here.as_ref().is_none_or(|here| number > here.mod_revision),
        };
        if !newer {
            return;
        }
        let or = |number: i64, filled: i64| if number == 0 { filled } else { number };
        let kept = here.as_deref();
        let kv = KeyValue {
            key: given.key.clone(),
            value: given.value.clone(),
            create_revision: or(
                given.create_revision,
                kept.map_or(self.revision, |kv| kv.create_revision),
            ),
            mod_revision: or(given.mod_revision, self.revision),
            version: or(
                given.version,
                kept.map_or(1, |kv| kv.version.saturating_add(1)),
            ),
            lease: given.lease,
        };
        if changed {
            self.store(kv);
        } else {
            // Only the other store's numbers moved: nothing that a watcher would be told.
            self.space.clocks.touch(&kv.key);
            self.space.current.insert(kv.key.clone(), Arc::new(kv));
        }
    }

    fn store(&mut self, kv: KeyValue) {
        let kv = Arc::new(kv);
        let prev = self.space.current.insert(kv.key.clone(), kv.clone());
        let old_lease = prev.as_ref().map_or(0, |prev| prev.lease);
        if old_lease != kv.lease {
            self.space.detach(old_lease, &kv.key);
            self.space.attach(kv.lease, &kv.key);
        }
        self.record(KeyEvent {
            kind: EventKind::Put,
            kv,
            prev,
        });
    }

    fn remove(&mut self, key: &Bytes) -> Option<Arc<KeyValue>> {
        let prev = self.space.current.remove(key)?;
        self.space.detach(prev.lease, key);
        let tombstone = KeyValue {
            key: prev.key.clone(),
            mod_revision: self.revision,
            ..KeyValue::default()
        };
        // A pair put and deleted in one transaction was never there for anyone else: the event
        // tells the pair before the revision (etcd reads it at revision - 1).
        let before = match self.space.history.before(key, self.revision) {
            Some(before) => before.clone(),
            None => Some(prev.clone()),
        };
        self.record(KeyEvent {
            kind: EventKind::Delete,
            kv: Arc::new(tombstone),
            prev: before,
        });
        Some(prev)
    }

    fn record(&mut self, event: KeyEvent) {
        self.space.clocks.touch(&event.kv.key);
        self.space.history.note(self.revision, &event);
        self.events.push(event);
    }
}
