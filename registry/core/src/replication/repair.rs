//! Exchanges: what a log alone does not bring.
//!
//! A member asks a peer for what it lacks, segment by segment: after too long an absence (the log above its position has
//! lost tombstones), at its first start, or because two tables with equal vectors differ. The peer keeps nothing about
//! it: each answer is made from its present table, and says what the peer knew at that moment. When the peer goes away,
//! another one is asked for the segments that are left.
//!
//! **The dot rule.** A key that one side holds and the other does not was either never there or removed there. It was
//! removed when the vector of the other side covers the write that it stems from. So of an answer: what this member's
//! vector covers and it does not hold is skipped; what this member holds, the peer does not, and the peer's vector
//! covers, is dropped; the rest is merged by order. A life that the peer has forgotten is in no vector of its, so it
//! covers nothing.
//!
//! When all segments are there, the vector rises to what the peer knew at the first answer. Tombstones of segments that
//! were equal did not come along, so this member's floors rise too: it cannot give away from its log what it never saw.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::message::{
    DigestReply, DigestRequest, Known, MemberId, Message, PartSet, PartsReply, PartsRequest,
    Readiness, SegmentReply, SegmentRequest, Violation,
};
use super::stream::size;
use super::{OriginStatus, ReplicationOutput, Replicator};
use crate::digest::Cell;
use crate::merge::Entry;
use crate::node::Node;
use crate::origin::{Origin, VersionVector};
use crate::record::RecordKey;

/// For how many segments the second level is asked at a time.
const PARTS_AT_ONCE: usize = 8;

/// How many of its parts may differ before a segment is taken whole.
const PARTS_WORTH_NAMING: u32 = 192;

/// How many heartbeats in a row have to show a difference before it is one: the first may have crossed a change.
const MISMATCHES: u32 = 2;

/// How many periods lie between two exchanges with one peer because of a difference.
const MISMATCH_PERIODS: u64 = 10;

/// The exchange under way, if any, and those that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    running: Option<Exchange>,
    /// Peers with which an exchange is due because lives ended whose last positions were not seen here.
    due: BTreeSet<MemberId>,
    /// An exchange with anybody who serves is due for the same reason.
    due_with_any: bool,
    /// When a difference with a peer was healed last.
    healed: BTreeMap<MemberId, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The logs do not reach down to this member's position, or what it has is next to nothing.
    Behind,
    /// Lives ended.
    Ended,
    /// Equal vectors, different records.
    Mismatch,
}

#[derive(Clone, Debug)]
struct Exchange {
    id: u32,
    peer: MemberId,
    reason: Reason,
    /// Every segment is taken whole, tombstones too.
    whole: bool,
    stage: Stage,
    /// What all peers that were asked knew when they answered first.
    base: Option<Base>,
    /// Some segments were found equal by their digests.
    skipped: bool,
    /// When the request under way was sent.
    asked_at: Option<u64>,
    taken: u64,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Base {
    vector: VersionVector,
    floors: VersionVector,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The first level of the digest.
    Digest,
    /// The second level of these segments, and what is to be fetched of those that are known.
    Parts {
        left: VecDeque<u8>,
        wanted: BTreeMap<u8, PartSet>,
    },
    /// What is to be fetched, and how far the lowest segment has come.
    Segments {
        wanted: BTreeMap<u8, PartSet>,
        after: Option<u64>,
    },
}

impl Replicator {
    pub(super) fn is_exchanging(&self) -> bool {
        self.repair.running.is_some()
    }

    /// True while a whole table is on its way: what is pushed or pulled meanwhile would come twice.
    pub(super) fn is_bootstrapping(&self) -> bool {
        self.repair
            .running
            .as_ref()
            .is_some_and(|exchange| exchange.whole)
    }

    /// An exchange is due, since lives ended of which this member may not have seen everything.
    pub(super) fn want_exchange(&mut self, peer: Option<MemberId>) {
        match peer {
            Some(peer) => {
                self.repair.due.insert(peer);
            }
            None => self.repair.due_with_any = true,
        }
    }

    /// Begins an exchange if one is needed and none is under way.
    pub(super) fn choose_exchange(&mut self, node: &Node, now: u64) {
        if self.repair.running.is_some() {
            return;
        }
        let usable = |id: &MemberId| {
            let peer = self.peers.get(id);
            peer.is_some_and(|peer| {
                peer.connected && !peer.quarantined && !peer.silent && peer.origin.is_some()
            })
        };
        let usable: Vec<MemberId> = self.peers.keys().copied().filter(usable).collect();
        if let Some((peer, whole)) = self.nothing_but_an_exchange(node, &usable) {
            self.begin_exchange(peer, Reason::Behind, whole);
            return;
        }
        if let Some(peer) = usable.iter().find(|id| self.repair.due.contains(id)) {
            self.repair.due.remove(peer);
            self.begin_exchange(*peer, Reason::Ended, false);
            return;
        }
        let ready = |id: &&MemberId| {
            let peer = self.peers.get(*id);
            peer.is_some_and(|peer| peer.readiness == Readiness::Ready)
        };
        if self.repair.due_with_any
            && let Some(peer) = usable.iter().find(ready)
        {
            self.repair.due_with_any = false;
            self.begin_exchange(*peer, Reason::Ended, false);
            return;
        }
        let mismatch = usable.into_iter().find(|id| {
            let pause = MISMATCH_PERIODS.saturating_mul(self.config.period_ms);
            let last = self.repair.healed.get(id);
            let rested = last.is_none_or(|last| now.saturating_sub(*last) >= pause);
            let peer = self.peers.get(id);
            rested && peer.is_some_and(|peer| peer.mismatches >= MISMATCHES)
        });
        if let Some(peer) = mismatch {
            self.repair.healed.insert(peer, now);
            self.say(ReplicationOutput::DigestMismatch(peer));
            self.begin_exchange(peer, Reason::Mismatch, false);
        }
    }

    /// A log of which no connected peer gives what is missing here, because tombstones are gone from it; or a start with
    /// next to nothing beside a member that has much.
    fn nothing_but_an_exchange(
        &self,
        node: &Node,
        usable: &[MemberId],
    ) -> Option<(MemberId, bool)> {
        let here = node.digest().total().count;
        let there = |id: MemberId| -> u64 {
            let peer = self.peers.get(&id);
            peer.map_or(0, |peer| {
                peer.cells.iter().map(|(_, cell)| cell.count).sum()
            })
        };
        if self.readiness == Readiness::Init {
            let full = usable.iter().copied().find(|id| {
                let serves = self
                    .peers
                    .get(id)
                    .is_some_and(|peer| Self::serving(peer.readiness));
                let much = there(*id) >= self.config.snapshot_records;
                serves && much && here.saturating_mul(2) < there(*id)
            });
            if let Some(peer) = full {
                return Some((peer, true));
            }
        }
        for origin in self.lags.keys() {
            let at = node.logs().vector().get(*origin);
            let ahead = || {
                let peers = usable
                    .iter()
                    .filter_map(|id| Some((*id, self.peers.get(id)?)));
                peers.filter(|(_, peer)| peer.vector.get(*origin) > at)
            };
            if ahead().any(|(_, peer)| peer.floors.get(*origin) <= at) {
                continue;
            }
            let best = ahead().max_by_key(|(id, peer)| {
                (Self::serving(peer.readiness), peer.vector.get(*origin), *id)
            });
            if let Some((peer, _)) = best {
                return Some((peer, here.saturating_mul(2) < there(peer)));
            }
        }
        None
    }

    fn begin_exchange(&mut self, peer: MemberId, reason: Reason, whole: bool) {
        self.next_request = self.next_request.wrapping_add(1).max(1);
        let stage = if whole {
            Stage::Segments {
                wanted: (0..=u8::MAX).map(|s| (s, PartSet::ALL)).collect(),
                after: None,
            }
        } else {
            Stage::Digest
        };
        self.repair.running = Some(Exchange {
            id: self.next_request,
            peer,
            reason,
            whole,
            stage,
            base: None,
            skipped: false,
            asked_at: None,
            taken: 0,
            dropped: 0,
        });
    }

    /// Keeps count of heartbeats that show equal vectors and different records.
    pub(super) fn compare_digests(&mut self, node: &Node, id: MemberId) {
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let here = node.logs().vector();
        let both: BTreeSet<Origin> = here
            .iter()
            .chain(peer.vector.iter())
            .map(|(origin, _)| origin)
            .collect();
        let comparable = both
            .iter()
            .all(|origin| here.get(*origin) == peer.vector.get(*origin));
        let there: BTreeMap<Origin, Cell> = peer.cells.iter().copied().collect();
        let equal = both.iter().all(|origin| {
            there.get(origin).copied().unwrap_or_default() == node.digest().origin(*origin)
        });
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.mismatches = if comparable && !equal {
                peer.mismatches.saturating_add(1)
            } else {
                0
            };
        }
    }

    /// The exchange with a peer that is gone, or began a new life, goes on with another one: with the segments that are
    /// left when the table is taken whole, from the start otherwise.
    pub(super) fn lose_exchange(&mut self, peer: MemberId) {
        let Some(exchange) = self
            .repair
            .running
            .as_mut()
            .filter(|exchange| exchange.peer == peer)
        else {
            return;
        };
        let other = self.peers.iter().find(|(id, other)| {
            let usable = other.connected && !other.quarantined && !other.silent;
            **id != peer && usable && Self::serving(other.readiness)
        });
        match other {
            Some((id, _)) if exchange.whole => {
                self.next_request = self.next_request.wrapping_add(1).max(1);
                exchange.id = self.next_request;
                exchange.peer = *id;
                exchange.asked_at = None;
                if let Stage::Segments { after, .. } = &mut exchange.stage {
                    *after = None;
                }
            }
            _ => {
                let reason = exchange.reason;
                self.repair.running = None;
                if reason == Reason::Ended {
                    self.repair.due_with_any = true;
                }
            }
        }
    }

    /// This member has a new life: what the exchange brought of its other lives was not taken, so it begins anew where it is
    /// still needed.
    pub(super) fn drop_exchange(&mut self) {
        if let Some(exchange) = self.repair.running.take() {
            self.repair.due_with_any |= exchange.reason == Reason::Ended;
        }
    }

    /// A request without an answer counts as lost, and so does the peer if there is another one.
    pub(super) fn repeat_exchange(&mut self, now: u64) {
        let timeout = self.config.request_timeout_ms;
        let Some(exchange) = &mut self.repair.running else {
            return;
        };
        let late = |since: u64| since.saturating_add(timeout) <= now;
        if exchange.asked_at.is_some_and(late) {
            let peer = exchange.peer;
            exchange.asked_at = None;
            if self.peers.get(&peer).is_none_or(|peer| peer.silent) {
                self.lose_exchange(peer);
            }
        }
    }

    pub(super) fn next_repeat(&self) -> Option<u64> {
        let asked_at = self.repair.running.as_ref()?.asked_at?;
        Some(asked_at.saturating_add(self.config.request_timeout_ms))
    }

    /// The next request of the exchange, if it is with this peer and none is under way.
    pub(super) fn exchange_request(&mut self, node: &Node, peer: MemberId) -> Option<Message> {
        let now = self.now;
        let exchange = self.repair.running.as_mut()?;
        if exchange.peer != peer || exchange.asked_at.is_some() {
            return None;
        }
        exchange.asked_at = Some(now);
        let id = exchange.id;
        Some(match &exchange.stage {
            Stage::Digest => Message::DigestRequest(DigestRequest { exchange: id }),
            Stage::Parts { left, .. } => Message::PartsRequest(PartsRequest {
                exchange: id,
                segments: left.iter().copied().take(PARTS_AT_ONCE).collect(),
            }),
            Stage::Segments { wanted, after } => {
                let (segment, parts) = wanted.first_key_value()?;
                let have = node
                    .segment(*segment, *after)
                    .filter(|(hash, _)| parts.contains(part(*hash)))
                    .filter_map(|(hash, key)| Some((hash, node.version_hash(key)?)));
                let mut have: Vec<(u64, u64)> = have.collect();
                // Two keys of one hash cannot be told apart there: neither is named, so both are sent.
                have.dedup_by_key(|(hash, _)| *hash);
                Message::SegmentRequest(SegmentRequest {
                    exchange: id,
                    segment: *segment,
                    parts: *parts,
                    after: *after,
                    have,
                })
            }
        })
    }

    pub(super) fn digest_reply(&mut self, node: &mut Node, peer: MemberId, reply: &DigestReply) {
        let Some(mut exchange) = self.take_exchange(peer, reply.exchange) else {
            return;
        };
        if matches!(exchange.stage, Stage::Digest) {
            exchange.asked_at = None;
            exchange.know(&reply.known);
            let differ: VecDeque<u8> = node
                .digest()
                .buckets()
                .zip(&reply.segments)
                .zip(0..=u8::MAX)
                .filter(|((here, there), _)| here != *there)
                .map(|(_, segment)| segment)
                .collect();
            exchange.skipped |= differ.len() < super::SEGMENTS;
            exchange.stage = Stage::Parts {
                left: differ,
                wanted: BTreeMap::new(),
            };
        }
        self.go_on(node, exchange);
    }

    pub(super) fn parts_reply(&mut self, node: &mut Node, peer: MemberId, reply: &PartsReply) {
        let Some(mut exchange) = self.take_exchange(peer, reply.exchange) else {
            return;
        };
        if let Stage::Parts { left, wanted } = &mut exchange.stage {
            exchange.asked_at = None;
            for (segment, there) in &reply.segments {
                if !left.contains(segment) {
                    continue;
                }
                left.retain(|waiting| waiting != segment);
                let here = node.digest().parts(*segment);
                let cell = |cells: &[Cell], part: u8| {
                    cells.get(usize::from(part)).copied().unwrap_or_default()
                };
                let mut parts = PartSet::NONE;
                for part in 0..=u8::MAX {
                    if cell(here, part) != cell(there, part) {
                        parts.insert(part);
                    }
                }
                if parts.len() > PARTS_WORTH_NAMING {
                    parts = PartSet::ALL;
                }
                exchange.skipped |= parts != PartSet::ALL;
                if !parts.is_empty() {
                    wanted.insert(*segment, parts);
                }
            }
        }
        self.go_on(node, exchange);
    }

    pub(super) fn segment_reply(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        reply: SegmentReply,
        now: u64,
    ) -> Result<(), Violation> {
        let Some(mut exchange) = self.take_exchange(peer, reply.exchange) else {
            return Ok(());
        };
        let awaited = match &exchange.stage {
            Stage::Segments { wanted, after } => wanted
                .first_key_value()
                .filter(|(segment, _)| **segment == reply.segment && *after == reply.after)
                .map(|(_, parts)| *parts),
            _ => None,
        };
        let Some(parts) = awaited else {
            // A repeated answer.
            self.go_on(node, exchange);
            return Ok(());
        };
        let digest = node.digest();
        let within = |hash: u64| {
            let inside = hash >> 56 == u64::from(reply.segment) && parts.contains(part(hash));
            let above = reply.after.is_none_or(|after| hash > after);
            inside && above && reply.through.is_none_or(|through| hash <= through)
        };
        let hashes = reply
            .entries
            .iter()
            .map(|entry| digest.key_hash(&entry.key));
        let cut_forward = match (reply.after, reply.through) {
            (Some(after), Some(through)) => through > after,
            _ => true,
        };
        if !cut_forward || !hashes.chain(reply.absent.iter().copied()).all(within) {
            return Err(Violation::Disorder);
        }
        exchange.asked_at = None;
        exchange.know(&reply.known);
        let there: VersionVector = reply
            .known
            .origins
            .iter()
            .map(|(origin, through, _)| (*origin, *through))
            .collect::<Vec<_>>()
            .into();
        let heal = exchange.reason == Reason::Mismatch;
        let entries: Vec<Entry> = reply
            .entries
            .into_iter()
            .filter(|entry| self.wants(node, peer, entry, heal))
            .collect();
        let absent: Vec<RecordKey> = reply
            .absent
            .iter()
            .flat_map(|hash| node.keys_at(*hash).cloned())
            .collect();
        exchange.taken += self.merge(node, entries, now)? as u64;
        let gone = self.gone(node, peer, absent, &there, heal);
        exchange.dropped += node.drop_removed(&gone, now) as u64;
        if let Stage::Segments { wanted, after } = &mut exchange.stage {
            *after = reply.through;
            if reply.through.is_none() {
                wanted.remove(&reply.segment);
            }
        }
        self.go_on(node, exchange);
        Ok(())
    }

    /// True when an entry of an answer is merged.
    fn wants(&self, node: &Node, peer: MemberId, entry: &Entry, heal: bool) -> bool {
        if node.known(&entry.key).is_some() {
            return true;
        }
        #[cfg(any(test, feature = "weakened"))]
        if self.config.weakened.no_dot_rule {
            return true;
        }
        if !node.logs().vector().covers(entry.dot) {
            return true;
        }
        // Covered and not here: removed here. With equal vectors it is this table that lost it, if its holder still has
        // it, or if there is no holder to ask.
        let origin = entry.dot.origin;
        heal && (origin.member == peer || self.origin_status(node, origin) == OriginStatus::Silent)
    }

    /// Which of the records that the peer does not hold were removed there.
    fn gone(
        &self,
        node: &mut Node,
        peer: MemberId,
        absent: Vec<RecordKey>,
        there: &VersionVector,
        heal: bool,
    ) -> Vec<RecordKey> {
        #[cfg(any(test, feature = "weakened"))]
        if self.config.weakened.no_dot_rule {
            return Vec::new();
        }
        let mut gone = Vec::new();
        for key in absent {
            let Some(dot) = node.get(&key).map(|record| record.dot) else {
                // Tombstones go by their age.
                continue;
            };
            if !there.covers(dot) {
                continue;
            }
            if !heal || dot.origin.member == peer {
                gone.push(key);
            } else if dot.origin == self.me {
                // The peer lost it: this member holds it, so it is brought again.
                node.write_again(&key);
            }
        }
        gone
    }

    /// The exchange that an answer belongs to, taken out.
    fn take_exchange(&mut self, peer: MemberId, id: u32) -> Option<Exchange> {
        self.repair
            .running
            .take_if(|exchange| exchange.peer == peer && exchange.id == id)
    }

    /// Puts the exchange back, at its next stage, or ends it.
    fn go_on(&mut self, node: &mut Node, mut exchange: Exchange) {
        if let Stage::Parts { left, wanted } = &mut exchange.stage
            && left.is_empty()
        {
            exchange.stage = Stage::Segments {
                wanted: std::mem::take(wanted),
                after: None,
            };
        }
        let complete =
            matches!(&exchange.stage, Stage::Segments { wanted, .. } if wanted.is_empty());
        if complete {
            self.finish(node, exchange);
        } else {
            self.repair.running = Some(exchange);
        }
    }

    fn finish(&mut self, node: &mut Node, exchange: Exchange) {
        if let Some(base) = exchange.base {
            for (origin, through) in base.vector.iter() {
                if !self.takes(node, origin) {
                    continue;
                }
                let before = node.logs().vector().get(origin);
                node.reach(origin, through);
                node.raise_floor(origin, base.floors.get(origin));
                if exchange.skipped && through > before {
                    node.raise_floor(origin, through);
                }
                self.lags.remove(&origin);
            }
        }
        self.say(ReplicationOutput::ExchangeDone {
            peer: exchange.peer,
            taken: exchange.taken,
            dropped: exchange.dropped,
        });
        let now = self.now;
        self.notice_lags(node, now);
        self.choose_pulls(node, now);
        self.judge(node, now);
    }

    /// The answer to a request of another member's exchange, from the present table.
    pub(super) fn answer_exchange(&self, node: &Node, request: Message) -> Option<Message> {
        Some(match request {
            Message::DigestRequest(request) => Message::DigestReply(DigestReply {
                exchange: request.exchange,
                known: self.known(node),
                segments: node.digest().buckets().collect(),
            }),
            Message::PartsRequest(request) => Message::PartsReply(PartsReply {
                exchange: request.exchange,
                segments: request
                    .segments
                    .iter()
                    .take(PARTS_AT_ONCE)
                    .map(|segment| (*segment, node.digest().parts(*segment).to_vec()))
                    .collect(),
            }),
            Message::SegmentRequest(request) => {
                Message::SegmentReply(self.answer_segment(node, &request))
            }
            _ => return None,
        })
    }

    fn answer_segment(&self, node: &Node, request: &SegmentRequest) -> SegmentReply {
        let mut entries = Vec::new();
        let mut through = None;
        let mut bytes = 0;
        let mut held: BTreeSet<u64> = BTreeSet::new();
        let mut last = None;
        for (hash, key) in node.segment(request.segment, request.after) {
            if !request.parts.contains(part(hash)) {
                continue;
            }
            let had = request
                .have
                .binary_search_by_key(&hash, |(hash, _)| *hash)
                .ok()
                .and_then(|at| request.have.get(at));
            if had.is_some() {
                held.insert(hash);
            }
            let same = had.map(|(_, version)| *version) == node.version_hash(key);
            let Some(entry) = (!same).then(|| node.entry(key)).flatten() else {
                last = Some(hash);
                continue;
            };
            let size = size(&entry);
            // A piece ends between two hashes, never between two keys of one.
            if bytes + size > self.config.batch_bytes && !entries.is_empty() && last != Some(hash) {
                through = last;
                break;
            }
            bytes += size;
            entries.push(entry);
            last = Some(hash);
        }
        let absent = request
            .have
            .iter()
            .map(|(hash, _)| *hash)
            .filter(|hash| {
                let above = request.after.is_none_or(|after| *hash > after);
                above && through.is_none_or(|through| *hash <= through) && !held.contains(hash)
            })
            .collect();
        SegmentReply {
            exchange: request.exchange,
            segment: request.segment,
            after: request.after,
            known: self.known(node),
            through,
            entries,
            absent,
        }
    }

    fn known(&self, node: &Node) -> Known {
        let state = |(origin, through): (Origin, u64)| (origin, through, self.floor(node, origin));
        Known {
            origins: node.logs().vector().iter().map(state).collect(),
        }
    }
}

impl Exchange {
    /// What the peer knew: of several answers only what all of them knew counts.
    fn know(&mut self, known: &Known) {
        let vector: VersionVector = known
            .origins
            .iter()
            .map(|(origin, through, _)| (*origin, *through))
            .collect::<Vec<_>>()
            .into();
        let floors: VersionVector = known
            .origins
            .iter()
            .map(|(origin, _, floor)| (*origin, *floor))
            .collect::<Vec<_>>()
            .into();
        match &mut self.base {
            None => self.base = Some(Base { vector, floors }),
            Some(base) => {
                base.vector = base.vector.meet(&vector);
                base.floors.join(&floors);
            }
        }
    }
}

fn part(hash: u64) -> u8 {
    let [_, part, ..] = hash.to_be_bytes();
    part
}
