//! The checks find what they are for: with a rule switched off, the named one fails within a bounded number of seeds.

use causeway_registry::replication::Weakened;
use causeway_registry_simulation::{Invariant, Setup, World};

/// Within how many seeds.
const SEEDS: u64 = 300;

/// With a rule switched off, the first seed that fails breaks one of these.
fn check(weaken: impl Fn(&mut Setup), expected: &[Invariant]) {
    let failure = (0..SEEDS).find_map(|seed| {
        let mut setup = Setup::from_seed(seed);
        weaken(&mut setup);
        World::run(setup).err()
    });
    let Some(failure) = failure else {
        panic!("nothing found in {SEEDS} seeds");
    };
    assert!(expected.contains(&failure.invariant), "{failure}");
}

/// What was removed is back, or not everywhere gone.
const BACK: &[Invariant] = &[
    Invariant::NoResurrection,
    Invariant::Convergence,
    Invariant::DeadGone,
];

#[test]
fn without_the_dot_rule_the_removed_comes_back() {
    let no_dot_rule = |setup: &mut Setup| {
        setup.replication.weakened = Weakened {
            no_dot_rule: true,
            ..Weakened::default()
        };
    };
    check(no_dot_rule, BACK);
}

#[test]
fn without_floors_the_removed_comes_back() {
    let no_floors = |setup: &mut Setup| {
        setup.replication.weakened = Weakened {
            no_floors: true,
            ..Weakened::default()
        };
    };
    check(no_floors, BACK);
}

#[test]
fn an_expiry_without_condition_removes_what_nobody_judged() {
    let unconditional = |setup: &mut Setup| setup.unconditional_expiry = true;
    check(unconditional, &[Invariant::ConditionalExpiry]);
}
