//! S11 and S15: what clients are told of a line, against what the log makes of it.
//!
//! A leader's answer knows all that any client had been told before it was asked for. So an answer, or a
//! refusal, must be true of a state between then and the moment when it came.

use std::collections::BTreeMap;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{
    LANE_DEFAULT, LaneName, Line, LineName, Op, Refused, State, Status, TokenBy, TokenRef,
};
use nowserving_protocol::admin::{ImportedReply, TokenOrder};
use nowserving_protocol::error::{ApiError, Code};

use super::Place;
use super::shadow::Shadow;
use super::writes::Writes;
use crate::calls::{Answer, Call, Query, What, describe_answer, version_of};
use crate::env::Env;
use crate::replay;
use crate::timeline::Time;

/// A key that nobody has.
const NOBODY: &[u8] = b"nobody";

/// What lines were like, and what clients know of it.
#[derive(Debug, Default)]
pub struct Answers {
    /// What each line was like, from the first entry on.
    states: BTreeMap<LineName, Vec<LineState>>,
    /// Which entry clients knew of, and since when.
    known: BTreeMap<LineName, Vec<(Time, u64)>>,
}

/// A line after an entry, until the next one.
#[derive(Clone, Debug)]
struct LineState {
    /// The entry.
    index: u64,
    /// Never falls: of a line that was deleted it is the last one.
    version: u64,
    /// `None` if there is no such line.
    incarnation: Option<u64>,
    /// How a newcomer is refused, by lane; the default lane is `None`.
    refusals: BTreeMap<Option<LaneName>, Code>,
    /// The same of one that asks to be told of room.
    callback_refusals: BTreeMap<Option<LaneName>, Code>,
}

impl LineState {
    /// A line that there never was.
    fn none() -> LineState {
        LineState {
            index: 0,
            version: 0,
            incarnation: None,
            refusals: BTreeMap::new(),
            callback_refusals: BTreeMap::new(),
        }
    }

    fn after(&self, index: u64, line: Option<&Line>, now_ms: u64) -> LineState {
        let Some(line) = line else {
            return LineState {
                index,
                version: self.version,
                ..LineState::none()
            };
        };
        let lanes = line.settings().lanes.iter().map(|it| Some(it.name.clone()));
        let lanes = lanes.chain([None]);
        let code = |refused: Refused| ApiError::from(refused).code;
        let refusals = lanes.clone().filter_map(|lane| {
            let refused = line.would_refuse_enter(None, lane.as_ref(), now_ms)?;
            Some((lane, code(refused)))
        });
        let callback_refusals = lanes.filter_map(|lane| {
            let refused = line.would_refuse_callback(NOBODY, lane.as_ref(), now_ms)?;
            Some((lane, code(refused)))
        });
        LineState {
            index,
            version: line.version(),
            incarnation: Some(line.incarnation()),
            refusals: refusals.collect(),
            callback_refusals: callback_refusals.collect(),
        }
    }
}

impl Answers {
    /// A line has changed.
    pub fn applied(&mut self, place: Place, name: &LineName, state: &replay::State) {
        let states = self.states.entry(name.clone());
        let states = states.or_insert_with(|| vec![LineState::none()]);
        let Some(last) = states.last_mut() else {
            return;
        };
        let now = last.after(place.index, state.lines().get(name), state.now_ms());
        // Leaders refuse from their state between entries only.
        match last.index == place.index {
            true => *last = now,
            false => states.push(now),
        }
    }

    /// A client was told what the log has at this entry.
    pub fn told(&mut self, line: &LineName, index: u64, now: Time) {
        let known = self.known.entry(line.clone()).or_default();
        if known.last().is_none_or(|(_, last)| *last < index) {
            known.push((now, index));
        }
    }

    /// A client was told of a line at this version.
    pub fn told_version(&mut self, line: &LineName, version: u64, now: Time) {
        let states = self.states.get(line).map_or(&[][..], Vec::as_slice);
        let first = states.partition_point(|it| it.version < version);
        if let Some(index) = states.get(first).map(|it| it.index) {
            self.told(line, index, now);
        }
    }

    /// What a line was like from what clients knew at this time until now.
    fn states_since(&self, line: &LineName, time: Time) -> &[LineState] {
        let known = self.known.get(line).map_or(&[][..], Vec::as_slice);
        let before = known.partition_point(|(at, _)| *at < time);
        let index = before.checked_sub(1).and_then(|at| known.get(at));
        let index = index.map_or(0, |(_, index)| *index);
        let states = self.states.get(line).map_or(&[][..], Vec::as_slice);
        let later = states.partition_point(|it| it.index <= index);
        states.get(later.saturating_sub(1)..).unwrap_or_default()
    }

    /// S15: a refusal was true of some state between what any client knew before, and now.
    pub fn is_refused_rightly(
        &self,
        env: &mut Env,
        call: &Call,
        code: Code,
        writes: &Writes,
        shadow: Option<&Shadow>,
    ) {
        let query = call.query.as_ref();
        let since = self.states_since(&query.line, call.began_at);
        let is_true = match (&query.what, code) {
            (What::Write(op), _) if writes.is_refused(call, op, code) => true,
            (_, Code::LineNotFound) => {
                since.is_empty() || since.iter().any(|it| it.incarnation.is_none())
            }
            (What::Kick(_), Code::LineClosed) => {
                since.iter().any(|it| it.refusals.get(&None) == Some(&code))
            }
            (What::Write(Op::Enter { lane, .. }), _) => {
                since.iter().any(|it| it.refusals.get(lane) == Some(&code))
            }
            (What::Write(Op::Callback { lane, .. }), _) => {
                let mut since = since.iter();
                since.any(|it| it.callback_refusals.get(lane) == Some(&code))
            }
            (
                What::Status {
                    token: TokenBy::At(at),
                    ..
                },
                Code::TicketInvalid,
            ) => since
                .iter()
                .any(|it| it.incarnation != Some(at.incarnation)),
            (
                What::Find(key)
                | What::Status {
                    token: TokenBy::Key(key),
                    ..
                },
                Code::TokenNotFound,
            ) => {
                let first = since.first().map_or(0, |it| it.version);
                let newest = since.last().and_then(|it| it.incarnation);
                let line = newest.and_then(|it| shadow?.line(it));
                let entered = line.and_then(|it| it.live_since(key));
                entered.is_none_or(|version| version > first)
            }
            _ => false,
        };
        if !is_true {
            let what = format!(
                "call {} on {}: refused with {code}, which was never true: {since:?}",
                query.call, query.line
            );
            env.violated("S15", what);
        }
    }
}

/// S15: an answer knows all that any client had been told when it was asked for.
pub fn misses_nothing(env: &mut Env, call: &Call, answer: &Answer) {
    let known = call.known_version;
    if version_of(answer).is_some_and(|version| version < known) {
        let what = format!(
            "call {} on {}: answered {}, and version {known} had been told before it was asked",
            call.query.call,
            call.query.line,
            describe_answer(answer)
        );
        env.violated("S15", what);
    }
}

/// S13: a line is shown with what was imported until then.
pub fn imported_is_true(env: &mut Env, query: &Query, answer: &Answer, shadow: &Shadow) {
    let Ok(Outcome::Reply(ReplyBody::Line(line))) = answer.as_ref() else {
        return;
    };
    let Some(kept) = shadow.line_at(line.incarnation, line.version) else {
        return;
    };
    let imported = kept.imported_at(line.version).map(ImportedReply::from);
    if line.imported != imported {
        let (name, version, shown) = (&query.line, line.version, &line.imported);
        let what = format!("{name} at version {version} shows {shown:?}, not {imported:?}");
        env.violated("S13", what);
    }
}

/// S11: a position is what a count says.
pub fn position_is_true(env: &mut Env, query: &Query, answer: &Answer, shadow: &Shadow) {
    let Ok(Outcome::Status { status, .. }) = answer.as_ref() else {
        return;
    };
    let Some(line) = shadow.line_at(status.at.incarnation, status.version) else {
        let what = format!("{:?} of {} was never issued", status.at, query.line);
        return env.violated("S11", what);
    };
    let Status { at, version, .. } = status.as_ref();
    let position = line.position(*at, *version);
    let same = match status.position_capped {
        false => status.position == position,
        true => status.position < position,
    };
    let is_placed = status.state == State::Waiting && !line.was_undrawn(*version);
    if !same || position.is_some() != is_placed {
        let what = format!(
            "{at:?} of {} at version {version} is told position {:?}, and counted {position:?}",
            query.line, status.position
        );
        env.violated("S11", what);
    }
}

/// S11: a page of tokens is as a count says, and in its order.
pub fn page_is_true(env: &mut Env, query: &Query, answer: &Answer, shadow: &Shadow) {
    let (What::Tokens(ask), Ok(Outcome::Reply(ReplyBody::Tokens(page)))) =
        (&query.what, answer.as_ref())
    else {
        return;
    };
    let Some(line) = shadow.line_at(page.incarnation, page.version) else {
        let what = format!("incarnation {} never was", page.incarnation);
        return env.violated("S11", what);
    };
    let by_service = ask.order == TokenOrder::Service;
    let drawn = !line.was_undrawn(page.version);
    let first = drawn && by_service && ask.after.is_empty() && ask.lane.is_none();
    let mut listed = 0;
    for (at, token) in (1..).zip(&page.tokens) {
        let lane = u8::from(token.lane.as_str() != LANE_DEFAULT);
        let place = TokenRef {
            incarnation: page.incarnation,
            lane,
            token: token.token,
        };
        let counted = line.position(place, page.version);
        let in_turn = !first || token.turn == Some(at);
        listed += u64::from(counted.is_some());
        if counted != token.position || !in_turn {
            let what = format!("{token:?} is listed as number {at}, counted {counted:?}");
            return env.violated("S11", what);
        }
    }
    let waiting: u64 = (0..2).map(|lane| line.waiting_at(lane, page.version)).sum();
    if first && page.next.is_none() && listed != waiting {
        let what = format!("{listed} tokens are listed, and {waiting} wait");
        env.violated("S11", what);
    }
}
