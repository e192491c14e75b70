use std::time::Duration;

use prost_reflect::DynamicMessage;

use super::*;
use crate::raw::etcd::pool;

#[test]
fn the_same_seed_gives_the_same_script() {
    let script = |seed| Etcd.generate(seed, &Shape::default());
    assert_eq!(script(1), script(1));
    assert_ne!(script(1), script(2));
}

#[test]
fn every_script_prints_and_parses_back() {
    for seed in 0..50 {
        let script = Etcd.generate(seed, &Shape::default());
        let text = script.print(|op| Etcd.print(op));
        let parsed = Script::parse(&text, |op| Etcd.parse(op));
        let parsed = parsed.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_eq!(parsed, script, "{text}");
    }
}

#[test]
fn simpler_operations_come_to_an_end() {
    for seed in 0..2 {
        let script = Etcd.generate(seed, &Shape::default());
        for step in &script.steps {
            for (_, op) in &step.ops {
                let mut op = op.clone();
                // Each variant has fewer parts or plainer ones, so that a walk down is as long as the text.
                for _ in 0..5000 {
                    let Some(simpler) = Etcd.simplify(&op).pop() else {
                        break;
                    };
                    op = simpler;
                }
                assert!(Etcd.simplify(&op).is_empty(), "{}", Etcd.print(&op));
            }
        }
    }
}

#[test]
fn what_no_seed_draws_prints_and_parses_back() {
    for line in [
        "w0 open+hasleader",
        "http GET /version",
        "http POST /v3/kv/range {\"key\": \"<$/a>\"} x",
    ] {
        let operation: Operation = line.parse().unwrap();
        assert_eq!(operation.to_string(), line);
    }
}

#[test]
fn what_is_not_an_operation_is_refused() {
    for line in [
        "",
        "KV/Put",
        "KV/Put {key}",
        "KV/Put {key=\"$/a\"",
        "KV/Put+nothing {}",
        "w0 {}",
        "x0 []",
        "w0",
        "sleep long",
        "raw KV/Put 5",
        "w0 open+nothing",
        "http GET",
        "KV/Txn {success=[{}*99999]}",
    ] {
        assert!(line.parse::<Operation>().is_err(), "{line}");
    }
    let deep = format!("KV/Txn {}1", "{a=".repeat(1000));
    assert!(deep.parse::<Operation>().is_err());
}

fn message(kind: &str, text: &str, names: &Names) -> DynamicMessage {
    let descriptor = pool().get_message_by_name(kind).unwrap();
    let encoded = value::parse(text).unwrap().encode(&descriptor, names);
    DynamicMessage::decode(descriptor, encoded.unwrap().as_slice()).unwrap()
}

/// What a reply is shown as. In the text `@0` is 1000, the revision before the script.
fn check(kind: &str, text: &str, expected: &str) {
    let mut names = Names::new("root");
    names.base = 1000;
    let message = message(kind, text, &names);
    let mut seen = [Seen {
        step: 0,
        client: 0,
        request: String::new(),
        text: names.show(&message, Duration::from_secs(3)),
    }];
    names.finish(&mut seen, Revisions::Relative);
    assert_eq!(seen[0].text, expected, "{text}");
}

#[test]
fn replies_are_shown_by_what_relates_them() {
    let header = "header={cluster_id=77 member_id=88 revision=@0+2 raft_term=3}";
    let cases = [
        ("PutResponse", header, "header=r+2"),
        // Anything that is missing in a header shows.
        (
            "PutResponse",
            "header={cluster_id=77 revision=@0}",
            "header.cluster_id=cluster1 header.revision=r+0",
        ),
        ("PutResponse", "prev_kv={}", "prev_kv={}"),
        (
            "PutResponse",
            "prev_kv={key=\"$/a\" create_revision=@0-1 mod_revision=@0+5 version=2 value=\"x y\" lease=L2}",
            "prev_kv.key=\"$/a\" prev_kv.create_revision=r-1 prev_kv.mod_revision=r+5 prev_kv.version=2 \
             prev_kv.value=\"x\\x20y\" prev_kv.lease=L2",
        ),
        // Which of two ids that the server chose sorts first is chance, for locks of one name alone.
        (
            "RangeResponse",
            "kvs=[{key=\"$/l/7fffffff1\" create_revision=@0+2} {key=\"$/l/7fffffff2\" create_revision=@0+1} \
             {key=\"$/m/7fffffff2\" create_revision=@0}]",
            "kvs.key=\"$/l/{C1}\" kvs.create_revision=r+1 kvs.key=\"$/l/{C2}\" kvs.create_revision=r+2 \
             kvs.key=\"$/m/{C1}\" kvs.create_revision=r+0",
        ),
        (
            "RangeResponse",
            "kvs=[{key=\"$/l/b\" create_revision=@0+2} {key=\"$/l/c\" create_revision=@0+1}]",
            "kvs.key=\"$/l/b\" kvs.create_revision=r+2 kvs.key=\"$/l/c\" kvs.create_revision=r+1",
        ),
        // However deep, a field is named by the message it is in.
        (
            "TxnResponse",
            "succeeded=true responses=[{response_txn={responses=[{response_range={kvs=[{key=\"$/b\" lease=L-1}]}}]}}]",
            "succeeded=true kvs.key=\"$/b\" kvs.lease=L-1",
        ),
        (
            "LeaseLeasesResponse",
            "leases=[{ID=123456789} {ID=L1} {ID=123456790} {ID=123456789}]",
            "leases.ID=C1 leases.ID=C1 leases.ID=C2 leases.ID=L1",
        ),
        (
            "LeaseTimeToLiveResponse",
            "ID=L1 TTL=57 grantedTTL=60 keys=[\"$/a\" \"$/b\"]",
            "ID=L1 TTL=left grantedTTL=60 keys=[\"$/a\",\"$/b\"]",
        ),
        // More has gone than has passed; more is left than was granted; none at all.
        (
            "LeaseTimeToLiveResponse",
            "TTL=10 grantedTTL=60",
            "TTL=10 grantedTTL=60",
        ),
        (
            "LeaseTimeToLiveResponse",
            "TTL=61 grantedTTL=60",
            "TTL=61 grantedTTL=60",
        ),
        ("LeaseTimeToLiveResponse", "TTL=-1", "TTL=-1"),
        (
            "MemberListResponse",
            "members=[{ID=88 name=\"n\" clientURLs=[\"a\" \"b\"]}]",
            "members.ID=member1 members.name=some members.clientURLs=2*some",
        ),
        (
            "StatusResponse",
            "version=\"3.5.0\" leader=88 raftTerm=4 errors=[\"bad\"]",
            "version=some leader=member1 raftTerm=some errors=[\"bad\"]",
        ),
        (
            "WatchResponse",
            "watch_id=-1 created=true canceled=true compact_revision=@0+1 cancel_reason=\"why\"",
            "watch_id=-1 created=true canceled=true compact_revision=r+1 cancel_reason=\"why\"",
        ),
        (
            "WatchResponse",
            "events=[{type=DELETE kv={key=\"$lock/{L3}\" mod_revision=@0+9}}]",
            "events.type=DELETE kv.key=\"$lock/{L3}\" kv.mod_revision=r+9",
        ),
    ];
    for (kind, text, expected) in cases {
        check(
            &format!("etcdserverpb.{kind}"),
            &format!("{{{text}}}"),
            expected,
        );
    }
    // The id of a lock's lease that only the server knows is in its key.
    check(
        "v3lockpb.LockResponse",
        "{key=\"$lock/694d7f1a2b3c4d5e\"}",
        "key=\"$lock/{C1}\"",
    );
}

#[test]
fn ranks_forget_distances_but_not_order() {
    let mut names = Names::new("root");
    names.base = 1000;
    let mut seen = Vec::new();
    for revision in ["@0+70", "@0+5", "@0+70"] {
        let text =
            format!("{{header={{cluster_id=1 member_id=1 raft_term=1 revision={revision}}}}}");
        let message = message("etcdserverpb.PutResponse", &text, &names);
        seen.push(Seen {
            step: 0,
            client: 0,
            request: String::new(),
            text: names.show(&message, Duration::ZERO),
        });
    }
    let mut of_keys = seen.clone();
    names.finish(&mut of_keys, Revisions::Keys);
    assert!(of_keys.iter().all(|seen| seen.text == "header=some"));
    names.finish(&mut seen, Revisions::Rank);
    let shown: Vec<&str> = seen.iter().map(|seen| seen.text.as_str()).collect();
    assert_eq!(shown, ["header=rank0", "header=rank0", "header=rank1"]);
}

#[test]
fn events_of_a_watcher_join_and_a_cut_revision_shows() {
    let mut names = Names::new("root");
    names.base = 1000;
    let event =
        |key: &str, revision: i64| format!("{{kv={{key=\"{key}\" mod_revision=@0+{revision}}}}}");
    let shown = |messages: &[String]| -> Vec<String> {
        let mut names = Names::new("root");
        let messages = messages
            .iter()
            .map(|text| message("etcdserverpb.WatchResponse", text, &names))
            .collect();
        run::arrange(messages, b"root~")
            .iter()
            .map(|(message, what)| {
                let id = names::int(message, "watch_id");
                let events = names
                    .show(message, Duration::ZERO)
                    .matches("kv.key")
                    .count();
                format!("{what} of {id}: {events}")
            })
            .collect()
    };
    let watched = |id: i64, more: &str, events: &[String]| {
        format!("{{watch_id={id} {more} events=[{}]}}", events.join(" "))
    };
    let messages = [
        "{watch_id=-1}".to_string(),
        watched(5, "", &[event("$/a", 1)]),
        watched(0, "", &[event("$/a", 1)]),
        watched(5, "", &[event("$/a", 2), event("$~", 3)]),
        "{watch_id=0 canceled=true}".to_string(),
        "{watch_id=6 created=true}".to_string(),
    ];
    assert_eq!(
        shown(&messages),
        [
            "created of 6: 0",
            "events of 0: 1",
            "canceled of 0: 0",
            "events of 5: 2",
            "progress of -1: 0"
        ]
    );
    let cut = [
        watched(1, "", &[event("$/a", 1)]),
        watched(1, "", &[event("$/b", 1)]),
    ];
    assert_eq!(shown(&cut), ["events cut inside a revision of 1: 2"]);
    let fragments = [
        watched(1, "fragment=true", &[event("$/a", 1)]),
        watched(1, "", &[event("$/b", 1)]),
    ];
    assert_eq!(shown(&fragments), ["events of 1: 2"]);
    // Only the runner's own key: nothing to tell.
    assert!(shown(&[watched(1, "", &[event("$~", 4)])]).is_empty());
}

#[test]
fn bytes_are_filled_in() {
    let names = Names::new("root");
    let cases: [(&[u8], &[u8]); 6] = [
        (b"$/a", b"root/a"),
        (b"", b""),
        (b"a$", b"a$"),
        (b"{x*3}y", b"xxxy"),
        (b"{", b"{"),
        (b"k/{77}", b"k/4d"),
    ];
    for (text, expected) in cases {
        assert_eq!(value::fill_in(text, &names).unwrap(), expected);
    }
    assert_eq!(value::lease_hex(-255), "-ff");
    assert!(value::fill_in(b"{x*99999999999}", &names).is_err());
    assert!(value::fill_in(b"{no such}", &names).is_err());
}
