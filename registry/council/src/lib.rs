//! causeway-registry-council: what the members decide together.
//!
//! One Raft group of the members (the openraft crate) over a deterministic
//! [`StateMachine`](causeway_registry::StateMachine). [`Council`] is one member's part: it keeps its log
//! in a file of its own ([`Store`]), sends frames over [`Links`] and is handed those that arrive.
//! [`Council::propose`] works from any member, is applied once however often it is sent, and says of a
//! failure whether surely nothing changed.
//!
//! Without a majority nothing is decided: proposals and [`Council::read_index`] fail within a bound,
//! [`Council::read`] goes on.
//!
//! What this crate must not know: ZooKeeper and etcd, layouts and phases, what a command means.

mod applied;
mod batch;
mod council;
mod error;
mod ledger;
mod log;
mod membership;
pub mod memory;
mod message;
mod network;
mod registers;
mod serve;
mod store;
pub mod tcp;
mod ticket;
mod types;

pub use applied::Applied;
pub use council::{Council, Settings, Status};
pub use error::{CouncilError, Reason, StartError};
pub use ledger::{Ledger, Unreadable};
pub use log::Log;
pub use membership::JoinError;
pub use network::Links;
pub use registers::{RegisterCommand, RegisterReply, Registers};
pub use store::{FILE, Identity, Store, StoreError};
pub use ticket::Ticket;
pub use types::{
    Batch, ClusterId, MemberId, MemberInfo, Operation, Peer, Proposal, Proposer, Replies, Reply,
    Types,
};
