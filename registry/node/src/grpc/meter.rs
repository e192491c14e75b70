//! Who takes nothing although there is something for it, and the open streams.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::IteratorRandom as _;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often it is looked who is stuck.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The way to close the connection that a call came over.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection(Arc<Notify>);

impl Connection {
    fn close(&self) {
        self.0.notify_one();
    }

    /// Waits until it shall be closed.
    pub(super) async fn closed(&self) {
        self.0.notified().await;
    }
}

/// Measures how long a reader leaves what is there for it.
#[derive(Debug)]
pub(super) struct Meter {
    since: Mutex<Option<Instant>>,
    connection: Connection,
}

impl Meter {
    pub(super) fn new(connection: Connection) -> Self {
        Meter {
            since: Mutex::new(None),
            connection,
        }
    }

    /// There is something for the reader.
    pub(super) fn ready(&self) {
        self.since.lock().get_or_insert_with(Instant::now);
    }

    /// The reader takes what there is; with `more`, not all of it.
    pub(super) fn taken(&self, more: bool) {
        *self.since.lock() = more.then(Instant::now);
    }

    fn is_stuck(&self, patience: Duration) -> bool {
        let since = *self.since.lock();
        since.is_some_and(|since| since.elapsed() >= patience)
    }
}

/// An open stream.
pub(super) trait Metered: Send + Sync {
    fn meter(&self) -> &Meter;
    /// Tells the client to go to another member; false if this kind of stream cannot. With `end`, the
    /// stream ends.
    fn leave(&self, end: bool) -> bool;
}

/// All open streams of a port.
pub(super) struct Meters {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    streams: BTreeMap<u64, Weak<dyn Metered>>,
    next: u64,
    stopped: bool,
}

/// A stream's place among the open ones, given up when dropped.
pub(super) struct Entry {
    meters: Arc<Meters>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.meters.open.lock().streams.remove(&self.id);
    }
}

impl Meters {
    /// With a task that closes the connections of those who are stuck for `patience`.
    pub(super) fn start(patience: Duration) -> Arc<Self> {
        let meters = Arc::new(Meters {
            open: Mutex::default(),
        });
        let watched = Arc::downgrade(&meters);
        tokio::spawn(async move {
            let mut look = tokio::time::interval(LOOK_EVERY.min(patience));
            loop {
                look.tick().await;
                let Some(meters) = watched.upgrade() else {
                    return;
                };
                for stream in meters.all() {
                    if stream.meter().is_stuck(patience) {
                        tracing::info!("a connection is closed: its client reads nothing");
                        stream.meter().connection.close();
                    }
                }
            }
        });
        meters
    }

    pub(super) fn enter<S: Metered + 'static>(self: &Arc<Self>, stream: &Arc<S>) -> Entry {
        let mut open = self.open.lock();
        let id = open.next;
        open.next += 1;
        let as_metered: Arc<dyn Metered> = stream.clone();
        open.streams.insert(id, Arc::downgrade(&as_metered));
        let stopped = open.stopped;
        drop(open);
        if stopped {
            stream.leave(true);
        }
        Entry {
            meters: self.clone(),
            id,
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.open.lock().streams.len()
    }

    pub(super) fn shed(&self, count: usize) -> usize {
        let all = self.all();
        let mut rng = rand::rng();
        let chosen = all.iter().choose_multiple(&mut rng, count);
        chosen.into_iter().filter(|s| s.leave(false)).count()
    }

    /// Every stream ends, and new ones at once.
    pub(super) fn stop(&self) {
        self.open.lock().stopped = true;
        for stream in self.all() {
            stream.leave(true);
        }
    }

    fn all(&self) -> Vec<Arc<dyn Metered>> {
        let open = self.open.lock();
        open.streams.values().filter_map(Weak::upgrade).collect()
    }
}
