use super::*;

#[test]
fn a_member_that_restarts_takes_over_what_it_had_written() {
    let mut net = Net::new(3);
    net.register(1, "a", 1, 5_000);
    net.register(1, "b", 2, 5_000);
    net.deliver();
    // Its folder is older than its last writes.
    let old = postcard::to_allocvec(&net.members[&1].node).unwrap();
    net.register(1, "c", 3, 5_000);
    let now = net.now;
    net.at(1).node.deregister(&key("b"), now);
    net.deliver();
    let first = net.members[&1].node.origin();
    let mut node: Node = postcard::from_bytes(&old).unwrap();
    node.restart(EPOCH + net.now, net.now);
    net.put(1, node);
    net.rejoin(1);
    net.run(4_000);
    net.assert_equal();
    let second = net.members[&1].node.origin();
    assert!(second.incarnation > first.incarnation);
    assert_eq!(net.get(2, "b"), None, "what was removed stays removed");
    assert_eq!(net.get(2, "c").unwrap().dot.origin, second);
    // What nobody comes back for runs out like everything else.
    net.run(5_000);
    assert_eq!(net.get(2, "c").unwrap().health, crate::Health::Expired);
    // And the first life is forgotten everywhere.
    for id in 1..=3 {
        let logs = net.members[&id].node.logs();
        assert!(logs.is_past(first), "member {id}");
        assert_eq!(logs.vector().get(first), 0);
        assert_eq!(net.said(id, &ReplicationOutput::OriginPast(first)), 1);
    }
}

#[test]
fn a_member_with_an_empty_folder_gets_its_orphans_back_and_lets_them_expire() {
    let mut net = Net::new(3);
    net.register(1, "phantom", 1, 5_000);
    net.register(1, "alive", 2, 5_000);
    net.deliver();
    net.start(1, EPOCH);
    net.rejoin(1);
    net.run(3_000);
    for id in 1..=3 {
        assert!(net.get(id, "phantom").is_some(), "member {id}");
    }
    // One client comes back.
    net.register(1, "alive", 2, 5_000);
    for _ in 0..6 {
        net.run(1_000);
        assert!(net.renew(1, 2));
    }
    let phantom = net.get(3, "phantom").unwrap();
    assert_eq!(phantom.health, crate::Health::Expired);
    assert_eq!(phantom.dot.origin, net.members[&1].node.origin());
    let now = net.now;
    assert!(
        net.at(1)
            .node
            .remove_expired(&key("phantom"), phantom.stamp, now)
    );
    net.run(2_000);
    net.assert_equal();
    assert_eq!(net.get(2, "phantom"), None);
    assert_eq!(net.get(2, "alive").unwrap().health, crate::Health::Live);
}

#[test]
fn the_newer_life_replaces_the_old_one_at_once() {
    let mut net = Net::new(2);
    net.put_record(1, "a");
    net.deliver();
    let first = net.members[&1].node.origin();
    net.start(1, EPOCH);
    net.rejoin(1);
    net.run(100);
    let two = &net.members[&2];
    let present = net.members[&1].node.origin();
    assert_eq!(
        two.replicator.origin_status(&two.node, present),
        OriginStatus::Active
    );
    assert_ne!(
        two.replicator.origin_status(&two.node, first),
        OriginStatus::Active
    );
}

#[test]
fn ten_thousand_restarts_leave_what_one_leaves() {
    let mut net = Net::new(3);
    net.put_record(2, "a");
    net.run(1_000);
    // Member 3 is away all the time, so that nobody can say that it has seen a life.
    net.at(3).stopped = true;
    for _ in 0..10_000 {
        net.restart(1, EPOCH);
        net.rejoin(1);
        net.put_record(1, "b");
        net.run(300);
    }
    for id in [1, 2] {
        let logs = net.members[&id].node.logs();
        assert!(logs.vector().iter().count() <= 10, "member {id}");
        assert!(logs.past().len() <= 3);
        assert_eq!(logs.len(), 2);
    }
    net.at(3).stopped = false;
    net.run(40_000);
    net.assert_equal();
}

#[test]
fn a_clock_set_back_is_outdone_by_what_the_peers_remember() {
    let mut net = Net::new(3);
    net.put_record(1, "before");
    net.run(1_000);
    let first = net.members[&1].node.origin();
    // The machine comes back a year ago, with an empty folder.
    net.start(1, EPOCH - 365 * 24 * 3_600_000);
    net.put_record(1, "after");
    net.rejoin(1);
    net.run(8_000);
    let second = net.members[&1].node.origin();
    assert!(second.incarnation > first.incarnation);
    assert_eq!(net.said(1, &ReplicationOutput::Renewed(second)), 1);
    for id in 1..=3 {
        assert!(net.get(id, "before").is_some(), "member {id}");
        assert!(net.get(id, "after").is_some(), "member {id}");
    }
    net.assert_equal();
    let behind =
        |output: &ReplicationOutput| matches!(output, ReplicationOutput::ClockBehind { .. });
    assert!(net.members[&1].said.iter().any(behind), "an alarm");
    // An action on a record that carries a later stamp is after it, whatever the clock says.
    let now = net.now;
    net.at(1).node.deregister(&key("before"), now);
    net.run(2_000);
    assert_eq!(net.get(2, "before"), None);
}

#[test]
fn a_forgotten_member_that_comes_back_renews_and_keeps_what_it_holds() {
    let mut net = Net::new(4);
    net.register(4, "held", 1, 3_600_000);
    net.put_record(4, "gone");
    net.deliver();
    net.split(&[4], &[1, 2, 3]);
    for id in 1..=3 {
        net.detect(id, 4, Detected::Down);
    }
    net.run(20_000);
    let first = net.members[&4].node.origin();
    for id in 1..=3 {
        net.list(id, &[1, 2, 3]);
    }
    net.run(60_000);
    // Nothing of it was removed: the first member holds it now.
    for id in 1..=3 {
        let record = net.get(id, "held").unwrap();
        assert_eq!(record.dot.origin.member, 1, "member {id}");
        assert!(net.members[&id].node.logs().is_past(first));
    }
    let now = net.now;
    net.at(2).node.deregister(&key("gone"), now);
    net.run(1_000);
    net.heal();
    for id in 1..=3 {
        net.connect(id, 4);
    }
    net.run(10_000);
    let second = net.members[&4].node.origin();
    assert!(second.incarnation > first.incarnation);
    assert!(
        net.members[&4]
            .said
            .iter()
            .any(|o| matches!(o, ReplicationOutput::Forgotten { .. }))
    );
    for id in 1..=4 {
        assert_eq!(net.get(id, "gone"), None, "member {id}");
        assert!(net.get(id, "held").is_some(), "member {id}");
    }
    net.assert_equal();
}

#[test]
fn two_living_processes_with_one_id_are_found_and_one_is_refused() {
    let mut net = Net::new(3);
    // A second process with the id 3 and a later incarnation speaks to member 1 alone.
    let mut other = node(3, EPOCH + net.now + 5_000);
    other.restart(EPOCH + net.now + 5_000, net.now);
    let mut second = Replicator::new(net.config.clone(), other.origin());
    second.set_members(&mut other, &[1, 2, 3], net.now);
    second.handle_connected(&mut other, 1, net.now);
    let refused = net.members[&3].node.origin().incarnation;
    for _ in 0..200 {
        let now = net.now;
        second.handle_timeout(&mut other, now);
        while let Some((_, message)) = second.poll_transmit(&mut other) {
            let one = net.at(1);
            one.replicator
                .handle_message(&mut one.node, 3, message, now)
                .unwrap();
        }
        net.run(100);
    }
    let duplicate = ReplicationOutput::DuplicateMember { member: 3, refused };
    assert_eq!(net.said(1, &duplicate), 1, "an alarm where both are heard");
    assert_eq!(net.said(3, &duplicate), 1, "and one of them has to stop");
    let three = net.at(3);
    assert_eq!(three.replicator.poll_transmit(&mut three.node), None);
}

#[test]
fn two_writes_at_one_position_are_refused() {
    let mut net = Net::new(2);
    net.put_record(1, "a");
    net.deliver();
    let now = net.now;
    let mut forged = net.members[&1].node.entry(&key("a")).unwrap();
    forged.key = key("b");
    let dot = forged.dot;
    let before = net.digest(2);
    assert_eq!(net.at(2).node.merge(vec![forged], now), Err(dot));
    assert_eq!(net.digest(2), before);
}
