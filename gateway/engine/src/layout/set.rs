//! All layouts of a configuration together: who owns a key, and what a record is.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::DecodeError;
use super::compiled::{Layout, Owned};
use super::description::{LayoutConfig, LayoutError, PassConfig, read_toml};
use super::exclusion;
use super::instance::{Class, Classified, LayoutId, NodeKind, Role, scope_key};
use super::place::{Place, Verdict};
use super::template::render_tail;
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

#[derive(Debug, Clone, Default)]
struct Index {
    owned: Vec<Owned>,
    /// Prefix to indices in `owned`, in the order in which they are asked.
    by_prefix: BTreeMap<Vec<u8>, Vec<usize>>,
    /// The prefixes that lie in no other, in order.
    roots: Vec<Vec<u8>>,
    longest: usize,
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
                    layout.builtin = true;
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
    /// their slash. Without those that lie in another. An etcd key that is spelt like a root without
    /// its slash is a general key.
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
        let open = end == b"\0";
        // An empty range is of the class of its key: what it is refused for must not depend on the legacy store.
        if end.is_empty() || (!open && end <= start) {
            return if self.is_owned(Protocol::Etcd, start) {
                RangeClass::Owned
            } else {
                RangeClass::General
            };
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
