//! A store in memory: the reference for the contract, and the store of tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::{
    Backend, BackendError, BackendName, Entry, ErrorKind, Event, EventStream, Expect, Health,
    Lease, LeaseId, Meta, Owner, Registration, Revision, Scope, ServerHealth, Snapshot, Subtree,
};

/// A store that any number of backends share, as gateways share an etcd.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    name: BackendName,
    state: Arc<Mutex<State>>,
}

impl MemoryStore {
    /// An empty store under the given name.
    pub fn new(name: BackendName) -> Self {
        Self {
            name,
            state: Arc::default(),
        }
    }

    /// A backend on this store.
    pub fn backend(&self) -> MemoryBackend {
        MemoryBackend {
            store: self.clone(),
        }
    }

    /// Cuts the store off from its backends, or joins it again. Leases run on meanwhile.
    pub fn set_reachable(&self, reachable: bool) {
        let mut state = self.state.lock();
        if state.cut_off != reachable {
            return;
        }
        state.cut_off = !reachable;
        let state = &mut *state;
        let gone = state.snapshots(&self.name, reachable);
        state.watchers.retain(|watcher| !gone.contains(&watcher.id));
    }

    fn revision(&self, mark: u128) -> Revision {
        Revision::new(self.name.clone(), mark)
    }

    fn unreachable(&self) -> BackendError {
        BackendError::not_applied(
            ErrorKind::Unreachable,
            format!("the store {} is cut off; join it again", self.name),
        )
    }

    /// Takes the lock for an operation that needs the store reachable.
    fn with<T>(
        &self,
        operate: impl FnOnce(&mut State) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let mut state = self.state.lock();
        if state.cut_off {
            return Err(self.unreachable());
        }
        operate(&mut state)
    }

    /// Waits for the lease's deadline, which renewals move, and then ends it.
    async fn expire(self, id: LeaseId, serial: u64) {
        loop {
            let deadline = {
                let mut state = self.state.lock();
                match state.leases.get(&id) {
                    Some(lease) if lease.serial == serial => {
                        if lease.deadline <= Instant::now() {
                            state.end_lease(&self.name, id);
                            return;
                        }
                        lease.deadline
                    }
                    _ => return,
                }
            };
            sleep_until(deadline).await;
        }
    }
}

/// One handle on a [`MemoryStore`].
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    store: MemoryStore,
}

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> &BackendName {
        &self.store.name
    }

    async fn open_lease(
        &self,
        hint: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<Lease, BackendError> {
        let (id, serial) = self.store.with(|state| {
            state.serial += 1;
            let id = match hint {
                Some(id) => id,
                None => LeaseId(0x1000_0000_0000 + i64::try_from(state.serial).unwrap_or(0)),
            };
            if state.leases.contains_key(&id) {
                return Err(BackendError::not_applied(
                    ErrorKind::Conflict,
                    format!(
                        "{}: lease {id} exists already; choose another id",
                        self.store.name
                    ),
                ));
            }
            let lease = LeaseState {
                serial: state.serial,
                ttl,
                deadline: Instant::now() + ttl,
                keys: BTreeSet::new(),
            };
            state.leases.insert(id, lease);
            Ok((id, state.serial))
        })?;
        tokio::spawn(self.store.clone().expire(id, serial));
        Ok(Lease { id, ttl })
    }

    async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.store.with(|state| match state.leases.get_mut(&lease) {
            Some(found) => {
                found.deadline = Instant::now() + found.ttl;
                Ok(found.ttl)
            }
            None => Err(BackendError::lease_gone(&self.store.name, lease)),
        })
    }

    async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        self.store.with(|state| {
            state.end_lease(&self.store.name, lease);
            Ok(())
        })
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
        self.store.with(|state| {
            if let Some(lease) = owner.lease()
                && !state.leases.contains_key(&lease)
            {
                return Err(BackendError::lease_gone(&self.store.name, lease));
            }
            let old = state.entries.get(&key);
            if !holds(&expect, old) {
                return Err(conflict(&self.store.name, &key, &expect, old));
            }
            let old_owner = old.map(|entry| entry.owner);
            state.detach(old_owner, &key);
            if let Some(found) = owner.lease().and_then(|lease| state.leases.get_mut(&lease)) {
                found.keys.insert(key.clone());
            }
            state.mark += 1;
            let revision = self.store.revision(state.mark);
            let entry = Entry {
                key: key.clone(),
                value,
                owner,
                revision: revision.clone(),
                meta: Meta::None,
            };
            state.entries.insert(key, entry.clone());
            state.tell(&entry.key, &Event::Put(entry.clone()));
            Ok(revision)
        })
    }

    async fn deregister(
        &self,
        key: &[u8],
        expect: Expect,
    ) -> Result<Option<Revision>, BackendError> {
        self.store.with(|state| {
            let Some(old) = state.entries.get(key) else {
                return Ok(None);
            };
            if !holds(&expect, Some(old)) {
                return Err(conflict(&self.store.name, key, &expect, Some(old)));
            }
            let (key, owner) = (old.key.clone(), old.owner);
            state.detach(Some(owner), &key);
            state.mark += 1;
            let revision = self.store.revision(state.mark);
            state.entries.remove(&key);
            state.tell(
                &key,
                &Event::Delete {
                    key: key.clone(),
                    revision: revision.clone(),
                },
            );
            Ok(Some(revision))
        })
    }

    async fn lookup(&self, key: &[u8]) -> Result<Option<Entry>, BackendError> {
        self.store.with(|state| Ok(state.entries.get(key).cloned()))
    }

    async fn discover(&self, service: &Subtree) -> Result<Snapshot, BackendError> {
        self.snapshot(&Scope::from(service.clone())).await
    }

    async fn snapshot(&self, scope: &Scope) -> Result<Snapshot, BackendError> {
        self.store.with(|state| {
            Ok(Snapshot {
                entries: state.matching(scope).cloned().collect(),
                revision: self.store.revision(state.mark),
            })
        })
    }

    fn watch(&self, scope: Scope) -> EventStream {
        let (events, receiver) = mpsc::unbounded_channel();
        let mut state = self.store.state.lock();
        state.serial += 1;
        let watcher = Watcher {
            id: state.serial,
            scope,
            events,
        };
        if state.cut_off {
            let reason = self.store.unreachable().to_string();
            let _ = watcher.events.send(Event::Lost { reason });
        } else {
            state.send_snapshot(&self.store.name, &watcher);
        }
        state.watchers.push(watcher);
        stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|event| (event, receiver))
        })
        .boxed()
    }

    async fn health(&self) -> Health {
        let cut_off = self.store.state.lock().cut_off;
        let address = format!("memory:{}", self.store.name);
        Health::of_servers(vec![ServerHealth {
            detail: if cut_off {
                format!("{address} is cut off")
            } else {
                format!("{address} answers")
            },
            address,
            answering: !cut_off,
            latency: (!cut_off).then_some(Duration::ZERO),
        }])
    }
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Bytes, Entry>,
    leases: BTreeMap<LeaseId, LeaseState>,
    watchers: Vec<Watcher>,
    mark: u128,
    /// Names leases and watchers; never used twice.
    serial: u64,
    cut_off: bool,
}

#[derive(Debug)]
struct LeaseState {
    /// Tells a lease from an earlier one under the same id.
    serial: u64,
    ttl: Duration,
    deadline: Instant,
    keys: BTreeSet<Bytes>,
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    scope: Scope,
    /// Unbounded: events are produced under the lock, where nothing may wait.
    events: mpsc::UnboundedSender<Event>,
}

impl State {
    fn matching<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a Entry> {
        self.entries
            .values()
            .filter(|entry| scope.contains(&entry.key))
    }

    /// Sends a change to whoever watches the key; watchers that hung up are forgotten. While the
    /// store is cut off nobody hears of it: the next snapshot will tell.
    fn tell(&mut self, key: &[u8], event: &Event) {
        if self.cut_off {
            return;
        }
        self.watchers.retain(|watcher| {
            !watcher.scope.contains(key) || watcher.events.send(event.clone()).is_ok()
        });
    }

    fn send_snapshot(&self, name: &BackendName, watcher: &Watcher) -> bool {
        let puts = self.matching(&watcher.scope).cloned().map(Event::Put);
        let done = Event::SnapshotDone {
            revision: Revision::new(name.clone(), self.mark),
        };
        std::iter::once(Event::SnapshotStart)
            .chain(puts)
            .chain(std::iter::once(done))
            .all(|event| watcher.events.send(event).is_ok())
    }

    /// Tells every watcher that the store went or came back; gives those that hung up.
    fn snapshots(&self, name: &BackendName, reachable: bool) -> BTreeSet<u64> {
        let reason = format!("the store {name} is cut off");
        self.watchers
            .iter()
            .filter(|watcher| {
                if reachable {
                    !self.send_snapshot(name, watcher)
                } else {
                    watcher
                        .events
                        .send(Event::Lost {
                            reason: reason.clone(),
                        })
                        .is_err()
                }
            })
            .map(|watcher| watcher.id)
            .collect()
    }

    fn detach(&mut self, owner: Option<Owner>, key: &Bytes) {
        let lease = owner.and_then(Owner::lease);
        if let Some(found) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            found.keys.remove(key);
        }
    }

    fn end_lease(&mut self, name: &BackendName, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        if lease.keys.is_empty() {
            return;
        }
        self.mark += 1;
        let revision = Revision::new(name.clone(), self.mark);
        for key in lease.keys {
            self.entries.remove(&key);
            self.tell(
                &key,
                &Event::Delete {
                    key: key.clone(),
                    revision: revision.clone(),
                },
            );
        }
    }
}

fn holds(expect: &Expect, entry: Option<&Entry>) -> bool {
    match (expect, entry) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
        (Expect::Revision(revision), Some(entry)) => entry.revision == *revision,
    }
}

fn conflict(
    name: &BackendName,
    key: &[u8],
    expect: &Expect,
    found: Option<&Entry>,
) -> BackendError {
    BackendError::conflict(name, key, expect, found.map(|entry| &entry.revision))
}
