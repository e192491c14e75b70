//! The table of watches: which ones a change fires, in which order, and what a client that comes
//! back has missed.
//!
//! It is volatile: watches belong to connections and die with them (ZooKeeper:
//! `DataTree.removeCnxn`). An event must reach its connection's queue before any reply that
//! shows the change; that is the caller's part.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::znode_tree::{Acl, Change, ChangeKind, ZnodeTree, permits, perms};

/// zxid of an event that is not about one change: what a client had missed (ZooKeeper:
/// `WatchedEvent.NO_ZXID`).
pub const NO_ZXID: i64 = -1;

/// One client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub u64);

/// What an event says (ZooKeeper: `Watcher.Event.EventType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// The node was created.
    NodeCreated,
    /// The node was deleted.
    NodeDeleted,
    /// The node's data was set.
    NodeDataChanged,
    /// A child was created or deleted.
    NodeChildrenChanged,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// Where; for a recursive watch the changed node, not the watched one.
    pub path: Arc<str>,
    /// Number of the change, or [`NO_ZXID`].
    pub zxid: i64,
}

/// One event and all who are told it: what a change costs for each watcher is a number in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The event.
    pub event: WatchEvent,
    /// In order, each once, and at least one.
    pub watchers: Vec<WatcherId>,
}

/// Which watches a client means when it checks or removes some (ZooKeeper: `WatcherType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    /// One-shot watch on the children.
    Children,
    /// One-shot watch on data or existence.
    Data,
    /// Any watch on the path.
    Any,
    /// Persistent watch.
    Persistent,
    /// Persistent recursive watch.
    PersistentRecursive,
}

/// Totals, for `mntr` and `wchs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchCounts {
    /// Connections that hold a watch.
    pub connections: usize,
    /// Paths that are watched.
    pub paths: usize,
    /// Watches of all kinds; data and existence are one kind.
    pub watches: usize,
}

/// The watches of all connections. At most one of each kind per connection and path.
#[derive(Debug, Default)]
pub struct WatchTable {
    /// Never iterated.
    by_path: HashMap<Arc<str>, BTreeMap<WatcherId, Held>>,
    by_watcher: BTreeMap<WatcherId, BTreeSet<Arc<str>>>,
    watches: usize,
    /// While there are none, ancestors of a changed node need not be looked at.
    recursive: usize,
}

/// Arming, asking and disarming.
impl WatchTable {
    /// An empty table.
    pub fn new() -> Self {
        WatchTable::default()
    }

    /// One-shot watch left by a getData that succeeded.
    pub fn add_data(&mut self, watcher: WatcherId, path: &str) {
        self.arm(watcher, path, Held::DATA);
    }

    /// One-shot watch left by an exists, on a missing node too. It is the same watch as
    /// [`WatchTable::add_data`]'s.
    pub fn add_exist(&mut self, watcher: WatcherId, path: &str) {
        self.arm(watcher, path, Held::DATA);
    }

    /// One-shot watch left by a getChildren that succeeded.
    pub fn add_child(&mut self, watcher: WatcherId, path: &str) {
        self.arm(watcher, path, Held::CHILD);
    }

    /// Persistent watch on a node and its list of children (addWatch, mode 0).
    pub fn add_persistent(&mut self, watcher: WatcherId, path: &str) {
        self.arm(watcher, path, Held::PERSISTENT);
    }

    /// Persistent watch on a node and everything below it (addWatch, mode 1).
    pub fn add_recursive(&mut self, watcher: WatcherId, path: &str) {
        self.arm(watcher, path, Held::RECURSIVE);
    }

    /// Whether the connection holds such a watch (checkWatches).
    pub fn check(&self, watcher: WatcherId, path: &str, kind: WatchKind) -> bool {
        self.held(watcher, path).has(kind.held())
    }

    /// Removes such watches (removeWatches); `false` when there were none.
    pub fn remove(&mut self, watcher: WatcherId, path: &str, kind: WatchKind) -> bool {
        let had = self.check(watcher, path, kind);
        self.disarm(watcher, path, kind.held());
        had
    }

    /// Removes all watches of a connection that has ended.
    pub fn remove_watcher(&mut self, watcher: WatcherId) {
        for path in self.by_watcher.get(&watcher).cloned().unwrap_or_default() {
            self.disarm(watcher, &path, Held::ALL);
        }
    }

    /// Totals over all connections.
    pub fn counts(&self) -> WatchCounts {
        WatchCounts {
            connections: self.by_watcher.len(),
            paths: self.by_path.len(),
            watches: self.watches,
        }
    }

    /// Paths that a connection watches, in order: their number bounds what it may still add.
    pub fn paths_of(&self, watcher: WatcherId) -> impl ExactSizeIterator<Item = &Arc<str>> {
        static NONE: BTreeSet<Arc<str>> = BTreeSet::new();
        self.by_watcher.get(&watcher).unwrap_or(&NONE).iter()
    }

    /// The connections that hold watches, in order (`wchc`, `wchp`).
    pub fn watchers(&self) -> impl Iterator<Item = WatcherId> {
        self.by_watcher.keys().copied()
    }
}

/// Firing.
impl WatchTable {
    /// The events of one change, in the order in which they are sent; one-shot watches that
    /// fire are gone.
    ///
    /// - created: NodeCreated to data watches of the node, NodeChildrenChanged to child watches
    ///   of its parent;
    /// - deleted: NodeDeleted to data watches, NodeDeleted to those child watches of the node
    ///   whose connection was not told yet, NodeChildrenChanged to child watches of the parent;
    /// - data set: NodeDataChanged to data watches.
    ///
    /// A persistent watch counts as both kinds, a recursive one as a data watch on every node
    /// below (ZooKeeper: `DataTree.createNode`, `deleteNode`, `setData`,
    /// `WatchManager.triggerWatch`). Where `can_read` refuses the ACL of the node that an event
    /// is about, the watch is used up but nothing is sent.
    pub fn fire(
        &mut self,
        change: &Change,
        can_read: impl Fn(WatcherId, &[Acl]) -> bool,
    ) -> Vec<Fired> {
        if self.by_path.is_empty() {
            return Vec::new();
        }
        let mut all = Vec::new();
        let kind = match change.kind {
            ChangeKind::Created => EventKind::NodeCreated,
            ChangeKind::Deleted => EventKind::NodeDeleted,
            ChangeKind::DataChanged => EventKind::NodeDataChanged,
        };
        let mut told = self.trigger(&change.path, Held::DATA, Held::ON_DATA);
        let of_one_kind = told.len();
        if self.recursive > 0 {
            self.add_recursive_above(&change.path, &mut told);
        }
        if change.kind == ChangeKind::Deleted {
            told.extend(self.trigger(&change.path, Held::CHILD, Held::CHILD));
        }
        if told.len() > of_one_kind {
            told.sort_unstable();
            told.dedup();
        }
        let mut send = |mut watchers: Vec<WatcherId>, kind, path: &Arc<str>, acl: &[Acl]| {
            // Whoever is nobody may read what everybody may: one look settles nearly all.
            if !permits(acl, perms::READ, &[]) {
                watchers.retain(|w| can_read(*w, acl));
            }
            if !watchers.is_empty() {
                let event = WatchEvent {
                    kind,
                    path: path.clone(),
                    zxid: change.zxid,
                };
                all.push(Fired { event, watchers });
            }
        };
        send(told, kind, &change.path, &change.acl);
        if change.kind != ChangeKind::DataChanged
            && let Some(parent) = parent_of(&change.path)
            && let Some((parent, _)) = self.by_path.get_key_value(parent)
        {
            let parent = parent.clone();
            let told = self.trigger(&parent, Held::CHILD, Held::ON_CHILDREN);
            let kind = EventKind::NodeChildrenChanged;
            send(told, kind, &parent, &change.parent_acl);
        }
        all
    }

    /// Arms again what a client held before its connection broke, and returns what it missed
    /// since `relative_zxid`, the last number it saw; the events precede the reply (ZooKeeper:
    /// `DataTree.setWatches`).
    ///
    /// `foreign`: the number is not one that this table's changes compare with. Then every data
    /// and child watch fires, since nothing can be ruled out; the others need no number.
    #[allow(clippy::too_many_arguments)] // The fields of one request.
    pub fn set_watches<P: AsRef<str>>(
        &mut self,
        tree: &ZnodeTree,
        watcher: WatcherId,
        relative_zxid: i64,
        data: &[P],
        exist: &[P],
        child: &[P],
        persistent: &[P],
        recursive: &[P],
        foreign: bool,
    ) -> Vec<WatchEvent> {
        let missed = |changed_at: i64| foreign || changed_at > relative_zxid;
        let mut events = Vec::new();
        let mut tell = |kind, path: &str| {
            events.push(WatchEvent {
                kind,
                path: Arc::from(path),
                zxid: NO_ZXID,
            });
        };
        for path in data.iter().map(AsRef::as_ref) {
            match tree.node(path) {
                None => tell(EventKind::NodeDeleted, path),
                Some(node) if missed(node.stat().mzxid) => tell(EventKind::NodeDataChanged, path),
                Some(_) => self.add_data(watcher, path),
            }
        }
        for path in exist.iter().map(AsRef::as_ref) {
            if tree.contains(path) {
                tell(EventKind::NodeCreated, path);
            } else {
                self.add_exist(watcher, path);
            }
        }
        for path in child.iter().map(AsRef::as_ref) {
            match tree.node(path) {
                None => tell(EventKind::NodeDeleted, path),
                Some(node) if missed(node.stat().pzxid) => {
                    tell(EventKind::NodeChildrenChanged, path);
                }
                Some(_) => self.add_child(watcher, path),
            }
        }
        for path in persistent.iter().map(AsRef::as_ref) {
            self.add_persistent(watcher, path);
        }
        for path in recursive.iter().map(AsRef::as_ref) {
            self.add_recursive(watcher, path);
        }
        events
    }

    /// Those at `path` who hold any of `any`, in order; of what they hold, `used_up` goes.
    fn trigger(&mut self, path: &str, used_up: Held, any: Held) -> Vec<WatcherId> {
        let Some(at_path) = self.by_path.get_mut(path) else {
            return Vec::new();
        };
        let (mut fired, mut done, mut used) = (Vec::new(), Vec::new(), 0);
        // One pass over all of them: a herd that waits for one change is a thousand and more.
        at_path.retain(|watcher, held| {
            if !held.has(any) {
                return true;
            }
            fired.push(*watcher);
            let left = held.without(used_up);
            used += held.len() - left.len();
            *held = left;
            if left == Held::NONE {
                done.push(*watcher);
            }
            left != Held::NONE
        });
        // What is used up is never a recursive watch.
        self.watches -= used;
        if at_path.is_empty() {
            self.by_path.remove(path);
        }
        for watcher in done {
            self.forget(watcher, path);
        }
        fired
    }

    fn add_recursive_above(&self, path: &str, told: &mut Vec<WatcherId>) {
        let mut at = path;
        while let Some(parent) = parent_of(at) {
            if let Some(held) = self.by_path.get(parent) {
                let recursive = held.iter().filter(|(_, held)| held.has(Held::RECURSIVE));
                told.extend(recursive.map(|(watcher, _)| *watcher));
            }
            at = parent;
        }
    }

    /// The watcher holds nothing at the path any more.
    fn forget(&mut self, watcher: WatcherId, path: &str) {
        if let Some(paths) = self.by_watcher.get_mut(&watcher) {
            paths.remove(path);
            if paths.is_empty() {
                self.by_watcher.remove(&watcher);
            }
        }
    }

    fn held(&self, watcher: WatcherId, path: &str) -> Held {
        self.by_path
            .get(path)
            .and_then(|watchers| watchers.get(&watcher))
            .copied()
            .unwrap_or(Held::NONE)
    }

    fn arm(&mut self, watcher: WatcherId, path: &str, more: Held) {
        let path = match self.by_path.get_key_value(path) {
            Some((path, _)) => path.clone(),
            None => Arc::from(path),
        };
        let at_path = self.by_path.entry(path.clone()).or_default();
        let held = at_path.entry(watcher).or_insert(Held::NONE);
        let before = *held;
        let after = before.with(more);
        *held = after;
        if before == Held::NONE {
            self.by_watcher.entry(watcher).or_default().insert(path);
        }
        self.count(before, after);
    }

    fn disarm(&mut self, watcher: WatcherId, path: &str, less: Held) {
        let before = self.held(watcher, path);
        let after = before.without(less);
        if after == before {
            return;
        }
        self.count(before, after);
        let Some(watchers) = self.by_path.get_mut(path) else {
            return;
        };
        if after != Held::NONE {
            watchers.insert(watcher, after);
            return;
        }
        watchers.remove(&watcher);
        if watchers.is_empty() {
            self.by_path.remove(path);
        }
        self.forget(watcher, path);
    }

    fn count(&mut self, before: Held, after: Held) {
        self.watches = self.watches + after.len() - before.len();
        let recursive = |held: Held| usize::from(held.has(Held::RECURSIVE));
        self.recursive = self.recursive + recursive(after) - recursive(before);
    }
}

impl WatchKind {
    fn held(self) -> Held {
        match self {
            WatchKind::Children => Held::CHILD,
            WatchKind::Data => Held::DATA,
            WatchKind::Any => Held::ALL,
            WatchKind::Persistent => Held::PERSISTENT,
            WatchKind::PersistentRecursive => Held::RECURSIVE,
        }
    }
}

/// The kinds of watch that one connection holds on one path. They are independent of each other
/// (ZOOKEEPER-4466).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held(u8);

impl Held {
    const NONE: Held = Held(0);
    const DATA: Held = Held(1);
    const CHILD: Held = Held(2);
    const PERSISTENT: Held = Held(4);
    const RECURSIVE: Held = Held(8);
    const ALL: Held = Held(15);
    /// Those that a change of the node itself fires.
    const ON_DATA: Held = Held(1 | 4 | 8);
    /// Those that a change of the list of children fires.
    const ON_CHILDREN: Held = Held(2 | 4);

    fn has(self, any: Held) -> bool {
        self.0 & any.0 != 0
    }

    fn with(self, more: Held) -> Held {
        Held(self.0 | more.0)
    }

    fn without(self, less: Held) -> Held {
        Held(self.0 & !less.0)
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

fn parent_of(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}
