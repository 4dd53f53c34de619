//! The newest things that happened in a line, so that it can answer for itself later.

use std::collections::VecDeque;

use crate::{Limits, Reason, Settings, SettingsPatch, Timestamp, Token};

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
    /// An operator changed the settings or the phase; see [`crate::Line::settings_change`].
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
    /// It claimed its seat.
    Claimed {
        /// The epoch that it was given.
        epoch: u64,
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

/// What an operator changed, of an entry [`Journaled::Configured`]. Kept beside the entries, which
/// are many and small; it is large, and bounded in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsChange {
    /// The version of its entry.
    pub version: u64,
    /// The settings that changed, as they were before.
    pub from: SettingsPatch,
    /// The same settings, as they have been since.
    pub to: SettingsPatch,
}

impl SettingsChange {
    pub(crate) fn new(version: u64, old: &Settings, new: &Settings) -> Self {
        Self {
            version,
            from: old.difference(new),
            to: new.difference(old),
        }
    }

    /// What it counts against [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn bytes(&self) -> usize {
        self.from.bytes() + self.to.bytes()
    }
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

/// A ring of the newest entries, and one of the newest changes of settings among them.
#[derive(Debug)]
pub(crate) struct Journal {
    limits: Limits,
    entries: VecDeque<JournalEntry>,
    changes: VecDeque<SettingsChange>,
    changes_bytes: usize,
}

impl Journal {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: VecDeque::new(),
            changes: VecDeque::new(),
            changes_bytes: 0,
        }
    }

    /// The journal that a dump has; `None` if it is none.
    pub(crate) fn restore(
        limits: Limits,
        entries: Vec<JournalEntry>,
        changes: Vec<SettingsChange>,
        version: u64,
    ) -> Option<Self> {
        let in_order = entries.is_sorted_by(|a, b| a.version < b.version)
            && changes.is_sorted_by(|a, b| a.version < b.version);
        let past = entries.last().is_none_or(|last| last.version <= version);
        let entered = entries.iter().all(JournalEntry::is_later_than_entering);
        let configured = |change: &SettingsChange| {
            let found = entries.binary_search_by_key(&change.version, |entry| entry.version);
            found.is_ok_and(|i| entries[i].what == Journaled::Configured)
        };
        let known = changes.iter().all(configured);
        let changes_bytes = changes.iter().map(SettingsChange::bytes).sum();
        let fits =
            entries.len() <= limits.journal_kept && changes_bytes <= limits.journal_changes_bytes;
        (in_order && past && entered && known && fits).then(|| Self {
            limits,
            entries: entries.into(),
            changes: changes.into(),
            changes_bytes,
        })
    }

    pub(crate) fn push(&mut self, entry: JournalEntry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limits.journal_kept {
            self.entries.pop_front();
        }
        self.forget_changes();
    }

    /// What the newest entry is about.
    pub(crate) fn push_change(&mut self, change: SettingsChange) {
        self.changes_bytes += change.bytes();
        self.changes.push_back(change);
        self.forget_changes();
    }

    /// The oldest, while there is no room for them or their entry is not kept any more.
    fn forget_changes(&mut self) {
        let kept_from = self.entries.front().map_or(0, |oldest| oldest.version);
        while let Some(oldest) = self.changes.front()
            && (self.changes_bytes > self.limits.journal_changes_bytes
                || oldest.version < kept_from)
        {
            self.changes_bytes -= oldest.bytes();
            self.changes.pop_front();
        }
    }

    pub(crate) fn change(&self, version: u64) -> Option<&SettingsChange> {
        let found = self
            .changes
            .binary_search_by_key(&version, |change| change.version);
        found.ok().map(|i| &self.changes[i])
    }

    /// Whether entries may be missing: it is full, so there may have been older ones.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.limits.journal_kept
    }

    /// The entries of later versions, oldest first.
    pub(crate) fn after(&self, version: u64) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        let from = self.entries.partition_point(|e| e.version <= version);
        self.entries.range(from..)
    }
}
