//! What belongs to journal entries and is too large to be a part of them: changes of settings, and notes of who asked and
//! why.

use std::collections::VecDeque;

use crate::journal::JournalEntry;
use crate::{Journaled, Kicked, Limits, Noted, SettingsChange};

/// The details of a dump, each kind oldest first.
#[derive(Debug, Default)]
pub(crate) struct AllDetails {
    pub changes: Vec<SettingsChange>,
    pub kicks: Vec<Kicked>,
    pub notes: Vec<Noted>,
}

/// What belongs to an entry and is too large to be a part of it.
pub(crate) trait Detail {
    /// Whether an entry can have it.
    fn belongs_to(entry: &JournalEntry) -> bool;
    fn version(&self) -> u64;
    fn bytes(&self) -> usize;
}

impl Detail for SettingsChange {
    fn belongs_to(entry: &JournalEntry) -> bool {
        entry.has_changes()
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        SettingsChange::bytes(self)
    }
}

impl Detail for Kicked {
    fn belongs_to(entry: &JournalEntry) -> bool {
        entry.what == Journaled::Kicked
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        Kicked::bytes(self)
    }
}

impl Detail for Noted {
    fn belongs_to(_: &JournalEntry) -> bool {
        true
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        Noted::bytes(self)
    }
}

/// The details of the newest entries of one kind, oldest first, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Details<D> {
    kept: VecDeque<D>,
    bytes: usize,
}

impl<D: Detail> Details<D> {
    pub(crate) fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Those of a dump; `None` if they do not belong to these entries or are too large.
    pub(crate) fn restore(kept: Vec<D>, entries: &[JournalEntry], limits: &Limits) -> Option<Self> {
        let belongs = |detail: &D| {
            let found = entries.binary_search_by_key(&detail.version(), |entry| entry.version);
            found.is_ok_and(|i| D::belongs_to(&entries[i]))
        };
        let known = kept.is_sorted_by(|a, b| a.version() < b.version()) && kept.iter().all(belongs);
        let bytes = kept.iter().map(D::bytes).sum();
        (known && bytes <= limits.journal_changes_bytes).then(|| Self {
            kept: kept.into(),
            bytes,
        })
    }

    pub(crate) fn push(&mut self, detail: D) {
        self.bytes += detail.bytes();
        self.kept.push_back(detail);
    }

    /// Drops the oldest ones while they take too many bytes or their entry has been dropped.
    pub(crate) fn forget(&mut self, limits: &Limits, kept_from: u64) {
        while let Some(oldest) = self.kept.front()
            && (self.bytes > limits.journal_changes_bytes || oldest.version() < kept_from)
        {
            self.bytes -= oldest.bytes();
            self.kept.pop_front();
        }
    }

    /// The newest that is not newer than this version.
    pub(crate) fn newest_until(&self, version: u64) -> Option<&D> {
        let until = self.kept.partition_point(|it| it.version() <= version);
        self.kept.get(until.checked_sub(1)?)
    }

    pub(crate) fn get(&self, version: u64) -> Option<&D> {
        let found = self.kept.binary_search_by_key(&version, D::version);
        found.ok().map(|i| &self.kept[i])
    }
}
