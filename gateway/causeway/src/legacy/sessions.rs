//! Sessions of clients in the legacy ensemble: one upstream connection for each client session, opened
//! or re-attached only because its client is connected here, and shared by all who need it.

use std::sync::Arc;

use bytes::Bytes;
use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_zookeeper::Servers;
use causeway_backend_zookeeper::upstream::{
    Handshake, Notification, Pings, Upstream, UpstreamOptions,
};
use causeway_engine::converge::LegacyOwner;
use causeway_engine::core::Command;
use causeway_engine::phase::LegacyCopy;
use causeway_engine::session::{ConnId, LegacySession};
use causeway_wire::zk::request::AuthRequest;
use causeway_wire::zk::{ConnectRequest, OpCode};
use dashmap::DashMap;
use futures::StreamExt;
use tokio::sync::{Mutex, mpsc};

use crate::gateway::Gateway;

/// Identities of one client that are passed on.
const CREDENTIALS: usize = 64;

/// Sessions that are re-attached at the same time.
const REATTACH: usize = 32;

struct Client {
    conn: ConnId,
    notifications: mpsc::Sender<Notification>,
    upstream: Mutex<Option<Arc<Upstream>>>,
    /// What the client proved its identities with: its writes to the ensemble need them there too.
    credentials: parking_lot::Mutex<Vec<AuthRequest>>,
}

/// The upstream connections of the clients that are connected here.
pub struct Upstreams {
    servers: Servers,
    options: UpstreamOptions,
    clients: DashMap<i64, Arc<Client>>,
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstreams")
            .field("clients", &self.clients.len())
            .finish_non_exhaustive()
    }
}

impl Upstreams {
    /// For an ensemble.
    pub fn new(servers: Servers) -> Self {
        Upstreams {
            servers,
            options: UpstreamOptions::default(),
            clients: DashMap::new(),
        }
    }

    /// The ensemble's servers.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// A connection speaks for a session from now on. Watches set upstream are reported to it.
    pub fn client(&self, session: i64, conn: ConnId, notifications: mpsc::Sender<Notification>) {
        let client = Client {
            conn,
            notifications,
            upstream: Mutex::new(None),
            credentials: parking_lot::Mutex::default(),
        };
        self.clients.insert(session, Arc::new(client));
    }

    /// The client proved an identity.
    pub fn authenticate(&self, session: i64, auth: &AuthRequest) {
        let Some(client) = self.clients.get(&session).map(|c| c.clone()) else {
            return;
        };
        {
            let mut credentials = client.credentials.lock();
            if credentials.contains(auth) || credentials.len() == CREDENTIALS {
                return;
            }
            credentials.push(auth.clone());
        }
        if let Ok(upstream) = client.upstream.try_lock()
            && let Some(upstream) = upstream.as_ref()
        {
            drop(upstream.submit_record(OpCode::Auth, auth));
        }
    }

    /// The connection ended: the upstream connection goes, the session in the ensemble stays.
    pub fn gone(&self, session: i64, conn: ConnId) {
        self.clients
            .remove_if(&session, |_, client| client.conn == conn);
    }

    /// What is known of a client's session in the ensemble.
    pub fn state(&self, gateway: &Gateway, session: i64) -> LegacyOwner {
        let known = gateway
            .with(|core| core.sessions().get(session).map(|s| s.legacy.is_some()))
            .0;
        let attached = self.clients.get(&session).is_some_and(|client| {
            let attached = client
                .upstream
                .try_lock()
                .map(|u| u.as_ref().is_some_and(|u| u.lost_already().is_none()));
            attached.unwrap_or(false)
        });
        match (attached, known) {
            (true, _) => LegacyOwner::Alive,
            (false, Some(true)) => LegacyOwner::Unknown,
            (false, Some(false) | None) => LegacyOwner::Gone,
        }
    }

    /// Whether the session's client is connected here, so that its upstream session may be attached.
    pub fn is_connected(&self, session: i64) -> bool {
        self.clients.contains_key(&session)
    }

    /// Re-attaches the sessions of connected clients that stand for something in the ensemble: without a
    /// connection they would run out there although their clients live.
    pub async fn reattach(&self, gateway: &Gateway) {
        let ids: Vec<i64> = self
            .clients
            .iter()
            .filter(|client| {
                client
                    .upstream
                    .try_lock()
                    .is_ok_and(|u| u.as_ref().is_none_or(|u| u.lost_already().is_some()))
            })
            .map(|client| *client.key())
            .collect();
        let ids = gateway
            .with(|core| {
                let copies = matches!(
                    core.phase().phase().legacy_copy(),
                    LegacyCopy::BeforeReply | LegacyCopy::Converges
                );
                let stands = |id: &i64| {
                    core.sessions()
                        .get(*id)
                        .is_some_and(|s| s.legacy.is_some() && (copies || s.bound))
                };
                ids.into_iter().filter(stands).collect::<Vec<i64>>()
            })
            .0;
        futures::stream::iter(ids)
            .for_each_concurrent(REATTACH, |id| async move {
                if let Err(error) = self.attach(gateway, id).await {
                    tracing::debug!(session = format!("{id:x}"), %error, "not attached in the legacy ensemble yet");
                }
            })
            .await;
    }

    /// The session's upstream connection: the one there is, or a new one, re-attached by id and password
    /// where the ensemble knows the session, opened where it does not.
    pub async fn attach(
        &self,
        gateway: &Gateway,
        session: i64,
    ) -> Result<Arc<Upstream>, BackendError> {
        let Some(client) = self.clients.get(&session).map(|c| c.clone()) else {
            return Err(BackendError::not_applied(
                ErrorKind::Unavailable,
                format!(
                    "session {session:x} has no connection here, and only its client's may attach it"
                ),
            ));
        };
        let mut slot = client.upstream.lock().await;
        if let Some(upstream) = slot.as_ref().filter(|u| u.lost_already().is_none()) {
            return Ok(upstream.clone());
        }
        *slot = None;
        let (legacy, timeout_ms, bound) = gateway
            .with(|core| {
                let session = core.sessions().get(session);
                let timeout_ms = session.map_or(10_000, |s| s.timeout_ms);
                (
                    session.and_then(|s| s.legacy.clone()),
                    timeout_ms,
                    session.is_some_and(|s| s.bound),
                )
            })
            .0;
        let upstream = match legacy {
            Some(known) => match self.connect(timeout_ms, Some(&known), &client).await? {
                Some((upstream, _)) => upstream,
                // The ensemble has let the session go. What it held there is gone with it, so its client has to be
                // told; for a client with registrations only, a new one stands behind it from now on.
                None if bound => {
                    gateway.apply(Command::LegacySessionGone { id: session });
                    return Err(BackendError::not_applied(
                        ErrorKind::LeaseGone,
                        format!("the legacy ensemble let the session behind {session:x} go"),
                    ));
                }
                None => self.open(gateway, session, timeout_ms, &client).await?,
            },
            None => self.open(gateway, session, timeout_ms, &client).await?,
        };
        for auth in client.credentials.lock().iter() {
            // Requests go out in the order of calls: these are ahead of what needs them.
            drop(upstream.submit_record(OpCode::Auth, auth));
        }
        *slot = Some(upstream.clone());
        gateway.converge.notify_one();
        Ok(upstream)
    }

    async fn open(
        &self,
        gateway: &Gateway,
        session: i64,
        timeout_ms: u32,
        client: &Client,
    ) -> Result<Arc<Upstream>, BackendError> {
        let Some((upstream, legacy)) = self.connect(timeout_ms, None, client).await? else {
            return Err(BackendError::not_applied(
                ErrorKind::Unavailable,
                "the legacy ensemble refused a new session",
            ));
        };
        gateway.apply(Command::LegacySession {
            id: session,
            legacy: Some(legacy),
        });
        Ok(upstream)
    }

    async fn connect(
        &self,
        timeout_ms: u32,
        known: Option<&LegacySession>,
        client: &Client,
    ) -> Result<Option<(Arc<Upstream>, LegacySession)>, BackendError> {
        let request = ConnectRequest {
            timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
            session_id: known.map_or(0, |k| k.id),
            password: Some(known.map_or_else(
                || Bytes::from_static(&[0; 16]),
                |k| Bytes::copy_from_slice(&k.password),
            )),
            ..ConnectRequest::default()
        };
        match Upstream::connect(&self.servers, &request, &self.options, Pings::Automatic).await? {
            Handshake::Established {
                connection: (upstream, mut notifications),
                response,
            } => {
                let to = client.notifications.clone();
                tokio::spawn(async move {
                    while let Some(notification) = notifications.recv().await {
                        if to.send(notification).await.is_err() {
                            return;
                        }
                    }
                });
                let mut password = [0; 16];
                for (to, from) in password.iter_mut().zip(response.password.iter().flatten()) {
                    *to = *from;
                }
                let legacy = LegacySession {
                    id: response.session_id,
                    password,
                    timeout_ms: u32::try_from(response.timeout_ms).unwrap_or(timeout_ms),
                };
                Ok(Some((Arc::new(upstream), legacy)))
            }
            Handshake::Expired { .. } => Ok(None),
        }
    }

    /// The client closed its session: so does its session in the ensemble, with all that it owns there.
    pub async fn close(&self, session: &causeway_engine::session::Session) {
        let attached = match self.clients.get(&session.id).map(|c| c.clone()) {
            Some(client) => client.upstream.lock().await.take(),
            None => None,
        };
        let upstream = match (attached, &session.legacy) {
            (Some(upstream), _) => Some(upstream),
            (None, Some(known)) => {
                let (notifications, _) = mpsc::channel(1);
                let client = Client {
                    conn: ConnId(0),
                    notifications,
                    upstream: Mutex::new(None),
                    credentials: parking_lot::Mutex::default(),
                };
                self.connect(session.timeout_ms, Some(known), &client)
                    .await
                    .ok()
                    .flatten()
                    .map(|(u, _)| u)
            }
            (None, None) => None,
        };
        if let Some(upstream) = upstream {
            let closed = upstream.submit(OpCode::CloseSession as i32, &[]).await;
            if let Err(error) = closed {
                tracing::debug!(session = format!("{:x}", session.id), %error, "closing in the ensemble was not confirmed");
            }
        }
    }
}
