//! Tests that this machine cannot run.

use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result};

/// Names the file that `cargo xtask test` reads for its summary: a line for each test that was skipped.
const FILE: &str = "NOWSERVING_SKIPPED_TESTS";

/// Notes that a test, or a part of it, was not run. The output of a test that passes is shown to nobody.
///
/// # Errors
/// The file cannot be written.
pub fn skipped(test: &str, why: &str) -> Result<()> {
    eprintln!("skipped: {test}: {why}");
    let Some(path) = std::env::var_os(FILE) else {
        return Ok(());
    };
    // Tests run side by side: each line is one write at the end.
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.context(FILE)?;
    Ok(file.write_all(format!("{test}: {why}\n").as_bytes())?)
}
