//! One-shot watches on the list of children.

use ::zookeeper_client::EventType;
use tokio::time::timeout;

use super::support::{EPHEMERAL, PERSISTENT, connect, fires, silent};
use crate::common::{Place, equal, s, step, within};

const CHANGED: EventType = EventType::NodeChildrenChanged;

pub(crate) async fn play(at: Place) {
    let parent = format!("{}/parent", at.prefix);
    let child = format!("{parent}/a");
    let (a, b) = step("created", async {
        let a = connect(&at.address).await?;
        let b = connect(&at.address).await?;
        b.create(&at.prefix, b"", &PERSISTENT).await?;
        b.create(&parent, b"", &PERSISTENT).await?;
        let (_, watcher) = a.list_and_watch_children(&parent).await?;
        b.create(&child, b"", &PERSISTENT).await?;
        fires(watcher, CHANGED, &parent, s(2)).await?;
        Ok((a, b))
    })
    .await;
    step("deleted", async {
        let (_, _, watcher) = a.get_and_watch_children(&parent).await?;
        b.delete(&child, None).await?;
        fires(watcher, CHANGED, &parent, s(2)).await
    })
    .await;
    step("data-silent", async {
        b.create(&child, b"", &PERSISTENT).await?;
        let (_, watcher) = a.list_and_watch_children(&parent).await?;
        b.set_data(&child, b"one", None).await?;
        b.set_data(&parent, b"one", None).await?;
        silent(watcher).await
    })
    .await;
    step("grandchild-silent", async {
        let (_, watcher) = a.list_and_watch_children(&parent).await?;
        let grandchild = format!("{child}/b");
        b.create(&grandchild, b"", &PERSISTENT).await?;
        silent(watcher).await?;
        b.delete(&grandchild, None).await?;
        b.delete(&child, None).await?;
        Ok(())
    })
    .await;
    step("parent-deleted", async {
        let (_, watcher) = a.list_and_watch_children(&parent).await?;
        b.delete(&parent, None).await?;
        fires(watcher, EventType::NodeDeleted, &parent, s(2)).await
    })
    .await;
    step("ephemeral", async {
        b.create(&parent, b"", &PERSISTENT).await?;
        let c = connect(&at.address).await?;
        c.create(&format!("{parent}/e"), b"", &EPHEMERAL).await?;
        let (_, watcher) = a.list_and_watch_children(&parent).await?;
        drop(c);
        fires(watcher, CHANGED, &parent, s(2)).await
    })
    .await;
    step("follow", async {
        let expected: Vec<String> = (0..20).map(|i| format!("c{i:02}")).collect();
        let (writer, folder, names) = (b.clone(), parent.clone(), expected.clone());
        let (mut seen, mut watcher) = a.list_and_watch_children(&parent).await?;
        let writing = tokio::spawn(async move {
            for name in names {
                writer
                    .create(&format!("{folder}/{name}"), b"", &PERSISTENT)
                    .await?;
            }
            anyhow::Ok(())
        });
        while seen.len() < expected.len() {
            if timeout(s(5), watcher.changed()).await.is_err() {
                anyhow::bail!("no event for 5 s, children {seen:?}");
            }
            (seen, watcher) = a.list_and_watch_children(&parent).await?;
        }
        within(s(5), "writer", writing).await???;
        seen.sort();
        equal(&seen, &expected, "children")
    })
    .await;
}
