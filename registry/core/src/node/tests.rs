use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::record::{Endpoint, StoreKind};
use crate::service::Gone;

const SESSION: LeaseId = LeaseId {
    kind: crate::record::LeaseKind::Session,
    id: 0x11,
};
const OTHER: LeaseId = LeaseId {
    kind: crate::record::LeaseKind::Lease,
    id: 0x11,
};

fn key(name: &str) -> RecordKey {
    RecordKey::new(StoreKind::Zookeeper, name.as_bytes().to_vec())
}

fn body(service: &str, instance: &str) -> RecordBody {
    RecordBody {
        namespace: "shop".into(),
        service: service.into(),
        instance: instance.into(),
        value: "{}".into(),
        layout: "curator".into(),
        endpoints: vec![Endpoint {
            scheme: "http".into(),
            host: instance.into(),
            port: 80,
        }],
        ..RecordBody::default()
    }
}

/// A member with one lease of 1,000 ms, at time 0, whose first period has begun.
fn node() -> Node {
    let mut node = Node::new(NodeConfig::new(1, 1_700_000_000_000));
    node.handle_timeout(0);
    node.open_lease(SESSION, 1_000, 0);
    node
}

fn outputs(node: &mut Node) -> Vec<Output> {
    std::iter::from_fn(|| node.poll_output()).collect()
}

/// Outputs in one line each.
fn said(node: &mut Node) -> Vec<String> {
    let line = |output| match output {
        Output::LeaseSilent(id) => format!("silent {id}"),
        Output::LeaseExpired(id) => format!("expired {id}"),
        Output::LeaseReturned(id) => format!("returned {id}"),
        Output::Delta(delta) => {
            let part = |c: &Change| format!("{:?} {}", c.kind, c.record.body.instance);
            format!(
                "#{} {}",
                delta.revision.number,
                delta
                    .changes
                    .iter()
                    .map(part)
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        }
    };
    outputs(node).into_iter().map(line).collect()
}

fn health(node: &Node, name: &str) -> Option<Health> {
    node.get(&key(name)).map(|record| record.health)
}

/// Everything that is kept in two forms agrees, and what may only grow has not fallen.
fn check_whole(node: &Node) {
    let mut digest = Digest::new(node.config.digest_key);
    let mut instances: BTreeMap<ServiceName, BTreeSet<&str>> = BTreeMap::new();
    let mut registrations = 0;
    let mut dots: BTreeSet<Dot> = BTreeSet::new();
    for record in node.records() {
        digest.add(record);
        assert!(dots.insert(record.dot), "two values at {:?}", record.dot);
        if !record.body.companion {
            registrations += 1;
            instances
                .entry(record.service())
                .or_default()
                .insert(&record.body.instance);
        }
        if let Some(lease) = record.lease {
            assert!(
                node.by_lease(lease).any(|owned| owned == record),
                "{} not owned",
                record.key
            );
        }
        assert!(
            node.tombstone(&record.key).is_none(),
            "{} lives and is dead",
            record.key
        );
    }
    for tombstone in node.tombstones() {
        assert!(
            dots.insert(tombstone.dot),
            "two values at {:?}",
            tombstone.dot
        );
    }
    for (origin, _) in node.logs.vector().iter() {
        assert_eq!(node.digest.origin(origin), digest.origin(origin));
    }
    let summary = node.summary();
    assert_eq!(summary.digest, digest.total());
    assert!(node.digest.buckets().eq(digest.buckets()));
    for bucket in 0..=255 {
        assert_eq!(node.digest.parts(bucket), digest.parts(bucket));
    }
    assert_eq!(summary.services, instances.len());
    assert_eq!(
        summary.instances,
        instances.values().map(BTreeSet::len).sum::<usize>()
    );
    assert_eq!(summary.registrations, registrations);
    for info in node.services() {
        let here: Vec<&Record> = node
            .by_service(&info.name.namespace, &info.name.service)
            .collect();
        let with = |health| here.iter().filter(|record| record.health == health).count();
        assert_eq!(info.registrations, here.len());
        assert_eq!(
            info.instances,
            instances.get(&info.name).map_or(0, BTreeSet::len)
        );
        assert_eq!(
            (info.live, info.silent, info.expired, info.held),
            (
                with(Health::Live),
                with(Health::Silent),
                with(Health::Expired),
                with(Health::Held)
            )
        );
    }
    assert_eq!(node.logs.len(), dots.len());
    for (origin, head) in node.logs.vector().iter() {
        assert!(node.logs.floors().get(origin) <= head);
        for (dot, key) in node.logs.above(origin, 0) {
            assert!(dots.contains(&dot), "the log names a stale write of {key}");
            assert!(node.logs.vector().covers(dot));
        }
    }
    for id in node.leases() {
        for record in node.by_lease(id) {
            assert_eq!(record.lease, Some(id));
        }
    }
}

#[test]
fn a_record_lives_through_renewals_and_dies_by_verdict() {
    let mut node = node();
    let stamp = node
        .register(key("/a"), body("cart", "a:80"), Some(SESSION), 0)
        .unwrap();
    assert_eq!(said(&mut node), ["#1 Added a:80"]);

    // Renewed in time, again and again: nothing is said and nothing written.
    let head = node.logs.vector().clone();
    for now in (0..10_000).step_by(400) {
        node.run_until(now);
        assert_eq!(
            node.renew(SESSION, now),
            Renewed {
                known: true,
                was: LeaseState::Live
            }
        );
    }
    assert_eq!(said(&mut node), Vec::<String>::new());
    assert_eq!(node.logs.vector(), &head);
    assert_eq!(node.ttl_left(SESSION, 9_700), Some(900));

    node.run_until(10_099);
    assert_eq!(health(&node, "/a"), Some(Health::Live));
    node.run_until(10_110);
    assert_eq!(health(&node, "/a"), Some(Health::Silent));
    assert_eq!(said(&mut node), ["silent session:11"]);
    assert_eq!(
        node.renew(SESSION, 10_200),
        Renewed {
            known: true,
            was: LeaseState::Silent
        }
    );
    assert_eq!(health(&node, "/a"), Some(Health::Live));
    assert_eq!(
        node.get(&key("/a")).unwrap().stamp,
        stamp,
        "the holder makes no stamps"
    );
    assert_eq!(said(&mut node), ["returned session:11"]);

    // Nothing heard: silent, expired once, and there until somebody decides.
    node.run_until(60_000);
    assert_eq!(said(&mut node), ["silent session:11", "expired session:11"]);
    assert_eq!(health(&node, "/a"), Some(Health::Expired));
    assert_eq!(node.ttl_left(SESSION, 60_000), Some(0));
    assert!(node.remove_expired(&key("/a"), stamp, 60_000));
    assert_eq!(said(&mut node), ["#2 Expired a:80"]);
    assert_eq!(node.get(&key("/a")), None);
    let tombstone = node.tombstone(&key("/a")).unwrap();
    assert_eq!(tombstone.stamp, stamp, "an expiry keeps the client's stamp");
    assert_eq!(
        node.renew(SESSION, 60_000),
        Renewed {
            known: false,
            was: LeaseState::Over
        }
    );
    assert_eq!(node.lease(SESSION), None);
    check_whole(&node);
}

#[test]
fn a_verdict_counts_only_for_what_it_saw() {
    type Before = fn(&mut Node, Stamp);
    let cases: [(&str, Before, bool); 7] = [
        ("expired", |_, _| {}, true),
        (
            "held",
            |node, _| assert!(node.set_health(&key("/a"), Health::Held)),
            true,
        ),
        (
            "renewed since",
            |node, _| assert!(node.renew(SESSION, 2_000).known),
            false,
        ),
        (
            "written since by its owner",
            |node, _| {
                node.overwrite(key("/a"), body("cart", "a:80"), Some(SESSION), 2_000)
                    .unwrap();
            },
            false,
        ),
        (
            "taken over by another owner",
            |node, _| {
                node.open_lease(OTHER, 1_000, 2_000);
                node.register(key("/a"), body("cart", "a:80"), Some(OTHER), 2_000)
                    .unwrap();
            },
            false,
        ),
        (
            "written since, and late again",
            |node, _| {
                node.overwrite(key("/a"), body("cart", "a:80"), Some(SESSION), 2_000)
                    .unwrap();
                node.run_until(4_000);
                assert_eq!(health(node, "/a"), Some(Health::Expired));
            },
            false,
        ),
        (
            "gone already",
            |node, _| assert!(node.deregister(&key("/a"), 2_000).is_some()),
            false,
        ),
    ];
    for (name, before, removed) in cases {
        let mut node = node();
        let stamp = node
            .register(key("/a"), body("cart", "a:80"), Some(SESSION), 0)
            .unwrap();
        node.run_until(2_000);
        before(&mut node, stamp);
        assert_eq!(
            node.remove_expired(&key("/a"), stamp, 2_000),
            removed,
            "{name}"
        );
        check_whole(&node);
    }
}

#[test]
fn a_closed_lease_takes_its_records_as_one_change_and_no_other() {
    let mut node = node();
    node.open_lease(OTHER, 1_000, 0);
    for name in ["a", "b", "c"] {
        node.register(key(name), body("cart", name), Some(SESSION), 0)
            .unwrap();
    }
    // The client is back under another lease before the old one is cleaned up.
    node.register(key("b"), body("cart", "b"), Some(OTHER), 10)
        .unwrap();
    outputs(&mut node);
    let removed = node.close_lease(SESSION, 20);
    assert_eq!(
        removed.iter().map(|r| r.key.clone()).collect::<Vec<_>>(),
        [key("a"), key("c")]
    );
    assert_eq!(said(&mut node), ["#5 Removed a, Removed c"]);
    assert_eq!(health(&node, "b"), Some(Health::Live));
    assert_eq!(node.close_lease(SESSION, 30), []);
    assert_eq!(said(&mut node), Vec::<String>::new());
    check_whole(&node);
}

#[test]
fn a_renewal_is_not_a_change_and_a_rewrite_is() {
    let mut node = node();
    let first = node
        .register(key("/a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    outputs(&mut node);
    assert_eq!(
        node.register(key("/a"), body("cart", "a"), Some(SESSION), 5),
        Ok(first)
    );
    assert_eq!(said(&mut node), Vec::<String>::new());

    let revision = node.service("shop", "cart").unwrap().revision;
    let second = node
        .overwrite(key("/a"), body("cart", "a"), Some(SESSION), 5)
        .unwrap();
    assert!(second > first);
    assert_eq!(said(&mut node), ["#2 Updated a"]);
    assert_eq!(
        node.service("shop", "cart").unwrap().revision,
        revision,
        "nothing visible changed"
    );

    let mut other = body("cart", "a");
    other.value = "x".into();
    let third = node.register(key("/a"), other, Some(SESSION), 5).unwrap();
    assert!(third > second);
    assert_eq!(node.service("shop", "cart").unwrap().revision.number, 3);
    let unknown = LeaseId::native(9);
    assert_eq!(
        node.register(key("/z"), body("cart", "z"), Some(unknown), 5),
        Err(RegisterError::UnknownLease(unknown))
    );
    check_whole(&node);
}

#[test]
fn what_an_ended_lease_left_is_not_brought_back_by_a_lease_of_the_same_id() {
    let mut node = node();
    for name in ["a", "b"] {
        node.register(key(name), body("cart", name), Some(SESSION), 0)
            .unwrap();
    }
    node.run_until(2_000);
    let (a, b) = (
        node.get(&key("a")).unwrap().stamp,
        node.get(&key("b")).unwrap().stamp,
    );
    assert!(node.remove_expired(&key("a"), a, 2_000));
    assert!(node.set_health(&key("b"), Health::Held));
    assert_eq!(node.lease(SESSION).unwrap().state, LeaseState::Over);
    assert_eq!(node.ttl_left(SESSION, 2_000), None);
    assert!(!node.renew(SESSION, 2_000).known);

    node.open_lease(SESSION, 1_000, 2_000);
    assert!(node.renew(SESSION, 2_000).known);
    assert_eq!(health(&node, "b"), Some(Health::Held));
    assert_eq!(node.by_lease(SESSION).count(), 0);
    assert_eq!(node.close_lease(SESSION, 2_000), []);
    assert!(
        node.remove_expired(&key("b"), b, 2_000),
        "it can still be judged"
    );
    check_whole(&node);
}

#[test]
fn a_held_record_comes_back_with_its_owner() {
    let mut node = node();
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    node.run_until(2_000);
    assert!(node.set_health(&key("a"), Health::Held));
    assert!(!node.set_health(&key("a"), Health::Held));
    assert!(!node.set_health(&key("none"), Health::Held));
    assert_eq!(
        node.renew(SESSION, 2_500),
        Renewed {
            known: true,
            was: LeaseState::Expired
        }
    );
    assert_eq!(health(&node, "a"), Some(Health::Live));
    check_whole(&node);
}

#[test]
fn an_expired_lease_ends_with_its_last_record() {
    let mut node = node();
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    node.run_until(2_000);
    node.open_lease(OTHER, 1_000, 2_000);
    node.register(key("a"), body("cart", "a"), Some(OTHER), 2_000)
        .unwrap();
    assert_eq!(node.lease(SESSION), None);
    check_whole(&node);
}

#[test]
fn a_process_that_stood_still_expires_nobody() {
    // Gap between two timeouts, frames handled first, whether the lease expires soon after.
    for (gap, frame_first) in [
        (2_001, false),
        (60_000, false),
        (60_000, true),
        (10 << 32, false),
    ] {
        let mut node = node();
        node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
            .unwrap();
        node.handle_timeout(300);
        let woke = 300 + gap;
        if frame_first {
            node.renew(SESSION, woke);
        }
        node.handle_timeout(woke);
        assert_eq!(health(&node, "a"), Some(Health::Live), "gap {gap}");
        assert!(node.next_timeout().unwrap() > woke, "no busy loop");
        node.run_until(woke + 999);
        assert_eq!(
            health(&node, "a"),
            Some(Health::Live),
            "gap {gap}: a whole period"
        );
        // Without a sign of life after that, its time runs out as ever.
        node.run_until(woke + 2_100);
        assert_eq!(health(&node, "a"), Some(Health::Expired), "gap {gap}");
    }
    // The pause itself does not count against a lease, however long it was.
    let mut node = self::node();
    node.open_lease(OTHER, 10_000, 0);
    node.run_until(3_000);
    node.handle_timeout(63_000);
    assert_eq!(node.ttl_left(OTHER, 63_000), Some(7_000));
    node.run_until(69_000);
    assert_eq!(node.lease(OTHER).unwrap().state, LeaseState::Silent);
    node.run_until(70_010);
    assert_eq!(node.lease(OTHER).unwrap().state, LeaseState::Expired);
    // Late by less than that is only late.
    let mut node = self::node();
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    node.handle_timeout(1_999);
    assert_eq!(health(&node, "a"), Some(Health::Expired));
}

#[test]
fn time_passed_in_backwards_changes_nothing() {
    let mut node = node();
    node.run_until(5_000);
    node.open_lease(OTHER, 1_000, 4_000);
    node.handle_timeout(10);
    assert_eq!(node.ttl_left(OTHER, 10), Some(1_000));
    assert_eq!(node.lease(OTHER).unwrap().state, LeaseState::Live);
}

#[test]
fn a_lease_of_any_length_is_kept() {
    for (ttl, kept) in [(0, 1), (1, 1), (u64::MAX, crate::lease::MAX_TTL_MS)] {
        let mut node = node();
        node.open_lease(OTHER, ttl, 0);
        assert_eq!(node.lease(OTHER).unwrap().ttl_ms, kept);
        node.run_until(3_000);
        let state = node.lease(OTHER).unwrap().state;
        assert_eq!(
            state,
            if kept == 1 {
                LeaseState::Expired
            } else {
                LeaseState::Live
            }
        );
    }
    // A new timeout holds from now on, longer or shorter.
    let mut node = node();
    node.open_lease(SESSION, 60_000, 0);
    node.run_until(20_000);
    assert_eq!(node.lease(SESSION).unwrap().state, LeaseState::Live);
    node.open_lease(SESSION, 100, 20_000);
    node.run_until(20_110);
    assert_eq!(node.lease(SESSION).unwrap().state, LeaseState::Expired);
}

#[test]
fn tombstones_go_by_age_and_by_size_and_not_while_pinned() {
    let mut config = NodeConfig::new(1, 1);
    config.tombstone_age_ms = 5_000;
    config.tombstone_bytes = 3_000;
    let mut node = Node::new(config);
    node.handle_timeout(0);
    let remove = |node: &mut Node, name: &str, now| {
        node.register(key(name), body("cart", name), None, now)
            .unwrap();
        node.deregister(&key(name), now).unwrap();
    };
    remove(&mut node, "old", 0);
    remove(&mut node, "pinned", 0);
    assert!(node.pin_tombstone(&key("pinned"), true, 0));
    assert!(!node.pin_tombstone(&key("none"), true, 0));
    remove(&mut node, "back", 0);
    node.register(key("back"), body("cart", "back"), None, 0)
        .unwrap();
    node.run_until(4_999);
    assert_eq!(node.summary().tombstones, 2);
    node.run_until(5_000);
    assert_eq!(node.tombstone(&key("old")), None);
    assert!(node.tombstone(&key("pinned")).is_some());
    let floor = node.logs.floors().get(node.origin);
    assert!(floor > 0);

    for n in 0..100 {
        remove(&mut node, &format!("n{n:02}"), 6_000);
    }
    node.run_until(6_001);
    let left: Vec<String> = node.tombstones().map(|t| t.instance.clone()).collect();
    assert!((5..12).contains(&left.len()), "{left:?}");
    assert_eq!(left.last().unwrap(), "pinned");
    assert_eq!(
        left.iter().rev().nth(1).unwrap(),
        "n99",
        "the oldest go first"
    );
    assert!(node.logs.floors().get(node.origin) > floor);
    assert!(node.pin_tombstone(&key("pinned"), false, 6_001));
    node.run_until(12_000);
    assert_eq!(node.summary().tombstones, 0);
    check_whole(&node);
}

#[test]
fn a_key_comes_back_only_by_its_owner_and_is_newer_then() {
    let mut node = node();
    let first = node
        .register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    node.deregister(&key("a"), 0).unwrap();
    let tombstone = node.tombstone(&key("a")).unwrap().clone();
    assert!(tombstone.stamp > first);
    assert!(node.deregister(&key("a"), 0).is_none());
    assert!(node.renew(SESSION, 0).known);
    assert_eq!(node.get(&key("a")), None);
    let again = node
        .register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    assert!(again > tombstone.stamp);
    assert_eq!(node.tombstone(&key("a")), None);
    check_whole(&node);
}

#[test]
fn a_client_from_another_member_is_ordered_after_what_it_did_there() {
    let mut node = node();
    let there = node.clock.tick(0) + (30_000 << 16);
    assert!(node.observe_clock(there, 0));
    let stamp = node
        .register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    assert!(stamp.hlc > there);
    assert!(!node.observe_clock(u64::MAX, 0));
    // Also where the clock is behind what is known of the key.
    node.clock = Hlc::new(0);
    assert!(
        node.overwrite(key("a"), body("cart", "a"), Some(SESSION), 0)
            .unwrap()
            > stamp
    );
}

#[test]
fn a_state_read_back_gives_every_lease_its_whole_time() {
    let mut before = node();
    before.open_lease(OTHER, 8_000, 0);
    before
        .register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    before
        .register(key("b"), body("cart", "b"), Some(OTHER), 0)
        .unwrap();
    before
        .register(key("c"), body("cart", "c"), None, 0)
        .unwrap();
    before
        .register(key("d"), body("cart", "d"), None, 0)
        .unwrap();
    before.deregister(&key("d"), 0).unwrap();
    before.set_health(&key("c"), Health::Held);
    before.run_until(900);
    assert_eq!(health(&before, "a"), Some(Health::Silent));
    let last = before.get(&key("a")).unwrap().stamp;

    let bytes = postcard::to_stdvec(&before).unwrap();
    let mut node: Node = postcard::from_bytes(&bytes).unwrap();
    // The wall clock was set back and the monotonic clock starts anew.
    node.restart(5, 70);
    check_whole(&node);
    assert_eq!(node.config().incarnation, 1_700_000_000_001);
    assert_eq!(health(&node, "a"), Some(Health::Live));
    assert_eq!(
        health(&node, "c"),
        Some(Health::Held),
        "no owner to hear from"
    );
    assert_eq!(node.ttl_left(SESSION, 70), Some(1_000));
    assert!(node.tombstone(&key("d")).is_some());
    let origins: Vec<Origin> = node
        .logs
        .vector()
        .iter()
        .map(|(origin, _)| origin)
        .collect();
    assert_eq!(origins, [node.origin], "earlier lives are taken over");
    assert!(
        node.register(key("a"), body("cart", "x"), Some(SESSION), 70)
            .unwrap()
            > last
    );
    node.run_until(1_200);
    outputs(&mut node);
    assert_eq!(health(&node, "a"), Some(Health::Expired));
    assert_eq!(health(&node, "b"), Some(Health::Live));
    check_whole(&node);
    // A state under 1,000 restarts is no larger than under one.
    let size = postcard::to_stdvec(&node).unwrap().len();
    for n in 0..1_000 {
        node.restart(0, n);
    }
    assert!(postcard::to_stdvec(&node).unwrap().len() < size + 200);
    check_whole(&node);
}

#[test]
fn a_damaged_state_is_refused() {
    let mut node = node();
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    let good = postcard::to_stdvec(&node).unwrap();
    assert!(postcard::from_bytes::<Node>(&good).is_ok());
    assert!(postcard::from_bytes::<Node>(&good[..good.len() / 2]).is_err());
    let mut ownerless = node.clone();
    ownerless.leases = Leases::default();
    let bytes = postcard::to_stdvec(&ownerless).unwrap();
    assert!(postcard::from_bytes::<Node>(&bytes).is_err());
}

#[test]
fn a_subscriber_is_told_what_it_lacks() {
    let mut node = node();
    let life = node.config().incarnation;
    let at = |number| Revision {
        incarnation: life,
        number,
    };
    let full = |node: &Node, since| match node.catch_up("shop", "cart", since) {
        CatchUp::Full { revision, records } => (revision.number, records.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(full(&node, None), (0, 0));
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    node.register(key("b"), body("cart", "b"), Some(SESSION), 0)
        .unwrap();
    node.register(key("z"), body("till", "z"), Some(SESSION), 0)
        .unwrap();
    assert_eq!(full(&node, None), (2, 2));
    // Another service's change wakes nobody here.
    assert_eq!(
        node.catch_up("shop", "cart", Some(at(2))),
        CatchUp::Current { revision: at(2) }
    );
    // Marks of another life, or not given out yet.
    assert_eq!(
        full(
            &node,
            Some(Revision {
                incarnation: life - 1,
                number: 2
            })
        ),
        (2, 2)
    );
    assert_eq!(full(&node, Some(at(99))), (2, 2));

    node.register(key("a"), body("cart", "a2"), Some(SESSION), 0)
        .unwrap();
    node.deregister(&key("b"), 0).unwrap();
    let CatchUp::Delta {
        revision,
        changed,
        removed,
    } = node.catch_up("shop", "cart", Some(at(2)))
    else {
        panic!("not a delta");
    };
    assert_eq!(revision, at(5));
    assert_eq!(changed, [node.get(&key("a")).unwrap().clone()]);
    let gone = |name: &str| Gone {
        key: key(name),
        instance: name.into(),
        explicit: true,
    };
    assert_eq!(removed, [gone("a"), gone("b")]);

    // More than is remembered: everything, and no more than is remembered is kept.
    for n in 0..1_000 {
        node.register(
            key(&format!("n{}", n % 7)),
            body("cart", &n.to_string()),
            None,
            0,
        )
        .unwrap();
    }
    assert_eq!(full(&node, Some(at(5))).1, 8);
    // A record that moves to another service is gone from the first.
    let mark = node.revision();
    node.register(key("a"), body("till", "a2"), Some(SESSION), 0)
        .unwrap();
    match node.catch_up("shop", "cart", Some(mark)) {
        CatchUp::Delta {
            changed, removed, ..
        } => {
            assert_eq!((changed.len(), removed.len()), (0, 1));
        }
        other => panic!("{other:?}"),
    }
    check_whole(&node);
}

#[test]
fn a_subscriber_is_told_whether_an_owner_or_a_verdict_removed() {
    let mut node = node();
    node.register(key("a"), body("cart", "a"), Some(SESSION), 0)
        .unwrap();
    let mark = node.revision();
    let told = |node: &Node| match node.catch_up("shop", "cart", Some(mark)) {
        CatchUp::Delta { removed, .. } => removed.iter().map(|gone| gone.explicit).collect(),
        other => panic!("{other:?}"),
    };
    node.run_until(2_000);
    let stamp = node.get(&key("a")).unwrap().stamp;
    assert!(node.remove_expired(&key("a"), stamp, 2_000));
    assert_eq!(told(&node), [false]);
    // What became of it last counts.
    node.register(key("a"), body("cart", "a"), None, 2_000)
        .unwrap();
    node.deregister(&key("a"), 2_000).unwrap();
    let explicit: Vec<bool> = told(&node);
    assert_eq!(explicit, [true]);
}

#[test]
fn the_subscribers_of_a_service_that_is_forgotten_are_told_that_it_is_empty() {
    let mut config = NodeConfig::new(1, 1);
    config.empty_services = 2;
    let mut node = Node::new(config);
    let mut marks = Vec::new();
    for service in ["a", "b", "c", "d"] {
        node.register(key(service), body(service, "i"), None, 0)
            .unwrap();
        marks.push((service, node.revision()));
    }
    for service in ["a", "b", "c", "d"] {
        node.deregister(&key(service), 0).unwrap();
    }
    for (service, mark) in marks {
        let revision = match node.catch_up("shop", service, Some(mark)) {
            CatchUp::Full { revision, records } if records.is_empty() => revision,
            CatchUp::Delta {
                revision,
                changed,
                removed,
            } if changed.is_empty() => {
                assert_eq!(removed.len(), 1);
                revision
            }
            other => panic!("{service}: {other:?}"),
        };
        assert!(revision > mark);
        let again = node.catch_up("shop", service, Some(revision));
        assert_eq!(again, CatchUp::Current { revision }, "{service}: told once");
        // The mark still holds when the service is born again.
        node.register(key("again"), body(service, "j"), None, 0)
            .unwrap();
        match node.catch_up("shop", service, Some(revision)) {
            CatchUp::Delta {
                changed, removed, ..
            } => {
                assert_eq!((changed.len(), removed.len()), (1, 0), "{service}");
            }
            other => panic!("{service}: {other:?}"),
        }
        node.deregister(&key("again"), 0).unwrap();
    }
    assert_eq!(node.services().count(), 0);
}

#[test]
fn a_companion_does_not_hide_that_a_forgotten_service_lost_its_instances() {
    let mut config = NodeConfig::new(1, 1);
    config.empty_services = 0;
    let mut node = Node::new(config);
    node.register(key("a"), body("cart", "a"), None, 0).unwrap();
    let mark = node.revision();
    node.deregister(&key("a"), 0).unwrap();
    let companion = RecordBody {
        companion: true,
        ..body("cart", "rules")
    };
    node.register(key("rules"), companion, None, 0).unwrap();
    match node.catch_up("shop", "cart", Some(mark)) {
        CatchUp::Full { records, .. } => assert_eq!(records, []),
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_records_have_equal_digests_and_any_difference_shows() {
    let record = |name: &str, hlc, sub| {
        let mut node = node();
        node.register(key(name), body("cart", "a"), None, 0)
            .unwrap();
        let record = node.get(&key(name)).unwrap().clone();
        Record {
            stamp: Stamp {
                hlc,
                ..record.stamp
            },
            sub,
            ..record
        }
    };
    let of = |key, records: &[Record]| {
        let mut digest = Digest::new(key);
        records.iter().for_each(|record| digest.add(record));
        digest.total()
    };
    let (a, b) = (record("a", 1, 0), record("b", 1, 0));
    let whole = of((0, 0), &[a.clone(), b.clone()]);
    assert_eq!(whole, of((0, 0), &[b.clone(), a.clone()]));
    assert_ne!(whole, of((1, 0), &[a.clone(), b.clone()]));
    for other in [record("a", 2, 0), record("a", 1, 1), record("c", 1, 0)] {
        assert_ne!(whole, of((0, 0), &[other, b.clone()]));
    }
}

#[test]
fn a_hundred_thousand_renewals_leave_no_timers_behind() {
    let mut node = node();
    for n in 0..100_000u64 {
        node.renew(SESSION, n / 100);
    }
    node.handle_timeout(1_000);
    // One entry, at the true time of the next change.
    assert_eq!(node.leases.next_due(), Some(1_500));
}

#[derive(Clone, Debug)]
enum Op {
    Open(i64, u64),
    Renew(i64),
    Close(i64),
    Register {
        key: u8,
        service: u8,
        instance: u8,
        lease: Option<i64>,
        companion: bool,
        value: u8,
    },
    Overwrite {
        key: u8,
        lease: Option<i64>,
    },
    Deregister(u8),
    Judge(bool),
    Pass(u64),
    Pin(u8, bool),
    Restart,
    Subscribe(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let lease = 0..4i64;
    let owner = proptest::option::weighted(0.8, 0..4i64);
    prop_oneof![
        2 => (lease.clone(), 1..5_000u64).prop_map(|(id, ttl)| Op::Open(id, ttl)),
        3 => lease.clone().prop_map(Op::Renew),
        1 => lease.prop_map(Op::Close),
        8 => (0..12u8, 0..3u8, 0..4u8, owner.clone(), proptest::bool::weighted(0.15), 0..2u8).prop_map(
            |(key, service, instance, lease, companion, value)| {
                Op::Register { key, service, instance, lease, companion, value }
            }
        ),
        2 => (0..12u8, owner).prop_map(|(key, lease)| Op::Overwrite { key, lease }),
        2 => (0..12u8).prop_map(Op::Deregister),
        2 => any::<bool>().prop_map(Op::Judge),
        6 => prop_oneof![0..300u64, 0..3_000u64].prop_map(Op::Pass),
        1 => (0..12u8, any::<bool>()).prop_map(|(key, pinned)| Op::Pin(key, pinned)),
        1 => Just(Op::Restart),
        4 => (0..3u8).prop_map(Op::Subscribe),
    ]
}

/// What a subscriber believes, fed by `catch_up` alone.
#[derive(Default)]
struct Subscriber {
    since: Option<Revision>,
    seen: BTreeMap<RecordKey, Arc<RecordBody>>,
}

impl Subscriber {
    fn ask(&mut self, node: &Node, service: &str) {
        let revision = match node.catch_up("shop", service, self.since) {
            CatchUp::Current { revision } => revision,
            CatchUp::Full { revision, records } => {
                self.seen = records.into_iter().map(|r| (r.key, r.body)).collect();
                revision
            }
            CatchUp::Delta {
                revision,
                changed,
                removed,
            } => {
                for gone in removed {
                    self.seen.remove(&gone.key);
                }
                self.seen
                    .extend(changed.into_iter().map(|r| (r.key, r.body)));
                revision
            }
        };
        if let Some(since) = self.since {
            assert!(revision >= since, "{service}: {revision:?} after {since:?}");
        }
        self.since = Some(revision);
        let truth = node
            .by_service("shop", service)
            .map(|r| (r.key.clone(), r.body.clone()));
        assert_eq!(self.seen, truth.collect(), "{service}");
    }
}

/// Runs the operations; returns everything that was said.
fn run(ops: &[Op]) -> Vec<Output> {
    let mut config = NodeConfig::new(3, 1_000_000);
    config.history = 4;
    config.empty_services = 1;
    config.tombstone_age_ms = 4_000;
    config.tombstone_bytes = 1_500;
    let mut node = Node::new(config);
    node.handle_timeout(0);
    let (mut now, mut all) = (0, Vec::new());
    let mut subscribers: [Subscriber; 3] = Default::default();
    let services = ["s0", "s1", "s2"];
    let mut versions: BTreeMap<RecordKey, Version> = BTreeMap::new();
    // Rebuilt from the deltas alone.
    let mut mirror: BTreeMap<RecordKey, Arc<RecordBody>> = BTreeMap::new();
    let name = |n: u8| key(&format!("k{n}"));
    for op in ops {
        let before = node.summary().records;
        match op.clone() {
            Op::Open(id, ttl) => node.open_lease(LeaseId::lease(id), ttl, now),
            Op::Renew(id) => {
                let id = LeaseId::lease(id);
                let renewed = node.renew(id, now);
                assert_eq!(
                    renewed.known,
                    node.lease(id).is_some_and(|l| l.state == LeaseState::Live)
                );
                if renewed.known {
                    assert!(
                        node.by_lease(id)
                            .all(|r| r.health == Health::Live || r.lease != Some(id))
                    );
                }
            }
            Op::Close(id) => {
                let owned = node.by_lease(LeaseId::lease(id)).count();
                assert_eq!(node.close_lease(LeaseId::lease(id), now).len(), owned);
                assert_eq!(node.summary().records, before - owned);
            }
            Op::Register {
                key,
                service,
                instance,
                lease,
                companion,
                value,
            } => {
                let mut body = body(services[usize::from(service)], &instance.to_string());
                (body.companion, body.value) = (companion, vec![value].into());
                let lease = lease.map(LeaseId::lease);
                let open = lease
                    .is_none_or(|id| node.lease(id).is_some_and(|l| l.state != LeaseState::Over));
                let done = node.register(name(key), body, lease, now);
                assert_eq!(done.is_ok(), open);
                if open {
                    assert_eq!(health(&node, &format!("k{key}")), Some(Health::Live));
                }
            }
            Op::Overwrite { key, lease } => {
                let _ = node.overwrite(
                    name(key),
                    body("s0", "same"),
                    lease.map(LeaseId::lease),
                    now,
                );
            }
            Op::Deregister(key) => {
                node.deregister(&name(key), now);
                assert_eq!(node.get(&name(key)), None);
            }
            Op::Judge(remove) => {
                let late = |r: &&Record| matches!(r.health, Health::Expired | Health::Held);
                let judged: Vec<(RecordKey, Stamp)> = node
                    .records()
                    .filter(late)
                    .map(|r| (r.key.clone(), r.stamp))
                    .collect();
                if remove {
                    assert_eq!(node.remove_all_expired(&judged, now).len(), judged.len());
                } else {
                    for (key, _) in &judged {
                        node.set_health(key, Health::Held);
                    }
                    assert_eq!(node.summary().records, before);
                }
            }
            Op::Pass(ms) => {
                now += ms;
                node.run_until(now);
                assert_eq!(node.summary().records, before, "time alone removes nothing");
            }
            Op::Pin(key, pinned) => {
                node.pin_tombstone(&name(key), pinned, now);
            }
            Op::Restart => {
                let bytes = postcard::to_stdvec(&node).unwrap();
                let unsaid = std::mem::take(&mut node.outputs);
                node = postcard::from_bytes(&bytes).unwrap();
                node.outputs = unsaid;
                now /= 2;
                node.restart(0, now);
                assert_eq!(node.summary().records, before);
            }
            Op::Subscribe(n) => {
                let n = usize::from(n);
                subscribers[n].ask(&node, services[n]);
            }
        }
        check_whole(&node);
        for (key, version) in node
            .records()
            .map(|r| (&r.key, r.version()))
            .chain(node.tombstones().map(|t| (&t.key, t.version())))
        {
            let known = versions.entry(key.clone()).or_default();
            assert_eq!(known.join(version), version, "{key} fell back");
            *known = version;
        }
        for output in outputs(&mut node) {
            if let Output::Delta(delta) = &output {
                for change in &delta.changes {
                    let key = change.record.key.clone();
                    match change.is_removal() {
                        true => mirror.remove(&key),
                        false => mirror.insert(key, change.record.body.clone()),
                    };
                }
            }
            all.push(output);
        }
        let truth = node.records().map(|r| (r.key.clone(), r.body.clone()));
        assert_eq!(mirror, truth.collect(), "the deltas tell all");
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_node_stays_whole_and_is_repeatable(
        ops in proptest::collection::vec(op(), 1..120)
    ) {
        prop_assert_eq!(run(&ops), run(&ops));
    }
}
