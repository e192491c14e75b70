//! Following a scope.
//!
//! Where the ensemble has persistent recursive watches (ZooKeeper 3.6), one of them covers a
//! root. Otherwise every node has one-shot watches for its data and its children, set again after
//! each event. Either way an event only says where to look: the node is read again, and what it
//! was last seen as decides whether anything is new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use causeway_backend::{BackendError, BackendName, Entry, Event, Revision, Scope};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::sleep;
use zookeeper_client::{
    AddWatchMode, Client, Error, EventType, OneshotWatcher, PersistentWatcher, WatchedEvent,
};

use crate::names::{child, parent, reaches_below, roots};
use crate::session::{Sessions, disconnected};
use crate::{Inner, read};

/// Pauses between attempts to come back, growing from the first to the last.
const RETRY_FROM: Duration = Duration::from_millis(100);
const RETRY_TO: Duration = Duration::from_secs(3);

/// Nodes read again at the same time.
const IN_FLIGHT: usize = 64;

/// Snapshot, then changes; again from the start after a loss. Ends when nobody reads.
pub(crate) async fn follow(backend: Arc<Inner>, scope: Scope, events: mpsc::Sender<Event>) {
    let mut pause = RETRY_FROM;
    let mut lost = false;
    loop {
        let mut feed = Feed::new(&backend, &scope, &events);
        let reason = match feed.run().await {
            Err(Stop::Lost(reason)) => reason,
            Err(Stop::NobodyReads) => return,
            Ok(()) => format!("ZooKeeper at {}: the watch ended", backend.sessions.servers),
        };
        if feed.was_whole {
            lost = false;
            pause = RETRY_FROM;
        }
        tracing::debug!(backend = %backend.name, %reason, "watch lost");
        if !lost {
            lost = true;
            if events.send(Event::Lost { reason }).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(RETRY_TO),
            () = events.closed() => return,
        }
    }
}

/// Why following stopped.
enum Stop {
    Lost(String),
    NobodyReads,
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        Self::Lost(error.to_string())
    }
}

/// One unbroken stretch of following.
struct Feed<'a> {
    backend: &'a Inner,
    scope: &'a Scope,
    events: &'a mpsc::Sender<Event>,
    /// The zxid of the last write of each entry that was passed on.
    known: BTreeMap<Bytes, i64>,
    was_whole: bool,
}

impl<'a> Feed<'a> {
    fn new(backend: &'a Inner, scope: &'a Scope, events: &'a mpsc::Sender<Event>) -> Self {
        Self {
            backend,
            scope,
            events,
            known: BTreeMap::new(),
            was_whole: false,
        }
    }

    async fn run(&mut self) -> Result<(), Stop> {
        let client = self.backend.sessions.own().await?;
        let state = client.state_watcher();
        let servers = &self.backend.sessions.servers;
        let events = self.events;
        let lost = async move {
            let state = disconnected(state).await;
            Stop::Lost(format!("ZooKeeper at {servers}: the session is {state}"))
        };
        tokio::select! {
            result = self.serve(&client) => result,
            stop = lost => Err(stop),
            () = events.closed() => Err(Stop::NobodyReads),
        }
    }

    async fn serve(&mut self, client: &Client) -> Result<(), Stop> {
        if self.backend.recursive.load(Ordering::Relaxed) {
            match self.recursive(client).await? {
                Some(watchers) => return self.serve_recursive(client, watchers).await,
                None => self.backend.recursive.store(false, Ordering::Relaxed),
            }
        }
        self.serve_one_shot(client).await
    }

    async fn send(&self, event: Event) -> Result<(), Stop> {
        self.events.send(event).await.map_err(|_| Stop::NobodyReads)
    }

    fn revision(&self, zxid: i64) -> Revision {
        Revision::from_i64(self.backend.name.clone(), zxid)
    }

    async fn snapshot(
        &mut self,
        entries: BTreeMap<Bytes, Entry>,
        highest: i64,
    ) -> Result<(), Stop> {
        self.send(Event::SnapshotStart).await?;
        for (key, entry) in entries {
            self.known.insert(key, mark(&entry));
            self.send(Event::Put(entry)).await?;
        }
        self.was_whole = true;
        self.send(Event::SnapshotDone {
            revision: self.revision(highest),
        })
        .await
    }

    async fn put(&mut self, entry: Entry) -> Result<(), Stop> {
        let mark = mark(&entry);
        if !self.scope.contains(&entry.key)
            || self
                .known
                .get(&entry.key)
                .is_some_and(|known| *known >= mark)
        {
            return Ok(());
        }
        self.known.insert(entry.key.clone(), mark);
        self.send(Event::Put(entry)).await
    }

    async fn delete(&mut self, path: &str, removed: i64) -> Result<(), Stop> {
        let Some((key, known)) = self.known.remove_entry(path.as_bytes()) else {
            return Ok(());
        };
        let revision = self.revision(removed.max(known));
        self.send(Event::Delete { key, revision }).await
    }

    // Persistent recursive watches.

    /// A watch on each root; `None` when the ensemble has no such watches.
    async fn recursive(&self, client: &Client) -> Result<Option<Vec<PersistentWatcher>>, Stop> {
        let mut watchers = Vec::new();
        for root in roots(self.scope) {
            let asked = client.watch(&root, AddWatchMode::PersistentRecursive);
            match self.backend.sessions.bounded(asked).await? {
                Ok(watcher) => watchers.push(watcher),
                Err(Error::Unimplemented) => return Ok(None),
                Err(error) => return Err(self.backend.sessions.error(&error).into()),
            }
        }
        Ok(Some(watchers))
    }

    async fn serve_recursive(
        &mut self,
        client: &Client,
        watchers: Vec<PersistentWatcher>,
    ) -> Result<(), Stop> {
        // The watches are set, so that what changes while the scope is listed is read again.
        let Inner { sessions, name, .. } = self.backend;
        let (entries, highest) = read::scope(sessions, name, client, self.scope).await?;
        self.snapshot(entries, highest).await?;
        if watchers.is_empty() {
            return std::future::pending().await;
        }
        let scope = self.scope;
        let changed: SelectAll<_> = watchers
            .into_iter()
            .map(|watcher| changes(watcher).boxed())
            .collect();
        let mut reads = changed
            .filter(|event| {
                let wanted =
                    event.event_type == EventType::Session || scope.contains(event.path.as_bytes());
                async move { wanted }
            })
            .map(|event| read_again(sessions, name, client, event))
            .buffered(IN_FLIGHT)
            .boxed();
        while let Some(read) = reads.next().await {
            match read? {
                Read::Is(entry) => self.put(entry).await?,
                Read::Gone { path, removed } => self.delete(&path, removed).await?,
                Read::Nothing => {}
            }
        }
        Ok(())
    }

    // One-shot watches.

    async fn serve_one_shot(&mut self, client: &Client) -> Result<(), Stop> {
        let mut watches = OneShot {
            armed: BTreeSet::new(),
            fired: FuturesUnordered::new(),
        };
        let tops = roots(self.scope);
        let (entries, highest) = self
            .explore(client, &mut watches, &tops, tops.clone())
            .await?;
        self.snapshot(entries, highest).await?;
        if watches.fired.is_empty() {
            return std::future::pending().await;
        }
        while let Some((path, kind, event)) = watches.fired.next().await {
            if event.event_type == EventType::Session {
                return Ok(());
            }
            watches.armed.remove(&(path.clone(), kind));
            match kind {
                Kind::Children => {
                    let children = self.arm_children(client, &mut watches, &path).await?;
                    self.explore_new(client, &mut watches, &tops, children)
                        .await?;
                }
                Kind::Existence => {
                    self.explore_new(client, &mut watches, &tops, vec![path])
                        .await?;
                }
                Kind::Data => {
                    let removed = match event.event_type {
                        EventType::NodeDeleted => {
                            removal(&self.backend.sessions, client, &path, event.zxid).await?
                        }
                        _ => 0,
                    };
                    let visit = visit_data(self.backend, client, &path).await?;
                    match visit.node {
                        Some((entry, _)) => {
                            watches.arm(&path, Kind::Data, visit.watcher);
                            self.put(entry).await?;
                        }
                        None => {
                            self.delete(&path, removed).await?;
                            if tops.contains(&path) {
                                self.explore_new(client, &mut watches, &tops, vec![path])
                                    .await?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn explore_new(
        &mut self,
        client: &Client,
        watches: &mut OneShot,
        tops: &[String],
        paths: Vec<String>,
    ) -> Result<(), Stop> {
        let (entries, _) = self.explore(client, watches, tops, paths).await?;
        for entry in entries.into_values() {
            self.put(entry).await?;
        }
        Ok(())
    }

    /// Reads and watches the nodes and all below them, as far as they are not watched yet. A top
    /// that does not exist is watched for its creation.
    async fn explore(
        &self,
        client: &Client,
        watches: &mut OneShot,
        tops: &[String],
        paths: Vec<String>,
    ) -> Result<(BTreeMap<Bytes, Entry>, i64), Stop> {
        let mut found = BTreeMap::new();
        let mut highest = 0;
        let mut waiting = paths;
        let mut visits = FuturesUnordered::new();
        loop {
            while visits.len() < IN_FLIGHT
                && let Some(path) = waiting.pop()
            {
                if !watches.armed.contains(&(path.clone(), Kind::Data)) {
                    let scope = self.scope;
                    visits.push(visit(self.backend, client, scope, path));
                }
            }
            let Some((path, data, below)) = visits.next().await.transpose()? else {
                break;
            };
            let Some((entry, zxid)) = data.node else {
                if tops.contains(&path) && !self.arm_existence(client, watches, &path).await? {
                    waiting.push(path);
                }
                continue;
            };
            highest = highest.max(zxid);
            watches.arm(&path, Kind::Data, data.watcher);
            if let Some((children, watcher)) = below {
                watches.arm(&path, Kind::Children, Some(watcher));
                waiting.extend(self.wanted(&path, &children));
            }
            if self.scope.contains(&entry.key) {
                found.insert(entry.key.clone(), entry);
            }
        }
        Ok((found, highest))
    }

    async fn arm_children(
        &self,
        client: &Client,
        watches: &mut OneShot,
        path: &str,
    ) -> Result<Vec<String>, Stop> {
        let sessions = &self.backend.sessions;
        match sessions
            .bounded(client.list_and_watch_children(path))
            .await?
        {
            Ok((children, watcher)) => {
                watches.arm(path, Kind::Children, Some(watcher));
                Ok(self.wanted(path, &children))
            }
            // The watch of its data tells of the removal.
            Err(Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(sessions.error(&error).into()),
        }
    }

    /// Watches for a creation; false when the node has come to exist.
    async fn arm_existence(
        &self,
        client: &Client,
        watches: &mut OneShot,
        path: &str,
    ) -> Result<bool, Stop> {
        let sessions = &self.backend.sessions;
        let (stat, watcher) = sessions.call(client.check_and_watch_stat(path)).await?;
        if stat.is_some() {
            return Ok(false);
        }
        watches.arm(path, Kind::Existence, Some(watcher));
        Ok(true)
    }

    fn wanted(&self, path: &str, children: &[String]) -> Vec<String> {
        let paths = children.iter().map(|name| child(path, name));
        paths
            .filter(|path| self.scope.contains(path.as_bytes()) || reaches_below(self.scope, path))
            .collect()
    }
}

/// What reading a node again gave.
enum Read {
    Is(Entry),
    Gone { path: String, removed: i64 },
    Nothing,
}

/// Events of a watch until its session breaks; the last one is the session's.
fn changes(watcher: PersistentWatcher) -> impl stream::Stream<Item = WatchedEvent> + Send {
    stream::unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        let event = watcher.changed().await;
        let next = (event.event_type != EventType::Session).then_some(watcher);
        Some((event, next))
    })
}

async fn read_again(
    sessions: &Sessions,
    name: &BackendName,
    client: &Client,
    event: WatchedEvent,
) -> Result<Read, Stop> {
    let path = event.path;
    match event.event_type {
        EventType::Session => {
            let state = event.session_state;
            Err(Stop::Lost(format!(
                "ZooKeeper at {}: the session is {state}",
                sessions.servers
            )))
        }
        EventType::NodeDeleted => {
            // The mark is read before the node: see `Event::Delete`.
            let removed = removal(sessions, client, &path, event.zxid).await?;
            Ok(match read::node(sessions, name, client, &path).await? {
                Some(entry) => Read::Is(entry),
                None => Read::Gone { path, removed },
            })
        }
        _ => Ok(match read::node(sessions, name, client, &path).await? {
            Some(entry) => Read::Is(entry),
            // Its removal has an event of its own.
            None => Read::Nothing,
        }),
    }
}

/// A zxid at or after a node's removal: the event's own from 3.9 on, before that the last change
/// of the children of what is left above it.
async fn removal(
    sessions: &Sessions,
    client: &Client,
    path: &str,
    zxid: i64,
) -> Result<i64, BackendError> {
    if zxid > 0 {
        return Ok(zxid);
    }
    let mut next = parent(path);
    while let Some(above) = next {
        if let Some(stat) = sessions.call(client.check_stat(above)).await? {
            return Ok(stat.pzxid);
        }
        next = parent(above);
    }
    Ok(0)
}

/// What a one-shot watch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Data,
    Children,
    Existence,
}

/// One-shot watches that are set.
struct OneShot {
    armed: BTreeSet<(String, Kind)>,
    fired: FuturesUnordered<BoxFuture<'static, (String, Kind, WatchedEvent)>>,
}

impl OneShot {
    fn arm(&mut self, path: &str, kind: Kind, watcher: Option<OneshotWatcher>) {
        let Some(watcher) = watcher else { return };
        if self.armed.insert((path.to_owned(), kind)) {
            let path = path.to_owned();
            self.fired
                .push(async move { (path, kind, watcher.changed().await) }.boxed());
        }
    }
}

/// A node that was read and watched.
struct Visit {
    /// The entry and the highest zxid that it shows.
    node: Option<(Entry, i64)>,
    watcher: Option<OneshotWatcher>,
}

type Below = Option<(Vec<String>, OneshotWatcher)>;

async fn visit(
    backend: &Inner,
    client: &Client,
    scope: &Scope,
    path: String,
) -> Result<(String, Visit, Below), BackendError> {
    let data = visit_data(backend, client, &path).await?;
    let mut below = None;
    // Ephemeral nodes have no children and get none.
    if data
        .node
        .as_ref()
        .is_some_and(|(entry, _)| !entry.is_owned())
        && reaches_below(scope, &path)
    {
        match backend
            .sessions
            .bounded(client.list_and_watch_children(&path))
            .await?
        {
            Ok((children, watcher)) => below = Some((children, watcher)),
            Err(Error::NoNode) => {}
            Err(error) => return Err(backend.sessions.error(&error)),
        }
    }
    Ok((path, data, below))
}

async fn visit_data(backend: &Inner, client: &Client, path: &str) -> Result<Visit, BackendError> {
    let sessions = &backend.sessions;
    match sessions.bounded(client.get_and_watch_data(path)).await? {
        Ok((value, stat, watcher)) => {
            let acl = read::acl(sessions, client, path).await?;
            let entry = read::entry(&backend.name, path, value, &stat, acl);
            let node = Some((entry, stat.mzxid.max(stat.pzxid)));
            Ok(Visit {
                node,
                watcher: Some(watcher),
            })
        }
        Err(Error::NoNode) => Ok(Visit {
            node: None,
            watcher: None,
        }),
        Err(error) => Err(sessions.error(&error)),
    }
}

fn mark(entry: &Entry) -> i64 {
    entry.revision.as_i64().unwrap_or(0)
}
