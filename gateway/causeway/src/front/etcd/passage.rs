//! Calls that pass to the legacy cluster as the bytes that they are, over HTTP/2.
//!
//! Whoever makes a call writes it and reads its answer itself, so that a call wakes the connection's task and nobody else.
//! A client library hands it on: to a queue, to a dispatcher, to a task for its body and to one for its answer, which
//! together cost a small call more than all the rest of it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use causeway_backend_etcd::upstream::{EtcdUpstream, PING_EVERY, PING_TIMEOUT};
use futures::FutureExt as _;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use hyper::body::{Body as HttpBody, Frame};
use hyper::http::uri::{Authority, Scheme};
use hyper::http::{HeaderValue, Request, Response, Uri, header};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;

use super::cork::cork;

/// Bytes that the legacy cluster may send ahead on one stream: a client that does not read leaves its streams full.
const STREAM_WINDOW: u32 = 128 << 10;
/// The same on all of them together, which must not hold up the others.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Streams that are opened before the cluster has said how many it takes.
const STREAMS_AT_FIRST: usize = 100;

/// What the cluster is told of who asks.
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("causeway/", env!("CARGO_PKG_VERSION")));

/// One connection to the legacy cluster, opened by the first call and anew by the first after it broke. It is driven on
/// the thread that opens it.
#[derive(Default)]
pub(super) struct Passage {
    open: Mutex<Option<Open>>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Open {
    sender: SendRequest<Bytes>,
    authority: Authority,
    traffic: Arc<Traffic>,
}

/// Why a call did not get through, or its answer did not.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// There is no connection; nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// The connection or the call broke; whether it was done is not known.
    #[error("{0}")]
    Call(#[from] h2::Error),
}

impl Passage {
    /// Makes a call; its path, headers and body are the request's. Dropping the answer gives the call up.
    pub(super) async fn pass(
        &self,
        upstream: &EtcdUpstream,
        request: Request<Body>,
    ) -> Result<Response<Passed>, Broken> {
        let mut open = self.opened(upstream).await?;
        let (mut parts, mut body) = request.into_parts();
        let mut uri = std::mem::take(&mut parts.uri).into_parts();
        (uri.scheme, uri.authority) = (Some(Scheme::HTTP), Some(open.authority));
        parts.uri = Uri::from_parts(uri).unwrap_or_default();
        parts.headers.insert(header::USER_AGENT, USER_AGENT);
        // Nearly always the whole request has arrived.
        let first = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        let call = open.traffic.call();
        let (answer, mut sending) = open
            .sender
            .send_request(Request::from_parts(parts, ()), false)?;
        let is_whole = body.is_end_stream();
        let pipe = match first {
            Some(None) => {
                sending.send_data(Bytes::new(), true)?;
                None
            }
            Some(Some(Ok(frame))) if is_whole && frame.is_data() => {
                sending.send_data(frame.into_data().unwrap_or_default(), true)?;
                None
            }
            Some(Some(frame)) => Some(tokio::spawn(piped(Some(frame), body, sending))),
            None => Some(tokio::spawn(piped(None, body, sending))),
        };
        let pipe = pipe.map(AbortOnDropHandle::new);
        let answer = answer.await?;
        call.traffic.heard.store(true, Ordering::Relaxed);
        Ok(answer.map(|stream| Passed {
            stream,
            data_over: false,
            call,
            _pipe: pipe,
        }))
    }

    async fn opened(&self, upstream: &EtcdUpstream) -> Result<Open, Broken> {
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let _one = self.connecting.lock().await;
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let unreachable = |error: &dyn std::fmt::Display| Broken::Unreachable(error.to_string());
        let socket = upstream.socket().await.map_err(|e| unreachable(&e))?;
        let authority = upstream.server().parse().map_err(|e| unreachable(&e))?;
        let (socket, outlet) = cork(socket);
        let (sender, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(STREAMS_AT_FIRST)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake::<_, Bytes>(socket)
            .await?;
        let traffic = Arc::<Traffic>::default();
        let pings = connection.ping_pong();
        let of_connection = traffic.clone();
        tokio::spawn(async move {
            let connection = pin!(connection);
            tokio::select! {
                done = outlet.drive(connection) => if let Err(error) = done {
                    tracing::debug!(%error, "a connection to the legacy etcd broke");
                },
                // The calls end with it.
                () = silent(pings, &of_connection) => {
                    tracing::warn!("the legacy etcd does not answer pings");
                }
            }
        });
        let open = Open {
            sender,
            authority,
            traffic,
        };
        *self.open.lock() = Some(open.clone());
        Ok(open)
    }

    /// The connection, unless it broke or the cluster takes no more calls on it.
    fn usable(&self) -> Option<Open> {
        let mut open = self.open.lock().clone()?;
        let usable = poll_fn(|cx| open.sender.poll_ready(cx)).now_or_never();
        matches!(usable, Some(Ok(()))).then_some(open)
    }
}

/// What passes over one connection.
#[derive(Default)]
struct Traffic {
    calls: AtomicUsize,
    /// Something came since the last look.
    heard: AtomicBool,
}

impl Traffic {
    fn call(self: &Arc<Self>) -> Call {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Call {
            traffic: self.clone(),
        }
    }
}

/// A call under way.
struct Call {
    traffic: Arc<Traffic>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.traffic.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until a cluster that has calls to answer leaves a ping without its answer. Whatever else it sends proves as
/// much as that; one without calls is not pinged, as etcd would close the connection for it.
async fn silent(pings: Option<PingPong>, traffic: &Traffic) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        sleep(PING_EVERY).await;
        let is_idle = traffic.calls.load(Ordering::Relaxed) == 0;
        if is_idle || traffic.heard.swap(false, Ordering::Relaxed) {
            continue;
        }
        if pings.send_ping(Ping::opaque()).is_err() {
            // The connection tells itself how it ended.
            return std::future::pending().await;
        }
        loop {
            match timeout(PING_TIMEOUT, poll_fn(|cx| pings.poll_pong(cx))).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) if traffic.heard.swap(false, Ordering::Relaxed) => {}
                Err(_) => return,
            }
        }
    }
}

/// Sends a body behind what was read of it, until the call is over.
async fn piped(
    mut first: Option<Result<Frame<Bytes>, Status>>,
    mut body: Body,
    mut sending: SendStream<Bytes>,
) {
    loop {
        let frame = match first.take() {
            Some(frame) => Some(frame),
            None => {
                let next = poll_fn(|cx| {
                    if sending.poll_reset(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    Pin::new(&mut body).poll_frame(cx).map(Some)
                });
                match next.await {
                    Some(frame) => frame,
                    None => return,
                }
            }
        };
        let sent = match frame {
            None => {
                let _ = sending.send_data(Bytes::new(), true);
                return;
            }
            Some(Err(_)) => return sending.send_reset(Reason::CANCEL),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    room(&mut sending, data.len()).await && {
                        sending.send_data(data, false).is_ok()
                    }
                }
                // gRPC has no trailers of requests.
                Err(_) => true,
            },
        };
        if !sent {
            return;
        }
    }
}

/// Waits until the cluster takes some more; false when it takes nothing any more.
async fn room(sending: &mut SendStream<Bytes>, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    // h2 asks for the rest when the data is handed over.
    sending.reserve_capacity(1);
    while sending.capacity() == 0 {
        match poll_fn(|cx| sending.poll_capacity(cx)).await {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return false,
        }
    }
    true
}

/// The body of an answer, as it comes.
pub(super) struct Passed {
    stream: RecvStream,
    data_over: bool,
    call: Call,
    /// What the client still sends.
    _pipe: Option<AbortOnDropHandle<()>>,
}

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = &mut *self;
        if !this.data_over {
            match ready!(this.stream.poll_data(cx)) {
                Some(data) => {
                    let data = data?;
                    this.call.traffic.heard.store(true, Ordering::Relaxed);
                    this.stream.flow_control().release_capacity(data.len())?;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                None => this.data_over = true,
            }
        }
        let trailers = ready!(this.stream.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use causeway_backend_etcd::EtcdOptions;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// What the server saw of a call.
    #[derive(Debug, PartialEq)]
    enum Seen {
        Call { path: String, token: Vec<u8> },
        Over(Option<Reason>),
    }

    /// A server that sends each call's bytes back and ends behind its client. A connection takes `calls` calls.
    async fn server(calls: usize) -> (EtcdUpstream, mpsc::UnboundedReceiver<Seen>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
                    let mut echoes = tokio::task::JoinSet::new();
                    for _ in 0..calls {
                        let Some(Ok((request, respond))) = connection.accept().await else {
                            return;
                        };
                        echoes.spawn(echo(request, respond, tell.clone()));
                    }
                    tokio::select! {
                        _ = connection.accept() => {}
                        _ = async { while echoes.join_next().await.is_some() {} } => {
                            connection.graceful_shutdown();
                            let _ = connection.accept().await;
                        }
                    }
                });
            }
        });
        let upstream = EtcdUpstream::new(&EtcdOptions::new([address])).expect("an address");
        (upstream, seen)
    }

    async fn echo(
        request: Request<RecvStream>,
        mut respond: h2::server::SendResponse<Bytes>,
        tell: mpsc::UnboundedSender<Seen>,
    ) {
        let token = request
            .headers()
            .get("token")
            .map(|v| v.as_bytes().to_vec());
        let path = request.uri().path().to_owned();
        assert_eq!(request.headers()[header::USER_AGENT], USER_AGENT);
        let token = token.unwrap_or_default();
        let _ = tell.send(Seen::Call { path, token });
        let mut body = request.into_body();
        let mut back = respond
            .send_response(Response::new(()), false)
            .expect("open");
        loop {
            let reason = match body.data().await {
                Some(Ok(data)) => {
                    let _ = body.flow_control().release_capacity(data.len());
                    back.send_data(data, false).expect("open");
                    continue;
                }
                Some(Err(error)) => error.reason(),
                None => {
                    let mut trailers = hyper::http::HeaderMap::new();
                    trailers.insert("grpc-status", HeaderValue::from_static("0"));
                    back.send_trailers(trailers).expect("open");
                    None
                }
            };
            let _ = tell.send(Seen::Over(reason));
            return;
        }
    }

    fn request(path: &str, body: Body) -> Request<Body> {
        let request = Request::post(path).header("token", "t.1");
        request.body(body).expect("a request")
    }

    fn whole(bytes: &'static [u8]) -> Body {
        Body::new(axum::body::Body::from(bytes))
    }

    async fn next(passed: &mut Passed) -> Option<Frame<Bytes>> {
        let frame = poll_fn(|cx| Pin::new(&mut *passed).poll_frame(cx));
        let frame = timeout(PATIENCE, frame).await.expect("a frame in time");
        frame.map(|frame| frame.expect("unbroken"))
    }

    async fn data(passed: &mut Passed) -> Bytes {
        let frame = next(passed).await.expect("a frame");
        frame.into_data().expect("data")
    }

    async fn end(passed: &mut Passed) {
        let trailers = next(passed).await.and_then(|f| f.into_trailers().ok());
        assert_eq!(trailers.expect("trailers")["grpc-status"], "0");
        assert!(next(passed).await.is_none());
    }

    #[tokio::test]
    async fn calls_pass_with_their_answers_over_one_connection() {
        let (upstream, mut seen) = server(usize::MAX).await;
        let passage = Passage::default();
        for (path, body) in [("/a.B/C", &b"one"[..]), ("/a.B/D", b"")] {
            let call = passage.pass(&upstream, request(path, whole(body)));
            let mut answer = call.await.expect("an answer").into_body();
            if !body.is_empty() {
                assert_eq!(data(&mut answer).await, body);
            }
            end(&mut answer).await;
            let token = b"t.1".to_vec();
            let path = path.to_owned();
            assert_eq!(seen.recv().await, Some(Seen::Call { path, token }));
            assert_eq!(seen.recv().await, Some(Seen::Over(None)));
        }
        let open = passage.open.lock().clone().expect("a connection");
        assert_eq!(open.traffic.calls.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_stream_goes_on_behind_its_headers_and_is_given_up_with_its_answer() {
        let (upstream, mut seen) = server(usize::MAX).await;
        let passage = Passage::default();
        for gives_up in [false, true] {
            let (send, messages) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
            let body = axum::body::Body::from_stream(ReceiverStream::new(messages));
            let call = passage.pass(&upstream, request("/a.B/C", Body::new(body)));
            let mut answer = call.await.expect("headers before a message").into_body();
            // More than a stream's window.
            for n in 0..20 {
                let message = Bytes::from(vec![n; 16 << 10]);
                send.send(Ok(message.clone())).await.expect("open");
                let mut back = bytes::BytesMut::new();
                while back.len() < message.len() {
                    back.extend_from_slice(&data(&mut answer).await);
                }
                assert_eq!(back, message);
            }
            assert!(matches!(seen.recv().await, Some(Seen::Call { .. })));
            if gives_up {
                drop(answer);
                assert_eq!(seen.recv().await, Some(Seen::Over(Some(Reason::CANCEL))));
                assert!(send.send(Ok(Bytes::new())).await.is_err());
            } else {
                drop(send);
                end(&mut answer).await;
                assert_eq!(seen.recv().await, Some(Seen::Over(None)));
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_takes_no_more_calls_is_left_for_another() {
        let (upstream, _seen) = server(1).await;
        let passage = Passage::default();
        for _ in 0..5 {
            let ended = tokio::time::Instant::now() + PATIENCE;
            loop {
                let call = passage.pass(&upstream, request("/a.B/C", whole(b"x")));
                // One that was sent before the server's word of it arrived is refused.
                if let Ok(answer) = call.await {
                    let mut answer = answer.into_body();
                    assert_eq!(data(&mut answer).await, "x");
                    end(&mut answer).await;
                    break;
                }
                assert!(tokio::time::Instant::now() < ended, "never another one");
            }
        }
        let gone = EtcdUpstream::new(&EtcdOptions::new(["127.0.0.1:1"])).expect("an address");
        let passage = Passage::default();
        let call = passage.pass(&gone, request("/a.B/C", whole(b"")));
        assert!(matches!(call.await, Err(Broken::Unreachable(_))));
    }
}
