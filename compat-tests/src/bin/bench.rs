//! What an operation costs: CPU time of the server's process and latency of the client, for the real stores and
//! for the gateway, in one run on one machine. Latency is what this machine makes of it; CPU time travels better.
#![allow(
    clippy::disallowed_methods,
    reason = "measures real processes in real time"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::settings::{CURATOR_BASE, GRPC_TARGET, curator, grpc};
use causeway_compat_tests::target::Legacy;
use causeway_compat_tests::{Gateway, Settings, Work, ZooKeeper};
use etcd_client::{Client, GetOptions, PutOptions};

/// Instances of the service that is read.
const INSTANCES: u8 = 100;
/// Rounds, taken in turn by each server so that a busy moment of the machine hits all alike.
const ROUNDS: usize = 5;
/// Requests in flight.
const FLIGHTS: [usize; 2] = [1, 16];

/// A server under measurement.
struct Server {
    name: &'static str,
    pid: u32,
    address: String,
}

/// What one server did for one kind of request.
#[derive(Default)]
struct Figures {
    cpu: Duration,
    operations: u32,
    latencies: Vec<Duration>,
}

impl Figures {
    fn cpu_per_operation(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / f64::from(self.operations.max(1))
    }

    fn percentile(&mut self, percent: usize) -> f64 {
        self.latencies.sort();
        let at = self.latencies.len() * percent / 100;
        self.latencies
            .get(at)
            .or(self.latencies.last())
            .map_or(0.0, |l| l.as_secs_f64() * 1e6)
    }
}

fn main() -> Result<()> {
    // Enough for the kernel's clock of 10 ms to be below 1% of a measurement; a smaller number is for trying out.
    let operations: usize = match std::env::args().nth(1) {
        Some(number) => number
            .parse()
            .context("the number of operations in a round")?,
        None => 20_000,
    };
    let work = Work::new("bench")?;
    let mut legacy = Legacy {
        zookeeper: ZooKeeper::start_at_full_speed(&work, "zookeeper")?,
        etcd: causeway_compat_tests::Etcd::start(&work, "etcd")?,
    };
    let mut alone = Gateway::start(&work, "alone", &Settings::default())?;
    // The gateway's stores are not the measured ones: the measured ones shall do nothing else.
    let behind = Legacy {
        zookeeper: ZooKeeper::start(&work, "behind-zookeeper")?,
        etcd: causeway_compat_tests::Etcd::start(&work, "behind-etcd")?,
    };
    let mut before = Gateway::start(&work, "merge-new", &behind.settings("merge-new"))?;

    let zookeeper = [
        server(
            "real ZooKeeper",
            legacy.zookeeper.server().pid(),
            legacy.zookeeper.address(),
        ),
        server(
            "gateway alone",
            alone.server().pid(),
            alone.target().zookeeper,
        ),
        server(
            "gateway in merge-new",
            before.server().pid(),
            before.target().zookeeper,
        ),
    ];
    let etcd = [
        server(
            "real etcd",
            legacy.etcd.server().pid(),
            legacy.etcd.address(),
        ),
        server("gateway alone", alone.server().pid(), alone.target().etcd),
        server(
            "gateway in merge-new",
            before.server().pid(),
            before.target().etcd,
        ),
    ];
    println!("{INSTANCES} instances, {ROUNDS} rounds of {operations} operations for each line\n");
    println!("| request | in flight | server | CPU µs/op | ratio | p50 µs | p99 µs |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let dir = format!("{CURATOR_BASE}/bench");
    let mut keepers = Vec::new();
    for server in &zookeeper {
        keepers.push(Zk::fill(&server.address, &dir)?);
    }
    let (measured, stop) = std::sync::mpsc::channel::<()>();
    let keeping = std::thread::spawn(move || -> Result<()> {
        // The sessions live as long as somebody is heard, while the others are being measured.
        while stop.recv_timeout(Duration::from_secs(1))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            for keeper in &mut keepers {
                keeper.ping()?;
            }
        }
        Ok(())
    });
    for flight in FLIGHTS {
        measure("getChildren", flight, &zookeeper, |server| {
            let mut connection = Zk::connect(&server.address)?;
            connection.get_children(&dir, operations, flight)
        })?;
    }
    drop(measured);
    keeping
        .join()
        .map_err(|_| anyhow::anyhow!("the keeper of the sessions panicked"))??;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    for server in &etcd {
        runtime.block_on(fill(&server.address))?;
    }
    for flight in FLIGHTS {
        measure("Range", flight, &etcd, |server| {
            runtime.block_on(ranges(&server.address, operations, flight))
        })?;
    }
    Ok(())
}

fn server(name: &'static str, pid: u32, address: String) -> Server {
    Server { name, pid, address }
}

/// Runs `round` for each server in turn, and prints a line for each; the first is what the others are held against.
fn measure(
    request: &str,
    flight: usize,
    servers: &[Server],
    mut round: impl FnMut(&Server) -> Result<Vec<Duration>>,
) -> Result<()> {
    let mut figures: Vec<Figures> = servers.iter().map(|_| Figures::default()).collect();
    for number in 0..=ROUNDS {
        for (server, figures) in servers.iter().zip(&mut figures) {
            let before = cpu(server.pid)?;
            let latencies = round(server)?;
            // The first round warms up.
            if number > 0 {
                figures.cpu += cpu(server.pid)?.saturating_sub(before);
                figures.operations += latencies.len() as u32;
                figures.latencies.extend(latencies);
            }
        }
    }
    let real = figures.first().map_or(0.0, Figures::cpu_per_operation);
    for (server, figures) in servers.iter().zip(&mut figures) {
        let own = figures.cpu_per_operation();
        println!(
            "| {request} | {flight} | {} | {own:.1} | {:.2} | {:.0} | {:.0} |",
            server.name,
            own / real,
            figures.percentile(50),
            figures.percentile(99)
        );
    }
    Ok(())
}

/// User and system time of a process so far.
fn cpu(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold blanks; utime and stime are fields 14 and 15, in hundredths of a second.
    let (_, rest) = text.rsplit_once(')').context("stat")?;
    let ticks: Vec<u64> = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    ensure!(ticks.len() == 2, "stat: {text}");
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

async fn fill(address: &str) -> Result<()> {
    let mut client = Client::connect([address], None).await?;
    let lease = client.lease_grant(600, None).await?.id();
    for n in 0..INSTANCES {
        let (key, value) = grpc(&format!("10.20.30.{n}"), 9000);
        client
            .put(key, value, Some(PutOptions::new().with_lease(lease)))
            .await?;
    }
    Ok(())
}

async fn ranges(address: &str, operations: usize, flight: usize) -> Result<Vec<Duration>> {
    let client = Client::connect([address], None).await?;
    let mut tasks = Vec::new();
    for _ in 0..flight {
        let mut client = client.kv_client();
        tasks.push(tokio::spawn(async move {
            let mut latencies = Vec::with_capacity(operations / flight);
            for _ in 0..operations / flight {
                let begun = Instant::now();
                let options = GetOptions::new().with_prefix();
                let reply = client.get(format!("{GRPC_TARGET}/"), Some(options)).await?;
                ensure!(
                    reply.kvs().len() == usize::from(INSTANCES),
                    "{} keys",
                    reply.kvs().len()
                );
                latencies.push(begun.elapsed());
            }
            Ok(latencies)
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    Ok(latencies)
}

/// A ZooKeeper connection of a few lines: what is measured is the server, and a library's own work is not.
struct Zk {
    stream: TcpStream,
    xid: i32,
}

impl Zk {
    fn connect(address: &str) -> Result<Zk> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut connection = Zk { stream, xid: 0 };
        let mut hello = vec![0; 4 + 8];
        hello.extend_from_slice(&600_000_i32.to_be_bytes());
        hello.extend_from_slice(&[0; 8]);
        hello.extend_from_slice(&16_i32.to_be_bytes());
        hello.extend_from_slice(&[0; 17]);
        connection.send(&hello)?;
        connection.receive()?;
        Ok(connection)
    }

    /// Creates the service and its instances; the connection keeps them.
    fn fill(address: &str, dir: &str) -> Result<Zk> {
        let mut connection = Zk::connect(address)?;
        connection.create(CURATOR_BASE, b"", 0)?;
        connection.create(dir, b"", 0)?;
        for n in 0..INSTANCES {
            let (path, value) = curator(
                "bench",
                &format!("instance-{n:03}"),
                &format!("10.20.30.{n}"),
                7000,
            );
            connection.create(&path, value.as_bytes(), 1)?;
        }
        Ok(connection)
    }

    fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<()> {
        let mut body = Vec::new();
        text(&mut body, path.as_bytes());
        text(&mut body, data);
        body.extend_from_slice(&1_i32.to_be_bytes());
        body.extend_from_slice(&31_i32.to_be_bytes());
        text(&mut body, b"world");
        text(&mut body, b"anyone");
        body.extend_from_slice(&flags.to_be_bytes());
        self.request(1, &body)?;
        let reply = self.receive()?;
        match error(&reply)? {
            0 | -110 => Ok(()),
            other => bail!("create {path}: error {other}"),
        }
    }

    fn ping(&mut self) -> Result<()> {
        self.request(11, &[])?;
        self.receive().map(drop)
    }

    fn get_children(
        &mut self,
        dir: &str,
        operations: usize,
        flight: usize,
    ) -> Result<Vec<Duration>> {
        let mut body = Vec::new();
        text(&mut body, dir.as_bytes());
        body.push(0);
        let mut latencies = Vec::with_capacity(operations);
        let mut begun = std::collections::VecDeque::new();
        let mut sent = 0;
        while latencies.len() < operations {
            while sent < operations && begun.len() < flight {
                self.request(8, &body)?;
                begun.push_back(Instant::now());
                sent += 1;
            }
            let reply = self.receive()?;
            ensure!(error(&reply)? == 0, "getChildren: error {}", error(&reply)?);
            let count = reply
                .get(16..20)
                .map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
            ensure!(
                count == Some(i32::from(INSTANCES)),
                "getChildren: {count:?} children"
            );
            latencies.extend(begun.pop_front().map(|begun: Instant| begun.elapsed()));
        }
        Ok(latencies)
    }

    fn request(&mut self, kind: i32, body: &[u8]) -> Result<()> {
        self.xid += 1;
        let mut payload = self.xid.to_be_bytes().to_vec();
        payload.extend_from_slice(&kind.to_be_bytes());
        payload.extend_from_slice(body);
        self.send(&payload)
    }

    fn send(&mut self, payload: &[u8]) -> Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        ensure!(length < 1 << 20, "a reply of {length} bytes");
        let mut reply = vec![0; length];
        self.stream.read_exact(&mut reply)?;
        Ok(reply)
    }
}

fn text(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    body.extend_from_slice(bytes);
}

/// The error code of a reply: xid, zxid, error.
fn error(reply: &[u8]) -> Result<i32> {
    let bytes = reply.get(12..16).context("a reply without a header")?;
    Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
