use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use causeway_backend::contract::{self, Harness, Traits};
use causeway_backend::testing::RealEtcd;
use causeway_backend::{Backend, BackendName};
use causeway_backend_etcd::{EtcdBackend, EtcdOptions};
use tokio::sync::Mutex;

struct Etcd {
    server: Mutex<RealEtcd>,
    url: String,
}

#[async_trait]
impl Harness for Etcd {
    async fn backend(&self) -> Arc<dyn Backend> {
        let name = BackendName::new("etcd");
        let backend = EtcdBackend::new(name, &EtcdOptions::new([&self.url]));
        Arc::new(backend.expect("a good address"))
    }

    fn traits(&self) -> Traits {
        Traits {
            ttl: Duration::from_secs(3),
            slack: Duration::from_secs(5),
            any_bytes_as_key: true,
            honours_lease_ids: true,
            can_be_cut_off: true,
        }
    }

    async fn cut_off(&self) {
        self.server.lock().await.kill();
    }

    async fn join_again(&self) {
        self.server.lock().await.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_the_contract() {
    let server = RealEtcd::start().await;
    let url = server.url();
    contract::run(&Etcd {
        server: Mutex::new(server),
        url,
    })
    .await;
}
