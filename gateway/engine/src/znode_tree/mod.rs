//! The znode tree: ZooKeeper's data model with stats, sequences, ACLs, ephemerals, containers and
//! TTL nodes.
//!
//! One structure serves as Causeway's embedded ZooKeeper store and as the merged view of
//! registrations. It changes only through [`ZnodeTree::apply`], by commands from a log: the zxid
//! and the time are arguments, so the same commands give the same tree on every member. Reads
//! take the caller's identities and check the ACL.
//!
//! It knows neither sessions nor watches: whether a session is alive is settled before a command
//! is logged, and [`crate::watch::WatchTable`] turns the [`Change`]s of a command into events.

mod acl;
mod image;
mod node;
mod plan;
mod quota;
mod syntax;
#[cfg(test)]
mod tests;
mod x500;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use acl::{Acl, AclRef, AuthId, digest_id, permits, perms, resolve_acl};
pub use node::{ChildSet, MAX_TTL_MS, Node, NodeKind, Stat};
pub use syntax::validate_path;

use node::{CONTAINER_OWNER, ttl_owner};
use plan::{Outlook, Step};
use quota::Quotas;

/// Why a command or read was refused, under ZooKeeper's names (`KeeperException.Code`).
/// Nothing was changed, except that a command's zxid counts as used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum TreeError {
    /// The node, or the parent of a node to create, does not exist.
    #[error("no such node")]
    NoNode,
    /// The path of a create is taken.
    #[error("node exists")]
    NodeExists,
    /// A node with children cannot be deleted.
    #[error("node has children")]
    NotEmpty,
    /// The version asked for is not the node's.
    #[error("version differs")]
    BadVersion,
    /// An ephemeral node cannot have children.
    #[error("ephemeral nodes have no children")]
    NoChildrenForEphemerals,
    /// Path syntax, TTL, or a node that cannot be deleted.
    #[error("bad arguments")]
    BadArguments,
    /// ACL empty, of an unknown scheme, ill-formed, or `auth` without an identity.
    #[error("invalid ACL")]
    InvalidAcl,
    /// The ACL does not let the caller.
    #[error("not permitted by the ACL")]
    NoAuth,
    /// An ephemeral node needs a session.
    #[error("session expired")]
    SessionExpired,
}

/// What kind of node a create makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CreateMode {
    /// Stays until deleted.
    Persistent,
    /// Likewise, with the parent's creation count appended to its name.
    PersistentSequential,
    /// Goes with its session.
    Ephemeral,
    /// Likewise, with the parent's creation count appended to its name.
    EphemeralSequential,
    /// Collected some time after its last child has gone.
    Container,
    /// Collected when it had no children and no write for `ttl_ms`.
    PersistentTtl {
        /// From 1 to [`MAX_TTL_MS`].
        ttl_ms: i64,
    },
    /// Likewise, with the parent's creation count appended to its name.
    PersistentSequentialTtl {
        /// From 1 to [`MAX_TTL_MS`].
        ttl_ms: i64,
    },
    /// A container, with the parent's creation count appended to its name. Last: the log names modes by their place.
    ContainerSequential,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeCommand {
    /// Makes a node.
    Create {
        /// For a sequential mode the prefix of the path, which may end with `/`.
        path: String,
        /// `None` and empty data are kept apart.
        data: Option<Bytes>,
        /// As asked for; `auth` entries are resolved to `auth`.
        acl: Vec<Acl>,
        /// Kind of node.
        mode: CreateMode,
        /// The caller's session, which owns an ephemeral node.
        session: i64,
        /// The caller's identities.
        auth: Vec<AuthId>,
    },
    /// Deletes a node without children.
    Delete {
        /// Path of the node.
        path: String,
        /// Version that the node must have; -1 for any.
        version: i32,
        /// The caller's identities.
        auth: Vec<AuthId>,
    },
    /// Replaces a node's data.
    SetData {
        /// Path of the node.
        path: String,
        /// `None` and empty data are kept apart.
        data: Option<Bytes>,
        /// Version that the node must have; -1 for any.
        version: i32,
        /// The caller's identities.
        auth: Vec<AuthId>,
    },
    /// Replaces a node's ACL; fires nothing.
    SetAcl {
        /// Path of the node.
        path: String,
        /// As asked for; `auth` entries are resolved to `auth`.
        acl: Vec<Acl>,
        /// ACL version that the node must have; -1 for any.
        version: i32,
        /// The caller's identities.
        auth: Vec<AuthId>,
    },
    /// All of the operations or none, under one zxid.
    Multi {
        /// In order; each sees what those before it did.
        ops: Vec<MultiOp>,
        /// The caller's session.
        session: i64,
        /// The caller's identities.
        auth: Vec<AuthId>,
    },
    /// Removes a session's ephemerals under one zxid (ZooKeeper: `DataTree.killSession`).
    CloseSession {
        /// The session that ended.
        session: i64,
        /// Paths that stay, such as records held by protection.
        keep: Vec<String>,
    },
    /// Removes several nodes under one zxid because it was decided elsewhere that they go;
    /// missing nodes, nodes with other children, and special nodes are passed over.
    RemoveAll {
        /// Paths of the nodes, a parent before or after its children.
        paths: Vec<String>,
    },
    /// Removes ephemerals under one zxid, each only while that session owns it: what a session
    /// lost meanwhile to another one stays.
    Expire {
        /// Path and the owner it was judged under.
        nodes: Vec<(String, i64)>,
    },
    /// Puts a node as another store gave it. Missing parents are made; an existing node with
    /// other data changes, and its owner and stat are replaced.
    ///
    /// A child that its parent's imported stat already tells of (by pzxid) is not counted again.
    Import {
        /// Path of the node.
        path: String,
        /// Data of the node.
        data: Option<Bytes>,
        /// ACL as stored there, taken unchecked.
        acl: Vec<Acl>,
        /// Kept as given. `num_children` and `cversion` together give the creation count.
        stat: Stat,
    },
    /// Gives an ephemeral node to another session; fires nothing.
    Reown {
        /// Path of the node.
        path: String,
        /// The new owner.
        session: i64,
    },
    /// Collects containers and TTL nodes, each checked again when the command is applied.
    Reap {
        /// What [`ZnodeTree::due_for_reap`] named.
        paths: Vec<String>,
    },
}

/// One operation of a multi.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MultiOp {
    /// As [`TreeCommand::Create`].
    Create {
        /// Path or, for a sequential mode, prefix of the path.
        path: String,
        /// Data of the node.
        data: Option<Bytes>,
        /// As asked for.
        acl: Vec<Acl>,
        /// Kind of node.
        mode: CreateMode,
    },
    /// As [`TreeCommand::Delete`].
    Delete {
        /// Path of the node.
        path: String,
        /// Version that the node must have; -1 for any.
        version: i32,
    },
    /// As [`TreeCommand::SetData`].
    SetData {
        /// Path of the node.
        path: String,
        /// Data of the node.
        data: Option<Bytes>,
        /// Version that the node must have; -1 for any.
        version: i32,
    },
    /// Fails the multi when the node is missing, unreadable, or of another version.
    Check {
        /// Path of the node.
        path: String,
        /// Version that the node must have; -1 for any.
        version: i32,
    },
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeReply {
    /// Path (with its sequence) and stat of the new node.
    Created {
        /// Where it is.
        path: Arc<str>,
        /// As a later exists would show it.
        stat: Stat,
    },
    /// The node is gone.
    Deleted,
    /// Data or ACL were set.
    Set(Stat),
    /// A result per operation. A failed multi is this reply too, as in ZooKeeper, where the
    /// error stands in the results and not in the header.
    Multi(Vec<OpResult>),
    /// These nodes were removed, in this order (close of a session, remove, expire, reap).
    Removed(Vec<Arc<str>>),
    /// A node was imported.
    Imported {
        /// It did not exist before.
        created: bool,
        /// It is new or its data changed; `false` means that no event fires.
        changed: bool,
    },
    /// The owner was replaced.
    Reowned,
}

impl TreeReply {
    /// Whether this is the reply of a multi that was rolled back.
    pub fn is_failed_multi(&self) -> bool {
        matches!(self, TreeReply::Multi(results)
            if results.iter().any(|r| matches!(r, OpResult::Failed(_))))
    }
}

/// Result of one operation of a multi (ZooKeeper: `DataTree.processTxn`, multi).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    /// On the wire with the stat (type 15) unless the operation was a plain create (type 1).
    Created {
        /// Path with its sequence.
        path: Arc<str>,
        /// As it was right after this operation.
        stat: Stat,
    },
    /// Deleted.
    Deleted,
    /// The stat right after this operation.
    Set(Stat),
    /// The check held.
    Checked,
    /// It would have passed, but a later one failed: type -1, error 0.
    RolledBack,
    /// This one failed the multi: type -1 and its error.
    Failed(TreeError),
    /// Comes after the failed one: type -1, RuntimeInconsistency (-2).
    NotTried,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The reply.
    pub result: Result<TreeReply, TreeError>,
    /// In the order in which they happened; empty when nothing that a watch sees has changed.
    pub changes: Vec<Change>,
}

/// What a watch can see of a command. That the parent's children changed follows from
/// `Created` and `Deleted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened to the node.
    pub kind: ChangeKind,
    /// Path of the node.
    pub path: Arc<str>,
    /// Number of the change.
    pub zxid: i64,
    /// ACL of the node (its last one, when deleted): events go to those who may read it.
    pub acl: AclRef,
    /// ACL of the parent, for the events about its children.
    pub parent_acl: AclRef,
}

/// Kind of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The node is new.
    Created,
    /// The node is gone.
    Deleted,
    /// The node's data was set.
    DataChanged,
}

/// The tree. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ZnodeTree {
    /// Never iterated: whatever order can be seen comes from the ordered child sets.
    nodes: HashMap<Arc<str>, Node>,
    /// Paths of the ephemerals of each session.
    ephemerals: BTreeMap<i64, BTreeSet<Arc<str>>>,
    /// Containers and TTL nodes.
    collectable: BTreeSet<Arc<str>>,
    quotas: Quotas,
    /// One copy of each ACL in use.
    acls: BTreeSet<AclRef>,
    /// Size of `acls` at which unused ones are dropped.
    acls_limit: usize,
    data_size: u64,
    ephemeral_count: usize,
    last_zxid: i64,
    /// Source of [`Node::edition`]; not part of the state that members share.
    editions: u64,
}

/// Inputs.
impl ZnodeTree {
    /// The tree of a fresh ZooKeeper: the root, `/zookeeper` and its children, all of time 0 and
    /// zxid 0, with a read-only ACL on `/zookeeper/config`.
    pub fn new() -> Self {
        let mut tree = ZnodeTree::empty();
        let open = tree.intern(&[Acl::world(perms::ALL)]);
        let read_only = tree.intern(&[Acl::world(perms::READ)]);
        for path in syntax::SPECIAL {
            let mut node = Node::fresh(Some(Bytes::new()), open.clone(), 0, 0, 0);
            if path == "/zookeeper/config" {
                node.acl = read_only.clone();
                node.aversion = -1;
            }
            tree.place(Arc::from(path), node);
        }
        tree
    }

    /// Applies one entry of the log. `zxid` counts as used even when the command fails.
    /// `now_ms` is the wall clock of whoever logged the command, in milliseconds since 1970.
    pub fn apply(&mut self, command: &TreeCommand, zxid: i64, now_ms: i64) -> Applied {
        self.last_zxid = self.last_zxid.max(zxid);
        let mut run = Run {
            tree: self,
            zxid,
            now_ms,
            changes: Vec::new(),
        };
        let result = run.command(command);
        Applied {
            result,
            changes: run.changes,
        }
    }

    /// Whether [`ZnodeTree::apply`] would succeed now; for a multi, the error of the operation
    /// that would fail it.
    pub fn check(&self, command: &TreeCommand) -> Result<(), TreeError> {
        let mut outlook = Outlook::new(self);
        match command {
            TreeCommand::Multi { ops, session, auth } => ops
                .iter()
                .try_for_each(|op| outlook.multi_op(op, *session, auth).map(drop)),
            TreeCommand::Import { path, stat, .. } => outlook.import(path, stat),
            TreeCommand::Reown { path, session } => outlook.reown(path, *session),
            TreeCommand::CloseSession { .. }
            | TreeCommand::RemoveAll { .. }
            | TreeCommand::Expire { .. }
            | TreeCommand::Reap { .. } => Ok(()),
            single => outlook.single(single).map(drop),
        }
    }
}

/// Reads with the caller's identities, as clients make them.
impl ZnodeTree {
    /// Stat of a node; needs READ (as ZooKeeper does since 3.9.5).
    pub fn exists(&self, path: &str, auth: &[AuthId]) -> Result<Stat, TreeError> {
        Ok(self.readable(path, auth)?.stat())
    }

    /// Data and stat of a node.
    pub fn get_data(
        &self,
        path: &str,
        auth: &[AuthId],
    ) -> Result<(Option<Bytes>, Stat), TreeError> {
        let node = self.readable(path, auth)?;
        Ok((node.data.clone(), node.stat()))
    }

    /// The node itself, for somebody who may read it.
    pub fn readable(&self, path: &str, auth: &[AuthId]) -> Result<&Node, TreeError> {
        let node = self.node(path).ok_or(TreeError::NoNode)?;
        if permits(&node.acl, perms::READ, auth) {
            Ok(node)
        } else {
            Err(TreeError::NoAuth)
        }
    }

    /// Names of a node's children, in order, and its stat. Nothing is copied.
    pub fn get_children(
        &self,
        path: &str,
        auth: &[AuthId],
    ) -> Result<(&ChildSet, Stat), TreeError> {
        let node = self.readable(path, auth)?;
        Ok((&node.children, node.stat()))
    }

    /// ACL and stat of a node. Needs READ or ADMIN; without ADMIN password hashes are hidden.
    pub fn get_acl(&self, path: &str, auth: &[AuthId]) -> Result<(Vec<Acl>, Stat), TreeError> {
        let node = self.node(path).ok_or(TreeError::NoNode)?;
        if permits(&node.acl, perms::ADMIN, auth) {
            return Ok((node.acl.to_vec(), node.stat()));
        }
        if permits(&node.acl, perms::READ, auth) {
            return Ok((acl::redacted(&node.acl), node.stat()));
        }
        Err(TreeError::NoAuth)
    }

    /// The caller's own ephemerals whose path starts with `prefix` (blank or `/`: all), in order.
    pub fn get_ephemerals(&self, session: i64, prefix: &str) -> Vec<Arc<str>> {
        let all = matches!(prefix.trim(), "" | "/");
        self.ephemerals(session)
            .filter(|path| all || path.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Number of nodes below a node, at any depth.
    pub fn all_children_number(&self, path: &str, auth: &[AuthId]) -> Result<i32, TreeError> {
        self.readable(path, auth)?;
        let below = if is_root(path) {
            self.nodes.len().saturating_sub(1)
        } else {
            self.descendants(path).len()
        };
        Ok(i32::try_from(below).unwrap_or(i32::MAX))
    }

    /// The path that a sequential create with this prefix would get now.
    pub fn predict_sequence(&self, path_prefix: &str) -> Result<String, TreeError> {
        let parent = syntax::claimed_parent(path_prefix)?;
        let parent = self.node(parent).ok_or(TreeError::NoNode)?;
        Ok(plan::sequential(path_prefix, parent.creations))
    }
}

/// Reads without ACLs, for the gateway itself.
impl ZnodeTree {
    /// A node; the root is also found under the empty path, as in ZooKeeper.
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(if path.is_empty() { "/" } else { path })
    }

    /// Whether a node exists.
    pub fn contains(&self, path: &str) -> bool {
        self.node(path).is_some()
    }

    /// The session that owns an ephemeral node; `None` for other nodes and missing ones.
    pub fn owner_of(&self, path: &str) -> Option<i64> {
        let node = self.node(path)?;
        (node.kind() == NodeKind::Ephemeral).then_some(node.owner)
    }

    /// Paths of a session's ephemerals, in order.
    pub fn ephemerals(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// The sessions that own ephemerals, and how many each, in order of their ids.
    pub fn ephemeral_owners(&self) -> impl Iterator<Item = (i64, usize)> {
        self.ephemerals.iter().map(|(id, paths)| (*id, paths.len()))
    }

    /// Paths of all nodes below a node, parents before children, siblings in order.
    pub fn descendants(&self, path: &str) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        let mut open: Vec<Cow<'_, str>> = vec![Cow::Borrowed(path)];
        while let Some(parent) = open.pop() {
            let Some(node) = self.node(&parent) else {
                continue;
            };
            let children: Vec<Arc<str>> = node
                .children
                .iter()
                .map(|name| Arc::from(join(&parent, name)))
                .collect();
            open.extend(children.iter().rev().map(|c| Cow::Owned(c.to_string())));
            if parent != path {
                found.push(Arc::from(&*parent));
            }
        }
        found
    }

    /// Containers and TTL nodes that are to be collected at `now_ms`, in order
    /// (ZooKeeper: `ContainerManager.getCandidates`).
    pub fn due_for_reap(&self, now_ms: i64) -> Vec<Arc<str>> {
        self.collectable
            .iter()
            .filter(|path| self.nodes.get(*path).is_some_and(|n| n.is_due(now_ms)))
            .cloned()
            .collect()
    }

    /// Number of nodes, the root and the special ones included. (ZooKeeper's
    /// `zk_znode_count` counts the root twice.)
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Number of ephemeral nodes.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemeral_count
    }

    /// Bytes of all paths and data (ZooKeeper: `zk_approximate_data_size`).
    pub fn data_size(&self) -> u64 {
        self.data_size
    }

    /// The largest zxid applied.
    pub fn last_zxid(&self) -> i64 {
        self.last_zxid
    }
}

impl Default for ZnodeTree {
    fn default() -> Self {
        ZnodeTree::new()
    }
}

/// One command being applied.
struct Run<'t> {
    tree: &'t mut ZnodeTree,
    zxid: i64,
    now_ms: i64,
    changes: Vec<Change>,
}

impl Run<'_> {
    fn command(&mut self, command: &TreeCommand) -> Result<TreeReply, TreeError> {
        match command {
            TreeCommand::Multi { ops, session, auth } => Ok(self.multi(ops, *session, auth)),
            TreeCommand::CloseSession { session, keep } => {
                let keep: BTreeSet<&str> = keep.iter().map(String::as_str).collect();
                let paths: Vec<Arc<str>> = self
                    .tree
                    .ephemerals(*session)
                    .filter(|path| !keep.contains(&***path))
                    .cloned()
                    .collect();
                Ok(self.remove_each(paths.iter().map(|p| &**p)))
            }
            TreeCommand::RemoveAll { paths } => {
                let mut deepest_first: Vec<&str> = paths.iter().map(String::as_str).collect();
                deepest_first.sort_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
                Ok(self.remove_each(deepest_first.into_iter()))
            }
            TreeCommand::Expire { nodes } => {
                let tree = &*self.tree;
                let owned: Vec<&str> = nodes
                    .iter()
                    .filter(|(path, session)| tree.owner_of(path) == Some(*session))
                    .map(|(path, _)| path.as_str())
                    .collect();
                Ok(self.remove_each(owned.into_iter()))
            }
            TreeCommand::Reap { paths } => {
                let mut removed = Vec::new();
                for path in paths {
                    let due = |n: &Node| n.is_due(self.now_ms);
                    if self.tree.node(path).is_some_and(due) {
                        removed.extend(self.remove(path));
                    }
                }
                Ok(TreeReply::Removed(removed))
            }
            TreeCommand::Import {
                path,
                data,
                acl,
                stat,
            } => {
                Outlook::new(self.tree).import(path, stat)?;
                self.import(path, data, acl, stat)
            }
            TreeCommand::Reown { path, session } => {
                Outlook::new(self.tree).reown(path, *session)?;
                self.tree.set_owner(path, *session);
                Ok(TreeReply::Reowned)
            }
            single => {
                let step = Outlook::new(self.tree).single(single)?;
                self.step(step).map(|result| match result {
                    OpResult::Created { path, stat } => TreeReply::Created { path, stat },
                    OpResult::Set(stat) => TreeReply::Set(stat),
                    _ => TreeReply::Deleted,
                })
            }
        }
    }

    /// Everything is judged before anything is done, so a failed multi has nothing to undo.
    fn multi(&mut self, ops: &[MultiOp], session: i64, auth: &[AuthId]) -> TreeReply {
        let mut outlook = Outlook::new(self.tree);
        let mut steps = Vec::with_capacity(ops.len());
        for op in ops {
            match outlook.multi_op(op, session, auth) {
                Ok(step) => steps.push(step),
                Err(error) => {
                    let mut results = vec![OpResult::RolledBack; steps.len()];
                    results.push(OpResult::Failed(error));
                    results.resize(ops.len(), OpResult::NotTried);
                    return TreeReply::Multi(results);
                }
            }
        }
        let results = steps
            .into_iter()
            .map(|step| self.step(step).unwrap_or_else(OpResult::Failed))
            .collect();
        TreeReply::Multi(results)
    }

    /// Does what was judged. An error would mean that the judgement was wrong.
    fn step(&mut self, step: Step<'_>) -> Result<OpResult, TreeError> {
        let (zxid, now_ms) = (self.zxid, self.now_ms);
        match step {
            Step::Create {
                path,
                data,
                acl,
                owner,
            } => {
                let acl = self.tree.intern(&acl);
                let node = Node::fresh(data, acl, owner, zxid, now_ms);
                let stat = node.stat();
                let path: Arc<str> = Arc::from(&*path);
                self.add(path.clone(), node, true);
                Ok(OpResult::Created { path, stat })
            }
            Step::Delete { path } => match self.remove(path) {
                Some(_) => Ok(OpResult::Deleted),
                None => Err(TreeError::NoNode),
            },
            Step::SetData { path, data } => {
                let before = quota::length(self.tree.node(path).and_then(Node::data));
                let more = quota::length(data.as_ref()) - before;
                let stat = self.tree.set_data(path, data, |node| {
                    node.version = node::next_version(node.version);
                    node.mzxid = zxid;
                    node.mtime = now_ms;
                });
                let stat = stat.ok_or(TreeError::NoNode)?;
                self.note(ChangeKind::DataChanged, path);
                self.tree.count_for_quota(path, 0, more);
                Ok(OpResult::Set(stat))
            }
            Step::SetAcl { path, acl } => {
                let acl = self.tree.intern(&acl);
                let node = self.tree.touch(path).ok_or(TreeError::NoNode)?;
                node.acl = acl;
                node.aversion = node::next_version(node.aversion);
                Ok(OpResult::Set(node.stat()))
            }
            Step::Check => Ok(OpResult::Checked),
        }
    }

    fn import(
        &mut self,
        path: &str,
        data: &Option<Bytes>,
        acl: &[Acl],
        stat: &Stat,
    ) -> Result<TreeReply, TreeError> {
        let acl = self.tree.intern(acl);
        let Some(old) = self.tree.node(path) else {
            self.make_parents(path);
            self.add(
                Arc::from(path),
                Node::imported(data.clone(), acl, stat),
                false,
            );
            return Ok(TreeReply::Imported {
                created: true,
                changed: true,
            });
        };
        let mut wanted = old.clone();
        wanted.data = data.clone();
        wanted.acl = acl;
        wanted.take_stat(stat);
        let changed = old.data != wanted.data;
        if wanted != *old {
            if wanted.owner != old.owner {
                self.tree.set_owner(path, wanted.owner);
            }
            self.tree.set_data(path, data.clone(), |node| {
                *node = Node {
                    edition: node.edition,
                    ..wanted
                };
            });
        }
        if changed {
            self.note(ChangeKind::DataChanged, path);
        }
        Ok(TreeReply::Imported {
            created: false,
            changed,
        })
    }

    fn make_parents(&mut self, path: &str) {
        let mut missing = Vec::new();
        let mut at = path;
        while let Some((parent, _)) = syntax::split(at) {
            if self.tree.contains(parent) {
                break;
            }
            missing.push(parent);
            at = parent;
        }
        let open = self.tree.intern(&[Acl::world(perms::ALL)]);
        for parent in missing.into_iter().rev() {
            let mut node = Node::fresh(Some(Bytes::new()), open.clone(), 0, self.zxid, self.now_ms);
            node.implicit = true;
            self.add(Arc::from(parent), node, true);
        }
    }

    fn remove_each<'p>(&mut self, paths: impl Iterator<Item = &'p str>) -> TreeReply {
        let mut removed = Vec::new();
        for path in paths {
            if !syntax::SPECIAL.contains(&path) {
                removed.extend(self.remove(path));
            }
        }
        TreeReply::Removed(removed)
    }

    /// Puts a new node under its existing parent. `made_here`: not taken from another store, so
    /// the parent's counter cannot know of it yet.
    fn add(&mut self, path: Arc<str>, node: Node, made_here: bool) {
        let (zxid, czxid) = (self.zxid, node.czxid);
        if let Some((parent, _)) = syntax::split(&path)
            && let Some(parent) = self.tree.touch(parent)
            && (made_here || parent.implicit || czxid > parent.counted_through)
        {
            parent.creations = parent.creations.wrapping_add(1);
            parent.children_changed(zxid);
        }
        let bytes = quota::length(node.data());
        self.tree.place(path.clone(), node);
        self.note(ChangeKind::Created, &path);
        self.tree.recount_for_quota(&path);
        self.tree.count_for_quota(&path, 1, bytes);
    }

    /// Removes a node without children; `None` when there is none such.
    fn remove(&mut self, path: &str) -> Option<Arc<str>> {
        let node = self.tree.nodes.get(path)?;
        if !node.children.is_empty() {
            return None;
        }
        let bytes = quota::length(node.data());
        self.note(ChangeKind::Deleted, path);
        let path = self.tree.displace(path)?;
        self.tree.count_for_quota(&path, -1, -bytes);
        let (parent, _) = syntax::split(&path)?;
        if let Some(parent) = self.tree.touch(parent) {
            parent.children_changed(self.zxid);
        }
        Some(path)
    }

    /// Records a change of a node that exists now.
    fn note(&mut self, kind: ChangeKind, path: &str) {
        let Some((path, node)) = self.tree.nodes.get_key_value(path) else {
            return;
        };
        let parent_acl = syntax::split(path)
            .and_then(|(parent, _)| self.tree.node(parent))
            .map_or_else(|| node.acl.clone(), |parent| parent.acl.clone());
        self.changes.push(Change {
            kind,
            path: path.clone(),
            zxid: self.zxid,
            acl: node.acl.clone(),
            parent_acl,
        });
    }
}

/// The node map and everything derived from it, kept in step.
impl ZnodeTree {
    fn empty() -> Self {
        ZnodeTree {
            nodes: HashMap::new(),
            ephemerals: BTreeMap::new(),
            collectable: BTreeSet::new(),
            quotas: Quotas::default(),
            acls: BTreeSet::new(),
            acls_limit: 64,
            data_size: 0,
            ephemeral_count: 0,
            last_zxid: 0,
            editions: 0,
        }
    }

    /// A node that is about to change.
    fn touch(&mut self, path: &str) -> Option<&mut Node> {
        let node = self.nodes.get_mut(path)?;
        self.editions += 1;
        node.edition = self.editions;
        Some(node)
    }

    /// Adds a node that is not there, and its name to its parent's children.
    fn place(&mut self, path: Arc<str>, mut node: Node) {
        self.editions += 1;
        node.edition = self.editions;
        self.data_size += node.size(&path);
        self.index(&path, node.owner);
        self.quotas.placed(&path);
        if let Some((parent, name)) = syntax::split(&path)
            && let Some(parent) = self.touch(parent)
        {
            parent.children.insert(Arc::from(name));
        }
        self.nodes.insert(path, node);
    }

    /// Takes a node out, and its name out of its parent's children.
    fn displace(&mut self, path: &str) -> Option<Arc<str>> {
        let (path, node) = self.nodes.remove_entry(path)?;
        self.data_size -= node.size(&path);
        self.unindex(&path, node.owner);
        self.quotas.displaced(&path);
        if let Some((parent, name)) = syntax::split(&path)
            && let Some(parent) = self.touch(parent)
        {
            parent.children.remove(name);
        }
        Some(path)
    }

    fn set_data(
        &mut self,
        path: &str,
        data: Option<Bytes>,
        also: impl FnOnce(&mut Node),
    ) -> Option<Stat> {
        let node = self.touch(path)?;
        let before = node.size(path);
        node.data = data;
        also(node);
        let (after, stat) = (node.size(path), node.stat());
        self.data_size = self.data_size - before + after;
        Some(stat)
    }

    fn set_owner(&mut self, path: &str, owner: i64) {
        let Some((path, node)) = self.nodes.get_key_value(path) else {
            return;
        };
        let (path, old) = (path.clone(), node.owner);
        self.unindex(&path, old);
        self.index(&path, owner);
        if let Some(node) = self.touch(&path) {
            node.owner = owner;
        }
    }

    fn index(&mut self, path: &Arc<str>, owner: i64) {
        match NodeKind::of(owner) {
            NodeKind::Persistent => {}
            NodeKind::Container | NodeKind::Ttl { .. } => {
                self.collectable.insert(path.clone());
            }
            NodeKind::Ephemeral => {
                self.ephemeral_count += 1;
                self.ephemerals
                    .entry(owner)
                    .or_default()
                    .insert(path.clone());
            }
        }
    }

    fn unindex(&mut self, path: &Arc<str>, owner: i64) {
        match NodeKind::of(owner) {
            NodeKind::Persistent => {}
            NodeKind::Container | NodeKind::Ttl { .. } => {
                self.collectable.remove(path);
            }
            NodeKind::Ephemeral => {
                self.ephemeral_count -= 1;
                if let Some(paths) = self.ephemerals.get_mut(&owner) {
                    paths.remove(path);
                    if paths.is_empty() {
                        self.ephemerals.remove(&owner);
                    }
                }
            }
        }
    }

    fn intern(&mut self, acl: &[Acl]) -> AclRef {
        if let Some(known) = self.acls.get(acl) {
            return known.clone();
        }
        if self.acls.len() >= self.acls_limit {
            self.acls.retain(|acl| Arc::strong_count(acl) > 1);
            self.acls_limit = (self.acls.len() * 2).max(64);
        }
        let acl: AclRef = Arc::from(acl);
        self.acls.insert(acl.clone());
        acl
    }
}

impl CreateMode {
    /// Whether the parent's creation count is appended to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            CreateMode::PersistentSequential
                | CreateMode::EphemeralSequential
                | CreateMode::PersistentSequentialTtl { .. }
                | CreateMode::ContainerSequential
        )
    }

    /// Whether the node goes with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(
            self,
            CreateMode::Ephemeral | CreateMode::EphemeralSequential
        )
    }

    /// The owner value that is stored with a node of this mode.
    fn owner(self, session: i64) -> Result<i64, TreeError> {
        match self {
            CreateMode::Persistent | CreateMode::PersistentSequential => Ok(0),
            CreateMode::Container | CreateMode::ContainerSequential => Ok(CONTAINER_OWNER),
            CreateMode::PersistentTtl { ttl_ms }
            | CreateMode::PersistentSequentialTtl { ttl_ms } => {
                ttl_owner(ttl_ms).ok_or(TreeError::BadArguments)
            }
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => {
                // A session id that reads as another kind of node cannot be a session's.
                match NodeKind::of(session) {
                    NodeKind::Ephemeral => Ok(session),
                    _ => Err(TreeError::SessionExpired),
                }
            }
        }
    }
}

fn is_root(path: &str) -> bool {
    matches!(path, "" | "/")
}

fn join(parent: &str, name: &str) -> String {
    if is_root(parent) {
        format!("/{name}")
    } else {
        format!("{parent}/{name}")
    }
}
