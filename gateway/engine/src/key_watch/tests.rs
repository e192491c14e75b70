//! Tables of etcd's watch rules, then seeded properties: what a watch is told rebuilds the range.

use std::collections::BTreeSet;

use super::*;
use crate::key_space::{KeyCommand, KeyValue, RangeRequest};

const S: StreamId = StreamId(1);

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn watch(key: &str, range_end: &str, start: WatchStart) -> WatchSpec {
    WatchSpec {
        watch_id: 0,
        key: b(key),
        range_end: b(range_end),
        start,
        no_put: false,
        no_delete: false,
        prev_kv: false,
    }
}

fn put(key: &str, value: &str) -> KeyCommand {
    KeyCommand::Put {
        key: b(key),
        value: b(value),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    }
}

fn delete(key: &str, range_end: &str) -> KeyCommand {
    KeyCommand::DeleteRange {
        key: b(key),
        range_end: b(range_end),
        prev_kv: false,
    }
}

/// A space and its watches; each line of `told` is one delivery.
struct Rig {
    space: KeySpace,
    table: KeyWatchTable,
}

impl Rig {
    fn new(commands: &[KeyCommand]) -> Rig {
        let mut rig = Rig {
            space: KeySpace::new(1),
            table: KeyWatchTable::new(),
        };
        for command in commands {
            rig.run(command);
        }
        rig
    }

    fn run(&mut self, command: &KeyCommand) -> Vec<Delivery> {
        let applied = self.space.apply(command, self.space.revision() + 1, 0);
        applied.result.unwrap();
        self.table.dispatch(applied.revision, &applied.events)
    }

    fn told(&mut self, command: &KeyCommand) -> Vec<String> {
        let deliveries = self.run(command);
        deliveries
            .iter()
            .map(|to| format!("{}.{} {}", to.stream.0, to.watch_id, line(&to.events)))
            .collect()
    }

    fn create(&mut self, stream: StreamId, spec: WatchSpec) -> Created {
        self.table.create(stream, spec, &self.space)
    }
}

fn line(events: &[KeyEvent]) -> String {
    let one = |event: &KeyEvent| {
        let sign = if event.kind == EventKind::Put {
            '+'
        } else {
            '-'
        };
        format!(
            "{sign}{}@{}",
            String::from_utf8_lossy(&event.kv.key),
            event.kv.mod_revision
        )
    };
    events.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn lines(groups: &[RevisionEvents]) -> Vec<String> {
    groups
        .iter()
        .map(|group| format!("{}: {}", group.revision, line(&group.events)))
        .collect()
}

#[test]
fn starts() {
    use CreateOutcome::*;
    use WatchStart::*;
    let commands = [
        put("a", "1"),
        put("b", "1"),
        put("a", "2"),
        delete("b", ""),
        put("c", "1"),
        KeyCommand::Compact { revision: 3 },
    ];
    let cases: Vec<(WatchSpec, Result<&[&str], CreateOutcome>)> = vec![
        (watch("\0", "\0", Now), Ok(&[])),
        (watch("\0", "\0", At(0)), Ok(&[])),
        (
            watch("\0", "\0", At(4)),
            Ok(&["4: +a@4", "5: -b@5", "6: +c@6"]),
        ),
        (watch("b", "", At(3)), Ok(&["3: +b@3", "5: -b@5"])),
        (watch("b", "d", At(5)), Ok(&["5: -b@5", "6: +c@6"])),
        (watch("x", "", At(3)), Ok(&[])),
        (watch("\0", "\0", At(6)), Ok(&["6: +c@6"])),
        (watch("\0", "\0", At(7)), Ok(&[])),
        (watch("\0", "\0", At(700)), Ok(&[])),
        (
            watch("\0", "\0", At(2)),
            Err(Compacted {
                compact_revision: 3,
            }),
        ),
        (
            watch("\0", "\0", At(-1)),
            Err(Rejected(WatchReject::NegativeStart)),
        ),
        (watch("b", "a", Now), Err(Rejected(WatchReject::EmptyRange))),
        (
            watch("b", "b", At(2)),
            Err(Rejected(WatchReject::EmptyRange)),
        ),
        (
            WatchSpec {
                no_put: true,
                ..watch("\0", "\0", At(4))
            },
            Ok(&["5: -b@5"]),
        ),
        (
            WatchSpec {
                no_delete: true,
                ..watch("\0", "\0", At(4))
            },
            Ok(&["4: +a@4", "6: +c@6"]),
        ),
        (
            WatchSpec {
                no_put: true,
                no_delete: true,
                ..watch("\0", "\0", At(4))
            },
            Ok(&[]),
        ),
        // A number of another store is never in the future, and learns what is and what went.
        (
            watch("\0", "\0", Foreign(9_999)),
            Ok(&["4: +a@4", "5: -b@5", "6: +c@6"]),
        ),
        (
            WatchSpec {
                no_delete: true,
                ..watch("a", "c", Foreign(1))
            },
            Ok(&["4: +a@4"]),
        ),
        // Empty key: the smallest key; to the end of all: everything.
        (watch("", "\0", At(6)), Ok(&["6: +c@6"])),
        (watch("", "", At(6)), Ok(&[])),
    ];
    for (spec, expected) in cases {
        let mut rig = Rig::new(&commands);
        let created = rig.create(S, spec.clone());
        assert_eq!(created.header_revision, 6);
        let lives = match (&created.outcome, expected) {
            (Live, Ok(expected)) => {
                assert!(expected.is_empty(), "{spec:?}");
                true
            }
            (Replay(groups), Ok(expected)) => {
                assert_eq!(lines(groups), expected, "{spec:?}");
                true
            }
            (outcome, Err(expected)) => {
                assert_eq!(*outcome, expected, "{spec:?}");
                false
            }
            (outcome, Ok(_)) => panic!("{spec:?}: {outcome:?}"),
        };
        assert_eq!(
            created.watch_id,
            if matches!(created.outcome, Rejected(_)) {
                -1
            } else {
                0
            }
        );
        assert_eq!(
            (rig.table.len(), rig.table.watch_count(S)),
            (usize::from(lives), usize::from(lives))
        );
        // The next change reaches all of them but those that filter or wait for a later one.
        let waits = matches!(spec.start, At(700)) || spec.no_put || !lives;
        let hit = Span::new(
            &if spec.key.is_empty() {
                b("\0")
            } else {
                spec.key.clone()
            },
            &spec.range_end,
        );
        let told = rig.told(&put("a", "3"));
        assert_eq!(
            told.is_empty(),
            waits || !hit.contains(b"a"),
            "{spec:?}: {told:?}"
        );
    }
}

#[test]
fn a_compacted_foreign_start_names_where_to_go_on() {
    let mut rig = Rig::new(&[
        put("a", "1"),
        delete("a", ""),
        put("b", "1"),
        KeyCommand::Compact { revision: 4 },
    ]);
    let created = rig.create(S, watch("\0", "\0", WatchStart::Foreign(3)));
    assert_eq!(
        created.outcome,
        CreateOutcome::Compacted {
            compact_revision: 4
        }
    );
    let created = rig.create(S, watch("\0", "\0", WatchStart::At(4)));
    assert!(
        matches!(created.outcome, CreateOutcome::Replay(_)),
        "{created:?}"
    );
    assert_eq!(
        created.watch_id, 1,
        "the id of the cancelled watch is used up"
    );
}

#[test]
fn a_watch_of_the_future_waits_for_its_revision() {
    let mut rig = Rig::new(&[put("a", "1")]);
    rig.create(S, watch("a", "", WatchStart::At(4)));
    assert_eq!(rig.told(&put("a", "2")), [""; 0]);
    assert_eq!(rig.told(&put("a", "3")), ["1.0 +a@4"]);
}

#[test]
fn ids() {
    let mut rig = Rig::new(&[]);
    let with = |watch_id| WatchSpec {
        watch_id,
        ..watch("a", "", WatchStart::Now)
    };
    let mut id = |stream: u64, watch_id| rig.create(StreamId(stream), with(watch_id)).watch_id;
    assert_eq!([id(1, 0), id(1, 0), id(2, 0)], [0, 1, 0]);
    assert_eq!([id(1, 3), id(1, -7), id(1, 3), id(1, 1)], [3, -7, -1, -1]);
    assert_eq!([id(1, 0), id(1, 0)], [2, 4]);
    assert!(rig.table.watch_ids(StreamId(1)).eq([-7, 0, 1, 2, 3, 4]));

    assert!(rig.table.cancel(StreamId(1), 3));
    assert!(!rig.table.cancel(StreamId(1), 3));
    assert!(!rig.table.cancel(StreamId(9), 0));
    assert_eq!(
        rig.told(&put("a", "1")),
        ["1.-7", "1.0", "1.1", "1.2", "1.4", "2.0"].map(|id| format!("{id} +a@2"))
    );
    assert_eq!(
        rig.create(StreamId(1), with(3)).watch_id,
        3,
        "a cancelled id is free again"
    );
    assert_eq!(
        rig.create(StreamId(1), with(0)).watch_id,
        5,
        "a chosen id is not chosen again"
    );
    rig.table.remove_stream(StreamId(1));
    assert_eq!(rig.told(&put("a", "1")), ["2.0 +a@3"]);
    rig.table.remove_stream(StreamId(2));
    assert!(rig.table.is_empty() && rig.told(&put("a", "1")).is_empty());
    assert!(rig.table.single.is_empty() && rig.table.ranged.is_empty());
}

#[test]
fn a_revision_reaches_a_watch_whole_and_is_shared() {
    let mut rig = Rig::new(&[put("a/1", "1"), put("a/2", "1"), put("b", "1")]);
    let all = watch("\0", "\0", WatchStart::Now);
    rig.create(S, all.clone());
    rig.create(
        S,
        WatchSpec {
            prev_kv: true,
            ..all.clone()
        },
    );
    rig.create(S, watch("a/", "a0", WatchStart::Now));
    rig.create(S, watch("a/", "a0", WatchStart::Now));
    rig.create(S, watch("a/2", "", WatchStart::Now));
    rig.create(
        S,
        WatchSpec {
            no_delete: true,
            ..all
        },
    );
    let deliveries = rig.run(&delete("a/", "c"));
    let told: Vec<String> = deliveries
        .iter()
        .map(|to| format!("{} {}", to.watch_id, line(&to.events)))
        .collect();
    assert_eq!(
        told,
        [
            "0 -a/1@5 -a/2@5 -b@5",
            "1 -a/1@5 -a/2@5 -b@5",
            "2 -a/1@5 -a/2@5",
            "3 -a/1@5 -a/2@5",
            "4 -a/2@5",
        ]
    );
    let [first, second, third, fourth, fifth] = deliveries.as_slice() else {
        panic!()
    };
    assert!(
        Arc::ptr_eq(&first.events, &second.events) && Arc::ptr_eq(&third.events, &fourth.events)
    );
    assert_eq!((first.prev_kv, second.prev_kv), (false, true));
    assert_eq!(
        (first.batch, second.batch, third.batch),
        (0, 0, fourth.batch)
    );
    let batches: BTreeSet<usize> = [first, third, fifth].iter().map(|to| to.batch).collect();
    assert_eq!(batches.len(), 3);
    assert_eq!(
        fifth.events[0].prev.as_ref().map(|kv| kv.mod_revision),
        Some(3)
    );
}

/// What a client makes of events: the range as it knows it.
fn follow(known: &mut BTreeMap<Bytes, KeyValue>, events: &[KeyEvent]) {
    for event in events {
        match event.kind {
            EventKind::Put => known.insert(event.kv.key.clone(), KeyValue::clone(&event.kv)),
            EventKind::Delete => known.remove(&event.kv.key),
        };
    }
}

fn range(
    space: &KeySpace,
    key: &Bytes,
    range_end: &Bytes,
    revision: i64,
) -> Option<BTreeMap<Bytes, KeyValue>> {
    let request = RangeRequest {
        key: key.clone(),
        range_end: range_end.clone(),
        revision,
        ..RangeRequest::default()
    };
    let reply = space.range(&request).ok()?;
    Some(
        reply
            .kvs
            .iter()
            .map(|kv| (kv.key.clone(), KeyValue::clone(kv)))
            .collect(),
    )
}

/// A client with a watch that began with the range as it was before the start.
struct Client {
    stream: StreamId,
    watch_id: i64,
    spec: WatchSpec,
    known: BTreeMap<Bytes, KeyValue>,
    last: i64,
}

#[test]
fn what_a_watch_is_told_rebuilds_its_range() {
    use crate::key_space::tests::Random;
    let mut replayed = 0;
    let mut foreign = 0;
    for seed in 100..140 {
        let mut random = Random(seed);
        let mut space = KeySpace::new(1);
        let mut table = KeyWatchTable::new();
        let mut clients: Vec<Client> = Vec::new();
        for step in 0..250 {
            let name = format!("seed {seed} step {step}");
            let applied = space.apply(
                &random.command(space.revision()),
                space.revision() + 1,
                step * 100,
            );
            let deliveries = table.dispatch(applied.revision, &applied.events);
            assert!(applied.revision_used || deliveries.is_empty(), "{name}");
            let mut order: Vec<_> = deliveries
                .iter()
                .map(|to| (to.stream, to.watch_id))
                .collect();
            order.dedup();
            assert_eq!(
                order.len(),
                deliveries.len(),
                "{name}: one delivery per watch"
            );
            assert!(order.is_sorted(), "{name}");
            for client in &mut clients {
                let own = deliveries
                    .iter()
                    .find(|to| (to.stream, to.watch_id) == (client.stream, client.watch_id));
                let span = Span::new(&client.spec.key, &client.spec.range_end);
                let expected: Vec<KeyEvent> = applied
                    .events
                    .iter()
                    .filter(|event| span.contains(&event.kv.key))
                    .cloned()
                    .collect();
                assert_eq!(own.map_or(&[][..], |to| &to.events), expected, "{name}");
                if let Some(to) = own {
                    assert!(applied.revision > client.last, "{name}");
                    client.last = applied.revision;
                    follow(&mut client.known, &to.events);
                }
                let truth = range(&space, &client.spec.key, &client.spec.range_end, 0);
                assert_eq!(Some(&client.known), truth.as_ref(), "{name}");
            }
            if random.chance(30) {
                let trim = KeyCommand::TrimHistory {
                    keep_ms: 4_000,
                    keep_bytes: 40_000,
                };
                space.apply(&trim, space.revision() + 1, step * 100);
            }
            if random.chance(6) && !clients.is_empty() {
                let at = random.below(clients.len() as u64) as usize;
                let client = clients.swap_remove(at);
                assert!(table.cancel(client.stream, client.watch_id));
            }
            if !random.chance(3) {
                continue;
            }
            let (key, range_end) = (random.key(), random.range_end());
            let head = space.revision();
            let number = (head + 1 - random.below(30) as i64).max(2);
            let stale = number - 1;
            let start = match random.below(4) {
                0 => WatchStart::Now,
                1 => WatchStart::Foreign(number),
                _ => WatchStart::At(number),
            };
            let before = match start {
                WatchStart::Now => range(&space, &key, &range_end, 0),
                _ => range(&space, &key, &range_end, stale),
            };
            let spec = WatchSpec {
                watch_id: 0,
                key,
                range_end,
                start,
                no_put: false,
                no_delete: false,
                prev_kv: random.chance(2),
            };
            let stream = StreamId(random.below(4));
            let created = table.create(stream, spec.clone(), &space);
            let groups = match created.outcome {
                CreateOutcome::Live => Vec::new(),
                CreateOutcome::Replay(groups) => groups,
                CreateOutcome::Compacted { compact_revision } => {
                    assert!(compact_revision <= head, "{name}");
                    continue;
                }
                CreateOutcome::Rejected(reject) => {
                    assert_eq!(reject, WatchReject::EmptyRange, "{name}");
                    continue;
                }
            };
            assert!(
                groups.is_sorted_by(|one, next| one.revision < next.revision),
                "{name}"
            );
            match start {
                WatchStart::At(_) => replayed += groups.len(),
                WatchStart::Foreign(_) => foreign += groups.len(),
                WatchStart::Now => {}
            }
            // A watch may start at the floor itself, whose state before cannot be read any more.
            let Some(mut known) = before else {
                table.cancel(stream, created.watch_id);
                continue;
            };
            for group in &groups {
                follow(&mut known, &group.events);
            }
            let truth = range(&space, &spec.key, &spec.range_end, 0);
            assert_eq!(Some(&known), truth.as_ref(), "{name} {spec:?}");
            clients.push(Client {
                stream,
                watch_id: created.watch_id,
                spec,
                known,
                last: head,
            });
        }
        for stream in 0..4 {
            table.remove_stream(StreamId(stream));
        }
        assert!(table.is_empty() && table.groups.is_empty() && table.ranged.is_empty());
    }
    assert!(replayed > 500 && foreign > 200, "{replayed} {foreign}");
}

#[test]
fn the_interval_lookup_equals_a_scan() {
    use crate::key_space::tests::Random;
    let mut random = Random(7);
    let mut intervals = Intervals::default();
    let mut scan: Vec<Interval> = Vec::new();
    let letters = |random: &mut Random| -> Bytes {
        let length = 1 + random.below(3);
        (0..length).map(|_| b'a' + random.below(6) as u8).collect()
    };
    let mut most = 0;
    for step in 0..6_000u64 {
        // Grows to many, then shrinks to none.
        if scan.is_empty() || random.chance(3) == (step > 3_000) {
            let start = letters(&mut random);
            let end = match random.below(4) {
                0 => End::Open,
                _ => End::At(letters(&mut random)),
            };
            let interval = Interval {
                start,
                end,
                group: GroupId(step),
            };
            scan.push(interval.clone());
            intervals.insert(interval);
        } else {
            let at = random.below(scan.len() as u64) as usize;
            let gone = scan.swap_remove(at);
            intervals.remove(gone.group);
        }
        most = most.max(scan.len());
        let key = letters(&mut random);
        let mut found = Vec::new();
        intervals.stab(&key, &mut |group| found.push(group));
        found.sort();
        let mut expected: Vec<GroupId> = scan
            .iter()
            .filter(|own| own.start <= key && own.end.is_above(&key))
            .map(|own| own.group)
            .collect();
        expected.sort();
        assert_eq!(found, expected, "step {step}");
        assert!(
            intervals.sorted.len() <= 2 * scan.len() + 100,
            "what is gone does not pile up"
        );
    }
    assert!(most > 200, "{most}");
}
