//! Compiles etcd's protos into messages (no services: those need a runtime) and into a descriptor set.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use prost::Message;

const PROTOS: [&str; 3] = [
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
    "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(PROTOS)?;
    // Encoded by protox, since going through prost's types would lose the google.api.http options.
    fs::write(out.join("etcd.bin"), compiler.encode_file_descriptor_set())?;

    let descriptors =
        prost_types::FileDescriptorSet::decode(compiler.encode_file_descriptor_set().as_slice())?;
    prost_build::Config::new()
        .bytes(["."])
        // Indented lines in etcd's comments would be run as doc tests.
        .disable_comments(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
