//! Entrants that the leader refuses, by line and code.
//!
//! A refusal needs no log entry, so a crowd at a full line costs a look-up each. The leader counts in memory, and writes
//! what it has counted to the log: one small command a line, at most every [`WRITE_INTERVAL_US`] and only if somebody
//! was refused since. If it is lost, so is what it counted since it last wrote.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{Line, LineName, Op, Refused, RefusedCode, RefusedCounts};

use crate::clock::Micros;
use crate::command::Command;

const WRITE_INTERVAL_US: Micros = 5_000_000;
/// Lines that one pass writes: more wait for the next turn. At a hand-over there is none.
const LINES_MAX: usize = 1_024;

/// The counts of a shard's leader.
#[derive(Debug, Default)]
pub struct Refusals {
    lines: BTreeMap<LineName, Counted>,
    /// The lines with something to write, by the time from which they may.
    due: BTreeSet<(Micros, LineName)>,
}

#[derive(Debug, Default)]
struct Counted {
    incarnation: u64,
    /// Not in the state.
    unwritten: RefusedCounts,
    /// The part of `unwritten` that was proposed.
    in_flight: RefusedCounts,
    /// When the next command may be proposed.
    next_write_at: Micros,
}

impl Refusals {
    /// The line has refused an entrant.
    pub fn count(&mut self, line: &Line, refused: &Refused) {
        let Some(code) = RefusedCode::of(refused) else {
            return;
        };
        // Looked up first, as a copy of the name costs more.
        if !self.lines.contains_key(line.name()) {
            self.lines.insert(line.name().clone(), Counted::default());
        }
        let Some(counted) = self.lines.get_mut(line.name()) else {
            return;
        };
        if counted.incarnation != line.incarnation() {
            *counted = Counted {
                incarnation: line.incarnation(),
                next_write_at: counted.next_write_at,
                ..Counted::default()
            };
        }
        let was_written = counted.unwritten == counted.in_flight;
        counted.unwritten.add(code);
        if was_written {
            let due = (counted.next_write_at, line.name().clone());
            self.due.insert(due);
        }
    }

    /// The entrants that were refused and are not in the line's state yet.
    #[must_use]
    pub fn unwritten(&self, line: &Line) -> RefusedCounts {
        let counted = self.lines.get(line.name());
        let counted = counted.filter(|counted| counted.incarnation == line.incarnation());
        counted.map_or_else(RefusedCounts::default, |counted| counted.unwritten)
    }

    /// Commands for the lines that may write now.
    pub(crate) fn propose(&mut self, now: Micros) -> Vec<Command> {
        self.write(now, LINES_MAX, now)
    }

    /// Before leadership is given away: for all lines, also those that have written a moment ago.
    pub(crate) fn propose_last(&mut self, now: Micros) -> Vec<Command> {
        self.write(Micros::MAX, usize::MAX, now)
    }

    fn write(&mut self, due_until: Micros, most: usize, now: Micros) -> Vec<Command> {
        let mut commands = Vec::new();
        while commands.len() < most
            && let Some((due, _)) = self.due.first()
            && *due <= due_until
            && let Some((_, line)) = self.due.pop_first()
        {
            let Some(counted) = self.lines.get_mut(&line) else {
                continue;
            };
            let refused = counted.unwritten.minus(&counted.in_flight);
            counted.in_flight = counted.unwritten;
            counted.next_write_at = now + WRITE_INTERVAL_US;
            commands.push(Command::Line(Op::CountRefused {
                line,
                incarnation: counted.incarnation,
                refused,
            }));
        }
        commands
    }

    /// When [`Refusals::propose`] has something to do, on the monotonic clock; it can be past.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<Micros> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Before an [`Op::CountRefused`] is applied, or if it never will be because a member of the group does not know it:
    /// it is tried again later.
    fn left_log(&mut self, op: &Op, applied: bool) {
        let Op::CountRefused {
            line,
            incarnation,
            refused,
        } = op
        else {
            return;
        };
        let counted = self.lines.get_mut(line);
        let Some(counted) = counted.filter(|counted| counted.incarnation == *incarnation) else {
            return;
        };
        counted.in_flight = counted.in_flight.minus(refused);
        if applied {
            counted.unwritten = counted.unwritten.minus(refused);
        } else {
            self.due.insert((counted.next_write_at, line.clone()));
        }
    }

    pub(crate) fn before(&mut self, op: &Op) {
        self.left_log(op, true);
    }

    /// A member of the group does not know the command.
    pub fn not_proposed(&mut self, op: &Op) {
        self.left_log(op, false);
    }

    /// The line was deleted.
    pub(crate) fn forget(&mut self, name: &LineName) {
        if let Some(counted) = self.lines.remove(name) {
            self.due.remove(&(counted.next_write_at, name.clone()));
        }
    }
}

#[cfg(test)]
#[path = "refusals_tests.rs"]
mod tests;
