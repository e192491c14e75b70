//! causeway-registry: the gossip registry without I/O.
//!
//! [`Node`] is one member: it keeps records under leases, orders every change by a stamp, and says
//! what changed. It opens no socket, reads no clock and draws no random number; `now` is passed in,
//! in milliseconds of a clock that never goes back (its zero may be anything).
//!
//! What it must not know: paths and layouts of ZooKeeper or etcd (a record is a key, a value and an
//! identity), and whether the loss of an instance is plausible (the registry reports a lease that
//! ran out, once, and removes nothing by itself).
//!
//! Everything a second member will need is part of each record from the start: the stamp that
//! orders it, the log position of its write, and digests that compare two members in constant time.

pub mod api;
pub mod clock;
pub mod digest;
pub mod lease;
pub mod merge;
pub mod node;
pub mod origin;
pub mod record;
pub mod replication;
pub mod service;
pub mod state_machine;
pub mod tombstone;

pub use digest::{Cell, Digest};
pub use lease::{LeaseInfo, LeaseState, Renewed};
pub use merge::{Entry, Value};
pub use node::{Node, NodeConfig, Output, RegisterError, Summary};
pub use origin::{Dot, Origin, VersionVector};
pub use record::{
    Endpoint, Health, LeaseId, LeaseKind, Record, RecordBody, RecordKey, Stamp, StoreKind, Version,
};
pub use replication::{
    Detected, MemberId, Message, Readiness, ReplicationConfig, ReplicationOutput, Replicator,
    Violation,
};
pub use service::{CatchUp, Change, ChangeKind, Delta, Gone, Revision, ServiceInfo, ServiceName};
pub use state_machine::StateMachine;
pub use tombstone::Tombstone;
