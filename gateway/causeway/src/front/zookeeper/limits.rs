//! Bounds of the port, and how often each was met. Behaviour at a bound is ZooKeeper's: a connection too
//! many and a frame too large are closed without a word, requests too many are left unread.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::figures::Board;
use crate::config::Config;

/// Between two lines of the log about one bound: a flood must not flood the log too.
const LOG_EVERY_MS: i64 = 10_000;

/// The bounds.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) connections: Limit,
    pub(super) connections_per_address: Limit,
    pub(super) frame: Limit,
    pub(super) requests_per_connection: Limit,
    pub(super) outstanding_requests: Limit,
    pub(super) watches_per_connection: Limit,
}

impl Limits {
    pub(super) fn new(config: &Config) -> Self {
        Limits {
            connections: Limit::new("max_connections", config.max_connections),
            connections_per_address: Limit::new(
                "max_connections_per_address",
                config.max_connections_per_address,
            ),
            frame: Limit::new("max_frame", config.max_frame),
            requests_per_connection: Limit::new(
                "max_requests_per_connection",
                config.max_requests_per_connection,
            ),
            outstanding_requests: Limit::new(
                "max_outstanding_requests",
                config.max_outstanding_requests,
            ),
            watches_per_connection: Limit::new(
                "max_watches_per_connection",
                config.max_watches_per_connection,
            ),
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> [&Limit; 6] {
        [
            &self.connections,
            &self.connections_per_address,
            &self.frame,
            &self.requests_per_connection,
            &self.outstanding_requests,
            &self.watches_per_connection,
        ]
    }

    /// Forgets what was counted for ZooKeeper's words; [`Limit::hits`] goes on.
    pub(super) fn reset(&self) {
        for limit in self.all() {
            limit.reset.store(limit.hits(), Relaxed);
        }
    }
}

/// One bound.
#[derive(Debug)]
pub(super) struct Limit {
    /// Its key in the section `[zookeeper]`.
    pub(super) setting: &'static str,
    /// Its value; 0 for none where the setting allows that.
    pub(super) max: usize,
    hits: AtomicU64,
    reset: AtomicU64,
    logged: AtomicU64,
    logged_ms: AtomicI64,
}

impl Limit {
    fn new(setting: &'static str, max: usize) -> Self {
        Limit {
            setting,
            max,
            hits: AtomicU64::new(0),
            reset: AtomicU64::new(0),
            logged: AtomicU64::new(0),
            logged_ms: AtomicI64::new(i64::MIN),
        }
    }

    /// Whether one more would be too many.
    pub(super) fn is_reached(&self, count: usize) -> bool {
        self.max > 0 && count >= self.max
    }

    /// The bound was met. `who` is who met it.
    pub(super) fn hit(&self, now_ms: i64, who: &dyn Display, then: &str) {
        let hits = self.hits.fetch_add(1, Relaxed) + 1;
        let before = self.logged_ms.load(Relaxed);
        let due = before == i64::MIN || now_ms - before >= LOG_EVERY_MS;
        let mine = due
            && self
                .logged_ms
                .compare_exchange(before, now_ms, Relaxed, Relaxed)
                .is_ok();
        if mine {
            let new = hits.saturating_sub(self.logged.swap(hits, Relaxed));
            tracing::warn!(
                setting = format!("zookeeper.{}", self.setting),
                limit = self.max,
                peer = %who,
                times = new,
                "a limit of the ZooKeeper port was met: {then}"
            );
        }
    }

    /// How often it was met since the start.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    /// How often since the last `srst`.
    pub(super) fn hits_since_reset(&self) -> u64 {
        self.hits().saturating_sub(self.reset.load(Relaxed))
    }
}

/// A place among a counted number of things.
#[derive(Debug)]
pub(super) struct Counted {
    board: Arc<Board>,
}

impl Counted {
    /// One more connection, unless that is one too many (ZooKeeper: `maxCnxns`, counted before those of an
    /// address).
    pub(super) fn connection(board: &Arc<Board>) -> Option<Self> {
        let limit = &board.limits.connections;
        let took = board
            .open
            .fetch_update(Relaxed, Relaxed, |open| {
                (!limit.is_reached(open)).then_some(open + 1)
            })
            .is_ok();
        took.then(|| Counted {
            board: board.clone(),
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.board.open.fetch_sub(1, Relaxed);
    }
}

/// What one connection adds to the requests that wait for their answer.
///
/// ZooKeeper (`ZooKeeperServer.shouldThrottle`): while more wait than the port may have, a connection is not
/// read from until none of its own waits. So every connection goes on with one request at a time.
#[derive(Debug)]
pub(super) struct Waiting {
    board: Arc<Board>,
    told: usize,
    held: bool,
}

impl Waiting {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Waiting {
            board,
            told: 0,
            held: false,
        }
    }

    /// This many wait now. Told after each turn, so that what is answered at once never counts.
    pub(super) fn tell(&mut self, waiting: usize) {
        if waiting != self.told {
            let more = i64::try_from(waiting).unwrap_or(i64::MAX)
                - i64::try_from(self.told).unwrap_or(i64::MAX);
            self.board.outstanding.fetch_add(more, Relaxed);
            self.told = waiting;
        }
    }

    /// Whether the next request has to stay unread, for one bound or the other.
    pub(super) fn holds(&mut self, waiting: usize, now_ms: i64, who: &dyn Display) -> bool {
        let limits = &self.board.limits;
        let met = if limits.requests_per_connection.is_reached(waiting) {
            Some(&limits.requests_per_connection)
        } else {
            let all = usize::try_from(self.board.outstanding.load(Relaxed)).unwrap_or(0);
            let limit = &limits.outstanding_requests;
            (waiting > 0 && limit.max > 0 && all > limit.max).then_some(limit)
        };
        if let Some(limit) = met.filter(|_| !self.held) {
            limit.hit(
                now_ms,
                who,
                "requests are left unread until replies have gone out",
            );
        }
        self.held = met.is_some();
        self.held
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tell(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(change: impl FnOnce(&mut Config)) -> Arc<Board> {
        let mut config = crate::config::defaults();
        change(&mut config);
        Board::new(0, Limits::new(&config))
    }

    #[test]
    fn a_connection_too_many_gets_no_place() {
        let board = board(|c| c.max_connections = 2);
        let first = Counted::connection(&board).expect("room");
        let second = Counted::connection(&board).expect("room");
        assert!(Counted::connection(&board).is_none());
        drop(first);
        assert!(Counted::connection(&board).is_some());
        drop(second);
        assert_eq!(board.open.load(Relaxed), 0);
    }

    #[test]
    fn without_a_limit_there_is_room_for_all() {
        let board = board(|_| {});
        let all: Vec<_> = (0..1000).map(|_| Counted::connection(&board)).collect();
        assert!(all.iter().all(Option::is_some));
    }

    #[test]
    fn requests_of_all_hold_back_those_who_have_some() {
        let board = board(|c| c.max_outstanding_requests = 3);
        let mut busy = Waiting::new(board.clone());
        let mut idle = Waiting::new(board.clone());
        busy.tell(3);
        assert!(!busy.holds(3, 0, &"busy"), "at the limit");
        busy.tell(4);
        assert!(busy.holds(4, 0, &"busy"), "above it");
        assert!(busy.holds(4, 1, &"busy"));
        assert!(!idle.holds(0, 1, &"idle"), "one at a time goes on");
        assert_eq!(board.limits.outstanding_requests.hits(), 1, "counted once");
        busy.tell(1);
        assert!(!busy.holds(1, 2, &"busy"));
        drop(busy);
        assert_eq!(board.outstanding.load(Relaxed), 0);
    }

    #[test]
    fn one_connection_has_a_bound_of_its_own() {
        let board = board(|c| c.max_requests_per_connection = 2);
        let mut one = Waiting::new(board.clone());
        assert!(!one.holds(1, 0, &"one"));
        assert!(one.holds(2, 0, &"one"));
        assert!(!one.holds(0, 0, &"one"));
        assert!(one.holds(2, 0, &"one"));
        assert_eq!(board.limits.requests_per_connection.hits(), 2);
    }
}
