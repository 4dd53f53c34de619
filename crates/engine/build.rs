//! Compiles `proto/frame.proto` with protox: pure Rust, so nobody has to install protoc.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!(
        "cargo:rerun-if-changed={}",
        folder.join("frame.proto").display()
    );
    let descriptors = protox::compile(["frame.proto"], [&folder])?;
    prost_build::Config::new()
        // Bytes instead of Vec<u8>: a decoded frame shares the buffer that it came in.
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
