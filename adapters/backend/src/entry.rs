//! What a store holds.

use bytes::Bytes;

use crate::{LeaseId, Owner, Revision};

/// One entry as its store holds it; the raw bytes are the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Raw key or path.
    pub key: Bytes,
    /// Raw value.
    pub value: Bytes,
    /// What keeps it alive. Container and TTL znodes have no owner: they are persistent here,
    /// and [`ZookeeperMeta::ephemeral_owner`] tells them apart.
    pub owner: Owner,
    /// When its value was last written.
    pub revision: Revision,
    /// What the store knows beside that.
    pub meta: Meta,
}

impl Entry {
    /// The lease of an owned entry.
    pub fn lease(&self) -> Option<LeaseId> {
        self.owner.lease()
    }

    /// Whether the end of a lease removes it.
    pub fn is_owned(&self) -> bool {
        self.lease().is_some()
    }
}

/// Facts of one store about an entry, under the store's own names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meta {
    /// From a ZooKeeper ensemble.
    Zookeeper(ZookeeperMeta),
    /// From an etcd cluster.
    Etcd(EtcdMeta),
    /// From the gossip registry.
    Registry(RegistryMeta),
    /// The store knows nothing beside the entry.
    None,
}

/// A znode's Stat, and its ACL where the adapter was asked to read ACLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperMeta {
    /// zxid of the creation.
    pub czxid: i64,
    /// zxid of the last write of the data.
    pub mzxid: i64,
    /// zxid of the last creation or removal of a child.
    pub pzxid: i64,
    /// Creation, milliseconds since 1970 on the leader's clock.
    pub ctime: i64,
    /// Last write of the data, likewise.
    pub mtime: i64,
    /// Writes of the data since the creation.
    pub version: i32,
    /// Creations and removals of children.
    pub cversion: i32,
    /// Changes of the ACL.
    pub aversion: i32,
    /// Owner's session id, 0 for none, or a marker of a container or TTL znode.
    pub ephemeral_owner: i64,
    /// Number of children.
    pub num_children: i32,
    /// The ACL; `None` when it was not read.
    pub acl: Option<Vec<Acl>>,
}

/// One line of a znode's ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// ZooKeeper's permission bits.
    pub permissions: u32,
    /// Scheme, such as `world` or `digest`.
    pub scheme: String,
    /// Identity within the scheme.
    pub id: String,
}

/// A pair's numbers in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdMeta {
    /// Revision of the creation.
    pub create_revision: i64,
    /// Revision of the last write.
    pub mod_revision: i64,
    /// Writes since the creation, from 1.
    pub version: i64,
}

/// A record's place in the registry's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryMeta {
    /// Hybrid logical clock of the stamp.
    pub clock: u64,
    /// Member that gave the stamp.
    pub member: u16,
}

/// All entries of a scope at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// In the order of keys, each key once.
    pub entries: Vec<Entry>,
    /// Nothing up to this mark is missing. Where the store cannot list a scope at one revision
    /// (ZooKeeper), entries may be newer than the mark, never older.
    pub revision: Revision,
}
