//! Instances under leases, and a prefix watch that follows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::etcd_client::{Client, EventType, GetOptions, PutOptions};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::support::{connect, keep_alive, prefix, revision};
use crate::common::{Place, equal, lacks, s, step, until};

type List = BTreeMap<String, Value>;

struct Instance {
    client: Client,
    lease: i64,
    renewal: JoinHandle<()>,
    address: String,
}

async fn register(at: &Place, port: u16, ttl: u64) -> Result<Instance> {
    let mut client = connect(&at.address).await?;
    let lease = client.lease_grant(i64::try_from(ttl)?, None).await?.id();
    let renewal = keep_alive(&client, lease, s(ttl));
    let address = format!("127.0.0.1:{port}");
    let options = PutOptions::new().with_lease(lease);
    let value = value(&address, &Value::Null);
    client
        .put(
            format!("{}/{address}", at.prefix),
            value.to_string(),
            Some(options),
        )
        .await?;
    Ok(Instance {
        client,
        lease,
        renewal,
        address,
    })
}

fn value(address: &str, metadata: &Value) -> Value {
    json!({"Op": 0, "Addr": address, "Metadata": metadata})
}

/// The list, then a watch from the revision after it.
async fn follow(mut client: Client, folder: String, list: Arc<Mutex<Option<List>>>) -> Result<()> {
    let name = |key: &[u8]| {
        String::from_utf8_lossy(key.get(folder.len()..).unwrap_or_default()).into_owned()
    };
    let options = GetOptions::new().with_prefix();
    let answer = client.get(folder.as_str(), Some(options)).await?;
    let mut now = List::new();
    for kv in answer.kvs() {
        now.insert(name(kv.key()), serde_json::from_slice(kv.value())?);
    }
    *list.lock().expect("list") = Some(now.clone());
    let from = prefix().with_start_revision(revision(answer.header())? + 1);
    let mut stream = client.watch(folder.as_str(), Some(from)).await?;
    while let Some(answer) = stream.message().await? {
        for event in answer.events() {
            let kv = event.kv().context("no pair")?;
            if event.event_type() == EventType::Put {
                now.insert(name(kv.key()), serde_json::from_slice(kv.value())?);
            } else {
                now.remove(&name(kv.key()));
            }
        }
        *list.lock().expect("list") = Some(now.clone());
    }
    Ok(())
}

pub(crate) async fn play(at: Place) {
    let list = Arc::new(Mutex::new(None));
    let shown = async || anyhow::Ok(list.lock().expect("list").clone());
    let sees = async |up: &[Instance], limit| {
        let mut expected: Vec<_> = up.iter().map(|one| one.address.clone()).collect();
        expected.sort();
        until(limit, "list", &Some(expected), async || {
            let now: Option<List> = shown().await?;
            Ok(now.map(|list| list.into_keys().collect::<Vec<_>>()))
        })
        .await
    };
    step("empty", async {
        let reader = connect(&at.address).await?;
        tokio::spawn(follow(reader, format!("{}/", at.prefix), list.clone()));
        sees(&[], s(3)).await
    })
    .await;
    let mut up = Vec::new();
    step("registered", async {
        for port in [7001, 7002, 7003] {
            up.push(register(&at, port, 10).await?);
        }
        sees(&up, s(3)).await?;
        let now = shown().await?.context("no list")?;
        let expected = value("127.0.0.1:7002", &Value::Null);
        equal(&now.get("127.0.0.1:7002"), &Some(&expected), "value")
    })
    .await;
    lacks("called", "no grpc resolver");
    step("left", async {
        let mut one = up.remove(0);
        one.renewal.abort();
        one.client.lease_revoke(one.lease).await?;
        sees(&up, s(2)).await
    })
    .await;
    step("updated", async {
        let two = &mut up[0];
        let changed = value(&two.address, &json!({"weight": 2}));
        let options = PutOptions::new().with_lease(two.lease);
        let key = format!("{}/{}", at.prefix, two.address);
        two.client
            .put(key, changed.to_string(), Some(options))
            .await?;
        let address = two.address.clone();
        until(s(3), "value", &Some(changed), async || {
            Ok(shown().await?.and_then(|list| list.get(&address).cloned()))
        })
        .await
    })
    .await;
    step("died", async {
        up.push(register(&at, 7004, 10).await?);
        up.push(register(&at, 7005, 3).await?);
        sees(&up, s(3)).await?;
        if let Some(last) = up.pop() {
            last.renewal.abort();
        }
        sees(&up, s(8)).await
    })
    .await;
    step("all-left", async {
        for mut instance in std::mem::take(&mut up) {
            let key = format!("{}/{}", at.prefix, instance.address);
            instance.client.delete(key, None).await?;
            instance.renewal.abort();
            instance.client.lease_revoke(instance.lease).await?;
        }
        sees(&[], s(3)).await
    })
    .await;
}
