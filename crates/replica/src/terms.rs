//! The term of every entry, in memory.

use std::collections::VecDeque;

use crate::{EntryReader, ReadFailed};

/// Terms only grow along a log, and change only with an election, so there are few runs of equal terms.
/// Kept in memory, a term is never read from disk: when a follower's log has diverged, raft asks for the
/// terms of one entry after the other, and each would be a read on the thread of all shards.
#[derive(Debug)]
pub(crate) struct Terms {
    /// First index and term of each run, both ascending. The first run begins at the compacted index.
    runs: VecDeque<(u64, u64)>,
}

impl Terms {
    /// The terms of an empty log that was compacted through `compact_index`.
    pub fn new(compact_index: u64, compact_term: u64) -> Terms {
        Terms {
            runs: VecDeque::from([(compact_index, compact_term)]),
        }
    }

    /// Finds the runs of a log by bisection: a few reads for each run.
    pub fn load(
        reader: &dyn EntryReader,
        shard: u32,
        (compact_index, compact_term): (u64, u64),
        last_index: u64,
    ) -> Result<Terms, ReadFailed> {
        let mut terms = Terms::new(compact_index, compact_term);
        let mut start = compact_index + 1;
        while start <= last_index {
            let term = reader.term(shard, start)?;
            terms.append(start, term);
            // Invariant: `same` has the term, nothing from `other` on has.
            let (mut same, mut other) = (start, last_index + 1);
            if reader.term(shard, last_index)? == term {
                same = last_index;
            }
            while same + 1 < other {
                let middle = same + (other - same) / 2;
                if reader.term(shard, middle)? == term {
                    same = middle;
                } else {
                    other = middle;
                }
            }
            start = same + 1;
        }
        Ok(terms)
    }

    /// The term at `index`; `None` before the compacted index. The caller knows where the log ends.
    pub fn get(&self, index: u64) -> Option<u64> {
        let after = self.runs.partition_point(|&(first, _)| first <= index);
        after.checked_sub(1).map(|run| self.runs[run].1)
    }

    /// Sets the term at `index`, which becomes the last entry.
    pub fn append(&mut self, index: u64, term: u64) {
        while self.runs.len() > 1 && self.runs.back().is_some_and(|&(first, _)| first >= index) {
            self.runs.pop_back();
        }
        if self.runs.back().is_none_or(|&(_, last)| last != term) {
            self.runs.push_back((index, term));
        }
    }

    /// Drops the terms before `index`, but keeps that at `index`.
    pub fn compact(&mut self, index: u64) {
        while self.runs.get(1).is_some_and(|&(first, _)| first <= index) {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.front_mut() {
            run.0 = run.0.max(index);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use raft::eraftpb::Entry;

    use super::*;

    struct Log(Vec<u64>);

    impl EntryReader for Log {
        fn entries(&self, _: u32, _: u64, _: u64, _: u64) -> Result<Vec<Entry>, ReadFailed> {
            Ok(Vec::new())
        }

        fn term(&self, _: u32, index: u64) -> Result<u64, ReadFailed> {
            Ok(self.0[index as usize])
        }
    }

    #[test]
    fn load_finds_every_run() {
        for log in [
            vec![0],
            vec![0, 1],
            vec![0, 1, 1, 2, 5, 5, 5, 9],
            vec![0, 3, 3, 3, 3, 3, 3],
            vec![0, 1, 2, 3, 4],
        ] {
            let last = log.len() as u64 - 1;
            let terms = Terms::load(&Log(log.clone()), 0, (0, 0), last).unwrap();
            for index in 0..=last {
                assert_eq!(
                    terms.get(index),
                    Some(log[index as usize]),
                    "{log:?} at {index}"
                );
            }
        }
    }

    #[test]
    fn truncate_and_compact() {
        let mut terms = Terms::new(0, 0);
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 2), (3, 4), (4, 4), (5, 7)] {
            terms.append(index, term);
        }
        assert_eq!(
            [1, 2, 3, 4, 5].map(|index| terms.get(index)),
            [1, 1, 4, 4, 7].map(Some)
        );
        terms.compact(4);
        assert_eq!(terms.get(3), None);
        assert_eq!([4, 5].map(|index| terms.get(index)), [4, 7].map(Some));
        terms.compact(5);
        assert_eq!((terms.get(4), terms.get(5)), (None, Some(7)));
        terms.append(6, 7);
        assert_eq!((terms.get(6), terms.runs.len()), (Some(7), 1));
    }
}
