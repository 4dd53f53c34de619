//! What a line does of itself, within the work limit of an entry: end everybody when it is closed
//! or sold out, admit those for whom there are seats, call ahead.

use crate::line::Line;
use crate::transition::ApplyCtx;
use crate::{Phase, Reason, Token, TokenChange};

impl Line {
    /// Does as much of what is to be done as the entry's work limit allows, but for what
    /// [`Line::settle`] does after every operation anyway.
    pub(crate) fn step(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.phase() == Phase::Closed {
            self.end_all(Reason::Closed, Self::first_live, ctx);
        } else {
            let done = self.admit(u64::from(*ctx.work_left), ctx);
            *ctx.work_left = ctx.work_left.saturating_sub(done as u32);
        }
    }

    /// What every operation leads to, as far as the entry's work limit goes.
    pub(crate) fn settle(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.phase() == Phase::Closed {
            return;
        }
        if self.sold_out() {
            self.end_all(Reason::SoldOut, Self::first_waiting, ctx);
        } else {
            self.call_ahead(ctx);
        }
    }

    /// Whether something is left to do that can be done now.
    pub(crate) fn has_job(&self, now_ms: u64) -> bool {
        if self.phase() == Phase::Closed {
            return self.deleting || self.live_count() > 0;
        }
        let waiting = self.waiting() > 0;
        waiting && (self.sold_out() || self.may_admit(now_ms) || self.is_call_behind())
    }

    /// When the next one can be admitted (service clock), if somebody waits for nothing but the
    /// admission rate. [`crate::Lines::jobs`] lists the line from then on.
    pub fn wake_at_ms(&self) -> Option<u64> {
        let (rate, bucket) = (self.settings.admission_rate?, self.bucket?);
        let paced = self.waiting() > 0 && self.may_admit_but_for_rate();
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

    /// Tells those who have come within the first `call_ahead` positions of their lane, each once.
    fn call_ahead(&mut self, ctx: &mut ApplyCtx<'_>) {
        for place in 0..self.order.len() {
            let id = self.order[place];
            while *ctx.work_left > 0
                && let Some(token) = self.next_to_call(id)
            {
                self.lanes[usize::from(id)].called_through = token;
                self.token_event(id, token, TokenChange::CallAhead, ctx);
                *ctx.work_left -= 1;
            }
        }
    }

    fn is_call_behind(&self) -> bool {
        self.order.iter().any(|id| self.next_to_call(*id).is_some())
    }

    /// Calls go by number, so those called among the waiting are the first ones.
    fn next_to_call(&self, id: u8) -> Option<Token> {
        let wanted = u64::from(self.settings.call_ahead);
        let lane = self.lanes.get(usize::from(id)).filter(|_| wanted > 0)?;
        let called = lane.waiting.rank(lane.called_through.saturating_add(1));
        let next = lane.waiting.select(called);
        next.filter(|_| called < wanted)
    }
}
