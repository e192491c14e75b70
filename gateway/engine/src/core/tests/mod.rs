//! Tests of the machine as a whole, without a socket or a clock.

use bytes::Bytes;
use causeway_registry::{LeaseId, RecordKey, StoreKind};

use super::*;

mod auth;
mod model;
mod regressions;
use crate::converge::{Action, LegacyOwner};
use crate::layout::LayoutSet;
use crate::phase::Gates;
use crate::znode_tree::{CreateMode, perms};

const T0: i64 = 1_796_000_000_000;

fn settings(zookeeper: Store, etcd: Store, phase: Phase) -> Settings {
    let (layouts, passes) = (
        toml::from_str::<toml::Table>(
            "[[layout]]\nuse = 'grpc-endpoints'\ntargets = ['orders', 'orders-of-billing']\n[[layout]]\nuse = 'curator'\nroots = ['/discovery']\n",
        )
        .expect("the test's TOML parses"),
        [],
    );
    let layouts: Vec<crate::layout::LayoutConfig> = layouts["layout"]
        .clone()
        .try_into()
        .expect("the test's layouts are valid");
    Settings {
        zookeeper,
        etcd,
        layouts: LayoutSet::load(&layouts, &passes, None).expect("the test's layouts load"),
        bridges: Vec::new(),
        protection: protection::Settings::default(),
        phase,
        gate_time_ms: 0,
        tolerated_difference_ms: 10_000,
    }
}

/// A machine with a clock of its own.
struct Bench {
    core: Core,
    now: i64,
}

impl Bench {
    fn embedded() -> Self {
        Bench {
            core: Core::new(
                settings(Store::Embedded, Store::Embedded, Phase::Proxy),
                1,
                T0,
            ),
            now: T0,
        }
    }

    fn with_zookeeper(phase: Phase) -> Self {
        let mut bench = Bench {
            core: Core::new(settings(Store::Legacy, Store::Embedded, phase), 1, T0),
            now: T0,
        };
        bench.legacy(LegacyEvent::SnapshotStart);
        bench.legacy(LegacyEvent::SnapshotDone { mark: 10 });
        bench
    }

    fn apply(&mut self, command: Command) -> Effects {
        // Everything that is logged has to survive the log.
        let bytes = postcard::to_stdvec(&command).expect("encodes");
        let command: Command = postcard::from_bytes(&bytes).expect("decodes");
        self.core.apply(&command, self.now)
    }

    fn legacy(&mut self, event: LegacyEvent) -> Effects {
        self.apply(Command::Legacy {
            store: StoreKind::Zookeeper,
            event,
        })
    }

    fn session(&mut self, id: i64) {
        self.apply(Command::OpenSession {
            id,
            password: [1; 16],
            timeout_ms: 10_000,
        });
    }

    fn write(&mut self, session: i64, op: TreeCommand) -> Effects {
        self.apply(Command::Tree {
            peer: format!("10.0.0.{session}:1"),
            session,
            op,
        })
    }

    /// Lets time pass in steps of half a second; `alive` sessions are heard in each.
    fn pass(&mut self, ms: i64, alive: &[i64]) -> Vec<Effects> {
        let mut out = Vec::new();
        let end = self.now + ms;
        while self.now < end {
            self.now = (self.now + 500).min(end);
            for id in alive {
                if let Ok(Some(command)) = self.core.renew(LeaseId::session(*id), self.now) {
                    out.push(self.apply(command));
                }
            }
            for command in self.core.poll_timers(self.now) {
                out.push(self.apply(command));
            }
            self.core.review(self.now);
        }
        out
    }

    fn children(&self, path: &str) -> usize {
        self.core
            .tree()
            .node(path)
            .map_or(0, |n| n.children().len())
    }

    fn step(&mut self, kind: crate::phase::Move) {
        let step = self
            .core
            .judge(kind, &Gates::clean(0), None, "test", "", self.now)
            .expect("allowed");
        self.apply(Command::Step(Box::new(step)));
    }

    /// A restart: snapshot, or nothing but the log.
    fn restart(&mut self) {
        let state = self.core.snapshot().expect("encodes");
        let settings = self.core.settings.clone();
        self.core = Core::restore(settings, &state).expect("decodes");
        self.apply(Command::Started {
            incarnation: u64::try_from(self.now).expect("positive"),
        });
    }
}

fn create(path: &str, data: &[u8], mode: CreateMode) -> TreeCommand {
    TreeCommand::Create {
        path: path.into(),
        data: Some(Bytes::copy_from_slice(data)),
        acl: vec![Acl::world(perms::ALL)],
        mode,
        session: 0,
        auth: Vec::new(),
    }
}

fn with_session(op: TreeCommand, id: i64) -> TreeCommand {
    match op {
        TreeCommand::Create {
            path,
            data,
            acl,
            mode,
            auth,
            ..
        } => TreeCommand::Create {
            path,
            data,
            acl,
            mode,
            session: id,
            auth,
        },
        other => other,
    }
}

fn spring(host: u8) -> (String, Vec<u8>) {
    let data = format!(
        r#"{{"name":"billing","id":"id-{host}","address":"10.1.0.{host}","port":8080,"sslPort":null,"payload":{{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"id-{host}","name":"billing","metadata":{{}}}},"registrationTimeUTC":1754900000123,"serviceType":"DYNAMIC","uriSpec":null}}"#
    );
    (format!("/services/billing/id-{host}"), data.into_bytes())
}

/// Ten sessions with an instance each, there for two minutes.
fn ten() -> (Bench, Vec<i64>) {
    let mut bench = Bench::embedded();
    let sessions: Vec<i64> = (1..=10).collect();
    for id in &sessions {
        bench.session(*id);
        let host = u8::try_from(*id).expect("small");
        let (path, data) = spring(host);
        for parent in ["/services", "/services/billing"] {
            bench.write(*id, create(parent, b"", CreateMode::Container));
        }
        bench.write(
            *id,
            with_session(create(&path, &data, CreateMode::Ephemeral), *id),
        );
    }
    bench.pass(120_000, &sessions);
    assert_eq!(bench.children("/services/billing"), 10);
    assert_eq!(
        bench.core.services().len(),
        1,
        "{:?}",
        bench.core.services()
    );
    (bench, sessions)
}

#[test]
fn five_of_ten_expiring_at_once_are_held_with_an_alarm() {
    let (mut bench, sessions) = ten();
    let effects = bench.pass(20_000, &sessions[5..]);
    assert_eq!(bench.children("/services/billing"), 10);
    assert!(effects.iter().any(|fx| {
        fx.alarms
            .iter()
            .any(|a| a.kind == crate::protection::AlarmKind::ProtectionEntered)
    }));
    assert!(effects.iter().all(|fx| fx.tree_events.is_empty()));
    let row = &bench.core.services()[0];
    assert_eq!((row.held, row.live, row.protected), (5, 5, true));
    // They come back: nothing happened, and in time protection ends.
    bench.pass(200_000, &sessions);
    assert_eq!(bench.core.services()[0].held, 0);
    assert!(!bench.core.services()[0].protected);
}

#[test]
fn four_of_ten_expiring_at_once_are_removed_under_one_number() {
    let (mut bench, sessions) = ten();
    let before = bench.core.last_zxid();
    bench
        .core
        .tree_watches()
        .add_child(WatcherId(9), "/services/billing");
    let effects = bench.pass(20_000, &sessions[4..]);
    assert_eq!(bench.children("/services/billing"), 6);
    let fired: Vec<_> = effects.iter().flat_map(|fx| &fx.tree_events).collect();
    assert_eq!(fired.len(), 1, "{fired:?}");
    // Each of the four sessions is over.
    for id in &sessions[..4] {
        assert!(bench.core.sessions().get(*id).is_none());
        assert!(bench.core.renew(LeaseId::session(*id), bench.now).is_err());
    }
    assert!(bench.core.last_zxid() <= before + 5);
    assert_eq!(bench.core.services()[0].instances, 6);
}

#[test]
fn ten_that_close_their_sessions_are_gone_at_once() {
    let (mut bench, sessions) = ten();
    for id in sessions {
        bench.apply(Command::CloseSession { id });
    }
    assert_eq!(bench.children("/services/billing"), 0);
    assert!(bench.core.services().is_empty());
}

#[test]
fn a_general_ephemeral_goes_with_its_session_whatever_protection_says() {
    let (mut bench, sessions) = ten();
    bench.write(
        1,
        with_session(create("/lock", b"", CreateMode::Ephemeral), 1),
    );
    bench.pass(20_000, &sessions[5..]);
    assert!(!bench.core.tree().contains("/lock"));
    // The session lost something, so it is over; its held instance stays until judged.
    assert!(bench.core.sessions().get(1).is_none());
    assert_eq!(bench.children("/services/billing"), 10);
}

#[test]
fn a_held_path_can_be_created_again_by_another_session() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    bench.session(77);
    let (path, data) = spring(1);
    let fx = bench.write(
        77,
        with_session(create(&path, &data, CreateMode::Ephemeral), 77),
    );
    assert!(
        matches!(fx.reply, Some(Reply::Tree(Ok(TreeReply::Created { .. })))),
        "{:?}",
        fx.reply
    );
    assert_eq!(bench.core.tree().owner_of(&path), Some(77));
    // The old owner's end does not take it away.
    let mut alive: Vec<i64> = sessions[5..].to_vec();
    alive.push(77);
    bench.pass(30_000, &alive);
    assert!(bench.core.tree().contains(&path));
}

#[test]
fn a_stranger_may_not_delete_more_than_protection_allows() {
    let (mut bench, _) = ten();
    bench.session(50);
    let mut refused = 0;
    for host in 1..=10 {
        let op = TreeCommand::Delete {
            path: spring(host).0,
            version: -1,
            auth: Vec::new(),
        };
        let fx = bench.apply(Command::Tree {
            peer: "10.9.9.9:1".into(),
            session: 50,
            op,
        });
        refused += usize::from(matches!(fx.reply, Some(Reply::Refused { .. })));
    }
    assert_eq!(refused, 6);
    assert_eq!(bench.children("/services/billing"), 6);
}

#[test]
fn a_restart_changes_nothing() {
    let (mut bench, sessions) = ten();
    bench.pass(20_000, &sessions[5..]);
    let (nodes, rows) = (bench.core.tree().node_count(), bench.core.services());
    let zxid = bench.core.last_zxid();
    bench.restart();
    assert_eq!(bench.core.tree().node_count(), nodes);
    assert_eq!(bench.core.services()[0].protected, rows[0].protected);
    assert_eq!(bench.core.services()[0].instances, rows[0].instances);
    assert!(bench.core.last_zxid() >= zxid);
    // Every session may come back within its whole timeout.
    bench.pass(9_000, &[]);
    assert!(bench.core.attach(6, &[1; 16], 10_000, ConnId(1)).is_ok());
}

#[test]
fn the_same_log_gives_the_same_state() {
    let mut bench = Bench::embedded();
    let mut log: Vec<(i64, Command)> = Vec::new();
    let mut run = |bench: &mut Bench, command: Command| {
        log.push((bench.now, command.clone()));
        bench.apply(command);
    };
    for id in 1..=3 {
        run(
            &mut bench,
            Command::OpenSession {
                id,
                password: [1; 16],
                timeout_ms: 10_000,
            },
        );
        let (path, data) = spring(u8::try_from(id).expect("small"));
        for parent in ["/services", "/services/billing"] {
            let op = create(parent, b"", CreateMode::Container);
            run(
                &mut bench,
                Command::Tree {
                    peer: String::new(),
                    session: id,
                    op,
                },
            );
        }
        let op = with_session(create(&path, &data, CreateMode::Ephemeral), id);
        run(
            &mut bench,
            Command::Tree {
                peer: String::new(),
                session: id,
                op,
            },
        );
    }
    for _ in 0..30 {
        bench.now += 500;
        for command in bench.core.poll_timers(bench.now) {
            run(&mut bench, command);
        }
    }
    let mut again = Core::new(
        settings(Store::Embedded, Store::Embedded, Phase::Proxy),
        1,
        T0,
    );
    for (at, command) in &log {
        again.apply(command, *at);
    }
    assert_eq!(again.services(), bench.core.services());
    assert_eq!(again.last_zxid(), bench.core.last_zxid());
    assert_eq!(again.sessions().len(), bench.core.sessions().len());
    assert_eq!(again.tree().node_count(), bench.core.tree().node_count());
}

fn legacy_entry(host: u8, owner: i64, mark: i64) -> LegacyEntry {
    let (path, data) = spring(host);
    let data = Bytes::from(data);
    LegacyEntry {
        key: Bytes::from(path.into_bytes()),
        owner,
        mark,
        meta: LegacyMeta::Znode {
            stat: Stat {
                czxid: mark,
                mzxid: mark,
                pzxid: mark,
                ctime: T0,
                mtime: T0,
                ephemeral_owner: owner,
                data_length: i32::try_from(data.len()).expect("small"),
                ..Stat::default()
            },
            acl: Vec::new(),
        },
        value: Some(data),
    }
}

#[test]
fn before_the_take_over_the_view_follows_the_ensemble_and_n_is_filled_in_mirror() {
    let mut bench = Bench::with_zookeeper(Phase::Proxy);
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 20)));
    assert!(
        bench.core.node().records().next().is_none(),
        "proxy writes nothing to N"
    );
    assert_eq!(bench.core.services()[0].instances, 1);
    bench.step(Move::Advance);
    assert_eq!(bench.core.node().records().count(), 1);
    bench.legacy(LegacyEvent::Put(legacy_entry(2, 501, 21)));
    assert_eq!(
        bench
            .core
            .node()
            .records()
            .filter(|r| !r.body.companion)
            .count(),
        2
    );
    // L's verdict stands.
    let (path, _) = spring(1);
    bench.legacy(LegacyEvent::Delete {
        key: Bytes::from(path.into_bytes()),
        mark: 30,
    });
    assert_eq!(
        bench
            .core
            .node()
            .records()
            .filter(|r| !r.body.companion)
            .count(),
        1
    );
    assert_eq!(bench.core.services()[0].instances, 1);
}

use crate::phase::Move;

#[test]
fn the_take_over_keeps_stats_sessions_and_begins_above() {
    let mut bench = Bench::with_zookeeper(Phase::Mirror);
    bench.apply(Command::AdoptSession {
        id: 500,
        password: [9; 16],
        timeout_ms: 10_000,
    });
    bench.legacy(LegacyEvent::Put(legacy_entry(1, 500, 20)));
    bench.legacy(LegacyEvent::Put(legacy_entry(2, 900, 21)));
    let refused = bench
        .core
        .judge(Move::Advance, &Gates::clean(0), None, "a", "", T0)
        .expect_err("needs the take-over");
    assert!(refused.to_string().contains("take-over"));
    bench.step(Move::TakeOver);
    let stat = bench.core.tree().exists(&spring(1).0, &[]).expect("there");
    assert_eq!((stat.czxid, stat.ephemeral_owner), (20, 500));
    assert!(bench.core.attach(500, &[9; 16], 10_000, ConnId(1)).is_ok());
    assert_eq!(bench.core.mode(StoreKind::Zookeeper), Mode::TakenOver);
    let fx = bench.write(
        500,
        create("/services/billing/x", b"", CreateMode::Persistent),
    );
    assert!(fx.number > 21);
    // The direct writer's is known as such; the client's is Causeway's to judge.
    let key = |host| RecordKey::new(StoreKind::Zookeeper, spring(host).0.into_bytes());
    assert!(
        bench
            .core
            .node()
            .get(&key(1))
            .and_then(|r| r.lease)
            .is_some()
    );
    assert!(bench.core.explain("id-2", bench.now)[0].imported);
    assert!(!bench.core.explain("id-1", bench.now)[0].imported);
}

#[test]
fn in_merge_new_an_outage_of_the_ensemble_removes_nothing_and_losses_are_asserted_again() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    bench.session(7);
    for parent in ["/services", "/services/billing"] {
        bench.write(7, create(parent, b"", CreateMode::Persistent));
    }
    let (path, data) = spring(3);
    bench.write(
        7,
        with_session(create(&path, &data, CreateMode::Ephemeral), 7),
    );
    let key = RecordKey::new(StoreKind::Zookeeper, path.clone().into_bytes());
    assert!(bench.core.all_dirty(10).contains(&key));
    assert_eq!(
        bench
            .core
            .wanted(&key, LegacyOwner::Gone)
            .expect("dirty")
            .action,
        Action::OpenOwner
    );
    let legacy = LegacySession {
        id: 4000,
        password: [2; 16],
        timeout_ms: 10_000,
    };
    bench.apply(Command::LegacySession {
        id: 7,
        legacy: Some(legacy),
    });
    assert_eq!(
        bench
            .core
            .wanted(&key, LegacyOwner::Alive)
            .expect("dirty")
            .action,
        Action::CreateIfAbsent
    );
    // What L shows of it afterwards is our own writing, under the session behind the client's.
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4000, 50)));
    assert_eq!(bench.core.tree().owner_of(&path), Some(7));
    assert_eq!(
        bench
            .core
            .wanted(&key, LegacyOwner::Alive)
            .expect("known")
            .action,
        Action::Nothing
    );
    // L away, and back without its data.
    bench.legacy(LegacyEvent::Lost {
        reason: "killed".into(),
    });
    bench.pass(30_000, &[7]);
    bench.legacy(LegacyEvent::SnapshotStart);
    bench.legacy(LegacyEvent::SnapshotDone { mark: 60 });
    assert!(bench.core.tree().contains(&path));
    assert_eq!(
        bench
            .core
            .wanted(&key, LegacyOwner::Alive)
            .expect("known")
            .action,
        Action::CreateIfAbsent
    );
    // The client ends: gone here at once, and from L.
    bench.legacy(LegacyEvent::Put(legacy_entry(3, 4000, 70)));
    bench.apply(Command::CloseSession { id: 7 });
    assert!(!bench.core.tree().contains(&path));
    let wanted = bench
        .core
        .wanted(&key, LegacyOwner::Alive)
        .expect("to be removed");
    assert_eq!(wanted.action, Action::DeleteIfUnchanged);
    bench.legacy(LegacyEvent::Delete {
        key: key.key.clone(),
        mark: 80,
    });
    assert!(bench.core.wanted(&key, LegacyOwner::Alive).is_none());
}

#[test]
fn direct_writers_are_imported_and_their_mass_loss_is_held() {
    let mut bench = Bench::with_zookeeper(Phase::MergeLegacy);
    for host in 1..=10 {
        bench.legacy(LegacyEvent::Put(legacy_entry(
            host,
            1000 + i64::from(host),
            100 + i64::from(host),
        )));
    }
    bench.pass(120_000, &[]);
    assert_eq!(bench.children("/services/billing"), 10);
    // The store comes back with three of ten.
    bench.legacy(LegacyEvent::Lost {
        reason: "restart".into(),
    });
    bench.legacy(LegacyEvent::SnapshotStart);
    for host in 1..=3 {
        bench.legacy(LegacyEvent::Put(legacy_entry(
            host,
            1000 + i64::from(host),
            100 + i64::from(host),
        )));
    }
    bench.legacy(LegacyEvent::SnapshotDone { mark: 300 });
    bench.pass(30_000, &[]);
    assert_eq!(bench.children("/services/billing"), 10);
    assert_eq!(bench.core.held_count(), 7);
    // They come back by themselves.
    for host in 4..=10 {
        bench.legacy(LegacyEvent::Put(legacy_entry(
            host,
            2000 + i64::from(host),
            400 + i64::from(host),
        )));
    }
    assert_eq!(bench.core.held_count(), 0);
}

#[test]
fn what_a_hold_keeps_of_a_lease_is_known_before_it_is_revoked() {
    let mut bench = Bench::embedded();
    let keys = |op| Command::Keys {
        peer: "c:1".into(),
        op,
    };
    bench.apply(keys(KeyCommand::LeaseGrant { id: 42, ttl_s: 5 }));
    bench.apply(keys(KeyCommand::Put {
        key: Bytes::from_static(b"orders/10.0.0.1:9000"),
        value: Bytes::from_static(br#"{"Op":0,"Addr":"10.0.0.1:9000","Metadata":null}"#),
        lease: 42,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    }));
    assert_eq!(bench.core.revoke_refusal(42, bench.now), None);
    let order = protection::Order {
        by: "op".into(),
        reason: "drill".into(),
        expires_ms: bench.now + 60_000,
    };
    let service = bench.core.services()[0].service.clone();
    bench.apply(Command::Protection(protection::Input::HoldExplicit {
        service: Some(service.clone()),
        order,
    }));
    assert_eq!(bench.core.revoke_refusal(42, bench.now), Some(service));
    assert_eq!(bench.core.revoke_refusal(43, bench.now), None);
}

#[test]
fn a_bound_lease_is_bound_after_a_restart_until_it_ends() {
    let keys = |op| Command::Keys {
        peer: "c:1".into(),
        op,
    };
    let revoke = KeyCommand::LeaseRevoke {
        id: 42,
        keep: Vec::new(),
    };
    let check = |end: Option<Command>, alive_ms: i64| {
        let mut bench = Bench::embedded();
        bench.apply(keys(KeyCommand::LeaseGrant { id: 42, ttl_s: 5 }));
        for id in [42, 43] {
            bench.apply(Command::BoundLease { id, bound: true });
        }
        let saved = bench.core.snapshot().expect("saves");
        let settings = settings(Store::Embedded, Store::Embedded, Phase::Proxy);
        bench.core = Core::restore(settings, &saved).expect("restores");
        bench.apply(Command::Started { incarnation: 2 });
        let bound = |bench: &Bench| {
            bench
                .core
                .bound_leases()
                .iter()
                .copied()
                .collect::<Vec<_>>()
        };
        assert_eq!(bound(&bench), [42]);
        bench.pass(alive_ms, &[]);
        if let Some(end) = end {
            bench.apply(end);
        }
        assert_eq!(bound(&bench), [0; 0]);
    };
    check(Some(keys(revoke)), 0);
    check(Some(keys(KeyCommand::ForgetLease { id: 42 })), 0);
    check(
        Some(Command::BoundLease {
            id: 42,
            bound: false,
        }),
        0,
    );
    check(None, 8_000);
}

#[test]
fn a_put_that_the_feed_has_shown_is_not_done_again_when_it_is_acknowledged() {
    let key = Bytes::from_static(b"orders/10.0.0.1:9000");
    let value = |zone: &str| {
        let text = format!(r#"{{"Op":0,"Addr":"10.0.0.1:9000","Metadata":"{zone}"}}"#);
        Bytes::from(text)
    };
    let op = |zone: &str| crate::key_space::Op::Put {
        key: key.clone(),
        value: value(zone),
        lease: 42,
        prev_kv: true,
        ignore_value: false,
        ignore_lease: false,
    };
    let put = |zone: &str| KeyCommand::Put {
        key: key.clone(),
        value: value(zone),
        lease: 42,
        prev_kv: true,
        ignore_value: false,
        ignore_lease: false,
    };
    let check =
        |as_txn: bool, feed: &[(&str, i64)], acknowledged: (&str, i64), want: (&str, i64)| {
            let settings = settings(Store::Embedded, Store::Legacy, Phase::MergeLegacy);
            let mut bench = Bench {
                core: Core::new(settings, 1, T0),
                now: T0,
            };
            let legacy = |event| Command::Legacy {
                store: StoreKind::Etcd,
                event,
            };
            bench.apply(legacy(LegacyEvent::SnapshotStart));
            bench.apply(legacy(LegacyEvent::SnapshotDone { mark: 50 }));
            bench.apply(Command::AdoptLease { id: 42, ttl_s: 30 });
            for (zone, mark) in feed {
                bench.now += 10;
                bench.apply(legacy(LegacyEvent::Put(LegacyEntry {
                    key: key.clone(),
                    value: Some(value(zone)),
                    owner: 42,
                    mark: *mark,
                    meta: LegacyMeta::Pair {
                        create_revision: *mark,
                        version: 1,
                    },
                })));
            }
            let (zone, mark) = acknowledged;
            let op = if as_txn {
                KeyCommand::Txn(crate::key_space::Txn {
                    success: vec![op(zone)],
                    ..Default::default()
                })
            } else {
                put(zone)
            };
            bench.now += 10;
            let fx = bench.apply(Command::KeysAcknowledged {
                peer: "10.0.0.1:7".into(),
                op,
                mark,
            });
            let reply = match fx.reply {
                Some(Reply::Keys(Ok(KeyReply::Put(reply)))) => reply,
                Some(Reply::Keys(Ok(KeyReply::Txn(mut reply)))) => match reply.replies.pop() {
                    Some(crate::key_space::OpReply::Put(reply)) => reply,
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            };
            let there = bench.core.keys().get(&key).expect("is there");
            assert_eq!((&there.value, there.version), (&value(want.0), want.1));
            assert_eq!(reply.revision, there.mod_revision);
            assert_eq!(reply.prev_kv.map_or(0, |kv| kv.version), want.1 - 1);
            assert_eq!(bench.core.services()[0].instances, 1);
        };
    for as_txn in [false, true] {
        check(as_txn, &[], ("a", 60), ("a", 1));
        check(as_txn, &[("a", 60)], ("a", 60), ("a", 1));
        // A heartbeat that writes the same again is news, and the feed does not show it as such.
        check(as_txn, &[("a", 60)], ("a", 61), ("a", 2));
        check(as_txn, &[("a", 60), ("a", 61)], ("a", 61), ("a", 2));
        // Of a record that is here the feed's copy waits for the acknowledgement.
        check(as_txn, &[("a", 60), ("b", 61)], ("b", 61), ("b", 2));
    }
}

#[test]
fn a_set_data_that_the_feed_has_shown_is_not_done_again_when_it_is_acknowledged() {
    // A record without an owner: of others L's copy waits for the acknowledgement.
    let check = |feed: &[(&str, i64)], acknowledged: (&str, i64), want: i32| {
        let mut bench = Bench::with_zookeeper(Phase::MergeLegacy);
        let entry = |end: &str, mark: i64| {
            let mut entry = legacy_entry(3, 0, mark);
            let value = entry.value.unwrap_or_default();
            entry.value = Some([&value[..], end.as_bytes()].concat().into());
            entry
        };
        let first = entry("", 60);
        let path = String::from_utf8(first.key.to_vec()).expect("a path");
        bench.legacy(LegacyEvent::Put(first));
        let version = |bench: &Bench| bench.core.tree().node(&path).map(|n| n.stat().version);
        let before = version(&bench).expect("is there");
        for (end, mark) in feed {
            bench.legacy(LegacyEvent::Put(entry(end, *mark)));
        }
        let (end, mark) = acknowledged;
        let data = entry(end, mark).value;
        let fx = bench.apply(Command::TreeAcknowledged {
            peer: "10.0.0.1:7".into(),
            session: 7,
            op: TreeCommand::SetData {
                path: path.clone(),
                data: data.clone(),
                version: -1,
                auth: vec![AuthId::superuser()],
            },
            mark,
        });
        let Some(Reply::Tree(Ok(TreeReply::Set(stat)))) = fx.reply else {
            panic!("{:?}", fx.reply);
        };
        assert_eq!(version(&bench), Some(before + want), "{feed:?}");
        assert_eq!(stat.version, before + want, "{feed:?}");
        let node = bench.core.tree().node(&path).expect("is there");
        assert_eq!(node.data(), data.as_ref());
    };
    check(&[], (" ", 70), 1);
    check(&[(" ", 70)], (" ", 70), 1);
    check(&[("", 70), (" ", 80)], (" ", 80), 2);
}

#[test]
fn an_etcd_lease_owns_and_expires_like_a_session() {
    let mut bench = Bench::embedded();
    let grant = bench.apply(Command::Keys {
        peer: "c:1".into(),
        op: KeyCommand::LeaseGrant { id: 42, ttl_s: 5 },
    });
    assert!(matches!(
        grant.reply,
        Some(Reply::Keys(Ok(KeyReply::LeaseGrant { id: 42, ttl_s: 5 })))
    ));
    let value = Bytes::from_static(br#"{"Op":0,"Addr":"10.0.0.1:9000","Metadata":null}"#);
    let put = KeyCommand::Put {
        key: Bytes::from_static(b"orders/10.0.0.1:9000"),
        value,
        lease: 42,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    };
    let fx = bench.apply(Command::Keys {
        peer: "c:1".into(),
        op: put,
    });
    assert!(matches!(fx.reply, Some(Reply::Keys(Ok(_)))));
    assert_eq!(bench.core.services()[0].instances, 1);
    assert!(bench.core.ttl_left(LeaseId::lease(42), bench.now).is_some());
    // Young and the last of its service with nothing expected yet: it goes when its lease does.
    bench.pass(8_000, &[]);
    assert!(bench.core.keys().get(b"orders/10.0.0.1:9000").is_none());
    assert!(bench.core.keys().lease(42).is_none());
    assert!(bench.core.renew(LeaseId::lease(42), bench.now).is_err());
}

#[test]
fn a_session_that_the_ensemble_let_go_leaves_its_registrations_to_be_judged() {
    let mut bench = Bench::with_zookeeper(Phase::MergeNew);
    let sessions: Vec<i64> = (1..=10).collect();
    for id in &sessions {
        bench.session(*id);
        bench.apply(Command::Bound { id: *id });
        let (path, data) = spring(u8::try_from(*id).expect("small"));
        for parent in ["/services", "/services/billing"] {
            bench.write(*id, create(parent, b"", CreateMode::Persistent));
        }
        bench.write(
            *id,
            with_session(create(&path, &data, CreateMode::Ephemeral), *id),
        );
    }
    bench.pass(120_000, &sessions);
    for id in &sessions {
        bench.apply(Command::LegacySessionGone { id: *id });
        assert!(bench.core.sessions().get(*id).is_none());
    }
    assert_eq!(bench.children("/services/billing"), 10);
    // One client comes back with another session, and takes its path.
    bench.session(77);
    let (path, data) = spring(1);
    let fx = bench.write(
        77,
        with_session(create(&path, &data, CreateMode::Ephemeral), 77),
    );
    assert!(
        matches!(fx.reply, Some(Reply::Tree(Ok(TreeReply::Created { .. })))),
        "{:?}",
        fx.reply
    );
    // The others do not: that is a mass loss, and is held.
    bench.pass(30_000, &[77]);
    assert_eq!(bench.children("/services/billing"), 10);
    assert_eq!(bench.core.held_count(), 9);
}

#[test]
fn directories_with_sequential_nodes_are_named_with_their_next_number() {
    let mut bench = Bench::embedded();
    bench.session(1);
    bench.write(1, create("/services", b"", CreateMode::Persistent));
    bench.write(1, create("/services/a", b"", CreateMode::Persistent));
    assert!(bench.core.sequence_directories().is_empty());
    for _ in 0..3 {
        let op = create("/services/a/n-", b"", CreateMode::EphemeralSequential);
        bench.write(1, with_session(op, 1));
    }
    assert_eq!(
        bench.core.sequence_directories(),
        [("/services/a".to_owned(), 3)]
    );
}
