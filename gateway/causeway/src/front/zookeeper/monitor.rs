//! The figures of the port under ZooKeeper's names, for the words, the admin port's commands and Prometheus.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use causeway_engine::core::Core;
use causeway_engine::watch::WatchCounts;
use causeway_wire::zk::OpCode;
use serde_json::{Value, json};

use super::figures::{Board, Sums};
use crate::gateway::Gateway;

/// What clients that look for a version find: the protocol spoken here is 3.9's.
pub(super) const VERSION: &str = "3.9.4-causeway";

/// The form that go-zookeeper's pattern asks for.
pub(super) const BUILT: &str = "01/01/2026 00:00 GMT";

/// What the counters of the machine say.
pub(super) struct State {
    pub(super) last_zxid: i64,
    pub(super) nodes: usize,
    ephemerals: usize,
    data_size: u64,
    sessions: usize,
    pub(super) watches: WatchCounts,
}

impl State {
    pub(super) fn of(gateway: &Gateway) -> Self {
        let look = |core: &mut Core| State {
            last_zxid: core.last_zxid(),
            // ZooKeeper's table has the root under two names (`DataTree`: "" and "/").
            nodes: core.tree().node_count() + 1,
            ephemerals: core.tree().ephemeral_count(),
            data_size: core.tree().data_size(),
            sessions: core.sessions().len(),
            watches: core.tree_watches().counts(),
        };
        gateway.with(look).0
    }
}

/// Latency of all requests: smallest, mean, largest, in milliseconds.
pub(super) fn latency(board: &Board, sums: &Sums) -> (u64, f64, u64) {
    let count = sums.reads + sums.updates;
    let (reads, updates) = (&board.reads, &board.updates);
    let min = match (sums.reads, sums.updates) {
        (0, _) => updates.min(),
        (_, 0) => reads.min(),
        _ => reads.min().min(updates.min()),
    };
    let mean = mean(sums.reads_ms + sums.updates_ms, count);
    (min, mean, reads.max().max(updates.max()))
}

/// To four places (ZooKeeper: `AvgMinMaxCounter.getAvg`).
fn mean(total: u64, count: u64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    (total as f64 / count as f64 * 10_000.0).round() / 10_000.0
}

/// The rows of `mntr`, without the prefix (ZooKeeper: `MonitorCommand`). What a real server counts of its
/// threads, its heap, its log and its quorum has no counterpart here and no row.
pub(super) fn rows(gateway: &Gateway, board: &Board) -> Vec<(String, Value)> {
    let state = State::of(gateway);
    let sums = board.sums();
    let (min, mean_of_all, max) = latency(board, &sums);
    let [last_size, min_size, max_size] = board.reply_sizes();
    let limits = &board.limits;
    let read = |counter: &AtomicU64| json!(counter.load(Relaxed));
    let mut rows: Vec<(String, Value)> = Vec::new();
    let mut row = |name: &str, value: Value| rows.push((name.to_owned(), value));
    row("version", json!(format!("{VERSION}, built on {BUILT}")));
    row("server_state", json!("standalone"));
    row("ephemerals_count", json!(state.ephemerals));
    row("min_latency", json!(min));
    row("avg_latency", json!(mean_of_all));
    row("max_latency", json!(max));
    row("num_alive_connections", json!(board.open.load(Relaxed)));
    row("outstanding_requests", json!(board.outstanding()));
    row("znode_count", json!(state.nodes));
    row("global_sessions", json!(state.sessions));
    row("local_sessions", json!(0));
    row("last_client_response_size", json!(last_size));
    row("min_client_response_size", json!(min_size));
    row("max_client_response_size", json!(max_size));
    row("packets_sent", json!(sums.sent));
    row("packets_received", json!(sums.received));
    row("watch_count", json!(state.watches.watches));
    row("auth_failed_count", read(&board.auth_failures));
    row("approximate_data_size", json!(state.data_size));
    if let Some((open, limit)) = file_descriptors() {
        row("open_file_descriptor_count", json!(open));
        row("max_file_descriptor_count", json!(limit));
    }
    row("uptime", json!(gateway.now_ms() - board.started_ms));
    row("connection_drop_probability", json!(0.0));
    row("connection_request_count", read(&board.handshakes));
    row("connection_revalidate_count", read(&board.revalidations));
    row(
        "connection_rejected",
        json!(
            limits.connections.hits_since_reset()
                + limits.connections_per_address.hits_since_reset()
        ),
    );
    row("connection_drop_count", read(&board.ended));
    row("sessionless_connections_expired", read(&board.silent));
    row(
        "request_throttle_wait_count",
        json!(
            limits.requests_per_connection.hits_since_reset()
                + limits.outstanding_requests.hits_since_reset()
        ),
    );
    row("bytes_received_count", json!(sums.bytes_in));
    row("response_bytes", json!(sums.bytes_out));
    for (name, extremes, count, total) in [
        ("readlatency", &board.reads, sums.reads, sums.reads_ms),
        (
            "updatelatency",
            &board.updates,
            sums.updates,
            sums.updates_ms,
        ),
    ] {
        row(&format!("avg_{name}"), json!(mean(total, count)));
        row(&format!("min_{name}"), json!(extremes.min()));
        row(&format!("max_{name}"), json!(extremes.max()));
        row(&format!("cnt_{name}"), json!(count));
        row(&format!("sum_{name}"), json!(total));
    }
    rows
}

impl Board {
    /// Appends the figures of the port for Prometheus.
    pub fn metrics(&self, out: &mut String) {
        let sums = self.sums();
        let gauges = [
            (
                "connections",
                "Connections of the ZooKeeper port.",
                self.open.load(Relaxed) as u64,
            ),
            (
                "outstanding_requests",
                "Requests of the ZooKeeper port without a reply.",
                self.outstanding(),
            ),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(
                out,
                "# HELP causeway_zookeeper_{name} {help}\n# TYPE causeway_zookeeper_{name} gauge\ncauseway_zookeeper_{name} {value}"
            );
        }
        let _ = writeln!(
            out,
            "# HELP causeway_zookeeper_packets Packets since the start or the last srst.\n\
             # TYPE causeway_zookeeper_packets gauge\n\
             causeway_zookeeper_packets{{direction=\"in\"}} {}\n\
             causeway_zookeeper_packets{{direction=\"out\"}} {}",
            sums.received, sums.sent
        );
        let _ = writeln!(
            out,
            "# HELP causeway_zookeeper_limit_total How often a limit of the ZooKeeper port was met, by its setting.\n\
             # TYPE causeway_zookeeper_limit_total counter"
        );
        for limit in self.limits.all() {
            let _ = writeln!(
                out,
                "causeway_zookeeper_limit_total{{setting=\"{}\"}} {}",
                limit.setting,
                limit.hits()
            );
        }
    }
}

/// The name of an operation in the figures of a connection (ZooKeeper: `FinalRequestProcessor`, `lastOp`).
pub(super) fn short_name(op: i32) -> &'static str {
    use OpCode::*;
    match OpCode::try_from(op) {
        Ok(Create | Create2 | CreateContainer | CreateTtl) => "CREA",
        Ok(Delete | DeleteContainer) => "DELE",
        Ok(Exists) => "EXIS",
        Ok(GetData) => "GETD",
        Ok(SetData) => "SETD",
        Ok(GetAcl) => "GETA",
        Ok(SetAcl) => "SETA",
        Ok(GetChildren | GetChildren2) => "GETC",
        Ok(Sync) => "SYNC",
        Ok(Ping) => "PING",
        Ok(Check) => "CHEC",
        Ok(Multi) => "MULT",
        Ok(MultiRead) => "MLTR",
        Ok(Reconfig) => "RECO",
        Ok(CheckWatches) => "CHKW",
        Ok(RemoveWatches) => "REMW",
        Ok(SetWatches) => "SETW",
        Ok(SetWatches2) => "STW2",
        Ok(GetEphemerals) => "GETE",
        Ok(GetAllChildrenNumber) => "GETACN",
        Ok(AddWatch) => "ADDW",
        Ok(WhoAmI) => "HOMI",
        Ok(CreateSession) => "SESS",
        Ok(CloseSession) => "CLOS",
        Ok(Auth | Sasl | Notification | Error) | Err(_) => "NA",
    }
}

/// Bytes of the files in the data folder; 0 without one.
pub(super) fn data_size(dir: Option<&Path>) -> u64 {
    let Some(entries) = dir.and_then(|dir| std::fs::read_dir(dir).ok()) else {
        return 0;
    };
    let sizes = entries.filter_map(|entry| entry.ok()?.metadata().ok());
    sizes.filter(|m| m.is_file()).map(|m| m.len()).sum()
}

/// How many files the process has open, and how many it may have.
fn file_descriptors() -> Option<(usize, u64)> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|l| l.starts_with("Max open files"))?;
    let most = line.split_whitespace().nth(4)?.parse().ok()?;
    Some((open, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_cut_to_four_places() {
        assert_eq!(mean(0, 0), 0.0);
        assert_eq!(mean(1, 3), 0.3333);
        assert_eq!(mean(2, 3), 0.6667);
        assert_eq!(json!(mean(9, 3)).to_string(), "3.0", "as Java writes it");
    }
}
