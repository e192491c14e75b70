//! The council at work, and the membership protocol's opinions.

use std::collections::BTreeMap;

use causeway_registry::{Detected, Health, MemberId, RecordKey, Stamp, Version};

use super::World;
use crate::check::Invariant;
use crate::council::{Counts, Decision};

/// How long nothing must be heard before the membership protocol says so, in milliseconds.
const SUSPECT_MS: u64 = 3_000;

/// When a decision that had no effect is made again, in milliseconds.
const AGAIN_MS: u64 = 5_000;

/// How many orphans are judged at once.
const ORPHANS: usize = 1_000;

/// A record that may go, as it was seen, and whether its holder is not heard.
type Late = (RecordKey, Version, bool);

/// What one place thinks of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opinion {
    since: u64,
    told: Detected,
    wrong_until: u64,
}

impl World {
    /// The place that leads a majority, if there is one.
    fn lead(&mut self) -> Option<usize> {
        let members = &self.council.members;
        let can = |place: &usize| {
            let here = &self.places[*place];
            if !here.runs() || here.gone || !members.contains(&here.member) {
                return false;
            }
            let reached = members
                .iter()
                .filter_map(|member| self.place_of(*member))
                .filter(|other| {
                    other == place
                        || (self.places[*other].runs() && self.network.joins(*place, *other))
                })
                .count();
            reached * 2 > members.len()
        };
        let leader = self
            .council
            .leader
            .filter(can)
            .or_else(|| (0..self.places.len()).find(can));
        if leader != self.council.leader {
            self.council.leader_since = leader.map(|_| self.now);
        }
        self.council.leader = leader;
        leader
    }

    pub(super) fn hold_council(&mut self) {
        let Some(leader) = self.lead() else {
            return;
        };
        self.prove_deaths(leader);
        self.judge(leader);
        for place in 0..self.places.len() {
            let reached =
                place == leader || (self.places[place].runs() && self.network.joins(leader, place));
            // Some are late.
            if reached && (place == leader || self.random.chance(3, 4)) {
                self.carry_out(place);
            }
        }
    }

    /// Processes that do not run while their machine does refuse connections; two members tried.
    fn prove_deaths(&mut self, leader: usize) {
        let dead: Vec<MemberId> = self
            .council
            .members
            .iter()
            .copied()
            .filter(|member| {
                self.place_of(*member)
                    .is_none_or(|place| self.places[place].process.is_none())
            })
            .collect();
        let now = self.now;
        if let Some(process) = &mut self.places[leader].process {
            let local = process.local(now);
            for member in dead {
                process.replicator.prove_dead(member, local);
            }
        }
    }

    fn judge(&mut self, leader: usize) {
        let now = self.now;
        let Some(process) = &self.places[leader].process else {
            return;
        };
        if process.retired || process.replicator.readiness() == causeway_registry::Readiness::Init {
            return;
        }
        let local = process.local(now);
        let orphans: BTreeMap<RecordKey, Version> = process
            .replicator
            .orphans(&process.node, local, ORPHANS)
            .into_iter()
            .map(|orphan| (orphan.key, orphan.version))
            .collect();
        let mut services: BTreeMap<String, (Counts, Vec<Late>)> = BTreeMap::new();
        for record in process.node.records() {
            let (counts, late) = services.entry(record.body.service.clone()).or_default();
            counts.present += 1;
            let orphan = orphans.get(&record.key);
            let expired = matches!(record.health, Health::Expired | Health::Held);
            if expired || orphan.is_some() {
                counts.late += 1;
                late.push((record.key.clone(), record.version(), orphan.is_some()));
            } else if record.health == Health::Live {
                counts.live += 1;
            }
        }
        let fresh = |decided: &BTreeMap<RecordKey, (Version, u64)>, key: &RecordKey, version| {
            decided
                .get(key)
                .is_none_or(|(known, at)| *known != version || now.saturating_sub(*at) > AGAIN_MS)
        };
        let (mut remove, mut orphaned, mut hold) = (Vec::new(), Vec::new(), Vec::new());
        for (service, (counts, late)) in services {
            if late.is_empty() {
                self.council.allows(&service, counts, now);
                continue;
            }
            let allowed = self.council.allows(&service, counts, now);
            for (key, version, orphan) in late {
                if !fresh(&self.council.decided, &key, version) {
                    continue;
                }
                self.council.decided.insert(key.clone(), (version, now));
                match (allowed, orphan) {
                    (true, true) => orphaned.push((key, version)),
                    (true, false) => remove.push((key, version.stamp)),
                    (false, false) => hold.push((key, version.stamp)),
                    (false, true) => {}
                }
            }
        }
        for decision in [
            Decision::Remove(remove),
            Decision::RemoveOrphans(orphaned),
            Decision::Hold(hold),
        ] {
            let empty = match &decision {
                Decision::Remove(list) | Decision::Hold(list) => list.is_empty(),
                Decision::RemoveOrphans(list) => list.is_empty(),
                Decision::Members(_) => false,
            };
            if !empty {
                self.decide(decision);
            }
        }
    }

    /// An entry of the council's log.
    pub(super) fn decide(&mut self, decision: Decision) {
        self.trace
            .note(self.now, &[11], &[], || format!("council: {decision:?}"));
        match &decision {
            Decision::Remove(list) => {
                self.count("verdicts");
                for (key, stamp) in list {
                    self.oracle.judge(key, *stamp);
                }
            }
            Decision::RemoveOrphans(list) => {
                self.count("verdicts on orphans");
                for (key, version) in list {
                    self.oracle.judge(key, version.stamp);
                }
            }
            Decision::Hold(_) => self.count("holds"),
            Decision::Members(_) => self.count("member lists"),
        }
        self.council.decide(decision);
    }

    /// The member carries out what was decided and it has not yet.
    fn carry_out(&mut self, place: usize) {
        let now = self.now;
        loop {
            let Some(process) = self.places[place].process.as_mut() else {
                return;
            };
            let Some(decision) = self.council.log.get(process.applied) else {
                return;
            };
            process.applied += 1;
            let local = process.local(now);
            let protected = process.replicator.is_protected();
            let mut removed = Vec::new();
            match decision {
                Decision::Members(members) => {
                    process.members = members.clone();
                    process
                        .replicator
                        .set_members(&mut process.node, members, local);
                    let members = members.clone();
                    self.places[place].disk.members = members;
                }
                Decision::Remove(judged) => {
                    removed = process.node.remove_all_expired(judged, local);
                }
                Decision::RemoveOrphans(judged) => {
                    removed = process.node.remove_orphans(judged, local);
                }
                Decision::Hold(list) => {
                    for (key, stamp) in list {
                        hold(process, key, *stamp);
                    }
                }
            }
            if protected && !removed.is_empty() {
                let what = format!("{place}: removed {} records while protected", removed.len());
                self.wrong(Invariant::QuietWhileProtected, what);
            }
            self.settle(place);
        }
    }

    /// What the membership protocol says: a place is down when nobody reaches it, directly or over one other.
    pub(super) fn detect(&mut self) {
        let now = self.now;
        for here in 0..self.places.len() {
            if !self.places[here].runs() {
                continue;
            }
            for there in 0..self.places.len() {
                if here == there || self.places[there].gone {
                    continue;
                }
                let reached = self.reaches(here, there);
                let opinion = self.detector.entry((here, there)).or_insert(Opinion {
                    since: now,
                    told: Detected::Alive,
                    wrong_until: 0,
                });
                if reached {
                    opinion.since = now;
                }
                let lost = now.saturating_sub(opinion.since) >= SUSPECT_MS;
                let down = lost || opinion.wrong_until > now;
                let says = if down {
                    Detected::Down
                } else {
                    Detected::Alive
                };
                if says != opinion.told {
                    opinion.told = says;
                    self.tell_detected(here, there, says);
                }
            }
        }
    }

    fn reaches(&self, here: usize, there: usize) -> bool {
        let runs = |place: usize| self.places[place].runs();
        let joins = |one, two| self.network.joins(one, two);
        runs(there)
            && (joins(here, there)
                || (0..self.places.len()).any(|over| {
                    over != here
                        && over != there
                        && runs(over)
                        && joins(here, over)
                        && joins(over, there)
                }))
    }

    fn tell_detected(&mut self, here: usize, there: usize, says: Detected) {
        let now = self.now;
        let peer = self.places[there].member;
        self.trace
            .note(now, &[12, here as u64, there as u64], &[], || {
                format!("{here}: the detector says that {there} is {says:?}")
            });
        if let Some(process) = self.places[here].process.as_mut() {
            let local = process.local(now);
            process
                .replicator
                .handle_detector(&mut process.node, peer, says, local);
            self.settle(here);
        }
    }

    /// A process begins without opinions, and is told those that are not the first one.
    pub(super) fn forget_opinions(&mut self, place: usize) {
        self.detector.retain(|(here, _), _| *here != place);
    }

    /// A wrong opinion for a while.
    pub(super) fn spread_rumour(&mut self, here: usize, there: usize, ms: u64) {
        let until = self.now + ms;
        if let Some(opinion) = self.detector.get_mut(&(here, there)) {
            opinion.wrong_until = until;
        }
    }
}

fn hold(process: &mut crate::process::Process, key: &RecordKey, stamp: Stamp) {
    let expired = process
        .node
        .get(key)
        .is_some_and(|record| record.stamp == stamp && record.health == Health::Expired);
    if expired {
        process.node.set_health(key, Health::Held);
    }
}
