//! Tables of etcd's rules (each row was seen on a real etcd 3.4 where it is doubtful), then a
//! seeded comparison with a naive model.

use std::collections::BTreeMap;

use super::span::Spans;
use super::*;
use model::{Model, essence};
pub(crate) use random::Random;

mod model;
mod random;

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> KeyCommand {
    put_with(key, value, 0)
}

fn put_with(key: &str, value: &str, lease: i64) -> KeyCommand {
    KeyCommand::Put {
        key: b(key),
        value: b(value),
        lease,
        prev_kv: true,
        ignore_value: false,
        ignore_lease: false,
    }
}

fn put_ignoring(
    key: &str,
    value: &str,
    lease: i64,
    ignore_value: bool,
    ignore_lease: bool,
) -> KeyCommand {
    KeyCommand::Put {
        key: b(key),
        value: b(value),
        lease,
        prev_kv: false,
        ignore_value,
        ignore_lease,
    }
}

fn delete(key: &str, range_end: &str) -> KeyCommand {
    KeyCommand::DeleteRange {
        key: b(key),
        range_end: b(range_end),
        prev_kv: true,
    }
}

fn grant(id: i64) -> KeyCommand {
    KeyCommand::LeaseGrant { id, ttl_s: 60 }
}

fn op(command: KeyCommand) -> Op {
    match command {
        KeyCommand::Put {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        } => Op::Put {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        },
        KeyCommand::DeleteRange {
            key,
            range_end,
            prev_kv,
        } => Op::DeleteRange {
            key,
            range_end,
            prev_kv,
        },
        KeyCommand::Txn(txn) => Op::Txn(txn),
        other => panic!("no operation: {other:?}"),
    }
}

fn get(key: &str, range_end: &str) -> RangeRequest {
    RangeRequest {
        key: b(key),
        range_end: b(range_end),
        ..RangeRequest::default()
    }
}

fn read(key: &str) -> Op {
    Op::Range(get(key, ""))
}

fn txn(compare: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> KeyCommand {
    KeyCommand::Txn(Txn {
        compare,
        success,
        failure,
    })
}

fn nested(compare: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Op {
    Op::Txn(Txn {
        compare,
        success,
        failure,
    })
}

fn compare(key: &str, range_end: &str, target: CompareTarget, result: CompareResult) -> Compare {
    Compare {
        key: b(key),
        range_end: b(range_end),
        target,
        result,
    }
}

fn import(key: &str, value: &str, numbers: (i64, i64, i64), lease: i64) -> KeyValue {
    let (create_revision, mod_revision, version) = numbers;
    KeyValue {
        key: b(key),
        value: b(value),
        create_revision,
        mod_revision,
        version,
        lease,
    }
}

/// A space at etcd's first revision after commands that must all be accepted.
fn space(commands: &[KeyCommand]) -> KeySpace {
    let mut space = KeySpace::new(1);
    for command in commands {
        run(&mut space, command)
            .result
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }
    space
}

fn run(space: &mut KeySpace, command: &KeyCommand) -> Applied {
    let next = space.revision() + 1;
    space.apply(command, next, 0)
}

/// `key=value create/mod/version lease` of a range, and `more` and the count.
fn shown(reply: &RangeReply) -> String {
    let mut pairs: Vec<String> = reply.kvs.iter().map(|kv| pair(kv)).collect();
    pairs.push(format!(
        "{}{}",
        reply.count,
        if reply.more { "+" } else { "" }
    ));
    pairs.join(" | ")
}

fn pair(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 {
        String::new()
    } else {
        format!(" L{}", kv.lease)
    };
    format!(
        "{}={} {}/{}/{}{lease}",
        String::from_utf8_lossy(&kv.key),
        String::from_utf8_lossy(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version
    )
}

fn told(events: &[KeyEvent]) -> String {
    let one = |event: &KeyEvent| {
        let before = event.prev.as_ref().map_or("none".to_owned(), |kv| pair(kv));
        match event.kind {
            EventKind::Put => format!("put {} was {before}", pair(&event.kv)),
            EventKind::Delete => {
                let bare = KeyValue {
                    key: event.kv.key.clone(),
                    mod_revision: event.kv.mod_revision,
                    ..Default::default()
                };
                assert_eq!(*event.kv, bare, "a deletion tells only key and number");
                format!(
                    "delete {}@{} was {before}",
                    String::from_utf8_lossy(&event.kv.key),
                    event.kv.mod_revision
                )
            }
        }
    };
    events.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn all(space: &KeySpace) -> String {
    shown(&space.range(&get("\0", "\0")).unwrap())
}

/// Runs a command on a space and compares events, state and revision with what is expected.
#[track_caller]
fn check(before: &[KeyCommand], command: KeyCommand, events: &str, state: &str) {
    let mut space = space(before);
    let revision = space.revision();
    assert_eq!(space.check(&command), Ok(()));
    let applied = run(&mut space, &command);
    assert!(applied.result.is_ok(), "{:?}", applied.result);
    assert_eq!(told(&applied.events), events);
    assert_eq!(all(&space), state);
    assert_eq!(applied.revision_used, !events.is_empty());
    assert_eq!(applied.revision, revision + i64::from(!events.is_empty()));
    assert_eq!(space.revision(), applied.revision);
}

/// A refused command changes nothing, and `check` says the same beforehand.
#[track_caller]
fn refused(before: &[KeyCommand], command: KeyCommand, error: KeyError) {
    let mut space = space(before);
    let (state, revision) = (all(&space), space.revision());
    assert_eq!(space.check(&command), Err(error.clone()));
    let applied = run(&mut space, &command);
    assert_eq!(applied.result, Err(error));
    assert!(applied.events.is_empty() && !applied.revision_used);
    assert_eq!((all(&space), space.revision()), (state, revision));
}

#[test]
fn puts() {
    check(
        &[],
        put("a", "1"),
        "put a=1 2/2/1 was none",
        "a=1 2/2/1 | 1",
    );
    // The same value again is a change.
    check(
        &[put("a", "1")],
        put("a", "1"),
        "put a=1 2/3/2 was a=1 2/2/1",
        "a=1 2/3/2 | 1",
    );
    check(
        &[put("a", "1"), delete("a", "")],
        put("a", "2"),
        "put a=2 4/4/1 was none",
        "a=2 4/4/1 | 1",
    );
    check(
        &[grant(7)],
        put_with("a", "1", 7),
        "put a=1 2/2/1 L7 was none",
        "a=1 2/2/1 L7 | 1",
    );
    // Lease 0 detaches, another lease moves, ignoring keeps.
    let leased = [grant(7), grant(8), put_with("a", "1", 7)];
    check(
        &leased,
        put("a", "2"),
        "put a=2 2/3/2 was a=1 2/2/1 L7",
        "a=2 2/3/2 | 1",
    );
    check(
        &leased,
        put_with("a", "2", 8),
        "put a=2 2/3/2 L8 was a=1 2/2/1 L7",
        "a=2 2/3/2 L8 | 1",
    );
    check(
        &leased,
        put_ignoring("a", "2", 0, false, true),
        "put a=2 2/3/2 L7 was a=1 2/2/1 L7",
        "a=2 2/3/2 L7 | 1",
    );
    check(
        &leased,
        put_ignoring("a", "", 8, true, false),
        "put a=1 2/3/2 L8 was a=1 2/2/1 L7",
        "a=1 2/3/2 L8 | 1",
    );

    refused(&[], put("", "1"), KeyError::KeyNotProvided);
    refused(
        &[],
        put_ignoring("a", "1", 0, true, false),
        KeyError::ValueProvided,
    );
    refused(
        &[],
        put_ignoring("a", "", 5, false, true),
        KeyError::LeaseProvided,
    );
    refused(
        &[],
        put_ignoring("a", "", 0, true, false),
        KeyError::KeyNotFound,
    );
    refused(
        &[],
        put_ignoring("a", "", 0, false, true),
        KeyError::KeyNotFound,
    );
    refused(&[], put_with("a", "1", 77), KeyError::LeaseNotFound);
    refused(
        &[],
        put_ignoring("a", "", 77, true, false),
        KeyError::LeaseNotFound,
    );
    refused(
        &[],
        put("a", &"x".repeat(MAX_REQUEST_BYTES)),
        KeyError::RequestTooLarge,
    );
    let half = "x".repeat(MAX_REQUEST_BYTES / 2);
    let halves = vec![op(put("a", &half)), op(put("b", &half))];
    refused(&[], txn(vec![], halves, vec![]), KeyError::RequestTooLarge);
}

/// Which of several faults is told, what an unknown sort is, and what `keys_only` leaves out.
#[test]
fn releases_differ() {
    let future = Op::Range(RangeRequest {
        revision: 9999,
        ..get("x", "")
    });
    let unknown = RangeRequest {
        sort_order: SortOrder::Unknown,
        ..get("x", "")
    };
    let faults = |ops: Vec<Op>| txn(vec![], ops, vec![]);
    let both = || op(put_ignoring("a", "", 77, true, false));
    for (release, two_ops, one_op, unknown_sort, lease) in [
        (
            Release::new(3, 4),
            Err(KeyError::KeyNotFound),
            Err(KeyError::KeyNotFound),
            Ok(()),
            7,
        ),
        (
            Release::new(3, 6),
            Err(KeyError::FutureRevision),
            Err(KeyError::KeyNotFound),
            Err(KeyError::InvalidSortOption),
            7,
        ),
        (
            Release::new(3, 7),
            Err(KeyError::FutureRevision),
            Err(KeyError::LeaseNotFound),
            Err(KeyError::InvalidSortOption),
            0,
        ),
    ] {
        let mut space = space(&[grant(7), put_with("k", "1", 7)]);
        space.set_release(release);
        assert_eq!(space.check(&faults(vec![future.clone(), both()])), two_ops);
        assert_eq!(space.check(&faults(vec![both()])), one_op);
        let in_txn = faults(vec![Op::Range(unknown.clone())]);
        assert_eq!(space.check(&in_txn), unknown_sort);
        assert_eq!(space.range(&unknown).map(drop), unknown_sort);
        let keys_only = |sort_target| RangeRequest {
            keys_only: true,
            sort_target,
            ..get("k", "")
        };
        let shown = |sort_target| {
            let found = space.range(&keys_only(sort_target)).expect("a reply");
            found.kvs[0].lease
        };
        assert_eq!(
            (shown(SortTarget::Key), shown(SortTarget::Value)),
            (lease, 7)
        );
    }
}

#[test]
fn previous_pairs_are_told_when_asked_for() {
    let mut space = space(&[put("a", "1")]);
    let KeyReply::Put(reply) = run(&mut space, &put("a", "2")).result.unwrap() else {
        panic!()
    };
    assert_eq!(
        reply.prev_kv.as_deref().map(pair).as_deref(),
        Some("a=1 2/2/1")
    );
    let KeyReply::Put(reply) = run(&mut space, &put_ignoring("a", "3", 0, false, false))
        .result
        .unwrap()
    else {
        panic!()
    };
    assert_eq!(
        reply,
        PutReply {
            revision: 4,
            prev_kv: None
        }
    );
    let KeyReply::DeleteRange(reply) = run(&mut space, &delete("a", "")).result.unwrap() else {
        panic!()
    };
    assert_eq!(
        (
            reply.revision,
            reply.deleted,
            pair(&reply.prev_kvs[0]).as_str()
        ),
        (5, 1, "a=3 2/4/3")
    );
}

#[test]
fn deletions() {
    let pairs = [put("a", "1"), put("b", "2"), put("c", "3")];
    check(
        &pairs,
        delete("a", "c"),
        "delete a@5 was a=1 2/2/1, delete b@5 was b=2 3/3/1",
        "c=3 4/4/1 | 1",
    );
    check(
        &pairs,
        delete("b", "\0"),
        "delete b@5 was b=2 3/3/1, delete c@5 was c=3 4/4/1",
        "a=1 2/2/1 | 1",
    );
    let whole = "a=1 2/2/1 | b=2 3/3/1 | c=3 4/4/1 | 3";
    check(&pairs, delete("x", ""), "", whole);
    check(&pairs, delete("c", "a"), "", whole);
    check(&pairs, delete("b", "b"), "", whole);
    refused(&pairs, delete("", "\0"), KeyError::KeyNotProvided);
}

#[test]
fn ranges() {
    let space = space(&[
        put("s1", "c"),
        put("s2", "b"),
        put("s3", "a"),
        put("s4", "0"),
        put("s2", "b"),
    ]);
    let base = get("s", "t");
    let cases: Vec<(RangeRequest, &str)> = vec![
        (base.clone(), "s1 s2 s3 s4 #4"),
        (get("s2", ""), "s2 #1"),
        (get("s2", "\0"), "s2 s3 s4 #3"),
        (get("\0", "\0"), "s1 s2 s3 s4 #4"),
        (get("t", "s"), "#0"),
        (get("s1", "s1"), "#0"),
        (get("nope", ""), "#0"),
        (
            RangeRequest {
                limit: 2,
                ..base.clone()
            },
            "s1 s2 #4+",
        ),
        (
            RangeRequest {
                limit: 4,
                ..base.clone()
            },
            "s1 s2 s3 s4 #4",
        ),
        (
            RangeRequest {
                limit: -1,
                ..base.clone()
            },
            "s1 s2 s3 s4 #4",
        ),
        (
            RangeRequest {
                limit: i64::MAX,
                ..base.clone()
            },
            "s1 s2 s3 s4 #4",
        ),
        (
            RangeRequest {
                count_only: true,
                limit: 1,
                ..base.clone()
            },
            "#4",
        ),
        (
            RangeRequest {
                sort_order: SortOrder::Descend,
                limit: 2,
                ..base.clone()
            },
            "s4 s3 #4+",
        ),
        (
            RangeRequest {
                sort_target: SortTarget::Value,
                ..base.clone()
            },
            "s4 s3 s2 s1 #4",
        ),
        // An implied order is applied to the first limit + 1 keys only.
        (
            RangeRequest {
                sort_target: SortTarget::Value,
                limit: 2,
                ..base.clone()
            },
            "s3 s2 #4+",
        ),
        (
            RangeRequest {
                sort_target: SortTarget::Value,
                sort_order: SortOrder::Ascend,
                limit: 2,
                ..base.clone()
            },
            "s4 s3 #4+",
        ),
        (
            RangeRequest {
                sort_target: SortTarget::Mod,
                sort_order: SortOrder::Descend,
                ..base.clone()
            },
            "s2 s4 s3 s1 #4",
        ),
        (
            RangeRequest {
                sort_target: SortTarget::Version,
                sort_order: SortOrder::Descend,
                ..base.clone()
            },
            "s2 s1 s3 s4 #4",
        ),
        (
            RangeRequest {
                sort_target: SortTarget::Create,
                sort_order: SortOrder::Descend,
                ..base.clone()
            },
            "s4 s3 s2 s1 #4",
        ),
        (
            RangeRequest {
                max_mod_revision: 1,
                limit: 2,
                ..base.clone()
            },
            "#4",
        ),
        (
            RangeRequest {
                min_mod_revision: 4,
                max_mod_revision: 5,
                ..base.clone()
            },
            "s3 s4 #4",
        ),
        (
            RangeRequest {
                min_create_revision: 3,
                max_create_revision: 4,
                ..base.clone()
            },
            "s2 s3 #4",
        ),
        (
            RangeRequest {
                max_create_revision: 4,
                limit: 2,
                ..base.clone()
            },
            "s1 s2 #4+",
        ),
        (
            RangeRequest {
                revision: 3,
                ..base.clone()
            },
            "s1 s2 #2",
        ),
        (
            RangeRequest {
                revision: 1,
                ..base.clone()
            },
            "#0",
        ),
        (
            RangeRequest {
                revision: -5,
                ..base.clone()
            },
            "s1 s2 s3 s4 #4",
        ),
        (
            RangeRequest {
                revision: 6,
                ..base.clone()
            },
            "s1 s2 s3 s4 #4",
        ),
    ];
    for (request, expected) in cases {
        let reply = space.range(&request).unwrap();
        let mut seen: Vec<String> = reply
            .kvs
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
            .collect();
        seen.push(format!(
            "#{}{}",
            reply.count,
            if reply.more { "+" } else { "" }
        ));
        assert_eq!(seen.join(" "), expected, "{request:?}");
        assert_eq!(
            reply.revision, 6,
            "the header shows the present, whatever was read"
        );
    }
    let bare = space
        .range(&RangeRequest {
            keys_only: true,
            ..get("s2", "")
        })
        .unwrap();
    assert_eq!(shown(&bare), "s2= 3/6/2 | 1");
    assert_eq!(space.range(&get("", "\0")), Err(KeyError::KeyNotProvided));
    assert_eq!(
        space.range(&RangeRequest {
            revision: 7,
            ..base
        }),
        Err(KeyError::FutureRevision)
    );
}

#[test]
fn compares() {
    use CompareResult::*;
    use CompareTarget::*;
    let space = space(&[
        grant(7),
        put("a", "m"),
        put_with("b", "m", 7),
        put("b", "n"),
    ]);
    let cases: Vec<(&str, &str, CompareTarget, [bool; 4])> = vec![
        // [=, !=, >, <] of what is stored to what is given.
        ("a", "", Version(1), [true, false, false, false]),
        ("b", "", Version(1), [false, true, true, false]),
        ("a", "", Create(3), [false, true, false, true]),
        ("b", "", Mod(4), [true, false, false, false]),
        ("b", "", Lease(0), [true, false, false, false]),
        ("a", "", Value(b("k")), [false, true, true, false]),
        ("a", "", Value(b("m")), [true, false, false, false]),
        // Absent: numbers are 0, a value has no relation.
        ("x", "", Version(0), [true, false, false, false]),
        ("x", "", Create(0), [true, false, false, false]),
        ("x", "", Mod(5), [false, true, false, true]),
        ("x", "", Lease(-1), [false, true, true, false]),
        ("x", "", Value(b("")), [false, false, false, false]),
        // A range must hold for all; an empty one is like an absent key.
        ("a", "c", Mod(1), [false, true, true, false]),
        ("a", "c", Mod(2), [false, false, false, false]),
        ("a", "\0", Value(b("l")), [false, true, true, false]),
        ("x", "z", Version(0), [true, false, false, false]),
        ("x", "z", Value(b("")), [false, false, false, false]),
        ("b", "a", Version(0), [true, false, false, false]),
        // What is not known compares as equal.
        ("a", "", CompareTarget::Unknown, [true, false, false, false]),
        ("x", "", CompareTarget::Unknown, [true, false, false, false]),
    ];
    for (key, end, target, expected) in cases {
        let holds = [Equal, NotEqual, Greater, Less]
            .map(|result| compare(key, end, target.clone(), result).holds(&space));
        assert_eq!(holds, expected, "{key} {end} {target:?}");
        // A relation that is not known holds, but for the value of an absent key.
        let is_absent = key == "x" && matches!(target, Value(_));
        let any = compare(key, end, target, CompareResult::Unknown).holds(&space);
        assert_eq!(any, !is_absent, "{key} {end}");
    }
}

fn replies(space: &mut KeySpace, command: &KeyCommand) -> TxnReply {
    match run(space, command).result {
        Ok(KeyReply::Txn(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transaction_reads_its_own_writes_and_numbers_each_part() {
    let mut space = space(&[put("x", "1")]);
    let parts = vec![
        read("x"),
        op(delete("no", "")),
        op(put("x", "2")),
        read("x"),
        op(delete("no", "")),
    ];
    let reply = replies(&mut space, &txn(vec![], parts, vec![]));
    let numbers: Vec<i64> = reply
        .replies
        .iter()
        .map(|reply| match reply {
            OpReply::Range(reply) => reply.revision,
            OpReply::Put(reply) => reply.revision,
            OpReply::DeleteRange(reply) => reply.revision,
            OpReply::Txn(reply) => reply.revision,
        })
        .collect();
    assert_eq!(numbers, [2, 2, 3, 3, 3]);
    let reads: Vec<String> = reply
        .replies
        .iter()
        .filter_map(|reply| match reply {
            OpReply::Range(reply) => Some(shown(reply)),
            _ => None,
        })
        .collect();
    assert_eq!(reads, ["x=1 2/2/1 | 1", "x=2 2/3/2 | 1"]);
    assert_eq!((reply.revision, reply.succeeded), (3, true));

    // Nested: decided on the state before, number 0, changes nothing when it only reads.
    let inner = nested(
        vec![compare(
            "x",
            "",
            CompareTarget::Value(b("3")),
            CompareResult::Equal,
        )],
        vec![op(put("y", "then"))],
        vec![op(put("y", "else"))],
    );
    let reply = replies(
        &mut space,
        &txn(vec![], vec![op(put("x", "3")), inner], vec![]),
    );
    let Some(OpReply::Txn(inner)) = reply.replies.get(1) else {
        panic!()
    };
    assert_eq!((inner.succeeded, inner.revision), (false, 0));
    assert_eq!(all(&space), "x=3 2/4/3 | y=else 4/4/1 | 2");
    let applied = run(
        &mut space,
        &txn(
            vec![],
            vec![nested(vec![], vec![read("x")], vec![])],
            vec![],
        ),
    );
    assert_eq!((applied.revision, applied.revision_used), (4, false));
    let reply = replies(&mut space, &txn(vec![], vec![], vec![]));
    assert_eq!(
        reply,
        TxnReply {
            revision: 4,
            succeeded: true,
            replies: vec![]
        }
    );

    // A read of the past inside shows the past, also of keys written before it.
    let old = Op::Range(RangeRequest {
        revision: 3,
        ..get("x", "")
    });
    let now = Op::Range(RangeRequest {
        revision: 4,
        ..get("x", "")
    });
    let reply = replies(
        &mut space,
        &txn(vec![], vec![op(put("x", "4")), old, now], vec![]),
    );
    let reads: Vec<String> = reply
        .replies
        .iter()
        .skip(1)
        .map(|r| match r {
            OpReply::Range(reply) => shown(reply),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reads, ["x=2 2/3/2 | 1", "x=3 2/4/3 | 1"]);
}

#[test]
fn transactions_write_in_the_order_of_their_operations() {
    check(
        &[put("a", "1")],
        txn(
            vec![],
            vec![op(put("z", "1")), op(delete("a", "")), op(put("b", "1"))],
            vec![],
        ),
        "put z=1 3/3/1 was none, delete a@3 was a=1 2/2/1, put b=1 3/3/1 was none",
        "b=1 3/3/1 | z=1 3/3/1 | 2",
    );
    // etcd does not count a deletion to the end of all keys when it looks for duplicates.
    check(
        &[put("a", "1")],
        txn(
            vec![],
            vec![op(delete("a", "\0")), op(put("a", "2"))],
            vec![],
        ),
        "delete a@3 was a=1 2/2/1, put a=2 3/3/1 was none",
        "a=2 3/3/1 | 1",
    );
    check(
        &[],
        txn(
            vec![],
            vec![op(put("a", "2")), op(delete("a", "\0"))],
            vec![],
        ),
        "put a=2 2/2/1 was none, delete a@2 was none",
        "0",
    );
    check(
        &[put("a", "1")],
        txn(
            vec![],
            vec![op(put("a", "2")), op(delete("a", "\0"))],
            vec![],
        ),
        "put a=2 2/3/2 was a=1 2/2/1, delete a@3 was a=1 2/2/1",
        "0",
    );
    // Nor a nested deletion against a nested put before it.
    check(
        &[],
        txn(
            vec![],
            vec![
                nested(vec![], vec![op(put("z", "1"))], vec![]),
                nested(vec![], vec![op(delete("z", ""))], vec![]),
            ],
            vec![],
        ),
        "put z=1 2/2/1 was none, delete z@2 was none",
        "0",
    );
    check(
        &[],
        txn(
            vec![],
            vec![
                op(delete("c", "c")),
                op(delete("c", "a")),
                op(put("c", "1")),
            ],
            vec![],
        ),
        "put c=1 2/2/1 was none",
        "c=1 2/2/1 | 1",
    );
    // Overlapping deletions are fine, and the branches are independent.
    check(
        &[put("a", "1"), put("b", "1")],
        txn(
            vec![],
            vec![op(delete("a", "c")), op(delete("b", "d"))],
            vec![op(put("a", "1"))],
        ),
        "delete a@4 was a=1 2/2/1, delete b@4 was b=1 3/3/1",
        "0",
    );
    let both = nested(vec![], vec![op(put("z", "1"))], vec![op(put("z", "2"))]);
    check(
        &[],
        txn(vec![], vec![both], vec![]),
        "put z=1 2/2/1 was none",
        "z=1 2/2/1 | 1",
    );
}

#[test]
fn transactions_refused() {
    let duplicates: Vec<Vec<Op>> = vec![
        vec![op(put("a", "1")), op(put("a", "2"))],
        vec![op(delete("a", "c")), op(put("b", "1"))],
        vec![op(put("b", "1")), op(delete("b", ""))],
        vec![
            op(put("z", "1")),
            nested(vec![], vec![op(put("z", "1"))], vec![]),
        ],
        vec![
            nested(vec![], vec![op(put("z", "1"))], vec![]),
            nested(vec![], vec![], vec![op(put("z", "1"))]),
        ],
        vec![
            nested(vec![], vec![op(delete("z", ""))], vec![]),
            op(put("z", "1")),
        ],
        vec![
            op(delete("z", "")),
            nested(vec![], vec![op(put("z", "1"))], vec![]),
        ],
        vec![
            nested(vec![], vec![op(delete("z", ""))], vec![]),
            nested(vec![], vec![op(put("z", "1"))], vec![]),
        ],
        vec![
            op(delete("a", "c")),
            op(delete("m", "p")),
            op(delete("b", "n")),
            op(put("o", "1")),
        ],
    ];
    for ops in duplicates {
        refused(
            &[],
            txn(vec![], ops.clone(), vec![]),
            KeyError::DuplicateKey,
        );
        // The branch that is not taken counts too.
        refused(&[], txn(vec![], vec![], ops), KeyError::DuplicateKey);
    }
    let many = |count: usize| -> Vec<Op> { (0..count).map(|_| read("x")).collect() };
    let one_nested = |count: usize, inner: usize| -> KeyCommand {
        let mut ops = many(count);
        ops.push(nested(vec![], many(inner), vec![]));
        txn(vec![], ops, vec![])
    };
    let deep =
        |depth: usize| (0..depth).fold(read("x"), |inner, _| nested(vec![], vec![inner], vec![]));
    let compares = vec![compare("x", "", CompareTarget::Mod(0), CompareResult::Equal); 129];
    let cases: Vec<(KeyCommand, Option<KeyError>)> = vec![
        (txn(vec![], many(128), vec![]), None),
        (txn(vec![], many(129), vec![]), Some(KeyError::TooManyOps)),
        (txn(vec![], vec![], many(129)), Some(KeyError::TooManyOps)),
        (txn(compares, vec![], vec![]), Some(KeyError::TooManyOps)),
        (one_nested(126, 1), None),
        (one_nested(126, 2), Some(KeyError::TooManyOps)),
        (one_nested(127, 0), None),
        (one_nested(127, 1), Some(KeyError::TooManyOps)),
        (txn(vec![], vec![deep(127)], vec![]), None),
        (
            txn(vec![], vec![deep(128)], vec![]),
            Some(KeyError::TooManyOps),
        ),
        (
            txn(vec![], vec![Op::Empty], vec![]),
            Some(KeyError::KeyNotFound),
        ),
        (
            txn(vec![], vec![], vec![Op::Empty]),
            Some(KeyError::KeyNotFound),
        ),
        (
            txn(vec![], vec![read("")], vec![]),
            Some(KeyError::KeyNotProvided),
        ),
        (
            txn(vec![], vec![op(delete("", ""))], vec![]),
            Some(KeyError::KeyNotProvided),
        ),
        (
            txn(
                vec![compare(
                    "",
                    "",
                    CompareTarget::Version(0),
                    CompareResult::Equal,
                )],
                vec![],
                vec![],
            ),
            Some(KeyError::KeyNotProvided),
        ),
        (
            txn(
                vec![],
                vec![op(put_ignoring("a", "1", 0, true, false))],
                vec![],
            ),
            Some(KeyError::ValueProvided),
        ),
        // State is looked at only in the branch taken.
        (
            txn(vec![], vec![op(put_with("a", "1", 77))], vec![]),
            Some(KeyError::LeaseNotFound),
        ),
        (txn(vec![], vec![], vec![op(put_with("a", "1", 77))]), None),
        (
            txn(
                vec![],
                vec![
                    Op::Range(RangeRequest {
                        revision: 9999,
                        ..get("x", "")
                    }),
                    op(put_with("a", "1", 77)),
                ],
                vec![],
            ),
            Some(KeyError::FutureRevision),
        ),
        (
            txn(
                vec![],
                vec![
                    op(put("a", "1")),
                    Op::Range(RangeRequest {
                        revision: 9999,
                        ..get("x", "")
                    }),
                ],
                vec![],
            ),
            Some(KeyError::FutureRevision),
        ),
        (
            txn(
                vec![],
                vec![Op::Range(RangeRequest {
                    revision: -5,
                    ..get("x", "")
                })],
                vec![],
            ),
            Some(KeyError::Compacted {
                compact_revision: -1,
            }),
        ),
    ];
    for (command, error) in cases {
        match error {
            Some(error) => refused(&[], command, error),
            None => assert_eq!(KeySpace::new(1).check(&command), Ok(()), "{command:?}"),
        }
    }
}

#[test]
fn compaction() {
    let compact = |revision| KeyCommand::Compact { revision };
    let gone = |compact_revision| KeyError::Compacted { compact_revision };
    check(&[], compact(0), "", "0");
    refused(&[compact(0)], compact(0), gone(0));
    refused(&[compact(0)], compact(-1), gone(0));
    refused(&[], compact(2), KeyError::FutureRevision);
    let pairs = [
        put("a", "1"),
        put("a", "2"),
        put("b", "1"),
        delete("b", ""),
        compact(4),
    ];
    refused(&pairs, compact(4), gone(4));
    refused(&pairs, compact(3), gone(4));
    refused(&pairs, compact(6), KeyError::FutureRevision);
    check(&pairs, compact(5), "", "a=2 2/3/2 | 1");

    let space = space(&pairs);
    assert_eq!(
        (
            space.compact_revision(),
            space.history_floor(),
            space.revision()
        ),
        (4, 4, 5)
    );
    let at = |revision| {
        space.range(&RangeRequest {
            revision,
            ..get("\0", "\0")
        })
    };
    assert_eq!(at(3), Err(gone(4)));
    assert_eq!(shown(&at(4).unwrap()), "a=2 2/3/2 | b=1 4/4/1 | 2");
    assert_eq!(shown(&at(5).unwrap()), "a=2 2/3/2 | 1");
    let from = |revision| -> Result<Vec<String>, KeyError> {
        let groups = space.history(revision, &b("\0"), &b("\0"))?;
        Ok(groups
            .map(|group| format!("{}: {}", group.revision, told(&group.events)))
            .collect())
    };
    assert_eq!(from(3), Err(gone(4)));
    // A watch may start at the compacted revision.
    assert_eq!(
        from(4).unwrap(),
        ["4: put b=1 4/4/1 was none", "5: delete b@5 was b=1 4/4/1"]
    );
    assert_eq!(from(6).unwrap(), [""; 0]);
}

#[test]
fn trimming() {
    let mut space = KeySpace::new(1);
    for (step, command) in [
        put("a", "1"),
        put("b", "1"),
        delete("a", ""),
        put("a", "2"),
        delete("b", ""),
    ]
    .iter()
    .enumerate()
    {
        space
            .apply(command, 2 + step as i64, 1000 * step as i64)
            .result
            .unwrap();
    }
    let trim = |space: &mut KeySpace, now_ms, keep_ms, keep_bytes| {
        let applied = space.apply(
            &KeyCommand::TrimHistory {
                keep_ms,
                keep_bytes,
            },
            99,
            now_ms,
        );
        assert!(applied.result.is_ok() && !applied.revision_used);
        space.history_floor()
    };
    assert_eq!(trim(&mut space, 4000, 4000, u64::MAX), 0);
    assert_eq!(trim(&mut space, 5500, 4000, u64::MAX), 4);
    assert_eq!(space.compact_revision(), -1);
    assert_eq!(
        space.range(&RangeRequest {
            revision: 3,
            ..get("a", "")
        }),
        Err(KeyError::Compacted {
            compact_revision: 4
        })
    );
    // The dropped deletion of a key that is back tells a foreign reader nothing.
    assert_eq!(trim(&mut space, 6500, 4000, u64::MAX), 5);
    assert_eq!(
        space.foreign_history(0, &b("\0"), &b("\0")).unwrap().len(),
        2
    );
    // The last change stays, whatever the limits.
    let bytes = space.history_bytes();
    assert_eq!(trim(&mut space, 6500, 4000, 0), 6);
    assert!(space.history_bytes() < bytes && space.history_bytes() > 0);
    assert_eq!(trim(&mut space, i64::MAX, 0, 0), 6);
    run(&mut space, &put("c", "1"));
    assert_eq!(trim(&mut space, i64::MAX, 0, 0), 7);
    // Now the deletion of b is gone, and an old foreign number cannot be served.
    let foreign = |from| {
        space
            .foreign_history(from, &b("\0"), &b("\0"))
            .map(|groups| groups.len())
    };
    assert_eq!(
        foreign(0),
        Err(KeyError::Compacted {
            compact_revision: 7
        })
    );
    assert_eq!(
        foreign(5 + FOREIGN_SKEW),
        Err(KeyError::Compacted {
            compact_revision: 7
        })
    );
    assert_eq!(foreign(6 + FOREIGN_SKEW), Ok(2));
    let compacting = KeyCommand::Compact { revision: 3 };
    assert!(run(&mut space, &compacting).result.is_ok());
    assert_eq!((space.compact_revision(), space.history_floor()), (3, 7));
}

fn lease_keys(space: &KeySpace, id: i64) -> String {
    let keys: Vec<_> = space
        .lease_keys(id)
        .map(|key| String::from_utf8_lossy(key).into_owned())
        .collect();
    keys.join(" ")
}

#[test]
fn leases() {
    let ttl = |ttl_s| KeyCommand::LeaseGrant { id: -5, ttl_s };
    for (asked, granted) in [
        (0, 2),
        (-5, 2),
        (1, 2),
        (2, 2),
        (60, 60),
        (MAX_LEASE_TTL_S, MAX_LEASE_TTL_S),
    ] {
        let reply = run(&mut KeySpace::new(1), &ttl(asked)).result;
        assert_eq!(
            reply,
            Ok(KeyReply::LeaseGrant {
                id: -5,
                ttl_s: granted
            })
        );
    }
    refused(&[], ttl(MAX_LEASE_TTL_S + 1), KeyError::LeaseTtlTooLarge);
    refused(
        &[ttl(5)],
        ttl(MAX_LEASE_TTL_S + 1),
        KeyError::LeaseTtlTooLarge,
    );
    refused(&[ttl(5)], ttl(5), KeyError::LeaseExists);
    refused(&[], grant(0), KeyError::LeaseNotFound);

    let revoke = |id, keep: &[&str]| KeyCommand::LeaseRevoke {
        id,
        keep: keep.iter().map(|key| b(key)).collect(),
    };
    refused(&[], revoke(7, &[]), KeyError::LeaseNotFound);
    refused(
        &[grant(7), revoke(7, &[])],
        revoke(7, &[]),
        KeyError::LeaseNotFound,
    );
    check(&[grant(7)], revoke(7, &[]), "", "0");
    let leased = [
        grant(7),
        grant(8),
        put_with("c", "1", 7),
        put_with("a", "1", 7),
        put_with("b", "1", 7),
        put_with("d", "1", 8),
    ];
    check(
        &leased,
        revoke(7, &[]),
        "delete a@6 was a=1 3/3/1 L7, delete b@6 was b=1 4/4/1 L7, delete c@6 was c=1 2/2/1 L7",
        "d=1 5/5/1 L8 | 1",
    );
    check(
        &leased,
        revoke(7, &["b", "d", "nope"]),
        "delete a@6 was a=1 3/3/1 L7, delete c@6 was c=1 2/2/1 L7",
        "b=1 4/4/1 L7 | d=1 5/5/1 L8 | 2",
    );

    let mut space = space(&leased);
    assert_eq!(
        (
            lease_keys(&space, 7).as_str(),
            lease_keys(&space, 8).as_str()
        ),
        ("a b c", "d")
    );
    run(&mut space, &put_with("a", "1", 8)).result.unwrap();
    run(&mut space, &put("b", "1")).result.unwrap();
    run(&mut space, &delete("c", "")).result.unwrap();
    assert_eq!(
        (
            lease_keys(&space, 7).as_str(),
            lease_keys(&space, 8).as_str()
        ),
        ("", "a d")
    );
    assert_eq!(space.leases().map(|(id, _)| id).collect::<Vec<_>>(), [7, 8]);

    // A kept key shows its lease until it is written or removed; the lease itself is not there.
    run(&mut space, &revoke(8, &["a"])).result.unwrap();
    assert_eq!(
        (space.lease(8), lease_keys(&space, 8).as_str()),
        (None, "a")
    );
    assert_eq!(
        run(&mut space, &put_with("x", "1", 8)).result,
        Err(KeyError::LeaseNotFound)
    );
    assert_eq!(
        run(&mut space, &revoke(8, &[])).result,
        Err(KeyError::LeaseNotFound)
    );
    run(&mut space, &KeyCommand::AdoptLease { id: 8, ttl_s: 1 })
        .result
        .unwrap();
    assert_eq!(
        space.lease(8).map(|lease| (lease.ttl_s, lease.keys.len())),
        Some((1, 1))
    );
    run(&mut space, &KeyCommand::AdoptLease { id: 8, ttl_s: 30 })
        .result
        .unwrap();
    assert_eq!(
        space.lease(8).map(|lease| (lease.ttl_s, lease.keys.len())),
        Some((30, 1))
    );
    run(&mut space, &KeyCommand::ForgetLease { id: 8 })
        .result
        .unwrap();
    assert_eq!(
        run(&mut space, &KeyCommand::ForgetLease { id: 8 }).result,
        Err(KeyError::LeaseNotFound)
    );
    assert_eq!(pair(space.get(b"a").unwrap()), "a=1 3/6/2 L8");
    let applied = run(&mut space, &KeyCommand::RemoveAll { keys: vec![b("a")] });
    assert_eq!(applied.result, Ok(KeyReply::Changed(1)));
    assert_eq!(lease_keys(&space, 8), "");
    run(&mut space, &grant(8)).result.unwrap();
}

#[test]
fn removals_decided_elsewhere() {
    let pairs = [put("c", "1"), put("a", "1"), put("b", "1")];
    let remove = |keys: &[&str]| KeyCommand::RemoveAll {
        keys: keys.iter().map(|key| b(key)).collect(),
    };
    check(
        &pairs,
        remove(&["c", "nope", "a", "a"]),
        "delete a@5 was a=1 3/3/1, delete c@5 was c=1 2/2/1",
        "b=1 4/4/1 | 1",
    );
    check(
        &pairs,
        remove(&["nope"]),
        "",
        "a=1 3/3/1 | b=1 4/4/1 | c=1 2/2/1 | 3",
    );
}

#[test]
fn imports() {
    let one = |key: &str, value: &str, numbers, lease| KeyCommand::Import {
        kv: import(key, value, numbers, lease),
    };
    let old = [one("a", "1", (10, 20, 3), 7)];
    // Numbers are the other store's; the lease need not be known.
    check(
        &[],
        old[0].clone(),
        "put a=1 10/20/3 L7 was none",
        "a=1 10/20/3 L7 | 1",
    );
    let kept = "a=1 10/20/3 L7 | 1";
    check(&old, old[0].clone(), "", kept);
    check(&old, one("a", "2", (10, 19, 2), 7), "", kept);
    check(
        &old,
        one("a", "2", (10, 21, 4), 7),
        "put a=2 10/21/4 L7 was a=1 10/20/3 L7",
        "a=2 10/21/4 L7 | 1",
    );
    check(
        &old,
        one("a", "1", (10, 21, 4), 8),
        "put a=1 10/21/4 L8 was a=1 10/20/3 L7",
        "a=1 10/21/4 L8 | 1",
    );
    // Only the numbers moved: kept, but nobody is told.
    check(
        &old,
        one("a", "1", (10, 21, 4), 7),
        "",
        "a=1 10/21/4 L7 | 1",
    );
    // Numbers left out are given here.
    check(
        &old,
        one("a", "2", (0, 0, 0), 7),
        "put a=2 10/3/4 L7 was a=1 10/20/3 L7",
        "a=2 10/3/4 L7 | 1",
    );
    check(&old, one("a", "1", (0, 0, 0), 7), "", kept);
    check(
        &[],
        one("a", "1", (0, 0, 0), 0),
        "put a=1 2/2/1 was none",
        "a=1 2/2/1 | 1",
    );
    refused(&[], one("", "1", (1, 1, 1), 0), KeyError::KeyNotProvided);

    check(
        &[put("a", "1"), put("b", "1")],
        KeyCommand::ImportAll {
            kvs: vec![
                import("d", "1", (5, 6, 2), 0),
                import("c", "1", (5, 5, 1), 0),
            ],
            removed: vec![b("b"), b("nope")],
        },
        "delete b@4 was b=1 3/3/1, put d=1 5/6/2 was none, put c=1 5/5/1 was none",
        "a=1 2/2/1 | c=1 5/5/1 | d=1 5/6/2 | 3",
    );

    let mut space = space(&old);
    assert_eq!(
        (space.lease(7), lease_keys(&space, 7).as_str()),
        (None, "a")
    );
    run(&mut space, &grant(7)).result.unwrap();
    assert_eq!(
        space.lease(7).map(|lease| (lease.ttl_s, lease.keys.len())),
        Some((60, 1))
    );
    // The past is read by the numbers given out here.
    assert_eq!(
        shown(
            &space
                .range(&RangeRequest {
                    revision: 1,
                    ..get("a", "")
                })
                .unwrap()
        ),
        "0"
    );
}

#[test]
fn numbers_only_rise_and_may_leave_gaps() {
    let mut space = KeySpace::new(1_000);
    assert_eq!(space.apply(&put("a", "1"), 5_001, 0).revision, 5_001);
    assert_eq!(space.apply(&delete("x", ""), 6_001, 0).revision, 5_001);
    assert_eq!(space.apply(&put("b", "1"), 7_001, 0).revision, 7_001);
    assert_eq!(space.apply(&put("c", "1"), 10, 0).revision, 7_002);
    space.raise_revision(9_000);
    space.raise_revision(8_000);
    assert_eq!(space.revision(), 9_000);
    assert_eq!(
        all(&space),
        "a=1 5001/5001/1 | b=1 7001/7001/1 | c=1 7002/7002/1 | 3"
    );
    let at = |revision| {
        shown(
            &space
                .range(&RangeRequest {
                    revision,
                    ..get("\0", "\0")
                })
                .unwrap(),
        )
    };
    assert_eq!(at(6_000), "a=1 5001/5001/1 | 1");
    assert_eq!(at(1), "0");
    assert_eq!(at(8_500), all(&space));
}

#[test]
fn foreign_readers_learn_what_is_and_what_went() {
    let space = space(&[
        KeyCommand::Import {
            kv: import("/s/old", "1", (1, 1, 1), 0),
        },
        put("/s/b", "1"),
        put("/s/a", "1"),
        put("/t/a", "1"),
        delete("/s/b", ""),
        put("/s/c", "1"),
        delete("/s/c", ""),
        put("/s/c", "2"),
    ]);
    let answer: Vec<String> = space
        .foreign_history(123, &b("/s/"), &b("/s0"))
        .unwrap()
        .iter()
        .map(|group| format!("{}: {}", group.revision, told(&group.events)))
        .collect();
    assert_eq!(
        answer,
        [
            "1: put /s/old=1 1/1/1 was none",
            "4: put /s/a=1 4/4/1 was none",
            "6: delete /s/b@6 was /s/b=1 3/3/1",
            "9: put /s/c=2 9/9/1 was none",
        ]
    );
}

#[test]
fn range_versions_move_with_the_range() {
    let mut space = space(&[put("/s/a/1", "1"), put("/s/b/1", "1"), put("plain", "1")]);
    let ranges = [
        ("/s/a/", "/s/a0"),
        ("/s/b/", "/s/b0"),
        ("/s/a/1", "/s/a/7"),
        ("/s/a/1", ""),
        ("/s/", "/s0"),
        ("p", "q"),
    ];
    let versions =
        |space: &KeySpace| ranges.map(|(key, end)| space.range_version(&b(key), &b(end)));
    let cases = [
        (put("/s/a/1", "2"), [true, false, true, true, true, true]),
        (put("/s/a/9", "2"), [true, false, true, false, true, true]),
        (
            delete("/s/b/1", ""),
            [false, true, false, false, true, true],
        ),
        (delete("/s/b/1", ""), [false; 6]),
        (put("plain", "2"), [false, false, false, false, false, true]),
        (
            KeyCommand::Import {
                kv: import("/s/a/1", "2", (1, 99, 9), 0),
            },
            [true, false, true, true, true, true],
        ),
    ];
    for (command, moved) in cases {
        let before = versions(&space);
        run(&mut space, &command).result.unwrap();
        let after = versions(&space);
        let seen: Vec<bool> = before
            .iter()
            .zip(after)
            .map(|(before, after)| *before != after)
            .collect();
        assert_eq!(seen, moved, "{command:?}");
    }
}

#[test]
fn spans_match_one_by_one_containment() {
    let mut random = Random(3);
    for _ in 0..2_000 {
        let ranges: Vec<(Bytes, Bytes)> = (0..random.below(6))
            .map(|_| (random.key(), random.range_end()))
            .collect();
        let mut spans = Spans::default();
        for (key, end) in &ranges {
            spans.add(key, end);
        }
        for _ in 0..10 {
            let key = random.key();
            let inside = ranges
                .iter()
                .filter(|(_, end)| end.as_ref() != [0])
                .any(|(start, end)| Span::new(start, end).contains(&key));
            assert_eq!(spans.contains(&key), inside, "{key:?} in {ranges:?}");
        }
    }
}

// ---- The seeded comparison ----

fn bytes_of(space: &KeySpace) -> Vec<u8> {
    postcard::to_stdvec(space).unwrap()
}

#[test]
fn equals_the_naive_model() {
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..60 {
        let mut random = Random(seed);
        let (mut space, mut twin, mut model) = (KeySpace::new(1), KeySpace::new(1), Model::new());
        // The model was written after these releases.
        space.set_release(Release::new(3, 5));
        for step in 0..300 {
            let now_ms = step * 100;
            let command = random.command(space.revision());
            let revision = space.revision() + 1 + random.below(3) as i64;
            let promised = space.check(&command);
            let applied = space.apply(&command, revision, now_ms);
            assert_eq!(
                promised.err(),
                applied.result.clone().err(),
                "seed {seed} step {step}"
            );
            let expected = model.apply(&command, revision);
            let seen = applied.result.as_ref().map(essence).map_err(Clone::clone);
            assert_eq!(seen, expected, "seed {seed} step {step} {command:?}");
            assert_eq!(space.revision(), model.now().0, "seed {seed} step {step}");
            if let Err(error) = &applied.result {
                *refusals.entry(format!("{error:?}")).or_default() += 1;
            }

            // The same commands on a space that was saved and loaded give the same state.
            twin.apply(&command, revision, now_ms);
            if random.chance(50) {
                twin = postcard::from_bytes(&bytes_of(&twin)).unwrap();
            }
            if random.chance(40) {
                let trim = KeyCommand::TrimHistory {
                    keep_ms: 5_000,
                    keep_bytes: 30_000,
                };
                space.apply(&trim, revision + 1, now_ms);
                twin.apply(&trim, revision + 1, now_ms);
                model.floor = space.history_floor();
            }

            for _ in 0..3 {
                let range = random.range(space.revision());
                let seen = space.range(&range).map(|reply| shown(&reply));
                let expected = if range.revision > model.now().0 {
                    Err(KeyError::FutureRevision)
                } else if range.revision > 0 && range.revision < model.floor {
                    Err(KeyError::Compacted {
                        compact_revision: model.floor,
                    })
                } else if range.revision > 0 {
                    Ok(Model::list(&model.at(range.revision).1, &range))
                } else {
                    Ok(Model::list(&model.now().1, &range))
                };
                assert_eq!(seen, expected, "seed {seed} step {step} {range:?}");
            }
            for id in 1..5 {
                let keys: Vec<&Bytes> = model
                    .now()
                    .1
                    .values()
                    .filter(|kv| kv.lease == id)
                    .map(|kv| &kv.key)
                    .collect();
                assert_eq!(
                    space.lease_keys(id).collect::<Vec<_>>(),
                    keys,
                    "seed {seed} step {step}"
                );
                assert_eq!(space.lease(id).is_some(), model.leases.contains(&id));
            }
        }
        assert_eq!(bytes_of(&space), bytes_of(&twin), "seed {seed}");
        let loaded: KeySpace = postcard::from_bytes(&bytes_of(&space)).unwrap();
        assert_eq!(bytes_of(&loaded), bytes_of(&space));
        assert_eq!(loaded.history_bytes(), space.history_bytes());
    }
    // The run reached the refusals it is meant to compare.
    for name in [
        "KeyNotFound",
        "ValueProvided",
        "DuplicateKey",
        "LeaseNotFound",
        "LeaseExists",
        "FutureRevision",
    ] {
        assert!(
            refusals.contains_key(name),
            "{name} never happened: {refusals:?}"
        );
    }
}

#[test]
fn a_snapshot_that_does_not_fit_together_is_refused() {
    let space = space(&[put("a", "1"), put("a", "2")]);
    let whole = bytes_of(&space);
    for cut in 0..whole.len() {
        assert!(
            postcard::from_bytes::<KeySpace>(&whole[..cut]).is_err(),
            "cut at {cut}"
        );
    }
}
