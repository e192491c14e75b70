//! Compiles the proto without protoc: the messages, the client, a server whose pushed messages come encoded, and
//! the descriptor set for reflection.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use prost::Message;

const PROTO: &str = "causeway/registry/v1/registry.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).open_files([PROTO])?;
    let encoded = compiler.encode_file_descriptor_set();
    fs::write(out.join("registry.bin"), &encoded)?;
    let descriptors = || prost_types::FileDescriptorSet::decode(encoded.as_slice());

    prost_build::Config::new()
        // An order of its own, so that equal messages have equal bytes.
        .btree_map(["."])
        .compile_fds(descriptors()?)?;

    // The services stand in files of their own beside the messages.
    let services = |folder: &str| -> Result<PathBuf, Box<dyn Error>> {
        let folder = out.join(folder);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    };
    let messages = ".causeway.registry.v1";
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(services("client")?)
        .extern_path(messages, "crate::v1")
        .compile_fds(descriptors()?)?;
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(services("server")?)
        .codec_path("crate::codec::OnceCodec")
        .extern_path(
            format!("{messages}.ServerMessage"),
            "crate::codec::ToClient",
        )
        .extern_path(format!("{messages}.ServiceUpdate"), "crate::codec::Update")
        .extern_path(messages, "crate::v1")
        .compile_fds(descriptors()?)?;
    Ok(())
}
