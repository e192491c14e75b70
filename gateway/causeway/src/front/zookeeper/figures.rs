//! What administrators are told of the port and of each connection.
//!
//! A connection's figures are written by its own task alone and read by whoever asks, so that counting a
//! request takes no locked instruction and touches no memory that another connection writes. The port's
//! are the sum of those that live and of what the ended ones left behind.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use causeway_engine::session::ConnId;
use causeway_wire::zk::OpCode;
use dashmap::DashMap;
use parking_lot::Mutex;

use super::limits::Limits;

/// ZooKeeper's mask of what is traced when nobody set one (`ZooTrace`). Kept and shown; nothing here is
/// traced by it.
const TRACE_MASK: i64 = 0x132;

/// What most clients send for a start.
const HANDSHAKE_LEN: usize = 45;

/// The figures of the port: shared by its connections, the four-letter words and the admin port.
#[derive(Debug)]
pub struct Board {
    /// Connections after their handshake.
    pub(super) peers: DashMap<ConnId, Arc<Peer>>,
    /// Connections of any kind.
    pub(super) open: AtomicUsize,
    /// What is bounded, and how often a bound was met.
    pub(super) limits: Limits,
    /// Requests that wait for their answer, as the connections last told.
    pub(super) outstanding: AtomicI64,
    pub(super) trace_mask: AtomicI64,
    pub(super) started_ms: i64,
    /// Handshakes that asked for a session.
    pub(super) handshakes: AtomicU64,
    /// Connections that came with a session.
    pub(super) revalidations: AtomicU64,
    /// Handshakes that were answered *expired*.
    pub(super) stale: AtomicU64,
    /// Connections that never said who they are.
    pub(super) silent: AtomicU64,
    /// Connections of sessions that ended.
    pub(super) ended: AtomicU64,
    pub(super) auth_failures: AtomicU64,
    /// Sizes of replies in bytes.
    replies: Extremes,
    /// Over all connections; each keeps its own sums.
    pub(super) reads: Extremes,
    pub(super) updates: Extremes,
    /// What the ended connections counted.
    left: Mutex<Sums>,
    /// What had been counted when the figures were last reset.
    reset: Mutex<Sums>,
}

impl Board {
    pub(super) fn new(now_ms: i64, limits: Limits) -> Arc<Self> {
        Arc::new(Board {
            peers: DashMap::new(),
            open: AtomicUsize::new(0),
            limits,
            outstanding: AtomicI64::new(0),
            trace_mask: AtomicI64::new(TRACE_MASK),
            started_ms: now_ms,
            handshakes: AtomicU64::new(0),
            revalidations: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            auth_failures: AtomicU64::new(0),
            replies: Extremes::default(),
            reads: Extremes::default(),
            updates: Extremes::default(),
            left: Mutex::default(),
            reset: Mutex::default(),
        })
    }

    /// A connection has a session.
    pub(super) fn joined(&self, conn: ConnId, peer: Arc<Peer>) {
        self.peers.insert(conn, peer);
    }

    /// It has ended.
    pub(super) fn parted(&self, conn: ConnId) {
        if let Some((_, peer)) = self.peers.remove(&conn) {
            self.ended.fetch_add(1, Relaxed);
            let mut left = self.left.lock();
            *left = left.plus(&peer.figures.sums());
        }
    }

    /// A packet outside any session came in (ZooKeeper counts four-letter words and handshakes too).
    pub(super) fn received_one(&self) {
        self.left.lock().received += 1;
    }

    /// A packet outside any session went out.
    pub(super) fn sent_one(&self) {
        self.left.lock().sent += 1;
    }

    /// Since the last reset.
    pub(super) fn sums(&self) -> Sums {
        self.all().minus(&self.reset.lock())
    }

    /// Sizes of replies in bytes: last, smallest, largest; -1 while there is none (ZooKeeper: `BufferStats`).
    pub(super) fn reply_sizes(&self) -> [i64; 3] {
        let largest = self.replies.max();
        if largest == 0 {
            return [-1; 3];
        }
        let newest = self
            .peers
            .iter()
            .map(|peer| {
                let last = &peer.figures.last;
                let size = peer.figures.last_size.get();
                (last.response_ms.load(Relaxed), size)
            })
            .max();
        let last = newest.map_or(largest, |(_, size)| size);
        [last, self.replies.min(), largest].map(|size| i64::try_from(size).unwrap_or(i64::MAX))
    }

    /// Requests that are not answered yet.
    pub(super) fn outstanding(&self) -> u64 {
        self.peers.iter().map(|p| p.figures.outstanding()).sum()
    }

    /// ZooKeeper: `ServerStats.reset`.
    pub(super) fn reset(&self) {
        *self.reset.lock() = self.all();
        self.reads.reset();
        self.updates.reset();
        self.replies.reset();
        let counters = [
            &self.handshakes,
            &self.revalidations,
            &self.stale,
            &self.silent,
            &self.ended,
        ];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        self.limits.reset();
    }

    fn all(&self) -> Sums {
        let left = self.left.lock().clone();
        self.peers
            .iter()
            .fold(left, |sum, peer| sum.plus(&peer.figures.sums()))
    }
}

/// A connection that has a session.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) session: i64,
    pub(super) timeout_ms: u32,
    pub(super) established_ms: i64,
    pub(super) figures: Figures,
}

/// The figures of one connection. Only its own task writes them, apart from a reset.
#[derive(Debug, Default)]
pub(super) struct Figures {
    requests: Own,
    replies: Own,
    events: Own,
    bytes_in: Own,
    bytes_out: Own,
    reads: Own,
    reads_ms: Own,
    updates: Own,
    updates_ms: Own,
    last_size: Own,
    extremes: Extremes,
    last: Last,
    reset: Mutex<Sums>,
}

impl Figures {
    /// A request was read.
    pub(super) fn asked(&self, bytes: usize) {
        self.requests.add(1);
        self.bytes_in.add(bytes as u64 + 4);
    }

    /// The handshake is done. ZooKeeper: a new session is a request of its own (`createSession`, number 0), one
    /// that goes on is none.
    pub(super) fn greeted(
        &self,
        board: &Board,
        is_new: bool,
        zxid: i64,
        began_ms: i64,
        now_ms: i64,
    ) {
        self.asked(HANDSHAKE_LEN);
        if is_new {
            let request = Asked {
                xid: 0,
                op: OpCode::CreateSession as i32,
                at_ms: began_ms,
            };
            self.answered(board, &request, zxid, now_ms);
        } else {
            self.replies.add(1);
        }
    }

    /// An event goes out.
    pub(super) fn told(&self) {
        self.events.add(1);
    }

    /// Bytes go out.
    pub(super) fn wrote(&self, bytes: usize) {
        self.bytes_out.add(bytes as u64);
    }

    /// A reply of this many bytes is ready.
    pub(super) fn sized(&self, board: &Board, bytes: usize) {
        self.last_size.set(bytes as u64);
        board.replies.take(bytes as u64);
    }

    /// A reply goes out. ZooKeeper: `ServerCnxn.updateStatsForResponse`, `ServerStats.updateLatency`.
    pub(super) fn answered(&self, board: &Board, request: &Asked, zxid: i64, now_ms: i64) {
        self.replies.add(1);
        // ZooKeeper answers these before they become requests (`ZooKeeperServer.processPacket`).
        if [OpCode::Auth, OpCode::Sasl]
            .iter()
            .any(|op| *op as i32 == request.op)
        {
            return;
        }
        let latency = u64::try_from(now_ms - request.at_ms).unwrap_or(0);
        if is_update(request.op) {
            self.updates.add(1);
            self.updates_ms.add(latency);
            board.updates.take(latency);
        } else {
            self.reads.add(1);
            self.reads_ms.add(latency);
            board.reads.take(latency);
        }
        self.extremes.take(latency);
        let last = &self.last;
        // The numbers of pings and the like say nothing about the client's last real request.
        if request.xid >= 0 {
            last.cxid.store(i64::from(request.xid), Relaxed);
        }
        last.op.store(request.op, Relaxed);
        last.zxid.store(zxid, Relaxed);
        last.response_ms.store(now_ms, Relaxed);
        last.latency.store(latency, Relaxed);
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.requests.get().saturating_sub(self.replies.get())
    }

    /// Since the last reset of the connection's figures.
    pub(super) fn shown(&self) -> Shown {
        let sums = self.sums().minus(&self.reset.lock());
        let last = &self.last;
        Shown {
            last_op: last.op.load(Relaxed),
            last_cxid: last.cxid.load(Relaxed),
            last_zxid: last.zxid.load(Relaxed),
            last_response_ms: last.response_ms.load(Relaxed),
            last_latency: last.latency.load(Relaxed),
            min_latency: self.extremes.min(),
            max_latency: self.extremes.max(),
            sums,
        }
    }

    /// ZooKeeper: `ServerCnxn.resetStats`.
    pub(super) fn reset(&self) {
        *self.reset.lock() = self.sums();
        self.extremes.reset();
        self.last.reset();
    }

    fn sums(&self) -> Sums {
        Sums {
            received: self.requests.get(),
            sent: self.replies.get() + self.events.get(),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
            reads: self.reads.get(),
            reads_ms: self.reads_ms.get(),
            updates: self.updates.get(),
            updates_ms: self.updates_ms.get(),
        }
    }
}

/// A request that waits for its turn to leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) xid: i32,
    pub(super) op: i32,
    /// When it was read.
    pub(super) at_ms: i64,
}

/// Requests in the order in which their replies leave.
#[derive(Debug, Default)]
pub(super) struct InTurn(VecDeque<Asked>);

impl InTurn {
    /// A request was read.
    pub(super) fn push(&mut self, request: Asked) {
        self.0.push_back(request);
    }

    /// All but `waiting` of them have been answered and handed to the socket.
    pub(super) fn left(&mut self, waiting: usize) -> impl Iterator<Item = Asked> + '_ {
        let gone = self.0.len().saturating_sub(waiting);
        self.0.drain(..gone)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What one connection shows.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) sums: Sums,
    pub(super) last_op: i32,
    /// Negative before the first request.
    pub(super) last_cxid: i64,
    pub(super) last_zxid: i64,
    pub(super) last_response_ms: i64,
    pub(super) last_latency: u64,
    pub(super) min_latency: u64,
    pub(super) max_latency: u64,
}

impl Shown {
    /// In whole milliseconds (ZooKeeper: `ServerCnxn.getAvgLatency`).
    pub(super) fn mean_latency(&self) -> u64 {
        let count = self.sums.reads + self.sums.updates;
        (self.sums.reads_ms + self.sums.updates_ms)
            .checked_div(count)
            .unwrap_or(0)
    }
}

/// What only grows.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) reads: u64,
    pub(super) reads_ms: u64,
    pub(super) updates: u64,
    pub(super) updates_ms: u64,
}

impl Sums {
    fn plus(&self, other: &Sums) -> Sums {
        self.with(other, |a, b| a + b)
    }

    fn minus(&self, other: &Sums) -> Sums {
        self.with(other, u64::saturating_sub)
    }

    fn with(&self, other: &Sums, f: impl Fn(u64, u64) -> u64) -> Sums {
        Sums {
            received: f(self.received, other.received),
            sent: f(self.sent, other.sent),
            bytes_in: f(self.bytes_in, other.bytes_in),
            bytes_out: f(self.bytes_out, other.bytes_out),
            reads: f(self.reads, other.reads),
            reads_ms: f(self.reads_ms, other.reads_ms),
            updates: f(self.updates, other.updates),
            updates_ms: f(self.updates_ms, other.updates_ms),
        }
    }
}

/// A counter with one writer.
#[derive(Debug, Default)]
struct Own(AtomicU64);

impl Own {
    fn add(&self, more: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Smallest and largest value so far. Written only when a value lies outside.
#[derive(Debug)]
pub(super) struct Extremes {
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Extremes {
    fn default() -> Self {
        Extremes {
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }
}

impl Extremes {
    pub(super) fn take(&self, value: u64) {
        if value < self.min.load(Relaxed) {
            self.min.fetch_min(value, Relaxed);
        }
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
    }

    /// 0 while there is none, as ZooKeeper shows it (`AvgMinMaxCounter.getMin`).
    pub(super) fn min(&self) -> u64 {
        Some(self.min.load(Relaxed))
            .filter(|min| *min != u64::MAX)
            .unwrap_or(0)
    }

    pub(super) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    fn reset(&self) {
        self.min.store(u64::MAX, Relaxed);
        self.max.store(0, Relaxed);
    }
}

/// The last reply of a connection.
#[derive(Debug)]
struct Last {
    op: AtomicI32,
    cxid: AtomicI64,
    zxid: AtomicI64,
    response_ms: AtomicI64,
    latency: AtomicU64,
}

/// No operation yet: shown as `NA`.
pub(super) const NO_OP: i32 = i32::MIN;

impl Default for Last {
    fn default() -> Self {
        Last {
            op: AtomicI32::new(NO_OP),
            cxid: AtomicI64::new(-1),
            zxid: AtomicI64::new(-1),
            response_ms: AtomicI64::new(0),
            latency: AtomicU64::new(0),
        }
    }
}

impl Last {
    fn reset(&self) {
        self.op.store(NO_OP, Relaxed);
        self.cxid.store(-1, Relaxed);
        self.zxid.store(-1, Relaxed);
        self.response_ms.store(0, Relaxed);
        self.latency.store(0, Relaxed);
    }
}

/// ZooKeeper counts the latency of requests that went through the log apart (`ServerStats.updateLatency`).
fn is_update(op: i32) -> bool {
    use OpCode::*;
    let update = [
        Create,
        Create2,
        CreateContainer,
        CreateTtl,
        Delete,
        DeleteContainer,
        SetData,
        SetAcl,
        Multi,
        Reconfig,
        CreateSession,
        CloseSession,
    ];
    update.iter().any(|code| *code as i32 == op)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Arc<Board> {
        Board::new(0, Limits::new(&crate::config::defaults()))
    }

    fn peer() -> Arc<Peer> {
        Arc::new(Peer {
            address: ([127, 0, 0, 1], 5).into(),
            session: 7,
            timeout_ms: 4000,
            established_ms: 0,
            figures: Figures::default(),
        })
    }

    fn ask(board: &Board, peer: &Peer, xid: i32, op: OpCode, took_ms: i64) {
        peer.figures.asked(10);
        let request = Asked {
            xid,
            op: op as i32,
            at_ms: 100,
        };
        peer.figures.answered(board, &request, 9, 100 + took_ms);
    }

    #[test]
    fn a_connection_that_ends_leaves_its_sums() {
        let (board, peer) = (board(), peer());
        board.joined(ConnId(1), peer.clone());
        ask(&board, &peer, 1, OpCode::GetData, 3);
        ask(&board, &peer, 2, OpCode::Create, 5);
        peer.figures.asked(10);
        peer.figures.told();
        assert_eq!(board.outstanding(), 1);
        for parted in [false, true] {
            if parted {
                board.parted(ConnId(1));
            }
            let sums = board.sums();
            let seen = (sums.received, sums.sent, sums.bytes_in);
            assert_eq!(seen, (3, 3, 42), "parted: {parted}");
            let latency = (sums.reads, sums.reads_ms, sums.updates, sums.updates_ms);
            assert_eq!(latency, (1, 3, 1, 5), "parted: {parted}");
        }
        assert_eq!((board.reads.min(), board.updates.max()), (3, 5));
        assert_eq!(board.reply_sizes(), [-1; 3]);
        for bytes in [40, 90, 60] {
            peer.figures.sized(&board, bytes);
        }
        assert_eq!(board.reply_sizes()[1..], [40, 90]);
        assert_eq!(board.outstanding(), 0);
    }

    #[test]
    fn resets_of_the_port_and_of_a_connection_are_two_things() {
        let (board, peer) = (board(), peer());
        board.joined(ConnId(1), peer.clone());
        ask(&board, &peer, 4, OpCode::SetData, 2);
        ask(&board, &peer, -2, OpCode::Ping, 0);
        let shown = peer.figures.shown();
        assert_eq!((shown.last_cxid, shown.last_op), (4, OpCode::Ping as i32));
        assert_eq!((shown.min_latency, shown.max_latency), (0, 2));
        board.reset();
        assert_eq!((board.sums().received, board.updates.max()), (0, 0));
        assert_eq!(peer.figures.shown().sums.received, 2);
        peer.figures.reset();
        let shown = peer.figures.shown();
        assert_eq!((shown.sums.received, shown.last_op), (0, NO_OP));
        assert_eq!((shown.last_cxid, shown.max_latency), (-1, 0));
        ask(&board, &peer, 5, OpCode::GetData, 1);
        assert_eq!(board.sums().received, 1);
        assert_eq!(peer.figures.shown().sums.received, 1);
    }

    #[test]
    fn replies_leave_in_turn() {
        let mut turn = InTurn::default();
        for xid in 1..=3 {
            turn.push(Asked {
                xid,
                op: 1,
                at_ms: 0,
            });
        }
        let left: Vec<i32> = turn.left(1).map(|a| a.xid).collect();
        assert_eq!((left, turn.len()), (vec![1, 2], 1));
        assert_eq!(turn.left(1).count(), 0);
    }
}
