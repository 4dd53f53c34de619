//! What this node has asked its own engine, by number.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nowserving_engine::{Outcome, ReplyTo};
use nowserving_protocol::error::ApiError;

pub type Answer = Result<Outcome, ApiError>;
/// Goes on with the engine's answer. `None`: nothing is to be sent.
pub type Finish = Box<dyn FnOnce(Answer) -> Option<Finished> + Send>;

/// An answer to a requester, encoded.
pub struct Finished {
    pub to: ReplyTo,
    pub encoded: Result<Vec<u8>, ApiError>,
}

/// What is not answered yet.
#[derive(Default)]
pub struct Tasks(Mutex<Open>);

#[derive(Default)]
struct Open {
    next: u64,
    waiting: HashMap<u64, Finish>,
}

impl Tasks {
    /// The number under which the engine is asked.
    pub fn begin(&self, finish: Finish) -> u64 {
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.waiting.insert(number, finish);
        number
    }

    /// The engine has answered.
    pub fn finish(&self, task: u64, answer: Answer) -> Option<Finished> {
        let finish = self.lock().waiting.remove(&task)?;
        finish(answer)
    }

    /// The answer is not waited for any longer.
    pub fn end(&self, task: u64) {
        let ended = self.lock().waiting.remove(&task);
        // Not under the lock: it can own much.
        drop(ended);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({} open)", self.lock().waiting.len())
    }
}
