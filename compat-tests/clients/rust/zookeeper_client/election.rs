//! Leadership by the crate's lock: who holds it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::support::{PERSISTENT, acquire_bound, connect};
use crate::common::{Place, equal, ms, note, s, step, until};

/// How a leader goes.
enum End {
    Resigns,
    Closes,
}

/// A task with a client of its own.
struct Contender {
    leads: Arc<AtomicBool>,
    end: oneshot::Sender<End>,
}

impl Contender {
    async fn enter(address: &str, folder: String) -> Result<Self> {
        let client = connect(address).await?;
        let leads = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        let flag = leads.clone();
        tokio::spawn(async move {
            let held = acquire_bound(&client, &folder).await?;
            flag.store(true, Ordering::SeqCst);
            match ended.await {
                // Its session goes with the client, and its node with the session.
                Ok(End::Closes) => std::mem::forget(held),
                Ok(End::Resigns) | Err(_) => drop(held),
            }
            anyhow::Ok(())
        });
        Ok(Self { leads, end })
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
    let go = async |of: &mut Vec<Contender>, end: End| {
        let leader = leader(of).await?;
        anyhow::ensure!(leader.end.send(end).is_ok(), "the leader is gone");
        one_leads(of).await
    };
    step("follows", go(&mut contenders, End::Closes)).await;
    step("last", go(&mut contenders, End::Resigns)).await;
}
