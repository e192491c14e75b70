//! The declarative description of a layout, as it stands in TOML, and its faults.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::instance::Role;
use crate::path::Protocol;

/// One fault of the layouts' configuration. Loading returns all of them at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutError {
    /// Id of the layout, or its place (`layout 3`) when it has none.
    pub layout: String,
    /// What is wrong, for the person who wrote it.
    pub fault: String,
}

impl LayoutError {
    pub(crate) fn new(layout: impl Into<String>, fault: impl Into<String>) -> LayoutError {
        LayoutError {
            layout: layout.into(),
            fault: fault.into(),
        }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layout {}: {}", self.layout, self.fault)
    }
}

impl std::error::Error for LayoutError {}

/// A `[[layout]]` table: either a whole description, or `use = "id"` of a built-in one with what
/// differs (`roots`, `targets`, `services`, `namespace`, `id`, ... each given key replaces the
/// built-in's).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutConfig {
    /// Id, unique among all layouts. With `use` it defaults to the used layout's, which it replaces.
    pub id: Option<String>,
    /// Id of the built-in layout that this one starts from.
    #[serde(rename = "use")]
    pub use_: Option<String>,
    /// Whose keys these are.
    pub store: Option<Protocol>,
    /// Key template (module `template`).
    pub template: Option<String>,
    /// How a value is read; default `none`.
    pub value: Option<ValueKind>,
    /// Kind of znode that an instance must be; default any.
    pub node: Option<NodeRequirement>,
    /// Whether an instance's key must have a lease; default any.
    pub lease: Option<LeaseRequirement>,
    /// How the layout's writers change a record; default `set`.
    pub update: Option<Update>,
    /// Whether one bad child makes the layout's readers fail; default `strict`, the careful one.
    pub read: Option<Read>,
    /// Kind of the parents that the layout's writers make; default `none`.
    pub parents: Option<Parents>,
    /// How a value is written back; `as-read` keeps a flavour of several. Documents only: within a
    /// layout bytes are always kept.
    pub write: Option<Write>,
    /// Role of a record by the word in the template's closed set.
    pub roles: Option<BTreeMap<String, Role>>,
    /// Role of what stands beside the instances, by pattern of the name (`vector_*`).
    pub siblings: Option<BTreeMap<String, Role>>,
    /// Role of subtrees below the root that are no service, by first segment.
    pub companions: Option<BTreeMap<String, Role>>,
    /// Conditions which must all hold before a record counts as an instance.
    pub claim: Option<Vec<String>>,
    /// Further conditions before the layout is suggested for a record that none claims.
    pub suggest: Option<Vec<String>>,
    /// Field of the instance = source.
    pub map: Option<BTreeMap<String, String>>,
    /// Subtrees that stand for `{root}`, owned whole unless services are listed.
    pub roots: Option<Vec<String>>,
    /// Listed services, in the words of etcd's naming package.
    pub targets: Option<Vec<String>>,
    /// Listed services: only their subtrees are owned.
    pub services: Option<Vec<String>>,
    /// Name of the namespace; default the root without outer slashes, or the id.
    pub namespace: Option<String>,
    /// Where subtrees overlap, the layout with the larger number is asked first; default 0.
    pub priority: Option<i32>,
}

/// A `[[pass]]` table: a prefix that no layout may own. Passing through is the default; this
/// documents a prefix, blocks accidental claims and silences suggestions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassConfig {
    /// Whose keys; both when absent.
    pub store: Option<Protocol>,
    /// Raw prefix: a znode path with all below it, or the beginning of etcd keys.
    pub prefix: String,
    /// What it is, shown beside the prefix.
    pub note: Option<String>,
}

/// How a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueKind {
    /// Not looked at: the record is in the name.
    #[default]
    None,
    /// Text.
    Utf8,
    /// `host:port`.
    Hostport,
    /// `host[:port[:weight]]`.
    HostportWeight,
    /// One URL.
    Url,
    /// A form-encoded query.
    Query,
    /// JSON.
    Json,
    /// A string in Java's serialisation or bare, holding a URL.
    JavaString,
    /// One byte, 1 for on and 0 for off.
    ByteFlag,
}

/// Kind of znode that an instance must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRequirement {
    /// Ephemeral, sequential or not.
    Ephemeral,
    /// Ephemeral with a sequence suffix.
    EphemeralSequential,
    /// Without an owner.
    Persistent,
}

/// Whether an instance's key must have a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseRequirement {
    /// It must.
    Required,
    /// It must not.
    None,
}

/// How the layout's own writers change a record, and so what its readers notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Update {
    /// In place: readers watch data.
    #[default]
    Set,
    /// Delete and create: readers watch children only, and miss a change in place.
    Recreate,
}

/// What the layout's readers make of a child that they cannot decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Read {
    /// The whole service becomes unreadable.
    #[default]
    Strict,
    /// It is skipped.
    Lenient,
}

/// Kind of the parents that the layout's writers make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parents {
    /// Persistent znodes (or keys).
    Persistent,
    /// Container znodes, which go when their last child went.
    Container,
    /// None are needed.
    #[default]
    None,
}

/// How a value is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Write {
    /// In the flavour in which it was read.
    AsRead,
}

/// The layouts' part of a configuration file, read table by table so that every unknown key and
/// every wrong type is named at once.
pub(crate) fn read_toml(
    text: &str,
) -> Result<(Vec<LayoutConfig>, Vec<PassConfig>), Vec<LayoutError>> {
    let mut errors = Vec::new();
    let mut layouts = Vec::new();
    let mut passes = Vec::new();
    let whole: toml::Table = match toml::from_str(text) {
        Ok(table) => table,
        Err(error) => return Err(vec![LayoutError::new("file", format!("not TOML: {error}"))]),
    };
    for (name, value) in whole {
        let toml::Value::Array(tables) = value else {
            errors.push(LayoutError::new(
                "file",
                format!("unknown key {name:?}; [[layout]] and [[pass]] are read here"),
            ));
            continue;
        };
        for (index, table) in tables.into_iter().enumerate() {
            let place = format!("{name} {}", index + 1);
            match (name.as_str(), table) {
                ("layout", toml::Value::Table(table)) => {
                    layouts.extend(read_layout(table, &place, &mut errors))
                }
                ("pass", toml::Value::Table(table)) => match table.try_into() {
                    Ok(pass) => passes.push(pass),
                    Err(error) => errors.push(LayoutError::new(place, one_line(&error))),
                },
                _ => errors.push(LayoutError::new(
                    place,
                    "unknown; [[layout]] and [[pass]] are read here",
                )),
            }
        }
    }
    if errors.is_empty() {
        Ok((layouts, passes))
    } else {
        Err(errors)
    }
}

const LAYOUT_KEYS: &[&str] = &[
    "id",
    "use",
    "store",
    "template",
    "value",
    "node",
    "lease",
    "update",
    "read",
    "parents",
    "write",
    "roles",
    "siblings",
    "companions",
    "claim",
    "suggest",
    "map",
    "roots",
    "targets",
    "services",
    "namespace",
    "priority",
];

fn read_layout(
    table: toml::Table,
    place: &str,
    errors: &mut Vec<LayoutError>,
) -> Option<LayoutConfig> {
    let id = ["id", "use"]
        .iter()
        .find_map(|key| table.get(*key))
        .and_then(|id| id.as_str());
    let label = id.map_or_else(|| place.to_owned(), str::to_owned);
    let before = errors.len();
    for (key, value) in &table {
        if !LAYOUT_KEYS.contains(&key.as_str()) {
            errors.push(LayoutError::new(&label, format!("unknown key {key:?}")));
            continue;
        }
        // Alone, so that one wrong type does not hide the next.
        let alone: toml::Table = [(key.clone(), value.clone())].into_iter().collect();
        if let Err(error) = alone.try_into::<LayoutConfig>() {
            errors.push(LayoutError::new(
                &label,
                format!("{key}: {}", one_line(&error)),
            ));
        }
    }
    if errors.len() > before {
        return None;
    }
    match table.try_into() {
        Ok(layout) => Some(layout),
        Err(error) => {
            errors.push(LayoutError::new(&label, one_line(&error)));
            None
        }
    }
}

fn one_line(error: &toml::de::Error) -> String {
    error
        .message()
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
}

impl LayoutConfig {
    /// This table over the built-in one that it uses.
    pub(crate) fn over(self, base: &LayoutConfig) -> LayoutConfig {
        let base = base.clone();
        LayoutConfig {
            id: self.id.or(base.id),
            use_: self.use_,
            store: self.store.or(base.store),
            template: self.template.or(base.template),
            value: self.value.or(base.value),
            node: self.node.or(base.node),
            lease: self.lease.or(base.lease),
            update: self.update.or(base.update),
            read: self.read.or(base.read),
            parents: self.parents.or(base.parents),
            write: self.write.or(base.write),
            roles: self.roles.or(base.roles),
            siblings: self.siblings.or(base.siblings),
            companions: self.companions.or(base.companions),
            claim: self.claim.or(base.claim),
            suggest: self.suggest.or(base.suggest),
            map: self.map.or(base.map),
            roots: self.roots.or(base.roots),
            targets: self.targets.or(base.targets),
            services: self.services.or(base.services),
            namespace: self.namespace.or(base.namespace),
            priority: self.priority.or(base.priority),
        }
    }
}
