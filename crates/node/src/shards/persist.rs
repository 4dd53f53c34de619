//! The persister thread: everything the shards want on disk, one write and one sync at a time.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use nowserving_engine::WRITES_IN_FLIGHT_MAX;
use nowserving_log::{LogError, LogStore};
use nowserving_replica::Write;

/// What the loop asks of the persister.
#[derive(Debug)]
pub enum Job {
    /// Make these durable, then say so.
    Write(Vec<Write>),
    /// Entries of a shard through this index are not needed any more.
    Compact {
        /// The shard.
        shard: u32,
        /// The last entry to go.
        through: u64,
    },
}

/// Writes that are durable now.
#[derive(Debug)]
pub struct Written {
    /// How many jobs went out with this sync.
    pub jobs: usize,
    /// Per shard the number of the newest write.
    pub numbers: Vec<(u32, u64)>,
}

/// The thread, and the channels to and from it.
#[derive(Debug)]
pub struct Persister {
    /// Jobs, bounded.
    pub jobs: Sender<Job>,
    /// Outcomes.
    pub done: Receiver<Written>,
    thread: JoinHandle<()>,
}

impl Persister {
    /// Starts the thread over `log`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(log: Arc<dyn LogStore>) -> std::io::Result<Self> {
        let (jobs, inbox) = bounded(2 * WRITES_IN_FLIGHT_MAX);
        let (outbox, done) = bounded(4 * WRITES_IN_FLIGHT_MAX);
        let thread = std::thread::Builder::new()
            .name("persist".into())
            .spawn(move || {
                let _end = EndWithMe;
                run(log.as_ref(), &inbox, &outbox);
            })?;
        Ok(Persister { jobs, done, thread })
    }

    /// Lets the thread finish what it has and waits for it.
    pub fn join(self) {
        let Persister { jobs, done, thread } = self;
        drop(jobs);
        // Keep emptying, so that its last words don't block it.
        while done.recv().is_ok() {}
        if thread.join().is_err() {
            tracing::error!("the persister thread panicked");
        }
    }
}

/// raft-engine panics when a sync fails, as it must: what is on the disk is unknown then, and a later
/// sync can succeed without it. A panic ends this thread only; this ends the process with it, before
/// anybody else can act on what may not be there.
pub(super) struct EndWithMe;

impl Drop for EndWithMe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn run(log: &dyn LogStore, inbox: &Receiver<Job>, outbox: &Sender<Written>) {
    while let Ok(first) = inbox.recv() {
        let mut writes = Vec::new();
        let mut jobs = 0;
        let mut compactions = Vec::new();
        // Whatever queued up during the last sync goes out with one more.
        for job in std::iter::once(first).chain(inbox.try_iter()) {
            match job {
                Job::Write(more) => {
                    jobs += 1;
                    writes.extend(more);
                }
                Job::Compact { shard, through } => compactions.push((shard, through)),
            }
        }
        if !writes.is_empty() {
            write(log, &writes);
            let mut numbers: Vec<(u32, u64)> = Vec::new();
            for write in &writes {
                match numbers.iter_mut().find(|(shard, _)| *shard == write.shard) {
                    Some((_, number)) => *number = write.number,
                    None => numbers.push((write.shard, write.number)),
                }
            }
            if outbox.send(Written { jobs, numbers }).is_err() {
                return;
            }
        }
        for (shard, through) in compactions {
            or_die(log.compact(shard, through));
        }
    }
}

fn write(log: &dyn LogStore, writes: &[Write]) {
    let started = std::time::Instant::now();
    or_die(log.write(writes));
    metrics::histogram!("nowserving_log_sync_seconds").record(started.elapsed().as_secs_f64());
    let stats = log.stats();
    metrics::counter!("nowserving_log_bytes_written_total").absolute(stats.bytes_written);
    metrics::counter!("nowserving_log_syncs_total").absolute(stats.syncs);
}

/// After a failed write nobody knows what is on the disk, and a later sync can succeed without it
/// (fsync reports an error once). The only honest thing is to die and re-verify on the way up.
fn or_die(result: Result<(), LogError>) {
    if let Err(error) = result {
        tracing::error!(%error, "the log could not be written: stopping this node");
        std::process::abort();
    }
}
