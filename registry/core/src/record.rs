//! A record, its version, and the one function that says which of two versions wins.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::origin::Dot;
use crate::service::ServiceName;

/// Whose key space a registration's raw key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A znode path, as the ZooKeeper client wrote it (with the chroot taken away).
    Zookeeper,
    /// An etcd key.
    Etcd,
    /// A registration through the registry's own API; the key is `namespace/service/instance`.
    Native,
}

impl StoreKind {
    /// The name used in answers and logs.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Zookeeper => "zookeeper",
            StoreKind::Etcd => "etcd",
            StoreKind::Native => "native",
        }
    }
}

/// The id of a registration. One instance may have several: removal and tombstone are per
/// registration, and the instance is there while any of them is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordKey {
    /// Whose key space `key` belongs to.
    pub store: StoreKind,
    /// The raw key, byte for byte.
    pub key: Bytes,
}

impl RecordKey {
    /// A key of the given store.
    pub fn new(store: StoreKind, key: impl Into<Bytes>) -> Self {
        RecordKey {
            store,
            key: key.into(),
        }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.store.name(), self.key.escape_ascii())
    }
}

/// What kind of owner a lease stands for. The kind is part of the id, so that ids of different
/// protocols never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseKind {
    /// A ZooKeeper session.
    Session,
    /// An etcd lease.
    Lease,
    /// A client of the registry's own API.
    Native,
    /// Causeway's own: a projection, an import.
    Bridge,
}

/// The owner of records: when it ends, its records are to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The protocol the id comes from.
    pub kind: LeaseKind,
    /// The id as its client knows it.
    pub id: i64,
}

impl LeaseId {
    /// The lease of a ZooKeeper session.
    pub fn session(id: i64) -> Self {
        LeaseId {
            kind: LeaseKind::Session,
            id,
        }
    }

    /// The lease of an etcd client.
    pub fn lease(id: i64) -> Self {
        LeaseId {
            kind: LeaseKind::Lease,
            id,
        }
    }

    /// The lease of a native client.
    pub fn native(id: i64) -> Self {
        LeaseId {
            kind: LeaseKind::Native,
            id,
        }
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LeaseKind::Session => "session",
            LeaseKind::Lease => "lease",
            LeaseKind::Native => "native",
            LeaseKind::Bridge => "bridge",
        };
        write!(f, "{kind}:{:x}", self.id)
    }
}

/// An address that takes traffic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The protocol spoken there (`dubbo`, `grpc`, `http`); may be empty.
    #[serde(default)]
    pub scheme: String,
    /// Host name or address.
    pub host: String,
    /// Port; 0 when the layout gives none.
    pub port: u16,
}

/// What a registration says. The registry compares bodies for equality and looks at nothing
/// but `namespace`, `service`, `instance` and `companion`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordBody {
    /// A layout's root, or the name given to it.
    pub namespace: String,
    /// The service within the namespace.
    pub service: String,
    /// The identity within the service (`host:port` and what else the layout counts). Two
    /// registrations with the same identity are one instance.
    pub instance: String,
    /// The value, byte for byte as its owner wrote it.
    pub value: Bytes,
    /// The layout that wrote the record; empty for native ones.
    pub layout: String,
    /// Not an instance, but what the layout's clients need beside instances.
    pub companion: bool,
    /// What the layout read from key and value.
    pub attributes: BTreeMap<String, String>,
    /// Where the instance takes traffic.
    pub endpoints: Vec<Endpoint>,
    /// Opaque to the registry: what a front end must give back beside the value (ACL, stat).
    pub meta: Bytes,
}

/// Orders client actions: the hybrid logical clock of the member that handled the action, then the
/// member's id, so that no two actions share a stamp.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// 48 bits of milliseconds and a 16-bit counter; see [`crate::clock`].
    pub hlc: u64,
    /// The member that handled the action.
    pub member: u16,
}

/// What decides between two values of one key: stamp, then dead, then sub-version, greatest wins.
///
/// The field order is the rule, since the order is derived. A client's action makes a new stamp; a
/// transition made by the holder (silent, expired, back again, removal by expiry) keeps the client's
/// stamp and raises `sub` or sets `dead`, so that it never beats a newer action of the client.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The client's action.
    pub stamp: Stamp,
    /// Removed: the value is a tombstone.
    pub dead: bool,
    /// Raised by each transition that the holder makes.
    pub sub: u32,
}

impl Version {
    /// Which of two versions of one key stands: a join, so order, repetition and grouping of what
    /// arrives do not matter. On equal versions the values are equal too, since only one member
    /// makes versions under one stamp.
    pub fn join(self, other: Version) -> Version {
        self.max(other)
    }

    /// The holder's next transition under the same client action.
    pub fn transition(self) -> Version {
        Version {
            sub: self.sub.saturating_add(1),
            ..self
        }
    }

    /// Removal at this version: beats every transition under the same stamp, loses to any later one.
    pub fn killed(self) -> Version {
        Version {
            dead: true,
            ..self.transition()
        }
    }
}

/// What the holder knows about the owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The owner was heard from within half its timeout, or the record has no owner.
    Live,
    /// Nothing heard for half the timeout.
    Silent,
    /// Nothing heard for the whole timeout; to be judged.
    Expired,
    /// Judged, and kept because removing it would be implausible.
    Held,
}

/// A registration. All healths are visible to readers: only removal takes a record away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The registration's id.
    pub key: RecordKey,
    /// What it says; shared with whoever reads it.
    pub body: Arc<RecordBody>,
    /// Its owner. None: nothing but an explicit removal or a verdict ends it.
    pub lease: Option<LeaseId>,
    /// The client action it comes from.
    pub stamp: Stamp,
    /// The holder's transitions since then.
    pub sub: u32,
    /// The write that produced this value.
    pub dot: Dot,
    /// What the holder knows about the owner.
    pub health: Health,
}

impl Record {
    /// The service it belongs to.
    pub fn service(&self) -> ServiceName {
        ServiceName::new(self.body.namespace.clone(), self.body.service.clone())
    }

    /// The version that decides against another value of the same key.
    pub fn version(&self) -> Version {
        Version {
            stamp: self.stamp,
            dead: false,
            sub: self.sub,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version() -> impl Strategy<Value = Version> {
        // Few values, so that equal parts are common.
        (0..3u64, 0..3u16, any::<bool>(), 0..3u32).prop_map(|(hlc, member, dead, sub)| Version {
            stamp: Stamp { hlc, member },
            dead,
            sub,
        })
    }

    proptest! {
        #[test]
        fn join_is_idempotent_commutative_and_associative(
            a in version(), b in version(), c in version()
        ) {
            prop_assert_eq!(a.join(a), a);
            prop_assert_eq!(a.join(b), b.join(a));
            prop_assert_eq!(a.join(b).join(c), a.join(b.join(c)));
            prop_assert!(a.join(b) == a || a.join(b) == b);
        }
    }

    #[test]
    fn the_newer_action_wins_then_the_removal_then_the_transition() {
        let make = |hlc, member, dead, sub| Version {
            stamp: Stamp { hlc, member },
            dead,
            sub,
        };
        for (name, winner, loser) in [
            (
                "a later action beats a removal",
                make(2, 1, false, 0),
                make(1, 1, true, 9),
            ),
            (
                "members order equal clocks",
                make(2, 2, false, 0),
                make(2, 1, true, 9),
            ),
            (
                "a removal beats transitions",
                make(2, 1, true, 1),
                make(2, 1, false, 9),
            ),
            (
                "a later transition beats one",
                make(2, 1, false, 2),
                make(2, 1, false, 1),
            ),
        ] {
            assert_eq!(winner.join(loser), winner, "{name}");
            assert_eq!(loser.join(winner), winner, "{name}");
        }
        let seen = make(2, 1, false, 3);
        assert_eq!(seen.join(seen.killed()), seen.killed());
        assert_eq!(seen.join(seen.transition()), seen.transition());
        assert!(
            make(3, 1, false, 0) > seen.killed(),
            "an expiry never beats a newer action"
        );
    }
}
