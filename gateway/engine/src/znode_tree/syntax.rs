//! Syntax of znode paths.

use super::TreeError;

/// Nodes that always exist and cannot be deleted (ZooKeeper: `DataTree.isSpecialPath`).
pub(super) const SPECIAL: [&str; 4] = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];

/// ZooKeeper: `PathUtils.validatePath`. Everything it refuses is BadArguments.
pub fn validate_path(path: &str) -> Result<(), TreeError> {
    let Some(below_root) = path.strip_prefix('/') else {
        return Err(TreeError::BadArguments);
    };
    if below_root.is_empty() {
        return Ok(());
    }
    let segments_ok = below_root
        .split('/')
        .all(|segment| !matches!(segment, "" | "." | ".."));
    if segments_ok && below_root.chars().all(is_allowed) {
        Ok(())
    } else {
        Err(TreeError::BadArguments)
    }
}

/// Splits a path before its last segment: `/a/b` gives `/a` and `b`, `/a` gives `/` and `a`.
/// `None` for the root and for what has no slash.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    if name.is_empty() && parent.is_empty() {
        return None;
    }
    Some((if parent.is_empty() { "/" } else { parent }, name))
}

/// The parent by which a create or delete is judged before its own path is: the text before
/// the last slash, the root when that is empty (ZooKeeper: `validatePathForCreate`).
pub(super) fn claimed_parent(path: &str) -> Result<&str, TreeError> {
    match path.rsplit_once('/') {
        Some((parent, _)) if !path.contains('\0') => {
            Ok(if parent.is_empty() { "/" } else { parent })
        }
        _ => Err(TreeError::BadArguments),
    }
}

/// Characters beyond the first plane are surrogate pairs in ZooKeeper's UTF-16 and so refused.
fn is_allowed(c: char) -> bool {
    !matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}
