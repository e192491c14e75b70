//! A connection that is cut and comes back.

use ::etcd_client::{Client, PutOptions};
use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

use super::support::{Watch, connect, keep_alive, prefix, there};
use crate::common::{Place, equal, fault, ms, note, s, step};

/// A new watch from there, once the server can be reached again.
async fn again(client: &mut Client, folder: &str, from: i64) -> Result<Watch> {
    let end = Instant::now() + s(10);
    loop {
        match Watch::of(client, folder, prefix().with_start_revision(from)).await {
            Err(_) if Instant::now() < end => sleep(ms(200)).await,
            answer => return answer,
        }
    }
}

pub(crate) async fn play(at: Place) {
    let held = format!("{}/held", at.prefix);
    let folder = format!("{}/w/", at.prefix);
    let names = ["0", "1", "2", "3"].map(|name| format!("{folder}{name}"));
    let (mut a, mut b, before, mut watch, last) = step("before", async {
        let mut a = connect(&at.link).await?;
        let mut b = connect(&at.address).await?;
        let lease = a.lease_grant(15, None).await?.id();
        keep_alive(&a, lease, s(15));
        let options = PutOptions::new().with_lease(lease);
        a.put(held.as_str(), "x", Some(options)).await?;
        let before = there(&mut b, &held).await?;
        equal(&before.lease, &lease, "lease")?;
        let mut watch = Watch::of(&mut a, &folder, prefix()).await?;
        b.put(names[0].as_str(), "0", None).await?;
        let seen = watch
            .expect(&[(true, names[0].as_str(), "0")], s(5))
            .await?;
        Ok((a, b, before, watch, seen[0].pair.modified))
    })
    .await;
    step("away", async {
        fault("cut").await?;
        for (name, value) in names.iter().zip(["0", "1", "2", "3"]).skip(1) {
            b.put(name.as_str(), value, None).await?;
        }
        b.delete(names[0].as_str(), None).await?;
        sleep(s(2)).await;
        let broken = watch.next(1, ms(1)).await;
        ensure!(broken.is_err(), "an event while away: {broken:?}");
        fault("mend").await
    })
    .await;
    let mut watch = step("missed", async {
        note("the crate ends a watch with its connection: one is made again from the last revision + 1");
        let mut watch = again(&mut a, &folder, last + 1).await?;
        let expected = [
            (true, names[1].as_str(), "1"),
            (true, &names[2], "2"),
            (true, &names[3], "3"),
            (false, &names[0], ""),
        ];
        watch.expect(&expected, s(5)).await?;
        watch.silent(s(1)).await?;
        Ok(watch)
    })
    .await;
    step("alive", async {
        sleep(s(8)).await;
        equal(&there(&mut b, &held).await?, &before, "pair")?;
        let left = b.lease_time_to_live(before.lease, None).await?.ttl();
        ensure!(left >= 8, "TTL {left} of 15");
        let later = format!("{folder}4");
        b.put(later.as_str(), "4", None).await?;
        watch.expect(&[(true, later.as_str(), "4")], s(5)).await?;
        watch.silent(ms(300)).await
    })
    .await;
}
