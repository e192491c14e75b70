//! LeaseKeepAlive: one stream for all leases of a client.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_backend::ErrorKind;
use causeway_engine::core::{Core, OwnerOver};
use causeway_engine::key_auth::{AuthError, Demand};
use causeway_engine::phase::Acknowledges;
use causeway_engine::route::Mode;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::{EtcdError, KeepAliveId, LeaseOutput, LeaseStream};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered};
use futures::{FutureExt as _, Stream, StreamExt};
use hyper::http::{Request as HttpRequest, Response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::answer::{Answer, messages};
use super::connection::{Caller, ended};
use super::lease::lease_client;
use super::permit::{Shown, may};
use super::relay::{Responses, upstream_error};
use super::translate::{auth_error, status};
use super::{Api, Front, caller_in, observe, with_metadata};
use crate::journal::Position;

/// Keep-alives of one stream without an answer; more wait in the client's window.
const PENDING: usize = 4096;

/// Answers that a client has not read yet.
const UNREAD: usize = 64;

/// How long the legacy cluster is waited for where a client waits for the answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Answers a stream of keep-alives, until one of both sides ends it, by what the machine says of the leases.
pub(super) fn answer(api: Api, request: HttpRequest<Body>, limit: usize) -> Response<Answer> {
    let caller = caller_in(request.extensions());
    let (parts, body) = request.into_parts();
    let inbound = match messages(&parts.headers, body, limit) {
        Ok(inbound) => inbound,
        Err(status) => return Answer::refusal(status),
    };
    let keeping = Keeping {
        stream: LeaseStream::new(api.identity.ids(), PENDING),
        front: api,
        inbound,
        open: true,
        asked: FuturesUnordered::new(),
        after: 0,
        caller: caller.clone(),
        metadata: MetadataMap::from_headers(parts.headers),
        ends: Box::pin(async move { caller.ends().await }),
    };
    let frames = stream::unfold(Some(Box::new(keeping)), |keeping| async {
        let mut keeping = keeping?;
        match keeping.next_frames().await {
            Ok(Some(frames)) => Some((Ok(frames), Some(keeping))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    Answer::stream(Box::pin(frames))
}

/// Has the legacy cluster answer a stream of keep-alives.
pub(super) fn relay(
    front: Api,
    caller: Arc<Caller>,
    metadata: MetadataMap,
    inbound: Streaming<pb::LeaseKeepAliveRequest>,
) -> Responses<pb::LeaseKeepAliveResponse> {
    let (to_client, responses) = mpsc::channel(UNREAD);
    tokio::spawn(relay_keep_alive(
        front, caller, metadata, inbound, to_client,
    ));
    Box::pin(ReceiverStream::new(responses))
}

/// What became of one renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    /// Lives, for these seconds from now.
    Lives(i64),
    /// Unknown, expired or revoked: answered with TTL 0, and the stream stays.
    Over,
    /// Nobody could say.
    Unknown,
}

/// A renewal that waits for the legacy cluster.
type Asked = BoxFuture<'static, (KeepAliveId, Renewal)>;

/// Keep-alives that are answered here. Those that have to ask the legacy cluster do not hold up reading,
/// only the answers behind them.
struct Keeping {
    front: Api,
    inbound: Streaming<pb::LeaseKeepAliveRequest>,
    /// The client may send more.
    open: bool,
    stream: LeaseStream,
    asked: FuturesUnordered<Asked>,
    /// What the answers depend on.
    after: Position,
    caller: Arc<Caller>,
    metadata: MetadataMap,
    ends: BoxFuture<'static, ()>,
}

impl Keeping {
    /// All the answers that wait, in one piece.
    async fn next_frames(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(frames) = self.stream.poll_frames() {
                let durable = self.front.durable(self.after).await;
                return durable
                    .map(|()| Some(frames))
                    .map_err(|_| status(EtcdError::Stopped));
            }
            match self.stream.poll_output() {
                Some(LeaseOutput::Fail(error)) => return Err(status(error)),
                Some(LeaseOutput::End) => return Ok(None),
                // All of them were taken as frames.
                Some(LeaseOutput::Response(_)) | None => {}
            }
            tokio::select! {
                message = self.inbound.message(), if self.open && self.stream.has_room() => {
                    let mut message = Some(message);
                    while let Some(next) = message.take() {
                        match next {
                            Ok(Some(next)) => self.request(&next),
                            Ok(None) => {
                                self.open = false;
                                self.stream.half_close();
                            }
                            // The client went away.
                            Err(_) => return Ok(None),
                        }
                        // More may have come in the same frame.
                        if self.open && self.stream.has_room() {
                            message = self.inbound.message().now_or_never();
                        }
                    }
                }
                Some((request, renewal)) = self.asked.next(), if !self.asked.is_empty() => {
                    settle(&mut self.stream, request, renewal);
                }
                () = self.ends.as_mut() => return Err(ended()),
            }
        }
    }

    fn request(&mut self, message: &pb::LeaseKeepAliveRequest) {
        let id = message.id;
        let shown = Shown::new(&self.metadata, &self.caller);
        let renewed = match self.front.renew_here(id, shown) {
            Ok(renewed) => renewed,
            Err((error, revision)) => {
                let request = self.stream.handle_request(message, revision);
                self.stream.failed(request, auth_error(error));
                return;
            }
        };
        self.after = self.after.max(renewed.after);
        let request = self.stream.handle_request(message, renewed.revision);
        if let Some(renewal) = renewed.renewal {
            settle(&mut self.stream, request, renewal);
        } else {
            let front = self.front.clone();
            self.asked.push(Box::pin(async move {
                (request, front.renew_with_legacy(id).await)
            }));
        }
    }
}

/// What there is to say of a renewal here.
struct Renewed {
    /// Of the moment before: a client must not see a renewal at a revision at which the lease was revoked.
    revision: i64,
    /// `None`: the legacy cluster has to be asked.
    renewal: Option<Renewal>,
    /// What the answer depends on.
    after: Position,
}

fn settle(stream: &mut LeaseStream, request: KeepAliveId, renewal: Renewal) {
    match renewal {
        Renewal::Lives(ttl_s) => stream.renewed(request, ttl_s),
        Renewal::Over => stream.missing(request),
        Renewal::Unknown => stream.failed(request, EtcdError::Timeout),
    }
}

/// Keep-alives that the legacy cluster answers, on a stream of its own for each client's.
async fn relay_keep_alive(
    front: Api,
    caller: Arc<Caller>,
    metadata: MetadataMap,
    inbound: Streaming<pb::LeaseKeepAliveRequest>,
    to_client: mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) {
    let (to_legacy, requests) = mpsc::channel(UNREAD);
    let passing = pass_on(inbound, to_legacy);
    let answering = async {
        let mut client = lease_client(&front)?;
        let request = with_metadata(&metadata, ReceiverStream::new(requests));
        let mut responses = client
            .lease_keep_alive(request)
            .await
            .map_err(upstream_error)?
            .into_inner();
        while let Some(response) = responses.message().await.map_err(upstream_error)? {
            front.relayed_renewal(&response).await?;
            if to_client.send(Ok(response)).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let end: Result<(), Status> = tokio::select! {
        end = answering => end,
        never = passing => match never {},
        () = caller.ends() => Err(ended()),
        () = to_client.closed() => Ok(()),
    };
    if let Err(error) = end {
        let _ = to_client.send(Err(error)).await;
    }
}

/// Passes messages on, and the half-close after them. It never says that the stream is over: how the
/// legacy cluster ended it is for the answering half to tell.
async fn pass_on<T>(
    mut inbound: impl Stream<Item = Result<T, Status>> + Unpin,
    to_legacy: mpsc::Sender<T>,
) -> Infallible {
    while let Some(Ok(message)) = inbound.next().await {
        if to_legacy.send(message).await.is_err() {
            break;
        }
    }
    drop(to_legacy);
    std::future::pending().await
}

impl Front {
    /// Renews what can be renewed without asking anybody: one look at the machine.
    fn renew_here(&self, id: i64, shown: Shown<'_>) -> Result<Renewed, (AuthError, i64)> {
        let look = |core: &Core, revision, renewed: Result<(), OwnerOver>| {
            let embedded = core.mode(StoreKind::Etcd) == Mode::Embedded;
            let renewal = match renewed {
                Err(OwnerOver) if embedded => Some(Renewal::Over),
                Err(OwnerOver) => None,
                Ok(()) => match core.keys().lease(id) {
                    None => Some(Renewal::Over),
                    Some(_) if !embedded && core.bound_leases().contains(&id) => None,
                    Some(lease) => Some(Renewal::Lives(lease.ttl_s)),
                },
            };
            (revision, renewal, !embedded)
        };
        let permitted = |core: &mut Core, now_ms| {
            let revision = core.keys().revision();
            may(core, shown, Demand::RenewLease(id), || now_ms).map_err(|error| (error, revision))
        };
        let ((revision, mut renewal, copied), after) =
            self.gateway.renew_if(LeaseId::lease(id), permitted, look)?;
        if renewal.is_none() && self.ended.contains(id) {
            renewal = Some(Renewal::Over);
        }
        if copied
            && matches!(renewal, Some(Renewal::Lives(_)))
            && let Some(leases) = &self.legacy.leases
        {
            leases.renewed(&self.gateway, id);
        }
        Ok(Renewed {
            revision,
            renewal,
            after,
        })
    }

    /// Renews a lease that the legacy cluster has to confirm, or that only it may know.
    async fn renew_with_legacy(&self, id: i64) -> Renewal {
        let bound = self.is_bound(id);
        let asked = async {
            if bound {
                let Some(leases) = &self.legacy.leases else {
                    return Ok(None);
                };
                let ttl = leases.renew_bound(&self.gateway, id).await?;
                return Ok(Some(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)));
            }
            self.adopt(id).await
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(Some(ttl_s))) => Renewal::Lives(ttl_s),
            Ok(Ok(None)) => Renewal::Over,
            Ok(Err(error)) if error.kind() == ErrorKind::LeaseGone => Renewal::Over,
            // The lease is not known here. Where registrations live without the legacy cluster, that is the
            // answer; a stream that ended would cost the client's other leases their beats.
            _ if !bound && self.acknowledges() == Acknowledges::New => Renewal::Over,
            _ => Renewal::Unknown,
        }
    }

    /// What a renewal by the legacy cluster says to the machine.
    async fn relayed_renewal(&self, response: &pb::LeaseKeepAliveResponse) -> Result<(), Status> {
        let (mode, known) = self
            .gateway
            .with(|core| {
                (
                    core.mode(StoreKind::Etcd),
                    core.keys().lease(response.id).is_some(),
                )
            })
            .0;
        match (response.ttl > 0, known) {
            // Granted elsewhere, before this gateway.
            (true, false) if !self.ended.contains(response.id) => {
                observe::granted(self, response.id, response.ttl).await?;
            }
            (false, true) if mode == Mode::Relay => {
                observe::over(self, response.id, Vec::new(), 0).await?
            }
            _ => {}
        }
        // Between the take-over and the end of this connection the lease is ours to keep.
        if response.ttl > 0 && mode != Mode::Relay {
            let _ = self.gateway.renew(LeaseId::lease(response.id));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn passing_on_leaves_the_end_of_the_stream_to_the_answers() {
        // The legacy cluster has broken.
        let (to_legacy, requests) = mpsc::channel(4);
        drop(requests);
        let inbound = stream::iter([Ok(1), Ok(2)]);
        assert!(pass_on(inbound, to_legacy).now_or_never().is_none());
        // The client has half-closed.
        let (to_legacy, mut requests) = mpsc::channel(4);
        let mut passing = Box::pin(pass_on(stream::iter([Ok(1)]), to_legacy));
        assert!(passing.as_mut().now_or_never().is_none());
        assert_eq!(requests.try_recv(), Ok(1));
        assert_eq!(
            requests.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
    }
}
