//! The state that all shoppers share: the line, the clock, and the record of all answers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nowserving_client::{Code, Error, Line, StatusReply};

use super::ledger::{At, Ledger, Number};
use super::plan::Times;

/// Some shoppers may fail for one reason: these many are kept to be shown.
const TROUBLES_SHOWN: usize = 5;

/// The crowd in front of one line.
pub struct Crowd {
    /// The line they stand in.
    pub line: Line,
    /// Its times, and those of the show.
    pub times: Times,
    opened: Instant,
    book: Mutex<Ledger>,
    visits: Mutex<Vec<Visit>>,
    troubles: Mutex<Troubles>,
}

/// A number that was acknowledged, to be asked about again in the end.
#[derive(Debug, Clone)]
pub struct Visit {
    pub number: Number,
    pub ticket: String,
}

/// Shoppers that had to stop because of errors that lost nothing.
#[derive(Debug, Default, Clone)]
pub struct Troubles {
    pub count: u64,
    /// The first few, in words.
    pub first: Vec<String>,
}

impl Crowd {
    /// A crowd that arrives from now on.
    pub fn new(line: Line, times: Times, book: Ledger) -> Crowd {
        Crowd {
            line,
            times,
            opened: Instant::now(),
            book: Mutex::new(book),
            visits: Mutex::default(),
            troubles: Mutex::default(),
        }
    }

    /// Time since the crowd opened.
    pub fn now(&self) -> At {
        self.opened.elapsed()
    }

    /// That moment on the crowd's clock.
    pub fn at(&self, moment: Instant) -> At {
        moment.saturating_duration_since(self.opened)
    }

    /// Writes into the book. The time is read under its lock, so that entries are in order.
    pub fn note<R>(&self, entry: impl FnOnce(&mut Ledger, At) -> R) -> R {
        let mut book = lock(&self.book);
        let at = self.now();
        entry(&mut book, at)
    }

    /// Remembers an acknowledged number for the audit.
    pub fn remember(&self, number: Number, ticket: String) {
        lock(&self.visits).push(Visit { number, ticket });
    }

    /// All numbers acknowledged so far.
    pub fn visits(&self) -> Vec<Visit> {
        lock(&self.visits).clone()
    }

    /// Notes that something did not work that should.
    pub fn trouble(&self, text: String) {
        let mut troubles = lock(&self.troubles);
        troubles.count += 1;
        if troubles.first.len() < TROUBLES_SHOWN {
            troubles.first.push(text);
        }
    }

    /// The errors so far.
    pub fn troubles(&self) -> Troubles {
        lock(&self.troubles).clone()
    }
}

/// The consequence of an error for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is gone, for this reason.
    Gone(String),
    /// The coordinator does not know it.
    Unknown,
    /// Something else is wrong.
    Trouble(String),
}

impl From<&Error> for Verdict {
    fn from(error: &Error) -> Verdict {
        match error.code() {
            Some(Code::TicketInvalid | Code::TokenNotFound | Code::LineNotFound) => {
                Verdict::Unknown
            }
            Some(Code::TokenGone) => {
                let reason = error.api().and_then(|api| api.reason.clone());
                Verdict::Gone(reason.unwrap_or_else(|| "unknown".to_owned()))
            }
            _ => Verdict::Trouble(error.to_string()),
        }
    }
}

/// The token that an answer is about.
pub fn number(status: &StatusReply) -> Number {
    Number {
        incarnation: status.incarnation,
        lane: status.lane.as_str().to_owned(),
        token: status.token,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
