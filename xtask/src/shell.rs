//! Running other programs from the workspace's root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that runs in the workspace's root, with nothing on stdin.
///
/// No step may wait for somebody to type: CI has nobody.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        // Set by `cargo run` for this package; they would mislead a cargo called from here.
        .env_remove("CARGO_MANIFEST_DIR")
        .env_remove("CARGO_PKG_NAME");
    command
}

/// The cargo that runs us.
pub fn cargo(args: &[&str]) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    command(&cargo, args)
}

/// Runs to the end; an error if it could not start or did not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let name = line(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed: {status}");
    }
    Ok(())
}

/// Runs to the end and returns what it printed on stdout.
pub fn output(command: &mut Command) -> Result<String> {
    let name = line(command);
    let done = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{name}`"))?;
    if !done.status.success() {
        bail!("`{name}` failed: {}", done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// True if the command starts, ends well, and whatever it prints is of no interest.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
