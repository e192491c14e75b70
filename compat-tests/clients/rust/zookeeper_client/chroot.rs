//! A client that works below a path of the tree, by its connect string and by `Client::chroot`.

use ::zookeeper_client::{Error, EventType};

use super::support::{PERSISTENT, connect, fires, refused};
use crate::common::{Place, equal, s, step};

pub(crate) async fn play(at: Place) {
    step("missing", async {
        let client = connect(&format!("{}{}/missing", at.address, at.prefix)).await?;
        let answer = client.create("/node", b"", &PERSISTENT).await;
        refused(answer, &Error::NoNode, "create")
    })
    .await;
    let whole_path = format!("{}/node", at.prefix);
    let (whole, inner) = step("works", async {
        let whole = connect(&at.address).await?;
        whole.create(&at.prefix, b"", &PERSISTENT).await?;
        let inner = connect(&format!("{}{}", at.address, at.prefix)).await?;
        inner.create("/node", b"one", &PERSISTENT).await?;
        let one = b"one".to_vec();
        equal(&inner.get_data("/node").await?.0, &one, "value")?;
        let names = vec!["node".to_owned()];
        equal(&inner.list_children("/").await?, &names, "children")?;
        equal(
            &whole.get_data(&whole_path).await?.0,
            &one,
            "value by the whole path",
        )?;
        equal(
            &whole.list_children(&at.prefix).await?,
            &names,
            "children by the whole path",
        )?;
        let shared = match whole.clone().chroot(at.prefix.clone()) {
            Ok(client) => client,
            Err(_) => anyhow::bail!("no chroot of a client"),
        };
        equal(
            &shared.get_data("/node").await?.0,
            &one,
            "value by Client::chroot",
        )?;
        Ok((whole, inner))
    })
    .await;
    step("watch", async {
        let (_, _, data) = inner.get_and_watch_data("/node").await?;
        let (_, created) = inner.check_and_watch_stat("/later").await?;
        let (_, _, children) = inner.get_and_watch_children("/node").await?;
        whole.set_data(&whole_path, b"two", None).await?;
        let later = format!("{}/later", at.prefix);
        whole.create(&later, b"", &PERSISTENT).await?;
        let child = format!("{whole_path}/child");
        whole.create(&child, b"", &PERSISTENT).await?;
        fires(data, EventType::NodeDataChanged, "/node", s(5)).await?;
        fires(created, EventType::NodeCreated, "/later", s(5)).await?;
        fires(children, EventType::NodeChildrenChanged, "/node", s(5)).await
    })
    .await;
}
