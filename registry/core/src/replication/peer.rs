//! What is known of one peer: a cursor and a few marks, never a queue of changes.

use std::collections::{BTreeSet, VecDeque};

use super::message::{Load, MemberId, Message, Readiness, Stale};
use super::{Detected, OriginState};
use crate::digest::Cell;
use crate::origin::{Origin, VersionVector};

/// How many requests of a peer wait for their answer at most; it repeats what was dropped.
const MAX_REQUESTS: usize = 16;

/// How many pushed batches are on their way at most, however small they are.
const MAX_PUSHES: usize = 64;

/// One peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) connected: bool,
    /// The life that was heard last.
    pub(super) origin: Option<Origin>,
    /// The number of its last heartbeat.
    pub(super) beat: u64,
    /// When it was heard last; before the first time, since when it is known.
    pub(super) heard_at: u64,
    /// When its present life was heard first.
    pub(super) life_since: u64,
    /// Three heartbeats are missing.
    pub(super) silent: bool,
    pub(super) detected: Detected,
    /// Silent, and the detector agrees.
    pub(super) down: bool,
    /// It was said that it is up.
    pub(super) up_said: bool,
    /// Its process was proved to be dead.
    pub(super) proved_dead: bool,
    /// What it had when it was first heard as a member that serves.
    pub(super) joined: Option<VersionVector>,
    pub(super) readiness: Readiness,
    pub(super) bootstrapping: bool,
    pub(super) vector: VersionVector,
    pub(super) floors: VersionVector,
    pub(super) cells: Vec<(Origin, Cell)>,
    pub(super) hears: Vec<MemberId>,
    pub(super) load: Load,
    /// By how much its clock was ahead at its last heartbeat.
    pub(super) ahead_ms: u64,
    pub(super) clock_ahead: bool,
    pub(super) quarantined: bool,
    /// Heartbeats in a row with an equal vector and another digest.
    pub(super) mismatches: u32,
    /// Up to where the peer has this member's log.
    pub(super) acked: u64,
    /// Up to where it was sent.
    pub(super) sent: u64,
    /// What was sent and not acknowledged: where each batch ends, and its size.
    flying: VecDeque<(u64, usize)>,
    flying_bytes: usize,
    /// When the oldest of them was sent, or the last acknowledgement came.
    pushed_at: u64,
    /// Logs that the peer is owed an acknowledgement of.
    pub(super) ack_due: BTreeSet<Origin>,
    pub(super) heartbeat_due: bool,
    pub(super) stale_due: Option<Stale>,
    /// Requests of the peer, which are answered when there is room.
    requests: VecDeque<Message>,
    /// What this member asked of the peer.
    pub(super) pull: Option<Pulling>,
}

/// A pull on its way.
#[derive(Clone, Debug)]
pub(super) struct Pulling {
    pub(super) id: u32,
    pub(super) origins: BTreeSet<Origin>,
    /// None: not sent yet.
    pub(super) sent_at: Option<u64>,
}

impl Peer {
    pub(super) fn new(now: u64) -> Self {
        Peer {
            connected: false,
            origin: None,
            beat: 0,
            heard_at: now,
            life_since: now,
            silent: false,
            detected: Detected::Alive,
            down: false,
            up_said: false,
            proved_dead: false,
            joined: None,
            readiness: Readiness::Init,
            bootstrapping: false,
            vector: VersionVector::default(),
            floors: VersionVector::default(),
            cells: Vec::new(),
            hears: Vec::new(),
            load: Load::default(),
            ahead_ms: 0,
            clock_ahead: false,
            quarantined: false,
            mismatches: 0,
            acked: 0,
            sent: 0,
            flying: VecDeque::new(),
            flying_bytes: 0,
            pushed_at: now,
            ack_due: BTreeSet::new(),
            heartbeat_due: false,
            stale_due: None,
            requests: VecDeque::new(),
            pull: None,
        }
    }

    /// What was on its way over an earlier stream is lost.
    pub(super) fn connect(&mut self) {
        self.disconnect();
        self.connected = true;
    }

    pub(super) fn disconnect(&mut self) {
        self.connected = false;
        self.rewind();
        self.ack_due.clear();
        self.heartbeat_due = false;
        self.stale_due = None;
        self.requests.clear();
        self.pull = None;
    }

    /// Another life of the peer: nothing that the last one said holds.
    pub(super) fn begin_life(&mut self, origin: Origin, now: u64) {
        self.origin = Some(origin);
        self.beat = 0;
        self.life_since = now;
        self.proved_dead = false;
        self.acked = 0;
        self.mismatches = 0;
        self.joined = None;
        self.rewind();
        self.pull = None;
    }

    /// The cursor goes back to what is acknowledged.
    pub(super) fn rewind(&mut self) {
        self.sent = self.acked;
        self.flying.clear();
        self.flying_bytes = 0;
    }

    /// The peer has this member's log up to `through`.
    pub(super) fn acknowledge(&mut self, through: u64, now: u64) {
        if through <= self.acked {
            return;
        }
        self.acked = through;
        self.pushed_at = now;
        self.sent = self.sent.max(through);
        while let Some((end, bytes)) = self.flying.front().copied()
            && end <= through
        {
            self.flying.pop_front();
            self.flying_bytes -= bytes;
        }
    }

    /// True when another batch may be pushed.
    pub(super) fn has_credit(&self, window: usize) -> bool {
        self.flying.len() < MAX_PUSHES && self.flying_bytes < window
    }

    pub(super) fn pushed(&mut self, through: u64, bytes: usize, now: u64) {
        if self.flying.is_empty() {
            self.pushed_at = now;
        }
        self.sent = through;
        self.flying.push_back((through, bytes));
        self.flying_bytes += bytes;
    }

    /// Nothing came back for so long that what was pushed or asked for counts as lost.
    pub(super) fn give_up(&mut self, timeout_ms: u64, now: u64) {
        let late = |since: u64| since.saturating_add(timeout_ms) <= now;
        if !self.flying.is_empty() && late(self.pushed_at) {
            self.rewind();
        }
        if self
            .pull
            .as_ref()
            .is_some_and(|pull| pull.sent_at.is_some_and(late))
        {
            self.pull = None;
        }
    }

    /// When [`Peer::give_up`] has something to do.
    pub(super) fn next_loss(&self, timeout_ms: u64) -> Option<u64> {
        let push = (!self.flying.is_empty()).then_some(self.pushed_at);
        let pull = self.pull.as_ref().and_then(|pull| pull.sent_at);
        let first = push.into_iter().chain(pull).min()?;
        Some(first.saturating_add(timeout_ms))
    }

    /// A request to answer; too many at once are dropped.
    pub(super) fn ask(&mut self, request: Message) {
        if self.requests.len() < MAX_REQUESTS {
            self.requests.push_back(request);
        }
    }

    pub(super) fn next_request(&mut self) -> Option<Message> {
        self.requests.pop_front()
    }

    /// What a heartbeat says of the logs.
    pub(super) fn learn(&mut self, origins: &[OriginState]) {
        let through = |state: &OriginState| (state.origin, state.through);
        self.vector = origins.iter().map(through).collect::<Vec<_>>().into();
        let floor = |state: &OriginState| (state.origin, state.floor);
        self.floors = origins.iter().map(floor).collect::<Vec<_>>().into();
        self.cells = origins
            .iter()
            .map(|state| (state.origin, state.live))
            .collect();
    }
}
