//! A session whose client is away for too long ends.

use ::zookeeper_client::{EventType, SessionState};
use anyhow::ensure;
use tokio::time::{Instant, sleep};

use super::support::{EPHEMERAL, PERSISTENT, connect, connect_for, fires, there};
use crate::common::{Place, equal, fault, ms, s, step, within};

pub(crate) async fn play(at: Place) {
    let node = format!("{}/e", at.prefix);
    let (a, b, watcher) = step("created", async {
        let b = connect(&at.address).await?;
        b.create(&at.prefix, b"", &PERSISTENT).await?;
        let a = connect_for(&at.link, s(4)).await?;
        a.create(&node, b"mine", &EPHEMERAL).await?;
        let (stat, watcher) = b.check_and_watch_stat(&node).await?;
        equal(
            &stat.map(|stat| stat.ephemeral_owner),
            &Some(a.session_id().0),
            "owner",
        )?;
        Ok((a, b, watcher))
    })
    .await;
    let mut states = a.state_watcher();
    let cut = step("kept", async {
        fault("cut").await?;
        let cut = Instant::now();
        sleep(ms(1500)).await;
        equal(&there(&b, &node).await?, &true, "the node is there")?;
        Ok(cut)
    })
    .await;
    step("gone", async {
        let left = s(9).saturating_sub(cut.elapsed());
        fires(watcher, EventType::NodeDeleted, &node, left).await?;
        ensure!(cut.elapsed() >= s(2), "gone after {:?}", cut.elapsed());
        equal(&there(&b, &node).await?, &false, "the node is there")
    })
    .await;
    step("told", async {
        fault("mend").await?;
        let expired = async { while states.changed().await != SessionState::Expired {} };
        within(s(10), "expired", expired).await
    })
    .await;
    step("again", async {
        let next = connect_for(&at.link, s(4)).await?;
        ensure!(next.session_id() != a.session_id(), "the same session");
        next.create(&node, b"mine", &EPHEMERAL).await?;
        let stat = b.check_stat(&node).await?;
        equal(
            &stat.map(|stat| stat.ephemeral_owner),
            &Some(next.session_id().0),
            "owner",
        )
    })
    .await;
}
