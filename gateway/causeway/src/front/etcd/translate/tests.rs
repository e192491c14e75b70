use std::sync::Arc;

use causeway_wire::etcd::messages::etcdserverpb::request_op::Request as Asked;
use causeway_wire::etcd::messages::etcdserverpb::response_op::Response as Answer;

use super::*;

#[test]
fn every_refusal_has_etcds_words() {
    let check = |error: KeyError, code: Code| {
        let status = status(key_error(&error));
        assert_eq!(
            (status.code(), status.message()),
            (code, error.to_string().as_str())
        );
    };
    check(KeyError::KeyNotProvided, Code::InvalidArgument);
    check(KeyError::KeyNotFound, Code::InvalidArgument);
    check(KeyError::ValueProvided, Code::InvalidArgument);
    check(KeyError::LeaseProvided, Code::InvalidArgument);
    check(KeyError::TooManyOps, Code::InvalidArgument);
    check(KeyError::DuplicateKey, Code::InvalidArgument);
    check(KeyError::InvalidSortOption, Code::InvalidArgument);
    check(KeyError::RequestTooLarge, Code::InvalidArgument);
    check(
        KeyError::Compacted {
            compact_revision: 5,
        },
        Code::OutOfRange,
    );
    check(KeyError::FutureRevision, Code::OutOfRange);
    check(KeyError::LeaseNotFound, Code::NotFound);
    check(KeyError::LeaseExists, Code::FailedPrecondition);
    check(KeyError::LeaseTtlTooLarge, Code::OutOfRange);
}

#[test]
fn what_the_machine_answers() {
    let refused = key_reply(Reply::Refused {
        service: "orders".into(),
    });
    assert_eq!(refused, Err(EtcdError::PermissionDenied));
    assert_eq!(
        key_reply(Reply::Keys(Err(KeyError::LeaseExists))),
        Err(EtcdError::LeaseExist)
    );
    assert_eq!(
        key_reply(Reply::Keys(Ok(KeyReply::Done))),
        Ok(KeyReply::Done)
    );
    assert_eq!(key_reply(Reply::None), Err(EtcdError::Corrupt));
}

#[test]
fn a_range_keeps_every_field() {
    let asked = pb::RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 1,
        revision: 2,
        sort_order: pb::range_request::SortOrder::Descend.into(),
        sort_target: pb::range_request::SortTarget::Mod.into(),
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 3,
        max_mod_revision: 4,
        min_create_revision: 5,
        max_create_revision: 6,
    };
    let want = RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 1,
        revision: 2,
        sort_order: SortOrder::Descend,
        sort_target: SortTarget::Mod,
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 3,
        max_mod_revision: 4,
        min_create_revision: 5,
        max_create_revision: 6,
    };
    assert_eq!(range(&asked), want);
    let odd = pb::RangeRequest {
        sort_order: 77,
        sort_target: -1,
        ..asked
    };
    assert_eq!(
        (range(&odd).sort_order, range(&odd).sort_target),
        (SortOrder::Unknown, SortTarget::Unknown)
    );
}

#[test]
fn conditions() {
    use pb::compare::{CompareResult as R, CompareTarget as T, TargetUnion as U};
    let check = |target: T, operand: Option<U>, want: CompareTarget| {
        let asked = pb::Compare {
            key: "k".into(),
            range_end: "l".into(),
            target: target.into(),
            result: R::NotEqual.into(),
            target_union: operand,
        };
        let want = Compare {
            key: "k".into(),
            range_end: "l".into(),
            target: want,
            result: CompareResult::NotEqual,
        };
        assert_eq!(compare(&asked), want);
    };
    check(T::Version, Some(U::Version(3)), CompareTarget::Version(3));
    check(
        T::Create,
        Some(U::CreateRevision(4)),
        CompareTarget::Create(4),
    );
    check(T::Mod, Some(U::ModRevision(5)), CompareTarget::Mod(5));
    check(
        T::Value,
        Some(U::Value("v".into())),
        CompareTarget::Value("v".into()),
    );
    check(T::Lease, Some(U::Lease(6)), CompareTarget::Lease(6));
    // What does not fit its target, or is missing, is zero.
    check(T::Mod, Some(U::Version(3)), CompareTarget::Mod(0));
    check(T::Value, None, CompareTarget::Value(Bytes::new()));

    let unknown = compare(&pb::Compare {
        target: 9,
        result: 9,
        ..Default::default()
    });
    assert_eq!(
        (unknown.target, unknown.result),
        (CompareTarget::Unknown, CompareResult::Unknown)
    );
}

#[test]
fn a_transaction_with_one_inside() {
    let put = pb::PutRequest {
        key: "k".into(),
        value: "v".into(),
        lease: 7,
        prev_kv: true,
        ..Default::default()
    };
    let delete = pb::DeleteRangeRequest {
        key: "d".into(),
        range_end: "e".into(),
        prev_kv: true,
    };
    let op = |request| pb::RequestOp {
        request: Some(request),
    };
    let inner = pb::TxnRequest {
        failure: vec![op(Asked::RequestDeleteRange(delete))],
        ..Default::default()
    };
    let asked = pb::TxnRequest {
        success: vec![
            op(Asked::RequestPut(put)),
            op(Asked::RequestTxn(inner)),
            pb::RequestOp { request: None },
        ],
        ..Default::default()
    };
    let want = Txn {
        success: vec![
            Op::Put {
                key: "k".into(),
                value: "v".into(),
                lease: 7,
                prev_kv: true,
                ignore_value: false,
                ignore_lease: false,
            },
            Op::Txn(Txn {
                failure: vec![Op::DeleteRange {
                    key: "d".into(),
                    range_end: "e".into(),
                    prev_kv: true,
                }],
                ..Txn::default()
            }),
            Op::Empty,
        ],
        ..Txn::default()
    };
    assert_eq!(txn(&asked), want);
}

#[test]
fn headers_inside_a_transaction_have_no_ids() {
    let ids = ServerIds {
        cluster_id: 1,
        member_id: 2,
        raft_term: 3,
    };
    let inner = TxnReply {
        revision: 0,
        succeeded: true,
        replies: Vec::new(),
    };
    let reply = TxnReply {
        revision: 9,
        succeeded: true,
        replies: vec![
            OpReply::Put(PutReply {
                revision: 9,
                prev_kv: None,
            }),
            OpReply::Txn(inner),
        ],
    };
    let answer = txn_reply(ids.header(9), &reply);
    assert_eq!(answer.header, Some(ids.header(9)));
    let headers: Vec<_> = answer
        .responses
        .into_iter()
        .map(|op| match op.response {
            Some(Answer::ResponsePut(answer)) => answer.header,
            Some(Answer::ResponseTxn(answer)) => answer.header,
            other => panic!("{other:?}"),
        })
        .collect();
    let bare = |revision| Some(ServerIds::default().header(revision));
    assert_eq!(headers, [bare(9), bare(0)]);
}

#[test]
fn a_change_carries_the_pair_before() {
    let pair = KeyValue {
        key: "k".into(),
        value: "old".into(),
        create_revision: 1,
        mod_revision: 2,
        version: 2,
        lease: 7,
    };
    let gone = KeyEvent {
        kind: EventKind::Delete,
        kv: Arc::new(KeyValue {
            key: "k".into(),
            mod_revision: 3,
            ..KeyValue::default()
        }),
        prev: Some(Arc::new(pair.clone())),
    };
    let told = event(&gone);
    assert_eq!(told.r#type(), mvccpb::event::EventType::Delete);
    assert_eq!(told.prev_kv, Some(kv(&pair)));
    assert_eq!(
        told.kv.map(|kv| (kv.key, kv.mod_revision, kv.version)),
        Some(("k".into(), 3, 0))
    );
}
