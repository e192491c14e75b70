//! The machine with a clock, a log and the connections around it.
//!
//! One lock guards the machine. It is held for the time of one command and the hand-over of its events
//! to the connections' queues, never across a wait: so events and replies reach each connection in the
//! order in which changes were applied. What a reply depends on may not be on disk yet; each item says
//! from which [`Position`] on it may leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use causeway_engine::core::{Command, Core, Effects, KeyDispatch, OwnerOver, Reply};
use causeway_engine::key_watch::StreamId;
use causeway_engine::phase::Step;
use causeway_engine::session::{self, ConnId, Session};
use causeway_engine::watch::{WatchEvent, WatcherId};
use causeway_registry::{Delta, LeaseId, StoreKind};
use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, watch};

use crate::config::Config;
use crate::journal::{Journal, JournalError, Position};

/// Events a connection may have waiting; one that falls further behind is closed, and resumes by its
/// protocol's own means.
const QUEUE: usize = 65_536;

/// Entries in the log after which a snapshot replaces them.
const SNAPSHOT_EVERY: u64 = 50_000;

/// Wall time that never goes back: the wall clock at the start plus what has passed since.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    wall_ms: i64,
}

impl Clock {
    /// A clock that begins now.
    #[allow(clippy::disallowed_methods)] // The process's one clock.
    pub fn start() -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock {
            started: Instant::now(),
            wall_ms: i64::try_from(wall.as_millis()).unwrap_or(0),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        self.wall_ms + i64::try_from(self.started.elapsed().as_millis()).unwrap_or(0)
    }
}

/// Something for a ZooKeeper connection that it did not ask for.
#[derive(Debug, Clone)]
pub enum TreeNews {
    /// A watch fired. To be sent before any reply that is handed over later.
    Event {
        /// The event.
        event: WatchEvent,
        /// May leave from here on.
        after: Position,
    },
    /// The session is over or was taken by another connection: close.
    Close,
}

/// Something for a watch stream of the etcd protocol.
#[derive(Debug, Clone)]
pub struct KeyNews {
    /// The events.
    pub dispatch: KeyDispatch,
    /// May leave from here on.
    pub after: Position,
}

/// Wakes everybody who waits, and those who were busy as soon as they wait again.
#[derive(Debug, Default)]
pub struct Wake(watch::Sender<()>);

impl Wake {
    /// There is something to do.
    pub fn notify_one(&self) {
        self.0.send_replace(());
    }

    /// To wait on, with `changed`.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

/// What became of a command.
#[derive(Debug)]
pub struct Done {
    /// The reply.
    pub reply: Reply,
    /// Number for the reply's header.
    pub number: i64,
    /// The reply may leave from here on: [`Gateway::durable`].
    pub after: Position,
}

/// An owner that is over, for those who keep something behind it in a legacy store.
#[derive(Debug, Clone)]
pub enum Over {
    /// A ZooKeeper session. `closed` tells a client's own close from an expiry: only the first is passed on.
    Session {
        /// The session.
        session: Box<Session>,
        /// The client closed it.
        closed: bool,
    },
    /// An etcd lease.
    Lease {
        /// Its id.
        id: i64,
        /// The client revoked it.
        revoked: bool,
    },
}

/// A gateway.
pub struct Gateway {
    /// Its configuration.
    pub config: Config,
    core: Mutex<Core>,
    clock: Clock,
    journal: Journal,
    tree_queues: DashMap<WatcherId, mpsc::Sender<TreeNews>>,
    key_queues: DashMap<StreamId, mpsc::Sender<KeyNews>>,
    deltas: broadcast::Sender<Arc<Delta>>,
    over: broadcast::Sender<Over>,
    resync: broadcast::Sender<StoreKind>,
    /// Told when there is work toward a legacy store.
    pub converge: Wake,
    next_conn: AtomicU64,
    last_session: AtomicI64,
    session_key: [u8; 32],
    stopping: watch::Sender<bool>,
    /// Told after each phase step.
    stepped: watch::Sender<u64>,
    recent_alarms: Mutex<std::collections::VecDeque<causeway_engine::protection::Alarm>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// Puts the parts together.
    pub fn new(
        config: Config,
        core: Core,
        clock: Clock,
        journal: Journal,
        session_key: [u8; 32],
    ) -> Arc<Self> {
        let epoch = core.phase().epoch();
        let now = clock.now_ms();
        Arc::new(Gateway {
            config,
            core: Mutex::new(core),
            journal,
            tree_queues: DashMap::new(),
            key_queues: DashMap::new(),
            deltas: broadcast::channel(4096).0,
            over: broadcast::channel(65_536).0,
            resync: broadcast::channel(16).0,
            converge: Wake::default(),
            next_conn: AtomicU64::new(1),
            last_session: AtomicI64::new(session::session_id(now, 0)),
            session_key,
            stopping: watch::channel(false).0,
            stepped: watch::channel(epoch).0,
            recent_alarms: Mutex::default(),
            clock,
        })
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Applies a command, logs it, and hands its events to the connections.
    pub fn apply(&self, command: Command) -> Done {
        self.apply_and(command, |_, done| done)
    }

    /// Applies a command and looks at the machine before anything else can change it: for what has to be
    /// set up in the same moment, such as queuing the reply behind the events.
    pub fn apply_and<R>(&self, command: Command, then: impl FnOnce(&mut Core, Done) -> R) -> R {
        let mut core = self.core.lock();
        let now_ms = self.clock.now_ms();
        let done = self.apply_locked(&mut core, command, now_ms);
        then(&mut core, done)
    }

    fn apply_locked(&self, core: &mut Core, command: Command, now_ms: i64) -> Done {
        let mut fx = core.apply(&command, now_ms);
        let after = if self.journal.is_durable() {
            match postcard::to_stdvec(&(now_ms, &command)) {
                Ok(entry) => self.journal.append(entry),
                Err(error) => {
                    tracing::error!(%error, "a command cannot be encoded for the log");
                    self.journal.last()
                }
            }
        } else {
            0
        };
        let done = Done {
            reply: fx.reply.take().unwrap_or(Reply::None),
            number: fx.number,
            after,
        };
        self.deliver(fx, after);
        if matches!(command, Command::Step(_)) {
            self.stepped.send_replace(core.phase().epoch());
        }
        if self.journal.since_snapshot() > SNAPSHOT_EVERY {
            self.snapshot_locked(core);
        }
        done
    }

    /// Judges a phase step and takes it in the same moment, so that no other step comes between.
    pub fn step<E>(
        &self,
        judge: impl FnOnce(&Core, i64) -> Result<Step, E>,
    ) -> Result<(Step, Done), E> {
        let mut core = self.core.lock();
        let now_ms = self.clock.now_ms();
        let step = judge(&core, now_ms)?;
        let done = self.apply_locked(&mut core, Command::Step(Box::new(step.clone())), now_ms);
        Ok((step, done))
    }

    fn snapshot_locked(&self, core: &Core) {
        match core.snapshot() {
            Ok(state) => self.journal.snapshot(state),
            Err(error) => tracing::error!(%error, "the state cannot be encoded for a snapshot"),
        }
    }

    /// Writes a snapshot of the state, so that the next start has nothing to replay.
    pub fn snapshot(&self) {
        if self.journal.is_durable() {
            let core = self.core.lock();
            self.snapshot_locked(&core);
        }
    }

    fn deliver(&self, fx: Effects, after: Position) {
        for (watcher, event) in fx.tree_events {
            let full = match self.tree_queues.get(&watcher) {
                Some(queue) => queue.try_send(TreeNews::Event { event, after }).is_err(),
                None => false,
            };
            if full {
                // Dropping the queue closes the connection: it lags, and costs only itself.
                self.tree_queues.remove(&watcher);
            }
        }
        for dispatch in fx.key_events {
            let stream = dispatch.delivery.stream;
            let full = match self.key_queues.get(&stream) {
                Some(queue) => queue.try_send(KeyNews { dispatch, after }).is_err(),
                None => false,
            };
            if full {
                self.key_queues.remove(&stream);
            }
        }
        for conn in fx.close {
            self.close_connection(conn);
        }
        let tell = |over| {
            let _ = self.over.send(over);
        };
        for (sessions, closed) in [(fx.over, false), (fx.closed, true)] {
            for session in sessions {
                tell(Over::Session {
                    session: Box::new(session),
                    closed,
                });
            }
        }
        for (leases, revoked) in [(fx.leases_over, false), (fx.revoked, true)] {
            for id in leases {
                tell(Over::Lease { id, revoked });
            }
        }
        for alarm in fx.alarms {
            tracing::warn!(
                kind = ?alarm.kind,
                service = alarm.service.as_deref().unwrap_or("-"),
                expected = alarm.expected,
                live = alarm.live,
                held = alarm.held.len(),
                report_only = alarm.report_only,
                note = %alarm.note,
                "protection alarm"
            );
            let mut recent = self.recent_alarms.lock();
            if recent.len() == 256 {
                recent.pop_front();
            }
            recent.push_back(alarm);
        }
        for notice in fx.notices {
            tracing::warn!("{notice}");
        }
        for delta in fx.deltas {
            let _ = self.deltas.send(Arc::new(delta));
        }
        for store in fx.resync {
            let _ = self.resync.send(store);
        }
        if fx.converge {
            self.converge.notify_one();
        }
    }

    /// Asks a ZooKeeper connection to close.
    pub fn close_connection(&self, conn: ConnId) {
        if let Some((_, queue)) = self.tree_queues.remove(&WatcherId(conn.0)) {
            let _ = queue.try_send(TreeNews::Close);
        }
    }

    /// Looks at the machine, or sets up something volatile in it (a watch, an attach). The position is what
    /// an answer that saw the present depends on.
    pub fn with<R>(&self, look: impl FnOnce(&mut Core) -> R) -> (R, Position) {
        let mut core = self.core.lock();
        let seen = look(&mut core);
        (seen, self.journal.last())
    }

    /// Waits until a position is on disk.
    pub async fn durable(&self, position: Position) -> Result<(), JournalError> {
        self.journal.wait(position).await
    }

    /// Whether a position is on disk already.
    pub fn is_durable(&self, position: Position) -> Result<bool, JournalError> {
        self.journal.check(position)
    }

    /// An owner was heard.
    pub fn renew(&self, lease: LeaseId) -> Result<(), OwnerOver> {
        let mut core = self.core.lock();
        let now_ms = self.clock.now_ms();
        if let Some(command) = core.renew(lease, now_ms)? {
            self.apply_locked(&mut core, command, now_ms);
        }
        Ok(())
    }

    /// A number for a new connection or watch stream; never given twice.
    pub fn next_connection(&self) -> u64 {
        self.next_conn.fetch_add(1, Ordering::Relaxed)
    }

    /// The queue of a ZooKeeper connection's news. Ends when the connection has to close.
    pub fn tree_queue(&self, conn: ConnId) -> mpsc::Receiver<TreeNews> {
        let (tx, rx) = mpsc::channel(QUEUE);
        self.tree_queues.insert(WatcherId(conn.0), tx);
        rx
    }

    /// The queue of a watch stream's news. Ends when the stream lags too far.
    pub fn key_queue(&self, stream: StreamId) -> mpsc::Receiver<KeyNews> {
        let (tx, rx) = mpsc::channel(QUEUE);
        self.key_queues.insert(stream, tx);
        rx
    }

    /// The connection has ended: forgets its queue and its watches.
    pub fn drop_connection(&self, conn: ConnId, session: Option<i64>) {
        self.tree_queues.remove(&WatcherId(conn.0));
        let mut core = self.core.lock();
        core.drop_watcher(WatcherId(conn.0));
        if let Some(id) = session {
            core.detach(id, conn);
        }
    }

    /// The watch stream has ended.
    pub fn drop_stream(&self, stream: StreamId) {
        self.key_queues.remove(&stream);
        self.core.lock().key_watches().0.remove_stream(stream);
    }

    /// Id and password of a new session.
    pub fn new_session(&self) -> (i64, [u8; 16]) {
        let fresh = session::session_id(self.clock.now_ms(), 0);
        let id = self
            .last_session
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
                Some(fresh.max(last + 1))
            })
            .map_or(fresh, |last| fresh.max(last + 1));
        (id, self.password(id))
    }

    /// A keyed hash of the id, so that whoever has the key can check it.
    fn password(&self, id: i64) -> [u8; 16] {
        use hmac::{Hmac, Mac};
        let mut out = [0; 16];
        if let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(&self.session_key) {
            mac.update(&id.to_be_bytes());
            let hash = mac.finalize().into_bytes();
            for (to, from) in out.iter_mut().zip(hash.iter()) {
                *to = *from;
            }
        }
        out
    }

    /// Owners that end, for those who keep something behind them.
    pub fn over(&self) -> broadcast::Receiver<Over> {
        self.over.subscribe()
    }

    /// Changes of the registry.
    pub fn deltas(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.deltas.subscribe()
    }

    /// Stores that have to be listed anew.
    pub fn resyncs(&self) -> broadcast::Receiver<StoreKind> {
        self.resync.subscribe()
    }

    /// The last alarms, oldest first.
    pub fn recent_alarms(&self) -> Vec<causeway_engine::protection::Alarm> {
        self.recent_alarms.lock().iter().cloned().collect()
    }

    /// The epoch, changing with each step.
    pub fn steps(&self) -> watch::Receiver<u64> {
        self.stepped.subscribe()
    }

    /// Turns true when the gateway stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Begins to stop: no new connections; what is under way is finished. Sessions and leases live on.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Lets time pass, for as long as the gateway runs: expiry, protection, gates.
    #[allow(clippy::disallowed_methods)] // tokio's timer, beside the one clock.
    pub async fn run_timers(self: Arc<Self>) {
        let mut stopping = self.stopping();
        let mut reviewed_ms = 0;
        loop {
            let now_ms = self.clock.now_ms();
            let next = {
                let mut core = self.core.lock();
                for command in core.poll_timers(now_ms) {
                    self.apply_locked(&mut core, command, now_ms);
                }
                if now_ms - reviewed_ms >= 1000 {
                    core.review(now_ms);
                    reviewed_ms = now_ms;
                }
                core.next_timeout().unwrap_or(now_ms + 1000)
            };
            let wait = u64::try_from((next - self.clock.now_ms()).clamp(10, 500)).unwrap_or(500);
            tokio::select! {
                () = tokio::time::sleep(std::time::Duration::from_millis(wait)) => {}
                () = stopped(&mut stopping) => return,
            }
        }
    }
}

/// Waits until the gateway stops. (The guard that `wait_for` gives may not be held across a wait.)
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|s| *s).await;
}
