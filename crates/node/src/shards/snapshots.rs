//! A shard's state on disk, so that a restart reads it and the rest of the log, and the log can be
//! cut. One file a shard, replaced as a whole.
//!
//! A thread makes a new one from the disk: the last one and the log after it, as a restart would. Encoding the
//! loop's own state was simpler, and kept every poll of every shard waiting while a large shard was walked (some
//! tenths of a second for a million tokens).
//!
//! The same thread deletes old log files: the persister must not keep everybody's writes waiting for that.

use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nowserving_engine::replay::Replay;
use nowserving_engine::snapshot_header::{header_of, meta_of};
use nowserving_engine::{Input, NotInstalled, ReceivedState, SnapshotFile};
use nowserving_line::Limits;
use nowserving_log::LogStore;
use nowserving_replica::{BOOTSTRAP_INDEX, ConfState, SnapshotMeta};
use nowserving_shard::command;
use nowserving_shard::snapshot;
use nowserving_shard::state::State;
use tokio::sync::mpsc;

use super::transfers;
use super::worker::{Done, Ends, Worker};
use crate::config::Config;
use crate::damage;
use crate::data_dir::{self, write_atomically};

/// The engine has at most two jobs a shard under way.
const JOBS_MAX: usize = 512;
/// By how much others go first.
#[cfg(target_os = "linux")]
const SNAPSHOT_NICENESS: i32 = 10;
const PURGE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
pub enum Job {
    /// Make a snapshot.
    Make(Make),
    /// Verify a peer's snapshot, which is whole, and make it this node's own.
    Install {
        shard: u32,
        meta: SnapshotMeta,
        file: SnapshotFile,
    },
}

/// A snapshot to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Make {
    pub shard: u32,
    /// The last index in it; it is applied, so it is in the log for good.
    pub index: u64,
    /// The members as of that entry.
    pub members: ConfState,
}

/// Starts the thread over `dir`: apart from the persister, so that a large snapshot doesn't hold up the log.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    dir: PathBuf,
    config: &Config,
    log: Arc<dyn LogStore>,
    done: mpsc::UnboundedSender<Done>,
) -> std::io::Result<Worker<Job>> {
    // Both begin at 0, so that an alarm sees the first failure.
    for outcome in [WRITTEN, FAILED] {
        count(outcome, 0);
    }
    let maker = Maker {
        dir,
        cluster: config.cluster.clone(),
        log,
    };
    Worker::start("snapshots", JOBS_MAX, done, move |ends| maker.run(&ends))
}

const WRITTEN: &str = "written";
const FAILED: &str = "failed";

fn count(outcome: &'static str, by: u64) {
    metrics::counter!("nowserving_snapshots_total", "outcome" => outcome).increment(by);
}

struct Maker {
    dir: PathBuf,
    cluster: String,
    log: Arc<dyn LogStore>,
}

impl Maker {
    fn run(&self, ends: &Ends<Job>) {
        yield_to_others();
        let (mut last_purge, mut left_memory) = (Instant::now(), false);
        loop {
            let job = match ends.jobs.next_within(PURGE_INTERVAL) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if ends.stopping.load(Ordering::Relaxed) {
                return;
            }
            if left_memory && job.is_none() {
                give_back_memory();
            }
            left_memory = job.is_some();
            let made = job.and_then(|job| self.apart(job));
            let pinned = (last_purge.elapsed() >= PURGE_INTERVAL).then(|| {
                last_purge = Instant::now();
                Ok(self.purge())
            });
            for done in made.into_iter().chain(pinned) {
                if ends.done.send(done).is_err() {
                    return;
                }
            }
        }
    }

    /// Does a job in a thread of its own, which gives the memory back that it took: a shard's whole state, for some time.
    /// One that goes on keeps it for the next time.
    fn apart(&self, job: Job) -> Option<Done> {
        let mut job = Some(job);
        let done = thread::scope(|scope| {
            let run = || job.take().map(|job| self.carry_out(job));
            let thread = thread::Builder::new().spawn_scoped(scope, run);
            let joined = thread.ok()?.join();
            joined.unwrap_or_else(|panic| resume_unwind(panic))
        });
        // Still there: the system gave no thread.
        done.or_else(|| job.map(|job| self.carry_out(job)))
    }

    fn carry_out(&self, job: Job) -> Done {
        match job {
            Job::Make(make) => self.tell(make),
            Job::Install { shard, meta, file } => self.install(shard, &meta, file),
        }
    }

    /// An error: the last snapshot or the log is damaged, so the node could not start again, and must end.
    fn tell(&self, make: Make) -> Done {
        let Make { shard, index, .. } = make;
        let made = self.make(make);
        count(if made.is_ok() { WRITTEN } else { FAILED }, 1);
        let written = match made {
            Ok(written) => {
                tracing::debug!(shard, index, "snapshot written");
                Some(written)
            }
            Err(error) => {
                let text = format!("{error:#}");
                tracing::error!(shard, index, error = text, "snapshot not written");
                if damage::is_damage(&error) {
                    return Err(error);
                }
                // The old one and the whole log are still there: nothing is lost.
                None
            }
        };
        Ok(Input::SnapshotWritten { shard, written })
    }

    fn purge(&self) -> Input {
        let shards = self.log.purge().unwrap_or_else(|error| {
            tracing::warn!(%error, "old log files were not purged");
            Vec::new()
        });
        let log_bytes = self.log.stats().used_bytes;
        Input::FilesPinned { shards, log_bytes }
    }

    /// An error: nobody knows whether the folder on disk has the file.
    fn install(&self, shard: u32, meta: &SnapshotMeta, file: SnapshotFile) -> Done {
        let state = match self.adopt(shard, meta, &file) {
            Ok(state) => {
                File::open(&self.dir)
                    .and_then(|dir| dir.sync_all())
                    .context("syncing the folder of snapshots")?;
                Ok(ReceivedState(Box::new(state)))
            }
            Err((not_installed, error)) => {
                let (index, error) = (meta.index, format!("{error:#}"));
                tracing::warn!(shard, index, error, "a peer's snapshot is not taken");
                // Another try begins anew.
                let _ = fs::remove_file(self.dir.join(transfers::incoming_name(shard, &file)));
                Err(not_installed)
            }
        };
        Ok(Input::SnapshotReceived { shard, file, state })
    }

    /// Makes a whole snapshot of a peer this node's own, and returns the state in it.
    fn adopt(
        &self,
        shard: u32,
        meta: &SnapshotMeta,
        file: &SnapshotFile,
    ) -> Result<State, (NotInstalled, anyhow::Error)> {
        let path = self.dir.join(transfers::incoming_name(shard, file));
        let not_stored = |error| (NotInstalled::NotStored, anyhow::Error::new(error));
        let bytes = fs::read(&path).map_err(not_stored)?;
        let state = self.verify(shard, meta, file, bytes);
        let state = state.map_err(|error| (NotInstalled::Refused, error))?;
        File::open(&path)
            .and_then(|incoming| incoming.sync_all())
            .and_then(|()| fs::rename(&path, self.dir.join(file_name(shard))))
            .map_err(not_stored)?;
        Ok(state)
    }

    /// The state in a peer's snapshot.
    fn verify(
        &self,
        shard: u32,
        meta: &SnapshotMeta,
        file: &SnapshotFile,
        bytes: Vec<u8>,
    ) -> anyhow::Result<State> {
        let found = SnapshotFile::of(&bytes);
        anyhow::ensure!(
            found.as_ref() == Some(file),
            "another file than was offered"
        );
        let (header, state) = snapshot::decode_with(
            bounds()?,
            bytes.into(),
            command::FORMAT,
            &self.cluster,
            shard,
        )?;
        anyhow::ensure!(
            meta_of(header) == *meta,
            "another snapshot than was offered"
        );
        Ok(state)
    }

    fn make(&self, make: Make) -> anyhow::Result<(SnapshotMeta, SnapshotFile)> {
        let Make { shard, index, .. } = make;
        let (from, mut state) = match read(&self.dir, &self.cluster, shard)? {
            // A peer's has come meanwhile.
            Some(own) if own.meta.index >= index => return Ok((own.meta, own.file)),
            Some(own) => (own.meta.index, own.state),
            None => (BOOTSTRAP_INDEX, State::with_limits(bounds()?)),
        };
        let replay = Replay {
            shard,
            format: command::FORMAT,
            after: from,
            through: index,
        };
        replay.run(self.log.as_ref(), &mut state)?;
        let meta = SnapshotMeta {
            index,
            term: self.log.term(shard, index)?,
            conf_state: make.members,
        };
        let header = header_of(&self.cluster, shard, meta.clone());
        let bytes = snapshot::encode(&header, &state);
        write_atomically(&self.dir, &file_name(shard), &bytes)?;
        let file = SnapshotFile::of(&bytes).context("an empty snapshot")?;
        Ok((meta, file))
    }
}

/// What a thread has freed, the allocator gives back to the system some tenths of a second later, when the next thread
/// ends. While nothing is to be done, there would be none: a shard's whole state would stay, and the bytes of it.
fn give_back_memory() {
    let run = || drop(std::hint::black_box(Vec::<u8>::with_capacity(1)));
    if let Ok(thread) = thread::Builder::new().spawn(run) {
        // It can't panic.
        let _ = thread.join();
    }
}

/// This thread works for seconds at a time: the loop and the persister go first. Elsewhere than on Linux it
/// would be the whole process that gives way.
fn yield_to_others() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(SNAPSHOT_NICENESS) {
        tracing::debug!(%error, "snapshots are made at the priority of the rest");
    }
}

pub fn file_name(shard: u32) -> String {
    format!("shard-{shard}.snap")
}

/// A shard's snapshot on disk.
pub struct Found {
    pub meta: SnapshotMeta,
    pub state: State,
    pub file: SnapshotFile,
}

/// The bounds of the lines of a state, and a random seed for their look-ups.
///
/// # Errors
/// The system has no random numbers.
pub fn bounds() -> anyhow::Result<Limits> {
    Ok(Limits {
        hash_seed: data_dir::random_u64()?,
        ..Limits::default()
    })
}

/// Reads a shard's snapshot; `None` if there is none yet.
///
/// # Errors
/// It can't be read, is damaged, or belongs to another cluster or shard.
pub fn read(dir: &Path, cluster: &str, shard: u32) -> anyhow::Result<Option<Found>> {
    let path = dir.join(file_name(shard));
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let file = SnapshotFile::of(&bytes);
    let read = || {
        let (header, state) =
            snapshot::decode_with(bounds()?, bytes.into(), command::FORMAT, cluster, shard)?;
        anyhow::Ok(Found {
            meta: meta_of(header),
            state,
            file: file.context("too short for a snapshot")?,
        })
    };
    read().map(Some).with_context(|| path.display().to_string())
}

#[cfg(test)]
#[path = "snapshots_tests.rs"]
mod tests;
