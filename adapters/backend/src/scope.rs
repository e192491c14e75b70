//! What is listed and watched.

use std::fmt;

use bytes::Bytes;

/// A set of raw keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subtree {
    /// This key, and every key that continues it after a `/`: a znode with all below it.
    Root(Bytes),
    /// Every key that starts with these bytes, wherever they end.
    Prefix(Bytes),
}

impl Subtree {
    /// The key `root` and all below it; a `/` at the end of `root` does not count, so that `/`
    /// is the root of all paths.
    pub fn root(root: impl Into<Bytes>) -> Self {
        let mut root: Bytes = root.into();
        while root.last() == Some(&b'/') {
            root.truncate(root.len() - 1);
        }
        Self::Root(root)
    }

    /// All keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::Prefix(prefix.into())
    }

    /// Whether `key` belongs to it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::Root(root) => match key.strip_prefix(root.as_ref()) {
                Some(rest) => rest.is_empty() || rest.first() == Some(&b'/'),
                None => false,
            },
        }
    }

    /// Whether every key of `other` belongs to it too.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(own), Self::Prefix(other) | Self::Root(other)) => other.starts_with(own),
            (Self::Root(_), Self::Root(other)) => self.contains(other),
            // A prefix that ends within a name also holds that name's longer siblings.
            (Self::Root(root), Self::Prefix(prefix)) => prefix
                .strip_prefix(root.as_ref())
                .is_some_and(|rest| rest.first() == Some(&b'/')),
        }
    }
}

impl fmt::Display for Subtree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(root) => write!(f, "{}/", root.escape_ascii()),
            Self::Prefix(prefix) => write!(f, "{}*", prefix.escape_ascii()),
        }
    }
}

/// The subtrees that a backend lists and watches together. Overlapping ones are merged, so no
/// entry is ever listed twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    subtrees: Vec<Subtree>,
}

impl Scope {
    /// A scope of the given subtrees.
    pub fn new(subtrees: impl IntoIterator<Item = Subtree>) -> Self {
        let mut all: Vec<Subtree> = subtrees.into_iter().collect();
        all.sort();
        all.dedup();
        let kept = all
            .iter()
            .filter(|one| !all.iter().any(|other| other != *one && other.covers(one)))
            .cloned()
            .collect();
        Self { subtrees: kept }
    }

    /// The subtrees, none within another.
    pub fn subtrees(&self) -> &[Subtree] {
        &self.subtrees
    }

    /// Whether `key` belongs to the scope.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.subtrees.iter().any(|subtree| subtree.contains(key))
    }
}

impl From<Subtree> for Scope {
    fn from(subtree: Subtree) -> Self {
        Self::new([subtree])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_ends_at_a_slash_and_a_prefix_anywhere() {
        let cases: &[(Subtree, &str, bool)] = &[
            (Subtree::root("/a/b"), "/a/b", true),
            (Subtree::root("/a/b"), "/a/b/c", true),
            (Subtree::root("/a/b"), "/a/bc", false),
            (Subtree::root("/a/b/"), "/a/b/c", true),
            (Subtree::root("/"), "/zookeeper", true),
            (Subtree::prefix("/a/b"), "/a/bc", true),
            (Subtree::prefix("/a/b/"), "/a/b", false),
            (Subtree::prefix(""), "anything", true),
        ];
        for (subtree, key, expected) in cases {
            assert_eq!(
                subtree.contains(key.as_bytes()),
                *expected,
                "{subtree} {key}"
            );
        }
    }

    #[test]
    fn what_lies_within_another_subtree_is_dropped() {
        let check = |given: Vec<Subtree>, kept: Vec<Subtree>| {
            assert_eq!(Scope::new(given).subtrees(), kept);
        };
        check(
            vec![
                Subtree::root("/a/b"),
                Subtree::root("/a"),
                Subtree::root("/ab"),
            ],
            vec![Subtree::root("/a"), Subtree::root("/ab")],
        );
        check(
            vec![
                Subtree::prefix("/a"),
                Subtree::root("/ab"),
                Subtree::root("/a"),
            ],
            vec![Subtree::prefix("/a")],
        );
        check(
            vec![
                Subtree::root("/a"),
                Subtree::prefix("/a/b"),
                Subtree::prefix("/a"),
            ],
            vec![Subtree::prefix("/a")],
        );
        check(
            vec![
                Subtree::root("/a"),
                Subtree::prefix("/a/b"),
                Subtree::root("/a"),
            ],
            vec![Subtree::root("/a")],
        );
    }
}
