//! What keeps an owned entry alive.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A lease's id: an etcd lease id or a ZooKeeper session id, as its store shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A lease as its store granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The id to register under.
    pub id: LeaseId,
    /// How long it lives without a renewal; not always what was asked for.
    pub ttl: Duration,
}
