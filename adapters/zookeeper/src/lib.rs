//! ZooKeeper behind Causeway.
//!
//! [`ZookeeperBackend`] does the gateway's own work (listing, watching, ephemeral nodes of its own)
//! with the zookeeper-client crate. [`upstream`] is Causeway's own connection for clients'
//! sessions, their relay and their adoption.

mod error;
mod names;
mod raw;
mod read;
mod servers;
mod session;
mod srvr;
pub mod upstream;
mod watch;

pub use servers::Servers;
pub use session::ZookeeperOptions;
pub use upstream::{
    Answer, Handshake, Notification, Notifications, Pings, RawUpstream, Upstream, UpstreamOptions,
};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use causeway_backend::{
    Backend, BackendError, BackendName, Certainty, Entry, ErrorKind, Event, EventStream, Expect,
    Health, Lease, LeaseId, Owner, Registration, Revision, Scope, Snapshot, Subtree,
};
use futures::StreamExt;
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error, MultiWriteError, MultiWriteResult, Stat,
};

use crate::session::{Sessions, as_read};

/// Events that a slow reader may lag behind before nodes are no longer read for it.
const EVENTS_IN_FLIGHT: usize = 1024;

/// How often a write begins anew after others came between.
const ATTEMPTS: usize = 16;

/// A ZooKeeper ensemble as a store of entries.
///
/// Each lease is a session of its own. Registering creates the parents a path needs. Among the
/// entries are such parents, as persistent entries without a value; of their numbers only those
/// about their children change without an event.
#[derive(Debug, Clone)]
pub struct ZookeeperBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) name: BackendName,
    pub(crate) sessions: Arc<Sessions>,
    /// Whether recursive watches are wanted and were not refused so far.
    pub(crate) recursive: AtomicBool,
}

impl ZookeeperBackend {
    /// A backend under the given name; connects at the first call.
    pub fn new(name: BackendName, options: impl Into<ZookeeperOptions>) -> Self {
        let options = options.into();
        let recursive = AtomicBool::new(options.recursive_watches);
        let sessions = Arc::new(Sessions::new(options));
        Self {
            inner: Arc::new(Inner {
                name,
                sessions,
                recursive,
            }),
        }
    }

    fn sessions(&self) -> &Arc<Sessions> {
        &self.inner.sessions
    }

    fn revision(&self, zxid: i64) -> Revision {
        Revision::from_i64(self.inner.name.clone(), zxid)
    }

    fn conflict(&self, key: &[u8], expect: &Expect, found: Option<&Stat>) -> BackendError {
        let store = format!("ZooKeeper at {}", self.sessions().servers);
        let found = found.map(|stat| self.revision(stat.mzxid));
        BackendError::conflict(store, key, expect, found.as_ref())
    }

    /// The client for writes under an owner.
    async fn writer(&self, owner: Owner) -> Result<Client, BackendError> {
        match owner {
            Owner::Lease(lease) => self.sessions().of_lease(lease),
            Owner::Persistent => self.sessions().own().await,
        }
    }

    /// An error of a write under an owner: only a lease's session can be gone for good.
    fn write_error(&self, owner: Owner, error: &Error) -> BackendError {
        let found = self.sessions().error(error);
        match (found.kind(), owner) {
            (ErrorKind::LeaseGone, Owner::Lease(lease)) => self.sessions().lease_gone(lease),
            (ErrorKind::LeaseGone, Owner::Persistent) => {
                BackendError::new(ErrorKind::Unreachable, found.certainty(), found.to_string())
            }
            _ => found,
        }
    }

    /// One attempt to write; `None` when somebody came between.
    async fn write_once(
        &self,
        client: &Client,
        path: &str,
        value: &[u8],
        owner: Owner,
        expect: &Expect,
    ) -> Result<Option<Revision>, BackendError> {
        let sessions = self.sessions();
        let stat = match expect {
            Expect::Absent | Expect::Any => {
                let options = create_options(owner);
                match sessions
                    .bounded(client.create(path, value, &options))
                    .await?
                {
                    Ok((stat, _)) if !stat.is_invalid() => {
                        return Ok(Some(self.revision(stat.mzxid)));
                    }
                    // Ensembles before 3.5 tell no numbers.
                    Ok(_) => return self.written(client, path).await.map(Some),
                    Err(Error::NoNode) => {
                        self.make_parents(client, path, owner).await?;
                        return Ok(None);
                    }
                    Err(Error::NodeExists) => {}
                    Err(error) => return Err(self.write_error(owner, &error)),
                }
                let found = sessions.bounded(client.check_stat(path)).await;
                match (found?, expect) {
                    (Ok(Some(stat)), Expect::Absent) => {
                        return Err(self.conflict(path.as_bytes(), expect, Some(&stat)));
                    }
                    (Ok(Some(stat)), _) => stat,
                    // It went after it was in the way.
                    (Ok(None), _) => return Ok(None),
                    (Err(error), _) => return Err(self.write_error(owner, &error)),
                }
            }
            Expect::Revision(_) => match self.expected(client, path, owner, expect).await? {
                Ok(stat) => stat,
                Err(found) => {
                    return Err(self.conflict(path.as_bytes(), expect, found.as_ref()));
                }
            },
        };
        let written = if read::owner(&stat) == owner {
            let set = client.set_data(path, value, Some(stat.version));
            sessions.bounded(set).await?.map(|stat| Some(stat.mzxid))
        } else {
            self.replace(client, path, value, owner, &stat).await?
        };
        match written {
            Ok(Some(mzxid)) => Ok(Some(self.revision(mzxid))),
            Ok(None) => self.written(client, path).await.map(Some),
            Err(Error::BadVersion | Error::NoNode | Error::NodeExists) => match expect {
                Expect::Revision(_) => Err(self.conflict(path.as_bytes(), expect, None)),
                _ => Ok(None),
            },
            Err(Error::NotEmpty) => Err(BackendError::not_applied(
                ErrorKind::Unsupported,
                format!(
                    "ZooKeeper at {}: {path} has children, so its owner cannot change; remove \
                     them first",
                    sessions.servers
                ),
            )),
            Err(error) => Err(self.write_error(owner, &error)),
        }
    }

    /// A znode cannot change its owner: it goes and comes anew in one transaction. Gives the new
    /// node's zxid where the server tells it (it does not before 3.8.2, ZOOKEEPER-4026).
    async fn replace(
        &self,
        client: &Client,
        path: &str,
        value: &[u8],
        owner: Owner,
        stat: &Stat,
    ) -> Result<Result<Option<i64>, Error>, BackendError> {
        let committed = {
            let mut writer = client.new_multi_writer();
            let added = writer
                .add_delete(path, Some(stat.version))
                .and_then(|()| writer.add_create(path, value, &create_options(owner)));
            if let Err(error) = added {
                return Ok(Err(error));
            }
            writer.commit()
        };
        let bounded = async {
            committed.await.map_err(|error| match error {
                MultiWriteError::RequestFailed { source }
                | MultiWriteError::OperationFailed { source, .. } => source,
            })
        };
        let result = self.sessions().bounded(bounded).await?;
        Ok(result.map(|results| match results.into_iter().nth(1) {
            Some(MultiWriteResult::Create { stat, .. }) if !stat.is_invalid() && stat.mzxid > 0 => {
                Some(stat.mzxid)
            }
            _ => None,
        }))
    }

    /// The revision of what was just written on the same session.
    async fn written(&self, client: &Client, path: &str) -> Result<Revision, BackendError> {
        let stat = self.sessions().call(client.check_stat(path)).await;
        match stat.map_err(|error| error.with_certainty(Certainty::Applied))? {
            Some(stat) => Ok(self.revision(stat.mzxid)),
            None => Err(BackendError::new(
                ErrorKind::Conflict,
                Certainty::Applied,
                format!(
                    "ZooKeeper at {}: {path} was written and removed by another since",
                    self.sessions().servers
                ),
            )),
        }
    }

    /// The node's Stat if it stands as expected, else what was found.
    async fn expected(
        &self,
        client: &Client,
        path: &str,
        owner: Owner,
        expect: &Expect,
    ) -> Result<Result<Stat, Option<Stat>>, BackendError> {
        // Sent together; the sync makes the read see what other sessions wrote before.
        let synced = client.sync(path);
        let asked = client.check_stat(path);
        let both = async {
            synced.await?;
            asked.await
        };
        let found = as_read(self.sessions().bounded(both).await)?;
        let found = found.map_err(|error| self.write_error(owner, &error))?;
        let holds = match (expect, &found) {
            (Expect::Any, Some(_)) => true,
            (Expect::Revision(revision), Some(stat)) => *revision == self.revision(stat.mzxid),
            _ => false,
        };
        Ok(found.filter(|_| holds).ok_or(found))
    }

    async fn make_parents(
        &self,
        client: &Client,
        path: &str,
        owner: Owner,
    ) -> Result<(), BackendError> {
        let Some(above) = names::parent(path).filter(|above| *above != "/") else {
            let chroot = self.sessions().options.servers.chroot();
            let message = format!(
                "ZooKeeper at {}: the chroot {chroot:?} does not exist; create it first",
                self.sessions().servers
            );
            return Err(BackendError::not_applied(ErrorKind::Unsupported, message));
        };
        let acls = Acls::anyone_all();
        let persistent = CreateMode::Persistent.with_acls(acls);
        let mut result = if self.sessions().options.container_parents {
            let container = CreateMode::Container.with_acls(acls);
            self.sessions()
                .bounded(client.mkdir(above, &container))
                .await
        } else {
            Ok(Err(Error::Unimplemented))
        };
        if let Ok(Err(Error::Unimplemented)) = result {
            result = self
                .sessions()
                .bounded(client.mkdir(above, &persistent))
                .await;
        }
        // Parents change nothing that anybody asked about.
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self
                .write_error(owner, &error)
                .with_certainty(Certainty::NotApplied)),
            Err(error) => Err(error.with_certainty(Certainty::NotApplied)),
        }
    }
}

#[async_trait]
impl Backend for ZookeeperBackend {
    fn name(&self) -> &BackendName {
        &self.inner.name
    }

    async fn open_lease(
        &self,
        _hint: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<Lease, BackendError> {
        self.sessions().open_lease(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.sessions().renew(lease).await
    }

    async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        self.sessions().close_lease(lease).await
    }

    async fn register(&self, registration: Registration) -> Result<Revision, BackendError> {
        let Registration {
            key,
            value,
            owner,
            expect,
        } = registration;
        let path = names::path(&key)?;
        let client = self.writer(owner).await?;
        for _ in 0..ATTEMPTS {
            if let Some(revision) = self
                .write_once(&client, path, &value, owner, &expect)
                .await?
            {
                return Ok(revision);
            }
        }
        Err(BackendError::not_applied(
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {}: {path} is changed by others too quickly; try again",
                self.sessions().servers
            ),
        ))
    }

    async fn deregister(
        &self,
        key: &[u8],
        expect: Expect,
    ) -> Result<Option<Revision>, BackendError> {
        let path = names::path(key)?;
        let sessions = self.sessions();
        let client = sessions.own().await?;
        let version = match &expect {
            Expect::Any => None,
            _ => match self
                .expected(&client, path, Owner::Persistent, &expect)
                .await?
            {
                Ok(stat) => Some(stat.version),
                Err(None) => return Ok(None),
                Err(found) => return Err(self.conflict(key, &expect, found.as_ref())),
            },
        };
        // Sent together: the parent tells the zxid of the removal, which its reply does not.
        let removed = client.delete(path, version);
        let above = client.check_stat(names::parent(path).unwrap_or("/"));
        match sessions.bounded(removed).await? {
            Ok(()) => {}
            Err(Error::NoNode) => return Ok(None),
            Err(Error::BadVersion) => return Err(self.conflict(key, &expect, None)),
            Err(Error::NotEmpty) => {
                return Err(BackendError::not_applied(
                    ErrorKind::Unsupported,
                    format!(
                        "ZooKeeper at {}: {path} has children; remove them first",
                        sessions.servers
                    ),
                ));
            }
            Err(error) => return Err(self.write_error(Owner::Persistent, &error)),
        }
        let above = sessions.call(above).await;
        let above = above.map_err(|error| error.with_certainty(Certainty::Applied))?;
        // A parent that went as well was a container: nothing younger is known then.
        Ok(Some(self.revision(above.map_or(0, |stat| stat.pzxid))))
    }

    async fn lookup(&self, key: &[u8]) -> Result<Option<Entry>, BackendError> {
        let Ok(path) = names::path(key) else {
            return Ok(None);
        };
        let sessions = self.sessions();
        let client = sessions.own().await?;
        // Sent together; the sync makes the read see what other sessions wrote before.
        let synced = client.sync(path);
        let found = read::node(sessions, &self.inner.name, &client, path);
        let (synced, found) = tokio::join!(sessions.call(synced), found);
        as_read(synced)?;
        as_read(found)
    }

    async fn discover(&self, service: &Subtree) -> Result<Snapshot, BackendError> {
        self.snapshot(&Scope::from(service.clone())).await
    }

    async fn snapshot(&self, scope: &Scope) -> Result<Snapshot, BackendError> {
        let client = self.sessions().own().await?;
        let listed = read::scope(self.sessions(), &self.inner.name, &client, scope).await;
        let (entries, highest) = as_read(listed)?;
        Ok(Snapshot {
            entries: entries.into_values().collect(),
            revision: self.revision(highest),
        })
    }

    fn watch(&self, scope: Scope) -> EventStream {
        let (events, receiver) = mpsc::channel::<Event>(EVENTS_IN_FLIGHT);
        tokio::spawn(watch::follow(self.inner.clone(), scope, events));
        ReceiverStream::new(receiver).boxed()
    }

    async fn health(&self) -> Health {
        let limit = self
            .sessions()
            .options
            .request_timeout
            .min(Duration::from_secs(3));
        let servers = self.sessions().options.servers.addresses();
        Health::of_servers(join_all(servers.iter().map(|server| srvr::health(server, limit))).await)
    }
}

fn create_options(owner: Owner) -> CreateOptions<'static> {
    let mode = match owner {
        Owner::Lease(_) => CreateMode::Ephemeral,
        Owner::Persistent => CreateMode::Persistent,
    };
    mode.with_acls(Acls::anyone_all())
}
