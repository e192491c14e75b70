//! The form in which a tree is stored: nodes in path order, each ACL once.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::node::{ChildSet, Node};
use super::{Acl, AclRef, ZnodeTree, syntax};

#[derive(PartialEq, Serialize, Deserialize)]
struct Image {
    last_zxid: i64,
    acls: Vec<Vec<Acl>>,
    /// In path order, so that a parent comes before its children.
    nodes: Vec<NodeImage>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct NodeImage {
    path: Arc<str>,
    data: Option<Bytes>,
    /// Index into `acls`.
    acl: u32,
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    ctime: i64,
    mtime: i64,
    version: i32,
    aversion: i32,
    creations: i32,
    owner: i64,
    counted_through: i64,
    implicit: bool,
}

impl Image {
    fn of(tree: &ZnodeTree) -> Self {
        let mut paths = tree.descendants("/");
        paths.push(Arc::from("/"));
        paths.sort_unstable();
        let mut acls: Vec<Vec<Acl>> = Vec::new();
        let mut numbers: BTreeMap<AclRef, u32> = BTreeMap::new();
        let mut nodes = Vec::with_capacity(paths.len());
        for path in paths {
            let Some(node) = tree.node(&path) else {
                continue;
            };
            let acl = *numbers.entry(node.acl.clone()).or_insert_with(|| {
                acls.push(node.acl.to_vec());
                (acls.len() - 1) as u32
            });
            nodes.push(NodeImage {
                path,
                data: node.data.clone(),
                acl,
                czxid: node.czxid,
                mzxid: node.mzxid,
                pzxid: node.pzxid,
                ctime: node.ctime,
                mtime: node.mtime,
                version: node.version,
                aversion: node.aversion,
                creations: node.creations,
                owner: node.owner,
                counted_through: node.counted_through,
                implicit: node.implicit,
            });
        }
        Image {
            last_zxid: tree.last_zxid,
            acls,
            nodes,
        }
    }

    /// What is read back is not trusted: every node has its parent and appears once.
    fn into_tree(self) -> Result<ZnodeTree, String> {
        let mut tree = ZnodeTree::empty();
        tree.last_zxid = self.last_zxid;
        let acls: Vec<AclRef> = self.acls.iter().map(|acl| tree.intern(acl)).collect();
        for image in self.nodes {
            let path = image.path;
            syntax::validate_path(&path).map_err(|e| format!("{path:?}: {e}"))?;
            if tree.contains(&path) {
                return Err(format!("{path:?} appears twice"));
            }
            if let Some((parent, _)) = syntax::split(&path)
                && !tree.contains(parent)
            {
                return Err(format!("{path:?} comes without its parent"));
            }
            let acl = acls
                .get(image.acl as usize)
                .ok_or_else(|| format!("{path:?} has an unknown ACL"))?
                .clone();
            let node = Node {
                data: image.data,
                acl,
                children: ChildSet::new(),
                czxid: image.czxid,
                mzxid: image.mzxid,
                pzxid: image.pzxid,
                ctime: image.ctime,
                mtime: image.mtime,
                version: image.version,
                aversion: image.aversion,
                creations: image.creations,
                owner: image.owner,
                counted_through: image.counted_through,
                implicit: image.implicit,
                edition: 0,
            };
            tree.place(path, node);
        }
        match syntax::SPECIAL.iter().find(|path| !tree.contains(path)) {
            Some(missing) => Err(format!("{missing:?} is missing")),
            None => Ok(tree),
        }
    }
}

impl Serialize for ZnodeTree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Image::of(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ZnodeTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Image::deserialize(deserializer)?
            .into_tree()
            .map_err(de::Error::custom)
    }
}

/// Equal when all that members share is equal; editions are not.
impl PartialEq for ZnodeTree {
    fn eq(&self, other: &Self) -> bool {
        Image::of(self) == Image::of(other)
    }
}
