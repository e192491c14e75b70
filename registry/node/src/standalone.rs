//! A registry that lives alone in its process: no gateway, no protection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use causeway_registry::{
    CatchUp, Delta, LeaseId, LeaseInfo, Node, NodeConfig, Output, Record, RecordBody, RecordKey,
    Renewed, Revision, ServiceInfo, Stamp, Summary,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use crate::access::{AccessError, RegistryAccess};

/// How many changes a subscriber may lag behind before it must start over.
const BACKLOG: usize = 4_096;

/// A [`Node`] with a lock, a clock and a timer task. Its judgement is the simplest: what expired is
/// removed at once. A gateway judges by plausibility and has its own [`RegistryAccess`].
pub struct Registry {
    state: Mutex<State>,
    /// Zero of the node's time.
    start: Instant,
    /// The timer task must look again: something came due earlier than it sleeps.
    earlier: Arc<Notify>,
}

struct State {
    node: Node,
    /// None: stopped.
    deltas: Option<broadcast::Sender<Arc<Delta>>>,
    /// Until when the timer task sleeps.
    sleeps_until: u64,
}

impl Registry {
    /// An empty registry whose timer runs as a task of the present tokio runtime until the last
    /// handle is dropped.
    pub fn start(config: NodeConfig) -> Arc<Self> {
        let earlier = Arc::new(Notify::new());
        let registry = Arc::new(Registry {
            state: Mutex::new(State {
                node: Node::new(config),
                deltas: Some(broadcast::Sender::new(BACKLOG)),
                sleeps_until: 0,
            }),
            start: Instant::now(),
            earlier: earlier.clone(),
        });
        tokio::spawn(run_timer(Arc::downgrade(&registry), earlier));
        registry
    }

    /// Tells of no more changes: watch streams end, so that their connections can be closed in order.
    /// Calls are still answered.
    pub fn stop(&self) {
        self.state.lock().deltas = None;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs one input, judges what expired by it, and publishes what changed before the lock is
    /// released, so that subscribers see changes in their order.
    fn with<T>(&self, input: impl FnOnce(&mut Node, u64) -> T) -> T {
        let now = self.now();
        let mut state = self.state.lock();
        let result = input(&mut state.node, now);
        while let Some(output) = state.node.poll_output() {
            match output {
                Output::LeaseExpired(id) => remove_all(&mut state.node, id, now),
                Output::LeaseSilent(_) | Output::LeaseReturned(_) => {}
                Output::Delta(delta) => {
                    if let Some(deltas) = &state.deltas {
                        // An error means that nobody listens.
                        let _ = deltas.send(Arc::new(delta));
                    }
                }
            }
        }
        let sleeps_until = state.sleeps_until;
        if state
            .node
            .next_timeout()
            .is_some_and(|next| next < sleeps_until)
        {
            self.earlier.notify_one();
        }
        result
    }

    fn read<T>(&self, read: impl FnOnce(&Node) -> T) -> T {
        read(&self.state.lock().node)
    }
}

fn remove_all(node: &mut Node, id: LeaseId, now: u64) {
    let judged: Vec<(RecordKey, Stamp)> = node
        .by_lease(id)
        .map(|record| (record.key.clone(), record.stamp))
        .collect();
    node.remove_all_expired(&judged, now);
    // A lease without records is reported, too; nothing else would end it.
    if node.lease(id).is_some_and(|lease| lease.records == 0) {
        node.close_lease(id, now);
    }
}

/// Holds the registry only while it works, so that the registry ends when its users are gone.
async fn run_timer(registry: Weak<Registry>, earlier: Arc<Notify>) {
    loop {
        let wait = {
            let Some(registry) = registry.upgrade() else {
                return;
            };
            registry.with(|node, now| node.handle_timeout(now));
            let mut state = registry.state.lock();
            let next = state.node.next_timeout().unwrap_or(u64::MAX);
            state.sleeps_until = next;
            // At least once a second, to notice that the registry is gone.
            next.saturating_sub(registry.now()).clamp(1, 1_000)
        };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            () = earlier.notified() => {}
        }
    }
}

impl RegistryAccess for Registry {
    fn open_lease(&self, id: LeaseId, ttl_ms: u64) -> Result<(), AccessError> {
        self.with(|node, now| node.open_lease(id, ttl_ms, now));
        Ok(())
    }

    fn renew(&self, id: LeaseId) -> Renewed {
        self.with(|node, now| node.renew(id, now))
    }

    fn close_lease(&self, id: LeaseId) -> Result<Vec<Record>, AccessError> {
        Ok(self.with(|node, now| node.close_lease(id, now)))
    }

    fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.read(|node| node.lease(id))
    }

    fn ttl_left(&self, id: LeaseId) -> Option<u64> {
        let now = self.now();
        self.read(|node| node.ttl_left(id, now))
    }

    fn register(
        &self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
    ) -> Result<Stamp, AccessError> {
        Ok(self.with(|node, now| node.register(key, body, lease, now))?)
    }

    fn deregister(&self, key: &RecordKey) -> Result<Option<Record>, AccessError> {
        Ok(self.with(|node, now| node.deregister(key, now)))
    }

    fn observe_clock(&self, hlc: u64) -> bool {
        self.with(|node, now| node.observe_clock(hlc, now))
    }

    fn get(&self, key: &RecordKey) -> Option<Record> {
        self.read(|node| node.get(key).cloned())
    }

    fn by_service(&self, namespace: &str, service: &str) -> Vec<Record> {
        self.read(|node| node.by_service(namespace, service).cloned().collect())
    }

    fn companions(&self, namespace: &str, service: &str) -> Vec<Record> {
        self.read(|node| node.companions(namespace, service).cloned().collect())
    }

    fn by_lease(&self, id: LeaseId) -> Vec<Record> {
        self.read(|node| node.by_lease(id).cloned().collect())
    }

    fn services(&self) -> Vec<ServiceInfo> {
        self.read(|node| node.services().collect())
    }

    fn catch_up(&self, namespace: &str, service: &str, since: Option<Revision>) -> CatchUp {
        self.read(|node| node.catch_up(namespace, service, since))
    }

    fn snapshot(&self) -> (Revision, Vec<Record>) {
        self.read(|node| (node.revision(), node.records().cloned().collect()))
    }

    fn summary(&self) -> Summary {
        self.read(Node::summary)
    }

    fn subscribe(&self) -> broadcast::Receiver<Arc<Delta>> {
        match &self.state.lock().deltas {
            Some(deltas) => deltas.subscribe(),
            // A receiver whose sender is gone.
            None => broadcast::Sender::new(1).subscribe(),
        }
    }
}
