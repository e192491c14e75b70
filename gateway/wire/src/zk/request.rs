//! A struct per request record, and one table that ties operations to records.
//!
//! ```
//! use causeway_wire::zk::{Request, RequestHeader, encode_request};
//!
//! let frame = encode_request(7, &Request::WhoAmI).slice(4..);
//! let (header, body) = RequestHeader::split(frame)?;
//! assert_eq!((header.xid, Request::decode(header.op, body)?), (7, Request::WhoAmI));
//! # Ok::<(), causeway_wire::zk::RecordError>(())
//! ```

use bytes::{Bytes, BytesMut};

use crate::zk::frame::put_frame;
use crate::zk::multi::MultiRequest;
use crate::zk::op_code::OpCode;
use crate::zk::record::{Reader, Record, RecordError, records};

records! {
    /// What every frame after the handshake starts with.
    #[derive(Copy)]
    pub struct RequestHeader {
        /// Chosen by the client and echoed in the reply; negative ones are in [`crate::zk::xid`].
        pub xid: i32,
        /// Number of the operation.
        pub op: i32,
    }

    /// One entry of an access list.
    pub struct Acl {
        /// Permission bits: 1 read, 2 write, 4 create, 8 delete, 16 admin.
        pub perms: i32,
        /// `world`, `auth`, `digest`, `ip`, `x509`, `sasl`, `super`.
        pub scheme: String,
        /// Identity in the scheme.
        pub id: String,
    }

    /// create, create2, createContainer.
    pub struct CreateRequest {
        /// Path; a sequential one gets its number appended.
        pub path: String,
        /// Data; null is kept apart from empty.
        pub data: Option<Bytes>,
        /// Access list.
        pub acl: Vec<Acl>,
        /// 0 persistent, 1 ephemeral, 2 sequential, 3 both, 4 container, 5 and 6 TTL.
        pub flags: i32,
    }

    /// createTTL.
    pub struct CreateTtlRequest {
        /// Path; a sequential one gets its number appended.
        pub path: String,
        /// Data; null is kept apart from empty.
        pub data: Option<Bytes>,
        /// Access list.
        pub acl: Vec<Acl>,
        /// 5 persistent with TTL, 6 sequential with TTL.
        pub flags: i32,
        /// Time to live after the last change, milliseconds.
        pub ttl: i64,
    }

    /// delete.
    pub struct DeleteRequest {
        /// Path.
        pub path: String,
        /// Expected version, -1 for any.
        pub version: i32,
    }

    /// deleteContainer.
    pub struct DeleteContainerRequest {
        /// Path.
        pub path: String,
    }

    /// exists, getData, getChildren, getChildren2.
    pub struct ReadRequest {
        /// Path.
        pub path: String,
        /// Whether to set a one-shot watch.
        pub watch: bool,
    }

    /// setData.
    pub struct SetDataRequest {
        /// Path.
        pub path: String,
        /// Data; null is kept apart from empty.
        pub data: Option<Bytes>,
        /// Expected version, -1 for any.
        pub version: i32,
    }

    /// getACL, sync, getAllChildrenNumber.
    pub struct PathRequest {
        /// Path.
        pub path: String,
    }

    /// getEphemerals.
    pub struct GetEphemeralsRequest {
        /// Prefix that the paths must have.
        pub prefix_path: String,
    }

    /// setACL.
    pub struct SetAclRequest {
        /// Path.
        pub path: String,
        /// The new list.
        pub acl: Vec<Acl>,
        /// Expected version of the list, -1 for any.
        pub version: i32,
    }

    /// check, inside a multi.
    pub struct CheckVersionRequest {
        /// Path.
        pub path: String,
        /// Expected version, -1 for any.
        pub version: i32,
    }

    /// reconfig.
    pub struct ReconfigRequest {
        /// Servers to add, or null.
        pub joining_servers: Option<String>,
        /// Ids of servers to remove, or null.
        pub leaving_servers: Option<String>,
        /// The whole new list instead, or null.
        pub new_members: Option<String>,
        /// Expected configuration, -1 for any.
        pub cur_config_id: i64,
    }

    /// checkWatches, removeWatches.
    pub struct WatchesRequest {
        /// Path.
        pub path: String,
        /// 1 children, 2 data, 3 any, 4 persistent, 5 persistent recursive.
        pub kind: i32,
    }

    /// auth.
    pub struct AuthRequest {
        /// 0 from every client.
        pub kind: i32,
        /// Scheme, e.g. `digest`.
        pub scheme: String,
        /// Credentials in the scheme's form.
        pub auth: Option<Bytes>,
    }

    /// setWatches.
    pub struct SetWatchesRequest {
        /// Last zxid that the client saw; what changed after it fires at once.
        pub relative_zxid: i64,
        /// Paths with a data watch on an existing node.
        pub data_watches: Vec<String>,
        /// Paths watched while missing.
        pub exist_watches: Vec<String>,
        /// Paths with a child watch.
        pub child_watches: Vec<String>,
    }

    /// setWatches2.
    pub struct SetWatches2Request {
        /// Last zxid that the client saw; what changed after it fires at once.
        pub relative_zxid: i64,
        /// Paths with a data watch on an existing node.
        pub data_watches: Vec<String>,
        /// Paths watched while missing.
        pub exist_watches: Vec<String>,
        /// Paths with a child watch.
        pub child_watches: Vec<String>,
        /// Paths with a persistent watch; re-armed without catching up.
        pub persistent_watches: Vec<String>,
        /// Paths with a recursive watch; re-armed without catching up.
        pub persistent_recursive_watches: Vec<String>,
    }

    /// sasl.
    pub struct SaslRequest {
        /// One step of the exchange.
        pub token: Option<Bytes>,
    }

    /// addWatch.
    pub struct AddWatchRequest {
        /// Path.
        pub path: String,
        /// 0 persistent, 1 persistent recursive.
        pub mode: i32,
    }
}

impl RequestHeader {
    /// Header and body of a frame. Apart from [`Request::decode`], so that a body with wrong bytes still has an xid
    /// to answer to.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), RecordError> {
        let mut reader = Reader::new(frame);
        Ok((Self::read(&mut reader)?, reader.into_rest()))
    }
}

macro_rules! requests {
    (
        $($(#[$meta:meta])* $name:ident($record:ty),)+
        ---
        $($(#[$bare_meta:meta])* $bare:ident,)+
    ) => {
        /// A decoded request.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            $($(#[$meta])* $name($record),)+
            $($(#[$bare_meta])* $bare,)+
            /// A number that ZooKeeper does not define, or one that clients must not send (notification, error,
            /// createSession): answered with -6 and a closed connection (ZooKeeper: `Request.isValid`).
            Unknown {
                /// The number.
                op: i32,
            },
        }

        impl Request {
            /// Decodes the body of a request. An error means a known operation with wrong bytes.
            pub fn decode(op: i32, body: Bytes) -> Result<Self, RecordError> {
                match OpCode::try_from(op) {
                    $(Ok(OpCode::$name) => Ok(Request::$name(<$record>::decode(body)?)),)+
                    $(Ok(OpCode::$bare) => Ok(Request::$bare),)+
                    Ok(OpCode::Notification | OpCode::Error | OpCode::CreateSession) | Err(_) => {
                        Ok(Request::Unknown { op })
                    }
                }
            }

            /// The number on the wire.
            pub fn op(&self) -> i32 {
                match self {
                    $(Request::$name(_) => OpCode::$name as i32,)+
                    $(Request::$bare => OpCode::$bare as i32,)+
                    Request::Unknown { op } => *op,
                }
            }

            /// Appends the body.
            pub fn write(&self, out: &mut BytesMut) {
                match self {
                    $(Request::$name(record) => record.write(out),)+
                    $(Request::$bare => {})+
                    Request::Unknown { .. } => {}
                }
            }
        }
    };
}

requests! {
    /// Create a node.
    Create(CreateRequest),
    /// Create a node, Stat in the reply.
    Create2(CreateRequest),
    /// Create a container.
    CreateContainer(CreateRequest),
    /// Create a node with a time to live.
    CreateTtl(CreateTtlRequest),
    /// Delete a node.
    Delete(DeleteRequest),
    /// Delete a container.
    DeleteContainer(DeleteContainerRequest),
    /// Stat of a node; its watch is set on a missing node too.
    Exists(ReadRequest),
    /// Data and Stat.
    GetData(ReadRequest),
    /// Replace the data.
    SetData(SetDataRequest),
    /// ACL and Stat.
    GetAcl(PathRequest),
    /// Replace the ACL.
    SetAcl(SetAclRequest),
    /// Names of the children.
    GetChildren(ReadRequest),
    /// Names of the children, and the Stat.
    GetChildren2(ReadRequest),
    /// Wait until everything before it is visible; the path need not exist.
    Sync(PathRequest),
    /// Version check; answered with -6 and a closed connection outside a multi.
    Check(CheckVersionRequest),
    /// Several writes at once.
    Multi(MultiRequest),
    /// Several reads at once.
    MultiRead(MultiRequest),
    /// Change the ensemble.
    Reconfig(ReconfigRequest),
    /// Ask whether a watch is set.
    CheckWatches(WatchesRequest),
    /// Remove watches.
    RemoveWatches(WatchesRequest),
    /// Add an identity to the connection.
    Auth(AuthRequest),
    /// Re-arm watches.
    SetWatches(SetWatchesRequest),
    /// Re-arm watches, persistent ones included.
    SetWatches2(SetWatches2Request),
    /// One step of a SASL exchange.
    Sasl(SaslRequest),
    /// Ephemerals of the own session.
    GetEphemerals(GetEphemeralsRequest),
    /// Number of descendants.
    GetAllChildrenNumber(PathRequest),
    /// Add a persistent watch.
    AddWatch(AddWatchRequest),
    ---
    /// Keep the session alive.
    Ping,
    /// End the session; the reply goes out, then the connection closes.
    CloseSession,
    /// Identities of the connection.
    WhoAmI,
}

/// A whole request frame with its length prefix, as a client sends it.
pub fn encode_request(xid: i32, request: &Request) -> Bytes {
    let mut out = BytesMut::new();
    put_frame(&mut out, |out| {
        RequestHeader {
            xid,
            op: request.op(),
        }
        .write(out);
        request.write(out);
    });
    out.freeze()
}

#[cfg(test)]
mod tests;
