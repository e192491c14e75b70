//! Over a registry of this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use causeway_backend::contract::{self, Harness, Traits};
use causeway_backend::{Backend, BackendName, Event, Owner, Scope, Subtree};
use causeway_backend_gossip::{GossipBackend, by_path};
use causeway_registry::{NodeConfig, RecordBody, StoreKind};
use causeway_registry_node::Registry;
use futures::StreamExt;
use futures::future::join_all;

struct Gossip(GossipBackend);

impl Gossip {
    fn start(store: StoreKind) -> Self {
        let registry = Registry::start(NodeConfig::new(1, 1_700_000_000_000));
        Self(GossipBackend::new(
            BackendName::new("registry"),
            registry,
            store,
            by_path(),
        ))
    }
}

#[async_trait]
impl Harness for Gossip {
    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    fn traits(&self) -> Traits {
        Traits {
            ttl: Duration::from_secs(2),
            slack: Duration::from_secs(3),
            any_bytes_as_key: true,
            honours_lease_ids: true,
            can_be_cut_off: false,
        }
    }

    async fn cut_off(&self) {
        unreachable!("a registry of this process cannot be cut off");
    }

    async fn join_again(&self) {
        unreachable!("a registry of this process cannot be cut off");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_keeps_the_contract() {
    let stores = [StoreKind::Etcd, StoreKind::Zookeeper, StoreKind::Native].map(Gossip::start);
    join_all(stores.iter().map(|store| contract::run(store))).await;
}

/// What a watch told, up to the given number of events.
async fn told(stream: &mut causeway_backend::EventStream, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    while told.len() < count {
        let event = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        told.push(match event.expect("in time").expect("endless") {
            Event::SnapshotStart => "start".to_owned(),
            Event::SnapshotDone { .. } => "done".to_owned(),
            Event::Put(entry) => format!("put {}", entry.value.escape_ascii()),
            Event::Delete { key, .. } => format!("delete {}", key.escape_ascii()),
            Event::Lost { .. } => "lost".to_owned(),
        });
    }
    told
}

#[tokio::test]
async fn a_record_that_moves_between_services_only_changes() {
    let registry = Registry::start(NodeConfig::new(1, 1));
    let describe: causeway_backend_gossip::Describe = Arc::new(|_, value, _| RecordBody {
        service: String::from_utf8_lossy(value).into_owned(),
        value: value.clone(),
        ..RecordBody::default()
    });
    let name = BackendName::new("registry");
    let backend = GossipBackend::new(name, registry.clone(), StoreKind::Etcd, describe);
    let mut stream = backend.watch(Scope::from(Subtree::prefix("")));
    assert_eq!(told(&mut stream, 2).await, ["start", "done"]);
    for service in ["orders", "bills"] {
        let registration = causeway_backend::Registration {
            key: "k".into(),
            value: service.into(),
            owner: Owner::Persistent,
            expect: causeway_backend::Expect::Any,
        };
        backend.register(registration).await.expect("registers");
    }
    backend
        .deregister(b"k", causeway_backend::Expect::Any)
        .await
        .expect("removes");
    assert_eq!(
        told(&mut stream, 3).await,
        ["put orders", "put bills", "delete k"]
    );
    registry.stop();
    assert_eq!(told(&mut stream, 1).await, ["lost"]);
}

#[tokio::test]
async fn keys_of_other_stores_are_not_seen() {
    let registry = Registry::start(NodeConfig::new(1, 1));
    let name = BackendName::new("registry");
    let make = |store| GossipBackend::new(name.clone(), registry.clone(), store, by_path());
    let (etcd, zookeeper) = (make(StoreKind::Etcd), make(StoreKind::Zookeeper));
    let registration = causeway_backend::Registration {
        key: "/a/b".into(),
        value: "etcd's".into(),
        owner: Owner::Persistent,
        expect: causeway_backend::Expect::Absent,
    };
    etcd.register(registration.clone())
        .await
        .expect("registers");
    assert_eq!(zookeeper.lookup(b"/a/b").await.expect("reads"), None);
    zookeeper
        .register(registration)
        .await
        .expect("another key of the same bytes");
    let all = Scope::from(Subtree::prefix(""));
    assert_eq!(etcd.snapshot(&all).await.expect("lists").entries.len(), 1);
}
