//! The four-letter words beside a real 3.9's: the same lines and keys in the same shape, numbers apart.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::zookeeper::{
    Client, ConnectRequest, Greeting, Request, op, open_acl,
};
use causeway_compat_tests::target::{self, Options, four_letters, http};
use causeway_compat_tests::{Gateway, Settings, Work};

/// Answers every word.
const ALL_WORDS: &str = "[zookeeper]\nfour_letter_words = \"*\"\n";

/// Rows of a real server's `mntr` that have no counterpart here: a beginning that ends in `*`, or a whole name.
/// Latencies of its stages are told by `avg_`, `p50_` and so on in front; only the name behind counts.
const NO_COUNTERPART: &[&str] = &[
    // Its threads and their queues.
    "close_session_prep_time",
    "commit_*",
    "concurrent_request_processing_in_commit_processor",
    "local_write_committed_time_ms",
    "om_*",
    "outstanding_changes_*",
    "pending_session_queue_size",
    "prep_process*",
    "read_commit*",
    "read_final_proc_time_ms",
    "reads_*",
    "request_commit_queued",
    "request_throttle_queue_time_ms",
    "requests_*",
    "server_write_committed_time_ms",
    "session_queues_drained",
    "sync_process*",
    "throttled_ops",
    "time_waiting_empty_pool_in_commit_processor_read_ms",
    "write_*",
    "stale_*",
    "large_requests_rejected",
    "unrecoverable_error_count",
    // Its quorum.
    "connection_token_deficit",
    "diff_count",
    "election_time",
    "ensemble_auth_*",
    "follower_sync_time",
    "inflight_*",
    "leader_unavailable_time",
    "learner_*",
    "looking_count",
    "observer_sync_time",
    "propagation_latency",
    "proposal_*",
    "quit_leading_due_to_disloyal_voter",
    "quorum_ack_latency",
    "revalidate_count",
    "skip_learner_request_to_next_processor_count",
    "unavailable_time",
    // Its log, its snapshots and its tree's digest.
    "dbinittime",
    "digest_mismatches_count",
    "fsynctime",
    "restore_*",
    "snap_count",
    "snapshot*",
    "startup_*",
    // Its heap and its caches.
    "jvm_pause_time_ms",
    "netty_queued_buffer_capacity",
    "response_packet_*",
    // Its table of watches, and how many an event finds.
    "add_dead_watcher_stall_time",
    "dead_watchers_*",
    "node_changed_watch_count",
    "node_children_watch_count",
    "node_created_watch_count",
    "node_deleted_watch_count",
    "watch_bytes",
    // TLS and its admin server.
    "insecure_admin_count",
    "non_mtls_*",
    "outstanding_tls_handshake",
    "tls_handshake_exceeded",
    "unsuccessful_handshake",
    // Others.
    "words_read_per_namespace",
    "words_write_per_namespace",
    "cnxn_closed_without_zk_server_running",
    "socket_closing_time",
    // Latencies as quantiles.
    "p*_readlatency",
    "p*_updatelatency",
];

/// The clients that the words tell of: each with its session.
struct Clients {
    _all: Vec<Client>,
    sessions: Vec<i64>,
}

impl Clients {
    fn new(address: &str) -> Result<Clients> {
        let mut all = Vec::new();
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let request = ConnectRequest::new(Duration::from_secs(30));
            match Client::connect(address, &request, STEP)? {
                Greeting::Answered(client, response) => {
                    all.push(client);
                    sessions.push(response.session_id);
                }
                Greeting::Closed => bail!("no session"),
            }
        }
        let create = |path: &str, flags| Request::Create {
            op: op::CREATE,
            path: path.to_string(),
            data: Some(vec![b'x'; 10]),
            acl: Some(open_acl()),
            flags,
            ttl: None,
        };
        let read = |op, path: &str| Request::Read {
            op,
            path: path.to_string(),
            watch: true,
        };
        let steps = [
            (0, create("/words", 0)),
            (0, create("/words/one", 1)),
            (0, create("/words/two", 1)),
            (0, read(op::GET_DATA, "/words")),
            (0, read(op::GET_CHILDREN, "/words")),
            (0, read(op::EXISTS, "/missing")),
            (1, create("/words/three", 1)),
            (1, read(op::GET_DATA, "/words")),
            (
                1,
                Request::AddWatch {
                    path: "/words/two".to_string(),
                    mode: 1,
                },
            ),
        ];
        for (who, request) in steps {
            all[who].call(&request, STEP)?;
        }
        Ok(Clients {
            _all: all,
            sessions,
        })
    }

    /// The sessions by a name that is the same everywhere.
    fn named(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (at, session) in self.sessions.iter().enumerate() {
            text = text.replace(&format!("0x{session:x}"), &format!("<session {at}>"));
        }
        text
    }
}

#[test]
fn words_have_the_shape_of_a_real_3_9() {
    Work::scenario("words", |work| {
        let real = target::start(work, "zookeeper-3.9", &Options::default())?;
        let settings = Settings {
            extra: ALL_WORDS.to_string(),
            ..Settings::default()
        };
        let gateway = Gateway::start(work, "gateway", &settings)?;
        let addresses = [
            real.one_address(Protocol::ZooKeeper)?,
            gateway.target().zookeeper,
        ];
        let [real_clients, own_clients] =
            [Clients::new(&addresses[0])?, Clients::new(&addresses[1])?];
        let ports = [port(&addresses[0])?, port(&addresses[1])?];
        let ask = |word: &str| -> Result<[String; 2]> {
            Ok([
                real_clients.named(&four_letters(ports[0], word)?),
                own_clients.named(&four_letters(ports[1], word)?),
            ])
        };
        let same = |word: &str, of: &dyn Fn(&str) -> Vec<String>| -> Result<()> {
            let [real, own] = ask(word)?;
            let [wanted, got] = [of(&real), of(&own)];
            ensure!(
                wanted == got,
                "{word}: a real server says\n{real}\nthe gateway\n{own}\ncompared:\n{wanted:#?}\n{got:#?}"
            );
            Ok(())
        };
        let exact = |text: &str| vec![text.to_string()];
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
            lines.sort();
            lines
        };
        let shapes = |text: &str| text.lines().map(shape).collect::<Vec<_>>();
        let kinds_of_lines = |text: &str| {
            let all: BTreeSet<String> = text.lines().map(shape).collect();
            all.into_iter().collect::<Vec<_>>()
        };
        let keys = |text: &str| {
            let key = |line: &str| line.split('=').next().unwrap_or_default().to_string();
            text.lines()
                .map(key)
                .filter(|key| !key.starts_with("java."))
                .collect::<Vec<_>>()
        };
        // The first line has version and date, which are each server's own.
        let without_version = |text: &str| text.lines().skip(1).map(shape).collect::<Vec<_>>();

        for word in [
            "ruok",
            "isro",
            "gtmk",
            "hash",
            "wchs",
            "zzzz",
            "stmk\0\0\0\0\0\0\u{1}\0",
            "gtmk",
        ] {
            same(word, &exact)?;
        }
        for word in ["wchc", "wchp"] {
            same(word, &sorted)?;
        }
        for word in ["dump", "cons"] {
            same(word, &kinds_of_lines)?;
        }
        for word in ["srvr", "stat"] {
            same(word, &without_version)?;
            for text in ask(word)? {
                ensure!(
                    text.starts_with("Zookeeper version: 3.9.") && text.contains(", built on "),
                    "{text}"
                );
            }
        }
        same("dirs", &shapes)?;
        same("conf", &keys)?;
        same("envi", &keys)?;
        monitor(ask("mntr")?)?;
        over_http(gateway.admin_port(), &ask("mntr")?[1])?;
        for word in ["crst", "srst"] {
            same(word, &exact)?;
        }
        // After the resets: no operation, nothing received but the word itself.
        same("cons", &kinds_of_lines)?;
        same("srvr", &|text| {
            let counted = ["Latency", "Received", "Sent", "Connections", "Outstanding"];
            text.lines()
                .filter(|line| counted.iter().any(|name| line.starts_with(name)))
                .map(str::to_string)
                .collect()
        })
    });
}

/// Rows are those of a real server, of the same kind, and what both count of the same clients is the same.
fn monitor([real, own]: [String; 2]) -> Result<()> {
    let rows = |text: &str| -> Vec<(String, String)> {
        let pair = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            Some((name.strip_prefix("zk_")?.to_string(), value.to_string()))
        };
        text.lines().filter_map(pair).collect()
    };
    let (real, own) = (rows(&real), rows(&own));
    let find = |rows: &[(String, String)], name: &str| {
        let row = rows.iter().find(|(row, _)| row == name);
        row.map(|(_, value)| value.clone())
    };
    for (name, value) in &own {
        let theirs =
            find(&real, name).with_context(|| format!("{name} is no row of a real server"))?;
        if name != "version" {
            ensure!(
                shape(value) == shape(&theirs),
                "{name}: {value} here, {theirs} there"
            );
        }
    }
    let mut used = BTreeSet::new();
    for (name, _) in real.iter().filter(|(name, _)| find(&own, name).is_none()) {
        let pattern = NO_COUNTERPART
            .iter()
            .find(|pattern| matches(pattern, name))
            .with_context(|| format!("mntr lacks {name}"))?;
        used.insert(pattern);
    }
    for pattern in NO_COUNTERPART {
        ensure!(used.contains(pattern), "no real server has {pattern}");
    }
    for name in [
        "ephemerals_count",
        "global_sessions",
        "num_alive_connections",
        "outstanding_requests",
        "server_state",
        "watch_count",
        "znode_count",
    ] {
        let [there, here] = [find(&real, name), find(&own, name)];
        ensure!(there == here, "{name}: {here:?} here, {there:?} there");
    }
    Ok(())
}

/// The admin port has the same rows as JSON, under the names of ZooKeeper's AdminServer.
fn over_http(port: u16, mntr: &str) -> Result<()> {
    let get = |name: &str| -> Result<serde_json::Value> {
        let (status, body) = http(port, "GET", &format!("/commands/{name}"), "")?;
        ensure!(status == 200, "{name}: {status} {body}");
        Ok(serde_json::from_str(&body)?)
    };
    let monitor = get("monitor")?;
    for line in mntr.lines() {
        let name = line.split('\t').next().unwrap_or_default();
        let name = name.trim_start_matches("zk_");
        ensure!(!monitor[name].is_null(), "{name} is missing: {monitor}");
    }
    let stats = get("stat")?;
    let listed = stats["connections"].as_array().map(Vec::len);
    ensure!(
        stats["command"] == "stats" && listed == Some(2) && stats["node_count"].is_u64(),
        "{stats}"
    );
    let watches = get("watches_by_path")?;
    let watched = watches["path_to_session_ids"]["/words"].as_array();
    ensure!(watched.map(Vec::len) == Some(2), "{watches}");
    let (status, _) = http(port, "GET", "/commands/restore", "")?;
    ensure!(
        status == 404,
        "what changes a server is not there: {status}"
    );
    let (_, list) = http(port, "GET", "/commands", "")?;
    ensure!(list.contains("/commands/monitor"), "{list}");
    Ok(())
}

fn matches(pattern: &str, name: &str) -> bool {
    let behind = ["avg_", "min_", "max_", "cnt_", "sum_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    let quantile = ["p50_", "p95_", "p99_", "p999_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    if let Some(of) = pattern.strip_prefix("p*_") {
        return quantile == Some(of);
    }
    let fits = |name: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    [Some(name), behind, quantile]
        .into_iter()
        .flatten()
        .any(fits)
}

/// A line with its numbers and names of days and months replaced by what they are.
fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let digits = |text: &str, hex: bool| {
            let is_digit = |c: char| {
                if hex {
                    c.is_ascii_hexdigit()
                } else {
                    c.is_ascii_digit()
                }
            };
            text.find(|c| !is_digit(c)).unwrap_or(text.len())
        };
        if let Some(hex) = rest.strip_prefix("0x") {
            rest = &hex[digits(hex, true)..];
            out.push('X');
        } else if first.is_ascii_digit() {
            rest = &rest[digits(rest, false)..];
            out.push('N');
        } else {
            rest = &rest[first.len_utf8()..];
            out.push(first);
        }
    }
    let names = [
        "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun",
        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    for name in names {
        out = out.replace(&format!(" {name} "), " NAME ");
    }
    out
}

#[test]
fn words_that_list_or_change_have_to_be_asked_for() {
    Work::scenario("words-default", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let port = port(&gateway.target().zookeeper)?;
        for word in ["crst", "dump", "srst", "stmk", "wchc", "wchp"] {
            let answer = four_letters(port, word)?;
            let wanted = format!("{word} is not executed because it is not in the whitelist.\n");
            ensure!(answer == wanted, "{word}: {answer:?}");
        }
        for word in [
            "conf", "cons", "dirs", "envi", "isro", "mntr", "ruok", "srvr", "stat", "wchs",
        ] {
            let answer = four_letters(port, word)?;
            ensure!(
                !answer.is_empty() && !answer.contains("whitelist"),
                "{word}: {answer:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn words_are_the_gateways_own_before_the_take_over_too() {
    Work::scenario("words-relay", |work| {
        let options = Options {
            settings: Settings {
                extra: ALL_WORDS.to_string(),
                ..Settings::default()
            },
            ..Options::default()
        };
        let relay = target::start(work, "causeway-relay", &options)?;
        let address = relay.one_address(Protocol::ZooKeeper)?;
        let clients = Clients::new(&address)?;
        let port = port(&address)?;
        let cons = clients.named(&four_letters(port, "cons")?);
        // The first one's watch on the children fired once.
        for (session, recved, sent) in [(0, 7, 8), (1, 4, 4)] {
            let line = cons
                .lines()
                .find(|line| line.contains(&format!("sid=<session {session}>")))
                .with_context(|| format!("cons lacks session {session}: {cons}"))?;
            for part in [format!("recved={recved},sent={sent},"), "queued=0,".into()] {
                ensure!(line.contains(&part), "{part} is missing from {line}");
            }
        }
        let mntr = four_letters(port, "mntr")?;
        for row in [
            "zk_global_sessions\t2",
            "zk_num_alive_connections\t3",
            "zk_outstanding_requests\t0",
        ] {
            ensure!(mntr.lines().any(|line| line == row), "{row:?}: {mntr}");
        }
        Ok(())
    });
}

fn port(address: &str) -> Result<u16> {
    let (_, port) = address.rsplit_once(':').context("no port")?;
    Ok(port.parse()?)
}
