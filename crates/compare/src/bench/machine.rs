//! The machine that the measurement ran on.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use tempfile::NamedTempFile;

const SYNCS: usize = 20;
const SYNCED_BYTES: usize = 4_096;

/// The machine, as far as it matters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Cores that this process may use; requester, nats-server, echo and nodes share them.
    pub cores: usize,
    /// The processor's name, where the system tells.
    pub processor: Option<String>,
    /// Operating system and architecture.
    pub system: String,
    /// Median time of writing 4 KiB and syncing it, where the nodes keep their logs, in
    /// microseconds: no `enter` can be faster.
    pub sync_us: u64,
}

impl Machine {
    /// Looks at it. `dir`: where the cluster keeps its data.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn look(dir: &Path) -> anyhow::Result<Machine> {
        Ok(Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            sync_us: u64::try_from(sync_time(dir, SYNCED_BYTES)?.as_micros())?,
        })
    }

    pub fn text(&self) -> String {
        let Machine {
            cores,
            processor,
            system,
            sync_us,
        } = self;
        let processor = processor
            .as_ref()
            .map_or(String::new(), |name| format!(" ({name})"));
        let sync_ms = *sync_us as f64 / 1_000.0;
        format!(
            "{cores} cores{processor}, {system}, \
             4 KiB written and synced in {sync_ms:.2} ms"
        )
    }
}

fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned())
}

/// The median time of adding so many bytes to a file and syncing it.
///
/// # Errors
/// Nothing can be written there.
pub fn sync_time(dir: &Path, bytes: usize) -> anyhow::Result<Duration> {
    let context = || format!("cannot write in {}", dir.display());
    // Another one may run beside this one.
    let mut file = NamedTempFile::new_in(dir).with_context(context)?;
    let data = vec![b'x'; bytes];
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let started = Instant::now();
        file.write_all(&data)
            .and_then(|()| file.as_file().sync_data())
            .with_context(context)?;
        times.push(started.elapsed());
    }
    file.close().with_context(context)?;
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_disk_is_tried_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sync_time(dir.path(), 1).unwrap() > Duration::ZERO);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
