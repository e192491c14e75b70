//! Generates etcd's gRPC clients over the messages of `causeway-wire`.

use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let protos = Path::new("../../gateway/wire/proto");
    println!("cargo:rerun-if-changed={}", protos.display());
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new([protos])?;
    compiler.include_imports(true).open_files([
        "etcd/api/etcdserverpb/rpc.proto",
        "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
        "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    ])?;
    let mut builder = tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false);
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
    builder.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
