//! Calls on the naive line.

use nowserving_line::{AdmittedBy, CannotAdmit, LaneName, Phase, Refused, State, TakeBy, TokenRef};

use crate::LIMITS;
use crate::naive::{Answer, Id, NaiveLine};
use crate::naive_ops::bad;
use crate::shard::Entry;

impl NaiveLine {
    pub fn call_next(
        &mut self,
        n: u32,
        lane: Option<&LaneName>,
        call_id: &str,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if call_id.is_empty() {
            return Err(bad("call_id"));
        }
        if self.calls.iter().any(|(id, _)| id == call_id) {
            return Ok(Answer::Called);
        }
        if n == 0 {
            return Err(bad("n"));
        }
        if self.phase() == Phase::Closed {
            return Err(Refused::LineClosed);
        }
        let listed = self.lanes();
        let only = match lane {
            None => None,
            Some(name) => {
                let found = listed.iter().find(|(_, set)| set.name == *name);
                Some(found.ok_or_else(|| bad("lane"))?.0)
            }
        };
        let mut admitted = Vec::new();
        while admitted.len() < n as usize && self.may_admit() {
            let next = match only {
                None => self.next(),
                Some(lane) => self.waiting(lane).first().map(|token| (lane, *token)),
            };
            let Some(id) = next else { break };
            if self.note_silence(entry.now_ms, entry.events) {
                continue;
            }
            let by = match only {
                None => AdmittedBy::Turn,
                Some(_) => AdmittedBy::Call,
            };
            self.admit_token(id, by, entry.now_ms, entry.events);
            entry.work = entry.work.saturating_sub(1);
            admitted.push(id);
        }
        self.remember_call(call_id, admitted);
        Ok(Answer::Called)
    }

    pub fn take(
        &mut self,
        by: &TakeBy,
        call_id: Option<&str>,
        kept: usize,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if call_id.is_some_and(str::is_empty) {
            return Err(bad("call_id"));
        }
        if self
            .calls
            .iter()
            .any(|(id, _)| Some(id.as_str()) == call_id)
        {
            return Ok(Answer::Called);
        }
        if self.phase() == Phase::Closed {
            return Err(Refused::LineClosed);
        }
        let id = match by {
            TakeBy::Key(key) => self.find(key).ok_or(Refused::TokenNotFound)?,
            TakeBy::Number { lane, token } => {
                let lane = self.place(lane).ok_or_else(|| bad("lane"))?;
                let at = TokenRef {
                    incarnation: self.incarnation,
                    lane,
                    token: *token,
                };
                self.check(at).map_err(|_| Refused::TokenNotFound)?;
                self.resolve((lane, *token), kept)
            }
        };
        let tok = self.tokens[&id].clone();
        if tok.state == State::Gone {
            let reason = tok.reason.filter(|_| self.remembers(&tok, kept));
            return Err(Refused::TokenGone(reason));
        }
        if tok.state == State::Waiting {
            self.check_seat(entry.now_ms)?;
            self.note_silence(entry.now_ms, entry.events);
            self.admit_token(id, AdmittedBy::Take, entry.now_ms, entry.events);
            entry.work = entry.work.saturating_sub(1);
        }
        Ok(match call_id {
            None => Answer::Token(id),
            Some(call_id) => {
                self.remember_call(call_id, vec![id]);
                Answer::Called
            }
        })
    }

    fn check_seat(&self, now_ms: u64) -> Result<(), CannotAdmit> {
        if !matches!(self.phase(), Phase::Open | Phase::Draining) {
            return Err(CannotAdmit::Phase);
        }
        if self.is_undrawn() {
            return Err(CannotAdmit::Draw);
        }
        if !self.holds_back() {
            return Ok(());
        }
        if let Some(quota) = self.settings.quota
            && self.used_lately() + self.reserved() >= quota.total
        {
            return Err(CannotAdmit::Quota);
        }
        if self.free_at(now_ms) == 0 {
            return Err(CannotAdmit::Seats);
        }
        match self.may_admit() {
            true => Ok(()),
            false => Err(CannotAdmit::AdmissionRate),
        }
    }

    fn remember_call(&mut self, call_id: &str, admitted: Vec<Id>) {
        self.calls.push((call_id.to_owned(), admitted));
        let tokens = |calls: &[(String, Vec<Id>)]| -> usize {
            calls.iter().map(|(_, admitted)| admitted.len()).sum()
        };
        while self.calls.len() > LIMITS.calls_kept
            || (tokens(&self.calls) > LIMITS.called_kept && self.calls.len() > 1)
        {
            self.calls.remove(0);
        }
    }
}
