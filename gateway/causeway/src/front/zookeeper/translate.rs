//! Wire records to the machine's commands, and its answers back. Every error code is chosen here.

use bytes::Bytes;
use causeway_engine::core::Reply as CoreReply;
use causeway_engine::watch::{EventKind, WatchEvent, WatchKind};
use causeway_engine::znode_tree::{
    self as tree, AuthId, CreateMode, OpResult, TreeCommand, TreeError, TreeReply,
};
use causeway_wire::zk::multi::MultiKind;
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{Create2Response, CreateResponse, StatResponse};
use causeway_wire::zk::request::{Acl, AuthRequest, CreateRequest};
use causeway_wire::zk::{
    ErrorCode, EventType, MultiOp, MultiRequest, MultiResponse, MultiResult, Reply, Request, Stat,
    WatcherEvent,
};

/// The body of a reply, or its error.
pub(super) type Answer = Result<Reply, ErrorCode>;

/// A write as the machine takes it, and the form of its reply.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Write {
    pub(super) op: TreeCommand,
    pub(super) shape: Shape,
}

/// What the reply to a write holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// Path of a new node.
    Path,
    /// Path and Stat of a new node.
    PathAndStat,
    /// Stat of a changed node.
    Stat,
    /// Nothing.
    Nothing,
    /// One for each operation.
    Multi(Vec<Shape>),
}

/// The write that a request asks for; `None` when it is not a write. `Err` is the answer to one that cannot be.
pub(super) fn write(
    request: &Request,
    session: i64,
    auth: &[AuthId],
) -> Result<Option<Write>, Answer> {
    let auth = || auth.to_vec();
    let create = |create: &CreateRequest,
                  mode: Result<CreateMode, ErrorCode>|
     -> Result<TreeCommand, Answer> {
        Ok(TreeCommand::Create {
            path: create.path.clone(),
            data: create.data.clone(),
            acl: acls(&create.acl),
            mode: mode.map_err(Err)?,
            session,
            auth: auth(),
        })
    };
    let (op, shape) = match request {
        Request::Create(c) => (create(c, create_mode(c.flags, None))?, Shape::Path),
        Request::Create2(c) => (create(c, create_mode(c.flags, None))?, Shape::PathAndStat),
        Request::CreateContainer(c) => (create(c, container_mode(c.flags))?, Shape::PathAndStat),
        Request::CreateTtl(c) => {
            let plain = CreateRequest {
                path: c.path.clone(),
                data: c.data.clone(),
                acl: c.acl.clone(),
                flags: c.flags,
            };
            (
                create(&plain, create_mode(c.flags, Some(c.ttl)))?,
                Shape::PathAndStat,
            )
        }
        Request::Delete(d) => (
            TreeCommand::Delete {
                path: d.path.clone(),
                version: d.version,
                auth: auth(),
            },
            Shape::Nothing,
        ),
        Request::SetData(s) => {
            let op = TreeCommand::SetData {
                path: s.path.clone(),
                data: s.data.clone(),
                version: s.version,
                auth: auth(),
            };
            (op, Shape::Stat)
        }
        Request::SetAcl(s) => {
            let op = TreeCommand::SetAcl {
                path: s.path.clone(),
                acl: acls(&s.acl),
                version: s.version,
                auth: auth(),
            };
            (op, Shape::Stat)
        }
        Request::Multi(multi) => {
            let (ops, shapes) = multi_ops(multi)?;
            (
                TreeCommand::Multi {
                    ops,
                    session,
                    auth: auth(),
                },
                Shape::Multi(shapes),
            )
        }
        _ => return Ok(None),
    };
    Ok(Some(Write { op, shape }))
}

fn multi_ops(multi: &MultiRequest) -> Result<(Vec<tree::MultiOp>, Vec<Shape>), Answer> {
    // ZooKeeper: reads do not belong into a multi, and nothing of it is applied (MultiOperationRecord).
    if matches!(multi.kind(), MultiKind::Read | MultiKind::Mixed) {
        return Err(Err(ErrorCode::MarshallingError));
    }
    let count = multi.ops.len();
    let mut ops = Vec::with_capacity(count);
    let mut shapes = Vec::with_capacity(count);
    for (at, op) in multi.ops.iter().enumerate() {
        let failed = |code| Ok(Reply::Multi(MultiResponse::failure(count, at, code)));
        let (op, shape) = multi_op(op).map_err(failed)?;
        ops.push(op);
        shapes.push(shape);
    }
    Ok((ops, shapes))
}

fn multi_op(op: &MultiOp) -> Result<(tree::MultiOp, Shape), ErrorCode> {
    let create =
        |path: &str, data: &Option<Bytes>, acl: &[Acl], mode: CreateMode| tree::MultiOp::Create {
            path: path.to_owned(),
            data: data.clone(),
            acl: acls(acl),
            mode,
        };
    Ok(match op {
        // ZooKeeper: inside a multi the flags alone tell what is made, and only a container's result has a Stat
        // (`MultiOperationRecord.deserialize`; observed on 3.8).
        MultiOp::Create(c) | MultiOp::Create2(c) | MultiOp::CreateContainer(c) => {
            let mode = create_mode(c.flags, None)?;
            let shape = if mode == CreateMode::Container {
                Shape::PathAndStat
            } else {
                Shape::Path
            };
            (create(&c.path, &c.data, &c.acl, mode), shape)
        }
        MultiOp::CreateTtl(c) => (
            create(&c.path, &c.data, &c.acl, create_mode(c.flags, Some(c.ttl))?),
            Shape::PathAndStat,
        ),
        MultiOp::Delete(d) => (
            tree::MultiOp::Delete {
                path: d.path.clone(),
                version: d.version,
            },
            Shape::Nothing,
        ),
        MultiOp::SetData(s) => (
            tree::MultiOp::SetData {
                path: s.path.clone(),
                data: s.data.clone(),
                version: s.version,
            },
            Shape::Stat,
        ),
        MultiOp::Check(c) => (
            tree::MultiOp::Check {
                path: c.path.clone(),
                version: c.version,
            },
            Shape::Nothing,
        ),
        MultiOp::GetData(_) | MultiOp::GetChildren(_) => return Err(ErrorCode::MarshallingError),
    })
}

/// ZooKeeper: `CreateMode.fromFlag` and `EphemeralType.validateTTL`.
fn create_mode(flags: i32, ttl_ms: Option<i64>) -> Result<CreateMode, ErrorCode> {
    Ok(match (flags, ttl_ms) {
        (0, _) => CreateMode::Persistent,
        (1, _) => CreateMode::Ephemeral,
        (2, _) => CreateMode::PersistentSequential,
        (3, _) => CreateMode::EphemeralSequential,
        (4, _) => CreateMode::Container,
        (5, Some(ttl_ms)) => CreateMode::PersistentTtl { ttl_ms },
        (6, Some(ttl_ms)) => CreateMode::PersistentSequentialTtl { ttl_ms },
        _ => return Err(ErrorCode::BadArguments),
    })
}

/// ZooKeeper: createContainer makes a container whatever its flags say, but for a sequential name
/// (`PrepRequestProcessor.pRequest2TxnCreate`). Containers with one are kept as persistent nodes here.
fn container_mode(flags: i32) -> Result<CreateMode, ErrorCode> {
    match create_mode(flags, None)? {
        CreateMode::PersistentSequential | CreateMode::EphemeralSequential => {
            Ok(CreateMode::PersistentSequential)
        }
        _ => Ok(CreateMode::Container),
    }
}

/// What is left to do here of a write that the ensemble has acknowledged with `reply`: sequential names are
/// those that it gave, and of a multi only what `owned` takes. `None` when there is nothing, as with a
/// multi that it refused.
pub(super) fn acknowledged(
    op: TreeCommand,
    reply: &Reply,
    owned: impl Fn(&str) -> bool,
) -> Option<TreeCommand> {
    match (op, reply) {
        (
            TreeCommand::Create {
                data,
                acl,
                mode,
                session,
                auth,
                ..
            },
            Reply::Create(CreateResponse { path }),
        )
        | (
            TreeCommand::Create {
                data,
                acl,
                mode,
                session,
                auth,
                ..
            },
            Reply::Create2(Create2Response { path, .. }),
        ) => {
            let (path, mode) = (path.clone(), named(mode));
            Some(TreeCommand::Create {
                path,
                data,
                acl,
                mode,
                session,
                auth,
            })
        }
        (TreeCommand::Multi { ops, session, auth }, Reply::Multi(answer)) => {
            let ops: Vec<tree::MultiOp> = ops
                .into_iter()
                .zip(&answer.results)
                .filter_map(|(op, result)| acknowledged_one(op, result))
                .filter(|op| owned(tree_path(op)))
                .collect();
            (!ops.is_empty()).then_some(TreeCommand::Multi { ops, session, auth })
        }
        (op, _) => Some(op),
    }
}

fn acknowledged_one(op: tree::MultiOp, result: &MultiResult) -> Option<tree::MultiOp> {
    match (op, result) {
        (_, MultiResult::Error(_)) => None,
        (
            tree::MultiOp::Create {
                data, acl, mode, ..
            },
            MultiResult::Create(CreateResponse { path }),
        )
        | (
            tree::MultiOp::Create {
                data, acl, mode, ..
            },
            MultiResult::Create2(Create2Response { path, .. }),
        ) => Some(tree::MultiOp::Create {
            path: path.clone(),
            data,
            acl,
            mode: named(mode),
        }),
        (op, _) => Some(op),
    }
}

/// The mode of a node whose sequential name was given already.
fn named(mode: CreateMode) -> CreateMode {
    match mode {
        CreateMode::PersistentSequential => CreateMode::Persistent,
        CreateMode::EphemeralSequential => CreateMode::Ephemeral,
        CreateMode::PersistentSequentialTtl { ttl_ms } => CreateMode::PersistentTtl { ttl_ms },
        other => other,
    }
}

/// The path of one operation of a multi, in the machine's words.
pub(super) fn tree_path(op: &tree::MultiOp) -> &str {
    match op {
        tree::MultiOp::Create { path, .. }
        | tree::MultiOp::Delete { path, .. }
        | tree::MultiOp::SetData { path, .. }
        | tree::MultiOp::Check { path, .. } => path,
    }
}

/// The reply to a write.
pub(super) fn written(shape: &Shape, reply: CoreReply) -> Answer {
    match reply {
        CoreReply::Tree(Ok(reply)) => tree_reply(shape, reply),
        CoreReply::Tree(Err(error)) => Err(error_code(error)),
        // Protection keeps what the client would remove: it is told that it may not.
        CoreReply::Refused { .. } => refused(shape),
        CoreReply::None
        | CoreReply::Keys(_)
        | CoreReply::Registered(_)
        | CoreReply::Deregistered(_)
        | CoreReply::OrderRefused(_) => Err(ErrorCode::SystemError),
    }
}

/// The reply to a removal that protection does not let pass.
pub(super) fn refused(shape: &Shape) -> Answer {
    match shape {
        Shape::Multi(shapes) => {
            let at = shapes
                .iter()
                .position(|s| *s == Shape::Nothing)
                .unwrap_or(0);
            Ok(Reply::Multi(MultiResponse::failure(
                shapes.len(),
                at,
                ErrorCode::NoAuth,
            )))
        }
        _ => Err(ErrorCode::NoAuth),
    }
}

fn tree_reply(shape: &Shape, reply: TreeReply) -> Answer {
    Ok(match (shape, reply) {
        (Shape::Path, TreeReply::Created { path, .. }) => Reply::Create(CreateResponse {
            path: path.to_string(),
        }),
        (Shape::PathAndStat, TreeReply::Created { path, stat: s }) => {
            Reply::Create2(Create2Response {
                path: path.to_string(),
                stat: stat(&s),
            })
        }
        (Shape::Stat, TreeReply::Set(s)) => Reply::Stat(StatResponse { stat: stat(&s) }),
        (Shape::Nothing, TreeReply::Deleted) => Reply::Empty(()),
        (Shape::Multi(shapes), TreeReply::Multi(results)) => {
            let results = shapes
                .iter()
                .zip(results)
                .map(|(shape, result)| multi_result(shape, result))
                .collect();
            Reply::Multi(MultiResponse { results })
        }
        _ => return Err(ErrorCode::SystemError),
    })
}

fn multi_result(shape: &Shape, result: OpResult) -> MultiResult {
    match result {
        OpResult::Created { path, stat: s } => match shape {
            Shape::PathAndStat => MultiResult::Create2(Create2Response {
                path: path.to_string(),
                stat: stat(&s),
            }),
            _ => MultiResult::Create(CreateResponse {
                path: path.to_string(),
            }),
        },
        OpResult::Deleted => MultiResult::Delete,
        OpResult::Set(s) => MultiResult::SetData(stat(&s)),
        OpResult::Checked => MultiResult::Check,
        OpResult::RolledBack => MultiResult::Error(ErrorCode::Ok.number()),
        OpResult::Failed(error) => MultiResult::Error(error_code(error).number()),
        OpResult::NotTried => MultiResult::Error(ErrorCode::RuntimeInconsistency.number()),
    }
}

/// ZooKeeper's number for what the tree refused.
pub(super) fn error_code(error: TreeError) -> ErrorCode {
    match error {
        TreeError::NoNode => ErrorCode::NoNode,
        TreeError::NodeExists => ErrorCode::NodeExists,
        TreeError::NotEmpty => ErrorCode::NotEmpty,
        TreeError::BadVersion => ErrorCode::BadVersion,
        TreeError::NoChildrenForEphemerals => ErrorCode::NoChildrenForEphemerals,
        TreeError::BadArguments => ErrorCode::BadArguments,
        TreeError::InvalidAcl => ErrorCode::InvalidAcl,
        TreeError::NoAuth => ErrorCode::NoAuth,
        TreeError::SessionExpired => ErrorCode::SessionExpired,
    }
}

/// Every Stat in a reply.
pub(super) fn stats(reply: &mut Reply) -> Vec<&mut Stat> {
    match reply {
        Reply::Create2(r) => vec![&mut r.stat],
        Reply::Stat(r) => vec![&mut r.stat],
        Reply::GetData(r) => vec![&mut r.stat],
        Reply::GetAcl(r) => vec![&mut r.stat],
        Reply::GetChildren2(r) => vec![&mut r.stat],
        Reply::Multi(r) => r
            .results
            .iter_mut()
            .filter_map(|result| match result {
                MultiResult::Create2(r) => Some(&mut r.stat),
                MultiResult::SetData(stat) => Some(stat),
                MultiResult::GetData(r) => Some(&mut r.stat),
                MultiResult::Create(_)
                | MultiResult::Delete
                | MultiResult::Check
                | MultiResult::GetChildren(_)
                | MultiResult::Error(_) => None,
            })
            .collect(),
        Reply::Create(_)
        | Reply::GetChildren(_)
        | Reply::Sync(_)
        | Reply::Sasl(_)
        | Reply::GetEphemerals(_)
        | Reply::GetAllChildrenNumber(_)
        | Reply::AddWatch(_)
        | Reply::WhoAmI(_)
        | Reply::Empty(()) => Vec::new(),
    }
}

/// A Stat as the wire has it.
pub(super) fn stat(s: &tree::Stat) -> Stat {
    Stat {
        czxid: s.czxid,
        mzxid: s.mzxid,
        ctime: s.ctime,
        mtime: s.mtime,
        version: s.version,
        cversion: s.cversion,
        aversion: s.aversion,
        ephemeral_owner: s.ephemeral_owner,
        data_length: s.data_length,
        num_children: s.num_children,
        pzxid: s.pzxid,
    }
}

/// A Stat of the wire for the machine.
pub(super) fn tree_stat(s: &Stat) -> tree::Stat {
    tree::Stat {
        czxid: s.czxid,
        mzxid: s.mzxid,
        ctime: s.ctime,
        mtime: s.mtime,
        version: s.version,
        cversion: s.cversion,
        aversion: s.aversion,
        ephemeral_owner: s.ephemeral_owner,
        data_length: s.data_length,
        num_children: s.num_children,
        pzxid: s.pzxid,
    }
}

/// ACL entries for the machine.
pub(super) fn acls(acl: &[Acl]) -> Vec<tree::Acl> {
    // Unknown bits are kept as they are: both types hold the same 32.
    acl.iter()
        .map(|a| tree::Acl {
            perms: a.perms as u32,
            scheme: a.scheme.clone(),
            id: a.id.clone(),
        })
        .collect()
}

/// ACL entries for the wire.
pub(super) fn wire_acls(acl: &[tree::Acl]) -> Vec<Acl> {
    acl.iter()
        .map(|a| Acl {
            perms: a.perms as i32,
            scheme: a.scheme.clone(),
            id: a.id.clone(),
        })
        .collect()
}

/// The body of a notification.
pub(super) fn event(event: &WatchEvent) -> Bytes {
    let kind = match event.kind {
        EventKind::NodeCreated => EventType::NodeCreated,
        EventKind::NodeDeleted => EventType::NodeDeleted,
        EventKind::NodeDataChanged => EventType::NodeDataChanged,
        EventKind::NodeChildrenChanged => EventType::NodeChildrenChanged,
    };
    WatcherEvent::new(kind, &*event.path).encode()
}

/// ZooKeeper: `Watcher.WatcherType`.
pub(super) fn watch_kind(kind: i32) -> Result<WatchKind, ErrorCode> {
    match kind {
        1 => Ok(WatchKind::Children),
        2 => Ok(WatchKind::Data),
        3 => Ok(WatchKind::Any),
        4 => Ok(WatchKind::Persistent),
        5 => Ok(WatchKind::PersistentRecursive),
        // ZooKeeper: a type that is none is a request that cannot be read.
        _ => Err(ErrorCode::MarshallingError),
    }
}

/// The identity that an auth request proves. ZooKeeper: schemes without a provider fail like wrong
/// credentials (`ZooKeeperServer.processPacket`).
pub(super) fn identity(
    request: &AuthRequest,
    address: std::net::IpAddr,
) -> Result<AuthId, ErrorCode> {
    match request.scheme.as_str() {
        "digest" => {
            let text = request
                .auth
                .as_ref()
                .map(|a| String::from_utf8_lossy(a).into_owned())
                .unwrap_or_default();
            let (user, password) = text.split_once(':').unwrap_or((text.as_str(), ""));
            Ok(AuthId::digest(user, password))
        }
        "ip" => Ok(AuthId::ip(address)),
        _ => Err(ErrorCode::AuthFailed),
    }
}

/// The name of an identity without its secret (ZooKeeper: `AuthUtil.getUser`).
pub(super) fn user_of(id: &AuthId) -> String {
    match id.scheme.as_str() {
        "digest" => id.id.split(':').next().unwrap_or_default().to_owned(),
        _ => id.id.clone(),
    }
}

/// Paths that a request names, for the class they are of.
pub(super) fn paths(request: &Request) -> Vec<&str> {
    match request {
        Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => vec![&r.path],
        Request::CreateTtl(r) => vec![&r.path],
        Request::Delete(r) => vec![&r.path],
        Request::DeleteContainer(r) => vec![&r.path],
        Request::Exists(r)
        | Request::GetData(r)
        | Request::GetChildren(r)
        | Request::GetChildren2(r) => {
            vec![&r.path]
        }
        Request::SetData(r) => vec![&r.path],
        Request::GetAcl(r) | Request::Sync(r) | Request::GetAllChildrenNumber(r) => vec![&r.path],
        Request::SetAcl(r) => vec![&r.path],
        Request::Check(r) => vec![&r.path],
        Request::Multi(r) | Request::MultiRead(r) => r.ops.iter().map(multi_path).collect(),
        Request::CheckWatches(r) | Request::RemoveWatches(r) => vec![&r.path],
        Request::AddWatch(r) => vec![&r.path],
        Request::GetEphemerals(r) => vec![&r.prefix_path],
        Request::SetWatches(_)
        | Request::SetWatches2(_)
        | Request::Reconfig(_)
        | Request::Auth(_)
        | Request::Sasl(_)
        | Request::Ping
        | Request::CloseSession
        | Request::WhoAmI
        | Request::Unknown { .. } => Vec::new(),
    }
}

/// The path of one operation of a multi.
pub(super) fn multi_path(op: &MultiOp) -> &str {
    match op {
        MultiOp::Create(c) | MultiOp::Create2(c) | MultiOp::CreateContainer(c) => &c.path,
        MultiOp::CreateTtl(c) => &c.path,
        MultiOp::Delete(d) => &d.path,
        MultiOp::SetData(s) => &s.path,
        MultiOp::Check(c) => &c.path,
        MultiOp::GetData(r) | MultiOp::GetChildren(r) => &r.path,
    }
}

#[cfg(test)]
mod tests;
