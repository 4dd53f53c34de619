//! The work that lines do without an operation of their own: end everybody when a line is closed or sold
//! out, admit those for whom there are seats, tell waiting ones how far they have come (`notices`), number
//! them anew in a draw (`draw`).
//!
//! Every operation does as much of it as the work limit of its log entry allows. The leader proposes
//! [`Op::RunBackground`] for the rest, for admissions that the admission rate has held back until now, and for what
//! lines do at times of the wall clock (`schedule`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::line::Line;
use crate::transitions::ApplyCtx;
use crate::{LineName, Phase, Reason, Token};

/// When a line has background work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// At this time of the service clock, when the admission rate lets the next token pass, offers of room lapse, or a
    /// backend counts as silent.
    At(u64),
}

/// An index over the lines, so that the cost of finding work grows with the work and not with the number
/// of lines.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    /// The lines with [`Due::Now`], and their incarnation.
    now: BTreeMap<LineName, u64>,
    /// The lines with [`Due::At`] by time, and their incarnation.
    at: BTreeSet<(u64, LineName, u64)>,
    /// The lines by [`Line::next_by_wall_clock_ms`], and their incarnation.
    by_wall: BTreeSet<(u64, LineName, u64)>,
}

impl BackgroundWork {
    /// The line may have changed.
    pub(crate) fn update(&mut self, line: &mut Line, now_ms: u64) {
        self.update_by_wall(line);
        let due = line.background_due(now_ms);
        if due == line.background {
            return;
        }
        self.remove_due(line);
        line.background = due;
        match due {
            Some(Due::Now) => {
                self.now.insert(line.name.clone(), line.incarnation);
            }
            Some(Due::At(at_ms)) => {
                self.at.insert((at_ms, line.name.clone(), line.incarnation));
            }
            None => {}
        }
    }

    fn update_by_wall(&mut self, line: &mut Line) {
        let due_ms = line.next_by_wall_clock_ms();
        if due_ms != line.due_by_wall_ms {
            self.remove_by_wall(line);
            line.due_by_wall_ms = due_ms;
            let entry = due_ms.map(|ms| (ms, line.name.clone(), line.incarnation));
            self.by_wall.extend(entry);
        }
    }

    pub(crate) fn remove(&mut self, line: &Line) {
        self.remove_due(line);
        self.remove_by_wall(line);
    }

    fn remove_by_wall(&mut self, line: &Line) {
        if let Some(ms) = line.due_by_wall_ms {
            self.by_wall
                .remove(&(ms, line.name.clone(), line.incarnation));
        }
    }

    fn remove_due(&mut self, line: &Line) {
        match line.background {
            Some(Due::Now) => {
                self.now.remove(&line.name);
            }
            Some(Due::At(at_ms)) => {
                self.at
                    .remove(&(at_ms, line.name.clone(), line.incarnation));
            }
            None => {}
        }
    }

    /// The lines that are due by the clock, the earliest first.
    pub(crate) fn by_clock(&self, now_ms: u64) -> impl Iterator<Item = (&LineName, u64)> {
        let at = self
            .at
            .iter()
            .take_while(move |(at_ms, ..)| *at_ms <= now_ms);
        at.map(|(_, name, incarnation)| (name, *incarnation))
    }

    /// The others, from the one after `after` on, round to that one.
    pub(crate) fn pending(
        &self,
        after: Option<&LineName>,
    ) -> impl Iterator<Item = (&LineName, u64)> + use<'_> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.now.range::<LineName, _>((from, Bound::Unbounded));
        let until = after.map(|after| (Bound::Unbounded, Bound::Included(after)));
        let begin = until.map(|until| self.now.range::<LineName, _>(until));
        let all = rest.chain(begin.into_iter().flatten());
        all.map(|(name, incarnation)| (name, *incarnation))
    }

    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        self.at.first().map(|(at_ms, ..)| *at_ms)
    }

    /// The lines that are due by the wall clock, the earliest first.
    pub(crate) fn by_wall_clock(&self, wall_ms: u64) -> impl Iterator<Item = (&LineName, u64)> {
        let lines = self.by_wall.iter();
        let due = lines.take_while(move |(due_ms, ..)| *due_ms <= wall_ms);
        due.map(|(_, name, incarnation)| (name, *incarnation))
    }

    pub(crate) fn next_by_wall_clock_ms(&self) -> Option<u64> {
        self.by_wall.first().map(|(due_ms, ..)| *due_ms)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.now.is_empty() && self.at.is_empty() && self.by_wall.is_empty()
    }
}

impl Line {
    /// Does as much of the work as the entry's limit allows, without the part that
    /// [`Line::after_operation`] does.
    pub(crate) fn run_background(&mut self, ctx: &mut ApplyCtx<'_>) {
        self.end_or_admit(ctx);
        while self.apply_scheduled(ctx) {
            self.end_or_admit(ctx);
        }
    }

    fn end_or_admit(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.phase() == Phase::Closed {
            self.end_all(Reason::Closed, Self::first_live, ctx);
            if self.deleting {
                self.drop_callers(ctx);
            }
        } else {
            self.run_draw(ctx);
            let done = self.admit(u64::from(*ctx.work_left), ctx);
            *ctx.work_left = ctx.work_left.saturating_sub(done as u32);
        }
    }

    /// The work that follows every operation, as far as the entry's work limit goes.
    pub(crate) fn after_operation(&mut self, ctx: &mut ApplyCtx<'_>) {
        self.note_silence(ctx);
        if self.phase() == Phase::Closed {
            return;
        }
        if self.sold_out() {
            self.end_all(Reason::SoldOut, Self::first_waiting, ctx);
        } else {
            self.send_notices(ctx);
        }
        self.tell_callers(ctx);
    }

    fn background_due(&self, now_ms: u64) -> Option<Due> {
        if self.has_background_work(now_ms) {
            Some(Due::Now)
        } else {
            let (rate, offers) = (self.next_by_rate_ms(), self.next_offer_ms(now_ms));
            let due = [rate, offers, self.silence_due_ms()];
            due.into_iter().flatten().min().map(Due::At)
        }
    }

    /// Whether something is left to do that can be done now.
    fn has_background_work(&self, now_ms: u64) -> bool {
        if self.phase() == Phase::Closed {
            return self.deleting || self.live_count() > 0;
        }
        if self.has_to_draw() {
            return true;
        }
        let waiting = self.waiting() > 0;
        let admits = || self.admits_by_itself() && self.may_admit(now_ms);
        self.has_callers_to_tell(now_ms)
            || waiting && (self.sold_out() || admits() || self.is_notice_behind(now_ms))
    }

    /// When the next token can be admitted (service clock), if it waits only for the admission rate.
    pub fn next_by_rate_ms(&self) -> Option<u64> {
        let (rate, bucket) = (self.settings.admission_rate?, self.bucket.as_deref()?);
        let waits = self.waiting() > 0 && self.admits_by_itself() && self.holds_back();
        let paced = waits && self.may_admit_ignoring_rate();
        paced.then(|| bucket.ready_at_ms(&rate))
    }

    fn end_all(
        &mut self,
        reason: Reason,
        next: fn(&Self) -> Option<(u8, Token)>,
        ctx: &mut ApplyCtx<'_>,
    ) {
        while *ctx.work_left > 0
            && let Some((lane, token)) = next(self)
        {
            self.end(lane, token, reason, ctx);
            *ctx.work_left -= 1;
        }
    }

    fn first_live(&self) -> Option<(u8, Token)> {
        let first = self.live_from((0, 0)).next();
        first.map(|(lane, token, _)| (lane, token))
    }

    fn first_waiting(&self) -> Option<(u8, Token)> {
        let mut listed = self.listed();
        listed.find_map(|(id, lane, _)| Some((id, lane.waiting.first()?)))
    }
}
