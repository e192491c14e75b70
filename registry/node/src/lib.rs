//! causeway-registry-node: the registry with a clock, tasks and ports.
//!
//! [`RegistryAccess`] is what the rest of the process sees of a registry, wherever its
//! [`causeway_registry::Node`] lives: in the gateway it is part of a larger state under that state's
//! lock. [`Registry`] is one that lives alone. [`NativeApi`] is the native API over either, which
//! [`router_of`] serves over HTTP and [`Grpc`] over gRPC; [`Dns`] answers resolvers.
//!
//! What this crate must not know: ZooKeeper and etcd, layouts and phases.

mod access;
mod debounce;
pub mod dns;
pub mod grpc;
pub mod http;
mod hub;
mod operations;
mod standalone;

pub use access::{AccessError, RegistryAccess};
pub use dns::{Dns, DnsConfig};
pub use grpc::Grpc;
pub use http::{router, router_of, router_with};
pub use operations::{Limits, NativeApi};
pub use standalone::Registry;
