//! One member of the registry.
//!
//! Inputs: `open_lease`, `renew`, `close_lease`, `register`, `overwrite`, `deregister`,
//! `remove_expired`, `set_health`, `handle_timeout`. Outputs: `poll_output`, to be called until it
//! returns None after every input. Timer: `next_timeout` says when `handle_timeout` is wanted.
//! Everything else only reads.
//!
//! `now` is milliseconds of a clock that never goes back while the process lives. After a restart, or
//! on a state read from disk, `restart` comes first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::clock::Hlc;
use crate::digest::{Cell, Digest};
use crate::lease::{LeaseInfo, LeaseState, Leases, Renewed, SavedLease};
use crate::origin::{Dot, Origin, OriginLogs, VersionVector};
use crate::record::{Health, LeaseId, Record, RecordBody, RecordKey, Stamp, Version};
use crate::service::{
    CatchUp, Change, ChangeKind, Delta, Mark, Missed, Revision, ServiceInfo, ServiceName, Services,
};
use crate::tombstone::{Tombstone, Tombstones};

/// What a member is and how much it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// The member's id, unique in the cluster.
    pub member: u16,
    /// Wall milliseconds at the start; higher at each start of the same member.
    pub incarnation: u64,
    /// The key under which records are hashed into digests; the same on all members.
    pub digest_key: (u64, u64),
    /// How often `handle_timeout` is called at least, in milliseconds. A call more than two of them
    /// late means that the process stood still.
    pub period_ms: u64,
    /// How old a tombstone becomes, in milliseconds.
    pub tombstone_age_ms: u64,
    /// What all tombstones may cost in bytes; beyond it the oldest go before their time.
    pub tombstone_bytes: usize,
    /// How many changes of a service are remembered for its subscribers.
    pub history: usize,
    /// How many services without records are remembered for their subscribers.
    pub empty_services: usize,
    /// The member belongs to a cluster, even while it is alone: what its earlier lives wrote is remembered until every
    /// member has it from the present one.
    pub cluster: bool,
}

impl NodeConfig {
    /// The defaults for a member with this id and incarnation.
    pub fn new(member: u16, incarnation: u64) -> Self {
        NodeConfig {
            member,
            incarnation,
            digest_key: (0, 0),
            period_ms: 1_000,
            tombstone_age_ms: 15 * 60_000,
            tombstone_bytes: 64 << 20,
            history: 64,
            empty_services: 1_024,
            cluster: false,
        }
    }
}

/// Why a registration was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// The owner named has no lease here, or its lease is over: the client must open one first.
    #[error("the lease {0} is unknown or over")]
    UnknownLease(LeaseId),
}

/// What the member has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing was heard from the owner for half its timeout; its records are silent.
    LeaseSilent(LeaseId),
    /// Nothing was heard from the owner for its timeout; its records are expired and wait for a
    /// verdict. Said once. A lease without records is reported too, for the caller to close.
    LeaseExpired(LeaseId),
    /// A silent or expired owner was heard from again; its records are live.
    LeaseReturned(LeaseId),
    /// Records were added, written again or removed.
    Delta(Delta),
}

/// The member in numbers, at constant cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The member and its life.
    pub origin: Origin,
    /// Services with at least one instance.
    pub services: usize,
    /// Identities over all services.
    pub instances: usize,
    /// Registrations of instances.
    pub registrations: usize,
    /// All records, companions among them.
    pub records: usize,
    /// Leases, whatever their state.
    pub leases: usize,
    /// Tombstones.
    pub tombstones: usize,
    /// The number of the last change.
    pub revision: u64,
    /// Over all records: equal on members that hold the same.
    pub digest: Cell,
}

/// One member of the registry: see the module's documentation for the calling order.
#[derive(Clone, Debug)]
pub struct Node {
    config: NodeConfig,
    origin: Origin,
    clock: Hlc,
    records: BTreeMap<RecordKey, Record>,
    tombstones: Tombstones,
    leases: Leases,
    logs: OriginLogs,
    digest: Digest,
    /// Every key that is here, alive or removed, by its place in the digest: what a segment holds.
    places: BTreeSet<(u64, RecordKey)>,
    services: Services,
    /// The number of the last change in this life.
    changes: u64,
    outputs: VecDeque<Output>,
    /// The latest time seen; time passed in never counts backwards.
    now: u64,
    last_timeout: Option<u64>,
    /// No lease changes its state before this time.
    judge_from: u64,
    /// Nothing is removed by expiry.
    protected: bool,
    /// Verdicts remove whatever stands under the key by now.
    #[cfg(feature = "weakened")]
    unconditional_expiry: bool,
}

impl Node {
    /// An empty member.
    pub fn new(config: NodeConfig) -> Self {
        let origin = Origin {
            member: config.member,
            incarnation: config.incarnation,
        };
        Node {
            origin,
            clock: Hlc::new(config.incarnation),
            records: BTreeMap::new(),
            tombstones: Tombstones::default(),
            leases: Leases::default(),
            logs: OriginLogs::default(),
            digest: Digest::new(config.digest_key),
            places: BTreeSet::new(),
            services: Services::new(config.history, config.empty_services),
            changes: 0,
            outputs: VecDeque::new(),
            now: 0,
            last_timeout: None,
            judge_from: 0,
            protected: false,
            #[cfg(feature = "weakened")]
            unconditional_expiry: false,
            config,
        }
    }

    /// Begins a new life: `now` may start anywhere, every lease gets its whole timeout anew, records
    /// of owners that were late are live again, and what this member wrote is written again under its
    /// new incarnation. `incarnation` is the wall clock; the one taken is higher than the last.
    pub fn restart(&mut self, incarnation: u64, now: u64) {
        // The clock goes on from the wall clock even when the incarnation has to be ahead of it.
        self.clock.anchor(incarnation, now);
        let incarnation = incarnation.max(self.origin.incarnation.saturating_add(1));
        self.origin.incarnation = incarnation;
        self.config.incarnation = incarnation;
        self.now = now;
        self.last_timeout = None;
        self.judge_from = 0;
        self.protected = false;
        self.changes = 0;
        self.services.start_life();
        self.tombstones.rebase(now);
        // Before the leases: it needs each record once, whatever its health. In a cluster, what the folder holds may have
        // been removed elsewhere since: it keeps its place in the log of the earlier life, by which an exchange finds
        // that out, until the replicator takes that life over.
        if !self.config.cluster {
            self.renew_own_writes(None);
        }
        self.leases.rebase(now);
        for id in self.leases.ids() {
            if self.leases.is_open(id) {
                self.revive(id);
            }
        }
    }

    /// Makes a lease, or gives an open one a new timeout (in milliseconds) and a new start. A lease
    /// that is over is made anew; records it left stay, without owner, until they are judged.
    pub fn open_lease(&mut self, id: LeaseId, ttl_ms: u64, now: u64) {
        let now = self.see(now);
        let was = self.leases.info(id).map(|info| info.state);
        for key in self.leases.open(id, ttl_ms, now) {
            let Some(record) = self.records.get_mut(&key) else {
                continue;
            };
            if record.dot.origin.member == self.config.member {
                record.lease = None;
                let health = record.health;
                // Written again, so that the other members see that it has no owner.
                self.transition(&key, health);
            } else {
                self.leases.attach_elsewhere(id, 0, key);
            }
        }
        if matches!(was, Some(LeaseState::Silent | LeaseState::Expired)) {
            self.revive(id);
            self.outputs.push_back(Output::LeaseReturned(id));
        }
    }

    /// The owner was heard from. Constant cost for a live lease; a silent or expired one comes back
    /// whole, held records too.
    pub fn renew(&mut self, id: LeaseId, now: u64) -> Renewed {
        let now = self.see(now);
        let renewed = self.leases.renew(id, now);
        if renewed.known && renewed.was != LeaseState::Live {
            self.revive(id);
            self.outputs.push_back(Output::LeaseReturned(id));
        }
        renewed
    }

    /// The owner ended its lease: all its records go as one change. Returns them. A record that
    /// another owner wrote since is that owner's and stays.
    pub fn close_lease(&mut self, id: LeaseId, now: u64) -> Vec<Record> {
        let now = self.see(now);
        let Some(keys) = self.leases.close(id) else {
            return Vec::new();
        };
        let hlc = self.clock.tick(now);
        let mut removed = Vec::new();
        for key in keys {
            let Some(record) = self.records.get(&key) else {
                continue;
            };
            let version = Version {
                stamp: self.after(hlc, record.stamp),
                dead: true,
                sub: 0,
            };
            removed.extend(self.bury(&key, version, true, now));
        }
        self.announce(ChangeKind::Removed, removed.clone());
        removed
    }

    /// The lease, if it is known. One that is over counts as known until its last record is gone.
    pub fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.leases.info(id)
    }

    /// Milliseconds until the lease runs out: 0 for an expired one, None for an unknown one or one
    /// that is over.
    pub fn ttl_left(&self, id: LeaseId, now: u64) -> Option<u64> {
        self.leases.ttl_left(id, now.max(self.now))
    }

    /// All leases, in order.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.leases.ids()
    }

    /// Registers, or renews a registration: when the record is there, live, with the same body and
    /// owner, only the owner's lease is renewed, and the stamp stays. Otherwise it is written under a
    /// new stamp, and belongs to `lease` from now on, whoever had it.
    pub fn register(
        &mut self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
        now: u64,
    ) -> Result<Stamp, RegisterError> {
        self.register_claimed(key, body, lease, 0, now)
    }

    /// The same for a client that was given `claim` as its highest clock value, by whichever member: the registration
    /// stands at a later one afterwards, even where this member has not heard of the earlier one yet, or has a clock
    /// that is far behind.
    pub fn register_claimed(
        &mut self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
        claim: u64,
        now: u64,
    ) -> Result<Stamp, RegisterError> {
        self.require_open(lease)?;
        self.observe_clock(claim, now);
        let now = self.see(now);
        if let Some(lease) = lease {
            self.renew(lease, now);
        }
        match self.records.get(&key) {
            Some(record)
                if record.lease == lease
                    && record.dot.origin == self.origin
                    && record.health == Health::Live
                    && *record.body == body =>
            {
                Ok(record.stamp)
            }
            _ => {
                let claim = self.credible(claim, now);
                Ok(self.write(key, Arc::new(body), lease, claim, now))
            }
        }
    }

    /// Registers under a new stamp even if nothing differs: for a store in which each write counts
    /// (a setData or a put of the same value makes a new version there).
    pub fn overwrite(
        &mut self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
        now: u64,
    ) -> Result<Stamp, RegisterError> {
        self.require_open(lease)?;
        let now = self.see(now);
        if let Some(lease) = lease {
            self.renew(lease, now);
        }
        Ok(self.write(key, Arc::new(body), lease, 0, now))
    }

    /// A client's write: a new stamp, above `claim`, and this member holds it from now on.
    fn write(
        &mut self,
        key: RecordKey,
        body: Arc<RecordBody>,
        lease: Option<LeaseId>,
        claim: u64,
        now: u64,
    ) -> Stamp {
        let known = self.known_version(&key);
        let hlc = self.clock.tick(now).max(claim.saturating_add(1));
        let stamp = self.after(hlc, known.unwrap_or_default().stamp);
        let version = Version {
            stamp,
            dead: false,
            sub: 0,
        };
        debug_assert_eq!(known.unwrap_or_default().join(version), version);

        let mark = self.next_mark(true);
        let previous = self.records.get(&key).cloned();
        let dot = self.write_log(&key);
        let record = Record {
            key: key.clone(),
            body,
            lease,
            stamp,
            sub: 0,
            dot,
            health: Health::Live,
        };
        let visible = match &previous {
            Some(previous) => {
                let changed = previous.body != record.body;
                self.unindex(previous, changed.then_some(mark));
                changed
            }
            None => true,
        };
        self.tombstones.remove(&key);
        self.index(&record, visible.then_some(mark));
        self.records.insert(key, record.clone());
        let moved = previous
            .as_ref()
            .is_some_and(|previous| previous.service() != record.service());
        let changes = match previous {
            // For subscribers of the service it leaves, it is gone.
            Some(previous) if moved => vec![
                Change {
                    kind: ChangeKind::Removed,
                    record: previous,
                    previous: None,
                },
                Change {
                    kind: ChangeKind::Added,
                    record,
                    previous: None,
                },
            ],
            Some(previous) => {
                vec![Change {
                    kind: ChangeKind::Updated,
                    record,
                    previous: Some(previous),
                }]
            }
            None => vec![Change {
                kind: ChangeKind::Added,
                record,
                previous: None,
            }],
        };
        self.emit(changes);
        stamp
    }

    /// The owner, or whoever speaks for it, takes the record away. Leaves a tombstone. None when
    /// there is no such record.
    pub fn deregister(&mut self, key: &RecordKey, now: u64) -> Option<Record> {
        let now = self.see(now);
        let known = self.records.get(key)?.stamp;
        let hlc = self.clock.tick(now);
        let version = Version {
            stamp: self.after(hlc, known),
            dead: true,
            sub: 0,
        };
        let record = self.bury(key, version, true, now)?;
        self.announce(ChangeKind::Removed, vec![record.clone()]);
        Some(record)
    }

    /// Carries out a verdict on one record; see [`Node::remove_all_expired`].
    pub fn remove_expired(&mut self, key: &RecordKey, observed: Stamp, now: u64) -> bool {
        !self
            .remove_all_expired(&[(key.clone(), observed)], now)
            .is_empty()
    }

    /// Carries out a verdict: removes, as one change, each record that is expired or held and still
    /// has the stamp at which it was judged. Returns what was removed. The lease of a removed record
    /// is over; what else it holds stays until it is judged in its turn.
    pub fn remove_all_expired(&mut self, judged: &[(RecordKey, Stamp)], now: u64) -> Vec<Record> {
        let now = self.see(now);
        #[cfg(feature = "weakened")]
        if self.unconditional_expiry && !self.protected {
            let own = |key: &&RecordKey| {
                let record = self.records.get(*key);
                record.is_some_and(|record| record.dot.origin == self.origin)
            };
            let keys = judged.iter().map(|(key, _)| key);
            return self.remove_whatever_is_there(keys.filter(own).cloned().collect(), now);
        }
        let mut removed = Vec::new();
        for (key, observed) in judged {
            let Some(record) = self.records.get(key) else {
                continue;
            };
            let late = matches!(record.health, Health::Expired | Health::Held);
            // Another member's record is that member's to judge.
            let own = record.dot.origin == self.origin;
            if record.stamp != *observed || !late || !own || self.protected {
                continue;
            }
            let (version, lease) = (record.version().killed(), record.lease);
            removed.extend(self.bury(key, version, false, now));
            if let Some(lease) = lease
                && self
                    .leases
                    .info(lease)
                    .is_some_and(|info| info.state == LeaseState::Expired)
            {
                self.leases.end(lease);
            }
        }
        self.announce(ChangeKind::Expired, removed.clone());
        removed
    }

    /// For simulations that show that their checks can fail: verdicts do not ask whether the record is still the one that
    /// was judged, and win over whatever there is.
    #[cfg(feature = "weakened")]
    pub fn weaken_expiry(&mut self, unconditional: bool) {
        self.unconditional_expiry = unconditional;
    }

    #[cfg(feature = "weakened")]
    fn remove_whatever_is_there(&mut self, keys: Vec<RecordKey>, now: u64) -> Vec<Record> {
        let mut removed = Vec::new();
        for key in keys {
            let Some(known) = self.records.get(&key).map(|record| record.stamp) else {
                continue;
            };
            let hlc = self.clock.tick(now);
            let version = Version {
                stamp: self.after(hlc, known),
                dead: true,
                sub: 0,
            };
            removed.extend(self.bury(&key, version, false, now));
        }
        self.announce(ChangeKind::Expired, removed.clone());
        removed
    }

    /// Carries out the council's verdict on records whose holder is gone: removes, as one change, each record that another
    /// member holds and that still has the version at which it was judged. Every member may do so on its own; what they
    /// write is the same. Returns what was removed.
    pub fn remove_orphans(&mut self, judged: &[(RecordKey, Version)], now: u64) -> Vec<Record> {
        let now = self.see(now);
        let mut removed = Vec::new();
        for (key, observed) in judged {
            let Some(record) = self.records.get(key) else {
                continue;
            };
            let own = record.dot.origin.member == self.config.member;
            if record.version() != *observed || own || self.protected {
                continue;
            }
            removed.extend(self.bury(key, observed.killed(), false, now));
        }
        self.announce(ChangeKind::Expired, removed.clone());
        removed
    }

    /// The client of a lease came here from another member: the lease is opened here, and every record of it that another
    /// member holds, or that is older than the claim, is written again under a new stamp, so that nothing which the former holder does to them counts any
    /// more. `claim` is the highest clock value that the client was given elsewhere (0: none). Returns how many records
    /// moved.
    pub fn adopt_lease(&mut self, id: LeaseId, ttl_ms: u64, claim: u64, now: u64) -> usize {
        self.observe_clock(claim, now);
        self.open_lease(id, ttl_ms, now);
        let now = self.see(now);
        let claim = self.credible(claim, now);
        let elsewhere: Vec<(RecordKey, Arc<RecordBody>)> = self
            .by_lease(id)
            .filter(|record| {
                // What was written here before the client went elsewhere and came back is older than what it has there.
                record.dot.origin != self.origin || record.stamp.hlc < claim
            })
            .map(|record| (record.key.clone(), Arc::clone(&record.body)))
            .collect();
        let moved = elsewhere.len();
        for (key, body) in elsewhere {
            // The lease was opened above, so nothing refuses it.
            self.write(key, body, Some(id), claim, now);
        }
        moved
    }

    /// The life that this member writes under.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Says what is known about the record's owner where its lease does not: held by a verdict, or,
    /// for a record without a lease, seen or missed in the store it came from. Returns false when
    /// there is no such record, nothing changes, or another member holds it. The next renewal of its lease makes it live again.
    pub fn set_health(&mut self, key: &RecordKey, health: Health) -> bool {
        match self.records.get(key) {
            Some(record) if record.health != health && record.dot.origin == self.origin => {
                self.transition(&key.clone(), health)
            }
            _ => false,
        }
    }

    /// Puts a lease into a later state without waiting for its time: what another member, or this one
    /// before a restart, found out by its own clock. Earlier states are no effect; nothing is said.
    pub fn mark_lease(&mut self, id: LeaseId, state: LeaseState) {
        if !self.leases.worsen(id, state) {
            return;
        }
        let said = self.outputs.len();
        match state {
            LeaseState::Silent | LeaseState::Expired => self.fall(id, state),
            LeaseState::Live | LeaseState::Over => {}
        }
        // Only the changes of records are news to the caller.
        if self.outputs.len() > said {
            self.outputs.pop_back();
        }
    }

    /// Keeps a tombstone from being collected while something outside still needs it, or lets it go
    /// (its age starts anew). False when there is none.
    pub fn pin_tombstone(&mut self, key: &RecordKey, pinned: bool, now: u64) -> bool {
        let now = self.see(now);
        self.tombstones.pin(key, pinned, now)
    }

    /// Takes over a clock value that a client brings from another member (the stamp it was given
    /// there), so that its next action here is ordered after it. False, and nothing done, when the
    /// value is absurdly far ahead.
    pub fn observe_clock(&mut self, hlc: u64, now: u64) -> bool {
        let now = self.see(now);
        self.clock.observe(hlc, now)
    }

    /// Lets time pass: leases become silent or expired, tombstones are collected. To be called when
    /// [`Node::next_timeout`] says, at least once per period. A call more than two periods after the
    /// last one means that the process stood still and could not hear anybody: every lease gets the
    /// gap added, and none changes its state for one period.
    pub fn handle_timeout(&mut self, now: u64) {
        let now = self.see(now);
        if let Some(last) = self.last_timeout {
            let gap = now.saturating_sub(last);
            if gap > self.config.period_ms.saturating_mul(2) {
                self.leases.shift(gap, now);
                self.judge_from = now.saturating_add(self.config.period_ms);
            }
        }
        self.last_timeout = Some(now);
        if now >= self.judge_from {
            while let Some(due) = self.leases.pop_due(now) {
                self.fall(due.id, due.state);
            }
        }
        let (age, budget) = (self.config.tombstone_age_ms, self.config.tombstone_bytes);
        while let Some(tombstone) = self.tombstones.pop(age, budget, now) {
            self.collect(&tombstone);
        }
    }

    /// When [`Node::handle_timeout`] is wanted next. Also with nothing due it is wanted once per
    /// period, so that a pause is noticed.
    pub fn next_timeout(&self) -> Option<u64> {
        let Some(last) = self.last_timeout else {
            return Some(self.now);
        };
        let period = last.saturating_add(self.config.period_ms);
        let lease = self.leases.next_due().map(|due| due.max(self.judge_from));
        let tombstone = self.tombstones.next_due(self.config.tombstone_age_ms);
        [lease, tombstone]
            .into_iter()
            .flatten()
            .chain([period])
            .min()
    }

    /// Calls [`Node::handle_timeout`] at each time it is wanted up to `now`: for simulated time, which
    /// would otherwise look like a pause when it jumps.
    pub fn run_until(&mut self, now: u64) {
        while let Some(next) = self.next_timeout()
            && next < now
        {
            self.handle_timeout(next.max(self.now));
        }
        self.handle_timeout(now);
    }

    /// The next thing to say, in the order in which it happened.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The record of a key.
    pub fn get(&self, key: &RecordKey) -> Option<&Record> {
        self.records.get(key)
    }

    /// What is remembered of a removed record.
    pub fn tombstone(&self, key: &RecordKey) -> Option<&Tombstone> {
        self.tombstones.get(key)
    }

    /// All tombstones, by key.
    pub fn tombstones(&self) -> impl Iterator<Item = &Tombstone> {
        self.tombstones.iter()
    }

    /// All records, by key.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The registrations of a service's instances, by instance, then key.
    pub fn by_service(&self, namespace: &str, service: &str) -> impl Iterator<Item = &Record> {
        let service = self.services.get(&ServiceName::new(namespace, service));
        service
            .into_iter()
            .flat_map(|service| service.keys())
            .filter_map(|key| self.get(key))
    }

    /// The records beside the instances of a service, by key.
    pub fn companions(&self, namespace: &str, service: &str) -> impl Iterator<Item = &Record> {
        let service = self.services.get(&ServiceName::new(namespace, service));
        service
            .into_iter()
            .flat_map(|service| service.companions())
            .filter_map(|key| self.get(key))
    }

    /// What a lease owns, by key.
    pub fn by_lease(&self, id: LeaseId) -> impl Iterator<Item = &Record> {
        self.leases.keys(id).filter_map(|key| self.get(key))
    }

    /// All services that have records, by name.
    pub fn services(&self) -> impl Iterator<Item = ServiceInfo> + '_ {
        let life = self.origin.incarnation;
        self.services
            .iter()
            .map(move |(name, service)| self.services.info(name, service, life))
    }

    /// One service.
    pub fn service(&self, namespace: &str, service: &str) -> Option<ServiceInfo> {
        let name = ServiceName::new(namespace, service);
        let service = self.services.get(&name)?;
        Some(self.services.info(&name, service, self.origin.incarnation))
    }

    /// What a subscriber of a service lacks who saw it at `since` (None: never). The answer's mark is
    /// what it asks with next time; marks given to one subscriber never fall within a life.
    pub fn catch_up(&self, namespace: &str, service: &str, since: Option<Revision>) -> CatchUp {
        let name = ServiceName::new(namespace, service);
        let life = self.origin.incarnation;
        let since = since
            .filter(|since| since.incarnation == life)
            .map(|since| since.number);
        let (number, missed) = self.services.missed(&name, since, self.changes);
        let revision = Revision {
            incarnation: life,
            number,
        };
        match missed {
            Missed::Nothing => CatchUp::Current { revision },
            Missed::Everything => {
                let records = self.by_service(namespace, service).cloned().collect();
                CatchUp::Full { revision, records }
            }
            Missed::Keys(keys) => {
                let mut changed: Vec<Record> = Vec::new();
                let mut removed = Vec::new();
                for gone in keys {
                    match self.get(&gone.key) {
                        Some(record) if !record.body.companion && record.service() == name => {
                            // A key may stand in the history under two instances.
                            if !changed.iter().any(|seen| seen.key == record.key) {
                                changed.push(record.clone());
                            }
                            if record.body.instance != gone.instance {
                                removed.push(gone);
                            }
                        }
                        _ => removed.push(gone),
                    }
                }
                CatchUp::Delta {
                    revision,
                    changed,
                    removed,
                }
            }
        }
    }

    /// The mark of the last change.
    pub fn revision(&self) -> Revision {
        Revision {
            incarnation: self.origin.incarnation,
            number: self.changes,
        }
    }

    /// The member in numbers, at constant cost.
    pub fn summary(&self) -> Summary {
        Summary {
            origin: self.origin,
            services: self.services.with_instances(),
            instances: self.services.instances(),
            registrations: self.services.registrations(),
            records: self.records.len(),
            leases: self.leases.len(),
            tombstones: self.tombstones.len(),
            revision: self.changes,
            digest: self.digest.total(),
        }
    }

    /// The digest of all records, down to its parts.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The origin logs: positions, floors, and what stands above a position.
    pub fn logs(&self) -> &OriginLogs {
        &self.logs
    }

    /// The configuration, with the incarnation of the present life.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    fn see(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// The claim, or 0 when nobody can have given it out. It may be too far ahead for this member's clock: a client was
    /// given it somewhere, and its records are ordered after it.
    fn credible(&self, claim: u64, now: u64) -> u64 {
        if self.clock.is_credible(claim, now) {
            claim
        } else {
            0
        }
    }

    fn require_open(&self, lease: Option<LeaseId>) -> Result<(), RegisterError> {
        match lease {
            Some(lease) if !self.leases.is_open(lease) => Err(RegisterError::UnknownLease(lease)),
            _ => Ok(()),
        }
    }

    /// A stamp of this member with the clock value, or above `known` when that is ahead of the clock
    /// (its writer's clock was): an action is always after what it acts on.
    fn after(&self, hlc: u64, known: Stamp) -> Stamp {
        Stamp {
            hlc: hlc.max(known.hlc.saturating_add(1)),
            member: self.origin.member,
        }
    }

    /// For the list that the change being made changes; [`Node::emit`] gives the number out.
    fn next_mark(&self, explicit: bool) -> Mark {
        Mark {
            number: self.changes + 1,
            explicit,
        }
    }

    fn known_version(&self, key: &RecordKey) -> Option<Version> {
        let record = self.records.get(key).map(Record::version);
        record.or_else(|| self.tombstones.get(key).map(Tombstone::version))
    }

    fn write_log(&mut self, key: &RecordKey) -> Dot {
        let standing = match self.records.get(key) {
            Some(record) => Some(record.dot),
            None => self.tombstones.get(key).map(|tombstone| tombstone.dot),
        };
        if standing.is_none() {
            self.place(key);
        }
        self.logs.append(self.origin, key.clone(), standing)
    }

    /// The key is here from now on.
    fn place(&mut self, key: &RecordKey) {
        self.places.insert((self.digest.key_hash(key), key.clone()));
    }

    /// The key is not here any more.
    fn displace(&mut self, key: &RecordKey) {
        self.places
            .remove(&(self.digest.key_hash(key), key.clone()));
    }

    /// A tombstone was taken out because of its age.
    fn collect(&mut self, tombstone: &Tombstone) {
        self.logs.collect(tombstone.dot);
        self.displace(&tombstone.key);
    }

    fn index(&mut self, record: &Record, mark: Option<Mark>) {
        self.digest.add(record);
        self.services.add(record, mark);
        if let Some(lease) = record.lease {
            if record.dot.origin.member == self.config.member {
                self.leases.attach(lease, record.key.clone());
            } else {
                self.leases.attach_elsewhere(lease, 0, record.key.clone());
            }
        }
    }

    fn unindex(&mut self, record: &Record, mark: Option<Mark>) {
        self.digest.remove(record);
        self.services.remove(record, mark);
        if let Some(lease) = record.lease {
            let own = record.dot.origin.member == self.config.member;
            self.leases.detach(lease, &record.key, own);
        }
    }

    /// Replaces a record by its tombstone. The caller announces it: until then the number of the
    /// change is the next one.
    fn bury(
        &mut self,
        key: &RecordKey,
        version: Version,
        explicit: bool,
        now: u64,
    ) -> Option<Record> {
        let dot = self.write_log(key);
        let record = self.records.remove(key)?;
        debug_assert_eq!(record.version().join(version), version);
        self.unindex(&record, Some(self.next_mark(explicit)));
        let tombstone = Tombstone {
            key: key.clone(),
            stamp: version.stamp,
            sub: version.sub,
            dot,
            lease: record.lease,
            namespace: record.body.namespace.clone(),
            service: record.body.service.clone(),
            instance: record.body.instance.clone(),
            pinned: false,
        };
        self.tombstones.insert(tombstone, now);
        Some(record)
    }

    /// The holder's transition of one record: same stamp, next sub-version, a new place in the log.
    fn transition(&mut self, key: &RecordKey, health: Health) -> bool {
        if !self.records.contains_key(key) {
            return false;
        }
        let dot = self.write_log(key);
        let Some(record) = self.records.get_mut(key) else {
            return false;
        };
        self.digest.remove(record);
        self.services.set_health(record, health);
        record.sub = record.version().transition().sub;
        record.dot = dot;
        record.health = health;
        self.digest.add(record);
        true
    }

    /// A lease became silent or expired: its records follow, except those that a verdict holds.
    fn fall(&mut self, id: LeaseId, state: LeaseState) {
        let expired = state == LeaseState::Expired;
        let health = if expired {
            Health::Expired
        } else {
            Health::Silent
        };
        let keys: Vec<RecordKey> = self.leases.keys(id).cloned().collect();
        for key in keys {
            let falls = self.records.get(&key).is_some_and(|record| {
                let later = match record.health {
                    Health::Live => true,
                    Health::Silent => expired,
                    Health::Expired | Health::Held => false,
                };
                // What another member holds is that member's to mark.
                later && record.dot.origin == self.origin
            });
            if falls {
                self.transition(&key, health);
            }
        }
        self.outputs.push_back(match expired {
            true => Output::LeaseExpired(id),
            false => Output::LeaseSilent(id),
        });
    }

    /// An owner was heard from: all it owns is live.
    fn revive(&mut self, id: LeaseId) {
        let keys: Vec<RecordKey> = self.leases.keys(id).cloned().collect();
        for key in keys {
            self.set_health(&key, Health::Live);
        }
    }

    fn announce(&mut self, kind: ChangeKind, records: Vec<Record>) {
        let part = |record| Change {
            kind,
            record,
            previous: None,
        };
        self.emit(records.into_iter().map(part).collect());
    }

    fn emit(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        self.changes += 1;
        self.outputs.push_back(Output::Delta(Delta {
            revision: self.revision(),
            changes,
        }));
    }

    /// Writes what this member wrote in one of its earlier lives, or in all of them, again in the present one.
    fn renew_own_writes(&mut self, of: Option<Origin>) {
        let (member, present) = (self.origin.member, self.origin);
        let own = |origin: Origin| {
            origin.member == member && origin != present && of.is_none_or(|of| of == origin)
        };
        let living: Vec<(RecordKey, Health)> = self
            .records
            .values()
            .filter(|record| own(record.dot.origin))
            .map(|record| (record.key.clone(), record.health))
            .collect();
        for (key, health) in living {
            self.transition(&key, health);
        }
        let buried: Vec<Tombstone> = self
            .tombstones
            .iter()
            .filter(|t| own(t.dot.origin))
            .cloned()
            .collect();
        for mut tombstone in buried {
            tombstone.dot = self.write_log(&tombstone.key);
            tombstone.sub = tombstone.sub.saturating_add(1);
            self.tombstones.insert(tombstone, self.now);
        }
        if !self.config.cluster {
            self.logs.retire(present);
        }
    }
}

/// What a restart must keep: everything but deadlines, indexes, histories and unsaid outputs.
#[derive(Serialize)]
struct StateRef<'a> {
    config: &'a NodeConfig,
    clock: &'a Hlc,
    records: Vec<&'a Record>,
    tombstones: Vec<&'a Tombstone>,
    leases: Vec<SavedLease>,
    vector: &'a VersionVector,
    floors: &'a VersionVector,
    past: &'a BTreeMap<u16, u64>,
    elsewhere: Vec<(LeaseId, u64)>,
}

#[derive(Deserialize)]
struct State {
    config: NodeConfig,
    clock: Hlc,
    records: Vec<Record>,
    tombstones: Vec<Tombstone>,
    leases: Vec<SavedLease>,
    vector: VersionVector,
    floors: VersionVector,
    past: BTreeMap<u16, u64>,
    /// Leases whose owners are connected to other members, with their timeouts.
    elsewhere: Vec<(LeaseId, u64)>,
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = StateRef {
            config: &self.config,
            clock: &self.clock,
            records: self.records.values().collect(),
            tombstones: self.tombstones.iter().collect(),
            leases: self.leases.save(),
            vector: self.logs.vector(),
            floors: self.logs.floors(),
            past: self.logs.past(),
            elsewhere: self.leases.elsewhere(),
        };
        state.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Node {
    /// The leases have no deadlines yet: [`Node::restart`] comes before anything else.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let state = State::deserialize(deserializer)?;
        let mut node = Node::new(state.config);
        node.clock = state.clock;
        node.logs = OriginLogs::resume(state.vector, state.floors, state.past);
        for lease in &state.leases {
            node.leases.restore(lease);
        }
        for (id, ttl_ms) in state.elsewhere {
            node.leases.restore_elsewhere(id, ttl_ms);
        }
        for record in state.records {
            if node.records.contains_key(&record.key) {
                return Err(de::Error::custom(format!("{} is saved twice", record.key)));
            }
            if let Some(lease) = record.lease
                && node.leases.ttl(lease).is_none()
            {
                // Without its owner nothing would ever end it.
                return Err(de::Error::custom(format!(
                    "{} names no saved lease",
                    record.key
                )));
            }
            let own = record.dot.origin.member == node.config.member;
            node.logs.restore(record.dot, record.key.clone(), own);
            node.place(&record.key);
            node.index(&record, None);
            node.records.insert(record.key.clone(), record);
        }
        for tombstone in state.tombstones {
            let twice = node.records.contains_key(&tombstone.key)
                || node.tombstones.get(&tombstone.key).is_some();
            if twice {
                return Err(de::Error::custom(format!(
                    "{} is saved twice",
                    tombstone.key
                )));
            }
            let own = tombstone.dot.origin.member == node.config.member;
            node.logs.restore(tombstone.dot, tombstone.key.clone(), own);
            node.place(&tombstone.key);
            node.tombstones.insert(tombstone, 0);
        }
        node.leases.drop_empty_over();
        Ok(node)
    }
}

mod replicate;
#[cfg(test)]
mod tests;
