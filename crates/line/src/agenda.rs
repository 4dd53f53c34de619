//! Which lines have something to do, now or at a known time.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Line, LineName};

/// An index over the lines, so that asking costs what there is to do, not what lines there are.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Lines with something to do now, and their incarnation.
    jobs: BTreeMap<LineName, u64>,
    /// Lines that wait for nothing but their admission rate: until when, and their incarnation.
    wakes: BTreeMap<LineName, (u64, u64)>,
    /// The same by time.
    by_time: BTreeSet<(u64, LineName)>,
}

impl Agenda {
    /// The line changed.
    pub(crate) fn file(&mut self, line: &Line, now_ms: u64) {
        self.remove(&line.name);
        if line.has_job(now_ms) {
            self.jobs.insert(line.name.clone(), line.incarnation);
        } else if let Some(at_ms) = line.wake_at_ms() {
            self.wakes
                .insert(line.name.clone(), (at_ms, line.incarnation));
            self.by_time.insert((at_ms, line.name.clone()));
        }
    }

    /// The line is no more.
    pub(crate) fn remove(&mut self, name: &LineName) {
        self.jobs.remove(name);
        if let Some((at_ms, _)) = self.wakes.remove(name) {
            self.by_time.remove(&(at_ms, name.clone()));
        }
    }

    /// First those who are due by the clock, the longest due first: one long job can use up all that
    /// an entry may do, and they must not wait for that.
    pub(crate) fn jobs(&self, now_ms: u64) -> impl Iterator<Item = (&LineName, u64)> {
        let jobs = self.jobs.iter().map(|(name, id)| (name, *id));
        let due = self
            .by_time
            .iter()
            .take_while(move |(at_ms, _)| *at_ms <= now_ms);
        let due = due.filter_map(|(_, name)| Some((name, self.wakes.get(name)?.1)));
        due.chain(jobs)
    }

    pub(crate) fn next_wake_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(at_ms, _)| *at_ms)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.wakes.is_empty()
    }
}
