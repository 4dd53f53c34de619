//! Tasks of this node that have asked its own engine, by number.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nowserving_engine::Outcome;
use nowserving_protocol::error::ApiError;
use tokio::sync::oneshot;

type Result = std::result::Result<Outcome, ApiError>;

/// Those that wait for an answer.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Result>>,
}

impl Tasks {
    /// A task begins to wait: its number, and where its answer comes.
    pub fn begin(&self) -> (u64, oneshot::Receiver<Result>) {
        let (answer, answered) = oneshot::channel();
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.waiting.insert(number, answer);
        (number, answered)
    }

    /// Gives a task its answer, unless it waits no longer.
    pub fn answer(&self, task: u64, result: Result) {
        if let Some(waiting) = self.lock().waiting.remove(&task) {
            let _ = waiting.send(result);
        }
    }

    /// A task waits no longer.
    pub fn end(&self, task: u64) {
        self.lock().waiting.remove(&task);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
