//! Events that tell waiting tokens how far they have come: among the first `call_ahead` of their lane, near enough in
//! time (`call_ahead_ms`), or to one of the line's `position_events`.
//!
//! Tokens are told in the order of their numbers. So one number a lane and position says who was told already, and
//! finding the next token costs O(log waiting), however many wait or have just left.

use nowserving_codec::Codec;

use crate::line::{Lane, Line};
use crate::settings::Positions;
use crate::transitions::ApplyCtx;
use crate::{Token, TokenChange};

/// How far the tokens of a lane were told that they have come to a position.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionMark {
    /// One of the line's `position_events`.
    pub position: u32,
    /// Nobody up to this number is still to be told: a waiting token up to it had its event, or entered at this
    /// position or a smaller one. Of a smaller position it is never larger.
    pub through: Token,
}

impl Line {
    /// Makes an event for each token that is to prepare now, once, and for each that has come to one of the
    /// `position_events`; as far as the entry's work limit goes.
    pub(crate) fn send_notices(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.is_undrawn() {
            return;
        }
        for place in 0..self.order.len() {
            self.call_ahead(self.order[place], ctx);
        }
        for place in 0..self.order.len() {
            self.tell_positions(self.order[place], ctx);
        }
    }

    pub(crate) fn is_notice_behind(&self, now_ms: u64) -> bool {
        if self.is_undrawn() {
            return false;
        }
        let is_behind = |id: &u8| {
            let lane = self.lanes.get(usize::from(*id));
            let told = lane.is_none_or(|lane| lane.next_to_tell().is_none());
            !told || self.next_to_call(*id, now_ms).is_some()
        };
        self.order.iter().any(is_behind)
    }

    fn call_ahead(&mut self, id: u8, ctx: &mut ApplyCtx<'_>) {
        while *ctx.work_left > 0
            && let Some(token) = self.next_to_call(id, ctx.now_ms)
        {
            self.lanes[usize::from(id)].called_through = token;
            self.token_event(id, token, TokenChange::CallAhead, ctx);
            *ctx.work_left -= 1;
        }
    }

    /// Whether a waiting token is shown as called. By place that is as the setting has it now; a forecast can grow, and a
    /// token that was called by it stays called.
    pub(crate) fn is_called(&self, lane: &Lane, token: Token, position: u64) -> bool {
        let by_time = self.settings.call_ahead_ms > 0 && token <= lane.called_through;
        by_time || position <= self.settings.call_ahead.into()
    }

    /// Tokens are called in the order of their numbers, so the called ones are the first of the waiting, and the next
    /// one is the only one to look at: the wait of those behind it is no shorter.
    fn next_to_call(&self, id: u8, now_ms: u64) -> Option<Token> {
        let (places, within_ms) = (self.settings.call_ahead, self.settings.call_ahead_ms);
        if places == 0 && within_ms == 0 {
            return None;
        }
        let lane = self.lanes.get(usize::from(id))?;
        let called = lane.waiting.rank(lane.called_through.saturating_add(1));
        let next = lane.waiting.select(called)?;
        if called < places.into() {
            return Some(next);
        }
        if within_ms == 0 {
            return None;
        }
        let entered = lane.waiting.place(next)?.entered;
        let eta = self.eta(id, called + 1, entered.service_ms, now_ms)?;
        let eta_ms = u64::from(eta.given()?.eta_ms);
        (eta_ms <= within_ms).then_some(next)
    }

    fn tell_positions(&mut self, id: u8, ctx: &mut ApplyCtx<'_>) {
        while *ctx.work_left > 0
            && let Some((token, position)) = self.lanes[usize::from(id)].next_to_tell()
        {
            self.lanes[usize::from(id)].told(token, position);
            self.token_event(id, token, TokenChange::Position { position }, ctx);
            *ctx.work_left -= 1;
        }
    }

    /// To be called when the positions or the lanes of the settings may have changed. A waiting token that stands at
    /// or before a new position has not come to it from behind, and is not told.
    pub(crate) fn mark_positions(&mut self) {
        let is_undrawn = self.is_undrawn();
        let positions = &self.settings.position_events;
        for lane in &mut self.lanes {
            lane.mark_positions(positions, is_undrawn);
        }
    }
}

impl Lane {
    /// Whether its marks are those that a line with these positions has: for dumps.
    pub(crate) fn marks_fit(&self, positions: &Positions) -> bool {
        let marked = self.marks.iter().map(|mark| &mark.position);
        let issued = self.marks.iter().all(|mark| mark.through <= self.issued());
        let in_order = self.marks.is_sorted_by(|a, b| a.through >= b.through);
        marked.eq(positions) && issued && in_order
    }

    fn mark_positions(&mut self, positions: &Positions, is_undrawn: bool) {
        if self.marks.iter().map(|mark| &mark.position).eq(positions) {
            return;
        }
        let old = std::mem::take(&mut self.marks);
        // From the largest position to the smallest.
        let mut larger = Token::MAX;
        for position in positions {
            let kept = old.iter().find(|mark| mark.position == *position);
            let through = match kept {
                // Whoever comes to it in the draw is told.
                _ if is_undrawn => 0,
                Some(mark) => mark.through,
                None => {
                    let last = self.waiting.select(u64::from(*position) - 1);
                    last.unwrap_or(self.issued()).min(larger)
                }
            };
            larger = through;
            self.marks.push(PositionMark {
                position: *position,
                through,
            });
        }
    }

    /// The last token of the lane has entered. Where it entered is no news to it, unless tokens before it are still
    /// to be told: then it is after them.
    pub(crate) fn mark_newcomer(&mut self, token: Token) {
        let before = self.waiting.len() - 1;
        for mark in &mut self.marks {
            if before < u64::from(mark.position) && self.waiting.rank(mark.through + 1) == before {
                mark.through = token;
            }
        }
    }

    /// The next token that is to be told of its position. The smallest position comes first: one event is enough for
    /// a token that has come to several.
    fn next_to_tell(&self) -> Option<(Token, u64)> {
        let mut marks = self.marks.iter().rev();
        marks.find_map(|mark| {
            let within = self.waiting.len().min(mark.position.into());
            let last = self.waiting.select(within.checked_sub(1)?)?;
            if last <= mark.through {
                return None;
            }
            let told = self.waiting.rank(mark.through + 1);
            Some((self.waiting.select(told)?, told + 1))
        })
    }

    fn told(&mut self, token: Token, position: u64) {
        for mark in &mut self.marks {
            if position <= u64::from(mark.position) {
                mark.through = mark.through.max(token);
            }
        }
    }
}
