//! Origin logs: who wrote what in which order, and how much of it is known here.
//!
//! Each member writes into its own log only, so a position `(origin, sequence)` (a *dot*) names one
//! write for ever. A log keeps the newest write of each key and skips what was superseded, so that
//! reading it from a position gives the newest state, never a queue of operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::RecordKey;

/// One life of one member.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Origin {
    /// The member's id.
    pub member: u16,
    /// Wall milliseconds of its start, or more if it was known with a higher one.
    pub incarnation: u64,
}

/// The write that produced a value.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Dot {
    /// Whose log.
    pub origin: Origin,
    /// The position in it, from 1.
    pub sequence: u64,
}

/// Per origin, up to which position everything is known. Positions only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Origin, u64)>", into = "Vec<(Origin, u64)>")]
pub struct VersionVector(BTreeMap<Origin, u64>);

impl VersionVector {
    /// Up to which position `origin` is known; 0 for an unknown one.
    pub fn get(&self, origin: Origin) -> u64 {
        self.0.get(&origin).copied().unwrap_or(0)
    }

    /// True when the write was seen, be its value still here or not.
    pub fn covers(&self, dot: Dot) -> bool {
        self.get(dot.origin) >= dot.sequence
    }

    /// Raises one position; a lower one is ignored.
    pub fn raise(&mut self, origin: Origin, sequence: u64) {
        let known = self.0.entry(origin).or_insert(0);
        *known = (*known).max(sequence);
    }

    /// Takes the higher position of each origin.
    pub fn join(&mut self, other: &VersionVector) {
        for (origin, sequence) in &other.0 {
            self.raise(*origin, *sequence);
        }
    }

    /// The lower position of each origin that both know.
    pub(crate) fn meet(&self, other: &VersionVector) -> VersionVector {
        let lower = |(origin, sequence): (&Origin, &u64)| {
            let there = other.0.get(origin)?;
            Some((*origin, *sequence.min(there)))
        };
        VersionVector(self.0.iter().filter_map(lower).collect())
    }

    /// All origins with their positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Origin, u64)> + '_ {
        self.0.iter().map(|(origin, sequence)| (*origin, *sequence))
    }
}

impl From<Vec<(Origin, u64)>> for VersionVector {
    fn from(entries: Vec<(Origin, u64)>) -> Self {
        let mut vector = VersionVector::default();
        for (origin, sequence) in entries {
            vector.raise(origin, sequence);
        }
        vector
    }
}

impl From<VersionVector> for Vec<(Origin, u64)> {
    fn from(vector: VersionVector) -> Self {
        vector.0.into_iter().collect()
    }
}

/// The logs of all origins that have something here.
#[derive(Clone, Debug, Default)]
pub struct OriginLogs {
    entries: BTreeMap<Dot, RecordKey>,
    vector: VersionVector,
    floors: VersionVector,
    /// Per member, up to which life what it wrote is over and done with. One number per member id, however
    /// often the member restarts.
    past: BTreeMap<u16, u64>,
}

impl OriginLogs {
    /// Logs with no entry yet, whose positions, floors and past go on from a saved state.
    pub fn resume(vector: VersionVector, floors: VersionVector, past: BTreeMap<u16, u64>) -> Self {
        OriginLogs {
            entries: BTreeMap::new(),
            vector,
            floors,
            past,
        }
    }

    /// Puts back the entry of a value from a saved state. An entry of this member's own log is covered from now on; of
    /// another's only what the saved positions say.
    pub fn restore(&mut self, dot: Dot, key: RecordKey, own: bool) {
        self.vector
            .raise(dot.origin, if own { dot.sequence } else { 0 });
        self.entries.insert(dot, key);
    }

    /// Writes the next entry of `origin`; `superseded` is where the key stood before.
    pub fn append(&mut self, origin: Origin, key: RecordKey, superseded: Option<Dot>) -> Dot {
        if let Some(old) = superseded {
            self.entries.remove(&old);
        }
        let dot = Dot {
            origin,
            sequence: self.vector.get(origin) + 1,
        };
        self.vector.raise(origin, dot.sequence);
        self.entries.insert(dot, key);
        dot
    }

    /// Forgets the entry of a collected tombstone. From now on whoever knows less of that origin
    /// than its floor cannot be brought up to date from the log alone.
    pub fn collect(&mut self, dot: Dot) {
        // What is above the position came with an exchange that is not complete: whoever brings the log up to there brings
        // it again, or has a floor of its own.
        if self.entries.remove(&dot).is_some() && self.vector.covers(dot) {
            self.floors.raise(dot.origin, dot.sequence);
        }
    }

    /// Puts in an entry of another member's log; `superseded` is where the key stood before. The position of the log does
    /// not rise by it: it does when everything up to some position is there.
    pub(crate) fn insert(&mut self, dot: Dot, key: RecordKey, superseded: Option<Dot>) {
        if let Some(old) = superseded {
            self.entries.remove(&old);
        }
        self.vector.raise(dot.origin, 0);
        self.entries.insert(dot, key);
    }

    /// Takes out an entry whose value is gone without leaving a tombstone.
    pub(crate) fn remove(&mut self, dot: Dot) {
        self.entries.remove(&dot);
    }

    /// Which key stands at a position.
    pub fn key_at(&self, dot: Dot) -> Option<&RecordKey> {
        self.entries.get(&dot)
    }

    /// Everything of `origin` up to `through` is known here. A past life stays past.
    pub(crate) fn reach(&mut self, origin: Origin, through: u64) {
        if !self.is_past(origin) {
            self.vector.raise(origin, through);
        }
    }

    /// Tombstones of `origin` up to `floor` may be missing here. Never above the vector.
    pub(crate) fn raise_floor(&mut self, origin: Origin, floor: u64) {
        let floor = floor.min(self.vector.get(origin));
        if floor > 0 {
            self.floors.raise(origin, floor);
        }
    }

    /// Forgets the earlier lives of a member, which its present life has taken over: all they wrote
    /// was written again. Without this, a member that restarts often would grow every vector.
    pub fn retire(&mut self, present: Origin) {
        if let Some(last) = present.incarnation.checked_sub(1) {
            self.end(Origin {
                member: present.member,
                incarnation: last,
            });
        }
    }

    /// This life of a member and all before it are over and done with: their positions are forgotten, and their entries
    /// are not taken any more. The caller has moved or removed the values that they wrote.
    pub(crate) fn end(&mut self, last: Origin) {
        let over = |origin: &Origin| {
            origin.member == last.member && origin.incarnation <= last.incarnation
        };
        self.entries.retain(|dot, _| !over(&dot.origin));
        self.vector.0.retain(|origin, _| !over(origin));
        self.floors.0.retain(|origin, _| !over(origin));
        let past = self.past.entry(last.member).or_insert(0);
        *past = (*past).max(last.incarnation);
    }

    /// True when this life is over and done with: what it wrote is ignored. That it is not in the vector does not mean
    /// that anything of it was removed.
    pub fn is_past(&self, origin: Origin) -> bool {
        self.past
            .get(&origin.member)
            .is_some_and(|last| origin.incarnation <= *last)
    }

    /// Per member, the last life that is over and done with.
    pub fn past(&self) -> &BTreeMap<u16, u64> {
        &self.past
    }

    /// Up to which position each origin is known here.
    pub fn vector(&self) -> &VersionVector {
        &self.vector
    }

    /// The highest collected position of each origin.
    pub fn floors(&self) -> &VersionVector {
        &self.floors
    }

    /// What stands above position `after` in the log of `origin`, in order: what a peer lacks.
    pub fn above(&self, origin: Origin, after: u64) -> impl Iterator<Item = (Dot, &RecordKey)> {
        let from = Dot {
            origin,
            sequence: after.saturating_add(1),
        };
        let to = Dot {
            origin,
            sequence: u64::MAX,
        };
        self.entries.range(from..=to).map(|(dot, key)| (*dot, key))
    }

    /// The lives of a member of which anything is known or held, in order.
    pub(crate) fn lives(&self, member: u16) -> impl Iterator<Item = Origin> + '_ {
        let from = Origin {
            member,
            incarnation: 0,
        };
        let to = Origin {
            member,
            incarnation: u64::MAX,
        };
        self.vector.0.range(from..=to).map(|(origin, _)| *origin)
    }

    /// The number of values that the logs hold.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when no value is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StoreKind;

    fn key(name: &'static str) -> RecordKey {
        RecordKey::new(StoreKind::Native, name)
    }

    fn above(logs: &OriginLogs, origin: Origin, after: u64) -> Vec<(u64, String)> {
        logs.above(origin, after)
            .map(|(dot, key)| (dot.sequence, key.to_string()))
            .collect()
    }

    #[test]
    fn a_log_gives_the_newest_write_of_each_key_in_order() {
        let one = Origin {
            member: 1,
            incarnation: 10,
        };
        let two = Origin {
            member: 1,
            incarnation: 11,
        };
        let mut logs = OriginLogs::default();
        let a = logs.append(one, key("a"), None);
        logs.append(one, key("b"), None);
        logs.append(two, key("c"), None);
        logs.append(one, key("a"), Some(a));
        let here = |after| above(&logs, one, after);
        assert_eq!(here(0), [(2, "native:b".into()), (3, "native:a".into())]);
        assert_eq!(here(2), [(3, "native:a".into())]);
        assert_eq!(here(3), []);
        assert_eq!(here(u64::MAX), []);
        assert_eq!(
            logs.vector().iter().collect::<Vec<_>>(),
            [(one, 3), (two, 1)]
        );
    }

    #[test]
    fn collecting_raises_the_floor_and_never_above_the_vector() {
        let origin = Origin {
            member: 1,
            incarnation: 10,
        };
        let mut logs = OriginLogs::default();
        let a = logs.append(origin, key("a"), None);
        let b = logs.append(origin, key("b"), None);
        logs.collect(b);
        logs.collect(a);
        logs.collect(Dot {
            origin,
            sequence: 99,
        });
        assert_eq!(logs.floors().get(origin), 2);
        assert!(logs.floors().get(origin) <= logs.vector().get(origin));
        assert!(logs.is_empty());
        assert!(logs.vector().covers(a) && logs.vector().covers(b));
    }

    #[test]
    fn vectors_join_to_the_higher_position() {
        let (one, two) = (
            Origin {
                member: 1,
                incarnation: 1,
            },
            Origin {
                member: 2,
                incarnation: 1,
            },
        );
        let mut left = VersionVector::default();
        left.raise(one, 5);
        left.raise(one, 3);
        let mut right = VersionVector::default();
        right.raise(one, 2);
        right.raise(two, 7);
        left.join(&right);
        assert_eq!(left.iter().collect::<Vec<_>>(), [(one, 5), (two, 7)]);
    }
}
