//! The reply header, a struct per reply record, and the table that ties operations to them.

use bytes::{BufMut, Bytes, BytesMut};

use crate::zk::error_code::ErrorCode;
use crate::zk::frame::put_frame;
use crate::zk::multi::MultiResponse;
use crate::zk::op_code::OpCode;
use crate::zk::record::{Reader, Record, RecordError, records, wire_length};
use crate::zk::request::Acl;
use crate::zk::stat::Stat;

records! {
    /// What every frame of a server starts with.
    #[derive(Copy)]
    pub struct ReplyHeader {
        /// Of the request; -2 for a ping, -1 for a notification.
        pub xid: i32,
        /// Last zxid that the server processed; 0 for auth, -1 for an unknown operation.
        pub zxid: i64,
        /// 0, or an error code and no body. A number, since relays pass codes they do not know.
        pub err: i32,
    }

    /// create.
    pub struct CreateResponse {
        /// The path, with its number if sequential.
        pub path: String,
    }

    /// create2, createContainer, createTTL.
    pub struct Create2Response {
        /// The path, with its number if sequential.
        pub path: String,
        /// The new node.
        pub stat: Stat,
    }

    /// exists, setData, setACL.
    #[derive(Copy)]
    pub struct StatResponse {
        /// The node.
        pub stat: Stat,
    }

    /// getData, reconfig.
    pub struct GetDataResponse {
        /// As stored: null or a buffer.
        pub data: Option<Bytes>,
        /// The node.
        pub stat: Stat,
    }

    /// getACL.
    pub struct GetAclResponse {
        /// The list.
        pub acl: Vec<Acl>,
        /// The node.
        pub stat: Stat,
    }

    /// getChildren.
    pub struct GetChildrenResponse {
        /// Names, in any order, without duplicates.
        pub children: Vec<String>,
    }

    /// getChildren2.
    pub struct GetChildren2Response {
        /// Names, in any order, without duplicates.
        pub children: Vec<String>,
        /// The node.
        pub stat: Stat,
    }

    /// sync.
    pub struct SyncResponse {
        /// The path of the request.
        pub path: String,
    }

    /// sasl.
    pub struct SaslResponse {
        /// Next step of the exchange.
        pub token: Option<Bytes>,
    }

    /// getEphemerals.
    pub struct GetEphemeralsResponse {
        /// Paths.
        pub ephemerals: Vec<String>,
    }

    /// getAllChildrenNumber.
    #[derive(Copy)]
    pub struct GetAllChildrenNumberResponse {
        /// Number of descendants.
        pub total_number: i32,
    }

    /// addWatch, whose success is an error record with 0.
    #[derive(Copy)]
    pub struct ErrorResponse {
        /// 0.
        pub err: i32,
    }

    /// One identity of whoAmI.
    pub struct ClientInfo {
        /// Scheme.
        pub auth_scheme: String,
        /// Name in the scheme, without secrets.
        pub user: String,
    }

    /// whoAmI.
    pub struct WhoAmIResponse {
        /// Identities of the connection.
        pub client_info: Vec<ClientInfo>,
    }
}

impl ReplyHeader {
    /// Header and body of a frame.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), RecordError> {
        let mut reader = Reader::new(frame);
        Ok((Self::read(&mut reader)?, reader.into_rest()))
    }
}

/// A whole reply frame with its length prefix. The body is left out unless `err` is [`ErrorCode::Ok`].
///
/// A client connection fed through [`crate::zk::Connection`] gets bodies instead, and writes the headers itself.
pub fn encode_reply<B: Record>(xid: i32, zxid: i64, err: ErrorCode, body: &B) -> Bytes {
    let mut out = BytesMut::new();
    put_frame(&mut out, |out| {
        ReplyHeader {
            xid,
            zxid,
            err: err.number(),
        }
        .write(out);
        if err == ErrorCode::Ok {
            body.write(out);
        }
    });
    out.freeze()
}

/// Room for a Stat and a short path or value, so that most bodies grow once at most.
const USUAL_LEN: usize = 192;

/// The body of a getChildren2, as [`GetChildren2Response`] encodes it, of names that are kept elsewhere. Without the
/// last [`Stat::LEN`] bytes it is the body of a getChildren.
pub fn encode_children<'n>(
    names: impl ExactSizeIterator<Item = &'n str> + Clone,
    stat: &Stat,
) -> Bytes {
    let length: usize = names.clone().map(|name| 4 + name.len()).sum();
    let mut out = BytesMut::with_capacity(4 + length + Stat::LEN);
    out.put_i32(wire_length(names.len()));
    for name in names {
        out.put_i32(wire_length(name.len()));
        out.put_slice(name.as_bytes());
    }
    stat.write(&mut out);
    out.freeze()
}

macro_rules! replies {
    ($($(#[$meta:meta])* $name:ident($record:ty): $($op:ident)|+,)+) => {
        /// The body of a successful reply, for those who look inside replies of an upstream server.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reply {
            $($(#[$meta])* $name($record),)+
        }

        impl Reply {
            /// Decodes the body of a reply with err 0 to a request of this operation.
            pub fn decode(op: OpCode, body: Bytes) -> Result<Self, RecordError> {
                match op {
                    $($(OpCode::$op)|+ => Ok(Reply::$name(<$record>::decode(body)?)),)+
                }
            }

            /// Appends the body.
            pub fn write(&self, out: &mut BytesMut) {
                match self {
                    $(Reply::$name(record) => record.write(out),)+
                }
            }

            /// The body alone.
            pub fn encode(&self) -> Bytes {
                let mut out = BytesMut::with_capacity(USUAL_LEN);
                self.write(&mut out);
                out.freeze()
            }
        }
    };
}

replies! {
    /// Path.
    Create(CreateResponse): Create,
    /// Path and Stat.
    Create2(Create2Response): Create2 | CreateContainer | CreateTtl,
    /// Stat.
    Stat(StatResponse): Exists | SetData | SetAcl,
    /// Data and Stat.
    GetData(GetDataResponse): GetData | Reconfig,
    /// ACL and Stat.
    GetAcl(GetAclResponse): GetAcl,
    /// Names.
    GetChildren(GetChildrenResponse): GetChildren,
    /// Names and Stat.
    GetChildren2(GetChildren2Response): GetChildren2,
    /// Path.
    Sync(SyncResponse): Sync,
    /// A result per operation.
    Multi(MultiResponse): Multi | MultiRead,
    /// Token.
    Sasl(SaslResponse): Sasl,
    /// Paths.
    GetEphemerals(GetEphemeralsResponse): GetEphemerals,
    /// A number.
    GetAllChildrenNumber(GetAllChildrenNumberResponse): GetAllChildrenNumber,
    /// 0.
    AddWatch(ErrorResponse): AddWatch,
    /// Identities.
    WhoAmI(WhoAmIResponse): WhoAmI,
    /// Nothing but the header.
    Empty(()): Delete | DeleteContainer | Ping | Check | CheckWatches | RemoveWatches | Auth | SetWatches
        | SetWatches2 | CloseSession | CreateSession | Notification | Error,
}

#[cfg(test)]
mod tests;
