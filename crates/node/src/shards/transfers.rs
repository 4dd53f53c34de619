//! The thread that reads parts of this node's snapshots for peers, and stores the parts of theirs. Each
//! snapshot of a peer is a file under its digest until it is whole and verified, so that a fetch that broke
//! off goes on where it was.
//!
//! It is apart from the one that makes snapshots, which can take seconds.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use nowserving_engine::envelope::{SnapshotChunk, SnapshotRequest};
use nowserving_engine::{Input, SnapshotFile};
use nowserving_shard::snapshot::DIGEST_BYTES;
use tokio::sync::mpsc;

use super::snapshots::file_name;
use super::worker::{Done, Ends, Worker};

/// A part of a snapshot at most; the engine says less if NATS takes less in one message.
pub const CHUNK_BYTES: u32 = 256 << 10;
/// The engine has at most one job a shard under way for itself, and one a shard and peer.
const JOBS_MAX: usize = 2_048;
const SUFFIX: &str = ".incoming";

#[derive(Debug)]
pub enum Job {
    /// Find what is there of a peer's snapshot, or begin it.
    Open { shard: u32, file: SnapshotFile },
    /// Store the next part of it.
    Store {
        file: SnapshotFile,
        chunk: SnapshotChunk,
    },
    /// Delete what is there of a peer's snapshot.
    Drop { shard: u32 },
    /// Read a part of this node's own for a peer.
    Read {
        to: u64,
        request: SnapshotRequest,
        bytes_max: usize,
    },
}

/// Starts the thread over `dir`.
///
/// # Errors
/// The system gives no thread.
pub fn start(dir: PathBuf, done: mpsc::UnboundedSender<Done>) -> io::Result<Worker<Job>> {
    let transfers = Transfers { dir };
    Worker::start("transfers", JOBS_MAX, done, move |ends| {
        transfers.run(&ends);
    })
}

/// The name of a peer's snapshot until it is this node's own.
pub fn incoming_name(shard: u32, file: &SnapshotFile) -> String {
    let digest = blake3::Hash::from_bytes(file.digest);
    format!("{}{digest}{SUFFIX}", incoming_prefix(shard))
}

fn incoming_prefix(shard: u32) -> String {
    format!("shard-{shard}.")
}

struct Transfers {
    dir: PathBuf,
}

impl Transfers {
    fn run(&self, ends: &Ends<Job>) {
        while let Some(job) = ends.jobs.next() {
            if ends.stopping.load(Ordering::Relaxed) {
                return;
            }
            let done = self.carry_out(job);
            if done.is_some_and(|input| ends.done.send(Ok(input)).is_err()) {
                return;
            }
        }
    }

    fn carry_out(&self, job: Job) -> Option<Input> {
        let (shard, file, stored) = match job {
            Job::Open { shard, file } => (shard, file, self.open(shard, &file)),
            Job::Store { file, chunk } => (chunk.shard, file, self.store(&file, &chunk)),
            Job::Drop { shard } => {
                if let Err(error) = self.remove_incoming(shard, "") {
                    tracing::warn!(shard, %error, "a part of a peer's snapshot is not deleted");
                }
                return None;
            }
            Job::Read {
                to,
                request,
                bytes_max,
            } => {
                let read = self.read(&request, bytes_max);
                // The peer asks again, or is offered another one.
                let chunk = read.inspect_err(|error| {
                    tracing::warn!(shard = request.shard, to, %error, "no part of a snapshot read");
                });
                return chunk
                    .ok()
                    .flatten()
                    .map(|chunk| Input::SnapshotRead { to, chunk });
            }
        };
        let offset = stored.inspect_err(|error| {
            tracing::warn!(shard, %error, "a part of a peer's snapshot is not stored");
        });
        Some(Input::SnapshotStored {
            shard,
            file,
            offset: offset.ok(),
        })
    }

    /// The length of what is there. What is there of other snapshots of the shard goes.
    fn open(&self, shard: u32, file: &SnapshotFile) -> io::Result<u64> {
        let own = incoming_name(shard, file);
        self.remove_incoming(shard, &own)?;
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).open(self.dir.join(own))?;
        let len = opened.metadata()?.len();
        if len <= file.bytes {
            return Ok(len);
        }
        opened.set_len(0)?;
        Ok(0)
    }

    /// Deletes what is there of peers' snapshots of a shard, but for the file of this name.
    fn remove_incoming(&self, shard: u32, but: &str) -> io::Result<()> {
        let prefix = incoming_prefix(shard);
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) && name.ends_with(SUFFIX) && name != but {
                fs::remove_file(self.dir.join(name))?;
            }
        }
        Ok(())
    }

    /// The length with this part.
    fn store(&self, file: &SnapshotFile, chunk: &SnapshotChunk) -> io::Result<u64> {
        let path = self.dir.join(incoming_name(chunk.shard, file));
        let opened = OpenOptions::new().write(true).open(path)?;
        let len = opened.metadata()?.len();
        if len != chunk.offset {
            let what = format!("{len} bytes are there, not {}", chunk.offset);
            return Err(io::Error::other(what));
        }
        opened.write_all_at(&chunk.data, len)?;
        Ok(len + chunk.data.len() as u64)
    }

    /// `None`: another snapshot has taken the place of the one that is asked for.
    fn read(
        &self,
        request: &SnapshotRequest,
        bytes_max: usize,
    ) -> io::Result<Option<SnapshotChunk>> {
        let file = File::open(self.dir.join(file_name(request.shard)))?;
        let len = file.metadata()?.len();
        let mut digest = [0; DIGEST_BYTES];
        file.read_exact_at(&mut digest, len.saturating_sub(DIGEST_BYTES as u64))?;
        let bytes = len.saturating_sub(request.offset);
        let bytes = bytes.min(CHUNK_BYTES.into()) as usize;
        let bytes = bytes.min(bytes_max);
        if digest[..] != request.digest[..] || bytes == 0 {
            return Ok(None);
        }
        let mut data = vec![0; bytes];
        file.read_exact_at(&mut data, request.offset)?;
        Ok(Some(SnapshotChunk {
            shard: request.shard,
            digest: request.digest.clone(),
            offset: request.offset,
            data: data.into(),
        }))
    }
}

#[cfg(test)]
#[path = "transfers_tests.rs"]
mod tests;
