//! Transactions.

use ::etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};
use anyhow::{Context as _, Result, bail, ensure};

use super::support::{Pair, connect, pair, refused, revision, there, undisturbed};
use crate::common::{Place, equal, step};

use CompareOp::{Equal, Greater, Less, NotEqual};

fn kinds(answer: &TxnResponse) -> Vec<&'static str> {
    answer
        .op_responses()
        .iter()
        .map(|answer| match answer {
            TxnOpResponse::Put(_) => "put",
            TxnOpResponse::Get(_) => "get",
            TxnOpResponse::Delete(_) => "delete",
            TxnOpResponse::Txn(_) => "txn",
        })
        .collect()
}

fn exists(key: &str) -> Compare {
    Compare::version(key, Greater, 0)
}

async fn add_one(client: &mut Client, counter: &str) -> Result<bool> {
    let now = there(client, counter).await?;
    let next = now.value.parse::<u32>()? + 1;
    let txn = Txn::new()
        .when([Compare::mod_revision(counter, Equal, now.modified)])
        .and_then([TxnOp::put(counter, next.to_string(), None)]);
    Ok(client.txn(txn).await?.succeeded())
}

pub(crate) async fn play(at: Place) {
    let key = format!("{}/a", at.prefix);
    let make = || {
        Txn::new()
            .when([Compare::version(key.as_str(), Equal, 0)])
            .and_then([TxnOp::put(key.as_str(), "made", None)])
            .or_else([TxnOp::get(key.as_str(), None)])
    };
    let mut client = step("then", async {
        let mut client = connect(&at.address).await?;
        let answer = client.txn(make()).await?;
        equal(
            &(answer.succeeded(), kinds(&answer)),
            &(true, vec!["put"]),
            "answer",
        )?;
        let now = there(&mut client, &key).await?;
        let made = revision(answer.header())?;
        equal(
            &(now.value.as_str(), now.create, now.modified, now.version),
            &("made", made, made, 1),
            "pair",
        )?;
        Ok(client)
    })
    .await;
    step("otherwise", async {
        let answer = client.txn(make()).await?;
        equal(
            &(answer.succeeded(), kinds(&answer)),
            &(false, vec!["get"]),
            "answer",
        )?;
        let Some(TxnOpResponse::Get(got)) = answer.op_responses().pop() else {
            bail!("no answer to the get");
        };
        let now = there(&mut client, &key).await?;
        equal(&got.kvs().first().map(Pair::from), &Some(now), "pair")
    })
    .await;
    step("compares", async {
        client.put(key.as_str(), "m", None).await?;
        let now = there(&mut client, &key).await?;
        let k = key.as_str();
        for (op, truths) in [
            (Equal, [false, true, false]),
            (Greater, [true, false, false]),
            (Less, [false, false, true]),
            (NotEqual, [true, false, true]),
        ] {
            for (i, truth) in truths.into_iter().enumerate() {
                let by = [-1, 0, 1][i];
                for compare in [
                    Compare::value(k, op, ["l", "m", "n"][i]),
                    Compare::version(k, op, now.version + by),
                    Compare::create_revision(k, op, now.create + by),
                    Compare::mod_revision(k, op, now.modified + by),
                    Compare::lease(k, op, by),
                ] {
                    let what = format!("{compare:?}");
                    let txn = Txn::new().when([compare]);
                    equal(&client.txn(txn).await?.succeeded(), &truth, &what)?;
                }
            }
        }
        Ok(())
    })
    .await;
    let [one, two, three] = ["1", "2", "3"].map(|name| format!("{}/s/{name}", at.prefix));
    step("several", async {
        let txn = Txn::new().when([exists(&key)]).and_then([
            TxnOp::put(one.as_str(), "1", None),
            TxnOp::put(two.as_str(), "2", None),
            TxnOp::put(three.as_str(), "3", None),
            TxnOp::delete(key.as_str(), None),
        ]);
        let answer = client.txn(txn).await?;
        equal(
            &(answer.succeeded(), kinds(&answer)),
            &(true, vec!["put", "put", "put", "delete"]),
            "answer",
        )?;
        let Some(TxnOpResponse::Delete(deleted)) = answer.op_responses().pop() else {
            bail!("no answer to the delete");
        };
        equal(&deleted.deleted(), &1, "deleted")?;
        for made in [&one, &two, &three] {
            let modified = there(&mut client, made).await?.modified;
            equal(&modified, &revision(answer.header())?, "mod_revision")?;
        }
        equal(&pair(&mut client, &key).await?, &None, "pair")
    })
    .await;
    step("reads", async {
        let txn = Txn::new().when([exists(&one)]).and_then([
            TxnOp::put(one.as_str(), "new", None),
            TxnOp::get(one.as_str(), None),
        ]);
        let Some(TxnOpResponse::Get(got)) = client.txn(txn).await?.op_responses().pop() else {
            bail!("no answer to the get");
        };
        let value = got.kvs().first().context("no pair")?.value().to_vec();
        equal(&value, &b"new".to_vec(), "value")
    })
    .await;
    step("read-only", async {
        undisturbed("revision after a transaction of gets", async |_| {
            let before = revision(client.get(one.as_str(), None).await?.header())?;
            let txn = Txn::new().and_then([
                TxnOp::get(one.as_str(), None),
                TxnOp::get(two.as_str(), None),
            ]);
            let header = revision(client.txn(txn).await?.header())?;
            let after = revision(client.get(one.as_str(), None).await?.header())?;
            ensure!(
                before <= header && header <= after,
                "{before}, then {header} in the transaction, then {after}"
            );
            Ok((after, before))
        })
        .await
    })
    .await;
    step("all-or-nothing", async {
        let before = (
            pair(&mut client, &one).await?,
            pair(&mut client, &two).await?,
        );
        let txn = Txn::new()
            .when([exists(&one), Compare::version(two.as_str(), Equal, 77)])
            .and_then([
                TxnOp::put(one.as_str(), "never", None),
                TxnOp::delete(two.as_str(), None),
            ]);
        let answer = client.txn(txn).await?;
        equal(
            &(answer.succeeded(), kinds(&answer)),
            &(false, vec![]),
            "answer",
        )?;
        let after = (
            pair(&mut client, &one).await?,
            pair(&mut client, &two).await?,
        );
        equal(&after, &before, "pairs")
    })
    .await;
    step("duplicate", async {
        let before = pair(&mut client, &one).await?;
        let txn = Txn::new().and_then([
            TxnOp::put(one.as_str(), "x", None),
            TxnOp::put(one.as_str(), "y", None),
        ]);
        refused(
            client.txn(txn).await,
            "etcdserver: duplicate key given in txn request",
            "transaction",
        )?;
        equal(&pair(&mut client, &one).await?, &before, "pair")
    })
    .await;
    step("nested", async {
        let inner = Txn::new()
            .when([Compare::version(two.as_str(), Equal, 77)])
            .and_then([TxnOp::put(two.as_str(), "never", None)])
            .or_else([TxnOp::put(two.as_str(), "nested", None)]);
        let txn = Txn::new()
            .when([exists(&one)])
            .and_then([TxnOp::txn(inner)]);
        let answer = client.txn(txn).await?;
        equal(
            &(answer.succeeded(), kinds(&answer)),
            &(true, vec!["txn"]),
            "answer",
        )?;
        let Some(TxnOpResponse::Txn(nested)) = answer.op_responses().pop() else {
            bail!("no answer to the transaction");
        };
        equal(
            &(nested.succeeded(), kinds(&nested)),
            &(false, vec!["put"]),
            "inner answer",
        )?;
        equal(
            &there(&mut client, &two).await?.value,
            &"nested".to_owned(),
            "value",
        )
    })
    .await;
    step("cas", async {
        let counter = format!("{}/counter", at.prefix);
        client.put(counter.as_str(), "0", None).await?;
        let mut players = Vec::new();
        for _ in 0..4 {
            let mut own = connect(&at.address).await?;
            let counter = counter.clone();
            players.push(tokio::spawn(async move {
                let mut done = 0;
                while done < 10 {
                    done += usize::from(add_one(&mut own, &counter).await?);
                }
                anyhow::Ok(())
            }));
        }
        for player in players {
            player.await??;
        }
        let now = there(&mut client, &counter).await?;
        equal(
            &(now.value.as_str(), now.version),
            &("40", 41),
            "value and version",
        )
    })
    .await;
}
