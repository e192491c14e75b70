//! Calls between members over links that only carry frames, and may lose them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::error::{
    Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::message::{Body, Frame, Request, Response};
use crate::store::Store;
use crate::types::{MemberId, Peer, Types};

/// Carries frames to other members. A link may lose, delay and reorder frames, but must not change them
/// or let one member speak as another.
pub trait Links: Send + Sync + 'static {
    /// Hands a frame to the link toward a member and returns at once. False: there is no link to it now, or its queue is
    /// full, and the frame is dropped. `address` is where it was last known to be reached.
    fn send(&self, to: MemberId, address: &str, frame: Bytes) -> bool;
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// It never left.
    #[error("no link to that member")]
    NoLink,
    /// It left, and nothing came back in time.
    #[error("no answer in time")]
    NoAnswer,
    /// That member says that this one was forgotten.
    #[error("this member was forgotten")]
    Forgotten,
    /// An answer to something else: a bug of the other side.
    #[error("an answer to another question")]
    WrongAnswer,
}

/// Questions to other members that wait for their answers.
pub(crate) struct Calls {
    links: Arc<dyn Links>,
    store: Store,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, (MemberId, oneshot::Sender<Response>)>>,
}

/// Takes a call off the table when its caller stops waiting.
struct Waiting<'a> {
    calls: &'a Calls,
    call: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.calls.waiting.lock().remove(&self.call);
    }
}

impl Calls {
    pub(crate) fn new(links: Arc<dyn Links>, store: Store) -> Arc<Self> {
        // An answer to a call of an earlier run may still be on its way, and must not be taken for one to
        // a call of this run.
        let first = store.identity().incarnation << 32;
        Arc::new(Calls {
            links,
            store,
            next: AtomicU64::new(first),
            waiting: Mutex::new(HashMap::new()),
        })
    }

    /// Asks a member; `birth`: the data folder that has to answer.
    pub(crate) async fn call(
        &self,
        to: MemberId,
        address: &str,
        birth: Option<u64>,
        request: Request,
        within: Duration,
    ) -> Result<Response, CallError> {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(call, (to, answer));
        let _waiting = Waiting { calls: self, call };
        let identity = self.store.identity();
        let frame = Frame {
            cluster: identity.cluster,
            from_birth: identity.birth,
            to_birth: birth,
            call,
            body: Body::Request(request),
        };
        let frame = frame.encode().ok_or(CallError::NoLink)?;
        if !self.links.send(to, address, frame) {
            return Err(CallError::NoLink);
        }
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(Response::Forgotten)) => Err(CallError::Forgotten),
            Ok(Ok(response)) => Ok(response),
            Ok(Err(_)) | Err(_) => Err(CallError::NoAnswer),
        }
    }

    /// Takes an answer from a link; late ones and those of a member that was not asked are dropped.
    pub(crate) fn answered(&self, from: MemberId, call: u64, response: Response) {
        let mut waiting = self.waiting.lock();
        if waiting.get(&call).is_some_and(|(asked, _)| *asked == from)
            && let Some((_, answer)) = waiting.remove(&call)
        {
            // The caller may have stopped waiting.
            let _ = answer.send(response);
        }
    }

    pub(crate) fn respond(&self, to: MemberId, address: &str, call: u64, response: Response) {
        let identity = self.store.identity();
        let frame = Frame {
            cluster: identity.cluster,
            from_birth: identity.birth,
            to_birth: None,
            call,
            body: Body::Response(response),
        };
        if let Some(frame) = frame.encode() {
            self.links.send(to, address, frame);
        }
    }
}

/// openraft's way to one member.
pub(crate) struct PeerCalls {
    calls: Arc<Calls>,
    target: MemberId,
    peer: Peer,
    addresses: Arc<dyn Fn(MemberId) -> Option<String> + Send + Sync>,
}

/// Makes openraft's ways to members.
#[derive(Clone)]
pub(crate) struct PeerNetwork {
    pub(crate) calls: Arc<Calls>,
    /// Where a member said it is reached, if that is known better than from the membership.
    pub(crate) addresses: Arc<dyn Fn(MemberId) -> Option<String> + Send + Sync>,
}

impl RaftNetworkFactory<Types> for PeerNetwork {
    type Network = PeerCalls;

    async fn new_client(&mut self, target: MemberId, node: &Peer) -> PeerCalls {
        PeerCalls {
            calls: self.calls.clone(),
            target,
            peer: node.clone(),
            addresses: self.addresses.clone(),
        }
    }
}

type Failed<E> = RPCError<MemberId, Peer, RaftError<MemberId, E>>;

impl PeerCalls {
    async fn call<E: std::error::Error>(
        &self,
        request: Request,
        option: &RPCOption,
    ) -> Result<Response, Failed<E>> {
        let address = (self.addresses)(self.target);
        let address = address.as_deref().unwrap_or(&self.peer.address);
        let birth = Some(self.peer.birth);
        let answered = self
            .calls
            .call(self.target, address, birth, request, option.hard_ttl())
            .await;
        answered.map_err(|e| match e {
            // Without a link openraft waits a little before it tries again.
            CallError::NoLink | CallError::Forgotten => Unreachable::new(&e).into(),
            CallError::NoAnswer | CallError::WrongAnswer => NetworkError::new(&e).into(),
        })
    }
}

fn wrong_answer<E: std::error::Error>() -> Failed<E> {
    NetworkError::new(&CallError::WrongAnswer).into()
}

impl RaftNetwork<Types> for PeerCalls {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<MemberId>, Failed<Infallible>> {
        match self.call(Request::Append(rpc), &option).await? {
            Response::Append(answer) => Ok(answer),
            _ => Err(wrong_answer()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<MemberId>, Failed<InstallSnapshotError>> {
        match self.call(Request::Snapshot(rpc), &option).await? {
            Response::Snapshot(Ok(answer)) => Ok(answer),
            Response::Snapshot(Err(e)) => {
                Err(RemoteError::new(self.target, RaftError::APIError(e)).into())
            }
            _ => Err(wrong_answer()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<MemberId>,
        option: RPCOption,
    ) -> Result<VoteResponse<MemberId>, Failed<Infallible>> {
        match self.call(Request::Vote(rpc), &option).await? {
            Response::Vote(answer) => Ok(answer),
            _ => Err(wrong_answer()),
        }
    }
}
