use proptest::prelude::*;

use super::message::*;
use super::*;
use crate::merge::{Entry, Value};
use crate::node::NodeConfig;
use crate::origin::Dot;
use crate::record::{Health, Stamp};

fn origin() -> impl Strategy<Value = Origin> + Clone {
    (2..5u16, 1..4u64).prop_map(|(member, incarnation)| Origin {
        member,
        incarnation,
    })
}

/// Few keys, stamps and positions, so that entries meet.
pub(super) fn entry() -> impl Strategy<Value = Entry> + Clone {
    (
        0..6u8,
        (1..5u64, 2..5u16, 0..3u32),
        (origin(), 1..2_000u64),
        any::<bool>(),
        proptest::option::of(0..3i64),
    )
        .prop_map(
            |(name, (hlc, member, sub), (origin, sequence), dead, lease)| {
                let name = name.to_string();
                Entry {
                    key: key(&name),
                    stamp: Stamp {
                        hlc: hlc << 16,
                        member,
                    },
                    sub,
                    dot: Dot { origin, sequence },
                    lease: lease.map(|id| (LeaseId::native(id), 30_000)),
                    value: if dead {
                        Value::Dead {
                            namespace: "space".into(),
                            service: "service".into(),
                            instance: name,
                        }
                    } else {
                        Value::Living {
                            body: body("service", &name),
                            health: Health::Live,
                        }
                    },
                }
            },
        )
}

fn message() -> impl Strategy<Value = Message> {
    let positions = proptest::collection::vec((origin(), 0..50u64), 0..4);
    let entries = proptest::collection::vec(entry(), 0..4);
    let known = proptest::collection::vec((origin(), 0..50u64, 0..50u64), 0..4)
        .prop_map(|origins| Known { origins });
    prop_oneof![
        (origin(), 0..9u64, any::<u64>(), positions.clone()).prop_map(
            |(origin, sequence, wall_ms, positions)| Message::Heartbeat(Heartbeat {
                origin,
                sequence,
                hlc: wall_ms,
                wall_ms,
                readiness: Readiness::Ready,
                protected: false,
                bootstrapping: false,
                origins: positions
                    .iter()
                    .map(|(origin, through)| OriginState {
                        origin: *origin,
                        through: *through,
                        floor: through / 2,
                        live: Cell::default(),
                    })
                    .collect(),
                past: vec![(origin.member, 1)],
                hears: vec![1, 2],
                load: Load::default(),
            })
        ),
        (0..9u64, 0..9u64, any::<bool>(), any::<bool>()).prop_map(
            |(heard, known, alive, forgotten)| Message::Stale(Stale {
                heard,
                known,
                alive,
                forgotten
            })
        ),
        (0..3u32, origin(), 0..9u64, 0..u64::MAX, entries.clone()).prop_map(
            |(pull, origin, after, through, entries)| Message::Batch(Batch {
                pull,
                pieces: vec![Piece {
                    origin,
                    after,
                    through,
                    entries
                }],
                more: pull == 1,
            })
        ),
        positions
            .clone()
            .prop_map(|origins| Message::Ack(Ack { origins })),
        (1..9u32, positions).prop_map(|(id, after)| Message::Pull(Pull { id, after })),
        (0..3u32).prop_map(|exchange| Message::DigestRequest(DigestRequest { exchange })),
        (0..3u32, known.clone(), 250..260usize).prop_map(|(exchange, known, cells)| {
            Message::DigestReply(DigestReply {
                exchange,
                known,
                segments: vec![Cell::default(); cells],
            })
        }),
        (0..3u32, any::<Vec<u8>>()).prop_map(|(exchange, segments)| Message::PartsRequest(
            PartsRequest { exchange, segments }
        )),
        (0..3u32, any::<u8>(), 250..260usize).prop_map(|(exchange, segment, cells)| {
            Message::PartsReply(PartsReply {
                exchange,
                segments: vec![(segment, vec![Cell::default(); cells])],
            })
        }),
        (
            0..3u32,
            any::<u8>(),
            any::<[u64; 4]>(),
            any::<Option<u64>>(),
            any::<Vec<(u64, u64)>>()
        )
            .prop_map(|(exchange, segment, parts, after, have)| {
                Message::SegmentRequest(SegmentRequest {
                    exchange,
                    segment,
                    parts: PartSet(parts),
                    after,
                    have,
                })
            }),
        (
            0..3u32,
            any::<u8>(),
            any::<(Option<u64>, Option<u64>)>(),
            known,
            entries,
            any::<Vec<u64>>()
        )
            .prop_map(
                |(exchange, segment, (after, through), known, entries, absent)| {
                    Message::SegmentReply(SegmentReply {
                        exchange,
                        segment,
                        after,
                        known,
                        through,
                        entries,
                        absent,
                    })
                }
            ),
    ]
}

/// What decides: without the order in which it came.
fn table(node: &Node) -> Vec<(RecordKey, crate::Version, Dot)> {
    let living = node.records().map(|r| (r.key.clone(), r.version(), r.dot));
    let dead = node
        .tombstones()
        .map(|t| (t.key.clone(), t.version(), t.dot));
    let mut all: Vec<_> = living.chain(dead).collect();
    all.sort();
    all
}

/// One position names one write, as honest members keep it.
fn consistent(entries: Vec<Entry>) -> Vec<Entry> {
    let mut seen = BTreeSet::new();
    entries
        .into_iter()
        .enumerate()
        .map(|(at, mut entry)| {
            entry.dot.sequence = at as u64 + 1;
            entry
        })
        .filter(|entry| seen.insert(entry.dot))
        .collect()
}

fn recount(node: &Node) -> crate::Digest {
    let mut digest = crate::Digest::new(node.config().digest_key);
    for record in node.records() {
        digest.add(record);
    }
    digest
}

fn assert_counts(node: &Node) {
    let fresh = recount(node);
    assert_eq!(node.digest().total(), fresh.total());
    assert!(node.digest().buckets().eq(fresh.buckets()));
    for (origin, _) in node.logs().vector().iter() {
        assert_eq!(node.digest().origin(origin), fresh.origin(origin));
        assert!(node.logs().floors().get(origin) <= node.logs().vector().get(origin));
    }
    let summary = node.summary();
    let infos: Vec<_> = node.services().collect();
    assert_eq!(summary.records, node.records().count());
    assert_eq!(summary.tombstones, node.tombstones().count());
    assert_eq!(
        summary.instances,
        infos.iter().map(|i| i.instances).sum::<usize>()
    );
    assert_eq!(node.logs().len(), summary.records + summary.tombstones);
}

proptest! {
    #[test]
    fn merging_is_idempotent_commutative_and_associative(
        entries in proptest::collection::vec(entry(), 1..24).prop_map(consistent),
        order in any::<proptest::sample::Index>(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
    ) {
        let mut straight = node(1, EPOCH);
        straight.merge(entries.clone(), 1).unwrap();
        assert_counts(&straight);

        // Turned around, in pieces, and each piece twice.
        let mut turned = entries.clone();
        turned.reverse();
        turned.rotate_left(order.index(entries.len()));
        let mut pieces: Vec<usize> = cuts.iter().map(|cut| cut.index(turned.len())).collect();
        pieces.extend([0, turned.len()]);
        pieces.sort();
        let mut other = node(1, EPOCH);
        for pair in pieces.windows(2) {
            for _ in 0..2 {
                other.merge(turned[pair[0]..pair[1]].to_vec(), 1).unwrap();
            }
        }
        assert_counts(&other);
        prop_assert_eq!(table(&straight), table(&other));
        prop_assert_eq!(straight.digest().total(), other.digest().total());
    }

    #[test]
    fn counts_equal_a_recount_whatever_happens(
        steps in proptest::collection::vec((0..8u8, 0..6u8, entry()), 1..40)
    ) {
        let mut table = node(1, EPOCH);
        let lease = LeaseId::native(1);
        for (at, (step, name, mut entry)) in steps.into_iter().enumerate() {
            let now = at as u64 * 500;
            let key = key(&name.to_string());
            match step {
                0 => table.open_lease(lease, 2_000, now),
                1 => {
                    let owner = table.lease(lease).map(|_| lease);
                    let _ = table.register(key, body("service", "x"), owner, now);
                }
                2 => {
                    table.deregister(&key, now);
                }
                3 => {
                    table.adopt_lease(lease, 2_000, 0, now);
                }
                4 => table.run_until(now),
                5 => {
                    let records: Vec<_> =
                        table.records().map(|r| (r.key.clone(), r.stamp)).collect();
                    table.remove_all_expired(&records, now);
                }
                _ => {
                    entry.dot.sequence = 10_000 + at as u64;
                    table.merge(vec![entry], now).unwrap();
                }
            }
            assert_counts(&table);
        }
        let saved = postcard::to_allocvec(&table).unwrap();
        let back: Node = postcard::from_bytes(&saved).unwrap();
        assert_counts(&back);
        prop_assert_eq!(back.digest().total(), table.digest().total());
    }

    #[test]
    fn messages_survive_their_encoding(message in message()) {
        let bytes = postcard::to_allocvec(&message).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Message>(&bytes).unwrap(), message);
    }

    #[test]
    fn hostile_bytes_are_refused_or_borne(bytes in any::<Vec<u8>>()) {
        if let Ok(message) = postcard::from_bytes::<Message>(&bytes) {
            let _ = message.check();
        }
    }

    #[test]
    fn whatever_a_peer_says_nothing_breaks(
        messages in proptest::collection::vec((2..5u16, message()), 1..30)
    ) {
        let mut table = Node::new(NodeConfig { cluster: true, ..NodeConfig::new(1, EPOCH) });
        let mut replicator = Replicator::new(ReplicationConfig::default(), table.origin());
        replicator.set_members(&mut table, &[1, 2, 3, 4], 1);
        for peer in 2..5 {
            replicator.handle_connected(&mut table, peer, 1);
        }
        table.overwrite(key("1"), body("service", "1"), None, 1).unwrap();
        for (at, (peer, message)) in messages.into_iter().enumerate() {
            let now = at as u64 * 400;
            let _ = replicator.handle_message(&mut table, peer, message, now);
            replicator.handle_timeout(&mut table, now);
            while replicator.poll_transmit(&mut table).is_some() {}
            assert_counts(&table);
        }
    }
}

#[test]
fn a_message_that_breaks_a_rule_is_a_violation_and_changes_nothing() {
    let mut net = Net::new(2);
    net.put_record(1, "a");
    net.deliver();
    let origin = net.members[&1].node.origin();
    let entry = net.members[&1].node.entry(&key("a")).unwrap();
    let batch = |after, through, entries| {
        Message::Batch(Batch {
            pull: 0,
            pieces: vec![Piece {
                origin,
                after,
                through,
                entries,
            }],
            more: false,
        })
    };
    let later = Dot {
        sequence: 7,
        ..entry.dot
    };
    let moved = Entry {
        dot: later,
        ..entry.clone()
    };
    let heartbeat = |net: &mut Net| {
        let one = net.at(1);
        one.replicator.make_heartbeat(&one.node)
    };
    let mut wrong = heartbeat(&mut net);
    wrong.origin.member = 9;
    let mut own = heartbeat(&mut net);
    own.origin.member = 2;
    for (name, message) in [
        (
            "a position outside its piece",
            batch(0, 3, vec![moved.clone()]),
        ),
        (
            "positions that fall",
            batch(0, 9, vec![moved, entry.clone()]),
        ),
        ("a piece that ends before it begins", batch(5, 4, vec![])),
        (
            "a position that nobody can have reached",
            batch(0, u64::MAX, vec![]),
        ),
        ("another's name", Message::Heartbeat(wrong)),
        ("this member's name", Message::Heartbeat(own)),
    ] {
        let (before, now) = (net.members[&2].node.logs().vector().clone(), net.now);
        let two = net.at(2);
        let refused = two
            .replicator
            .handle_message(&mut two.node, 1, message, now);
        assert!(refused.is_err(), "{name}");
        assert_eq!(*two.node.logs().vector(), before, "{name}");
    }
}
