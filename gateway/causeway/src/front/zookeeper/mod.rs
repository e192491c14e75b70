//! The ZooKeeper port: one task for each connection, which stays on one of the port's threads (`crate::shards`).
//!
//! `socket.rs` moves bytes, `conn.rs` drives the reply slots of `causeway_wire::zk`, `handshake.rs` gives a
//! connection its session, and `local.rs` answers from the machine. Before the take-over `relay.rs` passes
//! everything on, and `observe.rs` tells the machine what the ensemble acknowledged. After it
//! `taken_over.rs` says which part of an operation is whose, `general.rs` asks the ensemble on the client's
//! own session, `answers.rs` and `union.rs` make the client's answer. `translate.rs` is the one place that
//! knows both wire records and the machine's commands.

mod answers;
mod chroot;
pub mod commands;
mod config_node;
mod conn;
mod create2;
mod figures;
mod four_letter;
mod general;
mod handshake;
mod limits;
mod listings;
mod local;
mod monitor;
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
use std::time::Duration;

use causeway_engine::session::Origin;
use causeway_wire::zk::Stat;
use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use figures::Board;
use limits::{Counted, Limits};
use listings::Listings;
use numbers::Numbers;

use crate::config::{Config, Ports};
use crate::gateway::{Gateway, Over, stopped};
use crate::legacy::Legacy;
use crate::shards::Shards;
use crate::tls::Port;

/// How long a connection may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Pause after an accept that failed: out of file descriptors, which does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Directories of both classes that are remembered.
const MAX_LAST_SEEN: usize = 10_000;

/// Ended sessions that are remembered; the ensemble forgets them within their timeout.
const MAX_ENDED: usize = 100_000;

/// The figures of a port that is about to serve.
pub fn board(config: &Config, now_ms: i64) -> Arc<Board> {
    Board::new(now_ms, Limits::new(config))
}

/// Serves ZooKeeper clients until the gateway stops: on the plain port, and on the one for TLS alone if
/// there is one.
pub async fn serve(
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    board: Arc<Board>,
    listener: TcpListener,
    secure: Option<TcpListener>,
) {
    let Ports { port, tls } = gateway.config.zookeeper_tls.clone();
    let numbers = Arc::new(Numbers::load(&gateway.config));
    let front = Arc::new(Front {
        gateway,
        legacy,
        board,
        addresses: DashMap::new(),
        listings: Mutex::default(),
        next_turn: Mutex::new(None),
        last_seen: DashMap::new(),
        changed: DashMap::new(),
        numbers,
        ended: Mutex::default(),
    });
    let shards = match Shards::start(&front.gateway, "zookeeper", Duration::ZERO) {
        Ok(shards) => Arc::new(shards),
        Err(error) => {
            tracing::error!(%error, "the ZooKeeper port cannot start its threads");
            return;
        }
    };
    let tasks = TaskTracker::new();
    tasks.spawn(front.clone().follow_ended());
    tasks.spawn(accept(front.clone(), shards.clone(), listener, port));
    if let (Some(secure), Some(tls)) = (secure, tls) {
        tasks.spawn(accept(front, shards.clone(), secure, Port::Tls(tls)));
    }
    tasks.close();
    tasks.wait().await;
    shards.ended().await;
}

async fn accept(front: Arc<Front>, shards: Arc<Shards>, listener: TcpListener, port: Port) {
    let mut stopping = front.gateway.stopping();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stopping) => return,
        };
        // ZooKeeper: a connection above a limit is closed without a word (NIOServerCnxnFactory).
        let served = accepted.and_then(|(stream, address)| match front.admit(address.ip()) {
            Some(admitted) => {
                let (front, port) = (front.clone(), port.clone());
                shards.serve(stream, async move |stream, _| {
                    conn::run(&front, stream, address, &port, admitted).await;
                })
            }
            None => Ok(()),
        });
        if let Err(error) = served {
            tracing::warn!(%error, "a ZooKeeper connection cannot be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// What the connections of the port share.
struct Front {
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    board: Arc<Board>,
    /// Connections by address.
    addresses: DashMap<IpAddr, usize>,
    /// Lists of children that were encoded already.
    listings: Mutex<Listings>,
    /// When the next connection may be closed for the take-over.
    next_turn: Mutex<Option<Instant>>,
    /// Directories of both classes as last seen in the ensemble, for when it is away.
    last_seen: DashMap<String, (Vec<String>, Stat)>,
    /// Of such directories the pzxid in the ensemble, and our number when it was first seen to be another.
    changed: DashMap<String, (i64, i64)>,
    /// How far clients had followed the ensemble.
    numbers: Arc<Numbers>,
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

    /// The pzxid of a directory of both classes, as far as the ensemble's part goes: as it is there until it changes, then
    /// the number of the reply that first shows it, so that it rises beside the view's.
    fn pzxid_of_both(&self, path: &str, theirs: i64, number: i64) -> i64 {
        if self.changed.len() >= MAX_LAST_SEEN && !self.changed.contains_key(path) {
            return theirs;
        }
        let mut known = self
            .changed
            .entry(path.to_owned())
            .or_insert((theirs, theirs));
        if known.0 != theirs {
            *known = (theirs, number);
        }
        known.1
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

    /// ZooKeeper: the connection ends without a reply (`NIOServerCnxn.readLength`).
    fn frame_too_large(&self, who: &SocketAddr) {
        let limit = &self.board.limits.frame;
        limit.hit(self.gateway.now_ms(), who, "the connection is closed");
    }

    fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let limits = &self.board.limits;
        let refuse = |limit: &limits::Limit| {
            limit.hit(self.gateway.now_ms(), &address, "the connection is closed");
        };
        let Some(place) = Counted::connection(&self.board) else {
            refuse(&limits.connections);
            return None;
        };
        let mut count = self.addresses.entry(address).or_insert(0);
        if limits.connections_per_address.is_reached(*count) {
            refuse(&limits.connections_per_address);
            return None;
        }
        *count += 1;
        Some(Admitted {
            front: self.clone(),
            address,
            _place: place,
        })
    }
}

/// A connection's place among those of its address.
struct Admitted {
    front: Arc<Front>,
    address: IpAddr,
    _place: Counted,
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
