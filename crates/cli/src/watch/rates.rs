//! The rates of a line, from its boards.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nowserving_client::{BoardReply, LaneReply};

use crate::gauge;

/// The time over which rates are computed.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The least time of observation for rates.
const LEAST: Duration = Duration::from_secs(2);

/// The boards of the last [`WINDOW`].
#[derive(Debug, Default)]
pub struct Rates {
    /// Oldest first; the first one may be older than the window, as the state at its start.
    boards: VecDeque<(Instant, Counts)>,
    /// The number of holes so far: tokens that stopped waiting without being admitted.
    gave_up: u64,
}

/// A board's totals over the life of a line.
#[derive(Debug, Clone, Copy)]
struct Counts {
    incarnation: u64,
    entered: u64,
    admitted: u64,
    gone: u64,
}

/// Per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerSecond {
    pub entered: f64,
    pub admitted: f64,
    /// Tokens that went, for whatever reason.
    pub gone: f64,
}

impl Rates {
    /// Takes a board. After a gap the rates start again, because no board says how many tokens of the
    /// gap were admitted and how many gave up waiting. So they do after a draw, whose numbers nobody entered for.
    pub fn take(&mut self, board: &BoardReply, gap: bool, now: Instant) {
        if board.undrawn {
            self.boards.clear();
            return;
        }
        let holes: Option<u64> = board.lanes.iter().map(holes).sum();
        self.gave_up += holes.unwrap_or(0);
        let counts = counts(board, self.gave_up);
        let is_next = self.boards.back().is_some_and(|(_, last)| {
            !gap && holes.is_some()
                && last.incarnation == counts.incarnation
                && (last.entered, last.admitted, last.gone)
                    <= (counts.entered, counts.admitted, counts.gone)
        });
        if !is_next {
            self.boards.clear();
        }
        self.boards.push_back((now, counts));
        while self
            .boards
            .get(1)
            .is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW)
        {
            self.boards.pop_front();
        }
    }

    /// The current rates; `None` until the line has been observed for long enough.
    pub fn per_second(&self, now: Instant) -> Option<PerSecond> {
        let (_, last) = self.boards.back()?;
        let before = self
            .boards
            .iter()
            .rfind(|(at, _)| now.duration_since(*at) >= WINDOW);
        let (since, first) = before.or(self.boards.front())?;
        let observed = now.duration_since(*since).min(WINDOW);
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / observed.as_secs_f64();
        (observed >= LEAST).then(|| PerSecond {
            entered: rate(first.entered, last.entered),
            admitted: rate(first.admitted, last.admitted),
            gone: rate(first.gone, last.gone),
        })
    }
}

fn holes(lane: &LaneReply) -> Option<u64> {
    let ranges = lane.holes.as_ref()?.iter();
    Some(
        ranges
            .map(|[first, last]| last.saturating_sub(*first) + 1)
            .sum(),
    )
}

/// A moved token counts as having given up its old number and entered under the new one.
fn counts(board: &BoardReply, gave_up: u64) -> Counts {
    let entered: u64 = board.lanes.iter().map(|lane| lane.next_token - 1).sum();
    let waiting = gauge::waiting(board);
    Counts {
        incarnation: board.incarnation,
        entered,
        admitted: entered.saturating_sub(waiting + gave_up),
        gone: entered.saturating_sub(waiting + board.admitted + board.in_checkout),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn board(
        version: u64,
        entered: u64,
        waiting: u64,
        held: u64,
        holes: &[[u64; 2]],
    ) -> BoardReply {
        serde_json::from_value(json!({
            "line": "l", "incarnation": 1, "version": version, "at_ms": 1, "phase": "open",
            "seats": 9, "admitted": 0, "in_checkout": held, "lanes": [{"lane": "normal",
                "next_token": entered + 1, "done_through": 0, "admitted_through": 0,
                "accepts_through": 99, "waiting": waiting, "holes": holes}]
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_over_the_last_ten_seconds() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        rates.take(&board(1, 100, 50, 5, &[]), false, at(0));
        assert_eq!(rates.per_second(at(1)), None);
        // 20 entered, 5 gave up waiting, 10 were admitted, 10 completed.
        rates.take(&board(2, 120, 55, 5, &[[60, 64]]), false, at(5));
        let seen = |entered, admitted, gone| {
            Some(PerSecond {
                entered,
                admitted,
                gone,
            })
        };
        assert_eq!(rates.per_second(at(5)), seen(4.0, 2.0, 3.0));
        assert_eq!(rates.per_second(at(10)), seen(2.0, 1.0, 1.5));
        // Older boards do not count.
        assert_eq!(rates.per_second(at(15)), seen(0.0, 0.0, 0.0));
    }

    #[test]
    fn after_a_gap_it_begins_anew() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        rates.take(&board(1, 10, 5, 5, &[]), false, now);
        let later = board(9, 90, 5, 5, &[]);
        rates.take(&later, true, now + Duration::from_secs(5));
        assert_eq!(rates.per_second(now + Duration::from_secs(6)), None);
        let again = rates.per_second(now + Duration::from_secs(8)).unwrap();
        assert_eq!(again.entered, 0.0);
    }
}
