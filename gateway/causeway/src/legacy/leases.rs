//! Leases of clients in the legacy etcd: under the client's own id, granted there at the first write that
//! needs them, renewed there because the client was heard here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_etcd::upstream::EtcdUpstream;
use causeway_engine::converge::LegacyOwner;
use causeway_engine::phase::LegacyCopy;
use dashmap::DashMap;
use tokio::sync::Mutex;

use crate::gateway::Gateway;

#[derive(Default)]
struct Lease {
    /// Confirmed by L, and not denied since.
    alive: AtomicBool,
    /// L said that it is gone.
    gone: AtomicBool,
    /// Holds general keys there.
    bound: AtomicBool,
    /// One grant at a time.
    granting: Mutex<()>,
}

/// The leases that L knows, or shall know.
pub struct Leases {
    upstream: EtcdUpstream,
    known: DashMap<i64, Arc<Lease>>,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Leases {
    /// For a cluster.
    pub fn new(upstream: EtcdUpstream) -> Self {
        Leases { upstream, known: DashMap::new() }
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
        let ttl_s = gateway.with(|core| core.keys().lease(id).map(|l| l.ttl_s)).0.unwrap_or(10);
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
    pub async fn ask(&self, id: i64) -> Result<LegacyOwner, BackendError> {
        let alive = self.upstream.time_to_live(id, false).await?.is_some();
        let lease = self.entry(id);
        lease.alive.store(alive, Ordering::Release);
        lease.gone.store(!alive, Ordering::Release);
        Ok(if alive { LegacyOwner::Alive } else { LegacyOwner::Gone })
    }

    /// The client was heard: L is told, if it has the lease, without anybody waiting for it.
    pub fn renewed(self: &Arc<Self>, gateway: &Arc<Gateway>, id: i64) {
        let copies = gateway.with(|core| core.phase().phase().legacy_copy()).0;
        if !matches!(copies, LegacyCopy::BeforeReply | LegacyCopy::Converges) && !self.is_bound(id) {
            return;
        }
        // One that is not known here may be there all the same: from before a restart of the gateway.
        let lease = self.entry(id);
        if lease.gone.load(Ordering::Acquire) {
            return;
        }
        let (this, gateway) = (self.clone(), gateway.clone());
        tokio::spawn(async move {
            if !lease.alive.load(Ordering::Acquire) && !matches!(this.ask(id).await, Ok(LegacyOwner::Alive)) {
                gateway.converge.notify_one();
                return;
            }
            if let Err(error) = this.upstream.keep_alive(id).await
                && error.kind() == ErrorKind::LeaseGone
            {
                lease.alive.store(false, Ordering::Release);
                lease.gone.store(true, Ordering::Release);
                gateway.converge.notify_one();
            }
        });
    }

    /// The same, and L's answer counts: for bound leases. Gives the seconds that L gave.
    pub async fn renew_bound(&self, id: i64) -> Result<Duration, BackendError> {
        self.upstream.keep_alive(id).await.map(|r| r.ttl)
    }

    /// The lease holds general keys in L from now on.
    pub fn bind(&self, id: i64) {
        self.entry(id).bound.store(true, Ordering::Release);
    }

    /// Whether the lease holds general keys in L.
    pub fn is_bound(&self, id: i64) -> bool {
        self.known.get(&id).is_some_and(|l| l.bound.load(Ordering::Acquire))
    }

    /// Number of leases that hold general keys in L.
    pub fn bound(&self) -> usize {
        self.known.iter().filter(|l| l.bound.load(Ordering::Acquire)).count()
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
