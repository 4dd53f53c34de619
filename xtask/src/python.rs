//! Python packages in a virtual environment of xtask's own, in the target folder.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{languages, shell};

/// Installs packages, given as arguments of `pip install`, unless `works`, one of their programs with arguments, succeeds.
/// Returns the folder of programs.
pub fn environment(name: &str, packages: &[&str], works: &[&str]) -> Result<PathBuf> {
    let folder = shell::root().join("target/tools").join(name);
    let bin = folder.join("bin");
    if let [program, args @ ..] = works {
        let mut works = shell::command(&bin.join(program).to_string_lossy(), "");
        if shell::succeeds(works.args(args)) {
            return Ok(bin);
        }
    }
    languages::ensure()?;
    let mut venv = shell::command("python3", "-m venv --clear --without-pip");
    shell::run(venv.arg(&folder))?;
    // Without a pip of its own, and only what is imported is compiled: the rest takes many times longer.
    let mut install = shell::command("python3", "-m pip --python");
    install.arg(bin.join("python"));
    install.args(["install", "--quiet", "--no-compile"]);
    shell::run(install.args(packages).stdout(std::io::stderr()))
        .with_context(|| format!("{} cannot be installed", packages.join(" ")))?;
    Ok(bin)
}
