//! Finding a nats-server, or installing one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::{packages, shell};

/// Tells every command started later which nats-server to use.
pub const ENV: &str = "NATS_SERVER";

/// Folders that a plain user's PATH often lacks, or that a package manager has just filled.
const MORE_FOLDERS: [&str; 5] = [
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
];

/// Returns a nats-server that runs, installing it where this can be done without asking.
pub fn ensure() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV).map(PathBuf::from) {
        // Whoever names one wants that one: falling back to another would hide the mistake.
        if runs(&path) {
            return Ok(path);
        }
        bail!(
            "{ENV}={} is not a nats-server that can be run",
            path.display()
        );
    }
    if let Some(path) = find() {
        return Ok(path);
    }
    install()?;
    find().ok_or_else(|| {
        anyhow::anyhow!("nats-server was installed but cannot be found; set {ENV}=/path/to/it")
    })
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join("nats-server"))
        .find(|program| runs(program))
}

fn runs(program: &Path) -> bool {
    program.is_file()
        && shell::succeeds(Command::new(program).arg("--version").stdin(Stdio::null()))
}

fn install() -> Result<()> {
    packages::install(
        "nats-server is missing: install it (https://github.com/nats-io/nats-server/releases) \
         or set NATS_SERVER=/path/to/nats-server",
        "nats-server",
        "nats-server",
    )
}
