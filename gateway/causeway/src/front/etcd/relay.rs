//! Calls to the legacy cluster: byte for byte, with the client's metadata, errors passed through.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use causeway_engine::route::Mode;
use futures::{Stream, StreamExt, stream};
use hyper::http::uri::PathAndQuery;
use hyper::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::metadata::MetadataMap;
use tonic::server::StreamingService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::connection::{Caller, ended};
use super::{Front, caller, lock};

/// Headers of one hop. `grpc-timeout` is among them: when it runs out the client resets its stream, and
/// with it the one upstream.
const OF_ONE_HOP: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-length",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-timeout",
    "host",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "te",
];

/// Calls that wait for something and not for their own work: they have to end before a connection can.
const LONG: [&str; 6] = [
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/v3lockpb.Lock/Lock",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Observe",
    "/grpc.health.v1.Health/Watch",
];

/// Largest message taken from a client; the legacy cluster's own limit is not known here.
pub(super) const MAX_MESSAGE: usize = 64 << 20;

/// Passes a call on and its answers back.
pub(super) async fn forward(front: Arc<Front>, request: HttpRequest<Body>) -> HttpResponse<Body> {
    let path = request
        .uri()
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"));
    let channel = match front.upstream() {
        Ok(channel) => channel,
        Err(status) => return status.into_http(),
    };
    let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(MAX_MESSAGE);
    grpc.streaming(
        Forward {
            front,
            channel,
            path,
        },
        request,
    )
    .await
}

/// The client's metadata for the legacy cluster.
pub(super) fn passed_on(metadata: &MetadataMap) -> MetadataMap {
    let mut headers = metadata.clone().into_headers();
    for name in OF_ONE_HOP {
        headers.remove(name);
    }
    MetadataMap::from_headers(headers)
}

/// The legacy cluster's refusal as it is; a broken connection as what clients come back from.
pub(super) fn upstream_error(status: Status) -> Status {
    use std::error::Error as _;
    match status.source() {
        None => Status::with_details(
            status.code(),
            status.message(),
            Bytes::copy_from_slice(status.details()),
        ),
        Some(_) => Status::unavailable(format!(
            "causeway: the legacy etcd cannot be reached: {}",
            root(&status)
        )),
    }
}

/// The innermost cause: the outer ones say only that something failed.
fn root(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Responses until the connection has to end.
pub(super) fn until_ended<T: Send + 'static>(
    caller: Arc<Caller>,
    responses: impl Stream<Item = Result<T, Status>> + Send + Unpin + 'static,
) -> Responses<T> {
    let ends: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { caller.ends().await });
    Box::pin(stream::unfold(
        (Some(responses), ends),
        |(responses, mut ends)| async move {
            let mut responses = responses?;
            tokio::select! {
                next = responses.next() => next.map(|next| (next, (Some(responses), ends))),
                () = &mut ends => Some((Err(ended()), (None, ends))),
            }
        },
    ))
}

/// A stream of responses.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Forward {
    front: Arc<Front>,
    channel: Channel,
    path: PathAndQuery,
}

impl StreamingService<Bytes> for Forward {
    type Response = Bytes;
    type ResponseStream = Responses<Bytes>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (front, channel, path) = (self.front.clone(), self.channel.clone(), self.path.clone());
        Box::pin(async move {
            let caller = caller(&request);
            let is_long = LONG.contains(&path.path());
            let (metadata, _, mut messages) = request.into_parts();
            let mut first = None;
            if lock::HOLDING.contains(&path.path()) && front.mode() == Mode::TakenOver {
                first = messages.message().await?;
                lock::prepare(&front, first.as_ref().unwrap_or(&Bytes::new())).await?;
            }
            // A broken inbound stream ends the whole call from the client's side.
            let messages = messages
                .map(Result::ok)
                .take_while(|m| std::future::ready(m.is_some()))
                .filter_map(std::future::ready);
            let messages = stream::iter(first).chain(messages);
            let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
            grpc.ready()
                .await
                .map_err(|error| upstream_error(Status::from_error(error.into())))?;
            let request =
                Request::from_parts(passed_on(&metadata), tonic::Extensions::default(), messages);
            // grpc-go sends its headers with the first message, so this waits for one.
            let response = tokio::select! {
                response = grpc.streaming(request, path, Raw) => response.map_err(upstream_error)?,
                () = caller.ends(), if is_long => return Err(ended()),
            };
            let responses = response
                .into_inner()
                .map(|next| next.map_err(upstream_error));
            let responses: Self::ResponseStream = if is_long {
                until_ended(caller, responses)
            } else {
                Box::pin(responses)
            };
            Ok(Response::new(responses))
        })
    }
}

/// Messages as the bytes they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_metadata_goes_on_without_what_is_of_one_hop() {
        let mut metadata = MetadataMap::new();
        for (name, value) in [
            ("token", "t.1"),
            ("hasleader", "true"),
            ("user-agent", "x"),
            ("grpc-timeout", "1S"),
        ] {
            metadata.insert(name, value.parse().expect("ascii"));
        }
        let on = passed_on(&metadata);
        assert_eq!(on.get("token").map(|v| v.as_bytes()), Some(&b"t.1"[..]));
        assert!(
            on.contains_key("hasleader")
                && !on.contains_key("user-agent")
                && !on.contains_key("grpc-timeout")
        );
    }

    #[test]
    fn a_refusal_passes_and_a_broken_connection_is_unavailable() {
        let refused = upstream_error(Status::not_found("etcdserver: requested lease not found"));
        assert_eq!(
            (refused.code(), refused.message()),
            (
                tonic::Code::NotFound,
                "etcdserver: requested lease not found"
            )
        );
        let broken = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset by peer");
        let broken = upstream_error(Status::from_error(Box::new(broken)));
        assert_eq!(broken.code(), tonic::Code::Unavailable);
        assert!(broken.message().contains("reset by peer"), "{broken}");
    }
}
