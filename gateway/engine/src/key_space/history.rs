//! What is kept of the past: for reads at a revision, watches that start there, and deletions
//! that a reader with a foreign number has to be told.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::span::Span;
use super::types::{EventKind, KeyEvent, KeyValue};

/// Rough cost of an event beside its bytes: entries in two queues and the shared pairs.
const EVENT_OVERHEAD: u64 = 300;

/// Changes of one revision.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) at_ms: i64,
    pub(crate) events: Arc<[KeyEvent]>,
}

/// The past of one key: the pair before each change that is kept.
type KeyPast = VecDeque<(i64, Option<Arc<KeyValue>>)>;

#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// By rising revision.
    log: VecDeque<Change>,
    /// The same by key, so that a read at a revision costs by its range, not by what happened since.
    past: BTreeMap<Bytes, KeyPast>,
    /// Lowest revision whose state and events are complete; 0 while nothing was dropped.
    floor: i64,
    /// Highest number of a dropped deletion that no later change of its key made irrelevant.
    dropped_delete: i64,
    bytes: u64,
}

impl History {
    pub(crate) fn floor(&self) -> i64 {
        self.floor
    }

    pub(crate) fn dropped_delete(&self) -> i64 {
        self.dropped_delete
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.log.iter()
    }

    pub(crate) fn restore(
        floor: i64,
        dropped_delete: i64,
        changes: impl Iterator<Item = Change>,
    ) -> History {
        let mut history = History {
            floor,
            dropped_delete,
            ..History::default()
        };
        for change in changes {
            for event in change.events.iter() {
                history.note(change.revision, event);
            }
            history.push(change);
        }
        history
    }

    /// Notes one event at once, so that a read inside the same transaction sees the state before.
    /// [`History::push`] with all events of the revision follows.
    pub(crate) fn note(&mut self, revision: i64, event: &KeyEvent) {
        let past = self.past.entry(event.kv.key.clone()).or_default();
        past.push_back((revision, event.prev.clone()));
    }

    /// What a key was before `revision`, if it was noted as changed in that revision.
    pub(crate) fn before(&self, key: &[u8], revision: i64) -> Option<&Option<Arc<KeyValue>>> {
        let past = self.past.get(key)?;
        let first = past.partition_point(|(number, _)| *number < revision);
        past.get(first)
            .filter(|(number, _)| *number == revision)
            .map(|(_, before)| before)
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.bytes += cost(&change);
        self.log.push_back(change);
    }

    /// Changes from a revision on.
    pub(crate) fn since(&self, revision: i64) -> impl Iterator<Item = &Change> {
        let first = self
            .log
            .partition_point(|change| change.revision < revision);
        self.log.range(first..)
    }

    /// The pairs of a span as they were at `revision`, which is not below the floor.
    pub(crate) fn state_at<'a>(
        &'a self,
        current: &'a BTreeMap<Bytes, Arc<KeyValue>>,
        span: &Span,
        revision: i64,
    ) -> Vec<&'a Arc<KeyValue>> {
        let mut state: BTreeMap<&Bytes, &Arc<KeyValue>> = span.of(current).collect();
        for (key, past) in span.of(&self.past) {
            let next = past.partition_point(|(number, _)| *number <= revision);
            match past.get(next) {
                Some((_, Some(before))) => {
                    state.insert(key, before);
                }
                Some((_, None)) => {
                    state.remove(key);
                }
                None => {}
            }
        }
        state.into_values().collect()
    }

    /// Of the keys of a range that have changed: their first change that is kept, and what was there before it.
    pub(crate) fn past_in(
        &self,
        range: (Bound<Bytes>, Bound<Bytes>),
    ) -> impl Iterator<Item = (&Bytes, i64, &Option<Arc<KeyValue>>)> {
        self.past
            .range::<Bytes, _>(range)
            .filter_map(|(key, past)| {
                past.front()
                    .map(|(revision, before)| (key, *revision, before))
            })
    }

    /// The keys of a span that are gone, with the number and the pair of their deletion.
    pub(crate) fn gone<'a>(
        &'a self,
        current: &'a BTreeMap<Bytes, Arc<KeyValue>>,
        span: &Span,
    ) -> impl Iterator<Item = (&'a Bytes, i64, &'a Option<Arc<KeyValue>>)> {
        span.of(&self.past)
            .filter(|(key, _)| !current.contains_key(key.as_ref()))
            .filter_map(|(key, past)| {
                past.back()
                    .map(|(revision, before)| (key, *revision, before))
            })
    }

    /// Drops what lies below `revision`; its own change stays, as a watch may start at a
    /// compacted revision (etcd: only a start below it is refused).
    pub(crate) fn compact(&mut self, current: &BTreeMap<Bytes, Arc<KeyValue>>, revision: i64) {
        while self
            .log
            .front()
            .is_some_and(|change| change.revision < revision)
        {
            self.drop_oldest(current);
        }
        self.floor = self.floor.max(revision);
    }

    /// Drops what is older than `oldest_ms` and the oldest of what exceeds `keep_bytes`. The last
    /// change always stays, so that the floor never passes the present revision.
    pub(crate) fn trim(
        &mut self,
        current: &BTreeMap<Bytes, Arc<KeyValue>>,
        oldest_ms: i64,
        keep_bytes: u64,
    ) {
        while self.log.len() > 1
            && self
                .log
                .front()
                .is_some_and(|change| change.at_ms < oldest_ms || self.bytes > keep_bytes)
        {
            if let Some(revision) = self.drop_oldest(current) {
                self.floor = self.floor.max(revision + 1);
            }
        }
    }

    fn drop_oldest(&mut self, current: &BTreeMap<Bytes, Arc<KeyValue>>) -> Option<i64> {
        let change = self.log.pop_front()?;
        self.bytes = self.bytes.saturating_sub(cost(&change));
        for event in change.events.iter() {
            let key = &event.kv.key;
            let Some(past) = self.past.get_mut(key) else {
                continue;
            };
            past.pop_front();
            if past.is_empty() {
                self.past.remove(key);
                if event.kind == EventKind::Delete && !current.contains_key(key) {
                    self.dropped_delete = self.dropped_delete.max(change.revision);
                }
            }
        }
        Some(change.revision)
    }
}

fn cost(change: &Change) -> u64 {
    let of = |event: &KeyEvent| {
        let value = event.prev.as_ref().map_or(0, |prev| prev.value.len());
        (event.kv.key.len() + value) as u64 + EVENT_OVERHEAD
    };
    change.events.iter().map(of).sum()
}
