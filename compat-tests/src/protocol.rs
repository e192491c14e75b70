//! The two protocols that everything here speaks, by one name in files, results and on the command line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result};

/// The protocol that a scenario, a client or a target speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Protocol {
    /// ZooKeeper's.
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// etcd's, version 3.
    Etcd,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Protocol::ZooKeeper, Protocol::Etcd];

    /// The name of its folder, and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::ZooKeeper => "zookeeper",
            Protocol::Etcd => "etcd",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(name: &str) -> Result<Protocol> {
        Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.name() == name)
            .with_context(|| format!("no protocol is named {name}"))
    }
}
