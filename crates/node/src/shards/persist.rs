//! What the shards want on disk, one write and one sync at a time: by a thread, or by the loop itself.
//!
//! To hand a write to a thread and back takes two wake-ups, which is as long as a sync takes on a fast disk. So the loop
//! writes itself while syncs are short and the thread has nothing to do. It leaves to the thread what may take longer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nowserving_engine::Input;
use nowserving_log::{LogError, LogStore};
use nowserving_replica::Write;
use tokio::sync::mpsc;

use super::worker::{Done, EndWithMe, Ends, Worker};

/// Compactions that wait at most.
const COMPACTIONS_MAX: usize = 64;

#[derive(Debug)]
enum Job {
    /// Make these durable, then say so.
    Write {
        writes: Vec<Write>,
        /// They are those of so many [`Output::Persist`](nowserving_engine::Output).
        count: usize,
    },
    /// Entries of a shard through this index are not needed any more.
    Compact {
        shard: u32,
        /// The last entry to go.
        through: u64,
    },
}

/// The loop writes itself while a sync takes at most so long.
const SHORT_SYNC: Duration = Duration::from_micros(500);
/// A sync that took longer than usual is what the next ones are expected to take, and this part of the difference is
/// forgotten with each of them.
const FORGOTTEN: u64 = 16;

/// How long a sync takes, in microseconds.
#[derive(Debug)]
struct SyncTime(AtomicU64);

impl SyncTime {
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let expected = self.0.load(Ordering::Relaxed);
        let less = (expected.saturating_sub(took)).div_ceil(FORGOTTEN);
        self.0.store(took.max(expected - less), Ordering::Relaxed);
    }

    fn is_short(&self) -> bool {
        Duration::from_micros(self.0.load(Ordering::Relaxed)) <= SHORT_SYNC
    }
}

/// Writes the log.
pub struct Persister {
    log: Arc<dyn LogStore>,
    thread: Worker<Job>,
    sync_time: Arc<SyncTime>,
    /// The writes that the thread has and has not finished.
    given: usize,
    /// What the loop writes at the end of its turn, and of how many [`Output::Persist`](nowserving_engine::Output) that is.
    own: Vec<Write>,
    own_count: usize,
}

impl Persister {
    /// Starts the thread over `log`, which tells `done` of its writes.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        log: Arc<dyn LogStore>,
        done: mpsc::UnboundedSender<Done>,
    ) -> std::io::Result<Persister> {
        // The thread measures before the loop relies on it.
        let sync_time = Arc::new(SyncTime(AtomicU64::new(2 * SHORT_SYNC.as_micros() as u64)));
        let (of_thread, measured) = (log.clone(), sync_time.clone());
        let thread = Worker::start("persist", COMPACTIONS_MAX, done, move |ends| {
            run(of_thread.as_ref(), &measured, &ends);
        })?;
        Ok(Persister {
            log,
            thread,
            sync_time,
            given: 0,
            own: Vec::new(),
            own_count: 0,
        })
    }

    /// Has these made durable.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn write(&mut self, writes: Vec<Write>) -> anyhow::Result<()> {
        if self.given == 0 && self.sync_time.is_short() {
            self.own.extend(writes);
            self.own_count += 1;
            return Ok(());
        }
        self.give_own()?;
        self.given += 1;
        self.thread.give(Job::Write { writes, count: 1 })
    }

    /// Has entries of a shard through this index dropped, if there is time.
    pub fn compact(&self, shard: u32, through: u64) {
        // Full: the next snapshot cuts further.
        self.thread.give_if_room(Job::Compact { shard, through });
    }

    /// Whether the loop has something to write.
    pub fn has_own(&self) -> bool {
        self.own_count > 0
    }

    /// Writes what the loop has to write. `None`: it takes longer, and the thread does it.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn write_own(&mut self) -> anyhow::Result<Option<Input>> {
        let _end = EndWithMe;
        let log = self.log.as_ref();
        let write = || log.write_if_short(&self.own);
        match written(log, &self.sync_time, syncs(&self.own), write) {
            Ok(true) => {
                let writes = std::mem::take(&mut self.own_count);
                let persisted = persisted(&self.own, writes);
                self.own.clear();
                Ok(Some(persisted))
            }
            Ok(false) => self.give_own().map(|()| None),
            Err(error) => abort(&error),
        }
    }

    fn give_own(&mut self) -> anyhow::Result<()> {
        let (writes, count) = (
            std::mem::take(&mut self.own),
            std::mem::take(&mut self.own_count),
        );
        if count == 0 {
            return Ok(());
        }
        self.given += count;
        self.thread.give(Job::Write { writes, count })
    }

    /// The thread has made so many writes.
    pub fn note_written(&mut self, writes: usize) {
        self.given = self.given.saturating_sub(writes);
    }

    /// The loop has ended: what found no room may be dropped.
    pub fn stop(&mut self) {
        // An error: the thread is gone, and so are the last writes.
        let _ = self.give_own();
        self.thread.stop();
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        self.thread.join();
    }
}

fn run(log: &dyn LogStore, sync_time: &SyncTime, ends: &Ends<Job>) {
    while let Some(first) = ends.jobs.next() {
        let mut all = Vec::new();
        let mut writes = 0;
        let mut compactions = Vec::new();
        // Whatever queued up during the last sync goes out with one more.
        for job in std::iter::once(first).chain(ends.jobs.waiting()) {
            match job {
                Job::Write {
                    writes: more,
                    count,
                } => {
                    writes += count;
                    all.extend(more);
                }
                Job::Compact { shard, through } => compactions.push((shard, through)),
            }
        }
        if !all.is_empty() {
            let write = || log.write(&all).map(|()| true);
            if let Err(error) = written(log, sync_time, syncs(&all), write) {
                return end(ends, &error);
            }
            if ends.done.send(Ok(persisted(&all, writes))).is_err() {
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

fn persisted(all: &[Write], writes: usize) -> Input {
    // The newest of each shard.
    let numbers: BTreeMap<_, _> = all.iter().map(|it| (it.shard, it.number)).collect();
    Input::Persisted {
        numbers: numbers.into_iter().collect(),
        writes,
    }
}

fn syncs(writes: &[Write]) -> bool {
    writes.iter().any(|it| it.must_sync)
}

/// Writes, and returns whether it was written.
fn written(
    log: &dyn LogStore,
    sync_time: &SyncTime,
    syncs: bool,
    write: impl FnOnce() -> Result<bool, LogError>,
) -> Result<bool, LogError> {
    let started = Instant::now();
    let written = write()?;
    if written {
        if syncs {
            sync_time.note(started.elapsed());
        }
        metrics::histogram!("nowserving_log_sync_seconds").record(started.elapsed());
        let stats = log.stats();
        metrics::counter!("nowserving_log_bytes_written_total").absolute(stats.bytes_written);
        metrics::counter!("nowserving_log_syncs_total").absolute(stats.syncs);
    }
    Ok(written)
}

/// After a failed write the content of the disk is unknown, and a later sync can succeed without it
/// (fsync reports an error once). So the node ends, and its next start verifies the log.
fn abort(error: &LogError) -> ! {
    tracing::error!(%error, "the log could not be written: stopping this node");
    std::process::abort();
}

/// The thread ends.
fn end(ends: &Ends<Job>, error: &LogError) {
    if !ends.stopping.load(Ordering::Acquire) {
        abort(error);
    }
    // Nothing of it was acknowledged: as a kill would, the end drops what found no room.
    tracing::warn!(%error, "the last writes were not made");
}

#[cfg(test)]
#[path = "persist_tests.rs"]
mod tests;
