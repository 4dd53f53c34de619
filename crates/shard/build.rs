//! Compiles the formats of log entries and snapshots with protox: pure Rust, so nobody has to install protoc.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 5] = [
    "entry.proto",
    "limit.proto",
    "members.proto",
    "settings.proto",
    "snapshot.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    for file in FILES {
        println!("cargo:rerun-if-changed={}", folder.join(file).display());
    }
    let descriptors = protox::compile(FILES, [&folder])?;
    prost_build::Config::new()
        // Bytes instead of Vec<u8>: a decoded entry shares the buffer that it came in.
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
