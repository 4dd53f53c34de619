//! A shard's state on disk, so that a restart reads it and the rest of the log, and the log can be
//! cut. One file a shard, replaced as a whole.
//!
//! A new one is made on a thread of its own from what is on disk: the last one, and the log after it,
//! as a restart would. Encoding the loop's own state was simpler, and kept every poll of every shard
//! waiting while a large shard was walked (some tenths of a second for a million tokens).
//!
//! The same thread gives back old log files, which can mean rewriting what is left in them: the
//! persister must not keep everybody's writes waiting for that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use nowserving_log::LogStore;
use nowserving_replica::{Committed, Payload};
use nowserving_shard::command;
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

use super::persist::EndWithMe;
use crate::checked_file::write_atomically;
use crate::config::Config;
use crate::damage;

/// How much of the log is in memory at once while a snapshot is made.
const READ_BYTES_MAX: u64 = 4 << 20;
const READ_ENTRIES_MAX: u64 = 1_024;
/// How often old log files are looked for.
const PURGE_INTERVAL: Duration = Duration::from_secs(10);

/// A snapshot to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The shard.
    pub shard: u32,
    /// The last index that shall be in it: applied, so it is in the log for good.
    pub index: u64,
}

/// What the thread tells the loop.
#[derive(Debug)]
pub enum Done {
    /// What became of a job.
    Snapshot {
        /// The shard.
        shard: u32,
        /// The last index in the snapshot that is on disk now; `None`: it could not be made.
        index: Option<u64>,
    },
    /// These shards keep old log files alive: snapshot them.
    Pinned(Vec<u32>),
    /// The last snapshot or the log is damaged: the node could not start again, and must end.
    Damaged(anyhow::Error),
}

/// The thread that makes snapshots: apart from the persister, so that a large one doesn't hold up
/// the log.
#[derive(Debug)]
pub struct Writer {
    /// Snapshots to make, bounded.
    pub jobs: Sender<Job>,
    /// One for each job, and what else is to be told.
    pub done: Receiver<Done>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread over `dir`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(dir: PathBuf, config: &Config, log: Arc<dyn LogStore>) -> std::io::Result<Self> {
        let (jobs, inbox) = bounded::<Job>(4);
        let (outbox, done) = bounded(64);
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let maker = Maker {
            dir,
            cluster: config.cluster.clone(),
            log,
        };
        let thread = std::thread::Builder::new()
            .name("snapshots".into())
            .spawn(move || {
                // A failed sync in a purge is as final as one in a write.
                let _end = EndWithMe;
                maker.run(&inbox, &outbox, &stop);
            })?;
        Ok(Writer {
            jobs,
            done,
            stopping,
            thread,
        })
    }

    /// Lets the thread finish what it is at, not what is queued, and waits for it.
    pub fn join(self) {
        self.stopping.store(true, Ordering::Relaxed);
        let Writer {
            jobs, done, thread, ..
        } = self;
        drop(jobs);
        while done.recv().is_ok() {}
        if thread.join().is_err() {
            tracing::error!("the snapshot thread panicked");
        }
    }
}

struct Maker {
    dir: PathBuf,
    cluster: String,
    log: Arc<dyn LogStore>,
}

impl Maker {
    fn run(&self, inbox: &Receiver<Job>, outbox: &Sender<Done>, stop: &AtomicBool) {
        let mut last_purge = Instant::now();
        loop {
            let job = match inbox.recv_timeout(PURGE_INTERVAL) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let made = job.map(|job| self.tell(job));
            let pinned = (last_purge.elapsed() >= PURGE_INTERVAL).then(|| {
                last_purge = Instant::now();
                Done::Pinned(self.purge())
            });
            for done in made.into_iter().chain(pinned) {
                if outbox.send(done).is_err() {
                    return;
                }
            }
        }
    }

    fn tell(&self, Job { shard, index }: Job) -> Done {
        let made = self.make(shard, index);
        match &made {
            Ok(()) => {
                metrics::counter!("nowserving_snapshots_total", "outcome" => "written")
                    .increment(1);
                tracing::debug!(shard, index, "snapshot written");
            }
            // The old one and the whole log are still there: nothing is lost.
            Err(error) => {
                metrics::counter!("nowserving_snapshots_total", "outcome" => "failed").increment(1);
                let error = format!("{error:#}");
                tracing::error!(shard, index, error, "snapshot not written");
            }
        }
        match made {
            Err(error) if damage::is_damage(&error) => Done::Damaged(error),
            made => Done::Snapshot {
                shard,
                index: made.is_ok().then_some(index),
            },
        }
    }

    fn purge(&self) -> Vec<u32> {
        let pinned = self.log.purge().unwrap_or_else(|error| {
            tracing::warn!(%error, "old log files were not purged");
            Vec::new()
        });
        metrics::gauge!("nowserving_log_disk_bytes").set(self.log.stats().used_bytes as f64);
        pinned
    }

    fn make(&self, shard: u32, index: u64) -> anyhow::Result<()> {
        let (from, voters, mut state) = match read(&self.dir, &self.cluster, shard)? {
            Some((header, state)) => (header.index, header.voters, state),
            None => (0, self.log.load(shard)?.first_members.voters, State::new()),
        };
        self.replay(shard, from + 1, index, &mut state)?;
        let header = Header {
            cluster: self.cluster.clone(),
            shard,
            index,
            term: self.log.term(shard, index)?,
            voters,
        };
        let bytes = snapshot::encode(&header, &state);
        write_atomically(&self.dir, &file_name(shard), &bytes)?;
        Ok(())
    }

    /// Applies the entries from `next` through `last`.
    fn replay(&self, shard: u32, next: u64, last: u64, state: &mut State) -> anyhow::Result<()> {
        let mut next = next;
        while next <= last {
            let high = (last + 1).min(next + READ_ENTRIES_MAX);
            let entries = self.log.entries(shard, next, high, READ_BYTES_MAX)?;
            anyhow::ensure!(!entries.is_empty(), "entry {next} is missing");
            next += entries.len() as u64;
            for entry in entries {
                replay_entry(state, &entry.into())?;
            }
        }
        Ok(())
    }
}

fn replay_entry(state: &mut State, entry: &Committed) -> anyhow::Result<()> {
    if let Payload::Command(data) = &entry.payload {
        let index = entry.index;
        let decoded = command::decode(data);
        let decoded = decoded.with_context(|| format!("entry {index} is not readable"))?;
        state.apply_entry(index, &decoded, &mut ());
    }
    Ok(())
}

fn file_name(shard: u32) -> String {
    format!("shard-{shard}.snap")
}

/// Reads a shard's snapshot; `None` if there is none yet.
///
/// # Errors
/// It can't be read, is damaged, or belongs to another cluster or shard.
pub fn read(dir: &Path, cluster: &str, shard: u32) -> anyhow::Result<Option<(Header, State)>> {
    let path = dir.join(file_name(shard));
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    snapshot::decode(bytes.into(), cluster, shard)
        .map(Some)
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
#[path = "snapshots_tests.rs"]
mod tests;
