//! The state of one client connection: a queue of reply slots that two sources fill.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::zk::connect::ConnectResponse;
use crate::zk::error_code::ErrorCode;
use crate::zk::op_code::{OpCode, xid};
use crate::zk::record::{Record, wire_length};
use crate::zk::reply::ReplyHeader;
use crate::zk::request::Request;

/// Bounds of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most requests without a reply. At the limit, stop reading from the socket until [`Connection::has_room`].
    pub max_slots: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { max_slots: 4096 }
    }
}

/// Names the reply slot of one request on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u64);

/// Which watches a request sets once its reply is there.
///
/// Clients register a watch only when they read the reply, and drop an event that they have no watch for. So the
/// event of a watch must not overtake the reply that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Watches {
    /// None.
    #[default]
    None,
    /// On one path.
    Path(String),
    /// On a path and all below it.
    Subtree(String),
    /// On several; treated as every path.
    Many,
}

impl Watches {
    /// What `request` sets.
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Exists(read)
            | Request::GetData(read)
            | Request::GetChildren(read)
            | Request::GetChildren2(read)
                if read.watch =>
            {
                Watches::Path(read.path.clone())
            }
            Request::AddWatch(add) if add.mode == 0 => Watches::Path(add.path.clone()),
            Request::AddWatch(add) => Watches::Subtree(add.path.clone()),
            Request::SetWatches(_) | Request::SetWatches2(_) => Watches::Many,
            _ => Watches::None,
        }
    }

    fn cover(&self, path: &str) -> bool {
        match self {
            Watches::None => false,
            Watches::Path(watched) => watched == path,
            Watches::Subtree(root) => path.strip_prefix(root.as_str()).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || root.ends_with('/')
            }),
            Watches::Many => true,
        }
    }
}

/// A call that does not fit the state of the connection. Nothing was changed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// Too many requests without a reply; the caller read on although there was no room.
    #[error("too many requests in flight")]
    TooManySlots,
    /// The connection ends after an earlier slot; the request is not to be run.
    #[error("connection is closing")]
    Closing,
    /// The slot is not waiting: answered already, or dropped because the connection closed before it.
    #[error("no such slot waits for a reply")]
    NotWaiting,
}

/// The state of one client connection after its ConnectRequest was read.
///
/// Replies go out strictly in the order of requests, for every frame: pings, auth, setWatches and refusals included
/// (kazoo pops its queue for auth replies too, and the Java client fails on any mismatch). A watch event goes out
/// before every reply that could reveal its change, and after the reply that set its watch.
///
/// **Inputs**, as things happen:
/// - [`request`](Self::request) for each frame read, at once and in order; gives the slot,
/// - [`fill`](Self::fill) when the answer to a slot is there, in any order, from memory or from upstream,
/// - [`event`](Self::event) for each watch event, in the order in which its source gave it, and before that source
///   fills a slot with a later state.
///
/// **Commands**, when the caller decides something:
/// - [`open`](Self::open) or [`refuse`](Self::refuse) once, with the ConnectResponse; clients may send requests
///   before it, and nothing goes out before it,
/// - [`close_after`](Self::close_after) for closeSession, failed auth and unknown operations.
///
/// **Outputs**, after any of the above:
/// - [`poll_output`](Self::poll_output) until it gives `None`,
/// - then [`is_finished`](Self::is_finished): if so, close the socket.
///
/// ```
/// use bytes::Bytes;
/// use causeway_wire::zk::{ConnectRequest, ConnectResponse, Connection, OpCode, Watches};
///
/// let mut connection = Connection::default();
/// connection.open(&ConnectResponse::established(&ConnectRequest::default(), 1, 4000, [0; 16]), 0);
/// let first = connection.request(1, OpCode::GetData as i32, Watches::None)?;
/// let second = connection.request(2, OpCode::Ping as i32, Watches::None)?;
/// assert!(connection.poll_output().is_some(), "the ConnectResponse");
/// connection.fill(second, 7, 0, Bytes::new())?;
/// assert!(connection.poll_output().is_none(), "the first reply is not there yet");
/// connection.fill(first, 7, 0, Bytes::new())?;
/// assert!(connection.poll_output().is_some(), "both replies");
/// # Ok::<(), causeway_wire::zk::ConnectionError>(())
/// ```
#[derive(Debug, Default)]
pub struct Connection {
    limits: ConnectionLimits,
    state: State,
    greeting: Option<Bytes>,
    /// Requests without a sent reply, oldest first; the front one has number `first`.
    slots: VecDeque<Slot>,
    first: u64,
    /// Filled slots that set watches; spares the search for them while there are none.
    filled_watches: usize,
    /// Events behind all slots.
    tail: VecDeque<Event>,
    close_after: Option<u64>,
    /// Largest zxid written to the client.
    last_zxid: i64,
    /// A large body whose header was given out already.
    body: Option<Bytes>,
    queued_bytes: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// No ConnectResponse yet.
    #[default]
    Opening,
    Open,
    /// The ConnectResponse is the last frame.
    Refused,
    Finished,
}

#[derive(Debug)]
struct Slot {
    xid: i32,
    /// Errors of exists still set a watch, those of other reads do not.
    is_exists: bool,
    watches: Watches,
    /// Events that go out before this reply.
    events: VecDeque<Event>,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Answer {
    zxid: i64,
    err: i32,
    body: Bytes,
}

#[derive(Debug)]
struct Event {
    zxid: i64,
    body: Bytes,
}

/// Bodies above this go out as a chunk of their own instead of being copied.
const COPY_MAX: usize = 2048;

/// A chunk is ended once it has this many bytes.
const CHUNK_LEN: usize = 16 * 1024;

const HEADER_LEN: usize = ReplyHeader::MIN_LEN;

impl Connection {
    /// A connection before its ConnectResponse.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A frame of the client was read. `request_xid` and `op` are those of its header; the reply gets the same xid
    /// (a ping always gets -2).
    pub fn request(
        &mut self,
        request_xid: i32,
        op: i32,
        watches: Watches,
    ) -> Result<SlotId, ConnectionError> {
        if self.is_closing() {
            return Err(ConnectionError::Closing);
        }
        if !self.has_room() {
            return Err(ConnectionError::TooManySlots);
        }
        let id = self.first + self.slots.len() as u64;
        let is_ping = op == OpCode::Ping as i32;
        self.slots.push_back(Slot {
            xid: if is_ping { xid::PING } else { request_xid },
            is_exists: op == OpCode::Exists as i32,
            watches,
            events: std::mem::take(&mut self.tail),
            answer: None,
        });
        Ok(SlotId(id))
    }

    /// The answer to a slot: the last zxid processed at that moment, the code, and the body (empty unless `err` is 0).
    ///
    /// A zxid of 0 or below says nothing (auth: 0, unknown operations: -1) and is written as it is. A positive one
    /// that is below a number already written is raised to it, so that the client never sees it fall.
    /// [`ConnectionError::NotWaiting`] is no fault when the connection closed before the slot.
    pub fn fill(
        &mut self,
        slot: SlotId,
        zxid: i64,
        err: i32,
        body: Bytes,
    ) -> Result<(), ConnectionError> {
        let slot = self.waiting(slot)?;
        let sets_watches = err == 0 || (slot.is_exists && err == ErrorCode::NoNode.number());
        if !sets_watches {
            slot.watches = Watches::None;
        }
        let (watches, length) = (slot.watches != Watches::None, body.len());
        slot.answer = Some(Answer { zxid, err, body });
        self.filled_watches += usize::from(watches);
        self.queued_bytes += length;
        Ok(())
    }

    /// A watch fired: the zxid of the change (0 or below if its source does not tell), the path in the event, and
    /// the encoded [`crate::zk::WatcherEvent`] without header, which all watchers of the change may share.
    pub fn event(&mut self, zxid: i64, path: &str, body: Bytes) {
        if matches!(self.state, State::Refused | State::Finished) {
            return;
        }
        self.queued_bytes += body.len();
        let event = Event { zxid, body };
        let index = self.place(zxid, path);
        match self.slots.get_mut(index) {
            Some(slot) => slot.events.push_back(event),
            None => self.tail.push_back(event),
        }
    }

    /// An event without a number that belongs to the request of `slot`, which waits for its answer: what a client had
    /// missed goes out right before the reply of its setWatches, behind the replies before it (ZooKeeper:
    /// `DataTree.setWatches` within `FinalRequestProcessor`).
    pub fn event_before(&mut self, slot: SlotId, body: Bytes) -> Result<(), ConnectionError> {
        let slot = self.waiting(slot)?;
        let length = body.len();
        slot.events.push_back(Event { zxid: 0, body });
        self.queued_bytes += length;
        Ok(())
    }

    /// The session is there. No header will be below `floor_zxid`: the number that the client showed, when it is a
    /// genuine one, else 0.
    pub fn open(&mut self, response: &ConnectResponse, floor_zxid: i64) {
        if self.state == State::Opening {
            self.greeting = Some(response.encode_frame());
            self.last_zxid = floor_zxid.max(0);
            self.state = State::Open;
        }
    }

    /// There is no session ([`ConnectResponse::expired`]): this goes out, then the connection closes.
    pub fn refuse(&mut self, response: &ConnectResponse) {
        if self.state == State::Opening {
            self.greeting = Some(response.encode_frame());
            self.drop_queue();
            self.state = State::Refused;
        }
    }

    /// The connection ends once the reply of `slot` has gone out. Later slots get no reply, and further requests are
    /// refused. The earliest of several such slots counts.
    pub fn close_after(&mut self, slot: SlotId) {
        let earliest = self.close_after.map_or(slot.0, |before| before.min(slot.0));
        self.close_after = Some(earliest);
        if earliest < self.first {
            self.drop_queue();
            self.state = State::Finished;
        }
    }

    /// The next bytes to send, in order. Chunks and frames do not align: large bodies come as chunks of their own,
    /// small frames share one.
    pub fn poll_output(&mut self) -> Option<Bytes> {
        if let Some(body) = self.body.take() {
            return Some(body);
        }
        if let Some(greeting) = self.greeting.take() {
            if self.state == State::Refused {
                self.state = State::Finished;
            }
            return Some(greeting);
        }
        if self.state != State::Open {
            return None;
        }
        let mut out = BytesMut::new();
        while out.len() < CHUNK_LEN {
            let Some((header, body)) = self.next_frame() else {
                break;
            };
            self.queued_bytes = self.queued_bytes.saturating_sub(body.len());
            // Nearly always there is one frame: a chunk of just its size.
            let copied = if body.len() > COPY_MAX { 0 } else { body.len() };
            out.reserve(4 + HEADER_LEN + copied);
            out.put_i32(wire_length(HEADER_LEN + body.len()));
            header.write(&mut out);
            if body.len() > COPY_MAX {
                self.body = Some(body);
                break;
            }
            out.put_slice(&body);
        }
        if out.is_empty() {
            None
        } else {
            Some(out.freeze())
        }
    }

    /// Everything was given out that will ever be: close the socket after sending it.
    pub fn is_finished(&self) -> bool {
        self.state == State::Finished && self.body.is_none()
    }

    /// Whether [`request`](Self::request) would be refused for good.
    pub fn is_closing(&self) -> bool {
        self.close_after.is_some() || matches!(self.state, State::Refused | State::Finished)
    }

    /// Whether another request may be read.
    pub fn has_room(&self) -> bool {
        self.slots.len() < self.limits.max_slots
    }

    /// Requests whose reply has not gone out.
    pub fn in_flight(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of bodies and events that wait here. A caller that cannot write sees it grow with persistent watches,
    /// and closes the connection at a bound of its own.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Largest zxid that the client was shown.
    pub fn last_zxid(&self) -> i64 {
        self.last_zxid
    }

    /// Number of replies that an event goes behind.
    ///
    /// Normally that is up to the first reply that could reveal the change: one that is not filled (it may be
    /// filled with any later state) or one filled at the change or after it. A filled reply that set the event's
    /// watch before the change comes first even so: the client would drop the event otherwise, and a lost event is
    /// worse than an earlier, unrelated reply that already shows the change.
    fn place(&self, zxid: i64, path: &str) -> usize {
        let could_reveal = |slot: &Slot| match &slot.answer {
            None => true,
            Some(answer) => zxid > 0 && answer.zxid >= zxid,
        };
        let set_its_watch = |slot: &Slot| match &slot.answer {
            None => false,
            Some(answer) => (zxid <= 0 || answer.zxid < zxid) && slot.watches.cover(path),
        };
        let behind_watch = match self.filled_watches {
            0 => 0,
            _ => self
                .slots
                .iter()
                .rposition(set_its_watch)
                .map_or(0, |index| index + 1),
        };
        let before_reveal = self
            .slots
            .iter()
            .position(could_reveal)
            .unwrap_or(self.slots.len());
        behind_watch.max(before_reveal)
    }

    fn waiting(&mut self, slot: SlotId) -> Result<&mut Slot, ConnectionError> {
        let index = slot.0.checked_sub(self.first);
        index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.slots.get_mut(index))
            .filter(|slot| slot.answer.is_none())
            .ok_or(ConnectionError::NotWaiting)
    }

    fn next_frame(&mut self) -> Option<(ReplyHeader, Bytes)> {
        let Some(front) = self.slots.front_mut() else {
            return self.tail.pop_front().map(|event| self.notification(event));
        };
        if let Some(event) = front.events.pop_front() {
            return Some(self.notification(event));
        }
        let answer = front.answer.take()?;
        let slot_xid = front.xid;
        if front.watches != Watches::None {
            self.filled_watches = self.filled_watches.saturating_sub(1);
        }
        self.slots.pop_front();
        let is_last = self.close_after == Some(self.first);
        self.first += 1;
        if is_last {
            self.drop_queue();
            self.state = State::Finished;
        }
        let header = ReplyHeader {
            xid: slot_xid,
            zxid: self.shown(answer.zxid),
            err: answer.err,
        };
        Some((header, answer.body))
    }

    fn notification(&mut self, event: Event) -> (ReplyHeader, Bytes) {
        // -1 is how servers before 3.9 say nothing; 0 would be taken for a number by some clients.
        let zxid = if event.zxid > 0 {
            self.shown(event.zxid)
        } else {
            -1
        };
        (
            ReplyHeader {
                xid: xid::NOTIFICATION,
                zxid,
                err: 0,
            },
            event.body,
        )
    }

    fn shown(&mut self, zxid: i64) -> i64 {
        if zxid <= 0 {
            return zxid;
        }
        self.last_zxid = self.last_zxid.max(zxid);
        self.last_zxid
    }

    fn drop_queue(&mut self) {
        // Ids of dropped slots must stay unknown for good.
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.tail.clear();
        self.filled_watches = 0;
        self.queued_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
