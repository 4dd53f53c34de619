//! The newest things that happened in a line, so that it can answer for itself later.

use std::collections::VecDeque;

use crate::{Reason, Timestamp, Token};

/// One thing that happened. The line's dump has it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalEntry {
    /// The line's version right after it: entries are in this order, and each has its own.
    pub version: u64,
    /// When (wall clock).
    pub at_ms: u64,
    /// What.
    pub what: Journaled,
}

/// What the journal tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journaled {
    /// An operator changed the settings or the phase.
    Configured,
    /// Something happened to a token.
    Token {
        /// Its lane's place in the line's table.
        lane: u8,
        /// Its number.
        token: Token,
        /// When it entered.
        entered: Timestamp,
        /// The line's version right after that: who has the smaller one entered first.
        entered_version: u64,
        /// What happened to it.
        what: JournaledToken,
    },
}

/// What happened to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournaledToken {
    /// It was given a seat. What put its lane first is kept with it: settings change.
    Admitted {
        /// Its lane was absolute then.
        absolute: bool,
        /// Its lane's boost then, in milliseconds.
        boost_ms: u64,
    },
    /// It went, for this reason; never [`Reason::Moved`].
    Gone(Reason),
    /// An operator moved it: it is another token since.
    Moved {
        /// The lane it was moved to, by its place in the line's table.
        to_lane: u8,
        /// Its number there.
        to: Token,
    },
}

impl JournalEntry {
    /// Whether its token entered before this happened to it.
    fn is_later_than_entering(&self) -> bool {
        match self.what {
            Journaled::Configured => true,
            Journaled::Token {
                entered_version, ..
            } => (1..self.version).contains(&entered_version),
        }
    }

    /// Whether it names only lanes of a table of this length.
    pub(crate) fn names_lanes_below(&self, lanes: usize) -> bool {
        match self.what {
            Journaled::Configured => true,
            Journaled::Token { lane, what, .. } => {
                let to = match what {
                    JournaledToken::Moved { to_lane, .. } => to_lane,
                    _ => lane,
                };
                usize::from(lane.max(to)) < lanes
            }
        }
    }
}

/// A ring of the newest entries.
#[derive(Debug)]
pub(crate) struct Journal {
    kept: usize,
    entries: VecDeque<JournalEntry>,
}

impl Journal {
    pub(crate) fn new(kept: usize) -> Self {
        Self {
            kept,
            entries: VecDeque::new(),
        }
    }

    /// The journal that a dump has; `None` if it is none.
    pub(crate) fn restore(kept: usize, entries: Vec<JournalEntry>, version: u64) -> Option<Self> {
        let in_order = entries.is_sorted_by(|a, b| a.version < b.version);
        let past = entries.last().is_none_or(|last| last.version <= version);
        let entered = entries.iter().all(JournalEntry::is_later_than_entering);
        (in_order && past && entered && entries.len() <= kept).then(|| Self {
            kept,
            entries: entries.into(),
        })
    }

    pub(crate) fn push(&mut self, entry: JournalEntry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.kept {
            self.entries.pop_front();
        }
    }

    /// Whether entries may be missing: it is full, so there may have been older ones.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.kept
    }

    /// The entries of later versions, oldest first.
    pub(crate) fn after(&self, version: u64) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        let from = self.entries.partition_point(|e| e.version <= version);
        self.entries.range(from..)
    }
}
