//! The etcd port: gRPC, its JSON gateway and a few HTTP routes side by side, one task for each connection.
//!
//! A file for each of etcd's services. `kv.rs`, `lease.rs` and `watch.rs` answer from the machine;
//! `relay.rs` passes calls on to the legacy cluster. Before the take-over that is all of them, and
//! `observe.rs` shows the machine what was acknowledged there; after it `general.rs` does so for general
//! keys, and `union.rs` joins them with registrations. `lock.rs` and `election.rs` serve the embedded store;
//! `json.rs` turns JSON into the calls of all of them.
//! `translate.rs` is the one place that knows both messages and the machine's words.

mod auth;
mod cluster;
mod connection;
mod contest;
mod election;
mod general;
mod health;
mod http;
mod identity;
mod json;
mod keep_alive;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod observe;
mod relay;
mod translate;
mod union;
mod upstream_watch;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use causeway_engine::layout::RangeClass;
use causeway_engine::phase::Phase;
use causeway_engine::route::{Mode, Touches};
use causeway_registry::StoreKind;
use causeway_wire::etcd::messages::etcdserverpb::ResponseHeader;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::gateway::Gateway;
use crate::journal::Position;
use crate::legacy::Legacy;
use connection::Caller;
use identity::Identity;

/// etcd's service traits, over the messages of `causeway-wire`.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all)]
mod services {
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
    pub mod v3lockpb {
        tonic::include_proto!("v3lockpb");
    }
    pub mod v3electionpb {
        tonic::include_proto!("v3electionpb");
    }
}

/// Pause after an accept that failed: out of file descriptors, which does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves etcd clients until the gateway stops.
pub async fn serve(gateway: Arc<Gateway>, legacy: Arc<Legacy>, listener: TcpListener) {
    let mut stopping = gateway.stopping();
    let identity = Identity::load(&gateway.config);
    let front = Arc::new(Front {
        gateway,
        legacy,
        identity,
        ended: lease::Ended::default(),
        last_seen: union::LastSeen::default(),
        leaving: AtomicU64::new(0),
    });
    let tasks = TaskTracker::new();
    tasks.spawn(lease::follow_over(front.clone()));
    if front.legacy.etcd_upstream.is_some() {
        tasks.spawn(identity::follow(front.clone()));
    }
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|s| *s) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                tasks.spawn(connection::run(front.clone(), stream, address));
            }
            Err(error) => {
                tracing::warn!(%error, "an etcd connection cannot be accepted");
                #[allow(clippy::disallowed_methods)] // tokio's timer.
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// What the connections of the port share.
struct Front {
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    identity: Identity,
    ended: lease::Ended,
    last_seen: union::LastSeen,
    /// Connections that have left at the take-over: their pace.
    leaving: AtomicU64,
}

/// The services, for one call.
#[derive(Clone)]
struct Api(Arc<Front>);

impl std::ops::Deref for Api {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.0
    }
}

impl Front {
    /// How etcd's clients are served now.
    fn mode(&self) -> Mode {
        self.gateway.with(|core| core.mode(StoreKind::Etcd)).0
    }

    fn mode_and_phase(&self) -> (Mode, Phase) {
        self.gateway
            .with(|core| (core.mode(StoreKind::Etcd), core.phase().phase()))
            .0
    }

    /// A header of ours.
    fn header(&self, revision: i64) -> ResponseHeader {
        self.identity.ids().header(revision)
    }

    /// A reply may leave only when what it depends on is on disk.
    async fn durable(&self, after: Position) -> Result<(), Status> {
        let saved = self.gateway.durable(after).await;
        saved.map_err(|error| {
            Status::unavailable(format!("etcdserver: the change is not on disk: {error}"))
        })
    }

    /// The connection to the legacy cluster.
    fn upstream(&self) -> Result<Channel, Status> {
        match &self.legacy.etcd_upstream {
            Some(upstream) => Ok(upstream.channel()),
            None => Err(Status::unimplemented("there is no legacy etcd to ask")),
        }
    }

    /// What a range touches.
    fn touches(&self, key: &[u8], range_end: &[u8]) -> Touches {
        match self.gateway.config.layouts.range_class(key, range_end) {
            RangeClass::General => Touches::General,
            RangeClass::Owned => Touches::Owned,
            RangeClass::Mixed(_) => Touches::Mixed,
        }
    }

    fn owns(&self, key: &[u8]) -> bool {
        self.touches(key, b"") == Touches::Owned
    }
}

/// Who calls; set for every request by its connection.
fn caller<T>(request: &Request<T>) -> Arc<Caller> {
    request
        .extensions()
        .get::<Arc<Caller>>()
        .cloned()
        .unwrap_or_else(|| Arc::new(Caller::nobody()))
}

/// The same request for the legacy cluster, with the client's metadata (token, hasleader).
fn with_metadata<T>(metadata: &MetadataMap, message: T) -> Request<T> {
    Request::from_parts(
        relay::passed_on(metadata),
        tonic::Extensions::default(),
        message,
    )
}

/// The URL that MemberList shows.
fn advertised(front: &Front, local: SocketAddr) -> Vec<String> {
    match &front.gateway.config.advertise_etcd {
        Some(urls) => urls.split(',').map(|url| url.trim().to_owned()).collect(),
        None => vec![format!("http://{local}")],
    }
}

#[cfg(test)]
mod tests;
