//! S14 and S5 of kicks: a token is kicked only while an operator asks for that, and an answered kick has hit all that it
//! was meant for.

use std::collections::BTreeMap;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{Event, LineName, Reason, State as TokenState, TokenChange};
use nowserving_protocol::kick::Kick;

use super::shadow::{Shadow, ShadowLine};
use super::writes::BEYOND_US;
use super::{Place, SLOW_CLOCK_PERCENT};
use crate::calls::{Answer, Call, What};
use crate::env::Env;
use crate::replay::Applied;
use crate::timeline::Time;

/// A kick that nobody waits for any more is given up at the next look.
const GIVEN_UP_US: Time = 50_000;

/// When tokens were kicked.
#[derive(Debug, Default)]
pub struct Kicks {
    by_line: BTreeMap<LineName, Vec<Time>>,
}

impl Kicks {
    /// An operation was applied, which the shadow has taken in.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>, shadow: &Shadow) {
        for event in applied.events {
            let Event::Token {
                line,
                incarnation,
                lane_id,
                token,
                what:
                    TokenChange::Gone {
                        reason: Reason::Kicked,
                        was_waiting,
                        ..
                    },
                ..
            } = event
            else {
                continue;
            };
            let at = place.appended_at;
            self.by_line.entry(line.clone()).or_default().push(at);
            let id = (*lane_id, *token);
            let key = shadow.line(*incarnation).and_then(|line| line.key_of(id));
            let asked = env.calls.all.iter().any(|call| {
                call.query.line == *line
                    && kick_of(call).is_some_and(|kick| is_meant(kick, key, *was_waiting))
                    && is_under_way(call, at)
            });
            if !asked {
                let what = format!("{id:?} of {line} is kicked at {at} us, as nobody asks then");
                env.violated("S14", what);
            }
        }
    }

    /// A kick was answered.
    pub fn answered(&self, env: &mut Env, call: &Call, answer: &Answer, line: Option<&ShadowLine>) {
        let (Some(kick), Ok(Outcome::Reply(ReplyBody::Kicked(reply)))) =
            (kick_of(call), answer.as_ref())
        else {
            return;
        };
        let number = call.query.call;
        let times = self
            .by_line
            .get(&call.query.line)
            .map_or(&[][..], Vec::as_slice);
        let since = times.iter().filter(|at| **at >= call.began_at).count() as u64;
        if reply.kicked > since {
            let what = format!("call {number}: {} are kicked, not {since}", reply.kicked);
            env.violated("S5", what);
        }
        let left = line.filter(|_| kick.all && kick.state.is_none());
        let left = left.and_then(|line| line.live_through(call.known_version).next());
        if let Some(left) = left {
            let what = format!("call {number}: all are kicked, and {left:?} lives");
            env.violated("S5", what);
        }
    }
}

fn kick_of(call: &Call) -> Option<&Kick> {
    match &call.query.what {
        What::Kick(kick) => Some(kick),
        _ => None,
    }
}

fn is_meant(kick: &Kick, key: Option<&[u8]>, was_waiting: bool) -> bool {
    let in_state = kick.state.is_none_or(|state| {
        let waiting = TokenState::from(state) == TokenState::Waiting;
        waiting == was_waiting
    });
    let by_key = kick
        .keys
        .as_ref()
        .is_none_or(|keys| key.is_some_and(|key| keys.iter().any(|it| it.as_bytes() == key)));
    in_state && by_key
}

/// Whether a leader may be at it.
fn is_under_way(call: &Call, at: Time) -> bool {
    call.attempts.iter().any(|it| {
        let most_us = it.timeout_ms * 1_000 + BEYOND_US + GIVEN_UP_US;
        let most_us = it.held_us + most_us * SLOW_CLOCK_PERCENT / 100;
        it.sent_at <= at && at <= it.sent_at + most_us
    })
}
