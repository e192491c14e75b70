//! One layout, checked and compiled from its description.

use std::collections::{BTreeMap, BTreeSet};

use super::claim::{Condition, Facts, Scope, Source, Val};
use super::description::{
    LayoutConfig, LayoutError, LeaseRequirement, NodeRequirement, Parents, Read, Update, ValueKind,
};
use super::instance::{LayoutId, Role, scope_key};
use super::place::Place;
use super::template::{Base, Capture, Reach, Segment, Template, match_tail};
use crate::path::{self, Protocol, is_at_or_below};

/// One compiled layout.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) id: LayoutId,
    /// Id of the built-in layout that it is, under whatever name; else its own id.
    pub(super) family: String,
    /// Whether `use` names the family.
    pub(super) builtin: bool,
    pub(super) protocol: Protocol,
    pub(super) template: Template,
    pub(super) value: ValueKind,
    pub(super) node: Option<NodeRequirement>,
    pub(super) lease: Option<LeaseRequirement>,
    pub(super) update: Update,
    pub(super) read: Read,
    pub(super) parents: Parents,
    /// The capture whose words have roles.
    pub(super) roles: Option<(String, BTreeMap<String, Role>)>,
    pub(super) siblings: Vec<(String, Role)>,
    pub(super) companions: BTreeMap<String, Role>,
    pub(super) claim: Vec<Condition>,
    pub(super) suggest: Vec<Condition>,
    pub(super) map: Map,
    /// Raw text before the service segment's slash; `None`: the key begins with the service.
    pub(super) bases: Vec<Option<String>>,
    pub(super) services: Vec<String>,
    pub(super) namespace: Option<String>,
    pub(super) priority: i32,
}

/// Where the fields of an instance come from.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    pub(super) fields: BTreeMap<&'static str, Source>,
    /// Single entries of the metadata, `"metadata.x"` in the description.
    pub(super) extra: Vec<(String, Source)>,
    /// Parameters that other fields took; the metadata `params` is the rest.
    pub(super) taken: BTreeSet<String>,
}

/// A subtree owned by a layout.
#[derive(Debug, Clone)]
pub(super) struct Owned {
    /// ZooKeeper: the path at its top. etcd: a key prefix that ends with a slash.
    pub(super) prefix: Vec<u8>,
    pub(super) layout: usize,
    pub(super) namespace: String,
    /// Set when the subtree is that of one listed service.
    pub(super) service: Option<String>,
}

impl Layout {
    /// Its id.
    pub fn id(&self) -> &LayoutId {
        &self.id
    }

    /// Id of the built-in layout that it is, under whatever name; else its own id.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// Whose keys it describes.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What its readers make of a bad child.
    pub fn read(&self) -> Read {
        self.read
    }

    /// How its writers change a record.
    pub fn update(&self) -> Update {
        self.update
    }

    /// Which parents its writers make.
    pub fn parents(&self) -> Parents {
        self.parents
    }

    /// How its values are read.
    pub fn value(&self) -> ValueKind {
        self.value
    }

    /// Whether it owns anything in this configuration.
    pub fn is_active(&self) -> bool {
        self.owned(0).next().is_some()
    }

    pub(super) fn compile(label: &str, config: &LayoutConfig) -> Result<Layout, Vec<LayoutError>> {
        let mut faults: Vec<String> = Vec::new();
        if label.is_empty()
            || !label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        {
            faults.push("an id is letters, digits, '-', '_' and '.'".to_owned());
        }
        if config.id.is_none() {
            faults.push("id is missing".to_owned());
        }
        let protocol = config.store.unwrap_or_else(|| {
            faults.push("store is missing: zookeeper or etcd".to_owned());
            Protocol::Zookeeper
        });
        let template = match (&config.template, config.store) {
            (None, _) => {
                faults.push("template is missing".to_owned());
                None
            }
            (Some(_), None) => None,
            (Some(text), Some(_)) => Template::parse(text, protocol)
                .map_err(|e| faults.extend(e))
                .ok(),
        };
        let value = config.value.unwrap_or_default();
        match protocol {
            Protocol::Zookeeper if config.lease.is_some() => {
                faults.push("lease is for etcd; use node".to_owned())
            }
            Protocol::Etcd if config.node.is_some() => {
                faults.push("node is for ZooKeeper; use lease".to_owned())
            }
            _ => {}
        }
        let map_text = config.map.clone().unwrap_or_default();
        let Some(template) = template else {
            for name in map_text.keys() {
                if Map::field(name).is_none() {
                    faults.push(format!("map: unknown field {name:?}"));
                }
            }
            return Err(faults
                .into_iter()
                .map(|fault| LayoutError::new(label, fault))
                .collect());
        };
        let names: Vec<&str> = template.captures().map(|c| c.name.as_str()).collect();
        let scope = Scope {
            captures: &names,
            value,
            protocol,
        };
        let mut conditions = |texts: &Option<Vec<String>>, what: &str| -> Vec<Condition> {
            let texts = texts.iter().flatten();
            texts
                .filter_map(|text| {
                    Condition::parse(text, scope)
                        .map_err(|e| faults.push(format!("{what}: {e}")))
                        .ok()
                })
                .collect()
        };
        let claim = conditions(&config.claim, "claim");
        let suggest = conditions(&config.suggest, "suggest");
        let map = Map::parse(&map_text, scope, &mut faults);
        let roles = config
            .roles
            .as_ref()
            .filter(|roles| !roles.is_empty())
            .and_then(|roles| {
                let owner = template
                    .captures()
                    .find(|c| roles.keys().all(|word| c.closed.contains(word)));
                if owner.is_none() {
                    faults.push(
                        "roles: no closed set of the template has all these words".to_owned(),
                    );
                }
                owner.map(|c| (c.name.clone(), roles.clone()))
            });
        let services: Vec<String> = config
            .targets
            .iter()
            .chain(&config.services)
            .flatten()
            .cloned()
            .collect();
        let bases = compile_bases(
            &template.base,
            config.roots.as_deref(),
            protocol,
            &mut faults,
        );
        if !services.is_empty() {
            check_services(&services, &template, &mut faults);
        }
        if !faults.is_empty() {
            return Err(faults
                .into_iter()
                .map(|fault| LayoutError::new(label, fault))
                .collect());
        }
        let layout = Layout {
            id: LayoutId::from(label),
            family: config.use_.clone().unwrap_or_else(|| label.to_owned()),
            builtin: config.use_.is_some(),
            protocol,
            value,
            node: config.node,
            lease: config.lease,
            update: config.update.unwrap_or_default(),
            read: config.read.unwrap_or_default(),
            parents: config.parents.unwrap_or_default(),
            roles,
            siblings: config
                .siblings
                .iter()
                .flatten()
                .map(|(p, r)| (p.clone(), *r))
                .collect(),
            companions: config.companions.clone().unwrap_or_default(),
            claim,
            suggest,
            map,
            bases,
            services,
            namespace: config.namespace.clone(),
            priority: config.priority.unwrap_or_default(),
            template,
        };
        let wide =
            layout.bases.iter().flatten().any(|base| base.is_empty()) && layout.services.is_empty();
        if wide && matches!(layout.template.base, Base::Root(_)) {
            return Err(vec![LayoutError::new(
                label,
                "the root \"/\" cannot be owned whole; list services",
            )]);
        }
        let reserved = |base: &String| {
            protocol == Protocol::Zookeeper && is_at_or_below(base.as_bytes(), b"/zookeeper")
        };
        if layout.bases.iter().flatten().any(reserved) {
            return Err(vec![LayoutError::new(
                label,
                "/zookeeper belongs to ZooKeeper itself",
            )]);
        }
        Ok(layout)
    }

    /// The subtrees that this layout owns.
    pub(super) fn owned(&self, layout: usize) -> impl Iterator<Item = Owned> + '_ {
        let namespace = |base: &Option<String>| {
            let root = base.as_deref().unwrap_or_default().trim_matches('/');
            self.namespace.clone().unwrap_or_else(|| {
                if root.is_empty() {
                    self.id.to_string()
                } else {
                    root.to_owned()
                }
            })
        };
        let end = if self.protocol == Protocol::Etcd {
            "/"
        } else {
            ""
        };
        self.bases.iter().flat_map(move |base| {
            let mut owned = Vec::new();
            if self.services.is_empty()
                && let Some(root) = base.as_deref().filter(|root| !root.is_empty())
            {
                let prefix = format!("{root}{end}").into_bytes();
                owned.push(Owned {
                    prefix,
                    layout,
                    namespace: namespace(base),
                    service: None,
                });
            }
            for service in &self.services {
                let Some(raw) = self.service_segment().and_then(|c| c.codec.encode(service)) else {
                    continue;
                };
                let prefix = match base {
                    Some(root) => format!("{root}/{raw}{end}"),
                    None => format!("{raw}{end}"),
                };
                let service = Some(service.clone());
                owned.push(Owned {
                    prefix: prefix.into_bytes(),
                    layout,
                    namespace: namespace(base),
                    service,
                });
            }
            owned
        })
    }

    /// The capture `{service}` when it is the whole first segment.
    pub(super) fn service_segment(&self) -> Option<&Capture> {
        match self.template.tail.first() {
            Some(Segment::Capture(c)) if c.name == "service" => Some(c),
            _ => None,
        }
    }

    pub(super) fn tail_after_service(&self) -> Option<&[Segment]> {
        self.service_segment()
            .and_then(|_| self.template.tail.get(1..))
    }

    pub(super) fn place<'a>(&'a self, owned: &Owned, key: &'a [u8]) -> Place<'a> {
        let text = std::str::from_utf8(key);
        let utf8 = text.is_ok();
        let text = text.unwrap_or_default();
        let rest = text.get(owned.prefix.len()..).unwrap_or_default();
        let rest = match self.protocol {
            Protocol::Zookeeper => rest.strip_prefix('/').unwrap_or(rest),
            Protocol::Etcd => rest,
        };
        self.place_at(
            owned.prefix.clone(),
            owned.namespace.clone(),
            owned.service.as_deref(),
            text,
            rest,
            utf8,
        )
    }

    fn place_at<'a>(
        &'a self,
        prefix: Vec<u8>,
        namespace: String,
        service: Option<&str>,
        text: &'a str,
        rest: &'a str,
        utf8: bool,
    ) -> Place<'a> {
        let mut found = match (service, self.tail_after_service()) {
            (Some(service), Some(tail)) => {
                let mut found = match_tail(tail, rest);
                found
                    .captures
                    .insert(0, ("service".to_owned(), service.to_owned()));
                found
            }
            _ => match_tail(&self.template.tail, rest),
        };
        let fixed = match service {
            None => rest
                .split('/')
                .next()
                .and_then(|first| self.companions.get(first))
                .copied(),
            Some(_) => None,
        };
        if fixed.is_some() {
            found.captures.clear();
        }
        let service_name = found
            .captures
            .iter()
            .find(|(name, _)| name == "service")
            .map(|(_, text)| text.as_str());
        let scope = service_name
            .filter(|_| service.is_some() || found.reach != Reach::Foreign)
            .map(|name| scope_key(&namespace, name));
        Place {
            layout: self,
            namespace,
            prefix,
            text,
            rest,
            found,
            fixed,
            listed: service.is_some(),
            scope,
            utf8,
        }
    }

    /// The service's directory by its `{namespace}/{service}`, when the template tells.
    pub(super) fn dir_by_scope(&self, owned: &Owned, scope: &str) -> Option<Vec<u8>> {
        let capture = self.service_segment()?;
        let escaped = scope
            .strip_prefix(owned.namespace.as_str())?
            .strip_prefix('/')?;
        let name = escaped
            .replace("%40", "@")
            .replace("%3A", ":")
            .replace("%25", "%");
        let raw = capture
            .codec
            .encode(&name)
            .filter(|raw| capture.allows(raw) && !raw.contains('/'))?;
        if self.companions.contains_key(&raw) {
            return None;
        }
        let mut dir = owned.prefix.clone();
        match self.protocol {
            Protocol::Zookeeper => dir.extend_from_slice(format!("/{raw}").as_bytes()),
            Protocol::Etcd => dir.extend_from_slice(format!("{raw}/").as_bytes()),
        }
        Some(dir)
    }

    /// The place that a key would have if this layout owned it, and the setting that makes it so.
    pub(super) fn guess<'a>(&'a self, text: &'a str) -> Option<(Place<'a>, String)> {
        if self
            .template
            .tail
            .iter()
            .any(|segment| matches!(segment, Segment::Multi(_)))
        {
            return None;
        }
        let cut = |segments: usize| -> Option<(&'a str, &'a str)> {
            let (at, _) = text.rmatch_indices('/').nth(segments.checked_sub(1)?)?;
            Some((text.get(..at)?, text.get(at + 1..)?))
        };
        let used = match self.builtin {
            true => format!("use = {:?}", self.family),
            false => format!("id = {:?}", self.id.as_str()),
        };
        let list = |name: &str, word: &str| format!("{used}, {name} = [{word:?}]");
        match &self.template.base {
            Base::Root(_) => {
                let (root, rest) = cut(self.template.tail.len())?;
                if root.is_empty() {
                    let service = rest.split('/').next()?;
                    let place = self.place_at(Vec::new(), String::new(), None, text, rest, true);
                    return Some((
                        place,
                        format!("{used}, roots = [\"/\"], services = [{service:?}]"),
                    ));
                }
                let place = self.place_at(Vec::new(), String::new(), None, text, rest, true);
                Some((place, list("roots", root)))
            }
            Base::Literal(base) => {
                let capture = self.service_segment()?;
                let (service, rest) = cut(self.template.tail.len().checked_sub(1)?)?;
                let service = match base {
                    None => service,
                    Some(base) => service.strip_prefix(base.as_str())?.strip_prefix('/')?,
                };
                let name = capture
                    .codec
                    .decode(service)
                    .ok()
                    .filter(|_| capture.allows(service))?;
                let place = self.place_at(Vec::new(), String::new(), Some(&name), text, rest, true);
                // The word of etcd's naming package for a service.
                let word = if self.family == "grpc-endpoints" {
                    "targets"
                } else {
                    "services"
                };
                Some((place, list(word, &name)))
            }
        }
    }
}

fn compile_bases(
    base: &Base,
    roots: Option<&[String]>,
    protocol: Protocol,
    faults: &mut Vec<String>,
) -> Vec<Option<String>> {
    let default = match base {
        Base::Literal(literal) => {
            if roots.is_some() {
                faults.push("roots: the template has no {root}".to_owned());
            }
            return vec![literal.clone()];
        }
        Base::Root(default) => default,
    };
    let listed: Vec<String> = match roots {
        Some(roots) => roots.to_vec(),
        None => default.iter().cloned().collect(),
    };
    listed
        .into_iter()
        .filter_map(|root| {
            // An etcd root is taken as it is written: with and without a slash are two prefixes.
            let root = match protocol {
                Protocol::Zookeeper => format!("/{}", root.trim_matches('/')),
                Protocol::Etcd => root.strip_suffix('/').unwrap_or(&root).to_owned(),
            };
            if protocol == Protocol::Zookeeper
                && let Err(fault) = path::check_znode_path(&root)
            {
                faults.push(format!("roots: {root:?}: {fault}"));
                return None;
            }
            Some(Some(if root == "/" { String::new() } else { root }))
        })
        .collect()
}

fn check_services(services: &[String], template: &Template, faults: &mut Vec<String>) {
    let Some(Segment::Capture(capture)) = template
        .tail
        .first()
        .filter(|s| matches!(s, Segment::Capture(c) if c.name == "service"))
    else {
        faults.push(
            "services can be listed only where {service} is the whole segment after the root"
                .to_owned(),
        );
        return;
    };
    for service in services {
        let raw = capture.codec.encode(service);
        if service.is_empty()
            || service.ends_with('/')
            || !raw.is_some_and(|raw| capture.allows(&raw))
        {
            faults.push(format!(
                "services: {service:?} does not fit the template's {{service}}"
            ));
        }
    }
}

impl Map {
    const FIELDS: &[&str] = &[
        "instance_id",
        "host",
        "port",
        "hostport",
        "endpoints",
        "extra_endpoints",
        "scheme",
        "tls_port",
        "group",
        "version",
        "weight",
        "status",
        "enabled",
        "metadata",
        "registered_at_ms",
        "shard",
    ];

    fn field(name: &str) -> Option<&'static str> {
        match name.strip_prefix("metadata.") {
            Some(rest) if !rest.is_empty() => Some("metadata."),
            _ => Map::FIELDS.iter().find(|field| **field == name).copied(),
        }
    }

    fn parse(texts: &BTreeMap<String, String>, scope: Scope<'_>, faults: &mut Vec<String>) -> Map {
        let mut map = Map::default();
        for (name, text) in texts {
            let Some(field) = Map::field(name) else {
                faults.push(format!(
                    "map: unknown field {name:?} (known: {}, metadata.x)",
                    Map::FIELDS.join(", ")
                ));
                continue;
            };
            let source = match Source::parse(text, scope) {
                Ok(source) => source,
                Err(fault) => {
                    faults.push(format!("map.{name}: {fault}"));
                    continue;
                }
            };
            if source == Source::Params && field != "metadata" {
                faults.push(format!("map.{name}: params is for metadata"));
            }
            if let Some(param) = source.param() {
                map.taken.insert(param.to_owned());
            }
            match field {
                "metadata." => map
                    .extra
                    .push((name.trim_start_matches("metadata.").to_owned(), source)),
                "shard" => map.extra.push((name.clone(), source)),
                field => {
                    map.fields.insert(field, source);
                }
            }
        }
        if !["host", "hostport", "endpoints"]
            .iter()
            .any(|field| map.fields.contains_key(field))
        {
            faults.push("map: one of host, hostport, endpoints is needed".to_owned());
        }
        map
    }

    pub(super) fn value(&self, field: &str, facts: &Facts<'_>) -> Val {
        self.fields
            .get(field)
            .map_or(Val::Missing, |source| source.value(facts))
    }
}
