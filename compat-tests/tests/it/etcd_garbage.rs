//! Bodies that are almost what a client sends, as JSON and as protobuf, to every method at once: the process lives,
//! and a good client beside them misses nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::differential::Random;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::etcd::{Client, pool};
use causeway_compat_tests::raw::etcd_json::route;
use causeway_compat_tests::target::{self, Options};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::rpc::{Rpc, bytes, text};

/// Requests of each kind.
const THROWN: usize = 1500;
/// A good answer that takes longer is late, on a machine as slow as they come.
const LATE: Duration = Duration::from_secs(10);

#[test]
fn alone() {
    throw("causeway-embedded", &[]);
}

#[test]
fn after_the_take_over() {
    // The store behind it ends at an alarm with an unknown action (etcd: maintenanceServer.Alarm has no reply then).
    throw("causeway-merge-new", &["Alarm"]);
}

fn throw(name: &str, spared: &'static [&'static str]) {
    Work::scenario(&format!("etcd-garbage-{name}"), |work| {
        let target = target::start(work, name, &Options::default())?;
        beside_a_good_client(&target.one_address(Protocol::Etcd)?, spared)?;
        let log = std::fs::read_to_string(work.path("causeway.log"))?;
        ensure!(!log.contains("panicked"), "a panic: {log}");
        Ok(())
    });
}

fn beside_a_good_client(address: &str, spared: &'static [&'static str]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let rpc = Rpc::connect(address).await?;
        let mut watch = rpc.stream("Watch/Watch")?;
        watch.send(json!({"create_request": {"key": bytes("good")}}))?;
        watch.within(LATE).await?;
        let thrown = [
            tokio::spawn(protobuf(address.to_string(), spared)),
            tokio::spawn(json_bodies(address.to_string(), spared)),
        ];
        let mut count = 0;
        while !thrown.iter().all(tokio::task::JoinHandle::is_finished) || count < 50 {
            let asked = Instant::now();
            let request = json!({"key": bytes("good"), "value": bytes(count.to_string())});
            let answer = rpc.call("KV/Put", request).await;
            answer.map_err(|failure| anyhow::anyhow!("{failure:?} after {count}"))?;
            // A spoilt delete may hit the good key too; what was put is told all the same.
            while !is_told(&watch.within(LATE).await.context("the good watch")?, count) {}
            count += 1;
            ensure!(asked.elapsed() < LATE, "{:?}", asked.elapsed());
        }
        for thrown in thrown {
            thrown.await??;
        }
        Ok(())
    })
}

fn is_told(message: &Value, count: usize) -> bool {
    let events = message["events"].as_array().into_iter().flatten();
    let mut values = events.map(|event| text(&event["kv"]["value"]));
    values.any(|value| value == count.to_string())
}

/// Messages that hold something, which are then spoilt; below names of their own.
fn seeds() -> Vec<(&'static str, Value)> {
    let key = bytes("bad/a");
    let put = json!({"key": key, "value": bytes("v"), "lease": 7, "prev_kv": true});
    let range = json!({"key": key, "range_end": bytes("bad0"), "limit": 3, "sort_order": "DESCEND", "revision": 5});
    let delete = json!({"key": key, "range_end": bytes("bad0"), "prev_kv": true});
    let compare = json!({"key": key, "target": "VALUE", "result": "LESS", "value": bytes("v"), "range_end": bytes("bad0")});
    let txn = json!({
        "compare": [compare, {"key": key, "target": "LEASE", "lease": 1}],
        "success": [{"request_put": put}, {"request_txn": {"success": [{"request_range": range}, {}]}}],
        "failure": [{"request_delete_range": delete}],
    });
    let create = json!({"key": key, "range_end": bytes("bad0"), "start_revision": 3, "filters": ["NOPUT"], "watch_id": 4});
    vec![
        ("KV/Put", put),
        ("KV/Range", range),
        ("KV/DeleteRange", delete),
        ("KV/Txn", txn),
        ("KV/Compact", json!({"revision": 1})),
        ("Watch/Watch", json!({ "create_request": create })),
        ("Lease/LeaseGrant", json!({"TTL": 60, "ID": 77})),
        ("Lease/LeaseTimeToLive", json!({"ID": 77, "keys": true})),
        (
            "Maintenance/Alarm",
            json!({"action": "GET", "alarm": "NOSPACE"}),
        ),
        (
            "Auth/RoleGrantPermission",
            json!({"name": "r", "perm": {"permType": "READ", "key": key, "range_end": key}}),
        ),
    ]
}

fn spoil(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, u8::try_from(random.below(256)).unwrap_or(0)),
            2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {
                let part = bytes[..at].to_vec();
                bytes.extend_from_slice(&part);
            }
        }
    }
}

async fn protobuf(address: String, spared: &[&str]) -> Result<()> {
    use prost_reflect::prost::Message as _;
    use prost_reflect::{DeserializeOptions, DynamicMessage};

    let mut random = Random::new(1);
    let mut messages = Vec::new();
    let is_spared = |path: &str| spared.iter().any(|name| path.ends_with(name));
    for (name, seed) in seeds() {
        let path = format!("/etcdserverpb.{name}");
        let method = causeway_compat_tests::raw::etcd::method(&path).context("a method")?;
        let message = DynamicMessage::deserialize_with_options(
            method.input(),
            seed,
            &DeserializeOptions::new(),
        )?;
        if !is_spared(&path) {
            messages.push((path, message.encode_to_vec()));
        }
    }
    let paths: Vec<String> = pool()
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| format!("/{}/{}", method.parent_service().full_name(), method.name()))
        // Those that end what the good client needs.
        .filter(|path| !path.contains("AuthEnable") && !path.contains("MoveLeader"))
        .filter(|path| !is_spared(path))
        .collect();
    let mut client = Client::connect(&address).await?;
    for _ in 0..THROWN {
        let (own, message) = random.pick(&messages);
        let path = if random.chance(1, 3) {
            random.pick(&paths)
        } else {
            own
        };
        let mut message = message.clone();
        spoil(&mut random, &mut message);
        // Whatever the answer is; one that waits for a lock is left.
        let call = client.unary(path, &[], message.into());
        if timeout(Duration::from_millis(300), call).await.is_err() {
            client = Client::connect(&address).await?;
        }
    }
    Ok(())
}

async fn json_bodies(address: String, spared: &[&str]) -> Result<()> {
    let mut random = Random::new(2);
    let http = reqwest::Client::builder().no_proxy().build()?;
    let seeds = seeds();
    for _ in 0..THROWN {
        let (name, seed) = random.pick(&seeds);
        if spared.iter().any(|spared| name.ends_with(spared)) {
            continue;
        }
        let route = route(&format!("/etcdserverpb.{name}")).context("a route")?;
        let mut body = seed.to_string().into_bytes();
        match random.below(20) {
            0 => body = b"{\"success\":[".repeat(random.below(2000)),
            1 => body = b"[".repeat(random.below(4000)),
            _ => spoil(&mut random, &mut body),
        }
        let asked = http
            .post(format!("http://{address}{route}"))
            .body(body)
            .send();
        // A watch does not end: its answer is not read.
        let _ = timeout(Duration::from_millis(300), asked).await;
    }
    Ok(())
}
