//! What an operation costs: CPU time of the server's process and latency of the client, for the real stores and
//! for the gateway, in one run on one machine. Latency is what this machine makes of it; CPU time travels better.
#![allow(
    clippy::disallowed_methods,
    reason = "measures real processes in real time"
)]
#![allow(
    unreachable_pub,
    missing_docs,
    reason = "a binary's modules are its own"
)]

mod etcd;
mod h2;
mod load;
mod measure;
mod protobuf;
mod report;
mod socket;
mod workloads;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use causeway_compat_tests::bench::client::{prepare, prepare_servers};
use causeway_compat_tests::bench::families;
use causeway_compat_tests::target::version;
use causeway_compat_tests::{Gateway, Settings, Work, ZooKeeper};
use clap::Parser;

use measure::{Rounds, Server};
use report::{Port, Report};

/// Measures Causeway beside real ZooKeeper and etcd.
#[derive(Debug, Parser)]
struct Arguments {
    /// Reads in a round. Enough for the kernel's clock of 10 ms to be a few hundredths of a measurement; a smaller
    /// number is for trying out.
    #[arg(default_value_t = 50_000)]
    operations: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Idle sessions.
    #[arg(long, default_value_t = 5000)]
    idle: usize,
    /// Only these: zookeeper, or of it reads, creates, herd, recursive, idle, relay; etcd, or of it
    /// etcd-range, etcd-lease, etcd-keepalive, etcd-watch, etcd-relay.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Writes the page here.
    #[arg(long)]
    report: Option<PathBuf>,
}

impl Arguments {
    fn wants(&self, part: &str) -> bool {
        let port = match part.starts_with("etcd-") {
            true => "etcd",
            false => "zookeeper",
        };
        self.only.is_empty() || self.only.iter().any(|only| only == part || only == port)
    }

    fn wants_any(&self, parts: &[&str]) -> bool {
        parts.iter().any(|part| self.wants(part))
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<()> {
    let load_before = first_line("/proc/loadavg");
    let work = Work::new("bench")?;
    let rounds = Rounds {
        warm_up: 2,
        counted: arguments.rounds,
    };
    let mut report = Report::default();
    let (mut ports, mut releases) = (Vec::new(), Vec::new());
    if arguments.wants_any(&["reads", "creates", "herd", "recursive", "idle", "relay"]) {
        let release = of_zookeeper(arguments, &work, rounds, &mut report).await?;
        ports.push(Port::ZooKeeper);
        releases.push(("ZooKeeper", format!("{release}, {}", java())));
    }
    if arguments.wants_any(&etcd::PARTS) {
        // The Go clients' program is the real etcd too.
        for go in families::all().into_iter().filter(|f| f.name() == "go") {
            prepare(go)?;
        }
        let release = etcd::run(arguments, &work, rounds, &mut report).await?;
        ports.push(Port::Etcd);
        releases.push(("etcd", release));
    }
    for missed in report.missed() {
        println!("missed: {missed}");
    }
    if let Some(path) = &arguments.report {
        let load = format!("{load_before}; {}", first_line("/proc/loadavg"));
        let count = format!("{} of {} reads", rounds.counted, arguments.operations);
        let mut run = vec![
            ("date", today()),
            ("machine", machine()),
            ("load before and after", load),
        ];
        run.extend(releases);
        run.extend([("Causeway", version()?), ("rounds", count)]);
        std::fs::write(path, report.page(&ports, &run))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Everything of the ZooKeeper port; gives the release of ZooKeeper.
async fn of_zookeeper(
    arguments: &Arguments,
    work: &Work,
    rounds: Rounds,
    report: &mut Report,
) -> Result<String> {
    prepare_servers()?;
    let mut zookeeper = ZooKeeper::start_for_measurement(work, "zookeeper")?;
    let in_memory = Settings {
        in_memory: true,
        ..Settings::default()
    };
    let mut alone = Gateway::start(work, "alone", &in_memory)?;
    // The gateway's stores are not the measured ones: the measured ones shall do nothing else.
    let behind = ZooKeeper::start(work, "behind-zookeeper")?;
    let before = Settings {
        legacy_zookeeper: Some(behind.address()),
        phase: Some("merge-new".to_string()),
        ..Settings::default()
    };
    let mut merge_new = Gateway::start(work, "merge-new", &before)?;

    let real = server("ZooKeeper", zookeeper.server().pid(), zookeeper.address());
    let embedded = server("alone", alone.server().pid(), alone.target().zookeeper);
    let view = server(
        "merge-new",
        merge_new.server().pid(),
        merge_new.target().zookeeper,
    );
    let operations = arguments.operations;
    for server in [&real, &embedded, &view] {
        workloads::fill(server).await?;
    }
    let (all, both) = ([&real, &embedded, &view], [&real, &embedded]);
    if arguments.wants("reads") {
        let figures = workloads::get_data(&all, rounds, operations).await?;
        report.costs("getData, 64 sessions", &figures, Some(0.4));
        let figures = workloads::get_children(&all, rounds, operations).await?;
        report.costs(
            "getChildren2, 100 children, 64 sessions",
            &figures,
            Some(0.4),
        );
    }
    if arguments.wants("creates") {
        let figures = workloads::creates(&both, rounds, operations / 2, false).await?;
        report.costs("create of an ephemeral, 64 sessions", &figures, Some(0.4));
        let figures = workloads::creates(&both, rounds, operations / 2, true).await?;
        report.costs("create of a registration, 64 sessions", &figures, None);
    }
    if arguments.wants("herd") {
        let figures = workloads::herd(&all, rounds).await?;
        report.costs("1,000 sessions arm a child watch", &figures, Some(0.45));
    }
    if arguments.wants("recursive") {
        let figures = workloads::recursive(&all, rounds).await?;
        report.costs("1,000 recursive watches", &figures, Some(0.45));
    }
    if arguments.wants("idle") {
        let span = Duration::from_secs(10);
        let idle = workloads::idle(&both, arguments.idle, 30_000, rounds.counted, span).await?;
        let what = format!("{} idle sessions", arguments.idle);
        report.costs(&format!("{what}: a ping"), &idle.figures, Some(0.25));
        // A JVM's resident memory says nothing about sessions: its heap is taken as it comes.
        for (figures, kb) in idle.figures.iter().zip(&idle.resident_kb).skip(1) {
            let what = format!("{what}: resident memory of each");
            report.bounded(&what, figures.server, *kb, 10.0, "KB");
        }
    }
    if arguments.wants("relay") {
        let before = Settings {
            legacy_zookeeper: Some(zookeeper.address()),
            phase: Some("proxy".to_string()),
            ..Settings::default()
        };
        let mut gateway = Gateway::start(work, "relay", &before)?;
        let relay = server("relay", gateway.server().pid(), gateway.target().zookeeper);
        let (figures, added) =
            workloads::through_relay(&real, &relay, rounds.counted * 3, operations / 20).await?;
        report.costs("getData, 1 session", &figures, None);
        report.bounded("relay: added to the median", relay.name, added, 80.0, "µs");
    }
    zookeeper.version()
}

fn server(name: &'static str, pid: u32, address: String) -> Server {
    let pids = vec![pid];
    Server {
        name,
        pids,
        address,
    }
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    format!(
        "{} × {model}, Linux {}",
        std::thread::available_parallelism().map_or(1, usize::from),
        first_line("/proc/sys/kernel/osrelease")
    )
}

fn today() -> String {
    let said = Command::new("date").args(["-u", "+%F"]).output();
    let said = said.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string());
    said.unwrap_or_else(|_| "unknown".to_string())
}

fn java() -> String {
    let said = Command::new("java").arg("-version").output();
    let said = said.map(|out| String::from_utf8_lossy(&out.stderr).into_owned());
    said.ok()
        .and_then(|text| Some(text.lines().next()?.to_string()))
        .unwrap_or_else(|| "Java of unknown version".to_string())
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_string()
}
