use super::*;
use crate::zk::multi::MultiResult;

fn stat() -> Stat {
    Stat {
        czxid: 1,
        mzxid: 2,
        version: 3,
        num_children: 4,
        pzxid: 5,
        ..Stat::default()
    }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn every_reply() -> Vec<(OpCode, Reply)> {
    let acl = vec![Acl {
        perms: 1,
        scheme: "ip".into(),
        id: "10.0.0.1".into(),
    }];
    let path = || "/a".to_owned();
    vec![
        (
            OpCode::Create,
            Reply::Create(CreateResponse { path: path() }),
        ),
        (
            OpCode::Create2,
            Reply::Create2(Create2Response {
                path: path(),
                stat: stat(),
            }),
        ),
        (OpCode::Exists, Reply::Stat(StatResponse { stat: stat() })),
        (
            OpCode::GetData,
            Reply::GetData(GetDataResponse {
                data: None,
                stat: stat(),
            }),
        ),
        (
            OpCode::GetData,
            Reply::GetData(GetDataResponse {
                data: Some(Bytes::new()),
                stat: stat(),
            }),
        ),
        (
            OpCode::GetAcl,
            Reply::GetAcl(GetAclResponse { acl, stat: stat() }),
        ),
        (
            OpCode::GetChildren,
            Reply::GetChildren(GetChildrenResponse {
                children: strings(&["x", "y"]),
            }),
        ),
        (
            OpCode::GetChildren2,
            Reply::GetChildren2(GetChildren2Response {
                children: strings(&[]),
                stat: stat(),
            }),
        ),
        (OpCode::Sync, Reply::Sync(SyncResponse { path: path() })),
        (
            OpCode::Multi,
            Reply::Multi(MultiResponse {
                results: vec![MultiResult::Delete, MultiResult::Error(-101)],
            }),
        ),
        (
            OpCode::Sasl,
            Reply::Sasl(SaslResponse {
                token: Some(Bytes::from_static(b"t")),
            }),
        ),
        (
            OpCode::GetEphemerals,
            Reply::GetEphemerals(GetEphemeralsResponse {
                ephemerals: strings(&["/e"]),
            }),
        ),
        (
            OpCode::GetAllChildrenNumber,
            Reply::GetAllChildrenNumber(GetAllChildrenNumberResponse { total_number: 9 }),
        ),
        (OpCode::AddWatch, Reply::AddWatch(ErrorResponse { err: 0 })),
        (
            OpCode::WhoAmI,
            Reply::WhoAmI(WhoAmIResponse {
                client_info: vec![ClientInfo {
                    auth_scheme: "digest".into(),
                    user: "u".into(),
                }],
            }),
        ),
        (OpCode::Delete, Reply::Empty(())),
    ]
}

#[test]
fn every_reply_round_trips_and_every_cut_is_an_error() {
    for (op, reply) in every_reply() {
        let body = reply.encode();
        for length in 0..body.len() {
            let got = Reply::decode(op, body.slice(..length));
            assert!(got.is_err(), "{reply:?} cut to {length}: {got:?}");
        }
        assert_eq!(Reply::decode(op, body), Ok(reply));
    }
}

#[test]
fn every_operation_has_a_reply() {
    let zeros = Bytes::from_static(&[0; 256]);
    for &op in OpCode::ALL {
        let want_error = matches!(op, OpCode::Multi | OpCode::MultiRead);
        // Zeros are a notification inside a multi, which is no result.
        assert_eq!(
            Reply::decode(op, zeros.clone()).is_err(),
            want_error,
            "{}",
            op.name()
        );
    }
}

#[test]
fn bytes_of_replies() {
    let done = encode_reply(
        3,
        0x0102,
        ErrorCode::Ok,
        &CreateResponse { path: "/a".into() },
    );
    let want = [
        &[0, 0, 0, 22][..],
        &[0, 0, 0, 3],
        &[0, 0, 0, 0, 0, 0, 1, 2],
        &[0, 0, 0, 0],
        &[0, 0, 0, 2, b'/', b'a'],
    ];
    assert_eq!(done, want.concat());

    let failed = encode_reply(
        3,
        7,
        ErrorCode::NoNode,
        &CreateResponse { path: "/a".into() },
    );
    let want = [
        &[0, 0, 0, 16][..],
        &[0, 0, 0, 3],
        &[0, 0, 0, 0, 0, 0, 0, 7],
        &[0xff, 0xff, 0xff, 0x9b],
    ];
    assert_eq!(failed, want.concat(), "an error has no body");

    let (header, body) = ReplyHeader::split(failed.slice(4..)).unwrap();
    assert_eq!(
        (header, body),
        (
            ReplyHeader {
                xid: 3,
                zxid: 7,
                err: -101
            },
            Bytes::new()
        )
    );
    assert!(ReplyHeader::split(failed.slice(4..19)).is_err());
}
