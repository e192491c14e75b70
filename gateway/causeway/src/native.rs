//! The gateway's registry for its native API: the same records, behind the machine's lock and log.

use std::sync::Arc;

use causeway_engine::core::{Command, Reply};
use causeway_registry::{
    CatchUp, Delta, LeaseId, LeaseInfo, LeaseState, Record, RecordBody, RecordKey, Renewed,
    Revision, ServiceInfo, Stamp, Summary,
};
use causeway_registry_node::dns::DnsConfigError;
use causeway_registry_node::{AccessError, Dns, Limits, NativeApi, RegistryAccess};
use tokio::sync::broadcast;

use crate::gateway::Gateway;

/// The native API over the gateway's records, for all of its ports.
pub fn api(gateway: &Arc<Gateway>) -> Arc<NativeApi> {
    let access = Arc::new(Native::new(gateway.clone()));
    NativeApi::new(access, Limits::default(), gateway.config.native)
}

/// The DNS port over the gateway's records.
pub fn dns(gateway: &Arc<Gateway>) -> Result<Dns, DnsConfigError> {
    let access = Arc::new(Native::new(gateway.clone()));
    Dns::new(access, &gateway.config.dns)
}

/// Gives the native API and the registry's adapter access to the gateway's records.
#[derive(Debug)]
pub struct Native {
    gateway: Arc<Gateway>,
}

impl Native {
    /// Over a gateway.
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Native { gateway }
    }

    fn durable(&self) -> Result<(), AccessError> {
        // The native API acknowledges from memory; a log that has failed is told before anything is taken.
        self.gateway
            .is_durable(0)
            .map(drop)
            .map_err(|e| AccessError::Unavailable(e.to_string()))
    }
}

impl RegistryAccess for Native {
    fn open_lease(&self, id: LeaseId, ttl_ms: u64) -> Result<(), AccessError> {
        self.durable()?;
        self.gateway.apply(Command::OpenLease { id, ttl_ms });
        Ok(())
    }

    fn renew(&self, id: LeaseId) -> Renewed {
        match self.gateway.renew(id) {
            Ok(()) => Renewed {
                known: true,
                was: LeaseState::Live,
            },
            Err(_) => Renewed {
                known: false,
                was: LeaseState::Over,
            },
        }
    }

    fn close_lease(&self, id: LeaseId) -> Result<Vec<Record>, AccessError> {
        self.durable()?;
        let records = self.by_lease(id);
        self.gateway.apply(Command::CloseLease(id));
        Ok(records)
    }

    fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.gateway.with(|core| core.node().lease(id)).0
    }

    fn ttl_left(&self, id: LeaseId) -> Option<u64> {
        let now_ms = self.gateway.now_ms();
        self.gateway.with(|core| core.ttl_left(id, now_ms)).0
    }

    fn register(
        &self,
        key: RecordKey,
        body: RecordBody,
        lease: Option<LeaseId>,
    ) -> Result<Stamp, AccessError> {
        self.durable()?;
        match self
            .gateway
            .apply(Command::Register {
                key,
                body: Box::new(body),
                lease,
            })
            .reply
        {
            Reply::Registered(result) => result.map_err(AccessError::from),
            other => Err(AccessError::Refused(format!("unexpected answer {other:?}"))),
        }
    }

    fn deregister(&self, key: &RecordKey) -> Result<Option<Record>, AccessError> {
        self.durable()?;
        let record = self.get(key);
        match self.gateway.apply(Command::Deregister(key.clone())).reply {
            Reply::Refused { service } => Err(AccessError::Refused(format!(
                "removals of {service} are held by protection"
            ))),
            _ => Ok(record),
        }
    }

    fn observe_clock(&self, _hlc: u64) -> bool {
        // A lone member's clients bring no clock from elsewhere; its own stamps only grow.
        true
    }

    fn get(&self, key: &RecordKey) -> Option<Record> {
        self.gateway.with(|core| core.node().get(key).cloned()).0
    }

    fn by_service(&self, namespace: &str, service: &str) -> Vec<Record> {
        self.gateway
            .with(|core| {
                core.node()
                    .by_service(namespace, service)
                    .cloned()
                    .collect()
            })
            .0
    }

    fn companions(&self, namespace: &str, service: &str) -> Vec<Record> {
        self.gateway
            .with(|core| {
                core.node()
                    .companions(namespace, service)
                    .cloned()
                    .collect()
            })
            .0
    }

    fn by_lease(&self, id: LeaseId) -> Vec<Record> {
        self.gateway
            .with(|core| core.node().by_lease(id).cloned().collect())
            .0
    }

    fn services(&self) -> Vec<ServiceInfo> {
        self.gateway.with(|core| core.node().services().collect()).0
    }

    fn catch_up(&self, namespace: &str, service: &str, since: Option<Revision>) -> CatchUp {
        self.gateway
            .with(|core| core.node().catch_up(namespace, service, since))
            .0
    }

    fn snapshot(&self) -> (Revision, Vec<Record>) {
        self.gateway
            .with(|core| {
                (
                    core.node().revision(),
                    core.node().records().cloned().collect(),
                )
            })
            .0
    }

    fn summary(&self) -> Summary {
        self.gateway.with(|core| core.node().summary()).0
    }

    fn subscribe(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.gateway.deltas()
    }
}
