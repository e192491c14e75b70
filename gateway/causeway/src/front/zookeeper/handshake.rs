//! A connection gets its session: a new one, or the one whose id and password it shows.

use std::sync::Arc;

use causeway_engine::core::Command;
use causeway_engine::route::Mode;
use causeway_engine::session::{ConnId, ResumeError, negotiate_timeout};
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::ConnectRequest;

use super::Front;
use crate::journal::Position;

/// What the client is answered.
pub(super) enum Outcome {
    /// It has a session.
    Opened(Opened),
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
}

/// Opens or resumes a session for a connection whose queue of news is set up already.
pub(super) async fn open(front: &Arc<Front>, request: &ConnectRequest, conn: ConnId) -> Outcome {
    let gateway = &front.gateway;
    let (mode, last) = gateway.with(|core| (core.mode(StoreKind::Zookeeper), core.last_zxid())).0;
    // ZooKeeper: a client that has seen more than this server is sent to another one. After the take-over a
    // larger number is another store's, which says nothing here.
    if mode == Mode::Embedded && request.last_zxid_seen > last {
        tracing::info!(seen = request.last_zxid_seen, last, "a client has seen a later zxid than this server: closed");
        return Outcome::Silent;
    }
    let floor_zxid = if request.last_zxid_seen <= last { request.last_zxid_seen } else { 0 };
    let timeout_ms = negotiate_timeout(request.timeout_ms, gateway.config.tick_ms);
    if request.session_id == 0 {
        return new_session(front, timeout_ms, floor_zxid, conn);
    }
    let password = request.password.as_deref().unwrap_or_default();
    match resume(front, request.session_id, password, timeout_ms, floor_zxid, conn) {
        Ok(opened) => Outcome::Opened(opened),
        Err(why) => {
            tracing::debug!(session = format!("{:x}", request.session_id), %why, "a session cannot be resumed");
            Outcome::Expired
        }
    }
}

fn new_session(front: &Front, timeout_ms: u32, floor_zxid: i64, conn: ConnId) -> Outcome {
    let gateway = &front.gateway;
    let (id, password) = gateway.new_session();
    let command = Command::OpenSession { id, password, timeout_ms };
    let attached =
        gateway.apply_and(command, |core, done| core.attach(id, &password, timeout_ms, conn).map(|_| done.after));
    match attached {
        Ok(after) => Outcome::Opened(Opened { session: id, password, timeout_ms, floor_zxid, after }),
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
    let proof: [u8; 16] = password.try_into().map_err(|_| ResumeError::WrongPassword)?;
    gateway.with(|core| core.sessions().may_resume(id, password)).0?;
    // A session whose lease is over is not resumed, though its records may be held.
    gateway.renew(LeaseId::session(id)).map_err(|_| ResumeError::Unknown)?;
    let (attached, mut after) = gateway.with(|core| {
        let before = core.sessions().get(id).map(|s| s.timeout_ms);
        core.attach(id, password, timeout_ms, conn).map(|resumed| (resumed, before))
    });
    let (resumed, before) = attached?;
    // ZooKeeper: the older connection of the session is closed (reopenSession).
    if let Some(older) = resumed.displaced.filter(|older| *older != conn) {
        gateway.close_connection(older);
    }
    if before != Some(timeout_ms) {
        after = gateway.apply(Command::SetTimeout { id, timeout_ms }).after;
    }
    Ok(Opened { session: id, password: proof, timeout_ms, floor_zxid, after })
}
