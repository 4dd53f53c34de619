//! Prometheus and Alertmanager with the programs that check their files: those that are there, or Debian's, unpacked.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{debian, packages, shell};

/// Tells the tests which Prometheus to start.
pub const ENV: &str = "PROMETHEUS";

pub struct Programs {
    pub prometheus: PathBuf,
    pub promtool: PathBuf,
    pub amtool: PathBuf,
}

/// Where they are.
pub fn ensure() -> Result<Programs> {
    if let Some(programs) = find() {
        return Ok(programs);
    }
    debian::unpack(
        &["prometheus", "prometheus-alertmanager"],
        &shell::root().join("target/tools/prometheus"),
    )
    .context("prometheus, promtool and amtool are missing: install them")?;
    find().context("prometheus, promtool or amtool was unpacked, but does not run")
}

/// None if one is missing.
fn find() -> Option<Programs> {
    let given = std::env::var_os(ENV).filter(|given| !given.is_empty());
    Some(Programs {
        prometheus: given.map(PathBuf::from).or_else(|| program("prometheus"))?,
        promtool: program("promtool")?,
        amtool: program("amtool")?,
    })
}

fn program(name: &str) -> Option<PathBuf> {
    let unpacked = shell::root()
        .join("target/tools/prometheus/root/usr/bin")
        .join(name);
    let mut places = [PathBuf::from(name), unpacked].into_iter();
    places.find(|program| packages::has(&program.to_string_lossy()))
}
