//! Nodes, their values and their Stats.

use std::time::{SystemTime, UNIX_EPOCH};

use ::zookeeper_client::{Error, Stat};
use anyhow::{Context as _, ensure};

use super::support::{EPHEMERAL, PERSISTENT, SEQUENTIAL, connect, refused};
use crate::common::{Place, equal, note, step};

pub(crate) async fn play(at: Place) {
    let bytes: Vec<u8> = (0..=255).collect();
    let node = format!("{}/node", at.prefix);
    let missing = format!("{}/missing", at.prefix);
    let client = step("create", async {
        note("create gives a Stat instead of the path");
        let client = connect(&at.address).await?;
        client.create(&at.prefix, b"", &PERSISTENT).await?;
        let (stat, _) = client.create(&node, &bytes, &PERSISTENT).await?;
        equal(&client.check_stat(&node).await?, &Some(stat), "stat")?;
        Ok(client)
    })
    .await;
    let first = step("get", async {
        let (data, stat) = client.get_data(&node).await?;
        equal(&data, &bytes, "value")?;
        ensure!(stat.czxid > 0, "czxid {}", stat.czxid);
        let expected = Stat {
            czxid: stat.czxid,
            mzxid: stat.czxid,
            pzxid: stat.czxid,
            ctime: stat.ctime,
            mtime: stat.ctime,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 256,
            num_children: 0,
        };
        equal(&stat, &expected, "stat")?;
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        ensure!((now - stat.ctime).abs() < 60_000, "ctime {}", stat.ctime);
        Ok(stat)
    })
    .await;
    step("set", async {
        let stat = client.set_data(&node, b"one", Some(0)).await?;
        ensure!(stat.mzxid > stat.czxid, "mzxid {}", stat.mzxid);
        ensure!(stat.mtime >= first.mtime, "mtime went back");
        let expected = Stat {
            version: 1,
            data_length: 3,
            mzxid: stat.mzxid,
            mtime: stat.mtime,
            ..first
        };
        equal(&stat, &expected, "stat")
    })
    .await;
    step("bad-version", async {
        let before = client.get_data(&node).await?;
        refused(
            client.set_data(&node, b"two", Some(7)).await,
            &Error::BadVersion,
            "set",
        )?;
        refused(
            client.delete(&node, Some(7)).await,
            &Error::BadVersion,
            "delete",
        )?;
        equal(&client.get_data(&node).await?, &before, "node")
    })
    .await;
    step("any-version", async {
        equal(
            &client.set_data(&node, b"two", None).await?.version,
            &2,
            "version",
        )
    })
    .await;
    step("exists", async {
        let (_, stat) = client.get_data(&node).await?;
        equal(&client.check_stat(&node).await?, &Some(stat), "stat")?;
        equal(&client.check_stat(&missing).await?, &None, "missing")
    })
    .await;
    step("no-node", async {
        let no = Error::NoNode;
        refused(client.get_data(&missing).await, &no, "get")?;
        refused(client.set_data(&missing, b"x", None).await, &no, "set")?;
        refused(client.delete(&missing, None).await, &no, "delete")?;
        refused(client.get_children(&missing).await, &no, "children")?;
        let child = format!("{missing}/child");
        refused(client.create(&child, b"", &PERSISTENT).await, &no, "create")
    })
    .await;
    step("node-exists", async {
        let again = client.create(&node, b"", &PERSISTENT).await;
        refused(again, &Error::NodeExists, "create")
    })
    .await;
    step("empty-data", async {
        let path = format!("{}/empty", at.prefix);
        client.create(&path, b"", &PERSISTENT).await?;
        let (data, stat) = client.get_data(&path).await?;
        equal(&(data, stat.data_length), &(Vec::new(), 0), "value")
    })
    .await;
    step("large-data", async {
        let path = format!("{}/large", at.prefix);
        let large: Vec<u8> = b"causeway"
            .iter()
            .copied()
            .cycle()
            .take(1_000_000)
            .collect();
        client.create(&path, b"", &PERSISTENT).await?;
        client.set_data(&path, &large, None).await?;
        let (data, stat) = client.get_data(&path).await?;
        ensure!(data == large, "another value of {} bytes", data.len());
        equal(&stat.data_length, &1_000_000, "dataLength")
    })
    .await;
    let parent = format!("{}/parent", at.prefix);
    let child = |name: &str| format!("{parent}/{name}");
    let family = step("children", async {
        client.create(&parent, b"", &PERSISTENT).await?;
        let mut last = 0;
        for name in ["a", "b", "c"] {
            last = client.create(&child(name), b"", &PERSISTENT).await?.0.czxid;
        }
        let (mut names, stat) = client.get_children(&parent).await?;
        names.sort();
        equal(&names.join(" "), &"a b c".to_owned(), "names")?;
        equal(
            &(stat.num_children, stat.cversion, stat.pzxid),
            &(3, 3, last),
            "numChildren, cversion, pzxid",
        )?;
        equal(
            &client.list_children(&parent).await?.len(),
            &3,
            "names without Stat",
        )?;
        Ok(stat)
    })
    .await;
    let family = step("child-deleted", async {
        client.delete(&child("b"), None).await?;
        let stat = client.check_stat(&parent).await?.context("no parent")?;
        ensure!(stat.pzxid > family.pzxid, "pzxid {}", stat.pzxid);
        let expected = Stat {
            num_children: 2,
            cversion: 4,
            pzxid: stat.pzxid,
            ..family
        };
        equal(&stat, &expected, "stat")?;
        Ok(stat)
    })
    .await;
    step("child-changed", async {
        client.set_data(&child("a"), b"changed", None).await?;
        equal(&client.check_stat(&parent).await?, &Some(family), "stat")
    })
    .await;
    step("not-empty", async {
        refused(
            client.delete(&parent, None).await,
            &Error::NotEmpty,
            "delete",
        )
    })
    .await;
    let line = format!("{}/line", at.prefix);
    step("sequential", async {
        client.create(&line, b"", &PERSISTENT).await?;
        let mut numbers = Vec::new();
        for name in ["a-", "a-", "b-"] {
            let path = format!("{line}/{name}");
            let (_, number) = client.create(&path, b"", &SEQUENTIAL).await?;
            numbers.push(number.into_i64());
        }
        equal(&numbers, &vec![0, 1, 2], "numbers")?;
        let mut names = client.list_children(&line).await?;
        names.sort();
        equal(
            &names.join(" "),
            &"a-0000000000 a-0000000001 b-0000000002".to_owned(),
            "names",
        )
    })
    .await;
    step("sequential-after", async {
        client.delete(&format!("{line}/b-0000000002"), None).await?;
        let path = format!("{line}/a-");
        let (_, number) = client.create(&path, b"", &SEQUENTIAL).await?;
        equal(&number.into_i64(), &3, "number")
    })
    .await;
    let ephemeral = format!("{}/e", at.prefix);
    step("ephemeral", async {
        let (stat, _) = client.create(&ephemeral, b"", &EPHEMERAL).await?;
        let session = client.session_id().0;
        equal(&stat.ephemeral_owner, &session, "owner in the answer")?;
        let seen = client.check_stat(&ephemeral).await?.context("no node")?;
        equal(&seen.ephemeral_owner, &session, "owner")
    })
    .await;
    step("no-children", async {
        let path = format!("{ephemeral}/child");
        refused(
            client.create(&path, b"", &PERSISTENT).await,
            &Error::NoChildrenForEphemerals,
            "create",
        )
    })
    .await;
    step("bad-path", async {
        for path in ["//b", "/../b"] {
            let path = format!("{}{path}", at.prefix);
            let seen = client.create(&path, b"", &PERSISTENT).await;
            // The crate checks less than the server does; either may refuse.
            ensure!(
                matches!(
                    seen,
                    Err(Error::BadArguments(_)
                        | Error::UnexpectedErrorCode(-8)
                        | Error::MarshallingError)
                ),
                "create of {path}: {seen:?}"
            );
        }
        equal(&client.get_data(&node).await?.0, &b"two".to_vec(), "value")
    })
    .await;
    step("sync", async {
        let other = connect(&at.address).await?;
        other.set_data(&node, b"three", None).await?;
        client.sync(&node).await?;
        equal(
            &client.get_data(&node).await?.0,
            &b"three".to_vec(),
            "value",
        )
    })
    .await;
    step("delete", async {
        let mut paths = vec![at.prefix.clone()];
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            for name in client.list_children(&path).await? {
                paths.push(format!("{path}/{name}"));
            }
            next += 1;
        }
        for path in paths.iter().rev() {
            client.delete(path, None).await?;
        }
        equal(&client.check_stat(&at.prefix).await?, &None, "root")
    })
    .await;
}
