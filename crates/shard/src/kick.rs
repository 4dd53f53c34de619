//! Kicks under way: an operator ends many tokens, and the leader works through its line in bounded steps.
//!
//! A kick is a job in the leader's memory. It looks at some tokens a turn, and proposes those that are meant in
//! [`Op::Kick`]s of one page each, one at a time; replies add up to the exact number. Tokens that enter after it began
//! are not hit. If the leader is lost, so is the job: the tokens that are gone are gone, and the operator repeats it.
//!
//! Without a `state` it takes waiting tokens before those with seats, so that it admits none that it is about to end.
//! The first operation is [`Command::Once`]: a copy of the request that comes to a later leader is known by it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nowserving_line::{
    KICK_MAX, KickItem, KickNote, KickSelector, LaneName, Line, LineName, Live, Op, Refused, Reply,
    State as TokenState, Token, TokenRef,
};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::kick::{KICK_SAMPLE, Kick, KickReply, KickedToken};
use nowserving_protocol::user::Key;

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
    /// Those with an id, the newest last.
    answered: VecDeque<(RequestId, Result<KickReply, ApiError>)>,
}

#[derive(Debug)]
struct Job {
    id: Option<RequestId>,
    incarnation: u64,
    /// Tokens that entered at a later version of the line are not meant.
    through_version: u64,
    note: KickNote,
    ask: Kick,
    /// Tokens to be proposed.
    chosen: VecDeque<KickItem>,
    /// What is still to be looked at; `None`: all of `chosen` is there.
    scan: Option<Scan>,
    in_flight: Option<Vec<KickItem>>,
    proposed: bool,
    /// Nobody waits for it any more: it ends with what is in flight.
    given_up: bool,
    done: KickReply,
    /// By their place in `in_flight`, those that will be in the sample if the operation gets to them.
    candidates: Vec<(usize, KickedToken)>,
}

/// A pass over the live tokens of a line, or of one lane.
#[derive(Debug)]
struct Scan {
    lane: Option<u8>,
    idle_over_ms: Option<u64>,
    pass: Pass,
    next: (u8, Token),
    /// A token was moved since the pass began, perhaps to where it has been: it begins anew.
    moved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Any,
    Waiting,
    Seated,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Begun {
    /// It is answered when its job is finished.
    Waits,
    Answered(Result<KickReply, ApiError>),
}

impl Kicks {
    /// Begins a kick, or joins the job of another copy of the request.
    pub fn begin(
        &mut self,
        state: &State,
        name: &LineName,
        ask: &Kick,
        id: Option<RequestId>,
    ) -> Begun {
        if let Some(answer) = id.and_then(|id| self.answer_to_copy(state, id)) {
            return Begun::Answered(answer);
        }
        if let Some(job) = self.jobs.get(name) {
            // Counting has no id, and whoever asks the same can have the same answer.
            let counts_too = ask.dry_run && job.ask == *ask;
            let is_copy = job.id.zip(id).is_some_and(|(ours, id)| same(ours, id)) || counts_too;
            return match is_copy && !job.given_up {
                true => Begun::Waits,
                false => Begun::Answered(Err(busy("tokens of this line are being kicked already"))),
            };
        }
        let of_another = |job: &Job| job.id.zip(id).is_some_and(|(ours, id)| same(ours, id));
        if self.jobs.values().any(of_another) {
            let what = "the request id is that of a kick of another line";
            return Begun::Answered(Err(ApiError::bad_request(what)));
        }
        if self.jobs.len() >= JOBS_MAX {
            let what = "too many lines of this shard have tokens being kicked";
            return Begun::Answered(Err(busy(what)));
        }
        let line = state.lines().get(name).ok_or(Refused::LineNotFound.into());
        match line.and_then(|line| Job::new(line, ask, id)) {
            Ok(job) => {
                self.jobs.insert(name.clone(), job);
                Begun::Waits
            }
            Err(error) => Begun::Answered(Err(error)),
        }
    }

    fn answer_to_copy(&self, state: &State, id: RequestId) -> Option<Result<KickReply, ApiError>> {
        let mut answered = self.answered.iter().rev();
        if let Some((_, answer)) = answered.find(|(of, _)| same(*of, id)) {
            return Some(answer.clone());
        }
        if self
            .jobs
            .values()
            .any(|job| job.id.is_some_and(|of| same(of, id)))
        {
            return None;
        }
        Some(match state.requests().answer(id)? {
            Answer::Refused(refused) => Err(refused.clone().into()),
            // An earlier leader began it, and nobody knows how far it came.
            _ => Err(unknown()),
        })
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
            let Some(job) = self.jobs.get_mut(&name) else {
                continue;
            };
            if job.in_flight.is_some() {
                continue;
            }
            let line = state.lines().get(&name);
            match line.filter(|line| line.incarnation() == job.incarnation) {
                None => self.end(&name, Some(Refused::LineNotFound)),
                Some(line) => {
                    job.look(line, recycler, now_ms, &mut looks);
                    match job.next_command(&name) {
                        Some(command) => commands.push(command),
                        None if job.is_over() => self.end(&name, None),
                        None => {}
                    }
                }
            }
        }
        commands
    }

    /// When [`Kicks::propose`] has something to do, on the monotonic clock; it can be past.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<Micros> {
        let mut jobs = self.jobs.values();
        let due = jobs.any(|job| job.in_flight.is_none());
        due.then_some(self.next_step_at)
    }

    /// Before an [`Op::Kick`] with these tokens is applied.
    pub(crate) fn before(&mut self, state: &State, name: &LineName, items: &[KickItem]) {
        if let Some(job) = self.jobs.get_mut(name)
            && let Some(line) = state.lines().get(name)
        {
            let missing = KICK_SAMPLE.saturating_sub(job.done.sample.len());
            let places = items.iter().enumerate();
            let shown = places.filter_map(|(place, item)| {
                let at = line.would_kick(item)?;
                Some((place, shown(line, at, line.live(at.lane, at.token)?)))
            });
            job.candidates = shown.take(missing).collect();
        }
    }

    /// After it was applied.
    pub(crate) fn after(&mut self, name: &LineName, result: &Result<Reply, Refused>) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let items = job.in_flight.take().unwrap_or_default();
        match result {
            Ok(Reply::Kicked { ended, taken }) => {
                let taken = usize::try_from(*taken).unwrap_or(usize::MAX);
                job.done.kicked += ended;
                let shown = std::mem::take(&mut job.candidates).into_iter();
                let shown = shown.filter(|(place, _)| *place < taken);
                job.done.sample.extend(shown.map(|(_, token)| token));
                for item in items.into_iter().skip(taken).rev() {
                    job.chosen.push_front(item);
                }
                if job.given_up {
                    self.jobs.remove(name);
                } else if job.is_over() {
                    self.end(name, None);
                }
            }
            Ok(_) => self.end(name, Some(Refused::LineNotFound)),
            Err(refused) => self.end(name, Some(refused.clone())),
        }
    }

    /// A token of this line was moved: the job may have been where it is now.
    pub(crate) fn moved(&mut self, name: &LineName) {
        if let Some(scan) = self.jobs.get_mut(name).and_then(|job| job.scan.as_mut()) {
            scan.moved = true;
        }
    }

    /// Nobody waits for it any more.
    pub fn give_up(&mut self, name: &LineName) {
        match self.jobs.get_mut(name) {
            Some(job) if job.in_flight.is_some() => job.given_up = true,
            _ => drop(self.jobs.remove(name)),
        }
    }

    /// Its operation was not proposed, as a member of the group does not know it.
    pub fn not_proposed(&mut self, name: &LineName) {
        self.jobs.remove(name);
    }

    /// The answers of those that are finished since the last call.
    pub fn take_finished(&mut self) -> Vec<(LineName, Result<KickReply, ApiError>)> {
        std::mem::take(&mut self.finished)
    }

    /// The line has been closed or deleted meanwhile if it is `refused`; an answer is due if some tokens were ended.
    fn end(&mut self, name: &LineName, refused: Option<Refused>) {
        let Some(job) = self.jobs.remove(name).filter(|job| !job.given_up) else {
            return;
        };
        let answer = match refused {
            Some(refused) if job.done.kicked == 0 => Err(refused.into()),
            _ => Ok(job.done),
        };
        if let Some(id) = job.id {
            self.answered.push_back((id, answer.clone()));
            if self.answered.len() > ANSWERS_KEPT {
                self.answered.pop_front();
            }
        }
        self.finished.push((name.clone(), answer));
    }
}

impl Job {
    fn new(line: &Line, ask: &Kick, id: Option<RequestId>) -> Result<Self, ApiError> {
        if line.phase() == nowserving_line::Phase::Closed {
            return Err(Refused::LineClosed.into());
        }
        let state = ask.state.map(TokenState::from);
        let (selector, choice) = choose(line, ask)?;
        let mut job = Job {
            id: id.filter(|_| !ask.dry_run),
            incarnation: line.incarnation(),
            through_version: line.version(),
            note: KickNote {
                selector,
                state,
                reason: ask.reason.as_deref().map(Into::into),
                by: ask.by.as_deref().map(Into::into),
            },
            ask: ask.clone(),
            chosen: VecDeque::new(),
            scan: None,
            in_flight: None,
            proposed: false,
            given_up: false,
            done: KickReply {
                dry_run: ask.dry_run,
                ..KickReply::default()
            },
            candidates: Vec::new(),
        };
        match choice {
            Choice::Named(tokens) => {
                for at in tokens {
                    if let Some(live) = line.live(at.lane, at.token) {
                        job.take_if_meant(line, at, live, None);
                    }
                }
            }
            Choice::Lane(lane) => job.scan = Some(job.first_pass(lane, ask.idle_over_ms)),
        }
        Ok(job)
    }

    fn first_pass(&self, lane: Option<u8>, idle_over_ms: Option<u64>) -> Scan {
        let any = self.ask.dry_run || self.note.state.is_some() || idle_over_ms.is_some();
        Scan {
            lane,
            idle_over_ms,
            pass: match any {
                true => Pass::Any,
                false => Pass::Waiting,
            },
            next: (lane.unwrap_or(0), 0),
            moved: false,
        }
    }

    /// Fills `chosen`, or counts, as far as `looks` go.
    fn look(&mut self, line: &Line, recycler: &Recycler, now_ms: u64, looks: &mut usize) {
        while *looks > 0
            && self.chosen.len() < KICK_MAX
            && let Some(mut scan) = self.scan.take()
        {
            let most = (*looks).min(KICK_MAX - self.chosen.len());
            let lane = scan.lane;
            let of_lane = |(id, _, _): &(u8, Token, &Live)| lane.is_none_or(|lane| lane == *id);
            let page = line.live_from(scan.next).take_while(of_lane).take(most);
            let mut seen = 0;
            for (lane, token, live) in page {
                seen += 1;
                scan.next = (lane, token + 1);
                let at = TokenRef {
                    incarnation: self.incarnation,
                    lane,
                    token,
                };
                if scan.is_meant(line, recycler, at, live, now_ms) {
                    self.take_if_meant(line, at, live, scan.idle_over_ms);
                }
            }
            *looks -= seen.max(1).min(*looks);
            self.scan = match seen < most {
                true => self.pass_after(scan),
                false => Some(scan),
            };
        }
    }

    fn pass_after(&self, scan: Scan) -> Option<Scan> {
        let first = self.first_pass(scan.lane, scan.idle_over_ms);
        match scan.pass {
            _ if scan.moved && !self.ask.dry_run => Some(first),
            Pass::Waiting => Some(Scan {
                pass: Pass::Seated,
                ..first
            }),
            Pass::Any | Pass::Seated => None,
        }
    }

    fn take_if_meant(&mut self, line: &Line, at: TokenRef, live: &Live, idle: Option<u64>) {
        let state = self.note.state;
        if live.entered.version > self.through_version
            || state.is_some_and(|state| state != live.state())
        {
            return;
        }
        if self.ask.dry_run {
            self.done.kicked += 1;
            if self.done.sample.len() < KICK_SAMPLE {
                self.done.sample.push(shown(line, at, live));
            }
            return;
        }
        self.chosen.push_back(KickItem {
            lane: at.lane,
            token: at.token,
            state: state.or(idle.map(|_| TokenState::Waiting)),
            clock_ms: idle.map(|_| live.clock_ms()),
        });
    }

    /// The next operation, once a page is full or nothing is left to look at. There is at least one, so that the
    /// answer is that of a leader which still was one.
    fn next_command(&mut self, name: &LineName) -> Option<Command> {
        let full = self.chosen.len() >= KICK_MAX || self.scan.is_none();
        let needed = !self.chosen.is_empty() || !self.proposed;
        if self.ask.dry_run || !full || !needed {
            return None;
        }
        let tokens: Vec<_> = self
            .chosen
            .drain(..self.chosen.len().min(KICK_MAX))
            .collect();
        self.in_flight = Some(tokens.clone());
        let noted = self.done.kicked > 0;
        let command = Command::Line(Op::Kick {
            line: name.clone(),
            incarnation: self.incarnation,
            tokens,
            note: (!noted).then(|| Box::new(self.note.clone())),
        });
        let first = !std::mem::replace(&mut self.proposed, true);
        Some(match self.id.filter(|_| first) {
            Some(id) => Command::Once(id, Box::new(command)),
            None => command,
        })
    }

    fn is_over(&self) -> bool {
        let all_done = self.chosen.is_empty() && self.scan.is_none() && self.in_flight.is_none();
        all_done && (self.ask.dry_run || self.proposed)
    }
}

impl Scan {
    fn is_meant(
        &self,
        line: &Line,
        recycler: &Recycler,
        at: TokenRef,
        live: &Live,
        now_ms: u64,
    ) -> bool {
        let waits = live.state() == TokenState::Waiting;
        let in_pass = match self.pass {
            Pass::Any => true,
            Pass::Waiting => waits,
            Pass::Seated => !waits,
        };
        let is_idle = self.idle_over_ms.is_none_or(|over_ms| {
            let seen_ms = || recycler.last_seen_ms(line, at, live);
            waits && now_ms.saturating_sub(seen_ms()) > over_ms
        });
        in_pass && is_idle
    }
}

/// The tokens among which a kick chooses.
enum Choice {
    Named(Vec<TokenRef>),
    /// All of a lane, or of the line.
    Lane(Option<u8>),
}

fn choose(line: &Line, ask: &Kick) -> Result<(KickSelector, Choice), ApiError> {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut known = BTreeSet::new();
    let mut once = |at: TokenRef| known.insert(at).then_some(at);
    if let Some(tokens) = &ask.tokens {
        let mut named = Vec::with_capacity(tokens.len());
        for (place, it) in tokens.iter().enumerate() {
            let lane = lane_id(line, &it.lane, &format!("tokens[{place}].lane"))?;
            named.extend(once(line.resolve(TokenRef {
                incarnation: line.incarnation(),
                lane,
                token: it.token,
            })));
        }
        let selector = KickSelector::Tokens(count(tokens.len()));
        return Ok((selector, Choice::Named(named)));
    }
    if let Some(keys) = &ask.keys {
        let named = keys.iter().filter_map(|key| line.find(key.as_bytes()));
        let named = named.filter_map(once).collect();
        let selector = KickSelector::Keys(count(keys.len()));
        return Ok((selector, Choice::Named(named)));
    }
    if let Some(lane) = &ask.lane {
        let id = lane_id(line, lane, "lane")?;
        return Ok((KickSelector::Lane(id), Choice::Lane(Some(id))));
    }
    let selector = match ask.idle_over_ms {
        Some(ms) => KickSelector::IdleOverMs(ms),
        None => KickSelector::All,
    };
    Ok((selector, Choice::Lane(None)))
}

fn lane_id(line: &Line, name: &LaneName, field: &str) -> Result<u8, ApiError> {
    let mut lanes = (0..).zip(line.lane_names());
    let found = lanes.find(|(_, lane)| *lane == name).map(|(id, _)| id);
    found.ok_or_else(|| {
        let limit = line.no_lane("lane", name).limit;
        ApiError::bad_request(format!("{field}: {limit}"))
    })
}

fn shown(line: &Line, at: TokenRef, live: &Live) -> KickedToken {
    let lane = line.lane_names().nth(usize::from(at.lane));
    KickedToken {
        lane: lane.cloned().unwrap_or_default(),
        token: at.token,
        // Keys of live tokens have 1 to 128 bytes.
        key: live.key.as_deref().and_then(|key| Key::new(key).ok()),
        state: live.state(),
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

fn unknown() -> ApiError {
    let what =
        "the leader changed while it kicked tokens: those that are gone are gone; kick again";
    ApiError::new(Code::OutcomeUnknown, what)
}

#[cfg(test)]
#[path = "kick_tests.rs"]
mod tests;
