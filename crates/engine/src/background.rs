//! Background work of lines: the rest of what was too much for one log entry, and admissions that
//! wait for nothing but the admission rate. The leader proposes it when its service clock says so.

use nowserving_line::Op;
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command::Command;

use crate::outbox::TurnCtx;
use crate::shard::Shard;

/// Entries for this are at least so far apart in a shard, so that neither a fast rate nor a long
/// job takes all of the log. A rate whose `burst` lasts shorter than this loses what it cannot
/// save up meanwhile.
const INTERVAL_US: Micros = 5_000;
/// Lines in one such entry.
const LINES_MAX: usize = 1_024;

impl Shard {
    /// Proposes background work of every line that has some now, unless earlier work is still under
    /// way.
    pub(crate) fn run_background(&mut self, ctx: &mut TurnCtx<'_>) {
        let (Some(leader_state), Some(now_ms)) =
            (&self.leader_state, self.service_ms(ctx.reachability))
        else {
            return;
        };
        if leader_state.is_background_in_flight() || ctx.now.us < self.background_not_before {
            return;
        }
        let due = self.state.lines().background_work(now_ms).take(LINES_MAX);
        let ops: Vec<Op> = due
            .map(|(line, incarnation)| Op::RunBackground {
                line: line.clone(),
                incarnation,
            })
            .collect();
        if !ops.is_empty() {
            // Also if there is no room for them: tried again then, not at once.
            self.background_not_before = ctx.now.us + INTERVAL_US;
        }
        for op in ops {
            self.queue_own(Command::Line(op));
        }
    }

    /// When [`Shard::run_background`] will have something to do, if that can be told: the node must
    /// not sleep longer.
    pub(crate) fn next_background_at(&self, reachability: &ClientReachability) -> Option<Micros> {
        let leader_state = self.leader_state.as_ref()?;
        // Applying it is a turn in itself, after which this is asked again.
        if leader_state.is_background_in_flight() {
            return None;
        }
        let now_ms = self.service_ms(reachability)?;
        if self.state.lines().background_work(now_ms).next().is_some() {
            return Some(self.background_not_before);
        }
        let due = leader_state.when(self.state.lines().next_background_ms()?, reachability)?;
        Some(due.max(self.background_not_before))
    }
}
