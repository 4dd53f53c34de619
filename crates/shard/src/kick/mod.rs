//! Kicks under way: an operator ends many tokens, and the leader works through its line in bounded steps.
//!
//! A kick is a job in the leader's memory. It looks at some tokens a turn, and proposes those that are meant in
//! [`nowserving_line::Op::Kick`]s of one page each, one at a time; replies add up to the exact number. Tokens that enter after it began
//! are not hit. If the leader is lost, so is the job: the tokens that are gone are gone, and the operator repeats it.
//!
//! Without a `state` it takes waiting tokens before those with seats, so that it admits none that it is about to end.
//! The first operation is [`Command::Once`]: a copy of the request that comes to a later leader is known by it.

mod choice;
mod job;

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{KickItem, LineName, OperatorNote, Refused, Reply, TokenRef};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::kick::{Kick, KickReply};

use self::job::{Eyes, Job};
use crate::clock::Micros;
use crate::command::Command;
use crate::recycle::Recycler;
use crate::requests::{Answer, Origin, RequestId};
use crate::state::State;

/// Kicks of a shard at once at most; there is one a line.
const JOBS_MAX: usize = 16;
/// Answers of finished kicks that are kept for copies of their requests.
const ANSWERS_KEPT: usize = 64;
/// The tokens that one step looks at, over all jobs: so many take well below a millisecond.
const LOOKS: usize = 2_048;
/// Steps are at least so far apart, so that a long kick leaves the log and the loop to others.
const STEP_INTERVAL_US: Micros = 2_000;

/// All kicks of a shard's leader.
#[derive(Debug, Default)]
pub struct Kicks {
    jobs: BTreeMap<LineName, Job>,
    /// The line of the job that went first in the last step: the next one is another's turn.
    turn: Option<LineName>,
    next_step_at: Micros,
    finished: Vec<(LineName, Result<KickReply, ApiError>)>,
    /// Finished dry runs, until somebody asks or [`Kicks::give_up`].
    counted: BTreeMap<LineName, (Kick, KickReply)>,
    /// Those with an id, the newest last.
    answered: VecDeque<(RequestId, Result<KickReply, ApiError>)>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Begun {
    /// It is answered when its job is finished.
    Waits,
    Answered(Result<KickReply, ApiError>),
}

impl Kicks {
    /// Begins a kick, for which its operator said this, or joins the job of another copy of the request.
    pub fn begin(
        &mut self,
        state: &State,
        name: &LineName,
        (ask, note): (&Kick, Option<&OperatorNote>),
        id: Option<RequestId>,
    ) -> Begun {
        let copy = id.and_then(|id| self.answer_to_copy(state, id));
        if let Some(answer) = copy.or_else(|| self.counted(name, ask)) {
            return Begun::Answered(answer);
        }
        if let Some(job) = self.jobs.get(name) {
            return match job.is_asked_by(ask, id) {
                false => Begun::Answered(Err(busy("tokens of this line are being kicked already"))),
                true if job.given_up => Begun::Answered(Err(unknown())),
                true => Begun::Waits,
            };
        }
        if self.jobs.values().any(|job| job.has_id(id)) {
            return Begun::Answered(Err(of_another_request()));
        }
        if self.jobs.len() >= JOBS_MAX {
            let what = "too many lines of this shard have tokens being kicked";
            return Begun::Answered(Err(busy(what)));
        }
        let line = state.lines().get(name).ok_or(Refused::LineNotFound.into());
        match line.and_then(|line| Job::new(line, (ask, note), id)) {
            Ok(job) => {
                self.counted.remove(name);
                self.jobs.insert(name.clone(), job);
                Begun::Waits
            }
            Err(error) => {
                self.remember(id, &Err(error.clone()));
                Begun::Answered(Err(error))
            }
        }
    }

    fn answer_to_copy(&self, state: &State, id: RequestId) -> Option<Result<KickReply, ApiError>> {
        let mut answered = self.answered.iter().rev();
        if let Some((_, answer)) = answered.find(|(of, _)| same(*of, id)) {
            return Some(answer.clone());
        }
        if self.jobs.values().any(|job| job.has_id(Some(id))) {
            return None;
        }
        Some(match state.requests().answer(id)? {
            Answer::Refused(refused) => Err(refused.into()),
            // An earlier leader began it, and nobody knows how far it came.
            _ => Err(unknown()),
        })
    }

    /// The answer to a dry run that was finished while nobody waited for it.
    fn counted(&self, name: &LineName, ask: &Kick) -> Option<Result<KickReply, ApiError>> {
        let (of, reply) = self.counted.get(name)?;
        (of == ask).then(|| Ok(reply.clone()))
    }

    /// A refusal that asks for a repetition is not remembered.
    fn remember(&mut self, id: Option<RequestId>, answer: &Result<KickReply, ApiError>) {
        let to_repeat = |error: &ApiError| error.code == Code::Unavailable;
        if let Some(id) = id.filter(|_| !answer.as_ref().is_err_and(to_repeat)) {
            self.answered.push_back((id, answer.clone()));
            if self.answered.len() > ANSWERS_KEPT {
                self.answered.pop_front();
            }
        }
    }

    /// Looks at the next tokens, and returns what to propose.
    pub(crate) fn propose(
        &mut self,
        state: &State,
        recycler: &Recycler,
        now: Micros,
        now_ms: u64,
    ) -> Vec<Command> {
        if now < self.next_step_at || self.jobs.is_empty() {
            return Vec::new();
        }
        self.next_step_at = now + STEP_INTERVAL_US;
        let after = self.turn.take();
        let (first, rest): (Vec<_>, Vec<_>) = self
            .jobs
            .keys()
            .cloned()
            .partition(|name| after.as_ref().is_none_or(|after| name > after));
        let (mut looks, mut commands) = (LOOKS, Vec::new());
        for name in first.into_iter().chain(rest) {
            self.turn.get_or_insert_with(|| name.clone());
            let Some(job) = self.jobs.get_mut(&name).filter(|job| !job.is_in_flight()) else {
                continue;
            };
            let line = state.lines().get(&name);
            let Some(line) = line.filter(|line| line.incarnation() == job.incarnation) else {
                self.end(&name, Some(Refused::LineNotFound.into()));
                continue;
            };
            let eyes = Eyes {
                line,
                recycler,
                now_ms,
            };
            job.look(eyes, &mut looks);
            match job.next_command(&name, eyes) {
                Some(command) => commands.push(command),
                None if job.is_over() => self.end(&name, None),
                None => {}
            }
        }
        commands
    }

    /// When [`Kicks::propose`] has something to do, on the monotonic clock; it can be past.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<Micros> {
        let due = self.jobs.values().any(|job| !job.is_in_flight());
        due.then_some(self.next_step_at)
    }

    /// Before an [`nowserving_line::Op::Kick`] with these tokens is applied.
    pub(crate) fn before(&mut self, state: &State, name: &LineName, items: &[KickItem]) {
        if let Some(job) = self.jobs.get_mut(name)
            && let Some(line) = state.lines().get(name)
        {
            job.before(line, items);
        }
    }

    /// After it was applied.
    pub(crate) fn after(&mut self, name: &LineName, result: &Result<Reply, Refused>) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        match result {
            Ok(Reply::Kicked { ended, taken }) => {
                job.after(*ended, *taken);
                if job.given_up || job.is_over() {
                    self.end(name, None);
                }
            }
            Ok(_) => self.end(name, Some(Refused::LineNotFound.into())),
            Err(refused) => self.end(name, Some(refused.clone().into())),
        }
    }

    /// Its first operation was not executed: its request id is that of another request.
    pub(crate) fn not_executed(&mut self, name: &LineName) {
        self.end(name, Some(of_another_request()));
    }

    /// Its operation was not proposed, as a member of the group does not know it.
    pub fn not_proposed(&mut self, name: &LineName, why: ApiError) {
        let begun = self.jobs.get(name).is_some_and(|job| job.done.kicked > 0);
        match begun {
            true => self.end(name, Some(unknown())),
            false => self.end(name, Some(why)),
        }
    }

    /// A token of this line was moved.
    pub(crate) fn moved(&mut self, name: &LineName, from: TokenRef, to: TokenRef) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.moved(from, to);
        }
    }

    /// Nobody waits for it, or for its answer, any more.
    pub fn give_up(&mut self, name: &LineName) {
        self.counted.remove(name);
        match self.jobs.get_mut(name) {
            Some(job) if job.is_in_flight() => job.given_up = true,
            _ => drop(self.jobs.remove(name)),
        }
    }

    /// The answers of those that are finished since the last call.
    pub fn take_finished(&mut self) -> Vec<(LineName, Result<KickReply, ApiError>)> {
        std::mem::take(&mut self.finished)
    }

    /// Why it ended too early, if it did.
    fn end(&mut self, name: &LineName, refused: Option<ApiError>) {
        let Some(job) = self.jobs.remove(name) else {
            return;
        };
        if job.given_up {
            return self.remember(job.id, &Err(unknown()));
        }
        let answer = match refused {
            // The line was closed or deleted meanwhile, and all others have ended by that.
            Some(refused) if job.done.kicked > 0 && refused.code != Code::OutcomeUnknown => {
                Ok(job.done)
            }
            Some(refused) => Err(refused),
            None => Ok(job.done),
        };
        self.remember(job.id, &answer);
        if let (true, Ok(reply)) = (job.ask.dry_run, &answer) {
            self.counted.insert(name.clone(), (job.ask, reply.clone()));
        }
        self.finished.push((name.clone(), answer));
    }
}

/// Two messages that came straight from clients are never copies of each other.
fn same(one: RequestId, other: RequestId) -> bool {
    let both_direct = (one.origin, other.origin) == (Origin::Direct, Origin::Direct);
    one.key == other.key && !both_direct
}

fn busy(what: &str) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{what}; nothing happened")).retry_after_ms(250)
}

fn of_another_request() -> ApiError {
    ApiError::bad_request("the request id is that of another request")
}

fn unknown() -> ApiError {
    let what =
        "the kick was not finished: those that are gone are gone; kick again, as a new request";
    ApiError::new(Code::OutcomeUnknown, what)
}

#[cfg(test)]
mod tests;
