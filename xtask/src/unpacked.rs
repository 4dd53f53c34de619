//! Programs that `cargo xtask bench` compares with, and proxies that tests start: those that are there, or Debian's,
//! unpacked into the target folder. Nothing is installed, so no service is started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{debian, packages, shell};

/// A program of a package.
pub struct Program {
    name: &'static str,
    package: &'static str,
    /// The variable that tells the benchmark or the tests which one to use.
    pub variable: &'static str,
    /// Succeeds if it runs.
    probe: &'static str,
}

/// What the benchmark compares with.
pub const COMPARED: [Program; 4] = [
    Program {
        name: "redis-server",
        package: "redis-server",
        variable: "REDIS_SERVER",
        probe: "--version",
    },
    Program {
        name: "redis-benchmark",
        package: "redis-tools",
        variable: "REDIS_BENCHMARK",
        probe: "--version",
    },
    Program {
        name: "etcd",
        package: "etcd-server",
        variable: "ETCD",
        probe: "--version",
    },
    Program {
        name: "etcdctl",
        package: "etcd-client",
        variable: "ETCDCTL",
        probe: "version",
    },
];

/// Proxies that stand before a shop.
pub const PROXIES: [Program; 2] = [
    Program {
        name: "nginx",
        package: "nginx",
        variable: "NGINX",
        probe: "-v",
    },
    Program {
        name: "haproxy",
        package: "haproxy",
        variable: "HAPROXY",
        probe: "-v",
    },
];

/// Where a package has its program. The second is not in every user's PATH.
const FOLDERS: [&str; 2] = ["usr/bin", "usr/sbin"];

impl Program {
    /// Where it is.
    pub fn ensure(&self) -> Result<PathBuf> {
        let Program { name, variable, .. } = self;
        if let Some(given) = std::env::var_os(variable).filter(|given| !given.is_empty()) {
            return Ok(given.into());
        }
        let installed = FOLDERS.map(|folder| Path::new("/").join(folder).join(name));
        let mut places = std::iter::once(PathBuf::from(name)).chain(installed);
        if let Some(program) = places.find(|program| self.runs(program)) {
            return Ok(program);
        }
        let folder = shell::root().join("target/tools").join(self.package);
        let program = folder.join(name);
        if !(program.is_file() && self.runs(&program)) {
            self.unpack(&folder).with_context(|| {
                format!("{name} is missing: install it, or set {variable}=/path/to/{name}")
            })?;
            ensure!(self.runs(&program), "{} does not run", program.display());
        }
        Ok(program)
    }

    fn runs(&self, program: &Path) -> bool {
        shell::succeeds(&mut shell::command(&program.to_string_lossy(), self.probe))
    }

    /// Downloads the package and what it needs beyond what is installed, and unpacks them, which takes no rights.
    fn unpack(&self, folder: &Path) -> Result<()> {
        if !packages::has("apt-get") {
            bail!("without apt-get it cannot be unpacked here");
        }
        let plan = format!(
            "install --simulate --no-install-recommends {}",
            self.package
        );
        let plan = || shell::output(&mut shell::command("apt-get", &plan));
        let plan = plan().or_else(|_| {
            // A fresh machine has no list of packages.
            packages::update("apt-get does not know the package with its list of packages")?;
            plan()
        })?;
        let names = planned(&plan);
        ensure!(!names.is_empty(), "apt-get would install nothing");
        let root = debian::unpack(&names, folder)?;
        write_starter(folder, &root, self.name)
    }
}

/// The packages that a simulated installation would install.
fn planned(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// A script that becomes the program, with the libraries that were unpacked beside it.
fn write_starter(folder: &Path, root: &Path, name: &str) -> Result<()> {
    let mut places = FOLDERS
        .map(|folder| root.join(folder).join(name))
        .into_iter();
    let program = places.find(|program| program.is_file());
    let program = program.with_context(|| format!("the package has no program {name}"))?;
    let text = format!(
        "#!/bin/sh\nexec env LD_LIBRARY_PATH='{}' '{}' \"$@\"\n",
        library_folders(root).join(":"),
        program.display()
    );
    let starter = folder.join(name);
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
