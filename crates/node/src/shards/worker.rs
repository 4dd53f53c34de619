//! A thread that works for the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nowserving_engine::Input;
use tokio::sync::mpsc;

/// A result for the loop. An error: the node must end.
pub type Done = anyhow::Result<Input>;

/// What a thread has to do. Not crossbeam's channel: a thread that waits for its next job there yields the processor again
/// and again before it sleeps. That thread took 4 % of all processor time under load for waiting, and takes 2 % with this.
#[derive(Debug)]
pub struct Jobs<J> {
    inbox: Receiver<J>,
    waiting: Arc<AtomicUsize>,
}

impl<J> Jobs<J> {
    /// Waits for the next one. `None`: there will be no more.
    pub fn next(&self) -> Option<J> {
        self.inbox.recv().ok().map(|job| self.taken(job))
    }

    /// The same for so long at most.
    ///
    /// # Errors
    /// None came, or there will be no more.
    pub fn next_within(&self, time: Duration) -> Result<J, RecvTimeoutError> {
        self.inbox.recv_timeout(time).map(|job| self.taken(job))
    }

    /// Those that wait already.
    pub fn waiting(&self) -> impl Iterator<Item = J> {
        self.inbox.try_iter().map(|job| self.taken(job))
    }

    fn taken(&self, job: J) -> J {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        job
    }
}

/// The thread's ends.
#[derive(Debug)]
pub struct Ends<J> {
    /// Its jobs; it ends when the channel closes.
    pub jobs: Jobs<J>,
    /// Not bounded here: each belongs to a job, and those are.
    pub done: mpsc::UnboundedSender<Done>,
    /// The loop has ended: queued jobs may be dropped.
    pub stopping: Arc<AtomicBool>,
}

/// The loop's ends.
#[derive(Debug)]
pub struct Worker<J> {
    jobs: Sender<J>,
    waiting: Arc<AtomicUsize>,
    jobs_max: usize,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl<J: Send + 'static> Worker<J> {
    /// Starts a thread of this name, which tells `done` what has become of its jobs. So many wait at most, and besides
    /// those that cannot be left out.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        name: &str,
        jobs_max: usize,
        done: mpsc::UnboundedSender<Done>,
        run: impl FnOnce(Ends<J>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let stopping = Arc::new(AtomicBool::new(false));
        let ends = Ends {
            jobs: Jobs {
                inbox,
                waiting: waiting.clone(),
            },
            done,
            stopping: stopping.clone(),
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let _end = EndWithMe;
            run(ends);
        })?;
        Ok(Worker {
            jobs,
            waiting,
            jobs_max,
            stopping,
            thread,
        })
    }

    /// Gives it a job that cannot be left out. The engine bounds how many of those are under way.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn give(&self, job: J) -> anyhow::Result<()> {
        let name = self.thread.thread().name().unwrap_or_default();
        // Before it is sent: the thread may be faster.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let given = self.jobs.send(job);
        given.map_err(|_| anyhow::anyhow!("the {name} thread died"))
    }

    /// Gives it a job if there is room.
    pub fn give_if_room(&self, job: J) {
        if self.waiting.load(Ordering::Relaxed) < self.jobs_max {
            let _ = self.give(job);
        }
    }

    /// Tells the thread that the loop has ended.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Lets the thread finish and waits for it.
    pub fn join(self) {
        self.stop();
        drop(self.jobs);
        // A panic has ended the process already.
        let _ = self.thread.join();
    }
}

/// The log panics when a sync fails, as it must: the content of the disk is unknown then, and a later
/// sync can succeed. A panic ends this thread only; this ends the process with it, before another thread
/// relies on data that may not be on disk.
pub struct EndWithMe;

impl Drop for EndWithMe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
