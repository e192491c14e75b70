//! The live view of a service.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use causeway_registry::Revision;
use causeway_registry::api::{Instance, ServiceList};
use causeway_registry_proto::{ConvertError, Received, v1};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{Error, Shared};
use crate::disk::Disk;
use crate::view::{Snapshot, View};

/// How long the stream may take to come to where a fetched list is.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
/// The shortest time between two writes to disk.
const SAVE_PAUSE: Duration = Duration::from_secs(1);

/// A handle on a service's view. The view is kept up while a handle exists, and after that while the
/// service is among those used last.
#[derive(Clone)]
pub struct Service {
    feed: Arc<Feed>,
    seen: watch::Receiver<Arc<Shown>>,
    /// The feed lives by the client's stream, so that ends with the last handle only.
    _shared: Arc<Shared>,
}

impl Service {
    /// Waits for the feed's first list.
    pub(crate) async fn ready(shared: Arc<Shared>, feed: Arc<Feed>) -> Result<Self, Error> {
        let mut seen = feed.shown.subscribe();
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
pub(crate) struct Shown {
    snapshot: Snapshot,
    /// A first list has come, be it empty, or was found on disk.
    ready: bool,
    /// Neither a member nor the disk had one so far.
    error: Option<Error>,
}

/// One service's view.
pub(crate) struct Feed {
    service: String,
    number: u64,
    shared: Weak<Shared>,
    shown: watch::Sender<Arc<Shown>>,
    turn: AtomicUsize,
    state: Mutex<State>,
    disk: Option<Disk>,
}

struct State {
    view: View,
    /// Zero of the view's time.
    start: Instant,
    /// The mark of the last list.
    revision: Option<Revision>,
    /// A member gave a list, ever.
    listed: bool,
    /// No member is followed at present.
    stale: bool,
    unsaved: bool,
    saved_at: Option<Instant>,
    refreshed_at: Instant,
    /// A whole list, fetched beside the stream, and when. See `check_refresh`.
    refresh: Option<(ServiceList, Instant)>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.unwatch(&self.service, self.number);
        }
    }
}

impl Feed {
    pub(crate) fn new(shared: &Arc<Shared>, service: String, number: u64) -> Arc<Self> {
        let config = &shared.config;
        let disk = config.snapshot_dir.as_deref();
        let now = Instant::now();
        Arc::new(Feed {
            disk: disk.map(|dir| Disk::new(dir, &config.namespace, &service)),
            state: Mutex::new(State {
                view: View::new(config.protect_threshold),
                start: now,
                revision: None,
                listed: false,
                stale: false,
                unsaved: false,
                saved_at: None,
                refreshed_at: now,
                refresh: None,
            }),
            // The list of services holds the feed, and the feed must not hold the list.
            shared: Arc::downgrade(shared),
            shown: watch::Sender::new(Arc::new(Shown::default())),
            turn: AtomicUsize::new(0),
            service,
            number,
        })
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// The stream brought something.
    pub(crate) fn update(&self, update: v1::ServiceUpdate) -> Result<(), ConvertError> {
        let revision = update.revision.map(Revision::from);
        let received = Received::try_from(update)?;
        let mut state = self.state.lock();
        let now = state.now();
        state.revision = revision;
        match received {
            Received::Full(list) => state.take_list(list),
            Received::Delta(delta) => {
                state.view.apply_delta(delta, now);
                state.unsaved = true;
            }
        }
        state.stale = false;
        state.check_refresh();
        self.show(&state, true, None);
        Ok(())
    }

    /// The member follows the service: what is missing comes.
    pub(crate) fn followed(&self) {
        let mut state = self.state.lock();
        state.stale = false;
        if state.listed {
            self.show(&state, true, None);
        }
    }

    /// The stream broke.
    pub(crate) fn lost(&self) {
        self.state.lock().refresh = None;
    }

    /// A member does not follow the service.
    pub(crate) fn failed(&self, error: Error) {
        let mut state = self.state.lock();
        state.stale = true;
        let ready = self.shown.borrow().ready;
        self.show(&state, ready, Some(error).filter(|_| !ready));
    }

    /// A list that was asked for beside the stream.
    pub(crate) fn refreshed(&self, update: v1::ServiceUpdate) {
        if let Ok(Received::Full(list)) = Received::try_from(update) {
            let mut state = self.state.lock();
            state.refresh = Some((list, Instant::now()));
            if state.check_refresh() {
                self.show(&state, true, None);
            }
        }
    }

    /// No member can be followed at present.
    pub(crate) async fn fall_back(&self, error: Error) {
        let known = {
            let mut state = self.state.lock();
            state.stale = true;
            let known = state.listed || self.shown.borrow().ready;
            if known {
                self.show(&state, true, None);
            }
            known
        };
        if known {
            return;
        }
        let saved = match &self.disk {
            Some(disk) => disk.load().await,
            None => None,
        };
        let mut state = self.state.lock();
        match saved {
            Some(instances) => {
                let now = state.now();
                state.view.restore(instances, now);
                self.show(&state, true, None);
            }
            None => self.show(&state, false, Some(error)),
        }
    }

    /// Time passed: judges, shows, saves. True when the service is to be fetched in full.
    pub(crate) fn tick(&self, refresh_every: Duration) -> bool {
        let mut state = self.state.lock();
        let refreshed = state.check_refresh();
        if state.view.is_waiting() {
            let now = state.now();
            state.view.handle_timeout(now);
            self.show(&state, state.listed || self.shown.borrow().ready, None);
        } else if refreshed {
            self.show(&state, true, None);
        }
        let rested = state
            .saved_at
            .is_none_or(|saved| saved.elapsed() >= SAVE_PAUSE);
        if state.unsaved
            && rested
            && let Some(disk) = self.disk.clone()
        {
            state.unsaved = false;
            state.saved_at = Some(Instant::now());
            let instances = state.view.snapshot(false).instances;
            let service = self.service.clone();
            tokio::spawn(async move {
                if let Err(error) = disk.save(instances).await {
                    tracing::warn!(service, %error, "the list cannot be saved");
                }
            });
        }
        let due = state.listed
            && state.refresh.is_none()
            && state.refreshed_at.elapsed() >= refresh_every;
        if due {
            state.refreshed_at = Instant::now();
        }
        due
    }

    fn show(&self, state: &State, ready: bool, error: Option<Error>) {
        let snapshot = state.view.snapshot(state.stale);
        self.shown.send_if_modified(|shown| {
            let same = shown.snapshot == snapshot
                && shown.ready == ready
                && shown.error.is_none()
                && error.is_none();
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
}

impl State {
    fn take_list(&mut self, list: ServiceList) {
        self.listed = true;
        self.unsaved = true;
        let now = self.now();
        self.view.apply_full(list, now);
    }

    /// Compares the stream with a list that was fetched beside it. The stream may only be a little
    /// late, and it knows why an instance is gone, which a list does not: so a list counts when the
    /// stream is at the same mark, or has not come to it in time. True when it counted.
    fn check_refresh(&mut self) -> bool {
        let Some((list, fetched)) = &self.refresh else {
            return false;
        };
        let mark: Option<Revision> = list.revision.parse().ok();
        let (passed, equal) = match (self.revision, mark) {
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
            self.revision = mark;
            self.take_list(list);
            return true;
        }
        false
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
