//! Logs on their way: heartbeats, pushes, pulls, acknowledgements.
//!
//! A member pushes its own log to every peer. Another's log is pulled, when its writer does not bring it: any member can
//! give any log, so that what a dying member wrote, or one that cannot be reached, still gets around.

use std::collections::BTreeSet;

use super::message::{
    Ack, Batch, Heartbeat, Load, MemberId, Message, OriginState, Piece, Pull, Readiness, Violation,
};
use super::peer::Pulling;
use super::{Lag, ReplicationOutput, Replicator};
use crate::merge::{Entry, Value};
use crate::node::Node;
use crate::origin::{Origin, VersionVector};

impl Replicator {
    /// A heartbeat of a peer.
    pub(super) fn heartbeat(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        heartbeat: Heartbeat,
        now: u64,
    ) -> Result<(), Violation> {
        if heartbeat.origin.member != peer {
            return Err(Violation::WrongSender(peer, heartbeat.origin.member));
        }
        if !self.present_life(node, &heartbeat, now) {
            return Ok(());
        }
        let Some(known) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        if known.origin != Some(heartbeat.origin) {
            known.begin_life(heartbeat.origin, now);
            self.lose_exchange(peer);
        }
        let Some(known) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        if heartbeat.sequence <= known.beat {
            // Late or repeated.
            return Ok(());
        }
        known.beat = heartbeat.sequence;
        known.heard_at = now;
        known.proved_dead = false;
        if !self.credible_clock(node, peer, heartbeat.wall_ms, now) {
            return Ok(());
        }
        node.observe_clock(heartbeat.hlc, now);
        let Some(known) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        known.readiness = heartbeat.readiness;
        known.bootstrapping = heartbeat.bootstrapping;
        known.load = heartbeat.load;
        known.hears = heartbeat.hears;
        known.learn(&heartbeat.origins);
        if Self::serving(known.readiness) && known.joined.is_none() {
            known.joined = Some(known.vector.clone());
        }
        let acked = known.vector.get(self.me);
        known.acknowledge(acked, now);
        self.hear_past(heartbeat.origin, &heartbeat.past);
        self.judge(node, now);
        self.notice_lags(node, now);
        self.compare_digests(node, peer);
        self.choose_exchange(node, now);
        self.choose_pulls(node, now);
        Ok(())
    }

    /// Entries of logs.
    pub(super) fn batch(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        batch: Batch,
        now: u64,
    ) -> Result<(), Violation> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut reached: Vec<(Origin, u64)> = Vec::new();
        let mut named: BTreeSet<Origin> = BTreeSet::new();
        for piece in batch.pieces {
            let origin = piece.origin;
            named.insert(origin);
            let at = node.logs().vector().get(origin);
            let wanted = self.takes(node, origin) && piece.after <= at;
            if wanted && piece.through > at {
                reached.push((origin, piece.through));
                entries.extend(
                    piece
                        .entries
                        .into_iter()
                        .filter(|entry| entry.dot.sequence > at),
                );
            }
        }
        self.merge(node, entries, now)?;
        for (origin, through) in reached {
            node.reach(origin, through);
            self.lags.remove(&origin);
        }
        let Some(known) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        known.ack_due.extend(named);
        if known
            .pull
            .as_ref()
            .is_some_and(|pull| pull.id == batch.pull)
        {
            known.pull = None;
            if batch.more {
                self.choose_pulls(node, now);
            }
        }
        Ok(())
    }

    /// Puts entries into the table, and says what the holder's marks changed.
    pub(super) fn merge(
        &mut self,
        node: &mut Node,
        entries: Vec<Entry>,
        now: u64,
    ) -> Result<usize, Violation> {
        match node.merge(entries, now) {
            Ok(merged) => {
                if !merged.marked.is_empty() {
                    self.say(ReplicationOutput::Marked(merged.marked));
                }
                Ok(merged.taken)
            }
            Err(dot) => {
                self.say(ReplicationOutput::DuplicateMember {
                    member: dot.origin.member,
                    refused: dot.origin.incarnation,
                });
                Err(Violation::DoubleWrite(dot))
            }
        }
    }

    /// True when entries of this log may be taken: it is nobody's past, and not this member's own. Another process that
    /// writes as this member is found out before anything of it is taken.
    pub(super) fn takes(&self, node: &Node, origin: Origin) -> bool {
        let own = origin.member == self.me.member && origin.incarnation >= self.me.incarnation;
        !own && !node.logs().is_past(origin)
    }

    pub(super) fn ack(&mut self, peer: MemberId, origins: &[(Origin, u64)]) {
        let (me, now) = (self.me, self.now);
        if let Some(known) = self.peers.get_mut(&peer) {
            for (origin, through) in origins {
                known.vector.raise(*origin, *through);
                if *origin == me {
                    known.acknowledge(*through, now);
                }
            }
        }
    }

    pub(super) fn serve(&mut self, peer: MemberId, request: Message) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.ask(request);
        }
    }

    pub(super) fn repeat_lost(&mut self, now: u64) {
        let timeout = self.config.request_timeout_ms;
        for peer in self.peers.values_mut() {
            peer.give_up(timeout, now);
        }
    }

    /// Keeps, per log that some peer knows more of, since when nothing of it came.
    pub(super) fn notice_lags(&mut self, node: &Node, now: u64) {
        let mut lags = std::mem::take(&mut self.lags);
        let mut behind: BTreeSet<Origin> = BTreeSet::new();
        for peer in self.peers.values().filter(|peer| peer.connected) {
            for (origin, through) in peer.vector.iter() {
                let at = node.logs().vector().get(origin);
                if through > at && self.takes(node, origin) {
                    behind.insert(origin);
                    let lag = lags.entry(origin).or_insert(Lag { since: now, at });
                    if lag.at != at {
                        *lag = Lag { since: now, at };
                    }
                }
            }
        }
        lags.retain(|origin, _| behind.contains(origin));
        self.lags = lags;
    }

    /// Asks peers for logs that their writers do not bring.
    pub(super) fn choose_pulls(&mut self, node: &Node, now: u64) {
        if self.is_bootstrapping() {
            return;
        }
        let mut asked: BTreeSet<Origin> = self
            .peers
            .values()
            .filter_map(|peer| peer.pull.as_ref())
            .flat_map(|pull| pull.origins.iter().copied())
            .collect();
        let wanted: Vec<Origin> = self
            .lags
            .iter()
            .filter(|(origin, lag)| {
                !self.is_brought(**origin)
                    || lag.since.saturating_add(2 * self.config.period_ms) <= now
            })
            .map(|(origin, _)| *origin)
            .collect();
        for peer in self.peers.values_mut() {
            if !peer.connected || peer.quarantined || peer.pull.is_some() {
                continue;
            }
            let gives = |origin: &&Origin| {
                let at = node.logs().vector().get(**origin);
                !asked.contains(origin)
                    && peer.vector.get(**origin) > at
                    && peer.floors.get(**origin) <= at
            };
            let origins: BTreeSet<Origin> = wanted.iter().filter(gives).copied().collect();
            if origins.is_empty() {
                continue;
            }
            asked.extend(&origins);
            self.next_request = self.next_request.wrapping_add(1).max(1);
            peer.pull = Some(Pulling {
                id: self.next_request,
                origins,
                sent_at: None,
            });
        }
    }

    /// True when the writer of a log is connected and brings it by itself.
    fn is_brought(&self, origin: Origin) -> bool {
        self.peers
            .get(&origin.member)
            .is_some_and(|peer| peer.connected && !peer.silent && peer.origin == Some(origin))
    }

    /// The next message for a connected peer.
    pub(super) fn transmit(&mut self, node: &mut Node, id: MemberId) -> Option<Message> {
        let now = self.now;
        let peer = self.peers.get_mut(&id)?;
        if let Some(stale) = peer.stale_due.take() {
            return Some(Message::Stale(stale));
        }
        if std::mem::take(&mut peer.heartbeat_due) {
            return Some(Message::Heartbeat(self.make_heartbeat(node)));
        }
        if peer.quarantined {
            return None;
        }
        if !peer.ack_due.is_empty() {
            let origins = std::mem::take(&mut peer.ack_due);
            let vector = node.logs().vector();
            return Some(Message::Ack(Ack {
                origins: origins
                    .into_iter()
                    .map(|origin| (origin, vector.get(origin)))
                    .collect(),
            }));
        }
        if let Some(pull) = peer.pull.as_mut().filter(|pull| pull.sent_at.is_none()) {
            pull.sent_at = Some(now);
            let vector = node.logs().vector();
            let at = |origin: &Origin| (*origin, vector.get(*origin));
            return Some(Message::Pull(Pull {
                id: pull.id,
                after: pull.origins.iter().map(at).collect(),
            }));
        }
        if let Some(request) = self.exchange_request(node, id) {
            return Some(request);
        }
        while let Some(request) = self.peers.get_mut(&id)?.next_request() {
            if let Some(answer) = self.answer(node, request) {
                return Some(answer);
            }
        }
        self.push(node, id)
    }

    fn answer(&self, node: &Node, request: Message) -> Option<Message> {
        match request {
            Message::Pull(pull) => Some(self.answer_pull(node, &pull)),
            request => self.answer_exchange(node, request),
        }
    }

    /// The next piece of this member's own log for a peer.
    fn push(&mut self, node: &Node, id: MemberId) -> Option<Message> {
        let (me, now) = (self.me, self.now);
        let head = node.logs().vector().get(me);
        let floor = self.floor(node, me);
        let peer = self.peers.get_mut(&id)?;
        let wanted = peer.sent < head && !peer.bootstrapping && peer.origin.is_some();
        // Below the floor the log alone does not bring the peer up to date: it asks for an exchange.
        if !wanted || peer.sent < floor || !peer.has_credit(self.config.window_bytes) {
            return None;
        }
        let (piece, bytes, _) = piece(node, me, peer.sent, self.config.batch_bytes);
        peer.pushed(piece.through, bytes, now);
        Some(Message::Batch(Batch {
            pull: 0,
            pieces: vec![piece],
            more: false,
        }))
    }

    /// Every log that was asked for gets an equal share of the batch, and what one does not use goes to the next: a
    /// large log does not starve a small one.
    fn answer_pull(&self, node: &Node, pull: &Pull) -> Message {
        let mut pieces = Vec::new();
        let mut more = false;
        let mut left = self.config.batch_bytes;
        let mut logs = pull.after.len();
        // The shortest first, so that what they leave over is shared by the others.
        let mut after = pull.after.clone();
        after.sort_by_key(|(origin, at)| {
            (
                node.logs().vector().get(*origin).saturating_sub(*at),
                *origin,
            )
        });
        for (origin, at) in after {
            let share = left / logs.max(1);
            logs = logs.saturating_sub(1);
            let head = node.logs().vector().get(origin);
            if at >= head || at < self.floor(node, origin) {
                continue;
            }
            let (piece, bytes, cut) = piece(node, origin, at, share);
            left = left.saturating_sub(bytes);
            more |= cut;
            pieces.push(piece);
        }
        pieces.sort_by_key(|piece| piece.origin);
        Message::Batch(Batch {
            pull: pull.id,
            pieces,
            more,
        })
    }

    pub(super) fn make_heartbeat(&mut self, node: &Node) -> Heartbeat {
        self.sequence += 1;
        let (hlc, wall_ms) = node.clock(self.now);
        let state = |(origin, through): (Origin, u64)| OriginState {
            origin,
            through,
            floor: self.floor(node, origin),
            live: node.digest().origin(origin),
        };
        let hears = |(id, peer): (&MemberId, &super::Peer)| {
            (peer.origin.is_some() && !peer.silent).then_some(*id)
        };
        let held = node.digest().origin(self.me).count;
        Heartbeat {
            origin: self.me,
            sequence: self.sequence,
            hlc,
            wall_ms,
            readiness: self.readiness,
            protected: self.is_protected(),
            bootstrapping: self.is_bootstrapping(),
            origins: node.logs().vector().iter().map(state).collect(),
            past: self.told_past(node),
            hears: self.peers.iter().filter_map(hears).collect(),
            load: Load {
                held: u32::try_from(held).unwrap_or(u32::MAX),
                ..self.load
            },
        }
    }

    pub(super) fn floor(&self, node: &Node, origin: Origin) -> u64 {
        #[cfg(any(test, feature = "weakened"))]
        if self.config.weakened.no_floors {
            return 0;
        }
        node.logs().floors().get(origin)
    }

    /// What every member of the list has of each log, this one too: nothing of a log that a member was not heard about.
    pub(super) fn seen_by_all(&self, node: &Node) -> VersionVector {
        let mut seen = VersionVector::default();
        for (origin, at) in node.logs().vector().iter() {
            let others = self
                .members
                .iter()
                .filter(|member| **member != self.me.member)
                .map(|member| {
                    let peer = self.peers.get(member);
                    peer.map_or(0, |peer| peer.vector.get(origin))
                });
            let least = others.min().unwrap_or(at).min(at);
            seen.raise(origin, least);
        }
        seen
    }

    /// Unready members are not asked: what they know is not all there is.
    pub(super) fn serving(readiness: Readiness) -> bool {
        readiness != Readiness::Init
    }
}

/// What the log of `origin` holds above `after`, up to about `budget` bytes, its size, and whether it was cut. At least
/// one entry, so that a large one passes.
fn piece(node: &Node, origin: Origin, after: u64, budget: usize) -> (Piece, usize, bool) {
    let head = node.logs().vector().get(origin);
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut cut = None;
    for (dot, key) in node.logs().above(origin, after) {
        // Entries above the position came with an exchange that is not complete.
        if dot.sequence > head {
            break;
        }
        let Some(entry) = node.entry(key) else {
            continue;
        };
        let size = size(&entry);
        if !entries.is_empty() && bytes + size > budget {
            cut = Some(dot.sequence - 1);
            break;
        }
        bytes += size;
        entries.push(entry);
    }
    let piece = Piece {
        origin,
        after,
        through: cut.unwrap_or(head),
        entries,
    };
    (piece, bytes, cut.is_some())
}

/// About how many bytes an entry takes when encoded.
pub(super) fn size(entry: &Entry) -> usize {
    const FIXED: usize = 64;
    let value = match &entry.value {
        Value::Living { body, .. } => {
            let attributes: usize = body
                .attributes
                .iter()
                .map(|(name, value)| name.len() + value.len() + 4)
                .sum();
            let endpoints: usize = body
                .endpoints
                .iter()
                .map(|endpoint| endpoint.scheme.len() + endpoint.host.len() + 5)
                .sum();
            body.namespace.len()
                + body.service.len()
                + body.instance.len()
                + body.value.len()
                + body.layout.len()
                + body.meta.len()
                + attributes
                + endpoints
        }
        Value::Dead {
            namespace,
            service,
            instance,
        } => namespace.len() + service.len() + instance.len(),
    };
    FIXED + entry.key.key.len() + value
}
