//! Compiles the messages of Envoy's rate limit service with protox: pure Rust, so nobody has to install protoc.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 4] = [
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/type/v3/ratelimit_unit.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
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
