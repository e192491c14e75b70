//! etcd's messages <-> the words of the key space. The one place that knows both.

use bytes::Bytes;
use causeway_engine::core::Reply;
use causeway_engine::key_auth::AuthError;
use causeway_engine::key_space::{
    Compare, CompareResult, CompareTarget, DeleteRangeReply, EventKind, KeyCommand, KeyError,
    KeyEvent, KeyReply, KeyValue, Op, OpReply, PutReply, RangeReply, RangeRequest, SortOrder,
    SortTarget, Txn, TxnReply,
};
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::mvccpb;
use causeway_wire::etcd::{EtcdError, ServerIds, SharedEvents};
use tonic::{Code, Status};

/// An error as a client gets it.
pub(super) fn status(error: EtcdError) -> Status {
    Status::new(Code::from(error.code()), error.message())
}

/// A refusal of the key space as etcd words it.
pub(super) fn key_error(error: &KeyError) -> EtcdError {
    match error {
        KeyError::KeyNotProvided => EtcdError::EmptyKey,
        KeyError::KeyNotFound => EtcdError::KeyNotFound,
        KeyError::ValueProvided => EtcdError::ValueProvided,
        KeyError::LeaseProvided => EtcdError::LeaseProvided,
        KeyError::TooManyOps => EtcdError::TooManyOps,
        KeyError::DuplicateKey => EtcdError::DuplicateKey,
        KeyError::InvalidSortOption => EtcdError::InvalidSortOption,
        KeyError::RequestTooLarge => EtcdError::RequestTooLarge,
        KeyError::Compacted { .. } => EtcdError::Compacted,
        KeyError::FutureRevision => EtcdError::FutureRev,
        KeyError::LeaseNotFound => EtcdError::LeaseNotFound,
        KeyError::LeaseExists => EtcdError::LeaseExist,
        KeyError::LeaseTtlTooLarge => EtcdError::LeaseTtlTooLarge,
        KeyError::NoSpace => EtcdError::NoSpace,
        KeyError::Corrupt => EtcdError::Corrupt,
        KeyError::TooManyAlarms => EtcdError::TooManyRequests,
        KeyError::DowngradeInProcess => EtcdError::DowngradeInProcess,
    }
}

/// A refusal about users as etcd words it.
pub(super) fn auth_error(error: AuthError) -> EtcdError {
    match error {
        AuthError::RootUserNotExist => EtcdError::RootUserNotExist,
        AuthError::RootRoleNotExist => EtcdError::RootRoleNotExist,
        AuthError::UserAlreadyExist => EtcdError::UserAlreadyExist,
        AuthError::UserEmpty => EtcdError::UserEmpty,
        AuthError::UserNotFound => EtcdError::UserNotFound,
        AuthError::RoleAlreadyExist => EtcdError::RoleAlreadyExist,
        AuthError::RoleNotFound => EtcdError::RoleNotFound,
        AuthError::RoleEmpty => EtcdError::RoleEmpty,
        AuthError::AuthFailed | AuthError::NoPasswordUser => EtcdError::AuthFailed,
        AuthError::PermissionNotGiven => EtcdError::PermissionNotGiven,
        AuthError::PermissionDenied => EtcdError::PermissionDenied,
        AuthError::RoleNotGranted => EtcdError::RoleNotGranted,
        AuthError::PermissionNotGranted => EtcdError::PermissionNotGranted,
        AuthError::NotEnabled => EtcdError::AuthNotEnabled,
        AuthError::InvalidToken => EtcdError::InvalidAuthToken,
        AuthError::InvalidManagement => EtcdError::InvalidAuthMgmt,
    }
}

/// The same as a client gets it. One error has no code in etcd (v3rpc/util.go, toGRPCErrorMap) and comes as it is
/// worded inside.
pub(super) fn auth_status(error: AuthError) -> Status {
    match error {
        AuthError::NoPasswordUser => Status::unknown(format!("auth: {error}")),
        _ => status(auth_error(error)),
    }
}

/// What the machine answered to a write of the key space.
pub(super) fn key_reply(reply: Reply) -> Result<KeyReply, EtcdError> {
    match reply {
        Reply::Keys(Ok(reply)) => Ok(reply),
        Reply::Keys(Err(error)) => Err(key_error(&error)),
        // Protection does not let the removal pass: refused for good, not to be tried again.
        Reply::Refused { .. } => Err(EtcdError::PermissionDenied),
        Reply::None
        | Reply::Tree(_)
        | Reply::Registered(_)
        | Reply::Deregistered(_)
        | Reply::OrderRefused(_)
        | Reply::Auth(_) => Err(EtcdError::Corrupt),
    }
}

/// A read.
pub(super) fn range(request: &pb::RangeRequest) -> RangeRequest {
    use pb::range_request as wire;
    RangeRequest {
        key: request.key.clone(),
        range_end: request.range_end.clone(),
        limit: request.limit,
        revision: request.revision,
        sort_order: match wire::SortOrder::try_from(request.sort_order) {
            Ok(wire::SortOrder::None) => SortOrder::None,
            Ok(wire::SortOrder::Ascend) => SortOrder::Ascend,
            Ok(wire::SortOrder::Descend) => SortOrder::Descend,
            Err(_) => SortOrder::Unknown,
        },
        sort_target: match wire::SortTarget::try_from(request.sort_target) {
            Ok(wire::SortTarget::Key) => SortTarget::Key,
            Ok(wire::SortTarget::Version) => SortTarget::Version,
            Ok(wire::SortTarget::Create) => SortTarget::Create,
            Ok(wire::SortTarget::Mod) => SortTarget::Mod,
            Ok(wire::SortTarget::Value) => SortTarget::Value,
            Err(_) => SortTarget::Unknown,
        },
        serializable: request.serializable,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    }
}

/// A put.
pub(super) fn put(request: &pb::PutRequest) -> KeyCommand {
    KeyCommand::Put {
        key: request.key.clone(),
        value: request.value.clone(),
        lease: request.lease,
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    }
}

/// A deletion.
pub(super) fn delete(request: &pb::DeleteRangeRequest) -> KeyCommand {
    KeyCommand::DeleteRange {
        key: request.key.clone(),
        range_end: request.range_end.clone(),
        prev_kv: request.prev_kv,
    }
}

/// A transaction. Its depth is bounded by the decoder's.
pub(super) fn txn(request: &pb::TxnRequest) -> Txn {
    Txn {
        compare: request.compare.iter().map(compare).collect(),
        success: request.success.iter().map(op).collect(),
        failure: request.failure.iter().map(op).collect(),
    }
}

/// One condition. A missing operand is the zero of its kind, as etcd's getters give it.
pub(super) fn compare(compare: &pb::Compare) -> Compare {
    use pb::compare::{CompareResult as Result, CompareTarget as Target, TargetUnion};
    let operand = compare.target_union.as_ref();
    let target = match Target::try_from(compare.target) {
        Err(_) => CompareTarget::Unknown,
        Ok(Target::Version) => match operand {
            Some(TargetUnion::Version(number)) => CompareTarget::Version(*number),
            _ => CompareTarget::Version(0),
        },
        Ok(Target::Create) => match operand {
            Some(TargetUnion::CreateRevision(number)) => CompareTarget::Create(*number),
            _ => CompareTarget::Create(0),
        },
        Ok(Target::Mod) => match operand {
            Some(TargetUnion::ModRevision(number)) => CompareTarget::Mod(*number),
            _ => CompareTarget::Mod(0),
        },
        Ok(Target::Value) => match operand {
            Some(TargetUnion::Value(value)) => CompareTarget::Value(value.clone()),
            _ => CompareTarget::Value(Bytes::new()),
        },
        Ok(Target::Lease) => match operand {
            Some(TargetUnion::Lease(number)) => CompareTarget::Lease(*number),
            _ => CompareTarget::Lease(0),
        },
    };
    Compare {
        key: compare.key.clone(),
        range_end: compare.range_end.clone(),
        target,
        result: match Result::try_from(compare.result) {
            Ok(Result::Equal) => CompareResult::Equal,
            Ok(Result::Greater) => CompareResult::Greater,
            Ok(Result::Less) => CompareResult::Less,
            Ok(Result::NotEqual) => CompareResult::NotEqual,
            Err(_) => CompareResult::Unknown,
        },
    }
}

fn op(op: &pb::RequestOp) -> Op {
    use pb::request_op::Request;
    match &op.request {
        Some(Request::RequestRange(request)) => Op::Range(range(request)),
        Some(Request::RequestPut(request)) => Op::Put {
            key: request.key.clone(),
            value: request.value.clone(),
            lease: request.lease,
            prev_kv: request.prev_kv,
            ignore_value: request.ignore_value,
            ignore_lease: request.ignore_lease,
        },
        Some(Request::RequestDeleteRange(request)) => Op::DeleteRange {
            key: request.key.clone(),
            range_end: request.range_end.clone(),
            prev_kv: request.prev_kv,
        },
        Some(Request::RequestTxn(request)) => Op::Txn(txn(request)),
        None => Op::Empty,
    }
}

/// A pair.
pub(super) fn kv(kv: &KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key.clone(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value.clone(),
        lease: kv.lease,
    }
}

/// A change.
pub(super) fn event(event: &KeyEvent) -> mvccpb::Event {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(kv(&event.kv)),
        prev_kv: event.prev.as_deref().map(kv),
    }
}

/// Changes of one revision that many are told.
pub(super) fn shared_events(events: &[KeyEvent]) -> SharedEvents {
    SharedEvents::new(events.iter().map(event).collect())
}

/// A read's answer.
pub(super) fn range_reply(
    header: Option<pb::ResponseHeader>,
    reply: &RangeReply,
) -> pb::RangeResponse {
    pb::RangeResponse {
        header,
        kvs: reply.kvs.iter().map(|pair| kv(pair)).collect(),
        more: reply.more,
        count: reply.count,
    }
}

/// A put's answer.
pub(super) fn put_reply(header: pb::ResponseHeader, reply: &PutReply) -> pb::PutResponse {
    pb::PutResponse {
        header: Some(header),
        prev_kv: reply.prev_kv.as_deref().map(kv),
    }
}

/// A deletion's answer.
pub(super) fn delete_reply(
    header: pb::ResponseHeader,
    reply: &DeleteRangeReply,
) -> pb::DeleteRangeResponse {
    pb::DeleteRangeResponse {
        header: Some(header),
        deleted: reply.deleted,
        prev_kvs: reply.prev_kvs.iter().map(|pair| kv(pair)).collect(),
    }
}

/// A transaction's answer. Headers inside carry no ids, and a nested transaction's not even a revision
/// (etcd: apply.go applyTxn).
pub(super) fn txn_reply(header: pb::ResponseHeader, reply: &TxnReply) -> pb::TxnResponse {
    pb::TxnResponse {
        header: Some(header),
        succeeded: reply.succeeded,
        responses: reply.replies.iter().map(op_reply).collect(),
    }
}

fn op_reply(reply: &OpReply) -> pb::ResponseOp {
    use pb::response_op::Response;
    let bare = |revision| ServerIds::default().header(revision);
    let response = match reply {
        OpReply::Range(reply) => {
            Response::ResponseRange(range_reply(Some(bare(reply.revision)), reply))
        }
        OpReply::Put(reply) => Response::ResponsePut(put_reply(bare(reply.revision), reply)),
        OpReply::DeleteRange(reply) => {
            Response::ResponseDeleteRange(delete_reply(bare(reply.revision), reply))
        }
        OpReply::Txn(reply) => Response::ResponseTxn(txn_reply(bare(reply.revision), reply)),
    };
    pb::ResponseOp {
        response: Some(response),
    }
}

#[cfg(test)]
mod tests;
