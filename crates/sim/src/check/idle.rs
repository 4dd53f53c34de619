//! S12: nobody is recycled as idle who was seen in time, and nobody has waited for too long before `max_wait_ms`.

use std::collections::BTreeMap;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{Event, Line, LineName, Op, Reason, Reply, TokenChange, TokenRef};

use nowserving_protocol::codec::decode;
use nowserving_protocol::user;

use super::{Place, SLOW_CLOCK_PERCENT};
use crate::calls::{Answer, Call, What};
use crate::env::Env;
use crate::replay::Applied;
use crate::timeline::Time;

/// Polls remembered of a token.
const POLLS_KEPT: usize = 8;

/// When each token was last seen.
#[derive(Debug, Default)]
pub struct LastSeen {
    by_token: BTreeMap<(LineName, TokenRef), Seen>,
    /// When a line was last put back: polls that were sent before are forgotten.
    put_back_at: BTreeMap<LineName, Time>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// When it was issued, by the log.
    issued_at: Option<Time>,
    /// When it last entered, by the log.
    entered_at: Time,
    /// When polls of it were sent, and when their answers were there.
    polls: Vec<(Time, Time)>,
}

impl Seen {
    /// When it was last seen, as far as a leader must know then.
    fn last(&self, at: Time, from: Time) -> Time {
        let known = |(sent, there): &&(Time, Time)| *sent >= from && *there <= at;
        let answered = self.polls.iter().filter(known);
        let polled_at = answered.map(|(sent, _)| *sent).max();
        self.entered_at.max(polled_at.unwrap_or(0))
    }
}

impl LastSeen {
    /// A leader has answered what may be a poll.
    pub fn answered(&mut self, env: &Env, call: &Call, answer: &Answer) {
        let polled = match (&call.query.what, answer.as_ref()) {
            (What::Status { .. }, Ok(Outcome::Status { status, .. })) => vec![status.at],
            (What::Read { payload, .. }, Ok(Outcome::Reply(ReplyBody::Seen(reply)))) => {
                let asked: Option<user::Seen> = decode(payload).ok();
                let tickets = (0..).zip(asked.map(|it| it.tickets).unwrap_or_default());
                let live = tickets
                    .filter(|(nth, _)| !reply.gone.contains(nth) && !reply.invalid.contains(nth));
                let keys = &env.link.keys.tickets;
                live.filter_map(|(_, it)| keys.verify_for(&it, &call.query.line).ok())
                    .collect()
            }
            _ => return,
        };
        let sent_at = call.attempts.last().map_or(0, |attempt| attempt.sent_at);
        for at in polled {
            let of = (call.query.line.clone(), at);
            let polls = &mut self.by_token.entry(of).or_default().polls;
            polls.push((sent_at, env.timeline.now()));
            if polls.len() > POLLS_KEPT {
                polls.remove(0);
            }
        }
    }

    /// An operation was applied.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>) {
        let at = place.appended_at;
        if let (Op::Enter { line, .. }, Ok(Reply::Token(of))) = (applied.op, applied.result) {
            let seen = self.by_token.entry((line.clone(), *of)).or_default();
            seen.issued_at.get_or_insert(at);
            seen.entered_at = at;
        }
        for event in applied.events {
            let Event::Token {
                line,
                incarnation,
                lane_id,
                token,
                what,
                ..
            } = event
            else {
                continue;
            };
            let of = TokenRef {
                incarnation: *incarnation,
                lane: *lane_id,
                token: *token,
            };
            match what {
                // Also by an import.
                TokenChange::Entered { .. } => {
                    let seen = self.by_token.entry((line.clone(), of)).or_default();
                    seen.issued_at.get_or_insert(at);
                    seen.entered_at = at;
                }
                TokenChange::Moved { to, .. } => {
                    let seen = self.by_token.remove(&(line.clone(), of));
                    let seen = seen.unwrap_or_default();
                    self.by_token.insert((line.clone(), *to), seen);
                }
                TokenChange::Gone {
                    reason: reason @ (Reason::Idle | Reason::WaitExpired),
                    ..
                } => {
                    let now = applied.state.lines().get(line);
                    let why = now.and_then(|line| self.too_soon(line, of, *reason, at));
                    if let Some(why) = why {
                        env.violated("S12", format!("token {of:?} of {line}: {why}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// A line was put back: of its tokens no leader knows more than what the backup says. Their wait goes on where it
    /// was, so another `enter` with the key of one does not begin it.
    pub fn put_back(&mut self, now: Time, line: &Line) {
        let name = line.name();
        self.put_back_at.insert(name.clone(), now);
        for of in tokens(line) {
            let seen = Seen {
                issued_at: Some(0),
                ..Seen::default()
            };
            self.by_token.insert((name.clone(), of), seen);
        }
    }

    fn too_soon(&self, line: &Line, of: TokenRef, reason: Reason, at: Time) -> Option<String> {
        let Some(seen) = self.by_token.get(&(line.name().clone(), of)) else {
            return Some("recycled, and never entered".to_owned());
        };
        let (began, least_ms) = match reason {
            Reason::WaitExpired => (seen.issued_at.unwrap_or(0), line.settings().max_wait_ms?),
            _ => {
                let from = self.put_back_at.get(line.name()).copied().unwrap_or(0);
                (seen.last(at, from), line.settings().waiting_idle_timeout_ms)
            }
        };
        let least_us = least_ms * 100_000 / SLOW_CLOCK_PERCENT;
        (at < began + least_us)
            .then(|| format!("recycled as {reason:?} at {at} us, {began} us counts, or later"))
    }
}

/// The live tokens of a line.
pub fn tokens(line: &Line) -> Vec<TokenRef> {
    let incarnation = line.incarnation();
    let lanes = (0..).zip(line.dump().lanes);
    let tokens = lanes.flat_map(|(id, lane)| lane.live.into_iter().map(move |it| (id, it.0)));
    let refs = tokens.map(|(lane, token)| TokenRef {
        incarnation,
        lane,
        token,
    });
    refs.collect()
}
