//! One kick under way.

use std::collections::VecDeque;

use nowserving_line::{
    KICK_MAX, KickItem, KickNote, Line, LineName, Live, Op, OperatorNote, Refused,
    State as TokenState, Token, TokenRef,
};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::{KICK_SAMPLE, Kick, KickReply, KickedToken};

use super::choice::{Choice, choose, shown};
use super::same;
use crate::command::Command;
use crate::recycle::Recycler;
use crate::requests::RequestId;

#[derive(Debug)]
pub(super) struct Job {
    /// None of a dry run.
    pub(super) id: Option<RequestId>,
    pub(super) ask: Kick,
    pub(super) incarnation: u64,
    /// Tokens that entered at a later version of the line are not meant.
    through_version: u64,
    note: KickNote,
    /// So many more may be chosen.
    left: u64,
    /// Tokens to be proposed.
    chosen: VecDeque<TokenRef>,
    /// What is still to be looked at; `None`: all of `chosen` is there.
    scan: Option<Scan>,
    /// The tokens of the operation that is proposed and not yet applied.
    in_flight: Option<Vec<KickItem>>,
    /// Its first operation was.
    pub(super) proposed: bool,
    /// Nobody waits for it any more: it ends with what is in flight.
    pub(super) given_up: bool,
    pub(super) done: KickReply,
    /// By their place in `in_flight`, those that will be in the sample if the operation gets to them.
    candidates: Vec<(usize, KickedToken)>,
}

/// A pass over the live tokens of a line, or of one lane.
#[derive(Debug)]
struct Scan {
    lane: Option<u8>,
    pass: Pass,
    next: (u8, Token),
    /// Tokens that were moved from where the pass has not been to where it has been.
    missed: Vec<TokenRef>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Any,
    Waiting,
    Seated,
}

/// What a job looks at tokens with.
#[derive(Clone, Copy)]
pub(super) struct Eyes<'a> {
    pub(super) line: &'a Line,
    /// Knows of polls that are not in the log.
    pub(super) recycler: &'a Recycler,
    pub(super) now_ms: u64,
}

impl Job {
    /// # Errors
    /// `line_closed`; `version_conflict` if the request names another incarnation; `bad_request` that names a lane which the
    /// line never had.
    pub(super) fn new(
        line: &Line,
        (ask, note): (&Kick, Option<&OperatorNote>),
        id: Option<RequestId>,
    ) -> Result<Self, ApiError> {
        if line.phase() == nowserving_line::Phase::Closed {
            return Err(Refused::LineClosed.into());
        }
        if ask.incarnation.is_some_and(|it| it != line.incarnation()) {
            return Err(Refused::AnotherIncarnation.into());
        }
        let through_version = ask.through_version.unwrap_or(u64::MAX).min(line.version());
        let (selector, choice) = choose(line, ask)?;
        let mut job = Job {
            id: id.filter(|_| !ask.dry_run),
            incarnation: line.incarnation(),
            through_version,
            note: KickNote {
                selector,
                state: ask.state.map(TokenState::from),
                reason: note.and_then(|note| note.reason.clone()),
                by: note.and_then(|note| note.by.clone()),
            },
            left: ask.most.unwrap_or(u64::MAX),
            ask: ask.clone(),
            chosen: VecDeque::new(),
            scan: None,
            in_flight: None,
            proposed: false,
            given_up: false,
            done: KickReply {
                dry_run: ask.dry_run,
                through_version,
                incarnation: line.incarnation(),
                ..KickReply::default()
            },
            candidates: Vec::new(),
        };
        match choice {
            Choice::Named { tokens, not_found } => {
                job.done.not_found = not_found;
                for (place, at) in tokens {
                    job.take_named(line, place, at);
                }
            }
            Choice::Lane(lane) => job.scan = Some(job.first_pass(lane)),
        }
        Ok(job)
    }

    fn first_pass(&self, lane: Option<u8>) -> Scan {
        let any = self.ask.dry_run || self.item_state().is_some();
        Scan {
            lane,
            pass: match any {
                true => Pass::Any,
                false => Pass::Waiting,
            },
            next: (lane.unwrap_or(0), 0),
            missed: Vec::new(),
        }
    }

    /// Fills `chosen`, or counts, as far as `looks` go.
    pub(super) fn look(&mut self, eyes: Eyes<'_>, looks: &mut usize) {
        while *looks > 0
            && self.chosen.len() < KICK_MAX
            && let Some(mut scan) = self.scan.take()
        {
            let most = (*looks).min(KICK_MAX - self.chosen.len());
            let page = scan.page(eyes.line, most);
            *looks -= page.len().max(1).min(*looks);
            let over = page.len() < most && scan.missed.is_empty();
            for at in page {
                // A missed one may have been moved again.
                let at = eyes.line.resolve(at);
                let live = eyes.line.live(at.lane, at.token);
                if live.is_some_and(|live| scan.pass.has(live) && self.is_idle(eyes, at, live)) {
                    self.take(eyes.line, at);
                }
            }
            self.scan = match over {
                _ if self.left == 0 => None,
                true => self.pass_after(scan),
                false => Some(scan),
            };
        }
    }

    fn pass_after(&self, scan: Scan) -> Option<Scan> {
        (scan.pass == Pass::Waiting).then(|| Scan {
            pass: Pass::Seated,
            ..self.first_pass(scan.lane)
        })
    }

    /// The state that tokens must have: only clients that wait are idle.
    fn item_state(&self) -> Option<TokenState> {
        let idle = self.ask.idle_over_ms.map(|_| TokenState::Waiting);
        self.note.state.or(idle)
    }

    /// Whether its client was not seen for long enough, if that matters.
    fn is_idle(&self, eyes: Eyes<'_>, at: TokenRef, live: Live<'_>) -> bool {
        self.ask.idle_over_ms.is_none_or(|over_ms| {
            let seen_ms = || eyes.recycler.last_seen_ms(eyes.line, at, live);
            live.state() == TokenState::Waiting && eyes.now_ms.saturating_sub(seen_ms()) > over_ms
        })
    }

    /// Takes a token that the request names at this place, or says there why not.
    fn take_named(&mut self, line: &Line, place: u32, at: TokenRef) {
        match line.live(at.lane, at.token) {
            None => self.done.not_found.push(place),
            Some(live) if self.is_in_other_state(live) => self.done.other_state.push(place),
            Some(_) => self.take(line, at),
        }
    }

    fn is_in_other_state(&self, live: Live<'_>) -> bool {
        let state = self.item_state();
        state.is_some_and(|state| state != live.state())
    }

    /// Takes a token that was looked at, if it is meant by its time of entering and its state.
    fn take(&mut self, line: &Line, at: TokenRef) {
        let Some(live) = line.live(at.lane, at.token) else {
            return;
        };
        let meant = live.entered.version <= self.through_version && !self.is_in_other_state(live);
        if !meant || self.left == 0 {
            return;
        }
        self.left -= 1;
        if !self.ask.dry_run {
            self.chosen.push_back(at);
            return;
        }
        self.done.kicked += 1;
        if self.done.sample.len() < KICK_SAMPLE {
            self.done.sample.push(shown(line, at, live));
        }
    }

    /// A token was moved.
    pub(super) fn moved(&mut self, from: TokenRef, to: TokenRef) {
        if let Some(scan) = &mut self.scan {
            let is_behind = |at: TokenRef| (at.lane, at.token) < scan.next;
            if scan.lane.is_none() && is_behind(to) && !is_behind(from) {
                scan.missed.push(to);
            }
        }
    }

    /// The next operation, once a page is full or nothing is left to look at. There is at least one, so that the
    /// answer is that of a leader which still was one.
    pub(super) fn next_command(&mut self, name: &LineName, eyes: Eyes<'_>) -> Option<Command> {
        let full = self.chosen.len() >= KICK_MAX || self.scan.is_none();
        let needed = !self.chosen.is_empty() || !self.proposed;
        if self.ask.dry_run || self.in_flight.is_some() || !full || !needed {
            return None;
        }
        let page = self.chosen.len().min(KICK_MAX);
        let page: Vec<_> = self.chosen.drain(..page).collect();
        let tokens: Vec<_> = page.iter().filter_map(|at| self.item(eyes, *at)).collect();
        if tokens.is_empty() && self.proposed {
            return None; // Their clients were seen meanwhile.
        }
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

    /// `None` if the token is gone, or its client was seen since it was chosen.
    fn item(&self, eyes: Eyes<'_>, at: TokenRef) -> Option<KickItem> {
        let at = eyes.line.resolve(at);
        let live = eyes.line.live(at.lane, at.token)?;
        self.is_idle(eyes, at, live).then(|| KickItem {
            lane: at.lane,
            token: at.token,
            state: self.item_state(),
            // What this leader saw may be written to the log before this.
            clock_ms: (self.ask.idle_over_ms).map(|_| eyes.recycler.known_seen_ms(at, live)),
        })
    }

    /// Whether the request is a copy of its own. A dry run has no id: whoever asks the same can have its answer.
    pub(super) fn is_asked_by(&self, ask: &Kick, id: Option<RequestId>) -> bool {
        self.has_id(id) || (ask.dry_run && self.ask == *ask)
    }

    pub(super) fn has_id(&self, id: Option<RequestId>) -> bool {
        self.id.zip(id).is_some_and(|(ours, id)| same(ours, id))
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        let all_done = self.chosen.is_empty() && self.scan.is_none() && self.in_flight.is_none();
        all_done && (self.ask.dry_run || self.proposed)
    }

    /// Before an [`Op::Kick`] with these tokens is applied.
    pub(super) fn before(&mut self, line: &Line, items: &[KickItem]) {
        let missing = KICK_SAMPLE.saturating_sub(self.done.sample.len());
        let places = items.iter().enumerate();
        let shown = places.filter_map(|(place, item)| {
            let at = line.would_kick(item)?;
            Some((place, shown(line, at, line.live(at.lane, at.token)?)))
        });
        self.candidates = shown.take(missing).collect();
    }

    /// It was applied to so many of its tokens, of which so many ended.
    pub(super) fn after(&mut self, ended: u64, taken: u64) {
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        self.done.kicked += ended;
        let shown = std::mem::take(&mut self.candidates).into_iter();
        let shown = shown.filter(|(place, _)| *place < taken);
        self.done.sample.extend(shown.map(|(_, token)| token));
        let items = self.in_flight.take().unwrap_or_default();
        for item in items.into_iter().skip(taken).rev() {
            self.chosen.push_front(TokenRef {
                incarnation: self.incarnation,
                lane: item.lane,
                token: item.token,
            });
        }
    }
}

impl Scan {
    /// The next tokens to look at, at most so many: first the missed ones. Fewer: the pass is at its end.
    fn page(&mut self, line: &Line, most: usize) -> Vec<TokenRef> {
        let kept = self.missed.len().saturating_sub(most);
        let mut page = self.missed.split_off(kept);
        let of_lane = |(id, _, _): &(u8, Token, Live<'_>)| self.lane.is_none_or(|lane| lane == *id);
        let rest = line.live_from(self.next).take_while(of_lane);
        page.extend(
            rest.take(most - page.len())
                .map(|(lane, token, _)| TokenRef {
                    incarnation: line.incarnation(),
                    lane,
                    token,
                }),
        );
        if let Some(last) = page.last() {
            // Missed ones stand behind `next`.
            self.next = self.next.max((last.lane, last.token + 1));
        }
        page
    }
}

impl Pass {
    fn has(self, live: Live<'_>) -> bool {
        let waits = live.state() == TokenState::Waiting;
        match self {
            Pass::Any => true,
            Pass::Waiting => waits,
            Pass::Seated => !waits,
        }
    }
}
