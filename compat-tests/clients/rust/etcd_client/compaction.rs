//! Compaction, and what readers of the past are told.

use ::etcd_client::{GetOptions, WatchOptions};
use anyhow::{Context as _, bail, ensure};

use super::support::{Watch, connect, refused, revision};
use crate::common::{Place, equal, ms, s, step, within};

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

pub(crate) async fn play(at: Place) {
    let key = format!("{}/a", at.prefix);
    let k = key.as_str();
    let (mut client, written) = step("compact", async {
        let mut client = connect(&at.address).await?;
        let mut written = vec![0];
        for i in 1..=10 {
            written.push(revision(
                client.put(k, i.to_string(), None).await?.header(),
            )?);
        }
        client.compact(written[8], None).await?;
        Ok((client, written))
    })
    .await;
    step("range", async {
        let options = |i: usize| Some(GetOptions::new().with_revision(written[i]));
        refused(client.get(k, options(2)).await, COMPACTED, "range")?;
        let answer = client.get(k, options(9)).await?;
        let value = answer.kvs().first().map(|kv| kv.value().to_vec());
        equal(&value, &Some(b"9".to_vec()), "value")
    })
    .await;
    step("again", async {
        refused(
            client.compact(written[8], None).await,
            COMPACTED,
            "compaction",
        )
    })
    .await;
    step("future", async {
        refused(
            client.compact(written[10] + 1_000_000, None).await,
            "etcdserver: mvcc: required revision is a future revision",
            "compaction",
        )
    })
    .await;
    step("watch", async {
        let options = WatchOptions::new().with_start_revision(written[2]);
        let mut stream = client.watch(k, Some(options)).await?;
        loop {
            let answer = within(s(5), "the end of the watch", stream.message()).await??;
            let answer = answer.context("the stream ended")?;
            equal(&answer.events().len(), &0, "events")?;
            if answer.canceled() {
                return equal(&answer.compact_revision(), &written[8], "compact revision");
            }
            ensure!(answer.created(), "answer {answer:?}");
            if answer.compact_revision() != 0 {
                bail!("compacted, but not cancelled: {answer:?}");
            }
        }
    })
    .await;
    step("watch-later", async {
        let options = WatchOptions::new().with_start_revision(written[9]);
        let mut watch = Watch::of(&mut client, k, options).await?;
        watch
            .expect(&[(true, k, "9"), (true, k, "10")], s(5))
            .await?;
        watch.silent(ms(200)).await
    })
    .await;
}
