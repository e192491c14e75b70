//! What no script can say because it happens at once: many streams on one connection, writes in parallel, watchers that
//! do not read, hand-over from the past to the present, pings. The real etcd does all of it first.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::target::{self, Options, connect};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::rpc::{Flow, Rpc, bytes, int, revision, text};

/// Anything that has to come comes within this time.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_real_etcd() {
    all("etcd-3.7");
}

#[test]
fn alone() {
    all("causeway-embedded");
}

#[test]
fn as_a_relay() {
    all("causeway-relay");
}

#[test]
fn after_the_take_over() {
    all("causeway-merge-new");
}

fn all(name: &str) {
    Work::scenario(&format!("streams-{name}"), |work| {
        let mut target = target::start(work, name, &Options::default())?;
        let address = target.one_address(Protocol::Etcd)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let rpc = Rpc::connect(&address).await?;
            thousand_streams(&rpc).await.context("thousand_streams")?;
            parallel_writes(&rpc).await.context("parallel_writes")?;
            creates_under_puts(&rpc)
                .await
                .context("creates_under_puts")?;
            hand_over(&rpc).await.context("hand_over")?;
            whole_revisions(&rpc).await.context("whole_revisions")?;
            a_watcher_that_does_not_read(&address)
                .await
                .context("a_watcher_that_does_not_read")?;
            no_beat_after_a_revoke(&rpc)
                .await
                .context("no_beat_after_a_revoke")?;
            progress_is_a_promise(&rpc)
                .await
                .context("progress_is_a_promise")?;
            json_lines_flow(&address).await.context("json_lines_flow")
        })?;
        let ids = runtime.block_on(ids(&address))?;
        if name.starts_with("causeway") {
            // The real one allows a ping in five seconds, and none on an idle connection: nobody may be stricter.
            pings(&address).context("pings")?;
            refusals_wait_for_the_body(&address).context("refusals_wait_for_the_body")?;
        }
        target.fault(&"restart".parse()?)?;
        ensure!(
            runtime.block_on(self::ids(&address))? == ids,
            "cluster and member are others after a restart"
        );
        if matches!(name, "causeway-relay" | "causeway-merge-new") {
            let rpc = runtime.block_on(Rpc::connect(&address))?;
            let mut watch = runtime.block_on(watching(&rpc, "loss", 0))?;
            target.fault(&"legacy etcd kill".parse()?)?;
            runtime.block_on(loss_is_unavailable(&rpc, &mut watch))?;
        }
        Ok(())
    });
}

/// A created watch on a key or, with a slash at the end, on what lies below it.
async fn watching(rpc: &Rpc, key: &str, start: i64) -> Result<Flow> {
    let mut flow = rpc.stream("Watch/Watch")?;
    flow.send(json!({ "create_request": create(key, start) }))?;
    let created = flow.within(SOON).await?;
    ensure!(created["created"] == true, "{created}");
    Ok(flow)
}

fn create(key: &str, start: i64) -> Value {
    let end = if key.ends_with('/') {
        bytes(format!("{}0", key.trim_end_matches('/')))
    } else {
        String::new()
    };
    json!({"key": bytes(key), "range_end": end, "start_revision": start})
}

async fn put(rpc: &Rpc, key: &str, value: &str) -> Result<i64> {
    let request = json!({"key": bytes(key), "value": bytes(value)});
    let answer = rpc.call("KV/Put", request).await;
    Ok(revision(
        &answer.map_err(|failure| anyhow::anyhow!("{failure:?}"))?,
    ))
}

/// The revisions of the events in a message.
fn revisions(message: &Value) -> Vec<i64> {
    let events = message["events"].as_array().map(Vec::as_slice);
    let events = events.unwrap_or_default().iter();
    events
        .map(|event| int(&event["kv"]["mod_revision"]))
        .collect()
}

/// Reads until `last` was told; everything from `first` on has to be told once and in order.
async fn told(flow: &mut Flow, first: i64, last: i64) -> Result<()> {
    let mut all = Vec::new();
    while all.last().is_none_or(|at| *at < last) {
        let message = flow
            .within(SOON)
            .await
            .with_context(|| format!("after {all:?}"))?;
        ensure!(message["canceled"] != true, "{message}");
        all.extend(revisions(&message));
    }
    ensure!(
        all.is_sorted_by(|one, next| one < next),
        "out of order or twice: {all:?}"
    );
    ensure!(
        all.first().is_some_and(|at| *at == first),
        "begins at {:?} and not at {first}",
        all.first()
    );
    Ok(())
}

/// As many streams as a client wants on one connection (etcd: no MaxConcurrentStreams).
async fn thousand_streams(rpc: &Rpc) -> Result<()> {
    let opened = (0..1000).map(|_| watching(rpc, "streams", 0));
    let mut flows = try_join_all(opened).await?;
    let at = put(rpc, "streams", "1").await?;
    for flow in &mut flows {
        let message = flow.within(SOON).await?;
        ensure!(revisions(&message) == [at], "{message}");
    }
    Ok(())
}

/// Each write has a revision of its own, and all of them together no gap that a watcher would see.
async fn parallel_writes(rpc: &Rpc) -> Result<()> {
    let mut flow = watching(rpc, "parallel/", 0).await?;
    let keys: Vec<String> = (0..64)
        .map(|number| format!("parallel/{}", number % 8))
        .collect();
    let puts = keys.iter().map(|key| put(rpc, key, "x"));
    let at: BTreeSet<i64> = try_join_all(puts).await?.into_iter().collect();
    ensure!(at.len() == 64, "{} revisions of 64 puts", at.len());
    let mut seen = BTreeSet::new();
    while seen.len() < 64 {
        seen.extend(revisions(&flow.within(SOON).await?));
    }
    ensure!(seen == at, "told of {seen:?}, acknowledged {at:?}");
    // Of writers that compare the same number one passes.
    let key = bytes("parallel/one");
    let swap = json!({
        "compare": [{"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": 0}],
        "success": [{"request_put": {"key": key, "value": bytes("1")}}],
    });
    let swaps = (0..32).map(|_| rpc.call("KV/Txn", swap.clone()));
    let answers = try_join_all(swaps).await;
    let answers = answers.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    let done = answers.iter().filter(|answer| answer["succeeded"] == true);
    ensure!(done.count() == 1, "several passed");
    Ok(())
}

/// The header of a created watch is the point from which its events are whole. One or two from before may come too:
/// etcd tells watchers of a change before it counts it.
async fn creates_under_puts(rpc: &Rpc) -> Result<()> {
    let writer = rpc.clone();
    let puts = tokio::spawn(async move {
        let mut all = Vec::new();
        for number in 0..300 {
            all.push(put(&writer, "creates", &number.to_string()).await?);
        }
        anyhow::Ok(all)
    });
    let mut flow = rpc.stream("Watch/Watch")?;
    for _ in 0..100 {
        flow.send(json!({ "create_request": create("creates", 0) }))?;
        sleep(Duration::from_millis(1)).await;
    }
    let mut from = [0; 100];
    let mut events = vec![Vec::new(); 100];
    let mut created = 0;
    let mut all: Option<Vec<i64>> = None;
    let mut puts = Some(puts);
    loop {
        if let (Some(task), true) = (&puts, created == 100)
            && task.is_finished()
            && let Some(task) = puts.take()
        {
            all = Some(task.await??);
        }
        let last = all.as_ref().and_then(|all| all.last()).copied();
        if last.is_some_and(|last| {
            events
                .iter()
                .zip(from)
                .all(|(e, from)| from >= last || e.last() == Some(&last))
        }) {
            break;
        }
        let Ok(next) = timeout(Duration::from_millis(200), flow.next()).await else {
            ensure!(all.is_none(), "not all watchers were told of {last:?}");
            continue;
        };
        let message = next.context("the stream ended")?;
        let message = message.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        let id = usize::try_from(int(&message["watch_id"]))?;
        if message["created"] == true {
            ensure!(id == created, "the answer to create {created} is {id}");
            from[id] = revision(&message);
            created += 1;
        }
        ensure!(id < created, "an event before its watch");
        events[id].extend(revisions(&message));
    }
    let all = all.unwrap_or_default();
    for (from, events) in from.into_iter().zip(events) {
        let due: Vec<i64> = all.iter().copied().filter(|at| *at > from).collect();
        ensure!(
            all.ends_with(&events) && events.ends_with(&due),
            "after {from}: {events:?} and not {due:?}"
        );
    }
    Ok(())
}

/// Watches that begin in the past while writes go on have neither a gap nor anything twice.
async fn hand_over(rpc: &Rpc) -> Result<()> {
    let writer = rpc.clone();
    let mut before = Vec::new();
    for number in 0..60 {
        before.push(put(rpc, "hand-over", &number.to_string()).await?);
    }
    let puts = tokio::spawn(async move {
        let mut last = 0;
        for number in 0..200 {
            last = put(&writer, "hand-over", &format!("on-{number}")).await?;
        }
        anyhow::Ok(last)
    });
    let mut flows = Vec::new();
    for start in before.iter().skip(10).step_by(7) {
        flows.push((*start, watching(rpc, "hand-over", *start).await?));
    }
    let last = puts.await??;
    for (start, flow) in &mut flows {
        told(flow, *start, last).await?;
    }
    Ok(())
}

/// A transaction of a hundred puts, seen from the past and from the present, is one message.
async fn whole_revisions(rpc: &Rpc) -> Result<()> {
    let mut live = watching(rpc, "whole/", 0).await?;
    let puts: Vec<Value> = (0..100)
        .map(|number| {
            let key = bytes(format!("whole/{number:03}"));
            json!({"request_put": {"key": key, "value": bytes("1")}})
        })
        .collect();
    let answer = rpc.call("KV/Txn", json!({ "success": puts })).await;
    let at = revision(&answer.map_err(|failure| anyhow::anyhow!("{failure:?}"))?);
    let mut late = watching(rpc, "whole/", at).await?;
    for flow in [&mut live, &mut late] {
        let message = flow.within(SOON).await?;
        let seen = revisions(&message);
        ensure!(
            seen.len() == 100 && seen.iter().all(|r| *r == at),
            "{} events",
            seen.len()
        );
        let keys = message["events"].as_array().into_iter().flatten();
        let keys: Vec<String> = keys.map(|event| text(&event["kv"]["key"])).collect();
        ensure!(
            keys.is_sorted(),
            "in the order of the transaction: {keys:?}"
        );
    }
    Ok(())
}

/// A connection that does not read holds up nobody, and misses nothing.
async fn a_watcher_that_does_not_read(address: &str) -> Result<()> {
    let (writer, reader, lagging) = (
        Rpc::connect(address).await?,
        Rpc::connect(address).await?,
        Rpc::connect(address).await?,
    );
    let mut asleep = watching(&lagging, "bulk", 0).await?;
    let mut flows = Vec::new();
    for _ in 0..20 {
        flows.push(watching(&reader, "bulk", 0).await?);
    }
    let value = "v".repeat(20_000);
    let first = put(&writer, "bulk", &value).await?;
    let mut last = first;
    for _ in 0..300 {
        last = put(&writer, "bulk", &value).await?;
    }
    let began = Instant::now();
    for flow in &mut flows {
        told(flow, first, last).await?;
    }
    ensure!(began.elapsed() < SOON, "{:?} behind", began.elapsed());
    told(&mut asleep, first, last)
        .await
        .context("the one that was asleep")
}

/// Once a revoke is answered no keep-alive finds the lease alive.
async fn no_beat_after_a_revoke(rpc: &Rpc) -> Result<()> {
    for _ in 0..20 {
        let granted = rpc.call("Lease/LeaseGrant", json!({"TTL": 600})).await;
        let granted = granted.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        let id = json!({ "ID": int(&granted["ID"]) });
        let mut beats = rpc.stream("Lease/LeaseKeepAlive")?;
        for _ in 0..10 {
            beats.send(id.clone())?;
        }
        let revoked = rpc.call("Lease/LeaseRevoke", id.clone()).await;
        revoked.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        beats.send(id.clone())?;
        let mut last = Value::Null;
        for _ in 0..11 {
            last = beats.within(SOON).await?;
        }
        ensure!(int(&last["TTL"]) == 0, "{last} after the revoke");
    }
    Ok(())
}

/// No event at or below an announced revision comes behind it; an idle stream that is asked answers at once.
async fn progress_is_a_promise(rpc: &Rpc) -> Result<()> {
    let mut flow = watching(rpc, "progress", 0).await?;
    let writer = rpc.clone();
    let puts = tokio::spawn(async move {
        for number in 0..300 {
            put(&writer, "progress", &number.to_string()).await?;
        }
        put(&writer, "progress", "last").await
    });
    let (mut promised, mut answers) = (0, 0);
    loop {
        flow.send(json!({"progress_request": {}}))?;
        let message = flow.within(SOON).await?;
        let told = revisions(&message);
        ensure!(
            told.iter().all(|at| *at > promised),
            "{told:?} after {promised}"
        );
        if told.is_empty() {
            ensure!(int(&message["watch_id"]) == -1, "{message}");
            ensure!(revision(&message) >= promised, "{message} after {promised}");
            promised = revision(&message);
            answers += 1;
        }
        if puts.is_finished() && told.is_empty() {
            break;
        }
    }
    let last = puts.await??;
    ensure!(answers > 0, "never answered");
    let asked = Instant::now();
    while promised < last {
        flow.send(json!({"progress_request": {}}))?;
        let message = flow.within(SOON).await?;
        if revisions(&message).is_empty() {
            promised = revision(&message);
        }
        ensure!(asked.elapsed() < SOON, "stays at {promised} below {last}");
    }
    Ok(())
}

/// Over JSON each event is flushed as it happens, and is a line.
async fn json_lines_flow(address: &str) -> Result<()> {
    let rpc = Rpc::connect(address).await?;
    let request = json!({ "create_request": create("lines", 0) });
    let mut reply = reqwest::Client::builder()
        .no_proxy()
        .build()?
        .post(format!("http://{address}/v3/watch"))
        .body(request.to_string())
        .send()
        .await?;
    let mut line = async || -> Result<Value> {
        let mut text = Vec::new();
        while text.last() != Some(&b'\n') {
            let chunk = timeout(SOON, reply.chunk()).await.context("silence")??;
            text.extend_from_slice(&chunk.context("the answer ended")?);
        }
        Ok(serde_json::from_slice(&text)?)
    };
    let created = line().await?;
    ensure!(created["result"]["created"] == true, "{created}");
    for number in 0..3 {
        let at = put(&rpc, "lines", &number.to_string()).await?;
        let event = line().await?;
        ensure!(revisions(&event["result"]) == [at], "{event}");
    }
    Ok(())
}

/// Cluster and member as headers have them; the member is one that is listed.
async fn ids(address: &str) -> Result<(String, String)> {
    let deadline = Instant::now() + SOON;
    let rpc = Rpc::connect(address).await?;
    loop {
        match rpc.call("Cluster/MemberList", json!({})).await {
            Ok(list) => {
                let header = &list["header"];
                let ids = ["cluster_id", "member_id"].map(|name| header[name].as_str());
                let [Some(cluster), Some(member)] = ids else {
                    bail!("{list}");
                };
                let listed = list["members"].as_array().into_iter().flatten();
                let listed = listed.filter(|other| other["ID"] == member);
                ensure!(listed.count() == 1, "{list}");
                return Ok((cluster.to_string(), member.to_string()));
            }
            Err(failure) if Instant::now() > deadline => bail!("{failure:?}"),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// When the store is gone, streams and calls end with what clients come back from.
async fn loss_is_unavailable(rpc: &Rpc, watch: &mut Flow) -> Result<()> {
    let ended = timeout(SOON, async {
        loop {
            match watch.next().await {
                Some(Ok(_)) => {}
                Some(Err(failure)) => return Ok(failure),
                None => bail!("the watch ended without an error"),
            }
        }
    });
    let ended = ended.await.context("the watch hangs")??;
    ensure!(ended.code == Code::Unavailable, "{ended:?}");
    let request = json!({"key": bytes("loss"), "value": bytes("1")});
    match rpc.call("KV/Put", request).await {
        Err(failure) if failure.code == Code::Unavailable => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// HTTP/2 frame by frame, for what no library lets through or shows.
struct Frames(TcpStream);

struct Frame {
    kind: u8,
    flags: u8,
    stream: u8,
    body: Vec<u8>,
}

impl Frames {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    /// Of DATA and HEADERS: nothing comes after it.
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    /// Of PING and SETTINGS.
    const ACK: u8 = 1;

    fn open(address: &str) -> Result<Frames> {
        let port = address.rsplit(':').next().unwrap_or_default().parse()?;
        let mut stream = connect(port)?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        let mut frames = Frames(stream);
        frames.send(Frames::SETTINGS, 0, 0, &[])?;
        Ok(frames)
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u8, body: &[u8]) -> Result<()> {
        let length = u8::try_from(body.len()).context("a short frame")?;
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(body);
        Ok(self.0.write_all(&frame)?)
    }

    fn next(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).context("a frame")?;
        let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        self.0.read_exact(&mut body)?;
        Ok(Frame {
            kind: head[3],
            flags: head[4],
            stream: head[8],
            body,
        })
    }

    /// What came up to the answer to a ping of now, which the server sends behind all that it had to say.
    fn until_ping(&mut self, number: u8) -> Result<Vec<Frame>> {
        self.send(Frames::PING, 0, 0, &[number; 8])?;
        let mut frames = Vec::new();
        loop {
            let frame = self.next()?;
            ensure!(frame.kind != Frames::GOAWAY, "sent away: {:?}", frame.body);
            if frame.kind == Frames::PING && frame.flags == Frames::ACK {
                return Ok(frames);
            }
            frames.push(frame);
        }
    }
}

/// Pings far more often than etcd allows, on an idle connection: each is answered, and nobody is sent away.
fn pings(address: &str) -> Result<()> {
    let mut frames = Frames::open(address)?;
    for number in 0..20_u8 {
        frames
            .until_ping(number)
            .with_context(|| format!("ping {number}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A request that is refused by its head alone: its client still writes its body, and some clients (curl before 8)
/// take a stream that is reset meanwhile for an error, whatever stood on it.
fn refusals_wait_for_the_body(address: &str) -> Result<()> {
    let mut frames = Frames::open(address)?;
    for (number, path) in [(1, "/v3/nothing"), (3, "/nothing"), (5, "/version")] {
        let head = loona_hpack::Encoder::new().encode([
            (&b":method"[..], &b"POST"[..]),
            (b":scheme", b"http"),
            (b":authority", b"localhost"),
            (b":path", path.as_bytes()),
        ]);
        frames.send(Frames::HEADERS, Frames::END_HEADERS, number, &head)?;
        frames.send(Frames::DATA, 0, number, b"{\"key\":")?;
        let mut come = frames.until_ping(number)?;
        std::thread::sleep(Duration::from_millis(100));
        frames.send(Frames::DATA, Frames::END_STREAM, number, b"\"aw==\"}")?;
        let over = |frame: &Frame| frame.stream == number && frame.flags & Frames::END_STREAM != 0;
        while !come.iter().any(over) {
            come.push(frames.next()?);
        }
        come.extend(frames.until_ping(number)?);
        let of_it = || come.iter().filter(|frame| frame.stream == number);
        ensure!(
            of_it().all(|frame| frame.kind != Frames::RST_STREAM),
            "{path}: the stream was reset"
        );
        ensure!(
            of_it()
                .next()
                .is_some_and(|first| first.kind == Frames::HEADERS),
            "{path}: no answer"
        );
    }
    Ok(())
}
