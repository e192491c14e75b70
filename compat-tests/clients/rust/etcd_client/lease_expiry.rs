//! A lease that nobody renews ends, and one that is renewed does not.

use ::etcd_client::{PutOptions, WatchOptions};
use anyhow::ensure;
use tokio::time::{Instant, sleep};

use super::support::{Watch, connect, keep_alive, pair, there};
use crate::common::{Place, equal, ms, s, step, until};

pub(crate) async fn play(at: Place) {
    let (short, kept) = (
        format!("{}/short", at.prefix),
        format!("{}/kept", at.prefix),
    );
    let mut client = step("expires", async {
        let mut client = connect(&at.address).await?;
        let mut watch = Watch::of(&mut client, &short, WatchOptions::new()).await?;
        let lease = client.lease_grant(2, None).await?.id();
        let granted = Instant::now();
        let options = PutOptions::new().with_lease(lease);
        client.put(short.as_str(), "x", Some(options)).await?;
        let expected = [(true, short.as_str(), "x"), (false, &short, "")];
        watch.expect(&expected, s(6)).await?;
        let after = granted.elapsed();
        ensure!(
            after >= ms(1500) && after <= s(6),
            "deleted after {after:?}"
        );
        equal(&pair(&mut client, &short).await?, &None, "pair")?;
        Ok(client)
    })
    .await;
    let renewal = step("kept", async {
        let lease = client.lease_grant(2, None).await?.id();
        let renewal = keep_alive(&client, lease, s(2));
        let options = PutOptions::new().with_lease(lease);
        client.put(kept.as_str(), "x", Some(options)).await?;
        sleep(s(7)).await;
        equal(&there(&mut client, &kept).await?.lease, &lease, "lease")?;
        Ok(renewal)
    })
    .await;
    step("stopped", async {
        renewal.abort();
        until(s(7), "pair", &None, async || pair(&mut client, &kept).await).await
    })
    .await;
}
