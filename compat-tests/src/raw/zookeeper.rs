//! ZooKeeper's protocol from the client's side, and a decoder for both directions.
//!
//! The records are those of ZooKeeper's `zookeeper.jute`: big-endian numbers, strings and buffers with a
//! length of four bytes (−1 is null), vectors with a count of four bytes (−1 is null). Every field is kept as
//! it was on the wire, null beside empty, so that two servers can be compared to the byte. What cannot be
//! decoded to a value that encodes to the same bytes again stays [`Request::Raw`] or [`Body::Raw`].
//!
//! [`Client`] blocks with bounds. It matches replies to requests by xid, since a real server lets replies to
//! auth overtake others; the order of arrival is the order of [`Client::receive`].

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// Request numbers, ZooKeeper: `ZooDefs.OpCode`.
pub mod op {
    #![allow(
        missing_docs,
        reason = "ZooKeeper's own names, explained in its documentation"
    )]

    pub const NOTIFICATION: i32 = 0;
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const RECONFIG: i32 = 16;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const DELETE_CONTAINER: i32 = 20;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SASL: i32 = 102;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub const SET_WATCHES2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
    pub const CREATE_SESSION: i32 = -10;
    pub const CLOSE_SESSION: i32 = -11;

    /// The name of a request number, as ZooKeeper's documentation writes it.
    pub fn name(op: i32) -> Option<&'static str> {
        Some(match op {
            NOTIFICATION => "notification",
            CREATE => "create",
            DELETE => "delete",
            EXISTS => "exists",
            GET_DATA => "getData",
            SET_DATA => "setData",
            GET_ACL => "getACL",
            SET_ACL => "setACL",
            GET_CHILDREN => "getChildren",
            SYNC => "sync",
            PING => "ping",
            GET_CHILDREN2 => "getChildren2",
            CHECK => "check",
            MULTI => "multi",
            CREATE2 => "create2",
            RECONFIG => "reconfig",
            CHECK_WATCHES => "checkWatches",
            REMOVE_WATCHES => "removeWatches",
            CREATE_CONTAINER => "createContainer",
            DELETE_CONTAINER => "deleteContainer",
            CREATE_TTL => "createTTL",
            MULTI_READ => "multiRead",
            AUTH => "auth",
            SET_WATCHES => "setWatches",
            SASL => "sasl",
            GET_EPHEMERALS => "getEphemerals",
            GET_ALL_CHILDREN_NUMBER => "getAllChildrenNumber",
            SET_WATCHES2 => "setWatches2",
            ADD_WATCH => "addWatch",
            WHO_AM_I => "whoAmI",
            CREATE_SESSION => "createSession",
            CLOSE_SESSION => "closeSession",
            _ => return None,
        })
    }
}

/// Xids with a meaning of their own. ZooKeeper: `ClientCnxn`.
pub mod xid {
    /// A watch event.
    pub const NOTIFICATION: i32 = -1;
    /// A ping and its answer.
    pub const PING: i32 = -2;
    /// What most clients number auth requests with.
    pub const AUTH: i32 = -4;
    /// What most clients number setWatches with.
    pub const SET_WATCHES: i32 = -8;
}

/// The name of an error number, ZooKeeper: `KeeperException.Code`.
pub fn error_name(code: i32) -> Option<&'static str> {
    Some(match code {
        0 => "Ok",
        -1 => "SystemError",
        -2 => "RuntimeInconsistency",
        -3 => "DataInconsistency",
        -4 => "ConnectionLoss",
        -5 => "MarshallingError",
        -6 => "Unimplemented",
        -7 => "OperationTimeout",
        -8 => "BadArguments",
        -12 => "UnknownSession",
        -13 => "NewConfigNoQuorum",
        -14 => "ReconfigInProgress",
        -100 => "ApiError",
        -101 => "NoNode",
        -102 => "NoAuth",
        -103 => "BadVersion",
        -108 => "NoChildrenForEphemerals",
        -110 => "NodeExists",
        -111 => "NotEmpty",
        -112 => "SessionExpired",
        -113 => "InvalidCallback",
        -114 => "InvalidAcl",
        -115 => "AuthFailed",
        -118 => "SessionMoved",
        -119 => "NotReadOnly",
        -120 => "EphemeralOnLocalSession",
        -121 => "NoWatcher",
        -122 => "RequestTimeout",
        -123 => "ReconfigDisabled",
        -124 => "SessionClosedRequireSasl",
        -125 => "QuotaExceeded",
        -127 => "Throttled",
        _ => return None,
    })
}

/// A frame longer than this is taken for garbage: no server of a test sends 64 MiB.
pub const MAX_FRAME: usize = 64 << 20;

/// ZooKeeper's `Stat`, 68 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "ZooKeeper's own names")]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub cversion: i32,
    pub aversion: i32,
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
    pub pzxid: i64,
}

/// One entry of an ACL: permission bits (1 read, 2 write, 4 create, 8 delete, 16 admin) for an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// Permission bits.
    pub perms: i32,
    /// `world`, `auth`, `digest`, `ip`, …
    pub scheme: String,
    /// What the scheme makes of it.
    pub id: String,
}

/// The list of ACLs that allows everything to everybody.
pub fn open_acl() -> Vec<Acl> {
    vec![Acl {
        perms: 31,
        scheme: "world".to_string(),
        id: "anyone".to_string(),
    }]
}

/// A create, or create2, of a node that anybody may do anything with.
pub fn create(op: i32, path: &str, data: &[u8], flags: i32) -> Request {
    Request::Create {
        op,
        path: path.to_string(),
        data: Some(data.to_vec()),
        acl: Some(open_acl()),
        flags,
        ttl: None,
    }
}

/// A request of a path that may set a watch.
pub fn read(op: i32, path: &str, watch: bool) -> Request {
    Request::Read {
        op,
        path: path.to_string(),
        watch,
    }
}

/// The first message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// 0 in every known client.
    pub protocol_version: i32,
    /// The largest zxid that the client has seen.
    pub last_zxid_seen: i64,
    /// Milliseconds.
    pub timeout: i32,
    /// 0 asks for a new session.
    pub session_id: i64,
    /// 16 bytes as a rule.
    pub password: Option<Vec<u8>>,
    /// The byte at the end, which old clients leave out.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Asks for a new session.
    pub fn new(timeout: Duration) -> ConnectRequest {
        ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            session_id: 0,
            password: Some(vec![0; 16]),
            read_only: Some(false),
        }
    }

    /// The payload of its frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.int(self.protocol_version);
        out.long(self.last_zxid_seen);
        out.int(self.timeout);
        out.long(self.session_id);
        out.buffer(self.password.as_deref());
        if let Some(read_only) = self.read_only {
            out.bool(read_only);
        }
        out.0
    }

    /// Reads the payload of a client's first frame.
    pub fn decode(payload: &[u8]) -> Result<ConnectRequest> {
        let mut input = Reader::new(payload);
        let request = ConnectRequest {
            protocol_version: input.int()?,
            last_zxid_seen: input.long()?,
            timeout: input.int()?,
            session_id: input.long()?,
            password: input.buffer()?,
            read_only: input.optional_bool()?,
        };
        input.end()?;
        Ok(request)
    }
}

/// The server's answer to [`ConnectRequest`]. A session that is gone: timeout 0, id 0, password of zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// 0.
    pub protocol_version: i32,
    /// Milliseconds, as the server grants them.
    pub timeout: i32,
    /// The session.
    pub session_id: i64,
    /// Proves the session to any server.
    pub password: Option<Vec<u8>>,
    /// The byte at the end, iff the request carried one.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// The payload of its frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.int(self.protocol_version);
        out.int(self.timeout);
        out.long(self.session_id);
        out.buffer(self.password.as_deref());
        if let Some(read_only) = self.read_only {
            out.bool(read_only);
        }
        out.0
    }

    /// Reads the payload of a server's first frame.
    pub fn decode(payload: &[u8]) -> Result<ConnectResponse> {
        let mut input = Reader::new(payload);
        let response = ConnectResponse {
            protocol_version: input.int()?,
            timeout: input.int()?,
            session_id: input.long()?,
            password: input.buffer()?,
            read_only: input.optional_bool()?,
        };
        input.end()?;
        Ok(response)
    }

    /// Whether it says that the session asked for is gone.
    pub fn is_expired(&self) -> bool {
        self.timeout <= 0 || self.session_id == 0
    }
}

/// A request without its header. Records of the same shape share a variant and are told apart by `op`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "ZooKeeper's own names")]
pub enum Request {
    /// create, create2, createContainer, createTTL (which alone has `ttl`, in milliseconds).
    Create {
        op: i32,
        path: String,
        data: Option<Vec<u8>>,
        acl: Option<Vec<Acl>>,
        flags: i32,
        ttl: Option<i64>,
    },
    Delete {
        path: String,
        version: i32,
    },
    /// exists, getData, getChildren, getChildren2.
    Read {
        op: i32,
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Vec<u8>>,
        version: i32,
    },
    SetAcl {
        path: String,
        acl: Option<Vec<Acl>>,
        version: i32,
    },
    /// getACL, sync, deleteContainer, getEphemerals, getAllChildrenNumber.
    Path {
        op: i32,
        path: String,
    },
    Check {
        path: String,
        version: i32,
    },
    /// multi, multiRead.
    Multi {
        op: i32,
        parts: Vec<Request>,
    },
    Reconfig {
        joining: Option<String>,
        leaving: Option<String>,
        members: Option<String>,
        from_config: i64,
    },
    /// checkWatches, removeWatches; kind 1 children, 2 data, 3 any, 4 persistent, 5 recursive.
    Watches {
        op: i32,
        path: String,
        kind: i32,
    },
    /// Mode 0 persistent, 1 persistent and recursive.
    AddWatch {
        path: String,
        mode: i32,
    },
    Auth {
        kind: i32,
        scheme: String,
        auth: Option<Vec<u8>>,
    },
    /// setWatches, or setWatches2 when there are `persistent` lists (persistent, recursive).
    SetWatches {
        zxid: i64,
        data: Vec<String>,
        exist: Vec<String>,
        child: Vec<String>,
        persistent: Option<(Vec<String>, Vec<String>)>,
    },
    Sasl {
        token: Option<Vec<u8>>,
    },
    /// ping, closeSession, whoAmI.
    Empty {
        op: i32,
    },
    /// Anything else, and what is not well-formed.
    Raw {
        op: i32,
        body: Vec<u8>,
    },
}

impl Request {
    /// The request number.
    pub fn op(&self) -> i32 {
        match self {
            Request::Create { op, .. }
            | Request::Read { op, .. }
            | Request::Path { op, .. }
            | Request::Multi { op, .. }
            | Request::Watches { op, .. }
            | Request::Empty { op }
            | Request::Raw { op, .. } => *op,
            Request::Delete { .. } => op::DELETE,
            Request::SetData { .. } => op::SET_DATA,
            Request::SetAcl { .. } => op::SET_ACL,
            Request::Check { .. } => op::CHECK,
            Request::Reconfig { .. } => op::RECONFIG,
            Request::AddWatch { .. } => op::ADD_WATCH,
            Request::Auth { .. } => op::AUTH,
            Request::SetWatches {
                persistent: None, ..
            } => op::SET_WATCHES,
            Request::SetWatches { .. } => op::SET_WATCHES2,
            Request::Sasl { .. } => op::SASL,
        }
    }

    /// The xid that clients give it when it is not an ordinary one.
    pub fn special_xid(&self) -> Option<i32> {
        match self.op() {
            op::PING => Some(xid::PING),
            op::AUTH => Some(xid::AUTH),
            op::SET_WATCHES | op::SET_WATCHES2 => Some(xid::SET_WATCHES),
            _ => None,
        }
    }

    /// The bytes behind the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.write(&mut out);
        out.0
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Request::Create {
                path,
                data,
                acl,
                flags,
                ttl,
                ..
            } => {
                out.string(path);
                out.buffer(data.as_deref());
                out.acl(acl.as_deref());
                out.int(*flags);
                if let Some(ttl) = ttl {
                    out.long(*ttl);
                }
            }
            Request::Delete { path, version } | Request::Check { path, version } => {
                out.string(path);
                out.int(*version);
            }
            Request::Read { path, watch, .. } => {
                out.string(path);
                out.bool(*watch);
            }
            Request::SetData {
                path,
                data,
                version,
            } => {
                out.string(path);
                out.buffer(data.as_deref());
                out.int(*version);
            }
            Request::SetAcl { path, acl, version } => {
                out.string(path);
                out.acl(acl.as_deref());
                out.int(*version);
            }
            Request::Path { path, .. } => out.string(path),
            Request::Multi { parts, .. } => {
                for part in parts {
                    out.multi_header(part.op(), false, -1);
                    part.write(out);
                }
                out.multi_header(-1, true, -1);
            }
            Request::Reconfig {
                joining,
                leaving,
                members,
                from_config,
            } => {
                for text in [joining, leaving, members] {
                    out.buffer(text.as_ref().map(String::as_bytes));
                }
                out.long(*from_config);
            }
            Request::Watches { path, kind, .. } => {
                out.string(path);
                out.int(*kind);
            }
            Request::AddWatch { path, mode } => {
                out.string(path);
                out.int(*mode);
            }
            Request::Auth { kind, scheme, auth } => {
                out.int(*kind);
                out.string(scheme);
                out.buffer(auth.as_deref());
            }
            Request::SetWatches {
                zxid,
                data,
                exist,
                child,
                persistent,
            } => {
                out.long(*zxid);
                for list in [data, exist, child] {
                    out.strings(list);
                }
                if let Some((persistent, recursive)) = persistent {
                    out.strings(persistent);
                    out.strings(recursive);
                }
            }
            Request::Sasl { token } => out.buffer(token.as_deref()),
            Request::Empty { .. } => {}
            Request::Raw { body, .. } => out.0.extend_from_slice(body),
        }
    }

    /// Reads what stands behind a header that names `op`. Never fails: what is not well-formed, or would not
    /// encode to the same bytes again, is [`Request::Raw`].
    pub fn decode(op: i32, body: &[u8]) -> Request {
        let mut input = Reader::new(body);
        match Request::read(op, &mut input, 0) {
            Ok(request) if input.is_empty() && request.op() == op && request.encode() == body => {
                request
            }
            _ => Request::Raw {
                op,
                body: body.to_vec(),
            },
        }
    }

    fn read(op: i32, input: &mut Reader<'_>, depth: u8) -> Result<Request> {
        Ok(match op {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => Request::Create {
                op,
                path: input.string()?,
                data: input.buffer()?,
                acl: input.acl()?,
                flags: input.int()?,
                ttl: (op == op::CREATE_TTL).then(|| input.long()).transpose()?,
            },
            op::DELETE => Request::Delete {
                path: input.string()?,
                version: input.int()?,
            },
            op::EXISTS | op::GET_DATA | op::GET_CHILDREN | op::GET_CHILDREN2 => Request::Read {
                op,
                path: input.string()?,
                watch: input.bool()?,
            },
            op::SET_DATA => Request::SetData {
                path: input.string()?,
                data: input.buffer()?,
                version: input.int()?,
            },
            op::SET_ACL => Request::SetAcl {
                path: input.string()?,
                acl: input.acl()?,
                version: input.int()?,
            },
            op::GET_ACL
            | op::SYNC
            | op::DELETE_CONTAINER
            | op::GET_EPHEMERALS
            | op::GET_ALL_CHILDREN_NUMBER => Request::Path {
                op,
                path: input.string()?,
            },
            op::CHECK => Request::Check {
                path: input.string()?,
                version: input.int()?,
            },
            op::MULTI | op::MULTI_READ if depth == 0 => {
                let mut parts = Vec::new();
                loop {
                    let (part, done, error) = input.multi_header()?;
                    ensure!(error == -1, "error {error} in a request");
                    if done {
                        break;
                    }
                    parts.push(Request::read(part, input, depth + 1)?);
                }
                Request::Multi { op, parts }
            }
            op::RECONFIG => Request::Reconfig {
                joining: input.optional_string()?,
                leaving: input.optional_string()?,
                members: input.optional_string()?,
                from_config: input.long()?,
            },
            op::CHECK_WATCHES | op::REMOVE_WATCHES => Request::Watches {
                op,
                path: input.string()?,
                kind: input.int()?,
            },
            op::ADD_WATCH => Request::AddWatch {
                path: input.string()?,
                mode: input.int()?,
            },
            op::AUTH => Request::Auth {
                kind: input.int()?,
                scheme: input.string()?,
                auth: input.buffer()?,
            },
            op::SET_WATCHES | op::SET_WATCHES2 => Request::SetWatches {
                zxid: input.long()?,
                data: input.strings()?,
                exist: input.strings()?,
                child: input.strings()?,
                persistent: (op == op::SET_WATCHES2)
                    .then(|| -> Result<_> { Ok((input.strings()?, input.strings()?)) })
                    .transpose()?,
            },
            op::SASL => Request::Sasl {
                token: input.buffer()?,
            },
            op::PING | op::CLOSE_SESSION | op::WHO_AM_I => Request::Empty { op },
            _ => bail!("request number {op}"),
        })
    }
}

/// A request with its header, as a frame carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFrame {
    /// The client's number for it.
    pub xid: i32,
    /// What it asks.
    pub request: Request,
}

impl RequestFrame {
    /// The payload of its frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.int(self.xid);
        out.int(self.request.op());
        self.request.write(&mut out);
        out.0
    }

    /// Reads a client's frame behind the first one. Fails only when there is no whole header.
    pub fn decode(payload: &[u8]) -> Result<RequestFrame> {
        let mut input = Reader::new(payload);
        let (xid, op) = (input.int()?, input.int()?);
        Ok(RequestFrame {
            xid,
            request: Request::decode(op, input.rest()),
        })
    }
}

/// A watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The header's zxid: the change's since 3.9, −1 before.
    pub zxid: i64,
    /// The header's error, 0.
    pub error: i32,
    /// 1 created, 2 deleted, 3 data changed, 4 children changed; −2 and others: watch removed.
    pub kind: i32,
    /// 3 connected.
    pub state: i32,
    /// The node.
    pub path: String,
}

/// The name of an event's kind, ZooKeeper: `Watcher.Event.EventType`.
pub fn event_name(kind: i32) -> Option<&'static str> {
    Some(match kind {
        -1 => "None",
        1 => "NodeCreated",
        2 => "NodeDeleted",
        3 => "NodeDataChanged",
        4 => "NodeChildrenChanged",
        5 => "DataWatchRemoved",
        6 => "ChildWatchRemoved",
        7 => "PersistentWatchRemoved",
        _ => return None,
    })
}

/// A reply with every field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The request's number, or −2 of a ping.
    pub xid: i32,
    /// The server's last change when it answered.
    pub zxid: i64,
    /// 0, or an error.
    pub error: i32,
    /// What it answers; [`None`] when nothing with this xid was asked.
    pub op: Option<i32>,
    /// The record behind the header.
    pub body: Body,
}

/// What stands behind a reply's header.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the records' fields")]
pub enum Body {
    /// Nothing.
    Empty,
    /// create, sync.
    Path(String),
    /// create2, createContainer, createTTL.
    PathStat(String, Stat),
    /// exists, setData, setACL.
    Stat(Stat),
    /// getData, reconfig.
    Data(Option<Vec<u8>>, Stat),
    /// getACL.
    Acl(Option<Vec<Acl>>, Stat),
    /// getChildren, getEphemerals.
    Names(Vec<String>),
    /// getChildren2.
    NamesStat(Vec<String>, Stat),
    /// getAllChildrenNumber; the error record of addWatch.
    Number(i32),
    /// whoAmI: scheme and user.
    Who(Vec<(String, String)>),
    /// sasl.
    Token(Option<Vec<u8>>),
    /// multi, multiRead.
    Multi(Vec<MultiResult>),
    /// Bytes that are not what the request's number promises.
    Raw(Vec<u8>),
}

/// One result of a multi.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiResult {
    /// The header's type: −1 is an error.
    pub kind: i32,
    /// The header's error.
    pub error: i32,
    /// The record; of an error [`Body::Number`].
    pub body: Body,
}

impl Body {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.write(&mut out);
        out.0
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Body::Empty => {}
            Body::Path(path) => out.string(path),
            Body::PathStat(path, stat) => {
                out.string(path);
                out.stat(stat);
            }
            Body::Stat(stat) => out.stat(stat),
            Body::Data(data, stat) => {
                out.buffer(data.as_deref());
                out.stat(stat);
            }
            Body::Acl(acl, stat) => {
                out.acl(acl.as_deref());
                out.stat(stat);
            }
            Body::Names(names) => out.strings(names),
            Body::NamesStat(names, stat) => {
                out.strings(names);
                out.stat(stat);
            }
            Body::Number(number) => out.int(*number),
            Body::Who(identities) => {
                out.count(identities.len());
                for (scheme, user) in identities {
                    out.string(scheme);
                    out.string(user);
                }
            }
            Body::Token(token) => out.buffer(token.as_deref()),
            Body::Multi(results) => {
                for result in results {
                    out.multi_header(result.kind, false, result.error);
                    result.body.write(out);
                }
                out.multi_header(-1, true, -1);
            }
            Body::Raw(bytes) => out.0.extend_from_slice(bytes),
        }
    }

    /// Reads the record that answers `op`; [`Body::Raw`] when it is another one.
    pub fn decode(op: Option<i32>, bytes: &[u8]) -> Body {
        if bytes.is_empty() {
            return Body::Empty;
        }
        let mut input = Reader::new(bytes);
        match op.map(|op| Body::read(op, &mut input, 0)) {
            Some(Ok(body)) if input.is_empty() && body.encode() == bytes => body,
            _ => Body::Raw(bytes.to_vec()),
        }
    }

    fn read(op: i32, input: &mut Reader<'_>, depth: u8) -> Result<Body> {
        Ok(match op {
            op::CREATE | op::SYNC => Body::Path(input.string()?),
            op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                Body::PathStat(input.string()?, input.stat()?)
            }
            op::EXISTS | op::SET_DATA | op::SET_ACL => Body::Stat(input.stat()?),
            op::GET_DATA | op::RECONFIG => Body::Data(input.buffer()?, input.stat()?),
            op::GET_ACL => Body::Acl(input.acl()?, input.stat()?),
            op::GET_CHILDREN | op::GET_EPHEMERALS => Body::Names(input.strings()?),
            op::GET_CHILDREN2 => Body::NamesStat(input.strings()?, input.stat()?),
            op::GET_ALL_CHILDREN_NUMBER | op::ADD_WATCH => Body::Number(input.int()?),
            op::WHO_AM_I => {
                let mut identities = Vec::new();
                for _ in 0..input.count()?.unwrap_or(0) {
                    identities.push((input.string()?, input.string()?));
                }
                Body::Who(identities)
            }
            op::SASL => Body::Token(input.buffer()?),
            op::DELETE | op::CHECK | op::DELETE_CONTAINER => Body::Empty,
            op::MULTI | op::MULTI_READ if depth == 0 => {
                let mut results = Vec::new();
                loop {
                    let (kind, done, error) = input.multi_header()?;
                    if done {
                        break;
                    }
                    let body = if kind == -1 {
                        Body::Number(input.int()?)
                    } else {
                        Body::read(kind, input, depth + 1)?
                    };
                    results.push(MultiResult { kind, error, body });
                }
                Body::Multi(results)
            }
            _ => bail!("no record answers {op}"),
        })
    }
}

/// A frame from the server behind its first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFrame {
    /// An answer.
    Reply(Reply),
    /// A watch event.
    Event(Event),
}

impl ServerFrame {
    /// Reads a server's frame; `op_of` says what was asked under an xid.
    pub fn decode(payload: &[u8], op_of: impl FnOnce(i32) -> Option<i32>) -> Result<ServerFrame> {
        let mut input = Reader::new(payload);
        let (xid, zxid, error) = (input.int()?, input.long()?, input.int()?);
        if xid == xid::NOTIFICATION {
            let event = Event {
                zxid,
                error,
                kind: input.int()?,
                state: input.int()?,
                path: input.string()?,
            };
            input.end()?;
            return Ok(ServerFrame::Event(event));
        }
        let op = op_of(xid);
        Ok(ServerFrame::Reply(Reply {
            xid,
            zxid,
            error,
            op,
            body: Body::decode(op, input.rest()),
        }))
    }

    /// The payload of its frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            ServerFrame::Reply(reply) => {
                out.int(reply.xid);
                out.long(reply.zxid);
                out.int(reply.error);
                reply.body.write(&mut out);
            }
            ServerFrame::Event(event) => {
                out.int(xid::NOTIFICATION);
                out.long(event.zxid);
                out.int(event.error);
                out.int(event.kind);
                out.int(event.state);
                out.string(&event.path);
            }
        }
        out.0
    }
}

/// Cuts a stream of bytes into the payloads of its frames.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    /// More bytes from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    #[allow(
        clippy::should_implement_trait,
        reason = "a length may be wrong, and more bytes may come: it is no iterator"
    )]
    /// The next whole payload. Fails on a length that no server sends.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(head) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes(*head);
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_FRAME)
            .with_context(|| format!("a frame of {length} bytes"))?;
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let payload = self.buffer[4..4 + length].to_vec();
        self.buffer.drain(..4 + length);
        Ok(Some(payload))
    }

    /// Bytes that are not a whole frame yet.
    pub fn rest(&self) -> &[u8] {
        &self.buffer
    }
}

/// A payload with its length in front.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.buffer(Some(payload));
    out.0
}

/// What [`Client::receive`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// An answer.
    Reply(Reply),
    /// A watch event.
    Event(Event),
    /// The server closed the connection.
    Closed,
    /// Nothing within the limit.
    Nothing,
}

/// How a connection began.
#[derive(Debug)]
pub enum Greeting {
    /// The server answered; `expired` answers too come with an open socket, which the server then closes.
    Answered(Client, ConnectResponse),
    /// The server closed without an answer.
    Closed,
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    frames: Frames,
    /// What was sent and not answered: xid and request number, in order.
    pending: VecDeque<(i32, i32)>,
    next_xid: i32,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("stream", &self.stream)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects, sends `request` and waits for the answer.
    pub fn connect(address: &str, request: &ConnectRequest, limit: Duration) -> Result<Greeting> {
        let mut client = Client::open(address, limit)?;
        if client.send_bytes(&frame(&request.encode())).is_err() {
            return Ok(Greeting::Closed);
        }
        let deadline = now() + limit;
        match client.payload(deadline)? {
            Payload::Frame(payload) => {
                let response = ConnectResponse::decode(&payload)?;
                Ok(Greeting::Answered(client, response))
            }
            Payload::Closed => Ok(Greeting::Closed),
            Payload::Nothing => bail!("no answer to the connect within {limit:?}"),
        }
    }

    /// A socket on which nothing was sent yet.
    pub fn open(address: &str, limit: Duration) -> Result<Client> {
        let target = address
            .to_socket_addrs()
            .with_context(|| address.to_string())?
            .next()
            .with_context(|| format!("no address behind {address}"))?;
        let stream = TcpStream::connect_timeout(&target, limit)
            .with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Client {
            stream,
            frames: Frames::default(),
            pending: VecDeque::new(),
            next_xid: 1,
        })
    }

    /// Sends one request under the next xid, or under its special one, and returns the xid.
    pub fn send(&mut self, request: &Request) -> Result<i32> {
        Ok(self.send_all(std::slice::from_ref(request))?[0])
    }

    /// Sends several requests in one write.
    pub fn send_all(&mut self, requests: &[Request]) -> Result<Vec<i32>> {
        let mut bytes = Vec::new();
        let mut xids = Vec::new();
        for request in requests {
            let xid = request.special_xid().unwrap_or(self.next_xid);
            if request.special_xid().is_none() {
                self.next_xid = self.next_xid.checked_add(1).unwrap_or(1);
            }
            self.pending.push_back((xid, request.op()));
            xids.push(xid);
            let payload = RequestFrame {
                xid,
                request: request.clone(),
            }
            .encode();
            bytes.extend_from_slice(&frame(&payload));
        }
        self.send_bytes(&bytes)?;
        Ok(xids)
    }

    /// Sends one request under an xid of the caller's choice.
    pub fn send_as(&mut self, xid: i32, request: &Request) -> Result<()> {
        self.pending.push_back((xid, request.op()));
        let payload = RequestFrame {
            xid,
            request: request.clone(),
        }
        .encode();
        self.send_bytes(&frame(&payload))
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("send")
    }

    /// The next frame within `limit`.
    pub fn receive(&mut self, limit: Duration) -> Result<Received> {
        let payload = match self.payload(now() + limit)? {
            Payload::Frame(payload) => payload,
            Payload::Closed => return Ok(Received::Closed),
            Payload::Nothing => return Ok(Received::Nothing),
        };
        let pending = &mut self.pending;
        let frame = ServerFrame::decode(&payload, |xid| {
            let at = pending.iter().position(|(sent, _)| *sent == xid)?;
            pending.remove(at).map(|(_, op)| op)
        })?;
        Ok(match frame {
            ServerFrame::Reply(reply) => Received::Reply(reply),
            ServerFrame::Event(event) => Received::Event(event),
        })
    }

    /// Sends one request and waits for its reply; events that came before it are returned beside it.
    pub fn call(&mut self, request: &Request, limit: Duration) -> Result<(Vec<Event>, Reply)> {
        let xid = self.send(request)?;
        let deadline = now() + limit;
        let mut events = Vec::new();
        loop {
            match self.receive(deadline.saturating_duration_since(now()))? {
                Received::Event(event) => events.push(event),
                Received::Reply(reply) if reply.xid == xid => return Ok((events, reply)),
                Received::Reply(reply) => bail!("a reply to {} while waiting for {xid}", reply.xid),
                Received::Closed => bail!("closed by the server"),
                Received::Nothing => bail!("no reply within {limit:?}"),
            }
        }
    }

    /// How many requests are not answered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn payload(&mut self, deadline: Instant) -> Result<Payload> {
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some(payload) = self.frames.next()? {
                return Ok(Payload::Frame(payload));
            }
            let left = deadline.saturating_duration_since(now());
            // A timeout of zero means none to the socket.
            let wait = left.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(wait))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(Payload::Closed),
                Ok(count) => self.frames.push(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if left.is_zero() => {
                        return Ok(Payload::Nothing);
                    }
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => {
                        return Ok(Payload::Closed);
                    }
                    _ => return Err(error).context("receive"),
                },
            }
        }
    }
}

enum Payload {
    Frame(Vec<u8>),
    Closed,
    Nothing,
}

fn now() -> Instant {
    Instant::now()
}

/// Writes jute's primitives.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn int(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn bool(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    fn count(&mut self, count: usize) {
        self.int(i32::try_from(count).unwrap_or(i32::MAX));
    }

    fn buffer(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.int(-1),
            Some(bytes) => {
                self.count(bytes.len());
                self.0.extend_from_slice(bytes);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.buffer(Some(text.as_bytes()));
    }

    fn strings(&mut self, list: &[String]) {
        self.count(list.len());
        for text in list {
            self.string(text);
        }
    }

    fn acl(&mut self, acl: Option<&[Acl]>) {
        let Some(acl) = acl else {
            return self.int(-1);
        };
        self.count(acl.len());
        for entry in acl {
            self.int(entry.perms);
            self.string(&entry.scheme);
            self.string(&entry.id);
        }
    }

    fn stat(&mut self, stat: &Stat) {
        self.long(stat.czxid);
        self.long(stat.mzxid);
        self.long(stat.ctime);
        self.long(stat.mtime);
        self.int(stat.version);
        self.int(stat.cversion);
        self.int(stat.aversion);
        self.long(stat.ephemeral_owner);
        self.int(stat.data_length);
        self.int(stat.num_children);
        self.long(stat.pzxid);
    }

    fn multi_header(&mut self, kind: i32, done: bool, error: i32) {
        self.int(kind);
        self.bool(done);
        self.int(error);
    }
}

/// Reads jute's primitives. Every length is checked against what is there.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().context("too short")?;
        self.bytes = rest;
        Ok(*head)
    }

    fn int(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    fn long(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take()?))
    }

    fn bool(&mut self) -> Result<bool> {
        Ok(self.take::<1>()? != [0])
    }

    fn optional_bool(&mut self) -> Result<Option<bool>> {
        if self.is_empty() {
            return Ok(None);
        }
        self.bool().map(Some)
    }

    /// A count of things of one byte or more; null is [`None`].
    fn count(&mut self) -> Result<Option<usize>> {
        match self.int()? {
            -1 => Ok(None),
            count => {
                let count = usize::try_from(count).context("a negative length")?;
                ensure!(count <= self.bytes.len(), "too short");
                Ok(Some(count))
            }
        }
    }

    fn buffer(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(count) = self.count()? else {
            return Ok(None);
        };
        let (head, rest) = self.bytes.split_at_checked(count).context("too short")?;
        self.bytes = rest;
        Ok(Some(head.to_vec()))
    }

    fn optional_string(&mut self) -> Result<Option<String>> {
        self.buffer()?
            .map(|bytes| String::from_utf8(bytes).context("not UTF-8"))
            .transpose()
    }

    fn string(&mut self) -> Result<String> {
        self.optional_string()?.context("null")
    }

    fn strings(&mut self) -> Result<Vec<String>> {
        let count = self.count()?.context("null")?;
        (0..count).map(|_| self.string()).collect()
    }

    fn acl(&mut self) -> Result<Option<Vec<Acl>>> {
        let Some(count) = self.count()? else {
            return Ok(None);
        };
        let entries = (0..count).map(|_| {
            Ok(Acl {
                perms: self.int()?,
                scheme: self.string()?,
                id: self.string()?,
            })
        });
        entries.collect::<Result<_>>().map(Some)
    }

    fn stat(&mut self) -> Result<Stat> {
        Ok(Stat {
            czxid: self.long()?,
            mzxid: self.long()?,
            ctime: self.long()?,
            mtime: self.long()?,
            version: self.int()?,
            cversion: self.int()?,
            aversion: self.int()?,
            ephemeral_owner: self.long()?,
            data_length: self.int()?,
            num_children: self.int()?,
            pzxid: self.long()?,
        })
    }

    fn multi_header(&mut self) -> Result<(i32, bool, i32)> {
        Ok((self.int()?, self.bool()?, self.int()?))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn end(&self) -> Result<()> {
        ensure!(self.is_empty(), "{} bytes too many", self.bytes.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        text.to_string()
    }

    fn stat() -> Stat {
        Stat {
            czxid: 1,
            mzxid: 2,
            ctime: 3,
            mtime: 4,
            version: 5,
            cversion: 6,
            aversion: 7,
            ephemeral_owner: i64::MIN,
            data_length: 8,
            num_children: 9,
            pzxid: 10,
        }
    }

    fn requests() -> Vec<Request> {
        let create = |op, ttl| Request::Create {
            op,
            path: text("/a"),
            data: None,
            acl: Some(open_acl()),
            flags: 3,
            ttl,
        };
        let path = |op| Request::Path {
            op,
            path: text("/a"),
        };
        let read = |op| Request::Read {
            op,
            path: text("/ä"),
            watch: true,
        };
        let set_data = Request::SetData {
            path: text("/a"),
            data: Some(Vec::new()),
            version: -1,
        };
        let delete = Request::Delete {
            path: text("/a"),
            version: 3,
        };
        let check = Request::Check {
            path: text("/a"),
            version: 0,
        };
        vec![
            create(op::CREATE, None),
            create(op::CREATE2, None),
            create(op::CREATE_CONTAINER, None),
            create(op::CREATE_TTL, Some(1000)),
            delete.clone(),
            read(op::EXISTS),
            read(op::GET_DATA),
            read(op::GET_CHILDREN),
            read(op::GET_CHILDREN2),
            set_data.clone(),
            Request::SetAcl {
                path: text("/a"),
                acl: None,
                version: 1,
            },
            path(op::GET_ACL),
            path(op::SYNC),
            path(op::DELETE_CONTAINER),
            path(op::GET_EPHEMERALS),
            path(op::GET_ALL_CHILDREN_NUMBER),
            check.clone(),
            Request::Multi {
                op: op::MULTI,
                parts: vec![create(op::CREATE2, None), check, set_data, delete],
            },
            Request::Multi {
                op: op::MULTI_READ,
                parts: vec![read(op::GET_DATA), read(op::GET_CHILDREN)],
            },
            Request::Reconfig {
                joining: None,
                leaving: Some(text("1")),
                members: None,
                from_config: -1,
            },
            Request::Watches {
                op: op::REMOVE_WATCHES,
                path: text("/a"),
                kind: 3,
            },
            Request::AddWatch {
                path: text("/a"),
                mode: 1,
            },
            Request::Auth {
                kind: 0,
                scheme: text("digest"),
                auth: Some(b"u:p".to_vec()),
            },
            Request::SetWatches {
                zxid: 7,
                data: vec![text("/a")],
                exist: vec![],
                child: vec![text("/b")],
                persistent: None,
            },
            Request::SetWatches {
                zxid: 7,
                data: vec![],
                exist: vec![],
                child: vec![],
                persistent: Some((vec![text("/p")], vec![text("/r")])),
            },
            Request::Sasl { token: None },
            Request::Empty { op: op::PING },
            Request::Empty {
                op: op::CLOSE_SESSION,
            },
            Request::Empty { op: op::WHO_AM_I },
            Request::Raw {
                op: 9999,
                body: vec![1, 2, 3],
            },
        ]
    }

    #[test]
    fn every_request_comes_back() {
        for request in requests() {
            let frame = RequestFrame {
                xid: 5,
                request: request.clone(),
            };
            let payload = frame.encode();
            assert_eq!(RequestFrame::decode(&payload).unwrap(), frame);
            // One byte less or more is another request, shown as it is, with the same bytes.
            for other in [
                &payload[..payload.len() - 1],
                &[&payload[..], &[0]].concat(),
            ] {
                if let Ok(decoded) = RequestFrame::decode(other) {
                    assert_ne!(decoded, frame);
                    assert_eq!(decoded.encode(), other);
                }
            }
        }
    }

    #[test]
    fn every_reply_comes_back() {
        let multi = Body::Multi(vec![
            MultiResult {
                kind: op::CREATE2,
                error: 0,
                body: Body::PathStat(text("/a"), stat()),
            },
            MultiResult {
                kind: op::CHECK,
                error: 0,
                body: Body::Empty,
            },
            MultiResult {
                kind: -1,
                error: -101,
                body: Body::Number(-101),
            },
        ]);
        let who = Body::Who(vec![(text("ip"), text("127.0.0.1"))]);
        let cases = [
            (op::CREATE, Body::Path(text("/a"))),
            (op::CREATE_TTL, Body::PathStat(text("/a"), stat())),
            (op::DELETE, Body::Empty),
            (op::EXISTS, Body::Stat(stat())),
            (op::GET_DATA, Body::Data(None, stat())),
            (op::GET_DATA, Body::Data(Some(vec![]), stat())),
            (op::GET_ACL, Body::Acl(Some(open_acl()), stat())),
            (op::GET_CHILDREN, Body::Names(vec![text("x")])),
            (op::GET_CHILDREN2, Body::NamesStat(vec![], stat())),
            (op::GET_ALL_CHILDREN_NUMBER, Body::Number(4)),
            (op::WHO_AM_I, who),
            (op::SASL, Body::Token(Some(vec![1]))),
            (op::MULTI, multi),
            // A record that the request does not promise.
            (op::DELETE, Body::Raw(vec![0])),
            (op::GET_DATA, Body::Raw(vec![0, 0])),
        ];
        for (op, body) in cases {
            let reply = ServerFrame::Reply(Reply {
                xid: 3,
                zxid: 77,
                error: 0,
                op: Some(op),
                body,
            });
            let decoded = ServerFrame::decode(&reply.encode(), |xid| (xid == 3).then_some(op));
            assert_eq!(decoded.unwrap(), reply);
        }
        let event = ServerFrame::Event(Event {
            zxid: -1,
            error: 0,
            kind: 3,
            state: 3,
            path: text("/a"),
        });
        assert_eq!(
            ServerFrame::decode(&event.encode(), |_| None).unwrap(),
            event
        );
    }

    #[test]
    fn a_handshake_keeps_the_byte_at_its_end() {
        for (read_only, long, short) in
            [(None, 44, 36), (Some(false), 45, 37), (Some(true), 45, 37)]
        {
            let request = ConnectRequest {
                read_only,
                ..ConnectRequest::new(Duration::from_secs(4))
            };
            assert_eq!(request.encode().len(), long);
            assert_eq!(ConnectRequest::decode(&request.encode()).unwrap(), request);
            let response = ConnectResponse {
                protocol_version: 0,
                timeout: 4000,
                session_id: -5,
                password: Some(vec![7; 16]),
                read_only,
            };
            assert_eq!(response.encode().len(), short);
            assert_eq!(
                ConnectResponse::decode(&response.encode()).unwrap(),
                response
            );
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_came_in() {
        let bytes = [frame(b"one"), frame(b""), frame(b"three")].concat();
        let mut frames = Frames::default();
        let mut seen = Vec::new();
        for byte in bytes {
            frames.push(&[byte]);
            while let Some(payload) = frames.next().unwrap() {
                seen.push(payload);
            }
        }
        assert_eq!(seen, [b"one".to_vec(), vec![], b"three".to_vec()]);
        assert!(frames.rest().is_empty());
        frames.push(&(-1i32).to_be_bytes());
        assert!(frames.next().is_err());
    }
}
