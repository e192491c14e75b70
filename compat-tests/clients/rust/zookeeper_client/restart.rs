//! The server is killed and started again under its clients.

use ::zookeeper_client::{Client, EventType, SessionId, SessionState};
use anyhow::{Context as _, Result, ensure};

use super::support::{EPHEMERAL, PERSISTENT, SEQUENTIAL, connect_for, there, what};
use crate::common::{Place, equal, fault, s, step, until, within};

/// Connected again, with the session of before.
async fn back(client: &Client, session: SessionId) -> Result<()> {
    let mut states = client.state_watcher();
    let connected = async {
        while states.state() != SessionState::SyncConnected {
            states.changed().await;
        }
    };
    within(s(15), "connected again", connected).await?;
    equal(&client.session_id(), &session, "session")
}

pub(crate) async fn play(at: Place) {
    let [e, node, line] = ["e", "node", "line"].map(|name| format!("{}/{name}", at.prefix));
    let sequential = format!("{line}/s-");
    let (a, b, made, highest, watcher) = step("before", async {
        let b = connect_for(&at.address, s(20)).await?;
        for path in [&at.prefix, &node, &line] {
            b.create(path, b"zero", &PERSISTENT).await?;
        }
        let a = connect_for(&at.address, s(20)).await?;
        let (made, _) = a.create(&e, b"mine", &EPHEMERAL).await?;
        let (stat, number) = a.create(&sequential, b"", &SEQUENTIAL).await?;
        equal(&number.into_i64(), &0, "number")?;
        let (_, _, watcher) = a.get_and_watch_data(&node).await?;
        Ok((a, b, made, stat.czxid, watcher))
    })
    .await;
    step("down", async {
        let sessions = (a.session_id(), b.session_id());
        let mut states = a.state_watcher();
        let _ = states.state();
        fault("restart").await?;
        let state = within(s(5), "disconnected", states.changed()).await?;
        ensure!(
            matches!(
                state,
                SessionState::Disconnected | SessionState::SyncConnected
            ),
            "state {state}"
        );
        back(&a, sessions.0).await?;
        back(&b, sessions.1).await
    })
    .await;
    step("stays", async {
        equal(
            &a.get_data(&e).await?,
            &(b"mine".to_vec(), made),
            "the ephemeral node",
        )?;
        equal(&b.get_data(&node).await?.0, &b"zero".to_vec(), "value")
    })
    .await;
    step("watch", async {
        b.set_data(&node, b"one", None).await?;
        let event = within(s(5), "event", watcher.changed()).await?;
        equal(
            &what(&event),
            &(EventType::NodeDataChanged, node.clone()),
            "event",
        )
    })
    .await;
    step("numbers", async {
        let (stat, number) = a.create(&sequential, b"", &SEQUENTIAL).await?;
        equal(&number.into_i64(), &1, "number")?;
        ensure!(
            stat.czxid > highest,
            "czxid {}, before {highest}",
            stat.czxid
        );
        let seen = a.check_stat(&format!("{line}/s-0000000001")).await?;
        equal(&seen.context("no node")?.czxid, &stat.czxid, "czxid")
    })
    .await;
    step("ends", async {
        drop(a);
        until(s(2), "the ephemeral node is there", &false, async || {
            there(&b, &e).await
        })
        .await
    })
    .await;
}
