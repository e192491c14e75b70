//! Calls to the legacy cluster: byte for byte, with the client's metadata, errors passed through.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use causeway_engine::route::Mode;
use causeway_wire::etcd::frame::put_prefix;
use futures::Stream;
use futures::future::BoxFuture;
use hyper::body::{Body as HttpBody, Frame};
use hyper::http::{
    HeaderMap, HeaderValue, Method, Request as HttpRequest, Response as HttpResponse, StatusCode,
    Uri, Version, header,
};
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

use super::answer::{Answer, only_message};
use super::connection::ended;
use super::passage::{Broken, Passed};
use super::{Front, caller_in, lock};

/// Headers of one hop. `grpc-timeout` is among them: when it runs out the client resets its stream, and
/// with it the one upstream.
const OF_ONE_HOP: [&str; 9] = [
    "accept-encoding",
    "connection",
    "content-length",
    "grpc-timeout",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Headers that tell how messages are compressed: they go with messages that pass as they are, and only with those.
const OF_ENCODING: [&str; 2] = ["grpc-accept-encoding", "grpc-encoding"];

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

/// Passes a call on and its answers back, as the bytes that they are.
pub(super) async fn forward(front: &Front, request: HttpRequest<Body>) -> HttpResponse<Answer> {
    match passed(front, request).await {
        Ok(response) => response,
        Err(status) => Answer::refusal(status),
    }
}

async fn passed(
    front: &Front,
    mut request: HttpRequest<Body>,
) -> Result<HttpResponse<Answer>, Status> {
    let caller = caller_in(request.extensions());
    let upstream = front.legacy_etcd()?;
    let path = request.uri().path();
    let is_long = LONG.contains(&path);
    if lock::HOLDING.contains(&path) && front.mode() == Mode::TakenOver {
        let (parts, message) = only_message(request, MAX_MESSAGE)
            .await
            .map_err(|_| Status::unimplemented("the request is not one uncompressed message"))?;
        lock::prepare(front, &message).await?;
        request = HttpRequest::from_parts(parts, framed(&message));
    }
    let path = request.uri().path_and_query().cloned();
    let (parts, body) = request.into_parts();
    let mut on = HttpRequest::new(body);
    *on.method_mut() = Method::POST;
    *on.version_mut() = Version::HTTP_2;
    *on.uri_mut() = path.map_or_else(Uri::default, Uri::from);
    *on.headers_mut() = parts.headers;
    for name in OF_ONE_HOP {
        on.headers_mut().remove(name);
    }
    on.headers_mut()
        .insert(header::TE, HeaderValue::from_static("trailers"));
    // etcd sends its headers with the first message, so this waits for one.
    let passed = front.passage_of(&caller).pass(upstream, on);
    let response = if is_long {
        tokio::select! {
            response = passed => response,
            () = caller.ends() => return Err(ended()),
        }
    } else {
        passed.await
    };
    let response = response.map_err(|error| broken(&error))?;
    if response.status() != StatusCode::OK {
        return Err(Status::unavailable(format!(
            "causeway: the legacy etcd answered HTTP {}",
            response.status()
        )));
    }
    let ends = is_long.then(|| Box::pin(async move { caller.ends().await }) as BoxFuture<_>);
    Ok(response.map(|body| {
        Answer::Relayed(Box::new(Relayed {
            body: Some(body),
            ends,
        }))
    }))
}

fn framed(message: &Bytes) -> Body {
    let mut body = BytesMut::new();
    put_prefix(&mut body, message.len());
    body.extend_from_slice(message);
    Body::new(axum::body::Body::from(body.freeze()))
}

/// An answer's body as it comes, and an end of our own where it breaks or has to end.
pub(super) struct Relayed {
    /// `None` behind its end.
    body: Option<Passed>,
    ends: Option<BoxFuture<'static, ()>>,
}

impl HttpBody for Relayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let status = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => broken(&error),
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                let has_to_end = |ends: &mut BoxFuture<'_, ()>| ends.as_mut().poll(cx).is_ready();
                if !this.ends.as_mut().is_some_and(has_to_end) {
                    return Poll::Pending;
                }
                ended()
            }
        };
        this.body = None;
        let mut trailers = HeaderMap::with_capacity(2);
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}

/// The client's metadata for the legacy cluster.
pub(super) fn passed_on(metadata: &MetadataMap) -> MetadataMap {
    let mut headers = metadata.clone().into_headers();
    for name in OF_ONE_HOP.iter().chain(&OF_ENCODING) {
        headers.remove(*name);
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
        Some(_) => unreachable(&root(&status)),
    }
}

/// A relayed call that broke, likewise.
fn broken(error: &Broken) -> Status {
    unreachable(&root(error))
}

fn unreachable(why: &str) -> Status {
    Status::unavailable(format!(
        "causeway: the legacy etcd cannot be reached: {why}"
    ))
}

/// The innermost cause: the outer ones say only that something failed.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// A stream of responses.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

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
