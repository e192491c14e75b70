use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use causeway_backend::contract::{self, Harness, Traits};
use causeway_backend::testing::RealZookeeper;
use causeway_backend::{Backend, BackendName};
use causeway_backend_zookeeper::{Servers, ZookeeperBackend, ZookeeperOptions};
use tokio::sync::Mutex;

struct Zookeeper {
    server: Mutex<RealZookeeper>,
    options: ZookeeperOptions,
    /// How long the server stays away.
    away: Duration,
}

impl Zookeeper {
    async fn start(change: impl FnOnce(&mut ZookeeperOptions)) -> Self {
        let server = RealZookeeper::start().await;
        let servers = Servers::parse(&server.address()).expect("a good address");
        let mut options = ZookeeperOptions::new(servers);
        change(&mut options);
        // Longer than the session's timeout, if that is short: then the session ends meanwhile.
        let away = match options.session_timeout {
            short if short < Duration::from_secs(2) => short * 3,
            _ => Duration::ZERO,
        };
        Self {
            server: Mutex::new(server),
            options,
            away,
        }
    }
}

#[async_trait]
impl Harness for Zookeeper {
    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(ZookeeperBackend::new(
            BackendName::new("zookeeper"),
            self.options.clone(),
        ))
    }

    fn traits(&self) -> Traits {
        Traits {
            ttl: Duration::from_secs(3),
            slack: Duration::from_secs(5),
            any_bytes_as_key: false,
            honours_lease_ids: false,
            can_be_cut_off: true,
        }
    }

    async fn cut_off(&self) {
        self.server.lock().await.kill();
    }

    async fn join_again(&self) {
        tokio::time::sleep(self.away).await;
        self.server.lock().await.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_the_contract() {
    contract::run(&Zookeeper::start(|_| {}).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_the_contract_with_one_shot_watches_and_acls() {
    let old = |options: &mut ZookeeperOptions| {
        options.recursive_watches = false;
        options.read_acls = true;
        options.container_parents = true;
        options.session_timeout = Duration::from_secs(1);
    };
    contract::run(&Zookeeper::start(old).await).await;
}
