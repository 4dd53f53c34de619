//! `upgrade`: a soak in which nodes change between the build of another revision and this one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{release, shell};

/// Where the soak finds the other build.
const OTHER_BUILD: &str = "NOWSERVING_OTHER_BIN";

/// Builds `revision`, and soaks a cluster of it and of this build; the exit code is the soak's.
pub fn run(revision: &str, args: &[String]) -> Result<ExitCode> {
    let binary = build(revision)?;
    let args = [args, &["upgrade".to_owned()]].concat();
    release::measure_with("soak", &args, |run| run.env(OTHER_BUILD, &binary))
}

/// The binary of a revision; built once, from files outside of this working tree.
fn build(revision: &str) -> Result<PathBuf> {
    let commit = format!("rev-parse --verify --end-of-options {revision}^{{commit}}");
    let commit = shell::output(&mut shell::command("git", &commit))?;
    let commit = commit.trim();
    let folder = shell::root().join("target/upgrade");
    let binary = folder.join(format!("nowserving-{commit}"));
    if binary.exists() {
        return Ok(binary);
    }
    let source = folder.join("source");
    check_out(commit, &source)?;
    eprintln!("xtask: building {commit} (some minutes)");
    let target = folder.join("target");
    shell::run(
        shell::cargo("build --locked --quiet --release --package nowserving --bin nowserving")
            .arg("--target-dir")
            .arg(&target)
            .current_dir(&source),
    )?;
    let built = target.join("release/nowserving");
    std::fs::copy(&built, &binary).with_context(|| built.display().to_string())?;
    Ok(binary)
}

fn check_out(commit: &str, source: &Path) -> Result<()> {
    if source.exists() {
        std::fs::remove_dir_all(source).with_context(|| source.display().to_string())?;
    }
    std::fs::create_dir_all(source).with_context(|| source.display().to_string())?;
    let archive = source.with_extension("tar");
    let mut git = shell::command("git", "archive --format=tar --output");
    shell::run(git.arg(&archive).arg(commit))?;
    shell::run(
        shell::command("tar", "-xf")
            .arg(&archive)
            .arg("-C")
            .arg(source),
    )
}
