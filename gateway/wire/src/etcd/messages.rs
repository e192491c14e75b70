//! etcd 3.7's protobuf messages, generated once for the whole workspace from `gateway/wire/proto`.
//!
//! `bytes` fields are [`bytes::Bytes`], so a decoded message shares the buffer it came in.
//! There is no gRPC here. A crate with a runtime generates only the services, on these messages.
#![allow(
    missing_docs,
    clippy::doc_markdown,
    clippy::large_enum_variant,
    clippy::enum_variant_names
)]

/// Requests, responses and their parts.
pub mod etcdserverpb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// Key-value pairs and events.
pub mod mvccpb {
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
}

/// Users, roles, permissions.
pub mod authpb {
    include!(concat!(env!("OUT_DIR"), "/authpb.rs"));
}

/// The lock service.
pub mod v3lockpb {
    include!(concat!(env!("OUT_DIR"), "/v3lockpb.rs"));
}

/// The election service.
pub mod v3electionpb {
    include!(concat!(env!("OUT_DIR"), "/v3electionpb.rs"));
}

/// The encoded `FileDescriptorSet` of all the above with imports and options (`google.api.http` tells the paths of
/// the JSON gateway).
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/etcd.bin"));
