//! Lease: grants, renewals and ends.
//!
//! Before the take-over the legacy cluster judges leases and the machine only hears of them. After it they
//! are Causeway's, under the same ids; one that holds general keys is *bound*, and lives as that cluster
//! says.

use std::sync::Arc;

use bytes::Bytes;
use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_etcd::stubs::LeaseClient;
use causeway_engine::converge::LegacyOwner;
use causeway_engine::core::Command;
use causeway_engine::key_auth::Demand;
use causeway_engine::key_space::{KeyCommand, KeyReply};
use causeway_engine::phase::Acknowledges;
use causeway_engine::route::Mode;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::ResponseHeader;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::general::{answered, backend_error};
use super::keep_alive::PATIENCE;
use super::permit::{Shown, may};
use super::relay::Responses;
use super::services::etcdserverpb::lease_server::Lease;
use super::translate::auth_status;
use super::{Api, Front, caller, keep_alive, observe, with_metadata};
use crate::gateway::Over;

/// Ended leases that are remembered, so that the legacy cluster's copy does not bring them back.
const REMEMBERED: usize = 100_000;

#[tonic::async_trait]
impl Lease for Api {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, grant) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        if self.mode() == Mode::Relay {
            let granted = answered(
                lease_client(self)?
                    .lease_grant(with_metadata(&metadata, grant))
                    .await,
            )?;
            observe::granted(self, granted.get_ref().id, granted.get_ref().ttl).await?;
            return Ok(granted);
        }
        let ttl_s = grant.ttl.max(self.gateway.config.min_lease_ttl_s);
        loop {
            let id = if grant.id == 0 { random_id() } else { grant.id };
            let done = self.write(shown, KeyCommand::LeaseGrant { id, ttl_s })?;
            let header = self.header(done.number);
            match self.finished(done).await {
                Ok(KeyReply::LeaseGrant { id, ttl_s }) => {
                    self.ended.forget(id);
                    let granted = pb::LeaseGrantResponse {
                        header: Some(header),
                        id,
                        ttl: ttl_s,
                        ..Default::default()
                    };
                    return Ok(Response::new(granted));
                }
                Ok(_) => return Err(Status::internal("the machine answered another question")),
                Err(error)
                    if grant.id == 0 && error.message() == EtcdError::LeaseExist.message() => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, revoke) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let id = revoke.id;
        let looked = |front: &Front| {
            let look = front.gateway.with(|core| {
                let keys: Vec<Bytes> = core.keys().lease_keys(id).cloned().collect();
                let first = core.phase().phase().acknowledges() == Acknowledges::Legacy;
                (
                    core.mode(StoreKind::Etcd),
                    core.keys().lease(id).is_some(),
                    keys,
                    first,
                )
            });
            look.0
        };
        let op = KeyCommand::LeaseRevoke {
            id,
            keep: Vec::new(),
        };
        let (mode, known, keys, legacy_first) = looked(self);
        match mode {
            Mode::Embedded => {}
            Mode::Relay => {
                let revoked = answered(
                    lease_client(self)?
                        .lease_revoke(with_metadata(&metadata, revoke))
                        .await,
                )?;
                let mark = revoked.get_ref().header.as_ref().map_or(0, |h| h.revision);
                observe::over(self, id, keys, mark).await?;
                return Ok(revoked);
            }
            Mode::TakenOver if !known => {
                let mut revoked = answered(
                    lease_client(self)?
                        .lease_revoke(with_metadata(&metadata, revoke))
                        .await,
                )?;
                revoked.get_mut().header = Some(self.present_header());
                return Ok(revoked);
            }
            // What the legacy cluster acknowledges, and general keys, are gone there before the reply.
            Mode::TakenOver if legacy_first || self.is_bound(id) => {
                if legacy_first {
                    self.refuse_before_legacy(&caller.peer, &op)?;
                }
                self.revoke_in_legacy(id).await?
            }
            Mode::TakenOver => {}
        }
        let done = self.write(shown, op)?;
        self.ended.remember(id);
        let header = self.header(done.number);
        self.finished(done).await?;
        Ok(Response::new(pb::LeaseRevokeResponse {
            header: Some(header),
        }))
    }

    type LeaseKeepAliveStream = Responses<pb::LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        // After the take-over `connection.rs` has them answered here.
        let caller = caller(&request);
        let (metadata, _, inbound) = request.into_parts();
        let responses = keep_alive::relay(self.clone(), caller, metadata, inbound);
        Ok(Response::new(responses))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, asked) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let demand = match asked.keys {
            true => Demand::ReadLease(asked.id),
            false => Demand::BeKnown,
        };
        let now_ms = self.gateway.now_ms();
        let (seen, after) = self.gateway.with(|core| {
            may(core, shown, demand, || now_ms)?;
            let keys = core.keys();
            let left = core.ttl_left(LeaseId::lease(asked.id), now_ms);
            let lease = keys
                .lease(asked.id)
                .map(|lease| (lease.ttl_s, left, lease.keys.clone()));
            Ok((core.mode(StoreKind::Etcd), keys.revision(), lease))
        });
        self.durable(after).await?;
        let (mode, revision, lease) = seen.map_err(auth_status)?;
        if mode == Mode::Relay
            || (mode == Mode::TakenOver && lease.is_none() && !self.ended.contains(asked.id))
        {
            let mut there = answered(
                lease_client(self)?
                    .lease_time_to_live(with_metadata(&metadata, asked))
                    .await,
            )?;
            if mode == Mode::TakenOver {
                there.get_mut().header = Some(self.present_header());
            }
            return Ok(there);
        }
        let mut reply = pb::LeaseTimeToLiveResponse {
            header: Some(self.header(revision)),
            id: asked.id,
            ttl: -1,
            ..Default::default()
        };
        if let Some((ttl_s, left, keys)) = lease {
            reply.ttl = seconds_left(left);
            reply.granted_ttl = ttl_s;
            if asked.keys {
                reply.keys = keys.into_iter().collect();
                if self.is_bound(asked.id) {
                    reply.keys.extend(self.general_keys_of(asked.id).await?);
                    reply.keys.sort();
                }
            }
        }
        Ok(Response::new(reply))
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, asked) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let now_ms = self.gateway.now_ms();
        let (seen, after) = self.gateway.with(|core| {
            may(core, shown, Demand::ReadLeases, || now_ms)?;
            let keys = core.keys();
            let left = |id| core.ttl_left(LeaseId::lease(id), now_ms).unwrap_or(0);
            let leases: Vec<(u64, i64)> = keys.leases().map(|(id, _)| (left(id), id)).collect();
            Ok((core.mode(StoreKind::Etcd), keys.revision(), leases))
        });
        self.durable(after).await?;
        let (mode, revision, leases) = seen.map_err(auth_status)?;
        let mut ids = by_expiry(leases);
        if mode != Mode::Embedded {
            let there = answered(
                lease_client(self)?
                    .lease_leases(with_metadata(&metadata, asked))
                    .await,
            )?;
            if mode == Mode::Relay {
                return Ok(there);
            }
            let here: std::collections::HashSet<i64> = ids.iter().copied().collect();
            let there = there.into_inner().leases.into_iter().map(|l| l.id);
            ids.extend(there.filter(|id| !here.contains(id) && !self.ended.contains(*id)));
        }
        let leases = ids.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: Some(self.header(revision)),
            leases,
        }))
    }
}

/// The one that ends first stands first (etcd: lease/lessor.go, Leases).
fn by_expiry(mut leases: Vec<(u64, i64)>) -> Vec<i64> {
    leases.sort_unstable();
    leases.into_iter().map(|(_, id)| id).collect()
}

/// Positive, and never 0, which means "no lease".
fn random_id() -> i64 {
    rand::random_range(1..=i64::MAX)
}

/// What TimeToLive shows: whole seconds, and at least 1 as long as the lease may still come back.
fn seconds_left(left_ms: Option<u64>) -> i64 {
    i64::try_from(left_ms.unwrap_or(0) / 1000)
        .unwrap_or(i64::MAX)
        .max(1)
}

pub(super) fn lease_client(front: &Front) -> Result<LeaseClient<Channel>, Status> {
    Ok(LeaseClient::new(front.upstream()?).max_decoding_message_size(usize::MAX))
}

impl Front {
    /// After the take-over calls on leases show our numbers, whoever knows the lease: they would fall otherwise.
    fn present_header(&self) -> ResponseHeader {
        self.header(self.gateway.with(|core| core.keys().revision()).0)
    }

    /// Takes over a lease that the legacy cluster gave to a client before; gives its granted seconds, or
    /// `None` when there is no such lease.
    pub(super) async fn adopt(&self, id: i64) -> Result<Option<i64>, BackendError> {
        let (Some(upstream), Some(leases)) = (&self.legacy.etcd_upstream, &self.legacy.leases)
        else {
            return Ok(None);
        };
        if self.ended.contains(id) {
            return Ok(None);
        }
        let Some(found) = upstream.time_to_live(id, false).await? else {
            return Ok(None);
        };
        let ttl_s = i64::try_from(found.granted.as_secs())
            .unwrap_or(i64::MAX)
            .max(1);
        let done = self.gateway.apply(Command::AdoptLease { id, ttl_s });
        self.gateway
            .durable(done.after)
            .await
            .map_err(|error| BackendError::unknown(ErrorKind::Unavailable, error.to_string()))?;
        leases.confirmed(id);
        leases.renewed(&self.gateway, id);
        Ok(Some(ttl_s))
    }

    /// Before a write that names a lease: one that only the legacy cluster knows is taken over. Otherwise
    /// the key space says that it does not exist.
    pub(super) async fn know_lease(&self, id: i64) {
        if id == 0 || self.mode() != Mode::TakenOver {
            return;
        }
        if self.gateway.with(|core| core.keys().lease(id).is_some()).0 {
            return;
        }
        if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, self.adopt(id)).await {
            tracing::debug!(lease = format!("{id:x}"), %error, "a lease cannot be asked of the legacy etcd");
        }
    }
}

impl Front {
    pub(super) fn acknowledges(&self) -> Acknowledges {
        self.gateway
            .with(|core| core.phase().phase().acknowledges())
            .0
    }

    pub(super) fn is_bound(&self, id: i64) -> bool {
        self.gateway
            .with(|core| core.bound_leases().contains(&id))
            .0
    }

    /// Whether a put of this key under this lease binds the lease to the legacy cluster.
    pub(super) fn has_general(&self, lease: i64, key: &[u8]) -> bool {
        lease != 0 && !self.owns(key)
    }

    /// Before a write that puts a general key under a lease: if only its answer is lost, or this process
    /// ends in between, the lease has to live as the legacy cluster says all the same.
    pub(super) async fn bind_lease(&self, id: i64) -> Result<(), Status> {
        self.know_lease(id).await;
        self.ensure_lease(id).await?;
        let (binds, mut after) = self
            .gateway
            .with(|core| core.keys().lease(id).is_some() && !core.bound_leases().contains(&id));
        if binds {
            after = self
                .gateway
                .apply(Command::BoundLease { id, bound: true })
                .after;
        }
        self.durable(after).await
    }

    /// Before a write in the legacy cluster under a lease of ours: it has to be there too.
    pub(super) async fn ensure_lease(&self, id: i64) -> Result<(), Status> {
        let Some(leases) = &self.legacy.leases else {
            return Ok(());
        };
        // One that is not known here is that cluster's to judge.
        if id == 0 || self.gateway.with(|core| core.keys().lease(id).is_none()).0 {
            return Ok(());
        }
        leases
            .ensure(&self.gateway, id)
            .await
            .map_err(|error| backend_error(&error))
    }

    async fn revoke_in_legacy(&self, id: i64) -> Result<(), Status> {
        let (Some(upstream), Some(leases)) = (&self.legacy.etcd_upstream, &self.legacy.leases)
        else {
            return Ok(());
        };
        if leases.state(id) == LegacyOwner::Gone {
            return Ok(());
        }
        match upstream.revoke(id).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::LeaseGone => Ok(()),
            Err(error) => Err(backend_error(&error)),
        }
    }

    async fn general_keys_of(&self, id: i64) -> Result<Vec<Bytes>, Status> {
        let Some(upstream) = &self.legacy.etcd_upstream else {
            return Ok(Vec::new());
        };
        let found = upstream
            .time_to_live(id, true)
            .await
            .map_err(|error| backend_error(&error))?;
        let keys = found.map(|f| f.keys).unwrap_or_default();
        Ok(keys.into_iter().filter(|key| !self.owns(key)).collect())
    }
}

/// Leases that ended here, as far back as matters.
#[derive(Default)]
pub(super) struct Ended(parking_lot::Mutex<Ring>);

#[derive(Default)]
struct Ring {
    order: std::collections::VecDeque<i64>,
    ids: std::collections::HashSet<i64>,
}

impl Ended {
    pub(super) fn remember(&self, id: i64) {
        let mut ring = self.0.lock();
        if ring.ids.insert(id) {
            ring.order.push_back(id);
        }
        if ring.order.len() > REMEMBERED
            && let Some(oldest) = ring.order.pop_front()
        {
            ring.ids.remove(&oldest);
        }
    }

    /// The id was granted anew.
    fn forget(&self, id: i64) {
        let mut ring = self.0.lock();
        if ring.ids.remove(&id) {
            ring.order.retain(|other| *other != id);
        }
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.0.lock().ids.contains(&id)
    }
}

/// Remembers leases that end, until the gateway stops.
pub(super) async fn follow_over(front: Arc<Front>) {
    let mut stopping = front.gateway.stopping();
    let mut over = front.gateway.over();
    loop {
        tokio::select! {
            news = over.recv() => match news {
                Ok(Over::Lease { id, .. }) => front.ended.remember(id),
                Ok(Over::Session { .. }) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
            _ = stopping.wait_for(|s| *s) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_time_to_live_shows() {
        for (left_ms, shown) in [
            (Some(59_999), 59),
            (Some(1000), 1),
            (Some(999), 1),
            (Some(0), 1),
            (None, 1),
        ] {
            assert_eq!(seconds_left(left_ms), shown, "{left_ms:?}");
        }
    }

    #[test]
    fn leases_are_listed_as_they_end() {
        let leases = vec![(9_000, 1), (1_000, 7), (9_000, -3), (0, 5)];
        assert_eq!(by_expiry(leases), [5, 7, -3, 1]);
    }

    #[test]
    fn ended_leases_are_remembered_within_a_bound() {
        let ended = Ended::default();
        for id in 0..REMEMBERED as i64 + 1 {
            ended.remember(id);
        }
        assert!(!ended.contains(0) && ended.contains(1) && ended.contains(REMEMBERED as i64));
        ended.forget(1);
        assert!(!ended.contains(1) && ended.contains(2));
    }
}
