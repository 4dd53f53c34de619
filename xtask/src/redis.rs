//! A redis-server for `cargo xtask compare limits`: the one that is there, or Debian's, unpacked into the target folder.
//! Nothing is installed, as only a comparison needs it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{debian, packages, shell};

/// Tells the benchmark which one to use.
pub const ENV: &str = "REDIS_SERVER";
const PACKAGE: &str = "redis-server";

/// Where redis-server is.
pub fn ensure() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(ENV).filter(|given| !given.is_empty()) {
        return Ok(given.into());
    }
    if packages::has(PACKAGE) {
        return Ok(PACKAGE.into());
    }
    let folder = shell::root().join("target/tools/redis");
    let program = folder.join(PACKAGE);
    if !runs(&program) {
        unpack(&folder).with_context(|| {
            format!("redis-server is missing: install it, or set {ENV}=/path/to/redis-server")
        })?;
        ensure!(runs(&program), "{} does not run", program.display());
    }
    Ok(program)
}

fn runs(program: &Path) -> bool {
    program.is_file() && packages::has(&program.to_string_lossy())
}

/// Downloads the package and what it needs beyond what is installed, and unpacks them, which takes no rights.
fn unpack(folder: &Path) -> Result<()> {
    if !packages::has("apt-get") {
        bail!("without apt-get it cannot be unpacked here");
    }
    let plan = format!("install --simulate --no-install-recommends {PACKAGE}");
    let plan = shell::output(&mut shell::command("apt-get", &plan))?;
    let names = planned(&plan);
    ensure!(!names.is_empty(), "apt-get would install nothing");
    let root = debian::unpack(&names, folder)?;
    write_starter(folder, &root)
}

/// The packages that a simulated installation would install.
fn planned(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// A script that becomes the server, with the libraries that were unpacked beside it.
fn write_starter(folder: &Path, root: &Path) -> Result<()> {
    let text = format!(
        "#!/bin/sh\nexec env LD_LIBRARY_PATH='{}' '{}' \"$@\"\n",
        library_folders(root).join(":"),
        root.join("usr/bin").join(PACKAGE).display()
    );
    let starter = folder.join(PACKAGE);
    fs::write(&starter, text)?;
    Ok(fs::set_permissions(
        &starter,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// None if the packages brought no libraries: then the system's will do.
fn library_folders(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join("usr/lib")).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let folders = paths.filter(|path| path.is_dir());
    folders.map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_be_installed_is_downloaded() {
        let plan = "The following NEW packages:\n  a b\nInst a (1-2 Debian:12 [amd64])\nInst b [1] (2 x)\nConf a (1-2 x)\n";
        assert_eq!(planned(plan), ["a", "b"]);
    }
}
