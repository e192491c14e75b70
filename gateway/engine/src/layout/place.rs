//! A key's place in a layout, and what the record there is.

use super::claim::{Condition, Facts, Source, Val};
use super::codec::{self, DecodeError};
use super::compiled::{Layout, Map};
use super::description::{LeaseRequirement, NodeRequirement, ValueKind};
use super::exclusion;
use super::instance::{
    Endpoint, Instance, MetaValue, NodeKind, Role, Status, identity, scope_key, service_key,
};
use super::template::{Match, Part, Reach, Segment};
use crate::path::{self, Protocol};

/// A key's place in a layout.
pub(super) struct Place<'a> {
    pub(super) layout: &'a Layout,
    pub(super) namespace: String,
    /// Raw bytes before the part that `found` describes.
    pub(super) prefix: Vec<u8>,
    pub(super) text: &'a str,
    pub(super) rest: &'a str,
    pub(super) found: Match,
    /// Role by path alone, for subtrees that are no service.
    pub(super) fixed: Option<Role>,
    /// Set when the subtree is that of one listed service.
    pub(super) listed: bool,
    pub(super) scope: Option<String>,
    pub(super) utf8: bool,
}

pub(super) enum Verdict {
    Instance(Box<Instance>),
    Companion(Role, Option<DecodeError>),
}

impl Place<'_> {
    /// What the record here is, as this layout sees it.
    pub(super) fn read(&self, value: &[u8], node: NodeKind, lease: Option<i64>) -> Verdict {
        if !self.utf8 {
            return Verdict::Companion(Role::Other, Some(DecodeError::NotUtf8("key".into())));
        }
        if let Some(role) = self.fixed {
            return Verdict::Companion(role, None);
        }
        let name = path::name(self.text);
        let locked = || {
            self.rest.split('/').any(exclusion::looks_like_lock)
                || (self.layout.protocol == Protocol::Etcd
                    && exclusion::is_concurrency_key(self.text, lease))
        };
        if matches!(self.found.reach, Reach::Full | Reach::Beside) {
            let sibling = self
                .layout
                .siblings
                .iter()
                .find(|(pattern, _)| glob(pattern, name));
            if let Some((_, role)) = sibling {
                return Verdict::Companion(*role, None);
            }
        }
        match self.found.reach {
            Reach::Full => {}
            Reach::Above if !node.is_owned() => return Verdict::Companion(Role::Directory, None),
            _ if locked() => return Verdict::Companion(Role::Lock, None),
            _ => return Verdict::Companion(Role::Other, None),
        }
        let role = self.role();
        if !matches!(role, Role::Instance | Role::Unavailable) {
            return Verdict::Companion(role, None);
        }
        match self.instance(value, node, lease, role) {
            Ok(instance) => Verdict::Instance(Box::new(instance)),
            Err(_) if locked() => Verdict::Companion(Role::Lock, None),
            Err(error) => Verdict::Companion(Role::Stray, Some(error)),
        }
    }

    fn role(&self) -> Role {
        let Some((capture, roles)) = &self.layout.roles else {
            return Role::Instance;
        };
        let word = self
            .found
            .captures
            .iter()
            .find(|(name, _)| name == capture)
            .map(|(_, word)| word);
        word.and_then(|word| roles.get(word))
            .copied()
            .unwrap_or(Role::Other)
    }

    pub(super) fn holds(&self, conditions: &[Condition], value: &[u8], lease: Option<i64>) -> bool {
        conditions.is_empty()
            || self
                .facts(value, lease)
                .is_ok_and(|facts| conditions.iter().all(|c| c.holds(&facts)))
    }

    fn instance(
        &self,
        value: &[u8],
        node: NodeKind,
        lease: Option<i64>,
        role: Role,
    ) -> Result<Instance, DecodeError> {
        let layout = self.layout;
        self.check_node(node, lease)?;
        if let Some(error) = &self.found.error {
            return Err(error.clone());
        }
        let facts = self.facts(value, lease)?;
        if let Some(failed) = layout
            .claim
            .iter()
            .find(|condition| !condition.holds(&facts))
        {
            return Err(DecodeError::Claim(failed.text.clone()));
        }
        let map = &layout.map;
        let text = |field: &str| {
            map.value(field, &facts)
                .text()
                .filter(|text| !text.is_empty())
        };
        let endpoints = endpoints(map, &facts)?;
        let primary = endpoints
            .first()
            .ok_or_else(|| DecodeError::Missing("address".into()))?;
        let name = self.service_name().to_owned();
        let (group, version) = (text("group"), text("version"));
        let service = service_key(&self.namespace, &name, group.as_deref(), version.as_deref());
        let identity = identity(
            &self.namespace,
            &name,
            group.as_deref(),
            version.as_deref(),
            primary,
        );
        let status = match (
            role,
            text("enabled").map(|word| Status::from_word(&word)),
            text("status"),
        ) {
            (Role::Unavailable, _, _) => Status::Unavailable,
            (_, Some(Status::OutOfService), _) => Status::OutOfService,
            (_, _, Some(word)) => Status::from_word(&word),
            _ => Status::Up,
        };
        Ok(Instance {
            layout: layout.id.clone(),
            namespace: self.namespace.clone(),
            scope: scope_key(&self.namespace, &name),
            name,
            group,
            version,
            service,
            instance_id: text("instance_id").unwrap_or_else(|| facts.name.to_owned()),
            identity,
            weight: map
                .value("weight", &facts)
                .int()
                .and_then(|n| u32::try_from(n).ok()),
            status,
            metadata: metadata(map, &facts),
            registered_at_ms: map
                .value("registered_at_ms", &facts)
                .int()
                .and_then(|n| i64::try_from(n).ok()),
            endpoints,
        })
    }

    fn service_name(&self) -> &str {
        self.found
            .captures
            .iter()
            .find(|(name, _)| name == "service")
            .map_or("", |(_, text)| text.as_str())
    }

    fn check_node(&self, node: NodeKind, lease: Option<i64>) -> Result<(), DecodeError> {
        let ephemeral = matches!(node, NodeKind::Ephemeral | NodeKind::EphemeralSequential);
        let sequence = || {
            let name = path::name(self.text);
            node == NodeKind::EphemeralSequential
                || [10, 11].iter().any(|n| {
                    name.len()
                        .checked_sub(*n)
                        .and_then(|at| name.get(at..))
                        .is_some_and(codec::is_seq10)
                })
        };
        let (ok, what) = match self.layout.node {
            None => (true, ""),
            Some(NodeRequirement::Ephemeral) => (ephemeral, "ephemeral"),
            Some(NodeRequirement::EphemeralSequential) => {
                (ephemeral && sequence(), "ephemeral and sequential")
            }
            Some(NodeRequirement::Persistent) => (!ephemeral, "persistent"),
        };
        if !ok {
            return Err(DecodeError::Node(what.to_owned()));
        }
        let leased = lease.is_some_and(|lease| lease != 0);
        match self.layout.lease {
            Some(LeaseRequirement::Required) if !leased => Err(DecodeError::Lease("leased".into())),
            Some(LeaseRequirement::None) if leased => {
                Err(DecodeError::Lease("without a lease".into()))
            }
            _ => Ok(()),
        }
    }

    /// The record's decoded parts.
    fn facts(&self, value: &[u8], lease: Option<i64>) -> Result<Facts<'_>, DecodeError> {
        let mut facts = Facts {
            key: self.text,
            name: path::name(self.text),
            captures: &self.found.captures,
            lease,
            ..Facts::default()
        };
        let capture = |name: &str| {
            self.found
                .captures
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, text)| text.as_str())
        };
        if let Some(text) = capture("url") {
            facts.url = Some(codec::url(text)?);
        }
        if let Some(text) = capture("json") {
            facts.json = Some(json(text.as_bytes())?);
        }
        let kind = self.layout.value;
        if kind == ValueKind::None {
            return Ok(facts);
        }
        if value.is_empty() {
            return Err(DecodeError::Empty);
        }
        match kind {
            ValueKind::ByteFlag => {
                facts.flag = match value {
                    [0] => Some(false),
                    [1] => Some(true),
                    _ => return Err(DecodeError::Flag),
                };
                return Ok(facts);
            }
            ValueKind::Json => {
                // A name that holds the JSON comes first: its readers never look at the value.
                if facts.json.is_none() {
                    facts.json = Some(json(value)?);
                }
                return Ok(facts);
            }
            _ => {}
        }
        let text = match kind {
            ValueKind::JavaString => codec::java_string(value)?,
            _ => std::str::from_utf8(value)
                .map_err(|_| DecodeError::NotUtf8("value".into()))?
                .to_owned(),
        };
        match kind {
            ValueKind::Hostport => {
                let (host, port) = codec::host_port(&text)?;
                (facts.host, facts.port) = (Some(host), Some(port));
            }
            ValueKind::HostportWeight => {
                let (host, port, weight) = codec::host_port_weight(&text)?;
                (facts.host, facts.port, facts.weight) = (Some(host), port, weight);
            }
            ValueKind::Url | ValueKind::JavaString => {
                if facts.url.is_none() {
                    facts.url = Some(codec::url(&text)?);
                }
            }
            ValueKind::Query => facts.query = Some(codec::query(&text)?),
            ValueKind::None | ValueKind::Utf8 | ValueKind::Json | ValueKind::ByteFlag => {}
        }
        facts.text = Some(text);
        Ok(facts)
    }

    /// The raw directory or prefix of the service that the key belongs to.
    pub(super) fn service_dir(&self) -> Option<Vec<u8>> {
        self.scope.as_ref()?;
        if self.listed {
            return Some(self.prefix.clone());
        }
        let depth = self
            .layout
            .template
            .tail
            .iter()
            .position(|segment| match segment {
                Segment::Capture(c) | Segment::Multi(c) | Segment::Rest(c) => c.name == "service",
                Segment::Mixed { parts, .. } => parts
                    .iter()
                    .any(|part| matches!(part, Part::Capture(c) if c.name == "service")),
                Segment::Literal(_) => false,
            })?;
        if self
            .layout
            .template
            .tail
            .iter()
            .any(|segment| matches!(segment, Segment::Multi(_)))
        {
            return None;
        }
        let words: Vec<&str> = self.rest.split('/').take(depth + 1).collect();
        let mut dir = self.prefix.clone();
        match self.layout.protocol {
            Protocol::Zookeeper => {
                dir.extend_from_slice(format!("/{}", words.join("/")).as_bytes())
            }
            Protocol::Etcd => dir.extend_from_slice(format!("{}/", words.join("/")).as_bytes()),
        }
        Some(dir)
    }
}

fn json(bytes: &[u8]) -> Result<serde_json::Value, DecodeError> {
    // The message of a syntax error has the place and no text of the value.
    serde_json::from_slice(bytes).map_err(|e| DecodeError::Json(e.to_string()))
}

fn endpoints(map: &Map, facts: &Facts<'_>) -> Result<Vec<Endpoint>, DecodeError> {
    let scheme = map
        .value("scheme", facts)
        .text()
        .filter(|scheme| !scheme.is_empty());
    let mut endpoints = Vec::new();
    let mut push =
        |name: Option<&str>, scheme: Option<String>, host: String, port: Option<u16>, tls: bool| {
            let tls = tls || scheme.as_deref().is_some_and(is_tls_scheme);
            endpoints.push(Endpoint {
                name: name.map(str::to_owned),
                scheme,
                host,
                port,
                tls,
            });
        };
    if let Some(source) = map.fields.get("endpoints") {
        let Val::Json(serde_json::Value::Array(items)) = source.value(facts) else {
            return Err(DecodeError::Missing("endpoints".into()));
        };
        for item in &items {
            let text = item
                .as_str()
                .ok_or_else(|| DecodeError::Missing("endpoints".into()))?;
            let url = codec::url(text)?;
            let secure = url
                .params
                .iter()
                .any(|(name, value)| name == "isSecure" && value == "true");
            push(None, Some(url.scheme), url.host, url.port, secure);
        }
    } else if let Some(source) = map.fields.get("hostport") {
        let text = source
            .value(facts)
            .text()
            .ok_or_else(|| DecodeError::Missing("address".into()))?;
        let (host, port) = codec::host_port(&text)?;
        push(None, scheme, host, Some(port), false);
    } else {
        let host = map
            .value("host", facts)
            .text()
            .filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| DecodeError::Missing("host".into()))?;
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(&host)
            .to_owned();
        let port = port_of(map.value("port", facts), "port")?;
        let tls_port = port_of(map.value("tls_port", facts), "tls_port")?;
        if port.is_some() || tls_port.is_none() {
            push(None, scheme.clone(), host.clone(), port, false);
        }
        if let Some(tls_port) = tls_port {
            push(Some("tls"), scheme, host, Some(tls_port), true);
        }
    }
    if let Val::Json(serde_json::Value::Object(more)) = map.value("extra_endpoints", facts) {
        for (name, at) in &more {
            let host = at.get("host").and_then(|host| host.as_str());
            let port = at
                .get("port")
                .and_then(serde_json::Value::as_u64)
                .and_then(|port| u16::try_from(port).ok());
            let (Some(host), Some(port)) = (host, port) else {
                return Err(DecodeError::Missing("additional endpoint".into()));
            };
            push(Some(name), None, host.to_owned(), Some(port), false);
        }
    }
    if endpoints.is_empty() {
        Err(DecodeError::Missing("endpoints".into()))
    } else {
        Ok(endpoints)
    }
}

fn port_of(value: Val, what: &str) -> Result<Option<u16>, DecodeError> {
    match (&value, value.int()) {
        (Val::Missing, _) | (_, Some(0)) => Ok(None),
        (_, Some(port)) => u16::try_from(port)
            .map(Some)
            .map_err(|_| DecodeError::Missing(what.to_owned())),
        (_, None) => Err(DecodeError::Missing(what.to_owned())),
    }
}

fn is_tls_scheme(scheme: &str) -> bool {
    matches!(
        scheme.to_ascii_lowercase().as_str(),
        "https" | "grpcs" | "wss" | "tls" | "ssl"
    )
}

fn metadata(map: &Map, facts: &Facts<'_>) -> Vec<(String, MetaValue)> {
    let mut entries: Vec<(String, MetaValue)> = Vec::new();
    match map.fields.get("metadata") {
        None => {}
        Some(Source::Params) => {
            let rest = facts
                .params()
                .iter()
                .filter(|(name, _)| !map.taken.contains(name));
            entries
                .extend(rest.map(|(name, value)| (name.clone(), MetaValue::Text(value.clone()))));
        }
        Some(source) => match source.value(facts) {
            Val::Missing => {}
            Val::Json(serde_json::Value::Object(object)) => {
                entries.extend(
                    object
                        .iter()
                        .map(|(name, value)| (name.clone(), MetaValue::of_json(value))),
                );
            }
            // Metadata that is no map is one entry without a name.
            Val::Json(other) => entries.push((String::new(), MetaValue::of_json(&other))),
            Val::Text(text) => entries.push((String::new(), MetaValue::Text(text))),
            Val::Int(number) => entries.push((String::new(), MetaValue::Json(number.to_string()))),
        },
    }
    for (name, source) in &map.extra {
        match source.value(facts) {
            Val::Missing => {}
            Val::Json(value) => entries.push((name.clone(), MetaValue::of_json(&value))),
            Val::Text(text) => entries.push((name.clone(), MetaValue::Text(text))),
            Val::Int(number) => entries.push((name.clone(), MetaValue::Json(number.to_string()))),
        }
    }
    entries
}

/// `*` stands for any run of characters; nothing else is special.
fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}
