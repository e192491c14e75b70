//! Compiles etcd's protos into the descriptor set by which `raw::etcd` reads and writes every message.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// The proto files are etcd's own; only their text is shared with Causeway, no generated code.
const PROTO_DIR: &str = "../gateway/wire/proto";

const PROTOS: [&str; 3] = [
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
    "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_DIR}");
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler.include_imports(true).open_files(PROTOS)?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("etcd.bin");
    fs::write(out, compiler.encode_file_descriptor_set())?;
    Ok(())
}
