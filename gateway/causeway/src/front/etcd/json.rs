//! The JSON gateway: a POST becomes the gRPC call that its path stands for, goes the way of every call, and its
//! answers become JSON. So relay, phases and refusals are the same for both.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use causeway_wire::etcd::json::{
    JsonError, JsonMethod, JsonValues, error_body, error_line, http_status,
};
use futures::{StreamExt, stream};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::http::{Method, Request, Response, StatusCode};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::connection::{self, Caller};
use super::{Front, http};

/// Metadata of a call stands in headers that begin with this (grpc-gateway: runtime/context.go).
const METADATA: &str = "grpc-metadata-";

/// What a named caller is told: it would have to log in.
const NAME_IGNORED: &str = "CommonName of client sending a request against gateway will be ignored and not used as expected";

/// Why a request is refused by its head alone.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    /// The caller's certificate has a name, which counts for nothing here.
    NamedCaller,
    NotFound,
    NotPost,
}

impl Refusal {
    pub(super) fn response(self) -> Response<Body> {
        match self {
            Refusal::NamedCaller => http::bad_request(NAME_IGNORED),
            Refusal::NotFound => refused(StatusCode::NOT_FOUND, &Status::not_found("Not Found")),
            // Its text is 3.6's; 3.5 answers with this status too, but without JSON.
            Refusal::NotPost => refused(
                StatusCode::METHOD_NOT_ALLOWED,
                &Status::unimplemented("Method Not Allowed"),
            ),
        }
    }
}

/// The method that a request below `/v3` or `/v3beta` is for.
pub(super) fn admit<B>(
    front: &Front,
    caller: &Caller,
    request: &Request<B>,
) -> Result<&'static JsonMethod, Refusal> {
    // etcd: embed/serve.go, accessController.
    let named = caller
        .certificate
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    if named && front.gateway.with(|core| core.asks_who_calls()).0 {
        return Err(Refusal::NamedCaller);
    }
    let method = JsonMethod::at(request.uri().path()).ok_or(Refusal::NotFound)?;
    if request.method() != Method::POST {
        return Err(Refusal::NotPost);
    }
    Ok(method)
}

/// Answers a request that was admitted. The name in a certificate is nobody's here.
pub(super) async fn answer(
    front: Arc<Front>,
    caller: &Caller,
    method: &'static JsonMethod,
    request: Request<Incoming>,
) -> Response<Body> {
    let caller = Arc::new(caller.without_certificate());
    let answered = call(front, caller, method, request).await;
    answered.unwrap_or_else(|status| refused(status_of(&status), &status))
}

async fn call(
    front: Arc<Front>,
    caller: Arc<Caller>,
    method: &'static JsonMethod,
    request: Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let mut messages = Messages {
        method,
        body,
        values: JsonValues::default(),
        limit: connection::limit(front.mode()),
        over: false,
    };
    let first = match messages.next().await {
        Ok(first) => first,
        Err(status) => {
            // A client that is still writing would see a broken connection instead of the refusal.
            let _ = messages.discard().await;
            return Err(status);
        }
    };
    let messages = if method.client_streams() {
        let rest = stream::unfold(messages, |mut messages| async move {
            // What cannot be read ends the client's side, as in etcd.
            let next = messages.next().await.ok().flatten()?;
            Some((next, messages))
        });
        stream::iter(first).chain(rest).boxed()
    } else {
        messages.discard().await?;
        // No body is a message without fields.
        stream::iter([first.unwrap_or_default()]).boxed()
    };
    let path: PathAndQuery = method
        .path()
        .parse()
        .map_err(|_| Status::internal("the method has no path"))?;
    let request = tonic::Request::from_parts(
        metadata(&parts.headers),
        tonic::Extensions::default(),
        messages,
    );
    // The port itself is the server, without a connection between.
    let port = tower::service_fn(move |request: Request<Body>| {
        let (front, caller) = (front.clone(), caller.clone());
        async move { Ok::<_, Infallible>(connection::call(front, caller, request).await) }
    });
    let mut grpc = tonic::client::Grpc::new(port).max_decoding_message_size(usize::MAX);
    let mut answers = grpc.streaming(request, path, Raw).await?.into_inner();
    let first = answers.message().await;
    if method.server_streams() {
        return Ok(streamed(method, first, answers));
    }
    let message = first?.ok_or_else(|| Status::internal("there was no answer"))?;
    // The status comes behind it.
    if answers.message().await?.is_some() {
        return Err(Status::internal("there were several answers"));
    }
    let body = method.response(message).map_err(|e| unwritable(&e))?;
    Ok(json_response(StatusCode::OK, body.into()))
}

/// A line for each answer, as it comes. As long as there was none, an error has its own HTTP status.
fn streamed(
    method: &'static JsonMethod,
    first: Result<Option<Bytes>, Status>,
    answers: Streaming<Bytes>,
) -> Response<Body> {
    let status = match &first {
        Ok(_) => StatusCode::OK,
        Err(error) => status_of(error),
    };
    let begun = (Some(first), Some(answers));
    let lines = stream::unfold(begun, move |(next, answers)| async move {
        let mut answers = answers?;
        let next = match next {
            Some(next) => next,
            None => answers.message().await,
        };
        let line = match next {
            Ok(Some(message)) => method.line(message).map_err(|error| unwritable(&error)),
            Ok(None) => return None,
            Err(error) => Err(error),
        };
        let (line, answers) = match line {
            Ok(line) => (line, Some(answers)),
            Err(error) => (error_line(error.code().into(), error.message()), None),
        };
        Some((Ok::<_, Infallible>(line), (None, answers)))
    });
    json_response(status, axum::body::Body::from_stream(lines))
}

fn refused(http: StatusCode, status: &Status) -> Response<Body> {
    let body = error_body(status.code().into(), status.message());
    json_response(http, body.into())
}

fn json_response(status: StatusCode, body: axum::body::Body) -> Response<Body> {
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn status_of(status: &Status) -> StatusCode {
    StatusCode::from_u16(http_status(status.code().into()))
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The call's metadata: the token, and what was marked as metadata.
fn metadata(headers: &HeaderMap) -> MetadataMap {
    let mut out = HeaderMap::new();
    for (name, value) in headers {
        let kept = match name.as_str() {
            "authorization" => Some(name.clone()),
            other => other
                .strip_prefix(METADATA)
                .and_then(|name| name.parse::<HeaderName>().ok()),
        };
        if let Some(name) = kept {
            out.append(name, value.clone());
        }
    }
    // The call has its own; its messages and answers are read as they are.
    for own in [
        header::CONTENT_TYPE.as_str(),
        header::TE.as_str(),
        "grpc-encoding",
        "grpc-accept-encoding",
    ] {
        out.remove(own);
    }
    MetadataMap::from_headers(out)
}

/// The messages of a request's body.
struct Messages {
    method: &'static JsonMethod,
    body: Incoming,
    values: JsonValues,
    /// Largest encoded message; twice as much JSON holds it, whose base64 is a third longer.
    limit: usize,
    over: bool,
}

impl Messages {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(value) = self.values.take().map_err(|e| unreadable(&e))? {
                let message = self.method.request(&value).map_err(|e| unreadable(&e))?;
                return Ok(Some(message));
            }
            if self.over {
                self.values.finish().map_err(|e| unreadable(&e))?;
                return Ok(None);
            }
            let Some(data) = self.data().await? else {
                continue;
            };
            if self.values.waiting() + data.len() > self.limit.saturating_mul(2) {
                return Err(too_large());
            }
            self.values.push(&data);
        }
    }

    /// Reads what stands behind what was looked at, so that the connection can be used again.
    async fn discard(&mut self) -> Result<(), Status> {
        let mut left = self.limit.saturating_mul(2);
        while !self.over {
            if let Some(data) = self.data().await? {
                left = left.checked_sub(data.len()).ok_or_else(too_large)?;
            }
        }
        Ok(())
    }

    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
            Some(Ok(frame)) => Ok(frame.into_data().ok()),
            Some(Err(error)) => Err(Status::cancelled(error.to_string())),
            None => {
                self.over = true;
                Ok(None)
            }
        }
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

fn unreadable(error: &JsonError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn unwritable(error: &JsonError) -> Status {
    Status::internal(format!("the answer cannot be written as JSON: {error}"))
}

fn too_large() -> Status {
    Status::resource_exhausted("the body is larger than any message may be")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_and_marked_headers_are_the_metadata() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "t.1"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-grpc-encoding", "gzip"),
            ("grpc-metadata-content-type", "text/plain"),
            ("grpc-metadata-", "x"),
            ("cookie", "secret"),
            ("content-length", "7"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let got = metadata(&headers);
        let got = got.into_headers();
        let mut names: Vec<&str> = got.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "hasleader"]);
    }
}
