//! Judges operations before any is done, each seeing what those before it in the same command
//! would do (ZooKeeper: `PrepRequestProcessor` and its outstanding changes).

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;

use super::acl::{Acl, AclRef, AuthId, fix_up, permits, perms};
use super::node::{NodeKind, next_version};
use super::syntax::{self, claimed_parent, validate_path};
use super::{CreateMode, MultiOp, Stat, TreeCommand, TreeError, ZnodeTree};

/// An operation that was found good.
pub(super) enum Step<'c> {
    Create {
        path: Cow<'c, str>,
        data: Option<Bytes>,
        acl: Cow<'c, [Acl]>,
        owner: i64,
    },
    Delete {
        path: &'c str,
    },
    SetData {
        path: &'c str,
        data: Option<Bytes>,
    },
    SetAcl {
        path: &'c str,
        acl: Cow<'c, [Acl]>,
    },
    Check,
}

/// The tree as it would be after the steps judged so far.
pub(super) struct Outlook<'t> {
    tree: &'t ZnodeTree,
    /// Nodes that would be different; `None`: would be gone.
    pending: HashMap<String, Option<Seen>>,
    /// Whether later operations will look at what earlier ones would do.
    remember: bool,
}

/// What judging needs to know of a node.
#[derive(Clone)]
struct Seen {
    version: i32,
    aversion: i32,
    creations: i32,
    children: usize,
    kind: NodeKind,
    acl: AclRef,
}

impl<'t> Outlook<'t> {
    pub(super) fn new(tree: &'t ZnodeTree) -> Self {
        Outlook {
            tree,
            pending: HashMap::new(),
            remember: false,
        }
    }

    /// Judges a command of one operation. Commands of other kinds are refused.
    pub(super) fn single<'c>(&mut self, command: &'c TreeCommand) -> Result<Step<'c>, TreeError> {
        match command {
            TreeCommand::Create {
                path,
                data,
                acl,
                mode,
                session,
                auth,
            } => self.create(path, data, acl, *mode, *session, auth),
            TreeCommand::Delete {
                path,
                version,
                auth,
            } => self.delete(path, *version, auth),
            TreeCommand::SetData {
                path,
                data,
                version,
                auth,
            } => self.set_data(path, data, *version, auth),
            TreeCommand::SetAcl {
                path,
                acl,
                version,
                auth,
            } => self.set_acl(path, acl, *version, auth),
            TreeCommand::Multi { .. }
            | TreeCommand::CloseSession { .. }
            | TreeCommand::RemoveAll { .. }
            | TreeCommand::Expire { .. }
            | TreeCommand::Import { .. }
            | TreeCommand::Reown { .. }
            | TreeCommand::Reap { .. } => Err(TreeError::BadArguments),
        }
    }

    /// Judges the next operation of a multi.
    pub(super) fn multi_op<'c>(
        &mut self,
        op: &'c MultiOp,
        session: i64,
        auth: &[AuthId],
    ) -> Result<Step<'c>, TreeError> {
        self.remember = true;
        match op {
            MultiOp::Create {
                path,
                data,
                acl,
                mode,
            } => self.create(path, data, acl, *mode, session, auth),
            MultiOp::Delete { path, version } => self.delete(path, *version, auth),
            MultiOp::SetData {
                path,
                data,
                version,
            } => self.set_data(path, data, *version, auth),
            MultiOp::Check { path, version } => {
                validate_path(path)?;
                let node = self.see(path)?;
                allow(&node.acl, perms::READ, auth)?;
                expect_version(node.version, *version)?;
                Ok(Step::Check)
            }
        }
    }

    /// Judges an import.
    pub(super) fn import(&self, path: &str, stat: &Stat) -> Result<(), TreeError> {
        validate_path(path)?;
        if NodeKind::of(stat.ephemeral_owner) == NodeKind::Ephemeral
            && self.see(path).is_ok_and(|node| node.children > 0)
        {
            return Err(TreeError::NoChildrenForEphemerals);
        }
        // The nearest ancestor that exists is the one that gets a child.
        let mut at = path;
        while let Some((parent, _)) = syntax::split(at) {
            match self.see(parent) {
                Ok(node) if node.kind == NodeKind::Ephemeral => {
                    return Err(TreeError::NoChildrenForEphemerals);
                }
                Ok(_) => break,
                Err(_) => at = parent,
            }
        }
        Ok(())
    }

    /// Judges a change of owner.
    pub(super) fn reown(&self, path: &str, session: i64) -> Result<(), TreeError> {
        if self.see(path)?.kind != NodeKind::Ephemeral {
            return Err(TreeError::BadArguments);
        }
        if NodeKind::of(session) != NodeKind::Ephemeral {
            return Err(TreeError::SessionExpired);
        }
        Ok(())
    }

    /// The order of the checks is ZooKeeper's `pRequest2TxnCreate`, as seen on 3.8: TTL, slash,
    /// ACL, parent, CREATE, syntax, exists, ephemeral parent.
    fn create<'c>(
        &mut self,
        path: &'c str,
        data: &Option<Bytes>,
        acl: &'c [Acl],
        mode: CreateMode,
        session: i64,
        auth: &[AuthId],
    ) -> Result<Step<'c>, TreeError> {
        let owner = mode.owner(session)?;
        let parent_path = claimed_parent(path)?;
        let acl = fix_up(acl, auth)?;
        let mut parent = self.see(parent_path)?;
        allow(&parent.acl, perms::CREATE, auth)?;
        let path = if mode.is_sequential() {
            Cow::Owned(sequential(path, parent.creations))
        } else {
            Cow::Borrowed(path)
        };
        validate_path(&path)?;
        if self.see(&path).is_ok() {
            return Err(TreeError::NodeExists);
        }
        if parent.kind == NodeKind::Ephemeral {
            return Err(TreeError::NoChildrenForEphemerals);
        }
        if self.remember {
            parent.creations = parent.creations.wrapping_add(1);
            parent.children += 1;
            self.expect(parent_path, Some(parent));
            self.expect(
                &path,
                Some(Seen {
                    version: 0,
                    aversion: 0,
                    creations: 0,
                    children: 0,
                    kind: NodeKind::of(owner),
                    acl: AclRef::from(&*acl),
                }),
            );
        }
        Ok(Step::Create {
            path,
            data: data.clone(),
            acl,
            owner,
        })
    }

    /// Whether the caller may delete here is told before whether there is anything to delete.
    fn delete<'c>(
        &mut self,
        path: &'c str,
        version: i32,
        auth: &[AuthId],
    ) -> Result<Step<'c>, TreeError> {
        let parent_path = claimed_parent(path)?;
        if syntax::SPECIAL.contains(&path) {
            return Err(TreeError::BadArguments);
        }
        let mut parent = self.see(parent_path)?;
        allow(&parent.acl, perms::DELETE, auth)?;
        let node = self.see(path)?;
        expect_version(node.version, version)?;
        if node.children > 0 {
            return Err(TreeError::NotEmpty);
        }
        if self.remember {
            parent.children -= 1;
            self.expect(parent_path, Some(parent));
            self.expect(path, None);
        }
        Ok(Step::Delete { path })
    }

    fn set_data<'c>(
        &mut self,
        path: &'c str,
        data: &Option<Bytes>,
        version: i32,
        auth: &[AuthId],
    ) -> Result<Step<'c>, TreeError> {
        validate_path(path)?;
        let mut node = self.see(path)?;
        allow(&node.acl, perms::WRITE, auth)?;
        expect_version(node.version, version)?;
        if self.remember {
            node.version = next_version(node.version);
            self.expect(path, Some(node));
        }
        Ok(Step::SetData {
            path,
            data: data.clone(),
        })
    }

    fn set_acl<'c>(
        &mut self,
        path: &'c str,
        acl: &'c [Acl],
        version: i32,
        auth: &[AuthId],
    ) -> Result<Step<'c>, TreeError> {
        validate_path(path)?;
        let acl = fix_up(acl, auth)?;
        let node = self.see(path)?;
        allow(&node.acl, perms::ADMIN, auth)?;
        expect_version(node.aversion, version)?;
        Ok(Step::SetAcl { path, acl })
    }

    fn see(&self, path: &str) -> Result<Seen, TreeError> {
        if let Some(pending) = self.pending.get(path) {
            return pending.clone().ok_or(TreeError::NoNode);
        }
        let node = self.tree.node(path).ok_or(TreeError::NoNode)?;
        Ok(Seen {
            version: node.version,
            aversion: node.aversion,
            creations: node.creations,
            children: node.children.len(),
            kind: node.kind(),
            acl: node.acl.clone(),
        })
    }

    fn expect(&mut self, path: &str, seen: Option<Seen>) {
        self.pending.insert(path.to_owned(), seen);
    }
}

/// Name with the parent's creation count, in Java's `%010d` (a sign takes one of the ten places).
pub(super) fn sequential(prefix: &str, creations: i32) -> String {
    format!("{prefix}{creations:010}")
}

fn allow(acl: &[Acl], wanted: u32, auth: &[AuthId]) -> Result<(), TreeError> {
    if permits(acl, wanted, auth) {
        Ok(())
    } else {
        Err(TreeError::NoAuth)
    }
}

fn expect_version(is: i32, wanted: i32) -> Result<(), TreeError> {
    if wanted == -1 || wanted == is {
        Ok(())
    } else {
        Err(TreeError::BadVersion)
    }
}
