//! The client libraries, a file a language. To add one: a file here, a line below, and its programs in
//! `compat-tests/clients/<family>`.

use super::client::Family;

pub mod c;
pub mod go;
pub mod java;
pub mod node;
pub mod python;
pub mod rust;
pub mod shell;

/// All of them.
pub fn all() -> Vec<&'static dyn Family> {
    vec![
        &c::C,
        &go::Go,
        &java::Java,
        &node::Node,
        &python::Python,
        &rust::Rust,
        &shell::Shell,
    ]
}
