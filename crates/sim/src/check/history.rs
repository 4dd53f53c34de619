//! S5 and S11 to S15: what clients were told, against the log.
//!
//! Every change in the log must be explained by a request that was sent, in time, and not answered
//! otherwise; every answer must be that of an operation in the log.

use std::collections::BTreeMap;

use nowserving_engine::Outcome;
use nowserving_line::{Event, Op, Reason, Refused, Reply, State, Status, TokenChange, TokenRef};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::Consistency;

use super::shadow::Shadow;
use super::{Place, SLOW_CLOCK_PERCENT};
use crate::calls::{Answer, Call, Ended, NotAnswered, Query, What, version_of};
use crate::env::Env;
use crate::replay::Applied;
use crate::timeline::Time;

/// What a request has beyond its timeout.
const BEYOND_US: Time = 1_000_000;
/// Polls remembered of a token.
const POLLS_KEPT: usize = 8;

/// What is known of the operations in the log.
#[derive(Debug, Default)]
pub struct History {
    /// Operations of clients in the log, by what they say.
    done: BTreeMap<String, Vec<Done>>,
    /// Calls by what they ask, and how many calls have been looked at.
    calls: BTreeMap<String, Vec<usize>>,
    calls_seen: usize,
    /// When polls of a token were sent, and when their answers were there.
    polls: BTreeMap<(String, TokenRef), Vec<(Time, Time)>>,
}

/// One operation in the log.
#[derive(Clone, Debug)]
struct Done {
    place: Place,
    result: Result<Reply, Refused>,
    status: Option<Status>,
    /// It changed something.
    effect: bool,
}

/// An operation as text: equal requests are equal text. Keys that a forwarder made up count as none.
fn text_of(op: &Op) -> String {
    match op {
        Op::Enter { line, key, lane } => {
            let key = key.as_deref().filter(|key| !key.starts_with(b"auto-"));
            let key = key.map(String::from_utf8_lossy);
            format!("enter {line} {key:?} {lane:?}")
        }
        other => format!("{other:?}"),
    }
}

fn is_clients(op: &Op) -> bool {
    !matches!(
        op,
        Op::Recycle { .. } | Op::Touch { .. } | Op::RunBackground { .. }
    )
}

impl History {
    /// An operation was applied.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>) {
        self.recycled(env, place, applied);
        if !is_clients(applied.op) {
            return;
        }
        let line = applied.state.lines().get(applied.op.line());
        let version = line.map_or(u64::MAX, nowserving_line::Line::version);
        let done = Done {
            place,
            result: applied.result.clone(),
            status: applied.status.clone(),
            effect: applied.result.is_ok() && version != applied.version_before,
        };
        let text = text_of(applied.op);
        if done.effect {
            self.look_at_new_calls(env);
            self.is_explained(env, &text, &done);
        }
        self.done.entry(text).or_default().push(done);
    }

    fn look_at_new_calls(&mut self, env: &Env) {
        for call in env.calls.all.iter().skip(self.calls_seen) {
            if let What::Write(op) = &call.query.what {
                let calls = self.calls.entry(text_of(op)).or_default();
                calls.push(call.query.call);
            }
        }
        self.calls_seen = env.calls.all.len();
    }

    /// S13 and S14: a change comes from a request that was sent, in time, and not answered before.
    fn is_explained(&self, env: &mut Env, text: &str, done: &Done) {
        let calls = self.calls.get(text).into_iter().flatten();
        let calls: Vec<&Call> = calls.filter_map(|call| env.calls.all.get(*call)).collect();
        if calls.iter().any(|call| explains(call, done)) {
            return;
        }
        let at = done.place.appended_at;
        let (shard, index) = (done.place.shard, done.place.index);
        let sent: Vec<String> = calls.iter().map(|call| times_of(call)).collect();
        // Done although a client was told that it is not, or once more after it was answered.
        let denied = calls.iter().any(|call| is_denied(call, at));
        let answered = calls
            .iter()
            .any(|call| call.ended.as_ref().is_some_and(|it| it.0 < at));
        let invariant = if answered && !denied { "S13" } else { "S14" };
        let what = format!(
            "late write: entry {index} of shard {shard}, of {}.{:06}: {text}; no request explains it: {}",
            at / 1_000_000,
            at % 1_000_000,
            sent.join("; ")
        );
        env.violated(invariant, what);
    }

    /// S12: nobody is recycled who was heard from in time.
    fn recycled(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>) {
        if !matches!(applied.op, Op::Recycle { .. }) {
            return;
        }
        let at = place.appended_at;
        for event in applied.events {
            let Event::Token {
                line,
                incarnation,
                lane_id,
                token,
                what: TokenChange::Gone { reason, .. },
                ..
            } = event
            else {
                continue;
            };
            let Some(settings) = applied
                .state
                .lines()
                .get(line)
                .map(nowserving_line::Line::settings)
            else {
                continue;
            };
            let of = TokenRef {
                incarnation: *incarnation,
                lane: *lane_id,
                token: *token,
            };
            let (heard, timeout_ms) = match reason {
                Reason::Idle => {
                    let polls = self.polls.get(&(line.to_string(), of));
                    let known = polls
                        .into_iter()
                        .flatten()
                        .filter(|(_, there)| *there <= at);
                    (
                        known.map(|(sent, _)| *sent).max(),
                        settings.waiting_idle_timeout_ms,
                    )
                }
                _ => continue,
            };
            let least_us = timeout_ms * 100_000 / SLOW_CLOCK_PERCENT;
            if let Some(heard) = heard.filter(|heard| at < heard + least_us) {
                let what = format!(
                    "token {of:?} of {line} is recycled at {at} us, and was heard from at {heard} us or later"
                );
                env.violated("S12", what);
            }
        }
    }

    /// A client's call is over.
    pub fn call_ended<'a>(
        &mut self,
        env: &mut Env,
        call: usize,
        shadow: &dyn Fn(u32) -> Option<&'a Shadow>,
    ) {
        let Some(call) = env.calls.all.get(call).cloned() else {
            return;
        };
        let Some((now, Ended::Ok(answer))) = &call.ended else {
            return;
        };
        let query = call.query.as_ref();
        match &query.what {
            What::Write(op) => self.is_acknowledged(env, &call, op, answer),
            What::Status { at, consistency } => {
                if *consistency != Consistency::Local {
                    let sent = call.attempts.last().map_or(0, |attempt| attempt.sent_at);
                    let line = query.line.to_string();
                    let polls = self.polls.entry((line, *at)).or_default();
                    polls.push((sent, *now));
                    if polls.len() > POLLS_KEPT {
                        polls.remove(0);
                    }
                    misses_nothing(env, &call, answer);
                }
            }
            What::Find(_) => misses_nothing(env, &call, answer),
            What::Cluster | What::Lines => {}
        }
        if let Ok(Outcome::Status { status, .. }) = answer.as_ref()
            && let Some(shadow) = shadow(query.shard)
        {
            position_is_true(env, query, status, shadow);
        }
    }

    /// S5 and S13: the answer to a change is that of an operation in the log.
    fn is_acknowledged(&self, env: &mut Env, call: &Call, op: &Op, answer: &Answer) {
        let text = text_of(op);
        let began_at = call.began_at;
        let done = self.done.get(&text).into_iter().flatten();
        let mut since = done.filter(|done| done.place.appended_at >= began_at);
        if !since.any(|done| is_answer_of(done, answer)) {
            let what = format!(
                "call {}: answered {}, which no operation in the log was: {text}",
                call.query.call,
                crate::calls::describe_answer(answer)
            );
            env.violated("S5", what);
        }
        misses_nothing(env, call, answer);
    }

    /// The run is over: with all answers known, every change is still explained.
    pub fn at_end(&mut self, env: &mut Env) {
        self.look_at_new_calls(env);
        for (text, done) in &self.done {
            for done in done.iter().filter(|done| done.effect) {
                self.is_explained(env, text, done);
            }
        }
    }
}

/// Whether a change may be this call's.
fn explains(call: &Call, done: &Done) -> bool {
    let at = done.place.appended_at;
    // Answered for good: what comes later is not its.
    if call
        .ended
        .as_ref()
        .is_some_and(|(ended, how)| *ended < at && !matches!(how, Ended::Unknown))
    {
        return false;
    }
    call.attempts.iter().any(|attempt| {
        let most_us = attempt.timeout_ms * 1_000 + BEYOND_US;
        let in_time = attempt.sent_at <= at
            && at <= attempt.sent_at + attempt.held_us + most_us * SLOW_CLOCK_PERCENT / 100;
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
    })
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
                Ok(answer) => crate::calls::describe_answer(answer),
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
            *at == status.at
                && (done.status.as_ref()).is_some_and(|done| done.version <= status.version)
        }
        (
            Ok(Reply::Line {
                incarnation,
                version,
            }),
            Ok(Outcome::Line(line)),
        ) => *incarnation == line.incarnation && *version <= line.version,
        (Ok(Reply::Deleted { remaining: done }), Ok(Outcome::Deleted { remaining, .. })) => {
            done == remaining
        }
        _ => false,
    }
}

/// S15: an answer knows all that anybody had been told when it was asked for.
fn misses_nothing(env: &mut Env, call: &Call, answer: &Answer) {
    let known = call.known_version;
    if version_of(answer).is_some_and(|version| version < known) {
        let what = format!(
            "call {} on {}: answered {}, and version {known} had been told before it was asked",
            call.query.call,
            call.query.line,
            crate::calls::describe_answer(answer)
        );
        env.violated("S15", what);
    }
}

/// S11: a position is what a count says.
fn position_is_true(env: &mut Env, query: &Query, status: &Status, shadow: &Shadow) {
    let Some(line) = shadow.line(status.at.incarnation) else {
        let what = format!("{:?} of {} was never issued", status.at, query.line);
        return env.violated("S11", what);
    };
    let position = line.position(status.at, status.version);
    let same = match status.position_capped {
        false => status.position == position,
        true => status.position < position,
    };
    if !same || position.is_some() != (status.state == State::Waiting) {
        let what = format!(
            "{:?} of {} at version {} is told position {:?}, and counted {position:?}",
            status.at, query.line, status.version, status.position
        );
        env.violated("S11", what);
    }
}
