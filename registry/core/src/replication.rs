//! Replication between members, as a state machine beside [`Node`].
//!
//! The replicator owns no table: each call is handed the member's [`Node`], which may live inside another state.
//!
//! Inputs: [`Replicator::set_members`], [`Replicator::handle_connected`], [`Replicator::handle_disconnected`],
//! [`Replicator::handle_detector`], [`Replicator::handle_message`], [`Replicator::handle_timeout`]. After each input, and
//! after each change of the node, [`Replicator::poll_transmit`] and [`Replicator::poll_output`] are called until they
//! return None (a shell whose stream to a peer is full may leave that peer's messages for later by not polling; nothing
//! piles up here, since a peer is a cursor and not a queue). Timer: [`Replicator::next_timeout`].
//!
//! `now` is the same clock as the node's.

mod liveness;
mod lives;
pub mod message;
mod peer;
mod repair;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::origin::Origin;
use crate::record::{RecordKey, Version};
pub use liveness::rule_of_members;
use message::OriginState;
pub use message::{
    Load, MAX_MESSAGE_BYTES, MemberId, Message, Readiness, SEGMENTS, Stale, Violation,
};
use peer::Peer;

/// Durations, in milliseconds, and budgets, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicationConfig {
    /// Between two heartbeats.
    pub period_ms: u64,
    /// How many heartbeats have to be missing before a peer counts as not heard.
    pub missed: u64,
    /// What one batch or one piece of a segment holds.
    pub batch_bytes: usize,
    /// From how many records on a member that starts with less than half of them takes the whole table over, segment by
    /// segment, rather than the logs.
    pub snapshot_records: u64,
    /// What is on its way to a peer without having been acknowledged.
    pub window_bytes: usize,
    /// When a request without an answer, or a push without an acknowledgement, counts as lost.
    pub request_timeout_ms: u64,
    /// How old a tombstone that every member has seen must be before it is collected.
    pub tombstone_settled_ms: u64,
    /// How long a member that nobody can be reached from waits before it serves what it has.
    pub alone_ms: u64,
    /// How long it then says that its lists may be incomplete, and how long a start may take in all.
    pub warming_ms: u64,
    /// How long records of a member that is not heard are kept without proof of its death.
    pub orphan_ms: u64,
    /// How long beyond its own timeout such a record is kept at least.
    pub orphan_margin_ms: u64,
    /// How long the members wait, one after the other, before they take over what a forgotten one left.
    pub inherit_ms: u64,
    /// How long without a majority before that is said.
    pub minority_ms: u64,
    /// A clock that is further ahead than this is worth an alarm.
    pub skew_alarm_ms: u64,
    /// A peer whose clock is further ahead than this is in quarantine: nothing is taken from it.
    pub skew_quarantine_ms: u64,
    /// For simulations that show that their checks can fail: which rules are switched off.
    #[cfg(any(test, feature = "weakened"))]
    #[serde(skip)]
    pub weakened: Weakened,
}

/// Rules that a simulation switches off to see that its checks find it.
#[cfg(any(test, feature = "weakened"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weakened {
    /// An exchange takes what the other side has and drops nothing.
    pub no_dot_rule: bool,
    /// Collecting a tombstone raises no floor that others are told of.
    pub no_floors: bool,
}

impl Default for ReplicationConfig {
    fn default() -> Self {
        ReplicationConfig {
            period_ms: 1_000,
            missed: 3,
            batch_bytes: 256 << 10,
            snapshot_records: 1_000,
            window_bytes: 1 << 20,
            request_timeout_ms: 2_000,
            tombstone_settled_ms: 60_000,
            alone_ms: 5_000,
            warming_ms: 30_000,
            orphan_ms: 15 * 60_000,
            orphan_margin_ms: 10_000,
            inherit_ms: 10_000,
            minority_ms: 10_000,
            skew_alarm_ms: 500,
            skew_quarantine_ms: 24 * 3_600_000,
            #[cfg(any(test, feature = "weakened"))]
            weakened: Weakened::default(),
        }
    }
}

/// What the membership protocol (SWIM) says of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detected {
    /// It answers somebody.
    Alive,
    /// Nobody could reach it, or it left.
    Down,
}

/// What is known of one life of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OriginStatus {
    /// It is heard, or nothing says that it is gone.
    Active,
    /// It is down, or a later life of its member appeared. Its records stay visible.
    Silent,
    /// Over and done with: what it wrote is ignored.
    Past,
}

/// What the replicator has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicationOutput {
    /// The member's own readiness changed.
    Readiness(Readiness),
    /// A peer is down: the direct heartbeat and the detector agree.
    PeerDown(MemberId),
    /// A peer is heard again, or for the first time.
    PeerUp(MemberId),
    /// The records of this life have no holder who is heard.
    OriginSilent(Origin),
    /// A silent life is heard again.
    OriginReturned(Origin),
    /// What this life wrote is over: its member was forgotten, or its next life took everything over.
    OriginPast(Origin),
    /// Too many members are silent: nothing is removed by expiry.
    ProtectionEntered {
        /// How many members are not heard.
        silent: usize,
        /// How many there are, with this one.
        members: usize,
    },
    /// Enough members are heard again; every lease began anew.
    ProtectionLeft,
    /// Less than a majority of the members is heard.
    MajorityLost,
    /// A majority is heard again.
    MajorityRegained,
    /// The clock of a peer is ahead of this member's by more than the limit. Said once per episode.
    ClockAhead {
        /// Whose.
        peer: MemberId,
        /// By how much, in milliseconds.
        ahead_ms: u64,
    },
    /// Most clocks are ahead of this member's by more than an hour: it is this one that is wrong. Stamps follow the
    /// others' from now on.
    ClockBehind {
        /// By how much at least, in milliseconds.
        behind_ms: u64,
    },
    /// The clock of a peer is absurd: nothing is taken from it until that ends.
    QuarantineEntered {
        /// Whose.
        peer: MemberId,
        /// By how much, in milliseconds.
        ahead_ms: u64,
    },
    /// The clock of the peer is credible again.
    QuarantineLeft(MemberId),
    /// This member took a new incarnation: it was forgotten, or known with a higher one. Everything it holds was
    /// written again under it. The shell keeps it for the next start.
    Renewed(Origin),
    /// This member is not in the list of members any more, says this peer: it must stop serving until it joined again.
    Forgotten {
        /// Who says so.
        by: MemberId,
    },
    /// Two living processes have this member id. `refused` is the life that has to stop; when it is this member's own,
    /// it must stop serving at once.
    DuplicateMember {
        /// The id.
        member: MemberId,
        /// The lower of the two incarnations.
        refused: u64,
    },
    /// Two members with equal vectors hold different records: a fault, which the exchange that follows heals.
    DigestMismatch(MemberId),
    /// An exchange with a peer is complete: what the digests told apart is equal now.
    ExchangeDone {
        /// With whom.
        peer: MemberId,
        /// Records taken over.
        taken: u64,
        /// Records dropped because the peer had seen their removal.
        dropped: u64,
    },
    /// The holder's marks (silent, expired, back again) of these records arrived; their content is the same.
    Marked(Vec<RecordKey>),
}

/// A record whose holder is not heard, ready to be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The record.
    pub key: RecordKey,
    /// As it was seen: a verdict on it is void once it changed.
    pub version: Version,
    /// Who held it.
    pub origin: Origin,
}

/// Replication of one member: see the module's documentation for the calling order.
#[derive(Clone, Debug)]
pub struct Replicator {
    config: ReplicationConfig,
    me: Origin,
    /// The council's list, this member among them.
    members: BTreeSet<MemberId>,
    /// Everybody who is in the list or connected.
    peers: BTreeMap<MemberId, Peer>,
    readiness: Readiness,
    load: Load,
    /// Numbers the heartbeats.
    sequence: u64,
    next_beat: Option<u64>,
    next_settle: u64,
    last_timeout: Option<u64>,
    /// No peer is judged before this time.
    judge_from: u64,
    started: Option<u64>,
    next_request: u32,
    /// Per origin that somebody knows more of: since when, and what was known here then.
    lags: BTreeMap<Origin, Lag>,
    lives: lives::Lives,
    repair: repair::Repair,
    standing: liveness::Standing,
    outputs: VecDeque<ReplicationOutput>,
    now: u64,
}

/// An origin of which a peer knows more.
#[derive(Clone, Copy, Debug)]
struct Lag {
    since: u64,
    at: u64,
}

impl Replicator {
    /// A member that knows nobody yet. `me` is the node's origin.
    pub fn new(config: ReplicationConfig, me: Origin) -> Self {
        Replicator {
            config,
            me,
            members: BTreeSet::new(),
            peers: BTreeMap::new(),
            readiness: Readiness::Init,
            load: Load::default(),
            sequence: 0,
            next_beat: None,
            next_settle: 0,
            last_timeout: None,
            judge_from: 0,
            started: None,
            next_request: 0,
            lags: BTreeMap::new(),
            lives: lives::Lives::default(),
            repair: repair::Repair::default(),
            standing: liveness::Standing::default(),
            outputs: VecDeque::new(),
            now: 0,
        }
    }

    /// The list of members, this one among them, as the council decided it. Who was in it and is not any more is
    /// forgotten. A list of this member alone makes it ready at once.
    pub fn set_members(&mut self, node: &mut Node, members: &[MemberId], now: u64) {
        let now = self.see(node, now);
        let members: BTreeSet<MemberId> = members.iter().copied().chain([self.me.member]).collect();
        let left: Vec<MemberId> = self.members.difference(&members).copied().collect();
        for member in left {
            self.forget(node, member, now);
        }
        for member in &members {
            self.lives.remember(*member);
            if *member != self.me.member {
                self.peers.entry(*member).or_insert_with(|| Peer::new(now));
            }
        }
        self.members = members;
        self.peers
            .retain(|id, peer| peer.connected || self.members.contains(id));
        if self.members.len() == 1 {
            self.become_ready();
        }
        self.judge(node, now);
    }

    /// A stream to a peer is open. One peer has one stream: a second one replaces the first.
    pub fn handle_connected(&mut self, node: &mut Node, peer: MemberId, now: u64) {
        let now = self.see(node, now);
        if peer == self.me.member {
            return;
        }
        let beat_ms = self.config.period_ms;
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(now));
        known.connect();
        // The first heartbeat goes at once: it says what the peer has to bring.
        known.heartbeat_due = true;
        self.lose_exchange(peer);
        self.next_beat.get_or_insert(now.saturating_add(beat_ms));
    }

    /// The stream to a peer is gone, with everything that was on its way.
    pub fn handle_disconnected(&mut self, node: &mut Node, peer: MemberId, now: u64) {
        self.see(node, now);
        if let Some(known) = self.peers.get_mut(&peer) {
            known.disconnect();
        }
        self.lose_exchange(peer);
        if !self.members.contains(&peer) {
            self.peers.remove(&peer);
        }
    }

    /// The membership protocol's opinion of a peer. Before the first one a peer counts as alive.
    pub fn handle_detector(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        detected: Detected,
        now: u64,
    ) {
        let now = self.see(node, now);
        if let Some(known) = self.peers.get_mut(&peer) {
            known.detected = detected;
        }
        self.judge(node, now);
    }

    /// A message from the peer at the other end of a stream.
    ///
    /// # Errors
    /// The peer breaks the rules: nothing was taken, and the stream is to be closed.
    pub fn handle_message(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        message: Message,
        now: u64,
    ) -> Result<(), Violation> {
        let now = self.see(node, now);
        if peer == self.me.member {
            return Err(Violation::OwnId);
        }
        message.check()?;
        let Some(known) = self.peers.get(&peer).filter(|known| known.connected) else {
            // Overtaken by the end of its stream.
            return Ok(());
        };
        let quarantined = known.quarantined;
        match message {
            Message::Heartbeat(heartbeat) => self.heartbeat(node, peer, heartbeat, now),
            _ if quarantined => Ok(()),
            Message::Stale(stale) => {
                self.stale(node, peer, stale, now);
                Ok(())
            }
            Message::Batch(batch) => self.batch(node, peer, batch, now),
            Message::Ack(ack) => {
                self.ack(peer, &ack.origins);
                Ok(())
            }
            Message::Pull(_)
            | Message::DigestRequest(_)
            | Message::PartsRequest(_)
            | Message::SegmentRequest(_) => {
                self.serve(peer, message);
                Ok(())
            }
            Message::DigestReply(reply) => {
                self.digest_reply(node, peer, &reply);
                Ok(())
            }
            Message::PartsReply(reply) => {
                self.parts_reply(node, peer, &reply);
                Ok(())
            }
            Message::SegmentReply(reply) => self.segment_reply(node, peer, reply, now),
        }
    }

    /// Lets time pass: heartbeats, judgement of peers, repeats of what was lost, collection of tombstones. The node's own
    /// [`Node::handle_timeout`] is called by the shell, before this.
    pub fn handle_timeout(&mut self, node: &mut Node, now: u64) {
        let now = self.see(node, now);
        self.last_timeout = Some(now);
        if self.next_beat.is_none_or(|due| due <= now) {
            let next = self.next_beat.unwrap_or(now) + self.config.period_ms;
            self.next_beat = Some(if next > now {
                next
            } else {
                now + self.config.period_ms
            });
            for peer in self.peers.values_mut().filter(|peer| peer.connected) {
                peer.heartbeat_due = true;
            }
        }
        if self.next_settle <= now {
            self.next_settle = now + self.config.period_ms;
            self.settle(node, now);
        }
        self.judge(node, now);
        self.repeat_lost(now);
        self.repeat_exchange(now);
        self.choose_exchange(node, now);
        self.choose_pulls(node, now);
    }

    /// When [`Replicator::handle_timeout`] is wanted next: once per period at least, so that a pause is noticed.
    pub fn next_timeout(&self) -> Option<u64> {
        let Some(beat) = self.next_beat else {
            return Some(self.now);
        };
        let lost = self
            .peers
            .values()
            .filter_map(|peer| peer.next_loss(self.config.request_timeout_ms));
        let judged = self.next_judgement();
        lost.chain(judged)
            .chain(self.next_repeat())
            .chain([beat])
            .min()
    }

    /// The next message to send, and to whom. Only connected peers are named.
    pub fn poll_transmit(&mut self, node: &mut Node) -> Option<(MemberId, Message)> {
        let ids: Vec<MemberId> = self.peers.keys().copied().collect();
        ids.into_iter()
            .find_map(|id| Some((id, self.poll_transmit_to(node, id)?)))
    }

    /// The same for one peer, for a shell that has a stream with room.
    pub fn poll_transmit_to(&mut self, node: &mut Node, peer: MemberId) -> Option<Message> {
        if self.lives.refused() || !self.peers.get(&peer)?.connected {
            return None;
        }
        self.transmit(node, peer)
    }

    /// The next thing to say.
    pub fn poll_output(&mut self) -> Option<ReplicationOutput> {
        self.outputs.pop_front()
    }

    /// What this member carries, for the next heartbeat.
    pub fn set_load(&mut self, connections: u32) {
        self.load.connections = connections;
    }

    /// Where this member stands in its start.
    pub fn readiness(&self) -> Readiness {
        self.readiness
    }

    /// How many peers have everything that this member wrote up to `sequence` of its own log.
    pub fn stored_by(&self, sequence: u64) -> usize {
        self.peers
            .values()
            .filter(|peer| peer.acked >= sequence)
            .count()
    }

    fn see(&mut self, node: &Node, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.started.get_or_insert(self.now);
        // Also by the first message after a pause, before it is believed that everybody else fell silent.
        self.notice_pause(self.now);
        if self.me != node.origin() {
            // The node began a new life beside this machine.
            self.begin_life(node.origin());
        }
        self.now
    }

    fn begin_life(&mut self, me: Origin) {
        self.me = me;
        self.drop_exchange();
        for peer in self.peers.values_mut() {
            peer.acked = 0;
            peer.rewind();
        }
    }

    fn become_ready(&mut self) {
        self.set_readiness(Readiness::Ready);
    }

    fn set_readiness(&mut self, readiness: Readiness) {
        if self.readiness != readiness {
            self.readiness = readiness;
            self.outputs
                .push_back(ReplicationOutput::Readiness(readiness));
        }
    }

    fn say(&mut self, output: ReplicationOutput) {
        self.outputs.push_back(output);
    }
}
