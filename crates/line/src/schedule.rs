//! The changes of settings that a line makes at times of the leader's wall clock.
//!
//! The leader looks with its clock and proposes [`crate::Op::RunBackground`]; an entry applies what is due by its own
//! `wall_ms`. An applied change leaves the schedule with the entry, so it happens once, however often leaders change.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::line::{Line, too_many_lane_names};
use crate::transitions::ApplyCtx;
use crate::{
    BadField, Journaled, LANE_TABLE_MAX, LineChange, Phase, ScheduledChange, Settings,
    SettingsChange,
};

/// Checks that the changes of the schedule can be applied now, one after the other, to a line with these new settings.
/// `line`: as it is before it gets them, unless it is new.
pub(crate) fn check(settings: &Settings, line: Option<&Line>) -> Result<(), BadField> {
    let table = line.into_iter().flat_map(Line::lane_names).cloned();
    let mut names: BTreeSet<_> = table.collect();
    names.extend(settings.lanes.iter().map(|lane| lane.name.clone()));
    settings.check_schedule(|next| {
        line.map_or(Ok(()), |line| line.check_lanes(&next.lanes))?;
        // The table keeps the names of the changes before.
        names.extend(next.lanes.iter().map(|lane| lane.name.clone()));
        match names.len() <= LANE_TABLE_MAX {
            true => Ok(()),
            false => Err(too_many_lane_names()),
        }
    })
}

impl Line {
    /// When the line next has something to do by the leader's wall clock; it can be past. While a closed line still
    /// ends its tokens its settings cannot change: that work comes first, and is no matter of the clock.
    pub fn next_by_wall_clock_ms(&self) -> Option<u64> {
        if self.deleting || (self.phase() == Phase::Closed && self.live_count() > 0) {
            return None;
        }
        self.next_renewal_ms()
            .into_iter()
            .chain(self.next_scheduled_ms())
            .chain(self.needs_seed().then_some(0))
            .min()
    }

    /// Whether a change of the schedule is due at this time of the leader's wall clock.
    pub fn schedule_due(&self, wall_ms: u64) -> bool {
        let due = self.next_scheduled_ms();
        due.is_some_and(|due_ms| due_ms <= wall_ms)
    }

    fn next_scheduled_ms(&self) -> Option<u64> {
        self.settings.schedule.first().map(|change| change.at_ms)
    }

    /// Applies the first change of the schedule if it is due. Returns whether it was.
    pub(crate) fn apply_scheduled(&mut self, ctx: &mut ApplyCtx<'_>) -> bool {
        let waits = self.next_by_wall_clock_ms().is_none() || !self.schedule_due(ctx.wall_ms);
        if *ctx.work_left == 0 || waits {
            return false;
        }
        *ctx.work_left -= 1;
        // The rest of the schedule is put aside: 64 changes that are due together must not be copied 64 times.
        let mut rest = std::mem::take(&mut Arc::make_mut(&mut self.settings).schedule);
        let change = rest.remove(0);
        let new = self.settings.with(&change.set);
        let new = new.and_then(|new| self.check_lanes(&new.lanes).map(|()| new));
        match new {
            Ok(new) => self.change_settings(new, Some(change.at_ms), ctx),
            Err(wrong) => self.drop_scheduled(change, wrong, ctx),
        }
        Arc::make_mut(&mut self.settings).schedule = rest;
        true
    }

    /// The journal gets what should have been changed.
    fn drop_scheduled(&mut self, change: ScheduledChange, wrong: BadField, ctx: &mut ApplyCtx<'_>) {
        let scheduled_at_ms = change.at_ms;
        let what = LineChange::ScheduleFailed {
            scheduled_at_ms,
            wrong,
        };
        self.settings_version = self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
        self.journal_entry(Journaled::ScheduleFailed { scheduled_at_ms }, ctx.wall_ms);
        self.journal.push_change(SettingsChange {
            version: self.version,
            from: self.settings.named_by(&change.set),
            to: change.set,
        });
    }
}
