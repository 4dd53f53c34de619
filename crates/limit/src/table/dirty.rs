//! Which counters changed since the last checkpoint: a list through their slots, in the order of their first change.
//!
//! A slot that becomes vacant stays in the list until its turn comes, and is left out then. So a counter is dropped
//! without a search, and a slot is in the list once.

use super::slots::{NONE, Slots};

/// The link of a slot that is not in the list.
pub(super) const CLEAN: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(super) struct Dirty {
    first: u32,
    last: u32,
    len: u32,
}

impl Dirty {
    pub fn new() -> Self {
        Self {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }

    /// How many there are, those that became vacant included.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Adds a slot at the end if it is not there.
    pub fn push(&mut self, slots: &mut Slots, place: u32) {
        match slots.dirty_next(place) {
            Some(next) if *next == CLEAN => *next = NONE,
            _ => return,
        }
        match slots.dirty_next(self.last) {
            Some(last) => *last = place,
            None => self.first = place,
        }
        self.last = place;
        self.len += 1;
    }

    pub fn first(&self) -> Option<u32> {
        Some(self.first).filter(|first| *first != NONE)
    }

    /// Takes the first one out of the list.
    pub fn pop(&mut self, slots: &mut Slots) {
        let Some(next) = slots.dirty_next(self.first) else {
            return;
        };
        self.first = std::mem::replace(next, CLEAN);
        if self.first == NONE {
            self.last = NONE;
        }
        self.len -= 1;
    }
}
