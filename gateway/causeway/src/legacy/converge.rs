//! Brings the legacy stores to what the machine wants there: no queue of operations, but one look at each
//! registration that may differ, one conditional attempt, and another look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_backend::{
    Backend, BackendError, Certainty, ErrorKind, Expect, Lease, LeaseId, Owner, Registration,
    Revision,
};
use causeway_backend_zookeeper::upstream::{Answer, Handshake, Pings, Upstream, UpstreamOptions};
use causeway_engine::converge::{Action, LegacyOwner};
use causeway_engine::core::{Command, LegacyEvent, LegacyMeta, Wanted, WantedOwner};
use causeway_registry::{RecordKey, StoreKind};
use causeway_wire::zk::request::{Acl, CreateRequest, DeleteRequest, ReadRequest, SetDataRequest};
use causeway_wire::zk::{
    ConnectRequest, ErrorCode, MultiOp, MultiRequest, MultiResponse, MultiResult, OpCode,
    Record as _, Stat,
};
use futures::StreamExt;
use parking_lot::Mutex;

use super::Legacy;
use super::sessions::Upstreams;
use crate::gateway::{Gateway, Over};

/// Registrations looked at in one round.
const ROUND: usize = 4096;

/// Attempts under way at the same time.
const ATTEMPTS: usize = 64;

/// A store that failed is left alone for this long.
const PAUSE: Duration = Duration::from_millis(500);

/// How often everything unsettled is looked at without being told.
const EVERY: Duration = Duration::from_secs(1);

/// TTL of the gateway's own lease in L, for bridged records.
const OWN_TTL: Duration = Duration::from_secs(15);

/// Brings one store to what the machine wants there, until the gateway stops. A store that hangs holds up
/// nobody but itself.
pub async fn run(gateway: Arc<Gateway>, legacy: Arc<Legacy>, store: StoreKind) {
    let mut stopping = gateway.stopping();
    let mut wake = gateway.converge.subscribe();
    let own = OwnLeases::default();
    let mut last: Option<RecordKey> = None;
    loop {
        let keys = gateway
            .with(|core| core.dirty(store, last.as_ref(), ROUND))
            .0;
        last = keys.last().cloned();
        let results: Vec<bool> = futures::stream::iter(keys)
            .map(|key| attempt(&gateway, &legacy, &own, key))
            .buffer_unordered(ATTEMPTS)
            .collect()
            .await;
        let waits = results.contains(&false);
        if waits {
            tokio::time::sleep(PAUSE).await;
        }
        tokio::select! {
            _ = wake.changed() => {}
            () = tokio::time::sleep(EVERY) => {}
            () = crate::gateway::stopped(&mut stopping) => return,
        }
    }
}

/// Keeps the ensemble's sessions of connected clients attached, until the gateway stops.
pub async fn keep_attached(gateway: Arc<Gateway>, sessions: Arc<Upstreams>) {
    let mut stopping = gateway.stopping();
    let mut wake = gateway.converge.subscribe();
    loop {
        sessions.reattach(&gateway).await;
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            _ = wake.changed() => {}
            () = tokio::time::sleep(EVERY) => {}
            () = crate::gateway::stopped(&mut stopping) => return,
        }
    }
}

/// One registration: looks and acts until L is as wanted. False when it has to be tried again later.
async fn attempt(gateway: &Arc<Gateway>, legacy: &Legacy, own: &OwnLeases, key: RecordKey) -> bool {
    for _ in 0..6 {
        let owner = gateway.with(|core| core.wanted_owner(&key)).0;
        let state = match owner {
            WantedOwner::Session(id) => legacy
                .sessions
                .as_ref()
                .map_or(LegacyOwner::Unknown, |s| s.state(gateway, id)),
            WantedOwner::Lease(id) => legacy
                .leases
                .as_ref()
                .map_or(LegacyOwner::Unknown, |l| l.state(id)),
            WantedOwner::Gateway => own.state(key.store),
            WantedOwner::Nobody => LegacyOwner::Alive,
        };
        let Some(wanted) = gateway.with(|core| core.wanted(&key, state)).0 else {
            gateway.with(|core| core.settled(&key));
            return true;
        };
        match step(gateway, legacy, own, &wanted).await {
            Ok(Progress::Settled) => {
                gateway.with(|core| core.settled(&key));
                return true;
            }
            Ok(Progress::Again) => {}
            Ok(Progress::Later) => return false,
            Err(error) => {
                tracing::debug!(key = %causeway_engine::layout::redact(&key.key), %error, "the legacy store does not follow yet");
                if error.certainty() != Certainty::NotApplied || error.kind() == ErrorKind::Conflict
                {
                    let _ = look(gateway, legacy, &key).await;
                }
                return false;
            }
        }
    }
    false
}

enum Progress {
    Settled,
    Again,
    Later,
}

async fn step(
    gateway: &Arc<Gateway>,
    legacy: &Legacy,
    own: &OwnLeases,
    wanted: &Wanted,
) -> Result<Progress, BackendError> {
    let store = wanted.key.store;
    match wanted.action {
        Action::Nothing => Ok(Progress::Settled),
        Action::Import => {
            look(gateway, legacy, &wanted.key).await?;
            Ok(Progress::Settled)
        }
        Action::TakeRemoval => {
            gateway.apply(Command::TakeRemoval(wanted.key.clone()));
            Ok(Progress::Again)
        }
        Action::OpenOwner | Action::AskLegacy => match wanted.owner {
            WantedOwner::Session(id) => {
                let Some(sessions) = legacy.sessions.as_ref().filter(|s| s.is_connected(id)) else {
                    return Ok(Progress::Later);
                };
                sessions.attach(gateway, id).await?;
                look(gateway, legacy, &wanted.key).await?;
                Ok(Progress::Again)
            }
            WantedOwner::Lease(id) => {
                let Some(leases) = &legacy.leases else {
                    return Ok(Progress::Later);
                };
                let state = match wanted.action {
                    Action::AskLegacy => leases.ask(gateway, id).await?,
                    _ => LegacyOwner::Gone,
                };
                if state == LegacyOwner::Gone {
                    leases.ensure(gateway, id).await?;
                }
                look(gateway, legacy, &wanted.key).await?;
                Ok(Progress::Again)
            }
            WantedOwner::Gateway => {
                own.open(gateway, legacy, store).await?;
                Ok(Progress::Again)
            }
            WantedOwner::Nobody => Ok(Progress::Later),
        },
        Action::CreateIfAbsent | Action::WriteIfUnchanged => {
            write(gateway, legacy, own, wanted).await
        }
        Action::DeleteIfUnchanged => {
            let Some(backend) = legacy.backend(store) else {
                return Ok(Progress::Later);
            };
            let expect = match &wanted.seen {
                Some(entry) if entry.mark > 0 => {
                    Expect::Revision(Revision::from_i64(backend.name().clone(), entry.mark))
                }
                _ => Expect::Any,
            };
            let removed = backend.deregister(&wanted.key.key, expect).await?;
            let mark = removed
                .and_then(|r| r.as_i64())
                .or(wanted.seen.as_ref().map(|s| s.mark))
                .unwrap_or(0);
            let event = LegacyEvent::Delete {
                key: wanted.key.key.clone(),
                mark,
            };
            gateway.apply(Command::Legacy { store, event });
            Ok(Progress::Settled)
        }
    }
}

/// Writes what is wanted, if L is still as last seen.
async fn write(
    gateway: &Arc<Gateway>,
    legacy: &Legacy,
    own: &OwnLeases,
    wanted: &Wanted,
) -> Result<Progress, BackendError> {
    let store = wanted.key.store;
    let Some(backend) = legacy.backend(store) else {
        return Ok(Progress::Later);
    };
    if let (StoreKind::Zookeeper, WantedOwner::Session(id)) = (store, wanted.owner) {
        return write_znode(gateway, legacy, wanted, id).await;
    }
    let owner = match wanted.owner {
        WantedOwner::Lease(id) => Owner::Lease(LeaseId(id)),
        WantedOwner::Gateway => Owner::Lease(own.open(gateway, legacy, store).await?),
        WantedOwner::Nobody | WantedOwner::Session(_) => Owner::Persistent,
    };
    let expect = match &wanted.seen {
        None => Expect::Absent,
        Some(entry) => Expect::Revision(Revision::from_i64(backend.name().clone(), entry.mark)),
    };
    let registration = Registration {
        key: wanted.key.key.clone(),
        value: wanted.value.clone().unwrap_or_default(),
        owner,
        expect,
    };
    backend.register(registration).await?;
    look(gateway, legacy, &wanted.key).await?;
    Ok(Progress::Settled)
}

/// An ephemeral of a client's own session: on that session's own connection.
async fn write_znode(
    gateway: &Arc<Gateway>,
    legacy: &Legacy,
    wanted: &Wanted,
    session: i64,
) -> Result<Progress, BackendError> {
    let Some(sessions) = legacy.sessions.as_ref().filter(|s| s.is_connected(session)) else {
        return Ok(Progress::Later);
    };
    let upstream = sessions.attach(gateway, session).await?;
    let chroot = sessions.servers().chroot();
    let path = format!("{chroot}{}", String::from_utf8_lossy(&wanted.key.key));
    let current = gateway
        .with(|core| {
            core.sessions()
                .get(session)
                .and_then(|s| s.legacy.as_ref())
                .map(|l| l.id)
        })
        .0;
    let version = wanted.seen.as_ref().map(|entry| match &entry.meta {
        LegacyMeta::Znode { stat, .. } => stat.version,
        LegacyMeta::Pair { .. } => -1,
    });
    let acl: Vec<Acl> = wanted
        .acl
        .iter()
        .map(|a| Acl {
            perms: a.perms.cast_signed(),
            scheme: a.scheme.clone(),
            id: a.id.clone(),
        })
        .collect();
    let acl = if acl.is_empty() { open_acl() } else { acl };
    let create = CreateRequest {
        path: path.clone(),
        data: wanted.value.clone(),
        acl,
        flags: 1,
    };
    let answer = match (&wanted.seen, version) {
        (Some(entry), Some(version)) if Some(entry.owner) == current => {
            let set = SetDataRequest {
                path: path.clone(),
                data: wanted.value.clone(),
                version,
            };
            upstream.submit_record(OpCode::SetData, &set).await?
        }
        (Some(_), version) => {
            // Under a session that stood behind the client before: replaced in one step, never deleted first.
            let multi = MultiRequest {
                ops: vec![
                    MultiOp::Delete(DeleteRequest {
                        path: path.clone(),
                        version: version.unwrap_or(-1),
                    }),
                    MultiOp::Create(create),
                ],
            };
            upstream.submit_record(OpCode::Multi, &multi).await?
        }
        (None, _) => {
            parents(&upstream, &path, chroot).await?;
            upstream.submit_record(OpCode::Create, &create).await?
        }
    };
    look(gateway, legacy, &wanted.key).await?;
    match answer.header.err {
        0 => Ok(Progress::Settled),
        code => {
            tracing::debug!(
                path,
                code,
                "the legacy ensemble refused a registration; looked again"
            );
            Ok(Progress::Later)
        }
    }
}

fn open_acl() -> Vec<Acl> {
    vec![Acl {
        perms: 31,
        scheme: "world".into(),
        id: "anyone".into(),
    }]
}

/// Fillers created and deleted in one request.
const FILLERS: usize = 100;

/// Requests for fillers in one directory that may be refused, and the pause after each: somebody else's change may
/// be in the way.
const FILLING_ATTEMPTS: usize = 5;
const FILLING_PAUSE: Duration = Duration::from_millis(100);

/// Brings the ensemble's counts of creations up to those of the view, in directories with sequential nodes:
/// before the ensemble names such nodes again, so that it gives no name twice. Each filler is created and
/// deleted in one transaction, so that no reader ever lists it.
pub async fn raise_counters(gateway: &Gateway, sessions: &Upstreams) -> Result<(), BackendError> {
    let directories = gateway.with(|core| core.sequence_directories()).0;
    if directories.is_empty() {
        return Ok(());
    }
    let request = ConnectRequest {
        timeout_ms: 10_000,
        password: Some(Bytes::from_static(&[0; 16])),
        ..ConnectRequest::default()
    };
    let options = UpstreamOptions::default();
    let handshake =
        Upstream::connect(sessions.servers(), &request, &options, Pings::Automatic).await?;
    let Handshake::Established {
        connection: (upstream, _notifications),
        ..
    } = handshake
    else {
        return Err(BackendError::not_applied(
            ErrorKind::Unavailable,
            "the legacy ensemble refused a new session",
        ));
    };
    let chroot = sessions.servers().chroot();
    let mut behind = Vec::new();
    for (directory, creations) in directories {
        let path = format!("{chroot}{directory}");
        let mut refused = 0;
        loop {
            let Some(there) = creations_in(&upstream, &path).await? else {
                // Whoever makes it there would begin at 0.
                if refused == FILLING_ATTEMPTS {
                    behind.push(directory.clone());
                    break;
                }
                refused += 1;
                parents(&upstream, &format!("{path}/"), chroot).await?;
                continue;
            };
            let missing = usize::try_from(i64::from(creations) - there).unwrap_or(0);
            if missing == 0 {
                break;
            }
            if refused == FILLING_ATTEMPTS {
                behind.push(directory.clone());
                break;
            }
            let now = missing.min(FILLERS);
            let filler = || {
                let path = format!("{path}/causeway-filler");
                let create = CreateRequest {
                    path: path.clone(),
                    data: None,
                    acl: open_acl(),
                    flags: 0,
                };
                [
                    MultiOp::Create(create),
                    MultiOp::Delete(DeleteRequest { path, version: -1 }),
                ]
            };
            let ops = std::iter::repeat_with(filler).take(now).flatten().collect();
            let answer = upstream
                .submit_record(OpCode::Multi, &MultiRequest { ops })
                .await?;
            if !is_done(&answer) {
                refused += 1;
                tokio::time::sleep(FILLING_PAUSE).await;
            }
        }
    }
    upstream.close_session().await?;
    if behind.is_empty() {
        return Ok(());
    }
    Err(BackendError::not_applied(
        ErrorKind::Conflict,
        format!(
            "the legacy ensemble refused to count on in {}: it may name sequential nodes there as they were named before",
            behind.join(", ")
        ),
    ))
}

/// How many children a directory ever had in the ensemble; `None` when there is no such directory.
async fn creations_in(upstream: &Upstream, path: &str) -> Result<Option<i64>, BackendError> {
    let request = ReadRequest {
        path: path.to_owned(),
        watch: false,
    };
    let answer = upstream.submit_record(OpCode::Exists, &request).await?;
    match answer.header.err {
        0 => {}
        code if code == ErrorCode::NoNode.number() => return Ok(None),
        code => {
            return Err(BackendError::not_applied(
                ErrorKind::Unavailable,
                format!("{path}: the legacy ensemble answers exists with code {code}"),
            ));
        }
    }
    let stat = Stat::decode(answer.body).map_err(|error| {
        BackendError::unknown(ErrorKind::Protocol, format!("exists {path}: {error}"))
    })?;
    // ZooKeeper: DataNode.copyStat shows 2 * creations - children.
    Ok(Some(
        i64::from(stat.cversion).wrapping_add(i64::from(stat.num_children)) / 2,
    ))
}

/// Whether a multi was done: one that was not has code 0 in its header, and an error among its results.
fn is_done(answer: &Answer) -> bool {
    answer.header.err == 0
        && MultiResponse::decode(answer.body.clone()).is_ok_and(|response| {
            !response
                .results
                .iter()
                .any(|result| matches!(result, MultiResult::Error(_)))
        })
}

/// Makes the parents of a path, as the layout's own clients would.
async fn parents(upstream: &Upstream, path: &str, chroot: &str) -> Result<(), BackendError> {
    let mut ends: Vec<usize> = path
        .match_indices('/')
        .map(|(at, _)| at)
        .filter(|at| *at > chroot.len())
        .collect();
    ends.sort_unstable();
    for end in ends {
        let Some(parent) = path.get(..end).filter(|p| !p.is_empty()) else {
            continue;
        };
        let create = CreateRequest {
            path: parent.to_owned(),
            data: Some(Bytes::new()),
            acl: open_acl(),
            flags: 0,
        };
        // NodeExists is as good.
        upstream.submit_record(OpCode::Create, &create).await?;
    }
    Ok(())
}

/// Looks at one key in L and tells the machine.
pub async fn look(gateway: &Gateway, legacy: &Legacy, key: &RecordKey) -> Result<(), BackendError> {
    let Some(backend) = legacy.backend(key.store) else {
        return Ok(());
    };
    let event = match backend.lookup(&key.key).await? {
        Some(entry) => match super::feed::entry_of(entry) {
            Some(entry) => LegacyEvent::Put(entry),
            None => return Ok(()),
        },
        None => return Ok(()),
    };
    gateway.apply(Command::Legacy {
        store: key.store,
        event,
    });
    Ok(())
}

/// The gateway's own session and lease in the stores, under which bridged records stand.
#[derive(Default)]
struct OwnLeases {
    open: Arc<Mutex<BTreeMap<StoreKind, LeaseId>>>,
    opening: tokio::sync::Mutex<()>,
}

impl OwnLeases {
    fn state(&self, store: StoreKind) -> LegacyOwner {
        if self.open.lock().contains_key(&store) {
            LegacyOwner::Alive
        } else {
            LegacyOwner::Gone
        }
    }

    async fn open(
        &self,
        gateway: &Arc<Gateway>,
        legacy: &Legacy,
        store: StoreKind,
    ) -> Result<LeaseId, BackendError> {
        let _one = self.opening.lock().await;
        if let Some(id) = self.open.lock().get(&store).copied() {
            return Ok(id);
        }
        let Some(backend) = legacy.backend(store).cloned() else {
            return Err(BackendError::not_applied(
                ErrorKind::Unavailable,
                "no such legacy store",
            ));
        };
        let lease: Lease = backend.open_lease(None, OWN_TTL).await?;
        let id = lease.id;
        gateway.apply(Command::OwnOwner { store, owner: id.0 });
        self.open.lock().insert(store, id);
        self.keep(gateway.clone(), backend, lease, store);
        Ok(id)
    }

    fn keep(
        &self,
        gateway: Arc<Gateway>,
        backend: Arc<dyn Backend>,
        lease: Lease,
        store: StoreKind,
    ) {
        let mut alive = causeway_backend::keep_alive(backend, lease);
        let open = self.open.clone();
        tokio::spawn(async move {
            let error = alive.gone().await;
            tracing::warn!(store = store.name(), %error, "the gateway's own lease in the legacy store ended; opened anew when needed");
            open.lock().remove(&store);
            gateway.converge.notify_one();
        });
    }
}

/// Lets go in L what is over here.
pub async fn follow_over(gateway: Arc<Gateway>, legacy: Arc<Legacy>) {
    let mut over = gateway.over();
    let mut stopping = gateway.stopping();
    loop {
        let next = tokio::select! {
            next = over.recv() => next,
            () = crate::gateway::stopped(&mut stopping) => return,
        };
        match next {
            Ok(Over::Session { session, closed }) => {
                let taken_over = gateway.with(|core| core.phase().taken_over()).0;
                // One that ran out here and holds general nodes there is over there as well: while a client hangs
                // its connection stays, and the pings of ours would keep the nodes.
                let ends = closed || session.bound;
                if let (Some(sessions), true, true) = (legacy.sessions.clone(), ends, taken_over) {
                    tokio::spawn(async move { sessions.close(&session).await });
                }
            }
            Ok(Over::Lease { id, revoked }) => {
                if let Some(leases) = legacy.leases.clone() {
                    tokio::spawn(async move { leases.over(id, revoked).await });
                }
            }
            Err(tokio::sync::broadcast::error::RecvError::Lagged(missed)) => {
                tracing::warn!(
                    missed,
                    "ended sessions were not passed on to the legacy store; they expire there by themselves"
                );
            }
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        }
    }
}
