//! Checks of one member by itself: its positions, its counts, what it remembers.

use std::collections::{BTreeMap, BTreeSet};

use causeway_registry::digest::Digest;
use causeway_registry::{CatchUp, LeaseId, Node, Origin, RecordKey};

use super::Invariant;
use crate::client::content;
use crate::process::Process;
use crate::world::World;

/// How many lives of one member may be in the vector: the present one, those without values that are kept, and one that
/// still has values.
const LIVES: usize = 8;

/// How much running time may be missing from a timeout: a pause is counted from the last call before it.
const SLACK_MS: u64 = 2_100;

impl World {
    /// An owner timed out: it was not heard for its whole timeout in which this process ran.
    pub(crate) fn look_at_expired(&mut self, place: usize, lease: LeaseId) {
        let now = self.now;
        let ttl_ms = self.setup.ttl_ms();
        self.count("leases expired");
        let Some(process) = &self.places[place].process else {
            return;
        };
        let Some(renewed) = process.renewed.get(&lease) else {
            return;
        };
        let silent = process.running(now).saturating_sub(*renewed);
        if silent + SLACK_MS < ttl_ms {
            let what = format!(
                "{place}: {lease} expired after {silent} ms of {ttl_ms} in which the process ran"
            );
            self.wrong(Invariant::PauseExpiresNobody, what);
        }
    }

    /// Everything that a member can be asked by itself.
    pub(crate) fn look_at_place(&mut self, place: usize) {
        let Some(process) = &self.places[place].process else {
            return;
        };
        let faults = [
            (Invariant::SummaryTrue, recount(&process.node)),
            (Invariant::FloorsBelow, floors(&process.node)),
            (
                Invariant::BoundedMemory,
                memory(process, self.setup.tombstone_bytes),
            ),
        ];
        for (invariant, fault) in faults {
            if let Some(what) = fault {
                self.wrong(invariant, format!("{place}: {what}"));
            }
        }
        self.look_at_positions(place);
        self.look_at_subscribers(place);
    }

    /// Positions rise, and stay below what the writer has written.
    fn look_at_positions(&mut self, place: usize) {
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        let me = process.node.origin();
        let vector: BTreeMap<Origin, u64> = process.node.logs().vector().iter().collect();
        let own = vector.get(&me).copied().unwrap_or(0);
        let mut faults = Vec::new();
        for (origin, was) in &process.vector {
            let is = vector.get(origin).copied();
            let over = process.node.logs().is_past(*origin);
            if is.is_none_or(|is| is < *was) && !over {
                faults.push(format!(
                    "{place}: position of {origin:?} fell from {was} to {is:?}"
                ));
            }
        }
        let head = self.oracle.heads.entry(me).or_insert(0);
        *head = own.max(*head);
        for (origin, at) in &vector {
            let head = self.oracle.heads.get(origin).copied().unwrap_or(0);
            if *at > head {
                faults.push(format!(
                    "{place}: position {at} of {origin:?} is above its head {head}"
                ));
            }
        }
        process.vector = vector;
        let known = self.oracle.lives.entry(me.member).or_insert(0);
        *known = (*known).max(me.incarnation);
        for what in faults {
            self.wrong(Invariant::NoGaps, what);
        }
    }

    /// Subscribers ask, and have the list afterwards.
    fn look_at_subscribers(&mut self, place: usize) {
        if !self.serves(place) {
            return;
        }
        let mut faults = Vec::new();
        for service in 0..self.setup.services {
            // Not everybody asks each time: some are behind by many changes.
            if !self.random.chance(1, 2) {
                continue;
            }
            let Some(process) = self.places[place].process.as_mut() else {
                return;
            };
            let service = format!("service{service}");
            let watcher = process.watchers.entry(service.clone()).or_default();
            let answer = process.node.catch_up("space", &service, watcher.since);
            let revision = match answer {
                CatchUp::Current { revision } => revision,
                CatchUp::Full { revision, records } => {
                    watcher.list = records
                        .iter()
                        .map(|record| (record.key.clone(), content(&record.body).unwrap_or(0)))
                        .collect();
                    revision
                }
                CatchUp::Delta {
                    revision,
                    changed,
                    removed,
                } => {
                    for gone in removed {
                        watcher.list.remove(&gone.key);
                    }
                    for record in changed {
                        let shown = content(&record.body).unwrap_or(0);
                        watcher.list.insert(record.key, shown);
                    }
                    revision
                }
            };
            let fell = watcher.since.is_some_and(|since| {
                since.incarnation == revision.incarnation && since.number > revision.number
            });
            if fell {
                faults.push(format!("{place}: mark of {service} fell to {revision}"));
            }
            watcher.since = Some(revision);
            let list: BTreeMap<RecordKey, u64> = process
                .node
                .by_service("space", &service)
                .map(|record| (record.key.clone(), content(&record.body).unwrap_or(0)))
                .collect();
            if list != watcher.list {
                let shown = watcher.list.len();
                faults.push(format!(
                    "{place}: a subscriber of {service} has {shown} instances of {}",
                    list.len()
                ));
            }
        }
        for what in faults {
            self.wrong(Invariant::Subscribers, what);
        }
    }
}

/// What the node says at constant cost against a count of everything.
fn recount(node: &Node) -> Option<String> {
    let mut digest = Digest::new(node.config().digest_key);
    let mut instances = BTreeSet::new();
    let mut services = BTreeSet::new();
    let mut records = 0;
    let mut origins: BTreeSet<Origin> = node.logs().vector().iter().map(|(one, _)| one).collect();
    for record in node.records() {
        digest.add(record);
        records += 1;
        instances.insert((record.service(), record.body.instance.clone()));
        services.insert(record.service());
        origins.insert(record.dot.origin);
        if node.logs().key_at(record.dot) != Some(&record.key) {
            return Some(format!(
                "{} is not in the log at {:?}",
                record.key, record.dot
            ));
        }
    }
    let tombstones = node.tombstones().count();
    let summary = node.summary();
    let told = (
        summary.records,
        summary.instances,
        summary.services,
        summary.tombstones,
        summary.digest,
    );
    let counted = (
        records,
        instances.len(),
        services.len(),
        tombstones,
        digest.total(),
    );
    if told != counted {
        return Some(format!("told {told:?}, counted {counted:?}"));
    }
    if node.logs().len() != records + tombstones {
        return Some(format!(
            "{} entries in logs for {records} records and {tombstones} tombstones",
            node.logs().len()
        ));
    }
    let other = origins
        .iter()
        .find(|origin| node.digest().origin(**origin) != digest.origin(**origin));
    if let Some(origin) = other {
        return Some(format!(
            "the digest of {origin:?} is not that of its records"
        ));
    }
    let buckets = node.digest().buckets().zip(digest.buckets());
    for (at, (told, counted)) in buckets.enumerate() {
        if told != counted {
            return Some(format!("bucket {at} is {told:?}, counted {counted:?}"));
        }
    }
    None
}

pub(super) fn floors(node: &Node) -> Option<String> {
    let logs = node.logs();
    let above = logs
        .floors()
        .iter()
        .find(|(origin, floor)| *floor > logs.vector().get(*origin))?;
    Some(format!("floor {above:?} is above the position"))
}

fn memory(process: &Process, tombstone_bytes: usize) -> Option<String> {
    let logs = process.node.logs();
    let mut lives: BTreeMap<u16, usize> = BTreeMap::new();
    for (origin, _) in logs.vector().iter() {
        let holds = logs.above(origin, 0).next().is_some();
        *lives.entry(origin.member).or_insert(0) += usize::from(!holds);
    }
    if let Some((member, count)) = lives.iter().find(|(_, count)| **count > LIVES) {
        return Some(format!(
            "{count} empty lives of member {member} are remembered"
        ));
    }
    let bytes: usize = process.node.tombstones().map(|t| t.cost()).sum();
    // The budget is kept by the timer: what came since its last call may be above it.
    if bytes > tombstone_bytes.saturating_mul(2).saturating_add(16_384) {
        return Some(format!("{bytes} bytes of tombstones"));
    }
    None
}
