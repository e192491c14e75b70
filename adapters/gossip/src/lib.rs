//! The gossip registry behind Causeway, as a store of entries like the others.
//!
//! The registry lives in this process, so a call is a lock and no network. What it keeps beside
//! key and value (namespace, service, instance) comes from a [`Describe`] function: the gateway
//! passes its layouts, and [`by_path`] serves where there are none.

mod error;
mod names;
mod watch;

pub use names::{Describe, by_path};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use causeway_backend::{
    Backend, BackendError, BackendName, Entry, ErrorKind, Event, EventStream, Expect, Health,
    Lease, LeaseId, Meta, Owner, Registration, RegistryMeta, Revision, Scope, ServerHealth,
    Snapshot, Subtree,
};
use causeway_registry::{LeaseKind, LeaseState, Record, RecordKey, Stamp, StoreKind};
use causeway_registry_node::RegistryAccess;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Events that a slow reader may lag behind before changes are no longer read for it.
const EVENTS_IN_FLIGHT: usize = 1024;

/// The part of a registry that holds one store's keys. Clones share their conditional writes: an
/// [`Expect`] holds between all of them, but not against others who write to the registry
/// directly at the same instant.
#[derive(Clone)]
pub struct GossipBackend {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) name: BackendName,
    pub(crate) access: Arc<dyn RegistryAccess>,
    store: StoreKind,
    describe: Describe,
    /// Held between looking and writing.
    writing: Mutex<()>,
}

impl GossipBackend {
    /// A backend for the keys of `store`. Leases are the registry's for that protocol: sessions,
    /// etcd leases, or native ones.
    pub fn new(
        name: BackendName,
        access: Arc<dyn RegistryAccess>,
        store: StoreKind,
        describe: Describe,
    ) -> Self {
        let writing = Mutex::new(());
        Self {
            inner: Arc::new(Inner {
                name,
                access,
                store,
                describe,
                writing,
            }),
        }
    }

    fn expect(&self, key: &RecordKey, expect: &Expect) -> Result<Option<Record>, BackendError> {
        let found = self.inner.access.get(key);
        let holds = match (expect, &found) {
            (Expect::Any, _) | (Expect::Absent, None) => true,
            (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
            (Expect::Revision(revision), Some(record)) => {
                *revision == self.inner.revision(record.stamp)
            }
        };
        if holds {
            return Ok(found);
        }
        let standing = found.map(|record| self.inner.revision(record.stamp));
        let store = format!("registry {}", self.inner.name);
        Err(BackendError::conflict(
            store,
            &key.key,
            expect,
            standing.as_ref(),
        ))
    }

    fn free_lease_id(&self) -> LeaseId {
        loop {
            // Positive and not 0, as etcd's and ZooKeeper's own are.
            let id = LeaseId(rand::random_range(1..=i64::MAX));
            if !self.is_taken(id) {
                return id;
            }
        }
    }

    fn is_taken(&self, lease: LeaseId) -> bool {
        let known = self.inner.access.lease(self.inner.lease_id(lease));
        known.is_some_and(|lease| lease.state != LeaseState::Over)
    }
}

#[async_trait]
impl Backend for GossipBackend {
    fn name(&self) -> &BackendName {
        &self.inner.name
    }

    async fn open_lease(
        &self,
        hint: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<Lease, BackendError> {
        let _writing = self.inner.writing.lock();
        let id = match hint {
            Some(id) if self.is_taken(id) => {
                let name = &self.inner.name;
                let message =
                    format!("registry {name}: lease {id} exists already; choose another id");
                return Err(BackendError::not_applied(ErrorKind::Conflict, message));
            }
            Some(id) => id,
            None => self.free_lease_id(),
        };
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let opened = self
            .inner
            .access
            .open_lease(self.inner.lease_id(id), ttl_ms);
        opened.map_err(|error| self.inner.error(&error))?;
        Ok(Lease { id, ttl })
    }

    async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        let id = self.inner.lease_id(lease);
        let gone = || BackendError::lease_gone(format!("registry {}", self.inner.name), lease);
        if !self.inner.access.renew(id).known {
            return Err(gone());
        }
        let info = self.inner.access.lease(id).ok_or_else(gone)?;
        Ok(Duration::from_millis(info.ttl_ms))
    }

    async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        let closed = self.inner.access.close_lease(self.inner.lease_id(lease));
        closed.map(|_| ()).map_err(|error| self.inner.error(&error))
    }

    async fn register(&self, registration: Registration) -> Result<Revision, BackendError> {
        let Registration {
            key,
            value,
            owner,
            expect,
        } = registration;
        if key.is_empty() {
            return Err(BackendError::not_applied(
                ErrorKind::InvalidKey,
                "the key is empty",
            ));
        }
        let body = (self.inner.describe)(&key, &value, owner);
        let key = self.inner.record_key(key);
        let lease = owner.lease().map(|lease| self.inner.lease_id(lease));
        let _writing = self.inner.writing.lock();
        self.expect(&key, &expect)?;
        let stamp = self.inner.access.register(key, body, lease);
        stamp
            .map(|stamp| self.inner.revision(stamp))
            .map_err(|error| self.inner.error(&error))
    }

    async fn deregister(
        &self,
        key: &[u8],
        expect: Expect,
    ) -> Result<Option<Revision>, BackendError> {
        let key = self.inner.record_key(Bytes::copy_from_slice(key));
        let _writing = self.inner.writing.lock();
        if self.inner.access.get(&key).is_none() {
            return Ok(None);
        }
        self.expect(&key, &expect)?;
        let removed = self.inner.access.deregister(&key);
        let removed = removed.map_err(|error| self.inner.error(&error))?;
        Ok(removed.map(|record| self.inner.removal(record.stamp)))
    }

    async fn lookup(&self, key: &[u8]) -> Result<Option<Entry>, BackendError> {
        let key = self.inner.record_key(Bytes::copy_from_slice(key));
        Ok(self
            .inner
            .access
            .get(&key)
            .map(|record| self.inner.entry(&record)))
    }

    async fn discover(&self, service: &Subtree) -> Result<Snapshot, BackendError> {
        self.snapshot(&Scope::from(service.clone())).await
    }

    async fn snapshot(&self, scope: &Scope) -> Result<Snapshot, BackendError> {
        let (_, records) = self.inner.access.snapshot();
        Ok(self.inner.snapshot(scope, &records))
    }

    fn watch(&self, scope: Scope) -> EventStream {
        let (events, receiver) = mpsc::channel::<Event>(EVENTS_IN_FLIGHT);
        tokio::spawn(watch::follow(self.inner.clone(), scope, events));
        ReceiverStream::new(receiver).boxed()
    }

    async fn health(&self) -> Health {
        let started = tokio::time::Instant::now();
        let summary = self.inner.access.summary();
        Health::of_servers(vec![ServerHealth {
            address: format!("member {}", summary.origin.member),
            answering: true,
            latency: Some(started.elapsed()),
            detail: format!(
                "registry member {} holds {} records of {} services",
                summary.origin.member, summary.records, summary.services
            ),
        }])
    }
}

impl Inner {
    /// Whether a record is among this backend's entries.
    pub(crate) fn holds(&self, scope: &Scope, key: &RecordKey) -> bool {
        key.store == self.store && scope.contains(&key.key)
    }

    /// The entries of the scope among all records, which come in the order of keys.
    pub(crate) fn snapshot(&self, scope: &Scope, records: &[Record]) -> Snapshot {
        let highest = records
            .iter()
            .map(|record| record.stamp)
            .max()
            .unwrap_or_default();
        let within = records
            .iter()
            .filter(|record| self.holds(scope, &record.key));
        Snapshot {
            entries: within.map(|record| self.entry(record)).collect(),
            revision: self.removal(highest),
        }
    }

    pub(crate) fn entry(&self, record: &Record) -> Entry {
        let owner = match record.lease {
            Some(lease) => Owner::Lease(LeaseId(lease.id)),
            None => Owner::Persistent,
        };
        Entry {
            key: record.key.key.clone(),
            value: record.body.value.clone(),
            owner,
            revision: self.revision(record.stamp),
            meta: Meta::Registry(RegistryMeta {
                clock: record.stamp.hlc,
                member: record.stamp.member,
            }),
        }
    }

    /// The mark of a write: its stamp.
    pub(crate) fn revision(&self, stamp: Stamp) -> Revision {
        let mark = (u128::from(stamp.hlc) << 17) | (u128::from(stamp.member) << 1);
        Revision::new(self.name.clone(), mark)
    }

    /// A mark after the write with this stamp and before any later one: a removal's own stamp is
    /// not among what the registry tells.
    pub(crate) fn removal(&self, stamp: Stamp) -> Revision {
        Revision::new(self.name.clone(), self.revision(stamp).mark() | 1)
    }

    fn record_key(&self, key: Bytes) -> RecordKey {
        RecordKey::new(self.store, key)
    }

    fn lease_id(&self, lease: LeaseId) -> causeway_registry::LeaseId {
        let kind = match self.store {
            StoreKind::Zookeeper => LeaseKind::Session,
            StoreKind::Etcd => LeaseKind::Lease,
            StoreKind::Native => LeaseKind::Native,
        };
        causeway_registry::LeaseId { kind, id: lease.0 }
    }
}
