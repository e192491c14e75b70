//! A model of the council: one log, added to only while somebody reaches a majority, carried out by whoever is reached.
//!
//! Its judgement is the rule of implausible loss: of a service, no more than 40 % goes by expiry at once.

use std::collections::BTreeMap;

use causeway_registry::{MemberId, RecordKey, Stamp, Version};

/// How much of a service may go by expiry at once, in percent.
pub const LIMIT_PERCENT: usize = 40;

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Decision {
    /// The list of members.
    Members(Vec<MemberId>),
    /// These records go, if their holder still sees them at this stamp.
    Remove(Vec<(RecordKey, Stamp)>),
    /// These records of members that are not heard go, if they are still at this version.
    RemoveOrphans(Vec<(RecordKey, Version)>),
    /// These records are kept against their timeout.
    Hold(Vec<(RecordKey, Stamp)>),
}

/// The council.
#[derive(Clone, Debug, Default)]
pub struct Council {
    /// What was decided, in order.
    pub log: Vec<Decision>,
    /// The list of members that is in force.
    pub members: Vec<MemberId>,
    /// Where its leader is.
    pub leader: Option<usize>,
    /// Since when it has had a leader.
    pub leader_since: Option<u64>,
    /// The expected size of each service.
    pub expected: BTreeMap<String, usize>,
    /// When each record was last decided on.
    pub decided: BTreeMap<RecordKey, (Version, u64)>,
    /// Services of which nothing goes.
    pub protected: BTreeMap<String, u64>,
    /// An operator acknowledges every loss at once.
    pub operator: bool,
}

/// What a service looks like to the leader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Instances in the view.
    pub present: usize,
    /// Those with proof of life.
    pub live: usize,
    /// Those that would go.
    pub late: usize,
}

impl Council {
    /// Adds an entry.
    pub fn decide(&mut self, decision: Decision) {
        if let Decision::Members(members) = &decision {
            self.members = members.clone();
        }
        self.log.push(decision);
    }

    /// True when what is late in a service may go.
    pub fn allows(&mut self, service: &str, counts: Counts, now: u64) -> bool {
        let expected = self.expected.entry(service.to_owned()).or_insert(0);
        // Removals by owners make it fall; so do earlier verdicts, which is coarser than the real rule.
        *expected = (*expected).max(counts.live).min(counts.present);
        let left = counts.present.saturating_sub(counts.late);
        let lost = expected.saturating_sub(left);
        let plausible = lost * 100 <= LIMIT_PERCENT * *expected || *expected <= 2;
        if plausible || self.operator {
            self.protected.remove(service);
            *expected = (*expected).min(left);
            true
        } else {
            self.protected.entry(service.to_owned()).or_insert(now);
            false
        }
    }
}
