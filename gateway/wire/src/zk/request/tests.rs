use super::*;
use crate::zk::multi::MultiOp;

fn acl() -> Vec<Acl> {
    vec![
        Acl {
            perms: 31,
            scheme: "world".into(),
            id: "anyone".into(),
        },
        Acl {
            perms: 1,
            scheme: "digest".into(),
            id: "u:h=".into(),
        },
    ]
}

fn create() -> CreateRequest {
    CreateRequest {
        path: "/a".into(),
        data: Some(Bytes::from_static(b"xy")),
        acl: acl(),
        flags: 3,
    }
}

fn create_ttl() -> CreateTtlRequest {
    CreateTtlRequest {
        path: "/t".into(),
        data: None,
        acl: acl(),
        flags: 5,
        ttl: 60_000,
    }
}

fn read(watch: bool) -> ReadRequest {
    ReadRequest {
        path: "/päth".into(),
        watch,
    }
}

fn path() -> PathRequest {
    PathRequest { path: "/p".into() }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// One request of every kind; the test below fails when a kind is missing here.
fn every_request() -> Vec<Request> {
    let watches = WatchesRequest {
        path: "/w".into(),
        kind: 3,
    };
    let multi = MultiRequest {
        ops: vec![
            MultiOp::Create(create()),
            MultiOp::Create2(create()),
            MultiOp::CreateContainer(create()),
            MultiOp::CreateTtl(create_ttl()),
            MultiOp::Delete(DeleteRequest {
                path: "/d".into(),
                version: 2,
            }),
            MultiOp::SetData(SetDataRequest {
                path: "/s".into(),
                data: None,
                version: -1,
            }),
            MultiOp::Check(CheckVersionRequest {
                path: "/c".into(),
                version: 7,
            }),
        ],
    };
    let multi_read = MultiRequest {
        ops: vec![
            MultiOp::GetData(read(false)),
            MultiOp::GetChildren(read(true)),
        ],
    };
    vec![
        Request::Create(create()),
        Request::Create2(CreateRequest {
            data: None,
            ..create()
        }),
        Request::CreateContainer(CreateRequest {
            data: Some(Bytes::new()),
            acl: vec![],
            ..create()
        }),
        Request::CreateTtl(create_ttl()),
        Request::Delete(DeleteRequest {
            path: "/d".into(),
            version: -1,
        }),
        Request::DeleteContainer(DeleteContainerRequest { path: "/d".into() }),
        Request::Exists(read(true)),
        Request::GetData(read(false)),
        Request::SetData(SetDataRequest {
            path: "/s".into(),
            data: Some(Bytes::new()),
            version: 4,
        }),
        Request::GetAcl(path()),
        Request::SetAcl(SetAclRequest {
            path: "/s".into(),
            acl: acl(),
            version: 1,
        }),
        Request::GetChildren(read(true)),
        Request::GetChildren2(read(false)),
        Request::Sync(path()),
        Request::Check(CheckVersionRequest {
            path: "/c".into(),
            version: 7,
        }),
        Request::Multi(multi),
        Request::MultiRead(multi_read),
        Request::Reconfig(ReconfigRequest {
            joining_servers: None,
            leaving_servers: Some("3".into()),
            new_members: Some(String::new()),
            cur_config_id: -1,
        }),
        Request::CheckWatches(watches.clone()),
        Request::RemoveWatches(watches),
        Request::Auth(AuthRequest {
            kind: 0,
            scheme: "digest".into(),
            auth: Some(Bytes::from_static(b"u:p")),
        }),
        Request::SetWatches(SetWatchesRequest {
            relative_zxid: 9,
            data_watches: strings(&["/a"]),
            exist_watches: strings(&[]),
            child_watches: strings(&["/b", "/c"]),
        }),
        Request::SetWatches2(SetWatches2Request {
            relative_zxid: 9,
            data_watches: strings(&["/a"]),
            exist_watches: strings(&["/x"]),
            child_watches: strings(&[]),
            persistent_watches: strings(&["/p"]),
            persistent_recursive_watches: strings(&["/r", "/q"]),
        }),
        Request::Sasl(SaslRequest {
            token: Some(Bytes::from_static(b"t")),
        }),
        Request::GetEphemerals(GetEphemeralsRequest {
            prefix_path: "/".into(),
        }),
        Request::GetAllChildrenNumber(path()),
        Request::AddWatch(AddWatchRequest {
            path: "/w".into(),
            mode: 1,
        }),
        Request::Ping,
        Request::CloseSession,
        Request::WhoAmI,
    ]
}

#[test]
fn every_request_round_trips() {
    for request in every_request() {
        let frame = encode_request(-4, &request);
        let length = i32::from_be_bytes(*frame.first_chunk().unwrap());
        assert_eq!(length as usize, frame.len() - 4);
        let (header, body) = RequestHeader::split(frame.slice(4..)).unwrap();
        assert_eq!(
            header,
            RequestHeader {
                xid: -4,
                op: request.op()
            }
        );
        assert_eq!(Request::decode(header.op, body), Ok(request));
    }
}

#[test]
fn every_known_number_is_a_request_or_not_for_clients() {
    let covered: Vec<i32> = every_request().iter().map(Request::op).collect();
    for &op in OpCode::ALL {
        let not_for_clients = matches!(
            op,
            OpCode::Notification | OpCode::Error | OpCode::CreateSession
        );
        assert_eq!(
            covered.contains(&(op as i32)),
            !not_for_clients,
            "{}",
            op.name()
        );
    }
    for op in [0, -1, -10, 9999, 500, i32::MAX, i32::MIN] {
        let body = Bytes::from_static(&[0xff; 64]);
        assert_eq!(Request::decode(op, body), Ok(Request::Unknown { op }));
    }
}

/// Every cut of every request is a clean error: fields are never made up from missing bytes.
#[test]
fn cut_requests_are_errors() {
    for request in every_request() {
        let mut out = BytesMut::new();
        request.write(&mut out);
        let body = out.freeze();
        for length in 0..body.len() {
            let got = Request::decode(request.op(), body.slice(..length));
            assert!(got.is_err(), "{request:?} cut to {length}: {got:?}");
        }
    }
}

#[test]
fn bytes_of_known_requests() {
    let check = |request: Request, want: &[&[u8]]| {
        assert_eq!(encode_request(5, &request), want.concat(), "{request:?}");
    };
    check(Request::Ping, &[&[0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 11]]);
    check(
        Request::CloseSession,
        &[&[0, 0, 0, 8, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xf5]],
    );
    check(
        Request::GetChildren2(ReadRequest {
            path: "/".into(),
            watch: true,
        }),
        &[
            &[0, 0, 0, 14, 0, 0, 0, 5, 0, 0, 0, 12],
            &[0, 0, 0, 1, b'/', 1],
        ],
    );
    check(
        Request::Create(CreateRequest {
            path: "/a".into(),
            data: None,
            acl: vec![Acl {
                perms: 31,
                scheme: "world".into(),
                id: "anyone".into(),
            }],
            flags: 1,
        }),
        &[
            &[0, 0, 0, 49, 0, 0, 0, 5, 0, 0, 0, 1],
            &[0, 0, 0, 2],
            b"/a",
            &[0xff, 0xff, 0xff, 0xff],
            &[0, 0, 0, 1, 0, 0, 0, 31, 0, 0, 0, 5],
            b"world",
            &[0, 0, 0, 6],
            b"anyone",
            &[0, 0, 0, 1],
        ],
    );
    check(
        Request::AddWatch(AddWatchRequest {
            path: "/".into(),
            mode: 1,
        }),
        &[
            &[0, 0, 0, 17, 0, 0, 0, 5, 0, 0, 0, 106],
            &[0, 0, 0, 1, b'/', 0, 0, 0, 1],
        ],
    );
}

#[test]
fn wrong_bytes_of_known_operations() {
    let check = |op: OpCode, body: &'static [u8], want| {
        assert_eq!(
            Request::decode(op as i32, Bytes::from_static(body)),
            Err(want),
            "{}",
            op.name()
        );
    };
    check(
        OpCode::GetData,
        &[],
        RecordError::Truncated { wanted: 4, left: 0 },
    );
    check(
        OpCode::GetData,
        &[0, 0, 0, 1, b'/'],
        RecordError::Truncated { wanted: 1, left: 0 },
    );
    check(
        OpCode::GetData,
        &[0x7f, 0, 0, 0, b'/'],
        RecordError::BadLength(0x7f00_0000),
    );
    check(
        OpCode::GetData,
        &[0xff, 0xff, 0xff, 0xfe, b'/'],
        RecordError::BadLength(-2),
    );
    check(
        OpCode::SetWatches,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0],
        RecordError::BadCount(0x1000_0000),
    );
    check(
        OpCode::Create,
        &[
            0, 0, 0, 1, b'/', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 0,
        ],
        RecordError::BadCount(2),
    );
    check(
        OpCode::Multi,
        &[0, 0, 0, 12, 0, 0, 0, 0, 0],
        RecordError::BadMultiOp(12),
    );
}

#[test]
fn bytes_after_the_last_field_are_ignored_as_by_the_java_server() {
    let body = Bytes::from_static(&[0, 0, 0, 1, b'/', 0, 9, 9]);
    let want = Request::Exists(ReadRequest {
        path: "/".into(),
        watch: false,
    });
    assert_eq!(Request::decode(3, body), Ok(want));
}

/// Damaged requests either fail or decode to something that survives a round trip; nothing panics.
#[test]
fn damaged_requests_never_panic() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut failed, mut decoded) = (0, 0);
    for request in every_request() {
        let body = encode_request(1, &request).slice(12..);
        for _ in 0..if body.is_empty() { 0 } else { 300 } {
            let mut damaged = body.to_vec();
            for _ in 0..=next() % 3 {
                let at = next() as usize % damaged.len();
                damaged[at] = next() as u8;
            }
            match Request::decode(request.op(), damaged.into()) {
                Err(_) => failed += 1,
                Ok(got) => {
                    decoded += 1;
                    let again = encode_request(1, &got).slice(12..);
                    assert_eq!(Request::decode(got.op(), again), Ok(got));
                }
            }
        }
    }
    assert!(failed > 500 && decoded > 500, "{failed} {decoded}");
}
