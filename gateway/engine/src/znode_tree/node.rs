//! One znode and its stat.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::AclRef;

/// Names of a node's children, in order.
pub type ChildSet = BTreeSet<Arc<str>>;

/// The longest TTL of a node: forty bits of milliseconds (ZooKeeper: `EphemeralType.TTL`).
pub const MAX_TTL_MS: i64 = (1 << 40) - 1;

/// Owner value of a container (ZooKeeper: `EphemeralType.CONTAINER_EPHEMERAL_OWNER`).
pub(super) const CONTAINER_OWNER: i64 = i64::MIN;

/// High byte of the owner value of a TTL node; the sixteen bits below it are 0.
const TTL_MASK: i64 = 0xff_u64.wrapping_shl(56) as i64;

/// A znode's stat, field by field as ZooKeeper's `Stat` record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// zxid that created the node.
    pub czxid: i64,
    /// zxid that last set its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data was last set, likewise.
    pub mtime: i64,
    /// How often its data was set.
    pub version: i32,
    /// Twice the children ever created, less those there are: one more per create and delete.
    pub cversion: i32,
    /// How often its ACL was set.
    pub aversion: i32,
    /// Session that owns an ephemeral node, otherwise 0. Containers and TTL nodes show 0 too:
    /// their special values stay within the server (observed on 3.8).
    pub ephemeral_owner: i64,
    /// Bytes of data.
    pub data_length: i32,
    /// Number of children.
    pub num_children: i32,
    /// zxid of the last create or delete of a child, at first the node's own.
    pub pzxid: i64,
}

/// Kind of a node, as its owner value tells (ZooKeeper: `EphemeralType.get`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// Stays until deleted.
    Persistent,
    /// Goes with its session.
    Ephemeral,
    /// Goes some time after its last child.
    Container,
    /// Goes when it had no children and no write for so long.
    Ttl {
        /// In milliseconds.
        ttl_ms: i64,
    },
}

impl NodeKind {
    pub(super) fn of(owner: i64) -> Self {
        match owner {
            0 => NodeKind::Persistent,
            CONTAINER_OWNER => NodeKind::Container,
            _ if owner & !MAX_TTL_MS == TTL_MASK => NodeKind::Ttl {
                ttl_ms: owner & MAX_TTL_MS,
            },
            _ => NodeKind::Ephemeral,
        }
    }
}

/// A znode. Two nodes are equal when all that members share about them is.
#[derive(Debug, Clone)]
pub struct Node {
    pub(super) data: Option<Bytes>,
    pub(super) acl: AclRef,
    pub(super) children: ChildSet,
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    pub(super) pzxid: i64,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) version: i32,
    pub(super) aversion: i32,
    /// Children ever created here: the next sequence number. It wraps.
    pub(super) creations: i32,
    /// 0, a session, or the value of a container or TTL node.
    pub(super) owner: i64,
    /// Children with a czxid up to this one are in `creations` already, since the stat that was
    /// imported with this node counts them. `i64::MIN` once the list of children changed here.
    pub(super) counted_through: i64,
    /// Made only because a child was imported; an import of the node itself replaces its stat.
    pub(super) implicit: bool,
    pub(super) edition: u64,
}

impl Node {
    /// Data as it was set; `None` and empty are different.
    pub fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// The ACL.
    pub fn acl(&self) -> &AclRef {
        &self.acl
    }

    /// Names of the children, in order.
    pub fn children(&self) -> &ChildSet {
        &self.children
    }

    /// What kind of node it is.
    pub fn kind(&self) -> NodeKind {
        NodeKind::of(self.owner)
    }

    /// Children ever created here, which is the next sequence number.
    pub fn creations(&self) -> i32 {
        self.creations
    }

    /// A number that changes whenever anything changes that a reply about this node could show
    /// (data, stat, list of children, ACL), and that never comes back, not even for a node
    /// deleted and made again: the key for replies encoded outside. It means nothing across
    /// restarts or members.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// The stat as clients see it (ZooKeeper: `DataNode.copyStat`).
    pub fn stat(&self) -> Stat {
        let num_children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        let data_length = self.data.as_ref().map_or(0, Bytes::len);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.creations.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.aversion,
            ephemeral_owner: match self.kind() {
                NodeKind::Ephemeral => self.owner,
                _ => 0,
            },
            data_length: i32::try_from(data_length).unwrap_or(i32::MAX),
            num_children,
            pzxid: self.pzxid,
        }
    }

    /// A node made by a create.
    pub(super) fn fresh(
        data: Option<Bytes>,
        acl: AclRef,
        owner: i64,
        zxid: i64,
        now_ms: i64,
    ) -> Self {
        Node {
            data,
            acl,
            children: ChildSet::new(),
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: now_ms,
            mtime: now_ms,
            version: 0,
            aversion: 0,
            creations: 0,
            owner,
            counted_through: i64::MIN,
            implicit: false,
            edition: 0,
        }
    }

    /// A node as another store gave it, before its children are.
    pub(super) fn imported(data: Option<Bytes>, acl: AclRef, stat: &Stat) -> Self {
        let mut node = Node::fresh(data, acl, 0, stat.pzxid, 0);
        node.implicit = true;
        node.take_stat(stat);
        node
    }

    /// Replaces what another store knows of this node. Of the list of children it knows the
    /// count so far; the list itself, and when it changed here, stay this tree's own.
    pub(super) fn take_stat(&mut self, stat: &Stat) {
        self.czxid = stat.czxid;
        self.mzxid = stat.mzxid;
        self.ctime = stat.ctime;
        self.mtime = stat.mtime;
        self.version = stat.version;
        self.aversion = stat.aversion;
        // A container or TTL node reads 0 elsewhere, so 0 does not take that away.
        if stat.ephemeral_owner != 0 || self.kind() == NodeKind::Ephemeral {
            self.owner = stat.ephemeral_owner;
        }
        // Sequence numbers given out on either side are not given out again.
        self.creations = self.creations.max(creations_of(stat));
        if self.implicit {
            self.implicit = false;
            self.counted_through = stat.pzxid;
        }
        self.pzxid = self.pzxid.max(stat.pzxid);
    }

    /// A child came or went.
    pub(super) fn children_changed(&mut self, zxid: i64) {
        self.pzxid = self.pzxid.max(zxid);
        self.counted_through = i64::MIN;
    }

    /// Whether it is a container or TTL node that nobody uses any more. A container that never
    /// had a child stays (ZooKeeper: `znode.container.maxNeverUsedIntervalMs`, off by default).
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.children.is_empty()
            && match self.kind() {
                NodeKind::Container => self.creations != 0,
                NodeKind::Ttl { ttl_ms } => now_ms.saturating_sub(self.mtime) > ttl_ms,
                NodeKind::Persistent | NodeKind::Ephemeral => false,
            }
    }

    /// What the node adds to the tree's data size.
    pub(super) fn size(&self, path: &str) -> u64 {
        (path.len() + self.data.as_ref().map_or(0, Bytes::len)) as u64
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |n: &Node| {
            (
                (n.czxid, n.mzxid, n.pzxid, n.ctime, n.mtime),
                (n.version, n.aversion, n.creations, n.owner),
                (n.counted_through, n.implicit),
            )
        };
        numbers(self) == numbers(other)
            && self.data == other.data
            && self.acl == other.acl
            && self.children == other.children
    }
}

/// The creation count behind a stat. The stat holds twice the count, wrapped, so a count from
/// 2^30 up is told by the sign; one beyond `i32::MAX` cannot be told from a smaller one.
fn creations_of(stat: &Stat) -> i32 {
    let twice = i64::from(stat.cversion) + i64::from(stat.num_children);
    i32::try_from((twice / 2).rem_euclid(1 << 31)).unwrap_or(i32::MAX)
}

/// Owner value of a TTL node; `None` when the TTL is out of range.
pub(super) fn ttl_owner(ttl_ms: i64) -> Option<i64> {
    (1..=MAX_TTL_MS)
        .contains(&ttl_ms)
        .then_some(TTL_MASK | ttl_ms)
}

/// The version after this one. Minus one means "any" in a request, so it is left out when the
/// counter, having wrapped, comes by (ZOOKEEPER-4743).
pub(super) fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}
