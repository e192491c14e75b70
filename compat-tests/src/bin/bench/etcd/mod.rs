//! What etcd servers are asked to do, a file for each kind of work.

mod lease;
mod range;
mod relay;
mod watch;

use std::time::Duration;

use anyhow::{Context as _, Result};
use causeway_compat_tests::settings::GRPC_TARGET;
use causeway_compat_tests::target::{EtcdRelease, GrpcProxy};
use causeway_compat_tests::{Etcd, Gateway, Settings, Work};

use crate::Arguments;
use crate::h2::Connection;
use crate::measure::{Rounds, Server};
use crate::protobuf::{Message, bytes, number};
use crate::report::{PROXY, Report};

/// Parts of the bench, as the command line names them.
pub const PARTS: [&str; 5] = [
    "etcd-range",
    "etcd-lease",
    "etcd-keepalive",
    "etcd-watch",
    "etcd-relay",
];

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// Instances of the service that is read.
const INSTANCES: u8 = 100;
/// Bytes of an instance's value.
const VALUE: usize = 200;
/// Clients that read and write, each on a connection of its own.
const CLIENTS: usize = 64;
/// Seconds that leases of the load are granted: longer than any run.
const TTL_S: i64 = 7200;

/// Measures everything that was asked for; gives the releases of etcd and of the servers that took part.
pub async fn run(
    arguments: &Arguments,
    work: &Work,
    rounds: Rounds,
    report: &mut Report,
) -> Result<String> {
    let mut store = Etcd::start_release(work, "etcd", EtcdRelease::V3_7)?;
    let mut proxied = Etcd::start_release(work, "proxied", EtcdRelease::V3_7)?;
    let mut proxy = GrpcProxy::start(
        work,
        "grpc-proxy",
        EtcdRelease::V3_7,
        std::slice::from_ref(&proxied),
    )?;
    let in_memory = Settings {
        in_memory: true,
        ..Settings::default()
    };
    let mut alone = Gateway::start(work, "etcd-alone", &in_memory)?;
    let behind = Etcd::start_release(work, "behind-etcd", EtcdRelease::V3_7)?;
    let mut relayed = Etcd::start_release(work, "relayed", EtcdRelease::V3_7)?;
    let before = |store: &Etcd, phase: &str| Settings {
        legacy_etcd: Some(store.url()),
        phase: Some(phase.to_string()),
        ..Settings::default()
    };
    let mut merge_new = Gateway::start(work, "etcd-merge-new", &before(&behind, "merge-new"))?;
    let mut relay = Gateway::start(work, "etcd-relay", &before(&relayed, "proxy"))?;

    let version = store.version()?;
    let real = server("etcd", vec![store.server().pid()], store.address());
    // What it leaves to its etcd is part of its price.
    let proxy = server(
        PROXY,
        vec![proxy.server().pid(), proxied.server().pid()],
        proxy.address(),
    );
    let alone = server("alone", vec![alone.server().pid()], alone.target().etcd);
    let merge_new = server(
        "merge-new",
        vec![merge_new.server().pid()],
        merge_new.target().etcd,
    );
    let relay = server(
        "relay",
        vec![relay.server().pid(), relayed.server().pid()],
        relay.target().etcd,
    );
    let (all, views) = (
        [&real, &proxy, &alone, &merge_new],
        [&real, &alone, &merge_new],
    );
    for server in [&real, &proxy, &alone, &merge_new, &relay] {
        fill(server).await.with_context(|| server.name)?;
    }
    let operations = arguments.operations;
    if arguments.wants("etcd-range") {
        let figures = range::ranges(&all, rounds, operations / 5).await?;
        report.costs("Range of 100 instances, 64 clients", &figures, Some(0.2));
        report.beside_proxy(
            "Range of 100 instances, 64 clients: CPU",
            &figures,
            |f| f.cpu,
            1.0,
        );
    }
    if arguments.wants("etcd-lease") {
        let both = [&real, &proxy, &alone];
        for (what, prefix, bound) in [
            ("grant and put", "bench/", Some(1.0 / 3.0)),
            ("grant and put of a registration", GRPC_TARGET, None),
        ] {
            let figures = lease::grants(&both, rounds, operations / 20, prefix).await?;
            report.costs(&format!("{what}, 64 clients"), &figures, bound);
        }
    }
    if arguments.wants("etcd-keepalive") {
        let span = Duration::from_secs(4);
        let paced = lease::paced(&views, rounds, span, 4000).await?;
        report.costs("keep-alive, 4,000 in a second", &paced, Some(1.0 / 3.0));
        let closed = lease::closed(&views, rounds, operations / 2).await?;
        report.costs("keep-alive, 64 clients", &closed, None);
        report.at_least(
            "keep-alive, 64 clients: in a second",
            &closed,
            |f| f.rate,
            1.0,
        );
    }
    if arguments.wants("etcd-watch") {
        for (watchers, streams, bound) in [
            (1000, 50, 1.0 / 3.0),
            (5000, 100, 1.0 / 3.0),
            (1000, 1000, 0.6),
        ] {
            let servers: &[&Server] = match streams {
                50 => &all,
                _ => &views,
            };
            let figures = watch::told(servers, rounds, watchers, streams).await?;
            let what = format!("{watchers} watchers on {streams} connections: an event");
            report.costs_and_lasts(&what, &figures, Some(bound), 1.0);
        }
    }
    if arguments.wants("etcd-relay") {
        relay::beside(&real, &proxy, &relay, rounds, operations / 20, report).await?;
    }
    Ok(version)
}

fn server(name: &'static str, pids: Vec<u32>, address: String) -> Server {
    Server {
        name,
        pids,
        address,
    }
}

/// A service with its instances.
async fn fill(server: &Server) -> Result<()> {
    let mut connection = Connection::open(&server.address).await?;
    let lease = grant(&mut connection).await?;
    for n in 0..INSTANCES {
        let (key, value) = instance(&format!("10.20.30.{n}"));
        put(&mut connection, key.as_bytes(), value.as_bytes(), lease).await?;
    }
    Ok(())
}

/// As clients of grpc-go's naming register it.
fn instance(address: &str) -> (String, String) {
    let key = format!("{GRPC_TARGET}/{address}:9000");
    let head = format!("{{\"Op\":0,\"Addr\":\"{address}:9000\",\"Metadata\":{{\"zone\":\"");
    let zone = "z".repeat(VALUE - head.len() - "\"}}".len());
    (key, format!("{head}{zone}\"}}}}"))
}

/// Everything below the service.
fn service() -> Message {
    prefix(&format!("{GRPC_TARGET}/"))
}

/// Key and end of the range of a prefix that ends with a slash: of a RangeRequest and of a WatchCreateRequest.
fn prefix(prefix: &str) -> Message {
    let end = format!("{}0", prefix.trim_end_matches('/'));
    Message::default()
        .bytes(1, prefix.as_bytes())
        .bytes(2, end.as_bytes())
}

async fn grant(connection: &mut Connection) -> Result<i64> {
    let request = Message::default().number(1, TTL_S);
    let reply = connection.call(GRANT, &request.0).await?;
    number(&reply, 2)
}

/// Gives the revision.
async fn put(connection: &mut Connection, key: &[u8], value: &[u8], lease: i64) -> Result<i64> {
    let request = put_request(key, value, lease);
    let reply = connection.call(PUT, &request.0).await?;
    number(bytes(&reply, 1)?, 3)
}

fn put_request(key: &[u8], value: &[u8], lease: i64) -> Message {
    let request = Message::default().bytes(1, key).bytes(2, value);
    match lease {
        0 => request,
        _ => request.number(3, lease),
    }
}

async fn connections(server: &Server, count: usize) -> Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(Connection::open(&server.address).await?);
    }
    Ok(connections)
}
