//! The server's lock service, as the crate offers it.

use ::etcd_client::{Client, LockOptions};
use anyhow::Result;
use tokio::time::{sleep, timeout};

use super::support::{connect, there};
use crate::common::{Place, equal, ms, s, step, within};

/// Waits for the lock under this lease; its key, to release it.
async fn acquire(client: &mut Client, name: &str, lease: i64) -> Result<Vec<u8>> {
    let options = LockOptions::new().with_lease(lease);
    Ok(client.lock(name, Some(options)).await?.key().to_vec())
}

pub(crate) async fn play(at: Place) {
    let name = format!("{}/lock", at.prefix);
    let waiting = |mut client: Client, lease: i64| {
        let name = name.clone();
        tokio::spawn(async move { acquire(&mut client, &name, lease).await })
    };
    let (mut a, of_a, held) = step("acquire", async {
        let mut a = connect(&at.address).await?;
        let lease = a.lease_grant(30, None).await?.id();
        let held = within(s(5), "lock", acquire(&mut a, &name, lease)).await??;
        equal(
            &held.starts_with(format!("{name}/").as_bytes()),
            &true,
            "a key below the lock's name",
        )?;
        Ok((a, lease, held))
    })
    .await;
    let mut b = step("refused", async {
        let mut b = connect(&at.address).await?;
        let lease = b.lease_grant(30, None).await?.id();
        let got = timeout(ms(500), acquire(&mut b, &name, lease))
            .await
            .is_ok();
        equal(&got, &false, "B has the lock")?;
        Ok(b)
    })
    .await;
    let of_b = step("passed", async {
        // Another lease: the server takes the key of the call that was given up away when it comes to it.
        let of_b = b.lease_grant(30, None).await?.id();
        let second = waiting(b.clone(), of_b);
        sleep(ms(500)).await;
        equal(&second.is_finished(), &false, "B has the lock")?;
        a.unlock(held).await?;
        within(s(2), "lock after release", second).await???;
        Ok(of_b)
    })
    .await;
    step("died", async {
        let first = waiting(a.clone(), of_a);
        sleep(ms(500)).await;
        equal(&first.is_finished(), &false, "A has the lock")?;
        b.lease_revoke(of_b).await?;
        let held = within(s(4), "lock after the holder", first).await???;
        a.unlock(held).await?;
        Ok(())
    })
    .await;
    step("counter", async {
        let counter = format!("{}/counter", at.prefix);
        a.put(counter.as_str(), "0", None).await?;
        let mut players = Vec::new();
        for _ in 0..3 {
            let mut own = connect(&at.address).await?;
            let (name, counter) = (name.clone(), counter.clone());
            players.push(tokio::spawn(async move {
                let lease = own.lease_grant(30, None).await?.id();
                for _ in 0..10 {
                    let lock = acquire(&mut own, &name, lease);
                    let held = within(s(20), "lock", lock).await??;
                    let next = there(&mut own, &counter).await?.value.parse::<u32>()? + 1;
                    own.put(counter.as_str(), next.to_string(), None).await?;
                    own.unlock(held).await?;
                }
                anyhow::Ok(())
            }));
        }
        for player in players {
            player.await??;
        }
        equal(
            &there(&mut a, &counter).await?.value,
            &"30".to_owned(),
            "counter",
        )
    })
    .await;
}
