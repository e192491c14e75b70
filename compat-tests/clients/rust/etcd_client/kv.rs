//! Keys, values, revisions and ranges.

use ::etcd_client::{DeleteOptions, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget};
use anyhow::{Context as _, ensure};

use super::support::{Pair, Watch, connect, pair, prefix, refused, revision, there, undisturbed};
use crate::common::{Place, equal, s, step};

fn keys(answer: &GetResponse) -> Vec<String> {
    answer
        .kvs()
        .iter()
        .map(|kv| String::from_utf8_lossy(kv.key()).into_owned())
        .collect()
}

pub(crate) async fn play(at: Place) {
    let bytes: Vec<u8> = (0..=255).collect();
    let key = format!("{}/a", at.prefix);
    let missing = format!("{}/missing", at.prefix);
    let mut client = step("put", async {
        let mut client = connect(&at.address).await?;
        undisturbed("revision after a put", async |i| {
            let fresh = if i == 0 {
                key.clone()
            } else {
                format!("{key}{i}")
            };
            let before = revision(client.get(fresh.as_str(), None).await?.header())?;
            let put = client.put(fresh.as_str(), bytes.clone(), None).await?;
            let put = revision(put.header())?;
            let answer = client.get(fresh.as_str(), None).await?;
            let kv = answer.kvs().first().context("no pair")?;
            equal(&kv.value().to_vec(), &bytes, "value")?;
            equal(
                &(
                    kv.create_revision(),
                    kv.mod_revision(),
                    kv.version(),
                    kv.lease(),
                ),
                &(put, put, 1, 0),
                "create and mod revision, version, lease",
            )?;
            Ok((put, before + 1))
        })
        .await?;
        Ok(client)
    })
    .await;
    step("again", async {
        let before = there(&mut client, &key).await?;
        client.put(key.as_str(), "two", None).await?;
        let after = there(&mut client, &key).await?;
        ensure!(
            after.modified > before.modified,
            "mod_revision {}",
            after.modified
        );
        let expected = Pair {
            value: "two".to_owned(),
            modified: after.modified,
            version: 2,
            ..before
        };
        equal(&after, &expected, "pair")
    })
    .await;
    step("prev-kv", async {
        let before = there(&mut client, &key).await?;
        let options = PutOptions::new().with_prev_key();
        let answer = client
            .put(key.as_str(), "three", Some(options.clone()))
            .await?;
        equal(
            &answer.prev_key().map(Pair::from),
            &Some(before),
            "pair before the put",
        )?;
        let second = there(&mut client, &key).await?;
        let deleting = DeleteOptions::new().with_prev_key();
        let answer = client.delete(key.as_str(), Some(deleting)).await?;
        let deleted: Vec<_> = answer.prev_kvs().iter().map(Pair::from).collect();
        equal(&deleted, &vec![second], "pair before the delete")?;
        let answer = client.put(key.as_str(), "four", Some(options)).await?;
        equal(
            &answer.prev_key().map(Pair::from),
            &None,
            "pair before a new key's put",
        )
    })
    .await;
    step("missing", async {
        let answer = client.get(missing.as_str(), None).await?;
        equal(
            &(answer.kvs().len(), answer.count()),
            &(0, 0),
            "pairs and count",
        )
    })
    .await;
    step("delete", async {
        undisturbed("revision after a delete", async |_| {
            let before = revision(client.get(key.as_str(), None).await?.header())?;
            let answer = client.delete(key.as_str(), None).await?;
            equal(&answer.deleted(), &1, "deleted")?;
            equal(&pair(&mut client, &key).await?, &None, "pair")?;
            client.put(key.as_str(), "five", None).await?;
            equal(
                &there(&mut client, &key).await?.version,
                &1,
                "version when made again",
            )?;
            Ok((revision(answer.header())?, before + 1))
        })
        .await
    })
    .await;
    step("delete-none", async {
        undisturbed("revision after a delete of nothing", async |_| {
            let before = revision(client.get(key.as_str(), None).await?.header())?;
            let answer = client.delete(missing.as_str(), None).await?;
            equal(&answer.deleted(), &0, "deleted")?;
            Ok((revision(answer.header())?, before))
        })
        .await
    })
    .await;
    let folder = format!("{}/f/", at.prefix);
    let names: Vec<String> = (1..=5).map(|i| format!("{folder}{i}")).collect();
    let written: Vec<String> = [3, 1, 5, 2, 4].map(|i| format!("{folder}{i}")).to_vec();
    let reversed = |list: &[String]| list.iter().rev().cloned().collect::<Vec<_>>();
    let all = || GetOptions::new().with_prefix();
    step("prefix", async {
        // The neighbours of "…/f/": what sorts just before and just after.
        for beside in ["f.", "f0"] {
            client
                .put(format!("{}/{beside}", at.prefix), "beside", None)
                .await?;
        }
        for name in &written {
            client
                .put(name.as_str(), format!("value of {name}"), None)
                .await?;
        }
        let answer = client.get(folder.as_str(), Some(all())).await?;
        equal(
            &(keys(&answer), answer.count()),
            &(names.clone(), 5),
            "keys and count",
        )
    })
    .await;
    step("limit", async {
        let answer = client
            .get(folder.as_str(), Some(all().with_limit(2)))
            .await?;
        equal(
            &(keys(&answer), answer.more(), answer.count()),
            &(names[..2].to_vec(), true, 5),
            "keys, more, count",
        )
    })
    .await;
    step("sort", async {
        for (target, order, expected) in [
            (SortTarget::Key, SortOrder::Descend, reversed(&names)),
            (SortTarget::Mod, SortOrder::Ascend, written.clone()),
            (SortTarget::Mod, SortOrder::Descend, reversed(&written)),
        ] {
            let options = all().with_sort(target, order);
            let answer = client.get(folder.as_str(), Some(options)).await?;
            equal(
                &keys(&answer),
                &expected,
                &format!("by {target:?}, {order:?}"),
            )?;
        }
        Ok(())
    })
    .await;
    step("keys-only", async {
        let whole = client.get(folder.as_str(), Some(all())).await?;
        let empty = |kv| Pair {
            value: String::new(),
            ..Pair::from(kv)
        };
        let expected: Vec<_> = whole.kvs().iter().map(empty).collect();
        let answer = client
            .get(folder.as_str(), Some(all().with_keys_only()))
            .await?;
        let seen: Vec<_> = answer.kvs().iter().map(Pair::from).collect();
        equal(&seen, &expected, "pairs")
    })
    .await;
    step("count-only", async {
        let answer = client
            .get(folder.as_str(), Some(all().with_count_only()))
            .await?;
        equal(
            &(answer.kvs().len(), answer.count()),
            &(0, 5),
            "pairs and count",
        )
    })
    .await;
    step("from-key", async {
        // '0' follows '/': the end of the prefix.
        let end = format!("{}/f0", at.prefix);
        let options = GetOptions::new().with_range(end);
        let answer = client.get(names[2].as_str(), Some(options)).await?;
        equal(&keys(&answer), &names[2..].to_vec(), "keys")
    })
    .await;
    step("past", async {
        let before = there(&mut client, &names[0]).await?;
        client.put(names[0].as_str(), "later", None).await?;
        let options = GetOptions::new().with_revision(before.modified);
        let answer = client.get(names[0].as_str(), Some(options)).await?;
        let now = revision(answer.header())?;
        ensure!(now > before.modified, "revision of the header {now}");
        equal(&answer.kvs().first().map(Pair::from), &Some(before), "pair")
    })
    .await;
    step("future", async {
        let now = revision(client.get(key.as_str(), None).await?.header())?;
        let options = GetOptions::new().with_revision(now + 1_000_000);
        refused(
            client.get(key.as_str(), Some(options)).await,
            "etcdserver: mvcc: required revision is a future revision",
            "range",
        )
    })
    .await;
    step("serializable", async {
        let options = GetOptions::new().with_serializable();
        let answer = client.get(names[0].as_str(), Some(options)).await?;
        let value = answer.kvs().first().map(|kv| kv.value().to_vec());
        equal(&value, &Some(b"later".to_vec()), "value")
    })
    .await;
    step("delete-prefix", async {
        let options = DeleteOptions::new().with_prefix();
        let answer = client.delete(folder.as_str(), Some(options)).await?;
        equal(&answer.deleted(), &5, "deleted")?;
        let deleted = revision(answer.header())?;
        let left = client
            .get(folder.as_str(), Some(all().with_count_only()))
            .await?;
        equal(&left.count(), &0, "count")?;
        let from = prefix().with_start_revision(deleted);
        let mut watch = Watch::of(&mut client, &folder, from).await?;
        for (event, name) in watch.next(5, s(5)).await?.iter().zip(&names) {
            equal(
                &(event.put, &event.pair.key, event.pair.modified),
                &(false, name, deleted),
                "event",
            )?;
        }
        Ok(())
    })
    .await;
    step("ignore-value", async {
        let options = PutOptions::new().with_ignore_value();
        refused(
            client
                .put(missing.as_str(), "", Some(options.clone()))
                .await,
            "etcdserver: key not found",
            "put",
        )?;
        let before = there(&mut client, &key).await?;
        client.put(key.as_str(), "", Some(options)).await?;
        let after = there(&mut client, &key).await?;
        equal(
            &(after.value, after.version),
            &(before.value, before.version + 1),
            "value and version",
        )
    })
    .await;
    step("empty-key", async {
        refused(
            client.put("", "x", None).await,
            "etcdserver: key is not provided",
            "put",
        )
    })
    .await;
    step("too-large", async {
        refused(
            client.put(key.as_str(), vec![0; 2_000_000], None).await,
            "etcdserver: request is too large",
            "put",
        )?;
        let large: Vec<u8> = b"causeway"
            .iter()
            .copied()
            .cycle()
            .take(1_000_000)
            .collect();
        client.put(key.as_str(), large.clone(), None).await?;
        let answer = client.get(key.as_str(), None).await?;
        ensure!(
            answer.kvs().first().is_some_and(|kv| kv.value() == large),
            "another value came back"
        );
        client.delete(key.as_str(), None).await?;
        Ok(())
    })
    .await;
}
