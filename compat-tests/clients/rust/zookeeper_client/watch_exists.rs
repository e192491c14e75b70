//! One-shot watches set by exists.

use ::zookeeper_client::EventType;

use super::support::{PERSISTENT, connect, fires, silent};
use crate::common::{Place, equal, s, step};

pub(crate) async fn play(at: Place) {
    let node = format!("{}/node", at.prefix);
    let (a, b) = step("created", async {
        let a = connect(&at.address).await?;
        let b = connect(&at.address).await?;
        b.create(&at.prefix, b"", &PERSISTENT).await?;
        let (stat, watcher) = a.check_and_watch_stat(&node).await?;
        equal(&stat, &None, "stat")?;
        b.create(&node, b"", &PERSISTENT).await?;
        fires(watcher, EventType::NodeCreated, &node, s(5)).await?;
        Ok((a, b))
    })
    .await;
    step("changed", async {
        let (_, watcher) = a.check_and_watch_stat(&node).await?;
        b.set_data(&node, b"one", None).await?;
        fires(watcher, EventType::NodeDataChanged, &node, s(5)).await
    })
    .await;
    step("deleted", async {
        let (_, watcher) = a.check_and_watch_stat(&node).await?;
        b.delete(&node, None).await?;
        fires(watcher, EventType::NodeDeleted, &node, s(5)).await
    })
    .await;
    step("children-silent", async {
        b.create(&node, b"", &PERSISTENT).await?;
        let (_, watcher) = a.check_and_watch_stat(&node).await?;
        b.create(&format!("{node}/child"), b"", &PERSISTENT).await?;
        silent(watcher).await
    })
    .await;
}
