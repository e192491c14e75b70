//! The JSON gateway: a POST becomes the gRPC call that its path stands for, goes the way of every call, and its
//! answers become JSON. So relay, phases and refusals are the same for both.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use causeway_wire::etcd::json::{
    JsonError, JsonMethod, JsonValues, error_body, error_line, http_status,
};
use futures::stream;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::{Method, Request, Response, StatusCode, Version};
use tonic::body::Body;
use tonic::{Code, Status};

use super::Front;
use super::connection::{self, Caller};

/// Metadata of a call stands in headers that begin with this (grpc-gateway: runtime/context.go).
const METADATA: &str = "grpc-metadata-";

/// Length of what stands before each gRPC message: a flag and four bytes of length.
const PREFIX: usize = 5;

/// Answers a request below `/v3` or `/v3beta`.
pub(super) async fn answer(
    front: Arc<Front>,
    caller: Arc<Caller>,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(method) = JsonMethod::at(request.uri().path()) else {
        return refused(StatusCode::NOT_FOUND, &Status::not_found("Not Found"));
    };
    if request.method() != Method::POST {
        // Its text is 3.6's; 3.5 answers with this status too, but without JSON.
        let status = Status::unimplemented("Method Not Allowed");
        return refused(StatusCode::METHOD_NOT_ALLOWED, &status);
    }
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
    let first = messages.next().await?;
    let body = if method.client_streams() {
        let rest = stream::unfold(messages, |mut messages| async move {
            // What cannot be read ends the client's side, as in etcd.
            let next = messages.next().await.ok().flatten()?;
            Some((next, messages))
        });
        let all = stream::StreamExt::chain(stream::iter(first), rest);
        axum::body::Body::from_stream(stream::StreamExt::map(
            all,
            Ok::<_, std::convert::Infallible>,
        ))
    } else {
        messages.discard().await?;
        // No body is a message without fields.
        axum::body::Body::from(first.unwrap_or_else(|| framed(Bytes::new())))
    };
    let mut grpc = Request::new(Body::new(body));
    *grpc.method_mut() = Method::POST;
    *grpc.version_mut() = Version::HTTP_2;
    *grpc.uri_mut() = method
        .path()
        .parse()
        .map_err(|_| Status::internal("the method has no path"))?;
    *grpc.headers_mut() = metadata(&parts.headers);

    let mut answers = Answers::of(connection::call(front, caller, grpc).await)?;
    let first = answers.next().await;
    if method.server_streams() {
        return Ok(streamed(method, first, answers));
    }
    let message = first?.ok_or_else(|| Status::internal("there was no answer"))?;
    // The status comes behind it.
    if answers.next().await?.is_some() {
        return Err(Status::internal("there were several answers"));
    }
    let body = method.response(message).map_err(|e| unwritable(&e))?;
    Ok(json_response(StatusCode::OK, body.into()))
}

/// A line for each answer, as it comes. As long as there was none, an error has its own HTTP status.
fn streamed(
    method: &'static JsonMethod,
    first: Result<Option<Bytes>, Status>,
    answers: Answers,
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
            None => answers.next().await,
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
        Some((Ok::<_, std::convert::Infallible>(line), (None, answers)))
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
fn metadata(headers: &HeaderMap) -> HeaderMap {
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
    out.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    out.insert(header::TE, HeaderValue::from_static("trailers"));
    // Answers are read as they are.
    out.remove("grpc-encoding");
    out.remove("grpc-accept-encoding");
    out
}

/// The messages of a request's body, each framed as gRPC has it.
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
                return Ok(Some(framed(message)));
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

    /// Reads what stands behind the only message that a method takes, so that the connection can be used again.
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

fn framed(message: Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX + message.len());
    out.put_u8(0);
    // JSON that is bounded below this gave the message.
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put(message);
    out.freeze()
}

/// The messages of a call's answer, and its status.
struct Answers {
    body: Body,
    buffer: BytesMut,
    over: bool,
}

impl Answers {
    fn of(response: Response<Body>) -> Result<Self, Status> {
        // A refusal without any message has its status here.
        refusal(response.headers())?;
        Ok(Answers {
            body: response.into_body(),
            buffer: BytesMut::new(),
            over: false,
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = unframed(&mut self.buffer) {
                return Ok(Some(message));
            }
            if self.over {
                return Ok(None);
            }
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            let Some(frame) = frame.transpose()? else {
                self.over = true;
                continue;
            };
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    self.over = true;
                    if let Ok(trailers) = frame.into_trailers() {
                        refusal(&trailers)?;
                    }
                }
            }
        }
    }
}

fn refusal(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// Takes a whole message off the front.
fn unframed(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = buffer.get(1..PREFIX)?.try_into().map(u32::from_be_bytes);
    let whole = PREFIX.checked_add(usize::try_from(length.ok()?).ok()?)?;
    if buffer.len() < whole {
        return None;
    }
    let mut message = buffer.split_to(whole);
    message.advance(PREFIX);
    Some(message.freeze())
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
        let mut names: Vec<&str> = got.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "content-type", "hasleader", "te"]);
        assert_eq!(got[header::CONTENT_TYPE], "application/grpc");
    }

    #[test]
    fn messages_are_cut_out_of_their_frames() {
        let mut buffer = BytesMut::new();
        for message in [&b"one"[..], b"", b"three"] {
            buffer.extend_from_slice(&framed(Bytes::copy_from_slice(message)));
        }
        let whole = buffer.clone();
        for cut in 0..whole.len() {
            let mut got = Vec::new();
            let mut buffer = BytesMut::new();
            for part in [&whole[..cut], &whole[cut..]] {
                buffer.extend_from_slice(part);
                got.extend(std::iter::from_fn(|| unframed(&mut buffer)));
            }
            assert_eq!(got, [&b"one"[..], b"", b"three"], "{cut}");
        }
    }
}
