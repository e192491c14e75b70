//! The demonstration: see `scripts/demo`.
fn main() {}
