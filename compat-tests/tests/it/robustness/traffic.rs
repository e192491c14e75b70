//! Clients that write, read and watch all the time, come back after every loss, and record what they saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::differential::Random;
use causeway_compat_tests::raw::etcd::Failure;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::checks::{Event, Message, Operation, Record, Watch, What};
use crate::rpc::{Flow, Rpc, bytes, int, revision, text};

/// Everything lies below this.
const PREFIX: &str = "robustness/";
/// Keys that all writers share.
const KEYS: usize = 6;
/// Whoever cannot come back within this time never will.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// What the clients share.
pub(super) struct Shared {
    address: String,
    began: Instant,
    /// The header of a call on leases has a number of its own sequence.
    leases_apart: bool,
    pub(super) over: AtomicBool,
    /// The last revision that watchers have to be told of; 0 as long as it is not known.
    pub(super) last: AtomicI64,
    /// Watchers that are there.
    pub(super) watching: AtomicUsize,
    /// Acknowledged calls, and such without an answer.
    pub(super) acknowledged: AtomicUsize,
    pub(super) lost: AtomicUsize,
    record: Mutex<Record>,
}

impl Shared {
    pub(super) fn new(address: &str, leases_apart: bool) -> Arc<Shared> {
        Arc::new(Shared {
            address: address.to_string(),
            began: Instant::now(),
            leases_apart,
            over: AtomicBool::new(false),
            last: AtomicI64::new(0),
            watching: AtomicUsize::new(0),
            acknowledged: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            record: Mutex::new(Record::default()),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn note(&self, operation: Operation) {
        let count = match operation.answered {
            Some(_) => &self.acknowledged,
            None => &self.lost,
        };
        count.fetch_add(1, Ordering::SeqCst);
        if let Ok(mut record) = self.record.lock() {
            record.operations.push(operation);
        }
    }

    pub(super) fn take(&self) -> Record {
        let record = self.record.lock().map(|mut r| std::mem::take(&mut *r));
        record.unwrap_or_default()
    }

    /// Connects, however long the server is away.
    pub(super) async fn connect(&self) -> Result<Rpc> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Rpc::connect(&self.address).await {
                Ok(rpc) => return Ok(rpc),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// Whether nobody knows what became of a call.
fn is_unknown(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::DeadlineExceeded
    )
}

/// Writes and reads until it is over.
pub(super) async fn write(number: usize, shared: Arc<Shared>) -> Result<()> {
    let mut writer = Writer {
        rpc: shared.connect().await?,
        random: Random::new(number as u64),
        number,
        made: 0,
        shared,
    };
    while !writer.shared.is_over() {
        writer.step().await?;
        let pause = u64::try_from(writer.random.below(6))?;
        sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}

/// One write that is repeated until it is acknowledged; gives its revision.
pub(super) async fn marker(shared: &Arc<Shared>) -> Result<i64> {
    let mut writer = Writer {
        rpc: shared.connect().await?,
        random: Random::new(99),
        number: 99,
        made: 0,
        shared: shared.clone(),
    };
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(answer) = writer.put(None).await? {
            return Ok(revision(&answer));
        }
    }
    bail!("no write is acknowledged any more")
}

struct Writer {
    shared: Arc<Shared>,
    rpc: Rpc,
    random: Random,
    number: usize,
    made: usize,
}

impl Writer {
    async fn step(&mut self) -> Result<()> {
        match self.random.below(10) {
            0..4 => self.put(None).await.map(drop),
            4 => {
                let key = self.key();
                let request = json!({"key": bytes(&key)});
                let what = What::Write(BTreeMap::from([(key, None)]));
                self.ask("KV/DeleteRange", request, what).await.map(drop)
            }
            5 => self.two_puts().await,
            6..8 => self.swap().await,
            8 => self.read().await.map(drop),
            _ => self.leased().await,
        }
    }

    fn key(&mut self) -> String {
        format!("{PREFIX}{}", self.random.below(KEYS))
    }

    /// Given once.
    fn value(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.number, self.made)
    }

    /// Puts under a lease of its own or under none.
    async fn put(&mut self, lease: Option<i64>) -> Result<Option<Value>> {
        let key = match lease {
            Some(_) => format!("{PREFIX}leased-{}", self.number),
            None => self.key(),
        };
        let value = self.value();
        let request =
            json!({"key": bytes(&key), "value": bytes(&value), "lease": lease.unwrap_or(0)});
        let what = What::Write(BTreeMap::from([(key, Some(value))]));
        self.ask("KV/Put", request, what).await
    }

    async fn two_puts(&mut self) -> Result<()> {
        let first = self.random.below(KEYS);
        let second = (first + 1 + self.random.below(KEYS - 1)) % KEYS;
        let mut changes = BTreeMap::new();
        let mut puts = Vec::new();
        for key in [first, second].map(|key| format!("{PREFIX}{key}")) {
            let value = self.value();
            puts.push(json!({"request_put": {"key": bytes(&key), "value": bytes(&value)}}));
            changes.insert(key, Some(value));
        }
        let what = What::Write(changes);
        self.ask("KV/Txn", json!({ "success": puts }), what)
            .await
            .map(drop)
    }

    async fn swap(&mut self) -> Result<()> {
        let key = self.key();
        let Some(pairs) = self.read().await? else {
            return Ok(());
        };
        let expected = pairs.get(&key).map_or(0, |(_, revision)| *revision);
        let value = self.value();
        let request = json!({
            "compare": [{"key": bytes(&key), "target": "MOD", "result": "EQUAL", "mod_revision": expected}],
            "success": [{"request_put": {"key": bytes(&key), "value": bytes(&value)}}],
        });
        let what = What::Swap {
            key,
            expected,
            value,
            done: None,
        };
        self.ask("KV/Txn", request, what).await.map(drop)
    }

    async fn read(&mut self) -> Result<Option<BTreeMap<String, (String, i64)>>> {
        let request = json!({"key": bytes(PREFIX), "range_end": bytes("robustness0")});
        let what = What::Read(BTreeMap::new());
        let answer = self.ask("KV/Range", request, what).await?;
        Ok(answer.map(|answer| pairs(&answer)))
    }

    /// Grants, puts under it, revokes.
    async fn leased(&mut self) -> Result<()> {
        let Some(granted) = self.plain("Lease/LeaseGrant", json!({"TTL": 600})).await? else {
            return Ok(());
        };
        let id = int(&granted["ID"]);
        if self.put(Some(id)).await?.is_some() {
            let key = format!("{PREFIX}leased-{}", self.number);
            let what = What::Write(BTreeMap::from([(key, None)]));
            let request = json!({ "ID": id });
            self.ask("Lease/LeaseRevoke", request, what).await?;
        }
        Ok(())
    }

    /// A call that changes no key.
    async fn plain(&mut self, name: &str, request: Value) -> Result<Option<Value>> {
        match self.rpc.call(name, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if is_unknown(&failure) => {
                self.rpc = self.shared.connect().await?;
                Ok(None)
            }
            Err(failure) => bail!("{name}: {failure:?}"),
        }
    }

    /// Calls once and notes what came of it.
    async fn ask(&mut self, name: &str, request: Value, what: What) -> Result<Option<Value>> {
        let called = self.shared.now();
        let answer = self.plain(name, request).await?;
        let is_read = matches!(what, What::Read(_));
        let what = match (&answer, what) {
            (Some(answer), What::Read(_)) => What::Read(pairs(answer)),
            (
                Some(answer),
                What::Swap {
                    key,
                    expected,
                    value,
                    ..
                },
            ) => What::Swap {
                key,
                expected,
                value,
                done: Some(answer["succeeded"] == true),
            },
            (_, what) => what,
        };
        // A read without an answer says nothing.
        if answer.is_some() || !is_read {
            let is_apart = self.shared.leases_apart && name.starts_with("Lease/");
            self.shared.note(Operation {
                called,
                answered: answer.as_ref().map(|_| self.shared.now()),
                revision: answer.as_ref().map(revision).filter(|_| !is_apart),
                what,
            });
        }
        Ok(answer)
    }
}

fn pairs(answer: &Value) -> BTreeMap<String, (String, i64)> {
    let kvs = answer["kvs"].as_array().map(Vec::as_slice);
    let kvs = kvs.unwrap_or_default().iter();
    kvs.map(|kv| {
        (
            text(&kv["key"]),
            (text(&kv["value"]), int(&kv["mod_revision"])),
        )
    })
    .collect()
}

/// What kind of watcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) prev_kv: bool,
    pub(super) fragment: bool,
    /// Its side is closed once it has asked.
    pub(super) half_closed: bool,
    /// It asks for progress all the time.
    pub(super) progress: bool,
}

/// Watches everything until it was told of the last revision; comes back behind what it was told of.
pub(super) async fn watch(number: usize, kind: Kind, shared: Arc<Shared>) -> Result<usize> {
    let mut next = 0;
    let mut opened = 0;
    let mut since_over = None;
    loop {
        let rpc = shared.connect().await?;
        let mut flow = rpc.stream("Watch/Watch")?;
        flow.send(json!({"create_request": {
            "key": bytes(PREFIX),
            "range_end": bytes("robustness0"),
            "start_revision": next,
            "prev_kv": kind.prev_kv,
            "fragment": kind.fragment,
        }}))?;
        if kind.half_closed {
            flow.half_close();
        }
        opened += 1;
        let mut watch = Watch {
            name: format!("watcher {number}, stream {opened}"),
            start: next,
            messages: Vec::new(),
        };
        let done = follow(&mut flow, kind, &shared, &mut watch, &mut since_over)
            .await
            .with_context(|| watch.name.clone());
        if next == 0 {
            next = watch.messages.first().map_or(0, |first| first.revision + 1);
        }
        next = next.max(watch.up_to().map_or(0, |up_to| up_to + 1));
        if let Ok(mut record) = shared.record.lock() {
            record.watches.push(watch);
        }
        if done? {
            return Ok(opened);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Reads a stream to its end; true once the last revision was told.
async fn follow(
    flow: &mut Flow,
    kind: Kind,
    shared: &Shared,
    watch: &mut Watch,
    since_over: &mut Option<Instant>,
) -> Result<bool> {
    loop {
        let last = shared.last.load(Ordering::SeqCst);
        if last > 0 {
            if watch.up_to().is_some_and(|up_to| up_to >= last) {
                return Ok(true);
            }
            let since = *since_over.get_or_insert_with(Instant::now);
            ensure!(since.elapsed() < LIMIT, "was not told of {last}");
        }
        match timeout(Duration::from_millis(30), flow.next()).await {
            Err(_) if kind.progress => flow.send(json!({"progress_request": {}}))?,
            Err(_) => {}
            Ok(None | Some(Err(_))) => return Ok(false),
            Ok(Some(Ok(answer))) => {
                let message = message(&answer, kind.prev_kv);
                ensure!(!message.canceled, "cancelled: {answer}");
                if message.created && watch.start == 0 {
                    shared.watching.fetch_add(1, Ordering::SeqCst);
                }
                watch.messages.push(message);
            }
        }
    }
}

fn message(answer: &Value, prev_kv: bool) -> Message {
    let events = answer["events"].as_array().map(Vec::as_slice);
    let events = events.unwrap_or_default();
    let before = |event: &Value| {
        let pair = &event["prev_kv"];
        (!pair.is_null()).then(|| (text(&pair["value"]), int(&pair["mod_revision"])))
    };
    Message {
        revision: revision(answer),
        created: answer["created"] == true,
        canceled: answer["canceled"] == true,
        fragment: answer["fragment"] == true,
        events: events.iter().map(event).collect(),
        before: if prev_kv {
            events.iter().map(before).collect()
        } else {
            Vec::new()
        },
    }
}

fn event(event: &Value) -> Event {
    let kv = &event["kv"];
    Event {
        revision: int(&kv["mod_revision"]),
        key: text(&kv["key"]),
        value: (event["type"] != "DELETE").then(|| text(&kv["value"])),
        create: int(&kv["create_revision"]),
        version: int(&kv["version"]),
    }
}
