//! The server is killed and started again under its clients.

use ::etcd_client::PutOptions;
use anyhow::{Context as _, ensure};
use tokio::time::{Instant, sleep, timeout};

use super::support::{Watch, connect, keep_alive, prefix, revision, there};
use crate::common::{Place, equal, fault, ms, note, s, step};

pub(crate) async fn play(at: Place) {
    let held = format!("{}/held", at.prefix);
    let folder = format!("{}/w/", at.prefix);
    let names = ["0", "1", "2", "3"].map(|name| format!("{folder}{name}"));
    let (mut client, lease, bare, before, last) = step("before", async {
        let mut client = connect(&at.address).await?;
        let lease = client.lease_grant(15, None).await?.id();
        let bare = client.lease_grant(300, None).await?.id();
        keep_alive(&client, lease, s(15));
        let options = PutOptions::new().with_lease(lease);
        client.put(held.as_str(), "x", Some(options)).await?;
        let before = there(&mut client, &held).await?;
        let mut watch = Watch::of(&mut client, &folder, prefix()).await?;
        client.put(names[0].as_str(), "0", None).await?;
        let seen = watch
            .expect(&[(true, names[0].as_str(), "0")], s(5))
            .await?;
        Ok((client, lease, bare, before, seen[0].pair.modified))
    })
    .await;
    step("down", async {
        fault("restart").await?;
        let end = Instant::now() + s(15);
        loop {
            let answer = timeout(s(3), client.get(held.as_str(), None)).await;
            match answer {
                Ok(Ok(_)) => return Ok(()),
                _ if Instant::now() < end => sleep(ms(200)).await,
                Ok(Err(error)) => return Err(error).context("get"),
                Err(_) => anyhow::bail!("get: no answer"),
            }
        }
    })
    .await;
    step("stays", async {
        equal(&there(&mut client, &held).await?, &before, "pair")?;
        let now = revision(client.get(held.as_str(), None).await?.header())?;
        ensure!(now >= last, "revision {now}, before {last}");
        let kept = client.lease_time_to_live(bare, None).await?;
        equal(
            &kept.granted_ttl(),
            &300,
            "granted to the lease without a key",
        )?;
        ensure!(kept.ttl() > 200, "{} s of it remain", kept.ttl());
        Ok(())
    })
    .await;
    let mut watch = step("watch", async {
        note("the crate ends a watch with its connection: one is made again from the last revision + 1");
        let from = prefix().with_start_revision(last + 1);
        let mut watch = Watch::of(&mut client, &folder, from).await?;
        for (name, value) in names.iter().zip(["0", "1", "2", "3"]).skip(1) {
            client.put(name.as_str(), value, None).await?;
        }
        let expected = [
            (true, names[1].as_str(), "1"),
            (true, &names[2], "2"),
            (true, &names[3], "3"),
        ];
        watch.expect(&expected, s(10)).await?;
        watch.silent(s(1)).await?;
        Ok(watch)
    })
    .await;
    step("alive", async {
        sleep(s(10)).await;
        equal(&there(&mut client, &held).await?, &before, "pair")?;
        let answer = client.lease_time_to_live(lease, None).await?;
        ensure!(answer.ttl() >= 8, "TTL {} of 15", answer.ttl());
        let later = format!("{folder}4");
        client.put(later.as_str(), "4", None).await?;
        watch.expect(&[(true, later.as_str(), "4")], s(5)).await?;
        watch.silent(ms(300)).await
    })
    .await;
}
