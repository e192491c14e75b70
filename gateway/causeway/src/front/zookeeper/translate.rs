//! Wire records to the machine's commands, and its answers back. Every error code is chosen here.

use bytes::Bytes;
use causeway_engine::core::Reply as CoreReply;
use causeway_engine::watch::{EventKind, WatchEvent, WatchKind};
use causeway_engine::znode_tree::{
    self as tree, AuthId, CreateMode, OpResult, TreeCommand, TreeError, TreeReply,
};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{Create2Response, CreateResponse, StatResponse};
use causeway_wire::zk::request::{Acl, AuthRequest};
use causeway_wire::zk::{
    ErrorCode, EventType, MultiOp, MultiRequest, MultiResponse, MultiResult, Reply, Request, Stat,
    WatcherEvent, encode_children,
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

/// The write that a request asks for; `None` when it is not a write. ACLs of scheme `x509` are for a gateway
/// that speaks TLS, as in ZooKeeper (`QuorumPeerConfig.configureSSLAuth`). `Err` is the answer to one that cannot be
/// read; what can be read and not be done is for the tree to refuse, in its turn and with a number of its own.
pub(super) fn write(
    request: &Request,
    session: i64,
    auth: &[AuthId],
    x509: bool,
) -> Result<Option<Write>, ErrorCode> {
    let auth = || auth.to_vec();
    let acls = |acl: &[Acl]| offered(acls(acl), x509);
    let create =
        |path: &str, data: &Option<Bytes>, acl: &[Acl], mode: CreateMode| TreeCommand::Create {
            path: path.to_owned(),
            data: data.clone(),
            acl: acls(acl),
            mode,
            session,
            auth: auth(),
        };
    let (op, shape) = match request {
        Request::Create(c) => (
            create(&c.path, &c.data, &c.acl, create_mode(c.flags)),
            Shape::Path,
        ),
        Request::Create2(c) => (
            create(&c.path, &c.data, &c.acl, create_mode(c.flags)),
            Shape::PathAndStat,
        ),
        Request::CreateContainer(c) => (
            create(&c.path, &c.data, &c.acl, container_mode(c.flags)),
            Shape::PathAndStat,
        ),
        Request::CreateTtl(c) => (
            create(&c.path, &c.data, &c.acl, ttl_mode(c.flags, c.ttl)),
            Shape::PathAndStat,
        ),
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
            let (ops, shapes) = multi_ops(multi, x509)?;
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

fn multi_ops(
    multi: &MultiRequest,
    x509: bool,
) -> Result<(Vec<tree::MultiOp>, Vec<Shape>), ErrorCode> {
    multi.ops.iter().map(|op| multi_op(op, x509)).collect()
}

/// ZooKeeper: `Op.create` tells the operation from the number in front of it and from its flags, and
/// `FinalRequestProcessor` the form of the result from that.
fn multi_op(op: &MultiOp, x509: bool) -> Result<(tree::MultiOp, Shape), ErrorCode> {
    let create =
        |path: &str, data: &Option<Bytes>, acl: &[Acl], mode: CreateMode| tree::MultiOp::Create {
            path: path.to_owned(),
            data: data.clone(),
            acl: offered(acls(acl), x509),
            mode,
        };
    Ok(match op {
        MultiOp::CreateContainer(c) => (
            create(&c.path, &c.data, &c.acl, container_mode(c.flags)),
            Shape::PathAndStat,
        ),
        MultiOp::Create(c) | MultiOp::Create2(c) if c.flags == CONTAINER => (
            create(&c.path, &c.data, &c.acl, container_mode(c.flags)),
            Shape::PathAndStat,
        ),
        MultiOp::Create(c) => (
            create(&c.path, &c.data, &c.acl, create_mode(c.flags)),
            Shape::Path,
        ),
        MultiOp::Create2(c) => (
            create(&c.path, &c.data, &c.acl, create_mode(c.flags)),
            Shape::PathAndStat,
        ),
        // Without a time to live it is what its flags say, and the time is not looked at.
        MultiOp::CreateTtl(c) => match c.flags {
            5 | 6 => (
                create(&c.path, &c.data, &c.acl, ttl_mode(c.flags, c.ttl)),
                Shape::PathAndStat,
            ),
            CONTAINER => (
                create(&c.path, &c.data, &c.acl, container_mode(c.flags)),
                Shape::PathAndStat,
            ),
            _ => (
                create(&c.path, &c.data, &c.acl, create_mode(c.flags)),
                Shape::Path,
            ),
        },
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
        // ZooKeeper: reads do not belong into a multi, and nothing of it is applied (MultiOperationRecord).
        MultiOp::GetData(_) | MultiOp::GetChildren(_) => return Err(ErrorCode::MarshallingError),
    })
}

/// Flags of a container.
const CONTAINER: i32 = 4;

/// No mode at all: the tree refuses it before anything else, as ZooKeeper does flags that it does not know or that
/// do not go with a time to live or the want of one (`CreateMode.fromFlag`, `EphemeralType.validateTTL`).
const NO_MODE: CreateMode = CreateMode::PersistentTtl { ttl_ms: 0 };

/// ZooKeeper: only createContainer makes a container; to create and create2 the flags of one mean a persistent node
/// (`PrepRequestProcessor.pRequest2TxnCreate`).
fn create_mode(flags: i32) -> CreateMode {
    match flags {
        0 | CONTAINER => CreateMode::Persistent,
        1 => CreateMode::Ephemeral,
        2 => CreateMode::PersistentSequential,
        3 => CreateMode::EphemeralSequential,
        _ => NO_MODE,
    }
}

/// ZooKeeper: createContainer makes a container whatever its flags say, and of them takes a sequential name
/// (`PrepRequestProcessor.pRequest2TxnCreate`).
fn container_mode(flags: i32) -> CreateMode {
    match flags {
        0 | 1 | CONTAINER => CreateMode::Container,
        2 | 3 => CreateMode::ContainerSequential,
        _ => NO_MODE,
    }
}

fn ttl_mode(flags: i32, ttl_ms: i64) -> CreateMode {
    match flags {
        5 => CreateMode::PersistentTtl { ttl_ms },
        6 => CreateMode::PersistentSequentialTtl { ttl_ms },
        _ => NO_MODE,
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
        CreateMode::ContainerSequential => CreateMode::Container,
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
        | CoreReply::OrderRefused(_)
        | CoreReply::Auth(_) => Err(ErrorCode::SystemError),
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

/// Without TLS `x509` is a scheme that nobody provides. The tree, which knows of no ports, refuses one without a
/// name: so the log holds what was decided, whatever the gateway is started with the next time.
fn offered(mut acl: Vec<tree::Acl>, x509: bool) -> Vec<tree::Acl> {
    for entry in acl.iter_mut().filter(|a| !x509 && a.scheme == "x509") {
        entry.scheme.clear();
    }
    acl
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

/// The body of a getChildren2.
pub(super) fn listing(node: &tree::Node) -> Bytes {
    let names = node.children().iter().map(|name| &**name);
    encode_children(names, &stat(&node.stat()))
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

/// The identity that an auth request proves, for a connection that has proved `auth` already: a certificate was
/// shown with the connection or not at all. ZooKeeper: schemes without a provider fail like wrong credentials
/// (`ZooKeeperServer.processPacket`).
pub(super) fn identity(
    request: &AuthRequest,
    address: std::net::IpAddr,
    auth: &[AuthId],
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
        "x509" => {
            let shown = auth.iter().find(|id| id.scheme == "x509");
            shown.cloned().ok_or(ErrorCode::AuthFailed)
        }
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
