//! What a caller is told when the council cannot do something: above all, whether it surely did nothing.

use serde::{Deserialize, Serialize};

use crate::store::StoreError;
use crate::types::{ClusterId, MemberId};

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Reason {
    /// No leader is known: an election is going on, or this member is cut off from the majority. Retryable.
    #[error("the council has no leader now")]
    NoLeader,
    /// The leader does not reach a majority. Retryable.
    #[error("the council's leader does not reach a majority of the members")]
    NoMajority,
    /// More is waiting than is kept in memory. Retryable.
    #[error("too many proposals are waiting")]
    Overloaded,
    /// Another change of the membership is going on. Retryable.
    #[error("another change of the council's membership is going on")]
    MembershipBusy,
    /// This member is in no cluster yet.
    #[error("this member is not part of a cluster yet")]
    NotAMember,
    /// A member of this number is known with another data folder.
    #[error(
        "member {0} is part of the council with another data folder (a member whose folder was lost joins under a new number, or after `forget`)"
    )]
    OtherFolder(MemberId),
    /// The last voter cannot be forgotten.
    #[error("member {0} is the council's only voter and cannot be forgotten")]
    LastMember(MemberId),
    /// The other side is of another cluster.
    #[error("that member belongs to cluster {0:016x}")]
    OtherCluster(ClusterId),
    /// The proposer said before that it no longer waits for this proposal.
    #[error("the proposal was settled before")]
    Settled,
    /// A later run of the same member proposes already.
    #[error("a later run of this member proposes already")]
    Superseded,
    /// This member was forgotten by the others: it must stop serving.
    #[error("this member was forgotten by the council; give it an empty data folder to join anew")]
    Forgotten,
    /// The council of this member has stopped.
    #[error("the council of this member has stopped: {0}")]
    Stopped(String),
}

impl Reason {
    /// Whether the same may succeed in a moment.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Reason::NoLeader | Reason::NoMajority | Reason::Overloaded | Reason::MembershipBusy
        )
    }
}

/// A proposal or read without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CouncilError {
    /// Surely nothing was changed.
    #[error("not applied: {0}")]
    NotApplied(Reason),
    /// It may be applied, now or later. The same [`Ticket`](crate::Ticket) may be proposed again and is applied once.
    #[error("the outcome is unknown: the answer of the council's leader was lost or is late")]
    Unknown,
}

impl From<Reason> for CouncilError {
    fn from(reason: Reason) -> Self {
        CouncilError::NotApplied(reason)
    }
}

/// Why a council cannot be started or begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The settings contradict each other.
    #[error("settings of the council: {0}")]
    Settings(String),
    /// The consensus cannot run.
    #[error("the council cannot run: {0}")]
    Raft(String),
    /// This member joined a cluster that another one began.
    #[error("this member belongs to cluster {0:016x} already, which another member began")]
    NotFounder(ClusterId),
}
