//! Access lists with the digest scheme.

use ::zookeeper_client::{Acls, Client, CreateMode, Error};
use anyhow::Result;

use super::support::{PERSISTENT, connect, refused};
use crate::common::{Place, equal, step};

/// What `user:secret` becomes: base64 of its SHA-1 (ZooKeeper: DigestAuthenticationProvider.generateDigest).
const SECRET: &[u8] = b"user:secret";
const DIGEST: &str = "user:5w9W4eL3797Y4Wq8AcKUPPk8ha4=";

async fn shown(client: &Client, path: &str) -> Result<(Vec<(String, String, String)>, i32)> {
    let (list, stat) = client.get_acl(path).await?;
    let list = list
        .iter()
        .map(|acl| {
            (
                acl.permission().to_string(),
                acl.scheme().to_owned(),
                acl.id().to_owned(),
            )
        })
        .collect();
    Ok((list, stat.aversion))
}

fn list(permission: &str, scheme: &str, id: &str) -> Vec<(String, String, String)> {
    vec![(permission.to_owned(), scheme.to_owned(), id.to_owned())]
}

pub(crate) async fn play(at: Place) {
    let node = format!("{}/mine", at.prefix);
    let a = step("open", async {
        let client = connect(&at.address).await?;
        client.create(&at.prefix, b"", &PERSISTENT).await?;
        let expected = (list("ALL", "world", "anyone"), 0);
        equal(&shown(&client, &at.prefix).await?, &expected, "list")?;
        Ok(client)
    })
    .await;
    step("digest", async {
        a.auth("digest", SECRET).await?;
        let creator = CreateMode::Persistent.with_acls(Acls::creator_all());
        a.create(&node, b"zero", &creator).await?;
        Ok(())
    })
    .await;
    step("shown", async {
        let expected = (list("ALL", "digest", DIGEST), 0);
        equal(&shown(&a, &node).await?, &expected, "list")
    })
    .await;
    step("own", async {
        a.set_data(&node, b"one", None).await?;
        equal(&a.get_data(&node).await?.0, &b"one".to_vec(), "value")
    })
    .await;
    let b = step("stranger", async {
        let client = connect(&at.address).await?;
        refused(client.get_data(&node).await, &Error::NoAuth, "get")?;
        refused(
            client.set_data(&node, b"two", None).await,
            &Error::NoAuth,
            "set",
        )?;
        Ok(client)
    })
    .await;
    step("admitted", async {
        b.auth("digest", SECRET).await?;
        equal(&b.get_data(&node).await?.0, &b"one".to_vec(), "value")
    })
    .await;
    step("changed", async {
        let stat = a.set_acl(&node, &Acls::anyone_read(), Some(0)).await?;
        equal(&stat.aversion, &1, "aversion")?;
        let expected = (list("READ", "world", "anyone"), 1);
        equal(&shown(&a, &node).await?, &expected, "list")?;
        let c = connect(&at.address).await?;
        equal(&c.get_data(&node).await?.0, &b"one".to_vec(), "value")?;
        refused(c.set_data(&node, b"two", None).await, &Error::NoAuth, "set")
    })
    .await;
    step("bad-version", async {
        let answer = a.set_acl(&at.prefix, &Acls::anyone_all(), Some(7)).await;
        refused(answer, &Error::BadVersion, "setACL")?;
        equal(&shown(&a, &at.prefix).await?.1, &0, "aversion")?;
        // Who may administrate is asked before the version.
        let answer = a.set_acl(&node, &Acls::anyone_all(), Some(7)).await;
        refused(answer, &Error::NoAuth, "setACL of the other")?;
        let expected = (list("READ", "world", "anyone"), 1);
        equal(&shown(&a, &node).await?, &expected, "list of the other")
    })
    .await;
}
