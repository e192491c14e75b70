//! What may differ from ZooKeeper, and what should not but does.

use crate::differential::{Allowed, Known};

/// Meant; see `docs/divergences.md`.
pub const ALLOWED: &[Allowed] = &[];

/// Found, and to be mended.
pub const KNOWN: &[Known] = &[];
