//! `docs/asyncapi.yaml`: the contract, made from the code and checked by AsyncAPI's own parser.

use anyhow::Result;

use crate::steps::Done;
use crate::{languages, sdks, shell};

/// The test compares the document with the code, or writes it. With the features of the workspace, whose build is there: the
/// protocol alone is built anew.
const TEST: &str =
    "test --locked --workspace --features nowserving-protocol/schema --test asyncapi";
const PARSER: &str = "xtask/asyncapi";

/// Writes it.
pub fn write() -> Result<()> {
    shell::run(shell::cargo(TEST).env("NOWSERVING_WRITE_GOLDEN", "1"))
}

/// It is what the code says, and what AsyncAPI is.
pub fn check() -> Result<Done> {
    shell::run(&mut shell::cargo(TEST))?;
    languages::ensure()?;
    for words in [sdks::NPM_CI, "run --silent check"] {
        shell::run(shell::command("npm", words).current_dir(shell::root().join(PARSER)))?;
    }
    Ok(Done::Passed)
}
