//! Lives of members: which one is present, which are over, and what happens to what they wrote.
//!
//! A life is over when the next one of its member has taken over all it wrote, or when its member was forgotten. One
//! number per member says up to which life; vectors and floors carry the others only, so that a member that restarts
//! ten thousand times costs what one that restarted once does.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{Heartbeat, MemberId, Stale};
use super::{Readiness, ReplicationOutput, Replicator};
use crate::node::Node;
use crate::origin::Origin;

/// How many lives without a value a member may have in the vector; beyond it the lowest are over.
const EMPTY_LIVES: usize = 4;

/// How many tombstones are looked at in one period.
const COLLECT: usize = 4_096;

/// How many periods two processes with one id are borne until one is refused: a restart looks like that for a moment.
const DUPLICATE_PERIODS: u64 = 10;

/// What is known of lives beside the logs.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    forgotten: BTreeMap<MemberId, Forgotten>,
    /// Lives that their member says are taken over, and since when that is known here.
    pending: BTreeMap<MemberId, (u64, u64)>,
    /// Heartbeats of a life that another one has followed, heard while that one is heard.
    late: BTreeMap<MemberId, Late>,
    /// Since when others hear another process with this member's id.
    other_since: Option<u64>,
    refused: bool,
    told_forgotten: Option<Origin>,
}

/// A member that is not in the list any more.
#[derive(Clone, Copy, Debug)]
struct Forgotten {
    /// Its last life that was known then.
    last: u64,
    at: u64,
    /// This member was with the majority all the time since the forgotten one fell silent: it may take over what is left.
    fit: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Late {
    incarnation: u64,
    sequence: u64,
    count: u64,
}

impl Lives {
    /// The member is in the list.
    pub(super) fn remember(&mut self, member: MemberId) {
        self.forgotten.remove(&member);
    }

    /// Another process with this member's id was there first, or is newer: nothing is sent any more.
    pub(super) fn refused(&self) -> bool {
        self.refused
    }

    pub(super) fn is_forgotten(&self, member: MemberId) -> bool {
        self.forgotten.contains_key(&member)
    }
}

impl Replicator {
    /// The member left the list.
    pub(super) fn forget(&mut self, node: &Node, member: MemberId, now: u64) {
        let last = self.last_life(node, member);
        let origin = Origin {
            member,
            incarnation: last,
        };
        let silent_since = self.silent_since(origin).unwrap_or(now);
        let fit = self.with_majority_since(silent_since) && self.readiness == Readiness::Ready;
        let forgotten = Forgotten { last, at: now, fit };
        self.lives.forgotten.insert(member, forgotten);
    }

    /// The highest life of a member that is known in any way.
    fn last_life(&self, node: &Node, member: MemberId) -> u64 {
        let heard = self.peers.get(&member).and_then(|peer| peer.origin);
        let logs = node.logs();
        let past = logs.past().get(&member).copied();
        logs.lives(member)
            .chain(heard)
            .map(|origin| origin.incarnation)
            .chain(past)
            .max()
            .unwrap_or(0)
    }

    /// False when the heartbeat is of a life that is over; its member is told so.
    pub(super) fn present_life(&mut self, node: &Node, heartbeat: &Heartbeat, now: u64) -> bool {
        let Origin {
            member,
            incarnation: heard,
        } = heartbeat.origin;
        let known = self.last_life(node, member);
        let forgotten = self.lives.forgotten.get(&member).copied();
        let is_forgotten = forgotten.is_some_and(|forgotten| heard <= forgotten.last);
        let is_past = node.logs().is_past(heartbeat.origin);
        if heard >= known && !is_forgotten && !is_past {
            return true;
        }
        let bound = self.config.missed.saturating_mul(self.config.period_ms);
        let Some(peer) = self.peers.get_mut(&member) else {
            return false;
        };
        let other = peer.origin.filter(|origin| origin.incarnation > heard);
        let alive = other.is_some() && now.saturating_sub(peer.heard_at) <= bound;
        peer.stale_due = Some(Stale {
            heard,
            known,
            alive,
            forgotten: forgotten.is_some(),
        });
        if alive && now.saturating_sub(peer.life_since) > bound {
            // What was under way when the later life began has arrived by now: this one is still writing.
            let late = self.lives.late.entry(member).or_default();
            if late.incarnation != heard {
                *late = Late {
                    incarnation: heard,
                    ..Late::default()
                };
            }
            if heartbeat.sequence > late.sequence {
                late.sequence = heartbeat.sequence;
                late.count += 1;
                if late.count == self.config.missed {
                    self.say(ReplicationOutput::DuplicateMember {
                        member,
                        refused: heard,
                    });
                }
            }
        }
        false
    }

    /// A peer says that this life is over.
    pub(super) fn stale(&mut self, node: &mut Node, peer: MemberId, stale: Stale, now: u64) {
        if stale.heard != self.me.incarnation {
            return;
        }
        if stale.alive {
            let since = *self.lives.other_since.get_or_insert(now);
            let borne = DUPLICATE_PERIODS.saturating_mul(self.config.period_ms);
            if now.saturating_sub(since) >= borne && !self.lives.refused {
                self.lives.refused = true;
                self.say(ReplicationOutput::DuplicateMember {
                    member: self.me.member,
                    refused: self.me.incarnation,
                });
            }
            return;
        }
        self.lives.other_since = None;
        if stale.forgotten && self.lives.told_forgotten != Some(self.me) {
            self.lives.told_forgotten = Some(self.me);
            self.say(ReplicationOutput::Forgotten { by: peer });
        }
        let origin = node.renew_incarnation(stale.known.saturating_add(1), now);
        self.begin_life(origin);
        self.say(ReplicationOutput::Renewed(origin));
        for peer in self.peers.values_mut().filter(|peer| peer.connected) {
            peer.heartbeat_due = true;
        }
    }

    /// What a peer says of lives that are over. Only a member itself knows that its earlier lives are.
    pub(super) fn hear_past(&mut self, peer: Origin, past: &[(MemberId, u64)]) {
        let now = self.now;
        let earlier =
            |(member, last): &&(MemberId, u64)| *member == peer.member && *last < peer.incarnation;
        for (member, last) in past.iter().filter(earlier) {
            let pending = self.lives.pending.entry(*member).or_insert((*last, now));
            if pending.0 < *last {
                *pending = (*last, now);
            }
        }
    }

    /// What this member says of its own earlier lives.
    pub(super) fn told_past(&self, node: &Node) -> Vec<(MemberId, u64)> {
        let own = node.logs().past().get(&self.me.member);
        own.map(|last| (self.me.member, *last))
            .into_iter()
            .collect()
    }

    /// Once per period: ends lives, and collects tombstones that everybody has seen.
    pub(super) fn settle(&mut self, node: &mut Node, now: u64) {
        self.settle_own(node, now);
        self.settle_told(node, now);
        self.settle_forgotten(node, now);
        self.settle_empty(node);
        let seen = self.seen_by_all(node);
        node.collect_settled(&seen, self.config.tombstone_settled_ms, COLLECT, now);
    }

    /// This member's earlier lives: over when every member has of them what this one has, those that could not be heard for
    /// as long as a tombstone is kept left out, and this one has all that the others have. Before that, what an earlier
    /// life left here may have been removed elsewhere, and writing it again would bring it back.
    fn settle_own(&mut self, node: &mut Node, now: u64) {
        if self.members.is_empty() {
            return;
        }
        let waited = now.saturating_sub(self.started.unwrap_or(now));
        let hopeless = waited >= node.config().tombstone_age_ms;
        let heard = |id: &MemberId| {
            self.peers
                .get(id)
                .is_some_and(|peer| peer.connected && peer.origin.is_some() && !peer.silent)
        };
        let mut others = self.members.iter().filter(|id| **id != self.me.member);
        let nobody = self.members.len() > 1 && !others.any(heard);
        if nobody || self.is_exchanging() || !self.has_all_that_is_heard(node) {
            return;
        }
        let mut last = None;
        for origin in node.logs().lives(self.me.member) {
            if origin.incarnation >= self.me.incarnation {
                break;
            }
            let at = node.logs().vector().get(origin);
            let mut others = self.members.iter().filter(|id| **id != self.me.member);
            let agreed = others.all(|member| {
                let same = |peer: &super::peer::Peer| {
                    peer.origin.is_some() && peer.vector.get(origin) == at
                };
                self.peers.get(member).is_some_and(same) || (hopeless && !heard(member))
            });
            if !agreed {
                break;
            }
            last = Some(origin);
        }
        if let Some(last) = last {
            self.end(node, last, now, End::Inherit);
        }
    }

    /// Other members' earlier lives, which they say they have taken over: what is left of them here goes once nothing is
    /// under way that could replace it.
    fn settle_told(&mut self, node: &mut Node, now: u64) {
        let pending: Vec<(MemberId, u64, u64)> = self
            .lives
            .pending
            .iter()
            .map(|(member, (last, since))| (*member, *last, *since))
            .collect();
        for (member, incarnation, since) in pending {
            let last = Origin {
                member,
                incarnation,
            };
            let patience = 3 * self.config.inherit_ms;
            let late = now.saturating_sub(since) >= patience;
            if node.logs().is_past(last) {
                self.lives.pending.remove(&member);
            } else if late || !node.has_values_of(last) || self.has_all_that_is_heard(node) {
                self.lives.pending.remove(&member);
                self.end(node, last, now, End::Drop);
                // Removals of those lives may be collected by now, unseen here, and no vector shows it any more.
                self.want_exchange(Some(member));
            }
        }
    }

    /// Members that left the list: the first of those that were with the majority all along takes over what it has of
    /// them, then the next what is still left. Who was not with the majority drops it.
    fn settle_forgotten(&mut self, node: &mut Node, now: u64) {
        let rank = self
            .members
            .iter()
            .filter(|id| **id < self.me.member)
            .count();
        let all = self.members.len();
        self.notice_strangers(node, now);
        let forgotten: Vec<(MemberId, Forgotten)> = self
            .lives
            .forgotten
            .iter()
            .map(|(member, forgotten)| (*member, *forgotten))
            .collect();
        for (member, forgotten) in forgotten {
            let heard = self.is_heard_by_anyone(member);
            let last = self.last_life(node, member);
            if last > forgotten.last && !heard && node.logs().past().get(&member) != Some(&last) {
                // It wrote on under another life before it went for good.
                self.forget(node, member, now);
                continue;
            }
            let turn = if forgotten.fit { rank } else { all };
            let wait = self.config.inherit_ms.saturating_mul(turn as u64 + 1);
            let last = Origin {
                member,
                incarnation: forgotten.last,
            };
            if now.saturating_sub(forgotten.at) < wait || node.logs().is_past(last) {
                continue;
            }
            let how = if forgotten.fit {
                End::Inherit
            } else {
                End::Drop
            };
            self.end(node, last, now, how);
        }
    }

    /// Lives of members that were forgotten before this one came: their records are here, and nobody would end them.
    fn notice_strangers(&mut self, node: &Node, now: u64) {
        let strangers: BTreeSet<MemberId> = node
            .logs()
            .vector()
            .iter()
            .map(|(origin, _)| origin.member)
            .filter(|member| !self.members.contains(member))
            .filter(|member| !self.lives.is_forgotten(*member))
            .filter(|member| !self.is_heard_by_anyone(*member))
            .collect();
        for member in strangers {
            let last = self.last_life(node, member);
            let fit = false;
            let forgotten = Forgotten { last, at: now, fit };
            self.lives.forgotten.insert(member, forgotten);
        }
    }

    /// A member that restarts again and again while somebody is away: of its lives without a value only the last few
    /// are kept.
    fn settle_empty(&mut self, node: &mut Node) {
        let now = self.now;
        let mut members: Vec<MemberId> = node
            .logs()
            .vector()
            .iter()
            .map(|(origin, _)| origin.member)
            .collect();
        members.dedup();
        for member in members {
            let lives: Vec<Origin> = node.logs().lives(member).collect();
            let surplus = lives.len().saturating_sub(EMPTY_LIVES + 1);
            let last = lives
                .into_iter()
                .take(surplus)
                .take_while(|origin| !node.has_values_of(*origin))
                .last();
            if let Some(last) = last {
                self.end(node, last, now, End::Drop);
            }
        }
    }

    fn end(&mut self, node: &mut Node, last: Origin, now: u64, how: End) {
        let lives: Vec<Origin> = node
            .logs()
            .lives(last.member)
            .filter(|origin| origin.incarnation <= last.incarnation)
            .collect();
        match how {
            End::Inherit => node.inherit_life(last, now),
            End::Drop => node.drop_life(last, now),
        };
        for origin in lives {
            self.say(ReplicationOutput::OriginPast(origin));
        }
    }

    /// True when nothing that a connected peer is known to have is missing here.
    pub(super) fn has_all_that_is_heard(&self, node: &Node) -> bool {
        let mut peers = self.peers.values().filter(|peer| peer.connected);
        peers.all(|peer| self.covers(node, &peer.vector))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Inherit,
    Drop,
}
