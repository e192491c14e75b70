//! The ZooKeeper client protocol: frames, Jute records, and the state of one client connection.
//!
//! Numbers and field orders follow ZooKeeper 3.9 (`zookeeper.jute`, `ZooDefs`, `KeeperException`).

pub mod connect;
pub mod connection;
pub mod error_code;
pub mod event;
pub mod frame;
pub mod multi;
pub mod op_code;
pub mod record;
pub mod reply;
pub mod request;
pub mod stat;

pub use connect::{ConnectRequest, ConnectResponse};
pub use connection::{Connection, ConnectionError, ConnectionLimits, SlotId, Watches};
pub use error_code::ErrorCode;
pub use event::{EventType, KeeperState, WatcherEvent, encode_notification};
pub use frame::{FourLetterWord, FrameDecoder, FrameError, Opening};
pub use multi::{MultiKind, MultiOp, MultiRequest, MultiResponse, MultiResult};
pub use op_code::{OpCode, UnknownOpCode, xid};
pub use record::{Reader, Record, RecordError};
pub use reply::{Reply, ReplyHeader, encode_children, encode_reply};
pub use request::{Request, RequestHeader, encode_request};
pub use stat::Stat;
