use super::*;

#[test]
fn what_is_written_at_one_member_is_on_all_in_one_step_and_acknowledged() {
    let mut net = Net::new(3);
    net.register(1, "a", 1, 60_000);
    let at = net.members[&1]
        .node
        .logs()
        .vector()
        .get(net.members[&1].node.origin());
    assert_eq!(net.members[&1].replicator.stored_by(at), 0);
    net.deliver();
    for id in 1..=3 {
        assert_eq!(net.get(id, "a").unwrap().body.instance, "a", "member {id}");
    }
    assert_eq!(net.members[&1].replicator.stored_by(at), 2);
    let now = net.now;
    net.at(2).node.deregister(&key("a"), now);
    net.deliver();
    for id in 1..=3 {
        assert_eq!(net.get(id, "a"), None, "member {id}");
    }
    net.assert_equal();
}

#[test]
fn a_change_reaches_members_that_its_writer_cannot() {
    let mut net = Net::new(3);
    net.disconnect(1, 3);
    net.put_record(1, "a");
    net.run(2_000);
    assert!(net.get(3, "a").is_some(), "through member 2");
    net.assert_equal();
}

#[test]
fn what_a_member_wrote_before_it_died_still_gets_around() {
    let mut net = Net::new(3);
    net.cut.insert((1, 3));
    net.put_record(1, "a");
    net.deliver();
    net.at(1).stopped = true;
    net.run(6_000);
    assert!(net.get(3, "a").is_some());
    net.assert_equal();
}

#[test]
fn lost_messages_are_sent_again() {
    let mut net = Net::new(2);
    net.split(&[1], &[2]);
    for name in ["a", "b", "c"] {
        net.put_record(1, name);
        net.put_record(2, &format!("{name}{name}"));
    }
    net.run(1_500);
    assert_eq!(net.get(2, "a"), None);
    net.heal();
    net.run(3_000);
    net.assert_equal();
    assert_eq!(net.members[&1].node.records().count(), 6);
}

#[test]
fn a_piece_with_a_gap_before_it_is_not_taken() {
    // A reset that was cut short, then a newer state from elsewhere: never accepted beyond an incomplete prefix.
    let mut net = Net::new(2);
    net.put_record(1, "a");
    net.deliver();
    net.split(&[1], &[2]);
    net.put_record(1, "b");
    net.put_record(1, "c");
    let (origin, now) = (net.members[&1].node.origin(), net.now);
    let entry = net.members[&1].node.entry(&key("c")).unwrap();
    let piece = message::Piece {
        origin,
        after: 2,
        through: 3,
        entries: vec![entry],
    };
    let batch = Message::Batch(message::Batch {
        pull: 0,
        pieces: vec![piece],
        more: false,
    });
    let two = net.at(2);
    two.replicator
        .handle_message(&mut two.node, 1, batch, now)
        .unwrap();
    assert_eq!(net.get(2, "c"), None);
    assert_eq!(net.members[&2].node.logs().vector().get(origin), 1);
    net.heal();
    net.run(4_000);
    net.assert_equal();
}

#[test]
fn a_slow_peer_costs_a_cursor_and_gets_the_newest_state_alone() {
    let mut net = Net::new(2);
    net.split(&[1], &[2]);
    net.put_record(1, "first");
    for round in 0..1_000 {
        let now = net.now;
        let mut value = body("service", "hot");
        value.value = vec![0; 4_096 + round].into();
        let node = &mut net.at(1).node;
        node.overwrite(key("hot"), value, None, now).unwrap();
        net.deliver();
    }
    // One window of batches is on its way at most, whatever was written.
    let window = net.config.window_bytes + net.config.batch_bytes;
    assert!(net.sent[&1] < window + 64 * 1_024, "{}", net.sent[&1]);
    net.heal();
    net.sent.clear();
    net.run(4_000);
    net.assert_equal();
    assert_eq!(net.get(2, "hot").unwrap().body.value.len(), 4_096 + 999);
    assert!(
        net.sent[&1] < 3 * 4_096 + 16_384,
        "superseded values are not sent: {}",
        net.sent[&1]
    );
}

#[test]
fn a_large_log_does_not_starve_a_small_one() {
    let mut net = Net::new(3);
    net.at(3).stopped = true;
    for name in 0..400 {
        let now = net.now;
        let mut value = body("service", &format!("big{name}"));
        value.value = vec![7; 8_192].into();
        let node = &mut net.at(1).node;
        node.overwrite(key(&format!("big{name}")), value, None, now)
            .unwrap();
    }
    net.deliver();
    net.put_record(2, "small");
    net.deliver();
    // Member 3 asks member 2 for both logs at once.
    let two = &net.members[&2];
    let origins = [net.members[&1].node.origin(), two.node.origin()];
    let pull = Message::Pull(message::Pull {
        id: 9,
        after: origins.iter().map(|origin| (*origin, 0)).collect(),
    });
    let now = net.now;
    let two = net.at(2);
    while two.replicator.poll_transmit_to(&mut two.node, 3).is_some() {}
    two.replicator
        .handle_message(&mut two.node, 3, pull, now)
        .unwrap();
    let Some(Message::Batch(batch)) = two.replicator.poll_transmit_to(&mut two.node, 3) else {
        panic!("no answer");
    };
    assert!(batch.more);
    let small = batch.pieces.iter().find(|piece| piece.origin.member == 2);
    assert_eq!(small.unwrap().entries.len(), 1);
    let big = batch.pieces.iter().find(|piece| piece.origin.member == 1);
    let bytes: usize = big.unwrap().entries.iter().map(stream::size).sum();
    assert!(bytes > 200 << 10 && bytes <= 256 << 10, "{bytes}");
}

#[test]
fn at_rest_members_say_the_same_amount_whatever_they_hold() {
    let mut sizes = Vec::new();
    for count in [10, 3_000] {
        let mut net = Net::new(3);
        for name in 0..count {
            net.put_record(1 + name % 3, &format!("instance-{name}"));
        }
        net.run(10_000);
        net.assert_equal();
        net.sent.clear();
        net.run(10_000);
        sizes.push(net.sent.values().sum::<usize>());
        // Three members, each to two others, in ten seconds.
        assert!(sizes[0] < 3 * 10 * 2 * 250, "{sizes:?}");
    }
    // Counts and positions are longer numbers, and that is all.
    assert!(sizes[1] < sizes[0] + sizes[0] / 10, "{sizes:?}");
}

#[test]
fn a_client_that_moved_is_not_touched_by_its_former_holder() {
    let mut net = Net::new(3);
    let stamp = net.register(1, "a", 7, 2_000);
    net.deliver();
    // The client is gone from member 1, and comes to member 2 with what it was given.
    net.split(&[1], &[2, 3]);
    net.run(1_200);
    let now = net.now;
    let moved = net
        .at(2)
        .node
        .adopt_lease(LeaseId::native(7), 2_000, stamp.hlc, now);
    assert_eq!(moved, 1);
    for _ in 0..20 {
        net.run(500);
        assert!(net.renew(2, 7));
    }
    // Member 1 has seen its lease run out, and a verdict is carried out there at the stamp that it saw.
    let now = net.now;
    let late = net.get(1, "a").unwrap();
    assert_eq!(late.health, crate::Health::Expired);
    net.at(1).node.protect(false);
    assert!(net.at(1).node.remove_expired(&key("a"), late.stamp, now));
    net.heal();
    for _ in 0..8 {
        net.run(500);
        assert!(net.renew(2, 7));
    }
    for id in 1..=3 {
        let record = net.get(id, "a").unwrap();
        assert_eq!(
            (record.dot.origin.member, record.health),
            (2, crate::Health::Live)
        );
    }
    net.assert_equal();
    assert!(!net.renew(1, 7), "the lease is not there any more");
}

#[test]
fn a_holder_learns_that_its_client_moved_and_keeps_no_lease_of_it() {
    let mut net = Net::new(2);
    let stamp = net.register(1, "a", 7, 10_000);
    net.register(1, "b", 7, 10_000);
    net.deliver();
    let now = net.now;
    net.at(2)
        .node
        .adopt_lease(LeaseId::native(7), 10_000, stamp.hlc, now);
    net.deliver();
    let one = &mut net.at(1).node;
    assert_eq!(one.lease(LeaseId::native(7)), None);
    assert_eq!(one.summary().leases, 0);
    assert!(
        one.close_lease(LeaseId::native(7), now).is_empty(),
        "a late clean-up"
    );
    assert_eq!(one.by_lease(LeaseId::native(7)).count(), 2);
    assert_eq!(
        net.members[&2]
            .node
            .lease(LeaseId::native(7))
            .unwrap()
            .records,
        2
    );
    net.run(2_000);
    net.assert_equal();
    // And back again.
    let now = net.now;
    net.at(1)
        .node
        .adopt_lease(LeaseId::native(7), 10_000, stamp.hlc, now);
    net.deliver();
    assert_eq!(net.members[&2].node.summary().leases, 0);
    assert_eq!(net.get(2, "a").unwrap().dot.origin.member, 1);
}

#[test]
fn a_late_update_does_not_undo_a_removal_and_the_later_status_wins() {
    let mut net = Net::new(3);
    net.put_record(1, "a");
    net.deliver();
    // The update is written first and arrives last.
    net.cut.insert((1, 3));
    net.cut.insert((1, 2));
    net.put_record(1, "a");
    net.deliver();
    net.run(100);
    let now = net.now;
    net.at(2).node.deregister(&key("a"), now);
    net.deliver();
    net.heal();
    net.run(4_000);
    for id in 1..=3 {
        assert_eq!(net.get(id, "a"), None, "member {id}");
    }
    net.assert_equal();
}

#[test]
fn only_the_holder_marks_and_its_marks_reach_everybody() {
    let mut net = Net::new(3);
    net.register(1, "a", 7, 4_000);
    net.run(3_000);
    let stamp = net.get(1, "a").unwrap().stamp;
    for id in 1..=3 {
        let record = net.get(id, "a").unwrap();
        assert_eq!((record.health, record.sub), (crate::Health::Silent, 1));
        assert_eq!(record.stamp, stamp);
    }
    assert_eq!(net.said(2, &ReplicationOutput::Marked(vec![key("a")])), 1);
    // A record that only changes its health is no change for subscribers.
    let deltas = |net: &Net| {
        let changes = &net.members[&2].changes;
        changes
            .iter()
            .filter(|c| matches!(c, Output::Delta(_)))
            .count()
    };
    assert_eq!(deltas(&net), 1);
    let now = net.now;
    let two = &mut net.at(2).node;
    assert!(
        !two.set_health(&key("a"), crate::Health::Live),
        "not held here"
    );
    assert!(!two.remove_expired(&key("a"), stamp, now));
    net.run(2_000);
    assert_eq!(net.get(3, "a").unwrap().health, crate::Health::Expired);
    let now = net.now;
    assert!(!net.at(3).node.remove_expired(&key("a"), stamp, now));
    assert!(net.at(1).node.remove_expired(&key("a"), stamp, now));
    net.deliver();
    net.assert_equal();
    assert_eq!(net.get(3, "a"), None);
}
