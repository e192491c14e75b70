use super::*;
use crate::registers::{RegisterCommand, RegisterReply, Registers};

fn proposer(incarnation: u64) -> Proposer {
    Proposer {
        member: 1,
        birth: 10,
        incarnation,
    }
}

fn take(proposer: Proposer, sequence: u64, settled: u64) -> Proposal {
    let command = RegisterCommand::Next { name: "n".into() };
    Proposal {
        proposer,
        sequence,
        settled,
        operation: Operation::Command(postcard::to_stdvec(&command).expect("encodes").into()),
    }
}

fn number(number: u64) -> Reply {
    let reply = RegisterReply::Number(number);
    Reply::Applied(postcard::to_stdvec(&reply).expect("encodes").into())
}

#[test]
fn a_proposal_is_applied_once() {
    let mut ledger = Ledger::new(Registers::default());
    let mut check = |proposal: &Proposal, expected: Reply| {
        assert_eq!(
            ledger.apply(proposal).expect("readable"),
            expected,
            "{proposal:?}"
        );
    };
    check(&take(proposer(1), 1, 0), number(0));
    check(&take(proposer(1), 1, 0), number(0));
    // In any order, as long as it is waited for.
    check(&take(proposer(1), 3, 1), number(1));
    check(&take(proposer(1), 2, 1), number(2));
    check(&take(proposer(1), 3, 2), number(1));
    // What was settled is not applied by a late copy.
    check(&take(proposer(1), 4, 4), number(3));
    check(&take(proposer(1), 3, 0), Reply::Settled);
    // The next run has its own numbers, and the former one is over.
    check(&take(proposer(2), 1, 0), number(4));
    check(&take(proposer(1), 5, 0), Reply::Superseded);
    assert_eq!(ledger.machine().next("n"), 5);
}

#[test]
fn the_forgotten_do_not_count_and_their_number_may_come_back() {
    let mut ledger = Ledger::new(Registers::default());
    let info = |birth| MemberInfo {
        birth,
        address: "a".into(),
        incarnation: 1,
    };
    let by_two = |sequence, operation| Proposal {
        proposer: Proposer {
            member: 2,
            birth: 20,
            incarnation: 1,
        },
        sequence,
        settled: 0,
        operation,
    };
    let announce = |birth| Operation::Announce {
        member: 1,
        info: info(birth),
    };
    let forget = |birth| Operation::Forget { member: 1, birth };
    let mut run = |proposal: &Proposal| ledger.apply(proposal).expect("readable");
    run(&by_two(1, announce(10)));
    run(&by_two(2, forget(10)));
    assert_eq!(run(&take(proposer(1), 1, 0)), Reply::Forgotten);
    // A late announcement does not bring it back.
    run(&by_two(3, announce(10)));
    run(&by_two(4, announce(11)));
    let mut reborn = take(proposer(1), 1, 0);
    reborn.proposer.birth = 11;
    assert_eq!(run(&reborn), number(0));
    // Forgetting the former folder again does not touch the present one.
    run(&by_two(5, forget(10)));
    assert_eq!(ledger.members().get(&1), Some(&info(11)));
    assert!(ledger.is_forgotten(1, 10) && !ledger.is_forgotten(1, 11));
}

#[test]
fn a_snapshot_is_the_whole_state() {
    let mut ledger = Ledger::new(Registers::default());
    for sequence in 1..50 {
        let proposal = take(proposer(1), sequence, sequence.saturating_sub(5));
        ledger.apply(&proposal).expect("readable");
    }
    let mut bytes = Vec::new();
    ledger.snapshot(&mut bytes).expect("memory");
    let mut other = Ledger::new(Registers::default());
    other.restore(&mut bytes.as_slice()).expect("a snapshot");
    assert_eq!(
        (&other.books, &other.machine),
        (&ledger.books, &ledger.machine)
    );
    // Copies are known after it as before it.
    let copy = take(proposer(1), 49, 44);
    assert_eq!(other.apply(&copy).expect("readable"), number(48));
    for cut in [0, 4, 12, bytes.len() - 1] {
        let error = other.restore(&mut &bytes[..cut]);
        assert!(error.is_err(), "{cut} bytes of {}", bytes.len());
    }
}

#[test]
fn what_cannot_be_read_stops_and_changes_nothing() {
    let mut ledger = Ledger::new(Registers::default());
    ledger.apply(&take(proposer(1), 1, 0)).expect("readable");
    let mut newer = take(proposer(1), 2, 1);
    newer.operation = Operation::Command(Bytes::from_static(&[250, 1]));
    let error = ledger.apply(&newer).expect_err("of a newer release");
    assert_eq!(error.position, 2);
    assert!(error.to_string().contains("newer release"), "{error}");
    assert_eq!(ledger.machine().next("n"), 1);
    assert_eq!(ledger.books.position, 1);
}

#[test]
fn what_is_kept_for_answering_again_is_bounded_by_what_is_waited_for() {
    let mut ledger = Ledger::new(Registers::default());
    for sequence in 1..10_000 {
        let proposal = take(proposer(1), sequence, sequence);
        ledger.apply(&proposal).expect("readable");
    }
    assert_eq!(ledger.books.proposers[&1].replies.len(), 1);
}
