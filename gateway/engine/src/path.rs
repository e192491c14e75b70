//! Names of things in the two legacy stores: znode paths and etcd keys as raw bytes, and the only
//! conversions between them.
//!
//! Everywhere else a key is opaque bytes together with its [`Protocol`]; whoever needs a parent, a
//! child, a prefix or the other store's spelling asks here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which client protocol, and so which kind of legacy store, a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Keys are znode paths: UTF-8, a leading `/`, no empty segment.
    Zookeeper,
    /// Keys are arbitrary non-empty bytes; `/` means something only by custom.
    Etcd,
}

/// The same two words, where the talk is of a store instead of a client.
pub type StoreKind = Protocol;

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Zookeeper => "zookeeper",
            Protocol::Etcd => "etcd",
        })
    }
}

/// Why a key of etcd has no znode path of the same spelling.
///
/// The rules are ZooKeeper's `PathUtils.validatePath`; such a key can only be mirrored under an
/// escaped name, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// The bytes are not UTF-8.
    #[error("the key is not UTF-8")]
    NotUtf8,
    /// A znode path starts with `/`.
    #[error("the key has no leading slash")]
    NoLeadingSlash,
    /// `//` inside.
    #[error("the key has an empty segment")]
    EmptySegment,
    /// `/` at the end.
    #[error("the key ends with a slash")]
    TrailingSlash,
    /// A segment `.` or `..`.
    #[error("the key has a relative segment")]
    RelativeSegment,
    /// A character that ZooKeeper refuses in paths.
    #[error("the key has a character that ZooKeeper refuses in paths")]
    RefusedCharacter,
}

/// The znode path that is spelt like this etcd key, if ZooKeeper would take it.
pub fn znode_path_of_etcd_key(key: &[u8]) -> Result<&str, NoPath> {
    let text = std::str::from_utf8(key).map_err(|_| NoPath::NotUtf8)?;
    check_znode_path(text)?;
    Ok(text)
}

/// A raw ZooKeeper key as the text that it is.
pub fn znode_path(key: &[u8]) -> Result<&str, NoPath> {
    znode_path_of_etcd_key(key)
}

/// The rules of ZooKeeper's `PathUtils.validatePath`.
pub fn check_znode_path(path: &str) -> Result<(), NoPath> {
    if !path.starts_with('/') {
        return Err(NoPath::NoLeadingSlash);
    }
    if path == "/" {
        return Ok(());
    }
    if path.ends_with('/') {
        return Err(NoPath::TrailingSlash);
    }
    for segment in path.split('/').skip(1) {
        match segment {
            "" => return Err(NoPath::EmptySegment),
            "." | ".." => return Err(NoPath::RelativeSegment),
            _ => {}
        }
    }
    // PathUtils looks at UTF-16 units: controls, the private use area (through the surrogates of
    // supplementary characters too, since U+D800..=U+F8FF is one range there) and the specials.
    let refused = |c: char| {
        matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
            || u32::from(c) > 0xffff
    };
    if path.chars().any(refused) {
        return Err(NoPath::RefusedCharacter);
    }
    Ok(())
}

/// The parent of a znode path; `None` for `/`.
pub fn parent(path: &str) -> Option<&str> {
    match path.rfind('/') {
        Some(0) if path.len() > 1 => Some("/"),
        Some(at) if at > 0 => path.get(..at),
        _ => None,
    }
}

/// The last segment of a znode path or of an etcd key read as a path; the whole key when it has no
/// slash.
pub fn name(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// The path of a child.
pub fn child(parent: &str, name: &str) -> String {
    if parent == "/" {
        format!("/{name}")
    } else {
        format!("{parent}/{name}")
    }
}

/// Whether `path` is `ancestor` or lies below it (segment by segment, so `/ab` is not below `/a`).
pub fn is_at_or_below(path: &[u8], ancestor: &[u8]) -> bool {
    if ancestor == b"/" {
        return path.first() == Some(&b'/');
    }
    path.strip_prefix(ancestor)
        .is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

/// The end of the range that holds exactly the keys with this prefix, as etcd's clients compute it
/// (`clientv3.GetPrefixRangeEnd`): the last byte that can grow grows, what follows is cut. A prefix
/// of `0xff` bytes only, or an empty one, has no end, which etcd writes as one zero byte.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_keys() {
        let check = |key: &[u8], want: Result<&str, NoPath>| {
            assert_eq!(
                znode_path_of_etcd_key(key),
                want,
                "{}",
                String::from_utf8_lossy(key)
            );
        };
        check(b"/", Ok("/"));
        check(
            b"/microservices/orders/7c2f",
            Ok("/microservices/orders/7c2f"),
        );
        check("/d/\u{e9}t\u{e9}".as_bytes(), Ok("/d/\u{e9}t\u{e9}"));
        check(b"orders/1", Err(NoPath::NoLeadingSlash));
        check(b"", Err(NoPath::NoLeadingSlash));
        check(b"/a/", Err(NoPath::TrailingSlash));
        check(b"/a//b", Err(NoPath::EmptySegment));
        check(b"//", Err(NoPath::TrailingSlash));
        check(b"/a/../b", Err(NoPath::RelativeSegment));
        check(b"/a/.", Err(NoPath::RelativeSegment));
        check(b"/a/...", Ok("/a/..."));
        check(b"/a\0b", Err(NoPath::RefusedCharacter));
        check("/a\u{85}".as_bytes(), Err(NoPath::RefusedCharacter));
        check("/\u{1f600}".as_bytes(), Err(NoPath::RefusedCharacter));
        check(b"/\xff", Err(NoPath::NotUtf8));
    }

    #[test]
    fn parents_children_names() {
        for (path, want_parent, want_name) in [
            ("/", None, ""),
            ("/a", Some("/"), "a"),
            ("/a/b", Some("/a"), "b"),
            ("/a/b/c", Some("/a/b"), "c"),
        ] {
            assert_eq!(parent(path), want_parent, "{path}");
            assert_eq!(name(path), want_name, "{path}");
            if let Some(up) = want_parent {
                assert_eq!(child(up, want_name), path);
            }
        }
        assert_eq!(parent(""), None);
        assert_eq!(name("orders"), "orders");
        for (path, ancestor, want) in [
            ("/a", "/a", true),
            ("/a/b", "/a", true),
            ("/ab", "/a", false),
            ("/a", "/a/b", false),
            ("/x", "/", true),
        ] {
            assert_eq!(
                is_at_or_below(path.as_bytes(), ancestor.as_bytes()),
                want,
                "{path} {ancestor}"
            );
        }
    }

    #[test]
    fn ends_of_prefixes() {
        for (prefix, end) in [
            (&b"orders/"[..], &b"orders0"[..]),
            (b"a", b"b"),
            (b"a\xff", b"b"),
            (b"a\xff\xff", b"b"),
            (b"\xff", b"\0"),
            (b"", b"\0"),
        ] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }
}
