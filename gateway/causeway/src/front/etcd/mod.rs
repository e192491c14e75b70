//! The etcd port: gRPC, its JSON gateway and a few HTTP routes side by side, one task for each connection, which stays
//! on one of the port's threads (`crate::shards`).
//!
//! A file for each of etcd's services. `kv.rs`, `lease.rs` and `watch.rs` answer from the machine, Range and Watch with
//! bytes that are encoded once for all (`range.rs`, `answer.rs`), and what else is frequent without tonic's server between
//! (`unary.rs`, `keep_alive.rs`);
//! `relay.rs` passes calls on to the legacy cluster, over `passage.rs`. Before the take-over that is all of them, and
//! `observe.rs` shows the machine what was acknowledged there; after it `general.rs` does so for general
//! keys, and `union.rs` joins them with registrations. `auth.rs` keeps users, and `permit.rs` asks who calls. `lock.rs` and `election.rs` serve the embedded store;
//! `json.rs` turns JSON into the calls of all of them, `http.rs` has the routes beside them, `metrics.rs` what they
//! count.
//! `translate.rs` is the one place that knows both messages and the machine's words.

mod answer;
mod auth;
mod cluster;
mod connection;
mod contest;
mod cork;
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
mod metrics;
mod observe;
mod passage;
mod permit;
mod range;
mod range_stream;
mod relay;
mod snapshot;
mod translate;
mod unary;
mod union;
mod upstream_watch;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use causeway_backend_etcd::upstream::EtcdUpstream;
use causeway_engine::layout::RangeClass;
use causeway_engine::phase::Phase;
use causeway_engine::route::{Mode, Touches};
use causeway_registry::StoreKind;
use causeway_wire::etcd::messages::etcdserverpb::ResponseHeader;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request, Status};

use crate::gateway::Gateway;
use crate::journal::Position;
use crate::legacy::Legacy;
use crate::shards::Shards;
use connection::Caller;
use identity::Identity;
use passage::Passage;

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
    let shards = match Shards::start(&gateway, "etcd", connection::LINGER) {
        Ok(shards) => shards,
        Err(error) => {
            tracing::error!(%error, "the etcd port cannot start its threads");
            return;
        }
    };
    let front = Arc::new(Front {
        gateway,
        legacy,
        identity,
        ended: lease::Ended::default(),
        last_seen: union::LastSeen::default(),
        hashing: auth::Hashing::default(),
        answers: range::Answers::default(),
        passages: std::iter::repeat_with(Passage::default)
            .take(shards.count())
            .collect(),
        other_passage: Passage::default(),
        leaving: AtomicU64::new(0),
        calls: metrics::Calls::default(),
    });
    front.show_release();
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
        let served = accepted.and_then(|(stream, address)| {
            let front = front.clone();
            shards.serve(stream, move |stream, shard| {
                connection::run(front, stream, address, shard)
            })
        });
        if let Err(error) = served {
            tracing::warn!(%error, "an etcd connection cannot be accepted");
            #[allow(clippy::disallowed_methods)] // tokio's timer.
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
    tasks.close();
    tasks.wait().await;
    shards.ended().await;
}

/// What the connections of the port share.
struct Front {
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    identity: Identity,
    ended: lease::Ended,
    last_seen: union::LastSeen,
    hashing: auth::Hashing,
    answers: range::Answers,
    /// Connections to the legacy cluster, by the number of the thread that relays over them.
    passages: Vec<Passage>,
    /// That of calls that came over no connection.
    other_passage: Passage,
    /// Connections that have left at the take-over: their pace.
    leaving: AtomicU64,
    calls: metrics::Calls,
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

    /// The machine refuses and leaves out what the shown release does.
    fn show_release(&self) {
        let release = self.identity.release();
        self.gateway.with(|core| core.show_release(release));
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

    fn legacy_etcd(&self) -> Result<&EtcdUpstream, Status> {
        let upstream = self.legacy.etcd_upstream.as_ref();
        upstream.ok_or_else(|| Status::unimplemented("there is no legacy etcd to ask"))
    }

    /// The connection to the legacy cluster.
    fn upstream(&self) -> Result<Channel, Status> {
        self.legacy_etcd().map(EtcdUpstream::channel)
    }

    /// The way to it for calls that pass as they are: on the caller's own thread.
    fn passage_of(&self, caller: &Caller) -> &Passage {
        self.passages
            .get(caller.shard)
            .unwrap_or(&self.other_passage)
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
    caller_in(request.extensions())
}

fn caller_in(extensions: &Extensions) -> Arc<Caller> {
    extensions
        .get::<Arc<Caller>>()
        .cloned()
        .unwrap_or_else(|| Arc::new(Caller::nobody()))
}

/// The same request for the legacy cluster, with the client's metadata (token, hasleader).
fn with_metadata<T>(metadata: &MetadataMap, message: T) -> Request<T> {
    Request::from_parts(relay::passed_on(metadata), Extensions::default(), message)
}

/// The URL that MemberList shows: without one that is configured, the way that the caller came.
fn advertised(front: &Front, caller: &Caller) -> Vec<String> {
    match &front.gateway.config.advertise_etcd {
        Some(urls) => urls.split(',').map(|url| url.trim().to_owned()).collect(),
        None => {
            let scheme = if caller.tls { "https" } else { "http" };
            vec![format!("{scheme}://{}", caller.local)]
        }
    }
}

#[cfg(test)]
mod tests;
