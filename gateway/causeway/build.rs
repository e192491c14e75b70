//! Generates etcd's gRPC services over the messages of `causeway-wire`. The clients are in
//! `causeway-backend-etcd`.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors =
        prost_types::FileDescriptorSet::decode(causeway_wire::etcd::messages::FILE_DESCRIPTOR_SET)?;
    let mut builder = tonic_prost_build::configure()
        .build_client(false)
        .build_server(true)
        .disable_comments(["."]);
    for package in [
        "etcdserverpb",
        "mvccpb",
        "authpb",
        "v3lockpb",
        "v3electionpb",
    ] {
        let messages = format!("::causeway_wire::etcd::messages::{package}");
        builder = builder.extern_path(format!(".{package}"), messages);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
