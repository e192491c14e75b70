//! What clients can be pointed at: a real ZooKeeper, a real etcd, or the gateway.
//!
//! [`catalogue`] lists every kind of target, [`start`] runs one, and a [`Fault`] is what can be done to it.
//! [`ZooKeeper`], [`Etcd`] and [`Gateway`] are the servers by themselves, for tests that put them together.

mod catalogue;
mod clock;
mod disk;
mod etcd;
mod fault;
mod gateway;
mod net;
mod node;
mod site;
mod zookeeper;

use std::time::Duration;

use anyhow::Result;

pub use catalogue::{Kind, Options, catalogue, kind, start};
pub use etcd::{Etcd, EtcdRelease, GrpcProxy};
pub use fault::{Fault, Stores};
pub use gateway::{Gateway, binary, version};
pub use net::{connect, four_letters, http};
pub use site::Running;
pub use zookeeper::{ZOOKEEPER_CLASSPATH, ZooKeeper, ZooKeeperRelease};

use crate::clients::{Etcdctl, Kazoo};
use crate::process::Work;
use crate::settings::Settings;

/// How long a server may take until it serves.
const START: Duration = Duration::from_secs(30);

/// Where clients connect: one address per protocol.
#[derive(Debug, Clone)]
pub struct Target {
    /// `host:port` that answers ZooKeeper's protocol.
    pub zookeeper: String,
    /// `host:port` that answers etcd's.
    pub etcd: String,
}

impl Target {
    /// kazoo against this target.
    pub fn kazoo(&self) -> Kazoo {
        Kazoo::new(&self.zookeeper)
    }

    /// etcdctl against this target.
    pub fn etcdctl(&self) -> Etcdctl {
        Etcdctl::new(&self.etcd)
    }
}

/// The two real stores of a scenario.
#[derive(Debug)]
pub struct Legacy {
    /// The real ZooKeeper.
    pub zookeeper: ZooKeeper,
    /// The real etcd.
    pub etcd: Etcd,
}

impl Legacy {
    /// Starts both.
    pub fn start(work: &Work) -> Result<Legacy> {
        Ok(Legacy {
            zookeeper: ZooKeeper::start(work, "zookeeper")?,
            etcd: Etcd::start(work, "etcd")?,
        })
    }

    /// Both as what clients are pointed at.
    pub fn target(&self) -> Target {
        Target {
            zookeeper: self.zookeeper.address(),
            etcd: self.etcd.address(),
        }
    }

    /// Settings of a gateway in front of both, in `phase`.
    pub fn settings(&self, phase: &str) -> Settings {
        Settings {
            legacy_zookeeper: Some(self.zookeeper.address()),
            legacy_etcd: Some(self.etcd.url()),
            phase: Some(phase.to_string()),
            ..Settings::default()
        }
    }
}
