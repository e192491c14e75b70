//! Bridges: an instance of one layout, spelt in another layout, across protocols too.
//!
//! A projection is lossless or it is refused with the reason; there is nothing between. What the
//! target's own form has no place for (a weight, a scheme) travels in one reserved entry of its
//! metadata, where it has metadata. Each projection is read back under the target layout's claim
//! before it leaves, so that a form which its readers could not decode is never written.
//!
//! Within one layout nothing is converted: there the bytes are copied.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::layout::{
    Classified, Endpoint, Instance, Layout, LayoutError, LayoutId, LayoutSet, MetaValue, NodeKind,
    Status, join_host_port, scope_key,
};
use crate::path::Protocol;

/// A `[[bridge]]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeConfig {
    /// Id of the layout whose instances are projected.
    pub from: String,
    /// Id of the layout in which they appear.
    pub to: String,
    /// The services: by name, with `:version` and `@group` where they have them. Default: all.
    pub services: Option<Vec<String>>,
    /// Names in the target. A service with a group or a version needs one: most targets have no
    /// place for those two, and their readers would mix what belongs apart.
    #[serde(default)]
    pub rename: BTreeMap<String, String>,
    /// Schemes of the endpoints that are projected; default: what the target's readers speak.
    pub schemes: Option<Vec<String>>,
    /// Java class that Curator's readers decode the payload into, for projections into `curator`.
    pub payload_class: Option<String>,
    /// What may be lost. Default: nothing.
    #[serde(default)]
    pub accept_loss: BTreeSet<Loss>,
}

/// Something that an instance can lose in a projection, when configuration allows it. Address and
/// status are never lost: without them a reader calls what it must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// All metadata.
    Metadata,
    /// The weight.
    Weight,
    /// The protocol's name.
    Scheme,
    /// That the address speaks TLS.
    Tls,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Metadata => "metadata",
            Loss::Weight => "weight",
            Loss::Scheme => "scheme",
            Loss::Tls => "tls",
        })
    }
}

/// A bridge between two loaded layouts.
#[derive(Debug, Clone)]
pub struct Bridge {
    config: BridgeConfig,
    writer: Writer,
    protocol: Protocol,
    to: LayoutId,
}

/// An instance in the target's form. All its records follow the instance: they come, change and go
/// together, under a session or lease of the gateway's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// The target layout.
    pub layout: LayoutId,
    /// Its protocol.
    pub protocol: Protocol,
    /// `{namespace}/{service}` in the target.
    pub scope: String,
    /// A record for each endpoint, or one for all, as the target has it.
    pub records: Vec<ProjectedRecord>,
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedRecord {
    /// Raw key. It follows from the instance's identity alone and is no other instance's.
    pub key: Vec<u8>,
    /// Raw value.
    pub value: Vec<u8>,
}

/// Why an instance is not projected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// For the operator.
    pub reason: String,
}

impl Refusal {
    fn new(reason: impl Into<String>) -> Refusal {
        Refusal {
            reason: reason.into(),
        }
    }
}

/// Begins the name of every projected record.
const NAME_PREFIX: &str = "cw-";
/// The metadata entry that carries what the target's form has no place for.
const EXTRAS: &str = "causeway";
/// How a lease looks while a projection is checked; the real one is granted when it is written.
const CHECK_LEASE: i64 = 1;

/// Whether a name is one that projections get.
pub fn is_projected_name(name: &str) -> bool {
    name.strip_prefix(NAME_PREFIX).is_some_and(|hash| {
        hash.len() == 32
            && hash
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// The forms that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Grpc,
    GoZero,
    Curator,
    Spring,
    Kratos,
}

impl Bridge {
    /// Checks the bridges against the layouts.
    ///
    /// # Errors
    /// Every fault of every bridge, at once.
    pub fn load(
        configs: &[BridgeConfig],
        layouts: &LayoutSet,
    ) -> Result<Vec<Bridge>, Vec<LayoutError>> {
        let mut errors = Vec::new();
        let mut bridges = Vec::new();
        for (index, config) in configs.iter().enumerate() {
            let mut fault = |fault: String| {
                errors.push(LayoutError {
                    layout: format!("bridge {} ({} to {})", index + 1, config.from, config.to),
                    fault,
                });
            };
            let from = layouts.layout(&config.from);
            let to = layouts.layout(&config.to);
            if from.is_none_or(|from| !from.is_active()) {
                fault(format!(
                    "from: {:?} is no layout that owns anything",
                    config.from
                ));
            }
            if config.from == config.to {
                fault("a layout is not bridged to itself; its bytes are copied".to_owned());
            }
            let Some(to) = to.filter(|to| to.is_active()) else {
                fault(format!(
                    "to: {:?} is no layout that owns anything",
                    config.to
                ));
                continue;
            };
            match Writer::of(to) {
                Err(reason) => fault(format!("to: {reason}")),
                Ok(writer) => {
                    if config.payload_class.is_some() && writer != Writer::Curator {
                        fault("payload_class is for projections into curator".to_owned());
                    }
                    bridges.push(Bridge {
                        config: config.clone(),
                        writer,
                        protocol: to.protocol(),
                        to: to.id().clone(),
                    });
                }
            }
        }
        if errors.is_empty() {
            Ok(bridges)
        } else {
            Err(errors)
        }
    }

    /// The layout into which it projects.
    pub fn target(&self) -> &LayoutId {
        &self.to
    }

    /// Whether this bridge is meant for the instance.
    pub fn covers(&self, instance: &Instance) -> bool {
        instance.layout.as_str() == self.config.from
            && self.config.services.as_ref().is_none_or(|services| {
                services
                    .iter()
                    .any(|name| *name == instance.name || *name == full_name(instance))
            })
    }

    /// The instance in the target's form.
    ///
    /// # Errors
    /// A [`Refusal`] when the target's readers would miss something that they need, or could not
    /// decode the result.
    pub fn project(&self, layouts: &LayoutSet, instance: &Instance) -> Result<Projection, Refusal> {
        if is_projected_name(&instance.instance_id) {
            return Err(Refusal::new("the instance is a projection itself"));
        }
        let service = self.target_service(instance)?;
        if instance.status != Status::Up && self.writer != Writer::Spring {
            return Err(Refusal::new(format!(
                "its status is {}, which readers of {} cannot see",
                instance.status.as_word(),
                self.to
            )));
        }
        let wanted = self.carried(instance)?;
        let groups: Vec<Vec<&Endpoint>> = match self.writer {
            Writer::Grpc | Writer::GoZero => wanted
                .endpoints
                .iter()
                .map(|endpoint| vec![endpoint])
                .collect(),
            Writer::Curator | Writer::Spring | Writer::Kratos => {
                vec![wanted.endpoints.iter().collect()]
            }
        };
        let mut records = Vec::new();
        for group in &groups {
            let id = projected_name(&instance.identity, group);
            let captures: BTreeMap<&str, &str> = [("id", id.as_str())].into_iter().collect();
            let key = layouts
                .render_key(self.to.as_str(), &service, &captures)
                .ok_or_else(|| {
                    Refusal::new(format!("{} does not own a service {service:?}", self.to))
                })?;
            let value = self.value(&service, &id, instance, &wanted, group)?;
            records.push(ProjectedRecord { key, value });
        }
        let scope = self.check(layouts, &service, &records, &wanted)?;
        Ok(Projection {
            layout: self.to.clone(),
            protocol: self.protocol,
            scope,
            records,
        })
    }

    fn target_service(&self, instance: &Instance) -> Result<String, Refusal> {
        let full = full_name(instance);
        if let Some(name) = self.config.rename.get(&full) {
            return Ok(name.clone());
        }
        if instance.group.is_some() || instance.version.is_some() {
            return Err(Refusal::new(format!(
                "readers of {} cannot tell groups and versions apart; give {full:?} a name of its own under rename",
                self.to
            )));
        }
        Ok(instance.name.clone())
    }

    /// What has to survive.
    fn carried(&self, instance: &Instance) -> Result<Carried, Refusal> {
        let loses = |loss: Loss| self.config.accept_loss.contains(&loss);
        let mut schemes = BTreeSet::new();
        let mut endpoints = Vec::new();
        for endpoint in &instance.endpoints {
            let scheme = endpoint.scheme.as_deref();
            schemes.insert(scheme.unwrap_or("no named protocol"));
            let spoken = match &self.config.schemes {
                Some(wanted) => scheme.is_none_or(|scheme| wanted.iter().any(|w| w == scheme)),
                None => self.writer.speaks(scheme) || loses(Loss::Scheme),
            };
            if !spoken {
                continue;
            }
            if endpoint.port.is_none() {
                return Err(Refusal::new("an address has no port"));
            }
            if endpoint.tls && !loses(Loss::Tls) && !self.writer.shows_tls() {
                return Err(Refusal::new(format!(
                    "readers of {} cannot tell that an address speaks TLS",
                    self.to
                )));
            }
            let mut endpoint = endpoint.clone();
            endpoint.name = None;
            endpoint.tls &= self.writer.shows_tls();
            // What both sides agree on needs no place in the record, except where the form has one.
            let agreed = self.writer.implies(scheme) || self.only_scheme().is_some();
            endpoint.scheme = match endpoint.scheme.take() {
                scheme if self.writer == Writer::Kratos => {
                    scheme.or_else(|| self.only_scheme().map(str::to_owned))
                }
                _ if loses(Loss::Scheme) || agreed => None,
                scheme => scheme,
            };
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            let found: Vec<&str> = schemes.into_iter().collect();
            return Err(Refusal::new(format!(
                "no address speaks what readers of {} speak (it has {})",
                self.to,
                found.join(", ")
            )));
        }
        let weight = if loses(Loss::Weight) {
            None
        } else {
            instance.weight
        };
        let metadata = if loses(Loss::Metadata) {
            Vec::new()
        } else {
            instance.metadata.clone()
        };
        let names: BTreeSet<&str> = metadata.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() != metadata.len() {
            return Err(Refusal::new("a name occurs twice in its metadata"));
        }
        if names.contains(EXTRAS) {
            return Err(Refusal::new(format!(
                "its metadata has the reserved name {EXTRAS:?}"
            )));
        }
        Ok(Carried {
            endpoints,
            weight,
            status: instance.status.clone(),
            metadata,
        })
    }

    /// Reads the records back as the target's readers would, and compares.
    fn check(
        &self,
        layouts: &LayoutSet,
        service: &str,
        records: &[ProjectedRecord],
        wanted: &Carried,
    ) -> Result<String, Refusal> {
        let (node, lease) = match self.protocol {
            Protocol::Zookeeper => (NodeKind::Ephemeral, None),
            Protocol::Etcd => (NodeKind::Leased, Some(CHECK_LEASE)),
        };
        let mut endpoints = Vec::new();
        let mut scope = None;
        for record in records {
            let read =
                match layouts.classify(self.protocol, &record.key, &record.value, node, lease) {
                    Classified::Instance(read)
                        if read.layout == self.to && read.name == service =>
                    {
                        read
                    }
                    Classified::Companion {
                        decode_error: Some(error),
                        ..
                    } => {
                        return Err(Refusal::new(format!(
                            "{} would not read it back: {error}",
                            self.to
                        )));
                    }
                    _ => {
                        return Err(Refusal::new(format!(
                            "{} would not read it back as an instance",
                            self.to
                        )));
                    }
                };
            let read = Carried::read_back(&read, self.writer, self.config.payload_class.as_deref())
                .ok_or_else(|| Refusal::new("what its form has no place for does not read back"))?;
            let mut lost = Vec::new();
            if read.weight != wanted.weight {
                lost.push("weight");
            }
            if read.status != wanted.status {
                lost.push("status");
            }
            if sorted(&read.metadata) != sorted(&wanted.metadata) {
                lost.push("metadata");
            }
            if !lost.is_empty() {
                return Err(self.has_no_place(&lost));
            }
            endpoints.extend(read.endpoints);
            scope.get_or_insert(scope_key(
                &layouts
                    .namespace_of(self.protocol, &record.key)
                    .unwrap_or_default(),
                service,
            ));
        }
        if endpoints != wanted.endpoints {
            return Err(self.has_no_place(&["addresses"]));
        }
        scope.ok_or_else(|| Refusal::new("nothing to write"))
    }

    fn has_no_place(&self, what: &[&str]) -> Refusal {
        Refusal::new(format!(
            "{} has no place for its {}",
            self.to,
            what.join(", ")
        ))
    }

    fn value(
        &self,
        service: &str,
        id: &str,
        instance: &Instance,
        wanted: &Carried,
        group: &[&Endpoint],
    ) -> Result<Vec<u8>, Refusal> {
        let first = group
            .first()
            .ok_or_else(|| Refusal::new("an instance without an address"))?;
        let address = join_host_port(&first.host, first.port.unwrap_or_default());
        let json = match self.writer {
            Writer::GoZero => {
                let mut lost = Vec::new();
                if !wanted.metadata.is_empty() {
                    lost.push("metadata");
                }
                if wanted.weight.is_some() {
                    lost.push("weight");
                }
                if first.scheme.is_some() {
                    lost.push("scheme");
                }
                if !lost.is_empty() {
                    return Err(self.has_no_place(&lost));
                }
                return Ok(address.into_bytes());
            }
            Writer::Grpc => {
                json!({ "Op": 0, "Addr": address, "Metadata": self.free_metadata(wanted, first, None)? })
            }
            Writer::Curator => {
                let (plain, tls) = self.plain_and_tls(group)?;
                let payload =
                    self.free_metadata(wanted, first, self.config.payload_class.as_deref())?;
                let uri = match wanted.metadata.iter().find(|(name, _)| name == URI_SPEC) {
                    Some((_, MetaValue::Json(text))) => {
                        serde_json::from_str(text).unwrap_or_default()
                    }
                    _ => Value::Null,
                };
                curator_json(
                    service,
                    id,
                    first,
                    (plain, tls),
                    payload,
                    instance.registered_at_ms,
                    uri,
                )
            }
            Writer::Spring => {
                let (plain, tls) = self.plain_and_tls(group)?;
                if plain.is_none() {
                    return Err(Refusal::new(
                        "Spring's readers fail on a record without a plain port",
                    ));
                }
                let mut metadata = self.flat_metadata(wanted, first)?;
                metadata.shift_remove(INSTANCE_STATUS);
                metadata.insert(INSTANCE_STATUS.to_owned(), wanted.status.as_word().into());
                let payload = json!({ "@class": SPRING_CLASS, "id": id, "name": service, "metadata": metadata });
                curator_json(
                    service,
                    id,
                    first,
                    (plain, tls),
                    payload,
                    instance.registered_at_ms,
                    spring_uri_spec(),
                )
            }
            Writer::Kratos => {
                let mut metadata = self.flat_metadata(wanted, first)?;
                let version = metadata
                    .shift_remove(KRATOS_VERSION)
                    .unwrap_or_else(|| "".into());
                let endpoints: Vec<String> = group
                    .iter()
                    .map(|endpoint| {
                        let scheme = endpoint.scheme.as_deref();
                        let scheme = scheme.ok_or_else(|| {
                            Refusal::new("kratos needs the protocol's name; set schemes")
                        })?;
                        let address =
                            join_host_port(&endpoint.host, endpoint.port.unwrap_or_default());
                        Ok(format!("{scheme}://{address}?isSecure={}", endpoint.tls))
                    })
                    .collect::<Result<_, Refusal>>()?;
                json!({ "id": id, "name": service, "version": version, "metadata": metadata, "endpoints": endpoints })
            }
        };
        Ok(json.to_string().into_bytes())
    }

    fn only_scheme(&self) -> Option<&str> {
        match self.config.schemes.as_deref() {
            Some([only]) => Some(only),
            _ => None,
        }
    }

    /// Curator's record has one host with a plain port, a TLS port, or both.
    fn plain_and_tls(&self, group: &[&Endpoint]) -> Result<(Option<u16>, Option<u16>), Refusal> {
        let host = group.first().map(|endpoint| &endpoint.host);
        let plain: Vec<u16> = group
            .iter()
            .filter(|e| !e.tls)
            .filter_map(|e| e.port)
            .collect();
        let tls: Vec<u16> = group
            .iter()
            .filter(|e| e.tls)
            .filter_map(|e| e.port)
            .collect();
        let scheme = group.first().map(|endpoint| &endpoint.scheme);
        if plain.len() > 1
            || tls.len() > 1
            || group
                .iter()
                .any(|e| Some(&e.host) != host || Some(&e.scheme) != scheme)
        {
            return Err(Refusal::new(format!(
                "{} has place for one plain and one TLS port of one host; choose by schemes",
                self.to
            )));
        }
        Ok((plain.first().copied(), tls.first().copied()))
    }

    /// What the target's form has no place for beside its metadata.
    fn extras(&self, wanted: &Carried, endpoint: &Endpoint) -> Map<String, Value> {
        let mut extras = Map::new();
        if let (Some(scheme), true) = (&endpoint.scheme, self.writer != Writer::Kratos) {
            extras.insert("scheme".into(), scheme.as_str().into());
        }
        let own_weight =
            self.writer == Writer::Kratos && kratos_weight(&wanted.metadata) == wanted.weight;
        if let (Some(weight), false) = (wanted.weight, own_weight) {
            extras.insert("weight".into(), weight.into());
        }
        extras
    }

    /// Metadata for a form that takes any JSON.
    fn free_metadata(
        &self,
        wanted: &Carried,
        endpoint: &Endpoint,
        class: Option<&str>,
    ) -> Result<Value, Refusal> {
        let extras = self.extras(wanted, endpoint);
        let own = |name: &str| self.writer == Writer::Curator && name == URI_SPEC;
        let entries: Vec<&(String, MetaValue)> = wanted
            .metadata
            .iter()
            .filter(|(name, _)| !own(name))
            .collect();
        if let [(name, value)] = entries.as_slice()
            && name.is_empty()
        {
            return match extras.is_empty() {
                true => json_of(value),
                false => Err(Refusal::new(
                    "its metadata is no map, so that nothing can be added to it",
                )),
            };
        }
        if entries.is_empty() && extras.is_empty() {
            return Ok(Value::Null);
        }
        let mut object = Map::new();
        let classed = entries.iter().any(|(name, _)| name == CLASS);
        if self.writer == Writer::Curator && !classed {
            let class = class.ok_or_else(|| {
                Refusal::new("Curator's readers decode metadata into one Java class; name it by payload_class")
            })?;
            object.insert(CLASS.into(), class.into());
        }
        for (name, value) in entries {
            object.insert(name.clone(), json_of(value)?);
        }
        if !extras.is_empty() {
            object.insert(EXTRAS.into(), Value::Object(extras));
        }
        Ok(Value::Object(object))
    }

    /// Metadata for a form that takes texts only: JSON goes in as text, and is named in the extras.
    fn flat_metadata(
        &self,
        wanted: &Carried,
        endpoint: &Endpoint,
    ) -> Result<Map<String, Value>, Refusal> {
        let mut extras = self.extras(wanted, endpoint);
        let mut object = Map::new();
        let mut jsons = Vec::new();
        for (name, value) in &wanted.metadata {
            if name.is_empty() {
                return Err(Refusal::new(format!(
                    "its metadata is no map, and {} has maps only",
                    self.to
                )));
            }
            if matches!(value, MetaValue::Json(_)) {
                jsons.push(Value::from(name.as_str()));
            }
            object.insert(name.clone(), value.as_str().into());
        }
        if !jsons.is_empty() {
            extras.insert("json".into(), Value::Array(jsons));
        }
        if !extras.is_empty() {
            object.insert(EXTRAS.into(), Value::Object(extras).to_string().into());
        }
        Ok(object)
    }
}

const CLASS: &str = "@class";
const URI_SPEC: &str = "curator.uriSpec";
const KRATOS_VERSION: &str = "kratos.version";
const INSTANCE_STATUS: &str = "instance_status";
const SPRING_CLASS: &str = "org.springframework.cloud.zookeeper.discovery.ZookeeperInstance";

impl Writer {
    fn of(layout: &Layout) -> Result<Writer, String> {
        match layout.family() {
            "grpc-endpoints" => Ok(Writer::Grpc),
            "go-zero" => Ok(Writer::GoZero),
            "curator" => Ok(Writer::Curator),
            "spring-zk" => Ok(Writer::Spring),
            "kratos" | "kratos-zk" => Ok(Writer::Kratos),
            "dubbo-iface-zk" => {
                Err("a Dubbo URL needs interface and methods, which no other layout has".into())
            }
            "dubbo-app-zk" => {
                Err("Dubbo's callers need mapping and metadata documents beside the record".into())
            }
            "dianrong" => Err(
                "its names drop the dots of the address, so that two hosts can share one".into(),
            ),
            other => Err(format!("nothing is known about writing {other:?}")),
        }
    }

    /// What its readers speak to an address, when configuration does not say.
    fn speaks(self, scheme: Option<&str>) -> bool {
        match (self, scheme) {
            (_, None) | (Writer::Kratos | Writer::Curator, _) => true,
            // Dubbo's triple protocol is gRPC on the wire.
            (Writer::Grpc | Writer::GoZero, Some(scheme)) => {
                matches!(scheme, "grpc" | "grpcs" | "tri")
            }
            (Writer::Spring, Some(scheme)) => matches!(scheme, "http" | "https"),
        }
    }

    /// Whether its readers assume this protocol anyway.
    fn implies(self, scheme: Option<&str>) -> bool {
        match self {
            Writer::Grpc | Writer::GoZero => matches!(scheme, Some("grpc")),
            Writer::Spring => matches!(scheme, Some("http")),
            Writer::Curator | Writer::Kratos => false,
        }
    }

    fn shows_tls(self) -> bool {
        matches!(self, Writer::Curator | Writer::Spring | Writer::Kratos)
    }
}

/// The fields that a projection must not lose.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Carried {
    endpoints: Vec<Endpoint>,
    weight: Option<u32>,
    status: Status,
    metadata: Vec<(String, MetaValue)>,
}

impl Carried {
    /// The fields out of the target's form, with its additions taken out again.
    fn read_back(instance: &Instance, writer: Writer, class: Option<&str>) -> Option<Carried> {
        let mut metadata = instance.metadata.clone();
        let extras = match metadata.iter().position(|(name, _)| name == EXTRAS) {
            Some(at) => {
                serde_json::from_str::<Map<String, Value>>(metadata.remove(at).1.as_str()).ok()?
            }
            None => Map::new(),
        };
        for name in extras
            .get("json")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let entry = metadata
                .iter_mut()
                .find(|(n, _)| Some(n.as_str()) == name.as_str())?;
            entry.1 = MetaValue::Json(entry.1.as_str().to_owned());
        }
        match writer {
            Writer::Curator => {
                let added = |(name, value): &(String, MetaValue)| {
                    name == CLASS && Some(value.as_str()) == class
                };
                metadata.retain(|entry| !added(entry));
            }
            Writer::Spring => metadata.retain(|(name, _)| name != INSTANCE_STATUS),
            Writer::Kratos => metadata
                .retain(|(name, value)| name != KRATOS_VERSION || !value.as_str().is_empty()),
            Writer::Grpc | Writer::GoZero => {}
        }
        let weight = match extras.get("weight").and_then(Value::as_u64) {
            Some(weight) => u32::try_from(weight).ok(),
            None => instance.weight,
        };
        let scheme = extras.get("scheme").and_then(Value::as_str);
        let mut endpoints = instance.endpoints.clone();
        for endpoint in &mut endpoints {
            endpoint.name = None;
            if let Some(scheme) = scheme {
                endpoint.scheme = Some(scheme.to_owned());
            }
        }
        Some(Carried {
            endpoints,
            weight,
            status: instance.status.clone(),
            metadata,
        })
    }
}

fn sorted(metadata: &[(String, MetaValue)]) -> BTreeMap<&str, &MetaValue> {
    metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect()
}

fn kratos_weight(metadata: &[(String, MetaValue)]) -> Option<u32> {
    metadata
        .iter()
        .find(|(name, _)| name == "weight")
        .and_then(|(_, value)| value.as_str().parse().ok())
}

/// Name with `:version` and `@group`: the service's key without its namespace.
fn full_name(instance: &Instance) -> String {
    let key = instance
        .service
        .strip_prefix(instance.namespace.as_str())
        .and_then(|rest| rest.strip_prefix('/'));
    key.unwrap_or(&instance.service).to_owned()
}

/// A name of fixed length, so that none is the beginning of another, out of 128 bits of a hash over
/// what tells the instance, and its address, from every other.
fn projected_name(identity: &str, group: &[&Endpoint]) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(u64::try_from(text.len()).unwrap_or_default().to_be_bytes());
        hash.update(text.as_bytes());
    };
    add(identity);
    if let [only] = group {
        add(&only.host);
        add(&only.port.unwrap_or_default().to_string());
        add(only.scheme.as_deref().unwrap_or_default());
    }
    let digest = hash.finalize();
    let hex: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{NAME_PREFIX}{hex}")
}

fn json_of(value: &MetaValue) -> Result<Value, Refusal> {
    match value {
        MetaValue::Text(text) => Ok(Value::String(text.clone())),
        MetaValue::Json(text) => serde_json::from_str(text)
            .map_err(|_| Refusal::new("its metadata holds JSON that does not read back")),
    }
}

fn curator_json(
    service: &str,
    id: &str,
    first: &Endpoint,
    (port, tls_port): (Option<u16>, Option<u16>),
    payload: Value,
    registered_at_ms: Option<i64>,
    uri_spec: Value,
) -> Value {
    json!({
        "name": service,
        "id": id,
        "address": first.host,
        "port": port,
        "sslPort": tls_port,
        "payload": payload,
        "registrationTimeUTC": registered_at_ms.unwrap_or_default(),
        "serviceType": "DYNAMIC",
        "uriSpec": uri_spec,
    })
}

/// `{scheme}://{address}:{port}`, as Spring writes it.
fn spring_uri_spec() -> Value {
    let part = |value: &str, variable: bool| json!({ "value": value, "variable": variable });
    json!({ "parts": [
        part("scheme", true),
        part("://", false),
        part("address", true),
        part(":", false),
        part("port", true),
    ] })
}

#[cfg(test)]
mod tests;
