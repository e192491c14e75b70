//! Watches.

use std::collections::BTreeMap;

use ::etcd_client::{PutOptions, Txn, TxnOp, WatchFilterType, WatchOptions, WatchStream};
use anyhow::{Context as _, Result, ensure};
use tokio::time::timeout;

use super::support::{Watch, connect, prefix, revision, there};
use crate::common::{Place, equal, ms, s, step, within};

/// The answers of a stream with several watches: events by watch, until it is silent for a while.
async fn by_watch(stream: &mut WatchStream) -> Result<BTreeMap<i64, Vec<(String, String)>>> {
    let mut seen: BTreeMap<i64, Vec<_>> = BTreeMap::new();
    while let Ok(answer) = timeout(ms(700), stream.message()).await {
        let answer = answer?.context("the stream ended")?;
        for event in answer.events() {
            let kv = event.kv().context("no pair")?;
            let pair = (kv.key_str()?.to_owned(), kv.value_str()?.to_owned());
            seen.entry(answer.watch_id()).or_default().push(pair);
        }
    }
    Ok(seen)
}

pub(crate) async fn play(at: Place) {
    let key = format!("{}/a", at.prefix);
    let k = key.as_str();
    let (mut client, mut other, mut watch) = step("put", async {
        let mut client = connect(&at.address).await?;
        let mut other = connect(&at.address).await?;
        let mut watch = Watch::of(&mut client, k, WatchOptions::new()).await?;
        let put = revision(other.put(k, "one", None).await?.header())?;
        let seen = watch.expect(&[(true, k, "one")], s(5)).await?;
        equal(
            &(seen[0].pair.modified, seen[0].pair.version),
            &(put, 1),
            "mod_revision and version",
        )?;
        watch.silent(ms(200)).await?;
        Ok((client, other, watch))
    })
    .await;
    step("delete", async {
        let deleted = revision(other.delete(k, None).await?.header())?;
        let seen = watch.expect(&[(false, k, "")], s(5)).await?;
        equal(&seen[0].pair.modified, &deleted, "mod_revision")
    })
    .await;
    step("prefix", async {
        let folder = format!("{}/p/", at.prefix);
        let mut inside = Watch::of(&mut client, &folder, prefix()).await?;
        let mut revisions = Vec::new();
        for name in ["c", "a", "b"] {
            let put = other.put(format!("{folder}{name}"), name, None).await?;
            revisions.push((format!("{folder}{name}"), revision(put.header())?));
        }
        let seen = inside.next(3, s(5)).await?;
        let seen: Vec<_> = seen
            .into_iter()
            .map(|event| (event.pair.key, event.pair.modified))
            .collect();
        equal(&seen, &revisions, "events")?;
        other
            .put(format!("{}/p0", at.prefix), "beside", None)
            .await?;
        inside.silent(s(1)).await
    })
    .await;
    step("prev-kv", async {
        let mut before = Watch::of(&mut client, k, WatchOptions::new().with_prev_key()).await?;
        other.put(k, "one", None).await?;
        let one = there(&mut other, k).await?;
        other.put(k, "two", None).await?;
        let two = there(&mut other, k).await?;
        other.delete(k, None).await?;
        let seen = before.next(3, s(5)).await?;
        let seen: Vec<_> = seen
            .into_iter()
            .map(|event| (event.put, event.previous))
            .collect();
        equal(
            &seen,
            &vec![(true, None), (true, Some(one)), (false, Some(two))],
            "events",
        )
    })
    .await;
    step("filters", async {
        let without = |filter| WatchOptions::new().with_filters(vec![filter]);
        let mut deletes = Watch::of(&mut client, k, without(WatchFilterType::NoPut)).await?;
        let mut puts = Watch::of(&mut client, k, without(WatchFilterType::NoDelete)).await?;
        other.put(k, "one", None).await?;
        other.put(k, "two", None).await?;
        other.delete(k, None).await?;
        deletes.expect(&[(false, k, "")], s(5)).await?;
        puts.expect(&[(true, k, "one"), (true, k, "two")], s(5))
            .await?;
        deletes.silent(ms(200)).await?;
        puts.silent(ms(200)).await
    })
    .await;
    step("history", async {
        let first = revision(other.put(k, "1", None).await?.header())?;
        other.put(k, "2", None).await?;
        other.delete(k, None).await?;
        let from = WatchOptions::new().with_start_revision(first);
        let mut past = Watch::of(&mut client, k, from).await?;
        past.expect(&[(true, k, "1"), (true, k, "2"), (false, k, "")], s(5))
            .await?;
        other.put(k, "3", None).await?;
        past.expect(&[(true, k, "3")], s(5)).await?;
        past.silent(ms(200)).await
    })
    .await;
    step("txn", async {
        let folder = format!("{}/t/", at.prefix);
        let [a, b, c] = ["a", "b", "c"].map(|name| format!("{folder}{name}"));
        other.put(b.as_str(), "old", None).await?;
        let mut all = Watch::of(&mut client, &folder, prefix()).await?;
        let txn = Txn::new().and_then([
            TxnOp::put(c.as_str(), "1", None),
            TxnOp::delete(b.as_str(), None),
            TxnOp::put(a.as_str(), "2", Some(PutOptions::new())),
        ]);
        let made = revision(other.txn(txn).await?.header())?;
        let expected = [(true, c.as_str(), "1"), (false, &b, ""), (true, &a, "2")];
        let seen = all.expect(&expected, s(5)).await?;
        ensure!(
            seen.iter().all(|event| event.pair.modified == made),
            "revisions {seen:?}"
        );
        Ok(())
    })
    .await;
    let names = ["x", "y", "z"].map(|name| format!("{}/{name}", at.prefix));
    let (mut stream, ids) = step("many", async {
        let mut stream = client.watch(names[0].as_str(), None).await?;
        stream.watch(names[1].as_str(), None).await?;
        stream.watch(names[2].as_str(), None).await?;
        let mut ids = Vec::new();
        while ids.len() < 3 {
            let answer = within(s(5), "created", stream.message()).await??;
            let answer = answer.context("the stream ended")?;
            ensure!(answer.created(), "not created: {answer:?}");
            ids.push(answer.watch_id());
        }
        for name in &names {
            other.put(name.as_str(), "v", None).await?;
        }
        let expected = ids
            .iter()
            .zip(&names)
            .map(|(id, name)| (*id, vec![(name.clone(), "v".to_owned())]))
            .collect();
        equal(&by_watch(&mut stream).await?, &expected, "events by watch")?;
        Ok((stream, ids))
    })
    .await;
    step("cancel", async {
        stream.cancel(ids[1]).await?;
        let answer = within(s(5), "cancelled", stream.message()).await??;
        let seen = answer.map(|answer| (answer.watch_id(), answer.canceled()));
        equal(&seen, &Some((ids[1], true)), "answer to the cancellation")?;
        for name in &names {
            other.put(name.as_str(), "w", None).await?;
        }
        let expected = [0, 2]
            .into_iter()
            .map(|i: usize| (ids[i], vec![(names[i].clone(), "w".to_owned())]))
            .collect();
        equal(&by_watch(&mut stream).await?, &expected, "events by watch")
    })
    .await;
    step("burst", async {
        let folder = format!("{}/burst/", at.prefix);
        let mut all = Watch::of(&mut client, &folder, prefix()).await?;
        let mut expected = Vec::new();
        for i in 0..500 {
            let name = format!("{folder}{i}");
            let put = other.put(name.as_str(), "x", None).await?;
            expected.push((name, revision(put.header())?));
        }
        let seen = all.next(500, s(20)).await?;
        let seen: Vec<_> = seen
            .into_iter()
            .map(|event| (event.pair.key, event.pair.modified))
            .collect();
        equal(&seen, &expected, "events")?;
        ensure!(
            seen.is_sorted_by(|a, b| a.1 < b.1),
            "the order of the revisions"
        );
        all.silent(ms(300)).await
    })
    .await;
}
