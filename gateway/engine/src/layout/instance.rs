//! What a layout makes of a record: an instance of a service, or a companion.

use std::borrow::Borrow;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::codec::{DecodeError, is_secret_name};

/// Id of a layout, as configuration spells it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayoutId(Arc<str>);

impl LayoutId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for LayoutId {
    fn from(id: &str) -> Self {
        LayoutId(id.into())
    }
}

impl Borrow<str> for LayoutId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LayoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LayoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// How a record lives in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeKind {
    /// A znode without an owner.
    Persistent,
    /// A znode of a session. A store's listing does not tell whether its name was a sequence's.
    Ephemeral,
    /// A znode of a session whose name got a sequence suffix.
    EphemeralSequential,
    /// A znode that goes some time after its last child went.
    Container,
    /// A znode that goes when unchanged and childless for its TTL.
    Ttl,
    /// An etcd key with a lease.
    Leased,
    /// An etcd key without a lease.
    Unleased,
}

impl NodeKind {
    /// Whether a session or a lease keeps the record alive.
    pub fn is_owned(self) -> bool {
        matches!(
            self,
            NodeKind::Ephemeral | NodeKind::EphemeralSequential | NodeKind::Leased
        )
    }
}

/// Class of a key, from its path alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// No layout owns it: it has one store, and is passed through.
    General,
    /// In the subtree that a layout owns.
    Owned {
        /// The owning layout; where several share the subtree, the one that is asked first.
        layout: LayoutId,
        /// `{namespace}/{service}` when the path goes down to a service. Phases are kept by this
        /// key; [`Instance::service`] can be narrower.
        service: Option<String>,
    },
}

/// What a record in a layout's subtree is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// One instance of a service.
    Instance,
    /// Somebody who reads the service, registered beside it.
    Consumer,
    /// An instance that takes no traffic now.
    Unavailable,
    /// Weights of instances, kept apart from them.
    WeightVector,
    /// A parent.
    Directory,
    /// Interface to application, or the like.
    Mapping,
    /// What a caller needs to know beside the address.
    Metadata,
    /// Configuration.
    Config,
    /// A lock, an election, a queue: needs one consistent store.
    Lock,
    /// Passed through as it is.
    Pass,
    /// At an instance's place, but no instance; the error says why.
    Stray,
    /// Anything else in the subtree.
    Other,
}

/// What a record is.
#[derive(Debug, Clone, PartialEq)]
pub enum Classified {
    /// Outside all layouts.
    General,
    /// An instance: template, node kind or lease, value and claim all fit.
    Instance(Box<Instance>),
    /// In a layout's subtree without being an instance. Kept and passed on, never dropped.
    Companion {
        /// The owning layout.
        layout: LayoutId,
        /// As in [`Class::Owned`].
        service: Option<String>,
        /// What it is for.
        role: Role,
        /// Why it is not an instance, when it stands where one would.
        decode_error: Option<DecodeError>,
    },
}

/// An instance as its record describes it: a view. The record's own key and value stay the truth.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Layout that claimed the record.
    pub layout: LayoutId,
    /// Root of the layout, or the name given to it.
    pub namespace: String,
    /// Service name alone, decoded.
    pub name: String,
    /// Group, where the layout's services have one.
    pub group: Option<String>,
    /// Version, where the layout's services are told apart by it.
    pub version: Option<String>,
    /// Whole key of the service: [`Instance::scope`] with `:version` and `@group` where they exist.
    pub service: String,
    /// `{namespace}/{service}`: what the path alone tells, as in [`Class::Owned`].
    pub scope: String,
    /// Id as the layout's own clients see it. Can hold secrets (a Dubbo URL); see [`super::redact`].
    pub instance_id: String,
    /// `namespace|service|group|version|host|port|protocol`, for counting and merging.
    pub identity: String,
    /// Addresses, the primary one first; at least one.
    pub endpoints: Vec<Endpoint>,
    /// Share of traffic; `None`: the layout has none, or it is not a whole number.
    pub weight: Option<u32>,
    /// Whether it takes traffic.
    pub status: Status,
    /// What else the record says, in its order; a name can occur more than once.
    pub metadata: Vec<(String, MetaValue)>,
    /// When it registered, milliseconds since 1970, as the record says.
    pub registered_at_ms: Option<i64>,
}

/// An address that takes traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `None` for the primary one.
    pub name: Option<String>,
    /// Protocol spoken there, when the record tells.
    pub scheme: Option<String>,
    /// Host as written; an IPv6 address without brackets.
    pub host: String,
    /// Some layouts allow a record without a port.
    pub port: Option<u16>,
    /// Whether the record says that it speaks TLS.
    pub tls: bool,
}

/// Whether an instance takes traffic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Status {
    /// It does. Also when its layout has no status.
    #[default]
    Up,
    /// Not yet.
    Starting,
    /// Taken out by somebody.
    OutOfService,
    /// No new traffic.
    Draining,
    /// It says that it cannot.
    Unavailable,
    /// A word that is not known here.
    Unknown(String),
}

/// A value of an instance's metadata.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaValue {
    /// Text.
    Text(String),
    /// JSON that is not a string, as compact text.
    Json(String),
}

impl MetaValue {
    pub(crate) fn of_json(value: &serde_json::Value) -> MetaValue {
        match value {
            serde_json::Value::String(text) => MetaValue::Text(text.clone()),
            other => MetaValue::Json(other.to_string()),
        }
    }

    /// The text, or the JSON as text.
    pub fn as_str(&self) -> &str {
        match self {
            MetaValue::Text(text) | MetaValue::Json(text) => text,
        }
    }
}

impl fmt::Debug for MetaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Status {
    pub(crate) fn from_word(word: &str) -> Status {
        match word.to_ascii_lowercase().as_str() {
            "up" | "alive" | "active" | "online" | "available" | "passing" | "1" | "true" => {
                Status::Up
            }
            "starting" | "warmup" | "warming" => Status::Starting,
            "out_of_service" | "inactive" | "offline" | "disabled" | "down" | "0" | "false" => {
                Status::OutOfService
            }
            "draining" | "stopping" | "stopped" => Status::Draining,
            "unavailable" | "unavailableserver" | "dead" => Status::Unavailable,
            _ => Status::Unknown(word.to_owned()),
        }
    }

    /// A word for it, one that `Status::from_word` reads back.
    pub fn as_word(&self) -> &str {
        match self {
            Status::Up => "UP",
            Status::Starting => "STARTING",
            Status::OutOfService => "OUT_OF_SERVICE",
            Status::Draining => "DRAINING",
            Status::Unavailable => "UNAVAILABLE",
            Status::Unknown(word) => word,
        }
    }
}

impl Instance {
    /// The metadata for a screen: values whose name promises a secret are masked.
    pub fn public_metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(name, value)| {
            (
                name.as_str(),
                if is_secret_name(name) {
                    "***"
                } else {
                    value.as_str()
                },
            )
        })
    }

    /// The address that clients are meant to use.
    pub fn primary(&self) -> Option<&Endpoint> {
        self.endpoints.first()
    }
}

/// Masks what could be secret: instances end up in logs.
impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("layout", &self.layout)
            .field("identity", &self.identity)
            .field("service", &self.service)
            .field("instance_id", &super::redact(self.instance_id.as_bytes()))
            .field("endpoints", &self.endpoints)
            .field("weight", &self.weight)
            .field("status", &self.status)
            .field("metadata", &self.public_metadata().collect::<Vec<_>>())
            .field("registered_at_ms", &self.registered_at_ms)
            .finish()
    }
}

/// `{namespace}/{service}`: one text for everything that is kept by service. `%`, `:` and `@` in
/// the service's name are escaped, since a whole key can go on with `:version` and `@group`.
pub fn scope_key(namespace: &str, service: &str) -> String {
    format!("{namespace}/{}", key_part(service))
}

/// [`scope_key`] with `:version` and `@group`.
pub(crate) fn service_key(
    namespace: &str,
    service: &str,
    group: Option<&str>,
    version: Option<&str>,
) -> String {
    let mut key = scope_key(namespace, service);
    if let Some(version) = version {
        key.push(':');
        key.push_str(&key_part(version));
    }
    if let Some(group) = group {
        key.push('@');
        key.push_str(&key_part(group));
    }
    key
}

fn key_part(text: &str) -> String {
    text.replace('%', "%25")
        .replace(':', "%3A")
        .replace('@', "%40")
}

/// The canonical identity text. Hosts compare without case, IPv6 by value.
pub(crate) fn identity(
    namespace: &str,
    service: &str,
    group: Option<&str>,
    version: Option<&str>,
    endpoint: &Endpoint,
) -> String {
    let host = match endpoint.host.parse::<Ipv6Addr>() {
        Ok(address) => address.to_string(),
        Err(_) => endpoint.host.to_ascii_lowercase(),
    };
    let port = endpoint.port.map_or(String::new(), |port| port.to_string());
    let parts = [
        namespace,
        service,
        group.unwrap_or_default(),
        version.unwrap_or_default(),
        &host,
        &port,
        endpoint.scheme.as_deref().unwrap_or_default(),
    ];
    let escaped: Vec<String> = parts
        .iter()
        .map(|part| part.replace('%', "%25").replace('|', "%7C"))
        .collect();
    escaped.join("|")
}
