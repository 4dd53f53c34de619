//! The operations on the naive line.

use nowserving_line::{
    Change, LineChange, Op, Reason, RecycleItem, Refused, SettingsPatch, State, TokenChange,
};

use crate::naive::{Answer, Events, NaiveLine, Tok};

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
        if let Some(Change::Set(claim_ms)) = patch.claim_timeout_ms {
            settings.claim_timeout_ms = claim_ms;
        }
        if let Some(Change::Set(checkout_ms)) = patch.checkout_timeout_ms {
            settings.checkout_timeout_ms = checkout_ms;
        }
        if let Some(Change::Set(max_ms)) = patch.checkout_max_ms {
            settings.checkout_max_ms = max_ms;
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
