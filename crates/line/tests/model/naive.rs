//! The rules of one line again, as plainly as they can be written: every token that ever was is in one list,
//! and whatever is asked is found by going through it. Shares no code with the crate but its types.

use nowserving_line::{
    Event, LineChange, LineName, Reason, Refused, Settings, Stage, State, TokenChange, TokenRef,
};

#[derive(Debug, Clone)]
pub struct Tok {
    pub key: Option<Vec<u8>>,
    pub entered_at_ms: u64,
    pub seen_ms: u64,
    pub deadline_ms: u64,
    pub claimed_at_ms: u64,
    pub epoch: Option<u64>,
    pub state: State,
    pub reason: Option<Reason>,
    /// The how-manieth to go.
    pub gone_no: usize,
}

#[derive(Debug, Clone)]
pub struct NaiveLine {
    pub name: LineName,
    pub incarnation: u64,
    pub version: u64,
    pub epoch: u64,
    pub settings: Settings,
    pub settings_version: u64,
    pub deleting: bool,
    /// Token n is at n - 1.
    pub tokens: Vec<Tok>,
    pub gone: usize,
}

/// What the model expects of an answer.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Token(u64),
    Line { incarnation: u64, version: u64 },
    Remaining(u64),
    Recycled(u64),
    Nothing,
}

pub type Events<'a> = &'a mut Vec<Event>;

impl NaiveLine {
    pub fn count(&self, state: State) -> u64 {
        self.tokens.iter().filter(|t| t.state == state).count() as u64
    }

    pub fn held(&self) -> u64 {
        self.count(State::Admitted) + self.count(State::InCheckout)
    }

    pub fn live(&self) -> u64 {
        self.held() + self.count(State::Waiting)
    }

    pub fn free(&self) -> u64 {
        let seats = u64::from(self.settings.seats);
        if self.deleting {
            0
        } else {
            seats.saturating_sub(self.held())
        }
    }

    pub fn room(&self) -> u64 {
        let limit = u64::from(self.settings.seats) + u64::from(self.settings.queue_limit);
        if self.deleting {
            0
        } else {
            limit.saturating_sub(self.live())
        }
    }

    pub fn first_waiting(&self) -> Option<usize> {
        self.tokens.iter().position(|t| t.state == State::Waiting)
    }

    /// (done_through, admitted_through, accepts_through, next_token), as the contract words them.
    pub fn pointers(&self) -> (u64, u64, u64, u64) {
        let next = self.tokens.len() as u64 + 1;
        let prefix = self.tokens.iter().take_while(|t| t.state == State::Gone);
        let admitted = match self.first_waiting() {
            Some(first) => first as u64,
            None => next - 1 + self.free(),
        };
        (
            prefix.count() as u64,
            admitted,
            next - 1 + self.room(),
            next,
        )
    }

    /// 1 + the number of those still waiting before it.
    pub fn position(&self, token: u64) -> u64 {
        let before = self.tokens[..token as usize - 1].iter();
        1 + before.filter(|t| t.state == State::Waiting).count() as u64
    }

    pub fn remembers(&self, tok: &Tok, kept: usize) -> bool {
        tok.gone_no + kept > self.gone
    }

    pub fn find(&self, key: &[u8]) -> Option<u64> {
        let mut tokens = (1..).zip(&self.tokens);
        let found = tokens.find(|(_, t)| t.state != State::Gone && t.key.as_deref() == Some(key));
        found.map(|(token, _)| token)
    }

    pub fn stage(&self, token: u64) -> Option<Stage> {
        let t = &self.tokens[token as usize - 1];
        Some(match t.state {
            State::Waiting => Stage::Waiting { seen_ms: t.seen_ms },
            State::Admitted => Stage::Admitted {
                deadline_ms: t.deadline_ms,
            },
            State::InCheckout => Stage::InCheckout {
                deadline_ms: t.deadline_ms,
                claimed_at_ms: t.claimed_at_ms,
                epoch: t.epoch?,
            },
            State::Gone => return None,
        })
    }

    pub fn event(&mut self, token: u64, what: TokenChange, at_ms: u64, events: Events<'_>) {
        self.version += 1;
        events.push(Event::Token {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            at_ms,
            lane: "normal".try_into().unwrap(),
            lane_id: 0,
            token,
            what,
        });
    }

    pub fn line_event(&mut self, what: LineChange, at_ms: u64, events: Events<'_>) {
        self.version += 1;
        events.push(Event::Line {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            at_ms,
            what,
        });
    }

    pub fn admit(&mut self, most: u64, now_ms: u64, events: Events<'_>) {
        for _ in 0..most {
            let (true, Some(first)) = (self.free() > 0, self.first_waiting()) else {
                return;
            };
            self.tokens[first].state = State::Admitted;
            self.tokens[first].deadline_ms = now_ms + self.settings.claim_timeout_ms;
            self.event(first as u64 + 1, TokenChange::Admitted, now_ms, events);
        }
    }

    pub fn end(&mut self, token: u64, reason: Reason, now_ms: u64, events: Events<'_>) {
        self.gone += 1;
        let gone_no = self.gone;
        let tok = &mut self.tokens[token as usize - 1];
        let was_waiting = tok.state == State::Waiting;
        tok.state = State::Gone;
        tok.reason = Some(reason);
        tok.gone_no = gone_no;
        let what = TokenChange::Gone {
            reason,
            was_waiting,
        };
        self.event(token, what, now_ms, events);
    }

    pub fn work(&mut self, work_max: u32, now_ms: u64, events: Events<'_>) {
        if !self.deleting {
            return self.admit(u64::from(work_max), now_ms, events);
        }
        for _ in 0..work_max {
            let live = self.tokens.iter().position(|t| t.state != State::Gone);
            let Some(live) = live else { return };
            self.end(live as u64 + 1, Reason::Closed, now_ms, events);
        }
    }

    pub fn check(&self, at: TokenRef) -> Result<(), Refused> {
        let known = at.incarnation == self.incarnation && at.lane == 0;
        let issued = (1..=self.tokens.len() as u64).contains(&at.token);
        if known && issued {
            Ok(())
        } else {
            Err(Refused::TicketInvalid)
        }
    }
}
