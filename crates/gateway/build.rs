//! What is made before the crate is compiled: the table of the page's files, and the messages of Envoy.

use std::error::Error;

#[cfg(feature = "envoy")]
#[path = "build/envoy.rs"]
mod envoy;
#[path = "build/page.rs"]
mod page;

fn main() -> Result<(), Box<dyn Error>> {
    page::files()?;
    #[cfg(feature = "envoy")]
    envoy::protos()?;
    Ok(())
}
