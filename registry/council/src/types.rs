//! The words of the council's log.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A member's number in the council: chosen once for its data folder, never used again after that folder is lost.
pub type MemberId = u64;

/// A cluster's number, drawn at random when its first member begins it. Members of two clusters do not answer each other.
pub type ClusterId = u64;

/// How a member is reached and which data folder it stands on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Where other members reach it, as the links between members take it.
    pub address: String,
    /// Drawn at random when its data folder was made. A member that comes back under its old number
    /// with an empty folder has forgotten what it promised, and is told apart by this.
    pub birth: u64,
}

/// A member as all members know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its data folder.
    pub birth: u64,
    /// Where it said it is reached, at its last start.
    pub address: String,
    /// How often its data folder had been opened at its last start: grows with every start.
    pub incarnation: u64,
}

/// Who proposes: one run of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposer {
    /// The member.
    pub member: MemberId,
    /// Its data folder.
    pub birth: u64,
    /// Its run.
    pub incarnation: u64,
}

/// A command on its way to the log. Sent again it is applied once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who proposes.
    pub proposer: Proposer,
    /// The proposer's number for it.
    pub sequence: u64,
    /// The proposer waits for nothing below this number any more: answers below it need not be kept,
    /// and a late copy of a proposal below it does nothing.
    pub settled: u64,
    /// What it does.
    pub operation: Operation,
}

/// What a proposal does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// A command of the state machine, in its binary form.
    Command(Bytes),
    /// A member that is part of the council says where it is reached in its present run.
    Announce {
        /// The member.
        member: MemberId,
        /// What it says.
        info: MemberInfo,
    },
    /// A member is gone for good, with its data folder.
    Forget {
        /// The member.
        member: MemberId,
        /// The data folder that never counts again.
        birth: u64,
    },
}

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Applied, now or by an earlier copy; the machine's reply in its binary form, empty for the council's own operations.
    Applied(Bytes),
    /// The proposer had said that it no longer waits for it. Not applied by this copy.
    Settled,
    /// A later run of the same member proposes already. Not applied.
    Superseded,
    /// The proposer was forgotten. Not applied.
    Forgotten,
}

/// One entry of the log: proposals that were waiting together. One write to disk and one message carry them all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch(pub Vec<Proposal>);

/// Replies to a [`Batch`], in its order; empty for entries that hold none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies(pub Vec<Reply>);

openraft::declare_raft_types!(
    /// The types that openraft runs on. Commands are opaque bytes here, so that they are the same for every machine.
    pub Types:
        D = Batch,
        R = Replies,
        NodeId = MemberId,
        Node = Peer,
        Entry = openraft::Entry<Types>,
        SnapshotData = tokio::fs::File,
);

/// Errors of openraft's storage traits.
pub(crate) type RaftStorageError = openraft::StorageError<MemberId>;
/// A log position of openraft.
pub(crate) type LogId = openraft::LogId<MemberId>;
/// The members that a log position decided.
pub(crate) type Membership = openraft::StoredMembership<MemberId, Peer>;
