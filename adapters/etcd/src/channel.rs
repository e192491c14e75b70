//! One gRPC channel over several servers.
//!
//! A channel holds one connection and moves to the next server when that breaks. tonic's own
//! balancing spreads requests over all servers, the dead ones too, and tells nobody which one
//! answered.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use causeway_backend::{BackendError, ErrorKind};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::{Channel, Endpoint, Uri};

/// A channel over the given servers (`http://host:port` or `host:port`), tried in turn from the
/// first; it connects at its first request and connects anew whenever it has to.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a server that cannot be meant; it names the server.
pub fn channel(endpoints: &[String]) -> Result<Channel, BackendError> {
    Ok(Servers::new(endpoints, Limits::default())?.channel())
}

/// How often a connection with calls under way is pinged: etcd closes one that is pinged more often than every 5 s.
pub const PING_EVERY: Duration = Duration::from_secs(10);

/// How long its answer may take.
pub const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connecting may take, and how a dead connection is noticed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For each server.
    pub(crate) connect: Duration,
    pub(crate) ping_every: Duration,
    pub(crate) ping_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            ping_every: PING_EVERY,
            ping_timeout: PING_TIMEOUT,
        }
    }
}

/// The configured servers, and which one is in use.
#[derive(Debug, Clone)]
pub(crate) struct Servers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    addresses: Vec<String>,
    /// Index of the server to try first.
    preferred: AtomicUsize,
    /// Breaks the connections made since the last move.
    cut: Mutex<CancellationToken>,
    limits: Limits,
}

impl Servers {
    pub(crate) fn new(endpoints: &[String], limits: Limits) -> Result<Self, BackendError> {
        if endpoints.is_empty() {
            let message = "no etcd server is configured; name at least one";
            return Err(BackendError::not_applied(ErrorKind::Unsupported, message));
        }
        let addresses = endpoints
            .iter()
            .map(|endpoint| address(endpoint))
            .collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner {
            addresses,
            preferred: AtomicUsize::new(0),
            cut: Mutex::default(),
            limits,
        })))
    }

    /// Each server alone, for asking all of them.
    pub(crate) fn each(&self) -> Vec<Self> {
        let alone = |address: &String| {
            Self(Arc::new(Inner {
                addresses: vec![address.clone()],
                preferred: AtomicUsize::new(0),
                cut: Mutex::default(),
                limits: self.0.limits,
            }))
        };
        self.0.addresses.iter().map(alone).collect()
    }

    /// The server that is in use or will be tried next, as `host:port`.
    pub(crate) fn current(&self) -> &str {
        let index = self.0.preferred.load(Ordering::Relaxed) % self.0.addresses.len();
        self.0.addresses.get(index).map_or("", String::as_str)
    }

    /// Leaves a server that answers wrongly or not at all for the next one. All streams on the
    /// connection break.
    pub(crate) fn move_on(&self) {
        if self.0.addresses.len() > 1 {
            self.0.preferred.fetch_add(1, Ordering::Relaxed);
            std::mem::take(&mut *self.0.cut.lock()).cancel();
        }
    }

    pub(crate) fn channel(&self) -> Channel {
        let limits = self.0.limits;
        // The connector ignores the address; it shows up as `:authority`.
        let uri = Uri::builder()
            .scheme("http")
            .authority(self.current())
            .path_and_query("/")
            .build()
            .unwrap_or_default();
        let servers = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let servers = servers.clone();
            async move { servers.connect().await.map(TokioIo::new) }
        });
        Endpoint::from(uri)
            .http2_keep_alive_interval(limits.ping_every)
            .keep_alive_timeout(limits.ping_timeout)
            .keep_alive_while_idle(false)
            // Clients that do not read leave their streams full; the others share the connection.
            .initial_stream_window_size(128 << 10)
            .initial_connection_window_size(1 << 30)
            .connect_with_connector_lazy(connector)
    }

    /// A connection to the server in use, or to the first behind it that takes one.
    pub(crate) async fn connect(&self) -> Result<Connection, ConnectFailed> {
        let count = self.0.addresses.len();
        let first = self.0.preferred.load(Ordering::Relaxed);
        let mut reasons = Vec::with_capacity(count);
        for (step, address) in self
            .0
            .addresses
            .iter()
            .cycle()
            .skip(first % count)
            .take(count)
            .enumerate()
        {
            match timeout(self.0.limits.connect, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    self.0
                        .preferred
                        .store((first % count) + step, Ordering::Relaxed);
                    let cut = self.0.cut.lock().clone();
                    return Ok(Connection {
                        stream,
                        cut: Box::pin(cut.cancelled_owned()),
                    });
                }
                Ok(Err(error)) => reasons.push(format!("{address}: {error}")),
                Err(_) => {
                    let limit = self.0.limits.connect;
                    reasons.push(format!("{address}: no connection within {limit:?}"));
                }
            }
        }
        Err(ConnectFailed {
            reasons: reasons.join("; "),
        })
    }
}

/// No server could be connected to, so nothing was sent.
#[derive(Debug, Clone)]
pub(crate) struct ConnectFailed {
    pub(crate) reasons: String,
}

impl fmt::Display for ConnectFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no etcd server can be reached ({})", self.reasons)
    }
}

impl std::error::Error for ConnectFailed {}

/// A TCP connection that can be broken from outside.
pub(crate) struct Connection {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(context).is_ready() {
            let reason = "left for another etcd server";
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                reason,
            )));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// `host:port` out of what the configuration names.
fn address(endpoint: &str) -> Result<String, BackendError> {
    let refuse = |why: &str| {
        let message = format!("etcd server {endpoint:?}: {why}; write http://HOST:PORT");
        Err(BackendError::not_applied(ErrorKind::Unsupported, message))
    };
    if endpoint.starts_with("https://") {
        return refuse("TLS toward etcd is not supported yet");
    }
    let rest = endpoint
        .strip_prefix("http://")
        .unwrap_or(endpoint)
        .trim_end_matches('/');
    let Some((host, port)) = rest.rsplit_once(':') else {
        return refuse("it has no port");
    };
    if host.is_empty() || host.contains('/') {
        return refuse("it has no host");
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{host}:{port}")),
        _ => refuse("its port is not a number from 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_url_or_address() {
        let cases: &[(&str, Option<&str>)] = &[
            ("http://127.0.0.1:2379", Some("127.0.0.1:2379")),
            ("http://etcd-1.example:2379/", Some("etcd-1.example:2379")),
            ("etcd-1:2379", Some("etcd-1:2379")),
            ("http://[::1]:2379", Some("[::1]:2379")),
            ("https://127.0.0.1:2379", None),
            ("127.0.0.1", None),
            ("http://:2379", None),
            ("http://a/b:1", None),
            ("a:0", None),
            ("a:99999", None),
            ("", None),
        ];
        for (endpoint, expected) in cases {
            let found = address(endpoint);
            assert_eq!(found.as_deref().ok(), *expected, "{endpoint}");
            if let Err(error) = found {
                assert!(error.to_string().contains(endpoint), "{error}");
            }
        }
        assert!(channel(&[]).is_err());
    }
}
