//! All layouts of a configuration together: who owns a key, and what a record is.

use std::collections::{BTreeMap, BTreeSet};

use super::claim::{Condition, Facts, Scope, Source, Val};
use super::codec::{self, DecodeError};
use super::description::{
    LayoutConfig, LayoutError, LeaseRequirement, NodeRequirement, Parents, PassConfig, Read,
    Update, ValueKind, read_toml,
};
use super::exclusion;
use super::instance::{
    Class, Classified, Endpoint, Instance, LayoutId, MetaValue, NodeKind, Role, Status, identity,
    scope_key, service_key,
};
use super::template::{Base, Match, Reach, Segment, Template, match_tail, render_tail};
use crate::path::{self, Protocol, is_at_or_below};

/// The layouts of one configuration. Immutable; equal configurations give equal answers on every
/// gateway.
#[derive(Debug, Clone)]
pub struct LayoutSet {
    layouts: Vec<Layout>,
    zookeeper: Index,
    etcd: Index,
    passes: Vec<PassConfig>,
}

/// One compiled layout.
#[derive(Debug, Clone)]
pub struct Layout {
    id: LayoutId,
    /// Id of the built-in layout that it is, under whatever name; else its own id.
    family: String,
    protocol: Protocol,
    pub(crate) template: Template,
    value: ValueKind,
    node: Option<NodeRequirement>,
    lease: Option<LeaseRequirement>,
    update: Update,
    read: Read,
    parents: Parents,
    /// The capture whose words have roles.
    roles: Option<(String, BTreeMap<String, Role>)>,
    siblings: Vec<(String, Role)>,
    companions: BTreeMap<String, Role>,
    claim: Vec<Condition>,
    suggest: Vec<Condition>,
    map: Map,
    /// Raw text before the service segment's slash; `None`: the key begins with the service.
    bases: Vec<Option<String>>,
    services: Vec<String>,
    namespace: Option<String>,
    priority: i32,
}

/// Where the fields of an instance come from.
#[derive(Debug, Clone, Default)]
struct Map {
    fields: BTreeMap<&'static str, Source>,
    /// Single entries of the metadata, `"metadata.x"` in the description.
    extra: Vec<(String, Source)>,
    /// Parameters that other fields took; the metadata `params` is the rest.
    taken: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
struct Index {
    owned: Vec<Owned>,
    /// Prefix to indices in `owned`, in the order in which they are asked.
    by_prefix: BTreeMap<Vec<u8>, Vec<usize>>,
    /// The prefixes that lie in no other, in order.
    roots: Vec<Vec<u8>>,
    longest: usize,
}

/// A subtree owned by a layout.
#[derive(Debug, Clone)]
struct Owned {
    /// ZooKeeper: the path at its top. etcd: a key prefix that ends with a slash.
    prefix: Vec<u8>,
    layout: usize,
    namespace: String,
    /// Set when the subtree is that of one listed service.
    service: Option<String>,
}

/// How a range of etcd keys lies to the owned ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeClass {
    /// No owned key can be in it.
    General,
    /// Only owned keys can be in it.
    Owned,
    /// Both can; the owned parts, in order, as `(start, end)`.
    Mixed(Vec<(Vec<u8>, Vec<u8>)>),
}

/// Where the instances of a service are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceDir {
    /// Layout that spells them.
    pub layout: LayoutId,
    /// Whose key it is.
    pub protocol: Protocol,
    /// ZooKeeper: the service's own directory. etcd: its prefix, with the slash.
    pub dir: Vec<u8>,
}

/// What a record is, that no layout owns but that has an owner of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// A layout would fit.
    Fits {
        /// Which.
        layout: LayoutId,
        /// What to write under `[[layout]]` for it.
        setting: String,
    },
    /// It is known to be something else, and must stay in one consistent store.
    NotRegistration(String),
}

impl LayoutSet {
    /// Compiles the built-in layouts in `enabled` (`None`: all of them) and the user's.
    ///
    /// A layout without root and without listed services loads, but owns nothing: it serves
    /// [`LayoutSet::suggest`] alone.
    ///
    /// # Errors
    /// Every fault of every layout, at once.
    pub fn load(
        configs: &[LayoutConfig],
        passes: &[PassConfig],
        enabled: Option<&[String]>,
    ) -> Result<LayoutSet, Vec<LayoutError>> {
        let mut errors = Vec::new();
        let builtin = match read_toml(super::builtin::TOML) {
            Ok((builtin, _)) => builtin,
            Err(faults) => return Err(faults),
        };
        let known: Vec<&str> = builtin.iter().filter_map(|b| b.id.as_deref()).collect();
        for id in enabled.unwrap_or_default() {
            if !known.contains(&id.as_str()) {
                errors.push(LayoutError::new(
                    id,
                    format!("no such built-in layout (known: {})", known.join(", ")),
                ));
            }
        }
        let mut user = Vec::new();
        let mut ids = BTreeSet::new();
        for (index, config) in configs.iter().enumerate() {
            let label = config
                .id
                .clone()
                .or_else(|| config.use_.clone())
                .unwrap_or_else(|| format!("layout {}", index + 1));
            let whole = match &config.use_ {
                None => config.clone(),
                Some(used) => match builtin.iter().find(|b| b.id.as_deref() == Some(used)) {
                    Some(base) => config.clone().over(base),
                    None => {
                        errors.push(LayoutError::new(
                            &label,
                            format!(
                                "use = {used:?} is no built-in layout (known: {})",
                                known.join(", ")
                            ),
                        ));
                        continue;
                    }
                },
            };
            if !ids.insert(label.clone()) {
                errors.push(LayoutError::new(
                    &label,
                    "this id is taken; give the second one an id of its own",
                ));
            }
            user.push((label, whole));
        }
        let mut layouts = Vec::new();
        for config in &builtin {
            let id = config.id.clone().unwrap_or_default();
            let on = enabled.is_none_or(|enabled| enabled.contains(&id));
            if ids.contains(&id) {
                continue;
            }
            match Layout::compile(&id, config) {
                Ok(mut layout) => {
                    // Switched off: known for suggestions, owns nothing.
                    if !on {
                        layout.bases.clear();
                    }
                    layouts.push(layout);
                }
                Err(faults) => errors.extend(faults),
            }
        }
        for (label, config) in &user {
            match Layout::compile(label, config) {
                Ok(layout) => layouts.push(layout),
                Err(faults) => errors.extend(faults),
            }
        }
        layouts.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.id.cmp(&b.id)));
        let zookeeper = Index::build(&layouts, Protocol::Zookeeper, &mut errors);
        let etcd = Index::build(&layouts, Protocol::Etcd, &mut errors);
        let set = LayoutSet {
            layouts,
            zookeeper,
            etcd,
            passes: passes.to_vec(),
        };
        set.check_passes(&mut errors);
        if errors.is_empty() {
            Ok(set)
        } else {
            Err(errors)
        }
    }

    /// As [`LayoutSet::load`], from the text of a file with `[[layout]]` and `[[pass]]` tables.
    ///
    /// # Errors
    /// Every fault, at once; unknown keys and wrong types too.
    pub fn load_toml(
        text: &str,
        enabled: Option<&[String]>,
    ) -> Result<LayoutSet, Vec<LayoutError>> {
        let (layouts, passes) = read_toml(text)?;
        LayoutSet::load(&layouts, &passes, enabled)
    }

    /// The built-in layouts alone: those with a root own it.
    pub fn builtin_default() -> LayoutSet {
        // The built-in text is a constant that a test loads; nothing a user does reaches the arm.
        LayoutSet::load(&[], &[], None).unwrap_or(LayoutSet {
            layouts: Vec::new(),
            zookeeper: Index::default(),
            etcd: Index::default(),
            passes: Vec::new(),
        })
    }

    /// The layouts, in the order in which they are asked.
    pub fn layouts(&self) -> impl Iterator<Item = &Layout> {
        self.layouts.iter()
    }

    /// One layout by its id.
    pub fn layout(&self, id: &str) -> Option<&Layout> {
        self.layouts.iter().find(|layout| layout.id.as_str() == id)
    }

    /// The class of a key, from its path alone.
    pub fn class(&self, protocol: Protocol, key: &[u8]) -> Class {
        let places = self.places(protocol, key);
        match places.first() {
            None => Class::General,
            Some(first) => Class::Owned {
                layout: first.layout.id.clone(),
                service: places.iter().find_map(|p| p.scope.clone()),
            },
        }
    }

    /// Whether a layout owns the key; [`LayoutSet::class`] without its details.
    pub fn is_owned(&self, protocol: Protocol, key: &[u8]) -> bool {
        !self.index(protocol).owners(protocol, key).is_empty()
    }

    /// What a record is. `lease` is the etcd key's lease, 0 or `None` for none.
    ///
    /// Never fails: what cannot be read is a companion with its `decode_error`.
    pub fn classify(
        &self,
        protocol: Protocol,
        key: &[u8],
        value: &[u8],
        node: NodeKind,
        lease: Option<i64>,
    ) -> Classified {
        let places = self.places(protocol, key);
        let scope = places.iter().find_map(|place| place.scope.clone());
        let mut found: Option<(LayoutId, Role, Option<DecodeError>)> = None;
        for place in &places {
            let (role, error) = match place.read(value, node, lease) {
                Verdict::Instance(mut instance) => {
                    if let Some(scope) = scope {
                        instance.scope = scope;
                    }
                    return Classified::Instance(instance);
                }
                Verdict::Companion(role, error) => (role, error),
            };
            let vague = |role: &Role| matches!(role, Role::Stray | Role::Other);
            if found
                .as_ref()
                .is_none_or(|(_, old, _)| vague(old) && !vague(&role))
            {
                found = Some((place.layout.id.clone(), role, error));
            }
        }
        match found {
            None => Classified::General,
            Some((layout, role, decode_error)) => Classified::Companion {
                layout,
                service: scope,
                role,
                decode_error,
            },
        }
    }

    /// The tops of the owned subtrees, to be listed and watched: znode paths, or etcd prefixes with
    /// their slash. Without those that lie in another.
    pub fn owned_roots(&self, protocol: Protocol) -> Vec<Vec<u8>> {
        self.index(protocol).roots.clone()
    }

    /// Whether owned subtrees lie below `dir`, which is not owned itself: a directory with children
    /// of both classes. For etcd `dir` is a key prefix.
    pub fn owns_descendants_of(&self, protocol: Protocol, dir: &[u8]) -> bool {
        if self.is_owned(protocol, dir) {
            return false;
        }
        let below = match protocol {
            Protocol::Zookeeper if dir == b"/" => dir.to_vec(),
            Protocol::Zookeeper => [dir, b"/"].concat(),
            Protocol::Etcd => dir.to_vec(),
        };
        self.index(protocol)
            .by_prefix
            .range(below.clone()..)
            .next()
            .is_some_and(|(prefix, _)| prefix.starts_with(&below))
    }

    /// The children of a directory that lead to owned subtrees (or are one), whether they exist or
    /// not. For ZooKeeper.
    pub fn owned_children_of(&self, dir: &[u8]) -> BTreeSet<Vec<u8>> {
        let below = if dir == b"/" {
            dir.to_vec()
        } else {
            [dir, b"/"].concat()
        };
        self.zookeeper
            .by_prefix
            .range(below.clone()..)
            .map_while(|(prefix, _)| prefix.strip_prefix(below.as_slice()))
            .filter_map(|rest| rest.split(|b| *b == b'/').next())
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// All znodes that have children of both classes, `/` first.
    pub fn mixed_dirs(&self) -> BTreeSet<Vec<u8>> {
        let mut dirs = BTreeSet::new();
        for root in self.owned_roots(Protocol::Zookeeper) {
            let Ok(text) = std::str::from_utf8(&root) else {
                continue;
            };
            let mut at = path::parent(text);
            while let Some(dir) = at {
                dirs.insert(dir.as_bytes().to_vec());
                at = path::parent(dir);
            }
        }
        dirs
    }

    /// How the etcd keys from `start` to `end` (etcd's convention: empty `end` for the one key, a
    /// zero byte for no end) lie to the owned ones.
    pub fn range_class(&self, start: &[u8], end: &[u8]) -> RangeClass {
        if end.is_empty() {
            return if self.is_owned(Protocol::Etcd, start) {
                RangeClass::Owned
            } else {
                RangeClass::General
            };
        }
        let open = end == b"\0";
        if !open && end <= start {
            return RangeClass::General;
        }
        let mut parts = Vec::new();
        // The roots are disjoint and in order, so that those before the range are one run.
        let first = self
            .etcd
            .roots
            .partition_point(|root| path::prefix_end(root).as_slice() <= start);
        for root in self.etcd.roots.get(first..).unwrap_or_default() {
            if !open && root.as_slice() >= end {
                break;
            }
            // An owned prefix ends with a slash, so that its range has an end.
            let root_end = path::prefix_end(root);
            let from = start.max(root.as_slice());
            let to = if open {
                root_end.as_slice()
            } else {
                end.min(root_end.as_slice())
            };
            if from < to {
                parts.push((from.to_vec(), to.to_vec()));
            }
        }
        match parts.as_slice() {
            [] => RangeClass::General,
            [(from, to)] if from == start && !open && to == end => RangeClass::Owned,
            _ => RangeClass::Mixed(parts),
        }
    }

    /// The directory (ZooKeeper) or prefix (etcd, with the slash) of the service that a key belongs
    /// to.
    pub fn service_dir(&self, protocol: Protocol, key: &[u8]) -> Option<Vec<u8>> {
        self.places(protocol, key)
            .iter()
            .find_map(Place::service_dir)
    }

    /// Where a service's records are, by its `{namespace}/{service}`. Empty for layouts whose
    /// service directory cannot be told from the name alone.
    pub fn dirs_of_service(&self, scope: &str) -> Vec<ServiceDir> {
        let mut dirs = Vec::new();
        for (protocol, index) in [
            (Protocol::Zookeeper, &self.zookeeper),
            (Protocol::Etcd, &self.etcd),
        ] {
            for owned in &index.owned {
                let Some(layout) = self.layouts.get(owned.layout) else {
                    continue;
                };
                let dir = match &owned.service {
                    Some(service) if scope_key(&owned.namespace, service) == scope => {
                        Some(owned.prefix.clone())
                    }
                    Some(_) => None,
                    None => layout.dir_by_scope(owned, scope),
                };
                let Some(dir) = dir else { continue };
                if !dirs
                    .iter()
                    .any(|d: &ServiceDir| d.protocol == protocol && d.dir == dir)
                {
                    dirs.push(ServiceDir {
                        layout: layout.id.clone(),
                        protocol,
                        dir,
                    });
                }
            }
        }
        dirs
    }

    /// For a record with an owner (an ephemeral, or a leased key) that no layout owns: the layout
    /// that would fit, or what it is known to be instead.
    pub fn suggest(
        &self,
        protocol: Protocol,
        key: &[u8],
        value: &[u8],
        node: NodeKind,
        lease: Option<i64>,
    ) -> Option<Suggestion> {
        if !node.is_owned() || self.is_owned(protocol, key) {
            return None;
        }
        if let Some(pass) = self.passes.iter().find(|pass| pass.covers(protocol, key)) {
            let what = pass
                .note
                .clone()
                .unwrap_or_else(|| "passed through by configuration".to_owned());
            return Some(Suggestion::NotRegistration(what));
        }
        let text = std::str::from_utf8(key).ok()?;
        if let Some(what) = exclusion::known_use(protocol, text, lease) {
            return Some(Suggestion::NotRegistration(what.to_owned()));
        }
        self.layouts
            .iter()
            .filter(|layout| layout.protocol == protocol)
            .find_map(|layout| {
                let (place, setting) = layout.guess(text)?;
                let fits = matches!(place.read(value, node, lease), Verdict::Instance(_))
                    && place.holds(&layout.suggest, value, lease);
                fits.then(|| Suggestion::Fits {
                    layout: layout.id.clone(),
                    setting,
                })
            })
    }

    /// The key of an instance in a layout, for a projection into it. `None`: the layout does not
    /// own such a key, or cannot spell it.
    pub(crate) fn render_key(
        &self,
        layout: &str,
        service: &str,
        captures: &BTreeMap<&str, &str>,
    ) -> Option<Vec<u8>> {
        let at = self.layouts.iter().position(|l| l.id.as_str() == layout)?;
        let layout = self.layouts.get(at)?;
        let mut captures = captures.clone();
        captures.insert("service", service);
        let owned = self
            .index(layout.protocol)
            .owned
            .iter()
            .filter(|owned| owned.layout == at);
        for owned in owned {
            let tail = match &owned.service {
                Some(listed) if listed == service => layout.tail_after_service(),
                Some(_) => continue,
                None => Some(layout.template.tail.as_slice()),
            };
            let Some(rest) = tail.and_then(|tail| render_tail(tail, &captures)) else {
                continue;
            };
            let mut key = owned.prefix.clone();
            if layout.protocol == Protocol::Zookeeper {
                key.push(b'/');
            }
            key.extend_from_slice(rest.as_bytes());
            let spelt = layout.protocol == Protocol::Etcd || path::znode_path(&key).is_ok();
            return spelt.then_some(key);
        }
        None
    }

    /// The namespace in which a key's service is.
    pub(crate) fn namespace_of(&self, protocol: Protocol, key: &[u8]) -> Option<String> {
        self.places(protocol, key)
            .into_iter()
            .find_map(|place| place.scope.is_some().then_some(place.namespace))
    }

    fn index(&self, protocol: Protocol) -> &Index {
        match protocol {
            Protocol::Zookeeper => &self.zookeeper,
            Protocol::Etcd => &self.etcd,
        }
    }

    /// The key's place in each layout that owns it, in the order in which they are asked.
    fn places<'a>(&'a self, protocol: Protocol, key: &'a [u8]) -> Vec<Place<'a>> {
        let index = self.index(protocol);
        index
            .owners(protocol, key)
            .into_iter()
            .filter_map(|at| {
                let owned = index.owned.get(at)?;
                Some(self.layouts.get(owned.layout)?.place(owned, key))
            })
            .collect()
    }

    fn check_passes(&self, errors: &mut Vec<LayoutError>) {
        for pass in &self.passes {
            if pass.prefix.is_empty() || pass.prefix == "/" {
                errors.push(LayoutError::new(
                    "pass",
                    "a prefix of the whole store forbids every layout",
                ));
                continue;
            }
            for protocol in [Protocol::Zookeeper, Protocol::Etcd] {
                for owned in &self.index(protocol).owned {
                    let pass_in_owned = within(protocol, pass.prefix.as_bytes(), &owned.prefix);
                    let meets = pass.covers(protocol, &owned.prefix)
                        || (pass.store.is_none_or(|store| store == protocol) && pass_in_owned);
                    if let (true, Some(layout)) = (meets, self.layouts.get(owned.layout)) {
                        errors.push(LayoutError::new(
                            layout.id.as_str(),
                            format!(
                                "owns {}, which [[pass]] prefix {:?} keeps out of all layouts",
                                String::from_utf8_lossy(&owned.prefix),
                                pass.prefix
                            ),
                        ));
                    }
                }
            }
        }
    }
}

/// Whether `key` is in the subtree at `prefix`.
fn within(protocol: Protocol, key: &[u8], prefix: &[u8]) -> bool {
    match protocol {
        Protocol::Zookeeper => is_at_or_below(key, prefix),
        Protocol::Etcd => key.starts_with(prefix),
    }
}

impl PassConfig {
    fn covers(&self, protocol: Protocol, key: &[u8]) -> bool {
        self.store.is_none_or(|store| store == protocol)
            && within(protocol, key, self.prefix.as_bytes())
    }
}

impl Index {
    fn build(layouts: &[Layout], protocol: Protocol, errors: &mut Vec<LayoutError>) -> Index {
        let mut index = Index::default();
        for (at, layout) in layouts.iter().enumerate() {
            if layout.protocol == protocol {
                index.owned.extend(layout.owned(at));
            }
        }
        for (at, owned) in index.owned.iter().enumerate() {
            index.longest = index.longest.max(owned.prefix.len());
            index
                .by_prefix
                .entry(owned.prefix.clone())
                .or_default()
                .push(at);
        }
        let outermost = |prefix: &[u8]| {
            let owners = index.every_owner(protocol, prefix);
            owners.iter().all(|at| {
                index
                    .owned
                    .get(*at)
                    .is_none_or(|owned| owned.prefix == prefix)
            })
        };
        index.roots = index
            .by_prefix
            .keys()
            .filter(|prefix| outermost(prefix))
            .cloned()
            .collect();
        let mut named = BTreeSet::new();
        for (at, owned) in index.owned.iter().enumerate() {
            for other in index.every_owner(protocol, &owned.prefix) {
                let Some(outer) = index.owned.get(other).filter(|_| other != at) else {
                    continue;
                };
                let (Some(a), Some(b)) = (layouts.get(owned.layout), layouts.get(outer.layout))
                else {
                    continue;
                };
                let text = String::from_utf8_lossy(&owned.prefix).into_owned();
                if owned.layout == outer.layout {
                    // Nested targets are legal in etcd, where a prefix of one covers the other.
                    let nested = owned.service.is_some()
                        && outer.service.is_some()
                        && owned.prefix != outer.prefix;
                    if !nested && named.insert((a.id.clone(), a.id.clone(), text.clone())) {
                        errors.push(LayoutError::new(
                            a.id.as_str(),
                            format!("lists {text} twice, or inside another root"),
                        ));
                    }
                } else if a.priority == b.priority {
                    let (first, second) = if a.id < b.id { (a, b) } else { (b, a) };
                    if named.insert((first.id.clone(), second.id.clone(), text.clone())) {
                        errors.push(LayoutError::new(
                            second.id.as_str(),
                            format!(
                                "overlaps layout {} at {text}; order them by priority",
                                first.id
                            ),
                        ));
                    }
                }
            }
        }
        index
    }

    /// The owned subtrees that hold the key, outermost first.
    fn every_owner(&self, protocol: Protocol, key: &[u8]) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let mut look = |prefix: &[u8]| {
            if let Some(owned) = self.by_prefix.get(prefix) {
                found.extend(owned);
            }
        };
        let limit = self.longest.min(key.len());
        for (at, byte) in key.iter().enumerate().take(limit.saturating_add(1)) {
            if *byte != b'/' {
                continue;
            }
            match protocol {
                Protocol::Zookeeper if at > 0 => look(key.get(..at).unwrap_or_default()),
                Protocol::Zookeeper => {}
                Protocol::Etcd => look(key.get(..=at).unwrap_or_default()),
            }
        }
        if protocol == Protocol::Zookeeper && key.len() <= self.longest {
            look(key);
        }
        found
    }

    /// The owned subtrees that hold the key: by priority, then the innermost first; one for each
    /// layout, its innermost.
    fn owners(&self, protocol: Protocol, key: &[u8]) -> Vec<usize> {
        let mut found = self.every_owner(protocol, key);
        // `owned` is in the order of the layouts, which is that of priority.
        found.sort_by_key(|at| {
            let owned = self.owned.get(*at);
            (
                owned.map(|o| o.layout),
                std::cmp::Reverse(owned.map(|o| o.prefix.len())),
            )
        });
        let mut seen = None;
        found.retain(|at| {
            let layout = self.owned.get(*at).map(|o| o.layout);
            std::mem::replace(&mut seen, layout) != layout
        });
        found
    }
}

/// A key's place in a layout.
struct Place<'a> {
    layout: &'a Layout,
    namespace: String,
    /// Raw bytes before the part that `found` describes.
    prefix: Vec<u8>,
    text: &'a str,
    rest: &'a str,
    found: Match,
    /// Role by path alone, for subtrees that are no service.
    fixed: Option<Role>,
    /// Set when the subtree is that of one listed service.
    listed: bool,
    scope: Option<String>,
    utf8: bool,
}

enum Verdict {
    Instance(Box<Instance>),
    Companion(Role, Option<DecodeError>),
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

    fn compile(label: &str, config: &LayoutConfig) -> Result<Layout, Vec<LayoutError>> {
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
    fn owned(&self, layout: usize) -> impl Iterator<Item = Owned> + '_ {
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
    fn service_segment(&self) -> Option<&super::template::Capture> {
        match self.template.tail.first() {
            Some(Segment::Capture(c)) if c.name == "service" => Some(c),
            _ => None,
        }
    }

    fn tail_after_service(&self) -> Option<&[Segment]> {
        self.service_segment()
            .and_then(|_| self.template.tail.get(1..))
    }

    fn place<'a>(&'a self, owned: &Owned, key: &'a [u8]) -> Place<'a> {
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
    fn dir_by_scope(&self, owned: &Owned, scope: &str) -> Option<Vec<u8>> {
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
    fn guess<'a>(&'a self, text: &'a str) -> Option<(Place<'a>, String)> {
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
        let used = format!("use = {:?}", self.id.as_str());
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
                Some((place, list("services", &name)))
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

    fn value(&self, field: &str, facts: &Facts<'_>) -> Val {
        self.fields
            .get(field)
            .map_or(Val::Missing, |source| source.value(facts))
    }
}

impl Place<'_> {
    /// What the record here is, as this layout sees it.
    fn read(&self, value: &[u8], node: NodeKind, lease: Option<i64>) -> Verdict {
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

    fn holds(&self, conditions: &[Condition], value: &[u8], lease: Option<i64>) -> bool {
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
    fn service_dir(&self) -> Option<Vec<u8>> {
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
                Segment::Mixed { parts, .. } => parts.iter().any(
                    |part| matches!(part, super::template::Part::Capture(c) if c.name == "service"),
                ),
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
