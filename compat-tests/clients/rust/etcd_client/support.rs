//! The few lines that an application writes around the crate.

use std::fmt::Debug;
use std::time::Duration;

use ::etcd_client::{
    Client, ConnectOptions, Error, Event, EventType, KeyValue, ResponseHeader, WatchOptions,
    WatchStream,
};
use anyhow::{Context as _, Result, bail, ensure};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::common::{equal, ms, s, within};

/// The members of a cluster, as the bench names them.
pub(crate) fn endpoints(address: &str) -> Vec<&str> {
    address.split(',').collect()
}

/// A client that gives up connecting after 3 s.
pub(crate) async fn connect(address: &str) -> Result<Client> {
    let options = ConnectOptions::new().with_connect_timeout(s(3));
    Ok(Client::connect(endpoints(address), Some(options)).await?)
}

/// The revision that a header shows.
pub(crate) fn revision(header: Option<&ResponseHeader>) -> Result<i64> {
    Ok(header.context("no header")?.revision())
}

/// The call is refused with this text of the server's.
pub(crate) fn refused<T: Debug>(answer: Result<T, Error>, text: &str, what: &str) -> Result<()> {
    match answer {
        Ok(answer) => bail!("{what}: expected \"{text}\", saw {answer:?}"),
        Err(Error::GRpcStatus(status)) => equal(&status.message(), &text, what),
        Err(error) => bail!("{what}: expected \"{text}\", saw {error}"),
    }
}

/// A pair as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

impl From<&KeyValue> for Pair {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: String::from_utf8_lossy(kv.key()).into_owned(),
            value: String::from_utf8_lossy(kv.value()).into_owned(),
            create: kv.create_revision(),
            modified: kv.mod_revision(),
            version: kv.version(),
            lease: kv.lease(),
        }
    }
}

/// What a key holds now.
pub(crate) async fn pair(client: &mut Client, key: &str) -> Result<Option<Pair>> {
    Ok(client.get(key, None).await?.kvs().first().map(Pair::from))
}

/// What a key holds now, which has to be there.
pub(crate) async fn there(client: &mut Client, key: &str) -> Result<Pair> {
    pair(client, key)
        .await?
        .with_context(|| format!("{key} is gone"))
}

/// A lease of an earlier scenario may end meanwhile and move the revision. What is said of one that nobody moved must
/// hold in one attempt of three; an answer that is wrong whoever writes is an error of the first.
pub(crate) async fn undisturbed(
    what: &str,
    mut attempt: impl AsyncFnMut(usize) -> Result<(i64, i64)>,
) -> Result<()> {
    let mut last = (0, 0);
    for i in 0..3 {
        last = attempt(i).await?;
        if last.0 == last.1 {
            return Ok(());
        }
    }
    bail!(
        "{what}: expected {}, saw {} in each of three attempts",
        last.1,
        last.0
    )
}

/// An event as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) put: bool,
    pub(crate) pair: Pair,
    pub(crate) previous: Option<Pair>,
}

impl Seen {
    fn of(event: &Event) -> Result<Self> {
        Ok(Self {
            put: event.event_type() == EventType::Put,
            pair: event.kv().context("an event without pair")?.into(),
            previous: event.prev_kv().map(Pair::from),
        })
    }

    /// Kind, key and value.
    pub(crate) fn brief(&self) -> (bool, &str, &str) {
        (self.put, &self.pair.key, &self.pair.value)
    }
}

/// One watch on a stream of its own.
pub(crate) struct Watch {
    stream: WatchStream,
    waiting: Vec<Seen>,
}

impl Watch {
    /// In place when this returns.
    pub(crate) async fn of(client: &mut Client, key: &str, options: WatchOptions) -> Result<Self> {
        let mut stream = within(s(5), "watch", client.watch(key, Some(options))).await??;
        let created = within(s(5), "watch created", stream.message()).await??;
        ensure!(
            created.is_some_and(|answer| answer.created() && !answer.canceled()),
            "the watch was not created"
        );
        Ok(Self {
            stream,
            waiting: Vec::new(),
        })
    }

    /// The next so many events.
    pub(crate) async fn next(&mut self, count: usize, limit: Duration) -> Result<Vec<Seen>> {
        let end = Instant::now() + limit;
        while self.waiting.len() < count {
            let Ok(answer) = timeout_at(end, self.stream.message()).await else {
                bail!(
                    "expected {count} events within {limit:?}, saw {:?}",
                    self.waiting
                );
            };
            self.take(answer?)?;
        }
        Ok(self.waiting.drain(..count).collect())
    }

    /// No (more) event for so long.
    pub(crate) async fn silent(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while let Ok(answer) = timeout_at(end, self.stream.message()).await {
            self.take(answer?)?;
        }
        equal(&self.waiting, &Vec::new(), "events")
    }

    /// Exactly these events, by kind, key and value.
    pub(crate) async fn expect(
        &mut self,
        expected: &[(bool, &str, &str)],
        limit: Duration,
    ) -> Result<Vec<Seen>> {
        let seen = self.next(expected.len(), limit).await?;
        let brief: Vec<_> = seen.iter().map(Seen::brief).collect();
        equal(&brief, &expected.to_vec(), "events")?;
        Ok(seen)
    }

    fn take(&mut self, answer: Option<::etcd_client::WatchResponse>) -> Result<()> {
        let answer = answer.context("the watch stream ended")?;
        ensure!(!answer.canceled(), "cancelled: {}", answer.cancel_reason());
        for event in answer.events() {
            self.waiting.push(Seen::of(event)?);
        }
        Ok(())
    }
}

/// A watch that shows deletes and puts of a prefix.
pub(crate) fn prefix() -> WatchOptions {
    WatchOptions::new().with_prefix()
}

/// Renews a lease each third of its time, over new streams when one breaks, until it is aborted.
pub(crate) fn keep_alive(client: &Client, lease: i64, ttl: Duration) -> JoinHandle<()> {
    let mut client = client.clone();
    tokio::spawn(async move {
        loop {
            if let Ok((mut keeper, mut answers)) = client.lease_keep_alive(lease).await {
                loop {
                    sleep(ttl / 3).await;
                    let renewed = async {
                        keeper.keep_alive().await?;
                        answers.message().await
                    };
                    match timeout(ttl / 3, renewed).await {
                        Ok(Ok(Some(answer))) if answer.ttl() > 0 => {}
                        _ => break,
                    }
                }
            }
            sleep(ms(200)).await;
        }
    })
}
