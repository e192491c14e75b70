//! Users, roles and tokens.

use ::etcd_client::{Client, ConnectOptions, Error, GetOptions, Permission};

use super::support::{connect, endpoints, refused};
use crate::common::{Place, equal, step};

pub(crate) async fn play(at: Place) {
    let key = format!("{}/a", at.prefix);
    let k = key.as_str();
    let enter = async |name: &str, password: &str| -> Result<Client, Error> {
        let options = ConnectOptions::new().with_user(name, password);
        Client::connect(endpoints(&at.address), Some(options)).await
    };
    step("off", async {
        refused(
            enter("root", "x").await.map(|_| "a client"),
            "etcdserver: authentication is not enabled",
            "Authenticate",
        )
    })
    .await;
    let mut open = step("setup", async {
        let mut client = connect(&at.address).await?;
        client.put(k, "one", None).await?;
        client.role_add("root").await?;
        client.user_add("root", "rootpw", None).await?;
        client.user_grant_role("root", "root").await?;
        client.role_add("reading").await?;
        let readable = Permission::read(format!("{}/", at.prefix)).with_prefix();
        client.role_grant_permission("reading", readable).await?;
        client.user_add("reader", "readerpw", None).await?;
        client.user_grant_role("reader", "reading").await?;
        client.auth_enable().await?;
        Ok(client)
    })
    .await;
    step("anonymous", async {
        refused(
            open.put(k, "two", None).await,
            "etcdserver: user name is empty",
            "put",
        )
    })
    .await;
    step("wrong", async {
        refused(
            enter("reader", "wrong").await.map(|_| "a client"),
            "etcdserver: authentication failed, invalid user ID or password",
            "Authenticate",
        )
    })
    .await;
    step("reader", async {
        let mut reader = enter("reader", "readerpw").await?;
        let options = GetOptions::new().with_prefix();
        let answer = reader.get(format!("{}/", at.prefix), Some(options)).await?;
        let value = answer.kvs().first().map(|kv| kv.value().to_vec());
        equal(&value, &Some(b"one".to_vec()), "value")?;
        refused(
            reader.put(k, "two", None).await,
            "etcdserver: permission denied",
            "put",
        )
    })
    .await;
    let mut root = step("root", async {
        let mut root = enter("root", "rootpw").await?;
        root.put(k, "three", None).await?;
        let answer = root.get(k, None).await?;
        let value = answer.kvs().first().map(|kv| kv.value().to_vec());
        equal(&value, &Some(b"three".to_vec()), "value")?;
        Ok(root)
    })
    .await;
    step("cleanup", async {
        root.auth_disable().await?;
        for name in ["root", "reader"] {
            open.user_delete(name).await?;
        }
        for name in ["root", "reading"] {
            open.role_delete(name).await?;
        }
        let left = (
            open.user_list().await?.users().len(),
            open.role_list().await?.roles().len(),
        );
        equal(&left, &(0, 0), "users and roles left")
    })
    .await;
}
