//! Compiles the messages of Envoy's authorization service with protox: pure Rust, so nobody has to install protoc.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 6] = [
    "envoy/config/core/v3/address.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/service/auth/v3/attribute_context.proto",
    "envoy/service/auth/v3/external_auth.proto",
    "envoy/type/v3/http_status.proto",
    "google/rpc/status.proto",
];

pub fn protos() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    for file in FILES {
        println!("cargo:rerun-if-changed={}", folder.join(file).display());
    }
    let descriptors = protox::compile(FILES, [&folder])?;
    tonic_prost_build::configure()
        .build_client(false)
        .include_file("envoy.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
