//! Moves on the naive line.

use std::collections::BTreeSet;

use nowserving_line::{
    Forbidden, JournaledToken, LaneName, LaneSettings, MovedBy, Phase, Reason, Refused, State,
    TokenBy, TokenChange, TokenRef,
};

use crate::naive::{Answer, Id, NaiveLine, Tok};
use crate::naive_ops::bad;
use crate::shard::Entry;

impl NaiveLine {
    pub fn move_token(
        &mut self,
        (lane, token): (&LaneName, u64),
        to: &LaneName,
        kept: usize,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        let from = self.place(lane).ok_or_else(|| bad("lane"))?;
        let mut lanes = self.lanes().into_iter();
        let to = lanes.find(|(_, set)| set.name == *to);
        let (to, set) = to.ok_or_else(|| bad("to"))?;
        if !self.tokens.contains_key(&(from, token)) {
            return Err(Refused::TokenNotFound);
        }
        let id = self.resolve((from, token), kept);
        let tok = self.tokens[&id].clone();
        let moves = self.moves(id);
        match tok.state {
            State::Gone => {
                let reason = tok.reason.filter(|_| self.remembers(&tok, kept));
                return Err(Refused::TokenGone(reason));
            }
            _ if self.phase() == Phase::Closed => return Err(Refused::LineClosed),
            _ if id.0 == to && id == (from, token) => return Err(bad("to")),
            _ if id.0 == to => return Ok(Answer::Token(id)),
            State::Waiting => {}
            _ => return Err(Refused::NotWaiting),
        }
        if moves >= 16 {
            return Err(bad("token"));
        }
        self.reissue(id, (to, set), MovedBy::Operator, entry)
    }

    pub fn jump(
        &mut self,
        by: &TokenBy,
        to: &LaneName,
        kept: usize,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        let mut lanes = self.lanes().into_iter();
        let to = lanes.find(|(_, set)| set.name == *to);
        let (to, set) = to.ok_or_else(|| bad("to"))?;
        let id = match by {
            TokenBy::Key(key) => self.find(key).ok_or(Refused::TokenNotFound)?,
            TokenBy::At(at) => {
                self.check(*at)?;
                self.resolve((at.lane, at.token), kept)
            }
        };
        if id.0 == to {
            return Ok(Answer::Token(id));
        }
        let tok = self.tokens[&id].clone();
        if tok.state == State::Gone {
            let reason = tok.reason.filter(|_| self.remembers(&tok, kept));
            return Err(Refused::TokenGone(reason));
        }
        if self.phase() == Phase::Closed {
            return Err(Refused::LineClosed);
        }
        if !set.jump {
            return Err(Forbidden::Jump.into());
        }
        if tok.jumps >= self.settings.jumps_max {
            return Err(Forbidden::JumpsMax.into());
        }
        if tok.state != State::Waiting {
            return Err(Refused::NotWaiting);
        }
        if self.moves(id) >= 16 {
            return Err(bad("to"));
        }
        self.reissue(id, (to, set), MovedBy::Jump, entry)
    }

    fn reissue(
        &mut self,
        id: Id,
        (to, set): (u8, LaneSettings),
        by: MovedBy,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if set
            .queue_limit
            .is_some_and(|n| self.waiting(to).len() as u64 >= n.into())
        {
            return Err(Refused::LaneFull {
                lane: set.name,
                limit: set.queue_limit.unwrap(),
            });
        }
        let tok = Tok {
            called: false,
            told: BTreeSet::new(),
            ..self.tokens[&id].clone()
        };
        let new = self.issue(to, tok);
        self.tokens.get_mut(&new).unwrap().jumps += u32::from(by == MovedBy::Jump);
        let old = self.tokens.get_mut(&id).unwrap();
        old.state = State::Gone;
        old.left = Some(State::Waiting);
        old.reason = Some(Reason::Moved);
        old.moved_to = Some(new);
        let what = TokenChange::Moved {
            to_lane: set.name,
            to: TokenRef {
                incarnation: self.incarnation,
                lane: new.0,
                token: new.1,
            },
            by,
        };
        self.event(id, what, entry.events);
        let (to_lane, to) = new;
        self.note(id, JournaledToken::Moved { to_lane, to, by });
        Ok(Answer::Token(new))
    }

    fn moves(&self, mut id: Id) -> usize {
        let mut moves = 0;
        while let Some((old, _)) = self.tokens.iter().find(|(_, t)| t.moved_to == Some(id)) {
            id = *old;
            moves += 1;
        }
        moves
    }
}
