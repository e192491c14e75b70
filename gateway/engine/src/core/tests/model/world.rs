//! The machine, the legacy store, the clients, and what may happen to them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use causeway_registry::{LeaseId, RecordKey, StoreKind};

use super::Rng;
use super::checks::Mirror;
use super::store::{Expect, Store as Legacy};
use crate::converge::{Action, LegacyOwner};
use crate::core::legacy::WantedOwner;
use crate::core::{Command, Core, Effects, LegacyEvent, Reply, Store};
use crate::key_space::{KeyCommand, KeyReply};
use crate::phase::{Acknowledges, Census, Move, Phase};
use crate::route::Mode;
use crate::session::LegacySession;
use crate::znode_tree::{Acl, CreateMode, TreeCommand, perms};

/// Clients that go through the gateway.
const CLIENTS: usize = 10;

/// Clients that go to L directly.
const DIRECT: usize = 4;

/// Clients of an embedded ZooKeeper beside a legacy etcd.
const GUESTS: usize = 3;

/// The gateway's own lease in L.
pub(super) const OWN: i64 = 777;

/// With a bridge from the services of ZooKeeper to names in etcd.
fn settings(zookeeper: Store, etcd: Store, phase: Phase) -> crate::core::Settings {
    let mut settings = super::super::settings(zookeeper, etcd, phase);
    let config = crate::convert::BridgeConfig {
        from: "spring-zk".into(),
        to: "grpc-endpoints".into(),
        rename: [("billing".to_owned(), "orders-of-billing".to_owned())].into(),
        accept_loss: [crate::convert::Loss::Metadata, crate::convert::Loss::Scheme].into(),
        ..crate::convert::BridgeConfig::default()
    };
    settings.bridges =
        crate::convert::Bridge::load(&[config], &settings.layouts).expect("the bridge loads");
    settings
}

pub(super) struct Client {
    /// Session or lease as the client knows it.
    pub(super) owner: Option<i64>,
    /// It sends frames.
    pub(super) alive: bool,
    /// What was acknowledged and not removed since.
    pub(super) wants: Option<Bytes>,
    /// Somebody removed it in L; whether that was taken over is protection's to say.
    pub(super) disputed: bool,
    /// Shares its address with another client: two registrations of one instance.
    pub(super) address: usize,
}

pub(super) struct Direct {
    pub(super) owner: i64,
    pub(super) alive: bool,
    pub(super) wants: Option<Bytes>,
}

pub(super) struct World {
    pub(super) kind: StoreKind,
    pub(super) seed: u64,
    pub(super) step_no: usize,
    pub(super) core: Core,
    pub(super) legacy: Legacy,
    pub(super) now: i64,
    pub(super) clients: Vec<Client>,
    pub(super) direct: Vec<Direct>,
    /// Sessions of the embedded ZooKeeper, each with an instance.
    pub(super) guests: Vec<(Option<i64>, bool)>,
    /// Keys whose owner removed them.
    pub(super) gone: BTreeSet<Bytes>,
    /// Sessions and leases to be let go in L.
    closing: Vec<i64>,
    /// What the converger last learnt of owners in L.
    believed: BTreeMap<i64, LegacyOwner>,
    rng: Rng,
    next_id: i64,
    value_no: u64,
    base: Vec<u8>,
    log: Vec<(i64, Command)>,
    mirror: Mirror,
    numbers: (i64, i64),
    faults: bool,
    /// No step is left to chance.
    calm: bool,
    /// Outcomes of attempts are not known.
    pub(super) blind: bool,
    /// What runs, for a failure's text.
    pub(super) label: String,
    verbose: bool,
}

impl World {
    /// Random from a seed.
    pub(super) fn new(kind: StoreKind, seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x1234_5677) ^ 0xabcd);
        let phase = Phase::ALL[rng.below(5)];
        World::begin(kind, seed, phase, rng)
    }

    /// Without a fault of its own.
    pub(super) fn quiet(kind: StoreKind, phase: Phase) -> Self {
        let mut world = World::begin(kind, 0, phase, Rng(1));
        world.faults = false;
        world.calm = true;
        world
    }

    fn begin(kind: StoreKind, seed: u64, phase: Phase, rng: Rng) -> Self {
        let (zookeeper, etcd) = match kind {
            StoreKind::Zookeeper => (Store::Legacy, Store::Embedded),
            _ => (Store::Embedded, Store::Legacy),
        };
        let core = Core::new(settings(zookeeper, etcd, phase), 1, super::super::T0);
        let base = core.snapshot().expect("encodes");
        let client = |n| Client {
            owner: None,
            alive: true,
            wants: None,
            disputed: false,
            address: if n == 9 { 8 } else { n },
        };
        let direct = |n: usize| Direct {
            owner: 9000 + i64::try_from(n).expect("small"),
            alive: true,
            wants: None,
        };
        let mut world = World {
            kind,
            seed,
            step_no: 0,
            core,
            legacy: Legacy::new(kind),
            now: super::super::T0,
            clients: (0..CLIENTS).map(client).collect(),
            direct: (0..DIRECT).map(direct).collect(),
            guests: vec![(None, false); if kind == StoreKind::Etcd { GUESTS } else { 0 }],
            gone: BTreeSet::new(),
            closing: Vec::new(),
            believed: BTreeMap::new(),
            rng,
            next_id: 50_000,
            value_no: 0,
            base,
            log: Vec::new(),
            mirror: Mirror::default(),
            numbers: (0, 0),
            faults: true,
            calm: false,
            blind: false,
            label: String::new(),
            verbose: std::env::var("CAUSEWAY_MODEL_SEED").is_ok(),
        };
        world.mirror.watch(&mut world.core);
        world.say(&format!("begins in {phase}"));
        world.legacy.list();
        world.deliver(usize::MAX);
        world
    }

    pub(super) fn say(&self, text: &str) {
        if self.verbose {
            eprintln!(
                "[{} {} +{}] {text}",
                self.seed,
                self.step_no,
                self.now - super::super::T0
            );
        }
    }

    pub(super) fn fail(&self, text: &str) -> ! {
        let phase = self.core.phase().phase();
        panic!(
            "{} seed {} step {} {}in {phase}: {text}",
            self.kind.name(),
            self.seed,
            self.step_no,
            self.label
        );
    }

    pub(super) fn key(&self, n: usize) -> Bytes {
        match self.kind {
            StoreKind::Zookeeper => format!("/services/billing/id-{n}").into(),
            _ => format!("orders/10.0.0.{n}:9000").into(),
        }
    }

    pub(super) fn direct_key(&self, n: usize) -> Bytes {
        self.key(100 + n)
    }

    pub(super) fn record_key(&self, key: &Bytes) -> RecordKey {
        RecordKey::new(self.kind, key.clone())
    }

    pub(super) fn mode(&self) -> Mode {
        self.core.mode(self.kind)
    }

    pub(super) fn lease(&self, id: i64) -> LeaseId {
        match self.kind {
            StoreKind::Zookeeper => LeaseId::session(id),
            _ => LeaseId::lease(id),
        }
    }

    fn value(&mut self, address: usize) -> Bytes {
        self.value_no += 1;
        let v = self.value_no;
        match self.kind {
            StoreKind::Zookeeper => zookeeper_value(address, v),
            _ => format!(r#"{{"Op":0,"Addr":"10.1.0.{address}:9000","Metadata":"{v}"}}"#).into(),
        }
    }

    pub(super) fn apply(&mut self, command: Command) -> Effects {
        let bytes = postcard::to_stdvec(&command).expect("encodes");
        let command: Command = postcard::from_bytes(&bytes).expect("decodes");
        if self.verbose && std::env::var("CAUSEWAY_MODEL_COMMANDS").is_ok() {
            eprintln!("[  {command:?}");
        }
        self.log.push((self.now, command.clone()));
        let before = self.published();
        let fx = self.core.apply(&command, self.now);
        self.check_numbers();
        if let Err(text) = self.mirror.follow(&self.core, &fx) {
            self.fail(&format!("{text} after {command:?}"));
        }
        self.check_protection(&command, &before);
        for session in &fx.over {
            if !matches!(command, Command::CloseSession { .. }) {
                continue;
            }
            self.closing.extend(session.legacy.as_ref().map(|l| l.id));
        }
        if matches!(
            command,
            Command::Keys {
                op: KeyCommand::LeaseRevoke { .. },
                ..
            }
        ) && self.mode() == Mode::TakenOver
        {
            self.closing.extend(&fx.leases_over);
        }
        fx
    }

    fn check_numbers(&mut self) {
        let now = (
            self.core.last_zxid(),
            self.core.last_revision().max(self.core.keys().revision()),
        );
        if now.0 < self.numbers.0 || now.1 < self.numbers.1 {
            self.fail(&format!("numbers fell from {:?} to {now:?}", self.numbers));
        }
        self.numbers = now;
    }

    // --- what clients do ---

    pub(super) fn open(&mut self, n: usize) -> Option<i64> {
        if let Some(owner) = self.clients[n].owner {
            return Some(owner);
        }
        self.next_id += 1;
        let id = self.next_id;
        if self.mode() == Mode::Relay {
            if !self.legacy.up {
                return None;
            }
            self.legacy.open(id, self.now);
            self.apply(match self.kind {
                StoreKind::Zookeeper => Command::AdoptSession {
                    id,
                    password: [1; 16],
                    timeout_ms: 10_000,
                },
                _ => Command::AdoptLease { id, ttl_s: 10 },
            });
        } else {
            self.apply(match self.kind {
                StoreKind::Zookeeper => Command::OpenSession {
                    id,
                    password: [1; 16],
                    timeout_ms: 10_000,
                },
                _ => Command::Keys {
                    peer: peer(n),
                    op: KeyCommand::LeaseGrant { id, ttl_s: 10 },
                },
            });
        }
        self.clients[n].owner = Some(id);
        Some(id)
    }

    /// The session or lease behind a client's in L, made when it is not there.
    fn behind(&mut self, id: i64) -> i64 {
        if self.kind == StoreKind::Etcd {
            if !self.legacy.has_owner(id) {
                self.legacy.open(id, self.now);
            }
            return id;
        }
        let legacy = self
            .core
            .sessions()
            .get(id)
            .and_then(|s| s.legacy.as_ref())
            .map(|l| l.id);
        if let Some(legacy) = legacy.filter(|l| self.legacy.has_owner(*l)) {
            return legacy;
        }
        self.next_id += 1;
        let fresh = self.next_id;
        self.legacy.open(fresh, self.now);
        let session = LegacySession {
            id: fresh,
            password: [2; 16],
            timeout_ms: 10_000,
        };
        self.apply(Command::LegacySession {
            id,
            legacy: Some(session),
        });
        fresh
    }

    /// Whether a write waits for L first.
    fn legacy_first(&self) -> bool {
        self.mode() == Mode::Relay
            || self.core.phase().phase().acknowledges() == Acknowledges::Legacy
    }

    fn put_op(&self, key: &Bytes, value: &Bytes, owner: i64, exists: bool) -> Op {
        match self.kind {
            StoreKind::Zookeeper => {
                let path = String::from_utf8(key.to_vec()).expect("text");
                Op::Tree(match exists {
                    true => TreeCommand::SetData {
                        path,
                        data: Some(value.clone()),
                        version: -1,
                        auth: Vec::new(),
                    },
                    false => TreeCommand::Create {
                        path,
                        data: Some(value.clone()),
                        acl: vec![Acl::world(perms::ALL)],
                        mode: CreateMode::Ephemeral,
                        session: owner,
                        auth: Vec::new(),
                    },
                })
            }
            _ => Op::Keys(KeyCommand::Put {
                key: key.clone(),
                value: value.clone(),
                lease: owner,
                prev_kv: false,
                ignore_value: false,
                ignore_lease: false,
            }),
        }
    }

    fn delete_op(&self, key: &Bytes) -> Op {
        match self.kind {
            StoreKind::Zookeeper => {
                let path = String::from_utf8(key.to_vec()).expect("text");
                Op::Tree(TreeCommand::Delete {
                    path,
                    version: -1,
                    auth: Vec::new(),
                })
            }
            _ => Op::Keys(KeyCommand::DeleteRange {
                key: key.clone(),
                range_end: Bytes::new(),
                prev_kv: false,
            }),
        }
    }

    /// True when the client was told yes.
    fn submit(&mut self, peer: String, session: i64, op: Op, mark: Option<i64>) -> bool {
        let fx = self.apply(match (op, mark) {
            (Op::Tree(op), None) => Command::Tree { peer, session, op },
            (Op::Tree(op), Some(mark)) => Command::TreeAcknowledged {
                peer,
                session,
                op,
                mark,
            },
            (Op::Keys(op), None) => Command::Keys { peer, op },
            (Op::Keys(op), Some(mark)) => Command::KeysAcknowledged { peer, op, mark },
        });
        match fx.reply {
            Some(Reply::Tree(Ok(_))) => true,
            Some(Reply::Keys(Ok(KeyReply::DeleteRange(reply)))) => reply.deleted > 0,
            Some(Reply::Keys(Ok(_))) => true,
            _ => false,
        }
    }

    /// Registers, or writes again.
    pub(super) fn register(&mut self, n: usize) {
        let Some(owner) = self.open(n) else { return };
        let address = if self.rng.percent(10) {
            20 + n
        } else {
            self.clients[n].address
        };
        let (key, value) = (self.key(n), self.value(address));
        self.say(&format!("client {n} registers {owner}"));
        self.parents();
        let done = if self.legacy_first() {
            if !self.legacy.up {
                return;
            }
            let behind = if self.mode() == Mode::Relay {
                owner
            } else {
                self.behind(owner)
            };
            let there = self.legacy.get(&key).map(|e| e.owner);
            let exists = there == Some(behind);
            if self.kind == StoreKind::Zookeeper && there.is_some() && !exists {
                // NodeExists.
                return;
            }
            let Some(mark) = self.legacy.put(&key, &value, behind, Expect::Any) else {
                return;
            };
            if self.core.phase().phase() == Phase::Proxy && self.mode() == Mode::Relay {
                true
            } else {
                let op = self.put_op(&key, &value, owner, exists);
                self.submit(peer(n), owner, op, Some(mark))
            }
        } else {
            let path = String::from_utf8_lossy(&key).into_owned();
            let exists = self.kind == StoreKind::Zookeeper
                && self.core.tree().owner_of(&path) == Some(owner);
            let op = self.put_op(&key, &value, owner, exists);
            self.submit(peer(n), owner, op, None)
        };
        if done {
            self.gone.remove(&key);
            let client = &mut self.clients[n];
            (client.wants, client.disputed) = (Some(value), false);
        }
    }

    fn parents(&mut self) {
        if self.kind == StoreKind::Zookeeper && self.mode() != Mode::Relay {
            self.guest_parents();
        }
    }

    pub(super) fn remove(&mut self, n: usize) {
        let (Some(owner), Some(_)) = (self.clients[n].owner, self.clients[n].wants.clone()) else {
            return;
        };
        let key = self.key(n);
        self.say(&format!("client {n} removes"));
        if self.delete(peer(n), owner, &key) {
            self.gone.insert(key);
            self.clients[n].wants = None;
        }
    }

    fn delete(&mut self, peer: String, session: i64, key: &Bytes) -> bool {
        let op = self.delete_op(key);
        if !self.legacy_first() {
            return self.submit(peer, session, op, None);
        }
        if !self.legacy.up {
            return false;
        }
        let refused = match &op {
            Op::Tree(op) => self.core.tree_refusal(&peer, session, op, self.now),
            Op::Keys(op) => self.core.keys_refusal(&peer, op, self.now),
        };
        if refused.is_some() && self.mode() != Mode::Relay {
            return false;
        }
        let Some(mark) = self.legacy.delete(key, Expect::Any) else {
            return false;
        };
        if self.core.phase().phase() != Phase::Proxy || self.mode() != Mode::Relay {
            self.submit(peer, session, op, Some(mark));
        }
        true
    }

    pub(super) fn close(&mut self, n: usize) {
        let Some(owner) = self.clients[n].owner else {
            return;
        };
        self.say(&format!("client {n} closes {owner}"));
        if self.mode() == Mode::Relay {
            if !self.legacy.up {
                return;
            }
            self.legacy.close(owner);
            if self.kind == StoreKind::Zookeeper {
                self.apply(Command::CloseSession { id: owner });
            } else if self.core.phase().phase() != Phase::Proxy {
                let op = KeyCommand::LeaseRevoke {
                    id: owner,
                    keep: Vec::new(),
                };
                self.apply(Command::KeysAcknowledged {
                    peer: peer(n),
                    op,
                    mark: 0,
                });
            }
        } else {
            self.apply(match self.kind {
                StoreKind::Zookeeper => Command::CloseSession { id: owner },
                _ => Command::Keys {
                    peer: peer(n),
                    op: KeyCommand::LeaseRevoke {
                        id: owner,
                        keep: Vec::new(),
                    },
                },
            });
            if self.clients[n].wants.is_some() {
                self.gone.insert(self.key(n));
            }
        }
        let client = &mut self.clients[n];
        (client.owner, client.wants) = (None, None);
    }

    /// The client is told that its session or lease is over.
    fn told_expired(&mut self, n: usize) {
        self.say(&format!("client {n} is told expired"));
        let client = &mut self.clients[n];
        (client.owner, client.wants) = (None, None);
    }

    fn hear(&mut self, n: usize) {
        let Some(owner) = self.clients[n].owner.filter(|_| self.clients[n].alive) else {
            return;
        };
        if self.mode() == Mode::Relay {
            if self.legacy.up && !self.legacy.heard(owner, self.now) {
                if self.kind == StoreKind::Zookeeper {
                    self.apply(Command::LegacySessionGone { id: owner });
                }
                self.told_expired(n);
            }
            return;
        }
        let lease = self.lease(owner);
        match self.core.renew(lease, self.now) {
            Ok(Some(command)) => {
                self.apply(command);
            }
            Ok(None) => {}
            Err(_) => {
                self.told_expired(n);
                return;
            }
        }
        let behind = match self.kind {
            StoreKind::Zookeeper => self
                .core
                .sessions()
                .get(owner)
                .and_then(|s| s.legacy.as_ref())
                .map(|l| l.id),
            _ => Some(owner),
        };
        if let Some(behind) = behind.filter(|_| self.legacy.up) {
            self.legacy.heard(behind, self.now);
        }
    }

    fn direct_writes(&mut self, n: usize) {
        if !self.legacy.up {
            return;
        }
        let (key, value) = (self.direct_key(n), self.value(100 + n));
        let owner = self.direct[n].owner;
        if !self.legacy.has_owner(owner) {
            self.legacy.open(owner, self.now);
        }
        if self.legacy.put(&key, &value, owner, Expect::Any).is_some() {
            self.direct[n].wants = Some(value);
            self.direct[n].alive = true;
        }
    }

    // --- time ---

    /// Lets time pass in half seconds.
    pub(super) fn pass(&mut self, ms: i64) {
        let end = self.now + ms;
        while self.now < end {
            self.now = (self.now + 500).min(end);
            for n in 0..CLIENTS {
                self.hear(n);
            }
            for n in 0..DIRECT {
                let direct = &self.direct[n];
                if direct.alive && direct.wants.is_some() && self.legacy.up {
                    let owner = direct.owner;
                    let there = self.legacy.get(&self.direct_key(n)).is_some();
                    if !self.legacy.heard(owner, self.now) || !there {
                        // Clients of L register again when it lost them.
                        self.direct_writes(n);
                    }
                }
            }
            for n in 0..self.guests.len() {
                let (session, alive) = self.guests[n];
                let Some(id) = session.filter(|_| alive) else {
                    continue;
                };
                match self.core.renew(LeaseId::session(id), self.now) {
                    Ok(Some(command)) => {
                        self.apply(command);
                    }
                    Ok(None) => {}
                    Err(_) => self.fail("a guest that is heard is over"),
                }
            }
            if self.legacy.up {
                self.legacy.heard(OWN, self.now);
            }
            self.legacy.pass(self.now);
            for command in self.core.poll_timers(self.now) {
                self.apply(command);
            }
            self.core.review(self.now);
            if self.faults && self.rng.percent(60) {
                let most = self.rng.below(6);
                self.deliver(most);
            }
            if !self.faults {
                self.deliver(usize::MAX);
            }
            if self.rng.percent(if self.faults { 40 } else { 100 }) {
                self.converge();
            }
        }
    }

    pub(super) fn deliver(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.legacy.next_event() else {
                return;
            };
            let fx = self.apply(Command::Legacy {
                store: self.kind,
                event,
            });
            if !fx.resync.is_empty() {
                self.say("resync");
                self.legacy.list();
            }
        }
    }

    // --- convergence ---

    pub(super) fn converge(&mut self) {
        if self.legacy.up && (!self.faults || self.rng.percent(50)) {
            for id in std::mem::take(&mut self.closing) {
                self.legacy.close(id);
            }
        }
        for key in self.core.all_dirty(1000) {
            for _ in 0..6 {
                if !self.attempt(&key) {
                    break;
                }
            }
        }
    }

    fn truth(&self, id: i64) -> LegacyOwner {
        if self.legacy.has_owner(id) {
            LegacyOwner::Alive
        } else {
            LegacyOwner::Gone
        }
    }

    fn state(&self, owner: WantedOwner) -> LegacyOwner {
        let known = |id: i64| {
            self.believed
                .get(&id)
                .copied()
                .unwrap_or(LegacyOwner::Unknown)
        };
        match owner {
            WantedOwner::Session(id) => {
                match self.core.sessions().get(id).and_then(|s| s.legacy.as_ref()) {
                    Some(legacy) => known(legacy.id),
                    None => LegacyOwner::Gone,
                }
            }
            WantedOwner::Lease(id) => known(id),
            WantedOwner::Gateway => self.truth(OWN),
            WantedOwner::Nobody => LegacyOwner::Alive,
        }
    }

    fn client_of(&self, id: i64) -> Option<usize> {
        self.clients.iter().position(|c| c.owner == Some(id))
    }

    /// True when it is to be looked at again.
    fn attempt(&mut self, key: &RecordKey) -> bool {
        let owner = self.core.wanted_owner(key);
        let state = self.state(owner);
        let Some(wanted) = self.core.wanted(key, state) else {
            self.core.settled(key);
            return false;
        };
        if wanted.action == Action::Nothing {
            self.core.settled(key);
            return false;
        }
        if !self.legacy.up {
            return false;
        }
        let raw = key.key.clone();
        match wanted.action {
            Action::Nothing => false,
            Action::Import => {
                self.look(&raw);
                self.core.settled(key);
                false
            }
            Action::TakeRemoval => {
                self.say(&format!("removal of {key} taken over"));
                self.apply(Command::TakeRemoval(key.clone()));
                true
            }
            Action::OpenOwner | Action::AskLegacy => {
                match owner {
                    WantedOwner::Session(id) => {
                        // Only a frame from the client on this gateway attaches.
                        if !self.client_of(id).is_some_and(|n| self.clients[n].alive) {
                            return false;
                        }
                        let behind = self.behind(id);
                        self.believed.insert(behind, LegacyOwner::Alive);
                    }
                    WantedOwner::Lease(id) => {
                        let truth = self.truth(id);
                        if truth == LegacyOwner::Gone {
                            if wanted.action == Action::AskLegacy {
                                self.believed.insert(id, LegacyOwner::Gone);
                                return true;
                            }
                            self.legacy.open(id, self.now);
                        }
                        self.believed.insert(id, LegacyOwner::Alive);
                    }
                    WantedOwner::Gateway => {
                        self.legacy.open(OWN, self.now);
                        self.apply(Command::OwnOwner {
                            store: self.kind,
                            owner: OWN,
                        });
                    }
                    WantedOwner::Nobody => return false,
                }
                self.look(&raw);
                true
            }
            Action::CreateIfAbsent | Action::WriteIfUnchanged => {
                if self.faults && self.rng.percent(10) {
                    return false;
                }
                let value = wanted.value.clone().unwrap_or_default();
                let behind = match owner {
                    WantedOwner::Session(id) => {
                        match self.core.sessions().get(id).and_then(|s| s.legacy.as_ref()) {
                            Some(legacy) => legacy.id,
                            None => return false,
                        }
                    }
                    WantedOwner::Lease(id) => id,
                    WantedOwner::Gateway => OWN,
                    WantedOwner::Nobody => 0,
                };
                let expect = wanted
                    .seen
                    .as_ref()
                    .map_or(Expect::Absent, |e| Expect::Mark(e.mark));
                let replaces = self.kind == StoreKind::Zookeeper
                    && wanted.seen.as_ref().is_some_and(|e| e.owner != behind);
                let written = if replaces && self.legacy.has_owner(behind) {
                    // Delete and create in one multi.
                    self.legacy
                        .delete(&raw, expect)
                        .and_then(|_| self.legacy.put(&raw, &value, behind, Expect::Absent))
                } else {
                    self.legacy.put(&raw, &value, behind, expect)
                };
                if written.is_none() && self.truth(behind) == LegacyOwner::Gone && behind != 0 {
                    self.believed.insert(behind, LegacyOwner::Gone);
                    if let (StoreKind::Zookeeper, WantedOwner::Session(id)) = (self.kind, owner) {
                        self.apply(Command::LegacySession { id, legacy: None });
                    }
                }
                if self.blind || self.faults && self.rng.percent(15) {
                    // Not known what became of it.
                    return false;
                }
                self.look(&raw);
                if written.is_some() {
                    self.core.settled(key);
                }
                false
            }
            Action::DeleteIfUnchanged => {
                if self.faults && self.rng.percent(10) {
                    return false;
                }
                let expect = wanted
                    .seen
                    .as_ref()
                    .map_or(Expect::Any, |e| Expect::Mark(e.mark));
                let conflict = self
                    .legacy
                    .get(&raw)
                    .is_some_and(|e| expect != Expect::Mark(e.mark));
                let removed = self.legacy.delete(&raw, expect);
                if self.blind || self.faults && self.rng.percent(15) {
                    return false;
                }
                if conflict {
                    self.look(&raw);
                    return false;
                }
                let mark = removed
                    .or(wanted.seen.as_ref().map(|e| e.mark))
                    .unwrap_or(0);
                self.apply(Command::Legacy {
                    store: self.kind,
                    event: LegacyEvent::Delete { key: raw, mark },
                });
                self.core.settled(key);
                false
            }
        }
    }

    fn look(&mut self, key: &Bytes) {
        if let Some(entry) = self.legacy.told(key) {
            self.apply(Command::Legacy {
                store: self.kind,
                event: LegacyEvent::Put(entry),
            });
        }
    }

    // --- steps and restarts ---

    pub(super) fn phase_step(&mut self, kind: Move) {
        if kind == Move::TakeOver {
            // The relay pauses, and waits until the feed has shown what L acknowledged.
            if !self.legacy.up {
                return;
            }
            self.deliver(usize::MAX);
        }
        let gates = self.core.gates(Census::None, Vec::new(), self.now);
        if let Ok(step) = self.core.judge(kind, &gates, None, "model", "", self.now) {
            if step.to == Phase::Done && (self.calm || self.rng.percent(80)) {
                return;
            }
            self.say(&format!("{} to {}", kind.name(), step.to));
            let seen = self.seen_instances();
            self.apply(Command::Step(Box::new(step)));
            let now = self.seen_instances();
            if self.mode() == Mode::TakenOver && !seen.is_subset(&now) {
                self.fail(&format!(
                    "a step hid {:?}",
                    seen.difference(&now).collect::<Vec<_>>()
                ));
            }
        }
    }

    pub(super) fn restart(&mut self) {
        self.say("restart");
        let settings = self.core.settings.clone();
        let mut again = Core::restore(settings, &self.base).expect("decodes");
        for (at, command) in &self.log {
            again.apply(command, *at);
        }
        if let Some(part) = super::checks::difference(&self.core, &again) {
            self.fail(&format!("the log gives another state: {part}"));
        }
        self.core = again;
        self.base = self.core.snapshot().expect("encodes");
        self.log.clear();
        self.mirror = Mirror::default();
        self.mirror.watch(&mut self.core);
        self.believed.clear();
        self.apply(Command::Started {
            incarnation: u64::try_from(self.now).expect("positive"),
        });
        self.legacy.list();
    }

    fn snapshot(&mut self) {
        self.base = self.core.snapshot().expect("encodes");
        self.log.clear();
    }

    pub(super) fn guest_key(n: usize) -> String {
        format!("/services/billing/id-{}", 200 + n)
    }

    fn guest(&mut self, n: usize) {
        match self.guests[n] {
            (None, _) => {
                self.say(&format!("guest {n} registers"));
                self.next_id += 1;
                let id = self.next_id;
                self.apply(Command::OpenSession {
                    id,
                    password: [1; 16],
                    timeout_ms: 10_000,
                });
                self.guests[n] = (Some(id), true);
                self.guest_parents();
                let address = if n == 2 { 201 } else { 200 + n };
                let data = zookeeper_value(address, self.now.unsigned_abs());
                let op = TreeCommand::Create {
                    path: Self::guest_key(n),
                    data: Some(data),
                    acl: vec![Acl::world(perms::ALL)],
                    mode: CreateMode::Ephemeral,
                    session: id,
                    auth: Vec::new(),
                };
                self.apply(Command::Tree {
                    peer: format!("10.2.0.{n}:1"),
                    session: id,
                    op,
                });
            }
            (Some(id), true) if self.rng.percent(50) => {
                self.say(&format!("guest {n} closes"));
                self.apply(Command::CloseSession { id });
                self.guests[n] = (None, false);
            }
            (Some(_), true) => {
                // It dies; another process takes its place at once or later.
                self.say(&format!("guest {n} dies"));
                self.guests[n] = (None, false);
            }
            (Some(_), false) => {}
        }
    }

    fn guest_parents(&mut self) {
        for path in ["/services", "/services/billing"] {
            if !self.core.tree().contains(path) {
                let op = TreeCommand::Create {
                    path: path.into(),
                    data: Some(Bytes::new()),
                    acl: vec![Acl::world(perms::ALL)],
                    mode: CreateMode::Persistent,
                    session: 0,
                    auth: Vec::new(),
                };
                self.apply(Command::Tree {
                    peer: "10.0.0.1:1".into(),
                    session: 0,
                    op,
                });
            }
        }
    }

    /// One thing that can happen.
    pub(super) fn random_step(&mut self) {
        if !self.guests.is_empty() && self.rng.percent(15) {
            let n = self.rng.below(GUESTS);
            self.guest(n);
        }
        let n = self.rng.below(CLIENTS);
        match self.rng.below(100) {
            0..=27 => {
                if self.clients[n].alive {
                    self.register(n);
                }
            }
            28..=32 => {
                if self.clients[n].alive {
                    self.remove(n);
                }
            }
            33..=35 => {
                if self.clients[n].alive {
                    self.close(n);
                }
            }
            36..=43 => {
                self.say(&format!("client {n} falls silent"));
                self.clients[n].alive = false;
            }
            44..=51 => {
                self.say(&format!("client {n} is back"));
                self.clients[n].alive = true;
                if self.rng.percent(40) {
                    // Another process at the same place: the old session is nobody's.
                    let client = &mut self.clients[n];
                    if client.owner.is_some() {
                        (client.owner, client.wants) = (None, None);
                    }
                } else {
                    self.hear(n);
                }
                if self.clients[n].wants.is_none() {
                    self.register(n);
                }
            }
            52..=57 => {
                let d = self.rng.below(DIRECT);
                self.say(&format!("direct writer {d} writes"));
                self.direct_writes(d);
            }
            58..=59 => {
                let d = self.rng.below(DIRECT);
                self.say(&format!("direct writer {d} dies"));
                self.direct[d].alive = false;
                self.direct[d].wants = None;
            }
            60..=62 => {
                let wiped = self.rng.percent(30);
                if self.legacy.up {
                    self.say("L fails");
                    self.legacy.fail();
                } else {
                    self.say(&format!("L is back, wiped: {wiped}"));
                    self.legacy.recover(wiped, self.now);
                }
            }
            63..=66 if !self.legacy.up => {
                self.say("L is back");
                self.legacy.recover(false, self.now);
            }
            67..=76 => {
                let kind = if self.rng.percent(70) {
                    Move::Advance
                } else {
                    Move::Rollback
                };
                self.phase_step(kind);
            }
            77..=79 => self.phase_step(Move::TakeOver),
            80..=84 => self.restart(),
            85..=86 => self.snapshot(),
            87..=88 => {
                // A tool deletes what it does not own, in L.
                self.tool_deletes(n);
            }
            89..=90 => {
                // Or through the gateway.
                let key = self.key(n);
                self.say(&format!("a stranger deletes {n}"));
                if self.delete("10.99.0.1:5".into(), 0, &key) {
                    self.clients[n].wants = None;
                    self.gone.insert(key);
                }
            }
            _ => {
                let ms = i64::try_from(self.rng.below(40_000)).expect("small");
                self.pass(ms);
            }
        }
        let ms = i64::try_from(self.rng.below(3_000)).expect("small");
        self.pass(ms);
    }

    pub(super) fn tool_deletes(&mut self, n: usize) {
        let key = self.key(n);
        if self.legacy.up && self.legacy.delete(&key, Expect::Any).is_some() {
            self.say(&format!("a tool deletes {n} in L"));
            self.clients[n].disputed = true;
        }
    }

    /// The session or lease behind a client's ends in L, though the client lives.
    pub(super) fn owner_ends(&mut self, n: usize) {
        let Some(id) = self.clients[n].owner else {
            return;
        };
        let behind = match self.kind {
            StoreKind::Zookeeper => self
                .core
                .sessions()
                .get(id)
                .and_then(|s| s.legacy.as_ref())
                .map(|l| l.id),
            _ => Some(id),
        };
        if let Some(behind) = behind {
            self.legacy.close(behind);
        }
    }

    /// A short rest.
    pub(super) fn settle_down(&mut self) {
        self.say("settles down");
        self.pass(25_000);
    }

    /// Faults end, and time passes.
    pub(super) fn come_to_rest(&mut self) {
        self.say("comes to rest");
        self.faults = false;
        if !self.legacy.up {
            self.legacy.recover(false, self.now);
        }
        self.step_no += 1;
        for _ in 0..40 {
            self.pass(1_000);
        }
        for _ in 0..30 {
            // In larger strides: the machine is called as often as it asks.
            self.pass(2_000);
        }
    }

    pub(super) fn legacy_lags(&self) -> bool {
        self.legacy.lags() || !self.legacy.up
    }
}

enum Op {
    Tree(TreeCommand),
    Keys(KeyCommand),
}

pub(super) fn peer(n: usize) -> String {
    format!("10.0.0.{n}:{}", 40_000 + n)
}

fn zookeeper_value(address: usize, v: u64) -> Bytes {
    format!(
        r#"{{"name":"billing","id":"x","address":"10.1.0.{address}","port":8080,"sslPort":null,"payload":{{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"x","name":"billing","metadata":{{"v":"{v}"}}}},"registrationTimeUTC":1754900000123,"serviceType":"DYNAMIC","uriSpec":null}}"#
    )
    .into()
}
