//! One client connection: HTTP/2 for gRPC, HTTP/1 and HTTP/2 for the small routes, and its end.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_engine::key_space::Release;
use causeway_engine::route::Mode;
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::json::has_method;
use hyper::body::Incoming;
use hyper::http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::ServiceExt;

use super::answer::Answer;
use super::cork::cork;
use super::services::etcdserverpb::auth_server::AuthServer;
use super::services::etcdserverpb::cluster_server::ClusterServer;
use super::services::etcdserverpb::kv_server::KvServer;
use super::services::etcdserverpb::lease_server::LeaseServer;
use super::services::etcdserverpb::maintenance_server::MaintenanceServer;
use super::services::v3electionpb::election_server::ElectionServer;
use super::services::v3lockpb::lock_server::LockServer;
use super::translate::status;
use super::{
    Api, Front, health, http, json, keep_alive, range, relay, unary, watch as watch_service,
};
use crate::tls::{self, Socket};

/// Largest message taken from a client: etcd's request limit and 512 KiB around it
/// (etcd: v3rpc/grpc.go, grpcOverheadBytes).
const MAX_MESSAGE: usize = 2 << 20;

/// How long a connection that was asked to end may take.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// How long a client may take for its TLS handshake, and one of HTTP/1 for its headers.
const HEADERS: Duration = Duration::from_secs(30);

/// Streams that a client may reset before they were looked at; its default of 20 closes connections of
/// clients that cancel many watches at once.
const RESETS: usize = 100_000;

/// Bytes that a client may send ahead on one stream, and on all of them. h2 ends a connection whose unread
/// messages of less than 256 bytes lack half the connection's window to that size; a burst of watches on
/// many streams must stay below.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// etcd's own pings of idle clients (etcd: embed/config.go).
const PING_EVERY: Duration = Duration::from_secs(2 * 3600);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Who calls.
pub(super) struct Caller {
    /// The client's address, without its port: the one that wrote a record may delete it over another
    /// connection.
    pub(super) peer: String,
    /// The address that it connected to.
    pub(super) local: SocketAddr,
    /// Whether it did so over TLS.
    pub(super) tls: bool,
    /// Common name of the certificate that it showed: a user's, where authentication is on.
    pub(super) certificate: Option<String>,
    /// Number of the thread that serves it.
    pub(super) shard: usize,
    ending: watch::Receiver<bool>,
}

impl Caller {
    /// For a request that came over no connection.
    pub(super) fn nobody() -> Self {
        Caller {
            peer: String::new(),
            local: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls: false,
            certificate: None,
            shard: usize::MAX,
            ending: watch::channel(false).1,
        }
    }

    /// The same without the name in the certificate, which is nobody's under JSON.
    pub(super) fn without_certificate(&self) -> Self {
        Caller {
            peer: self.peer.clone(),
            local: self.local,
            tls: self.tls,
            shard: self.shard,
            certificate: None,
            ending: self.ending.clone(),
        }
    }

    /// Waits until the connection has to end. Streams then end with [`ended`].
    pub(super) async fn ends(&self) {
        let mut ending = self.ending.clone();
        if ending.wait_for(|e| *e).await.is_err() {
            // Nobody can ask any more; whoever waits beside this goes on.
            std::future::pending::<()>().await;
        }
    }
}

/// What streams end with when their connection has to: clients come back only from Unavailable.
pub(super) fn ended() -> Status {
    status(EtcdError::Stopped)
}

/// Serves a connection until it ends, the gateway stops, or the take-over sends it away.
pub(super) async fn run(front: Arc<Front>, stream: TcpStream, remote: SocketAddr, shard: usize) {
    let _ = stream.set_nodelay(true);
    let local = stream
        .local_addr()
        .unwrap_or_else(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let socket = front.gateway.config.etcd_tls.port.open(stream, remote);
    let Ok(Some(socket)) = tokio::time::timeout(HEADERS, socket).await else {
        return;
    };
    let (end, ending) = watch::channel(false);
    let caller = Arc::new(Caller {
        peer: remote.ip().to_canonical().to_string(),
        local,
        tls: matches!(socket, Socket::Tls(_)),
        certificate: socket.client_certificate().map(name_in),
        shard,
        ending,
    });
    let service = service_fn({
        let (front, caller) = (front.clone(), caller);
        move |request| answer(front.clone(), caller.clone(), request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(u32::MAX)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let (socket, outlet) = cork(socket);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut leave = pin!(leave(&front));
    tokio::select! {
        done = outlet.drive(connection.as_mut()) => return gone(remote, done),
        () = leave.as_mut() => {}
    }
    end.send_replace(true);
    connection.as_mut().graceful_shutdown();
    if let Ok(done) = tokio::time::timeout(LINGER, outlet.drive(connection)).await {
        gone(remote, done);
    }
}

/// The name in a certificate that was checked; one that cannot be read is nobody's, as one without a name.
fn name_in(certificate: &[u8]) -> String {
    tls::common_name(certificate).unwrap_or_else(|error| {
        tracing::info!(%error, "the name in a client's certificate cannot be read");
        String::new()
    })
}

fn gone(remote: SocketAddr, done: Result<(), String>) {
    if let Err(error) = done {
        tracing::debug!(%remote, %error, "an etcd connection broke");
    }
}

/// Waits until the gateway stops, or until it is this connection's turn after the take-over.
async fn leave(front: &Front) {
    let mut stopping = front.gateway.stopping();
    tokio::select! {
        _ = stopping.wait_for(|s| *s) => {}
        () = taken_over(front) => {}
    }
}

async fn taken_over(front: &Front) {
    let mut steps = front.gateway.steps();
    if front.mode() != Mode::Relay {
        return std::future::pending().await;
    }
    while front.mode() == Mode::Relay {
        if steps.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
    let turn = front.leaving.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(turn_after(turn, front.gateway.config.reconnects_per_s)).await;
}

/// When the connection with this turn leaves.
fn turn_after(turn: u64, per_s: u32) -> Duration {
    Duration::from_millis(turn.saturating_mul(1000) / u64::from(per_s.max(1)))
}

/// Where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Range,
    Kv,
    Watch,
    Lease,
    KeepAlive,
    Cluster,
    Maintenance,
    Auth,
    Lock,
    Election,
    Health,
    /// To the legacy cluster, byte for byte.
    Forward,
    /// Refused by name.
    Unknown,
}

/// The plan of a call by its name. Methods that are not known here may be those of a newer legacy cluster.
fn route(mode: Mode, release: Release, path: &str) -> Route {
    let named = names(path);
    let not_here = match mode {
        Mode::Embedded => Route::Unknown,
        Mode::Relay | Mode::TakenOver => Route::Forward,
    };
    let Some((service, method)) = named.filter(|(service, method)| {
        *service == HEALTH || (has_method(service, method) == Some(true) && release.has(method))
    }) else {
        return not_here;
    };
    match (mode, service, method) {
        // Before the take-over only what changes a registration, or shows addresses, is looked at.
        (Mode::Relay, "etcdserverpb.KV", "Put" | "DeleteRange" | "Txn") => Route::Kv,
        (Mode::Relay, "etcdserverpb.Lease", "LeaseGrant" | "LeaseRevoke" | "LeaseKeepAlive") => {
            Route::Lease
        }
        (Mode::Relay, "etcdserverpb.Cluster", "MemberList") => Route::Cluster,
        (Mode::Relay, _, _) => Route::Forward,
        (_, "etcdserverpb.KV", "Range") => Route::Range,
        (_, "etcdserverpb.KV", _) => Route::Kv,
        (_, "etcdserverpb.Watch", _) => Route::Watch,
        (_, "etcdserverpb.Lease", "LeaseKeepAlive") => Route::KeepAlive,
        (_, "etcdserverpb.Lease", _) => Route::Lease,
        (_, "etcdserverpb.Cluster", _) => Route::Cluster,
        (_, HEALTH, _) => Route::Health,
        (Mode::Embedded, "etcdserverpb.Maintenance", _) => Route::Maintenance,
        (Mode::Embedded, "etcdserverpb.Auth", _) => Route::Auth,
        (Mode::Embedded, "v3lockpb.Lock", _) => Route::Lock,
        (Mode::Embedded, "v3electionpb.Election", _) => Route::Election,
        (Mode::TakenOver, "etcdserverpb.Maintenance", "Status") => Route::Maintenance,
        (Mode::Embedded | Mode::TakenOver, _, _) => not_here,
    }
}

/// The one service that etcd's protos do not have.
const HEALTH: &str = "grpc.health.v1.Health";

/// Service and method (grpc-go: server.go, handleStream).
fn names(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/').unwrap_or(path).rsplit_once('/')
}

/// The status of a name that nobody serves, in grpc-go's words.
fn unknown(path: &str) -> Status {
    Status::unimplemented(match names(path) {
        None => format!("malformed method name: {path:?}"),
        Some((service, method)) if has_method(service, method).is_some() => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    })
}

async fn answer(
    front: Arc<Front>,
    caller: Arc<Caller>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let is_grpc = request
        .headers()
        .get(hyper::header::CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        return Ok(call(front, caller, request.map(Body::new)).await);
    }
    let path = request.uri().path();
    let answered = if path.starts_with("/v3/") || path.starts_with("/v3beta/") {
        match json::admit(&front, &caller, &request) {
            Ok(method) => json::answer(front, &caller, method, request).await,
            Err(refusal) => {
                http::discard(request.into_body()).await;
                refusal.response()
            }
        }
    } else {
        let answered = http::answer(&front, &request);
        http::discard(request.into_body()).await;
        answered
    };
    Ok(answered.map(Answer::Made))
}

/// Largest message taken from a client.
pub(super) fn limit(mode: Mode) -> usize {
    match mode {
        Mode::Embedded => MAX_MESSAGE,
        Mode::Relay | Mode::TakenOver => relay::MAX_MESSAGE,
    }
}

/// Answers a gRPC call.
pub(super) async fn call(
    front: Arc<Front>,
    caller: Arc<Caller>,
    mut request: Request<Body>,
) -> Response<Answer> {
    if let Err(status) = front.admit(&request, &caller) {
        return Answer::refusal(status);
    }
    request.extensions_mut().insert(caller);
    let counted = front.calls.begin(request.uri().path());
    if let Some(call) = &counted {
        request = request.map(|body| call.request(body));
    }
    let mode = front.mode();
    let api = Api(front.clone());
    let response = dispatch(&front, api, mode, request).await;
    match counted {
        Some(call) => call.response(response),
        None => response,
    }
}

async fn dispatch(
    front: &Arc<Front>,
    api: Api,
    mode: Mode,
    mut request: Request<Body>,
) -> Response<Answer> {
    macro_rules! served {
        ($server:ident) => {
            $server::new(api)
                .max_decoding_message_size(limit(mode))
                .oneshot(request)
                .await
        };
    }
    let release = front.identity.release();
    let route = route(mode, release, request.uri().path());
    let answered = match route {
        Route::Range => range::answer(&api, request, limit(mode)).await,
        Route::Kv | Route::Lease => unary::answer(&api, request, limit(mode)).await,
        _ => Err(request),
    };
    request = match answered {
        Ok(response) => return response,
        Err(left) => left,
    };
    let response: Result<_, Infallible> = match route {
        Route::Watch => return watch_service::answer(api, request, limit(mode)),
        Route::KeepAlive => return keep_alive::answer(api, request, limit(mode)),
        Route::Forward => return relay::forward(front, request).await,
        Route::Kv | Route::Range => served!(KvServer),
        Route::Lease => served!(LeaseServer),
        Route::Cluster => served!(ClusterServer),
        Route::Maintenance => served!(MaintenanceServer),
        Route::Auth => served!(AuthServer),
        Route::Lock => served!(LockServer),
        Route::Election => served!(ElectionServer),
        Route::Health => Ok(health::answer(request).await),
        Route::Unknown => Ok(unknown(request.uri().path()).into_http()),
    };
    match response {
        Ok(response) => too_long(response).map(Answer::Made),
        Err(never) => match never {},
    }
}

/// tonic answers a message above the limit with OutOfRange; grpc-go, and so etcd, with ResourceExhausted.
fn too_long(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::OutOfRange => match lengths(status.message()) {
            Some((found, limit)) => {
                let text = format!("grpc: received message larger than max ({found} vs. {limit})");
                Status::resource_exhausted(text).into_http()
            }
            None => response,
        },
        _ => response,
    }
}

/// The two numbers of tonic's text.
fn lengths(message: &str) -> Option<(u64, u64)> {
    let rest = message.strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
    let limit = rest.strip_suffix(" bytes")?;
    Some((found.parse().ok()?, limit.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_take_over_all_else_is_passed_on() {
        let check = |mode, path, want| {
            assert_eq!(
                route(mode, Release::default(), path),
                want,
                "{mode:?} {path}"
            );
        };
        for (path, relay, embedded, taken_over) in [
            (
                "/etcdserverpb.KV/Range",
                Route::Forward,
                Route::Range,
                Route::Range,
            ),
            ("/etcdserverpb.KV/Put", Route::Kv, Route::Kv, Route::Kv),
            ("/etcdserverpb.KV/Txn", Route::Kv, Route::Kv, Route::Kv),
            (
                "/etcdserverpb.KV/Compact",
                Route::Forward,
                Route::Kv,
                Route::Kv,
            ),
            (
                "/etcdserverpb.Watch/Watch",
                Route::Forward,
                Route::Watch,
                Route::Watch,
            ),
            (
                "/etcdserverpb.Lease/LeaseKeepAlive",
                Route::Lease,
                Route::KeepAlive,
                Route::KeepAlive,
            ),
            (
                "/etcdserverpb.Lease/LeaseLeases",
                Route::Forward,
                Route::Lease,
                Route::Lease,
            ),
            (
                "/etcdserverpb.Cluster/MemberList",
                Route::Cluster,
                Route::Cluster,
                Route::Cluster,
            ),
            (
                "/etcdserverpb.Cluster/MemberAdd",
                Route::Forward,
                Route::Cluster,
                Route::Cluster,
            ),
            (
                "/etcdserverpb.Maintenance/Status",
                Route::Forward,
                Route::Maintenance,
                Route::Maintenance,
            ),
            (
                "/etcdserverpb.Maintenance/Snapshot",
                Route::Forward,
                Route::Maintenance,
                Route::Forward,
            ),
            (
                "/etcdserverpb.Auth/Authenticate",
                Route::Forward,
                Route::Auth,
                Route::Forward,
            ),
            (
                "/v3lockpb.Lock/Lock",
                Route::Forward,
                Route::Lock,
                Route::Forward,
            ),
            (
                "/v3electionpb.Election/Observe",
                Route::Forward,
                Route::Election,
                Route::Forward,
            ),
            (
                "/grpc.health.v1.Health/Check",
                Route::Forward,
                Route::Health,
                Route::Health,
            ),
            (
                "/nobody.Knows/This",
                Route::Forward,
                Route::Unknown,
                Route::Forward,
            ),
            ("nonsense", Route::Forward, Route::Unknown, Route::Forward),
            (
                "/etcdserverpb.KV/Nope",
                Route::Forward,
                Route::Unknown,
                Route::Forward,
            ),
        ] {
            check(Mode::Relay, path, relay);
            check(Mode::Embedded, path, embedded);
            check(Mode::TakenOver, path, taken_over);
        }
    }

    #[test]
    fn methods_are_those_of_the_release_shown() {
        for (version, path, want) in [
            ("3.7.3", "/etcdserverpb.KV/RangeStream", Route::Kv),
            ("3.6.4", "/etcdserverpb.KV/RangeStream", Route::Unknown),
            (
                "3.5.21",
                "/etcdserverpb.Maintenance/Downgrade",
                Route::Maintenance,
            ),
            (
                "3.4.23",
                "/etcdserverpb.Maintenance/Downgrade",
                Route::Unknown,
            ),
            ("3.4.23", "/etcdserverpb.Auth/AuthStatus", Route::Unknown),
            ("3.4.23", "/etcdserverpb.Auth/Authenticate", Route::Auth),
        ] {
            let got = route(Mode::Embedded, Release::of(version), path);
            assert_eq!(got, want, "{version} {path}");
        }
        let newer = route(
            Mode::TakenOver,
            Release::of("3.6.4"),
            "/etcdserverpb.KV/RangeStream",
        );
        assert_eq!(newer, Route::Forward);
    }

    #[test]
    fn unknown_names_are_refused_in_grpc_gos_words() {
        for (path, text) in [
            (
                "/etcdserverpb.KV/Nope",
                "unknown method Nope for service etcdserverpb.KV",
            ),
            ("/nobody.Knows/This", "unknown service nobody.Knows"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            let status = unknown(path);
            assert_eq!(
                (status.code(), status.message()),
                (Code::Unimplemented, text)
            );
        }
    }

    #[test]
    fn a_message_above_the_limit_is_named_as_grpc_go_does() {
        let tonics = "Error, decoded message length too large: found 3000000 bytes, the limit is: 2097152 bytes";
        let answered = too_long(Status::out_of_range(tonics).into_http());
        let status = Status::from_header_map(answered.headers()).expect("a status");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(
            status.message(),
            "grpc: received message larger than max (3000000 vs. 2097152)"
        );
        let compacted = super::status(EtcdError::Compacted).into_http();
        let kept = Status::from_header_map(too_long(compacted).headers()).expect("a status");
        assert_eq!(kept.code(), Code::OutOfRange);
    }

    #[test]
    fn connections_leave_at_the_configured_pace() {
        for (turn, per_s, ms) in [(0, 200, 0), (1, 200, 5), (200, 200, 1000), (3, 0, 3000)] {
            assert_eq!(turn_after(turn, per_s), Duration::from_millis(ms));
        }
    }
}
