//! `/zookeeper/config` as clients see it: never the legacy ensemble's own.
//!
//! Curator follows this node and replaces its servers by those listed there (EnsembleTracker), so the
//! ensemble's own list would lead clients past the gateway at their next reconnect. It is empty, which
//! such clients ignore, or names the address that the configuration advertises.

use bytes::Bytes;

use crate::config::Config;

/// The node.
pub(super) const PATH: &str = "/zookeeper/config";

/// Its data.
pub(super) fn data(config: &Config) -> Bytes {
    let Some(advertised) = &config.advertise_zookeeper else { return Bytes::new() };
    let (host, port) = advertised.rsplit_once(':').unwrap_or((advertised.as_str(), "2181"));
    Bytes::from(format!("server.1={host}:2888:3888:participant;{host}:{port}\nversion=1"))
}
