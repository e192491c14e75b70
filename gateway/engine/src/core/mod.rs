//! The gateway's state and every change of it: one deterministic machine.
//!
//! [`Core::apply`] takes a [`Command`] and the time and gives [`Effects`]: the reply, the events for
//! watchers, and what the shell has to do. Commands are what the log holds; applying the same commands
//! at the same times gives the same state, so a restart is a snapshot and a replay. What is not in the
//! log (watches, connections, renewals, deadlines) is volatile and says so.
//!
//! Order of calls: [`Core::apply`] for each command; [`Core::poll_timers`] when
//! [`Core::next_timeout`] says, which *decides* and gives commands to log and apply; reads at any time.
//!
//! Inside: [`view`](self) writes to the two structures that clients see, `registrations` keeps what is
//! known of each registration beside them, `expiry` carries out verdicts, `legacy` follows the old
//! stores and says what they lack, `migration` moves the phase, `auth` says who may do what, `report` tells
//! operators.

mod auth;
mod expiry;
mod legacy;
mod migration;
mod registrations;
mod report;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use causeway_registry::{Delta, LeaseId, Node, NodeConfig, RecordBody, RecordKey, StoreKind};
use serde::{Deserialize, Serialize};

use crate::convert::Bridge;
use crate::key_auth::{AuthCommand, AuthError, AuthStore, Tokens};
use crate::key_space::{KeyCommand, KeyError, KeyReply, KeySpace, Release};
use crate::key_watch::{Delivery, KeyWatchTable};
use crate::layout::LayoutSet;
use crate::order::{Order, Scheme};
use crate::phase::{Acknowledges, Phase, PhaseState, Step};
use crate::protection::{self, Alarm, Protection};
use crate::route::Mode;
use crate::session::{ConnId, LegacySession, Session, Sessions};
use crate::watch::{Fired, WatchEvent, WatchTable, WatcherId};
use crate::znode_tree::{Acl, AuthId, Stat, TreeCommand, TreeError, TreeReply, ZnodeTree};

pub use legacy::{Wanted, WantedOwner};
pub use report::{Explained, ServiceRow, Unclaimed};

use registrations::Registration;

/// Name of the registry as a source of registrations.
const REGISTRY: &str = "registry";

/// How often protection is told the time when nothing is due: expected sizes rise by time alone, and
/// reports show them.
const TICK_MS: i64 = 2_000;

/// How often the past of the key space is looked at.
const TRIM_MS: i64 = 60_000;

/// How long deletions are remembered for watches that come back with a number of another gateway or store.
const HISTORY_MS: i64 = 24 * 3_600_000;

/// What the past may take.
const HISTORY_BYTES: u64 = 256 << 20;

/// How a protocol's keys are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// No legacy store: everything is Causeway's.
    Embedded,
    /// A legacy store stands behind.
    Legacy,
}

/// What the machine is told once; the same on each start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// ZooKeeper's side.
    pub zookeeper: Store,
    /// etcd's side.
    pub etcd: Store,
    /// Layouts in force.
    pub layouts: LayoutSet,
    /// Bridges in force.
    pub bridges: Vec<Bridge>,
    /// The protection rule.
    pub protection: protection::Settings,
    /// Phase of a fresh state.
    pub phase: Phase,
    /// How long gates have to be clean, in milliseconds.
    pub gate_time_ms: i64,
    /// How long a registration may differ between L and N, in milliseconds.
    pub tolerated_difference_ms: i64,
}

impl Settings {
    fn store(&self, kind: StoreKind) -> Store {
        match kind {
            StoreKind::Zookeeper => self.zookeeper,
            StoreKind::Etcd => self.etcd,
            StoreKind::Native => Store::Embedded,
        }
    }

    fn has_legacy(&self) -> bool {
        self.zookeeper == Store::Legacy || self.etcd == Store::Legacy
    }
}

/// A record of a legacy store, as its feed or a relayed write shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacyEntry {
    /// Raw key or path.
    pub key: Bytes,
    /// Raw value; `None` is a znode with null data.
    pub value: Option<Bytes>,
    /// Session or lease that owns it in L; 0 for none.
    pub owner: i64,
    /// Its mzxid or mod revision.
    pub mark: i64,
    /// What else L tells of it.
    pub meta: LegacyMeta,
}

impl LegacyEntry {
    /// Whether both tell of the same write. A store that came back older may give a mark twice.
    fn is_same(&self, other: &LegacyEntry) -> bool {
        let value = |e: &LegacyEntry| e.value.clone().unwrap_or_default();
        (self.mark, self.owner) == (other.mark, other.owner) && value(self) == value(other)
    }
}

/// What a legacy store tells of a record beside key, value and owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LegacyMeta {
    /// ZooKeeper's.
    Znode {
        /// As the ensemble shows it.
        stat: Stat,
        /// As far as known.
        acl: Vec<Acl>,
    },
    /// etcd's.
    Pair {
        /// Create revision there.
        create_revision: i64,
        /// Version there.
        version: i64,
    },
}

/// What happened in a legacy store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LegacyEvent {
    /// A whole new snapshot begins.
    SnapshotStart,
    /// An entry is there.
    Put(LegacyEntry),
    /// An entry is gone.
    Delete {
        /// Raw key or path.
        key: Bytes,
        /// zxid or revision at or after the removal.
        mark: i64,
    },
    /// The snapshot is whole.
    SnapshotDone {
        /// zxid or revision of the snapshot.
        mark: i64,
    },
    /// Changes may have been missed.
    Lost {
        /// Why.
        reason: String,
    },
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A client opened a session. Id and password come from the shell: nothing random happens here.
    OpenSession {
        /// New id.
        id: i64,
        /// Its password.
        password: [u8; 16],
        /// Negotiated timeout in milliseconds.
        timeout_ms: u32,
    },
    /// A session that the legacy ensemble gave out becomes known (relayed, or adopted later).
    AdoptSession {
        /// The ensemble's id.
        id: i64,
        /// The ensemble's password.
        password: [u8; 16],
        /// The ensemble's timeout in milliseconds.
        timeout_ms: u32,
    },
    /// A client came back and negotiated another timeout.
    SetTimeout {
        /// Session.
        id: i64,
        /// Negotiated timeout in milliseconds.
        timeout_ms: u32,
    },
    /// The client closed its session, or the legacy ensemble acknowledged its close.
    CloseSession {
        /// Session.
        id: i64,
    },
    /// The legacy ensemble said that a session expired which lives by its word: a relayed one, or one that
    /// is bound to it.
    LegacySessionGone {
        /// Session.
        id: i64,
    },
    /// The session behind a client's session in the legacy ensemble.
    LegacySession {
        /// Client's session.
        id: i64,
        /// The one behind, or none any more.
        legacy: Option<LegacySession>,
    },
    /// The session holds a general ephemeral in the legacy store from now on.
    Bound {
        /// Session.
        id: i64,
    },
    /// A client's write to the tree.
    Tree {
        /// Address of the client.
        peer: String,
        /// Session that writes.
        session: i64,
        /// The write.
        op: TreeCommand,
    },
    /// A client's write to the key space (grant and revoke of leases too).
    Keys {
        /// Address of the client.
        peer: String,
        /// The write.
        op: KeyCommand,
    },
    /// A write to the tree that the legacy store has acknowledged first.
    TreeAcknowledged {
        /// Address of the client.
        peer: String,
        /// Session that writes.
        session: i64,
        /// The write; a sequential name is already given.
        op: TreeCommand,
        /// zxid of the ensemble.
        mark: i64,
    },
    /// A write to the key space that the legacy store has acknowledged first.
    KeysAcknowledged {
        /// Address of the client.
        peer: String,
        /// The write.
        op: KeyCommand,
        /// Revision of the legacy store.
        mark: i64,
    },
    /// A lease of the legacy etcd becomes known.
    AdoptLease {
        /// Its id.
        id: i64,
        /// Granted seconds.
        ttl_s: i64,
    },
    /// The lease holds general keys in the legacy store from now on, or no longer: that store has ended it.
    BoundLease {
        /// Its id; one that is not known cannot be bound.
        id: i64,
        /// Whether it is bound.
        bound: bool,
    },
    /// Owners were not heard from for half their timeout.
    Silent(Vec<LeaseId>),
    /// Owners were not heard from for their whole timeout: judge.
    Expired(Vec<LeaseId>),
    /// An owner was heard from again.
    Returned(LeaseId),
    /// Time passed for protection.
    Tick,
    /// Containers and TTL nodes are due.
    Reap,
    /// Something happened in a legacy store.
    Legacy {
        /// Which.
        store: StoreKind,
        /// What.
        event: LegacyEvent,
    },
    /// A session or lease of the gateway's own in a legacy store: what it owns is never imported.
    OwnOwner {
        /// Which store.
        store: StoreKind,
        /// Id there.
        owner: i64,
    },
    /// A removal in L of a living owner's entry is taken over.
    TakeRemoval(RecordKey),
    /// A phase step that was judged.
    Step(Box<Step>),
    /// A native client's lease.
    OpenLease {
        /// Id, from the shell.
        id: LeaseId,
        /// Timeout in milliseconds.
        ttl_ms: u64,
    },
    /// A native client ended its lease.
    CloseLease(LeaseId),
    /// A native client registers.
    Register {
        /// Registration.
        key: RecordKey,
        /// Content.
        body: Box<RecordBody>,
        /// Owner.
        lease: Option<LeaseId>,
    },
    /// A native client deregisters.
    Deregister(RecordKey),
    /// Something for protection alone: an operator's order, the end of one.
    Protection(protection::Input),
    /// The process started on a recovered state.
    Started {
        /// Wall milliseconds.
        incarnation: u64,
    },
    /// A change of etcd's users and roles. It holds hashes of passwords, and no password.
    Auth(AuthCommand),
}

/// What the client is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing to say.
    None,
    /// To a write to the tree; with the header's zxid.
    Tree(Result<TreeReply, TreeError>),
    /// To a write to the key space; with the header's revision.
    Keys(Result<KeyReply, KeyError>),
    /// Protection does not let the removal pass.
    Refused {
        /// Service that would lose too much.
        service: String,
    },
    /// To a native registration.
    Registered(Result<causeway_registry::Stamp, causeway_registry::RegisterError>),
    /// To a native deregistration: whether there was anything.
    Deregistered(bool),
    /// An operator's order was not accepted.
    OrderRefused(String),
    /// To a change of users and roles; with the header's revision.
    Auth(Result<(), AuthError>),
}

/// Events for one watch of the etcd protocol.
#[derive(Debug, Clone)]
pub struct KeyDispatch {
    /// Revision of all of them; with [`Delivery::batch`] and [`Delivery::prev_kv`] it is the key under
    /// which their encoding can be shared.
    pub revision: i64,
    /// Whom to tell what.
    pub delivery: Delivery,
}

/// What a command brings about, in the order in which it is to be delivered: events first.
#[derive(Debug, Default)]
pub struct Effects {
    /// The reply.
    pub reply: Option<Reply>,
    /// Number for the reply's header (zxid or revision).
    pub number: i64,
    /// Events for ZooKeeper watches.
    pub tree_events: Vec<Fired>,
    /// Events for etcd watches.
    pub key_events: Vec<KeyDispatch>,
    /// Connections whose session is over or was taken by another.
    pub close: Vec<ConnId>,
    /// Sessions that are over: what stands behind them in L can be let go.
    pub over: Vec<Session>,
    /// Leases that are over.
    pub leases_over: Vec<i64>,
    /// Sessions that their clients closed: so is what stands behind them in L.
    pub closed: Vec<Session>,
    /// Leases that their clients revoked: so are they in L.
    pub revoked: Vec<i64>,
    /// Alarms and notices.
    pub alarms: Vec<Alarm>,
    /// Changes for the registry's own subscribers.
    pub deltas: Vec<Delta>,
    /// Stores to be asked for a whole new snapshot.
    pub resync: Vec<StoreKind>,
    /// For the log: what could not be done, and why.
    pub notices: Vec<String>,
    /// Whether there is work toward a legacy store.
    pub converge: bool,
}

/// State that the log rebuilds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    phase: PhaseState,
    zxid: Order,
    revision: Order,
    tree: ZnodeTree,
    keys: KeySpace,
    sessions: Sessions,
    node: Node,
    protection: Protection,
    registrations: BTreeMap<RecordKey, Registration>,
    /// Sessions and leases of the gateway's own in L.
    own_owners: BTreeSet<(StoreKind, i64)>,
    /// Sessions and leases in L that stood behind clients' which are over, and since when: what they still
    /// own there is nobody's life.
    ended: BTreeMap<(StoreKind, i64), i64>,
    /// The latest orders of operators to protection, for the audit.
    orders: VecDeque<Alarm>,
    /// Stores that gave a whole snapshot at least once.
    imported: BTreeSet<StoreKind>,
    /// Until when even owners' removals are held, by service; "" is all of them.
    explicit_holds: BTreeMap<String, i64>,
    /// Leases of which L lost a key before the take-over, as [`Session::lost`].
    lost_leases: BTreeSet<i64>,
    /// Leases that hold general keys in L.
    bound_leases: BTreeSet<i64>,
    /// Services of a protocol without a legacy store, which are protected before the take-over too.
    enforced: BTreeSet<String>,
    /// In the state, since a log may begin in the middle of a snapshot of L.
    feeds: BTreeMap<StoreKind, Feed>,
    /// etcd's users and roles.
    auth: AuthStore,
}

/// What is known of a legacy store's feed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Feed {
    whole: bool,
    /// Keys seen in the snapshot under way.
    seen: Option<BTreeSet<Bytes>>,
    trouble: Option<String>,
    frozen: bool,
    /// The highest mark that L was seen to give.
    highest: i64,
    /// Mark of the last whole snapshot: marks above it are of the same life of the store.
    listed_at: i64,
    /// The highest mark when a snapshot of a lower one came: either that was listed before, or the store
    /// came back older than it was. The next snapshot tells, since it is asked for after the doubt.
    doubt: Option<i64>,
    /// Entries of the snapshot under way whose marks are too low to be news.
    rejected: Vec<LegacyEntry>,
}

/// The machine.
pub struct Core {
    settings: Settings,
    st: State,
    /// Registrations of each instance, by service and identity.
    instances: BTreeMap<(String, String), BTreeSet<RecordKey>>,
    tree_watches: WatchTable,
    key_watches: KeyWatchTable,
    auth: BTreeMap<WatcherId, Vec<AuthId>>,
    /// Tokens of etcd's users. Volatile.
    tokens: Tokens,
    /// Of the settings, shared, since showing one instance may lead to showing another.
    bridges: std::sync::Arc<[Bridge]>,
    /// Projections of each bridged registration.
    projections: BTreeMap<RecordKey, BTreeSet<RecordKey>>,
    /// Removed registrations that L does not show, by the time of their removal.
    fading: BTreeSet<(i64, RecordKey)>,
    dirty: BTreeSet<RecordKey>,
    /// Registrations whose owner in L was found gone: that L lacks them is no removal. Volatile.
    excused: BTreeSet<RecordKey>,
    /// Removals in L about whose owner L was asked since. Volatile.
    asked: BTreeSet<RecordKey>,
    /// What differs between L and N.
    differing: migration::Differing,
    /// When the past of the key space was last trimmed.
    trimmed_at_ms: i64,
    /// When protection was last told the time.
    ticked_at_ms: i64,
    /// When everything that gates look at was last not clean; a restart begins anew.
    unclean_at_ms: i64,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("phase", &self.st.phase.phase())
            .finish_non_exhaustive()
    }
}

/// Why a snapshot of the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the snapshot in the data folder cannot be read: {0}")]
pub struct RestoreError(String);

/// Making, saving, restoring.
impl Core {
    /// A fresh machine. `member` and `now_ms` make its records and numbers unique.
    pub fn new(settings: Settings, member: u16, now_ms: i64) -> Self {
        let phase = PhaseState::new(settings.phase, settings.has_legacy(), now_ms);
        let numbers = |store: Store| match (store, phase.taken_over()) {
            (Store::Embedded, _) if !settings.has_legacy() => Order::new(Scheme::Lone, now_ms),
            (Store::Embedded, _) | (Store::Legacy, true) => Order::new(ticks(member), now_ms),
            (Store::Legacy, false) => Order::borrowed(),
        };
        let (zxid, revision) = (numbers(settings.zookeeper), numbers(settings.etcd));
        let incarnation = u64::try_from(now_ms).unwrap_or(1);
        let st = State {
            tree: ZnodeTree::new(),
            keys: KeySpace::new(revision.last().max(1)),
            zxid,
            revision,
            sessions: Sessions::default(),
            node: Node::new(NodeConfig::new(member, incarnation)),
            protection: Protection::new(settings.protection.clone()),
            registrations: BTreeMap::new(),
            own_owners: BTreeSet::new(),
            ended: BTreeMap::new(),
            orders: VecDeque::new(),
            imported: BTreeSet::new(),
            explicit_holds: BTreeMap::new(),
            lost_leases: BTreeSet::new(),
            bound_leases: BTreeSet::new(),
            enforced: BTreeSet::new(),
            feeds: BTreeMap::new(),
            auth: AuthStore::default(),
            phase,
        };
        let mut core = Core::around(settings, st);
        core.unclean_at_ms = now_ms;
        core.report_only(now_ms);
        core
    }

    /// The machine of a snapshot. Replay the log after it, then apply [`Command::Started`].
    pub fn restore(settings: Settings, snapshot: &[u8]) -> Result<Self, RestoreError> {
        let st = postcard::from_bytes(snapshot).map_err(|e| RestoreError(e.to_string()))?;
        Ok(Core::around(settings, st))
    }

    /// The state as [`Core::restore`] takes it.
    pub fn snapshot(&self) -> Result<Vec<u8>, RestoreError> {
        postcard::to_stdvec(&self.st).map_err(|e| RestoreError(e.to_string()))
    }

    fn around(settings: Settings, mut st: State) -> Self {
        st.feeds.retain(|s, _| settings.store(*s) == Store::Legacy);
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            if settings.store(store) == Store::Legacy {
                st.feeds.entry(store).or_default();
            }
        }
        let bridges = settings.bridges.clone().into();
        let mut core = Core {
            settings,
            st,
            bridges,
            instances: BTreeMap::new(),
            tree_watches: WatchTable::new(),
            key_watches: KeyWatchTable::new(),
            auth: BTreeMap::new(),
            tokens: Tokens::default(),
            projections: BTreeMap::new(),
            fading: BTreeSet::new(),
            dirty: BTreeSet::new(),
            excused: BTreeSet::new(),
            asked: BTreeSet::new(),
            differing: migration::Differing::new(),
            trimmed_at_ms: 0,
            ticked_at_ms: 0,
            unclean_at_ms: 0,
        };
        core.rebuild_indexes();
        core
    }
}

fn ticks(member: u16) -> Scheme {
    Scheme::Ticks {
        slot: u8::try_from(member & 15).unwrap_or(0),
    }
}

/// Inputs.
impl Core {
    /// Applies one command.
    pub fn apply(&mut self, command: &Command, now_ms: i64) -> Effects {
        let mut fx = Effects::default();
        match command {
            Command::OpenSession {
                id,
                password,
                timeout_ms,
            } => {
                self.open_session(*id, *password, *timeout_ms, now_ms);
            }
            Command::AdoptSession {
                id,
                password,
                timeout_ms,
            } => {
                self.adopt_session(*id, *password, *timeout_ms, now_ms, &mut fx);
            }
            Command::SetTimeout { id, timeout_ms } => {
                self.set_timeout(*id, *timeout_ms, now_ms, &mut fx)
            }
            Command::CloseSession { id } => self.close_session(*id, now_ms, &mut fx),
            Command::LegacySessionGone { id } => self.legacy_session_gone(*id, now_ms, &mut fx),
            Command::LegacySession { id, legacy } => self.set_legacy_session(*id, legacy.clone()),
            Command::Bound { id } => self.st.sessions.set_bound(*id),
            Command::Tree { peer, session, op } => {
                self.write_tree(peer, *session, op, None, now_ms, &mut fx)
            }
            Command::TreeAcknowledged {
                peer,
                session,
                op,
                mark,
            } => {
                self.write_tree(peer, *session, op, Some(*mark), now_ms, &mut fx);
            }
            Command::Keys { peer, op } => self.write_keys(peer, op, None, now_ms, &mut fx),
            Command::KeysAcknowledged { peer, op, mark } => {
                self.write_keys(peer, op, Some(*mark), now_ms, &mut fx);
            }
            Command::AdoptLease { id, ttl_s } => self.adopt_lease(*id, *ttl_s, now_ms, &mut fx),
            Command::BoundLease { id, bound } => {
                if !bound {
                    self.st.bound_leases.remove(id);
                } else if self.st.keys.lease(*id).is_some() {
                    self.st.bound_leases.insert(*id);
                }
            }
            Command::Silent(leases) => self.silent(leases, now_ms, &mut fx),
            Command::Expired(leases) => self.expired(leases, now_ms, &mut fx),
            Command::Returned(lease) => self.returned(*lease, now_ms, &mut fx),
            Command::Tick => {
                let outputs = self.st.protection.handle(protection::Input::Tick, now_ms);
                self.carry_out(outputs, now_ms, &mut fx);
            }
            Command::Reap => self.reap(now_ms, &mut fx),
            Command::Legacy { store, event } => self.legacy_event(*store, event, now_ms, &mut fx),
            Command::OwnOwner { store, owner } => {
                self.st.own_owners.insert((*store, *owner));
            }
            Command::TakeRemoval(key) => self.take_removal(key, now_ms, &mut fx),
            Command::Step(step) => self.take_step(step, now_ms, &mut fx),
            Command::OpenLease { id, ttl_ms } => self.st.node.open_lease(*id, *ttl_ms, ms(now_ms)),
            Command::CloseLease(id) => self.close_native_lease(*id, now_ms, &mut fx),
            Command::Register { key, body, lease } => {
                self.register_native(key, body, *lease, now_ms, &mut fx);
            }
            Command::Deregister(key) => self.deregister_native(key, now_ms, &mut fx),
            Command::Protection(input) => self.order(input.clone(), now_ms, &mut fx),
            Command::Started { incarnation } => self.started(*incarnation, now_ms, &mut fx),
            Command::Auth(command) => self.change_auth(command, &mut fx),
        }
        for id in fx.leases_over.iter().chain(&fx.revoked) {
            self.st.bound_leases.remove(id);
        }
        self.fade(now_ms);
        self.drain_node(&mut fx);
        fx.converge = !self.dirty.is_empty();
        fx
    }

    /// Lets time pass: says which owners fell silent or expired and what else is due, as commands to be
    /// logged and applied. Nothing that a client sees changes here.
    pub fn poll_timers(&mut self, now_ms: i64) -> Vec<Command> {
        self.st.node.handle_timeout(ms(now_ms));
        let (mut silent, mut expired) = (Vec::new(), Vec::new());
        while let Some(output) = self.st.node.poll_output() {
            match output {
                causeway_registry::Output::LeaseSilent(id) => silent.push(id),
                causeway_registry::Output::LeaseExpired(id) => expired.push(id),
                // Time alone neither changes what a record says nor brings an owner back.
                causeway_registry::Output::LeaseReturned(_)
                | causeway_registry::Output::Delta(_) => {}
            }
        }
        let mut out = Vec::new();
        if !silent.is_empty() {
            out.push(Command::Silent(silent));
        }
        if !expired.is_empty() {
            out.push(Command::Expired(expired));
        }
        let due = self
            .st
            .protection
            .next_timeout()
            .is_some_and(|at| at <= now_ms);
        if due || now_ms - self.ticked_at_ms >= TICK_MS {
            self.ticked_at_ms = now_ms;
            out.push(Command::Tick);
        }
        if now_ms - self.trimmed_at_ms >= TRIM_MS {
            self.trimmed_at_ms = now_ms;
            // Without a legacy store the past is the client's to compact, as in etcd, but for its size.
            let keep_ms = if self.mode(StoreKind::Etcd) == Mode::Embedded {
                i64::MAX
            } else {
                HISTORY_MS
            };
            if self.st.keys.history_bytes() > HISTORY_BYTES || keep_ms < i64::MAX {
                let op = KeyCommand::TrimHistory {
                    keep_ms,
                    keep_bytes: HISTORY_BYTES,
                };
                out.push(Command::Keys {
                    peer: String::new(),
                    op,
                });
            }
        }
        // L reaps its own containers while it acknowledges.
        let reaps = match self.mode(StoreKind::Zookeeper) {
            Mode::Embedded => true,
            Mode::Relay => false,
            Mode::TakenOver => self.st.phase.phase().acknowledges() == Acknowledges::New,
        };
        if reaps && !self.st.tree.due_for_reap(now_ms).is_empty() {
            out.push(Command::Reap);
        }
        out
    }

    /// A frame or keep-alive of an owner. Renewals are not logged; a command comes back when the owner
    /// had fallen silent, and `Err` when it is over.
    pub fn renew(&mut self, lease: LeaseId, now_ms: i64) -> Result<Option<Command>, OwnerOver> {
        let renewed = self.st.node.renew(lease, ms(now_ms));
        if !renewed.known {
            return Err(OwnerOver);
        }
        let fell = renewed.was != causeway_registry::LeaseState::Live;
        Ok(fell.then_some(Command::Returned(lease)))
    }

    fn drain_node(&mut self, fx: &mut Effects) {
        while let Some(output) = self.st.node.poll_output() {
            if let causeway_registry::Output::Delta(delta) = output {
                fx.deltas.push(delta);
            }
        }
    }
}

/// The owner is over: its client has to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session or lease is over")]
pub struct OwnerOver;

/// Connections and watches: volatile.
impl Core {
    /// A client speaks for a session from now on. The session's lease is renewed.
    pub fn attach(
        &mut self,
        id: i64,
        password: &[u8],
        timeout_ms: u32,
        connection: ConnId,
    ) -> Result<crate::session::Resumed, crate::session::ResumeError> {
        self.st
            .sessions
            .attach(id, password, timeout_ms, connection)
    }

    /// The connection ended.
    pub fn detach(&mut self, id: i64, connection: ConnId) {
        self.st.sessions.detach(id, connection);
        self.drop_watcher(WatcherId(connection.0));
    }

    /// Forgets a connection's watches and identities.
    pub fn drop_watcher(&mut self, watcher: WatcherId) {
        self.tree_watches.remove_watcher(watcher);
        self.auth.remove(&watcher);
    }

    /// The identities of a connection, for filtering its events.
    pub fn set_auth(&mut self, watcher: WatcherId, auth: Vec<AuthId>) {
        self.auth.insert(watcher, auth);
    }

    /// ZooKeeper watches.
    pub fn tree_watches(&mut self) -> &mut WatchTable {
        &mut self.tree_watches
    }

    /// setWatches of a client that came back (ZooKeeper: `DataTree.setWatches`).
    #[allow(clippy::too_many_arguments)] // The protocol's five lists.
    pub fn set_watches(
        &mut self,
        watcher: WatcherId,
        relative_zxid: i64,
        data: &[String],
        exist: &[String],
        child: &[String],
        persistent: &[String],
        recursive: &[String],
    ) -> Vec<WatchEvent> {
        // Before the first own number only a client of L has numbers, and the usual rule holds for them.
        let foreign = relative_zxid > self.st.zxid.mark() && !self.st.zxid.is_own(relative_zxid);
        self.tree_watches.set_watches(
            &self.st.tree,
            watcher,
            relative_zxid,
            data,
            exist,
            child,
            persistent,
            recursive,
            foreign,
        )
    }

    /// etcd watches, with the space they look at.
    pub fn key_watches(&mut self) -> (&mut KeyWatchTable, &KeySpace) {
        (&mut self.key_watches, &self.st.keys)
    }
}

/// Reads.
impl Core {
    /// The tree that ZooKeeper clients see.
    pub fn tree(&self) -> &ZnodeTree {
        &self.st.tree
    }

    /// The key space that etcd clients see.
    pub fn keys(&self) -> &KeySpace {
        &self.st.keys
    }

    /// The release of etcd that clients are shown from now on: refusals and what reads leave out follow it. It is
    /// in no log, since no state depends on it.
    pub fn show_release(&mut self, release: Release) {
        self.st.keys.set_release(release);
    }

    /// Leases that hold general keys in L, and live as it says.
    pub fn bound_leases(&self) -> &BTreeSet<i64> {
        &self.st.bound_leases
    }

    /// Sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.st.sessions
    }

    /// The new registry.
    pub fn node(&self) -> &Node {
        &self.st.node
    }

    /// Protection's state.
    pub fn protection(&self) -> &Protection {
        &self.st.protection
    }

    /// The latest orders of operators to protection, oldest first.
    pub fn orders(&self) -> impl Iterator<Item = &Alarm> {
        self.st.orders.iter()
    }

    /// The phase and its history.
    pub fn phase(&self) -> &PhaseState {
        &self.st.phase
    }

    /// Layouts in force.
    pub fn layouts(&self) -> &LayoutSet {
        &self.settings.layouts
    }

    /// A zxid for a reply that shows a change of another store and none here. It is in no log: after a restart numbers
    /// go on above the clock, and with it above this one.
    pub fn fresh_zxid(&mut self, now_ms: i64) -> i64 {
        self.st.zxid.next(now_ms)
    }

    /// Last zxid given out.
    pub fn last_zxid(&self) -> i64 {
        self.st.zxid.last()
    }

    /// Zxids above it were given out here; others are foreign.
    pub fn zxid_mark(&self) -> i64 {
        self.st.zxid.mark()
    }

    /// The revision of headers.
    pub fn last_revision(&self) -> i64 {
        self.st.revision.last()
    }

    /// Revisions above it were given out here; others are foreign.
    pub fn revision_mark(&self) -> i64 {
        self.st.revision.mark()
    }

    /// How a protocol is served now.
    pub fn mode(&self, store: StoreKind) -> Mode {
        match (self.settings.store(store), self.st.phase.taken_over()) {
            (Store::Embedded, _) => Mode::Embedded,
            (Store::Legacy, false) => Mode::Relay,
            (Store::Legacy, true) => Mode::TakenOver,
        }
    }

    /// Milliseconds until an owner runs out.
    pub fn ttl_left(&self, lease: LeaseId, now_ms: i64) -> Option<u64> {
        self.st.node.ttl_left(lease, ms(now_ms))
    }

    /// When [`Core::poll_timers`] is wanted next, in milliseconds.
    pub fn next_timeout(&self) -> Option<i64> {
        let node = self
            .st
            .node
            .next_timeout()
            .and_then(|t| i64::try_from(t).ok());
        [node, self.st.protection.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The registry counts in unsigned milliseconds.
fn ms(now_ms: i64) -> u64 {
    u64::try_from(now_ms).unwrap_or(0)
}
