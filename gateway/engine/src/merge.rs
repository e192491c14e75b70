//! Views from several sources -> one view: what is visible.
//!
//! Absence needs proof. A source that cannot be reached, is resynchronising or shrank implausibly is
//! *frozen*: what it last showed stands, it can add and not remove.

use serde::{Deserialize, Serialize};

use crate::phase::{Phase, Reads};

/// What one source says of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It shows it.
    Present,
    /// It does not show it.
    Absent,
}

/// Both sources of one registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    /// The legacy store. What a frozen store last showed counts as what it shows.
    pub legacy: Presence,
    /// The new registry.
    pub new: Presence,
    /// Its owner removed it, and a tombstone says so.
    pub removed_by_owner: bool,
    /// Protection holds it.
    pub held: bool,
}

/// Whether readers see the registration. Removal by the owner wins over all sources.
pub fn visible(phase: Phase, s: Sources) -> bool {
    if s.removed_by_owner {
        return false;
    }
    let counted = match phase.reads() {
        Reads::Legacy => s.legacy == Presence::Present,
        Reads::New => s.new == Presence::Present,
        Reads::Union => s.legacy == Presence::Present || s.new == Presence::Present,
    };
    counted || s.held
}

#[cfg(test)]
mod tests {
    use super::*;
    use Presence::{Absent, Present};

    #[test]
    fn visibility() {
        let cases = [
            // legacy, new, removed, held -> visible while reading L, the union, N
            (Present, Absent, false, false, [true, true, false]),
            (Absent, Present, false, false, [false, true, true]),
            (Present, Present, false, false, [true, true, true]),
            (Absent, Absent, false, true, [true, true, true]),
            (Absent, Absent, false, false, [false, false, false]),
            (Present, Present, true, true, [false, false, false]),
        ];
        for (legacy, new, removed_by_owner, held, want) in cases {
            let s = Sources {
                legacy,
                new,
                removed_by_owner,
                held,
            };
            let got = [Phase::Mirror, Phase::MergeNew, Phase::New].map(|p| visible(p, s));
            assert_eq!(got, want, "{s:?}");
        }
    }
}
