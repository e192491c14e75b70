//! The server's election service, as the crate offers it.

use ::etcd_client::{Client, ProclaimOptions, ResignOptions};
use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::support::{connect, refused};
use crate::common::{Place, equal, ms, s, step, within};

async fn leader(client: &mut Client, name: &str) -> Result<String> {
    let answer = client.leader(name).await?;
    let kv = answer.kv().context("a leader without pair")?;
    Ok(kv.value_str()?.to_owned())
}

pub(crate) async fn play(at: Place) {
    let name = format!("{}/election", at.prefix);
    let (mut a, key, mut b, of_b, second) = step("one", async {
        let mut a = connect(&at.address).await?;
        let mut b = connect(&at.address).await?;
        let of_a = a.lease_grant(30, None).await?.id();
        let of_b = b.lease_grant(30, None).await?.id();
        let answer = within(s(5), "campaign", a.campaign(name.as_str(), "a", of_a)).await??;
        let key = answer.leader().context("no leader key")?.clone();
        equal(
            &(key.name_str()?, key.lease()),
            &(name.as_str(), of_a),
            "leader key",
        )?;
        let (mut own, of) = (b.clone(), name.clone());
        let second = tokio::spawn(async move { own.campaign(of, "b", of_b).await });
        sleep(s(1)).await;
        equal(&second.is_finished(), &false, "the second leads")?;
        equal(&leader(&mut b, &name).await?, &"a".to_owned(), "leader")?;
        Ok((a, key, b, of_b, second))
    })
    .await;
    step("proclaim", async {
        let mut observer = connect(&at.address).await?.observe(name.as_str()).await?;
        let first = within(s(3), "first observation", observer.message()).await??;
        let value = |answer: Option<::etcd_client::LeaderResponse>| {
            answer.and_then(|answer| answer.kv().map(|kv| kv.value().to_vec()))
        };
        equal(&value(first), &Some(b"a".to_vec()), "first observation")?;
        let options = ProclaimOptions::new().with_leader(key.clone());
        a.proclaim("another", Some(options)).await?;
        let next = within(s(3), "observation", observer.message()).await??;
        equal(&value(next), &Some(b"another".to_vec()), "observation")?;
        equal(
            &leader(&mut b, &name).await?,
            &"another".to_owned(),
            "leader",
        )
    })
    .await;
    step("resign", async {
        a.resign(Some(ResignOptions::new().with_leader(key.clone())))
            .await?;
        let answer = within(s(3), "the second leads", second).await???;
        let lease = answer.leader().map(::etcd_client::LeaderKey::lease);
        equal(&lease, &Some(of_b), "lease of the leader key")?;
        equal(&leader(&mut a, &name).await?, &"b".to_owned(), "leader")
    })
    .await;
    step("last", async {
        b.lease_revoke(of_b).await?;
        let end = Instant::now() + s(3);
        loop {
            let answer = a.leader(name.as_str()).await;
            if answer.is_err() || Instant::now() > end {
                return refused(answer, "election: no leader", "leader");
            }
            sleep(ms(50)).await;
        }
    })
    .await;
}
