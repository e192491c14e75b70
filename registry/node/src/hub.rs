//! Wakes the watchers of a service when it changes, and encodes what they are told once for all.
//!
//! A watcher is a mark (what it saw last) and a bell per service, never a queue: however slow it
//! reads, it costs itself only, and is told the newest state when it comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use causeway_registry::api::{Instance, ServiceDelta, ServiceList};
use causeway_registry::{CatchUp, Delta, Revision, ServiceName};
use dashmap::DashMap;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OnceCell, broadcast, watch};

use crate::access::RegistryAccess;

/// What one watcher is sent, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) revision: Revision,
    pub(crate) bytes: Bytes,
}

/// The watched services of a registry.
pub(crate) struct Hub {
    access: Arc<dyn RegistryAccess>,
    slots: DashMap<ServiceName, Arc<Slot>>,
    ringing: OnceCell<()>,
    /// The registry tells of no more changes.
    ended: AtomicBool,
}

struct Slot {
    /// Counts up when the service may have changed.
    bell: watch::Sender<u64>,
    /// The frame made last: at which count, for which mark. Watchers of one service mostly stand at
    /// the same mark, so one is enough.
    last: Mutex<Option<Made>>,
}

struct Made {
    count: u64,
    since: Option<Revision>,
    /// None: there was nothing to say.
    frame: Option<Frame>,
}

/// One watcher's place. Dropping it gives up the service's slot when it was the last.
pub(crate) struct Seat {
    hub: Arc<Hub>,
    name: ServiceName,
    slot: Arc<Slot>,
    bell: watch::Receiver<u64>,
    since: Option<Revision>,
}

impl Hub {
    pub(crate) fn new(access: Arc<dyn RegistryAccess>) -> Arc<Self> {
        Arc::new(Hub {
            access,
            slots: DashMap::new(),
            ringing: OnceCell::new(),
            ended: AtomicBool::new(false),
        })
    }

    /// A place for a watcher that saw the service at `since`.
    pub(crate) async fn sit(self: &Arc<Self>, name: ServiceName, since: Option<Revision>) -> Seat {
        self.ringing
            .get_or_init(|| async {
                // Subscribed before the first watcher looks, so that no change is missed between.
                let deltas = self.access.subscribe();
                tokio::spawn(ring(deltas, Arc::downgrade(self)));
            })
            .await;
        // The bell is taken under the map's lock: see how a seat gives up its slot.
        let (slot, bell) = {
            let slot = self.slots.entry(name.clone()).or_insert_with(|| {
                Arc::new(Slot {
                    bell: watch::Sender::new(0),
                    last: Mutex::new(None),
                })
            });
            (slot.clone(), slot.bell.subscribe())
        };
        Seat {
            hub: self.clone(),
            name,
            slot,
            bell,
            since,
        }
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.slots.len()
    }
}

impl Seat {
    /// What this watcher lacks, encoded as an event; None when nothing. The watcher's mark moves on.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        let count = *self.bell.borrow_and_update();
        let mut last = self.slot.last.lock();
        let frame = match &*last {
            Some(made) if made.count == count && made.since == self.since => made.frame.clone(),
            _ => {
                let frame = self.hub.encode(&self.name, self.since);
                *last = Some(Made {
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

    /// Waits until the service may have changed since the last frame. False when the registry tells of
    /// no more changes.
    pub(crate) async fn changed(&mut self) -> bool {
        // The seat holds its slot, and with it the other end of the bell, so waiting cannot fail.
        let rung = self.hub.ended() || self.bell.changed().await.is_ok();
        rung && !self.hub.ended()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Under the map's lock nobody can sit down meanwhile; this seat's own bell is still there.
        self.hub
            .slots
            .remove_if(&self.name, |_, slot| slot.bell.receiver_count() <= 1);
    }
}

/// Rings the bell of each service that a change touches, until the registry or the hub is gone.
async fn ring(mut deltas: broadcast::Receiver<Arc<Delta>>, hub: Weak<Hub>) {
    loop {
        let received = deltas.recv().await;
        let Some(hub) = hub.upgrade() else { return };
        match received {
            Ok(delta) => {
                for change in &delta.changes {
                    if let Some(slot) = hub.slots.get(&change.service()) {
                        slot.bell.send_modify(|count| *count += 1);
                    }
                }
            }
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(
                    missed,
                    "watchers are told to look again: too many changes at once"
                );
                hub.ring_all();
            }
            Err(RecvError::Closed) => {
                hub.ended.store(true, Ordering::Release);
                hub.ring_all();
                return;
            }
        }
    }
}

impl Hub {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn ring_all(&self) {
        for slot in &self.slots {
            slot.bell.send_modify(|count| *count += 1);
        }
    }

    fn encode(&self, name: &ServiceName, since: Option<Revision>) -> Option<Frame> {
        match self.access.catch_up(&name.namespace, &name.service, since) {
            CatchUp::Current { .. } => None,
            CatchUp::Full { revision, records } => {
                let list = ServiceList {
                    namespace: name.namespace.clone(),
                    service: name.service.clone(),
                    revision: revision.to_string(),
                    instances: records.iter().map(Instance::from).collect(),
                };
                event("full", revision, &list)
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
                event("delta", revision, &delta)
            }
        }
    }
}

/// One event of a server-sent stream. JSON has no bare line break, so it is one data line.
fn event(kind: &str, revision: Revision, data: &impl Serialize) -> Option<Frame> {
    match serde_json::to_string(data) {
        Ok(data) => {
            let text = format!("event: {kind}\nid: {revision}\ndata: {data}\n\n");
            Some(Frame {
                revision,
                bytes: text.into(),
            })
        }
        Err(error) => {
            tracing::error!(%error, "an event could not be encoded");
            None
        }
    }
}
