//! What belongs to journal entries and is too large to be a part of them: changes of settings, and notes of who asked and
//! why.

use std::collections::VecDeque;

use crate::journal::JournalEntry;
use crate::journal_entries::Entries;
use crate::seldom::Seldom;
use crate::{Journaled, Kicked, Noted, SettingsChange};

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
pub(crate) struct Details<D>(Seldom<Kept<D>>);

#[derive(Debug)]
struct Kept<D> {
    list: VecDeque<D>,
    bytes: usize,
}

impl<D> Default for Kept<D> {
    fn default() -> Self {
        Self {
            list: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<D: Detail> Details<D> {
    pub(crate) fn new() -> Self {
        Self(Seldom::default())
    }

    /// Those of a dump; `None` if they do not belong to these entries or are too large.
    pub(crate) fn restore(kept: Vec<D>, entries: &[JournalEntry], most: usize) -> Option<Self> {
        if kept.is_empty() {
            return Some(Self::new());
        }
        let belongs = |detail: &D| {
            let found = entries.binary_search_by_key(&detail.version(), |entry| entry.version);
            found.is_ok_and(|i| D::belongs_to(&entries[i]))
        };
        let known = kept.is_sorted_by(|a, b| a.version() < b.version()) && kept.iter().all(belongs);
        let bytes = kept.iter().map(D::bytes).sum();
        let mut details = Self::new();
        *details.0.get_mut() = Kept {
            list: kept.into(),
            bytes,
        };
        (known && bytes <= most).then_some(details)
    }

    pub(crate) fn push(&mut self, detail: D) {
        let kept = self.0.get_mut();
        kept.bytes += detail.bytes();
        kept.list.push_back(detail);
    }

    /// Drops the oldest ones while they take too many bytes or their entry has been dropped.
    /// There are at most so many bytes of them.
    pub(crate) fn forget(&mut self, most: usize, of: &Entries) {
        if self.0.get().is_none() {
            return;
        }
        let kept = self.0.get_mut();
        // Not looked up for nothing.
        let kept_from = match kept.list.is_empty() {
            true => return,
            false => of.oldest().unwrap_or(u64::MAX),
        };
        while let Some(oldest) = kept.list.front()
            && (kept.bytes > most || oldest.version() < kept_from)
        {
            kept.bytes -= oldest.bytes();
            kept.list.pop_front();
        }
    }

    /// The newest that is not newer than this version.
    pub(crate) fn newest_until(&self, version: u64) -> Option<&D> {
        let list = &self.0.get()?.list;
        let until = list.partition_point(|it| it.version() <= version);
        list.get(until.checked_sub(1)?)
    }

    pub(crate) fn get(&self, version: u64) -> Option<&D> {
        let list = &self.0.get()?.list;
        let found = list.binary_search_by_key(&version, D::version);
        found.ok().map(|i| &list[i])
    }
}
