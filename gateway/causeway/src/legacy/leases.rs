//! Leases of clients in the legacy etcd: under the client's own id, granted there at the first write that
//! needs them, renewed there because the client was heard here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_etcd::upstream::EtcdUpstream;
use causeway_engine::converge::LegacyOwner;
use causeway_engine::core::Command;
use causeway_engine::phase::LegacyCopy;
use dashmap::DashMap;
use tokio::sync::Mutex;

use crate::gateway::Gateway;

/// How long a renewal that nobody waits for may take, before the next one is tried.
const TELLING: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Lease {
    /// Confirmed by L, and not denied since.
    alive: AtomicBool,
    /// L said that it is gone.
    gone: AtomicBool,
    /// A renewal is under way there.
    telling: AtomicBool,
    /// One grant at a time.
    granting: Mutex<()>,
}

/// The one renewal of a lease that is under way in L.
struct Telling(Arc<Lease>);

impl Telling {
    fn begin(lease: &Arc<Lease>) -> Option<Self> {
        let busy = lease.telling.swap(true, Ordering::AcqRel);
        (!busy).then(|| Telling(lease.clone()))
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.telling.store(false, Ordering::Release);
    }
}

/// The leases that L knows, or shall know.
pub struct Leases {
    upstream: EtcdUpstream,
    known: DashMap<i64, Arc<Lease>>,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases")
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Leases {
    /// For a cluster.
    pub fn new(upstream: EtcdUpstream) -> Self {
        Leases {
            upstream,
            known: DashMap::new(),
        }
    }

    fn entry(&self, id: i64) -> Arc<Lease> {
        self.known.entry(id).or_default().clone()
    }

    /// What is known of a lease in L.
    pub fn state(&self, id: i64) -> LegacyOwner {
        match self.known.get(&id) {
            Some(lease) if lease.alive.load(Ordering::Acquire) => LegacyOwner::Alive,
            Some(lease) if lease.gone.load(Ordering::Acquire) => LegacyOwner::Gone,
            _ => LegacyOwner::Unknown,
        }
    }

    /// Makes sure that L has the lease, under the same id and with the same time.
    pub async fn ensure(&self, gateway: &Gateway, id: i64) -> Result<(), BackendError> {
        let lease = self.entry(id);
        if lease.alive.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one = lease.granting.lock().await;
        if lease.alive.load(Ordering::Acquire) {
            return Ok(());
        }
        let (ttl_s, bound) = gateway
            .with(|core| {
                (
                    core.keys().lease(id).map_or(10, |l| l.ttl_s),
                    core.bound_leases().contains(&id),
                )
            })
            .0;
        // What it held there went with it: a fresh one would hide that from the client.
        if bound && self.ask(gateway, id).await? == LegacyOwner::Gone {
            return Err(BackendError::not_applied(
                ErrorKind::LeaseGone,
                "the lease has ended in the legacy etcd",
            ));
        }
        let ttl = Duration::from_secs(u64::try_from(ttl_s).unwrap_or(10));
        match self.upstream.grant(id, ttl).await {
            Ok(_) => {}
            // Granted before: by the relay, by another attempt whose outcome was unknown.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                if self.upstream.time_to_live(id, false).await?.is_none() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        lease.gone.store(false, Ordering::Release);
        lease.alive.store(true, Ordering::Release);
        gateway.converge.notify_one();
        Ok(())
    }

    /// Asks L whether it has the lease.
    pub async fn ask(&self, gateway: &Gateway, id: i64) -> Result<LegacyOwner, BackendError> {
        if self.upstream.time_to_live(id, false).await?.is_some() {
            self.confirmed(id);
            return Ok(LegacyOwner::Alive);
        }
        self.gone(gateway, id);
        Ok(LegacyOwner::Gone)
    }

    /// L said that the lease is gone.
    fn gone(&self, gateway: &Gateway, id: i64) {
        let lease = self.entry(id);
        lease.alive.store(false, Ordering::Release);
        if !lease.gone.swap(true, Ordering::AcqRel) {
            gateway.converge.notify_one();
        }
    }

    /// The client was heard: L is told, if it has the lease, without anybody waiting for it.
    pub fn renewed(self: &Arc<Self>, gateway: &Arc<Gateway>, id: i64) {
        let wanted = gateway.with(|core| {
            let copies = core.phase().phase().legacy_copy();
            matches!(copies, LegacyCopy::BeforeReply | LegacyCopy::Converges)
                || core.bound_leases().contains(&id)
        });
        if !wanted.0 {
            return;
        }
        // One that is not known here may be there all the same: from before a restart of the gateway.
        let lease = self.entry(id);
        if lease.gone.load(Ordering::Acquire) {
            return;
        }
        // While L hangs, a client's renewals must not pile up behind it.
        let Some(telling) = Telling::begin(&lease) else {
            return;
        };
        let (this, gateway) = (self.clone(), gateway.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(TELLING, this.tell(&gateway, id, &telling.0)).await;
        });
    }

    async fn tell(&self, gateway: &Gateway, id: i64, lease: &Lease) {
        if !lease.alive.load(Ordering::Acquire)
            && !matches!(self.ask(gateway, id).await, Ok(LegacyOwner::Alive))
        {
            gateway.converge.notify_one();
            return;
        }
        if let Err(error) = self.upstream.keep_alive(id).await
            && error.kind() == ErrorKind::LeaseGone
        {
            self.gone(gateway, id);
        }
    }

    /// The same, and L's answer counts: for bound leases. Gives the seconds that L gave.
    pub async fn renew_bound(&self, gateway: &Gateway, id: i64) -> Result<Duration, BackendError> {
        let renewed = self.upstream.keep_alive(id).await;
        if renewed
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::LeaseGone)
        {
            self.gone(gateway, id);
            // The client is about to hear it; it holds nothing there any more.
            gateway.apply(Command::BoundLease { id, bound: false });
        }
        renewed.map(|r| r.ttl)
    }

    /// L has the lease: a relayed grant, an adoption.
    pub fn confirmed(&self, id: i64) {
        let lease = self.entry(id);
        lease.gone.store(false, Ordering::Release);
        lease.alive.store(true, Ordering::Release);
    }

    /// The lease is over here. Only a client's own revoke is passed on; else L's runs out by itself.
    pub async fn over(&self, id: i64, revoked: bool) {
        self.known.remove(&id);
        if revoked && let Err(error) = self.upstream.revoke(id).await {
            tracing::debug!(lease = format!("{id:x}"), %error, "revoking in the legacy etcd was not confirmed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_renewal_at_a_time() {
        let lease = Arc::new(Lease::default());
        let first = Telling::begin(&lease);
        assert!(first.is_some() && Telling::begin(&lease).is_none());
        drop(first);
        assert!(Telling::begin(&lease).is_some());
    }
}
