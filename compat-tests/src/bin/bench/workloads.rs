//! What ZooKeeper servers are asked to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::raw::zookeeper::op;
use causeway_compat_tests::settings::{CURATOR_BASE, curator};
use futures::future::try_join_all;

use crate::load::{Session, create_body, delete_body, read_body, recursive_body};
use crate::measure::{Figures, Rounds, Sample, Server, Span, in_turn, resident_kb};

/// Instances of the service that is read.
const INSTANCES: usize = 100;
/// Sessions that read and write.
const SESSIONS: usize = 64;
/// Sessions that watch.
const WATCHERS: usize = 1000;
/// Nodes in the directory that is watched.
const WATCHED: usize = 10;
/// Changes in a round of watching.
const CHANGES: usize = 50;
/// What a session asks for that has nothing to do for the length of other servers' rounds: the longest that
/// ZooKeeper grants.
const TIMEOUT_MS: i32 = 40_000;

const EPHEMERAL: i32 = 1;

/// Services with their instances, and the session that keeps them.
pub async fn fill(server: &Server) -> Result<()> {
    let mut keeper = Session::open(&server.address, TIMEOUT_MS).await?;
    keeper.create(CURATOR_BASE, b"", 0).await?;
    keeper.create(&service_dir("read"), b"", 0).await?;
    for n in 0..INSTANCES {
        let (path, value) = instance("read", n);
        keeper.create(&path, value.as_bytes(), EPHEMERAL).await?;
    }
    for dir in ["/bench", "/bench/creates", &service_dir("tree")] {
        keeper.create(dir, b"", 0).await?;
    }
    keeper.create(&service_dir("herd"), b"", 0).await?;
    for n in 0..WATCHED {
        let (path, value) = instance("herd", n);
        keeper.create(&path, value.as_bytes(), EPHEMERAL).await?;
    }
    let server = server.clone();
    tokio::spawn(async move {
        while keeper.call(op::PING, &[]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        eprintln!(
            "the session that keeps the instances of {} is gone",
            server.name
        );
    });
    Ok(())
}

fn service_dir(service: &str) -> String {
    format!("{CURATOR_BASE}/{service}")
}

fn instance(service: &str, n: usize) -> (String, String) {
    let address = format!("10.20.{}.{}", n / 256, n % 256);
    curator(service, &format!("instance-{n:05}"), &address, 7000)
}

/// getData of an instance.
pub async fn get_data(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
) -> Result<Vec<Figures>> {
    let (path, value) = instance("read", INSTANCES / 2);
    let length = value.len() as i32;
    reads(servers, rounds, operations, op::GET_DATA, &path, length).await
}

/// getChildren2 of the service.
pub async fn get_children(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
) -> Result<Vec<Figures>> {
    let count = INSTANCES as i32;
    reads(
        servers,
        rounds,
        operations,
        op::GET_CHILDREN2,
        &service_dir("read"),
        count,
    )
    .await
}

/// One request after the other from each session; each reply begins with the number `first`.
async fn reads(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
    op: i32,
    path: &str,
    first: i32,
) -> Result<Vec<Figures>> {
    let body = read_body(path, false);
    let set_up = async |server: &Server| sessions(server, SESSIONS).await;
    let round = async |server: &Server, sessions: &mut Vec<Session>| {
        refresh(sessions).await?;
        let span = Span::begin(server)?;
        let latencies = try_join_all(sessions.iter_mut().map(async |session| {
            let mut latencies = Vec::with_capacity(operations / SESSIONS);
            for _ in 0..operations / SESSIONS {
                let begun = Instant::now();
                let reply = session.call(op, &body).await?;
                latencies.push(begun.elapsed());
                ensure!(reply.get(..4) == Some(&first.to_be_bytes()), "{reply:?}");
            }
            Ok(latencies)
        }))
        .await?;
        span.end(latencies.concat())
    };
    in_turn(servers, rounds, set_up, round).await
}

/// create of ephemeral nodes, each session its own; they go with their sessions.
pub async fn creates(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
    registrations: bool,
) -> Result<Vec<Figures>> {
    let set_up = async |_: &Server| Ok(());
    let round = async |server: &Server, (): &mut ()| {
        let mut sessions = sessions(server, SESSIONS).await?;
        let span = Span::begin(server)?;
        let all = sessions.iter_mut().enumerate();
        let latencies = try_join_all(all.map(async |(of, session)| {
            let mut latencies = Vec::with_capacity(operations / SESSIONS);
            for n in 0..operations / SESSIONS {
                let n = of * (operations / SESSIONS) + n;
                let (path, value) = if registrations {
                    instance(&format!("creates-{:03}", n / INSTANCES), n)
                } else {
                    (format!("/bench/creates/{n:06}"), "0123456789".to_string())
                };
                let body = create_body(&path, value.as_bytes(), EPHEMERAL);
                let begun = Instant::now();
                session.call(op::CREATE, &body).await?;
                latencies.push(begun.elapsed());
            }
            anyhow::Ok(latencies)
        }))
        .await?;
        let sample = span.end(latencies.concat())?;
        try_join_all(sessions.iter_mut().map(|s| s.call(op::CLOSE_SESSION, &[]))).await?;
        Ok(sample)
    };
    if registrations {
        for server in servers {
            let mut session = Session::open(&server.address, TIMEOUT_MS).await?;
            for n in 0..=operations / INSTANCES {
                let dir = service_dir(&format!("creates-{n:03}"));
                session.create(&dir, b"", 0).await?;
            }
        }
    }
    in_turn(servers, rounds, set_up, round).await
}

/// A thousand sessions watch the children of one directory and arm the watch again at each change. An operation is
/// one event with the read that follows it.
pub async fn herd(servers: &[&Server], rounds: Rounds) -> Result<Vec<Figures>> {
    let armed = read_body(&service_dir("herd"), true);
    let set_up = async |server: &Server| {
        let mut watchers = sessions(server, WATCHERS).await?;
        try_join_all(
            watchers
                .iter_mut()
                .map(|s| s.call(op::GET_CHILDREN2, &armed)),
        )
        .await?;
        Ok((sessions(server, 1).await?, watchers))
    };
    watched(servers, rounds, "herd", set_up, async |session, begun| {
        let event = session.frame().await?;
        ensure!(event.is_event(), "a frame that is no event");
        let latency = begun.elapsed();
        // The others take first what has arrived for them: they are as many machines.
        tokio::task::yield_now().await;
        session.call(op::GET_CHILDREN2, &armed).await?;
        Ok(latency)
    })
    .await
}

/// A thousand sessions watch everything below one node for good. An operation is one event.
pub async fn recursive(servers: &[&Server], rounds: Rounds) -> Result<Vec<Figures>> {
    let watch = recursive_body(&service_dir("tree"));
    let set_up = async |server: &Server| {
        let mut watchers = sessions(server, WATCHERS).await?;
        try_join_all(watchers.iter_mut().map(|s| s.call(op::ADD_WATCH, &watch))).await?;
        Ok((sessions(server, 1).await?, watchers))
    };
    watched(servers, rounds, "tree", set_up, async |session, begun| {
        let event = session.frame().await?;
        ensure!(event.is_event(), "a frame that is no event");
        Ok(begun.elapsed())
    })
    .await
}

/// Registers an instance of `service` and removes it in turn; `told` is what each watcher does at each change.
async fn watched(
    servers: &[&Server],
    rounds: Rounds,
    service: &str,
    set_up: impl AsyncFn(&Server) -> Result<(Vec<Session>, Vec<Session>)>,
    told: impl AsyncFn(&mut Session, Instant) -> Result<Duration>,
) -> Result<Vec<Figures>> {
    let (path, value) = instance(service, WATCHED);
    let create = create_body(&path, value.as_bytes(), EPHEMERAL);
    let delete = delete_body(&path);
    let told = &told;
    let round = async |server: &Server, (writer, watchers): &mut (Vec<Session>, Vec<Session>)| {
        refresh(writer).await?;
        refresh(watchers).await?;
        let writer = writer.first_mut().context("a writer")?;
        let span = Span::begin(server)?;
        let (mut latencies, mut lasts) = (Vec::new(), Vec::new());
        for change in 0..CHANGES {
            let begun = Instant::now();
            // The watchers wait before the change is sent.
            let all = try_join_all(watchers.iter_mut().map(|session| told(session, begun)));
            let change = match change % 2 {
                0 => writer.call(op::CREATE, &create),
                _ => writer.call(op::DELETE, &delete),
            };
            let (of_each, _) = futures::try_join!(all, change)?;
            lasts.extend(of_each.iter().max());
            latencies.extend(of_each);
        }
        let mut sample = span.end(latencies)?;
        sample.last = lasts;
        Ok(sample)
    };
    in_turn(servers, rounds, set_up, round).await
}

/// What idle sessions cost.
pub struct Idle {
    /// In CPU time for each ping.
    pub figures: Vec<Figures>,
    /// In resident memory: KB for each session.
    pub resident_kb: Vec<f64>,
}

/// Sessions that only ping, at a third of their timeout. All servers have theirs at the same time, since their
/// clients hardly do anything.
pub async fn idle(
    servers: &[&Server],
    sessions: usize,
    timeout_ms: i32,
    spans: usize,
    span: Duration,
) -> Result<Idle> {
    let mut resident_kb_each = Vec::new();
    let mut latencies = Vec::new();
    let mut pinging = tokio::task::JoinSet::new();
    for server in servers {
        let before = resident_kb(&server.pids)?;
        let of_server = Arc::new(std::sync::Mutex::new(Vec::new()));
        for _ in 0..sessions {
            let mut session = Session::open(&server.address, timeout_ms).await?;
            let latencies = of_server.clone();
            pinging.spawn(async move {
                let each = Duration::from_millis(timeout_ms as u64 / 3);
                let mut ticks = tokio::time::interval(each);
                loop {
                    ticks.tick().await;
                    let begun = Instant::now();
                    if let Err(error) = session.call(op::PING, &[]).await {
                        return error;
                    }
                    if let Ok(mut latencies) = latencies.lock() {
                        latencies.push(begun.elapsed());
                    }
                }
            });
        }
        latencies.push(of_server);
        // Each has pinged by then.
        tokio::time::sleep(Duration::from_millis(timeout_ms as u64 / 3)).await;
        let used = resident_kb(&server.pids)? - before;
        resident_kb_each.push(used / sessions as f64);
    }
    let mut samples: Vec<Vec<Sample>> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..spans {
        let begun = servers
            .iter()
            .zip(&latencies)
            .map(|(server, latencies)| {
                if let Ok(mut latencies) = latencies.lock() {
                    latencies.clear();
                }
                Span::begin(server)
            })
            .collect::<Result<Vec<_>>>()?;
        tokio::time::sleep(span).await;
        for ((span, latencies), samples) in begun.into_iter().zip(&latencies).zip(&mut samples) {
            let latencies = latencies.lock().map(|l| l.clone()).unwrap_or_default();
            samples.push(span.end(latencies)?);
        }
        if let Some(Ok(error)) = pinging.try_join_next() {
            return Err(error.context("an idle session has ended"));
        }
    }
    let all = servers.iter().zip(&samples);
    Ok(Idle {
        figures: all
            .map(|(server, samples)| Figures::of(server, samples))
            .collect(),
        resident_kb: resident_kb_each,
    })
}

/// getData at one session, straight at the server and through a relay, in short turns: figures of both, and the
/// microseconds that the relay adds to the median.
pub async fn through_relay(
    direct: &Server,
    relay: &Server,
    turns: usize,
    operations: usize,
) -> Result<(Vec<Figures>, f64)> {
    let servers = [direct, relay];
    let (path, _) = instance("read", 0);
    let body = read_body(&path, false);
    let set_up = async |server: &Server| sessions(server, 1).await;
    let round = async |server: &Server, sessions: &mut Vec<Session>| {
        let session = sessions.first_mut().context("a session")?;
        let span = Span::begin(server)?;
        let mut latencies = Vec::with_capacity(operations);
        for _ in 0..operations {
            let begun = Instant::now();
            session.call(op::GET_DATA, &body).await?;
            latencies.push(begun.elapsed());
        }
        span.end(latencies)
    };
    let rounds = Rounds {
        warm_up: 3,
        counted: turns,
    };
    let figures = in_turn(&servers, rounds, set_up, round).await?;
    let p50: Vec<f64> = figures.iter().map(|f| f.p50).collect();
    let added = match p50[..] {
        [direct, relay] => relay - direct,
        _ => 0.0,
    };
    Ok((figures, added))
}

async fn sessions(server: &Server, count: usize) -> Result<Vec<Session>> {
    let mut sessions = Vec::with_capacity(count);
    for _ in 0..count {
        sessions.push(Session::open(&server.address, TIMEOUT_MS).await?);
    }
    Ok(sessions)
}

/// Sessions that rested while others were measured are alive, and go on living.
async fn refresh(sessions: &mut [Session]) -> Result<()> {
    try_join_all(sessions.iter_mut().map(|s| s.call(op::PING, &[]))).await?;
    Ok(())
}
