//! The causeway binary.
fn main() {}
