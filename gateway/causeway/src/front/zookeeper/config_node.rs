//! `/zookeeper/config` as clients see it: never the legacy ensemble's own.
//!
//! Curator follows this node and replaces its servers by those listed there (EnsembleTracker), so the
//! ensemble's own list would lead clients past the gateway at their next reconnect. It is empty, which
//! such clients ignore, or names the address that the configuration advertises.

use bytes::Bytes;
use causeway_wire::zk::record::RecordError;
use causeway_wire::zk::{OpCode, Reply, Stat};

use crate::config::Config;

/// The node.
pub(super) const PATH: &str = "/zookeeper/config";

/// Its data.
pub(super) fn data(config: &Config) -> Bytes {
    let Some(advertised) = &config.advertise_zookeeper else {
        return Bytes::new();
    };
    let (host, port) = advertised
        .rsplit_once(':')
        .unwrap_or((advertised.as_str(), "2181"));
    Bytes::from(format!(
        "server.1={host}:2888:3888:participant;{host}:{port}\nversion=1"
    ))
}

/// The number of its bytes, in its Stat.
pub(super) fn resize(config: &Config, stat: &mut Stat) {
    stat.data_length = i32::try_from(data(config).len()).unwrap_or(i32::MAX);
}

/// An answer of the ensemble about its own node, with this data instead.
pub(super) fn replace(config: &Config, op: OpCode, body: Bytes) -> Result<Bytes, RecordError> {
    let mut reply = Reply::decode(op, body)?;
    match &mut reply {
        Reply::Stat(r) => resize(config, &mut r.stat),
        Reply::GetData(r) => {
            r.data = Some(data(config));
            resize(config, &mut r.stat);
        }
        Reply::GetChildren2(r) => resize(config, &mut r.stat),
        _ => {}
    }
    Ok(reply.encode())
}
