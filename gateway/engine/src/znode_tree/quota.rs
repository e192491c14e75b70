//! What ZooKeeper counts below a node with a quota: the quota of `/a` is kept in `/zookeeper/quota/a`, its limits in
//! the child `zookeeper_limits`, and in `zookeeper_stats` the server keeps how many nodes and bytes there are.
//!
//! As with a server's default configuration limits are not enforced (`zookeeper.enforceQuota`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::{ZnodeTree, syntax};

/// Below it each node with a quota has its path (ZooKeeper: `Quotas.quotaZookeeper`).
const ROOT: &str = "/zookeeper/quota";
const LIMITS: &str = "zookeeper_limits";
const STATS: &str = "zookeeper_stats";

/// Nodes whose subtree is counted: those that have limits.
#[derive(Debug, Clone, Default)]
pub(super) struct Quotas {
    counted: BTreeSet<Arc<str>>,
}

impl Quotas {
    /// A node is there from now on.
    pub(super) fn placed(&mut self, path: &str) {
        if let Some(owner) = owner_of(path, LIMITS) {
            self.counted.insert(Arc::from(owner));
        }
    }

    /// A node is no longer there.
    pub(super) fn displaced(&mut self, path: &str) {
        if let Some(owner) = owner_of(path, LIMITS) {
            self.counted.remove(owner);
        }
    }

    /// The nearest node at or above `path` that is counted; only that one is (ZooKeeper: `PathTrie.findMaxPrefix`).
    fn nearest(&self, path: &str) -> Option<Arc<str>> {
        if self.counted.is_empty() {
            return None;
        }
        let mut at = path;
        loop {
            if let Some(found) = self.counted.get(at) {
                return Some(found.clone());
            }
            (at, _) = syntax::split(at)?;
        }
    }
}

/// The node whose limits or stats `path` holds.
fn owner_of<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(ROOT)?;
    let owner = rest.strip_suffix(name)?.strip_suffix('/')?;
    owner.starts_with('/').then_some(owner)
}

impl ZnodeTree {
    /// So many nodes and bytes more at `path` (ZooKeeper: `DataTree.updateQuotaStat`). The Stat of the counts does
    /// not change with them, and no watch fires.
    pub(super) fn count_for_quota(&mut self, path: &str, nodes: i64, bytes: i64) {
        let Some(owner) = self.quotas.nearest(path) else {
            return;
        };
        let stats = format!("{ROOT}{owner}/{STATS}");
        let Some(mut counts) = self.node(&stats).and_then(|n| Counts::parse(n.data())) else {
            return;
        };
        counts.add("count", nodes);
        counts.add("bytes", bytes);
        self.set_data(&stats, Some(counts.text()), |_| {});
    }

    /// A node for counts was made: they begin with what there is (ZooKeeper: `DataTree.updateQuotaForPath`).
    pub(super) fn recount_for_quota(&mut self, path: &str) {
        let Some(owner) = owner_of(path, STATS) else {
            return;
        };
        let mut counts = Counts::default();
        counts.set("count", 0);
        counts.set("bytes", 0);
        let below = self.descendants(owner);
        for counted in below.iter().map(|p| &**p).chain([owner]) {
            if let Some(node) = self.node(counted) {
                counts.add("count", 1);
                counts.add("bytes", length(node.data()));
            }
        }
        self.set_data(path, Some(counts.text()), |_| {});
    }
}

/// Bytes of data.
pub(super) fn length(data: Option<&Bytes>) -> i64 {
    i64::try_from(data.map_or(0, Bytes::len)).unwrap_or(i64::MAX)
}

/// ZooKeeper: `StatsTrack`.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    values: BTreeMap<String, i64>,
}

impl Counts {
    /// `None` for what is none: a server dies of it, here nothing is counted.
    fn parse(data: Option<&Bytes>) -> Option<Self> {
        let mut counts = Counts::default();
        let text = std::str::from_utf8(data.map_or(&[], |d| &d[..])).ok()?;
        for pair in text.split([',', ';']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.trim_end_matches('=').split_once('=')?;
            counts.values.insert(key.to_owned(), value.parse().ok()?);
        }
        Some(counts)
    }

    fn set(&mut self, key: &str, value: i64) {
        self.values.insert(key.to_owned(), value);
    }

    /// What was never counted is -1.
    fn get(&self, key: &str) -> i64 {
        self.values.get(key).copied().unwrap_or(-1)
    }

    fn add(&mut self, key: &str, more: i64) {
        self.set(key, self.get(key).wrapping_add(more));
    }

    /// ZooKeeper: `StatsTrack.toString`, with the stray sign before further keys.
    fn text(&self) -> Bytes {
        let mut text = format!("count={},bytes={}", self.get("count"), self.get("bytes"));
        let mut more = self
            .values
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "count" | "bytes"))
            .peekable();
        if more.peek().is_some() {
            text.push('=');
        }
        for (key, value) in more {
            let _ = write!(text, ";{key}={value}");
        }
        Bytes::from(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_written_as_the_server_does() {
        let check = |text: &str, want: Option<&str>| {
            let counts = Counts::parse(Some(&Bytes::copy_from_slice(text.as_bytes())));
            let again = counts.map(|mut counts| {
                counts.add("count", 1);
                counts.add("bytes", 2);
                String::from_utf8_lossy(&counts.text()).into_owned()
            });
            assert_eq!(again.as_deref(), want, "{text}");
        };
        check("", Some("count=0,bytes=1"));
        check("count=7;bytes=9", Some("count=8,bytes=11"));
        check(
            "count=7;bytes=9,foo=1,bar=2",
            Some("count=8,bytes=11=;bar=2;foo=1"),
        );
        check("count=8,bytes=11=;foo=1", Some("count=9,bytes=13=;foo=1"));
        check("junk", None);
        check("count=,bytes=4", None);
    }

    #[test]
    fn limits_and_stats_lie_below_the_quota_of_a_node() {
        let check =
            |path: &str, want: Option<&str>| assert_eq!(owner_of(path, LIMITS), want, "{path}");
        check("/zookeeper/quota/a/b/zookeeper_limits", Some("/a/b"));
        check("/zookeeper/quota/zookeeper_limits", None);
        check("/zookeeper/quotas/zookeeper_limits", None);
        check("/zookeeper/quota/a/my_zookeeper_limits", None);
        check("/a/zookeeper_limits", None);
    }
}
