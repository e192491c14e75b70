//! Between the messages and the registry's own words.

use causeway_registry::api::{self, ServiceDelta, ServiceList};
use causeway_registry::{self as registry, CatchUp, Gone, Record, ServiceName, StoreKind};
use thiserror::Error;

use crate::v1;

/// A message does not say what it has to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// A field is not there.
    #[error("{0}: missing")]
    Missing(&'static str),
    /// A number is too large for what it stands for.
    #[error("{0}: {1} is too large")]
    TooLarge(&'static str, u32),
}

impl From<registry::Revision> for v1::Revision {
    fn from(revision: registry::Revision) -> Self {
        v1::Revision {
            incarnation: revision.incarnation,
            number: revision.number,
        }
    }
}

impl From<v1::Revision> for registry::Revision {
    fn from(revision: v1::Revision) -> Self {
        registry::Revision {
            incarnation: revision.incarnation,
            number: revision.number,
        }
    }
}

impl From<registry::Stamp> for v1::Stamp {
    fn from(stamp: registry::Stamp) -> Self {
        v1::Stamp {
            hlc: stamp.hlc,
            member: stamp.member.into(),
        }
    }
}

impl TryFrom<v1::Stamp> for registry::Stamp {
    type Error = ConvertError;

    fn try_from(stamp: v1::Stamp) -> Result<Self, ConvertError> {
        let member = u16::try_from(stamp.member)
            .map_err(|_| ConvertError::TooLarge("stamp.member", stamp.member))?;
        Ok(registry::Stamp {
            hlc: stamp.hlc,
            member,
        })
    }
}

impl From<&registry::Endpoint> for v1::Endpoint {
    fn from(endpoint: &registry::Endpoint) -> Self {
        v1::Endpoint {
            scheme: endpoint.scheme.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port.into(),
        }
    }
}

impl TryFrom<v1::Endpoint> for registry::Endpoint {
    type Error = ConvertError;

    fn try_from(endpoint: v1::Endpoint) -> Result<Self, ConvertError> {
        Ok(registry::Endpoint {
            port: u16::try_from(endpoint.port)
                .map_err(|_| ConvertError::TooLarge("endpoint.port", endpoint.port))?,
            scheme: endpoint.scheme,
            host: endpoint.host,
        })
    }
}

impl From<&Record> for v1::Instance {
    fn from(record: &Record) -> Self {
        let store = match record.key.store {
            StoreKind::Zookeeper => v1::Store::Zookeeper,
            StoreKind::Etcd => v1::Store::Etcd,
            StoreKind::Native => v1::Store::Native,
        };
        let health = match record.health {
            registry::Health::Live => v1::Health::Live,
            registry::Health::Silent => v1::Health::Silent,
            registry::Health::Expired => v1::Health::Expired,
            registry::Health::Held => v1::Health::Held,
        };
        v1::Instance {
            id: record.key.to_string(),
            instance: record.body.instance.clone(),
            store: store.into(),
            layout: record.body.layout.clone(),
            health: health.into(),
            endpoints: record.body.endpoints.iter().map(Into::into).collect(),
            attributes: record.body.attributes.clone(),
            stamp: Some(record.stamp.into()),
        }
    }
}

impl TryFrom<v1::Instance> for api::Instance {
    type Error = ConvertError;

    fn try_from(instance: v1::Instance) -> Result<Self, ConvertError> {
        let store = match instance.store() {
            v1::Store::Zookeeper => StoreKind::Zookeeper,
            v1::Store::Etcd => StoreKind::Etcd,
            v1::Store::Native => StoreKind::Native,
            v1::Store::Unspecified => return Err(ConvertError::Missing("instance.store")),
        };
        let health = match instance.health() {
            v1::Health::Live => registry::Health::Live,
            v1::Health::Silent => registry::Health::Silent,
            v1::Health::Expired => registry::Health::Expired,
            v1::Health::Held => registry::Health::Held,
            v1::Health::Unspecified => return Err(ConvertError::Missing("instance.health")),
        };
        let stamp: registry::Stamp = instance
            .stamp
            .ok_or(ConvertError::Missing("instance.stamp"))?
            .try_into()?;
        Ok(api::Instance {
            id: instance.id,
            instance: instance.instance,
            store,
            layout: instance.layout,
            health,
            endpoints: instance
                .endpoints
                .into_iter()
                .map(TryInto::try_into)
                .collect::<Result<_, _>>()?,
            attributes: instance.attributes,
            stamp: stamp.to_string(),
        })
    }
}

impl From<&Gone> for v1::Removed {
    fn from(gone: &Gone) -> Self {
        v1::Removed {
            id: gone.key.to_string(),
            instance: gone.instance.clone(),
            explicit: gone.explicit,
        }
    }
}

impl From<v1::Removed> for api::Removed {
    fn from(removed: v1::Removed) -> Self {
        api::Removed {
            id: removed.id,
            instance: removed.instance,
            explicit: removed.explicit,
        }
    }
}

impl From<&registry::ServiceInfo> for v1::ServiceInfo {
    fn from(info: &registry::ServiceInfo) -> Self {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        v1::ServiceInfo {
            namespace: info.name.namespace.clone(),
            service: info.name.service.clone(),
            revision: Some(info.revision.into()),
            instances: count(info.instances),
            registrations: count(info.registrations),
            live: count(info.live),
            silent: count(info.silent),
            expired: count(info.expired),
            held: count(info.held),
        }
    }
}

impl From<api::ClientSettings> for v1::Settings {
    fn from(settings: api::ClientSettings) -> Self {
        v1::Settings {
            heartbeat_interval_ms: settings.heartbeat_interval_ms,
            cache_services: settings.cache_services,
            refresh_interval_ms: settings.refresh_interval_ms,
        }
    }
}

impl From<v1::Settings> for api::ClientSettings {
    fn from(settings: v1::Settings) -> Self {
        api::ClientSettings {
            heartbeat_interval_ms: settings.heartbeat_interval_ms,
            cache_services: settings.cache_services,
            refresh_interval_ms: settings.refresh_interval_ms,
        }
    }
}

impl v1::SummaryReply {
    /// The member's numbers.
    pub fn new(summary: &registry::Summary, warming: bool) -> Self {
        let reply = api::SummaryReply::from(summary);
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        v1::SummaryReply {
            member: reply.member.into(),
            incarnation: summary.origin.incarnation,
            services: count(reply.services),
            instances: count(reply.instances),
            registrations: count(reply.registrations),
            records: count(reply.records),
            leases: count(reply.leases),
            tombstones: count(reply.tombstones),
            revision: Some(v1::Revision {
                incarnation: summary.origin.incarnation,
                number: summary.revision,
            }),
            digest: reply.digest,
            warming,
        }
    }
}

impl v1::ServiceUpdate {
    /// What a subscriber of a service lacks; None when nothing.
    pub fn new(name: &ServiceName, caught_up: &CatchUp, warming: bool) -> Option<Self> {
        let (revision, full, changed, removed) = match caught_up {
            CatchUp::Current { .. } => return None,
            CatchUp::Full { revision, records } => (revision, true, records, None),
            CatchUp::Delta {
                revision,
                changed,
                removed,
            } => (revision, false, changed, Some(removed)),
        };
        Some(v1::ServiceUpdate {
            namespace: name.namespace.clone(),
            service: name.service.clone(),
            revision: Some((*revision).into()),
            full,
            changed: changed.iter().map(Into::into).collect(),
            removed: removed.into_iter().flatten().map(Into::into).collect(),
            warming,
        })
    }
}

/// An update in the form that the HTTP API has, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Everything there is.
    Full(ServiceList),
    /// What differs from before.
    Delta(ServiceDelta),
}

impl TryFrom<v1::ServiceUpdate> for Received {
    type Error = ConvertError;

    fn try_from(update: v1::ServiceUpdate) -> Result<Self, ConvertError> {
        let revision: registry::Revision = update
            .revision
            .ok_or(ConvertError::Missing("revision"))?
            .into();
        let changed = update
            .changed
            .into_iter()
            .map(TryInto::try_into)
            .collect::<Result<Vec<api::Instance>, _>>()?;
        Ok(if update.full {
            Received::Full(ServiceList {
                namespace: update.namespace,
                service: update.service,
                revision: revision.to_string(),
                instances: changed,
                warming: update.warming,
            })
        } else {
            Received::Delta(ServiceDelta {
                revision: revision.to_string(),
                changed,
                removed: update.removed.into_iter().map(Into::into).collect(),
            })
        })
    }
}
