//! What the process sees of its registry.

use std::sync::Arc;

use causeway_registry::{
    CatchUp, Delta, LeaseId, LeaseInfo, Record, RecordBody, RecordKey, RegisterError, Renewed,
    Revision, ServiceInfo, Stamp, Summary,
};
use thiserror::Error;
use tokio::sync::broadcast;

/// Why a registry did not do what it was asked. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The caller must open the lease first; its owner's time ran out, or it never was.
    #[error("the lease {0} is unknown or over")]
    UnknownLease(LeaseId),
    /// The registry will not do it, now or later; the text says why.
    #[error("refused: {0}")]
    Refused(String),
    /// The registry cannot do it at present; the text says why. Worth another try.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

impl From<RegisterError> for AccessError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::UnknownLease(lease) => AccessError::UnknownLease(lease),
        }
    }
}

/// A registry of this process. The calls take a lock for microseconds and never wait for I/O, so they
/// are not async. Time is the implementation's.
///
/// What each call does is said at the method of the same name of [`causeway_registry::Node`].
pub trait RegistryAccess: Send + Sync + 'static {
    /// Makes a lease, or gives an open one a new timeout and start.
    fn open_lease(&self, id: LeaseId, ttl_ms: u64) -> Result<(), AccessError>;
    /// The owner was heard from.
    fn renew(&self, id: LeaseId) -> Renewed;
    /// The owner ended its lease: its records go as one change. Returns them.
    fn close_lease(&self, id: LeaseId) -> Result<Vec<Record>, AccessError>;
    /// The lease, if it is known.
    fn lease(&self, id: LeaseId) -> Option<LeaseInfo>;
    /// Milliseconds until the lease runs out.
    fn ttl_left(&self, id: LeaseId) -> Option<u64>;
    /// Registers, or renews a registration.
    fn register(
        &self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
    ) -> Result<Stamp, AccessError>;
    /// The owner takes the record away.
    fn deregister(&self, key: &RecordKey) -> Result<Option<Record>, AccessError>;
    /// Takes over a clock value that a client brings from another member.
    fn observe_clock(&self, hlc: u64) -> bool;
    /// The record of a key.
    fn get(&self, key: &RecordKey) -> Option<Record>;
    /// The registrations of a service's instances.
    fn by_service(&self, namespace: &str, service: &str) -> Vec<Record>;
    /// The records beside the instances of a service.
    fn companions(&self, namespace: &str, service: &str) -> Vec<Record>;
    /// The records that a lease owns.
    fn by_lease(&self, id: LeaseId) -> Vec<Record>;
    /// True until the member has caught up with the others: what it shows may lack instances, and an empty
    /// list means nothing.
    fn warming(&self) -> bool {
        false
    }
    /// All services that have records.
    fn services(&self) -> Vec<ServiceInfo>;
    /// What a subscriber of a service lacks who saw it at `since`.
    fn catch_up(&self, namespace: &str, service: &str, since: Option<Revision>) -> CatchUp;
    /// All records and the mark they are at. With [`RegistryAccess::subscribe`] called before, deltas
    /// up to the mark are in it already.
    fn snapshot(&self) -> (Revision, Vec<Record>);
    /// The registry in numbers, at constant cost.
    fn summary(&self) -> Summary;
    /// Every change from now on, in order, after it became visible. A receiver that is too slow is
    /// told how many it missed, and starts over from [`RegistryAccess::snapshot`]. The sender is dropped
    /// when the registry stops; watch streams end then.
    fn subscribe(&self) -> broadcast::Receiver<Arc<Delta>>;
}
