//! The etcd v3 API: messages, error strings, the state of watch and lease streams, and the database file of a snapshot.

use crate::etcd::messages::etcdserverpb::ResponseHeader;

pub mod bolt;
pub mod error;
pub mod frame;
pub mod json;
pub mod lease_stream;
pub mod messages;
mod shared_events;
mod watch_split;
pub mod watch_stream;

pub use error::EtcdError;
pub use lease_stream::{KeepAliveId, LeaseOutput, LeaseStream};
pub use shared_events::SharedEvents;
pub use watch_stream::{CreateWatch, WatchAction, WatchStream, WatchStreamLimits, WatcherKey};

/// The ids that every header carries; clients refuse a cluster id that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerIds {
    /// Stable over restarts and equal on every member.
    pub cluster_id: u64,
    /// A member that MemberList shows.
    pub member_id: u64,
    /// Term of the consensus.
    pub raft_term: u64,
}

impl ServerIds {
    /// A header with these ids.
    pub fn header(self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: self.raft_term,
        }
    }
}
