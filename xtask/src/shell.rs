//! Running other programs from the workspace's root.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// How the names of variables begin that cargo sets for the package that it runs.
const OF_THIS_PACKAGE: [&str; 4] = [
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_CRATE_",
    "CARGO_BIN_",
];

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that runs in the workspace's root, with nothing on stdin. `words` are arguments with white
/// space between them.
///
/// No step may wait for somebody to type: CI has nobody.
pub fn command(program: &str, words: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(words.split_whitespace())
        .current_dir(root())
        .stdin(Stdio::null());
    // `cargo run` sets these for this package. Build scripts of a cargo that is called from here would take them for a
    // change: half of the dependencies would be built again, and once more by the next cargo that is called by hand.
    for (name, _) in std::env::vars_os() {
        if OF_THIS_PACKAGE
            .iter()
            .any(|own| name.to_string_lossy().starts_with(own))
        {
            command.env_remove(name);
        }
    }
    command
}

/// The cargo that runs us.
pub fn cargo(words: &str) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    command(&cargo, words)
}

/// Builds the one binary that `flags` of `cargo build` name; returns where it is.
pub fn build(flags: &str) -> Result<PathBuf> {
    build_with(flags, |cargo| cargo)
}

/// The same, with what `more` adds to cargo.
pub fn build_with(flags: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Result<PathBuf> {
    match <[PathBuf; 1]>::try_from(programs(flags, more)?) {
        Ok([executable]) => Ok(executable),
        Err(others) => bail!("{flags} names {} programs, not one", others.len()),
    }
}

/// Builds all binaries of the workspace; returns the folder in which they are.
pub fn build_all() -> Result<PathBuf> {
    let built = programs("--workspace --bins", |cargo| cargo)?;
    let folder = built.first().and_then(|program| program.parent());
    Ok(folder
        .context("the workspace has no program")?
        .to_path_buf())
}

/// Builds the binaries that `flags` name; returns where they are.
fn programs(flags: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Result<Vec<PathBuf>> {
    let build = format!("build --locked {flags}");
    eprintln!("xtask: cargo {build} (some minutes the first time)");
    let messages = "--message-format=json-render-diagnostics";
    let built = output(more(cargo(&build).arg(messages)))?;
    let executables = built.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    Ok(executables.collect())
}

/// Builds a binary as [`build`] does, then runs it with what `more` adds; its exit code is ours.
pub fn build_and_run(
    flags: &str,
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<ExitCode> {
    let program = build(flags)?;
    let mut run = command(&program.to_string_lossy(), "");
    more(&mut run).stdin(Stdio::inherit());
    let status = run.status();
    let status = status.with_context(|| format!("cannot start `{}`", line(&run)))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
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

/// Whether cargo has this command.
pub fn has_cargo(subcommand: &str) -> bool {
    succeeds(&mut cargo(&format!("{subcommand} --version")))
}

/// A file of this name that a step may write, in the target folder.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let folder = root().join("target/tools/scratch");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(name))
}

/// A program of crates.io in the target folder: built there the first time, which takes minutes. Not optimised, as it runs
/// for seconds.
pub fn cargo_program(name: &str, version: &str) -> Result<PathBuf> {
    cargo_programs(name, version, name)
}

/// The same of a package with several programs, of which this is one.
pub fn cargo_programs(package: &str, version: &str, name: &str) -> Result<PathBuf> {
    let folder = root()
        .join("target/tools")
        .join(format!("{package}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        eprintln!("xtask: building {package} {version} (some minutes)");
        let mut install = cargo(&format!(
            "install --locked --quiet --debug {package}@{version} --root"
        ));
        // Half of the time would go into debug information that nobody reads, and a part of the rest into its own checks.
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        install.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false");
        run(install.arg(&folder))?;
    }
    Ok(program)
}

/// Runs to the end, with what it prints in a file.
pub fn run_into(command: &mut Command, file: &Path) -> Result<()> {
    let printed = std::fs::File::create(file).with_context(|| file.display().to_string())?;
    run(command.stdout(printed))
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
