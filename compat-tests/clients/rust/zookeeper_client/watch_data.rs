//! One-shot watches on a value.

use ::zookeeper_client::{Error, EventType};
use tokio::time::timeout;

use super::support::{PERSISTENT, connect, fires, refused, what};
use crate::common::{Place, equal, ms, note, s, step};

const CHANGED: EventType = EventType::NodeDataChanged;

pub(crate) async fn play(at: Place) {
    let node = format!("{}/node", at.prefix);
    let (a, b) = step("once", async {
        note("a watcher is spent by its event: a second one could not be seen");
        let a = connect(&at.address).await?;
        let b = connect(&at.address).await?;
        b.create(&at.prefix, b"", &PERSISTENT).await?;
        b.create(&node, b"zero", &PERSISTENT).await?;
        let (_, _, watcher) = a.get_and_watch_data(&node).await?;
        b.set_data(&node, b"one", None).await?;
        b.set_data(&node, b"two", None).await?;
        fires(watcher, CHANGED, &node, s(5)).await?;
        Ok((a, b))
    })
    .await;
    step("before", async {
        let (_, _, watcher) = a.get_and_watch_data(&node).await?;
        let mut changed = Box::pin(watcher.changed());
        let (writer, path) = (b.clone(), node.clone());
        let written = tokio::spawn(async move { writer.set_data(&path, b"three", None).await });
        while a.get_data(&node).await?.0 != b"three" {}
        // It has to be there by now: nothing is waited for.
        let event = timeout(ms(0), &mut changed).await.ok();
        equal(
            &event.as_ref().map(what),
            &Some((CHANGED, node.clone())),
            "event before the reply that shows the change",
        )?;
        written.await??;
        Ok(())
    })
    .await;
    step("again", async {
        for value in [b"four", b"five"] {
            let (_, _, watcher) = a.get_and_watch_data(&node).await?;
            b.set_data(&node, value, None).await?;
            fires(watcher, CHANGED, &node, s(5)).await?;
        }
        Ok(())
    })
    .await;
    step("deleted", async {
        let (_, _, watcher) = a.get_and_watch_data(&node).await?;
        b.delete(&node, None).await?;
        fires(watcher, EventType::NodeDeleted, &node, s(5)).await?;
        b.create(&node, b"", &PERSISTENT).await?;
        Ok(())
    })
    .await;
    step("both", async {
        let (_, _, first) = a.get_and_watch_data(&node).await?;
        let (_, _, second) = a.get_and_watch_data(&node).await?;
        b.set_data(&node, b"six", None).await?;
        fires(first, CHANGED, &node, s(5)).await?;
        fires(second, CHANGED, &node, s(5)).await
    })
    .await;
    step("none", async {
        // The failed call gives no watcher; an event without one would end the crate's session.
        let missing = format!("{}/missing", at.prefix);
        let answer = a.get_and_watch_data(&missing).await;
        refused(answer.map(|_| ()), &Error::NoNode, "get")?;
        let session = a.session_id();
        b.create(&missing, b"", &PERSISTENT).await?;
        let mut states = a.state_watcher();
        let _ = states.state();
        let change = timeout(s(1), states.changed()).await.ok();
        equal(&change, &None, "change of the state")?;
        equal(&a.session_id(), &session, "session")
    })
    .await;
    step("own", async {
        let (_, _, watcher) = a.get_and_watch_data(&node).await?;
        a.set_data(&node, b"seven", None).await?;
        fires(watcher, CHANGED, &node, s(5)).await
    })
    .await;
}
