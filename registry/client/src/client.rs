//! The client and its settings.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use causeway_registry::api::ClientSettings;
use causeway_registry_proto::v1;
use lru::LruCache;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::discovery::{Feed, Service};
use crate::link;
use crate::members::Members;
use crate::registration::{self, Instance, Progress, Registration};
use crate::session::{Event, Key, Session};
use crate::view::DEFAULT_THRESHOLD;

/// Settings of a client. [`ClientConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Members, as `host:port` of their gRPC ports. A name may stand for several addresses: it is resolved anew at
    /// each round of tries, and any of them may be used.
    pub members: Vec<String>,
    /// The namespace of all services.
    pub namespace: String,
    /// How long instances live when this process is not heard from. None: what members do by default (15 s).
    pub ttl: Option<Duration>,
    /// How long it may take to resolve a name, or to connect to a member.
    pub request_timeout: Duration,
    /// How often a watched service is fetched in full, in case something was lost. None: as members ask.
    pub refresh_every: Option<Duration>,
    /// How many services stay watched after their last use. None: as members ask.
    pub cached_services: Option<NonZeroUsize>,
    /// Where the last good list of each service is kept. None: nowhere.
    pub snapshot_dir: Option<PathBuf>,
    /// How much of a service may go at once, in percent; see [`crate::view`].
    pub protect_threshold: u8,
}

impl ClientConfig {
    /// The defaults, with these members.
    pub fn new<S: Into<String>>(members: impl IntoIterator<Item = S>) -> Self {
        ClientConfig {
            members: members.into_iter().map(Into::into).collect(),
            namespace: "default".into(),
            ttl: None,
            request_timeout: Duration::from_secs(3),
            refresh_every: None,
            cached_services: None,
            snapshot_dir: None,
            protect_threshold: DEFAULT_THRESHOLD,
        }
    }
}

/// Why the client could not do what it was asked.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// The settings are wrong.
    #[error("configuration: {0}")]
    Config(String),
    /// No member did it. Whether one of them did without being heard is unknown; the call may be
    /// repeated.
    #[error("no member answered: {0}")]
    Unreachable(String),
    /// A member refused.
    #[error("{code}: {message}")]
    Refused {
        /// The code of the API, such as `bad_request`.
        code: String,
        /// The cause.
        message: String,
    },
}

impl From<v1::Failure> for Error {
    fn from(failure: v1::Failure) -> Self {
        Error::Refused {
            code: failure.code,
            message: failure.message,
        }
    }
}

/// Registers and discovers. Cheap to clone; all clones share one stream to a member and the watched services.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) session: Mutex<Session>,
    /// The session has something to say.
    pub(crate) wake: Notify,
    registrations: Mutex<HashMap<Key, (u64, watch::Sender<Progress>)>>,
    /// All feeds that somebody holds.
    feeds: Mutex<HashMap<String, (u64, Weak<Feed>)>>,
    /// The services used last, which nobody else may hold.
    recent: Mutex<LruCache<String, Arc<Feed>>>,
    settings: watch::Sender<ClientSettings>,
    numbers: AtomicU64,
    task: Mutex<Option<AbortHandle>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl Client {
    /// A client. It connects in the background, so this is to be called in a tokio runtime.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        if config.protect_threshold > 100 {
            let percent = config.protect_threshold;
            return Err(Error::Config(format!(
                "protect_threshold: at most 100, not {percent}"
            )));
        }
        let members = Members::new(&config.members)?;
        let ttl_ms = config.ttl.map_or(0, |ttl| {
            u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
        });
        let settings = ClientSettings::default();
        let shared = Arc::new(Shared {
            session: Mutex::new(Session::new(config.namespace.clone(), ttl_ms)),
            wake: Notify::new(),
            registrations: Mutex::default(),
            feeds: Mutex::default(),
            recent: Mutex::new(LruCache::new(capacity(&config, &settings))),
            settings: watch::Sender::new(settings),
            numbers: AtomicU64::new(0),
            task: Mutex::new(None),
            config,
        });
        let task = tokio::spawn(link::run(Arc::downgrade(&shared), members));
        *shared.task.lock() = Some(task.abort_handle());
        Ok(Client { shared })
    }

    /// Registers an instance and keeps it registered until the handle is dropped or deregistered.
    /// Fails only if a member refuses, or none answers now.
    pub async fn register(&self, service: &str, instance: Instance) -> Result<Registration, Error> {
        registration::register(self.shared.clone(), service, instance).await
    }

    /// The live view of a service. Waits for the first list: from a member, or, if none answers in
    /// time, from disk. Fails if there is neither.
    pub async fn service(&self, service: &str) -> Result<Service, Error> {
        let feed = self.shared.feed(service);
        Service::ready(self.shared.clone(), feed).await
    }

    /// How many services are watched or kept for reuse.
    pub fn cached_services(&self) -> usize {
        self.shared.recent.lock().len()
    }

    /// What members asked of this client last.
    pub fn settings(&self) -> ClientSettings {
        *self.shared.settings.borrow()
    }
}

fn capacity(config: &ClientConfig, settings: &ClientSettings) -> NonZeroUsize {
    config.cached_services.unwrap_or_else(|| {
        let asked = usize::try_from(settings.cache_services).unwrap_or(usize::MAX);
        NonZeroUsize::new(asked).unwrap_or(NonZeroUsize::MIN)
    })
}

impl Shared {
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn say(&self, say: impl FnOnce(&mut Session)) {
        say(&mut self.session.lock());
        self.wake.notify_one();
    }

    pub(crate) fn register(
        &self,
        key: &Key,
        registration: v1::Registration,
    ) -> (u64, watch::Receiver<Progress>) {
        let number = self.number();
        let (sender, progress) = watch::channel(Progress::Waiting);
        // Before it is said: the answer finds it here.
        self.registrations
            .lock()
            .insert(key.clone(), (number, sender));
        self.say(|session| session.register(key.clone(), registration));
        (number, progress)
    }

    pub(crate) fn deregister(&self, key: &Key) {
        self.say(|session| session.deregister(key));
    }

    pub(crate) fn forget(&self, key: &Key, number: u64) {
        let mut registrations = self.registrations.lock();
        if registrations.get(key).is_some_and(|(n, _)| *n == number) {
            registrations.remove(key);
            drop(registrations);
            self.say(|session| session.forget(key));
        }
    }

    fn feed(self: &Arc<Self>, service: &str) -> Arc<Feed> {
        // Whoever falls out of the list is dropped after the lock: that takes locks of its own.
        let _out;
        let mut recent = self.recent.lock();
        if let Some(feed) = recent.get(service) {
            return feed.clone();
        }
        let mut feeds = self.feeds.lock();
        let held = feeds.get(service).and_then(|(_, feed)| feed.upgrade());
        let feed = held.unwrap_or_else(|| {
            let number = self.number();
            let feed = Feed::new(self, service.to_owned(), number);
            feeds.insert(service.to_owned(), (number, Arc::downgrade(&feed)));
            self.say(|session| session.watch(service));
            feed
        });
        drop(feeds);
        _out = recent.push(service.to_owned(), feed.clone());
        drop(recent);
        feed
    }

    pub(crate) fn unwatch(&self, service: &str, number: u64) {
        let mut feeds = self.feeds.lock();
        if feeds.get(service).is_some_and(|(n, _)| *n == number) {
            feeds.remove(service);
            self.say(|session| session.unwatch(service));
        }
    }

    pub(crate) fn feeds(&self) -> Vec<Arc<Feed>> {
        let feeds = self.feeds.lock();
        feeds
            .values()
            .filter_map(|(_, feed)| feed.upgrade())
            .collect()
    }

    fn feed_of(&self, service: &str) -> Option<Arc<Feed>> {
        self.feeds.lock().get(service)?.1.upgrade()
    }

    fn tell(&self, key: &Key, progress: Progress) {
        if let Some((_, sender)) = self.registrations.lock().get(key) {
            sender.send_replace(progress);
        }
    }

    /// How often a watched service is fetched in full.
    pub(crate) fn refresh_every(&self) -> Duration {
        self.config.refresh_every.unwrap_or_else(|| {
            Duration::from_millis(self.settings.borrow().refresh_interval_ms.into())
        })
    }

    /// Passes on what became of something. The text says why the stream is of no use any more.
    pub(crate) fn dispatch(&self, event: Event) -> Result<(), String> {
        match event {
            Event::Registered(key) => self.tell(&key, Progress::Registered),
            Event::Refused(key, failure) => {
                tracing::warn!(
                    service = key.service,
                    instance = key.instance,
                    cause = failure.message,
                    "a registration was refused"
                );
                self.tell(&key, Progress::Refused(failure));
            }
            Event::Deregistered(key) => self.tell(&key, Progress::Gone),
            Event::Kept(key, failure) => self.tell(&key, Progress::Kept(failure)),
            Event::Update(update) => {
                if let Some(feed) = self.feed_of(&update.service) {
                    let service = update.service.clone();
                    if let Err(error) = feed.update(update) {
                        tracing::warn!(service, %error, "an update makes no sense");
                        self.say(|session| session.start_over(&service));
                    }
                }
            }
            Event::Watching(service) => {
                if let Some(feed) = self.feed_of(&service) {
                    feed.followed();
                }
            }
            Event::NotWatched(service, failure) => {
                if let Some(feed) = self.feed_of(&service) {
                    feed.failed(Error::from(failure));
                }
            }
            Event::Refreshed(update) => {
                if let Some(feed) = self.feed_of(&update.service) {
                    feed.refreshed(update);
                }
            }
            Event::Settings(settings) => {
                self.settings.send_replace(settings);
                let size = capacity(&self.config, &settings);
                let mut out = Vec::new();
                let mut recent = self.recent.lock();
                while recent.len() > size.get() {
                    out.extend(recent.pop_lru());
                }
                recent.resize(size);
                drop(recent);
            }
            Event::GiveUp(why) => return Err(why),
        }
        Ok(())
    }

    /// The stream broke: nothing is sure until there is another one.
    pub(crate) fn lost(&self) {
        for feed in self.feeds() {
            feed.lost();
        }
    }

    /// Every member was tried, and none answers.
    pub(crate) async fn unreachable(&self, why: &str) {
        let keys = self.session.lock().keys();
        for key in keys {
            self.tell(&key, Progress::Unreachable(why.into()));
        }
        for feed in self.feeds() {
            feed.fall_back(Error::Unreachable(why.into())).await;
        }
    }
}
