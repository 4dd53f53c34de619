//! What lines have to do of themselves: the rest of what was too much for one log entry, and to
//! admit who waits for nothing but the admission rate. The leader proposes it when its service
//! clock says so.

use nowserving_line::Op;

use super::group::{Shard, Turn};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command::Command;

/// Entries for this are at least so far apart in a shard, so that neither a fast rate nor a long
/// job takes all of the log. A rate whose `burst` lasts shorter than this loses what it cannot
/// save up meanwhile.
const STEP_INTERVAL_US: Micros = 5_000;
/// Lines in one such entry.
const STEPS_MAX: usize = 1_024;

impl Shard {
    /// Proposes the next step of every line that has one now, unless those before are still under
    /// way.
    pub(super) fn step_lines(&mut self, turn: &mut Turn<'_>) {
        let Some(leader_state) = &self.leader_state else {
            return;
        };
        if leader_state.is_background_in_flight() || turn.now < self.step_not_before {
            return;
        }
        let now_ms = leader_state
            .now_ms(turn.reachability)
            .max(self.state.now_ms());
        let due = self.state.lines().jobs(now_ms).take(STEPS_MAX);
        let steps: Vec<Op> = due
            .map(|(line, incarnation)| Op::RunBackground {
                line: line.clone(),
                incarnation,
            })
            .collect();
        if !steps.is_empty() {
            // Also if there is no room for them: tried again then, not at once.
            self.step_not_before = turn.now + STEP_INTERVAL_US;
        }
        for step in steps {
            self.queue_own(Command::Line(step));
        }
    }

    /// When [`Shard::step_lines`] will have something to do, if that can be told: the loop must not
    /// sleep longer.
    pub(super) fn next_step_at(&self, reachability: &ClientReachability) -> Option<Micros> {
        let leader_state = self.leader_state.as_ref()?;
        // Applying them is a turn in itself, after which this is asked again.
        if leader_state.is_background_in_flight() {
            return None;
        }
        let now_ms = leader_state.now_ms(reachability).max(self.state.now_ms());
        if self.state.lines().jobs(now_ms).next().is_some() {
            return Some(self.step_not_before);
        }
        let due = leader_state.when(self.state.lines().next_wake_ms()?, reachability)?;
        Some(due.max(self.step_not_before))
    }
}
