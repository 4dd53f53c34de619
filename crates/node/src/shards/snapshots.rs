//! A shard's state on disk, so that a restart reads it and the rest of the log, and the log can be
//! cut. One file a shard, replaced as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;
use crossbeam_channel::{Receiver, Sender, bounded};
use nowserving_line::Lines;
use nowserving_protocol::snapshot::{self, Header};

use crate::identity::write_atomically;

/// A state to write.
#[derive(Debug)]
pub struct Job {
    /// The shard.
    pub shard: u32,
    /// The last applied index in it.
    pub index: u64,
    /// The whole file.
    pub bytes: Vec<u8>,
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The shard.
    pub shard: u32,
    /// The last index in the snapshot that is on disk now; `None`: it could not be written.
    pub index: Option<u64>,
}

/// The thread that writes snapshots: apart from the persister, so that a large one doesn't hold up
/// the log.
#[derive(Debug)]
pub struct Writer {
    /// States to write, bounded.
    pub jobs: Sender<Job>,
    /// One for each job.
    pub done: Receiver<Outcome>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread over `dir`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(dir: PathBuf) -> std::io::Result<Self> {
        let (jobs, inbox) = bounded::<Job>(4);
        let (outbox, done) = bounded(64);
        let thread = std::thread::Builder::new()
            .name("snapshots".into())
            .spawn(move || {
                for job in inbox {
                    let Job {
                        shard,
                        index,
                        bytes,
                    } = job;
                    let written = write_atomically(&dir, &file_name(shard), &bytes);
                    match &written {
                        Ok(()) => tracing::debug!(shard, index, "snapshot written"),
                        // The old one and the whole log are still there: nothing is lost.
                        Err(error) => tracing::error!(shard, %error, "snapshot not written"),
                    }
                    let index = written.is_ok().then_some(index);
                    if outbox.send(Outcome { shard, index }).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Writer { jobs, done, thread })
    }

    /// Lets the thread finish what it has and waits for it.
    pub fn join(self) {
        let Writer { jobs, done, thread } = self;
        drop(jobs);
        while done.recv().is_ok() {}
        if thread.join().is_err() {
            tracing::error!("the snapshot thread panicked");
        }
    }
}

fn file_name(shard: u32) -> String {
    format!("shard-{shard}.snap")
}

/// Reads a shard's snapshot; `None` if there is none yet.
///
/// # Errors
/// It can't be read, is damaged, or belongs to another cluster or shard.
pub fn read(dir: &Path, cluster: &str, shard: u32) -> anyhow::Result<Option<(Header, Lines)>> {
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
