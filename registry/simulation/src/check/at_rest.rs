//! Checks that hold at rest, some time after the last fault.

use std::collections::BTreeMap;

use causeway_registry::{Readiness, RecordKey, Violation};

use super::{Failure, Invariant};
use crate::client::Intent;
use crate::world::World;

/// Within how many periods after everything is mended all members hold the same: streams are made again, three rounds
/// of anti-entropy pass.
const ROUNDS_MS: u64 = 15_000;

impl World {
    /// A member refused what another one sent.
    pub(crate) fn violated(&mut self, from: usize, to: usize, violation: Violation) {
        let what = format!("{to} refuses what {from} sent: {violation}");
        self.wrong(Invariant::Protocol, what);
    }

    /// After [`World::heal`]: waits, and judges what is left.
    ///
    /// # Errors
    /// What a check found.
    pub fn settle_and_judge(&mut self) -> Result<(), Failure> {
        let replication = &self.setup.replication;
        let slow = self.setup.detection_ms(1) / 5_000;
        // A start takes its time before anybody is counted on.
        let started = replication.alone_ms + 2 * replication.warming_ms;
        let rounds = started + ROUNDS_MS * slow;
        let members = u64::from(self.setup.members) + 2;
        // Silent lives are judged, forgotten ones taken over, leases run out, protection ends.
        let rest = replication.orphan_ms
            + replication.orphan_margin_ms
            + members * replication.inherit_ms
            + 3 * self.setup.ttl_ms()
            + 20_000 * slow;
        let equal = self.wait_for_equality(rounds)?;
        if !equal {
            let what = format!("{rounds} ms after the last fault: {}", self.differences());
            self.wrong(Invariant::Convergence, what);
            self.verdict()?;
        }
        self.pass(rest)?;
        self.look_at_rest();
        self.verdict()
    }

    /// True as soon as all members hold the same.
    fn wait_for_equality(&mut self, ms: u64) -> Result<bool, Failure> {
        let until = self.now + ms;
        while self.now < until {
            self.pass(500)?;
            if self.is_equal() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn members_at_rest(&self) -> Vec<usize> {
        (0..self.places.len())
            .filter(|place| self.council.members.contains(&self.places[*place].member))
            .filter(|place| !self.places[*place].gone)
            .collect()
    }

    fn is_equal(&self) -> bool {
        let mut digests = self.members_at_rest().into_iter().map(|place| {
            let process = self.places[place].process.as_ref()?;
            let ready = process.replicator.readiness() == Readiness::Ready;
            ready.then(|| process.node.summary().digest)
        });
        let Some(Some(first)) = digests.next() else {
            return false;
        };
        digests.all(|digest| digest == Some(first))
    }

    fn differences(&self) -> String {
        let mut lines = Vec::new();
        for place in self.members_at_rest() {
            let Some(process) = &self.places[place].process else {
                lines.push(format!("{place} does not run"));
                continue;
            };
            let summary = process.node.summary();
            lines.push(format!(
                "{place}: {:?}, {} records, digest {:x}, vector {:?}",
                process.replicator.readiness(),
                summary.records,
                summary.digest.sum,
                process
                    .node
                    .logs()
                    .vector()
                    .iter()
                    .map(|(origin, at)| (origin.member, origin.incarnation, at))
                    .collect::<Vec<_>>()
            ));
        }
        lines.join("; ")
    }

    /// All members hold what living clients want, and nothing else; nobody is protected; nothing is remembered for
    /// nothing.
    fn look_at_rest(&mut self) {
        let mut wanted: BTreeMap<RecordKey, u64> = BTreeMap::new();
        for client in &self.clients {
            if client.intent == Intent::Stay {
                let mine = client.registrations.iter();
                wanted.extend(mine.map(|one| (one.key.clone(), one.content)));
            }
        }
        let mut faults = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let homeless = client.intent == Intent::Stay && client.held_since.is_none();
            if homeless && client.bound_to.is_none() {
                faults.push((
                    Invariant::Convergence,
                    format!("client {number} found no member"),
                ));
            }
        }
        for place in self.members_at_rest() {
            let Some(process) = &self.places[place].process else {
                continue;
            };
            for (key, content) in &wanted {
                let shown = self.shown(place, key);
                if shown != Some(*content) {
                    let what = format!("{place}: {key} shows {shown:?} instead of {content}");
                    faults.push((Invariant::Convergence, what));
                }
            }
            for record in process.node.records() {
                if !wanted.contains_key(&record.key) {
                    let what = format!(
                        "{place}: nobody keeps {}, which is {:?} at {:?} of {:?}",
                        record.key, record.health, record.dot, record.lease
                    );
                    faults.push((Invariant::DeadGone, what));
                }
            }
            if process.replicator.is_protected() {
                let what = format!("{place}: is still protected");
                faults.push((Invariant::QuietWhileProtected, what));
            }
            let listed = &self.council.members;
            let quarantined: Vec<_> = process
                .quarantined
                .iter()
                .filter(|peer| listed.contains(peer))
                .collect();
            if !quarantined.is_empty() {
                let what = format!("{place}: still takes nothing from {quarantined:?}");
                faults.push((Invariant::Clocks, what));
            }
            // Lives of others that hold nothing any more.
            let old = process
                .node
                .logs()
                .vector()
                .iter()
                .filter(|(origin, _)| {
                    let known = self.oracle.lives.get(&origin.member).copied();
                    known.is_some_and(|known| origin.incarnation < known)
                })
                .count();
            let most = 5 * self.oracle.lives.len();
            if old > most {
                let what = format!("{place}: {old} earlier lives are remembered");
                faults.push((Invariant::BoundedMemory, what));
            }
        }
        if !self.is_equal() {
            faults.push((Invariant::Convergence, self.differences()));
        }
        for (invariant, what) in faults {
            self.wrong(invariant, what);
        }
    }
}
