//! causeway-registry-node: the registry with a clock, tasks and an HTTP port.
//!
//! [`RegistryAccess`] is what the rest of the process sees of a registry, wherever its
//! [`causeway_registry::Node`] lives: in the gateway it is part of a larger state under that state's
//! lock. [`Registry`] is one that lives alone. [`router`] serves the native HTTP/JSON API over either.
//!
//! What this crate must not know: ZooKeeper and etcd, layouts and phases.

mod access;
pub mod http;
mod hub;
mod standalone;

pub use access::{AccessError, RegistryAccess};
pub use http::{Limits, router, router_with};
pub use standalone::Registry;
