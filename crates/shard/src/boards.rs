//! Schedules boards: on a change, at most twenty a second a line, again each minute while
//! anybody waits, and for every line with a crowd when a new leader takes over.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{AdmittedBy, MovedBy, TokenChange};
use nowserving_line::{Board, Event, Line, LineChange, LineName, Lines, Timestamp, Token};
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::user::BoardReply;

use crate::clock::Micros;

/// Shortest time between two boards of a line.
const BOARD_INTERVAL_US: Micros = 50_000;
/// An unchanged board is repeated this often while anybody waits.
const REPEAT_INTERVAL_US: Micros = 60_000_000;
/// Lines that one pass looks at: paces the publishing of a new leader with many lines.
const PASS_BOARDS_MAX: usize = 256;
/// A board lists at most so many ranges if it lists all holes of its line …
const WHOLE_RANGES_MAX: usize = 4_096;
/// … and a pass reads so many words of bitmaps for that, of 64 numbers each, or those of one line. The boards of other
/// lines wait for the next pass.
const WHOLE_WORDS_MAX: usize = 16_384;
/// More holes than this, over all lanes, are published as a gap: the watchers ask once instead.
const HOLES_MAX: usize = 8_192;

#[derive(Debug, Default)]
struct Published {
    /// Version of the last board; before the first, the version that this leader found.
    version: u64,
    at_us: Micros,
    /// When the next board is due, if the line has changed.
    due_us: Option<Micros>,
    /// Without the version, to tell a change.
    content: Option<Board>,
    /// By the lane's place in the line's table.
    holes: Vec<(u8, Token)>,
    holes_dropped: bool,
    /// The next board is to list all holes of the line: watchers may have missed some.
    whole: bool,
    /// When a board was last to.
    whole_at_us: Micros,
    /// Version of the last token event.
    token_version: u64,
    /// Version of the last line event.
    line_version: u64,
}

/// The boards that a leader has published of the lines of one shard, and the ones that are due.
#[derive(Debug, Default)]
pub struct Boards {
    /// In boxes: a tree's nodes are half empty where names come in order.
    published: BTreeMap<LineName, Box<Published>>,
    /// The changed lines by the time when their boards are due.
    changed: BTreeSet<(Micros, LineName)>,
    repeat: BTreeSet<(Micros, LineName)>,
    /// A new leader's first pass over the lines goes on after this name; `None` when it is complete.
    takeover: Option<Option<LineName>>,
}

impl Boards {
    /// A new leader's: will publish the board of every line in which anybody waits.
    #[must_use]
    pub fn new() -> Self {
        Boards {
            takeover: Some(None),
            ..Boards::default()
        }
    }

    /// Called before a line is changed: holes are counted from the state before the change.
    pub fn before_change(&mut self, name: &LineName, version: u64) {
        // Looked up first, as a copy of the name costs more.
        if !self.published.contains_key(name) {
            let published = Published {
                version,
                token_version: version,
                line_version: version,
                whole: true,
                ..Published::default()
            };
            self.published.insert(name.clone(), Box::new(published));
        }
    }

    /// The line's board may have changed.
    pub fn changed(&mut self, name: &LineName) {
        if let Some(published) = self.published.get_mut(name)
            && published.due_us.is_none()
        {
            let due_us = published.at_us + BOARD_INTERVAL_US;
            published.due_us = Some(due_us);
            self.changed.insert((due_us, name.clone()));
        }
    }

    /// Takes note of an event and gives the `prev_version` to publish it with.
    pub fn note(&mut self, event: &Event) -> u64 {
        let (Event::Token { line, version, .. } | Event::Line { line, version, .. }) = event;
        let before = version.saturating_sub(1);
        self.before_change(line, before);
        let Some(published) = self.published.get_mut(line) else {
            return before;
        };
        match event {
            Event::Token {
                lane_id,
                token,
                what,
                ..
            } => {
                let hole = match what {
                    TokenChange::Gone { was_waiting, .. } => *was_waiting,
                    // The board after the draw lists all holes, and none before it gives a place.
                    TokenChange::Moved { by, .. } => *by != MovedBy::Draw,
                    // Others may wait before it, and then no pointer says that it does not wait any more.
                    TokenChange::Admitted { by, .. } => *by == AdmittedBy::Take,
                    TokenChange::Entered { .. }
                    | TokenChange::Claimed { .. }
                    | TokenChange::CallAhead
                    | TokenChange::Position { .. } => false,
                };
                let hole = hole && !nowserving_bite::is(nowserving_bite::Break::S16);
                if hole && published.holes.len() < HOLES_MAX {
                    published.holes.push((*lane_id, *token));
                } else if hole {
                    published.holes_dropped = true;
                    published.whole = true;
                }
                std::mem::replace(&mut published.token_version, *version)
            }
            Event::Line { what, .. } => {
                match what {
                    // The holes of an earlier incarnation are none of this one's.
                    LineChange::Created => {
                        published.holes.clear();
                        published.holes_dropped = false;
                        published.whole = true;
                        published.content = None;
                    }
                    // Watchers of the line before have to ask anew, and so have those who waited for the draw.
                    LineChange::Restored | LineChange::Drawn { .. } => {
                        published.holes_dropped = true;
                        published.whole = true;
                        published.content = None;
                    }
                    LineChange::DrawSealed { .. }
                    | LineChange::DrawBegun { .. }
                    | LineChange::Configured
                    | LineChange::Phase { .. }
                    | LineChange::ScheduleFailed { .. }
                    | LineChange::Room { .. }
                    | LineChange::Seats { .. }
                    | LineChange::QuotaRenewed
                    | LineChange::Deleted => {}
                }
                std::mem::replace(&mut published.line_version, *version)
            }
        }
    }

    /// The boards to publish now, a bounded number.
    pub fn due(&mut self, lines: &Lines, now_us: Micros, now: Timestamp) -> Vec<BoardEvent> {
        self.continue_takeover(lines);
        self.list_repeats(lines, now_us);
        let mut out = Vec::new();
        let mut words_left = WHOLE_WORDS_MAX;
        let mut put_off = Vec::new();
        for _ in 0..PASS_BOARDS_MAX {
            let is_due = |(due_us, _): &&(Micros, LineName)| *due_us <= now_us;
            if self.changed.first().filter(is_due).is_none() {
                break;
            }
            let Some(due) = self.changed.pop_first() else {
                break;
            };
            match lines.get(&due.1) {
                Some(line) if self.fits(line, now_us, &mut words_left) => {
                    out.extend(self.publish(line, now_us, now));
                }
                Some(_) => put_off.push(due),
                None => drop(self.published.remove(&due.1)),
            }
        }
        // They have been due for longest, so the next pass begins with them.
        self.changed.extend(put_off);
        out
    }

    /// Whether this pass may still read what the line's next board is to list. The first such board always fits.
    fn fits(&mut self, line: &Line, now_us: Micros, words_left: &mut usize) -> bool {
        let Some(published) = self.published.get_mut(line.name()) else {
            return true;
        };
        // The board of a line that changes all the time is never repeated.
        published.whole |= now_us >= published.whole_at_us + REPEAT_INTERVAL_US;
        if !published.whole {
            return true;
        }
        let words = line.hole_words();
        let fits = words <= *words_left || *words_left == WHOLE_WORDS_MAX;
        if fits {
            *words_left = words_left.saturating_sub(words);
        }
        fits
    }

    /// When [`Boards::due`] will have something to do without any change meanwhile; it can be past.
    pub fn next_due(&self) -> Option<Micros> {
        if self.takeover.is_some() {
            return Some(0);
        }
        let changed = self.changed.first().map(|(due_us, _)| *due_us);
        let repeat = self.repeat.first().map(|(due_us, _)| *due_us);
        changed.into_iter().chain(repeat).min()
    }

    fn continue_takeover(&mut self, lines: &Lines) {
        let Some(after) = self.takeover.take() else {
            return;
        };
        let mut last = None;
        for line in lines.range_after(after.as_ref()).take(PASS_BOARDS_MAX) {
            last = Some(line.name().clone());
            self.before_change(line.name(), line.version());
            if line.counts().waiting > 0 {
                self.changed(line.name());
            }
        }
        self.takeover = last.map(Some);
    }

    fn list_repeats(&mut self, lines: &Lines, now_us: Micros) {
        for _ in 0..PASS_BOARDS_MAX {
            match self.repeat.first() {
                Some((due_us, _)) if *due_us <= now_us => {}
                _ => return,
            }
            let Some((_, name)) = self.repeat.pop_first() else {
                return;
            };
            if let Some(line) = lines.get(&name)
                && line.counts().waiting > 0
                && let Some(published) = self.published.get_mut(&name)
            {
                published.content = None;
                published.whole = true;
                self.changed(&name);
            }
        }
    }

    fn publish(&mut self, line: &Line, now_us: Micros, now: Timestamp) -> Option<BoardEvent> {
        let board = line.board(now.service_ms);
        let content = Board {
            version: 0,
            ..board.clone()
        };
        let name = line.name().clone();
        self.before_change(&name, board.version);
        let published = self.published.get_mut(&name)?;
        published.due_us = None;
        if published.content.as_ref() == Some(&content) && published.holes.is_empty() {
            return None;
        }
        // Those who waited for a draw must ask, also if there is none after all.
        let was_undrawn = published.content.as_ref().is_some_and(|it| it.undrawn);
        if was_undrawn && !board.undrawn {
            (published.holes_dropped, published.whole) = (true, true);
        }
        let mut holes = std::mem::take(&mut published.holes);
        let mut prev_version = published.version;
        if std::mem::take(&mut published.holes_dropped) {
            holes.clear();
            prev_version = board.version;
        }
        self.repeat
            .remove(&(published.at_us + REPEAT_INTERVAL_US, name.clone()));
        published.version = board.version;
        published.at_us = now_us;
        published.content = Some(content);
        if board.lanes.iter().any(|lane| lane.waiting > 0) {
            self.repeat.insert((now_us + REPEAT_INTERVAL_US, name));
        }
        // If there are too many, that is not tried again for long: each try reads all of them.
        let listed = std::mem::take(&mut published.whole);
        if listed {
            published.whole_at_us = now_us;
        }
        let all = listed.then(|| all_holes(line)).flatten();
        let whole = all.is_some();
        let holes = all.unwrap_or_else(|| by_lane(&board, &holes));
        let mut board = BoardReply::new(&board, now.wall_ms);
        for (holes, lane) in holes.into_iter().zip(&mut board.lanes) {
            lane.holes = Some(holes);
        }
        Some(BoardEvent {
            board,
            prev_version,
            whole,
        })
    }
}

/// All holes of the line, by lane; `None` if they are too many for one board.
fn all_holes(line: &Line) -> Option<Vec<Vec<[Token; 2]>>> {
    let holes = line.all_holes(WHOLE_RANGES_MAX)?.into_iter();
    let ranges = |of_lane: Vec<(Token, Token)>| of_lane.into_iter().map(|(a, b)| [a, b]).collect();
    Some(holes.map(ranges).collect())
}

/// Holes by lane, in the order of the board. Those of a lane that is not listed any more are nobody's: it has no live
/// tokens.
fn by_lane(board: &Board, holes: &[(u8, Token)]) -> Vec<Vec<[Token; 2]>> {
    let lanes = board.lanes.iter().map(|lane| {
        let of_lane = holes.iter().filter(|(id, _)| *id == lane.lane_id);
        to_ranges(of_lane.map(|(_, token)| *token).collect())
    });
    lanes.collect()
}

/// Sorted, merged ranges, both ends included.
fn to_ranges(mut tokens: Vec<Token>) -> Vec<[Token; 2]> {
    tokens.sort_unstable();
    let mut ranges: Vec<[Token; 2]> = Vec::new();
    for token in tokens {
        match ranges.last_mut() {
            Some([_, end]) if *end + 1 >= token => *end = token,
            _ => ranges.push([token, token]),
        }
    }
    ranges
}

#[cfg(test)]
#[path = "boards_tests.rs"]
mod tests;
