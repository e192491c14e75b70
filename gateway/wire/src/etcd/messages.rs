//! etcd 3.7's protobuf messages, generated once for the whole workspace from `gateway/wire/proto`.
//!
//! `bytes` fields are [`bytes::Bytes`], so a decoded message shares the buffer it came in.
//! There is no gRPC here. A crate with a runtime generates only the services, on these messages; tonic-prost's codec
//! works on them as they are.
//!
//! In such a crate's `Cargo.toml`: dependencies `causeway-wire`, `prost`, `tonic`, `tonic-prost`; build dependencies
//! `causeway-wire`, `prost`, `prost-types`, `tonic-prost-build`. Its `build.rs` (`build_client` or `build_server` may
//! be false):
//!
//! ```text
//! use prost::Message;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     println!("cargo:rerun-if-changed=build.rs");
//!     let descriptors = prost_types::FileDescriptorSet::decode(
//!         causeway_wire::etcd::messages::FILE_DESCRIPTOR_SET,
//!     )?;
//!     let mut builder = tonic_prost_build::configure()
//!         .build_client(true)
//!         .build_server(true)
//!         .disable_comments(["."]);
//!     for package in ["etcdserverpb", "mvccpb", "authpb", "v3lockpb", "v3electionpb"] {
//!         let messages = format!("::causeway_wire::etcd::messages::{package}");
//!         builder = builder.extern_path(format!(".{package}"), messages);
//!     }
//!     builder.compile_fds(descriptors)?;
//!     Ok(())
//! }
//! ```
//!
//! And in its code:
//!
//! ```text
//! #[allow(missing_docs, unreachable_pub, clippy::all)]
//! mod services {
//!     pub mod etcdserverpb { tonic::include_proto!("etcdserverpb"); }
//!     pub mod v3lockpb { tonic::include_proto!("v3lockpb"); }
//!     pub mod v3electionpb { tonic::include_proto!("v3electionpb"); }
//! }
//! ```
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;

    use super::*;

    #[test]
    fn the_descriptor_set_has_every_service_and_the_paths_of_the_json_gateway() {
        let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let services: Vec<&str> = set
            .file
            .iter()
            .flat_map(|file| &file.service)
            .map(|s| s.name())
            .collect();
        let want = [
            "KV",
            "Watch",
            "Lease",
            "Cluster",
            "Maintenance",
            "Auth",
            "Lock",
            "Election",
        ];
        assert_eq!(services, want);
        for path in [
            "/v3/kv/range",
            "/v3/watch",
            "/v3/lock/lock",
            "/v3/election/observe",
        ] {
            let found = FILE_DESCRIPTOR_SET
                .windows(path.len())
                .any(|bytes| bytes == path.as_bytes());
            assert!(found, "{path}");
        }
    }

    #[test]
    fn a_put_as_etcd_has_it_and_its_value_is_not_copied() {
        let encoded = Bytes::from_static(&[0x0a, 1, b'k', 0x12, 2, b'v', b'w', 0x18, 7, 0x20, 1]);
        let put = etcdserverpb::PutRequest::decode(encoded.clone()).unwrap();
        let want = etcdserverpb::PutRequest {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"vw"),
            lease: 7,
            prev_kv: true,
            ..Default::default()
        };
        assert_eq!(put, want);
        assert_eq!(put.value.as_ptr(), encoded[5..].as_ptr());
        assert_eq!(put.encode_to_vec(), encoded);
    }
}
