//! The gateway's process is killed at moments that nobody chose, under clients that write all the time: what was
//! acknowledged is there, what was not is there whole or not at all, sessions come back, and no number is given
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::differential::Random;
use causeway_compat_tests::raw::zookeeper::{Body, Reply, Request, op};
use causeway_compat_tests::{Gateway, Settings, Work, until};

use crate::stubborn::{LIMIT, Stubborn, create};

const CLIENTS: usize = 4;
const KILLS: usize = 16;
/// Writes between two kills, of all clients together, before the moment is drawn.
const BETWEEN: usize = 40;

#[test]
fn nothing_acknowledged_is_lost() {
    Work::scenario("crash", |work| {
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let address = gateway.target().zookeeper;
        let shared = Shared::default();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (shared, address) = (&shared, address.as_str());
                    scope.spawn(move || Writer::new(number, address, shared)?.run())
                })
                .collect();
            let mut moments = Random::new(20);
            let killed = (0..KILLS).try_for_each(|_| {
                let before = shared.written.load(Ordering::SeqCst);
                until(LIMIT, "the writers go on", || {
                    let written = shared.written.load(Ordering::SeqCst) - before;
                    ensure!(written >= BETWEEN, "{written} writes");
                    Ok(())
                })?;
                let pause = moments.below(200);
                std::thread::sleep(Duration::from_millis(u64::try_from(pause)?));
                gateway.kill();
                gateway.restart()
            });
            std::thread::sleep(Duration::from_millis(300));
            shared.over.store(true, Ordering::SeqCst);
            let mut losses = 0;
            for client in clients {
                let Ok(told) = client.join() else {
                    bail!("a writer panicked")
                };
                losses += told?;
            }
            killed?;
            // Otherwise the kills have met nobody at a write.
            ensure!(losses >= KILLS, "{losses} losses");
            Ok(())
        })
    });
}

/// What all writers know.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    written: AtomicUsize,
    /// Of all writes.
    zxids: Mutex<BTreeSet<i64>>,
}

/// A node as it was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    data: Vec<u8>,
    version: i32,
    owner: i64,
}

/// Writes below a directory of its own, one request at a time, and knows what has to be there.
struct Writer<'a> {
    shared: &'a Shared,
    client: Stubborn,
    dir: String,
    random: Random,
    nodes: BTreeMap<String, Node>,
    last_sequence: Option<u64>,
    made: u32,
    losses: usize,
    /// There was a loss, and what the request in flight came to is known only after it was looked at.
    unchecked: bool,
}

impl<'a> Writer<'a> {
    fn new(number: usize, address: &str, shared: &'a Shared) -> Result<Writer<'a>> {
        let mut client = Stubborn::new(address)?;
        let dir = format!("/writer-{number}");
        let reply = client.call(&create(&dir, b"", 0))?;
        // The first kill may come before the answer.
        ensure!(matches!(reply.error, 0 | -110), "{reply:?}");
        Ok(Writer {
            shared,
            client,
            dir,
            random: Random::new(number as u64),
            nodes: BTreeMap::new(),
            last_sequence: None,
            made: 0,
            losses: 0,
            unchecked: false,
        })
    }

    /// How often the connection was lost under a write.
    fn run(mut self) -> Result<usize> {
        while !self.shared.over.load(Ordering::SeqCst) {
            self.step()
                .and_then(|()| self.check_after_loss())
                .with_context(|| format!("{} after {} losses", self.dir, self.losses))?;
        }
        self.check().context("at the end")?;
        Ok(self.losses)
    }

    fn step(&mut self) -> Result<()> {
        let some = self.nodes.keys().cloned().collect::<Vec<_>>();
        let known = (!some.is_empty()).then(|| some[self.random.below(some.len())].clone());
        match (self.random.below(10), known) {
            (0..3, _) | (_, None) => {
                let path = self.fresh();
                let flags = i32::from(self.random.chance(1, 3));
                self.write(&create(&path, path.as_bytes(), flags), vec![(path, flags)])
            }
            (3, _) => self.sequence(),
            (4, _) => {
                let paths = vec![(self.fresh(), 0), (self.fresh(), 0)];
                let parts = paths
                    .iter()
                    .map(|(path, flags)| create(path, path.as_bytes(), *flags))
                    .collect();
                let multi = Request::Multi {
                    op: op::MULTI,
                    parts,
                };
                self.write(&multi, paths)
            }
            (5..8, Some(path)) => self.set(path),
            (_, Some(path)) => self.delete(path),
        }
    }

    fn fresh(&mut self) -> String {
        self.made += 1;
        format!("{}/{}", self.dir, self.made)
    }

    /// Creates nodes, all of them or none.
    fn write(&mut self, request: &Request, paths: Vec<(String, i32)>) -> Result<()> {
        let acknowledged = self.ask(request)?;
        let mut found = 0;
        for (path, flags) in &paths {
            let owner = if *flags == 1 {
                self.client.session.session_id
            } else {
                0
            };
            let node = Node {
                data: path.as_bytes().to_vec(),
                version: 0,
                owner,
            };
            if acknowledged || self.read(path)?.is_some() {
                found += 1;
                self.nodes.insert(path.clone(), node);
            }
        }
        ensure!(
            found == 0 || found == paths.len(),
            "half of {paths:?} is there"
        );
        Ok(())
    }

    fn sequence(&mut self) -> Result<()> {
        let prefix = format!("{}/s-", self.dir);
        let request = create(&prefix, b"s", 2);
        let Some(reply) = self.client.attempt(&request)? else {
            // Whether it was made, the next number shows: it has to be larger all the same.
            self.lost()?;
            return self.find_sequences();
        };
        self.answered(&reply)?;
        let Body::PathStat(path, _) = reply.body else {
            bail!("{reply:?}")
        };
        self.number(&path)?;
        self.insert_sequence(path);
        Ok(())
    }

    fn number(&mut self, path: &str) -> Result<()> {
        let number = path.rsplit_once("/s-").context("a number")?.1.parse()?;
        ensure!(
            self.last_sequence.is_none_or(|last| last < number),
            "{path} after {:?}",
            self.last_sequence
        );
        self.last_sequence = Some(number);
        Ok(())
    }

    fn insert_sequence(&mut self, path: String) {
        let node = Node {
            data: b"s".to_vec(),
            version: 0,
            owner: 0,
        };
        self.nodes.insert(path, node);
    }

    /// One that was made without an answer.
    fn find_sequences(&mut self) -> Result<()> {
        for name in self.children()? {
            let path = format!("{}/{name}", self.dir);
            if name.starts_with("s-") && !self.nodes.contains_key(&path) {
                self.number(&path)?;
                self.insert_sequence(path);
            }
        }
        Ok(())
    }

    fn set(&mut self, path: String) -> Result<()> {
        self.made += 1;
        let before = self.nodes[&path].clone();
        let after = Node {
            data: self.made.to_string().into_bytes(),
            version: before.version + 1,
            ..before.clone()
        };
        let request = Request::SetData {
            path: path.clone(),
            data: Some(after.data.clone()),
            version: before.version,
        };
        let acknowledged = self.ask(&request)?;
        let found = self.read(&path)?;
        ensure!(
            found.as_ref() == Some(&after) || !acknowledged && found.as_ref() == Some(&before),
            "{path} is {found:?}, was {before:?}, acknowledged: {acknowledged}"
        );
        self.nodes.extend(found.map(|node| (path, node)));
        Ok(())
    }

    fn delete(&mut self, path: String) -> Result<()> {
        let version = self.nodes[&path].version;
        let request = Request::Delete {
            path: path.clone(),
            version,
        };
        let acknowledged = self.ask(&request)?;
        let found = self.read(&path)?;
        ensure!(
            found.is_none() || !acknowledged,
            "{path} came back: {found:?}"
        );
        if found.is_none() {
            self.nodes.remove(&path);
        }
        Ok(())
    }

    /// Asks once; says whether it was acknowledged.
    fn ask(&mut self, request: &Request) -> Result<bool> {
        match self.client.attempt(request)? {
            Some(reply) => {
                self.answered(&reply)?;
                Ok(true)
            }
            None => {
                self.lost()?;
                Ok(false)
            }
        }
    }

    fn answered(&mut self, reply: &Reply) -> Result<()> {
        ensure!(reply.error == 0, "{reply:?}");
        if let Body::Multi(results) = &reply.body {
            ensure!(results.iter().all(|result| result.error == 0), "{reply:?}");
        }
        self.shared.written.fetch_add(1, Ordering::SeqCst);
        let fresh = self
            .shared
            .zxids
            .lock()
            .is_ok_and(|mut all| all.insert(reply.zxid));
        ensure!(fresh, "zxid {:x} for a second time", reply.zxid);
        Ok(())
    }

    fn lost(&mut self) -> Result<()> {
        self.losses += 1;
        // Shown by the process that is gone, to anybody; what the next one gives is above it.
        let shown = self
            .shared
            .zxids
            .lock()
            .ok()
            .and_then(|all| all.last().copied())
            .unwrap_or_default();
        self.client.come_back(Instant::now() + LIMIT)?;
        let probe = self.fresh();
        loop {
            // The loss of a probe is one more loss, and the node is known by its absence from the model.
            match self.client.attempt(&create(&probe, b"", 0))? {
                Some(reply) if reply.error == 0 => {
                    ensure!(reply.zxid > shown, "{:x} after {shown:x}", reply.zxid);
                    self.answered(&reply)?;
                    break;
                }
                Some(reply) => {
                    ensure!(reply.error == -110, "{reply:?}");
                    break;
                }
                None => {
                    self.losses += 1;
                    self.client.come_back(Instant::now() + LIMIT)?;
                }
            }
        }
        let node = Node {
            data: Vec::new(),
            version: 0,
            owner: 0,
        };
        self.nodes.insert(probe, node);
        self.unchecked = true;
        Ok(())
    }

    fn check_after_loss(&mut self) -> Result<()> {
        if std::mem::take(&mut self.unchecked) {
            self.check()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        for (path, node) in self.nodes.clone() {
            let found = self.read(&path)?;
            ensure!(
                found.as_ref() == Some(&node),
                "{path} is {found:?} and was acknowledged as {node:?}"
            );
        }
        Ok(())
    }

    fn read(&mut self, path: &str) -> Result<Option<Node>> {
        let request = Request::Read {
            op: op::GET_DATA,
            path: path.to_string(),
            watch: false,
        };
        let reply = self.client.call(&request)?;
        match reply.body {
            Body::Data(data, stat) if reply.error == 0 => Ok(Some(Node {
                data: data.unwrap_or_default(),
                version: stat.version,
                owner: stat.ephemeral_owner,
            })),
            _ if reply.error == -101 => Ok(None),
            _ => bail!("{reply:?}"),
        }
    }

    fn children(&mut self) -> Result<Vec<String>> {
        let request = Request::Read {
            op: op::GET_CHILDREN,
            path: self.dir.clone(),
            watch: false,
        };
        match self.client.call(&request)?.body {
            Body::Names(names) => Ok(names),
            other => bail!("{other:?}"),
        }
    }
}
