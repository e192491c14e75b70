//! The live view of a service.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use causeway_registry::Revision;
use causeway_registry::api::{Instance, ServiceDelta, ServiceList};
use futures::StreamExt;
use rand::Rng;
use reqwest::{Method, Response};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{Error, Shared};
use crate::disk::Disk;
use crate::events::{Event, EventReader};
use crate::members::{Call, backoff, cause};
use crate::view::{Snapshot, View};

/// How long a stream may take to come to where a fetched list is.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
/// The shortest time between two writes to disk.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two tries to reach a member.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A handle on a service's view. The view is kept up while a handle exists, and after that while the
/// service is among those used last.
#[derive(Clone)]
pub struct Service {
    feed: Arc<Feed>,
    seen: watch::Receiver<Arc<Shown>>,
    /// The feed asks the client's members, so it ends with the client.
    _shared: Arc<Shared>,
}

impl Service {
    /// Waits for the feed's first list.
    pub(crate) async fn ready(shared: Arc<Shared>, feed: Arc<Feed>) -> Result<Self, Error> {
        let mut seen = feed.shown.clone();
        let failed = match seen
            .wait_for(|shown| shown.ready || shown.error.is_some())
            .await
        {
            Ok(shown) if shown.ready => None,
            Ok(shown) => shown.error.clone(),
            Err(_) => Some(Error::Unreachable("the runtime is stopping".into())),
        };
        match failed {
            None => Ok(Service {
                feed,
                seen,
                _shared: shared,
            }),
            Some(error) => Err(error),
        }
    }

    /// What is known now.
    pub fn snapshot(&self) -> Snapshot {
        self.feed.shown.borrow().snapshot.clone()
    }

    /// The instances known now, by their identity.
    pub fn instances(&self) -> Vec<Instance> {
        self.snapshot().instances
    }

    /// Waits until the view changes after the last call (or after the handle was made).
    pub async fn changed(&mut self) -> Snapshot {
        // The feed lives as long as the handle, so there is always a sender.
        let _ = self.seen.changed().await;
        self.seen.borrow_and_update().snapshot.clone()
    }

    /// One instance, each with the same chance. None when there is none.
    pub fn pick_random(&self) -> Option<Instance> {
        let shown = self.feed.shown.borrow();
        let count = shown.snapshot.instances.len();
        let index = if count > 1 {
            rand::rng().random_range(0..count)
        } else {
            0
        };
        shown.snapshot.instances.get(index).cloned()
    }

    /// One instance after the other; all handles of the service take turns together.
    pub fn pick_round_robin(&self) -> Option<Instance> {
        let shown = self.feed.shown.borrow();
        let turn = self.feed.turn.fetch_add(1, Ordering::Relaxed);
        let count = shown.snapshot.instances.len().max(1);
        shown.snapshot.instances.get(turn % count).cloned()
    }
}

/// What handles see.
#[derive(Debug, Default)]
struct Shown {
    snapshot: Snapshot,
    /// A first list has come, be it empty, or was found on disk.
    ready: bool,
    /// Neither a member nor the disk had one so far.
    error: Option<Error>,
}

/// The task that keeps one service's view.
pub(crate) struct Feed {
    shown: watch::Receiver<Arc<Shown>>,
    turn: AtomicUsize,
    task: JoinHandle<()>,
}

impl Feed {
    pub(crate) fn start(shared: &Arc<Shared>, service: String) -> Arc<Self> {
        let (shown, seen) = watch::channel(Arc::new(Shown::default()));
        let config = &shared.config;
        let disk = config.snapshot_dir.as_deref();
        let work = Work {
            disk: disk.map(|dir| Disk::new(dir, &config.namespace, &service)),
            view: View::new(config.protect_threshold),
            start: Instant::now(),
            shown,
            service,
            revision: None,
            listed: false,
            stale: false,
            unsaved: false,
            unshown: false,
            saved_at: None,
            refresh: None,
        };
        // The list of services holds the feed, and the feed must not hold the list.
        let task = tokio::spawn(work.run(Arc::downgrade(shared)));
        Arc::new(Feed {
            shown: seen,
            turn: AtomicUsize::new(0),
            task,
        })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work {
    service: String,
    view: View,
    disk: Option<Disk>,
    /// Zero of the view's time.
    start: Instant,
    shown: watch::Sender<Arc<Shown>>,
    /// The mark of the last list, to resume the stream from.
    revision: Option<String>,
    /// A member gave a list, ever.
    listed: bool,
    stale: bool,
    unsaved: bool,
    unshown: bool,
    saved_at: Option<Instant>,
    /// A whole list, fetched beside the stream, and when. See `check_refresh`.
    refresh: Option<(ServiceList, Instant)>,
}

impl Work {
    async fn run(mut self, shared: Weak<Shared>) {
        let mut failures = 0u32;
        loop {
            let Some(client) = shared.upgrade() else {
                return;
            };
            let members = client.members.count();
            let mut opened = false;
            let failure = match self.open(&client).await {
                Ok((reply, at)) => {
                    let silence = client.config.watch_silence;
                    let every = client.config.refresh_every;
                    drop(client);
                    let failure;
                    (opened, failure) = self.follow(reply, &shared, silence, every).await;
                    if let Some(client) = shared.upgrade() {
                        client.members.give_up(at);
                    }
                    failure
                }
                Err((error, at)) => {
                    client.members.give_up(at);
                    error
                }
            };
            tracing::debug!(service = self.service, error = %failure, "watch broken");
            failures = if opened {
                1
            } else {
                failures.saturating_add(1)
            };
            // Each member is tried once before anything is concluded.
            if !opened && !(failures as usize).is_multiple_of(members) {
                continue;
            }
            if !opened {
                self.fall_back(failure).await;
            }
            let until = Instant::now() + backoff(failures, MAX_PAUSE);
            // Judgements do not wait for members.
            while Instant::now() < until {
                tokio::time::sleep_until(until.min(Instant::now() + Duration::from_secs(1))).await;
                self.tick().await;
            }
        }
    }

    async fn open(&self, client: &Shared) -> Result<(Response, usize), (Error, usize)> {
        let path = ["services", self.service.as_str(), "watch"];
        let mut query = vec![("namespace", client.config.namespace.as_str())];
        if let Some(revision) = &self.revision {
            query.push(("revision", revision));
        }
        let call = Call {
            method: Method::GET,
            path: &path,
            query: &query,
            body: None,
        };
        client.members.open(&call).await
    }

    /// Reads the stream to its end. Returns whether it brought anything, and why it ended.
    async fn follow(
        &mut self,
        reply: Response,
        shared: &Weak<Shared>,
        silence: Duration,
        refresh_every: Duration,
    ) -> (bool, Error) {
        let broken = |cause: String| Error::Unreachable(cause);
        let mut bytes = reply.bytes_stream();
        let (mut reader, mut events) = (EventReader::default(), Vec::new());
        let mut got_any = false;
        let mut heard = Instant::now();
        let mut refreshed = Instant::now();
        loop {
            let second = Duration::from_secs(1);
            match tokio::time::timeout(second, bytes.next()).await {
                Ok(Some(Ok(chunk))) => {
                    heard = Instant::now();
                    // A member that resumes us sends only a sign of life at first.
                    got_any = true;
                    if let Err(error) = reader.read(&chunk, &mut events) {
                        self.revision = None;
                        return (got_any, broken(error.to_string()));
                    }
                }
                Ok(Some(Err(error))) => return (got_any, broken(cause(&error))),
                Ok(None) => return (got_any, broken("the stream ended".into())),
                Err(_) if heard.elapsed() >= silence => {
                    return (got_any, broken("the stream is silent".into()));
                }
                Err(_) => {}
            }
            for event in events.drain(..) {
                if let Err(error) = self.apply(&event) {
                    self.revision = None;
                    return (got_any, broken(format!("not a member's event: {error}")));
                }
            }
            if got_any && self.listed && std::mem::take(&mut self.stale) {
                self.unshown = true;
            }
            if self.refresh.is_none() && refreshed.elapsed() >= refresh_every {
                refreshed = Instant::now();
                if let Some(client) = shared.upgrade()
                    && let Ok(list) = fetch(&client, &self.service).await
                {
                    self.refresh = Some((list, Instant::now()));
                }
            }
            self.check_refresh();
            self.tick().await;
        }
    }

    fn apply(&mut self, event: &Event) -> serde_json::Result<()> {
        match event.kind.as_str() {
            "full" => self.take_list(serde_json::from_str(&event.data)?),
            "delta" => {
                let delta: ServiceDelta = serde_json::from_str(&event.data)?;
                self.revision = Some(delta.revision.clone());
                let now = self.now();
                self.view.apply_delta(delta, now);
                (self.unsaved, self.unshown) = (true, true);
            }
            // From a newer member.
            _ => {}
        }
        Ok(())
    }

    fn take_list(&mut self, list: ServiceList) {
        self.revision = Some(list.revision.clone());
        self.listed = true;
        (self.unsaved, self.unshown) = (true, true);
        let now = self.now();
        self.view.apply_full(list, now);
    }

    /// Compares the stream with a list that was fetched beside it. The stream may only be a little
    /// late, and it knows why an instance is gone, which a list does not: so a list counts when the
    /// stream is at the same mark, or has not come to it in time.
    fn check_refresh(&mut self) {
        let Some((list, fetched)) = &self.refresh else {
            return;
        };
        let mark = |text: &str| text.parse::<Revision>().ok();
        let stream = self.revision.as_deref().and_then(mark);
        let (passed, equal) = match (stream, mark(&list.revision)) {
            (Some(stream), Some(list)) if stream.incarnation == list.incarnation => {
                (stream.number > list.number, stream.number == list.number)
            }
            _ => (false, false),
        };
        if passed {
            self.refresh = None;
        } else if (equal || fetched.elapsed() >= REFRESH_PATIENCE)
            && let Some((list, _)) = self.refresh.take()
        {
            self.take_list(list);
        }
    }

    /// No member can be followed at present.
    async fn fall_back(&mut self, error: Error) {
        self.stale = true;
        if self.listed || self.shown.borrow().ready {
            self.show(true, None);
            return;
        }
        let saved = match &self.disk {
            Some(disk) => disk.load().await,
            None => None,
        };
        match saved {
            Some(instances) => {
                let now = self.now();
                self.view.restore(instances, now);
                self.show(true, None);
            }
            None => self.show(false, Some(error)),
        }
    }

    /// Time passed or something came: judge, show, save.
    async fn tick(&mut self) {
        if self.view.is_waiting() {
            let now = self.now();
            self.view.handle_timeout(now);
            self.unshown = true;
        }
        if !self.listed {
            return;
        }
        if std::mem::take(&mut self.unshown) {
            self.show(true, None);
        }
        let rested = self
            .saved_at
            .is_none_or(|saved| saved.elapsed() >= SAVE_PAUSE);
        if self.unsaved
            && rested
            && let Some(disk) = &self.disk
        {
            self.unsaved = false;
            self.saved_at = Some(Instant::now());
            if let Err(error) = disk.save(self.view.snapshot(false).instances).await {
                tracing::warn!(service = self.service, %error, "the list cannot be saved");
            }
        }
    }

    fn show(&self, ready: bool, error: Option<Error>) {
        let snapshot = self.view.snapshot(self.stale);
        self.shown.send_if_modified(|shown| {
            let same = shown.snapshot == snapshot && shown.ready == ready && error.is_none();
            if !same {
                *shown = Arc::new(Shown {
                    snapshot,
                    ready,
                    error,
                });
            }
            !same
        });
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

async fn fetch(client: &Shared, service: &str) -> Result<ServiceList, Error> {
    let path = ["services", service];
    let query = [("namespace", client.config.namespace.as_str())];
    let call = Call {
        method: Method::GET,
        path: &path,
        query: &query,
        body: None,
    };
    let reply = client.members.call(&call).await?;
    reply
        .json()
        .await
        .map_err(|error| Error::Unreachable(cause(&error)))
}
