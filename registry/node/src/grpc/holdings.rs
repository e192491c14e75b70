//! What a stream has registered, as the member knows it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use causeway_registry::{LeaseId, RecordKey, Stamp};
use causeway_registry_proto::digest::digest;

/// The registrations that live by one lease, with the digest that a client compares.
#[derive(Debug)]
pub(super) struct Holdings {
    pub(super) lease: LeaseId,
    stamps: BTreeMap<RecordKey, Stamp>,
    sum: u64,
    /// Since the client was asked to send everything: what it sent.
    resent: Option<BTreeSet<RecordKey>>,
}

impl Holdings {
    pub(super) fn new(lease: LeaseId) -> Self {
        Holdings {
            lease,
            stamps: BTreeMap::new(),
            sum: 0,
            resent: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.stamps.len()
    }

    pub(super) fn holds(&self, key: &RecordKey) -> bool {
        self.stamps.contains_key(key)
    }

    pub(super) fn keys(&self) -> Vec<RecordKey> {
        self.stamps.keys().cloned().collect()
    }

    /// The client registered it.
    pub(super) fn registered(&mut self, key: RecordKey, stamp: Stamp) {
        if let Some(resent) = &mut self.resent {
            resent.insert(key.clone());
        }
        self.set(key, stamp);
    }

    /// It is in the registry under this lease with this stamp.
    pub(super) fn set(&mut self, key: RecordKey, stamp: Stamp) {
        self.remove(&key);
        self.sum = self.sum.wrapping_add(digest(&key, stamp));
        self.stamps.insert(key, stamp);
    }

    /// It is not in the registry any more, or not under this lease.
    pub(super) fn remove(&mut self, key: &RecordKey) {
        if let Some(stamp) = self.stamps.remove(key) {
            self.sum = self.sum.wrapping_sub(digest(key, stamp));
        }
    }

    /// The client believes something else when its digest differs; it is to send everything, then.
    pub(super) fn differs(&mut self, digest: u64) -> bool {
        let differs = digest != self.sum;
        if differs {
            self.resent = Some(BTreeSet::new());
        }
        differs
    }

    /// The client sent everything. Returns what it does not know of.
    pub(super) fn complete(&mut self) -> Vec<RecordKey> {
        let Some(resent) = self.resent.take() else {
            return Vec::new();
        };
        let mut keys = self.keys();
        keys.retain(|key| !resent.contains(key));
        keys
    }
}

#[cfg(test)]
mod tests {
    use causeway_registry::api::native_key;

    use super::*;

    fn stamp(hlc: u64) -> Stamp {
        Stamp { hlc, member: 1 }
    }

    #[test]
    fn the_digest_follows_what_is_held() {
        let key = |name: &str| native_key("default", "cart", name);
        let mut holdings = Holdings::new(LeaseId::native(1));
        assert!(!holdings.differs(0));
        holdings.registered(key("a"), stamp(1));
        holdings.registered(key("b"), stamp(2));
        holdings.registered(key("a"), stamp(3));
        let client = digest(&key("a"), stamp(3)).wrapping_add(digest(&key("b"), stamp(2)));
        assert!(!holdings.differs(client));
        holdings.remove(&key("a"));
        holdings.remove(&key("a"));
        assert!(holdings.differs(client));
        assert!(!holdings.differs(digest(&key("b"), stamp(2))));
    }

    #[test]
    fn what_is_not_sent_again_is_unknown_to_the_client() {
        let key = |name: &str| native_key("default", "cart", name);
        let mut holdings = Holdings::new(LeaseId::native(1));
        for (name, hlc) in [("a", 1), ("b", 2), ("c", 3)] {
            holdings.registered(key(name), stamp(hlc));
        }
        assert_eq!(holdings.complete(), [], "nobody asked");
        assert!(holdings.differs(7));
        holdings.registered(key("b"), stamp(2));
        holdings.registered(key("d"), stamp(4));
        assert_eq!(holdings.complete(), [key("a"), key("c")]);
        assert_eq!(holdings.complete(), [], "once");
    }
}
