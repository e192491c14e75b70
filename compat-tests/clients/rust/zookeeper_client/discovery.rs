//! Registration by ephemeral children in Curator's form, and a reader that follows the list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::zookeeper_client::{Client, Error};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::support::{EPHEMERAL, PERSISTENT, connect};
use crate::common::{Place, equal, s, step, until};

type List = BTreeMap<String, String>;

/// One instance with its own session.
struct Instance {
    client: Client,
    id: &'static str,
    port: u16,
}

struct Service {
    address: String,
    path: String,
}

impl Service {
    fn value(&self, id: &str, port: u16, payload: &Value) -> Vec<u8> {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        json!({
            "name": name, "id": id, "address": "127.0.0.1", "port": port, "sslPort": null, "payload": payload,
            "registrationTimeUTC": 1_700_000_000_000_u64, "serviceType": "DYNAMIC", "uriSpec": null,
        })
        .to_string()
        .into_bytes()
    }

    fn node(&self, id: &str) -> String {
        format!("{}/{id}", self.path)
    }

    async fn register(&self, id: &'static str, port: u16) -> Result<Instance> {
        let client = connect(&self.address).await?;
        let value = self.value(id, port, &Value::Null);
        client.create(&self.node(id), &value, &EPHEMERAL).await?;
        Ok(Instance { client, id, port })
    }

    async fn read(&self, reader: &Client, id: &str) -> Result<Option<Value>> {
        match reader.get_data(&self.node(id)).await {
            Ok((data, _)) => Ok(Some(serde_json::from_slice(&data)?)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lists with a watch, for ever: the list after each event.
    async fn follow(&self, reader: Client, list: Arc<Mutex<Option<List>>>) -> Result<()> {
        loop {
            let (names, watcher) = reader.list_and_watch_children(&self.path).await?;
            let mut found = List::new();
            for name in names {
                // One that is gone between list and read has an event on its way.
                if let Some(record) = self.read(&reader, &name).await? {
                    let address = record["address"].as_str().context("no address")?;
                    found.insert(name, format!("{address}:{}", record["port"]));
                }
            }
            *list.lock().expect("list") = Some(found);
            watcher.changed().await;
        }
    }
}

pub(crate) async fn play(at: Place) {
    let service = Arc::new(Service {
        address: at.address.clone(),
        path: at.prefix.clone(),
    });
    let list = Arc::new(Mutex::new(None));
    let sees = async |up: &[Instance], limit| {
        let expected = up
            .iter()
            .map(|one| (one.id.to_owned(), format!("127.0.0.1:{}", one.port)))
            .collect();
        until(limit, "list", &Some(expected), async || {
            Ok(list.lock().expect("list").clone())
        })
        .await
    };
    let reader = step("empty", async {
        let reader = connect(&at.address).await?;
        reader.mkdir(&at.prefix, &PERSISTENT).await?;
        let (following, of, into) = (reader.clone(), service.clone(), list.clone());
        tokio::spawn(async move { of.follow(following, into).await });
        sees(&[], s(3)).await?;
        Ok(reader)
    })
    .await;
    let mut up = Vec::new();
    step("registered", async {
        for (id, port) in [("one", 7001), ("two", 7002), ("three", 7003)] {
            up.push(service.register(id, port).await?);
        }
        sees(&up, s(3)).await
    })
    .await;
    step("updated", async {
        let one = &up[0];
        let value = service.value(one.id, one.port, &json!("changed"));
        one.client
            .set_data(&service.node(one.id), &value, None)
            .await?;
        until(s(3), "payload", &Some(json!("changed")), async || {
            let record = service.read(&reader, "one").await?;
            Ok(record.map(|record| record["payload"].clone()))
        })
        .await
    })
    .await;
    step("left", async {
        let two = up.remove(1);
        two.client.delete(&service.node(two.id), None).await?;
        sees(&up, s(2)).await
    })
    .await;
    step("died", async {
        up.push(service.register("four", 7004).await?);
        up.push(service.register("five", 7005).await?);
        sees(&up, s(3)).await?;
        equal(&up.len(), &4, "instances")?;
        // Dropping a client closes its session.
        drop(up.remove(0));
        sees(&up, s(3)).await
    })
    .await;
    step("all-left", async {
        for instance in std::mem::take(&mut up) {
            let node = service.node(instance.id);
            instance.client.delete(&node, None).await?;
        }
        sees(&[], s(3)).await
    })
    .await;
}
