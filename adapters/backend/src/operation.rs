//! Writes.

use bytes::Bytes;

use crate::{LeaseId, Revision};

/// An entry to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Raw key or path.
    pub key: Bytes,
    /// Raw value.
    pub value: Bytes,
    /// What keeps it alive.
    pub owner: Owner,
    /// What must hold for the write to happen.
    pub expect: Expect,
}

/// What keeps an entry alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The lease: when it ends, the entry goes.
    Lease(LeaseId),
    /// Nothing: the entry stays until it is removed.
    Persistent,
}

impl Owner {
    /// The lease of an owned entry.
    pub fn lease(self) -> Option<LeaseId> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Persistent => None,
        }
    }
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// There is no such entry.
    Absent,
    /// The entry stands at this revision. A mark of another backend never holds.
    Revision(Revision),
    /// Whatever is there.
    Any,
}
