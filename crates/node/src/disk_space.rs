//! Watches the room on the file system of the data directory, and tells the engine when the disk is full.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use nowserving_engine::Input;
use nowserving_log::{DiskLog, LogStore as _};
use tokio::sync::mpsc;

use crate::shards::worker::Done;

const INTERVAL: Duration = Duration::from_millis(200);
/// With less the disk counts as full. The rest is for what cannot be refused: votes, entries that are in the
/// log of other nodes, and snapshots, by which room is made.
const RESERVE_BYTES_MAX: u64 = 64 << 20;
/// On a small disk the reserve is one such part of it.
const RESERVE_PART: u64 = 10;

/// Free and total bytes.
#[derive(Debug, Clone, Copy)]
struct Space {
    free: u64,
    total: u64,
}

/// Starts the thread. From now on all parts of the log wait for room; the thread ends when none does any longer.
///
/// # Errors
/// The system gives no thread.
pub fn watch(
    data: PathBuf,
    logs: Vec<Arc<DiskLog>>,
    engine: mpsc::UnboundedSender<Done>,
) -> std::io::Result<()> {
    let (wake, woken) = sync_channel(1);
    for log in &logs {
        let wake = wake.clone();
        // Full: the thread is about to wake.
        log.wait_for_room(Some(Box::new(move || {
            let _ = wake.try_send(());
        })));
    }
    drop(wake);
    let thread = std::thread::Builder::new().name("disk space".into());
    thread.spawn(move || run(&data, &logs, &engine, &woken))?;
    Ok(())
}

fn run(
    data: &Path,
    logs: &[Arc<DiskLog>],
    engine: &mpsc::UnboundedSender<Done>,
    woken: &Receiver<()>,
) {
    let mut full = false;
    loop {
        let space = space(data);
        let waits = logs.iter().any(|log| log.waits_for_room());
        let is_full = waits || space.is_some_and(|space| space.is_low(full));
        if is_full != full {
            full = is_full;
            // Closed only while the node ends.
            let _ = engine.send(Ok(Input::DiskFull(full)));
        }
        if let Some(space) = space {
            metrics::gauge!("nowserving_disk_free_bytes").set(space.free as f64);
        }
        let log_bytes: u64 = logs.iter().map(|log| log.stats().used_bytes).sum();
        metrics::gauge!("nowserving_log_disk_bytes").set(log_bytes as f64);
        if woken.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// `None`: the system does not say.
fn space(data: &Path) -> Option<Space> {
    let found = rustix::fs::statvfs(data).ok()?;
    Some(Space {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

impl Space {
    /// Whether the disk counts as full. One that `was_full` needs a quarter more, so that a node does not
    /// go to and fro.
    fn is_low(self, was_full: bool) -> bool {
        let reserve = (self.total / RESERVE_PART).min(RESERVE_BYTES_MAX);
        self.free < if was_full { reserve / 4 * 5 } else { reserve }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_needs_more_than_the_reserve_to_count_as_usable_again() {
        const MIB: u64 = 1 << 20;
        for (total, reserve) in [(100 * MIB, 10 * MIB), (100_000 * MIB, 64 * MIB)] {
            let is_low = |free, was_full| Space { free, total }.is_low(was_full);
            assert!(is_low(reserve - 1, false));
            assert!(!is_low(reserve, false));
            assert!(is_low(reserve, true));
            assert!(!is_low(reserve / 4 * 5, true));
        }
    }
}
