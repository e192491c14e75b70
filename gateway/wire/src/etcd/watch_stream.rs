//! The state of one Watch stream, which holds many watchers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::etcd::ServerIds;
use crate::etcd::error::EtcdError;
use crate::etcd::frame::{put_message, put_prefix};
use crate::etcd::messages::etcdserverpb::watch_create_request::FilterType;
use crate::etcd::messages::etcdserverpb::watch_request::RequestUnion;
use crate::etcd::messages::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::etcd::messages::mvccpb::Event;
use crate::etcd::messages::mvccpb::event::EventType;
use crate::etcd::shared_events::SharedEvents;
use crate::etcd::watch_split::{encoded_event_len, split};

/// What etcd puts into `watch_id` when an answer belongs to no single watcher.
pub const NO_WATCH_ID: i64 = -1;

/// Reason for a watch id that the stream uses already (`mvcc/watcher.go`).
pub const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// Reason for a range that ends at or before its key (`mvcc/watcher.go`).
pub const EMPTY_RANGE: &str = "mvcc: watcher range is empty";

/// Bounds of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchStreamLimits {
    /// Most watchers; further creates are answered as canceled.
    pub max_watchers: usize,
    /// Most requests that wait for their turn. At the limit, stop reading until [`WatchStream::has_room`].
    pub max_pending: usize,
    /// Encoded size from which on a response is split, where that is allowed. etcd: 1.5 MiB; clients that did not
    /// raise gRPC's default refuse more than 4 MiB.
    pub max_message: usize,
}

impl Default for WatchStreamLimits {
    fn default() -> Self {
        Self {
            max_watchers: 100_000,
            max_pending: 1024,
            max_message: 1536 * 1024,
        }
    }
}

/// The caller's name for a watcher; unlike the watch id it is known before the watcher is announced, and is never
/// used again on the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherKey(u64);

/// What the caller has to do for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchAction {
    /// Start a watcher, then call [`WatchStream::created`] or [`WatchStream::denied`].
    Create(CreateWatch),
    /// Stop the watcher; no answer is expected.
    Cancel(WatcherKey),
    /// If every watcher of the stream has all events up to the current revision, call [`WatchStream::progress`] with
    /// it; otherwise call it once that is so, or not at all (etcd stays silent).
    Progress,
}

/// A watcher that the client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateWatch {
    /// Its name from now on.
    pub key: WatcherKey,
    /// First key of the range; never empty (an empty one means the smallest key).
    pub start: Bytes,
    /// As in etcd: empty for the one key, `\0` for everything from the key on, else the end of the range.
    pub range_end: Bytes,
    /// 0 for from now on, else the first revision wanted.
    pub start_revision: i64,
    /// Whether events need their previous pair.
    pub prev_kv: bool,
}

/// The state of one Watch stream.
///
/// Answers to creates go out in the order of requests, and before any event of the watcher; ids count from 0 per
/// stream. All events of one revision are in one message, or in one chain of fragments. A client's half-close ends
/// nothing: etcd keeps sending.
///
/// **Inputs**: [`handle_request`](Self::handle_request) for each message; then
/// - [`created`](Self::created) or [`denied`](Self::denied), once per [`WatchAction::Create`], in any order,
/// - [`events`](Self::events) or [`shared_events`](Self::shared_events), [`compacted`](Self::compacted), [`ended`](Self::ended) per watcher, events in order of
///   revision; they may come before the watcher is announced, and are kept until then,
/// - [`progress`](Self::progress) and [`progress_of`](Self::progress_of), after all events up to that revision.
///
/// **Commands**: [`idle_watchers`](Self::idle_watchers) at each tick of the progress timer (etcd: 10 min).
///
/// **Outputs**, after each of them: [`poll_action`](Self::poll_action) and [`poll_output`](Self::poll_output) until
/// they give `None`. All messages that wait are one output: each written by itself would cost more than all the rest.
#[derive(Debug)]
pub struct WatchStream {
    ids: ServerIds,
    limits: WatchStreamLimits,
    /// Largest revision that an input told; never put where it would promise something.
    revision: i64,
    next_key: u64,
    next_id: i64,
    pending: VecDeque<Pending>,
    watchers: BTreeMap<WatcherKey, Watcher>,
    /// Announced watchers by id. One that was canceled for compaction keeps its id until the client cancels it.
    keys: BTreeMap<i64, WatcherKey>,
    /// Ids that clients chose, from the request on.
    chosen: BTreeSet<i64>,
    actions: VecDeque<WatchAction>,
    output: VecDeque<Output>,
    queued_bytes: usize,
    /// Size of the events that wait for the announcement of their watcher.
    early_bytes: usize,
    /// Ids of watchers that are over, oldest first. May name ids that the client canceled since.
    over: VecDeque<i64>,
    /// Watchers that are over and still have their id.
    over_count: usize,
}

/// A message that waits.
#[derive(Debug)]
enum Output {
    Message(WatchResponse),
    /// Nothing but events, which are encoded already.
    Events {
        id: i64,
        revision: i64,
        encoded: Bytes,
    },
}

#[derive(Debug)]
enum Pending {
    Create(WatcherKey),
    Refuse { reason: String, revision: i64 },
    Cancel(i64),
    ProgressRequest,
}

#[derive(Debug)]
struct Watcher {
    chosen_id: i64,
    start_revision: i64,
    no_put: bool,
    no_delete: bool,
    prev_kv: bool,
    fragment: bool,
    progress_notify: bool,
    /// Sent nothing since the last tick.
    idle: bool,
    phase: WatcherPhase,
    /// Before it is announced: what came already.
    early: Vec<Early>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WatcherPhase {
    Asked,
    Created {
        revision: i64,
    },
    Denied {
        reason: String,
        revision: i64,
    },
    Announced {
        id: i64,
    },
    /// Canceled by us; the id stays taken until the client cancels it too.
    Over,
}

#[derive(Debug)]
enum Early {
    Events { revision: i64, events: Vec<Event> },
    Compacted { compact_revision: i64 },
    Ended { reason: String },
}

impl WatchStream {
    /// An empty stream.
    pub fn new(ids: ServerIds, limits: WatchStreamLimits) -> Self {
        Self {
            ids,
            limits,
            revision: 0,
            next_key: 0,
            next_id: 0,
            pending: VecDeque::new(),
            watchers: BTreeMap::new(),
            keys: BTreeMap::new(),
            chosen: BTreeSet::new(),
            actions: VecDeque::new(),
            output: VecDeque::new(),
            queued_bytes: 0,
            early_bytes: 0,
            over: VecDeque::new(),
            over_count: 0,
        }
    }

    /// A message of the client, and the current revision. A message without content is ignored, as in etcd.
    pub fn handle_request(&mut self, request: WatchRequest, revision: i64) {
        self.revision = self.revision.max(revision);
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.handle_create(create, revision),
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.pending.push_back(Pending::Cancel(cancel.watch_id));
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                self.pending.push_back(Pending::ProgressRequest)
            }
            None => {}
        }
        self.run_pending();
    }

    /// The watcher gets every event after `revision`, or from its start revision on. Never a later revision than the
    /// first event may have: clients resume from it.
    pub fn created(&mut self, key: WatcherKey, revision: i64) {
        self.revision = self.revision.max(revision);
        self.answer(key, WatcherPhase::Created { revision });
    }

    /// The watcher may not be. The stream lives on (etcd: `v3rpc/watch.go`, isWatchPermitted).
    pub fn denied(&mut self, key: WatcherKey, error: EtcdError, revision: i64) {
        self.revision = self.revision.max(revision);
        self.answer(
            key,
            WatcherPhase::Denied {
                reason: error.grpc_text(),
                revision,
            },
        );
    }

    /// Events of whole revisions in ascending order, and the store's revision when they were taken. Filters are
    /// applied here, and previous pairs dropped where they were not asked for.
    pub fn events(&mut self, key: WatcherKey, revision: i64, mut events: Vec<Event>) {
        self.revision = self.revision.max(revision);
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return;
        };
        events.retain(|event| !watcher.filters_out(event));
        if events.is_empty() {
            return;
        }
        if !watcher.prev_kv {
            events.iter_mut().for_each(|event| event.prev_kv = None);
        }
        match watcher.phase {
            WatcherPhase::Announced { id } => {
                watcher.idle = false;
                let fragment = watcher.fragment;
                self.send_events(id, fragment, revision, events);
            }
            WatcherPhase::Asked | WatcherPhase::Created { .. } => {
                self.early_bytes += events.iter().map(encoded_event_len).sum::<usize>();
                watcher.early.push(Early::Events { revision, events });
            }
            WatcherPhase::Denied { .. } | WatcherPhase::Over => {}
        }
    }

    /// Events of one revision, which other watchers are told too. As [`events`](Self::events), and cheap where the
    /// watcher gets all of them in one message.
    pub fn shared_events(&mut self, key: WatcherKey, revision: i64, shared: &SharedEvents) {
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return;
        };
        let drops_some =
            (watcher.no_put && shared.has_puts()) || (watcher.no_delete && shared.has_deletes());
        if let WatcherPhase::Announced { id } = watcher.phase
            && !drops_some
        {
            let encoded = shared.encoded(watcher.prev_kv);
            if !watcher.fragment || encoded.len() + MAX_HEAD <= self.limits.max_message {
                watcher.idle = false;
                self.revision = self.revision.max(revision);
                self.queued_bytes += encoded.len();
                self.output.push_back(Output::Events {
                    id,
                    revision,
                    encoded: encoded.clone(),
                });
                return;
            }
        }
        self.events(key, revision, shared.events().to_vec());
    }

    /// Events that the watcher wants were compacted away: it is canceled with the oldest revision that is left.
    pub fn compacted(&mut self, key: WatcherKey, compact_revision: i64) {
        self.end(key, Early::Compacted { compact_revision });
    }

    /// The watcher cannot go on for another reason. Some clients do not come back from this, so it is a last resort.
    pub fn ended(&mut self, key: WatcherKey, reason: &str) {
        self.end(
            key,
            Early::Ended {
                reason: reason.to_owned(),
            },
        );
    }

    /// Every watcher of the stream has all events up to `revision`. Sent with id -1, if a watcher is announced and none
    /// of them starts later (etcd: `watchableStore.progressIfSync`).
    pub fn progress(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
        let is_announced =
            |watcher: &&Watcher| matches!(watcher.phase, WatcherPhase::Announced { .. });
        let mut announced = self.watchers.values().filter(is_announced).peekable();
        if announced.peek().is_some() && announced.all(|watcher| watcher.start_revision <= revision)
        {
            let progress = self.response(NO_WATCH_ID, revision);
            self.send(progress);
        }
    }

    /// Watchers that asked for progress and got no event since the last call. Answer each that has all events up to
    /// the current revision with [`progress_of`](Self::progress_of).
    pub fn idle_watchers(&mut self) -> Vec<WatcherKey> {
        let mut idle = Vec::new();
        for (key, watcher) in &mut self.watchers {
            if !watcher.progress_notify || !matches!(watcher.phase, WatcherPhase::Announced { .. })
            {
                continue;
            }
            if watcher.idle {
                idle.push(*key);
            }
            watcher.idle = true;
        }
        idle
    }

    /// This watcher has all events up to `revision`. Sent with its own id.
    pub fn progress_of(&mut self, key: WatcherKey, revision: i64) {
        self.revision = self.revision.max(revision);
        if let Some(watcher) = self.watchers.get(&key)
            && let WatcherPhase::Announced { id } = watcher.phase
            && watcher.start_revision <= revision
        {
            let response = self.response(id, revision);
            self.send(response);
        }
    }

    /// The next thing to do for the client.
    pub fn poll_action(&mut self) -> Option<WatchAction> {
        self.actions.pop_front()
    }

    /// Messages that wait, in their gRPC frames: all of them, up to the first that makes it `most` bytes or more.
    pub fn poll_output(&mut self, most: usize) -> Option<Bytes> {
        if self.output.is_empty() {
            return None;
        }
        let mut frames = BytesMut::with_capacity(self.queued_bytes.min(most));
        // Headers of one revision are equal, and most that wait are of one revision.
        let mut header: (i64, Vec<u8>) = (0, self.ids.header(0).encode_to_vec());
        while frames.len() < most
            && let Some(output) = self.output.pop_front()
        {
            match output {
                Output::Message(response) => {
                    self.queued_bytes = self.queued_bytes.saturating_sub(response.encoded_len());
                    put_message(&mut frames, &response);
                }
                Output::Events {
                    id,
                    revision,
                    encoded,
                } => {
                    self.queued_bytes = self.queued_bytes.saturating_sub(encoded.len());
                    if header.0 != revision {
                        header = (revision, self.ids.header(revision).encode_to_vec());
                    }
                    put_events(&mut frames, &header.1, id, &encoded);
                }
            }
        }
        Some(frames.freeze())
    }

    /// Whether to read on.
    pub fn has_room(&self) -> bool {
        self.pending.len() < self.limits.max_pending
    }

    /// Encoded size of the messages and events that wait. A caller that cannot send stops feeding events at a bound of its own
    /// and takes them from history later: a slow watcher loses nothing.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes + self.early_bytes
    }

    /// Watchers that have to be stopped when the stream is gone.
    pub fn live_watchers(&self) -> impl Iterator<Item = WatcherKey> {
        let is_live = |watcher: &Watcher| {
            !matches!(
                watcher.phase,
                WatcherPhase::Denied { .. } | WatcherPhase::Over
            )
        };
        self.watchers
            .iter()
            .filter(move |(_, watcher)| is_live(watcher))
            .map(|(key, _)| *key)
    }

    fn handle_create(&mut self, create: WatchCreateRequest, revision: i64) {
        let start = if create.key.is_empty() {
            Bytes::from_static(&[0])
        } else {
            create.key
        };
        let is_from_key = create.range_end[..] == [0];
        let is_empty_range =
            !create.range_end.is_empty() && !is_from_key && start >= create.range_end;
        let refusal = if create.start_revision < 0 {
            Some(EtcdError::Compacted.message())
        } else if is_empty_range {
            Some(EMPTY_RANGE)
        } else if create.watch_id != 0 && self.is_taken(create.watch_id) {
            Some(DUPLICATE_ID)
        } else if self.watchers.len() - self.over_count >= self.limits.max_watchers {
            Some(EtcdError::TooManyRequests.message())
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.pending.push_back(Pending::Refuse {
                reason: reason.to_owned(),
                revision,
            });
            return;
        }
        let key = WatcherKey(self.next_key);
        self.next_key += 1;
        if create.watch_id != 0 {
            self.chosen.insert(create.watch_id);
        }
        let has_filter = |filter: FilterType| create.filters.contains(&(filter as i32));
        self.watchers.insert(
            key,
            Watcher {
                chosen_id: create.watch_id,
                start_revision: create.start_revision,
                no_put: has_filter(FilterType::Noput),
                no_delete: has_filter(FilterType::Nodelete),
                prev_kv: create.prev_kv,
                fragment: create.fragment,
                progress_notify: create.progress_notify,
                idle: true,
                phase: WatcherPhase::Asked,
                early: Vec::new(),
            },
        );
        self.pending.push_back(Pending::Create(key));
        self.actions.push_back(WatchAction::Create(CreateWatch {
            key,
            start,
            range_end: create.range_end,
            start_revision: create.start_revision,
            prev_kv: create.prev_kv,
        }));
    }

    fn is_taken(&self, id: i64) -> bool {
        self.keys.contains_key(&id) || self.chosen.contains(&id)
    }

    fn answer(&mut self, key: WatcherKey, phase: WatcherPhase) {
        if let Some(watcher) = self.watchers.get_mut(&key)
            && watcher.phase == WatcherPhase::Asked
        {
            watcher.phase = phase;
            self.run_pending();
        }
    }

    fn end(&mut self, key: WatcherKey, early: Early) {
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return;
        };
        match watcher.phase {
            WatcherPhase::Announced { id } => {
                watcher.phase = WatcherPhase::Over;
                self.send_end(id, early);
                self.keep_id(id);
            }
            WatcherPhase::Asked | WatcherPhase::Created { .. } => watcher.early.push(early),
            WatcherPhase::Denied { .. } | WatcherPhase::Over => {}
        }
    }

    /// Works off requests in their order, up to the first create that has no answer yet.
    fn run_pending(&mut self) {
        while let Some(front) = self.pending.pop_front() {
            match front {
                Pending::Create(key) => {
                    if !self.announce(key) {
                        self.pending.push_front(Pending::Create(key));
                        return;
                    }
                }
                Pending::Refuse { reason, revision } => self.send_refusal(reason, revision),
                Pending::Cancel(id) => self.cancel(id),
                Pending::ProgressRequest => self.actions.push_back(WatchAction::Progress),
            }
        }
    }

    /// False while the answer is missing.
    fn announce(&mut self, key: WatcherKey) -> bool {
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return true;
        };
        let revision = match &watcher.phase {
            WatcherPhase::Asked => return false,
            WatcherPhase::Denied { reason, revision } => {
                let (reason, revision) = (reason.clone(), *revision);
                self.chosen.remove(&watcher.chosen_id);
                if let Some(watcher) = self.watchers.remove(&key) {
                    self.early_bytes -= early_len(&watcher.early);
                }
                self.send_refusal(reason, revision);
                return true;
            }
            WatcherPhase::Created { revision } => *revision,
            WatcherPhase::Announced { .. } | WatcherPhase::Over => return true,
        };
        let id = match watcher.chosen_id {
            0 => {
                while self.keys.contains_key(&self.next_id) || self.chosen.contains(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            chosen => chosen,
        };
        watcher.phase = WatcherPhase::Announced { id };
        let fragment = watcher.fragment;
        let early = std::mem::take(&mut watcher.early);
        self.early_bytes -= early_len(&early);
        self.chosen.remove(&id);
        self.keys.insert(id, key);
        let created = WatchResponse {
            created: true,
            ..self.response(id, revision)
        };
        self.send(created);
        for early in early {
            match early {
                Early::Events { revision, events } => {
                    if let Some(watcher) = self.watchers.get_mut(&key) {
                        watcher.idle = false;
                    }
                    self.send_events(id, fragment, revision, events);
                }
                end @ (Early::Compacted { .. } | Early::Ended { .. }) => {
                    self.end(key, end);
                    break;
                }
            }
        }
        true
    }

    /// A watcher that is over keeps its id, as in etcd, where such ids pile up; here the oldest are let go.
    fn keep_id(&mut self, id: i64) {
        self.over_count += 1;
        self.over.push_back(id);
        if self.over.len() <= self.limits.max_watchers {
            return;
        }
        if let Some(oldest) = self.over.pop_front()
            && let Some(key) = self.keys.get(&oldest).copied()
            && self
                .watchers
                .get(&key)
                .is_some_and(|watcher| watcher.phase == WatcherPhase::Over)
        {
            self.keys.remove(&oldest);
            self.watchers.remove(&key);
            self.over_count -= 1;
        }
    }

    /// A known watcher is answered, an unknown one is not (etcd: `v3rpc/watch.go`).
    fn cancel(&mut self, id: i64) {
        let Some(key) = self.keys.remove(&id) else {
            return;
        };
        match self.watchers.remove(&key) {
            Some(watcher) if watcher.phase == WatcherPhase::Over => self.over_count -= 1,
            _ => self.actions.push_back(WatchAction::Cancel(key)),
        }
        let canceled = WatchResponse {
            canceled: true,
            ..self.response(id, self.revision)
        };
        self.send(canceled);
    }

    fn send_refusal(&mut self, cancel_reason: String, revision: i64) {
        let refused = WatchResponse {
            created: true,
            canceled: true,
            cancel_reason,
            ..self.response(NO_WATCH_ID, revision)
        };
        self.send(refused);
    }

    fn send_end(&mut self, id: i64, early: Early) {
        let response = match early {
            // etcd gives neither a revision nor a reason here, and clients tell a compaction by that.
            Early::Compacted { compact_revision } => WatchResponse {
                canceled: true,
                compact_revision,
                ..self.response(id, 0)
            },
            Early::Ended { reason } => WatchResponse {
                canceled: true,
                cancel_reason: reason,
                ..self.response(id, self.revision)
            },
            Early::Events { .. } => return,
        };
        self.send(response);
    }

    fn send_events(&mut self, id: i64, fragment: bool, revision: i64, events: Vec<Event>) {
        let frame = self.response(id, revision);
        for message in split(&frame, events, fragment, self.limits.max_message) {
            self.send(message);
        }
    }

    fn response(&self, watch_id: i64, revision: i64) -> WatchResponse {
        WatchResponse {
            header: Some(self.ids.header(revision)),
            watch_id,
            ..WatchResponse::default()
        }
    }

    fn send(&mut self, response: WatchResponse) {
        self.queued_bytes += response.encoded_len();
        self.output.push_back(Output::Message(response));
    }
}

impl Watcher {
    fn filters_out(&self, event: &Event) -> bool {
        match event.r#type() {
            EventType::Put => self.no_put,
            EventType::Delete => self.no_delete,
        }
    }
}

/// Fields of a WatchResponse.
const HEADER: u32 = 1;
const WATCH_ID: u32 = 2;

/// More than a header with its ids and a watch id take, encoded.
const MAX_HEAD: usize = 64;

/// A WatchResponse with events alone.
fn put_events(frames: &mut BytesMut, header: &[u8], id: i64, encoded: &Bytes) {
    // As everywhere in Protocol Buffers, a 0 is not written, and a negative number is its two's complement.
    let id = id as u64;
    let id_len = match id {
        0 => 0,
        id => key_len(WATCH_ID) + encoded_len_varint(id),
    };
    let header_len = key_len(HEADER) + encoded_len_varint(header.len() as u64) + header.len();
    put_prefix(frames, header_len + id_len + encoded.len());
    encode_key(HEADER, WireType::LengthDelimited, frames);
    encode_varint(header.len() as u64, frames);
    frames.put_slice(header);
    if id != 0 {
        encode_key(WATCH_ID, WireType::Varint, frames);
        encode_varint(id, frames);
    }
    frames.put_slice(encoded);
}

fn early_len(early: &[Early]) -> usize {
    let len_of = |early: &Early| match early {
        Early::Events { events, .. } => events.iter().map(encoded_event_len).sum(),
        Early::Compacted { .. } | Early::Ended { .. } => 0,
    };
    early.iter().map(len_of).sum()
}

#[cfg(test)]
mod tests;
