//! The ZooKeeper port: one task for each connection.
//!
//! `socket.rs` moves bytes, `conn.rs` drives the reply slots of `causeway_wire::zk`, `handshake.rs` gives a
//! connection its session, and `local.rs` answers from the machine. Before the take-over `relay.rs` passes
//! everything on, and `observe.rs` tells the machine what the ensemble acknowledged. After it
//! `taken_over.rs` says which part of an operation is whose, `general.rs` asks the ensemble on the client's
//! own session, `answers.rs` and `union.rs` make the client's answer. `translate.rs` is the one place that
//! knows both wire records and the machine's commands.

mod answers;
mod chroot;
mod config_node;
mod conn;
mod four_letter;
mod general;
mod handshake;
mod local;
mod numbers;
mod observe;
mod relay;
mod socket;
mod taken_over;
mod translate;
mod union;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use causeway_engine::session::{ConnId, Origin};
use causeway_wire::zk::Stat;
use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use numbers::Numbers;

use crate::gateway::{Gateway, Over, stopped};
use crate::legacy::Legacy;

/// How long a connection may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Pause after an accept that failed: out of file descriptors, which does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Directories of both classes that are remembered.
const MAX_LAST_SEEN: usize = 10_000;

/// Ended sessions that are remembered; the ensemble forgets them within their timeout.
const MAX_ENDED: usize = 100_000;

/// Serves ZooKeeper clients until the gateway stops.
pub async fn serve(gateway: Arc<Gateway>, legacy: Arc<Legacy>, listener: TcpListener) {
    let mut stopping = gateway.stopping();
    let front = Arc::new(Front {
        gateway,
        legacy,
        peers: DashMap::new(),
        addresses: DashMap::new(),
        traffic: Traffic::default(),
        next_turn: Mutex::new(None),
        last_seen: DashMap::new(),
        numbers: Numbers::default(),
        ended: Mutex::default(),
    });
    let tasks = TaskTracker::new();
    tasks.spawn(front.clone().follow_ended());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stopping) => break,
        };
        match accepted {
            // ZooKeeper: a connection above the limit is closed without a word (NIOServerCnxnFactory).
            Ok((stream, address)) => {
                if let Some(admitted) = front.admit(address.ip()) {
                    tasks.spawn(connection(front.clone(), stream, address, admitted));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a ZooKeeper connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn connection(
    front: Arc<Front>,
    stream: TcpStream,
    address: SocketAddr,
    _admitted: Admitted,
) {
    let mut stopping = front.gateway.stopping();
    tokio::select! {
        () = conn::run(&front, stream, address) => {}
        () = stopped(&mut stopping) => {}
    }
}

/// What the connections of the port share.
struct Front {
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    /// Connections after their handshake.
    peers: DashMap<ConnId, Arc<Peer>>,
    /// Connections by address.
    addresses: DashMap<IpAddr, usize>,
    traffic: Traffic,
    /// When the next connection may be closed for the take-over.
    next_turn: Mutex<Option<Instant>>,
    /// Directories of both classes as last seen in the ensemble, for when it is away.
    last_seen: DashMap<String, (Vec<String>, Stat)>,
    /// How far clients had followed the ensemble.
    numbers: Numbers,
    /// Sessions of the ensemble that ended here: not to be taken from it again.
    ended: Mutex<VecDeque<i64>>,
}

impl Front {
    /// Notes a directory of both classes.
    fn remember(&self, path: &str, names: Vec<String>, stat: Stat) {
        if self.last_seen.len() < MAX_LAST_SEEN || self.last_seen.contains_key(path) {
            self.last_seen.insert(path.to_owned(), (names, stat));
        }
    }

    /// Follows the sessions that end.
    async fn follow_ended(self: Arc<Self>) {
        let mut over = self.gateway.over();
        let mut stopping = self.gateway.stopping();
        loop {
            let next = tokio::select! {
                next = over.recv() => next,
                () = stopped(&mut stopping) => return,
            };
            match next {
                Ok(Over::Session { session, .. }) => {
                    self.numbers.forget(session.id);
                    if session.origin == Origin::Own {
                        continue;
                    }
                    let mut ended = self.ended.lock();
                    if ended.len() == MAX_ENDED {
                        ended.pop_front();
                    }
                    ended.push_back(session.id);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// How long a connection that the take-over closes waits for its turn: all at once would come back all
    /// at once.
    fn turn(&self) -> Duration {
        let now = Instant::now();
        let each = Duration::from_secs(1) / self.gateway.config.reconnects_per_s.max(1);
        let mut next = self.next_turn.lock();
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + each);
        at - now
    }

    fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let limit = self.gateway.config.max_connections_per_address;
        let mut count = self.addresses.entry(address).or_insert(0);
        if limit > 0 && *count >= limit {
            return None;
        }
        *count += 1;
        Some(Admitted {
            front: self.clone(),
            address,
        })
    }
}

/// A connection's place among those of its address.
struct Admitted {
    front: Arc<Front>,
    address: IpAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(mut count) = self.front.addresses.get_mut(&self.address) {
            *count = count.saturating_sub(1);
        }
        self.front
            .addresses
            .remove_if(&self.address, |_, count| *count == 0);
    }
}

/// What administrators are told of a connection.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    session: i64,
    timeout_ms: u32,
    established_ms: i64,
    traffic: Traffic,
}

/// Counters of the port or of one connection.
#[derive(Debug, Default)]
struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
    last_zxid: AtomicI64,
}

impl Traffic {
    fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    fn sent(&self, zxid: i64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.last_zxid.fetch_max(zxid, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64, i64) {
        (
            self.received.load(Ordering::Relaxed),
            self.sent.load(Ordering::Relaxed),
            self.last_zxid.load(Ordering::Relaxed),
        )
    }
}
