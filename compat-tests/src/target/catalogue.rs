//! Every target by name. One entry here is one target.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::etcd::{Etcd, EtcdRelease, GrpcProxy};
use super::fault::Stores;
use super::gateway::{self, Gateway};
use super::node::Place;
use super::site::{Group, Running, Site};
use super::zookeeper::{ZooKeeper, ZooKeeperRelease};
use crate::process::Work;
use crate::protocol::Protocol;
use crate::settings::Settings;

/// One kind of target.
#[derive(Debug)]
pub struct Kind {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Whether it serves ZooKeeper's protocol.
    pub zookeeper: bool,
    /// Whether it serves etcd's.
    pub etcd: bool,
    /// Whether it is a real server, which decides what is right, and not Causeway.
    pub real: bool,
    start: fn(&Work, &Options) -> Result<Site>,
}

/// How a target is started.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Settings of the gateway; the target sets its legacy stores and its phase.
    pub settings: Settings,
    /// Further names that the grpc-endpoints layout claims.
    pub grpc_targets: Vec<String>,
    /// The etcd behind a gateway is Debian's 3.4.
    pub old_etcd: bool,
    /// Its wall clock can be stepped (needs libfaketime).
    pub clock: bool,
    /// Its data lies on a disk that can be filled (needs root).
    pub small_disk: bool,
}

/// Every target there is.
pub fn catalogue() -> &'static [Kind] {
    KINDS
}

/// The target `name`; an error that lists what there is otherwise.
pub fn kind(name: &str) -> Result<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.name == name)
        .with_context(|| {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            format!("no target {name:?}; there are {}", names.join(", "))
        })
}

impl Kind {
    /// Whether it serves the protocol.
    pub fn speaks(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::ZooKeeper => self.zookeeper,
            Protocol::Etcd => self.etcd,
        }
    }
}

/// Starts the target `name` with its files in `work`, and waits until it serves.
pub fn start(work: &Work, name: &str, options: &Options) -> Result<Box<dyn Running>> {
    let kind = kind(name)?;
    let site = (kind.start)(work, options).with_context(|| format!("target {name}"))?;
    Ok(Box::new(site))
}

const REAL: Kind = Kind {
    name: "",
    about: "",
    zookeeper: false,
    etcd: false,
    real: true,
    start: |_, _| unreachable!("a pattern for entries"),
};

const CAUSEWAY: Kind = Kind {
    zookeeper: true,
    etcd: true,
    real: false,
    ..REAL
};

const KINDS: &[Kind] = &[
    Kind {
        name: "zookeeper-3.9",
        about: "a real ZooKeeper 3.9 alone",
        zookeeper: true,
        start: |work, options| zookeeper(work, ZooKeeperRelease::V3_9, 1, options),
        ..REAL
    },
    Kind {
        name: "zookeeper-3.8",
        about: "Debian's ZooKeeper 3.8 alone",
        zookeeper: true,
        start: |work, options| zookeeper(work, ZooKeeperRelease::V3_8, 1, options),
        ..REAL
    },
    Kind {
        name: "zookeeper-3.9-x3",
        about: "an ensemble of three real ZooKeepers 3.9",
        zookeeper: true,
        start: |work, options| zookeeper(work, ZooKeeperRelease::V3_9, 3, options),
        ..REAL
    },
    Kind {
        name: "zookeeper-3.8-x3",
        about: "an ensemble of three of Debian's ZooKeeper 3.8",
        zookeeper: true,
        start: |work, options| zookeeper(work, ZooKeeperRelease::V3_8, 3, options),
        ..REAL
    },
    Kind {
        name: "etcd-3.7",
        about: "a real etcd 3.7 alone",
        etcd: true,
        start: |work, options| etcd(work, EtcdRelease::V3_7, 1, options),
        ..REAL
    },
    Kind {
        name: "etcd-3.4",
        about: "Debian's etcd 3.4 alone",
        etcd: true,
        start: |work, options| etcd(work, EtcdRelease::V3_4, 1, options),
        ..REAL
    },
    Kind {
        name: "etcd-3.7-x3",
        about: "a cluster of three real etcds 3.7",
        etcd: true,
        start: |work, options| etcd(work, EtcdRelease::V3_7, 3, options),
        ..REAL
    },
    Kind {
        name: "etcd-3.4-x3",
        about: "a cluster of three of Debian's etcd 3.4",
        etcd: true,
        start: |work, options| etcd(work, EtcdRelease::V3_4, 3, options),
        ..REAL
    },
    Kind {
        name: "etcd-grpc-proxy",
        about: "etcd's own proxy before a real etcd 3.7",
        etcd: true,
        start: grpc_proxy,
        ..REAL
    },
    Kind {
        name: "causeway-embedded",
        about: "Causeway alone: no legacy store, one registry member",
        start: |work, options| gateway_alone(work, options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-relay",
        about: "Causeway in phase proxy before a real ZooKeeper 3.9 and a real etcd 3.7",
        start: |work, options| gateway_before(work, "proxy", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-mirror",
        about: "the same in phase mirror",
        start: |work, options| gateway_before(work, "mirror", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-merge-legacy",
        about: "the same in phase merge-legacy",
        start: |work, options| gateway_before(work, "merge-legacy", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-merge-new",
        about: "the same in phase merge-new",
        start: |work, options| gateway_before(work, "merge-new", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-new",
        about: "the same in phase new",
        start: |work, options| gateway_before(work, "new", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-drain",
        about: "the same in phase drain",
        start: |work, options| gateway_before(work, "drain", options),
        ..CAUSEWAY
    },
    Kind {
        name: "causeway-done",
        about: "the same in phase done",
        start: |work, options| gateway_before(work, "done", options),
        ..CAUSEWAY
    },
];

fn zookeeper(
    work: &Work,
    release: ZooKeeperRelease,
    size: usize,
    options: &Options,
) -> Result<Site> {
    let members = ZooKeeper::start_ensemble(work, "zookeeper", release, size, options)?;
    let version = format!("ZooKeeper {}", members[0].version()?);
    Ok(Site {
        zookeeper: Some(join(&members, ZooKeeper::address)),
        etcd: None,
        admin: None,
        version,
        front: Group::of(members),
        stores: Vec::new(),
    })
}

fn etcd(work: &Work, release: EtcdRelease, size: usize, options: &Options) -> Result<Site> {
    let members = Etcd::start_cluster(work, "etcd", release, size, options)?;
    let version = format!("etcd {}", members[0].version()?);
    Ok(Site {
        zookeeper: None,
        etcd: Some(join(&members, Etcd::address)),
        admin: None,
        version,
        front: Group::of(members),
        stores: Vec::new(),
    })
}

fn grpc_proxy(work: &Work, options: &Options) -> Result<Site> {
    let release = EtcdRelease::V3_7;
    let members = Etcd::start_cluster(work, "etcd", release, 1, options)?;
    let version = format!("grpc-proxy before etcd {}", members[0].version()?);
    let proxy = GrpcProxy::start(work, "grpc-proxy", release, &members)?;
    Ok(Site {
        zookeeper: None,
        etcd: Some(proxy.address()),
        admin: None,
        version,
        front: Group::one(proxy),
        stores: vec![(Stores::Etcd, Group::of(members))],
    })
}

fn gateway_alone(work: &Work, options: &Options) -> Result<Site> {
    let gateway = gateway_with(work, options, |_| {})?;
    let target = gateway.target();
    Ok(Site {
        zookeeper: Some(target.zookeeper),
        etcd: Some(target.etcd),
        admin: Some(format!("127.0.0.1:{}", gateway.admin_port())),
        version: gateway::version()?,
        front: Group::one(gateway),
        stores: Vec::new(),
    })
}

fn gateway_before(work: &Work, phase: &str, options: &Options) -> Result<Site> {
    // The clock and the disk are the gateway's; its stores have ordinary ones.
    let ordinary = Options::default();
    let zookeeper =
        ZooKeeper::start_ensemble(work, "zookeeper", ZooKeeperRelease::V3_9, 1, &ordinary)?;
    let release = if options.old_etcd {
        EtcdRelease::V3_4
    } else {
        EtcdRelease::V3_7
    };
    let etcd = Etcd::start_cluster(work, "etcd", release, 1, &ordinary)?;
    let gateway = gateway_with(work, options, |settings| {
        settings.legacy_zookeeper = Some(join(&zookeeper, ZooKeeper::address));
        settings.legacy_etcd = Some(join(&etcd, Etcd::url));
        settings.phase = Some(phase.to_string());
    })?;
    let target = gateway.target();
    Ok(Site {
        zookeeper: Some(target.zookeeper),
        etcd: Some(target.etcd),
        admin: Some(format!("127.0.0.1:{}", gateway.admin_port())),
        version: format!(
            "{} in phase {phase} before ZooKeeper {} and etcd {}",
            gateway::version()?,
            zookeeper[0].version()?,
            etcd[0].version()?
        ),
        front: Group::one(gateway),
        stores: vec![
            (Stores::ZooKeeper, Group::of(zookeeper)),
            (Stores::Etcd, Group::of(etcd)),
        ],
    })
}

/// Room enough for what a scenario writes.
const GATEWAY_DISK_MB: u32 = 32;

fn gateway_with(
    work: &Work,
    options: &Options,
    set: impl FnOnce(&mut Settings),
) -> Result<Gateway> {
    let mut settings = options.settings.clone();
    if !options.grpc_targets.is_empty() {
        // The settings claim fixed names by the same layout: a second of its kind needs an id.
        let _ = write!(
            settings.extra,
            "\n[[layout]]\nuse = \"grpc-endpoints\"\nid = \"grpc-endpoints-of-bench\"\ntargets = {:?}\n",
            options.grpc_targets
        );
    }
    set(&mut settings);
    let place = Place::new(work.path("causeway-data"), options, GATEWAY_DISK_MB)?;
    let mut gateway = Gateway::start_in(work, "causeway", &settings, place)?;
    gateway.wait_ready()?;
    Ok(gateway)
}

fn join<T>(members: &[T], address: impl Fn(&T) -> String) -> String {
    members.iter().map(address).collect::<Vec<_>>().join(",")
}
