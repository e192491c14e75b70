//! Operation + phase -> plan: who is asked, who is written, who is believed.

use crate::phase::{Acknowledges, LegacyCopy, Phase};

/// How the protocol of the operation is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No legacy store of this protocol: one store of ours for everything.
    Embedded,
    /// A legacy store that still answers everything: before the take-over.
    Relay,
    /// A legacy store after the take-over: registrations from the view, general keys from the store.
    TakenOver,
}

/// The class of the paths an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touches {
    /// Registrations alone.
    Owned,
    /// General keys alone.
    General,
    /// Both.
    Mixed,
}

/// What the operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It reads or watches.
    Read,
    /// It changes something.
    Write,
}

/// Where an operation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Answered by the view or the embedded store, in memory.
    Local,
    /// Written here; the reply does not wait for L, which converges.
    LocalThenLegacy,
    /// L is asked first; its refusal is the answer, its yes is recorded here before the reply.
    LegacyThenLocal,
    /// Goes to the legacy store as it is; nothing of it is kept here.
    Legacy,
    /// Goes to the legacy store as it is; what it acknowledges is copied into N before the reply.
    LegacyThenCopy,
    /// One list or range out of both.
    Union,
    /// Refused by name: a write over both classes has no single store any more.
    RefuseMixed,
}

/// The plan of one operation.
pub fn plan(mode: Mode, phase: Phase, touches: Touches, kind: Kind) -> Plan {
    match mode {
        Mode::Embedded => Plan::Local,
        Mode::Relay => match (kind, touches) {
            (Kind::Write, Touches::Owned | Touches::Mixed) if phase.writes_new() => {
                Plan::LegacyThenCopy
            }
            _ => Plan::Legacy,
        },
        Mode::TakenOver => match (kind, touches) {
            (_, Touches::General) => Plan::Legacy,
            (Kind::Read, Touches::Owned) => Plan::Local,
            (Kind::Read, Touches::Mixed) => Plan::Union,
            (Kind::Write, Touches::Owned) => owned_write(phase),
            // While L acknowledges, a mixed transaction is atomic there.
            (Kind::Write, Touches::Mixed) => match phase.acknowledges() {
                Acknowledges::Legacy => Plan::LegacyThenLocal,
                Acknowledges::New => Plan::RefuseMixed,
            },
        },
    }
}

fn owned_write(phase: Phase) -> Plan {
    match (phase.acknowledges(), phase.legacy_copy()) {
        (Acknowledges::Legacy, _) => Plan::LegacyThenLocal,
        (Acknowledges::New, LegacyCopy::Converges | LegacyCopy::Withdrawn) => Plan::LocalThenLegacy,
        (Acknowledges::New, LegacyCopy::BeforeReply | LegacyCopy::Untouched) => Plan::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Kind::{Read, Write};
    use Touches::{General, Mixed, Owned};

    #[test]
    fn the_whole_table() {
        let check = |mode, phase, touches, kind, want| {
            assert_eq!(
                plan(mode, phase, touches, kind),
                want,
                "{mode:?} {phase} {touches:?} {kind:?}"
            );
        };
        for phase in Phase::ALL {
            for touches in [Owned, General, Mixed] {
                for kind in [Read, Write] {
                    check(Mode::Embedded, phase, touches, kind, Plan::Local);
                }
                check(Mode::Relay, phase, touches, Read, Plan::Legacy);
            }
            check(Mode::TakenOver, phase, General, Read, Plan::Legacy);
            check(Mode::TakenOver, phase, General, Write, Plan::Legacy);
            check(Mode::TakenOver, phase, Owned, Read, Plan::Local);
            check(Mode::TakenOver, phase, Mixed, Read, Plan::Union);
        }
        check(Mode::Relay, Phase::Proxy, Owned, Write, Plan::Legacy);
        check(
            Mode::Relay,
            Phase::Mirror,
            Owned,
            Write,
            Plan::LegacyThenCopy,
        );
        check(
            Mode::Relay,
            Phase::Mirror,
            Mixed,
            Write,
            Plan::LegacyThenCopy,
        );
        check(Mode::Relay, Phase::Mirror, General, Write, Plan::Legacy);
        let owned = [
            (Phase::Proxy, Plan::LegacyThenLocal),
            (Phase::Mirror, Plan::LegacyThenLocal),
            (Phase::MergeLegacy, Plan::LegacyThenLocal),
            (Phase::MergeNew, Plan::LocalThenLegacy),
            (Phase::New, Plan::LocalThenLegacy),
            (Phase::Drain, Plan::LocalThenLegacy),
            (Phase::Done, Plan::Local),
        ];
        for (phase, want) in owned {
            check(Mode::TakenOver, phase, Owned, Write, want);
            let mixed = if phase <= Phase::MergeLegacy {
                Plan::LegacyThenLocal
            } else {
                Plan::RefuseMixed
            };
            check(Mode::TakenOver, phase, Mixed, Write, mixed);
        }
    }
}
