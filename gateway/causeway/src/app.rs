//! The whole flow put together; start reading here.
//!
//! client bytes -> `front/*` (wire to operation) -> `gateway` (the machine of `causeway-engine`: route,
//! view, merge, protection, watches) -> `front/*` -> client bytes; beside it `legacy` feeds the machine
//! from the old stores and `converge` brings the old stores to what the machine wants there.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use causeway_engine::core::{Command, Core, Settings, Store};
use tokio::net::TcpListener;

use crate::config::Config;
use crate::gateway::{Clock, Gateway};
use crate::journal::{Journal, Recovered};
use crate::legacy::Legacy;
use crate::{admin, front, native};

/// This member's id. A lone gateway is member 1.
const MEMBER: u16 = 1;

/// How long a stopping gateway waits for what is under way.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a gateway until it is told to stop.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let zookeeper = bind("zookeeper", config.zookeeper_listen).await?;
    let zookeeper_secure = match config.zookeeper_secure_listen {
        Some(addr) => Some(bind("zookeeper-secure", addr).await?),
        None => None,
    };
    let etcd = bind("etcd", config.etcd_listen).await?;
    let admin_port = bind("admin", config.admin_listen).await?;
    let native_grpc = match config.native_grpc_listen {
        Some(addr) => Some(bind("native-grpc", addr).await?),
        None => None,
    };
    let dns = match config.dns_listen {
        Some(addr) => {
            let bound = causeway_registry_node::dns::bind(addr).await;
            Some(bound.with_context(|| {
                format!("cannot listen on {addr} for DNS by UDP and TCP (is the port in use? set --dns-listen)")
            })?)
        }
        None => None,
    };

    let bound = Bound {
        dns: match &dns {
            Some((_, tcp)) => Some(tcp.local_addr()?),
            None => None,
        },
        native_grpc: match &native_grpc {
            Some(port) => Some(port.local_addr()?),
            None => None,
        },
        zookeeper: zookeeper.local_addr()?,
        zookeeper_secure: match &zookeeper_secure {
            Some(port) => Some(port.local_addr()?),
            None => None,
        },
        etcd: etcd.local_addr()?,
        admin: admin_port.local_addr()?,
    };

    let clock = Clock::start();
    let (journal, recovered) = match &config.data_dir {
        Some(dir) => Journal::open(dir)?,
        None => (Journal::in_memory(), Recovered::default()),
    };
    let core = start_core(&config, recovered, clock.now_ms())?;
    let key = session_key(config.data_dir.as_deref())?;
    let gateway = Gateway::new(config, core, clock, journal, key);
    let incarnation = u64::try_from(gateway.now_ms()).unwrap_or(1);
    gateway.apply(Command::Started { incarnation });
    // The log before this start was written under the settings of then; nothing replays it again.
    gateway.snapshot();

    let legacy = Legacy::start(&gateway)?;
    let tasks = tokio_util::task::TaskTracker::new();
    tasks.spawn(gateway.clone().run_timers());
    let board = front::zookeeper::board(&gateway.config, gateway.now_ms());
    tasks.spawn(front::zookeeper::serve(
        gateway.clone(),
        legacy.clone(),
        board.clone(),
        zookeeper,
        zookeeper_secure,
    ));
    tasks.spawn(front::etcd::serve(gateway.clone(), legacy.clone(), etcd));
    let native = native::api(&gateway);
    if let Some(port) = native_grpc {
        let grpc = causeway_registry_node::Grpc::new(native.clone());
        tasks.spawn(grpc.serve(port, gateway.stopping()));
    }
    if let Some((udp, tcp)) = dns {
        let dns = native::dns(&gateway)?;
        tasks.spawn(dns.serve(udp, tcp, gateway.stopping()));
    }
    tasks.spawn(admin::serve(
        gateway.clone(),
        legacy.clone(),
        board,
        native,
        admin_port,
    ));
    tasks.close();
    announce(&gateway, &bound)?;

    stop_signal().await?;
    tracing::info!("stopping: connections are closed, sessions and leases live on");
    gateway.stop();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!("some connections did not end in time and are dropped");
    }
    gateway.snapshot();
    let last = gateway.with(|_| ()).1;
    if let Err(error) = gateway.durable(last).await {
        bail!("the last changes are not on disk: {error}");
    }
    Ok(())
}

/// A gateway that keeps everything in memory, without its ports.
#[cfg(test)]
pub fn in_memory(config: Config) -> anyhow::Result<std::sync::Arc<Gateway>> {
    let clock = Clock::start();
    let core = start_core(&config, Recovered::default(), clock.now_ms())?;
    let gateway = Gateway::new(
        config,
        core,
        clock,
        Journal::in_memory(),
        session_key(None)?,
    );
    gateway.apply(Command::Started { incarnation: 1 });
    Ok(gateway)
}

async fn bind(name: &str, addr: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(addr).await.with_context(|| {
        format!("cannot listen on {addr} for {name} (is the port in use? set --{name}-listen)")
    })?;
    Ok(listener)
}

/// Where the ports are.
struct Bound {
    zookeeper: SocketAddr,
    zookeeper_secure: Option<SocketAddr>,
    etcd: SocketAddr,
    admin: SocketAddr,
    native_grpc: Option<SocketAddr>,
    dns: Option<SocketAddr>,
}

/// Says where the gateway listens: in the log, and in the file that was asked for.
fn announce(gateway: &Gateway, bound: &Bound) -> anyhow::Result<()> {
    let phase = gateway.with(|core| core.phase().phase()).0;
    let Bound {
        zookeeper,
        etcd,
        admin,
        ..
    } = bound;
    tracing::info!(%zookeeper, %etcd, %admin, %phase, "serving");
    if let Some(zookeeper) = bound.zookeeper_secure {
        tracing::info!(%zookeeper, "serving ZooKeeper over TLS");
    }
    if let Some(grpc) = bound.native_grpc {
        tracing::info!(%grpc, "serving the native gRPC API");
    }
    if let Some(dns) = bound.dns {
        tracing::info!(%dns, zone = gateway.config.dns.zone, "serving DNS");
    }
    if let Some(path) = &gateway.config.ports_file {
        let mut text = serde_json::json!({
            "zookeeper": zookeeper.port(),
            "etcd": etcd.port(),
            "admin": admin.port(),
        });
        if let Some(secure) = bound.zookeeper_secure {
            text["zookeeper_secure"] = secure.port().into();
        }
        if let Some(grpc) = bound.native_grpc {
            text["native_grpc"] = grpc.port().into();
        }
        if let Some(dns) = bound.dns {
            text["dns"] = dns.port().into();
        }
        // Readers wait for the file to appear: it appears whole.
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, text.to_string())
            .and_then(|()| std::fs::rename(&fresh, path))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A fresh machine, or the one of the data folder.
fn start_core(config: &Config, recovered: Recovered, now_ms: i64) -> anyhow::Result<Core> {
    let settings = settings(config);
    let Recovered { snapshot, entries } = recovered;
    let mut core = match snapshot {
        Some(state) => Core::restore(settings, &state)?,
        None => {
            // The first entry's time made the first numbers.
            let began = entries.first().map_or(Ok(now_ms), |e| {
                postcard::from_bytes(e).map(|(at, _): (i64, Command)| at)
            })?;
            Core::new(settings, MEMBER, began)
        }
    };
    for (at, entry) in entries.iter().enumerate() {
        let (at_ms, command): (i64, Command) = postcard::from_bytes(entry).with_context(|| {
            format!(
                "entry {at} of the log in --data-dir cannot be read (written by another version?)"
            )
        })?;
        core.apply(&command, at_ms);
    }
    if !entries.is_empty() {
        tracing::info!(entries = entries.len(), "replayed the log");
    }
    Ok(core)
}

fn settings(config: &Config) -> Settings {
    let store = |legacy: bool| {
        if legacy {
            Store::Legacy
        } else {
            Store::Embedded
        }
    };
    Settings {
        zookeeper: store(config.legacy_zookeeper.is_some()),
        etcd: store(config.legacy_etcd.is_some()),
        layouts: config.layouts.clone(),
        bridges: config.bridges.clone(),
        protection: config.protection.clone(),
        phase: config.phase,
        gate_time_ms: millis(config.gate_time),
        tolerated_difference_ms: millis(config.tolerated_difference),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The key under which session passwords are hashed: kept in the data folder, so that a restart takes
/// its sessions back; of this process alone without one.
fn session_key(dir: Option<&Path>) -> anyhow::Result<[u8; 32]> {
    use rand::RngCore;
    let mut key = [0; 32];
    let Some(dir) = dir else {
        rand::rng().fill_bytes(&mut key);
        return Ok(key);
    };
    let path = dir.join("session.key");
    match std::fs::read(&path) {
        Ok(bytes) => {
            key = bytes
                .try_into()
                .ok()
                .with_context(|| format!("{} is not a key of 32 bytes", path.display()))?;
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            rand::rng().fill_bytes(&mut key);
            write_private(&path, &key)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Err(e) => bail!("cannot read {}: {e}", path.display()),
    }
    Ok(key)
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    // It appears whole or not at all.
    let fresh = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)
}

async fn stop_signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
