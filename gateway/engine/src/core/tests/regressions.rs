//! A case for each thing that once went wrong, by name.

use super::*;
use crate::phase::{Move, Phase};
use crate::protection::{Input, Order};
use crate::znode_tree::MultiOp;

fn key(host: u8) -> RecordKey {
    RecordKey::new(StoreKind::Zookeeper, spring(host).0.into_bytes())
}

/// A session of the bench's client `id` with an instance, behind it session `4000 + id` in L.
fn register(bench: &mut Bench, id: i64) {
    bench.session(id);
    let (path, data) = spring(u8::try_from(id).expect("small"));
    for parent in ["/services", "/services/billing"] {
        bench.write(id, create(parent, b"", CreateMode::Persistent));
    }
    bench.write(
        id,
        with_session(create(&path, &data, CreateMode::Ephemeral), id),
    );
    behind(bench, id, 4000 + id);
}

fn behind(bench: &mut Bench, id: i64, legacy: i64) {
    let legacy = LegacySession {
        id: legacy,
        password: [2; 16],
        timeout_ms: 10_000,
    };
    bench.apply(Command::LegacySession {
        id,
        legacy: Some(legacy),
    });
}

fn gone(bench: &mut Bench, host: u8, mark: i64) -> Effects {
    bench.legacy(LegacyEvent::Delete {
        key: Bytes::from(spring(host).0.into_bytes()),
        mark,
    })
}

fn action(bench: &mut Bench, host: u8, owner: LegacyOwner) -> Option<Action> {
    bench
        .core
        .wanted(&key(host), owner)
        .map(|wanted| wanted.action)
}

fn visible(bench: &Bench, host: u8) -> bool {
    bench.core.tree().contains(&spring(host).0)
}

#[test]
fn taking_over_a_held_path_with_the_same_data_moves_the_record_too() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    bench.session(77);
    let (path, data) = spring(1);
    bench.write(
        77,
        with_session(create(&path, &data, CreateMode::Ephemeral), 77),
    );
    let record = bench.core.node().get(&key(1)).expect("kept");
    assert_eq!(record.lease, Some(LeaseId::session(77)));
    assert_eq!(record.health, causeway_registry::Health::Live);
    // The old owner lost something: it is over, and its close takes nothing from the new one.
    assert!(bench.core.renew(LeaseId::session(1), bench.now).is_err());
    assert!(bench.core.sessions().get(1).is_none());
    bench.apply(Command::CloseSession { id: 1 });
    assert!(visible(&bench, 1));
    bench.apply(Command::CloseSession { id: 77 });
    assert!(!visible(&bench, 1));
}

#[test]
fn a_multi_creates_over_a_held_path() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    bench.session(77);
    let (path, data) = spring(1);
    let create = |path: &str, mode| MultiOp::Create {
        path: path.into(),
        data: Some(Bytes::copy_from_slice(&data)),
        acl: vec![Acl::world(perms::ALL)],
        mode,
    };
    let ops = vec![
        create("/services/billing/note", CreateMode::Persistent),
        create(&path, CreateMode::Ephemeral),
    ];
    let fx = bench.write(
        77,
        TreeCommand::Multi {
            ops,
            session: 77,
            auth: Vec::new(),
        },
    );
    let Some(Reply::Tree(Ok(TreeReply::Multi(results)))) = &fx.reply else {
        panic!("{:?}", fx.reply)
    };
    assert!(
        results
            .iter()
            .all(|r| matches!(r, crate::znode_tree::OpResult::Created { .. })),
        "{results:?}"
    );
    assert_eq!(bench.core.tree().owner_of(&path), Some(77));
}

#[test]
fn an_ephemeral_needs_a_session_that_is_there() {
    let mut bench = Bench::embedded();
    let fx = bench.write(
        9,
        with_session(create("/lock", b"", CreateMode::Ephemeral), 9),
    );
    assert_eq!(fx.reply, Some(Reply::Tree(Err(TreeError::SessionExpired))));
    assert!(!bench.core.tree().contains("/lock"));
}

#[test]
fn a_strangers_write_does_not_bring_a_held_record_to_life() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    bench.session(50);
    bench.write(50, create("/gone", b"", CreateMode::Persistent));
    // Its owner is over: it lost a general ephemeral with its timeout, or is simply not known any more.
    let (path, data) = spring(1);
    let op = TreeCommand::SetData {
        path,
        data: Some(data.into()),
        version: -1,
        auth: Vec::new(),
    };
    bench.apply(Command::Tree {
        peer: "10.9.9.9:1".into(),
        session: 50,
        op,
    });
    let row = &bench.core.services()[0];
    assert!(row.protected && row.held >= 4, "{row:?}");
}

#[test]
fn foreign_deletes_of_one_transaction_are_judged_together() {
    let (mut bench, _) = ten();
    bench.session(50);
    let delete = |host: u8| MultiOp::Delete {
        path: spring(host).0,
        version: -1,
    };
    let multi = |hosts: std::ops::RangeInclusive<u8>| Command::Tree {
        peer: "10.9.9.9:1".into(),
        session: 50,
        op: TreeCommand::Multi {
            ops: hosts.map(delete).collect(),
            session: 50,
            auth: Vec::new(),
        },
    };
    let fx = bench.apply(multi(1..=5));
    assert!(
        matches!(fx.reply, Some(Reply::Refused { .. })),
        "{:?}",
        fx.reply
    );
    assert_eq!(bench.children("/services/billing"), 10);
    let fx = bench.apply(multi(1..=4));
    assert!(
        matches!(fx.reply, Some(Reply::Tree(Ok(_)))),
        "{:?}",
        fx.reply
    );
    assert_eq!(
        (bench.children("/services/billing"), bench.core.held_count()),
        (6, 0)
    );
}

#[test]
fn an_owner_is_known_by_its_address_and_neighbours_are_strangers() {
    let (mut bench, _) = ten();
    let delete = |host: u8| TreeCommand::Delete {
        path: spring(host).0,
        version: -1,
        auth: Vec::new(),
    };
    let mut refused = 0;
    for host in 1..=10_u8 {
        let peer = format!("10.0.0.{host}:1");
        let fx = bench.apply(Command::Tree {
            peer,
            session: 0,
            op: delete(host),
        });
        refused += usize::from(matches!(fx.reply, Some(Reply::Refused { .. })));
    }
    assert_eq!((bench.children("/services/billing"), refused), (0, 0));
    // Addresses of IPv6 that differ in their last group are two hosts.
    bench.session(90);
    let (path, data) = spring(1);
    for parent in ["/services", "/services/billing"] {
        bench.write(90, create(parent, b"", CreateMode::Container));
    }
    bench.apply(Command::Tree {
        peer: "2001:db8::1".into(),
        session: 90,
        op: with_session(create(&path, &data, CreateMode::Ephemeral), 90),
    });
    bench.pass(120_000, &[90]);
    let fx = bench.apply(Command::Tree {
        peer: "2001:db8::2".into(),
        session: 0,
        op: delete(1),
    });
    assert!(
        matches!(fx.reply, Some(Reply::Refused { .. })),
        "{:?}",
        fx.reply
    );
}

#[test]
fn an_explicit_hold_keeps_what_closes_and_lets_it_go_when_it_ends() {
    let (mut bench, sessions) = ten();
    let order = Order {
        by: "op".into(),
        reason: "drill".into(),
        expires_ms: bench.now + 60_000,
    };
    let service = bench.core.services()[0].service.clone();
    bench.apply(Command::Protection(Input::HoldExplicit {
        service: Some(service),
        order,
    }));
    bench.apply(Command::CloseSession { id: 1 });
    assert_eq!(bench.children("/services/billing"), 10);
    bench.pass(70_000, &sessions[1..]);
    assert_eq!(bench.children("/services/billing"), 9);
    assert_eq!(bench.core.held_count(), 0);
}

#[test]
fn a_held_registration_goes_when_its_instance_lives_elsewhere() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    // The same address under a new id, as Curator's clients come back.
    bench.session(77);
    let (_, data) = spring(1);
    bench.write(
        77,
        with_session(
            create("/services/billing/fresh", &data, CreateMode::Ephemeral),
            77,
        ),
    );
    assert!(
        !visible(&bench, 1),
        "the stale registration stays beside the new one"
    );
    assert!(bench.core.tree().contains("/services/billing/fresh"));
    assert_eq!(bench.core.services()[0].instances, 10);
}

#[test]
fn what_was_held_is_held_after_a_restart_and_may_come_back() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    bench.restart();
    assert_eq!(bench.core.services()[0].held, 5);
    bench.pass(2_000, &sessions);
    assert_eq!(bench.core.services()[0].held, 0);
    assert_eq!(bench.children("/services/billing"), 10);
}

#[test]
fn gates_begin_anew_after_a_restart() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    bench.pass(60_000, &[]);
    bench.restart();
    assert!(
        bench
            .core
            .gates(crate::phase::Census::None, Vec::new(), bench.now)
            .clean_for_ms
            < 1000
    );
}

#[test]
fn our_own_attempt_that_lands_after_the_removal_does_not_bring_it_back() {
    for closes in [true, false] {
        let mut bench = Bench::with_zookeeper(Phase::MergeNew);
        register(&mut bench, 3);
        assert_eq!(
            action(&mut bench, 3, LegacyOwner::Alive),
            Some(Action::CreateIfAbsent)
        );
        // The attempt is under way when the client removes it.
        if closes {
            bench.apply(Command::CloseSession { id: 3 });
        } else {
            bench.write(
                3,
                TreeCommand::Delete {
                    path: spring(3).0,
                    version: -1,
                    auth: Vec::new(),
                },
            );
        }
        bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
        assert!(!visible(&bench, 3));
        assert_eq!(
            action(&mut bench, 3, LegacyOwner::Alive),
            Some(Action::DeleteIfUnchanged)
        );
        gone(&mut bench, 3, 51);
        // What was listed before arrives once more.
        bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
        assert!(!visible(&bench, 3));
    }
}

#[test]
fn the_end_of_the_former_owners_entry_takes_nothing_from_the_next_owner() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    register(&mut bench, 3);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    bench.apply(Command::CloseSession { id: 3 });
    bench.session(7);
    let (path, data) = spring(3);
    bench.write(
        7,
        with_session(create(&path, &data, CreateMode::Ephemeral), 7),
    );
    behind(&mut bench, 7, 4007);
    gone(&mut bench, 3, 51);
    for _ in 0..3 {
        assert_ne!(
            action(&mut bench, 3, LegacyOwner::Alive),
            Some(Action::TakeRemoval)
        );
    }
    assert!(visible(&bench, 3));
}

#[test]
fn delete_and_create_again_is_not_undone_by_the_delete_in_l() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    register(&mut bench, 3);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    let (path, data) = spring(3);
    bench.write(
        3,
        TreeCommand::Delete {
            path: path.clone(),
            version: -1,
            auth: Vec::new(),
        },
    );
    bench.write(
        3,
        with_session(create(&path, &data, CreateMode::Ephemeral), 3),
    );
    gone(&mut bench, 3, 51);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::CreateIfAbsent)
    );
    // Nor does a removal that somebody asks for on older knowledge.
    bench.apply(Command::TakeRemoval(key(3)));
    assert!(visible(&bench, 3));
}

#[test]
fn a_listing_from_before_a_removal_speaks_for_nobody() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    register(&mut bench, 3);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    let (path, data) = spring(3);
    bench.write(
        3,
        TreeCommand::Delete {
            path: path.clone(),
            version: -1,
            auth: Vec::new(),
        },
    );
    // Deleted there by us, which we know at once; then registered again.
    gone(&mut bench, 3, 51);
    bench.write(
        3,
        with_session(create(&path, &data, CreateMode::Ephemeral), 3),
    );
    // The feed, which lags, shows it there and gone once more.
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    gone(&mut bench, 3, 51);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::CreateIfAbsent)
    );
}

#[test]
fn a_deletion_of_an_older_value_in_l_is_no_removal_of_a_newer_one() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    register(&mut bench, 3);
    // Our attempt's outcome is not known when the client writes again and a tool deletes what it made.
    let op = TreeCommand::SetData {
        path: spring(3).0,
        data: Some(spring(4).1.into()),
        version: -1,
        auth: Vec::new(),
    };
    bench.write(3, op);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    gone(&mut bench, 3, 51);
    for _ in 0..2 {
        assert_eq!(
            action(&mut bench, 3, LegacyOwner::Alive),
            Some(Action::CreateIfAbsent)
        );
    }
}

#[test]
fn ended_owners_are_not_remembered_for_ever() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    for id in 1..=600 {
        bench.session(id);
        behind(&mut bench, id, 4000 + id);
        bench.apply(Command::CloseSession { id });
        bench.now += 60_000;
    }
    assert!(
        bench.core.st.ended.len() < 200,
        "{}",
        bench.core.st.ended.len()
    );
}

#[test]
fn a_deletion_in_l_is_judged_only_after_l_was_asked_about_the_owner() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    for id in 1..=5 {
        register(&mut bench, id);
        bench.legacy(LegacyEvent::Put(legacy_entry(
            u8::try_from(id).expect("small"),
            4000 + id,
            50 + id,
        )));
    }
    gone(&mut bench, 3, 60);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::AskLegacy)
    );
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::TakeRemoval)
    );
    // The owner's end there explains it, also after a new one was opened.
    gone(&mut bench, 4, 61);
    assert_eq!(
        action(&mut bench, 4, LegacyOwner::Gone),
        Some(Action::OpenOwner)
    );
    assert_eq!(
        action(&mut bench, 4, LegacyOwner::Alive),
        Some(Action::CreateIfAbsent)
    );
}

#[test]
fn a_step_back_from_drain_takes_no_withdrawal_for_a_removal() {
    let mut bench = Bench::with_zookeeper(Phase::New);
    register(&mut bench, 3);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    bench.step(Move::Advance);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::DeleteIfUnchanged)
    );
    bench.step(Move::Rollback);
    // The withdrawal lands after the step.
    gone(&mut bench, 3, 51);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::CreateIfAbsent)
    );
    assert!(visible(&bench, 3));
}

#[test]
fn a_change_during_an_attempt_keeps_the_registration_on_the_list() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    register(&mut bench, 3);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::CreateIfAbsent)
    );
    let op = TreeCommand::SetData {
        path: spring(3).0,
        data: Some(spring(4).1.into()),
        version: -1,
        auth: Vec::new(),
    };
    bench.write(3, op);
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4003, 50)));
    bench.core.settled(&key(3));
    assert!(bench.core.all_dirty(10).contains(&key(3)));
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::WriteIfUnchanged)
    );
}

#[test]
fn an_echo_of_an_older_value_does_not_replace_a_newer_one() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    let entry = |data: &'static [u8], mark| {
        let LegacyMeta::Znode { stat, .. } = legacy_entry(1, 0, mark).meta else {
            unreachable!()
        };
        LegacyEntry {
            key: Bytes::from_static(b"/services/billing"),
            value: Some(Bytes::from_static(data)),
            owner: 0,
            mark,
            meta: LegacyMeta::Znode {
                stat,
                acl: Vec::new(),
            },
        }
    };
    bench.write(0, create("/services", b"", CreateMode::Persistent));
    bench.write(
        0,
        create("/services/billing", b"one", CreateMode::Persistent),
    );
    let set = |data: &str| TreeCommand::SetData {
        path: "/services/billing".into(),
        data: Some(Bytes::copy_from_slice(data.as_bytes())),
        version: -1,
        auth: Vec::new(),
    };
    // Clients do not wait for L here.
    for n in 0..1000 {
        bench.write(0, set(&n.to_string()));
    }
    bench.write(0, set("two"));
    let data = |bench: &Bench| {
        bench
            .core
            .tree()
            .node("/services/billing")
            .and_then(|n| n.data().cloned())
    };
    // L got "one" from us, and shows it now.
    bench.legacy(LegacyEvent::Put(entry(b"one", 50)));
    assert_eq!(data(&bench).as_deref(), Some(&b"two"[..]));
    // A direct writer's own is another matter.
    bench.legacy(LegacyEvent::Put(entry(b"three", 51)));
    assert_eq!(data(&bench).as_deref(), Some(&b"three"[..]));
}

#[test]
fn two_imported_registrations_of_one_instance_that_go_together_are_judged() {
    let mut bench = Bench::with_zookeeper(Phase::MergeLegacy);
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 1001, 101)));
    let twin = LegacyEntry {
        key: Bytes::from_static(b"/services/billing/twin"),
        ..legacy_entry(1, 1002, 102)
    };
    bench.legacy(LegacyEvent::Put(twin));
    bench.pass(120_000, &[]);
    assert_eq!(bench.core.instance_count(), 1);
    // The store comes back without either: the service's last instance is held.
    bench.legacy(LegacyEvent::Lost {
        reason: "restart".into(),
    });
    bench.legacy(LegacyEvent::SnapshotStart);
    bench.legacy(LegacyEvent::SnapshotDone { mark: 300 });
    assert_eq!(
        (bench.core.instance_count(), bench.core.held_count()),
        (1, 1)
    );
}

#[test]
fn a_parent_that_goes_in_l_stays_while_it_has_children_here() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    let LegacyMeta::Znode { stat, .. } = legacy_entry(1, 0, 40).meta else {
        unreachable!()
    };
    let parent = LegacyEntry {
        key: Bytes::from_static(b"/services/billing"),
        value: Some(Bytes::new()),
        owner: 0,
        mark: 40,
        meta: LegacyMeta::Znode {
            stat,
            acl: Vec::new(),
        },
    };
    bench.legacy(LegacyEvent::Put(parent.clone()));
    register(&mut bench, 3);
    bench.legacy(LegacyEvent::Delete {
        key: parent.key.clone(),
        mark: 41,
    });
    assert!(visible(&bench, 3));
    let key = RecordKey::new(StoreKind::Zookeeper, parent.key);
    assert!(
        bench.core.node().get(&key).is_some(),
        "view and registry have to agree"
    );
}

#[test]
fn an_acknowledged_removal_is_not_undone_by_a_feed_that_lags() {
    for phase in [Phase::Mirror, Phase::MergeLegacy] {
        let mut bench = Bench::with_zookeeper(phase);
        bench.apply(Command::AdoptSession {
            id: 500,
            password: [9; 16],
            timeout_ms: 10_000,
        });
        bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 20)));
        let op = TreeCommand::Delete {
            path: spring(1).0,
            version: -1,
            auth: Vec::new(),
        };
        bench.apply(Command::TreeAcknowledged {
            peer: "10.0.0.1:1".into(),
            session: 500,
            op,
            mark: 30,
        });
        bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 25)));
        assert!(!visible(&bench, 1), "{phase}");
        bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 31)));
        // Later than the removal; after the take-over only we write under that session.
        assert_eq!(visible(&bench, 1), phase == Phase::Mirror, "{phase}");
    }
}

#[test]
fn before_the_take_over_acknowledged_writes_have_the_ensembles_numbers() {
    let mut bench = Bench::with_zookeeper(Phase::Mirror);
    bench.apply(Command::AdoptSession {
        id: 500,
        password: [9; 16],
        timeout_ms: 10_000,
    });
    let (path, data) = spring(1);
    for parent in ["/services", "/services/billing"] {
        let op = create(parent, b"", CreateMode::Persistent);
        bench.apply(Command::TreeAcknowledged {
            peer: "10.0.0.1:1".into(),
            session: 500,
            op,
            mark: 20,
        });
    }
    let op = with_session(create(&path, &data, CreateMode::Ephemeral), 500);
    bench.apply(Command::TreeAcknowledged {
        peer: "10.0.0.1:1".into(),
        session: 500,
        op,
        mark: 21,
    });
    let stat = bench.core.tree().exists(&path, &[]).expect("there");
    assert_eq!(
        (stat.czxid, stat.mzxid, bench.core.last_zxid()),
        (21, 21, 21)
    );
}

#[test]
fn a_session_whose_entries_the_ensemble_lost_is_told_expired_after_the_take_over() {
    let mut bench = Bench::with_zookeeper(Phase::Proxy);
    for id in [500, 501] {
        bench.apply(Command::AdoptSession {
            id,
            password: [9; 16],
            timeout_ms: 10_000,
        });
    }
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 20)));
    gone(&mut bench, 1, 21);
    bench.step(Move::TakeOver);
    assert!(bench.core.attach(500, &[9; 16], 10_000, ConnId(1)).is_err());
    // One that never had anything there lost nothing.
    assert!(bench.core.attach(501, &[9; 16], 10_000, ConnId(2)).is_ok());
}

#[test]
fn a_snapshot_of_l_goes_on_over_a_snapshot_of_the_state() {
    let mut bench = Bench::with_zookeeper(Phase::MergeLegacy);
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 1001, 101)));
    bench.legacy(LegacyEvent::SnapshotStart);
    let mut again = Core::restore(
        bench.core.settings.clone(),
        &bench.core.snapshot().expect("encodes"),
    )
    .expect("decodes");
    let done = Command::Legacy {
        store: StoreKind::Zookeeper,
        event: LegacyEvent::SnapshotDone { mark: 300 },
    };
    bench.core.apply(&done, bench.now);
    again.apply(&done, bench.now);
    assert_eq!(again.st.registrations, bench.core.st.registrations);
}

#[test]
fn a_store_that_came_back_older_is_believed_after_it_was_listed_again() {
    let mut bench = Bench::with_zookeeper(Phase::MergeLegacy);
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 1001, 5000)));
    let mut asked = 0;
    for _ in 0..2 {
        bench.legacy(LegacyEvent::SnapshotStart);
        bench.legacy(LegacyEvent::Put(LegacyEntry {
            value: Some(spring(2).1.into()),
            ..legacy_entry(1, 1009, 30)
        }));
        asked += bench
            .legacy(LegacyEvent::SnapshotDone { mark: 40 })
            .resync
            .len();
    }
    assert_eq!(asked, 1);
    assert_eq!(bench.core.tree().owner_of(&spring(1).0), Some(1009));
}

#[test]
fn what_returns_from_being_held_is_asserted_in_l_again() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    for id in 1..=3 {
        register(&mut bench, id);
    }
    bench.pass(120_000, &[1, 2, 3]);
    // All fall silent: held, and L is left alone.
    bench.pass(15_000, &[]);
    assert_eq!(
        action(&mut bench, 3, LegacyOwner::Alive),
        Some(Action::Nothing)
    );
    bench.core.settled(&key(3));
    bench.pass(1_000, &[3]);
    assert!(bench.core.all_dirty(10).contains(&key(3)));
}

#[test]
fn a_service_of_a_protocol_without_a_legacy_store_is_protected_before_the_take_over() {
    let mut bench = Bench {
        core: Core::new(
            settings(Store::Embedded, Store::Legacy, Phase::Proxy),
            1,
            T0,
        ),
        now: T0,
    };
    let sessions: Vec<i64> = (1..=10).collect();
    for id in &sessions {
        register_embedded(&mut bench, *id);
    }
    bench.pass(120_000, &sessions);
    bench.pass(20_000, &sessions[5..]);
    assert_eq!(
        (bench.children("/services/billing"), bench.core.held_count()),
        (10, 5)
    );
}

fn register_embedded(bench: &mut Bench, id: i64) {
    bench.session(id);
    let (path, data) = spring(u8::try_from(id).expect("small"));
    for parent in ["/services", "/services/billing"] {
        bench.write(id, create(parent, b"", CreateMode::Container));
    }
    bench.write(
        id,
        with_session(create(&path, &data, CreateMode::Ephemeral), id),
    );
}
