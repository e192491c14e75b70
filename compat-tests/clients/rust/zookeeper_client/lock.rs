//! The crate's lock recipe, in Curator's form.

use tokio::time::timeout;

use super::support::{PERSISTENT, acquire, acquire_bound, connect};
use crate::common::{Place, equal, ms, s, step, until, within};

pub(crate) async fn play(at: Place) {
    let folder = format!("{}/lock", at.prefix);
    let (a, held) = step("acquire", async {
        let a = connect(&at.address).await?;
        a.create(&at.prefix, b"", &PERSISTENT).await?;
        let held = within(s(5), "lock", acquire(&a, &folder)).await??;
        Ok((a, held))
    })
    .await;
    let b = step("refused", async {
        let b = connect(&at.address).await?;
        let got = timeout(ms(500), acquire(&b, &folder)).await.is_ok();
        equal(&got, &false, "B has the lock")?;
        Ok(b)
    })
    .await;
    let b = step("passed", async {
        let path = folder.clone();
        let second = tokio::spawn(async move {
            std::mem::forget(acquire_bound(&b, &path).await?);
            anyhow::Ok(b)
        });
        // Until B is in the queue; dropping the lock releases it.
        until(s(5), "contenders", &2, async || {
            Ok(a.list_children(&folder).await?.len())
        })
        .await?;
        drop(held);
        within(s(2), "lock after release", second).await??
    })
    .await;
    let of_a = step("died", async {
        let (client, path) = (a.clone(), folder.clone());
        let first = tokio::spawn(async move { acquire(&client, &path).await });
        until(s(5), "contenders", &2, async || {
            Ok(a.list_children(&folder).await?.len())
        })
        .await?;
        // The last of the client closes its session.
        drop(b);
        Ok(within(s(2), "lock after the holder", first).await???)
    })
    .await;
    step("counter", async {
        drop(of_a);
        let counter = format!("{}/counter", at.prefix);
        a.create(&counter, b"0", &PERSISTENT).await?;
        let mut players = Vec::new();
        for _ in 0..3 {
            let client = connect(&at.address).await?;
            let (folder, counter) = (folder.clone(), counter.clone());
            players.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let lock = within(s(30), "lock", acquire(&client, &folder)).await??;
                    let (value, _) = lock.client().get_data(&counter).await?;
                    let next = String::from_utf8(value)?.parse::<u32>()? + 1;
                    // A write that passes only while the lock is held.
                    lock.set_data(&counter, next.to_string().as_bytes(), None)
                        .await?;
                }
                anyhow::Ok(client)
            }));
        }
        let mut clients = Vec::new();
        for player in players {
            clients.push(player.await??);
        }
        equal(&a.get_data(&counter).await?.0, &b"30".to_vec(), "counter")
    })
    .await;
    step("clean", async {
        until(
            s(2),
            "nodes below the lock's path",
            &Vec::new(),
            async || Ok(a.list_children(&folder).await?),
        )
        .await
    })
    .await;
}
