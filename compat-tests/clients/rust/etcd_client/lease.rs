//! Leases and the keys they hold.

use std::time::{SystemTime, UNIX_EPOCH};

use ::etcd_client::{Error, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions};
use anyhow::ensure;

use super::support::{Watch, connect, pair, prefix, refused, there};
use crate::common::{Place, equal, note, s, step};

const NOT_FOUND: &str = "etcdserver: requested lease not found";

pub(crate) async fn play(at: Place) {
    let [one, two, three] = ["1", "2", "3"].map(|name| format!("{}/{name}", at.prefix));
    let (mut client, id) = step("grant", async {
        let mut client = connect(&at.address).await?;
        let lease = client.lease_grant(60, None).await?;
        ensure!(lease.id() > 0, "id {}", lease.id());
        equal(&lease.ttl(), &60, "TTL")?;
        Ok((client, lease.id()))
    })
    .await;
    step("own-id", async {
        let own = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        let options = LeaseGrantOptions::new().with_id(own);
        let lease = client.lease_grant(60, Some(options.clone())).await?;
        equal(&(lease.id(), lease.ttl()), &(own, 60), "id and TTL")?;
        refused(
            client.lease_grant(60, Some(options)).await,
            "etcdserver: lease already exists",
            "second grant",
        )?;
        client.lease_revoke(own).await?;
        Ok(())
    })
    .await;
    let under = PutOptions::new().with_lease(id);
    step("attach", async {
        for key in [&one, &two] {
            client.put(key.as_str(), "x", Some(under.clone())).await?;
            equal(&there(&mut client, key).await?.lease, &id, "lease")?;
        }
        Ok(())
    })
    .await;
    step("ttl", async {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let answer = client.lease_time_to_live(id, Some(options)).await?;
        equal(
            &(answer.id(), answer.granted_ttl()),
            &(id, 60),
            "id and granted TTL",
        )?;
        ensure!((50..=60).contains(&answer.ttl()), "TTL {}", answer.ttl());
        let mut keys = answer.keys().to_vec();
        keys.sort();
        equal(
            &keys,
            &vec![one.clone().into_bytes(), two.clone().into_bytes()],
            "keys",
        )
    })
    .await;
    step("leases", async {
        let answer = client.leases().await?;
        ensure!(
            answer.leases().iter().any(|lease| lease.id() == id),
            "{id} is not in the list"
        );
        Ok(())
    })
    .await;
    step("keep-alive", async {
        let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
        keeper.keep_alive().await?;
        let answer = answers.message().await?;
        let seen = answer.map(|answer| (answer.id(), answer.ttl()));
        equal(&seen, &Some((id, 60)), "id and TTL")
    })
    .await;
    step("detach", async {
        client.put(two.as_str(), "y", None).await?;
        equal(&there(&mut client, &two).await?.lease, &0, "lease")
    })
    .await;
    step("no-lease", async {
        let options = PutOptions::new().with_lease(123_456_789);
        refused(
            client.put(three.as_str(), "x", Some(options)).await,
            NOT_FOUND,
            "put",
        )
    })
    .await;
    step("revoke", async {
        client.lease_revoke(id).await?;
        equal(
            &pair(&mut client, &one).await?,
            &None,
            "pair under the lease",
        )?;
        equal(
            &there(&mut client, &two).await?.value,
            &"y".to_owned(),
            "detached pair",
        )
    })
    .await;
    step("revoke-again", async {
        refused(client.lease_revoke(id).await, NOT_FOUND, "revoke")
    })
    .await;
    step("gone", async {
        equal(
            &client.lease_time_to_live(id, None).await?.ttl(),
            &-1,
            "TTL",
        )
    })
    .await;
    step("keep-alive-gone", async {
        note("the crate makes an error of a TTL of 0");
        match client.lease_keep_alive(id).await {
            Err(Error::LeaseKeepAliveError(text)) => {
                equal(&text.as_str(), &"lease not found", "error")
            }
            other => anyhow::bail!("keep-alive: {:?}", other.map(|_| "accepted")),
        }
    })
    .await;
    step("one-revision", async {
        let folder = format!("{}/many/", at.prefix);
        let keys = ["a", "b", "c"].map(|name| format!("{folder}{name}"));
        let lease = client.lease_grant(60, None).await?.id();
        for i in [2, 0, 1] {
            let options = PutOptions::new().with_lease(lease);
            client.put(keys[i].as_str(), "x", Some(options)).await?;
        }
        let mut watch = Watch::of(&mut client, &folder, prefix()).await?;
        client.lease_revoke(lease).await?;
        let expected = [
            (false, keys[0].as_str(), ""),
            (false, &keys[1], ""),
            (false, &keys[2], ""),
        ];
        let seen = watch.expect(&expected, s(5)).await?;
        let first = seen[0].pair.modified;
        ensure!(
            seen.iter().all(|event| event.pair.modified == first),
            "several revisions: {seen:?}"
        );
        Ok(())
    })
    .await;
}
