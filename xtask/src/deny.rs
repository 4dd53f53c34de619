//! `cargo deny`: licences, bans and sources of all dependencies, and what is known against them.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::steps::Done;

const VERSION: &str = "0.20.2";
/// What it says where the database, which is on GitHub, is out of reach.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// Against `deny.toml`, without the network.
pub fn licenses_bans_sources() -> Result<Done> {
    let mut check = cargo_deny()?;
    shell::run(check.args(["check", "licenses", "bans", "sources"]))?;
    Ok(Done::Passed)
}

/// Known faults of dependencies; skipped if the database cannot be fetched.
pub fn advisories() -> Result<Done> {
    let mut check = cargo_deny()?;
    let ran = check.args(["check", "advisories"]).output();
    let ran = ran.context("cannot start cargo-deny")?;
    let printed = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() {
        return Ok(Done::Passed);
    }
    if printed.contains(NO_DATABASE) {
        return Ok(Done::Skipped(format!("{NO_DATABASE} (GitHub)")));
    }
    bail!("{printed}");
}

/// The one that is there, or else one that is built from crates.io in the target folder, once for both steps: it takes
/// some minutes.
fn cargo_deny() -> Result<Command> {
    let mut command = if shell::has_cargo("deny") {
        shell::cargo("deny")
    } else {
        let program = shell::cargo_program("cargo-deny", VERSION)?;
        shell::command(&program.to_string_lossy(), "")
    };
    command.arg("--locked");
    Ok(command)
}
