//! Sessions of the client crate: one for reading and persistent nodes, and one for each lease.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use causeway_backend::{BackendError, Certainty, ErrorKind, Lease, LeaseId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use zookeeper_client::{Client, Connector, Error, SessionState, StateWatcher};

use crate::error;
use crate::servers::Servers;

/// How to reach an ensemble.
#[derive(Clone)]
pub struct ZookeeperOptions {
    /// The servers and the chroot.
    pub servers: Servers,
    /// Scheme and credentials, such as `("digest", b"user:password")`.
    pub auth: Vec<(String, Vec<u8>)>,
    /// Timeout asked for the gateway's own session, which owns nothing. A lost server is noticed
    /// after two fifths of it.
    pub session_timeout: Duration,
    /// Longest wait for an answer.
    pub request_timeout: Duration,
    /// Whether implicit parents become containers, which the ensemble removes when they are
    /// empty; they become persistent where it is too old for that (before 3.5).
    pub container_parents: bool,
    /// Whether every entry is read with its ACL, at the price of one more request each.
    pub read_acls: bool,
    /// Whether watching may use persistent recursive watches where the ensemble has them (from
    /// 3.6 on). Otherwise every node is watched on its own.
    pub recursive_watches: bool,
}

impl ZookeeperOptions {
    /// Options for the given servers: 10 s for the session and 5 s for an answer, persistent
    /// parents, no ACLs, recursive watches.
    pub fn new(servers: Servers) -> Self {
        Self {
            servers,
            auth: Vec::new(),
            session_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            container_parents: false,
            read_acls: false,
            recursive_watches: true,
        }
    }
}

impl From<Servers> for ZookeeperOptions {
    fn from(servers: Servers) -> Self {
        Self::new(servers)
    }
}

impl std::fmt::Debug for ZookeeperOptions {
    /// Without credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schemes: Vec<&String> = self.auth.iter().map(|(scheme, _)| scheme).collect();
        f.debug_struct("ZookeeperOptions")
            .field("servers", &self.servers)
            .field("auth", &schemes)
            .field("session_timeout", &self.session_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("container_parents", &self.container_parents)
            .field("read_acls", &self.read_acls)
            .field("recursive_watches", &self.recursive_watches)
            .finish()
    }
}

/// All sessions of one backend.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) options: ZookeeperOptions,
    pub(crate) servers: String,
    own: tokio::sync::Mutex<Option<Client>>,
    leases: Mutex<BTreeMap<LeaseId, Held>>,
}

/// A lease's session. The crate pings as long as the client is held, so the lease's own deadline
/// is kept here; should this process die, the ensemble ends the session after the same time.
#[derive(Debug)]
struct Held {
    client: Client,
    ttl: Duration,
    deadline: watch::Sender<Instant>,
}

impl Sessions {
    pub(crate) fn new(options: ZookeeperOptions) -> Self {
        Self {
            servers: options.servers.addresses().join(","),
            options,
            own: tokio::sync::Mutex::default(),
            leases: Mutex::default(),
        }
    }

    /// The client of the gateway's own session, connected.
    pub(crate) async fn own(&self) -> Result<Client, BackendError> {
        // Another call may be connecting; behind a host that swallows packets each would wait for
        // all before it.
        let limit = self.options.request_timeout;
        let Ok(mut own) = timeout(limit, self.own.lock()).await else {
            return Err(self.disconnected());
        };
        if let Some(client) = own.as_ref() {
            match client.state() {
                SessionState::SyncConnected => return Ok(client.clone()),
                state if !state.is_terminated() => return Err(self.disconnected()),
                _ => {}
            }
        }
        *own = None;
        let client = self.connect(self.options.session_timeout).await?;
        Ok(own.insert(client).clone())
    }

    /// The client of a lease's session, connected.
    pub(crate) fn of_lease(&self, lease: LeaseId) -> Result<Client, BackendError> {
        let mut leases = self.leases.lock();
        let Some(held) = leases.get(&lease) else {
            return Err(self.lease_gone(lease));
        };
        match held.client.state() {
            SessionState::SyncConnected => Ok(held.client.clone()),
            state if state.is_terminated() => {
                leases.remove(&lease);
                Err(self.lease_gone(lease))
            }
            _ => Err(self.disconnected()),
        }
    }

    pub(crate) async fn open_lease(self: &Arc<Self>, ttl: Duration) -> Result<Lease, BackendError> {
        let client = self.connect(ttl).await?;
        let ttl = client.session_timeout();
        let id = LeaseId(client.session_id().0);
        let (deadline, moved) = watch::channel(Instant::now() + ttl);
        self.leases.lock().insert(
            id,
            Held {
                client,
                ttl,
                deadline,
            },
        );
        tokio::spawn(expire(Arc::downgrade(self), id, moved));
        Ok(Lease { id, ttl })
    }

    /// Moves a lease's deadline, once its session answered.
    pub(crate) async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        let client = self.of_lease(lease)?;
        // Any frame extends the session; the answer shows that it is alive.
        self.call(client.check_stat("/"))
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::LeaseGone => self.lease_gone(lease),
                _ => error,
            })?;
        let leases = self.leases.lock();
        let Some(held) = leases.get(&lease) else {
            return Err(self.lease_gone(lease));
        };
        held.deadline.send_replace(Instant::now() + held.ttl);
        Ok(held.ttl)
    }

    /// Closes a lease's session and waits for the ensemble's word.
    pub(crate) async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        let held = self.leases.lock().remove(&lease);
        let Some(held) = held else { return Ok(()) };
        let state = held.client.state_watcher();
        // The crate closes the session when its last handle goes.
        drop(held);
        let limit = self.options.request_timeout;
        match timeout(limit, terminated(state)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(BackendError::unknown(
                ErrorKind::Timeout,
                format!(
                    "ZooKeeper at {}: closing session {lease} took more than {limit:?}; it ends \
                     by its timeout at the latest",
                    self.servers
                ),
            )),
        }
    }

    /// A call of the client crate, bounded in time.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BackendError> {
        self.bounded(call)
            .await?
            .map_err(|error| self.error(&error))
    }

    /// As [`Sessions::call`], for a caller who looks at the crate's error.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, BackendError> {
        let limit = self.options.request_timeout;
        timeout(limit, call).await.map_err(|_| {
            let message = format!(
                "ZooKeeper at {} did not answer within {limit:?}",
                self.servers
            );
            BackendError::unknown(ErrorKind::Timeout, message)
        })
    }

    pub(crate) fn error(&self, error: &Error) -> BackendError {
        error::from_client(&self.servers, error)
    }

    pub(crate) fn lease_gone(&self, lease: LeaseId) -> BackendError {
        BackendError::lease_gone(format!("ZooKeeper at {}", self.servers), lease)
    }

    async fn connect(&self, session_timeout: Duration) -> Result<Client, BackendError> {
        let mut connector: Connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_fail_eagerly();
        for (scheme, auth) in &self.options.auth {
            connector = connector.with_auth(scheme, auth);
        }
        let cluster = self.options.servers.connect_string();
        let result = self.call(connector.connect(&cluster)).await;
        // A session that nobody uses changes nothing.
        result.map_err(|error| {
            let kind = match error.kind() {
                // The crate's words for a server that hung up during the handshake.
                ErrorKind::LeaseGone | ErrorKind::Protocol => ErrorKind::Unreachable,
                kind => kind,
            };
            BackendError::not_applied(kind, error.to_string()).context("cannot connect")
        })
    }

    fn disconnected(&self) -> BackendError {
        let message = format!("ZooKeeper at {}: the connection is lost", self.servers);
        BackendError::not_applied(ErrorKind::Unreachable, message)
    }
}

/// A read changes nothing, whatever broke it.
pub(crate) fn as_read<T>(result: Result<T, BackendError>) -> Result<T, BackendError> {
    result.map_err(|error| error.with_certainty(Certainty::NotApplied))
}

/// Waits until a session is no longer connected; gives its state.
pub(crate) async fn disconnected(mut state: StateWatcher) -> SessionState {
    loop {
        let now = state.peek_state();
        if now != SessionState::SyncConnected {
            return now;
        }
        state.changed().await;
    }
}

async fn terminated(mut state: StateWatcher) {
    while !state.peek_state().is_terminated() {
        state.changed().await;
    }
}

/// Ends a lease that is not renewed.
async fn expire(
    sessions: std::sync::Weak<Sessions>,
    lease: LeaseId,
    mut deadline: watch::Receiver<Instant>,
) {
    loop {
        let moment = *deadline.borrow_and_update();
        tokio::select! {
            () = sleep_until(moment) => {
                let Some(sessions) = sessions.upgrade() else { return };
                let held = {
                    let mut leases = sessions.leases.lock();
                    // A renewal may just have come.
                    let late = leases
                        .get(&lease)
                        .is_some_and(|held| *held.deadline.borrow() <= Instant::now());
                    if late { leases.remove(&lease) } else { None }
                };
                if held.is_some() {
                    return;
                }
            }
            moved = deadline.changed() => if moved.is_err() {
                return;
            },
        }
    }
}
