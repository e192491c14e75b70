//! A connection gets its session: a new one, or the one whose id and password it shows.

use std::sync::Arc;

use causeway_backend_zookeeper::upstream::{Handshake, RawUpstream, UpstreamOptions};
use causeway_engine::core::Command;
use causeway_engine::route::Mode;
use causeway_engine::session::{ConnId, ResumeError, SESSION_HIGH_BYTE, negotiate_timeout};
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::ConnectRequest;
use tokio::sync::mpsc;

use super::Front;
use super::general::{EVENTS, General};
use crate::journal::Position;

/// What the client is answered.
pub(super) enum Outcome {
    /// It has a session.
    Opened(Box<Opened>),
    /// Its session is over, was never there, or is not its own; ZooKeeper tells it the same way
    /// (`ZooKeeperServer.finishSessionInit`).
    Expired,
    /// Closed without a reply, so that the client tries another server.
    Silent,
}

/// A session of this connection.
pub(super) struct Opened {
    pub(super) session: i64,
    pub(super) password: [u8; 16],
    pub(super) timeout_ms: u32,
    /// No header goes below it.
    pub(super) floor_zxid: i64,
    /// The reply may leave from here on.
    pub(super) after: Position,
    /// The way to the ensemble, after the take-over.
    pub(super) general: Option<General>,
}

/// Opens or resumes a session for a connection whose queue of news is set up already.
pub(super) async fn open(front: &Arc<Front>, request: &ConnectRequest, conn: ConnId) -> Outcome {
    let gateway = &front.gateway;
    let (mode, last) = gateway
        .with(|core| (core.mode(StoreKind::Zookeeper), core.last_zxid()))
        .0;
    // ZooKeeper: a client that has seen more than this server is sent to another one. After the take-over a
    // larger number is another store's, which says nothing here.
    if mode == Mode::Embedded && request.last_zxid_seen > last {
        tracing::info!(
            seen = request.last_zxid_seen,
            last,
            "a client has seen a later zxid than this server: closed"
        );
        return Outcome::Silent;
    }
    let floor_zxid = if request.last_zxid_seen <= last {
        request.last_zxid_seen
    } else {
        0
    };
    let config = &gateway.config;
    let timeout_ms = negotiate_timeout(request.timeout_ms, config.session_timeout_ms.clone());
    let outcome = match request.session_id {
        0 => new_session(front, timeout_ms, floor_zxid, conn),
        id => {
            let password = request.password.as_deref().unwrap_or_default();
            match resume(front, id, password, timeout_ms, floor_zxid, conn) {
                Ok(opened) => Outcome::Opened(Box::new(opened)),
                Err(ResumeError::Unknown) if mode == Mode::TakenOver => {
                    match adopt(front, request, id, timeout_ms).await {
                        Adopted::Yes => resume(front, id, password, timeout_ms, floor_zxid, conn)
                            .map_or(Outcome::Expired, |opened| Outcome::Opened(Box::new(opened))),
                        Adopted::No => Outcome::Expired,
                        Adopted::CannotTell => Outcome::Silent,
                    }
                }
                Err(why) => {
                    tracing::debug!(session = format!("{id:x}"), %why, "a session cannot be resumed");
                    Outcome::Expired
                }
            }
        }
    };
    match outcome {
        Outcome::Opened(opened) if mode == Mode::TakenOver => behind(front, opened, conn).await,
        other => other,
    }
}

enum Adopted {
    Yes,
    No,
    CannotTell,
}

/// A session that nobody here knows may be one of the ensemble's: a client that came from there directly.
async fn adopt(front: &Front, request: &ConnectRequest, id: i64, timeout_ms: u32) -> Adopted {
    // One that ended here is over, though the ensemble may keep it for a while.
    let ours = id >> 56 == SESSION_HIGH_BYTE || front.ended.lock().contains(&id);
    let Some(servers) = front.legacy.zookeeper_servers.as_ref().filter(|_| !ours) else {
        return Adopted::No;
    };
    let ask = ConnectRequest {
        timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
        session_id: id,
        password: request.password.clone(),
        ..ConnectRequest::default()
    };
    match RawUpstream::connect(servers, &ask, &UpstreamOptions::default()).await {
        Ok(Handshake::Established { response, .. }) => {
            let timeout_ms = u32::try_from(response.timeout_ms).unwrap_or(timeout_ms);
            let password = super::relay::password(&response);
            front.gateway.apply(Command::AdoptSession {
                id,
                password,
                timeout_ms,
            });
            Adopted::Yes
        }
        Ok(Handshake::Expired(_)) => Adopted::No,
        Err(error) => {
            tracing::debug!(session = format!("{id:x}"), %error, "the ensemble cannot be asked for a session");
            Adopted::CannotTell
        }
    }
}

/// Says to those who keep sessions in the ensemble that this connection speaks for one. A session that
/// holds an ephemeral there lives as the ensemble says: it is asked now.
async fn behind(front: &Front, mut opened: Box<Opened>, conn: ConnId) -> Outcome {
    let Some(upstreams) = front.legacy.sessions.clone() else {
        return Outcome::Opened(opened);
    };
    let (events, notifications) = mpsc::channel(EVENTS);
    upstreams.client(opened.session, conn, events);
    let gateway = &front.gateway;
    gateway.converge.notify_one();
    let id = opened.session;
    let behind = || {
        let known = |core: &mut causeway_engine::core::Core| {
            core.sessions()
                .get(id)
                .map(|s| (s.bound, s.legacy.as_ref().map(|l| l.id)))
        };
        gateway.with(known).0.unwrap_or_default()
    };
    let (bound, before) = behind();
    let mut general = General::new(upstreams.clone(), id, bound, notifications);
    if bound {
        match upstreams.attach(gateway, id).await {
            Ok(upstream) if behind().1 == before => {
                if general.attached(upstream).is_err() {
                    return Outcome::Silent;
                }
            }
            Ok(_) => {
                // The ensemble let it go, and with it what it held there.
                upstreams.gone(id, conn);
                gateway.apply(Command::LegacySessionGone { id });
                return Outcome::Expired;
            }
            Err(error) => {
                tracing::debug!(session = format!("{id:x}"), %error, "a session bound to the ensemble cannot be attached there");
                upstreams.gone(id, conn);
                gateway.with(|core| core.detach(id, conn));
                return Outcome::Silent;
            }
        }
    }
    opened.general = Some(general);
    Outcome::Opened(opened)
}

fn new_session(front: &Front, timeout_ms: u32, floor_zxid: i64, conn: ConnId) -> Outcome {
    let gateway = &front.gateway;
    let (id, password) = gateway.new_session();
    let command = Command::OpenSession {
        id,
        password,
        timeout_ms,
    };
    let attached = gateway.apply_and(command, |core, done| {
        core.attach(id, &password, timeout_ms, conn)
            .map(|_| done.after)
    });
    match attached {
        Ok(after) => {
            let opened = Opened {
                session: id,
                password,
                timeout_ms,
                floor_zxid,
                after,
                general: None,
            };
            Outcome::Opened(Box::new(opened))
        }
        Err(_) => Outcome::Silent,
    }
}

fn resume(
    front: &Front,
    id: i64,
    password: &[u8],
    timeout_ms: u32,
    floor_zxid: i64,
    conn: ConnId,
) -> Result<Opened, ResumeError> {
    let gateway = &front.gateway;
    let proof: [u8; 16] = password
        .try_into()
        .map_err(|_| ResumeError::WrongPassword)?;
    gateway
        .with(|core| core.sessions().may_resume(id, password))
        .0?;
    // A session whose lease is over is not resumed, though its records may be held.
    gateway
        .renew(LeaseId::session(id))
        .map_err(|_| ResumeError::Unknown)?;
    let (attached, mut after) = gateway.with(|core| {
        let before = core.sessions().get(id).map(|s| s.timeout_ms);
        core.attach(id, password, timeout_ms, conn)
            .map(|resumed| (resumed, before))
    });
    let (resumed, before) = attached?;
    // ZooKeeper: the older connection of the session is closed (reopenSession).
    if let Some(older) = resumed.displaced.filter(|older| *older != conn) {
        gateway.close_connection(older);
    }
    if before != Some(timeout_ms) {
        after = gateway.apply(Command::SetTimeout { id, timeout_ms }).after;
    }
    Ok(Opened {
        session: id,
        password: proof,
        timeout_ms,
        floor_zxid,
        after,
        general: None,
    })
}
