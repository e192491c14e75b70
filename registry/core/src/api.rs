//! The JSON forms of the native HTTP API, for the member that serves it and the client that calls it.
//!
//! Marks and stamps are strings: their numbers pass 2^53, which many JSON readers cannot hold.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::digest::Cell;
use crate::node::Summary;
use crate::record::{Endpoint, Health, Record, RecordKey, Stamp, StoreKind};
use crate::service::{Gone, Revision, ServiceInfo};

/// What a registration is given, and each renewal that may have to register again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// How long the instance lives without a renewal, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Where the instance takes traffic.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// What else there is to say.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// The stamp that the last registration returned, from whichever member: orders this one after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

/// The answer to a registration or a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// The namespace.
    pub namespace: String,
    /// The service.
    pub service: String,
    /// The instance.
    pub instance: String,
    /// Within how many milliseconds to renew.
    pub ttl_ms: u64,
    /// The registration's stamp, to be given back as `claim`.
    pub stamp: String,
    /// False when the registration was there already (this call renewed it).
    pub created: bool,
}

/// A registration, as discovery shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The registration: store and raw key. What `removed` names.
    pub id: String,
    /// The instance it stands for. Registrations that share it are one instance.
    pub instance: String,
    /// Whose protocol wrote it.
    pub store: StoreKind,
    /// The layout that wrote it; empty for native ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// As of this answer. A change of it alone is not pushed to watchers.
    pub health: Health,
    /// Where the instance takes traffic.
    pub endpoints: Vec<Endpoint>,
    /// What else the registration says.
    pub attributes: BTreeMap<String, String>,
    /// The stamp of the owner's last write.
    pub stamp: String,
}

impl From<&Record> for Instance {
    fn from(record: &Record) -> Self {
        Instance {
            id: record.key.to_string(),
            instance: record.body.instance.clone(),
            store: record.key.store,
            layout: record.body.layout.clone(),
            health: record.health,
            endpoints: record.body.endpoints.clone(),
            attributes: record.body.attributes.clone(),
            stamp: record.stamp.to_string(),
        }
    }
}

/// All registrations of a service: the answer to a query, and the data of a `full` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceList {
    /// The namespace.
    pub namespace: String,
    /// The service.
    pub service: String,
    /// The mark of this list.
    pub revision: String,
    /// The registrations, by instance.
    pub instances: Vec<Instance>,
    /// The member has not caught up with the others: instances may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warming: bool,
}

/// What changed in a service: the data of a `delta` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceDelta {
    /// The mark of the list with these changes.
    pub revision: String,
    /// New and changed registrations, as they are now.
    pub changed: Vec<Instance>,
    /// Registrations that are gone.
    pub removed: Vec<Removed>,
}

/// A registration that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The registration.
    pub id: String,
    /// The instance it stood for; another registration may still do so.
    pub instance: String,
    /// True: its owner took it away. False: it ran out of time and was judged to be gone, which the
    /// reader may judge again.
    pub explicit: bool,
}

impl From<&Gone> for Removed {
    fn from(gone: &Gone) -> Self {
        Removed {
            id: gone.key.to_string(),
            instance: gone.instance.clone(),
            explicit: gone.explicit,
        }
    }
}

/// All services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicesReply {
    /// The services, by namespace and name.
    pub services: Vec<ServiceReply>,
}

/// A service in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReply {
    /// The namespace.
    pub namespace: String,
    /// The service.
    pub service: String,
    /// The mark of its last visible change.
    pub revision: String,
    /// Instances.
    pub instances: usize,
    /// Registrations; the four healths add up to it.
    pub registrations: usize,
    /// Registrations whose owner was heard from.
    pub live: usize,
    /// Registrations whose owner is late.
    pub silent: usize,
    /// Registrations whose owner timed out.
    pub expired: usize,
    /// Registrations kept against their timeout.
    pub held: usize,
}

impl From<&ServiceInfo> for ServiceReply {
    fn from(info: &ServiceInfo) -> Self {
        ServiceReply {
            namespace: info.name.namespace.clone(),
            service: info.name.service.clone(),
            revision: info.revision.to_string(),
            instances: info.instances,
            registrations: info.registrations,
            live: info.live,
            silent: info.silent,
            expired: info.expired,
            held: info.held,
        }
    }
}

/// The member in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryReply {
    /// The member's id.
    pub member: u16,
    /// Its life.
    pub incarnation: String,
    /// Services with at least one instance.
    pub services: usize,
    /// Instances over all services.
    pub instances: usize,
    /// Registrations of instances.
    pub registrations: usize,
    /// All records.
    pub records: usize,
    /// Leases.
    pub leases: usize,
    /// Tombstones.
    pub tombstones: usize,
    /// The mark of the last change.
    pub revision: String,
    /// Equal on members that hold the same records.
    pub digest: String,
    /// The member has not caught up with the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warming: bool,
}

/// What a member asks of its clients. Pushed on gRPC streams whenever it changes; clients of the HTTP API ask
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientSettings {
    /// How often a client shows on its stream that it lives, in milliseconds.
    pub heartbeat_interval_ms: u32,
    /// How many services a client keeps watching after their last use.
    pub cache_services: u32,
    /// How often a client fetches each watched service in full, in milliseconds.
    pub refresh_interval_ms: u32,
}

impl Default for ClientSettings {
    /// A heartbeat every 5 s, 128 services, a refresh every minute.
    fn default() -> Self {
        ClientSettings {
            heartbeat_interval_ms: 5_000,
            cache_services: 128,
            refresh_interval_ms: 60_000,
        }
    }
}

impl ClientSettings {
    /// Each setting that no client could work with, a line each: a heartbeat outside of 100 ms to 10 min, no
    /// service kept or more than 1,000,000, a refresh below 1 s or above a day.
    pub fn faults(&self) -> Vec<String> {
        let bounds = [
            (
                "heartbeat_interval_ms",
                self.heartbeat_interval_ms,
                100,
                600_000,
            ),
            ("cache_services", self.cache_services, 1, 1_000_000),
            (
                "refresh_interval_ms",
                self.refresh_interval_ms,
                1_000,
                86_400_000,
            ),
        ];
        bounds
            .into_iter()
            .filter(|(_, value, min, max)| !(min..=max).contains(&value))
            .map(|(name, value, min, max)| format!("{name}: {min} to {max}, not {value}"))
            .collect()
    }
}

impl From<&Summary> for SummaryReply {
    fn from(summary: &Summary) -> Self {
        let Cell { xor, sum, count } = summary.digest;
        let incarnation = summary.origin.incarnation;
        SummaryReply {
            member: summary.origin.member,
            incarnation: incarnation.to_string(),
            services: summary.services,
            instances: summary.instances,
            registrations: summary.registrations,
            records: summary.records,
            leases: summary.leases,
            tombstones: summary.tombstones,
            revision: Revision {
                incarnation,
                number: summary.revision,
            }
            .to_string(),
            digest: format!("{xor:016x}{sum:016x}-{count}"),
            warming: false,
        }
    }
}

/// Every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong: `code` for programs, `message` for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// One of the codes in the API's documentation.
    pub code: String,
    /// The cause, naming the field or the limit.
    pub message: String,
}

/// The text is not a mark or a stamp (`number.number`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not of the form number.number")]
pub struct ParseMarkError;

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.number)
    }
}

impl FromStr for Revision {
    type Err = ParseMarkError;

    fn from_str(text: &str) -> Result<Self, ParseMarkError> {
        let (incarnation, number) = pair(text)?;
        Ok(Revision {
            incarnation,
            number,
        })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.hlc, self.member)
    }
}

impl FromStr for Stamp {
    type Err = ParseMarkError;

    fn from_str(text: &str) -> Result<Self, ParseMarkError> {
        let (hlc, member) = pair(text)?;
        Ok(Stamp {
            hlc,
            member: u16::try_from(member).map_err(|_| ParseMarkError)?,
        })
    }
}

/// The raw key of a native registration. Slashes within a part are escaped, so that two
/// registrations never share a key.
pub fn native_key(namespace: &str, service: &str, instance: &str) -> RecordKey {
    let part = |text: &str| text.replace('%', "%25").replace('/', "%2F");
    let key = format!("{}/{}/{}", part(namespace), part(service), part(instance));
    RecordKey::new(StoreKind::Native, key)
}

fn pair(text: &str) -> Result<(u64, u64), ParseMarkError> {
    let digits = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        if plain {
            text.parse().map_err(|_| ParseMarkError)
        } else {
            Err(ParseMarkError)
        }
    };
    let (left, right) = text.split_once('.').ok_or(ParseMarkError)?;
    Ok((digits(left)?, digits(right)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_stamps_survive_their_text() {
        for (left, right) in [(0, 0), (1_700_000_000_000, 42), (u64::MAX, u16::MAX)] {
            let revision = Revision {
                incarnation: left,
                number: u64::from(right),
            };
            assert_eq!(revision.to_string().parse(), Ok(revision));
            let stamp = Stamp {
                hlc: left,
                member: right,
            };
            assert_eq!(stamp.to_string().parse(), Ok(stamp));
        }
        for bad in [
            "",
            ".",
            "1",
            "1.",
            ".1",
            "1.2.3",
            "-1.2",
            "+1.2",
            "1.99999999999999999999",
        ] {
            assert_eq!(bad.parse::<Revision>(), Err(ParseMarkError), "{bad}");
        }
        assert_eq!("1.65536".parse::<Stamp>(), Err(ParseMarkError));
    }

    #[test]
    fn native_keys_do_not_meet() {
        let keys = [
            native_key("a", "b", "c"),
            native_key("a/b", "", "c"),
            native_key("a", "b/c", ""),
            native_key("a%2Fb", "", "c"),
        ];
        for (i, left) in keys.iter().enumerate() {
            for right in &keys[i + 1..] {
                assert_ne!(left, right);
            }
        }
    }
}
