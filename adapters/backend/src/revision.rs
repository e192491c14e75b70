//! Ordering marks.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a backend in the configuration of every gateway, such as `etcd`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackendName(Arc<str>);

impl BackendName {
    /// Names a backend.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When something happened in one backend.
///
/// The mark is the store's own number (etcd: mod revision; ZooKeeper: zxid; registry: stamp, as
/// clock and member), good for comparing within the same backend and for nothing else: marks of
/// two backends give `None` in `partial_cmp`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Revision {
    backend: BackendName,
    mark: u128,
}

impl Revision {
    /// A mark of `backend`.
    pub fn new(backend: BackendName, mark: u128) -> Self {
        Self { backend, mark }
    }

    /// A mark from a store that counts in `i64`; below zero counts as zero, since such stores
    /// use negative numbers for "not known".
    pub fn from_i64(backend: BackendName, mark: i64) -> Self {
        Self::new(backend, u128::try_from(mark).unwrap_or(0))
    }

    /// The backend whose mark this is.
    pub fn backend(&self) -> &BackendName {
        &self.backend
    }

    /// The store's number.
    pub fn mark(&self) -> u128 {
        self.mark
    }

    /// The store's number for a store that counts in `i64`; `None` when it cannot be one.
    pub fn as_i64(&self) -> Option<i64> {
        i64::try_from(self.mark).ok()
    }
}

impl PartialOrd for Revision {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.backend == other.backend).then(|| self.mark.cmp(&other.mark))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend, self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_two_backends_do_not_compare() {
        let etcd = BackendName::new("etcd");
        let old = Revision::from_i64(etcd.clone(), 4);
        let new = Revision::from_i64(etcd, 5);
        let other = Revision::from_i64(BackendName::new("zookeeper"), 4);
        assert!(old < new);
        assert_eq!(old.partial_cmp(&other), None);
        assert_ne!(old, other);
    }
}
