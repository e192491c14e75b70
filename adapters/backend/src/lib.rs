//! What every store behind Causeway has in common, in words that belong to none of them.
//!
//! A [`Backend`] keeps *entries*: raw key and raw value, byte for byte as their reader expects
//! them. An *owned* entry lives as long as its *lease* (an ephemeral znode is a write under its
//! session's lease); a *persistent* one (companions: configuration, mappings, persistent
//! instances) lives until it is removed. A *revision* is an ordering mark that carries its
//! backend's name, so that marks of two backends never compare.
//!
//! What the bytes mean (service, instance, endpoint) is the layouts' business: to a backend a
//! service is the [`Subtree`] in which its layout keeps it.

mod entry;
mod error;
mod event;
mod health;
mod keep_alive;
mod lease;
pub mod memory;
mod operation;
mod revision;
mod scope;

#[cfg(feature = "testing")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod testing;

pub use entry::{Acl, Entry, EtcdMeta, Meta, RegistryMeta, Snapshot, ZookeeperMeta};
pub use error::{BackendError, Certainty, ErrorKind};
pub use event::{Event, EventStream};
pub use health::{Health, HealthState, ServerHealth};
pub use keep_alive::{KeepAlive, keep_alive};
pub use lease::{Lease, LeaseId};
pub use operation::{Expect, Owner, Registration};
pub use revision::{BackendName, Revision};
pub use scope::{Scope, Subtree};

use std::time::Duration;

use async_trait::async_trait;

/// A store of entries: etcd, ZooKeeper, the gossip registry, or memory.
///
/// Every implementation passes `contract::run`. Methods are bounded in time by the
/// implementation's own settings and may be called from any number of tasks at once. A handle
/// starts usable while its store is away: calls fail with a retryable [`BackendError`], the watch
/// says [`Event::Lost`] and goes on by itself, [`health`](Backend::health) says what is wrong.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The name that marks this backend's revisions; equal on every gateway.
    fn name(&self) -> &BackendName;

    /// Opens a lease that ends `ttl` after its last renewal unless closed before.
    ///
    /// `hint` asks for an id; a store that chooses its own ids (ZooKeeper) ignores it, one that
    /// honours it fails with [`ErrorKind::Conflict`] when the id is taken. The store may change
    /// the ttl; what holds is in the answer. An open lease must be renewed, see [`keep_alive`].
    async fn open_lease(&self, hint: Option<LeaseId>, ttl: Duration)
    -> Result<Lease, BackendError>;

    /// Renews a lease and so everything registered under it; gives the ttl that starts now.
    ///
    /// Fails with [`ErrorKind::LeaseGone`] when the lease has ended: its entries are gone then.
    async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError>;

    /// Ends a lease at once and removes its entries. A lease that is already gone is no error.
    async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError>;

    /// Writes an entry, with whatever parents the store needs for it; gives its new revision.
    ///
    /// Writing under another owner than before moves the entry to the new owner, whose end alone
    /// then removes it. An [`Expect`] that does not hold fails with [`ErrorKind::Conflict`] and
    /// changes nothing.
    async fn register(&self, registration: Registration) -> Result<Revision, BackendError>;

    /// Removes an entry; `None` when there was none. Implicit parents stay.
    ///
    /// With [`Expect::Revision`] only that very revision is removed, else
    /// [`ErrorKind::Conflict`]; an absent entry is then `None` as well, since what was to go is
    /// gone.
    async fn deregister(
        &self,
        key: &[u8],
        expect: Expect,
    ) -> Result<Option<Revision>, BackendError>;

    /// One entry as it is now; what to ask after an outcome of [`Certainty::Unknown`].
    async fn lookup(&self, key: &[u8]) -> Result<Option<Entry>, BackendError>;

    /// Every entry of one service, in the order of keys.
    async fn discover(&self, service: &Subtree) -> Result<Snapshot, BackendError>;

    /// Every entry of the scope, in the order of keys, each once. Whole, or an error: never a
    /// part, and never empty because the store could not be asked.
    async fn snapshot(&self, scope: &Scope) -> Result<Snapshot, BackendError>;

    /// Follows the scope for as long as the stream is held: first a whole snapshot, then every
    /// change after it in order. See [`Event`] for what a consumer may rely on.
    fn watch(&self, scope: Scope) -> EventStream;

    /// Asks every server now, within a few seconds at most.
    async fn health(&self) -> Health;
}
