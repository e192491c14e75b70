//! What to do in the legacy store for one key: one pure function over one desired state.
//!
//! There is no queue of operations toward L. Each key has a wanted state in N, a last seen state in L
//! and the state of the session or lease that owns it there; [`converge`] compares them and names one
//! conditional action. After *not applied*, *applied* or *unknown* the caller looks again and asks again.

use serde::{Deserialize, Serialize};

use crate::phase::{LegacyCopy, Phase};

/// The record in the new registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InNew {
    /// Its owner is alive (or it has no owner).
    Live,
    /// Kept by protection although its owner is silent.
    Held,
    /// Removed, with a tombstone that remembers it.
    Tombstone,
    /// Never heard of, or forgotten.
    None,
}

/// The entry in the legacy store, as last seen there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InLegacy {
    /// Not there.
    Absent,
    /// Written by Causeway for this record, with the wanted content.
    Ours,
    /// Written by Causeway for this record, with other content.
    OursOld,
    /// Written by somebody who goes to L directly.
    Foreign,
}

/// The session or lease in L that owns (or shall own) the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyOwner {
    /// Confirmed by L.
    Alive,
    /// Ended, or never opened.
    Gone,
    /// L did not answer since the last doubt.
    Unknown,
}

/// Why an entry that was seen in L is not there any more, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Absence {
    /// It was never confirmed there.
    NeverThere,
    /// L was away, or came back without its data.
    StoreLost,
    /// It went while L was whole and watched.
    WhileWatched,
}

/// Everything one decision looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// Phase in force for the service.
    pub phase: Phase,
    /// N's record.
    pub new: InNew,
    /// L's entry.
    pub legacy: InLegacy,
    /// Its owner in L.
    pub owner: LegacyOwner,
    /// Why L's entry is absent; looked at only when it is.
    pub absence: Absence,
}

/// One step toward the wanted state. Every write is conditional on the mark last seen in L.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// L is as it shall be.
    Nothing,
    /// Write it unless something is there.
    CreateIfAbsent,
    /// Replace what was last seen, if unchanged.
    WriteIfUnchanged,
    /// Delete what was last seen, if unchanged.
    DeleteIfUnchanged,
    /// Open (or re-open) the owner's session or lease in L first.
    OpenOwner,
    /// Ask L whether the owner is alive, before judging.
    AskLegacy,
    /// Somebody removed it in L: the removal is taken over, as a foreign one.
    TakeRemoval,
    /// L has a record that N lacks: import it.
    Import,
}

/// The next action for one key.
pub fn converge(s: Situation) -> Action {
    match s.phase.legacy_copy() {
        LegacyCopy::Untouched => Action::Nothing,
        LegacyCopy::Withdrawn => withdraw(s),
        LegacyCopy::BeforeReply | LegacyCopy::Converges => assert_wanted(s),
    }
}

fn withdraw(s: Situation) -> Action {
    match (s.legacy, s.new) {
        (InLegacy::Ours | InLegacy::OursOld, _) => Action::DeleteIfUnchanged,
        // Stragglers are imported; the census names them.
        (InLegacy::Foreign, InNew::None) => Action::Import,
        _ => Action::Nothing,
    }
}

fn assert_wanted(s: Situation) -> Action {
    match (s.new, s.legacy) {
        (InNew::Live, InLegacy::Ours) => Action::Nothing,
        (InNew::Live, InLegacy::Absent) => match (s.absence, s.owner) {
            // An entry that went although its owner lives in a store that was whole was deleted by
            // somebody; anything else is a loss, and the owner's truth is asserted again.
            (Absence::WhileWatched, LegacyOwner::Alive) => Action::TakeRemoval,
            (_, LegacyOwner::Unknown) => Action::AskLegacy,
            (_, LegacyOwner::Gone) => Action::OpenOwner,
            (_, LegacyOwner::Alive) => Action::CreateIfAbsent,
        },
        (InNew::Live, InLegacy::OursOld) => match s.owner {
            LegacyOwner::Alive => Action::WriteIfUnchanged,
            LegacyOwner::Gone => Action::OpenOwner,
            LegacyOwner::Unknown => Action::AskLegacy,
        },
        // A direct writer's newer entry is never overwritten or removed by ours.
        (InNew::Live, InLegacy::Foreign) => Action::Nothing,
        // A held record's owner is silent: its entry is neither asserted nor removed.
        (InNew::Held, _) => Action::Nothing,
        (InNew::Tombstone, InLegacy::Ours | InLegacy::OursOld) => Action::DeleteIfUnchanged,
        (InNew::Tombstone, InLegacy::Absent | InLegacy::Foreign) => Action::Nothing,
        // Our own copy counts as life only while N holds neither record nor tombstone of it.
        (InNew::None, InLegacy::Ours | InLegacy::OursOld | InLegacy::Foreign) => Action::Import,
        (InNew::None, InLegacy::Absent) => Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: [InNew; 4] = [InNew::Live, InNew::Held, InNew::Tombstone, InNew::None];
    const LEGACY: [InLegacy; 4] = [
        InLegacy::Absent,
        InLegacy::Ours,
        InLegacy::OursOld,
        InLegacy::Foreign,
    ];
    const OWNER: [LegacyOwner; 3] = [LegacyOwner::Alive, LegacyOwner::Gone, LegacyOwner::Unknown];
    const ABSENCE: [Absence; 3] = [
        Absence::NeverThere,
        Absence::StoreLost,
        Absence::WhileWatched,
    ];

    fn all() -> impl Iterator<Item = Situation> {
        Phase::ALL.into_iter().flat_map(|phase| {
            NEW.into_iter().flat_map(move |new| {
                LEGACY.into_iter().flat_map(move |legacy| {
                    OWNER.into_iter().flat_map(move |owner| {
                        ABSENCE.into_iter().map(move |absence| Situation {
                            phase,
                            new,
                            legacy,
                            owner,
                            absence,
                        })
                    })
                })
            })
        })
    }

    /// L's part of the situation after an action that L applied, or did not apply. `alive` is what
    /// L answers about the owner when asked.
    fn after(s: Situation, action: Action, applied: bool, alive: bool) -> Situation {
        if !applied && action != Action::AskLegacy {
            return s;
        }
        match action {
            Action::Nothing => s,
            Action::CreateIfAbsent | Action::WriteIfUnchanged => Situation {
                legacy: InLegacy::Ours,
                ..s
            },
            Action::DeleteIfUnchanged => Situation {
                legacy: InLegacy::Absent,
                ..s
            },
            Action::OpenOwner => Situation {
                owner: LegacyOwner::Alive,
                absence: Absence::StoreLost,
                ..s
            },
            Action::AskLegacy => Situation {
                owner: if alive {
                    LegacyOwner::Alive
                } else {
                    LegacyOwner::Gone
                },
                ..s
            },
            Action::TakeRemoval => Situation {
                new: InNew::Tombstone,
                ..s
            },
            Action::Import => Situation {
                new: InNew::Live,
                ..s
            },
        }
    }

    #[test]
    fn every_situation_reaches_a_fixpoint_in_a_few_steps() {
        for start in all() {
            for alive in [true, false] {
                // Each step once refused and once applied: a refusal must not change the course.
                let mut s = start;
                let mut steps = 0;
                loop {
                    let action = converge(s);
                    if action == Action::Nothing {
                        break;
                    }
                    s = after(s, action, false, alive);
                    s = after(s, converge(s), true, alive);
                    steps += 1;
                    assert!(steps <= 5, "no fixpoint from {start:?}");
                }
            }
        }
    }

    #[test]
    fn a_living_or_foreign_entry_is_never_deleted() {
        for s in all() {
            let action = converge(s);
            if action == Action::DeleteIfUnchanged {
                assert_ne!(s.legacy, InLegacy::Foreign, "{s:?}");
                let withdrawn = s.phase == Phase::Drain;
                assert!(withdrawn || s.new == InNew::Tombstone, "{s:?}");
            }
        }
    }

    #[test]
    fn a_removal_is_taken_over_only_from_a_whole_store_with_a_living_owner() {
        for s in all().filter(|s| converge(*s) == Action::TakeRemoval) {
            assert_eq!(
                (s.absence, s.owner, s.new),
                (Absence::WhileWatched, LegacyOwner::Alive, InNew::Live)
            );
        }
    }

    #[test]
    fn done_touches_nothing_and_held_is_left_alone() {
        for s in all() {
            if s.phase == Phase::Done || (s.new == InNew::Held && s.phase != Phase::Drain) {
                assert_eq!(converge(s), Action::Nothing, "{s:?}");
            }
        }
    }

    #[test]
    fn the_table() {
        let base = Situation {
            phase: Phase::MergeNew,
            new: InNew::Live,
            legacy: InLegacy::Absent,
            owner: LegacyOwner::Alive,
            absence: Absence::NeverThere,
        };
        let cases = [
            (base, Action::CreateIfAbsent),
            (
                Situation {
                    owner: LegacyOwner::Gone,
                    ..base
                },
                Action::OpenOwner,
            ),
            (
                Situation {
                    absence: Absence::StoreLost,
                    ..base
                },
                Action::CreateIfAbsent,
            ),
            (
                Situation {
                    absence: Absence::WhileWatched,
                    ..base
                },
                Action::TakeRemoval,
            ),
            (
                Situation {
                    absence: Absence::WhileWatched,
                    owner: LegacyOwner::Unknown,
                    ..base
                },
                Action::AskLegacy,
            ),
            (
                Situation {
                    absence: Absence::WhileWatched,
                    owner: LegacyOwner::Gone,
                    ..base
                },
                Action::OpenOwner,
            ),
            (
                Situation {
                    legacy: InLegacy::OursOld,
                    ..base
                },
                Action::WriteIfUnchanged,
            ),
            (
                Situation {
                    legacy: InLegacy::Foreign,
                    ..base
                },
                Action::Nothing,
            ),
            (
                Situation {
                    new: InNew::Tombstone,
                    legacy: InLegacy::Ours,
                    ..base
                },
                Action::DeleteIfUnchanged,
            ),
            (
                Situation {
                    new: InNew::None,
                    legacy: InLegacy::Foreign,
                    ..base
                },
                Action::Import,
            ),
            (
                Situation {
                    phase: Phase::Drain,
                    legacy: InLegacy::Ours,
                    ..base
                },
                Action::DeleteIfUnchanged,
            ),
        ];
        for (situation, want) in cases {
            assert_eq!(converge(situation), want, "{situation:?}");
        }
    }
}
