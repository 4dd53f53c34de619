//! The newest hits that may be given back: the other limits of their request are decided elsewhere, and may refuse it.
//!
//! Each is there once, under a name, and leaves with the first word of it: so it is given back at most once, and one that is
//! not known (any more) is not given back. Hits are remembered for want of room only, the oldest go first. A caller that was
//! let through says nothing, so most leave this way.
//!
//! # Buckets
//!
//! Hits that have drained are no longer there to be given back. What is left of them is not known from the bucket alone: it
//! may have run empty since, and filled again by others. It is at least what would be left if nobody had come after them
//! (`mark`), less what was given back since of the hits before them. Hits after them only add, also if they are given back.

use std::collections::VecDeque;

use crate::{Counter, Drain, Limit, Now};

/// How many requests' hits are remembered at most.
pub const HELD_MAX: usize = 4_096;
/// How many bytes the keys of their counters have at most.
pub const HELD_KEY_BYTES_MAX: usize = 4 << 20;

/// Hits that were counted, and by what they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    pub key: Box<[u8]>,
    /// As it was then.
    pub limit: Limit,
    /// 0: none that could be given back.
    pub hits: u64,
    /// [`Counter::mark`] after them.
    pub mark: Drain,
}

impl Counted {
    pub(crate) fn give_back(&self, counter: &mut Counter, now_us: u64) {
        counter.give_back(&self.limit, now_us, self.hits, &self.mark);
    }
}

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Held {
    /// In the order in which they were counted.
    all: VecDeque<(u128, Vec<Counted>)>,
    key_bytes: usize,
}

impl Held {
    /// Remembers the hits of a request, which were counted just now.
    pub fn hold(&mut self, name: u128, hits: Vec<Counted>) {
        self.key_bytes += key_bytes(&hits);
        self.all.push_back((name, hits));
        while self.all.len() > HELD_MAX || self.key_bytes > HELD_KEY_BYTES_MAX {
            let Some((_, oldest)) = self.all.pop_front() else {
                return;
            };
            self.key_bytes -= key_bytes(&oldest);
        }
    }

    /// The hits of this name, which are given back now and not known any more.
    pub fn take(&mut self, name: u128, now: Now) -> Option<Vec<Counted>> {
        // It is one of the newest.
        let place = self.all.iter().rposition(|(it, _)| *it == name)?;
        let (_, hits) = self.all.remove(place)?;
        self.key_bytes -= key_bytes(&hits);
        let later = self.all.range_mut(place..).flat_map(|(_, hits)| hits);
        let later = later.filter(|later| later.limit.algorithm().is_bucket());
        for later in later {
            for given in hits.iter().filter(|given| given.key == later.key) {
                let now_us = now.by(given.limit.clock());
                let mark = &given.mark;
                later.mark.give_back(&given.limit, now_us, given.hits, mark);
            }
        }
        Some(hits)
    }

    /// Its counter was reset: nothing of it can be given back.
    pub fn forget(&mut self, key: &[u8]) {
        let all = self.all.iter_mut().flat_map(|(_, hits)| hits);
        for counted in all.filter(|counted| *counted.key == *key) {
            counted.hits = 0;
        }
    }

    /// Its request was told that it may pass.
    pub fn keep(&mut self, name: u128) {
        if let Some(place) = self.all.iter().rposition(|(it, _)| *it == name)
            && let Some((_, hits)) = self.all.remove(place)
        {
            self.key_bytes -= key_bytes(&hits);
        }
    }
}

fn key_bytes(hits: &[Counted]) -> usize {
    hits.iter().map(|it| it.key.len()).sum()
}
