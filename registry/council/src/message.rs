//! What members say to each other about the council, and its form on a link.

use bytes::Bytes;
use openraft::error::InstallSnapshotError;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use crate::error::Reason;
use crate::types::{ClusterId, MemberId, Peer, Proposal, Reply, Types};

/// A frame on a link.
#[derive(Serialize, Deserialize)]
pub(crate) struct Frame {
    /// The sender's cluster; `None`: it has none yet.
    pub(crate) cluster: Option<ClusterId>,
    /// The sender's data folder.
    pub(crate) from_birth: u64,
    /// The data folder that is meant; `None`: whoever is there.
    pub(crate) to_birth: Option<u64>,
    /// The caller's number of the call; an answer repeats it.
    pub(crate) call: u64,
    pub(crate) body: Body,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Body {
    Request(Request),
    Response(Response),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<MemberId>),
    Snapshot(InstallSnapshotRequest<Types>),
    Propose(Proposal),
    /// Up to where a read that begins now has to be applied.
    ReadIndex,
    /// Asked by one that is in no cluster yet; where it is reached.
    WhichCluster(Peer),
    /// A member wants to be a voter.
    Join {
        member: MemberId,
        peer: Peer,
    },
    /// A member is gone for good.
    Forget(MemberId),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Response {
    Append(AppendEntriesResponse<MemberId>),
    Vote(VoteResponse<MemberId>),
    Snapshot(Result<InstallSnapshotResponse<MemberId>, InstallSnapshotError>),
    Propose(Answer<Reply>),
    ReadIndex(Answer<u64>),
    WhichCluster(Option<ClusterId>),
    Done(Answer<()>),
    /// The sender was forgotten and is told so by one who knows.
    Forgotten,
}

/// What a leader says to something forwarded to it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer<T> {
    Done(T),
    /// Surely not done.
    Refused(Reason),
    /// It may be done, now or later.
    Unknown,
}

impl Frame {
    pub(crate) fn encode(&self) -> Option<Bytes> {
        match postcard::to_stdvec(self) {
            Ok(bytes) => Some(bytes.into()),
            Err(error) => {
                tracing::error!(%error, "a message of the council cannot be encoded");
                None
            }
        }
    }

    /// `None`: not a frame of this release, or garbage.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        postcard::from_bytes(bytes).ok()
    }
}
