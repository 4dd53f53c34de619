//! A lane: numbers of its own, and who holds them.

use std::collections::BTreeMap;

use crate::waiting::WaitingSet;
use crate::{Arrivals, LaneName, Live, NUMBER_MAX, Token};

/// A FIFO inside a line. Seats and room are the line's, shared by its lanes.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: LaneName,
    pub(crate) next_token: Token,
    /// Everybody in it, by number.
    pub(crate) live: BTreeMap<Token, Live>,
    /// Those of `live` that wait, and since when.
    pub(crate) waiting: WaitingSet,
    /// Of those who wait, the numbers up to it were called ahead.
    pub(crate) called_through: Token,
    /// How many come.
    pub(crate) arrivals: Arrivals,
}

impl Lane {
    pub(crate) fn new(name: LaneName) -> Self {
        Self {
            name,
            next_token: 1,
            live: BTreeMap::new(),
            waiting: WaitingSet::default(),
            called_through: 0,
            arrivals: Arrivals::default(),
        }
    }

    /// Numbers handed out so far.
    pub(crate) fn issued(&self) -> u64 {
        self.next_token - 1
    }

    /// Whether there is a number left that can be shown to anybody.
    pub(crate) fn has_numbers(&self) -> bool {
        self.next_token <= NUMBER_MAX
    }

    /// The end of the longest prefix of gone numbers.
    pub(crate) fn done_through(&self) -> Token {
        match self.live.first_key_value() {
            Some((first, _)) => first - 1,
            None => self.issued(),
        }
    }
}
