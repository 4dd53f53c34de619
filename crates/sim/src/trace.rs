//! What happened, one line an event: for people (the tail of it, or all), and as a hash by which two
//! runs are compared.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use crate::timeline::Time;

/// Lines kept to be shown after a failure.
const TAIL_LINES: usize = 200;

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    tail: VecDeque<String>,
    print: bool,
}

impl Trace {
    /// Prints every line as it comes, if `print`.
    #[must_use]
    pub fn new(print: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            tail: VecDeque::new(),
            print,
        }
    }

    /// Writes a line down.
    pub fn line(&mut self, time: Time, what: fmt::Arguments<'_>) {
        let mut line = match self.tail.len() < TAIL_LINES {
            true => String::new(),
            false => self.tail.pop_front().unwrap_or_default(),
        };
        line.clear();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "{:>6}.{:06} {what}",
            time / 1_000_000,
            time % 1_000_000
        );
        self.hash = fnv1a64(self.hash, line.as_bytes());
        if self.print {
            println!("{line}");
        }
        self.tail.push_back(line);
    }

    /// A hash of all lines so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines.
    pub fn tail(&self) -> impl Iterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }
}

/// FNV-1a over bytes, going on from `hash`.
#[must_use]
pub fn fnv1a64(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
