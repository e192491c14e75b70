//! Keys as znode paths, and subtrees as roots to list and watch.

use causeway_backend::{BackendError, ErrorKind, Scope, Subtree};

/// The znode path that a key is.
///
/// # Errors
/// [`ErrorKind::InvalidKey`] for what no path can be; the client crate and the server refuse the
/// rest (ZooKeeper: `PathUtils.validatePath`).
pub(crate) fn path(key: &[u8]) -> Result<&str, BackendError> {
    match std::str::from_utf8(key) {
        Ok(path) if path.starts_with('/') => Ok(path),
        _ => Err(BackendError::not_applied(
            ErrorKind::InvalidKey,
            format!(
                "{} cannot be a znode path; keep such keys in etcd",
                key.escape_ascii()
            ),
        )),
    }
}

/// The path above a path; none above `/`.
pub(crate) fn parent(path: &str) -> Option<&str> {
    match path.rfind('/') {
        Some(0) if path.len() > 1 => Some("/"),
        Some(at) if at > 0 => path.get(..at),
        _ => None,
    }
}

/// A child's path.
pub(crate) fn child(path: &str, name: &str) -> String {
    match path {
        "/" => format!("/{name}"),
        path => format!("{path}/{name}"),
    }
}

/// The nodes whose subtrees hold the scope, none within another. They may hold more: keys are
/// checked against the scope.
pub(crate) fn roots(scope: &Scope) -> Vec<String> {
    let mut roots: Vec<String> = scope.subtrees().iter().filter_map(root).collect();
    roots.sort();
    roots.dedup();
    let all = Scope::new(roots.iter().map(|root| Subtree::root(root.clone())));
    roots.retain(|root| {
        let root = Subtree::root(root.clone());
        all.subtrees().contains(&root)
    });
    roots
}

/// Whether any key below `path` can belong to the scope.
pub(crate) fn reaches_below(scope: &Scope, path: &str) -> bool {
    let below = match path {
        "/" => "/".to_owned(),
        path => format!("{path}/"),
    };
    scope.subtrees().iter().any(|subtree| match subtree {
        Subtree::Prefix(prefix) => {
            prefix.starts_with(below.as_bytes()) || below.as_bytes().starts_with(prefix)
        }
        Subtree::Root(root) => {
            subtree.contains(path.as_bytes()) || path == "/" || root.starts_with(below.as_bytes())
        }
    })
}

/// `None` for keys that cannot be paths: there are none of them here.
fn root(subtree: &Subtree) -> Option<String> {
    let root = match subtree {
        Subtree::Root(root) if root.is_empty() => "/",
        Subtree::Root(root) => path(root).ok()?,
        Subtree::Prefix(prefix) if prefix.is_empty() => "/",
        Subtree::Prefix(prefix) => {
            // A prefix may end within a character.
            let valid = match std::str::from_utf8(prefix) {
                Ok(text) => text,
                Err(error) => std::str::from_utf8(prefix.get(..error.valid_up_to())?).ok()?,
            };
            match valid.rfind('/')? {
                0 => "/",
                at => valid.get(..at)?,
            }
        }
    };
    root.starts_with('/').then(|| root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_become_roots() {
        let check = |subtrees: &[Subtree], expected: &[&str]| {
            assert_eq!(
                roots(&Scope::new(subtrees.to_vec())),
                expected,
                "{subtrees:?}"
            );
        };
        check(&[Subtree::root("/a/b")], &["/a/b"]);
        check(&[Subtree::root("/")], &["/"]);
        check(&[Subtree::prefix("")], &["/"]);
        check(&[Subtree::prefix("/a/b")], &["/a"]);
        check(&[Subtree::prefix("/a/b/")], &["/a/b"]);
        check(&[Subtree::prefix("/a")], &["/"]);
        check(
            &[
                Subtree::prefix("/a/b/x"),
                Subtree::root("/a/b/c"),
                Subtree::root("/a/bc"),
            ],
            &["/a/b", "/a/bc"],
        );
        check(&[Subtree::root("/a"), Subtree::prefix("/a/b")], &["/a"]);
        check(&[Subtree::prefix("etcd/only"), Subtree::root("etcd")], &[]);
        check(
            &[Subtree::prefix("/a/\u{e9}".as_bytes()[..4].to_vec())],
            &["/a"],
        );
    }

    #[test]
    fn listing_goes_down_only_where_keys_can_be() {
        let scope = Scope::new([Subtree::root("/a/b"), Subtree::prefix("/c/d-")]);
        let cases: &[(&str, bool)] = &[
            ("/", true),
            ("/a", true),
            ("/a/b", true),
            ("/a/b/x", true),
            ("/a/bc", false),
            ("/c", true),
            ("/c/d", false),
            ("/c/d-1", true),
            ("/c/d-1/x", true),
            ("/c/e", false),
            ("/x", false),
        ];
        for (path, expected) in cases {
            assert_eq!(reaches_below(&scope, path), *expected, "{path}");
        }
    }

    #[test]
    fn paths_have_parents_and_children() {
        for (path, above) in [("/", None), ("/a", Some("/")), ("/a/b", Some("/a"))] {
            assert_eq!(parent(path), above);
        }
        assert_eq!(
            (child("/", "a"), child("/a", "b")),
            ("/a".to_owned(), "/a/b".to_owned())
        );
        assert!(path(b"/a").is_ok() && path(b"/").is_ok());
        for bad in [&b""[..], b"a", b"/\xff"] {
            assert!(path(bad).is_err());
        }
    }
}
