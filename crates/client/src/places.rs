//! The places of all tokens of a line, computed from events alone: for a push service that may only subscribe.
//!
//! Nothing here does I/O: a push service in any language can do the same. It takes the events `board`, `entered` and
//! `moved`, and line events, from `nowserving.event.<line>.board`, `….token.*.*` and `….line`:
//!
//! - A `board` gives the place of each token that entered before it: `token - admitted_through` less the holes between the
//!   two, all of which the boards list. A `whole` board lists all of them, so it needs no board before it: a new leader's first
//!   board is one, and so is the board that is repeated each minute.
//! - `entered` gives the place of a newcomer until the next board.
//! - A board that is `undrawn` gives none: nobody has a place until the draw is done. A token event `moved` with `by` `draw`
//!   says what a token is called then.
//!
//! A lane tells by itself whether a hole is missing: of the numbers between its pointers, as many are holes as do not
//! wait. While one is missing, places of that lane are not known.

use std::collections::BTreeMap;

use nowserving_line::LaneName;
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::user::LaneReply;

use crate::place::{RANGES_MAX, is_gap};

/// Where a token stands, as far as events say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It waits, at this exact position (1 = next).
    Position(u64),
    /// It waits no longer: it was admitted, moved, or is gone.
    Passed,
    /// Not known: the next `whole` board says, at the latest a minute later.
    Unknown,
}

/// The places of all tokens of one line.
///
/// [`PlacesFromEvents::board`], [`PlacesFromEvents::token`] and [`PlacesFromEvents::line`] take its events,
/// [`PlacesFromEvents::standing`] says where a token stands. Memory grows with the holes and with the newcomers since the last
/// board, not with the tokens.
#[derive(Debug, Clone, Default)]
pub struct PlacesFromEvents {
    incarnation: u64,
    /// Of the last board.
    version: u64,
    lanes: BTreeMap<LaneName, Lane>,
}

#[derive(Debug, Clone, Default)]
struct Lane {
    admitted_through: u64,
    next_token: u64,
    /// Disjoint ranges between the two, in order, each with the number of holes before it.
    holes: Vec<Hole>,
    /// All holes between the pointers are known.
    whole: bool,
    /// The numbers from `next_token` on that entered, with their positions; `None`: it waits no longer.
    newcomers: BTreeMap<u64, Option<u64>>,
}

#[derive(Debug, Clone, Copy)]
struct Hole {
    first: u64,
    last: u64,
    before: u64,
}

impl PlacesFromEvents {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> PlacesFromEvents {
        PlacesFromEvents::default()
    }

    /// Takes a board. Returns whether it was new.
    pub fn board(&mut self, event: &BoardEvent) -> bool {
        let board = &event.board;
        if !self.is_of(board.incarnation) || board.version < self.version {
            return false;
        }
        if board.version == self.version && !event.whole {
            return false;
        }
        let keep = !event.whole && !is_gap(self.version, event.prev_version);
        self.version = board.version;
        if board.undrawn {
            self.lanes.clear();
            return true;
        }
        let mut old = std::mem::take(&mut self.lanes);
        for lane in &board.lanes {
            let mut known = old.remove(&lane.lane).unwrap_or_default();
            known.take(lane, keep);
            self.lanes.insert(lane.lane.clone(), known);
        }
        true
    }

    /// Takes a token event.
    pub fn token(&mut self, event: &TokenEvent) {
        if !self.is_of(event.incarnation) || event.version <= self.version {
            return;
        }
        let position = match (event.event.as_str(), event.position) {
            ("entered" | "position", Some(position)) => Some(position),
            ("admitted" | "gone" | "moved", _) => None,
            _ => return,
        };
        let lane = self.lanes.entry(event.lane.clone()).or_default();
        if event.token >= lane.next_token {
            lane.newcomers.insert(event.token, position);
        }
    }

    /// Takes a line event. A line that was put back from a backup has other holes.
    pub fn line(&mut self, event: &LineEvent) {
        if self.is_of(event.incarnation) && event.event == "restored" {
            self.lanes.clear();
        }
    }

    /// Where a token stands.
    #[must_use]
    pub fn standing(&self, lane: &LaneName, token: u64) -> Standing {
        let Some(lane) = self.lanes.get(lane) else {
            return Standing::Unknown;
        };
        if let Some(position) = lane.newcomers.get(&token) {
            return position.map_or(Standing::Passed, Standing::Position);
        }
        if token >= lane.next_token {
            return Standing::Unknown;
        }
        if token <= lane.admitted_through {
            return Standing::Passed;
        }
        if !lane.whole {
            return Standing::Unknown;
        }
        let after = lane.holes.partition_point(|hole| hole.first <= token);
        let holes = match after.checked_sub(1).and_then(|last| lane.holes.get(last)) {
            Some(hole) if token <= hole.last => return Standing::Passed,
            Some(hole) => hole.before + (hole.last - hole.first + 1),
            None => 0,
        };
        let places = token - lane.admitted_through;
        places
            .checked_sub(holes)
            .map_or(Standing::Unknown, Standing::Position)
    }

    /// The version of the last board.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A later creation of the line begins with nothing; events of an earlier one are dropped.
    fn is_of(&mut self, incarnation: u64) -> bool {
        if incarnation > self.incarnation {
            *self = PlacesFromEvents {
                incarnation,
                ..PlacesFromEvents::default()
            };
        }
        incarnation == self.incarnation
    }
}

impl Lane {
    fn take(&mut self, lane: &LaneReply, keep: bool) {
        self.admitted_through = lane.admitted_through;
        self.next_token = lane.next_token;
        // The board knows of these.
        self.newcomers = self.newcomers.split_off(&lane.next_token);
        let known = self.holes.iter().filter(|_| keep);
        let known = known.map(|hole| [hole.first, hole.last]);
        let listed = lane.holes.iter().flatten().copied();
        let mut ranges: Vec<[u64; 2]> = known.chain(listed).collect();
        ranges.sort_unstable();
        self.holes.clear();
        let mut count = 0;
        for [first, last] in ranges {
            let after = self
                .holes
                .last()
                .map_or(lane.admitted_through, |hole| hole.last);
            let first = first.max(after.saturating_add(1));
            let last = last.min(lane.next_token.saturating_sub(1));
            if first > last {
                continue;
            }
            match self.holes.last_mut() {
                Some(hole) if hole.last + 1 == first => hole.last = last,
                _ => self.holes.push(Hole {
                    first,
                    last,
                    before: count,
                }),
            }
            count += last - first + 1;
        }
        let between = lane.next_token.saturating_sub(lane.admitted_through + 1);
        self.whole = count + lane.waiting == between;
        if self.holes.len() > RANGES_MAX {
            self.holes.clear();
            self.whole = false;
        }
    }
}

#[cfg(test)]
mod tests;
