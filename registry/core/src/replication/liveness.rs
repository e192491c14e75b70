//! Who is heard: peers, lives, the majority, the rule of members, and this member's own readiness.
//!
//! A peer is *silent* when three heartbeats are missing, and *down* when the membership protocol says so too: one bad
//! link makes a peer silent for one member, but down for none.

use std::collections::BTreeMap;

use super::message::{MemberId, Readiness};
use super::{Detected, OriginStatus, Orphan, ReplicationOutput, Replicator};
use crate::node::Node;
use crate::origin::{Origin, VersionVector};

/// Where this member stands among the others.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// Lives whose records have no holder that is heard, since when, and what was known of their logs then.
    silent: BTreeMap<Origin, (u64, u64)>,
    protected: bool,
    /// Since when enough members are heard again.
    calm_since: Option<u64>,
    /// Since when less than a majority is heard.
    minority_since: Option<u64>,
    minority_said: bool,
    /// When less than a majority was heard last.
    last_minority: Option<u64>,
    warming_since: Option<u64>,
}

/// True when so many silent ones of so many members keep every instance: at least two, or the only other one. A single
/// loss among three or more is an ordinary one, and so is everything for a member that is alone.
pub fn rule_of_members(members: usize, silent: usize) -> bool {
    silent >= 2 || (members == 2 && silent == 1)
}

impl Replicator {
    /// True while removals by expiry are held back by the rule of members.
    pub fn is_protected(&self) -> bool {
        self.standing.protected
    }

    /// What is known of a life.
    pub fn origin_status(&self, node: &Node, origin: Origin) -> OriginStatus {
        if node.logs().is_past(origin) {
            return OriginStatus::Past;
        }
        if origin == self.me {
            return OriginStatus::Active;
        }
        let heard = self
            .peers
            .get(&origin.member)
            .is_some_and(|peer| match peer.origin {
                Some(present) => present.incarnation <= origin.incarnation && !peer.down,
                // Not heard yet, and nothing says that it is gone.
                None => !peer.down,
            });
        if heard && !self.lives.is_forgotten(origin.member) {
            OriginStatus::Active
        } else {
            OriginStatus::Silent
        }
    }

    /// Proof that the process of a member is dead (its port refused a connection from two members): its records need not
    /// wait for `orphan_ms`. Void when the member is heard again.
    pub fn prove_dead(&mut self, peer: MemberId, now: u64) {
        self.now = self.now.max(now);
        if let Some(known) = self.peers.get_mut(&peer)
            && known.down
        {
            known.proved_dead = true;
        }
    }

    /// The records of silent lives that may be judged by now, by life and position, at most `limit`: the life is silent
    /// for `orphan_ms` or its process is proved to be dead, and it is silent for longer than the record's own timeout. A
    /// verdict is carried out with [`Node::remove_orphans`].
    pub fn orphans(&self, node: &Node, now: u64, limit: usize) -> Vec<Orphan> {
        let mut orphans = Vec::new();
        if self.standing.protected {
            return orphans;
        }
        for (origin, (since, _)) in &self.standing.silent {
            let age = now.saturating_sub(*since);
            let peer = self.peers.get(&origin.member);
            // A later life of the same member is heard: this one's process is gone.
            let followed = peer
                .and_then(|peer| peer.origin)
                .is_some_and(|present| present.incarnation > origin.incarnation);
            let proved = followed || peer.is_some_and(|peer| peer.proved_dead);
            if !proved && age < self.config.orphan_ms {
                continue;
            }
            for (_, key) in node.logs().above(*origin, 0) {
                let Some(record) = node.get(key) else {
                    continue;
                };
                let ttl = node.lease_ttl(record).unwrap_or(0);
                if age < ttl.saturating_add(self.config.orphan_margin_ms) {
                    continue;
                }
                if orphans.len() >= limit {
                    return orphans;
                }
                orphans.push(Orphan {
                    key: key.clone(),
                    version: record.version(),
                    origin: *origin,
                });
            }
        }
        orphans
    }

    /// The process stood still: what was sent meanwhile could not be heard. The gap counts for nobody, and nobody is
    /// judged for one period.
    pub(super) fn notice_pause(&mut self, now: u64) {
        let Some(last) = self.last_timeout else {
            return;
        };
        let gap = now.saturating_sub(last);
        if gap <= 2 * self.config.period_ms {
            return;
        }
        self.last_timeout = Some(now);
        for peer in self.peers.values_mut() {
            peer.heard_at = peer.heard_at.saturating_add(gap).min(now);
        }
        for (since, _) in self.standing.silent.values_mut() {
            *since = since.saturating_add(gap).min(now);
        }
        self.standing.calm_since = None;
        self.judge_from = now.saturating_add(self.config.period_ms);
    }

    /// Draws every conclusion from who is heard at `now`.
    pub(super) fn judge(&mut self, node: &mut Node, now: u64) {
        if now >= self.judge_from {
            self.judge_peers(now);
            self.judge_lives(node, now);
            self.judge_members(node, now);
        }
        self.judge_readiness(node, now);
    }

    /// When a peer that is heard falls silent if it is not heard again.
    pub(super) fn next_judgement(&self) -> Option<u64> {
        let bound = self.config.missed.saturating_mul(self.config.period_ms);
        self.peers
            .values()
            .filter(|peer| !peer.silent)
            .map(|peer| {
                let silent = peer.heard_at.saturating_add(bound).saturating_add(1);
                silent.max(self.judge_from)
            })
            .min()
    }

    fn judge_peers(&mut self, now: u64) {
        let bound = self.config.missed.saturating_mul(self.config.period_ms);
        let mut said = Vec::new();
        for (id, peer) in &mut self.peers {
            let silent = now.saturating_sub(peer.heard_at) > bound;
            peer.silent = silent;
            let down = silent && peer.detected == Detected::Down;
            if down && !peer.down {
                said.push(ReplicationOutput::PeerDown(*id));
                peer.up_said = false;
            } else if !silent && peer.origin.is_some() && !peer.up_said {
                said.push(ReplicationOutput::PeerUp(*id));
                peer.up_said = true;
            }
            // Once down, it is down until it is heard: the detector alone does not bring it back.
            peer.down = down || (peer.down && silent);
        }
        self.outputs.extend(said);
    }

    fn judge_lives(&mut self, node: &Node, now: u64) {
        let mut silent = std::mem::take(&mut self.standing.silent);
        let mut said = Vec::new();
        silent.retain(|origin, _| match self.origin_status(node, *origin) {
            OriginStatus::Silent => true,
            OriginStatus::Active => {
                said.push(ReplicationOutput::OriginReturned(*origin));
                false
            }
            OriginStatus::Past => false,
        });
        for (origin, at) in node.logs().vector().iter() {
            if self.origin_status(node, origin) != OriginStatus::Silent {
                continue;
            }
            match silent.get_mut(&origin) {
                Some((_, known)) if *known == at => {}
                // It wrote on, where others hear it: what is new is not as old as the silence.
                Some(silence) => *silence = (now, at),
                None => {
                    silent.insert(origin, (now, at));
                    said.push(ReplicationOutput::OriginSilent(origin));
                }
            }
        }
        self.standing.silent = silent;
        self.outputs.extend(said);
    }

    fn judge_members(&mut self, node: &mut Node, now: u64) {
        let members = self.members.len();
        let lost = |id: &&MemberId| {
            **id != self.me.member && self.peers.get(*id).is_none_or(|peer| peer.silent)
        };
        let silent = self.members.iter().filter(lost).count();
        let mut said = Vec::new();

        let standing = &mut self.standing;
        if rule_of_members(members, silent) {
            standing.calm_since = None;
            if !standing.protected {
                standing.protected = true;
                node.protect(true);
                said.push(ReplicationOutput::ProtectionEntered { silent, members });
            }
        } else if standing.protected {
            let since = *standing.calm_since.get_or_insert(now);
            let calm = self.config.missed.saturating_mul(self.config.period_ms);
            if now.saturating_sub(since) >= calm {
                standing.protected = false;
                standing.calm_since = None;
                node.protect(false);
                node.rebase_leases(now);
                said.push(ReplicationOutput::ProtectionLeft);
            }
        }

        if (members - silent.min(members)) * 2 > members || members == 0 {
            standing.minority_since = None;
            if standing.minority_said {
                standing.minority_said = false;
                said.push(ReplicationOutput::MajorityRegained);
            }
        } else {
            standing.last_minority = Some(now);
            let since = *standing.minority_since.get_or_insert(now);
            if now.saturating_sub(since) >= self.config.minority_ms && !standing.minority_said {
                standing.minority_said = true;
                said.push(ReplicationOutput::MajorityLost);
            }
        }
        self.outputs.extend(said);
    }

    /// This member serves when it has what a majority of serving members had when it first heard them, or when nobody
    /// was there to have anything, after a while in which it says so.
    fn judge_readiness(&mut self, node: &Node, now: u64) {
        if self.readiness == Readiness::Ready {
            return;
        }
        let started = self.started.unwrap_or(now);
        let heard = || {
            self.peers
                .values()
                .filter(|peer| peer.connected && peer.origin.is_some() && !peer.silent)
        };
        let seen = heard().map(|peer| peer.hears.len() + 1).max().unwrap_or(0);
        let size = self.members.len().max(seen);
        let serving = heard().filter(|peer| Self::serving(peer.readiness));
        let complete = serving
            .clone()
            .filter(|peer| {
                peer.joined
                    .as_ref()
                    .is_some_and(|vector| self.covers(node, vector))
            })
            .count();
        // With this one they are a majority.
        let enough = (size / 2).max(1);
        let served = serving.count() > 0;
        if complete >= enough && !self.is_exchanging() {
            self.become_ready();
            return;
        }
        let long = now.saturating_sub(started) >= self.config.warming_ms;
        let hopeless = now.saturating_sub(started) >= self.config.warming_ms.saturating_mul(4);
        match self.standing.warming_since {
            Some(since) if now.saturating_sub(since) >= self.config.warming_ms => {
                self.become_ready();
            }
            Some(_) => {}
            // An exchange that goes on is waited for, within reason: without it the lists lack nearly everything.
            None if served && long && (!self.is_exchanging() || hopeless) => self.become_ready(),
            None if !served && now.saturating_sub(started) >= self.config.alone_ms => {
                self.standing.warming_since = Some(now);
                self.set_readiness(Readiness::Warming);
            }
            None => {}
        }
    }

    /// True when everything up to these positions is here, apart from lives that are over and this member's own.
    pub(super) fn covers(&self, node: &Node, vector: &VersionVector) -> bool {
        vector.iter().all(|(origin, through)| {
            !self.takes(node, origin) || node.logs().vector().get(origin) >= through
        })
    }

    /// False when the clock of a peer is so far ahead that nothing is taken from it. When most clocks are ahead, none of
    /// them is: it is this member's that is behind.
    pub(super) fn credible_clock(
        &mut self,
        node: &mut Node,
        peer: MemberId,
        wall_ms: u64,
        now: u64,
    ) -> bool {
        let ahead_ms = node.clock_behind(wall_ms, now);
        let Some(known) = self.peers.get_mut(&peer) else {
            return false;
        };
        known.ahead_ms = ahead_ms;
        let was_ahead = known.clock_ahead;
        known.clock_ahead = ahead_ms > self.config.skew_alarm_ms;
        if known.clock_ahead && !was_ahead {
            self.say(ReplicationOutput::ClockAhead { peer, ahead_ms });
        }
        if let Some(behind_ms) = self.least_ahead_of_most() {
            node.follow_clock(behind_ms);
            self.say(ReplicationOutput::ClockBehind { behind_ms });
            for peer in self.peers.values_mut() {
                peer.ahead_ms = peer.ahead_ms.saturating_sub(behind_ms);
            }
        }
        let heard = self.heard_clocks();
        let limit = self.config.skew_quarantine_ms;
        let odd = heard.iter().filter(|ahead| **ahead > limit).count();
        let outvoted = odd * 2 < heard.len() + 1;
        let Some(known) = self.peers.get_mut(&peer) else {
            return false;
        };
        let was_absurd = known.quarantined;
        known.quarantined = known.ahead_ms > limit && outvoted;
        let (absurd, ahead_ms) = (known.quarantined, known.ahead_ms);
        if absurd && !was_absurd {
            self.say(ReplicationOutput::QuarantineEntered { peer, ahead_ms });
        } else if was_absurd && !absurd {
            self.say(ReplicationOutput::QuarantineLeft(peer));
        }
        !absurd
    }

    /// By how much the clocks of the peers that are heard are ahead of this member's.
    fn heard_clocks(&self) -> Vec<u64> {
        self.peers
            .values()
            .filter(|peer| peer.origin.is_some() && !peer.silent)
            .map(|peer| peer.ahead_ms)
            .collect()
    }

    /// When at least two clocks, and more than half of all with this member's, are ahead by more than is taken over
    /// from anybody: by how much at least.
    fn least_ahead_of_most(&self) -> Option<u64> {
        let heard = self.heard_clocks();
        let ahead = || {
            let far = heard.iter().copied();
            far.filter(|ahead| *ahead > crate::clock::MAX_AHEAD_MS)
        };
        let most = ahead().count() >= 2 && ahead().count() * 2 > heard.len() + 1;
        ahead().min().filter(|_| most)
    }

    pub(super) fn silent_since(&self, origin: Origin) -> Option<u64> {
        self.standing.silent.get(&origin).map(|(since, _)| *since)
    }

    /// True when a majority was heard all the time since then.
    pub(super) fn with_majority_since(&self, since: u64) -> bool {
        self.standing.last_minority.is_none_or(|last| last < since)
    }

    /// True when this member, or one that this member hears, hears the other.
    pub(super) fn is_heard_by_anyone(&self, member: MemberId) -> bool {
        self.peers.iter().any(|(id, peer)| {
            let here = *id == member && peer.connected && peer.origin.is_some();
            !peer.silent && (here || peer.hears.contains(&member))
        })
    }
}
