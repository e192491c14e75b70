use super::*;

fn method(path: &str) -> &'static JsonMethod {
    JsonMethod::at(path).unwrap_or_else(|| panic!("{path} is no path"))
}

#[test]
fn every_annotated_method_has_its_paths() {
    assert_eq!(tables().methods.len(), 48);
    for (path, grpc, client, server) in [
        ("/v3/kv/range", "/etcdserverpb.KV/Range", false, false),
        ("/v3/watch", "/etcdserverpb.Watch/Watch", true, true),
        ("/v3beta/watch", "/etcdserverpb.Watch/Watch", true, true),
        (
            "/v3/lease/keepalive",
            "/etcdserverpb.Lease/LeaseKeepAlive",
            true,
            true,
        ),
        (
            "/v3/lease/revoke",
            "/etcdserverpb.Lease/LeaseRevoke",
            false,
            false,
        ),
        (
            "/v3/kv/lease/revoke",
            "/etcdserverpb.Lease/LeaseRevoke",
            false,
            false,
        ),
        (
            "/v3/kv/lease/leases",
            "/etcdserverpb.Lease/LeaseLeases",
            false,
            false,
        ),
        (
            "/v3/maintenance/snapshot",
            "/etcdserverpb.Maintenance/Snapshot",
            false,
            true,
        ),
        (
            "/v3/election/observe",
            "/v3electionpb.Election/Observe",
            false,
            true,
        ),
        ("/v3/lock/lock", "/v3lockpb.Lock/Lock", false, false),
        (
            "/v3/auth/user/add",
            "/etcdserverpb.Auth/UserAdd",
            false,
            false,
        ),
    ] {
        let found = method(path);
        assert_eq!(
            (found.path(), found.client_streams(), found.server_streams()),
            (grpc, client, server),
            "{path}"
        );
    }
    for path in [
        "/v3",
        "/v3/",
        "/v3/kv",
        "/v3alpha/kv/range",
        "/v3beta",
        "",
        "/v2/keys",
    ] {
        assert!(JsonMethod::at(path).is_none(), "{path}");
    }
}

#[test]
fn methods_are_known_by_name() {
    assert_eq!(has_method("etcdserverpb.KV", "Range"), Some(true));
    assert_eq!(has_method("etcdserverpb.KV", "Nope"), Some(false));
    assert_eq!(has_method("no.Service", "Range"), None);
}

/// What JSON a method reads means the same as the canonical one, written back by another method with that message.
#[test]
fn requests_are_read_in_every_spelling() {
    use crate::etcd::messages::etcdserverpb as pb;
    use prost::Message as _;
    let check = |json: &str, want: pb::RangeRequest| {
        let encoded = method("/v3/kv/range").request(json.as_bytes());
        let encoded = encoded.unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(pb::RangeRequest::decode(encoded), Ok(want), "{json}");
    };
    let key = |key: &'static [u8]| pb::RangeRequest {
        key: Bytes::from_static(key),
        ..Default::default()
    };
    check("{}", key(b""));
    check(r#"{"key":"Zm9v"}"#, key(b"foo"));
    check(r#"{"key":"Zm8"}"#, key(b"fo"));
    check(r#"{"key":"_-8="}"#, key(b"\xff\xef"));
    check(r#"{"key":"Zm9v","nobody":{"knows":[1,{}]}}"#, key(b"foo"));
    for json in [
        r#"{"key":"Zm9v","range_end":"Zm9w","limit":"7","sort_order":"DESCEND","count_only":true}"#,
        r#"{"key":"Zm9v","rangeEnd":"Zm9w","limit":7,"sortOrder":2,"countOnly":true}"#,
    ] {
        check(
            json,
            pb::RangeRequest {
                range_end: Bytes::from_static(b"fop"),
                limit: 7,
                sort_order: pb::range_request::SortOrder::Descend.into(),
                count_only: true,
                ..key(b"foo")
            },
        );
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let deep = |levels: usize| {
        let open = r#"{"success":[{"request_txn":"#.repeat(levels);
        format!("{open}{{}}{}", "}]}".repeat(levels))
    };
    let txn = method("/v3/kv/txn");
    assert!(txn.request(deep(10).as_bytes()).is_ok());
    for json in [
        "",
        "{",
        "null",
        "[]",
        "7",
        "\u{0}",
        r#"{"compare":7}"#,
        r#"{"compare":[{"key":"*"}]}"#,
        r#"{"success":[{"request_put":{"lease":"x"}}]}"#,
        r#"{"success":[{"request_put":{"lease":99999999999999999999}}]}"#,
        r#"{"compare":[{"version":1,"mod_revision":2}]}"#,
        &deep(100),
        &deep(100_000),
        &"[".repeat(1_000_000),
        &format!(r#"{{"nobody":{}"#, "[".repeat(1_000_000)),
    ] {
        assert!(txn.request(json.as_bytes()).is_err(), "{json:.60}");
    }
}

#[test]
fn answers_are_written_as_etcd_writes_them() {
    use crate::etcd::messages::{etcdserverpb as pb, mvccpb};
    use prost::Message as _;
    let check = |path: &str, message: Vec<u8>, want: &str| {
        let written = method(path).response(message.into()).expect("JSON");
        assert_eq!(String::from_utf8_lossy(&written), want, "{path}");
    };
    let header = Some(pb::ResponseHeader {
        cluster_id: 14_841_639_068_965_178_418,
        member_id: 0,
        revision: 7,
        raft_term: 2,
    });
    let kv = mvccpb::KeyValue {
        key: Bytes::from_static(b"\xff"),
        create_revision: 5,
        ..Default::default()
    };
    let range = pb::RangeResponse {
        header,
        kvs: vec![kv],
        more: false,
        count: 1,
    };
    check(
        "/v3/kv/range",
        range.encode_to_vec(),
        r#"{"header":{"cluster_id":"14841639068965178418","revision":"7","raft_term":"2"},"kvs":[{"key":"/w==","create_revision":"5"}],"count":"1"}"#,
    );
    let grant = pb::LeaseGrantResponse {
        id: -1,
        ttl: 0,
        ..Default::default()
    };
    check("/v3/lease/grant", grant.encode_to_vec(), r#"{"ID":"-1"}"#);
    // What was set to a choice is shown, however empty.
    let txn = pb::TxnResponse {
        responses: vec![pb::ResponseOp {
            response: Some(pb::response_op::Response::ResponsePut(
                pb::PutResponse::default(),
            )),
        }],
        ..Default::default()
    };
    check(
        "/v3/kv/txn",
        txn.encode_to_vec(),
        r#"{"responses":[{"response_put":{}}]}"#,
    );
    let alarm = pb::AlarmResponse {
        header: None,
        alarms: vec![pb::AlarmMember {
            member_id: 1,
            alarm: pb::AlarmType::Nospace.into(),
        }],
    };
    check(
        "/v3/maintenance/alarm",
        alarm.encode_to_vec(),
        r#"{"alarms":[{"memberID":"1","alarm":"NOSPACE"}]}"#,
    );
    let line = method("/v3/watch").line(Bytes::new()).expect("JSON");
    assert_eq!(line, b"{\"result\":{}}\n");
    assert!(
        method("/v3/watch")
            .response(Bytes::from_static(b"\xff"))
            .is_err()
    );
}

#[test]
fn errors_hold_what_each_release_puts_there() {
    let body: serde_json::Value = serde_json::from_slice(&error_body(5, "gone")).expect("JSON");
    assert_eq!(body, json!({"error": "gone", "code": 5, "message": "gone"}));
    let line = error_line(14, "stopped");
    assert!(line.ends_with(b"}\n"));
    let line: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
    let want = json!({"error": {
        "grpc_code": 14, "http_code": 503, "message": "stopped", "http_status": "Service Unavailable", "code": 14,
    }});
    assert_eq!(line, want);
    for (code, status) in [
        (3, 400),
        (5, 404),
        (7, 403),
        (9, 400),
        (11, 400),
        (12, 501),
        (2, 500),
        (99, 500),
    ] {
        assert_eq!(http_status(code), status, "{code}");
    }
}

#[test]
fn values_are_cut_wherever_the_body_breaks() {
    let body = br#" {"a":"}\"{"} {"b":[{},{}]}
        {"c":"\\"}{}  "#;
    let want = [r#"{"a":"}\"{"}"#, r#"{"b":[{},{}]}"#, r#"{"c":"\\"}"#, "{}"];
    for size in 1..body.len() {
        let mut values = JsonValues::default();
        let mut got = Vec::new();
        for part in body.chunks(size) {
            values.push(part);
            while let Some(value) = values.take().expect("objects") {
                got.push(value);
            }
        }
        assert_eq!(got, want, "in parts of {size}");
        assert_eq!((values.finish(), values.waiting()), (Ok(()), 0));
    }
    for (body, is_refused) in [
        ("5", true),
        ("}", true),
        ("\"x\"", true),
        ("{\"a\":", false),
    ] {
        let mut values = JsonValues::default();
        values.push(body.as_bytes());
        let taken = values.take();
        assert_eq!(taken.is_err(), is_refused, "{body}");
        assert!(is_refused || values.finish().is_err(), "{body}");
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut seed = 7_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "key",
        "\"key\"",
        "\"success\"",
        "\"request_put\"",
        "\"Zm9v\"",
        "1",
        "-9e999",
        "null",
        "true",
        "\\ud800",
        "\u{fffd}",
        " ",
    ];
    for _ in 0..20_000 {
        let length = next() % 12;
        let json: String = (0..length).map(|_| pieces[next() % pieces.len()]).collect();
        let mut values = JsonValues::default();
        values.push(json.as_bytes());
        while let Ok(Some(value)) = values.take() {
            let _ = method("/v3/kv/txn").request(&value);
        }
        let _ = method("/v3/kv/txn").request(json.as_bytes());
        let _ = method("/v3/kv/range").response(json.into_bytes().into());
    }
}
