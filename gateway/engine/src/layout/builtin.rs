//! The layouts that come with Causeway, in the same TOML that users write.

/// Parsed by the parser of user layouts.
pub(crate) const TOML: &str = include_str!("builtin.toml");
