use super::*;
use causeway_engine::key_space::CompareResult;
use causeway_wire::etcd::messages::etcdserverpb::range_request::{SortOrder, SortTarget};

fn kv(key: &'static str, value: &'static str, create_revision: i64, mod_revision: i64) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.into(),
        create_revision,
        mod_revision,
        version: 1,
        lease: 0,
    }
}

#[test]
fn one_list_out_of_both() {
    let pairs = || {
        vec![
            kv("b", "1", 5, 50),
            kv("d", "0", 6, 60),
            kv("a", "3", 900, 901),
            kv("c", "2", 902, 903),
        ]
    };
    let check = |range: pb::RangeRequest, want: &str, count: i64, more: bool| {
        let (kvs, found, cut) = select(&range, Release::default(), pairs());
        let keys: String = kvs
            .iter()
            .map(|kv| std::str::from_utf8(&kv.key).expect("text"))
            .collect();
        assert_eq!(
            (keys.as_str(), found, cut),
            (want, count, more),
            "{range:?}"
        );
    };
    let plain = pb::RangeRequest::default;
    check(plain(), "abcd", 4, false);
    check(
        pb::RangeRequest {
            limit: 3,
            ..plain()
        },
        "abc",
        4,
        true,
    );
    check(
        pb::RangeRequest {
            limit: 4,
            ..plain()
        },
        "abcd",
        4,
        false,
    );
    check(
        pb::RangeRequest {
            limit: -1,
            ..plain()
        },
        "abcd",
        4,
        false,
    );
    check(
        pb::RangeRequest {
            count_only: true,
            limit: 1,
            ..plain()
        },
        "",
        4,
        false,
    );
    check(
        pb::RangeRequest {
            min_mod_revision: 60,
            max_mod_revision: 901,
            ..plain()
        },
        "ad",
        4,
        false,
    );
    check(
        pb::RangeRequest {
            min_create_revision: 6,
            max_create_revision: 900,
            ..plain()
        },
        "ad",
        4,
        false,
    );
    let sorted = |target: SortTarget, order: SortOrder| pb::RangeRequest {
        sort_target: target.into(),
        sort_order: order.into(),
        ..plain()
    };
    check(
        sorted(SortTarget::Key, SortOrder::Descend),
        "dcba",
        4,
        false,
    );
    check(
        sorted(SortTarget::Create, SortOrder::None),
        "bdac",
        4,
        false,
    );
    check(
        sorted(SortTarget::Value, SortOrder::Ascend),
        "dbca",
        4,
        false,
    );
    check(
        pb::RangeRequest {
            limit: 1,
            ..sorted(SortTarget::Mod, SortOrder::Descend)
        },
        "c",
        4,
        true,
    );
    let no_values = |sort_target: SortTarget, release| {
        let range = pb::RangeRequest {
            keys_only: true,
            sort_target: sort_target.into(),
            ..plain()
        };
        let pairs = pairs().into_iter().map(|kv| KeyValue { lease: 7, ..kv });
        let (kvs, ..) = select(&range, release, pairs.collect());
        assert!(
            kvs.iter()
                .all(|kv| kv.value.is_empty() && kv.mod_revision > 0)
        );
        kvs[0].lease
    };
    assert_eq!(no_values(SortTarget::Key, Release::new(3, 7)), 0);
    assert_eq!(no_values(SortTarget::Value, Release::new(3, 7)), 7);
    assert_eq!(no_values(SortTarget::Key, Release::new(3, 6)), 7);
}

fn compare(key: &'static str, operand: pb::compare::TargetUnion) -> pb::Compare {
    use pb::compare::{CompareTarget as T, TargetUnion as U};
    let target = match operand {
        U::Version(_) => T::Version,
        U::CreateRevision(_) => T::Create,
        U::ModRevision(_) => T::Mod,
        U::Value(_) => T::Value,
        U::Lease(_) => T::Lease,
    };
    pb::Compare {
        key: key.into(),
        target: target.into(),
        target_union: Some(operand),
        ..Default::default()
    }
}

#[test]
fn a_condition_on_our_number_becomes_one_on_the_legacy_clusters() {
    use causeway_engine::core::{Command, LegacyEntry, LegacyEvent, LegacyMeta, Settings, Store};
    use causeway_engine::layout::{LayoutConfig, LayoutSet};
    use causeway_engine::phase::Phase;
    use pb::compare::TargetUnion as U;

    let layouts: toml::Table =
        toml::from_str("[[layout]]\nuse = 'grpc-endpoints'\ntargets = ['orders']\n")
            .expect("the test's TOML parses");
    let layouts: Vec<LayoutConfig> = layouts["layout"]
        .clone()
        .try_into()
        .expect("the test's layouts are valid");
    let settings = Settings {
        zookeeper: Store::Embedded,
        etcd: Store::Legacy,
        layouts: LayoutSet::load(&layouts, &[], None).expect("the test's layouts load"),
        bridges: Vec::new(),
        protection: Default::default(),
        phase: Phase::MergeLegacy,
        gate_time_ms: 0,
        tolerated_difference_ms: 0,
    };
    let now_ms = 1_796_000_000_000;
    let mut core = Core::new(settings, 1, now_ms);
    let there = LegacyEntry {
        key: "orders/a".into(),
        value: Some(r#"{"Op":0,"Addr":"10.0.0.1:9000","Metadata":null}"#.into()),
        owner: 0,
        mark: 40,
        meta: LegacyMeta::Pair {
            create_revision: 30,
            version: 2,
        },
    };
    for event in [
        LegacyEvent::SnapshotStart,
        LegacyEvent::Put(there),
        LegacyEvent::SnapshotDone { mark: 50 },
    ] {
        let store = StoreKind::Etcd;
        core.apply(&Command::Legacy { store, event }, now_ms);
    }
    assert!(core.keys().get(b"orders/a").is_some());
    let there = compare("orders/a", U::Version(1));
    assert_eq!(unchanged(&core, &there), seen_at(&there, 40));
    let absent = compare("orders/b", U::CreateRevision(0));
    assert_eq!(unchanged(&core, &absent), seen_at(&absent, 0));
    let of_range = |asked: pb::Compare| pb::Compare {
        range_end: "orders0".into(),
        ..asked
    };
    let asked = of_range(compare("orders/", U::Version(1)));
    let want = pb::Compare {
        result: pb::compare::CompareResult::Less.into(),
        ..of_range(seen_at(&asked, 41))
    };
    assert_eq!(unchanged(&core, &asked), want);
}

fn seen_at(asked: &pb::Compare, mark: i64) -> pb::Compare {
    pb::Compare {
        key: asked.key.clone(),
        ..compare("", pb::compare::TargetUnion::ModRevision(mark))
    }
}

fn put(key: &'static str, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest {
        key: key.into(),
        value: "v".into(),
        lease,
        ..Default::default()
    };
    pb::RequestOp {
        request: Some(Asked::RequestPut(put)),
    }
}

#[test]
fn conditions_on_our_numbers_are_judged_here() {
    use pb::compare::TargetUnion as U;
    let owned = |compare: &pb::Compare| compare.key.starts_with(b"own");
    // 77 is the number that the record has here.
    let holds = |compare: &Compare| {
        compare.target == CompareTarget::Mod(77) && compare.result == CompareResult::Equal
    };
    // 40 is the number that the legacy cluster gave it.
    let unchanged = |compare: &pb::Compare| seen_at(compare, 40);
    let seen = compare("own", U::ModRevision(40));
    let general = compare("general", U::ModRevision(5));
    let value = compare("own", U::Value("v".into()));
    let check = |asked: Vec<pb::Compare>, want: Vec<pb::Compare>| {
        let inside = pb::TxnRequest {
            compare: asked.clone(),
            ..Default::default()
        };
        let op = |txn| pb::RequestOp {
            request: Some(Asked::RequestTxn(txn)),
        };
        let txn = pb::TxnRequest {
            compare: asked,
            success: vec![op(inside)],
            ..Default::default()
        };
        let inside = pb::TxnRequest {
            compare: want.clone(),
            ..Default::default()
        };
        let wanted = pb::TxnRequest {
            compare: want,
            success: vec![op(inside)],
            ..Default::default()
        };
        assert_eq!(turn(&txn, &owned, &unchanged, &holds), wanted);
    };
    check(
        vec![general.clone(), value.clone()],
        vec![general.clone(), value],
    );
    check(
        vec![compare("own", U::ModRevision(77)), general.clone()],
        vec![seen, general],
    );
    check(
        vec![compare("own", U::ModRevision(76))],
        vec![never(&"own".into())],
    );
}

#[test]
fn the_view_follows_with_what_was_done() {
    let owned = |key: &[u8], _: &[u8]| key.starts_with(b"own");
    let inner = pb::TxnRequest {
        success: vec![put("own/i", 0)],
        failure: vec![put("own/j", 0)],
        ..Default::default()
    };
    let txn = pb::TxnRequest {
        success: vec![
            put("own/a", 3),
            put("general", 0),
            pb::RequestOp {
                request: Some(Asked::RequestTxn(inner)),
            },
        ],
        failure: vec![put("own/b", 0)],
        ..Default::default()
    };
    let answer = |response| pb::ResponseOp {
        response: Some(response),
    };
    let done = || answer(Answer::ResponsePut(pb::PutResponse::default()));
    let check = |there: pb::TxnResponse, want: &[&str]| {
        fn keys(txn: &Txn, out: &mut Vec<String>) {
            for op in &txn.success {
                match op {
                    Op::Put { key, .. } => out.push(String::from_utf8_lossy(key).into_owned()),
                    Op::Txn(inner) => keys(inner, out),
                    other => panic!("{other:?}"),
                }
            }
        }
        let here = done_here(&txn, &there, &owned);
        let mut found = Vec::new();
        keys(&here, &mut found);
        assert_eq!(found, want);
    };
    for (inner_succeeded, last) in [(true, "own/i"), (false, "own/j")] {
        let inner = pb::TxnResponse {
            succeeded: inner_succeeded,
            responses: vec![done()],
            header: None,
        };
        let responses = vec![done(), done(), answer(Answer::ResponseTxn(inner))];
        check(
            pb::TxnResponse {
                succeeded: true,
                responses,
                header: None,
            },
            &["own/a", last],
        );
    }
    check(
        pb::TxnResponse {
            succeeded: false,
            responses: vec![done()],
            header: None,
        },
        &["own/b"],
    );
    assert_eq!(leased_puts(&txn), [(3, Bytes::from("own/a"))]);
    assert!(writes(&txn) && !writes(&pb::TxnRequest::default()));
}

#[test]
fn verdicts_of_the_legacy_cluster_are_shown() {
    let txn = |succeeded, responses| pb::TxnResponse {
        succeeded,
        responses,
        header: None,
    };
    let inside = |answer| pb::ResponseOp {
        response: Some(Answer::ResponseTxn(answer)),
    };
    let mut answer = txn(true, vec![inside(txn(true, vec![]))]);
    as_decided(&mut answer, &txn(false, vec![inside(txn(false, vec![]))]));
    assert_eq!(answer, txn(false, vec![inside(txn(false, vec![]))]));
}

#[test]
fn a_directory_without_its_slash() {
    let roots = [b"orders-grpc/".to_vec(), b"/microservices/".to_vec()];
    for (key, want) in [
        ("orders-grpc", true),
        ("/microservices", true),
        ("orders", false),
        ("orders-grpc/", false),
        ("", false),
    ] {
        assert_eq!(is_directory(&roots, key.as_bytes()), want, "{key}");
    }
}

#[test]
fn general_keys_as_last_seen() {
    let seen = LastSeen::default();
    let range = |n: usize| (Bytes::from(format!("{n}")), Bytes::from_static(b"\0"));
    seen.keep(range(0), &[kv("a", "1", 1, 1)]);
    seen.keep(range(0), &[kv("a", "2", 1, 2)]);
    assert_eq!(seen.get(&range(0)), [kv("a", "2", 1, 2)]);
    for n in 1..KEPT + 1 {
        seen.keep(range(n), &[kv("a", "1", 1, 1)]);
    }
    assert!(seen.get(&range(KEPT)).is_empty() && !seen.get(&range(KEPT - 1)).is_empty());
    seen.keep(range(0), &[]);
    assert!(seen.get(&range(0)).is_empty());
}
