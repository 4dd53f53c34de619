//! Moving a waiting token into another lane, and knowing it by its old number.

use crate::line::Line;
use crate::transition::ApplyCtx;
use crate::{BadField, JournaledToken, LaneName, Live, MOVES_MAX, Reason, Refused, Stage};
use crate::{Token, TokenChange, TokenRef};

impl Line {
    /// What a token is now: itself, or what it was moved to. Every operation and question goes
    /// through this, so that an old ticket is as good as the new one.
    pub fn resolve(&self, at: TokenRef) -> TokenRef {
        let lane = self.lanes.get(usize::from(at.lane));
        let issued = lane.is_some_and(|lane| at.token < lane.next_token);
        if at.incarnation != self.incarnation || !issued || self.live(at.lane, at.token).is_some() {
            return at;
        }
        let moved = self.moved.get(&(at.lane, at.token)).copied();
        let to = moved.or_else(|| self.gone.get(at.lane, at.token)?.moved_to);
        to.map_or(at, |(lane, token)| self.token_ref(lane, token))
    }

    pub(crate) fn move_token(
        &mut self,
        lane: &LaneName,
        token: Token,
        to: &LaneName,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let from_id = self.lane_id(lane);
        let from_id = from_id.ok_or_else(|| self.no_lane("lane", lane))?;
        let to_id = self.listed_id(to);
        let to_id = to_id.ok_or_else(|| self.no_lane("to", to))?;
        let asked = self.token_ref(from_id, token);
        let at = self.resolve(asked);
        let live = match self.live_mut(at) {
            Err(Refused::TicketInvalid) => return Err(Refused::TokenNotFound),
            live => live?,
        };
        let waits = matches!(live.stage, Stage::Waiting { .. });
        let moves = live.moved_from.len();
        if at.lane == to_id {
            // By an old number it is asked again: it was moved there before.
            return if at == asked {
                Err(BadField::new("to", "it is in this lane already").into())
            } else {
                Ok(at)
            };
        }
        if !waits {
            return Err(Refused::NotWaiting);
        }
        if moves >= MOVES_MAX {
            return Err(BadField::new("token", "moved at most 16 times").into());
        }
        self.check_takes_moved(to_id)?;
        self.carry_over(at, to_id, ctx)
    }

    /// The room of the line is no matter: as many are live afterwards.
    fn check_takes_moved(&self, to_id: u8) -> Result<(), Refused> {
        let mut listed = self.listed();
        let to = listed.find(|(id, _, _)| *id == to_id);
        let (_, lane, set) = to.ok_or(Refused::LineFull)?;
        match set.queue_limit {
            _ if !lane.has_numbers() => Err(Refused::LineFull),
            Some(limit) if lane.waiting.len() >= limit.into() => Err(Refused::LaneFull {
                lane: lane.name.clone(),
                limit,
            }),
            _ => Ok(()),
        }
    }

    fn carry_over(
        &mut self,
        at: TokenRef,
        to_id: u8,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        self.measure(ctx.now_ms);
        let live = self.take_out(at.lane, at.token);
        let live = live.ok_or(Refused::TicketInvalid)?;
        let mut moved_from = live.moved_from.into_vec();
        moved_from.push((at.lane, at.token));
        let entered = (live.entered, live.entered_version);
        let live = Live {
            moved_from: moved_from.clone().into(),
            told: None,
            ..live
        };
        let to = self.issue(to_id, live, ctx.now_ms)?;
        for old in moved_from {
            self.moved.insert(old, (to_id, to));
        }
        self.gone_counts[usize::from(Reason::Moved.code())] += 1;
        let what = TokenChange::Moved {
            to_lane: self.lanes[usize::from(to_id)].name.clone(),
            to: self.token_ref(to_id, to),
        };
        self.token_event(at.lane, at.token, what, ctx);
        let what = JournaledToken::Moved { to_lane: to_id, to };
        self.journal_token((at.lane, at.token), entered, what, ctx.wall_ms);
        Ok(self.token_ref(to_id, to))
    }
}
