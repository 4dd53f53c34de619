//! The persister thread: everything the shards want on disk, one write and one sync at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nowserving_engine::{Input, WRITES_IN_FLIGHT_MAX};
use nowserving_log::{LogError, LogStore};
use nowserving_replica::Write;

use super::worker::{Ends, Worker};

#[derive(Debug)]
pub enum Job {
    /// Make these durable, then say so.
    Write(Vec<Write>),
    /// Entries of a shard through this index are not needed any more.
    Compact {
        shard: u32,
        /// The last entry to go.
        through: u64,
    },
}

/// Starts the thread over `log`.
///
/// # Errors
/// The system gives no thread.
pub fn start(log: Arc<dyn LogStore>) -> std::io::Result<Worker<Job, Input>> {
    let room = (2 * WRITES_IN_FLIGHT_MAX, 4 * WRITES_IN_FLIGHT_MAX);
    Worker::start("persist", room, move |ends| run(log.as_ref(), &ends))
}

fn run(log: &dyn LogStore, ends: &Ends<Job, Input>) {
    while let Ok(first) = ends.jobs.recv() {
        let mut all = Vec::new();
        let mut writes = 0;
        let mut compactions = Vec::new();
        // Whatever queued up during the last sync goes out with one more.
        for job in std::iter::once(first).chain(ends.jobs.try_iter()) {
            match job {
                Job::Write(more) => {
                    writes += 1;
                    all.extend(more);
                }
                Job::Compact { shard, through } => compactions.push((shard, through)),
            }
        }
        if !all.is_empty() {
            if let Err(error) = write(log, &all) {
                return end(ends, &error);
            }
            // The newest of each shard.
            let numbers: BTreeMap<_, _> = all.iter().map(|it| (it.shard, it.number)).collect();
            let numbers = numbers.into_iter().collect();
            if ends
                .done
                .send(Input::Persisted { numbers, writes })
                .is_err()
            {
                return;
            }
        }
        for (shard, through) in compactions {
            if let Err(error) = log.compact(shard, through) {
                return end(ends, &error);
            }
        }
    }
}

fn write(log: &dyn LogStore, writes: &[Write]) -> Result<(), LogError> {
    let started = std::time::Instant::now();
    log.write(writes)?;
    metrics::histogram!("nowserving_log_sync_seconds").record(started.elapsed().as_secs_f64());
    let stats = log.stats();
    metrics::counter!("nowserving_log_bytes_written_total").absolute(stats.bytes_written);
    metrics::counter!("nowserving_log_syncs_total").absolute(stats.syncs);
    Ok(())
}

/// After a failed write the content of the disk is unknown, and a later sync can succeed without it
/// (fsync reports an error once). So the node ends, and its next start verifies the log.
fn end(ends: &Ends<Job, Input>, error: &LogError) {
    if ends.stopping.load(Ordering::Acquire) {
        // Nothing of it was acknowledged: as a kill would, the end drops what found no room.
        return tracing::warn!(%error, "the last writes were not made");
    }
    tracing::error!(%error, "the log could not be written: stopping this node");
    std::process::abort();
}
