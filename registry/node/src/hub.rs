//! Wakes the subscribers of a service when it changes, and encodes what they are told once for all.
//!
//! A subscriber is a mark (what it saw last, and whether there may be more), never a queue: however slow it
//! reads, it costs itself only, and is told the newest state when it comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use causeway_registry::api::{Instance, ServiceDelta, ServiceList};
use causeway_registry::{CatchUp, Delta, LeaseKind, Revision, ServiceName};
use causeway_registry_proto::codec::SharedUpdate;
use causeway_registry_proto::v1;
use dashmap::DashMap;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::access::RegistryAccess;
use crate::debounce::Debounce;

/// How often it is looked whether the member still warms up, while it does.
const WARMING_LOOK: Duration = Duration::from_millis(500);

/// What subscribers at one mark are sent: encoded when the first asks, for each kind of stream.
pub(crate) struct Frame {
    pub(crate) revision: Revision,
    name: ServiceName,
    content: CatchUp,
    warming: bool,
    event: OnceLock<Bytes>,
    update: OnceLock<SharedUpdate>,
}

impl Frame {
    /// As a server-sent event.
    pub(crate) fn event(&self) -> Bytes {
        self.event
            .get_or_init(|| encode_event(&self.name, &self.content, self.warming))
            .clone()
    }

    /// As a message of the gRPC API.
    pub(crate) fn update(&self) -> SharedUpdate {
        self.update
            .get_or_init(|| {
                // A frame is made only where there is something to say.
                let update = v1::ServiceUpdate::new(&self.name, &self.content, self.warming);
                SharedUpdate::new(update.unwrap_or_default())
            })
            .clone()
    }
}

/// Who waits for a service. Called with no lock of the hub held but the service's own; must not wait.
pub(crate) trait Subscriber: Send + Sync {
    /// The service of this seat may have changed.
    fn ring(&self, seat: u32);
}

/// The watched services of a registry.
pub(crate) struct Hub {
    access: Arc<dyn RegistryAccess>,
    slots: DashMap<ServiceName, Arc<Slot>>,
    /// The streams that hold native leases, by id: marked when a record of theirs changes.
    owners: DashMap<i64, Arc<AtomicBool>>,
    ringing: OnceLock<()>,
    /// The registry tells of no more changes.
    ended: watch::Sender<bool>,
    /// Zero of the debounces' time.
    start: Instant,
}

#[derive(Default)]
struct Slot {
    /// Counts the changes.
    count: AtomicU64,
    seats: Mutex<BTreeMap<u64, Arc<Mark>>>,
    next_seat: AtomicU64,
    debounce: Mutex<Debounce>,
    /// The frames made last. Subscribers of one service mostly stand at the same mark, so one for those is
    /// enough, and one for those who have nothing yet.
    made: Mutex<[Option<Made>; 2]>,
}

struct Made {
    count: u64,
    since: Option<Revision>,
    /// None: there was nothing to say.
    frame: Option<Arc<Frame>>,
}

struct Mark {
    dirty: AtomicBool,
    seat: u32,
    whose: Weak<dyn Subscriber>,
}

impl Mark {
    fn ring(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel)
            && let Some(subscriber) = self.whose.upgrade()
        {
            subscriber.ring(self.seat);
        }
    }
}

/// One subscriber's place. Dropping it gives up the service's slot when it was the last.
pub(crate) struct Seat {
    hub: Arc<Hub>,
    name: ServiceName,
    slot: Arc<Slot>,
    place: u64,
    mark: Arc<Mark>,
    since: Option<Revision>,
}

impl Hub {
    pub(crate) fn new(access: Arc<dyn RegistryAccess>) -> Arc<Self> {
        Arc::new(Hub {
            access,
            slots: DashMap::new(),
            owners: DashMap::new(),
            ringing: OnceLock::new(),
            ended: watch::Sender::new(false),
            start: Instant::now(),
        })
    }

    /// Follows the registry from now on. To be called in a runtime, before anything is looked at.
    pub(crate) fn start(self: &Arc<Self>) {
        self.ringing.get_or_init(|| {
            // Subscribed before the first subscriber looks, so that no change is missed between.
            let deltas = self.access.subscribe();
            tokio::spawn(follow(deltas, Arc::downgrade(self)));
        });
    }

    /// A place for a subscriber that saw the service at `since`; `whose` is rung with `seat`. It begins
    /// without having been rung.
    pub(crate) fn sit(
        self: &Arc<Self>,
        name: ServiceName,
        since: Option<Revision>,
        whose: Weak<dyn Subscriber>,
        seat: u32,
    ) -> Seat {
        self.start();
        let mark = Arc::new(Mark {
            dirty: AtomicBool::new(false),
            seat,
            whose,
        });
        // Under the map's lock: see how a seat gives up its slot.
        let (slot, place) = {
            let slot = self.slots.entry(name.clone()).or_default();
            let place = slot.next_seat.fetch_add(1, Ordering::Relaxed);
            slot.seats.lock().insert(place, mark.clone());
            (slot.clone(), place)
        };
        Seat {
            hub: self.clone(),
            name,
            slot,
            place,
            mark,
            since,
        }
    }

    /// `mark` is set from now on whenever a record of the native lease `id` changes, by whomever.
    pub(crate) fn own(&self, id: i64, mark: &Arc<AtomicBool>) {
        self.owners.insert(id, mark.clone());
    }

    /// The end of [`Hub::own`], unless another mark took its place.
    pub(crate) fn disown(&self, id: i64, mark: &Arc<AtomicBool>) {
        self.owners.remove_if(&id, |_, own| Arc::ptr_eq(own, mark));
    }

    /// The registry tells of no more changes.
    pub(crate) fn ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until [`Hub::ended`].
    pub(crate) async fn end(&self) {
        // The hub holds the sender, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn ring_all(&self) {
        for slot in &self.slots {
            slot.count.fetch_add(1, Ordering::AcqRel);
            slot.ring();
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.slots.len()
    }
}

impl Slot {
    fn ring(&self) {
        for mark in self.seats.lock().values() {
            mark.ring();
        }
    }
}

impl Seat {
    /// What this subscriber lacks; None when nothing. Its mark moves on.
    pub(crate) fn next_frame(&mut self) -> Option<Arc<Frame>> {
        // Before looking: a change from here on rings again.
        self.mark.dirty.store(false, Ordering::Release);
        let count = self.slot.count.load(Ordering::Acquire);
        let mut made = self.slot.made.lock();
        let kept = &mut made[usize::from(self.since.is_some())];
        let frame = match kept {
            Some(made) if made.count == count && made.since == self.since => made.frame.clone(),
            _ => {
                let frame = self.hub.look(&self.name, self.since);
                *kept = Some(Made {
                    count,
                    since: self.since,
                    frame: frame.clone(),
                });
                frame
            }
        }?;
        self.since = Some(frame.revision);
        Some(frame)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.slot.seats.lock().remove(&self.place);
        // Under the map's lock nobody can sit down meanwhile.
        self.hub
            .slots
            .remove_if(&self.name, |_, slot| slot.seats.lock().is_empty());
    }
}

impl Hub {
    fn look(&self, name: &ServiceName, since: Option<Revision>) -> Option<Arc<Frame>> {
        // Before the list: one that is whole must not be called warming, nor the other way round.
        let warming = self.access.warming();
        let content = self.access.catch_up(&name.namespace, &name.service, since);
        let revision = match &content {
            CatchUp::Current { .. } => return None,
            // A member that has not caught up knows of nothing that is gone: its silence is no news.
            CatchUp::Full { records, .. } if warming && records.is_empty() => return None,
            CatchUp::Full { revision, .. } | CatchUp::Delta { revision, .. } => *revision,
        };
        Some(Arc::new(Frame {
            revision,
            name: name.clone(),
            content,
            warming,
            event: OnceLock::new(),
            update: OnceLock::new(),
        }))
    }

    /// Marks whom a change touches. Returns the services whose subscribers are to be told, and when.
    fn note(&self, delta: &Delta) -> Vec<(u64, ServiceName)> {
        let mut due = Vec::new();
        for change in &delta.changes {
            for record in [Some(&change.record), change.previous.as_ref()] {
                if let Some(lease) = record.and_then(|record| record.lease)
                    && lease.kind == LeaseKind::Native
                    && let Some(mark) = self.owners.get(&lease.id)
                {
                    mark.store(true, Ordering::Release);
                }
            }
            let mut names = BTreeSet::from([change.service()]);
            names.extend(change.previous.as_ref().map(|record| record.service()));
            for name in names {
                if let Some(slot) = self.slots.get(&name) {
                    slot.count.fetch_add(1, Ordering::AcqRel);
                    let at = slot.debounce.lock().changed(self.now());
                    due.extend(at.map(|at| (at, name)));
                }
            }
        }
        due
    }

    fn tell(&self, name: &ServiceName) {
        if let Some(slot) = self.slots.get(name) {
            slot.debounce.lock().told(self.now());
            slot.ring();
        }
    }
}

/// Rings for each service that a change touches, until the registry or the hub is gone.
async fn follow(mut deltas: broadcast::Receiver<Arc<Delta>>, hub: Weak<Hub>) {
    let mut due: BTreeSet<(u64, ServiceName)> = BTreeSet::new();
    let mut warming = true;
    let mut look = tokio::time::interval(WARMING_LOOK);
    loop {
        let next = due.first().map(|(at, _)| *at);
        let start = match hub.upgrade() {
            Some(hub) => hub.start,
            None => return,
        };
        let ring = async {
            match next {
                Some(at) => tokio::time::sleep_until(start + Duration::from_millis(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ring => {
                let Some(hub) = hub.upgrade() else { return };
                let now = hub.now();
                while due.first().is_some_and(|(at, _)| *at <= now)
                    && let Some((_, name)) = due.pop_first()
                {
                    hub.tell(&name);
                }
            }
            received = deltas.recv() => {
                let Some(hub) = hub.upgrade() else { return };
                match received {
                    Ok(delta) => due.extend(hub.note(&delta)),
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "subscribers look again: too many changes at once");
                        for owner in &hub.owners {
                            owner.store(true, Ordering::Release);
                        }
                        hub.ring_all();
                    }
                    Err(RecvError::Closed) => {
                        hub.ended.send_replace(true);
                        hub.ring_all();
                        return;
                    }
                }
            }
            // What was held back while the member warmed up is told when it has.
            _ = look.tick(), if warming => {
                let Some(hub) = hub.upgrade() else { return };
                warming = hub.access.warming();
                if !warming {
                    hub.ring_all();
                }
            }
        }
    }
}

fn encode_event(name: &ServiceName, content: &CatchUp, warming: bool) -> Bytes {
    match content {
        CatchUp::Current { .. } => Bytes::new(),
        CatchUp::Full { revision, records } => {
            let list = ServiceList {
                namespace: name.namespace.clone(),
                service: name.service.clone(),
                revision: revision.to_string(),
                instances: records.iter().map(Instance::from).collect(),
                warming,
            };
            event("full", *revision, &list)
        }
        CatchUp::Delta {
            revision,
            changed,
            removed,
        } => {
            let delta = ServiceDelta {
                revision: revision.to_string(),
                changed: changed.iter().map(Instance::from).collect(),
                removed: removed.iter().map(Into::into).collect(),
            };
            event("delta", *revision, &delta)
        }
    }
}

/// One event of a server-sent stream. JSON has no bare line break, so it is one data line.
fn event(kind: &str, revision: Revision, data: &impl Serialize) -> Bytes {
    match serde_json::to_string(data) {
        Ok(data) => format!("event: {kind}\nid: {revision}\ndata: {data}\n\n").into(),
        Err(error) => {
            tracing::error!(%error, "an event could not be encoded");
            Bytes::new()
        }
    }
}
