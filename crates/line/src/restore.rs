//! Puts a line back from a backup.
//!
//! A restored line is as it was at the time of the backup, except that nothing which clients or operators may
//! have seen since is used again:
//!
//! | | |
//! |---|---|
//! | numbers | a number that was issued after the backup counts as gone, [`Reason::Kicked`] |
//! | version, settings version | above those of the backup, of the line that is replaced, and of deleted lines |
//! | epoch | at least each of these |
//! | incarnation | that of the backup, so that tickets stay good |
//! | times of the service clock | shifted by the difference of the two clocks: what was left of a deadline is left |

use crate::line::{Lane, Line};
use crate::lines::incarnation_at;
use crate::{
    BadDump, Bucket, Event, Journaled, LineBuilder, LineChange, LineName, Lines, NUMBER_MAX,
    Reason, Refused, Reply, Stage, Stamp, Totals,
};

/// How a line is put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    /// The service clock of the shard in the backup.
    pub clock_ms: u64,
    /// Replaces a line of the same name, if it has the same incarnation.
    pub overwrite: bool,
}

/// Why a line is not put back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreRefused {
    #[error(transparent)]
    Line(#[from] Refused),
    #[error(transparent)]
    Bad(#[from] BadDump),
}

impl Lines {
    /// Whether a line can be put back: [`Refused::LineExists`] if there is one and it must not be replaced,
    /// [`Refused::AnotherIncarnation`] if it can't be, [`Refused::LineClosed`] while it is being deleted.
    pub fn check_restore(
        &self,
        name: &LineName,
        incarnation: u64,
        overwrite: bool,
    ) -> Result<(), Refused> {
        match self.get(name) {
            Some(_) if !overwrite => Err(Refused::LineExists),
            Some(line) if line.deleting => Err(Refused::LineClosed),
            Some(line) if line.incarnation != incarnation => Err(Refused::AnotherIncarnation),
            _ => Ok(()),
        }
    }

    /// Puts a line back at once. The work grows with its live tokens, by some fifty nanoseconds each.
    pub fn put_back(
        &mut self,
        stamp: Stamp,
        builder: LineBuilder,
        how: Restore,
        events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, RestoreRefused> {
        self.read_clocks(stamp);
        self.check_restore(builder.name(), builder.incarnation(), how.overwrite)?;
        let mut line = builder.finish()?;
        let name = line.name.clone();
        let present = self.lines.get(&name);
        let head = self.head;
        match present {
            Some(present) => line.keep_numbers_of(present)?,
            // The line may have been deleted from this very shard since the backup. Each number took a version of
            // its own, and no version is above the floor.
            None if line.incarnation < incarnation_at(stamp) => {
                line.skip_numbers(head.version_floor.saturating_sub(line.version));
            }
            None => {}
        }
        line.version = line.version.max(head.version_floor);
        line.epoch = line.epoch.max(head.epoch_floor);
        line.shift_clock(how.clock_ms, head.now_ms);
        line.settings_version = line.line_event(LineChange::Restored, self.wall_ms, events);
        line.journal_entry(Journaled::Restored, self.wall_ms);
        self.head.incarnation_floor = line.incarnation.max(head.incarnation_floor);
        let before = match self.lines.remove(&name) {
            Some(old) => {
                self.background.remove(&old);
                old.totals()
            }
            None => Totals::default(),
        };
        self.totals.replace(&before, &line.totals());
        self.background.update(&mut line, self.head.now_ms);
        let reply = line.as_reply();
        self.lines.insert(name, line);
        Ok(reply)
    }
}

impl Line {
    /// The numbers, versions and epochs that a line of the same incarnation has issued since stay issued.
    fn keep_numbers_of(&mut self, present: &Line) -> Result<(), Refused> {
        let mut pairs = self.lanes.iter().zip(&present.lanes);
        if pairs.any(|(ours, theirs)| ours.name != theirs.name) {
            return Err(Refused::AnotherIncarnation);
        }
        // Lanes that were added since: tickets have their ids.
        for lane in present.lanes.iter().skip(self.lanes.len()) {
            self.lanes.push(Lane::new(lane.name.clone()));
        }
        for (id, lane) in present.lanes.iter().enumerate() {
            let issued = lane.next_token.saturating_sub(self.lanes[id].next_token);
            self.skip_in(id, issued);
        }
        self.version = self.version.max(present.version);
        self.epoch = self.epoch.max(present.epoch);
        Ok(())
    }

    /// Counts the next `count` numbers of each lane as issued and gone.
    fn skip_numbers(&mut self, count: u64) {
        for id in 0..self.lanes.len() {
            self.skip_in(id, count);
        }
    }

    fn skip_in(&mut self, id: usize, count: u64) {
        let lane = &mut self.lanes[id];
        let count = count.min(NUMBER_MAX + 1 - lane.next_token);
        lane.next_token += count;
        self.gone_counts[usize::from(Reason::Kicked.code())] += count;
    }

    /// Shifts all times of the service clock from one that read `from_ms` to one that reads `to_ms`.
    fn shift_clock(&mut self, from_ms: u64, to_ms: u64) {
        let shifted = |ms: u64| (ms.saturating_add(to_ms).saturating_sub(from_ms)).min(NUMBER_MAX);
        let shift = |ms: &mut u64| *ms = shifted(*ms);
        for lane in &mut self.lanes {
            lane.waiting.shift(shifted);
            for live in lane.live.values_mut() {
                shift(&mut live.entered.at.service_ms);
                match &mut live.stage {
                    Stage::Waiting { last_seen_ms } => shift(last_seen_ms),
                    Stage::Admitted { deadline_ms } => shift(deadline_ms),
                    Stage::InCheckout {
                        deadline_ms,
                        claimed_at_ms,
                        ..
                    } => {
                        shift(deadline_ms);
                        shift(claimed_at_ms);
                    }
                }
            }
            let arrivals = &mut lane.arrivals;
            shift(&mut arrivals.since_ms);
            shift(&mut arrivals.began_ms);
            shift(&mut arrivals.last_ms);
        }
        if let Some(Bucket { at_ms, .. }) = &mut self.bucket {
            shift(at_ms);
        }
        shift(&mut self.forecast.measured_ms);
        self.journal.shift(shifted);
    }
}
