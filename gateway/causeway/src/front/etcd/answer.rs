//! What a call is answered with, as the bytes of its frames: by tonic, or from what was encoded before.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::Stream;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::http::request::Parts;
use hyper::http::{HeaderMap, HeaderValue, Request, Response, header};
use prost::Message;
use tonic::body::Body;
use tonic::codec::Codec as _;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::metrics::Counted;
use super::relay::Relayed;

/// Messages in their frames, ready to be sent.
pub(super) type Frames = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Part of an answer: two pieces, so that what many are sent is copied for none of them.
pub(super) type Piece = Chain<Bytes, Bytes>;

/// The body of an answer.
pub(super) enum Answer {
    /// As it is.
    Made(Body),
    /// One message in its frame, and the status of success.
    Message(Piece),
    /// As they come, and the status that ends them.
    Stream(Frames),
    /// As the legacy cluster sends it.
    Relayed(Box<Relayed>),
    /// Any of these, whose bytes and status are counted.
    Counted(Box<Counted<Answer>>),
    /// Success, behind what was sent.
    Success,
    /// All was sent.
    Sent,
}

impl Answer {
    /// One message in its frame.
    pub(super) fn message(framed: Piece) -> Response<Answer> {
        grpc(Answer::Message(framed))
    }

    /// Messages as they come.
    pub(super) fn stream(frames: Frames) -> Response<Answer> {
        grpc(Answer::Stream(frames))
    }

    /// A refusal.
    pub(super) fn refusal(status: Status) -> Response<Answer> {
        status.into_http().map(Answer::Made)
    }
}

fn grpc(answer: Answer) -> Response<Answer> {
    let mut response = Response::new(answer);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    response
}

impl HttpBody for Answer {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let whole = |frame: Frame<Bytes>| frame.map_data(|data| data.chain(Bytes::new()));
        let frame = match &mut *self {
            Answer::Made(body) => return Pin::new(body).poll_frame(cx).map_ok(whole),
            Answer::Relayed(body) => return Pin::new(body.as_mut()).poll_frame(cx).map_ok(whole),
            Answer::Counted(answer) => return Pin::new(answer.as_mut()).poll_frame(cx),
            Answer::Stream(frames) => match std::task::ready!(frames.as_mut().poll_next(cx)) {
                Some(Ok(frames)) => Frame::data(frames.chain(Bytes::new())),
                end => {
                    *self = Answer::Sent;
                    let trailers = match end {
                        Some(Err(status)) => {
                            let mut trailers = HeaderMap::with_capacity(3);
                            status.add_header(&mut trailers)?;
                            trailers
                        }
                        _ => success(),
                    };
                    Frame::trailers(trailers)
                }
            },
            Answer::Message(_) => match std::mem::replace(&mut *self, Answer::Success) {
                Answer::Message(framed) => Frame::data(framed),
                _ => return Poll::Ready(None),
            },
            Answer::Success => {
                *self = Answer::Sent;
                Frame::trailers(success())
            }
            Answer::Sent => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Made(body) => body.is_end_stream(),
            Answer::Relayed(body) => body.is_end_stream(),
            Answer::Counted(answer) => answer.is_end_stream(),
            Answer::Sent => true,
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Made(body) => body.size_hint(),
            Answer::Counted(answer) => answer.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

fn success() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// The message of a call that has one, below the limit and uncompressed as nearly all are; any other call as it came.
pub(super) async fn only_message(
    request: Request<Body>,
    limit: usize,
) -> Result<(Parts, Bytes), Request<Body>> {
    if is_compressed(request.headers()) {
        return Err(request);
    }
    let (parts, mut body) = request.into_parts();
    let mut read = BytesMut::new();
    while read.len() < limit {
        match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => break,
            None => {
                let read = read.freeze();
                return match causeway_wire::etcd::frame::only_message(&read) {
                    Some(message) => Ok((parts, message)),
                    None => Err(Request::from_parts(parts, again(read, body))),
                };
            }
        }
    }
    Err(Request::from_parts(parts, again(read.freeze(), body)))
}

/// The messages of a call that streams.
pub(super) fn messages<T: Message + Default + 'static>(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Streaming<T>, Status> {
    if is_compressed(headers) {
        return Err(Status::unimplemented("compressed messages are not taken"));
    }
    let decoder = ProstCodec::<T, T>::default().decoder();
    Ok(Streaming::new_request(decoder, body, None, Some(limit)))
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-encoding")
        .is_some_and(|encoding| encoding != "identity")
}

/// A body whose beginning was read already.
fn again(read: Bytes, rest: Body) -> Body {
    Body::new(Again {
        read: Some(read),
        rest,
    })
}

struct Again {
    read: Option<Bytes>,
    rest: Body,
}

impl HttpBody for Again {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.read.take() {
            Some(read) => Poll::Ready(Some(Ok(Frame::data(read)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of a body, and its trailers' status.
    async fn sent(mut answer: Answer) -> (Vec<u8>, Option<String>) {
        let (mut data, mut status) = (Vec::new(), None);
        while let Some(frame) =
            std::future::poll_fn(|cx| Pin::new(&mut answer).poll_frame(cx)).await
        {
            match frame.expect("a frame").into_data() {
                Ok(piece) => data.extend_from_slice(&{ piece }.copy_to_bytes_all()),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("trailers");
                    let text = trailers.get(Status::GRPC_STATUS).expect("a status");
                    status = Some(text.to_str().expect("digits").to_owned());
                }
            }
        }
        assert!(matches!(answer, Answer::Made(_)) || answer.is_end_stream());
        (data, status)
    }

    trait All {
        fn copy_to_bytes_all(self) -> Bytes;
    }

    impl All for Piece {
        fn copy_to_bytes_all(mut self) -> Bytes {
            let all = self.remaining();
            self.copy_to_bytes(all)
        }
    }

    #[tokio::test]
    async fn a_status_ends_every_answer() {
        let piece = Bytes::from_static(b"ab").chain(Bytes::from_static(b"cd"));
        let one = Answer::message(piece).into_body();
        assert_eq!(sent(one).await, (b"abcd".to_vec(), Some("0".into())));
        let frames = |end: Option<Status>| {
            let all = [Ok(Bytes::from_static(b"x")), Ok(Bytes::from_static(b"y"))];
            let all = all.into_iter().chain(end.map(Err));
            Answer::stream(Box::pin(futures::stream::iter(all.collect::<Vec<_>>()))).into_body()
        };
        assert_eq!(sent(frames(None)).await, (b"xy".to_vec(), Some("0".into())));
        let ended = frames(Some(Status::unavailable("gone")));
        assert_eq!(sent(ended).await, (b"xy".to_vec(), Some("14".into())));
    }

    #[tokio::test]
    async fn what_is_not_read_here_comes_as_it_was() {
        let body = |parts: &[&'static [u8]]| {
            let parts: Vec<Result<Bytes, std::io::Error>> = parts
                .iter()
                .map(|part| Ok(Bytes::from_static(part)))
                .collect();
            Body::new(axum::body::Body::from_stream(futures::stream::iter(parts)))
        };
        let whole: &[u8] = b"\0\0\0\0\x02hi";
        for parts in [&[whole][..], &[&whole[..3], &whole[3..]]] {
            let read = only_message(Request::new(body(parts)), 100).await;
            assert_eq!(read.expect("a message").1, "hi");
        }
        let mut compressed = Request::new(body(&[whole]));
        compressed
            .headers_mut()
            .insert("grpc-encoding", HeaderValue::from_static("gzip"));
        let left = [
            (compressed, whole),
            (Request::new(body(&[&whole[..4]])), &whole[..4]),
            (Request::new(body(&[])), b""),
            (
                Request::new(body(&[b"\x01\0\0\0\x01", b"z"])),
                b"\x01\0\0\0\x01z",
            ),
        ];
        for (request, bytes) in left {
            let request = only_message(request, 100).await.expect_err("not read");
            assert_eq!(sent(Answer::Made(request.into_body())).await.0, bytes);
        }
        let long = only_message(Request::new(body(&[whole])), 6).await;
        let long = long.expect_err("above the limit").into_body();
        assert_eq!(sent(Answer::Made(long)).await.0, whole);
    }
}
