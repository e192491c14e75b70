//! What must hold, by name, and what the checks remember for it.

mod at_rest;
mod places;
mod records;

use std::collections::BTreeMap;
use std::fmt;

use causeway_registry::{Origin, RecordKey, Stamp, Version};
use thiserror::Error;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// I1: two members that hold one version of a key, from one write, hold the same value; merging is idempotent and commutative.
    MergeLaws,
    /// I2: some rounds after everything is mended, all members hold the same, and it is what clients want.
    Convergence,
    /// I3: what a member has seen removed does not come back unless it is registered again: versions never fall.
    NoResurrection,
    /// I4: what a connected client registered is on every member that serves and is joined to the holder, and no member
    /// joined to the holder takes it away.
    LivingVisible,
    /// I5: what nobody keeps alive is gone everywhere in the end.
    DeadGone,
    /// I6: an expiry removes nothing but what was judged.
    ConditionalExpiry,
    /// I7: at rest, traffic between members depends neither on how many records there are nor on how large they are.
    SteadyTraffic,
    /// I8: positions never fall and stay below the head of their log, and what they cover was seen.
    NoGaps,
    /// I9: floors stay below positions.
    FloorsBelow,
    /// I10: nothing is removed by expiry while a member is protected, nothing because that ended, and it ends.
    QuietWhileProtected,
    /// I11: what is remembered is bounded by members and records, not by what happened.
    BoundedMemory,
    /// I12: marks never fall, a subscriber has the list, and no list is shown that lacks what all others have.
    Subscribers,
    /// I13: a process that stood still expires nobody for it.
    PauseExpiresNobody,
    /// I14: whatever clocks show, lives rise and members agree.
    Clocks,
    /// I15: one seed, one trace.
    Repeatable,
    /// I16: what is known at constant cost equals a count of everything.
    SummaryTrue,
    /// No member sends what another one has to refuse.
    Protocol,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Invariant; 17] = [
        Invariant::MergeLaws,
        Invariant::Convergence,
        Invariant::NoResurrection,
        Invariant::LivingVisible,
        Invariant::DeadGone,
        Invariant::ConditionalExpiry,
        Invariant::SteadyTraffic,
        Invariant::NoGaps,
        Invariant::FloorsBelow,
        Invariant::QuietWhileProtected,
        Invariant::BoundedMemory,
        Invariant::Subscribers,
        Invariant::PauseExpiresNobody,
        Invariant::Clocks,
        Invariant::Repeatable,
        Invariant::SummaryTrue,
        Invariant::Protocol,
    ];
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = Invariant::ALL.iter().position(|known| known == self);
        match (number, self) {
            (_, Invariant::Protocol) | (None, _) => write!(f, "{self:?}"),
            (Some(at), _) => write!(f, "I{} {self:?}", at + 1),
        }
    }
}

/// What a check found, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "seed {seed}, fault {step}, event {event}, at {at_ms} ms: {invariant}: {what}\n\
     to repeat: cargo run -p causeway-registry-simulation -- --seed {seed} --steps {step} --trace"
)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// How many faults there had been.
    pub step: u64,
    /// How many events there had been.
    pub event: u64,
    /// When, in milliseconds of virtual time.
    pub at_ms: u64,
    /// What does not hold.
    pub invariant: Invariant,
    /// What was seen.
    pub what: String,
}

/// What the checks know beyond any member.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// The first thing that was found wrong.
    pub found: Option<(Invariant, String)>,
    /// The highest version of each key that any member ever held.
    pub written: BTreeMap<RecordKey, Version>,
    /// The head of each log, as its writer had it.
    pub heads: BTreeMap<Origin, u64>,
    /// The stamps at which each record was judged.
    pub judged: BTreeMap<RecordKey, Vec<Stamp>>,
    /// Keys that their client took away while it went on, and when.
    pub dropped: BTreeMap<RecordKey, u64>,
    /// The highest life of each member.
    pub lives: BTreeMap<u16, u64>,
}

impl Oracle {
    /// The council decided that a record goes.
    pub fn judge(&mut self, key: &RecordKey, stamp: Stamp) {
        self.judged.entry(key.clone()).or_default().push(stamp);
    }
}
