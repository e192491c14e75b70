//! Watches on the etcd key space: who is told of a change, from which revision on, and what a
//! watch that starts in the past is told first.
//!
//! Inputs: [`KeyWatchTable::create`], [`KeyWatchTable::cancel`], [`KeyWatchTable::remove_stream`].
//! Output: [`KeyWatchTable::dispatch`], to be called with each [`Applied`]'s events before the next
//! command is applied. A table holds nothing that a restart must keep: streams end with it.
//!
//! A watch is told of each revision once, whole, in rising order: what `create` replays ends at
//! the space's revision, what `dispatch` gives begins after it.
//!
//! [`Applied`]: crate::key_space::Applied

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::key_space::span::{End, Span};
use crate::key_space::{EventKind, KeyError, KeyEvent, KeySpace, RevisionEvents, select};

/// One watch stream of one client; the number is given by the shell and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the next change (etcd: start_revision 0).
    Now,
    /// With this revision of the space; one in the future is waited for.
    At(i64),
    /// Where a number stands that this space did not give out: it is told what is there and what
    /// went, see [`KeySpace::foreign_history`]. Never in the future.
    Foreign(i64),
}

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchSpec {
    /// The client's own id; 0 lets the table choose (etcd: clientv3.AutoWatchID).
    pub watch_id: i64,
    /// First key; empty is the smallest key.
    pub key: Bytes,
    /// End of the range, excluded; see [`crate::key_space::RangeRequest`].
    pub range_end: Bytes,
    /// Where it starts.
    pub start: WatchStart,
    /// Filter NOPUT.
    pub no_put: bool,
    /// Filter NODELETE.
    pub no_delete: bool,
    /// The client wants the pair before each change.
    pub prev_kv: bool,
}

/// Answer to a create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The id given, −1 when the watch was rejected.
    pub watch_id: i64,
    /// Revision for the `created` header: events after it come from [`KeyWatchTable::dispatch`].
    pub header_revision: i64,
    /// What follows the `created` message.
    pub outcome: CreateOutcome,
}

/// What follows the `created` message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateOutcome {
    /// Nothing; the watch lives.
    Live,
    /// These, oldest first and already filtered; the watch lives.
    Replay(Vec<RevisionEvents>),
    /// `canceled` with this revision, no reason and header revision 0; the watch does not live.
    Compacted {
        /// Lowest revision that can be watched from.
        compact_revision: i64,
    },
    /// `created` and `canceled` in one message with id −1; the watch does not live.
    Rejected(WatchReject),
}

/// Why a watch was rejected; the texts are etcd's cancel reasons (mvcc/watcher.go).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchReject {
    /// The end is not above the key.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    /// The client's id is in use on the stream.
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    /// `At` or `Foreign` below 0. (etcd up to 3.5.1 takes it for compacted.)
    #[error("mvcc: required revision has been compacted")]
    NegativeStart,
}

/// Events of one revision for one watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Whom to tell.
    pub stream: StreamId,
    /// Which of its watches.
    pub watch_id: i64,
    /// The watch wants the pairs before; the events always have them.
    pub prev_kv: bool,
    /// Deliveries of one dispatch with the same `batch` have the same events: with `prev_kv` it is
    /// the key under which their encoding can be shared.
    pub batch: usize,
    /// Filtered for this watch, never empty.
    pub events: Arc<[KeyEvent]>,
}

/// All watches of a gateway. See the module's page.
#[derive(Debug, Default)]
pub struct KeyWatchTable {
    streams: BTreeMap<StreamId, Stream>,
    groups: BTreeMap<GroupId, Group>,
    next_group: u64,
    /// Watches on a single key.
    single: HashMap<Bytes, GroupId>,
    /// Watches on a range, by start and end.
    ranged: BTreeMap<(Bytes, End), GroupId>,
    intervals: Intervals,
}

impl KeyWatchTable {
    /// No watches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a watch on the state of `space`, all of whose changes were dispatched.
    pub fn create(&mut self, stream: StreamId, spec: WatchSpec, space: &KeySpace) -> Created {
        let header_revision = space.revision();
        let rejected = |reject| Created {
            watch_id: -1,
            header_revision,
            outcome: CreateOutcome::Rejected(reject),
        };
        // etcd: "\x00 is the smallest key" (v3rpc/watch.go recvLoop).
        let key = if spec.key.is_empty() {
            Bytes::from_static(&[0])
        } else {
            spec.key.clone()
        };
        let span = Span::new(&key, &spec.range_end);
        if span == Span::Nothing {
            return rejected(WatchReject::EmptyRange);
        }
        if matches!(spec.start, WatchStart::At(number) | WatchStart::Foreign(number) if number < 0)
        {
            return rejected(WatchReject::NegativeStart);
        }
        let own = self.streams.entry(stream).or_default();
        let Some(watch_id) = own.take_id(spec.watch_id) else {
            return rejected(WatchReject::DuplicateId);
        };

        let filter = Filter {
            no_put: spec.no_put,
            no_delete: spec.no_delete,
        };
        let replay = match spec.start {
            WatchStart::Now | WatchStart::At(0) => Ok(Vec::new()),
            WatchStart::At(number) if number > header_revision => Ok(Vec::new()),
            WatchStart::At(number) => space
                .history(number, &key, &spec.range_end)
                .map(Iterator::collect),
            WatchStart::Foreign(number) => space.foreign_history(number, &key, &spec.range_end),
        };
        let replay: Vec<RevisionEvents> = match replay {
            Ok(replay) => replay
                .into_iter()
                .filter_map(|group| filter.group(group))
                .collect(),
            Err(error) => {
                let compact_revision = match error {
                    KeyError::Compacted { compact_revision } => compact_revision,
                    _ => space.history_floor(),
                };
                let outcome = CreateOutcome::Compacted { compact_revision };
                return Created {
                    watch_id,
                    header_revision,
                    outcome,
                };
            }
        };
        let from = match spec.start {
            WatchStart::At(number) => number.max(header_revision.saturating_add(1)),
            WatchStart::Now | WatchStart::Foreign(_) => header_revision.saturating_add(1),
        };
        let group = self.group_of(&span);
        let watch = Watch {
            from,
            filter,
            prev_kv: spec.prev_kv,
        };
        if let Some(group) = self.groups.get_mut(&group) {
            group.watches.insert((stream, watch_id), watch);
        }
        if let Some(own) = self.streams.get_mut(&stream) {
            own.watches.insert(watch_id, group);
        }
        let outcome = if replay.is_empty() {
            CreateOutcome::Live
        } else {
            CreateOutcome::Replay(replay)
        };
        Created {
            watch_id,
            header_revision,
            outcome,
        }
    }

    /// Ends a watch; false if there is none (etcd says nothing then).
    pub fn cancel(&mut self, stream: StreamId, watch_id: i64) -> bool {
        let Some(own) = self.streams.get_mut(&stream) else {
            return false;
        };
        let Some(group) = own.watches.remove(&watch_id) else {
            return false;
        };
        self.leave(group, stream, watch_id);
        true
    }

    /// Ends all watches of a stream and forgets its ids.
    pub fn remove_stream(&mut self, stream: StreamId) {
        let Some(own) = self.streams.remove(&stream) else {
            return;
        };
        for (watch_id, group) in own.watches {
            self.leave(group, stream, watch_id);
        }
    }

    /// Ids of a stream's living watches, rising: each may be told progress up to the space's
    /// revision once the deliveries before it are sent, as dispatch leaves none behind.
    pub fn watch_ids(&self, stream: StreamId) -> impl Iterator<Item = i64> {
        self.streams
            .get(&stream)
            .into_iter()
            .flat_map(|own| own.watches.keys().copied())
    }

    /// Number of living watches of a stream, for its limit.
    pub fn watch_count(&self, stream: StreamId) -> usize {
        self.streams.get(&stream).map_or(0, |own| own.watches.len())
    }

    /// Number of living watches.
    pub fn len(&self) -> usize {
        self.groups.values().map(|group| group.watches.len()).sum()
    }

    /// No watch lives.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Who is told of the events of one revision, by stream and watch id.
    pub fn dispatch(&self, revision: i64, events: &Arc<[KeyEvent]>) -> Vec<Delivery> {
        let mut matched: BTreeMap<GroupId, Vec<usize>> = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            if let Some(group) = self.single.get(&event.kv.key) {
                matched.entry(*group).or_default().push(at);
            }
            self.intervals.stab(&event.kv.key, &mut |group| {
                matched.entry(group).or_default().push(at)
            });
        }
        let mut batches = Batches {
            whole: events,
            count: 1,
        };
        let mut deliveries = Vec::new();
        for (group, at) in matched {
            let Some(group) = self.groups.get(&group) else {
                continue;
            };
            let mut by_filter: BTreeMap<Filter, Option<Batch>> = BTreeMap::new();
            for ((stream, watch_id), watch) in &group.watches {
                if revision < watch.from {
                    continue;
                }
                let batch = by_filter
                    .entry(watch.filter)
                    .or_insert_with(|| batches.make(&at, watch.filter));
                if let Some((batch, events)) = batch {
                    deliveries.push(Delivery {
                        stream: *stream,
                        watch_id: *watch_id,
                        prev_kv: watch.prev_kv,
                        batch: *batch,
                        events: events.clone(),
                    });
                }
            }
        }
        deliveries.sort_unstable_by_key(|delivery| (delivery.stream, delivery.watch_id));
        deliveries
    }

    fn group_of(&mut self, span: &Span) -> GroupId {
        let new = GroupId(self.next_group);
        let id = match span {
            Span::Key(key) => *self.single.entry(key.clone()).or_insert(new),
            Span::Keys(start, end) => *self
                .ranged
                .entry((start.clone(), end.clone()))
                .or_insert(new),
            // Rejected before.
            Span::Nothing => new,
        };
        if id == new {
            self.next_group += 1;
            self.groups.insert(
                new,
                Group {
                    span: span.clone(),
                    watches: BTreeMap::new(),
                },
            );
            if let Span::Keys(start, end) = span {
                self.intervals.insert(Interval {
                    start: start.clone(),
                    end: end.clone(),
                    group: new,
                });
            }
        }
        id
    }

    fn leave(&mut self, id: GroupId, stream: StreamId, watch_id: i64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.watches.remove(&(stream, watch_id));
        if !group.watches.is_empty() {
            return;
        }
        if let Some(group) = self.groups.remove(&id) {
            match group.span {
                Span::Key(key) => {
                    self.single.remove(&key);
                }
                Span::Keys(start, end) => {
                    self.ranged.remove(&(start, end));
                    self.intervals.remove(id);
                }
                Span::Nothing => {}
            }
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    next_id: i64,
    watches: BTreeMap<i64, GroupId>,
}

impl Stream {
    /// The id to use, if it is free. Chosen ids count up from 0 and skip the client's own (etcd:
    /// mvcc watchStream.Watch).
    fn take_id(&mut self, wanted: i64) -> Option<i64> {
        if wanted != 0 {
            return (!self.watches.contains_key(&wanted)).then_some(wanted);
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        Some(id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GroupId(u64);

/// The watches on one key or one range.
#[derive(Debug)]
struct Group {
    span: Span,
    watches: BTreeMap<(StreamId, i64), Watch>,
}

#[derive(Debug)]
struct Watch {
    /// First revision it is told of.
    from: i64,
    filter: Filter,
    prev_kv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Filter {
    no_put: bool,
    no_delete: bool,
}

impl Filter {
    fn passes(self, event: &KeyEvent) -> bool {
        match event.kind {
            EventKind::Put => !self.no_put,
            EventKind::Delete => !self.no_delete,
        }
    }

    fn group(self, group: RevisionEvents) -> Option<RevisionEvents> {
        let events = select(&group.events, |event| self.passes(event))?;
        Some(RevisionEvents {
            revision: group.revision,
            events,
        })
    }
}

/// A subset of a revision's events with its number in the dispatch.
type Batch = (usize, Arc<[KeyEvent]>);

/// Makes each subset of a revision's events once; number 0 is all of them.
struct Batches<'a> {
    whole: &'a Arc<[KeyEvent]>,
    count: usize,
}

impl Batches<'_> {
    fn make(&mut self, at: &[usize], filter: Filter) -> Option<Batch> {
        let chosen: Vec<&KeyEvent> = at
            .iter()
            .filter_map(|at| self.whole.get(*at))
            .filter(|event| filter.passes(event))
            .collect();
        if chosen.is_empty() {
            return None;
        }
        if chosen.len() == self.whole.len() {
            return Some((0, self.whole.clone()));
        }
        let number = self.count;
        self.count += 1;
        Some((number, chosen.into_iter().cloned().collect()))
    }
}

#[derive(Debug, Clone)]
struct Interval {
    start: Bytes,
    end: End,
    group: GroupId,
}

/// Finds the ranges around a key: a balanced interval tree laid out in a sorted list, rebuilt now
/// and then, and a short list of what came since.
#[derive(Debug, Default)]
struct Intervals {
    /// By start. The middle of each part is its root.
    sorted: Vec<Interval>,
    /// For the root of each part, the highest end in the part.
    highest: Vec<End>,
    /// Groups in `sorted` that are gone.
    gone: std::collections::BTreeSet<GroupId>,
    fresh: Vec<Interval>,
}

impl Intervals {
    fn insert(&mut self, interval: Interval) {
        self.fresh.push(interval);
        // Grows with the list, so that rebuilding costs little per range.
        if self.fresh.len() > 32 + self.sorted.len().isqrt() {
            self.rebuild();
        }
    }

    fn remove(&mut self, group: GroupId) {
        if let Some(at) = self
            .fresh
            .iter()
            .position(|interval| interval.group == group)
        {
            self.fresh.swap_remove(at);
            return;
        }
        self.gone.insert(group);
        if self.gone.len() > 32 + self.sorted.len() / 2 {
            self.rebuild();
        }
    }

    fn stab(&self, key: &[u8], found: &mut dyn FnMut(GroupId)) {
        for interval in &self.fresh {
            if interval.start.as_ref() <= key && interval.end.is_above(key) {
                found(interval.group);
            }
        }
        self.stab_part(&self.sorted, &self.highest, key, found);
    }

    fn stab_part(
        &self,
        part: &[Interval],
        highest: &[End],
        key: &[u8],
        found: &mut dyn FnMut(GroupId),
    ) {
        let middle = part.len() / 2;
        let (Some(root), Some(top)) = (part.get(middle), highest.get(middle)) else {
            return;
        };
        if !top.is_above(key) {
            return;
        }
        self.stab_part(&part[..middle], &highest[..middle], key, found);
        if root.start.as_ref() <= key {
            if root.end.is_above(key) && !self.gone.contains(&root.group) {
                found(root.group);
            }
            self.stab_part(&part[middle + 1..], &highest[middle + 1..], key, found);
        }
    }

    fn rebuild(&mut self) {
        self.sorted.append(&mut self.fresh);
        let gone = std::mem::take(&mut self.gone);
        self.sorted
            .retain(|interval| !gone.contains(&interval.group));
        self.sorted
            .sort_by(|a, b| a.start.cmp(&b.start).then_with(|| a.end.cmp(&b.end)));
        self.highest = self
            .sorted
            .iter()
            .map(|interval| interval.end.clone())
            .collect();
        raise(&mut self.highest);
    }
}

/// Raises the middle of each part to the highest of the part, which is returned.
fn raise(part: &mut [End]) -> Option<End> {
    let middle = part.len() / 2;
    let (left, rest) = part.split_at_mut(middle);
    let (root, right) = rest.split_first_mut()?;
    for below in [raise(left), raise(right)].into_iter().flatten() {
        if below > *root {
            *root = below;
        }
    }
    Some(root.clone())
}

#[cfg(test)]
mod tests;
