use super::*;

#[test]
fn the_rule_of_members_from_one_to_nine() {
    for members in 1..=9 {
        for silent in 0..members {
            let expected = match (members, silent) {
                (_, 0) | (1, _) => false,
                (2, 1) => true,
                (_, silent) => silent >= 2,
            };
            assert_eq!(
                rule_of_members(members, silent),
                expected,
                "{silent} of {members}"
            );
        }
    }
}

#[test]
fn clusters_of_one_to_nine_enter_and_leave_protection_by_the_rule() {
    for members in 1..=9 {
        for silent in 0..members {
            let mut net = Net::new(members);
            net.register(1, "a", 1, 2_000);
            let gone: Vec<MemberId> = (2..2 + silent).collect();
            let here: Vec<MemberId> = (1..=members).filter(|id| !gone.contains(id)).collect();
            net.split(&here, &gone);
            for id in &gone {
                // They do not hear each other either.
                let others: Vec<MemberId> = gone.iter().copied().filter(|o| o != id).collect();
                net.split(&[*id], &others);
            }
            net.run(6_000);
            let expected = rule_of_members(usize::from(members), usize::from(silent));
            let label = format!("{silent} of {members}");
            assert_eq!(
                net.members[&1].replicator.is_protected(),
                expected,
                "{label}"
            );
            // The record's owner is silent for long by now; under protection no verdict is carried out.
            let now = net.now;
            let record = net.get(1, "a").unwrap();
            assert_eq!(record.health, crate::Health::Expired, "{label}");
            let removed = net.at(1).node.remove_expired(&key("a"), record.stamp, now);
            assert_eq!(removed, !expected, "{label}");
            if !expected {
                continue;
            }
            net.heal();
            net.run(3_000);
            assert!(
                net.members[&1].replicator.is_protected(),
                "{label}: too soon"
            );
            net.run(1_500);
            assert!(!net.members[&1].replicator.is_protected(), "{label}");
            // No lease is judged by what it missed while the member was protected.
            let health = net.get(1, "a").unwrap().health;
            assert_ne!(health, crate::Health::Expired, "{label}");
            assert_eq!(
                net.said(1, &ReplicationOutput::ProtectionLeft),
                1,
                "{label}"
            );
        }
    }
}

#[test]
fn a_peer_is_down_only_when_both_detectors_agree() {
    let mut net = Net::new(3);
    // The detector alone.
    net.detect(1, 2, Detected::Down);
    net.run(5_000);
    assert_eq!(net.said(1, &ReplicationOutput::PeerDown(2)), 0);
    net.detect(1, 2, Detected::Alive);
    // The heartbeat alone: one link is bad.
    net.cut.insert((2, 1));
    net.run(8_000);
    assert_eq!(net.said(1, &ReplicationOutput::PeerDown(2)), 0);
    let origin = net.members[&2].node.origin();
    let one = &net.members[&1];
    assert_eq!(
        one.replicator.origin_status(&one.node, origin),
        OriginStatus::Active
    );
    // Both.
    net.put_record(2, "a");
    net.run(2_000);
    net.detect(1, 2, Detected::Down);
    net.run(100);
    assert_eq!(net.said(1, &ReplicationOutput::PeerDown(2)), 1);
    assert_eq!(net.said(1, &ReplicationOutput::OriginSilent(origin)), 1);
    assert!(net.get(1, "a").is_some(), "its records stay visible");
    // One heartbeat is enough to come back.
    net.heal();
    net.run(1_100);
    assert_eq!(net.said(1, &ReplicationOutput::PeerUp(2)), 1);
    assert_eq!(net.said(1, &ReplicationOutput::OriginReturned(origin)), 1);
}

#[test]
fn a_process_that_stood_still_judges_nobody() {
    let mut net = Net::new(3);
    for id in 1..=3 {
        net.register(id, &format!("at{id}"), i64::from(id), 10_000);
    }
    net.deliver();
    net.at(1).stopped = true;
    for id in [2, 3] {
        net.detect(id, 1, Detected::Down);
    }
    for _ in 0..60 {
        net.run(1_000);
        assert!(net.renew(2, 2) && net.renew(3, 3));
    }
    assert_eq!(net.said(2, &ReplicationOutput::PeerDown(1)), 1);
    for peer in [2, 3] {
        net.detect(1, peer, Detected::Down);
    }
    net.at(1).stopped = false;
    let now = net.now;
    let one = net.at(1);
    one.node.handle_timeout(now);
    one.replicator.handle_timeout(&mut one.node, now);
    net.run(3_000);
    for peer in [2, 3] {
        assert_eq!(net.said(1, &ReplicationOutput::PeerDown(peer)), 0);
    }
    assert!(!net.members[&1].replicator.is_protected());
    assert_eq!(net.get(1, "at1").unwrap().health, crate::Health::Live);
}

#[test]
fn a_minority_says_so_and_goes_on_serving() {
    let mut net = Net::new(5);
    net.split(&[1, 2], &[3, 4, 5]);
    net.run(12_000);
    assert_eq!(net.said(1, &ReplicationOutput::MajorityLost), 0);
    net.run(3_000);
    assert_eq!(net.said(1, &ReplicationOutput::MajorityLost), 1);
    assert_eq!(net.said(3, &ReplicationOutput::MajorityLost), 0);
    net.put_record(1, "a");
    net.deliver();
    assert!(net.get(2, "a").is_some());
    net.heal();
    net.run(4_000);
    assert_eq!(net.said(1, &ReplicationOutput::MajorityRegained), 1);
    net.assert_equal();
}

#[test]
fn records_of_a_silent_member_wait_for_proof_or_for_a_quarter_of_an_hour() {
    let mut net = Net::new(5);
    net.register(5, "a", 1, 60_000);
    net.deliver();
    net.at(5).stopped = true;
    for id in 1..=4 {
        net.detect(id, 5, Detected::Down);
    }
    let orphans = |net: &Net| {
        let one = &net.members[&1];
        one.replicator.orphans(&one.node, net.now, 10)
    };
    net.run(65_000);
    let now = net.now;
    net.at(1).replicator.prove_dead(5, now);
    assert_eq!(
        orphans(&net),
        [],
        "not before its own timeout and some more"
    );
    net.run(12_000);
    let judged = orphans(&net);
    assert_eq!(judged.len(), 1);
    // Without the proof.
    net.at(1).replicator.peers.get_mut(&5).unwrap().proved_dead = false;
    assert_eq!(orphans(&net), []);
    net.run(15 * 60_000);
    assert_eq!(orphans(&net), judged);

    // Every member carries the verdict out by itself, and all have the same.
    let verdict: Vec<_> = judged.iter().map(|o| (o.key.clone(), o.version)).collect();
    for id in 1..=4 {
        let now = net.now;
        assert_eq!(net.at(id).node.remove_orphans(&verdict, now).len(), 1);
    }
    net.run(2_000);
    net.assert_equal();
    assert_eq!(net.get(1, "a"), None);

    // The member was alive beside it, and so was the owner: its next action is after the verdict.
    net.at(5).stopped = false;
    net.run(3_000);
    net.register(5, "a", 1, 60_000);
    net.run(3_000);
    for id in 1..=5 {
        assert!(net.get(id, "a").is_some(), "member {id}");
    }
    net.assert_equal();
}

#[test]
fn a_first_member_says_for_a_while_that_its_lists_may_be_incomplete() {
    let mut net = Net::unconnected(3);
    net.list(1, &[1, 2, 3]);
    net.run(3_000);
    assert_eq!(net.members[&1].replicator.readiness(), Readiness::Init);
    net.run(3_000);
    assert_eq!(net.members[&1].replicator.readiness(), Readiness::Warming);
    net.run(31_000);
    assert_eq!(net.members[&1].replicator.readiness(), Readiness::Ready);
    // The next one serves as soon as it has what the first one has.
    net.put_record(1, "a");
    net.list(2, &[1, 2, 3]);
    net.start(2, EPOCH);
    net.list(2, &[1, 2, 3]);
    net.connect(1, 2);
    net.run(2_000);
    assert_eq!(net.members[&2].replicator.readiness(), Readiness::Ready);
    assert!(net.get(2, "a").is_some());
    // A member alone in its list does not wait.
    net.start(3, EPOCH);
    net.list(3, &[3]);
    assert_eq!(net.members[&3].replicator.readiness(), Readiness::Ready);
}

#[test]
fn clocks_that_are_ahead() {
    const HOUR: u64 = 3_600_000;
    for (ahead, alarm, quarantine, adopted) in [
        (300, false, false, true),
        (2_000, true, false, true),
        (HOUR / 2, true, false, true),
        (2 * HOUR, true, false, false),
        (19 * HOUR, true, false, false),
        (25 * HOUR, true, true, false),
        (365 * 24 * HOUR, true, true, false),
    ] {
        let mut net = Net::new(3);
        net.start(3, EPOCH + ahead);
        net.rejoin(3);
        net.run(40_000);
        net.put_record(3, "a");
        net.run(100);
        let (hlc, wall) = net.members[&1].node.clock(net.now);
        net.run(3_000);
        let said = |wanted: fn(&ReplicationOutput) -> bool| net.members[&1].said.iter().any(wanted);
        assert_eq!(
            said(|o| matches!(o, ReplicationOutput::ClockAhead { peer: 3, .. })),
            alarm,
            "{ahead}"
        );
        assert_eq!(
            said(|o| matches!(o, ReplicationOutput::QuarantineEntered { peer: 3, .. })),
            quarantine,
            "{ahead}"
        );
        assert_eq!(net.get(1, "a").is_some(), !quarantine, "{ahead}");
        assert_eq!(
            hlc >> 16 > wall + 100,
            adopted,
            "{ahead}: the member's own clock follows up to an hour"
        );
        if quarantine {
            continue;
        }
        // Whoever acts on the record comes after it all the same.
        let now = net.now;
        net.at(1).node.deregister(&key("a"), now);
        net.run(2_000);
        for id in 1..=3 {
            assert_eq!(net.get(id, "a"), None, "{ahead}: member {id}");
        }
        net.assert_equal();
    }
}
