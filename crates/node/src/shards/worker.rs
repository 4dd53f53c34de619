//! A thread that works for the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

/// The thread's ends.
#[derive(Debug)]
pub struct Ends<J, D> {
    /// Its jobs; it ends when the channel closes.
    pub jobs: Receiver<J>,
    pub done: Sender<D>,
    /// The loop has ended: queued jobs may be dropped.
    pub stopping: Arc<AtomicBool>,
}

/// The loop's ends.
#[derive(Debug)]
pub struct Worker<J, D> {
    /// Its jobs, bounded.
    pub jobs: Sender<J>,
    pub done: Receiver<D>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl<J: Send + 'static, D: Send + 'static> Worker<J, D> {
    /// Starts a thread of this name, with room for so many jobs and outcomes.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        name: &str,
        (jobs_max, done_max): (usize, usize),
        run: impl FnOnce(Ends<J, D>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, inbox) = bounded(jobs_max);
        let (outbox, done) = bounded(done_max);
        let stopping = Arc::new(AtomicBool::new(false));
        let ends = Ends {
            jobs: inbox,
            done: outbox,
            stopping: stopping.clone(),
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let _end = EndWithMe;
            run(ends);
        })?;
        Ok(Worker {
            jobs,
            done,
            stopping,
            thread,
        })
    }

    /// Gives it a job; may have to wait for room.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn give(&self, job: J) -> anyhow::Result<()> {
        let name = self.thread.thread().name().unwrap_or_default();
        let given = self.jobs.send(job);
        given.map_err(|_| anyhow::anyhow!("the {name} thread died"))
    }

    /// Tells the thread that the loop has ended.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Lets the thread finish and waits for it.
    pub fn join(self) {
        self.stop();
        drop(self.jobs);
        // Keep emptying, so that its last words don't block it.
        while self.done.recv().is_ok() {}
        // A panic has ended the process already.
        let _ = self.thread.join();
    }
}

/// The log panics when a sync fails, as it must: the content of the disk is unknown then, and a later
/// sync can succeed. A panic ends this thread only; this ends the process with it, before another thread
/// relies on data that may not be on disk.
struct EndWithMe;

impl Drop for EndWithMe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
