//! What the native gRPC API costs, measured by hand:
//! `cargo run --release -p causeway-registry-node --example fan_out -- 10000 100`
//!
//! A member runs as a process of its own; this one is all of its clients, on the same machine: the given number of
//! streams, spread over the given number of connections (a stream each is what programs have; several on one
//! connection spare this process file descriptors). Shows the time from a registration to its arrival at each
//! subscriber, registrations a second on one stream, and what an idle connection and a stream cost the member.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use causeway_registry::NodeConfig;
use causeway_registry::api::ClientSettings;
use causeway_registry_node::{Grpc, Limits, NativeApi, Registry};
use causeway_registry_proto::client::RegistryClient;
use causeway_registry_proto::v1::{self, client_message as ask, server_message as told};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: usize = 30;
const REGISTRATIONS: usize = 50_000;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "member") {
        return member().await;
    }
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse::<usize>(),
        None => Ok(default),
    };
    let (streams, connections) = (number(0, 10_000)?, number(1, 100)?.max(1));
    let mut member = Member::start()?;

    let mut kept = Vec::new();
    let before = member.resident_bytes()?;
    for _ in 0..connections {
        kept.push(RegistryClient::connect(member.url.clone()).await?);
    }
    let connected = member.resident_bytes()?;
    println!(
        "{connections} idle connections: {} bytes each in the member",
        connected.saturating_sub(before) / connections
    );

    let (arrived, mut arrivals) = mpsc::channel(streams.max(1));
    for n in 0..streams {
        let client = kept[n % connections].clone();
        let (say, mut told) = open(client).await?;
        let watch = v1::WatchRequest {
            service: "cart".into(),
            ..v1::WatchRequest::default()
        };
        say.send(message(ask::What::Watch(watch))).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move {
            // The stream ends with its sender.
            let _say = say;
            while let Ok(Some(message)) = told.message().await {
                if let Some(told::What::Update(_)) = message.what
                    && arrived.send(Instant::now()).await.is_err()
                {
                    return;
                }
            }
        });
    }
    collect(&mut arrivals, streams).await?;
    let opened = member.resident_bytes()?;
    println!(
        "{streams} streams with a watch: {} bytes each in the member",
        opened.saturating_sub(connected) / streams.max(1)
    );

    let (say, mut told) = open(kept[0].clone()).await?;
    let mut all = Vec::new();
    let mut last = Vec::new();
    for round in 0..ROUNDS {
        // Longer than the debounce remembers.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        say.send(registration("cart", round)).await?;
        let at = collect(&mut arrivals, streams).await?;
        let mut times: Vec<Duration> = at.into_iter().map(|at| at - begun).collect();
        times.sort();
        last.extend(times.last().copied());
        all.extend(times);
        let _registered = told.message().await?;
    }
    all.sort();
    last.sort();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    println!(
        "one change to {streams} subscribers, {ROUNDS} times: p50 {:?}, p99 {:?}, p99.9 {:?}, most {:?}; the last of each time: median {:?}",
        at(0.5),
        at(0.99),
        at(0.999),
        all[all.len() - 1],
        last[last.len() / 2]
    );

    let begun = Instant::now();
    let asked = tokio::spawn(async move {
        for n in 0..REGISTRATIONS {
            if say.send(registration("load", n)).await.is_err() {
                break;
            }
        }
        say
    });
    for _ in 0..REGISTRATIONS {
        told.message().await?.ok_or("the stream ended")?;
    }
    let took = begun.elapsed();
    drop(asked.await?);
    println!(
        "{REGISTRATIONS} registrations on one stream: {took:?}, {:.0} a second",
        REGISTRATIONS as f64 / took.as_secs_f64()
    );
    Ok(())
}

async fn collect(arrivals: &mut mpsc::Receiver<Instant>, count: usize) -> Outcome<Vec<Instant>> {
    let mut at = Vec::with_capacity(count);
    let all = async {
        while at.len() < count {
            at.extend(arrivals.recv().await);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await?;
    Ok(at)
}

fn message(what: ask::What) -> v1::ClientMessage {
    v1::ClientMessage {
        id: 0,
        what: Some(what),
    }
}

fn registration(service: &str, n: usize) -> v1::ClientMessage {
    message(ask::What::Register(v1::Registration {
        at: Some(v1::InstanceRef {
            namespace: String::new(),
            service: service.into(),
            instance: format!("10.0.{}.{}:8080", n / 250, n % 250),
        }),
        endpoints: vec![v1::Endpoint {
            scheme: "http".into(),
            host: format!("10.0.{}.{}", n / 250, n % 250),
            port: 8080,
        }],
        ..v1::Registration::default()
    }))
}

type Both = (
    mpsc::Sender<v1::ClientMessage>,
    Streaming<v1::ServerMessage>,
);

async fn open(mut client: RegistryClient<tonic::transport::Channel>) -> Outcome<Both> {
    let (say, said) = mpsc::channel(256);
    let mut told = client.open(ReceiverStream::new(said)).await?.into_inner();
    say.send(message(ask::What::Hello(v1::Hello {
        token: 0,
        ttl_ms: 600_000,
    })))
    .await?;
    told.message().await?.ok_or("no Welcome")?;
    Ok((say, told))
}

struct Member {
    child: Child,
    url: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    fn start() -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("member")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let url = format!("http://{}", line.trim());
        Ok(Member { child, url })
    }

    fn resident_bytes(&mut self) -> Outcome<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.ok_or("no VmRSS")?.trim().trim_end_matches(" kB");
        Ok(kilobytes.trim().parse::<usize>()? * 1024)
    }
}

async fn member() -> Outcome<()> {
    let registry = Registry::start(NodeConfig::new(1, 1_700_000_000_000));
    let api = NativeApi::new(registry, Limits::default(), ClientSettings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(Grpc::new(api).serve(listener, stopped));
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}
