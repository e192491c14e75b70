//! Migration phases, what each one means for writes and reads, and the moves allowed between them.
//!
//! One function, [`PhaseState::judge`], says whether a move is allowed; everything that could make
//! it unsafe arrives as a value in [`Gates`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A phase of the migration. L is the legacy store, N the new registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// L alone; an inventory of services, layouts, readers and writers is taken.
    Proxy,
    /// L acknowledges, then N is written; reads are L's.
    Mirror,
    /// L acknowledges, then N is written; reads are the union.
    MergeLegacy,
    /// N acknowledges, L converges; reads are the union.
    MergeNew,
    /// N acknowledges, L is kept warm; reads are N's.
    New,
    /// N alone is written; Causeway withdraws its own entries from L and watches for stragglers.
    Drain,
    /// N alone; registrations have left L.
    Done,
}

/// Which sources count for what a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// The legacy store alone.
    Legacy,
    /// Everything that either side proves alive.
    Union,
    /// The new registry alone.
    New,
}

/// Which side has to say yes before the client is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledges {
    /// The legacy store; its refusal is the client's answer.
    Legacy,
    /// The new registry.
    New,
}

/// What Causeway keeps in the legacy store for its own clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyCopy {
    /// Written before the reply.
    BeforeReply,
    /// Converges after the reply.
    Converges,
    /// Withdrawn, entry by entry.
    Withdrawn,
    /// Left alone.
    Untouched,
}

impl Phase {
    /// All phases in order.
    pub const ALL: [Phase; 7] = [
        Phase::Proxy,
        Phase::Mirror,
        Phase::MergeLegacy,
        Phase::MergeNew,
        Phase::New,
        Phase::Drain,
        Phase::Done,
    ];

    /// The name used on the command line, in the configuration and in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Proxy => "proxy",
            Phase::Mirror => "mirror",
            Phase::MergeLegacy => "merge-legacy",
            Phase::MergeNew => "merge-new",
            Phase::New => "new",
            Phase::Drain => "drain",
            Phase::Done => "done",
        }
    }

    /// The phase one step forward, if there is one.
    pub fn next(self) -> Option<Phase> {
        Self::ALL.get(self as usize + 1).copied()
    }

    /// The phase one step back, if there is one.
    pub fn previous(self) -> Option<Phase> {
        (self as usize)
            .checked_sub(1)
            .and_then(|i| Self::ALL.get(i))
            .copied()
    }

    /// Sources that count for readers.
    pub fn reads(self) -> Reads {
        match self {
            Phase::Proxy | Phase::Mirror => Reads::Legacy,
            Phase::MergeLegacy | Phase::MergeNew => Reads::Union,
            Phase::New | Phase::Drain | Phase::Done => Reads::New,
        }
    }

    /// The side that acknowledges a registration.
    pub fn acknowledges(self) -> Acknowledges {
        match self {
            Phase::Proxy | Phase::Mirror | Phase::MergeLegacy => Acknowledges::Legacy,
            Phase::MergeNew | Phase::New | Phase::Drain | Phase::Done => Acknowledges::New,
        }
    }

    /// Whether registrations are written to N.
    pub fn writes_new(self) -> bool {
        self != Phase::Proxy
    }

    /// What happens to Causeway's copy of a registration in L.
    pub fn legacy_copy(self) -> LegacyCopy {
        match self {
            Phase::Proxy | Phase::Mirror | Phase::MergeLegacy => LegacyCopy::BeforeReply,
            Phase::MergeNew | Phase::New => LegacyCopy::Converges,
            Phase::Drain => LegacyCopy::Withdrawn,
            Phase::Done => LegacyCopy::Untouched,
        }
    }

    /// Whether the phase can only be reached after the take-over.
    pub fn needs_take_over(self) -> bool {
        self >= Phase::MergeLegacy
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A phase name nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown phase {0:?}; the phases are proxy, mirror, merge-legacy, merge-new, new, drain, done"
)]
pub struct UnknownPhase(pub String);

impl FromStr for Phase {
    type Err = UnknownPhase;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| UnknownPhase(text.to_owned()))
    }
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// One phase forward.
    Advance,
    /// One phase back.
    Rollback,
    /// Sessions, leases and numbers become Causeway's own; one-way.
    TakeOver,
}

impl Move {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Move::Advance => "advance",
            Move::Rollback => "rollback",
            Move::TakeOver => "take-over",
        }
    }
}

/// What is known of direct readers and writers of L.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "who")]
pub enum Census {
    /// Nobody but Causeway uses L.
    None,
    /// These do.
    Some(Vec<String>),
    /// It cannot be told, for this reason; that is not a pass.
    CannotTell(String),
}

/// Measured evidence for a move. Every list names what stands in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gates {
    /// Registrations that differ between L and N for longer than the tolerated time.
    pub differences: Vec<String>,
    /// Entries whose desired state L has not reached yet.
    pub backlog: usize,
    /// Stores that are not whole and healthy, with the reason.
    pub unhealthy: Vec<String>,
    /// Instances that protection holds.
    pub held: usize,
    /// How long all of the above has been clean, in milliseconds.
    pub clean_for_ms: i64,
    /// How long it has to be clean, in milliseconds.
    pub gate_time_ms: i64,
    /// Direct users of L.
    pub census: Census,
    /// Users of L that `done` would cut off: general keys, bound sessions, pass-through users.
    pub still_on_legacy: Vec<String>,
    /// Directories with locks, elections or direct sequences that cannot go further, with the reason.
    pub unsafe_directories: Vec<String>,
}

impl Gates {
    /// Gates with nothing in the way.
    pub fn clean(gate_time_ms: i64) -> Self {
        Gates {
            differences: Vec::new(),
            backlog: 0,
            unhealthy: Vec::new(),
            held: 0,
            clean_for_ms: gate_time_ms,
            gate_time_ms,
            census: Census::None,
            still_on_legacy: Vec::new(),
            unsafe_directories: Vec::new(),
        }
    }

    /// Everything that keeps the step from `from` to `to` from being safe; empty means it passes.
    pub fn failures(&self, from: Phase, to: Phase) -> Vec<String> {
        let mut out = Vec::new();
        if from == Phase::Proxy {
            // Nothing is in N yet, so only the store has to be whole.
            out.extend(
                self.unhealthy
                    .iter()
                    .map(|u| format!("store not whole: {u}")),
            );
            return out;
        }
        if !self.differences.is_empty() {
            let shown: Vec<&str> = self
                .differences
                .iter()
                .take(10)
                .map(String::as_str)
                .collect();
            out.push(format!(
                "{} registrations differ between the legacy store and the registry: {}",
                self.differences.len(),
                shown.join(", ")
            ));
        }
        if self.backlog > 0 {
            out.push(format!(
                "{} entries have not converged in the legacy store",
                self.backlog
            ));
        }
        out.extend(
            self.unhealthy
                .iter()
                .map(|u| format!("store not whole: {u}")),
        );
        if self.held > 0 {
            out.push(format!("{} instances are held by protection", self.held));
        }
        if self.clean_for_ms < self.gate_time_ms {
            out.push(format!(
                "clean for {} s only, {} s are asked",
                self.clean_for_ms / 1000,
                self.gate_time_ms / 1000
            ));
        }
        out.extend(
            self.unsafe_directories
                .iter()
                .map(|d| format!("not safe past mirror: {d}")),
        );
        if to >= Phase::Drain {
            match &self.census {
                Census::None => {}
                Census::Some(who) => {
                    out.push(format!(
                        "direct users of the legacy store: {}",
                        who.join(", ")
                    ));
                }
                Census::CannotTell(why) => {
                    out.push(format!("census of direct users: cannot tell ({why})"));
                }
            }
        }
        if to == Phase::Done {
            out.extend(
                self.still_on_legacy
                    .iter()
                    .map(|w| format!("still served by the legacy store: {w}")),
            );
        }
        out
    }
}

/// Why a gate was passed by force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forced {
    /// The operator's reason.
    pub reason: String,
}

/// A step that was taken: the entry in the council's log and in the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What was asked.
    pub kind: Move,
    /// Phase before.
    pub from: Phase,
    /// Phase after.
    pub to: Phase,
    /// Epoch after the step; rises by one with each.
    pub epoch: u64,
    /// Attempt: rises with each step back, so that what an earlier attempt wrote can be told apart.
    pub attempt: u64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Who asked.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// Gate failures that were passed by force.
    pub forced: Vec<String>,
}

/// Why a move was refused. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The take-over has to come first.
    #[error(
        "{to} needs the take-over first: run `causeway take-over` (one-way; `causeway status` shows its gates)"
    )]
    NeedsTakeOver {
        /// The phase asked for.
        to: Phase,
    },
    /// The take-over has happened.
    #[error("the take-over has already happened (epoch {epoch})")]
    AlreadyTakenOver {
        /// Current epoch.
        epoch: u64,
    },
    /// There is no phase in that direction.
    #[error("{from} has no phase {direction}; {hint}")]
    NoSuchStep {
        /// Current phase.
        from: Phase,
        /// "after it" or "before it".
        direction: &'static str,
        /// What can be done.
        hint: &'static str,
    },
    /// Nothing to migrate.
    #[error(
        "no legacy store is configured: there is nothing to migrate (set --legacy-zookeeper or --legacy-etcd)"
    )]
    NoLegacyStore,
    /// Gates are not met.
    #[error("{kind} from {from} to {to} is not safe yet: {}", failures.join("; "))]
    Gates {
        /// What was asked.
        kind: &'static str,
        /// Phase now.
        from: Phase,
        /// Phase asked for.
        to: Phase,
        /// What stands in the way, one by one.
        failures: Vec<String>,
    },
    /// `--force` without a reason.
    #[error("--force needs --reason: it is written to the audit")]
    ForceWithoutReason,
}

/// The phase of a scope, with its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseState {
    phase: Phase,
    taken_over: bool,
    epoch: u64,
    attempt: u64,
    since_ms: i64,
    has_legacy: bool,
    steps: Vec<Step>,
}

impl PhaseState {
    /// A fresh state. Without a legacy store everything counts as taken over from the start.
    pub fn new(phase: Phase, has_legacy: bool, now_ms: i64) -> Self {
        PhaseState {
            phase: if has_legacy { phase } else { Phase::Done },
            taken_over: !has_legacy || phase.needs_take_over(),
            epoch: 1,
            attempt: 1,
            since_ms: now_ms,
            has_legacy,
            steps: Vec::new(),
        }
    }

    /// The phase in force.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether sessions, leases and numbers are Causeway's own.
    pub fn taken_over(&self) -> bool {
        self.taken_over
    }

    /// Number of the last step.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the attempt.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// When the phase was entered, in milliseconds since the Unix epoch.
    pub fn since_ms(&self) -> i64 {
        self.since_ms
    }

    /// Whether there is a legacy store to migrate from.
    pub fn has_legacy(&self) -> bool {
        self.has_legacy
    }

    /// All steps taken, oldest first.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The phase a move leads to, or why there is none. Gates are not looked at.
    pub fn target(&self, kind: Move) -> Result<Phase, Refusal> {
        if !self.has_legacy {
            return Err(Refusal::NoLegacyStore);
        }
        match kind {
            Move::TakeOver if self.taken_over => {
                Err(Refusal::AlreadyTakenOver { epoch: self.epoch })
            }
            Move::TakeOver => Ok(self.phase),
            Move::Advance => {
                let to = self.phase.next().ok_or(Refusal::NoSuchStep {
                    from: self.phase,
                    direction: "after it",
                    hint: "the migration has ended",
                })?;
                if to.needs_take_over() && !self.taken_over {
                    return Err(Refusal::NeedsTakeOver { to });
                }
                Ok(to)
            }
            Move::Rollback if self.phase == Phase::Done => Err(Refusal::NoSuchStep {
                from: self.phase,
                direction: "before it",
                hint: "registrations have left the legacy store; start a new migration toward a fresh store instead",
            }),
            Move::Rollback => self.phase.previous().ok_or(Refusal::NoSuchStep {
                from: self.phase,
                direction: "before it",
                hint: "clients can be pointed back at the legacy store",
            }),
        }
    }

    /// Judges a move against the gates and gives the step to record, without taking it.
    pub fn judge(
        &self,
        kind: Move,
        gates: &Gates,
        force: Option<&Forced>,
        actor: &str,
        reason: &str,
        now_ms: i64,
    ) -> Result<Step, Refusal> {
        let to = self.target(kind)?;
        if force.is_some_and(|f| f.reason.trim().is_empty()) {
            return Err(Refusal::ForceWithoutReason);
        }
        let failures = match kind {
            Move::Advance => gates.failures(self.phase, to),
            // The view must be whole before it answers; nothing else can make the take-over unsafe.
            Move::TakeOver => gates
                .unhealthy
                .iter()
                .map(|u| format!("store not whole: {u}"))
                .collect(),
            Move::Rollback => self.rollback_failures(to, gates),
        };
        if !failures.is_empty() && force.is_none() {
            return Err(Refusal::Gates {
                kind: kind.name(),
                from: self.phase,
                to,
                failures,
            });
        }
        Ok(Step {
            kind,
            from: self.phase,
            to,
            epoch: self.epoch + 1,
            attempt: if kind == Move::Rollback {
                self.attempt + 1
            } else {
                self.attempt
            },
            at_ms: now_ms,
            actor: actor.to_owned(),
            reason: force.map_or_else(|| reason.to_owned(), |f| f.reason.clone()),
            forced: failures,
        })
    }

    /// A step back first does what makes it safe; here is what must be true once that is done.
    fn rollback_failures(&self, to: Phase, gates: &Gates) -> Vec<String> {
        let mut out = Vec::new();
        if self.phase.acknowledges() == Acknowledges::New {
            out.extend(
                gates
                    .unhealthy
                    .iter()
                    .map(|u| format!("store not whole: {u}")),
            );
            if to.reads() != Reads::New {
                if gates.backlog > 0 {
                    out.push(format!(
                        "{} entries have not converged in the legacy store",
                        gates.backlog
                    ));
                }
                if to.acknowledges() == Acknowledges::Legacy && !gates.differences.is_empty() {
                    out.push(format!("{} registrations differ", gates.differences.len()));
                }
            }
        }
        out
    }

    /// Takes a step that [`PhaseState::judge`] allowed; one that was judged before another is passed over.
    pub fn take(&mut self, step: &Step) {
        if step.epoch != self.epoch + 1 {
            // Judged before another step was taken: it says nothing about the present.
            return;
        }
        self.phase = step.to;
        self.epoch = step.epoch;
        self.attempt = step.attempt;
        self.taken_over |= step.kind == Move::TakeOver;
        self.since_ms = step.at_ms;
        self.steps.push(step.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: Phase, taken_over: bool) -> PhaseState {
        PhaseState {
            taken_over,
            ..PhaseState::new(phase, true, 0)
        }
    }

    #[test]
    fn names_round_trip() {
        for phase in Phase::ALL {
            assert_eq!(phase.name().parse::<Phase>(), Ok(phase));
        }
        assert!("prxy".parse::<Phase>().is_err());
    }

    #[test]
    fn adjacent_phases_read_what_the_other_writes() {
        // ReadSources(Pi) is within WriteTargets(Pj), for |i - j| <= 1: no registration is invisible
        // while two gateways are one step apart. Imports bring L's own records into N from mirror on.
        for (i, a) in Phase::ALL.into_iter().enumerate() {
            for b in Phase::ALL.iter().skip(i.saturating_sub(1)).take(3) {
                let written_to_l = matches!(
                    b.legacy_copy(),
                    LegacyCopy::BeforeReply | LegacyCopy::Converges
                );
                match a.reads() {
                    Reads::Legacy => assert!(written_to_l, "{a} reads L, {b} does not write it"),
                    Reads::New => assert!(b.writes_new(), "{a} reads N, {b} does not write it"),
                    Reads::Union => assert!(written_to_l || b.writes_new()),
                }
            }
        }
    }

    #[test]
    fn targets() {
        let cases: [(Phase, bool, Move, Result<Phase, &str>); 9] = [
            (Phase::Proxy, false, Move::Advance, Ok(Phase::Mirror)),
            (
                Phase::Mirror,
                false,
                Move::Advance,
                Err("causeway take-over"),
            ),
            (Phase::Mirror, true, Move::Advance, Ok(Phase::MergeLegacy)),
            (Phase::Mirror, false, Move::TakeOver, Ok(Phase::Mirror)),
            (Phase::Mirror, true, Move::TakeOver, Err("already")),
            (Phase::Drain, true, Move::Rollback, Ok(Phase::New)),
            (Phase::Done, true, Move::Rollback, Err("new migration")),
            (Phase::Done, true, Move::Advance, Err("has ended")),
            (Phase::Proxy, false, Move::Rollback, Err("pointed back")),
        ];
        for (phase, taken_over, kind, want) in cases {
            let got = state(phase, taken_over).target(kind);
            match want {
                Ok(to) => assert_eq!(got, Ok(to), "{phase} {kind:?}"),
                Err(text) => {
                    let message = got.expect_err("refused").to_string();
                    assert!(message.contains(text), "{phase} {kind:?}: {message}");
                }
            }
        }
        assert_eq!(
            PhaseState::new(Phase::Proxy, false, 0).target(Move::Advance),
            Err(Refusal::NoLegacyStore)
        );
    }

    #[test]
    fn gates_block_and_force_is_recorded() {
        let mut gates = Gates::clean(1000);
        gates.differences.push("/dubbo/a".into());
        let state = state(Phase::MergeLegacy, true);
        let refusal = state
            .judge(Move::Advance, &gates, None, "ann", "", 5)
            .expect_err("gated");
        assert!(refusal.to_string().contains("/dubbo/a"), "{refusal}");
        let empty = Forced { reason: " ".into() };
        assert_eq!(
            state.judge(Move::Advance, &gates, Some(&empty), "ann", "", 5),
            Err(Refusal::ForceWithoutReason)
        );
        let forced = Forced {
            reason: "known stale test entry".into(),
        };
        let step = state
            .judge(Move::Advance, &gates, Some(&forced), "ann", "", 5)
            .expect("forced");
        assert_eq!(step.to, Phase::MergeNew);
        assert_eq!(step.forced.len(), 1);
    }

    #[test]
    fn cannot_tell_is_not_a_pass() {
        let mut gates = Gates::clean(0);
        gates.census = Census::CannotTell("four-letter words are off".into());
        assert!(gates.failures(Phase::MergeNew, Phase::New).is_empty());
        assert_eq!(gates.failures(Phase::New, Phase::Drain).len(), 1);
    }

    #[test]
    fn steps_raise_the_epoch_and_rollbacks_the_attempt() {
        let mut state = state(Phase::Mirror, false);
        let gates = Gates::clean(0);
        for (kind, phase, epoch, attempt) in [
            (Move::TakeOver, Phase::Mirror, 2, 1),
            (Move::Advance, Phase::MergeLegacy, 3, 1),
            (Move::Rollback, Phase::Mirror, 4, 2),
            (Move::Advance, Phase::MergeLegacy, 5, 2),
        ] {
            let step = state
                .judge(kind, &gates, None, "a", "r", 1)
                .expect("allowed");
            state.take(&step);
            assert_eq!(
                (state.phase(), state.epoch(), state.attempt()),
                (phase, epoch, attempt)
            );
        }
        assert!(state.taken_over());
        assert_eq!(state.steps().len(), 4);
    }
}
