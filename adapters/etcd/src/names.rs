//! Scopes as ranges of keys.

use causeway_backend::{Scope, Subtree};

/// A range as etcd takes it: `[key, end)`, with an empty end for the one key, and `\0` for all
/// keys from `key` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

/// The ranges that hold exactly the keys of the scope. They do not overlap.
pub(crate) fn ranges(scope: &Scope) -> Vec<KeyRange> {
    scope.subtrees().iter().flat_map(subtree_ranges).collect()
}

fn subtree_ranges(subtree: &Subtree) -> Vec<KeyRange> {
    match subtree {
        Subtree::Prefix(prefix) => vec![prefix_range(prefix)],
        Subtree::Root(root) => {
            let below = prefix_range(&[root, &b"/"[..]].concat());
            if root.is_empty() {
                // etcd has no empty key.
                return vec![below];
            }
            vec![
                KeyRange {
                    key: root.to_vec(),
                    end: Vec::new(),
                },
                below,
            ]
        }
    }
}

fn prefix_range(prefix: &[u8]) -> KeyRange {
    // etcd refuses an empty key; no key sorts before a single zero byte.
    let key = if prefix.is_empty() {
        vec![0]
    } else {
        prefix.to_vec()
    };
    let end = match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix.get(..=last).unwrap_or_default().to_vec();
            if let Some(byte) = end.last_mut() {
                *byte += 1;
            }
            end
        }
        None => vec![0],
    };
    KeyRange { key, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_becomes_ranges() {
        let check = |subtree: Subtree, expected: &[(&[u8], &[u8])]| {
            let found = ranges(&Scope::from(subtree.clone()));
            let found: Vec<(&[u8], &[u8])> = found
                .iter()
                .map(|range| (&range.key[..], &range.end[..]))
                .collect();
            assert_eq!(found, expected, "{subtree}");
        };
        check(Subtree::root("/a"), &[(b"/a", b""), (b"/a/", b"/a0")]);
        check(Subtree::root("/"), &[(b"/", b"0")]);
        check(Subtree::prefix("/a"), &[(b"/a", b"/b")]);
        check(
            Subtree::prefix(&b"/a\xff\xff"[..]),
            &[(b"/a\xff\xff", b"/b")],
        );
        check(Subtree::prefix(""), &[(b"\0", b"\0")]);
        check(Subtree::prefix(&b"\xff"[..]), &[(b"\xff", b"\0")]);
    }
}
