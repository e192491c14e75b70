//! Container nodes, and nodes with a time to live.

use ::zookeeper_client::{Acls, CreateMode, CreateOptions};
use tokio::time::sleep;

use super::support::{PERSISTENT, SEQUENTIAL, connect, there};
use crate::common::{Place, equal, ms, s, step, until};

const CONTAINER: CreateOptions<'static> = CreateMode::Container.with_acls(Acls::anyone_all());

pub(crate) async fn play(at: Place) {
    let container = format!("{}/container", at.prefix);
    let child = format!("{container}/child");
    let client = step("container", async {
        let client = connect(&at.address).await?;
        client.create(&at.prefix, b"", &PERSISTENT).await?;
        client.create(&container, b"zero", &CONTAINER).await?;
        client.create(&child, b"", &PERSISTENT).await?;
        client.set_data(&container, b"one", Some(0)).await?;
        let (data, stat) = client.get_data(&container).await?;
        equal(
            &(data, stat.version, stat.num_children),
            &(b"one".to_vec(), 1, 1),
            "value, version, numChildren",
        )?;
        Ok(client)
    })
    .await;
    let gone = async |path: &str, limit| {
        until(limit, &format!("{path} is there"), &false, async || {
            there(&client, path).await
        })
        .await
    };
    step("container-goes", async {
        client.delete(&child, None).await?;
        gone(&container, s(5)).await
    })
    .await;
    step("container-unused", async {
        let unused = format!("{}/unused", at.prefix);
        client.create(&unused, b"", &CONTAINER).await?;
        sleep(s(3)).await;
        equal(
            &there(&client, &unused).await?,
            &true,
            "the container is there",
        )
    })
    .await;
    let living = PERSISTENT.with_ttl(ms(1500));
    step("ttl", async {
        let path = format!("{}/ttl", at.prefix);
        client.create(&path, b"", &living).await?;
        equal(&there(&client, &path).await?, &true, "the node is there")?;
        gone(&path, s(6)).await
    })
    .await;
    step("ttl-set", async {
        let path = format!("{}/ttl-set", at.prefix);
        client.create(&path, b"", &living).await?;
        for _ in 0..6 {
            sleep(ms(500)).await;
            client.set_data(&path, b"again", None).await?;
        }
        equal(&there(&client, &path).await?, &true, "the node is there")
    })
    .await;
    step("ttl-sequential", async {
        let folder = format!("{}/line", at.prefix);
        client.create(&folder, b"", &PERSISTENT).await?;
        let options = SEQUENTIAL.with_ttl(ms(1500));
        let (_, number) = client
            .create(&format!("{folder}/s-"), b"", &options)
            .await?;
        equal(&number.into_i64(), &0, "number")?;
        let path = format!("{folder}/s-0000000000");
        equal(&there(&client, &path).await?, &true, "the node is there")?;
        gone(&path, s(6)).await
    })
    .await;
}
