//! The client and its settings.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use reqwest::Url;
use thiserror::Error;

use crate::discovery::{Feed, Service};
use crate::members::Members;
use crate::registration::{self, Instance, Registration};
use crate::view::DEFAULT_THRESHOLD;

/// Settings of a client. [`ClientConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Members, as `host:port` or `http://host:port`. The first that answers is used until it fails.
    pub members: Vec<String>,
    /// The namespace of all services.
    pub namespace: String,
    /// How long a call to one member may take.
    pub request_timeout: Duration,
    /// How long a watch stream may be silent before another member is tried. Members send a sign of
    /// life every 10 s.
    pub watch_silence: Duration,
    /// How often a watched service is fetched in full, in case the stream lost something.
    pub refresh_every: Duration,
    /// How many services stay watched after their last use.
    pub cached_services: NonZeroUsize,
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
            request_timeout: Duration::from_secs(3),
            watch_silence: Duration::from_secs(30),
            refresh_every: Duration::from_secs(60),
            cached_services: NonZeroUsize::new(128).unwrap_or(NonZeroUsize::MIN),
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
    /// A member refused, and would refuse again.
    #[error("{code}: {message}")]
    Refused {
        /// The code of the HTTP API.
        code: String,
        /// The cause.
        message: String,
    },
}

/// Registers and discovers. Cheap to clone; all clones share the members and the watched services.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) members: Members,
    services: Mutex<LruCache<String, Arc<Feed>>>,
}

impl Client {
    /// A client. Nothing is sent yet.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        if config.protect_threshold > 100 {
            let percent = config.protect_threshold;
            return Err(Error::Config(format!(
                "protect_threshold: at most 100, not {percent}"
            )));
        }
        let mut urls = Vec::new();
        for member in &config.members {
            urls.push(member_url(member)?);
        }
        let services = Mutex::new(LruCache::new(config.cached_services));
        let members = Members::new(urls, &config)?;
        Ok(Client {
            shared: Arc::new(Shared {
                config,
                members,
                services,
            }),
        })
    }

    /// Registers an instance and keeps it registered until the handle is dropped or deregistered.
    /// Fails only if a member refuses, or none answers now.
    pub async fn register(&self, service: &str, instance: Instance) -> Result<Registration, Error> {
        registration::register(self.shared.clone(), service, instance).await
    }

    /// The live view of a service. Waits for the first list: from a member, or, if none answers in
    /// time, from disk. Fails if there is neither.
    pub async fn service(&self, service: &str) -> Result<Service, Error> {
        let feed = {
            let mut services = self.shared.services.lock();
            let start = || Feed::start(&self.shared, service.to_owned());
            services.get_or_insert(service.to_owned(), start).clone()
        };
        Service::ready(self.shared.clone(), feed).await
    }

    /// How many services are watched or kept for reuse.
    pub fn cached_services(&self) -> usize {
        self.shared.services.lock().len()
    }
}

fn member_url(member: &str) -> Result<Url, Error> {
    let text = if member.contains("://") {
        member.into()
    } else {
        format!("http://{member}")
    };
    let wrong = |cause: &str| Error::Config(format!("member {member:?}: {cause}"));
    let url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
    match url.scheme() {
        "http" if url.host().is_some() => Ok(url),
        "http" => Err(wrong("no host")),
        other => Err(wrong(&format!("http is spoken, not {other}"))),
    }
}
