//! Sessions, their timeouts and their end.

use ::zookeeper_client::SessionState;
use tokio::time::timeout;

use super::support::{EPHEMERAL, PERSISTENT, connect, connect_for, there};
use crate::common::{Place, equal, ms, note, s, step, until};

pub(crate) async fn play(at: Place) {
    let node = format!("{}/e", at.prefix);
    let other = step("session", async {
        note("the crate shows the session id, not the password");
        let client = connect(&at.address).await?;
        anyhow::ensure!(client.session_id().0 != 0, "the session id is 0");
        client.create(&at.prefix, b"", &PERSISTENT).await?;
        Ok(client)
    })
    .await;
    step("timeout-low", async {
        let client = connect_for(&at.address, ms(100)).await?;
        equal(&client.session_timeout(), &s(4), "negotiated timeout")
    })
    .await;
    step("timeout-high", async {
        let client = connect_for(&at.address, s(100)).await?;
        equal(&client.session_timeout(), &s(40), "negotiated timeout")
    })
    .await;
    let client = step("idle", async {
        let client = connect_for(&at.address, s(4)).await?;
        client.create(&node, b"here", &EPHEMERAL).await?;
        let mut states = client.state_watcher();
        equal(&states.state(), &SessionState::SyncConnected, "state")?;
        let change = timeout(s(10), states.changed()).await.ok();
        equal(&change, &None, "change of the state")?;
        let stat = other.check_stat(&node).await?;
        equal(
            &stat.map(|stat| stat.ephemeral_owner),
            &Some(client.session_id().0),
            "owner of the node",
        )?;
        Ok(client)
    })
    .await;
    step("close", async {
        drop(client);
        until(
            ms(1000),
            "the ephemeral node is there",
            &false,
            async || there(&other, &node).await,
        )
        .await
    })
    .await;
}
