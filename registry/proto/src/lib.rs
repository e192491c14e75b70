//! causeway-registry-proto: the native gRPC API as messages, for the member that serves it and the client that calls it.
//!
//! [`v1`] are the messages, [`client`] and [`server`] the two ends of the service. Both ends are here so that the
//! client needs nothing of a member. On the server's side a message that many are sent may come encoded
//! ([`codec::ToClient`], [`codec::Update`]): a push is encoded once, not once per subscriber.
//!
//! What this crate must not know: how a call is carried out, sockets, time.

pub mod codec;
mod convert;
pub mod digest;

/// The messages. Each is explained in `proto/causeway/registry/v1/registry.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/causeway.registry.v1.rs"));
}

/// The service, as a client calls it.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod client {
    include!(concat!(env!("OUT_DIR"), "/client/causeway.registry.v1.rs"));
    pub use registry_client::RegistryClient;
}

/// The service, as a member serves it.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod server {
    include!(concat!(env!("OUT_DIR"), "/server/causeway.registry.v1.rs"));
    pub use registry_server::{Registry, RegistryServer};
}

pub use convert::{ConvertError, Received};

/// The proto as descriptors, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/registry.bin"));

/// The largest message that a client takes, in bytes: a list of some 100,000 instances.
pub const MAX_TO_CLIENT: usize = 64 << 20;

/// The largest message that a member takes, in bytes.
pub const MAX_TO_SERVER: usize = 1 << 20;
