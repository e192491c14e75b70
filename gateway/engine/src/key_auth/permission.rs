//! Permissions on ranges of keys, and how those of several roles add up (etcd: auth/range_perm_cache.go).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermissionKind {
    /// Range, watch, compare, previous pairs.
    Read,
    /// Put and delete.
    Write,
    /// Both.
    ReadWrite,
    /// A number that is not known: kept and shown, and allows nothing.
    Unknown(i32),
}

/// A permission on a key or a range, as it was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// What.
    pub kind: PermissionKind,
    /// First key.
    pub key: Bytes,
    /// Empty for the one key, one zero byte for all keys from the first on, else the end, excluded.
    pub range_end: Bytes,
}

impl Permission {
    /// Whether it is on a key or on a range that is not empty.
    pub(super) fn is_valid(&self) -> bool {
        let ends_later =
            self.range_end.is_empty() || self.range_end == [0][..] || self.key < self.range_end;
        !self.key.is_empty() && ends_later
    }
}

/// Adds a permission to those of a role, which stand in the order of their keys. One on the same range is changed if
/// it is the first with its key; etcd looks at no other, and keeps both then.
pub(super) fn grant(granted: &mut Vec<Permission>, wanted: &Permission) {
    let at = granted.partition_point(|p| p.key < wanted.key);
    match granted.get_mut(at) {
        Some(p) if (&p.key, &p.range_end) == (&wanted.key, &wanted.range_end) => {
            p.kind = wanted.kind;
        }
        _ => {
            granted.push(wanted.clone());
            granted.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
}

/// Ranges that a user may read and write.
#[derive(Debug, Clone, Default)]
pub(super) struct Permitted {
    read: Vec<Stretch>,
    write: Vec<Stretch>,
}

/// Keys from `start` on, up to `end`.
#[derive(Debug, Clone)]
struct Stretch {
    start: Bytes,
    /// `None`: there is no end.
    end: Option<Bytes>,
}

impl Permitted {
    pub(super) fn of<'a>(granted: impl Iterator<Item = &'a Permission>) -> Self {
        let mut permitted = Permitted::default();
        for permission in granted {
            let stretch = Stretch::of(&permission.key, &permission.range_end);
            let (reads, writes) = match permission.kind {
                PermissionKind::Read => (true, false),
                PermissionKind::Write => (false, true),
                PermissionKind::ReadWrite => (true, true),
                PermissionKind::Unknown(_) => (false, false),
            };
            if reads {
                permitted.read.push(stretch.clone());
            }
            if writes {
                permitted.write.push(stretch);
            }
        }
        for stretches in [&mut permitted.read, &mut permitted.write] {
            *stretches = merged(std::mem::take(stretches));
        }
        permitted
    }

    pub(super) fn may_read(&self, key: &[u8], range_end: &[u8]) -> bool {
        covers(&self.read, key, range_end)
    }

    pub(super) fn may_write(&self, key: &[u8], range_end: &[u8]) -> bool {
        covers(&self.write, key, range_end)
    }
}

impl Stretch {
    fn of(key: &Bytes, range_end: &Bytes) -> Self {
        let end = match &range_end[..] {
            // The next key after this one.
            [] => Some([key, &[0][..]].concat().into()),
            [0] => None,
            _ => Some(range_end.clone()),
        };
        Stretch {
            start: key.clone(),
            end,
        }
    }

    /// Whether it reaches to `end`; no end is the farthest.
    fn reaches(&self, end: Option<&[u8]>) -> bool {
        match (&self.end, end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(end)) => &own[..] >= end,
        }
    }
}

/// Stretches that overlap or touch as one: together they cover what reaches over both.
fn merged(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_by(|a, b| a.start.cmp(&b.start));
    let mut out: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for next in stretches {
        match out.last_mut() {
            Some(last) if last.reaches(Some(&next.start)) => {
                if !last.reaches(next.end.as_deref()) {
                    last.end = next.end;
                }
            }
            _ => out.push(next),
        }
    }
    out
}

/// Whether one stretch holds all of a request's range. A range that ends at or before its key holds nothing, and is
/// allowed to whoever is allowed the key.
fn covers(stretches: &[Stretch], key: &[u8], range_end: &[u8]) -> bool {
    let at = stretches.partition_point(|s| &s.start[..] <= key);
    let Some(stretch) = at.checked_sub(1).and_then(|at| stretches.get(at)) else {
        return false;
    };
    let holds_key = stretch.end.as_ref().is_none_or(|end| key < &end[..]);
    holds_key
        && match range_end {
            [] => true,
            [0] => stretch.end.is_none(),
            end => stretch.reaches(Some(end)),
        }
}
