//! The administrator's commands of ZooKeeper 3.9 that tell something and change nothing.
//!
//! Always Causeway's own, before the take-over too: monitoring that looks at this port wants to know how
//! this port does.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_engine::core::Core;
use causeway_engine::watch::WatchCounts;
use causeway_wire::zk::FourLetterWord;

use super::{Front, Peer};

/// What clients that look for a version find: the protocol spoken here is 3.9's.
const VERSION: &str = "3.9.4-causeway";

/// The form that go-zookeeper's pattern asks for.
const BUILT: &str = "01/01/2026 00:00 GMT";

/// What the counters of the machine say.
struct Figures {
    last_zxid: i64,
    nodes: usize,
    ephemerals: usize,
    data_size: u64,
    sessions: usize,
    watches: WatchCounts,
}

/// The text that answers a word.
pub(super) fn answer(front: &Front, word: FourLetterWord, asker: SocketAddr) -> String {
    let figures = front.gateway.with(figures).0;
    match word {
        FourLetterWord::Ruok => "imok".into(),
        FourLetterWord::Isro => "rw".into(),
        FourLetterWord::Srvr => format!("{}{}", version_line(), totals(front, &figures)),
        FourLetterWord::Stat => {
            format!(
                "{}{}\n{}",
                version_line(),
                clients(front, Some(asker), false),
                totals(front, &figures)
            )
        }
        FourLetterWord::Cons => format!(
            "{}\n",
            clients(front, Some(asker), true).trim_start_matches("Clients:\n")
        ),
        FourLetterWord::Mntr => mntr(front, &figures),
        FourLetterWord::Envi => format!(
            "Environment:\nzookeeper.version={VERSION}, built on {BUILT}\nhost.name={}\nos.name={}\nos.arch={}\n",
            std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".into()),
            std::env::consts::OS,
            std::env::consts::ARCH,
        ),
        FourLetterWord::Conf => conf(front),
        FourLetterWord::Wchs => format!(
            "{} connections watching {} paths\nTotal watches:{}\n",
            figures.watches.connections, figures.watches.paths, figures.watches.watches
        ),
        FourLetterWord::Crst
        | FourLetterWord::Dirs
        | FourLetterWord::Dump
        | FourLetterWord::Gtmk
        | FourLetterWord::Hash
        | FourLetterWord::Srst
        | FourLetterWord::Stmk
        | FourLetterWord::Wchc
        | FourLetterWord::Wchp => {
            format!(
                "{} is not executed because it is not in the whitelist.\n",
                word.as_str()
            )
        }
    }
}

fn figures(core: &mut Core) -> Figures {
    Figures {
        last_zxid: core.last_zxid(),
        nodes: core.tree().node_count(),
        ephemerals: core.tree().ephemeral_count(),
        data_size: core.tree().data_size(),
        sessions: core.sessions().len(),
        watches: core.tree_watches().counts(),
    }
}

fn version_line() -> String {
    format!("Zookeeper version: {VERSION}, built on {BUILT}\n")
}

/// ZooKeeper: `StatCommand`, the part that `srvr` shows too. Replies are queued in the same millisecond
/// in which a request is read, so the latencies are those of the machine alone.
fn totals(front: &Front, figures: &Figures) -> String {
    let (received, sent, zxid) = front.traffic.read();
    format!(
        "Latency min/avg/max: 0/0.0/0\nReceived: {received}\nSent: {sent}\nConnections: {}\nOutstanding: 0\n\
         Zxid: 0x{:x}\nMode: standalone\nNode count: {}\n",
        front.peers.len(),
        figures.last_zxid.max(zxid),
        figures.nodes,
    )
}

fn clients(front: &Front, asker: Option<SocketAddr>, whole: bool) -> String {
    let mut peers: Vec<(u64, Arc<Peer>)> = front
        .peers
        .iter()
        .map(|entry| (entry.key().0, entry.value().clone()))
        .collect();
    peers.sort_unstable_by_key(|(conn, _)| *conn);
    let mut out = String::from("Clients:\n");
    for (_, peer) in peers {
        let (received, sent, last_zxid) = peer.traffic.read();
        let _ = write!(
            out,
            " /{}[1](queued=0,recved={received},sent={sent}",
            peer.address
        );
        if whole {
            let _ = write!(
                out,
                ",sid=0x{:x},est={},to={},lzxid=0x{last_zxid:x}",
                peer.session, peer.established_ms, peer.timeout_ms
            );
        }
        out.push_str(")\n");
    }
    if let Some(asker) = asker {
        let _ = writeln!(out, " /{asker}[0](queued=0,recved=1,sent=0)");
    }
    out
}

/// ZooKeeper: `MonitorCommand`; a name, a tab, a value.
fn mntr(front: &Front, figures: &Figures) -> String {
    let (received, sent, _) = front.traffic.read();
    let mut out = String::new();
    let mut row = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "zk_{name}\t{value}");
    };
    row("version", &format_args!("{VERSION}, built on {BUILT}"));
    row("server_state", &"standalone");
    row("min_latency", &0);
    row("avg_latency", &"0.0");
    row("max_latency", &0);
    row("packets_received", &received);
    row("packets_sent", &sent);
    row("num_alive_connections", &front.peers.len());
    row("outstanding_requests", &0);
    row("znode_count", &figures.nodes);
    row("watch_count", &figures.watches.watches);
    row("ephemerals_count", &figures.ephemerals);
    row("approximate_data_size", &figures.data_size);
    row("global_sessions", &figures.sessions);
    row("last_processed_zxid", &figures.last_zxid);
    out
}

fn conf(front: &Front) -> String {
    let config = &front.gateway.config;
    let dir = config
        .data_dir
        .as_ref()
        .map(|d| d.display().to_string())
        .unwrap_or_default();
    format!(
        "clientPort={}\nsecureClientPort=-1\ndataDir={dir}\ndataLogDir={dir}\ntickTime={tick}\nmaxClientCnxns={}\n\
         minSessionTimeout={}\nmaxSessionTimeout={}\nclientPortListenBacklog=-1\nserverId=0\n",
        config.zookeeper_listen.port(),
        config.max_connections_per_address,
        u64::from(config.tick_ms) * 2,
        u64::from(config.tick_ms) * 20,
        tick = config.tick_ms,
    )
}
