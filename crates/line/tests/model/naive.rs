//! The rules of one line again, as plainly as they can be written: every token that ever was is in one list,
//! and whatever is asked is found by going through it. Shares no code with the crate but its types.

use nowserving_line::{
    Change, Event, LineChange, LineName, Op, Reason, RecycleItem, Refused, Settings, SettingsPatch,
    Stage, State, TokenChange, TokenRef,
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

    fn event(&mut self, token: u64, what: TokenChange, at_ms: u64, events: Events<'_>) {
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

    fn admit(&mut self, most: u64, now_ms: u64, events: Events<'_>) {
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

    fn check(&self, at: TokenRef) -> Result<(), Refused> {
        let known = at.incarnation == self.incarnation && at.lane == 0;
        let issued = (1..=self.tokens.len() as u64).contains(&at.token);
        if known && issued {
            Ok(())
        } else {
            Err(Refused::TicketInvalid)
        }
    }
}

impl NaiveLine {
    pub fn configure(
        &mut self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        work_max: u32,
        now_ms: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        if if_version.is_some_and(|v| v < self.settings_version || v > self.version) {
            return Err(Refused::VersionConflict);
        }
        let mut settings = self.settings.clone();
        if let Some(Change::Set(seats)) = patch.seats {
            settings.seats = seats;
        }
        if let Some(Change::Set(queue_limit)) = patch.queue_limit {
            settings.queue_limit = queue_limit;
        }
        if let Some(Change::Set(idle_ms)) = patch.waiting_idle_timeout_ms {
            settings.waiting_idle_timeout_ms = idle_ms;
        }
        if settings != self.settings {
            self.settings = settings;
            self.line_event(LineChange::Configured, now_ms, events);
            self.settings_version = self.version;
            self.work(work_max, now_ms, events);
        }
        Ok(Answer::Line {
            incarnation: self.incarnation,
            version: self.version,
        })
    }

    pub fn delete(
        &mut self,
        force: bool,
        work_max: u32,
        now_ms: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        if !self.deleting {
            if self.live() > 0 && !force {
                return Err(Refused::LineNotEmpty);
            }
            self.deleting = true;
            self.version += 1;
            self.work(work_max, now_ms, events);
        }
        Ok(Answer::Remaining(self.live()))
    }

    pub fn enter(
        &mut self,
        key: Option<&[u8]>,
        now_ms: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        if let Some(token) = key.and_then(|key| self.find(key)) {
            self.tokens[token as usize - 1].seen_ms = now_ms;
            return Ok(Answer::Token(token));
        }
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        // The contract's own words for it.
        let (_, _, accepts_through, next_token) = self.pointers();
        if next_token > accepts_through {
            return Err(Refused::LineFull);
        }
        let nobody_waits = self.first_waiting().is_none();
        self.tokens.push(Tok {
            key: key.map(<[u8]>::to_vec),
            entered_at_ms: now_ms,
            seen_ms: now_ms,
            deadline_ms: 0,
            claimed_at_ms: 0,
            epoch: None,
            state: State::Waiting,
            reason: None,
            gone_no: 0,
        });
        self.version += 1;
        if nobody_waits {
            self.admit(1, now_ms, events);
        }
        Ok(Answer::Token(next_token))
    }

    pub fn recycle(
        &mut self,
        items: &[RecycleItem],
        work_max: u32,
        now_ms: u64,
        events: Events<'_>,
    ) -> Answer {
        let (mut ended, mut seats) = (0, 0);
        if self.deleting {
            return Answer::Recycled(0);
        }
        for item in items.iter().take(work_max as usize) {
            let index = (item.token as usize).wrapping_sub(1);
            let Some(tok) = self.tokens.get(index).filter(|_| item.lane == 0) else {
                continue;
            };
            let (clock_ms, due, reason) = match tok.state {
                State::Waiting => {
                    let silent_ms = now_ms.saturating_sub(tok.seen_ms);
                    let due = silent_ms > self.settings.waiting_idle_timeout_ms;
                    (tok.seen_ms, due, Reason::Idle)
                }
                State::Admitted => (tok.deadline_ms, now_ms >= tok.deadline_ms, Reason::NoShow),
                State::InCheckout => {
                    let due = now_ms >= tok.deadline_ms;
                    (tok.deadline_ms, due, Reason::CheckoutExpired)
                }
                State::Gone => continue,
            };
            if due && (tok.state, clock_ms) == (item.state, item.clock_ms) {
                ended += 1;
                seats += u64::from(tok.state != State::Waiting);
                self.end(item.token, reason, now_ms, events);
            }
        }
        self.admit(seats, now_ms, events);
        Answer::Recycled(ended)
    }

    pub fn token_op(
        &mut self,
        op: &Op,
        kept: usize,
        now_ms: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        let at = match op {
            Op::Claim { at, .. }
            | Op::Renew { at, .. }
            | Op::Complete { at, .. }
            | Op::Leave { at, .. } => *at,
            other => panic!("not an operation on a token: {other:?}"),
        };
        self.check(at)?;
        let answer = Ok(Answer::Token(at.token));
        let tok = &self.tokens[at.token as usize - 1];
        let reason = tok.reason.filter(|_| self.remembers(tok, kept));
        match (op, reason) {
            // Asking again for what ended it.
            (Op::Leave { .. }, Some(Reason::Left)) => answer,
            (Op::Complete { epoch, .. }, Some(Reason::Completed)) => {
                let stale = epoch.is_some() && *epoch != tok.epoch;
                if stale {
                    Err(Refused::EpochStale)
                } else {
                    answer
                }
            }
            _ if tok.state == State::Gone => Err(Refused::TokenGone(reason)),
            _ if self.deleting => Err(Refused::LineClosed),
            _ => self.live_op(op, at.token, now_ms, events).and(answer),
        }
    }

    fn live_op(
        &mut self,
        op: &Op,
        token: u64,
        now_ms: u64,
        events: Events<'_>,
    ) -> Result<(), Refused> {
        let tok = &self.tokens[token as usize - 1];
        let state = tok.state;
        let held = u64::from(state != State::Waiting);
        if let Op::Leave { .. } = op {
            self.end(token, Reason::Left, now_ms, events);
            self.admit(held, now_ms, events);
            return Ok(());
        }
        match (state, op) {
            (State::Waiting, _) => return Err(Refused::NotAdmitted),
            (State::InCheckout, Op::Claim { .. }) => return Ok(()),
            (State::Admitted, Op::Claim { .. }) => return self.claim(token, now_ms, events),
            (State::Admitted, _) => return Err(Refused::NotClaimed),
            _ => {}
        }
        let given = match op {
            Op::Renew { epoch, .. } => Some(*epoch),
            Op::Complete { epoch, .. } => *epoch,
            _ => None,
        };
        if given.is_some() && given != tok.epoch {
            return Err(Refused::EpochStale);
        }
        if let Op::Renew { .. } = op {
            let s = &self.settings;
            let end_ms = tok.claimed_at_ms + s.checkout_max_ms;
            let new_ms = (now_ms + s.checkout_timeout_ms).min(end_ms);
            let tok = &mut self.tokens[token as usize - 1];
            tok.deadline_ms = tok.deadline_ms.max(new_ms);
            self.version += 1;
        } else {
            self.end(token, Reason::Completed, now_ms, events);
            self.admit(held, now_ms, events);
        }
        Ok(())
    }

    fn claim(&mut self, token: u64, now_ms: u64, events: Events<'_>) -> Result<(), Refused> {
        self.epoch += 1;
        let s = &self.settings;
        let lasts_ms = s.checkout_timeout_ms.min(s.checkout_max_ms);
        let tok = &mut self.tokens[token as usize - 1];
        tok.state = State::InCheckout;
        tok.deadline_ms = now_ms + lasts_ms;
        tok.claimed_at_ms = now_ms;
        tok.epoch = Some(self.epoch);
        self.event(token, TokenChange::Claimed, now_ms, events);
        Ok(())
    }
}
