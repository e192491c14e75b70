//! What the native API does, whatever it is spoken over: [`NativeApi`] is shared by HTTP and gRPC.

use std::sync::Arc;

use causeway_registry::api::{ClientSettings, native_key};
use causeway_registry::{
    CatchUp, Endpoint, LeaseId, LeaseKind, LeaseState, Record, RecordBody, RecordKey, Revision,
    ServiceName, Stamp,
};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::{AccessError, RegistryAccess};
use crate::hub::Hub;

/// Bounds on what a client may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of a namespace, service or instance name.
    pub name_bytes: usize,
    /// Endpoints of an instance.
    pub endpoints: usize,
    /// Attributes of an instance.
    pub attributes: usize,
    /// The shortest time to live, in milliseconds.
    pub min_ttl_ms: u64,
    /// The longest.
    pub max_ttl_ms: u64,
    /// The one taken when none is given.
    pub default_ttl_ms: u64,
    /// The longest `wait_ms`.
    pub max_wait_ms: u64,
    /// Open watches and waiting queries of the HTTP API, and watches of gRPC calls.
    pub watches: usize,
    /// gRPC streams.
    pub streams: usize,
    /// Services that one gRPC stream watches.
    pub watches_per_stream: usize,
    /// Instances that one gRPC stream registers.
    pub registrations_per_stream: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 * 1024,
            name_bytes: 512,
            endpoints: 16,
            attributes: 128,
            min_ttl_ms: 1_000,
            max_ttl_ms: 24 * 3_600_000,
            default_ttl_ms: 15_000,
            max_wait_ms: 60_000,
            watches: 20_000,
            streams: 200_000,
            watches_per_stream: 10_000,
            registrations_per_stream: 200_000,
        }
    }
}

/// The native API of a registry: what its HTTP and gRPC ports share.
pub struct NativeApi {
    pub(crate) access: Arc<dyn RegistryAccess>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) limits: Limits,
    watches: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    settings: watch::Sender<ClientSettings>,
    /// Held from the look at a registration's lease to its write, so that two calls for one instance
    /// do not each open a lease.
    registering: Mutex<()>,
}

/// Why a call was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's fault; the same call fails again.
    Bad,
    UnknownInstance,
    Refused,
    TooLarge,
    TooMany,
    Unavailable,
}

/// A failure as the client is told of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

pub(crate) type Answer<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Failure {
            kind: Kind::Bad,
            message: message.into(),
        }
    }

    pub(crate) fn too_many(what: &str, limit: usize) -> Self {
        Failure {
            kind: Kind::TooMany,
            message: format!("at most {limit} {what} at once"),
        }
    }

    pub(crate) fn unknown(at: &Place) -> Self {
        Failure {
            kind: Kind::UnknownInstance,
            message: format!(
                "no instance {} of {} in namespace {}",
                at.instance, at.service, at.namespace
            ),
        }
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        let kind = match &error {
            // A lease is opened just before it is used; whatever ended it between may be over at the
            // next try.
            AccessError::UnknownLease(_) | AccessError::Unavailable(_) => Kind::Unavailable,
            AccessError::Refused(_) => Kind::Refused,
        };
        Failure {
            kind,
            message: error.to_string(),
        }
    }
}

/// The names a call is about, checked.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) instance: String,
}

impl Place {
    pub(crate) fn key(&self) -> RecordKey {
        native_key(&self.namespace, &self.service, &self.instance)
    }
}

/// What a registration says, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) attributes: std::collections::BTreeMap<String, String>,
    pub(crate) claim: Option<Stamp>,
}

impl Wanted {
    fn body(self) -> RecordBody {
        RecordBody {
            namespace: self.place.namespace,
            service: self.place.service,
            instance: self.place.instance,
            endpoints: self.endpoints,
            attributes: self.attributes,
            ..RecordBody::default()
        }
    }
}

/// Where the ids of streams' leases begin; the leases of single instances are below. So a call for one instance
/// never renews, or takes for its own, what lives by a stream.
const STREAM_IDS: i64 = 1 << 62;

impl NativeApi {
    /// The API over a registry. To be made in a runtime.
    pub fn new(
        access: Arc<dyn RegistryAccess>,
        limits: Limits,
        settings: ClientSettings,
    ) -> Arc<Self> {
        let bound = |limit: usize| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Arc::new(NativeApi {
            hub: Hub::new(access.clone()),
            access,
            watches: bound(limits.watches),
            streams: bound(limits.streams),
            limits,
            settings: watch::Sender::new(settings),
            registering: Mutex::new(()),
        })
    }

    /// What clients are asked for at present.
    pub fn settings(&self) -> ClientSettings {
        *self.settings.borrow()
    }

    /// Asks something else of clients from now on; those on a stream are told at once. Refused, with each
    /// fault, if no client could work with it.
    pub fn set_settings(&self, settings: ClientSettings) -> Result<(), Vec<String>> {
        let faults = settings.faults();
        if !faults.is_empty() {
            return Err(faults);
        }
        self.settings
            .send_if_modified(|now| std::mem::replace(now, settings) != settings);
        Ok(())
    }

    pub(crate) fn settings_changes(&self) -> watch::Receiver<ClientSettings> {
        self.settings.subscribe()
    }

    pub(crate) fn place(
        &self,
        namespace: Option<String>,
        service: String,
        instance: String,
    ) -> Answer<Place> {
        let instance = self.name("instance", instance)?;
        let ServiceName { namespace, service } = self.service(namespace, service)?;
        Ok(Place {
            namespace,
            service,
            instance,
        })
    }

    pub(crate) fn service(
        &self,
        namespace: Option<String>,
        service: String,
    ) -> Answer<ServiceName> {
        let namespace = namespace.unwrap_or_else(|| "default".into());
        Ok(ServiceName {
            namespace: self.name("namespace", namespace)?,
            service: self.name("service", service)?,
        })
    }

    fn name(&self, what: &str, name: String) -> Answer<String> {
        let limit = self.limits.name_bytes;
        if name.is_empty() || name.len() > limit {
            let length = name.len();
            return Err(Failure::bad(format!(
                "{what}: 1 to {limit} bytes, not {length}"
            )));
        }
        if name.chars().any(char::is_control) {
            return Err(Failure::bad(format!("{what}: no control characters")));
        }
        Ok(name)
    }

    pub(crate) fn ttl(&self, asked: Option<u64>) -> Answer<u64> {
        let limits = &self.limits;
        let ttl = asked.unwrap_or(limits.default_ttl_ms);
        if !(limits.min_ttl_ms..=limits.max_ttl_ms).contains(&ttl) {
            let (min, max) = (limits.min_ttl_ms, limits.max_ttl_ms);
            return Err(Failure::bad(format!("ttl_ms: {min} to {max}, not {ttl}")));
        }
        Ok(ttl)
    }

    pub(crate) fn check(&self, wanted: &Wanted) -> Answer<()> {
        let limits = &self.limits;
        for (what, have, limit) in [
            ("endpoints", wanted.endpoints.len(), limits.endpoints),
            ("attributes", wanted.attributes.len(), limits.attributes),
        ] {
            if have > limit {
                return Err(Failure::bad(format!("{what}: at most {limit}, not {have}")));
            }
        }
        if wanted.endpoints.iter().any(|e| e.host.is_empty()) {
            return Err(Failure::bad("endpoints: host is empty"));
        }
        Ok(())
    }

    pub(crate) fn watch_permit(&self) -> Answer<OwnedSemaphorePermit> {
        let permit = self.watches.clone().try_acquire_owned();
        permit.map_err(|_| Failure::too_many("watches are open", self.limits.watches))
    }

    pub(crate) fn stream_permit(&self) -> Answer<OwnedSemaphorePermit> {
        let permit = self.streams.clone().try_acquire_owned();
        permit.map_err(|_| Failure::too_many("streams are open", self.limits.streams))
    }

    /// Registers an instance with a lease of its own, or renews it. Returns its stamp, and whether it was new.
    pub(crate) fn register(&self, wanted: Wanted, ttl_ms: u64) -> Answer<(Stamp, bool)> {
        self.observe(wanted.claim)?;
        let key = wanted.place.key();
        let _one_at_a_time = self.registering.lock();
        let created = self.access.get(&key).is_none();
        let lease = self
            .lease_of(&key)
            .unwrap_or_else(|| self.unused_lease(1..STREAM_IDS));
        if self
            .access
            .lease(lease)
            .is_none_or(|lease| lease.ttl_ms != ttl_ms)
        {
            self.access.open_lease(lease, ttl_ms)?;
        }
        let stamp = self.access.register(key, wanted.body(), Some(lease))?;
        Ok((stamp, created))
    }

    /// Registers an instance under a lease that is open.
    pub(crate) fn register_under(&self, wanted: Wanted, lease: LeaseId) -> Answer<(Stamp, bool)> {
        self.observe(wanted.claim)?;
        let key = wanted.place.key();
        let created = self.access.get(&key).is_none();
        let stamp = self.access.register(key, wanted.body(), Some(lease))?;
        Ok((stamp, created))
    }

    fn observe(&self, claim: Option<Stamp>) -> Answer<()> {
        match claim {
            Some(stamp) if !self.access.observe_clock(stamp.hlc) => Err(Failure::bad(
                "claim: more than an hour ahead of this member's clock",
            )),
            _ => Ok(()),
        }
    }

    /// Renews an instance that has a lease of its own. Returns its stamp and time to live.
    pub(crate) fn heartbeat(&self, at: &Place) -> Answer<(Stamp, u64)> {
        let key = at.key();
        let renewed = self
            .lease_of(&key)
            .filter(|lease| self.access.renew(*lease).known);
        let lease = renewed.and_then(|lease| self.access.lease(lease));
        match (lease, self.access.get(&key)) {
            (Some(lease), Some(record)) => Ok((record.stamp, lease.ttl_ms)),
            _ => Err(Failure::unknown(at)),
        }
    }

    /// Takes an instance away, and its lease if nothing else lives by it.
    pub(crate) fn deregister(&self, at: &Place) -> Answer<Record> {
        let _one_at_a_time = self.registering.lock();
        let Some(record) = self.access.deregister(&at.key())? else {
            return Err(Failure::unknown(at));
        };
        if let Some(lease) = record.lease
            && lease.id < STREAM_IDS
            && self
                .access
                .lease(lease)
                .is_some_and(|lease| lease.records == 0)
        {
            self.access.close_lease(lease)?;
        }
        Ok(record)
    }

    /// The lease of its own that a registration has, if it can be renewed.
    fn lease_of(&self, key: &RecordKey) -> Option<LeaseId> {
        let lease = self.access.get(key)?.lease?;
        let open = self.access.lease(lease)?.state != LeaseState::Over;
        (lease.kind == LeaseKind::Native && lease.id < STREAM_IDS && open).then_some(lease)
    }

    fn unused_lease(&self, ids: std::ops::Range<i64>) -> LeaseId {
        loop {
            let lease = LeaseId::native(rand::rng().random_range(ids.clone()));
            if self.access.lease(lease).is_none() {
                return lease;
            }
        }
    }

    /// A lease for a stream.
    pub(crate) fn unused_stream_lease(&self) -> LeaseId {
        self.unused_lease(STREAM_IDS..i64::MAX)
    }

    /// The lease that a stream's token stands for, if it can be taken up.
    pub(crate) fn stream_lease(&self, token: u64) -> Option<LeaseId> {
        let id = i64::try_from(token).ok().filter(|id| *id >= STREAM_IDS)?;
        let lease = LeaseId::native(id);
        (self.access.lease(lease)?.state != LeaseState::Over).then_some(lease)
    }

    /// All registrations of a service, with the mark they are at, and whether some may be missing.
    pub(crate) fn list(&self, name: &ServiceName) -> (Revision, Vec<Record>, bool) {
        let warming = self.access.warming();
        let (revision, records) = match self.access.catch_up(&name.namespace, &name.service, None) {
            CatchUp::Full { revision, records } => (revision, records),
            // Whoever has seen nothing is given everything.
            CatchUp::Current { revision } | CatchUp::Delta { revision, .. } => (
                revision,
                self.access.by_service(&name.namespace, &name.service),
            ),
        };
        (revision, records, warming)
    }
}
