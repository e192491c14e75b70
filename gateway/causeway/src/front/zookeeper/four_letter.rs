//! The administrator's commands of ZooKeeper 3.9, in its own words.
//!
//! Always Causeway's own, before the take-over too: monitoring that looks at this port wants to know how
//! this port does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use causeway_engine::core::Core;
use causeway_registry::LeaseId;
use causeway_wire::zk::FourLetterWord;
use serde_json::Value;

use super::Front;
use super::figures::{Board, Peer};
use super::monitor::{self, BUILT, State, VERSION};
use super::socket::Incoming;
use crate::config::Config;
use crate::gateway::Gateway;

/// How long a connection without a session stays (ZooKeeper: `NIOServerCnxnFactory`), for `dump`.
const SESSIONLESS_MS: i64 = 10_000;

/// The text that answers a word; `None` closes without one.
pub(super) async fn answer(
    front: &Front,
    word: FourLetterWord,
    asker: SocketAddr,
    incoming: &mut Incoming,
) -> Option<String> {
    let (gateway, board) = (&*front.gateway, &*front.board);
    if !gateway.config.four_letter_words.contains(&word) {
        let word = word.as_str();
        return Some(format!(
            "{word} is not executed because it is not in the whitelist.\n"
        ));
    }
    Some(match word {
        FourLetterWord::Ruok => "imok".into(),
        FourLetterWord::Isro => "rw".into(),
        FourLetterWord::Srvr => format!("{}{}", version_line(), totals(gateway, board)),
        FourLetterWord::Stat => {
            let clients = connections(board, asker, true);
            let totals = totals(gateway, board);
            format!("{}Clients:\n{clients}\n{totals}", version_line())
        }
        FourLetterWord::Cons => format!("{}\n", connections(board, asker, false)),
        FourLetterWord::Mntr => mntr(gateway, board),
        FourLetterWord::Envi => {
            let mut text = String::from("Environment:\n");
            for (name, value) in environment() {
                let _ = writeln!(text, "{name}={value}");
            }
            text
        }
        FourLetterWord::Conf => conf(&gateway.config),
        FourLetterWord::Dirs => {
            let size = monitor::data_size(gateway.config.data_dir.as_deref());
            format!("datadir_size: {size}\nlogdir_size: {size}\n")
        }
        FourLetterWord::Dump => dump(gateway, board, asker),
        FourLetterWord::Gtmk => board.trace_mask.load(Relaxed).to_string(),
        FourLetterWord::Stmk => {
            let mask = incoming.number().await?;
            board.trace_mask.store(mask, Relaxed);
            mask.to_string()
        }
        // A real server has digests of its tree to show once it has run for a while; there are none here.
        FourLetterWord::Hash => String::new(),
        FourLetterWord::Srst => {
            board.reset();
            "Server stats reset.\n".into()
        }
        FourLetterWord::Crst => {
            for peer in &board.peers {
                peer.figures.reset();
            }
            "Connection stats reset.\n".into()
        }
        FourLetterWord::Wchs => {
            let watches = State::of(gateway).watches;
            format!(
                "{} connections watching {} paths\nTotal watches:{}\n",
                watches.connections, watches.paths, watches.watches
            )
        }
        FourLetterWord::Wchc => {
            let listed = watches(gateway, board).into_iter();
            let lines = listed.map(|(session, paths)| tabbed(&hex(session), paths.iter()));
            format!("{}\n", lines.collect::<String>())
        }
        FourLetterWord::Wchp => {
            let lines = by_path(watches(gateway, board))
                .into_iter()
                .map(|(path, sessions)| tabbed(&path, sessions.into_iter().map(hex)));
            format!("{}\n", lines.collect::<String>())
        }
    })
}

/// Sessions and the paths they watch.
pub(super) fn watches(gateway: &Gateway, board: &Board) -> Vec<(i64, Vec<Arc<str>>)> {
    let look = |core: &mut Core| {
        let table = core.tree_watches();
        let held = |watcher| (watcher, table.paths_of(watcher).cloned().collect());
        table.watchers().map(held).collect::<Vec<(_, Vec<_>)>>()
    };
    let all = gateway.with(look).0;
    let session_of = |watcher: causeway_engine::watch::WatcherId| {
        let conn = causeway_engine::session::ConnId(watcher.0);
        board.peers.get(&conn).map(|peer| peer.session)
    };
    // A connection may be gone by now.
    all.into_iter()
        .filter_map(|(watcher, paths)| Some((session_of(watcher)?, paths)))
        .collect()
}

/// Paths and the sessions that watch them.
pub(super) fn by_path(watches: Vec<(i64, Vec<Arc<str>>)>) -> BTreeMap<Arc<str>, Vec<i64>> {
    let mut out: BTreeMap<Arc<str>, Vec<i64>> = BTreeMap::new();
    for (session, paths) in watches {
        for path in paths {
            out.entry(path).or_default().push(session);
        }
    }
    out
}

/// Sessions and their ephemerals.
pub(super) fn ephemerals(gateway: &Gateway) -> Vec<(i64, Vec<Arc<str>>)> {
    let look = |core: &mut Core| {
        let tree = core.tree();
        let of = |(owner, _)| (owner, tree.ephemerals(owner).cloned().collect());
        tree.ephemeral_owners().map(of).collect()
    };
    gateway.with(look).0
}

fn hex(session: i64) -> String {
    format!("0x{session:x}")
}

fn tabbed<I: std::fmt::Display>(head: &str, items: impl Iterator<Item = I>) -> String {
    let mut out = format!("{head}\n");
    for item in items {
        let _ = writeln!(out, "\t{item}");
    }
    out
}

fn version_line() -> String {
    format!("Zookeeper version: {VERSION}, built on {BUILT}\n")
}

/// ZooKeeper: `ServerStats.toString`, and what `StatCommand` puts below it.
fn totals(gateway: &Gateway, board: &Board) -> String {
    let state = State::of(gateway);
    let sums = board.sums();
    let (min, mean, max) = monitor::latency(board, &sums);
    format!(
        "Latency min/avg/max: {min}/{}/{max}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\n\
         Zxid: 0x{:x}\nMode: standalone\nNode count: {}\n",
        Value::from(mean),
        sums.received,
        sums.sent,
        board.open.load(Relaxed),
        board.outstanding(),
        state.last_zxid,
        state.nodes,
    )
}

/// Connections, oldest first.
pub(super) fn peers(board: &Board) -> Vec<Arc<Peer>> {
    let mut peers: Vec<_> = board
        .peers
        .iter()
        .map(|entry| (*entry.key(), entry.value().clone()))
        .collect();
    peers.sort_unstable_by_key(|(conn, _)| *conn);
    peers.into_iter().map(|(_, peer)| peer).collect()
}

/// ZooKeeper: `ServerCnxn.dumpConnectionInfo`; the number in brackets says whether the connection is read
/// from (1) or is being answered a word (0).
fn connections(board: &Board, asker: SocketAddr, brief: bool) -> String {
    let mut out = String::new();
    for peer in peers(board) {
        let shown = peer.figures.shown();
        let _ = write!(
            out,
            " /{}[1](queued={},recved={},sent={}",
            peer.address,
            peer.figures.outstanding(),
            shown.sums.received,
            shown.sums.sent
        );
        if !brief {
            let _ = write!(
                out,
                ",sid=0x{:x},lop={},est={},to={}",
                peer.session,
                monitor::short_name(shown.last_op),
                peer.established_ms,
                peer.timeout_ms
            );
            if shown.last_cxid >= 0 {
                let _ = write!(out, ",lcxid=0x{:x}", shown.last_cxid);
            }
            let _ = write!(
                out,
                ",lzxid=0x{:x},lresp={},llat={},minlat={},avglat={},maxlat={}",
                shown.last_zxid,
                shown.last_response_ms,
                shown.last_latency,
                shown.min_latency,
                shown.mean_latency(),
                shown.max_latency
            );
        }
        out.push_str(")\n");
    }
    let _ = writeln!(out, " /{asker}[0](queued=0,recved=1,sent=0)");
    out
}

/// ZooKeeper: `MonitorCommand`; a name, a tab, a value.
fn mntr(gateway: &Gateway, board: &Board) -> String {
    let mut out = String::new();
    for (name, value) in monitor::rows(gateway, board) {
        let _ = match value {
            Value::String(text) => writeln!(out, "zk_{name}\t{text}"),
            value => writeln!(out, "zk_{name}\t{value}"),
        };
    }
    out
}

/// ZooKeeper: `ZooKeeperServer.dumpConf`.
fn conf(config: &Config) -> String {
    let dir = config.data_dir.as_deref();
    let path = dir.map(|d| d.display().to_string()).unwrap_or_default();
    let size = monitor::data_size(dir);
    let secure = match config.zookeeper_secure_listen {
        Some(at) => at.port().to_string(),
        None => "-1".into(),
    };
    format!(
        "clientPort={}\nsecureClientPort={secure}\ndataDir={path}\ndataDirSize={size}\ndataLogDir={path}\n\
         dataLogSize={size}\ntickTime={}\nmaxClientCnxns={}\nminSessionTimeout={}\nmaxSessionTimeout={}\n\
         clientPortListenBacklog=-1\nserverId=0\n",
        config.zookeeper_listen.port(),
        config.tick_ms,
        config.max_connections_per_address,
        config.session_timeout_ms.start(),
        config.session_timeout_ms.end(),
    )
}

/// ZooKeeper: `Environment.list`, without what only a Java process has.
pub(super) fn environment() -> Vec<(&'static str, String)> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let megabytes = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) / 1024
    };
    let os = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Mac OS X",
        other => other,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        other => other,
    };
    let host = file("/proc/sys/kernel/hostname");
    let release = file("/proc/sys/kernel/osrelease");
    let (memory, own) = (file("/proc/meminfo"), file("/proc/self/status"));
    let folder = std::env::current_dir().unwrap_or_default();
    let host = match host.trim() {
        "" => "localhost",
        host => host,
    };
    let of = |text: &str, name: &str| format!("{}MB", megabytes(text, name));
    vec![
        ("zookeeper.version", format!("{VERSION}, built on {BUILT}")),
        ("host.name", host.to_owned()),
        ("os.name", os.to_owned()),
        ("os.arch", arch.to_owned()),
        ("os.version", release.trim().to_owned()),
        ("user.name", variable("USER")),
        ("user.home", variable("HOME")),
        ("user.dir", folder.display().to_string()),
        ("os.memory.free", of(&memory, "MemAvailable:")),
        ("os.memory.max", of(&memory, "MemTotal:")),
        ("os.memory.total", of(&own, "VmRSS:")),
    ]
}

/// ZooKeeper: `DumpCommand`. Sessions and connections stand in sets by the tick in which they would expire.
fn dump(gateway: &Gateway, board: &Board, asker: SocketAddr) -> String {
    let now_ms = gateway.now_ms();
    let tick = i64::from(gateway.config.tick_ms.max(1));
    let in_tick = |at_ms: i64| (at_ms / tick + 1) * tick;
    let ends: BTreeMap<i64, i64> = expiries(gateway).into_iter().collect();
    let mut sessions = Sets::default();
    for (id, at_ms) in &ends {
        sessions.add(in_tick(*at_ms), hex(*id));
    }
    let mut connections = Sets::default();
    let line = |address, session| format!("ip: /{address} sessionId: {}", hex(session));
    for peer in peers(board) {
        let at_ms = ends
            .get(&peer.session)
            .copied()
            .unwrap_or(now_ms + i64::from(peer.timeout_ms));
        connections.add(in_tick(at_ms), line(peer.address, peer.session));
    }
    connections.add(in_tick(now_ms + SESSIONLESS_MS), line(asker, 0));
    let owned = ephemerals(gateway);
    let mut out = format!(
        "SessionTracker dump:\nSession {sessions}ephemeral nodes dump:\nSessions with Ephemerals ({}):\n",
        owned.len()
    );
    for (session, paths) in owned {
        out.push_str(&tabbed(&format!("{}:", hex(session)), paths.iter()));
    }
    let _ = write!(out, "Connections dump:\nConnections {connections}");
    out
}

/// Sessions, and when each expires unless it is heard.
pub(super) fn expiries(gateway: &Gateway) -> Vec<(i64, i64)> {
    let now_ms = gateway.now_ms();
    let look = |core: &mut Core| {
        let ends = |id, timeout_ms| {
            let left = core.ttl_left(LeaseId::session(id), now_ms);
            now_ms + left.map_or(i64::from(timeout_ms), |l| i64::try_from(l).unwrap_or(0))
        };
        let sessions = core.sessions().iter();
        sessions.map(|s| (s.id, ends(s.id, s.timeout_ms))).collect()
    };
    gateway.with(look).0
}

/// What ends at which time (ZooKeeper: `ExpiryQueue.dump`).
#[derive(Default)]
struct Sets(BTreeMap<i64, Vec<String>>);

impl Sets {
    fn add(&mut self, at_ms: i64, what: String) {
        self.0.entry(at_ms).or_default().push(what);
    }
}

impl std::fmt::Display for Sets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count: usize = self.0.values().map(Vec::len).sum();
        writeln!(f, "Sets ({})/({count}):", self.0.len())?;
        for (at_ms, set) in &self.0 {
            writeln!(f, "{} expire at {}:", set.len(), java_date(*at_ms))?;
            for what in set {
                writeln!(f, "\t{what}")?;
            }
        }
        Ok(())
    }
}

/// As Java's `Date.toString` writes a time in UTC: `Mon Nov 30 21:30:59 UTC 2026`.
pub(super) fn java_date(at_ms: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
    ];
    let seconds = at_ms.div_euclid(1000);
    let (day, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March have their leap day at the end; 400 of them repeat.
    let since = day + 719_468;
    let (era, of_era) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + i64::from(month >= 10);
    let name = |names: &[&'static str], at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        names.get(at).copied().unwrap_or_default()
    };
    format!(
        "{} {} {of_month:02} {:02}:{:02}:{:02} UTC {year}",
        name(&DAYS, day.rem_euclid(7)),
        name(&MONTHS, month),
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_java_does() {
        for (at_ms, want) in [
            (0, "Thu Jan 01 00:00:00 UTC 1970"),
            (951_782_400_000, "Tue Feb 29 00:00:00 UTC 2000"),
            (1_796_074_259_999, "Mon Nov 30 21:30:59 UTC 2026"),
            (-1, "Wed Dec 31 23:59:59 UTC 1969"),
            (4_107_542_399_000, "Sun Feb 28 23:59:59 UTC 2100"),
        ] {
            assert_eq!(java_date(at_ms), want, "{at_ms}");
        }
    }

    #[test]
    fn sets_count_what_they_hold() {
        let mut sets = Sets::default();
        sets.add(2000, "b".into());
        sets.add(1000, "a".into());
        sets.add(2000, "c".into());
        let want = "Sets (2)/(3):\n1 expire at Thu Jan 01 00:00:01 UTC 1970:\n\ta\n\
                    2 expire at Thu Jan 01 00:00:02 UTC 1970:\n\tb\n\tc\n";
        assert_eq!(sets.to_string(), want);
    }
}
