//! A connection to a ZooKeeper server down to its frames.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use causeway_backend::{BackendError, ErrorKind};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::{ConnectRequest, ConnectResponse, FrameDecoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::servers::Servers;

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamOptions {
    /// For connecting to one server and shaking hands with it.
    pub attempt_timeout: Duration,
    /// Largest frame taken from a server. Unlike requests, a reply is not bounded by
    /// `jute.maxbuffer`: the children of a large directory come in one frame.
    pub max_frame: usize,
    /// Requests in flight; further ones are refused.
    pub max_in_flight: usize,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            attempt_timeout: Duration::from_secs(3),
            max_frame: 64 << 20,
            max_in_flight: 4096,
        }
    }
}

/// What a server answered to a handshake.
#[derive(Debug)]
pub enum Handshake<T> {
    /// A session is established or re-attached.
    Established {
        /// The connection.
        connection: T,
        /// The server's words, to be passed on.
        response: ConnectResponse,
    },
    /// The session has expired, is unknown, or the password is wrong. The server closes.
    Expired(ConnectResponse),
}

impl<T> Handshake<T> {
    /// The same handshake over another kind of connection.
    pub(crate) fn map<U>(self, change: impl FnOnce(T, &ConnectResponse) -> U) -> Handshake<U> {
        match self {
            Self::Established {
                connection,
                response,
            } => Handshake::Established {
                connection: change(connection, &response),
                response,
            },
            Self::Expired(response) => Handshake::Expired(response),
        }
    }
}

/// A connection after its handshake, frame by frame in both directions. Dropping it closes the
/// connection and leaves the session alone.
#[derive(Debug)]
pub struct RawUpstream {
    sender: FrameSender,
    receiver: FrameReceiver,
    has_create2: bool,
}

impl RawUpstream {
    /// Connects to the servers in turn until one answers, and shakes hands exactly as asked: id 0
    /// asks for a new session, any other id with its password for that session.
    ///
    /// # Errors
    /// Retryable and [`causeway_backend::Certainty::NotApplied`] when no server answers. A server
    /// without a quorum, and one that is behind `last_zxid_seen`, closes without an answer
    /// (ZooKeeper: `ZooKeeperServer.processConnectRequest`), and then the next one is tried. An
    /// attempt that broke may leave a session that nobody knows; it expires by itself.
    pub async fn connect(
        servers: &Servers,
        request: &ConnectRequest,
        options: &UpstreamOptions,
    ) -> Result<Handshake<Self>, BackendError> {
        let mut reasons = Vec::new();
        for server in servers.in_turn() {
            let attempt = shake_hands(server, request, options);
            match timeout(options.attempt_timeout, attempt).await {
                Ok(Ok(mut handshake)) => {
                    if let Handshake::Established { connection, .. } = &mut handshake {
                        connection.has_create2 = servers.has_create2(server).await;
                    }
                    return Ok(handshake);
                }
                Ok(Err(reason)) => reasons.push(format!("{server}: {reason}")),
                Err(_) => {
                    let limit = options.attempt_timeout;
                    reasons.push(format!("{server}: no handshake within {limit:?}"));
                }
            }
        }
        let message = format!("no ZooKeeper server can be used ({})", reasons.join("; "));
        Err(BackendError::not_applied(ErrorKind::Unreachable, message))
    }

    /// The server at the other end, `host:port`.
    pub fn server(&self) -> &str {
        &self.receiver.server
    }

    /// Whether the server knows create2 (from ZooKeeper 3.5 on).
    pub fn has_create2(&self) -> bool {
        self.has_create2
    }

    /// The two directions, for two tasks.
    pub fn split(self) -> (FrameSender, FrameReceiver) {
        (self.sender, self.receiver)
    }

    /// As [`FrameSender::send_frame`].
    pub async fn send_frame(&mut self, frame: &[u8]) -> Result<(), BackendError> {
        self.sender.send_frame(frame).await
    }

    /// As [`FrameReceiver::next_frame`].
    pub async fn next_frame(&mut self) -> Result<Bytes, BackendError> {
        self.receiver.next_frame().await
    }
}

/// The direction toward the server.
#[derive(Debug)]
pub struct FrameSender {
    server: String,
    stream: OwnedWriteHalf,
    buffer: BytesMut,
}

impl FrameSender {
    /// Puts a frame (without its length) behind those waiting to be flushed.
    pub fn feed(&mut self, frame: &[u8]) {
        // A length beyond i32 cannot come from a frame that was read with a limit.
        let length = i32::try_from(frame.len()).unwrap_or(i32::MAX);
        self.buffer.extend_from_slice(&length.to_be_bytes());
        self.buffer.extend_from_slice(frame);
    }

    /// Puts frames that have their lengths behind those waiting.
    pub(crate) fn feed_framed(&mut self, frames: BytesMut) {
        self.buffer.unsplit(frames);
    }

    /// Bytes that wait to be flushed.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// The connection is lost, and whether the server got the frames is not known.
    pub async fn flush(&mut self) -> Result<(), BackendError> {
        let result = self.stream.write_all_buf(&mut self.buffer).await;
        result.map_err(|error| lost(&self.server, &format!("cannot write: {error}")))
    }

    /// Sends one frame (without its length).
    ///
    /// # Errors
    /// As [`FrameSender::flush`].
    pub async fn send_frame(&mut self, frame: &[u8]) -> Result<(), BackendError> {
        self.feed(frame);
        self.flush().await
    }
}

/// The direction from the server.
#[derive(Debug)]
pub struct FrameReceiver {
    server: String,
    stream: OwnedReadHalf,
    buffer: BytesMut,
    decoder: FrameDecoder,
}

impl FrameReceiver {
    /// The server at the other end, `host:port`.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The next frame without its length. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// The connection is lost or the server does not speak ZooKeeper.
    pub async fn next_frame(&mut self) -> Result<Bytes, BackendError> {
        loop {
            match self.decoder.next(&mut self.buffer) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => {
                    let message = format!("ZooKeeper at {}: {error}", self.server);
                    return Err(BackendError::unknown(ErrorKind::Protocol, message));
                }
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(lost(&self.server, "the server closed it")),
                Ok(_) => {}
                Err(error) => return Err(lost(&self.server, &format!("cannot read: {error}"))),
            }
        }
    }
}

pub(crate) fn lost(server: &str, why: &str) -> BackendError {
    let message = format!("the connection to ZooKeeper at {server} is lost: {why}");
    BackendError::unknown(ErrorKind::Unreachable, message)
}

async fn shake_hands(
    server: &str,
    request: &ConnectRequest,
    options: &UpstreamOptions,
) -> Result<Handshake<RawUpstream>, String> {
    let mut stream = TcpStream::connect(server)
        .await
        .map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    stream
        .write_all(&request.encode_frame())
        .await
        .map_err(|error| error.to_string())?;
    let (read, write) = stream.into_split();
    let mut receiver = FrameReceiver {
        server: server.to_owned(),
        stream: read,
        buffer: BytesMut::with_capacity(4096),
        decoder: FrameDecoder::new(options.max_frame),
    };
    let frame = receiver.next_frame().await.map_err(|_| {
        "it closed the connection before the handshake (no quorum, too many connections from \
         this address, or behind what the client has seen)"
            .to_owned()
    })?;
    let response = ConnectResponse::decode(frame)
        .map_err(|error| format!("it does not speak ZooKeeper: {error}"))?;
    if response.is_expired() {
        return Ok(Handshake::Expired(response));
    }
    let sender = FrameSender {
        server: server.to_owned(),
        stream: write,
        buffer: BytesMut::new(),
    };
    Ok(Handshake::Established {
        connection: RawUpstream {
            sender,
            receiver,
            has_create2: true,
        },
        response,
    })
}
