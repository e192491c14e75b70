//! A session outlives its connection.

use ::zookeeper_client::{EventType, SessionState};
use tokio::time::{sleep, timeout};

use super::support::{EPHEMERAL, PERSISTENT, connect, what};
use crate::common::{Place, equal, fault, ms, s, step, within};

pub(crate) async fn play(at: Place) {
    let [e, w, p] = ["e", "w", "p"].map(|name| format!("{}/{name}", at.prefix));
    let (a, b, made, data, children) = step("created", async {
        let b = connect(&at.address).await?;
        for path in [&at.prefix, &w, &p] {
            b.create(path, b"zero", &PERSISTENT).await?;
        }
        let a = connect(&at.link).await?;
        let (made, _) = a.create(&e, b"mine", &EPHEMERAL).await?;
        let (_, _, data) = a.get_and_watch_data(&w).await?;
        let (_, children) = a.list_and_watch_children(&p).await?;
        Ok((a, b, made, data, children))
    })
    .await;
    let session = a.session_id();
    let mut states = a.state_watcher();
    let (mut data, mut children) = (Box::pin(data.changed()), Box::pin(children.changed()));
    step("away", async {
        equal(&states.state(), &SessionState::SyncConnected, "state")?;
        fault("cut").await?;
        let state = within(s(5), "disconnected", states.changed()).await?;
        equal(&state, &SessionState::Disconnected, "state")?;
        b.set_data(&w, b"one", None).await?;
        b.create(&format!("{p}/c"), b"", &PERSISTENT).await?;
        sleep(s(2)).await;
        let early =
            timeout(ms(1), &mut data).await.is_ok() || timeout(ms(1), &mut children).await.is_ok();
        equal(&early, &false, "an event while away")?;
        fault("mend").await
    })
    .await;
    step("same", async {
        let state = within(s(8), "connected", states.changed()).await?;
        equal(&state, &SessionState::SyncConnected, "state")?;
        equal(&a.session_id(), &session, "session")
    })
    .await;
    step("stays", async {
        equal(&a.check_stat(&e).await?, &Some(made), "stat")
    })
    .await;
    step("data-watch", async {
        let event = within(s(3), "event", data).await?;
        equal(
            &what(&event),
            &(EventType::NodeDataChanged, w.clone()),
            "event",
        )
    })
    .await;
    step("child-watch", async {
        let event = within(s(3), "event", children).await?;
        equal(
            &what(&event),
            &(EventType::NodeChildrenChanged, p.clone()),
            "event",
        )
    })
    .await;
    step("works", async {
        a.set_data(&w, b"two", None).await?;
        equal(&a.get_data(&w).await?.0, &b"two".to_vec(), "value")
    })
    .await;
}
