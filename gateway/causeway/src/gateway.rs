//! The machine with a clock, a log and the connections around it.
//!
//! One lock guards the machine. It is held for the time of one command and the hand-over of its events
//! to the connections' queues, never across a wait: so events and replies reach each connection in the
//! order in which changes were applied. What a reply depends on may not be on disk yet; each item says
//! from which [`Position`] on it may leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use causeway_engine::core::{Command, Core, Effects, OwnerOver, Reply};
use causeway_engine::key_watch::StreamId;
use causeway_engine::phase::Step;
use causeway_engine::session::{self, ConnId, Session};
use causeway_engine::watch::WatcherId;
use causeway_registry::{Delta, LeaseId, StoreKind};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, watch};

use crate::config::Config;
use crate::journal::{Journal, JournalError, Position};
use crate::mailbox::{KeyNews, Mailboxes, News, TreeNews, Wakes};

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

/// The machine's lock while it is held, and whom to wake when it no longer is: in this order.
struct Machine<'g> {
    core: MutexGuard<'g, Core>,
    wakes: Wakes<'g>,
}

/// A gateway.
pub struct Gateway {
    /// Its configuration.
    pub config: Config,
    core: Mutex<Core>,
    clock: Clock,
    journal: Journal,
    mailboxes: Mailboxes<WatcherId, TreeNews>,
    key_mailboxes: Mailboxes<StreamId, KeyNews>,
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
            mailboxes: Mailboxes::default(),
            key_mailboxes: Mailboxes::default(),
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
        let mut machine = self.machine();
        let now_ms = self.clock.now_ms();
        let done = self.apply_locked(&mut machine, command, now_ms);
        then(&mut machine.core, done)
    }

    /// Applies a command if it is permitted by the machine as it is at that moment. One that is not is in no log.
    pub fn apply_if<E>(
        &self,
        command: Command,
        permitted: impl FnOnce(&mut Core, &Command, i64) -> Result<(), E>,
    ) -> Result<Done, E> {
        let mut machine = self.machine();
        let now_ms = self.clock.now_ms();
        permitted(&mut machine.core, &command, now_ms)?;
        Ok(self.apply_locked(&mut machine, command, now_ms))
    }

    fn machine(&self) -> Machine<'_> {
        Machine {
            core: self.core.lock(),
            wakes: Wakes::new(&self.journal),
        }
    }

    fn apply_locked(&self, machine: &mut Machine<'_>, command: Command, now_ms: i64) -> Done {
        let Machine { core, wakes } = machine;
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
        self.deliver(fx, after, wakes);
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
        let mut machine = self.machine();
        let now_ms = self.clock.now_ms();
        let step = judge(&machine.core, now_ms)?;
        let command = Command::Step(Box::new(step.clone()));
        let done = self.apply_locked(&mut machine, command, now_ms);
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

    fn deliver(&self, fx: Effects, after: Position, wakes: &mut Wakes<'_>) {
        self.mailboxes.post(fx.tree_events, after, wakes);
        self.key_mailboxes.post(fx.key_events, after, wakes);
        for conn in fx.close {
            self.mailboxes.close(WatcherId(conn.0), wakes);
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
        self.mailboxes
            .close(WatcherId(conn.0), &mut Wakes::new(&self.journal));
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
        let permitted = |_: &mut Core, _| Ok::<(), std::convert::Infallible>(());
        match self.renew_if(lease, permitted, |_, _, renewed| renewed) {
            Ok((renewed, _)) => renewed,
            Err(never) => match never {},
        }
    }

    /// An owner was heard, and what there is to see of it in that moment: `look` is given the revision before, in which
    /// the owner's return does not show yet. Nothing happens unless it is permitted by the machine as it is then.
    pub fn renew_if<R, E>(
        &self,
        lease: LeaseId,
        permitted: impl FnOnce(&mut Core, i64) -> Result<(), E>,
        look: impl FnOnce(&Core, i64, Result<(), OwnerOver>) -> R,
    ) -> Result<(R, Position), E> {
        let mut machine = self.machine();
        let now_ms = self.clock.now_ms();
        permitted(&mut machine.core, now_ms)?;
        let revision = machine.core.keys().revision();
        let renewed = machine.core.renew(lease, now_ms).map(|command| {
            if let Some(command) = command {
                self.apply_locked(&mut machine, command, now_ms);
            }
        });
        let seen = look(&machine.core, revision, renewed);
        Ok((seen, self.journal.last()))
    }

    /// A number for a new connection or watch stream; never given twice.
    pub fn next_connection(&self) -> u64 {
        self.next_conn.fetch_add(1, Ordering::Relaxed)
    }

    /// The queue of a ZooKeeper connection's news, the last of which asks it to close.
    pub fn tree_queue(&self, conn: ConnId) -> News<TreeNews> {
        self.mailboxes.open(WatcherId(conn.0))
    }

    /// The queue of a watch stream's news, the last of which says that the stream lags too far.
    pub fn key_queue(&self, stream: StreamId) -> News<KeyNews> {
        self.key_mailboxes.open(stream)
    }

    /// The connection has ended: forgets its queue and its watches.
    pub fn drop_connection(&self, conn: ConnId, session: Option<i64>) {
        self.mailboxes.forget(WatcherId(conn.0));
        let mut core = self.core.lock();
        core.drop_watcher(WatcherId(conn.0));
        if let Some(id) = session {
            core.detach(id, conn);
        }
    }

    /// The watch stream has ended.
    pub fn drop_stream(&self, stream: StreamId) {
        self.key_mailboxes.forget(stream);
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
                let mut machine = self.machine();
                for command in machine.core.poll_timers(now_ms) {
                    self.apply_locked(&mut machine, command, now_ms);
                }
                let core = &mut machine.core;
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
