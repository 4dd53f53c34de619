//! A line as simple as can be, for tests: sets, and everything recounted each time.

use std::collections::{BTreeMap, BTreeSet};

use super::Place;

#[derive(Default)]
pub(crate) struct Naive {
    pub(crate) version: u64,
    pub(crate) next: u64,
    seats: usize,
    pub(crate) waiting: BTreeSet<u64>,
    seated: BTreeSet<u64>,
    /// waiting tokens gone since the last board
    fresh_holes: BTreeSet<u64>,
    all_holes: BTreeSet<u64>,
    published: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Board {
    pub(crate) version: u64,
    pub(crate) prev_version: u64,
    pub(crate) admitted_through: u64,
    pub(crate) holes: Vec<[u64; 2]>,
    /// what the naive line says of everybody at this version
    pub(crate) positions: BTreeMap<u64, u64>,
}

impl Naive {
    pub(crate) fn new(seats: usize) -> Naive {
        Naive {
            seats,
            version: 1,
            published: 1,
            ..Naive::default()
        }
    }

    pub(crate) fn enter(&mut self) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next);
        self.version += 1;
        self.admit();
        self.next
    }

    pub(crate) fn leave_waiting(&mut self, pick: usize) {
        if let Some(&token) = self.waiting.iter().nth(pick % self.waiting.len().max(1)) {
            self.waiting.remove(&token);
            self.fresh_holes.insert(token);
            self.all_holes.insert(token);
            self.version += 1;
        }
    }

    pub(crate) fn complete(&mut self, pick: usize) {
        if let Some(&token) = self.seated.iter().nth(pick % self.seated.len().max(1)) {
            self.seated.remove(&token);
            self.version += 1;
            self.admit();
        }
    }

    pub(crate) fn admit(&mut self) {
        while self.seated.len() < self.seats {
            let Some(token) = self.waiting.pop_first() else {
                return;
            };
            self.seated.insert(token);
            self.version += 1;
        }
    }

    pub(crate) fn admitted_through(&self) -> u64 {
        match self.waiting.first() {
            Some(first) => first - 1,
            None => self.next + (self.seats - self.seated.len()) as u64,
        }
    }

    pub(crate) fn positions(&self) -> BTreeMap<u64, u64> {
        self.waiting.iter().copied().zip(1..).collect()
    }

    pub(crate) fn publish(&mut self) -> Board {
        let holes = std::mem::take(&mut self.fresh_holes);
        let board = Board {
            version: self.version,
            prev_version: self.published,
            admitted_through: self.admitted_through(),
            holes: ranges(&holes),
            positions: self.positions(),
        };
        self.published = self.version;
        board
    }

    /// A new leader does not know the last board of the old one.
    pub(crate) fn change_leader(&mut self) -> Board {
        self.fresh_holes.clear();
        self.published = self.version;
        self.publish()
    }

    /// All holes between `admitted_through` and `end`.
    pub(crate) fn holes_before(&self, end: u64) -> Vec<[u64; 2]> {
        let first = self.admitted_through() + 1;
        let known = self.all_holes.range(first..end.max(first)).copied();
        ranges(&known.collect())
    }

    /// Applies the answer of `status`; false if the token does not wait any more.
    pub(crate) fn sync(&self, place: &mut Place) -> bool {
        let holes = self.holes_before(place.token());
        place.sync(self.version, self.admitted_through(), &holes);
        self.waiting.contains(&place.token())
    }
}

fn ranges(numbers: &BTreeSet<u64>) -> Vec<[u64; 2]> {
    let mut found: Vec<[u64; 2]> = Vec::new();
    for &number in numbers {
        match found.last_mut() {
            Some(range) if range[1] + 1 == number => range[1] = number,
            _ => found.push([number, number]),
        }
    }
    found
}
