//! Which release of etcd is imitated: clients gate what they use by the version shown, so that what releases do
//! differently has to follow it.

/// A release of etcd, by its minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    major: u32,
    minor: u32,
}

impl Default for Release {
    /// The newest that is imitated.
    fn default() -> Self {
        Release::new(3, 7)
    }
}

impl Release {
    /// The release `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Release { major, minor }
    }

    /// The release of a version as etcd writes it; the newest when it cannot be read.
    pub fn of(version: &str) -> Self {
        let mut parts = version.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Release { major, minor },
            _ => Release::default(),
        }
    }

    /// `major.minor` (etcd: api/version, Cluster).
    pub fn short(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }

    /// `major.minor.0`: how etcd shows the version of a cluster and of its storage.
    pub fn cluster_version(self) -> String {
        format!("{}.{}.0", self.major, self.minor)
    }

    /// The one release that a cluster of this one may be downgraded to (etcd: version/downgrade.go).
    pub fn before(self) -> Self {
        Release {
            minor: self.minor.saturating_sub(1),
            ..self
        }
    }

    /// The release that a downgrade names: `major.minor`, or a whole version (etcd: etcdserver/util.go,
    /// convertToClusterVersion, with go-semver). `None` for anything else.
    pub fn named(target: &str) -> Option<Self> {
        let (numbers, _) = target.split_once(['-', '+']).unwrap_or((target, ""));
        let parts: Vec<Option<u32>> = numbers
            .split('.')
            .map(|part| {
                let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
                digits.then(|| part.parse().ok()).flatten()
            })
            .collect();
        match parts.as_slice() {
            [Some(major), Some(minor)] | [Some(major), Some(minor), Some(_)] => {
                Some(Release::new(*major, *minor))
            }
            _ => None,
        }
    }

    /// Whether a method of etcd's services exists in it (etcd: release notes of 3.5 and 3.7).
    pub fn has(self, method: &str) -> bool {
        match method {
            "AuthStatus" | "Downgrade" => self >= Release::new(3, 5),
            "RangeStream" => self >= Release::new(3, 7),
            _ => true,
        }
    }

    /// A sort that does not exist is refused, and not taken for the default (etcd: v3rpc/key.go,
    /// checkRangeRequest).
    pub fn refuses_unknown_sorts(self) -> bool {
        self >= Release::new(3, 6)
    }

    /// A transaction is checked operation by operation (etcd: txn/txn.go, checkTxn), and not puts before ranges.
    pub fn checks_in_order(self) -> bool {
        self >= Release::new(3, 6)
    }

    /// A put in a transaction is checked for its lease before its key (etcd: txn/put.go, checkPut).
    pub fn checks_leases_first(self) -> bool {
        self >= Release::new(3, 7)
    }

    /// The alarm NOSPACE also stops puts inside of nested transactions (etcd: storage/quota.go, costTxn).
    pub fn counts_nested_puts(self) -> bool {
        self >= Release::new(3, 7)
    }

    /// The answer to Alarm has a header (etcd: v3rpc/maintenance.go).
    pub fn has_alarm_header(self) -> bool {
        self >= Release::new(3, 5)
    }

    /// `keys_only` leaves the lease out too, unless the order is by value (etcd: txn/range.go, FastKeysOnly).
    pub fn keys_only_has_no_lease(self) -> bool {
        self >= Release::new(3, 7)
    }

    /// Status, `/version` and snapshots tell the version of the storage (etcd: v3rpc/maintenance.go).
    pub fn tells_storage_version(self) -> bool {
        self >= Release::new(3, 6)
    }

    /// `/livez` and `/readyz` exist, and `/health` gives a reason (etcd: etcdhttp/health.go;
    /// the last releases of 3.4 have some of it too).
    pub fn has_probes(self) -> bool {
        self >= Release::new(3, 5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_what_follows_from_them() {
        for (version, shown) in [
            ("3.7.3", "3.7.0"),
            ("3.4.23", "3.4.0"),
            ("3.6.0-rc.1", "3.6.0"),
            ("3.10.1", "3.10.0"),
            ("4", "3.7.0"),
            ("", "3.7.0"),
        ] {
            assert_eq!(Release::of(version).cluster_version(), shown, "{version}");
        }
        for (target, named) in [
            ("3.6", Some("3.6")),
            ("3.6.4", Some("3.6")),
            ("3.6.4-rc.1", Some("3.6")),
            ("03.6.1", Some("3.6")),
            ("3.6.x", None),
            ("v3.6.1", None),
            ("3", None),
            ("3.6.1.1", None),
            ("x", None),
            ("", None),
        ] {
            let got = Release::named(target).map(Release::short);
            assert_eq!(got.as_deref(), named, "{target}");
        }
        assert!(Release::of("3.10.0").refuses_unknown_sorts());
        assert!(!Release::of("3.5.21").checks_in_order());
        assert!(!Release::of("3.6.9").keys_only_has_no_lease());
        assert!(!Release::of("3.6.9").checks_leases_first());
        assert_eq!(Release::of("3.7.3").short(), "3.7");
        assert_eq!(Release::of("3.7.3").before(), Release::new(3, 6));
        assert!(Release::of("3.4.0").has("Snapshot") && !Release::of("3.4.0").has("Downgrade"));
    }
}
