//! S5, S13 and S14: writes, as clients asked for them, against the log.
//!
//! Each effect in the log must be that of a request that was sent, in time, and not answered otherwise;
//! a call has at most one effect; and each answer must be that of an operation in the log.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{Event, Line, LineName, Op, Refused, Reply, Status, TokenChange, TokenRef};
use nowserving_protocol::admin::{
    CalledReply, ConfigureLines, ConfigureLinesReply, ConfiguredLine, DeleteReply,
};
use nowserving_protocol::error::{ApiError, Code};

use super::{Place, SLOW_CLOCK_PERCENT};
use crate::calls::{Answer, Attempt, Call, Calls, Ended, NotAnswered, What, describe_answer};
use crate::env::Env;
use crate::replay::Applied;
use crate::settings;
use crate::timeline::Time;

/// A write may take effect so long after its timeout.
pub const BEYOND_US: Time = 1_000_000;

/// The writes of a run. Equal operations have equal text.
#[derive(Debug, Default)]
pub struct Writes {
    by_text: BTreeMap<String, Operation>,
    /// How many calls have been looked at.
    calls_seen: usize,
    /// The calls of operators that admitted tokens: by line, incarnation and id.
    called: BTreeSet<(LineName, u64, Box<str>)>,
    /// What each token that was moved or drawn was called, and is called now, by shard: two shards give equal incarnations.
    names: BTreeMap<(u32, TokenRef), Names>,
    /// Changes of many lines that are in the log: by the call that named them and the line, when and after which version.
    many: BTreeMap<(usize, LineName), Vec<(Time, u64)>>,
}

/// The names of one token, the newest last.
type Names = Rc<RefCell<Vec<TokenRef>>>;

/// All calls that ask for one operation, and all entries in the log that carry it out.
#[derive(Debug, Default)]
struct Operation {
    calls: Vec<usize>,
    done: Vec<Done>,
    /// By call: which of `done` is its effect.
    effects: BTreeMap<usize, usize>,
}

/// An operation in the log.
#[derive(Clone, Debug)]
struct Done {
    line: LineName,
    place: Place,
    result: Result<Reply, Refused>,
    status: Option<Status>,
    /// Of a call: the tokens that it admitted.
    called: Option<CalledReply>,
    has_effect: bool,
    /// Of its token.
    names: Option<Names>,
}

fn call_id_of(op: &Op) -> Option<&str> {
    match op {
        Op::CallNext { call_id, .. } => Some(call_id),
        Op::Take { call_id, .. } => call_id.as_deref(),
        _ => None,
    }
}

fn text_of(op: &Op) -> String {
    format!("{op:?}")
}

fn is_clients(op: &Op) -> bool {
    !matches!(
        op,
        Op::Recycle { .. }
            | Op::Touch { .. }
            | Op::Kick { .. }
            | Op::CountRefused { .. }
            | Op::RenewQuota { .. }
            | Op::SealDraw { .. }
            | Op::RunBackground { .. }
    )
}

impl Writes {
    /// An operation was applied.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>) {
        self.note_moves(place.shard, applied.events);
        if !is_clients(applied.op) {
            return;
        }
        let line = applied.state.lines().get(applied.op.line());
        let version = line.map_or(u64::MAX, Line::version);
        let has_effect = applied.result.is_ok() && version != applied.version_before;
        if has_effect {
            self.look_at_new_calls(&env.calls);
        }
        let call_id = call_id_of(applied.op);
        let admits = |event: &Event| {
            let what = match event {
                Event::Token { what, .. } => what,
                Event::Line { .. } => return false,
            };
            matches!(what, TokenChange::Admitted { .. })
        };
        let admits = applied.events.iter().any(admits);
        if let (true, Some(line), Some(id)) = (admits, line, call_id) {
            let call = (line.name().clone(), line.incarnation(), id.into());
            if !self.called.insert(call) {
                let what = format!("a call admits tokens again: {:?}", applied.op);
                env.violated("S13", what);
            }
        }
        let called = line.and_then(|line| CalledReply::of_call(line, call_id?));
        let text = text_of(applied.op);
        let names = match applied.result {
            Ok(Reply::Token(at)) => Some(self.names_of(place.shard, *at)),
            _ => None,
        };
        let operation = self.by_text.entry(text).or_default();
        if let Some((change, calls)) = calls_for_many(&env.calls, applied.op) {
            operation.calls = calls;
            if applied.result.is_ok() {
                let of = (change, applied.op.line().clone());
                let done = self.many.entry(of).or_default();
                done.push((place.appended_at, applied.version_before));
            }
        }
        operation.done.push(Done {
            line: applied.op.line().clone(),
            place,
            result: applied.result.clone(),
            status: applied.status.clone(),
            called,
            has_effect,
            names,
        });
        if has_effect {
            let effect = operation.done.len() - 1;
            operation.find_cause(env, effect);
        }
    }

    fn note_moves(&mut self, shard: u32, events: &[Event]) {
        for event in events {
            if let Event::Token {
                incarnation,
                lane_id,
                token,
                what: TokenChange::Moved { to, .. },
                ..
            } = event
            {
                let from = TokenRef {
                    incarnation: *incarnation,
                    lane: *lane_id,
                    token: *token,
                };
                let names = self.names_of(shard, from);
                names.borrow_mut().push(*to);
                self.names.insert((shard, *to), names);
            }
        }
    }

    fn names_of(&mut self, shard: u32, at: TokenRef) -> Names {
        let names = self.names.entry((shard, at));
        names
            .or_insert_with(|| Rc::new(RefCell::new(vec![at])))
            .clone()
    }

    /// A line was put back: later calls of it are not remembered any more.
    pub fn put_back(&mut self, line: &LineName) {
        self.called.retain(|(name, ..)| name != line);
    }

    fn look_at_new_calls(&mut self, calls: &Calls) {
        for call in calls.all.iter().skip(self.calls_seen) {
            if let What::Write(op) = &call.query.what {
                let operation = self.by_text.entry(text_of(op)).or_default();
                operation.calls.push(call.query.call);
            }
        }
        self.calls_seen = calls.all.len();
    }

    /// A call is over: the effect that was taken for its own may be another call's.
    pub fn call_ended(&mut self, env: &mut Env, call: &Call, op: &Op) {
        let number = call.query.call;
        let Some(operation) = self.by_text.get_mut(&text_of(op)) else {
            return;
        };
        let effect = operation.effects.get(&number).copied();
        let effect =
            effect.filter(|it| !operation.done.get(*it).is_some_and(|it| explains(call, it)));
        if let Some(effect) = effect {
            operation.effects.remove(&number);
            operation.find_cause(env, effect);
        }
    }

    /// S5 and S13: the answer to a write is that of an operation in the log, whose index this returns.
    pub fn is_acknowledged(
        &self,
        env: &mut Env,
        call: &Call,
        op: &Op,
        answer: &Answer,
    ) -> Option<u64> {
        let text = text_of(op);
        let done = self.by_text.get(&text).map(|it| it.done.as_slice());
        let mut since = done.unwrap_or_default().iter();
        let of_answer =
            since.find(|it| it.place.appended_at >= call.began_at && is_answer_of(it, answer));
        if of_answer.is_none() {
            let (call, answer) = (call.query.call, describe_answer(answer));
            let what = format!(
                "call {call}: answered {answer}, which no operation in the log was: {text}"
            );
            env.violated("S5", what);
        }
        of_answer.map(|it| it.place.index)
    }

    /// S5: each line of which a client is told that it was changed, with others, was changed.
    pub fn are_acknowledged(
        &self,
        env: &mut Env,
        call: &Call,
        ask: &ConfigureLines,
        answer: &Answer,
    ) {
        let Some(change) = settings::call_of(&ask.set.0) else {
            return;
        };
        let is_done = |line: &ConfiguredLine| {
            let done = self.many.get(&(change, line.line.clone()));
            let mut done = done.into_iter().flatten();
            let told = line.settings_version;
            done.any(|(at, before)| *at >= call.began_at && told.is_some_and(|it| *before < it))
        };
        let reply: Result<ConfigureLinesReply, String> = answer.read();
        let wrong = match &reply {
            Ok(reply) if reply.lines.is_sorted_by(|a, b| a.line < b.line) => {
                let mut changed = reply.lines.iter().filter(|it| it.error.is_none());
                changed.find(|it| !is_done(it)).map(|it| format!("{it:?}"))
            }
            _ => Some(format!("{reply:?}")),
        };
        if let Some(what) = wrong {
            let call = call.query.call;
            env.violated("S5", format!("call {call}: not so in the log: {what}"));
        }
    }

    /// Whether the log has this operation, refused for this reason, since the call began.
    pub fn is_refused(&self, call: &Call, op: &Op, code: Code) -> bool {
        let done = self.by_text.get(&text_of(op)).map(|it| it.done.as_slice());
        let mut since = done.unwrap_or_default().iter();
        since.any(|it| {
            let refused = it.result.as_ref().err();
            it.place.appended_at >= call.began_at
                && refused.is_some_and(|it| ApiError::from(it.clone()).code == code)
        })
    }

    /// The run is over: with all answers known, each effect still has its call.
    pub fn at_end(&mut self, env: &mut Env) {
        self.look_at_new_calls(&env.calls);
        for operation in self.by_text.values_mut() {
            operation.effects.clear();
            for effect in 0..operation.done.len() {
                operation.find_cause(env, effect);
            }
        }
    }
}

impl Operation {
    /// S13 and S14: an effect is that of a call which was sent, in time, was not answered before, and has
    /// no other effect.
    fn find_cause(&mut self, env: &mut Env, effect: usize) {
        let has_effect = self.done.get(effect).is_some_and(|it| it.has_effect);
        if has_effect && !self.assign(&env.calls, effect, &mut BTreeSet::new()) {
            let (invariant, what) = self.unexplained(&env.calls, effect);
            env.violated(invariant, what);
        }
    }

    /// Gives an effect a call of its own, if need be by giving another effect another call.
    fn assign(&mut self, all: &Calls, effect: usize, tried: &mut BTreeSet<usize>) -> bool {
        let Some(at) = self.done.get(effect).map(|it| it.place.appended_at) else {
            return false;
        };
        // A call begins before its effect, and the newest ones are in their order.
        let begun = |call: &usize| all.all.get(*call).is_some_and(|it| it.began_at <= at);
        let candidates = self.calls.partition_point(begun);
        for at in (0..candidates).rev() {
            let Some(call) = self.calls.get(at).and_then(|call| all.all.get(*call)) else {
                continue;
            };
            let number = call.query.call;
            let may_be = self.done.get(effect).is_some_and(|it| explains(call, it));
            if !may_be || !tried.insert(number) {
                continue;
            }
            let other = self.effects.get(&number).copied();
            if other.is_none_or(|other| self.assign(all, other, tried)) {
                self.effects.insert(number, effect);
                return true;
            }
        }
        false
    }

    /// What is wrong with an effect that has no call.
    fn unexplained(&self, all: &Calls, effect: usize) -> (&'static str, String) {
        let calls = self.calls.iter().filter_map(|call| all.all.get(*call));
        let calls: Vec<&Call> = calls.collect();
        let Some(done) = self.done.get(effect) else {
            return ("S13", format!("an effect that is not there: {effect}"));
        };
        let (at, shard, index) = (done.place.appended_at, done.place.shard, done.place.index);
        let again = calls.iter().any(|call| explains(call, done));
        // Done although a client was told that it is not, or once more after it was answered.
        let denied = calls.iter().any(|call| is_denied(call, at));
        let answered = |call: &&Call| call.ended.as_ref().is_some_and(|it| it.0 < at);
        let (invariant, kind) = match again {
            true => ("S13", "a second effect of one call"),
            false if calls.iter().any(answered) && !denied => ("S13", "late write"),
            false => ("S14", "late write"),
        };
        let sent: Vec<String> = calls.iter().map(|call| times_of(call)).collect();
        let what = format!(
            "{kind}: entry {index} of shard {shard}, of {}.{:06}: {:?}; calls: {}",
            at / 1_000_000,
            at % 1_000_000,
            done.result,
            sent.join("; ")
        );
        (invariant, what)
    }
}

impl Done {
    /// Whether its token, called `at` when it was done, is called `now` then or later.
    fn is_called_since(&self, at: TokenRef, now: TokenRef) -> bool {
        self.names.as_ref().is_some_and(|names| {
            let names = names.borrow();
            names
                .iter()
                .skip_while(|name| **name != at)
                .any(|name| *name == now)
        })
    }
}

/// Whether an effect may be this call's.
fn explains(call: &Call, done: &Done) -> bool {
    if let What::ConfigureLines(_) = &call.query.what {
        return explains_of_many(call, done);
    }
    let at = done.place.appended_at;
    let may_be = match &call.ended {
        None | Some((_, Ended::Unknown)) => true,
        Some((ended, Ended::Ok(answer))) => at <= *ended && is_answer_of(done, answer),
        Some((_, Ended::Refused(_) | Ended::Unavailable)) => false,
    };
    let mut attempts = call.attempts.iter();
    if may_be {
        attempts.any(|it| attempt_explains(it, at))
    } else {
        attempts.any(|it| attempt_explains(it, at) && was_held_back(call, it, done))
    }
}

/// The calls that ask for this change of many lines, and the number in it.
fn calls_for_many(calls: &Calls, op: &Op) -> Option<(usize, Vec<usize>)> {
    let change = match op {
        Op::Configure { patch, .. } => settings::call_of(patch)?,
        _ => return None,
    };
    let asks = |call: &&Call| match &call.query.what {
        What::ConfigureLines(ask) => settings::call_of(&ask.set.0) == Some(change),
        _ => false,
    };
    calls.all.get(change).filter(asks)?;
    let asking = calls.all.iter().skip(change).filter(asks);
    Some((change, asking.map(|call| call.query.call).collect()))
}

/// The same of a change of many lines. How late it comes is not judged: the node that was asked sends it, and the line's
/// leader looks at that node's clock. Of several attempts each may find another incarnation of the line, and of several copies
/// one may be refused.
fn explains_of_many(call: &Call, done: &Done) -> bool {
    let is_repeated = call.attempts.len() > 1 || call.part_doubled;
    match &call.ended {
        None | Some((_, Ended::Unknown)) => true,
        Some((_, Ended::Unavailable)) => false,
        Some((_, Ended::Refused(_))) => is_repeated,
        Some((ended, Ended::Ok(answer))) => {
            let reply: Result<ConfigureLinesReply, String> = answer.read();
            let mut told = reply.iter().flat_map(|reply| &reply.lines);
            let told = told.find(|it| it.line == done.line);
            let may_be = told.is_some_and(|it| match &it.error {
                None => done.place.appended_at <= *ended,
                Some(error) => error.code == Code::OutcomeUnknown,
            });
            is_repeated || may_be
        }
    }
}

/// The one gap that the contract names: an attempt was still in its client's buffers when another attempt
/// of the call was refused without the log, and reaches a leader that does not know of that.
fn was_held_back(call: &Call, attempt: &Attempt, done: &Done) -> bool {
    let Some((ended, Ended::Refused(_))) = &call.ended else {
        return false;
    };
    *ended < attempt.sent_at + attempt.held_us && *ended < done.place.led_since
}

/// Whether what happened then may have been this attempt's doing.
fn attempt_explains(attempt: &Attempt, at: Time) -> bool {
    let most_us = (attempt.timeout_ms * 1_000 + BEYOND_US) * SLOW_CLOCK_PERCENT / 100;
    let in_time = attempt.sent_at <= at && at <= attempt.sent_at + attempt.held_us + most_us;
    let may_be = match &attempt.end {
        None => true,
        Some(end) => match &end.how {
            Err(NotAnswered::TimedOut) => true,
            Err(NotAnswered::NoResponders) => false,
            Ok(answer) => match answer.as_ref() {
                Ok(_) => at <= end.at,
                Err(error) => error.code == Code::OutcomeUnknown,
            },
        },
    };
    in_time && may_be
}

/// Whether an attempt that was under way then was told that nothing happened.
fn is_denied(call: &Call, at: Time) -> bool {
    call.attempts.iter().any(|attempt| {
        let error = attempt.end.as_ref().and_then(|end| end.how.as_ref().ok());
        let error = error.and_then(|answer| answer.as_ref().as_ref().err());
        attempt.sent_at <= at && error.is_some_and(|error| error.code != Code::OutcomeUnknown)
    })
}

fn times_of(call: &Call) -> String {
    let attempts = call.attempts.iter().map(|attempt| {
        let end = attempt.end.as_ref().map(|end| {
            let how = match &end.how {
                Err(why) => format!("{why:?}"),
                Ok(answer) => describe_answer(answer),
            };
            format!("{how} at {}.{:06}", end.at / 1_000_000, end.at % 1_000_000)
        });
        let sent = attempt.sent_at;
        format!(
            "sent {}.{:06} for {} ms: {}",
            sent / 1_000_000,
            sent % 1_000_000,
            attempt.timeout_ms,
            end.unwrap_or_else(|| "no end".to_owned())
        )
    });
    let attempts: Vec<String> = attempts.collect();
    format!("call {} [{}]", call.query.call, attempts.join(", "))
}

/// A copy is answered later than it was done: with the same token or line, as it is then.
fn is_answer_of(done: &Done, answer: &Answer) -> bool {
    match (&done.result, answer.as_ref()) {
        (Ok(Reply::Token(at)), Ok(Outcome::Status { status, .. })) => {
            done.is_called_since(*at, status.at)
                && (done.status.as_ref()).is_some_and(|done| done.version <= status.version)
        }
        (
            Ok(Reply::Line {
                incarnation,
                version,
            }),
            Ok(Outcome::Reply(ReplyBody::Line(line))),
        ) => *incarnation == line.incarnation && *version <= line.version,
        (Ok(Reply::Callback { position }), Ok(Outcome::Reply(ReplyBody::Callback(reply)))) => {
            *position == reply.position && reply.room == position.is_none()
        }
        (Ok(Reply::Called), Ok(Outcome::Reply(ReplyBody::Called(called)))) => {
            done.called.as_ref() == Some(called.as_ref())
        }
        (Ok(Reply::Token(at)), Ok(Outcome::Reply(ReplyBody::Called(called)))) => {
            called.admitted.iter().all(|it| it.token == at.token)
        }
        (
            Ok(Reply::Deleted { remaining: done }),
            Ok(Outcome::Reply(ReplyBody::Deleted(DeleteReply { remaining, .. }))),
        ) => done == remaining,
        _ => false,
    }
}
