//! Leadership by the crate's lock: who holds it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::zookeeper_client::{Client, OwnedLockClient};
use anyhow::{Context as _, Result};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::support::{PERSISTENT, acquire, close_behind, connect};
use crate::common::{Place, equal, ms, note, s, step, until};

struct Contender {
    client: Client,
    leads: Arc<AtomicBool>,
    resign: Option<oneshot::Sender<()>>,
}

impl Contender {
    async fn enter(address: &str, folder: String) -> Result<Self> {
        let client = connect(address).await?;
        let leads = Arc::new(AtomicBool::new(false));
        let (resign, resigned) = oneshot::channel();
        let (own, flag) = (client.clone(), leads.clone());
        tokio::spawn(async move {
            let held: OwnedLockClient = acquire(&own, &folder).await?;
            flag.store(true, Ordering::SeqCst);
            let _ = resigned.await;
            drop(held);
            anyhow::Ok(())
        });
        Ok(Self {
            client,
            leads,
            resign: Some(resign),
        })
    }
}

fn leaders(of: &[Contender]) -> usize {
    of.iter()
        .filter(|one| one.leads.load(Ordering::SeqCst))
        .count()
}

pub(crate) async fn play(at: Place) {
    let folder = format!("{}/election", at.prefix);
    let one_leads = async |of: &[Contender]| {
        until(s(3), "leaders", &1, async || Ok(leaders(of))).await?;
        sleep(ms(500)).await;
        equal(&leaders(of), &1, "leaders a moment later")
    };
    let mut contenders = step("one", async {
        note("the crate has no election of its own: its lock is held by the leader");
        let root = connect(&at.address).await?;
        root.create(&at.prefix, b"", &PERSISTENT).await?;
        let mut contenders = Vec::new();
        for _ in 0..3 {
            contenders.push(Contender::enter(&at.address, folder.clone()).await?);
        }
        one_leads(&contenders).await?;
        Ok(contenders)
    })
    .await;
    let leader = async |of: &mut Vec<Contender>| {
        let at = of
            .iter()
            .position(|one| one.leads.load(Ordering::SeqCst))
            .context("no leader")?;
        anyhow::Ok(of.remove(at))
    };
    let first = step("follows", async {
        let first = leader(&mut contenders).await?;
        close_behind(&first.client, &at.address).await?;
        one_leads(&contenders).await?;
        Ok(first)
    })
    .await;
    step("last", async {
        let mut second = leader(&mut contenders).await?;
        let resign = second.resign.take().context("resigned before")?;
        anyhow::ensure!(resign.send(()).is_ok(), "the leader is gone");
        one_leads(&contenders).await
    })
    .await;
    drop(first);
}
