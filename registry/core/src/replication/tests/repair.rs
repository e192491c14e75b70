use super::*;

/// Longer than a tombstone is kept for members that are away.
const AGES: u64 = 16 * 60_000;

fn long_config() -> ReplicationConfig {
    ReplicationConfig {
        snapshot_records: 100,
        ..ReplicationConfig::default()
    }
}

#[test]
fn a_removal_that_is_forgotten_does_not_come_back_from_who_slept_through_it() {
    // The holder of the record, another member, or one that took it over removed it: each leaves its tombstone in
    // another log.
    for remover in [1, 2] {
        let mut net = Net::new(4);
        net.put_record(1, "gone");
        net.put_record(1, "stays");
        net.deliver();
        net.split(&[4], &[1, 2, 3]);
        let now = net.now;
        net.at(remover).node.deregister(&key("gone"), now);
        net.put_record(3, "new");
        net.run(AGES);
        for id in 1..=3 {
            assert_eq!(net.members[&id].node.tombstone(&key("gone")), None);
        }
        net.put_record(4, "of the sleeper");
        assert!(net.get(4, "gone").is_some());
        net.heal();
        net.run(6_000);
        for id in 1..=4 {
            assert_eq!(net.get(id, "gone"), None, "removed by {remover}, at {id}");
            for name in ["stays", "new", "of the sleeper"] {
                assert!(net.get(id, name).is_some(), "{name} at {id}");
            }
        }
        net.assert_equal();
        let done =
            |o: &ReplicationOutput| matches!(o, ReplicationOutput::ExchangeDone { dropped: 1, .. });
        assert!(net.members[&4].said.iter().any(done));
    }
}

#[test]
fn both_sides_of_a_long_split_keep_what_is_theirs_and_lose_what_was_removed() {
    let mut net = Net::new(4);
    for name in 0..40 {
        net.put_record(1 + name % 4, &format!("old{name}"));
    }
    net.deliver();
    net.split(&[1, 2], &[3, 4]);
    for name in 0..20 {
        let (at, now) = (1 + name % 4, net.now);
        net.at(at).node.deregister(&key(&format!("old{name}")), now);
        net.put_record(at, &format!("new{name}"));
    }
    net.run(AGES);
    net.heal();
    net.run(10_000);
    net.assert_equal();
    for id in 1..=4 {
        let node = &net.members[&id].node;
        assert_eq!(node.records().count(), 40, "member {id}");
        assert!((0..20).all(|name| node.get(&key(&format!("old{name}"))).is_none()));
        assert!((0..20).all(|name| node.get(&key(&format!("new{name}"))).is_some()));
    }
}

#[test]
fn tombstones_go_when_every_member_has_seen_them_and_wait_for_one_that_is_away() {
    let mut net = Net::new(3);
    net.put_record(1, "a");
    net.put_record(2, "b");
    net.deliver();
    let now = net.now;
    net.at(1).node.deregister(&key("a"), now);
    net.run(58_000);
    let tombstones = |net: &Net| -> Vec<usize> {
        net.members
            .values()
            .map(|m| m.node.tombstones().count())
            .collect()
    };
    assert_eq!(tombstones(&net), [1, 1, 1]);
    net.run(5_000);
    assert_eq!(tombstones(&net), [0, 0, 0]);
    let logs = net.members[&2].node.logs();
    let origin = net.members[&1].node.origin();
    assert_eq!(logs.floors().get(origin), 2);
    assert!(logs.floors().get(origin) <= logs.vector().get(origin));

    net.at(3).stopped = true;
    let now = net.now;
    net.at(1).node.deregister(&key("b"), now);
    net.run(14 * 60_000);
    assert_eq!(tombstones(&net)[..2], [1, 1]);
    net.run(2 * 60_000);
    assert_eq!(tombstones(&net)[..2], [0, 0]);
    net.at(3).stopped = false;
    net.run(6_000);
    net.assert_equal();
    assert_eq!(net.get(3, "b"), None);
}

#[test]
fn tombstones_beyond_their_bytes_go_early_and_nothing_comes_back() {
    let mut net = Net::new(3);
    for name in 0..100 {
        net.put_record(1, &format!("{name}"));
    }
    net.deliver();
    net.split(&[3], &[1, 2]);
    for id in [1, 2] {
        net.at(id).node.limit_tombstones(2_000);
    }
    for name in 0..100 {
        let now = net.now;
        net.at(2).node.deregister(&key(&format!("{name}")), now);
    }
    net.run(2_000);
    assert!(net.members[&1].node.tombstones().count() < 10);
    net.heal();
    net.run(6_000);
    assert_eq!(net.members[&3].node.records().count(), 0);
    net.assert_equal();
}

#[test]
fn a_new_member_takes_the_table_over_before_it_serves() {
    let mut net = Net::new(3);
    for name in 0..3_000 {
        net.put_record(1 + name % 2, &format!("instance-{name}"));
    }
    net.run(2_000);
    net.config = long_config();
    net.start(3, EPOCH);
    // Registered here before anything was pulled, and newer than what the others have.
    net.put_record(3, "mine");
    net.put_record(3, "instance-7");
    net.rejoin(3);
    let mut ready = 0;
    for _ in 0..20_000 {
        let three = net.at(3);
        while let Some(output) = three.replicator.poll_output() {
            three.said.push(output);
        }
        if three.replicator.readiness() == Readiness::Ready {
            ready += 1;
            break;
        }
        net.run(STEP_MS);
    }
    assert_eq!(ready, 1);
    assert!(net.members[&3].node.records().count() > 3_000);
    net.run(2_000);
    net.assert_equal();
    assert_eq!(net.get(1, "instance-7").unwrap().dot.origin.member, 3);
    assert!(net.get(1, "mine").is_some());
    let done = |o: &&ReplicationOutput| matches!(o, ReplicationOutput::ExchangeDone { .. });
    assert_eq!(net.members[&3].said.iter().filter(done).count(), 1);
}

#[test]
fn the_snapshot_goes_on_from_another_member_when_its_giver_dies() {
    let mut net = Net::new(3);
    for name in 0..2_000 {
        net.put_record(1 + name % 2, &format!("instance-{name}"));
    }
    net.run(2_000);
    net.config = long_config();
    net.start(3, EPOCH);
    net.rejoin(3);
    // Messages one by one, until the table is half there.
    let mut giver = None;
    for _ in 0..5_000 {
        net.now += 1;
        let now = net.now;
        for (from, to) in [(3, 1), (3, 2), (1, 3), (2, 3)] {
            let sender = net.at(from);
            let Some(message) = sender.replicator.poll_transmit_to(&mut sender.node, to) else {
                continue;
            };
            if matches!(message, Message::SegmentReply(_)) {
                giver = Some(from);
            }
            let receiver = net.at(to);
            receiver
                .replicator
                .handle_message(&mut receiver.node, from, message, now)
                .unwrap();
        }
        if net.members[&3].node.records().count() > 1_000 {
            break;
        }
    }
    let half = net.members[&3].node.records().count();
    assert!((1_000..2_000).contains(&half), "{half}");
    let giver = giver.unwrap();
    net.at(giver).stopped = true;
    net.disconnect(giver, 3);
    let before = net.sent.clone();
    net.run(4_000);
    assert_eq!(net.members[&3].node.records().count(), 2_000);
    let other = 3 - giver;
    let whole = 2_000 * 60;
    let bytes = net.sent[&other] - before[&other];
    assert!(
        bytes < whole * 3 / 4,
        "only the segments that were left: {bytes}"
    );
    assert_eq!(net.members[&3].replicator.readiness(), Readiness::Ready);
    net.assert_equal();
}

#[test]
fn tables_that_differ_by_a_fault_are_found_and_healed() {
    // Lost where it is held, lost by one that is not the holder, and left over where it was removed.
    for fault in 0..3 {
        let mut net = Net::new(3);
        for name in 0..50 {
            net.put_record(1, &format!("{name}"));
        }
        net.run(2_000);
        let now = net.now;
        match fault {
            0 => {
                net.at(1).node.drop_removed(&[key("7")], now);
            }
            1 => {
                net.at(2).node.drop_removed(&[key("7")], now);
            }
            _ => {
                let kept = net.members[&3].node.entry(&key("7")).unwrap();
                net.at(1).node.deregister(&key("7"), now);
                net.run(1_000);
                let (dead, now) = (net.members[&3].node.tombstone(&key("7")).is_some(), net.now);
                assert!(dead);
                net.at(3).node.drop_removed(&[key("7")], now);
                net.at(3).node.merge(vec![kept], now).unwrap();
                assert!(net.get(3, "7").is_some());
            }
        }
        net.run(30_000);
        net.assert_equal();
        let count = net.members[&1].node.records().count();
        assert_eq!(count, if fault == 1 { 50 } else { 49 }, "fault {fault}");
        let alarm = |o: &ReplicationOutput| matches!(o, ReplicationOutput::DigestMismatch(_));
        let said = net.members.values().flat_map(|member| &member.said);
        assert!(said.into_iter().any(alarm), "fault {fault}");
    }
}

#[test]
fn equal_tables_are_never_compared_further() {
    let mut net = Net::new(3);
    for round in 0..200 {
        net.put_record(1 + round % 3, &format!("{}", round % 40));
        if round % 3 == 0 {
            let now = net.now;
            let name = key(&format!("{}", (round * 7) % 40));
            net.at(1 + (round / 3) % 3).node.deregister(&name, now);
        }
        net.run(700);
    }
    net.run(3_000);
    net.assert_equal();
    let repaired = |o: &ReplicationOutput| {
        matches!(
            o,
            ReplicationOutput::DigestMismatch(_) | ReplicationOutput::ExchangeDone { .. }
        )
    };
    for (id, member) in &net.members {
        assert!(!member.said.iter().any(repaired), "member {id}");
    }
}

#[test]
fn healing_a_long_split_costs_about_what_differs() {
    let mut net = Net::new(2);
    for name in 0..20_000 {
        net.put_record(1, &format!("instance-{name:05}"));
    }
    net.run(3_000);
    net.split(&[1], &[2]);
    for name in 0..100 {
        let now = net.now;
        net.at(1)
            .node
            .deregister(&key(&format!("instance-{name:05}")), now);
        net.put_record(1, &format!("new-{name}"));
    }
    net.run(AGES);
    net.sent.clear();
    net.heal();
    net.run(5_000);
    net.assert_equal();
    let bytes: usize = net.sent.values().sum();
    // 20,000 records are about 1.5 MB; the digests of 256 segments and of their parts are 256 * 256 cells.
    assert!(bytes < 1_000_000, "{bytes}");
    assert_eq!(net.members[&2].node.records().count(), 20_000);
}

#[test]
fn the_dot_rule_and_floors_are_what_keeps_the_removed_away() {
    // Each is switched off in turn. Without floors the sleeper thinks it has everything, and only the comparison of
    // digests, which is there for faults, finds that it has too much.
    for (no_dot_rule, no_floors) in [(false, false), (true, false), (false, true)] {
        let mut net = Net::unconnected(0);
        net.config.weakened = Weakened {
            no_dot_rule,
            no_floors,
        };
        for id in 1..=3 {
            net.start(id, EPOCH);
        }
        for id in 1..=3 {
            net.rejoin(id);
        }
        net.run(40_000);
        net.put_record(1, "gone");
        net.deliver();
        net.split(&[3], &[1, 2]);
        let now = net.now;
        net.at(2).node.deregister(&key("gone"), now);
        net.run(AGES);
        net.heal();
        net.run(4_000);
        let back = net.get(3, "gone").is_some();
        let fault = |o: &ReplicationOutput| matches!(o, ReplicationOutput::DigestMismatch(_));
        let said = net.members.values().flat_map(|member| &member.said);
        let faults = said.filter(|output| fault(output)).count();
        assert_eq!(back, no_dot_rule, "{no_dot_rule} {no_floors}");
        assert_eq!(
            faults > 0,
            no_dot_rule || no_floors,
            "{no_dot_rule} {no_floors}"
        );
    }
}
