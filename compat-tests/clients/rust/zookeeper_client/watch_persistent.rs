//! Persistent and recursive watches.

use ::zookeeper_client::{AddWatchMode, EventType, PersistentWatcher};
use anyhow::Result;
use tokio::time::timeout;

use super::support::{PERSISTENT, connect, what};
use crate::common::{Place, equal, lacks, ms, note, s, step, within};

use EventType::{NodeChildrenChanged, NodeCreated, NodeDataChanged, NodeDeleted};

/// Exactly these events, in this order, and none after them for a while.
async fn expect(watcher: &mut PersistentWatcher, expected: &[(EventType, &str)]) -> Result<()> {
    for &(kind, path) in expected {
        let event = within(s(5), "event", watcher.changed()).await?;
        equal(&what(&event), &(kind, path.to_owned()), "event")?;
    }
    let more = timeout(ms(300), watcher.changed()).await.ok();
    equal(&more.as_ref().map(what), &None, "one more event")
}

pub(crate) async fn play(at: Place) {
    let node = format!("{}/node", at.prefix);
    let child = format!("{node}/child");
    let (a, b, mut watcher) = step("persistent", async {
        let a = connect(&at.address).await?;
        let b = connect(&at.address).await?;
        b.create(&at.prefix, b"", &PERSISTENT).await?;
        b.create(&node, b"", &PERSISTENT).await?;
        let mut watcher = a.watch(&node, AddWatchMode::Persistent).await?;
        b.set_data(&node, b"one", None).await?;
        b.set_data(&node, b"two", None).await?;
        b.create(&child, b"", &PERSISTENT).await?;
        let expected = [
            (NodeDataChanged, node.as_str()),
            (NodeDataChanged, &node),
            (NodeChildrenChanged, &node),
        ];
        expect(&mut watcher, &expected).await?;
        Ok((a, b, watcher))
    })
    .await;
    step("stays-over-delete", async {
        b.delete(&child, None).await?;
        b.delete(&node, None).await?;
        b.create(&node, b"", &PERSISTENT).await?;
        let expected = [
            (NodeChildrenChanged, node.as_str()),
            (NodeDeleted, &node),
            (NodeCreated, &node),
        ];
        expect(&mut watcher, &expected).await
    })
    .await;
    let tree = format!("{}/tree", at.prefix);
    step("recursive", async {
        b.create(&tree, b"", &PERSISTENT).await?;
        let mut watcher = a.watch(&tree, AddWatchMode::PersistentRecursive).await?;
        let (one, two) = (format!("{tree}/a"), format!("{tree}/a/b"));
        b.create(&one, b"", &PERSISTENT).await?;
        b.create(&two, b"", &PERSISTENT).await?;
        b.set_data(&two, b"one", None).await?;
        b.delete(&two, None).await?;
        let expected = [
            (NodeCreated, one.as_str()),
            (NodeCreated, &two),
            (NodeDataChanged, &two),
            (NodeDeleted, &two),
        ];
        expect(&mut watcher, &expected).await
    })
    .await;
    step("removed", async {
        note("the removal is answered; an event after it has no watcher that could see it");
        #[allow(deprecated, reason = "the only call that shows the server's answer")]
        watcher.remove().await?;
        b.set_data(&node, b"three", None).await?;
        let mut states = a.state_watcher();
        let _ = states.state();
        let change = timeout(s(1), states.changed()).await.ok();
        equal(&change, &None, "change of the state")
    })
    .await;
    lacks(
        "remove-none",
        "a watch is removed by its watcher, which is there",
    );
}
