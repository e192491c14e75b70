//! Whether recorded calls could have happened one after the other: a search over orders (after Wing and
//! Gong, with Lowe's memory of visited states). A call whose outcome is unknown may have happened at any
//! time after it began, or never.

use std::collections::{BTreeMap, HashSet};

/// What was asked of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    CompareAndSet { expected: Option<u64>, new: u64 },
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Option<u64>),
    Set(bool),
    /// It may have happened.
    Unknown,
}

#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) key: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

/// The state after an operation, if its answer fits.
fn step(state: Option<u64>, operation: &Operation) -> Option<Option<u64>> {
    match (&operation.call, &operation.answer) {
        (Call::Read, Answer::Value(seen)) => (*seen == state).then_some(state),
        (Call::Read, _) => Some(state),
        (Call::CompareAndSet { expected, new }, answer) => {
            let fits = *expected == state;
            let after = if fits { Some(*new) } else { state };
            match answer {
                Answer::Set(set) => (*set == fits).then_some(after),
                _ => Some(after),
            }
        }
    }
}

/// Panics with the key and its calls when no order explains them.
pub(crate) fn check_linearizable(history: &[Operation]) {
    let mut keys = BTreeMap::<u64, Vec<Operation>>::new();
    for operation in history {
        // A read without an answer says nothing.
        if (&operation.call, &operation.answer) != (&Call::Read, &Answer::Unknown) {
            keys.entry(operation.key)
                .or_default()
                .push(operation.clone());
        }
    }
    for (key, mut operations) in keys {
        operations.sort_by_key(|o| o.began);
        assert!(
            is_linearizable(&operations),
            "no order explains what was seen of key {key}: {operations:#?}"
        );
    }
}

/// One key's operations, by their beginning.
fn is_linearizable(operations: &[Operation]) -> bool {
    let end = |o: &Operation| match o.answer {
        Answer::Unknown => u64::MAX,
        _ => o.ended,
    };
    // (which happened, state): tried before.
    let mut tried: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
    let words = operations.len().div_ceil(64).max(1);
    let mut stack = vec![(vec![0_u64; words], None)];
    while let Some((done, state)) = stack.pop() {
        if !tried.insert((done.clone(), state)) {
            continue;
        }
        let is_done = |at: usize| done[at / 64] & (1 << (at % 64)) != 0;
        let open: Vec<usize> = (0..operations.len()).filter(|at| !is_done(*at)).collect();
        // Whatever began after something else ended cannot come before it.
        let first_end = open.iter().map(|at| end(&operations[*at])).min();
        let Some(first_end) = first_end else {
            return true;
        };
        if first_end == u64::MAX {
            // Only such are left as may never have happened.
            return true;
        }
        for at in open {
            if operations[at].began > first_end {
                break;
            }
            if let Some(after) = step(state, &operations[at]) {
                let mut done = done.clone();
                done[at / 64] |= 1 << (at % 64);
                stack.push((done, after));
            }
        }
    }
    false
}

/// Numbers that a counter gave out, with when they were asked for and answered: each once, and a later
/// call gets a greater one.
pub(crate) fn check_counter(taken: &[(u64, u64, u64)]) {
    let mut by_number = taken.to_vec();
    by_number.sort_by_key(|(_, _, number)| *number);
    for pair in by_number.windows(2) {
        assert_ne!(
            pair[0].2, pair[1].2,
            "a number was given out twice: {pair:?}"
        );
    }
    // Walking down, the earliest end seen so far bounds the beginnings of smaller numbers.
    let mut earliest_end = u64::MAX;
    for (began, ended, number) in by_number.iter().rev() {
        assert!(
            *began <= earliest_end,
            "{number} was asked for after a greater number had been answered"
        );
        earliest_end = earliest_end.min(*ended);
    }
}

#[test]
fn the_checker_sees_faults() {
    let operation = |began, ended, call, answer| Operation {
        key: 0,
        began,
        ended,
        call,
        answer,
    };
    let set = |expected, new| Call::CompareAndSet { expected, new };
    let check = |operations: &[Operation], fine: bool| {
        assert_eq!(is_linearizable(operations), fine, "{operations:#?}");
    };
    let first = operation(1, 2, set(None, 1), Answer::Set(true));
    check(
        &[
            first.clone(),
            operation(3, 4, Call::Read, Answer::Value(Some(1))),
        ],
        true,
    );
    // A stale read.
    check(
        &[
            first.clone(),
            operation(3, 4, Call::Read, Answer::Value(None)),
        ],
        false,
    );
    // Beside it, both are right.
    check(
        &[
            first.clone(),
            operation(1, 4, Call::Read, Answer::Value(None)),
        ],
        true,
    );
    // Two winners.
    check(
        &[
            first.clone(),
            operation(2, 3, set(None, 2), Answer::Set(true)),
        ],
        false,
    );
    // A refusal without a reason.
    check(&[operation(1, 2, set(None, 1), Answer::Set(false))], false);
    // An unknown one may show late, or never, but not be taken back.
    let unknown = operation(1, 2, set(None, 1), Answer::Unknown);
    let read = |at, value| operation(at, at + 1, Call::Read, Answer::Value(value));
    check(&[unknown.clone(), read(3, None), read(5, Some(1))], true);
    check(&[unknown.clone(), read(3, None), read(5, None)], true);
    check(&[unknown, read(3, Some(1)), read(5, None)], false);
}

#[test]
fn the_counter_checker_sees_faults() {
    let fails = |taken: &[(u64, u64, u64)]| {
        let taken = taken.to_vec();
        std::panic::catch_unwind(move || check_counter(&taken)).is_err()
    };
    assert!(!fails(&[(1, 2, 0), (1, 3, 2), (4, 5, 3)]));
    assert!(fails(&[(1, 2, 0), (3, 4, 0)]));
    assert!(fails(&[(1, 2, 5), (3, 4, 4)]));
}
