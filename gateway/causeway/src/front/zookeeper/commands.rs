//! The commands of ZooKeeper's AdminServer as JSON, for dashboards that ask over HTTP: the figures of the
//! four-letter words under the names of `org.apache.zookeeper.server.admin.Commands`.
//!
//! Only those that tell something: what changes a server has commands of its own here.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};

use super::figures::Board;
use super::four_letter::{self, by_path, ephemerals, peers, watches};
use super::monitor::{self, BUILT, State, VERSION};
use crate::gateway::Gateway;

type Fields = Map<String, Value>;

/// A command: its names, the first of them its own, and what it answers.
type Command = (&'static [&'static str], fn(&Gateway, &Board) -> Fields);

const COMMANDS: &[Command] = &[
    (&["configuration", "conf", "config"], configuration),
    (&["connections", "cons"], connections),
    (&["dirs"], dirs),
    (&["dump"], dump),
    (&["environment", "env", "envi"], environment),
    (&["get_trace_mask", "gtmk"], trace_mask),
    (&["is_read_only", "isro"], read_only),
    (&["monitor", "mntr"], monitor),
    (&["ruok"], nothing),
    (&["server_stats", "srvr"], server_stats),
    (&["stats", "stat"], stats),
    (&["watch_summary", "wchs"], watch_summary),
    (&["watches", "wchc"], watches_by_session),
    (&["watches_by_path", "wchp"], watches_by_path),
];

/// The commands there are, by their own names.
pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS
        .iter()
        .filter_map(|(names, _)| names.first().copied())
}

/// The answer to a command under any of its names; `None` for one that is not there.
pub fn answer(gateway: &Gateway, board: &Board, name: &str) -> Option<Value> {
    let (names, fields) = COMMANDS.iter().find(|(names, _)| names.contains(&name))?;
    let mut answer = fields(gateway, board);
    answer.insert("command".into(), json!(names.first()));
    answer.insert("error".into(), Value::Null);
    Some(Value::Object(answer))
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Fields {
    fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

fn nothing(_: &Gateway, _: &Board) -> Fields {
    Fields::new()
}

fn configuration(gateway: &Gateway, _: &Board) -> Fields {
    let config = &gateway.config;
    let dir = config.data_dir.as_ref().map(|d| d.display().to_string());
    fields([
        ("client_port", json!(config.zookeeper_listen.port())),
        ("data_dir", json!(dir)),
        ("data_log_dir", json!(dir)),
        ("tick_time", json!(config.tick_ms)),
        (
            "max_client_cnxns",
            json!(config.max_connections_per_address),
        ),
        (
            "min_session_timeout",
            json!(config.session_timeout_ms.start()),
        ),
        (
            "max_session_timeout",
            json!(config.session_timeout_ms.end()),
        ),
        ("server_id", json!(0)),
        ("client_port_listen_backlog", json!(-1)),
    ])
}

fn connections(_: &Gateway, board: &Board) -> Fields {
    fields([
        ("connections", connection_list(board)),
        ("secure_connections", json!([])),
    ])
}

/// ZooKeeper: `ServerCnxn.getConnectionInfo`.
fn connection_list(board: &Board) -> Value {
    let all = peers(board).into_iter().map(|peer| {
        let shown = peer.figures.shown();
        json!({
            "remote_socket_address": peer.address.to_string(),
            "interest_ops": 1,
            "outstanding_requests": peer.figures.outstanding(),
            "packets_received": shown.sums.received,
            "packets_sent": shown.sums.sent,
            "session_id": peer.session,
            "last_operation": monitor::short_name(shown.last_op),
            "established": peer.established_ms,
            "session_timeout": peer.timeout_ms,
            "last_cxid": shown.last_cxid,
            "last_zxid": shown.last_zxid,
            "last_response_time": shown.last_response_ms,
            "last_latency": shown.last_latency,
            "min_latency": shown.min_latency,
            "avg_latency": shown.mean_latency(),
            "max_latency": shown.max_latency,
        })
    });
    Value::Array(all.collect())
}

fn dirs(gateway: &Gateway, _: &Board) -> Fields {
    let size = monitor::data_size(gateway.config.data_dir.as_deref());
    fields([("datadir_size", json!(size)), ("logdir_size", json!(size))])
}

fn dump(gateway: &Gateway, _: &Board) -> Fields {
    let mut expiries: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (session, at_ms) in four_letter::expiries(gateway) {
        expiries.entry(at_ms.to_string()).or_default().push(session);
    }
    let owned: BTreeMap<String, Vec<_>> = ephemerals(gateway)
        .into_iter()
        .map(|(session, paths)| (session.to_string(), paths))
        .collect();
    fields([
        ("expiry_time_to_session_ids", json!(expiries)),
        ("session_id_to_ephemeral_paths", json!(owned)),
    ])
}

fn environment(_: &Gateway, _: &Board) -> Fields {
    four_letter::environment()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect()
}

fn trace_mask(_: &Gateway, board: &Board) -> Fields {
    fields([("tracemask", json!(board.trace_mask.load(Relaxed)))])
}

fn read_only(_: &Gateway, _: &Board) -> Fields {
    fields([("read_only", json!(false))])
}

fn monitor(gateway: &Gateway, board: &Board) -> Fields {
    monitor::rows(gateway, board).into_iter().collect()
}

/// ZooKeeper: `ServerStats` and `BufferStats`, by their getters.
fn server_stats(gateway: &Gateway, board: &Board) -> Fields {
    let state = State::of(gateway);
    let sums = board.sums();
    let (min, mean, max) = monitor::latency(board, &sums);
    let [last_size, min_size, max_size] = board.reply_sizes();
    let sizes = json!({
        "last_buffer_size": last_size,
        "min_buffer_size": min_size,
        "max_buffer_size": max_size,
    });
    let data_size = monitor::data_size(gateway.config.data_dir.as_deref());
    fields([
        ("version", json!(format!("{VERSION}, built on {BUILT}"))),
        ("read_only", json!(false)),
        (
            "server_stats",
            json!({
                "packets_sent": sums.sent,
                "packets_received": sums.received,
                "client_response_stats": sizes,
                "auth_failed_count": board.auth_failures.load(Relaxed),
                "outstanding_requests": board.outstanding(),
                "last_processed_zxid": state.last_zxid,
                "data_dir_size": data_size,
                "log_dir_size": data_size,
                "uptime": gateway.now_ms() - board.started_ms,
                "num_alive_client_connections": board.open.load(Relaxed),
                "server_state": "standalone",
                "min_latency": min,
                "avg_latency": mean,
                "max_latency": max,
            }),
        ),
        ("client_response", sizes),
        ("node_count", json!(state.nodes)),
    ])
}

fn stats(gateway: &Gateway, board: &Board) -> Fields {
    let mut all = server_stats(gateway, board);
    all.append(&mut connections(gateway, board));
    all
}

fn watch_summary(gateway: &Gateway, _: &Board) -> Fields {
    let watches = State::of(gateway).watches;
    fields([
        ("num_connections", json!(watches.connections)),
        ("num_paths", json!(watches.paths)),
        ("num_total_watches", json!(watches.watches)),
    ])
}

fn watches_by_session(gateway: &Gateway, board: &Board) -> Fields {
    let all: BTreeMap<String, Vec<_>> = watches(gateway, board)
        .into_iter()
        .map(|(session, paths)| (session.to_string(), paths))
        .collect();
    fields([("session_id_to_watched_paths", json!(all))])
}

fn watches_by_path(gateway: &Gateway, board: &Board) -> Fields {
    let all = by_path(watches(gateway, board));
    fields([("path_to_session_ids", json!(all))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_answered_and_no_other() {
        let gateway = crate::app::in_memory(crate::config::defaults()).expect("starts");
        let board = super::super::board(&gateway.config, gateway.now_ms());
        for (all, _) in COMMANDS {
            for name in *all {
                let answer = answer(&gateway, &board, name).expect("answered");
                assert_eq!(answer["command"], json!(all[0]), "{name}");
                assert!(answer["error"].is_null(), "{name}");
            }
        }
        assert!(names().any(|name| name == "monitor"));
        assert!(answer(&gateway, &board, "restore").is_none());
    }

    #[test]
    fn figures_are_those_of_the_words() {
        let gateway = crate::app::in_memory(crate::config::defaults()).expect("starts");
        let board = super::super::board(&gateway.config, gateway.now_ms());
        let ask = |name| answer(&gateway, &board, name).expect("answered");
        let nodes = &ask("monitor")["znode_count"];
        assert!(nodes.as_u64().is_some_and(|n| n > 0), "{nodes}");
        assert_eq!(&ask("stats")["node_count"], nodes);
        assert_eq!(ask("stats")["connections"], json!([]));
        assert_eq!(ask("watch_summary")["num_total_watches"], json!(0));
        assert_eq!(ask("is_read_only")["read_only"], json!(false));
    }
}
