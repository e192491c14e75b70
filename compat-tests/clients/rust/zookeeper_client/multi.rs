//! Transactions.

use ::zookeeper_client::{Error, EventType, MultiWriteError, MultiWriteResult, Stat};
use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

use super::support::{PERSISTENT, SEQUENTIAL, connect, there, what};
use crate::common::{Place, equal, note, s, step, within};

fn kinds(results: &[MultiWriteResult]) -> Vec<&'static str> {
    results
        .iter()
        .map(|result| match result {
            MultiWriteResult::Check => "check",
            MultiWriteResult::Delete => "delete",
            MultiWriteResult::Create { .. } => "create",
            MultiWriteResult::SetData { .. } => "set",
            _ => "another",
        })
        .collect()
}

fn path(results: &[MultiWriteResult], at: usize) -> Result<String> {
    match results.get(at) {
        Some(MultiWriteResult::Create { path, .. }) => Ok(path.clone()),
        other => bail!("result {at} is {other:?}"),
    }
}

fn set(results: &[MultiWriteResult], at: usize) -> Result<Stat> {
    match results.get(at) {
        Some(MultiWriteResult::SetData { stat }) => Ok(*stat),
        other => bail!("result {at} is {other:?}"),
    }
}

pub(crate) async fn play(at: Place) {
    let p = format!("{}/p", at.prefix);
    let c = format!("{p}/c");
    let x = format!("{}/x", at.prefix);
    let client = step("all", async {
        let client = connect(&at.address).await?;
        client.create(&at.prefix, b"", &PERSISTENT).await?;
        let mut writer = client.new_multi_writer();
        writer.add_create(&p, b"zero", &PERSISTENT)?;
        writer.add_create(&c, b"zero", &PERSISTENT)?;
        writer.add_set_data(&c, b"one", Some(0))?;
        writer.add_check_version(&c, 1)?;
        writer.add_delete(&c, Some(1))?;
        let results = writer.commit().await?;
        equal(
            &kinds(&results),
            &vec!["create", "create", "set", "check", "delete"],
            "kinds of the results",
        )?;
        equal(&path(&results, 0)?, &p, "path of the first")?;
        equal(&path(&results, 1)?, &c, "path of the second")?;
        let stat = set(&results, 2)?;
        equal(
            &(stat.version, stat.data_length),
            &(1, 3),
            "version and length",
        )?;
        equal(
            &client.list_children(&at.prefix).await?,
            &vec!["p".to_owned()],
            "below the root",
        )?;
        equal(&client.list_children(&p).await?, &Vec::new(), "below P")?;
        equal(
            &client.get_data(&p).await?.0,
            &b"zero".to_vec(),
            "value of P",
        )?;
        Ok(client)
    })
    .await;
    step("one-zxid", async {
        let paths = ["x1", "x2"].map(|name| format!("{}/{name}", at.prefix));
        let mut writer = client.new_multi_writer();
        for path in &paths {
            writer.add_create(path, b"", &PERSISTENT)?;
        }
        writer.commit().await?;
        let one = client.check_stat(&paths[0]).await?.context("no node")?;
        let two = client.check_stat(&paths[1]).await?.context("no node")?;
        equal(&two.czxid, &one.czxid, "czxid")
    })
    .await;
    let failure = step("none", async {
        let mut writer = client.new_multi_writer();
        writer.add_create(&x, b"", &PERSISTENT)?;
        writer.add_create(&p, b"", &PERSISTENT)?;
        let Err(failure) = writer.commit().await else {
            bail!("the transaction passed");
        };
        equal(&there(&client, &x).await?, &false, "X is there")?;
        Ok(failure)
    })
    .await;
    step("which", async {
        note("the crate tells the operation that failed, not those that were rolled back");
        let expected = MultiWriteError::OperationFailed {
            index: 1,
            source: Error::NodeExists,
        };
        equal(&failure, &expected, "failure")
    })
    .await;
    step("check-fails", async {
        let mut writer = client.new_multi_writer();
        writer.add_check_version(&p, 9)?;
        writer.add_create(&x, b"", &PERSISTENT)?;
        let expected = MultiWriteError::OperationFailed {
            index: 0,
            source: Error::BadVersion,
        };
        equal(&writer.commit().await.err(), &Some(expected), "failure")?;
        equal(&there(&client, &x).await?, &false, "X is there")
    })
    .await;
    step("order", async {
        let y = format!("{}/y", at.prefix);
        let mut writer = client.new_multi_writer();
        writer.add_create(&y, b"", &PERSISTENT)?;
        writer.add_set_data(&y, b"one", Some(0))?;
        writer.add_set_data(&y, b"two", Some(1))?;
        let results = writer.commit().await?;
        let versions = (set(&results, 1)?.version, set(&results, 2)?.version);
        equal(&versions, &(1, 2), "versions")?;
        equal(&client.get_data(&y).await?.0, &b"two".to_vec(), "value")
    })
    .await;
    step("sequential", async {
        let line = format!("{}/line", at.prefix);
        client.create(&line, b"", &PERSISTENT).await?;
        let mut writer = client.new_multi_writer();
        writer.add_create(&format!("{line}/s-"), b"", &SEQUENTIAL)?;
        writer.add_create(&format!("{line}/s-"), b"", &SEQUENTIAL)?;
        let results = writer.commit().await?;
        equal(
            &path(&results, 0)?,
            &format!("{line}/s-0000000000"),
            "first",
        )?;
        equal(
            &path(&results, 1)?,
            &format!("{line}/s-0000000001"),
            "second",
        )
    })
    .await;
    step("silent", async {
        let other = connect(&at.address).await?;
        let (_, watcher) = other.list_and_watch_children(&p).await?;
        let mut failing = client.new_multi_writer();
        failing.add_create(&c, b"", &PERSISTENT)?;
        failing.add_create(&p, b"", &PERSISTENT)?;
        anyhow::ensure!(failing.commit().await.is_err(), "the transaction passed");
        let mut changed = Box::pin(watcher.changed());
        let early = timeout(s(1), &mut changed).await.ok();
        equal(&early, &None, "event of the failed transaction")?;
        let mut writer = client.new_multi_writer();
        writer.add_create(&c, b"", &PERSISTENT)?;
        writer.add_create(&format!("{p}/d"), b"", &PERSISTENT)?;
        writer.commit().await?;
        let event = within(s(2), "event", changed).await?;
        equal(
            &what(&event),
            &(EventType::NodeChildrenChanged, p.clone()),
            "event",
        )
    })
    .await;
}
