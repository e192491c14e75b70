//! Lists of children as bytes, made once for each change of their directory and shared by all who read it.

use std::collections::HashMap;

use bytes::Bytes;
use causeway_engine::znode_tree::Node;
use causeway_wire::zk::Stat;

use super::translate;

/// Below this many children a list is made quicker than it is looked up.
const WORTH_IT: usize = 8;

/// Bytes kept; above it all are dropped, and those that are still read come back.
const MAX_BYTES: usize = 32 << 20;

/// The lists of a port.
#[derive(Debug, Default)]
pub(super) struct Listings {
    /// The node's edition, and the body of its getChildren2.
    made: HashMap<String, (u64, Bytes)>,
    bytes: usize,
}

impl Listings {
    /// The body of a getChildren2 of `node`.
    pub(super) fn with_stat(&mut self, path: &str, node: &Node) -> Bytes {
        if node.children().len() < WORTH_IT {
            return translate::listing(node);
        }
        let old = match self.made.get(path) {
            Some((edition, body)) if *edition == node.edition() => return body.clone(),
            Some((_, body)) => body.len(),
            None => 0,
        };
        let body = translate::listing(node);
        self.bytes = self.bytes - old + body.len();
        if self.bytes > MAX_BYTES {
            self.made.clear();
            self.bytes = body.len();
        }
        self.made
            .insert(path.to_owned(), (node.edition(), body.clone()));
        body
    }

    /// The body of a getChildren: the same without the Stat, which comes last.
    pub(super) fn names_only(&mut self, path: &str, node: &Node) -> Bytes {
        let mut body = self.with_stat(path, node);
        body.truncate(body.len().saturating_sub(Stat::LEN));
        body
    }
}

#[cfg(test)]
mod tests {
    use causeway_engine::znode_tree::{Acl, CreateMode, TreeCommand, ZnodeTree, perms};
    use causeway_wire::zk::record::Record;
    use causeway_wire::zk::reply::{GetChildren2Response, GetChildrenResponse};

    use super::*;

    fn create(tree: &mut ZnodeTree, path: &str) {
        let command = TreeCommand::Create {
            path: path.to_owned(),
            data: None,
            acl: vec![Acl::world(perms::ALL)],
            mode: CreateMode::Persistent,
            session: 1,
            auth: Vec::new(),
        };
        let zxid = tree.last_zxid() + 1;
        assert!(tree.apply(&command, zxid, 0).result.is_ok());
    }

    fn read(listings: &mut Listings, tree: &ZnodeTree) -> (Bytes, Vec<String>) {
        let node = tree.node("/a").expect("a node");
        let body = listings.with_stat("/a", node);
        let whole = GetChildren2Response::decode(body.clone()).expect("a listing");
        assert_eq!(whole.stat, translate::stat(&node.stat()));
        let names = GetChildrenResponse::decode(listings.names_only("/a", node)).expect("names");
        assert_eq!(names.children, whole.children);
        (body, whole.children)
    }

    #[test]
    fn a_list_is_made_once_for_each_change() {
        let (mut tree, mut listings) = (ZnodeTree::new(), Listings::default());
        create(&mut tree, "/a");
        let mut expected = Vec::new();
        for n in 0..2 * WORTH_IT {
            let name = format!("child-{n:02}");
            create(&mut tree, &format!("/a/{name}"));
            expected.push(name);
            let (body, names) = read(&mut listings, &tree);
            assert_eq!(names, expected);
            let again = read(&mut listings, &tree).0;
            let shared = expected.len() >= WORTH_IT;
            assert_eq!(body.as_ptr() == again.as_ptr(), shared, "{names:?}");
        }
        let kept: usize = listings.made.values().map(|(_, body)| body.len()).sum();
        assert_eq!(listings.bytes, kept);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut tree, mut listings) = (ZnodeTree::new(), Listings::default());
        create(&mut tree, "/a");
        for n in 0..WORTH_IT {
            create(&mut tree, &format!("/a/child-{n:02}"));
        }
        let node = tree.node("/a").expect("a node");
        let each = listings.with_stat("/0", node).len();
        for n in 0..2 * MAX_BYTES / each {
            listings.with_stat(&format!("/{n}"), node);
            assert!(listings.bytes <= MAX_BYTES);
        }
        // A directory that grows is bounded too.
        for n in 0..10 {
            for name in 0..40 {
                create(&mut tree, &format!("/a/{n}-{name:0>1000}"));
            }
            let node = tree.node("/a").expect("a node");
            for copy in 0..100 {
                listings.with_stat(&format!("/{copy}"), node);
            }
            assert!(listings.bytes <= MAX_BYTES, "{n}");
        }
    }
}
