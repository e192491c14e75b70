use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use causeway_backend::contract::{self, Harness, Traits};
use causeway_backend::memory::MemoryStore;
use causeway_backend::{Backend, BackendName};

struct Memory(MemoryStore);

#[async_trait]
impl Harness for Memory {
    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.backend())
    }

    fn traits(&self) -> Traits {
        Traits {
            ttl: Duration::from_secs(1),
            slack: Duration::from_millis(500),
            any_bytes_as_key: true,
            honours_lease_ids: true,
            can_be_cut_off: true,
        }
    }

    async fn cut_off(&self) {
        self.0.set_reachable(false);
    }

    async fn join_again(&self) {
        self.0.set_reachable(true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_contract() {
    contract::run(&Memory(MemoryStore::new(BackendName::new("memory")))).await;
}
