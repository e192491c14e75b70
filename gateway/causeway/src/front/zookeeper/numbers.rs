//! Which zxid of the ensemble a client had seen when it was shown one of ours.
//!
//! A client that comes back shows our number; for watches in the ensemble its number there is wanted. On one
//! session replies are in order, so a client that saw a number above the one of a reply has got that reply,
//! and before it every event up to the ensemble's zxid in it.

use std::collections::VecDeque;

use dashmap::DashMap;

/// Pairs kept for each session.
const PAIRS: usize = 64;

/// Pairs of numbers by session; volatile. Without one the answer is 0: every watch that may have missed
/// something fires.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    by_session: DashMap<i64, VecDeque<(i64, i64)>>,
}

impl Numbers {
    /// A reply of the ensemble, with its `theirs`, is shown with `ours`.
    pub(super) fn note(&self, session: i64, ours: i64, theirs: i64) {
        if theirs <= 0 {
            return;
        }
        let mut pairs = self.by_session.entry(session).or_default();
        match pairs.back_mut() {
            Some(last) if last.0 == ours => last.1 = last.1.max(theirs),
            _ => {
                if pairs.len() == PAIRS {
                    // Every second one: far history stays known, only coarser.
                    let mut at = 0;
                    pairs.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                }
                pairs.push_back((ours, theirs));
            }
        }
    }

    /// What the client of a session had seen of the ensemble for sure, when it had seen `ours`.
    pub(super) fn theirs(&self, session: i64, ours: i64) -> i64 {
        let Some(pairs) = self.by_session.get(&session) else {
            return 0;
        };
        pairs
            .iter()
            .rev()
            .find(|(shown, _)| *shown < ours)
            .map_or(0, |(_, theirs)| *theirs)
    }

    /// The session is over.
    pub(super) fn forget(&self, session: i64) {
        self.by_session.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_seen_counts() {
        let numbers = Numbers::default();
        for (ours, theirs) in [(10, 1), (10, 3), (20, 4), (30, 9), (30, 0)] {
            numbers.note(7, ours, theirs);
        }
        let check = |session, ours, want| {
            assert_eq!(numbers.theirs(session, ours), want, "{session} {ours}")
        };
        check(7, 10, 0);
        check(7, 11, 3);
        check(7, 20, 3);
        check(7, 30, 4);
        check(7, 31, 9);
        check(8, 31, 0);
        numbers.forget(7);
        check(7, 31, 0);
    }

    #[test]
    fn history_stays_bounded_and_true() {
        let numbers = Numbers::default();
        for at in 1..10_000 {
            numbers.note(1, at * 10, at);
        }
        assert!(numbers.by_session.get(&1).is_some_and(|p| p.len() <= PAIRS));
        for ours in [15, 500, 5_000, 99_999] {
            assert!(numbers.theirs(1, ours) <= ours / 10, "{ours}");
        }
        assert_eq!(numbers.theirs(1, 100_000), 9_999);
    }
}
