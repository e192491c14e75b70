//! What a client asks first.

use ::etcd_client::{Client, ConnectOptions, Error};
use anyhow::{Context as _, ensure};
use tokio::time::Instant;

use super::support::{connect, revision, undisturbed};
use crate::common::{Place, equal, s, step, within};

pub(crate) async fn play(at: Place) {
    let (mut client, cluster) = step("status", async {
        let mut client = connect(&at.address).await?;
        let status = client.status().await?;
        let numbers = status.version().split('-').next().unwrap_or_default();
        let numbers: Vec<_> = numbers.split('.').map(str::parse::<u32>).collect();
        ensure!(
            numbers.len() == 3 && numbers.iter().all(Result::is_ok),
            "version {}",
            status.version()
        );
        ensure!(status.leader() != 0, "leader is 0");
        let header = status.header().context("no header")?;
        ensure!(
            header.cluster_id() != 0
                && header.member_id() != 0
                && header.revision() != 0
                && header.raft_term() != 0,
            "header {header:?}"
        );
        Ok((client, header.cluster_id()))
    })
    .await;
    step("members", async {
        let answer = client.member_list().await?;
        let header = answer.header().context("no header")?;
        equal(&header.cluster_id(), &cluster, "cluster id")?;
        ensure!(!answer.members().is_empty(), "no members");
        for member in answer.members() {
            ensure!(member.id() != 0, "a member without id");
            ensure!(!member.client_urls().is_empty(), "a member without URL");
        }
        Ok(())
    })
    .await;
    step("header", async {
        undisturbed("the same revision twice", async |_| {
            let one = client.get(at.prefix.as_str(), None).await?;
            let two = client.get(at.prefix.as_str(), None).await?;
            equal(&(one.kvs().len(), two.kvs().len()), &(0, 0), "pairs")?;
            for header in [one.header(), two.header()] {
                equal(
                    &header.context("no header")?.cluster_id(),
                    &cluster,
                    "cluster id",
                )?;
            }
            ensure!(revision(one.header())? != 0, "revision is 0");
            Ok((revision(two.header())?, revision(one.header())?))
        })
        .await
    })
    .await;
    step("unreachable", async {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let options = ConnectOptions::new()
            .with_connect_timeout(s(2))
            .with_timeout(s(2));
        let started = Instant::now();
        let mut nowhere = Client::connect([format!("127.0.0.1:{port}")], Some(options)).await?;
        let answer = within(s(3), "error", nowhere.get("x", None)).await?;
        ensure!(
            matches!(answer, Err(Error::GRpcStatus(_) | Error::TransportError(_))),
            "answer {answer:?}"
        );
        ensure!(started.elapsed() < s(3), "after {:?}", started.elapsed());
        Ok(())
    })
    .await;
}
