//! One line: what it holds, and every question about it. What changes it is in `transition`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gone::{Gone, GoneRing};
use crate::lane::Lane;
use crate::status::poll_after_ms;
use crate::{Board, Counts, LaneBoard, LineName, Live, NUMBER_MAX, Phase, Reason, Refused};
use crate::{Settings, State, Status, Token, TokenRef};

/// One line.
#[derive(Debug)]
pub struct Line {
    pub(crate) name: LineName,
    pub(crate) incarnation: u64,
    pub(crate) version: u64,
    /// The newest epoch given.
    pub(crate) epoch: u64,
    pub(crate) settings: Settings,
    pub(crate) settings_version: u64,
    pub(crate) created_at_ms: u64,
    pub(crate) deleting: bool,
    /// A lane's place here is its id, which is in tickets: lanes are added, never taken out.
    pub(crate) lanes: Vec<Lane>,
    /// Whose live token is which.
    pub(crate) keys: BTreeMap<Arc<[u8]>, (u8, Token)>,
    pub(crate) gone: GoneRing,
    pub(crate) gone_counts: [u64; Reason::ALL.len()],
    pub(crate) admitted: u64,
    pub(crate) in_checkout: u64,
}

/// A token that was issued once: live, or gone and (maybe) remembered.
pub(crate) enum Found<'a> {
    Live(&'a Live),
    Gone(Option<Gone>),
}

impl Line {
    /// Its name.
    pub fn name(&self) -> &LineName {
        &self.name
    }

    /// Which creation of the line this is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Grows by one with every change, over all incarnations.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The version at which its settings last changed.
    pub fn settings_version(&self) -> u64 {
        self.settings_version
    }

    /// When it was made (service clock).
    pub fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    /// While it is being deleted: how many live tokens are still to be ended.
    pub fn deleting(&self) -> Option<u64> {
        self.deleting.then(|| self.live_count())
    }

    /// A token as its holder may see it. `now_ms` is only shown. O(log waiting), no scan.
    ///
    /// [`Refused::TicketInvalid`] if this line never issued it; a gone token has a status.
    pub fn status(&self, at: TokenRef, now_ms: u64) -> Result<Status, Refused> {
        let (lane, found) = self.locate(at)?;
        let (state, live, gone) = match found {
            Found::Live(live) => (live.state(), Some(live), None),
            Found::Gone(gone) => (State::Gone, None, Some(gone)),
        };
        let ahead = (state == State::Waiting).then(|| lane.waiting.rank(at.token));
        let position = ahead.map(|ahead| ahead + 1);
        let gone_epoch = gone.flatten().and_then(|gone| gone.epoch);
        Ok(Status {
            at,
            line: self.name.clone(),
            lane: lane.name.clone(),
            state,
            position,
            ahead,
            admitted_through: self.admitted_through(lane),
            epoch: live.and_then(Live::epoch).or(gone_epoch),
            expires_at_ms: live.and_then(Live::deadline_ms),
            reason: gone.map(|gone| gone.map(|gone| gone.reason)),
            entered_at_ms: live.map(|live| live.entered_at_ms),
            poll_after_ms: poll_after_ms(&self.settings, state, position, at.token),
            version: self.version,
            at_ms: now_ms,
        })
    }

    /// The live token that has this key.
    pub fn find(&self, key: &[u8]) -> Option<TokenRef> {
        let (lane, token) = *self.keys.get(key)?;
        Some(self.token_ref(lane, token))
    }

    /// Whether it takes and admits tokens.
    pub fn phase(&self) -> Phase {
        if self.deleting {
            Phase::Closed
        } else {
            Phase::Open
        }
    }

    /// The pointers of every lane. `now_ms` is only shown.
    pub fn board(&self, now_ms: u64) -> Board {
        Board {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            at_ms: now_ms,
            phase: self.phase(),
            seats: self.settings.seats,
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            lanes: self
                .lanes
                .iter()
                .map(|lane| self.lane_board(lane))
                .collect(),
        }
    }

    fn lane_board(&self, lane: &Lane) -> LaneBoard {
        LaneBoard {
            lane: lane.name.clone(),
            done_through: lane.done_through(),
            admitted_through: self.admitted_through(lane),
            accepts_through: (lane.issued() + self.room()).min(NUMBER_MAX),
            next_token: lane.next_token,
            waiting: lane.waiting.len(),
        }
    }

    /// A live token, by its lane's place in the table and its number.
    pub fn live(&self, lane: u8, token: Token) -> Option<&Live> {
        self.lanes.get(usize::from(lane))?.live.get(&token)
    }

    /// Live tokens in the order of (lane, number), from `cursor` on.
    pub fn live_from(&self, cursor: (u8, Token)) -> impl Iterator<Item = (u8, Token, &Live)> {
        let lanes = (0..).zip(&self.lanes).skip(usize::from(cursor.0));
        lanes.flat_map(move |(id, lane): (u8, &Lane)| {
            let from = if id == cursor.0 { cursor.1 } else { 0 };
            let live = lane.live.range(from..);
            live.map(move |(token, live)| (id, *token, live))
        })
    }

    /// When the clock of a live token runs out: from then on [`crate::Op::Recycle`] ends it. While
    /// it waits that is one past the timeout, as it goes when not heard from for *longer*.
    pub fn due_at_ms(&self, live: &Live) -> u64 {
        match live.deadline_ms() {
            Some(deadline_ms) => deadline_ms,
            None => live
                .clock_ms()
                .saturating_add(self.settings.waiting_idle_timeout_ms)
                .saturating_add(1),
        }
    }

    /// The ranges of numbers, both ends included, between `admitted_through` of its lane and a
    /// waiting token that do not wait any more: with them its holder can keep its exact position
    /// from boards alone. Empty for a token that doesn't wait; `None` if there is too much to look
    /// at (4,096 words of bitmap) or to list (16,384 ranges).
    pub fn holes_before(&self, at: TokenRef) -> Option<Vec<(Token, Token)>> {
        match self.locate(at) {
            Ok((lane, _)) if lane.waiting.contains(at.token) => lane.waiting.holes_before(at.token),
            _ => Some(Vec::new()),
        }
    }

    /// How many tokens this incarnation has had, and where they are.
    pub fn counts(&self) -> Counts {
        Counts {
            issued: self.lanes.iter().map(Lane::issued).sum(),
            waiting: self.waiting(),
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            gone: self.gone_counts,
        }
    }

    pub(crate) fn token_ref(&self, lane: u8, token: Token) -> TokenRef {
        TokenRef {
            incarnation: self.incarnation,
            lane,
            token,
        }
    }

    /// The lane and what is known of a token that this incarnation issued.
    pub(crate) fn locate(&self, at: TokenRef) -> Result<(&Lane, Found<'_>), Refused> {
        let lane = self.lanes.get(usize::from(at.lane));
        let lane = lane
            .filter(|_| at.incarnation == self.incarnation)
            .filter(|lane| (1..lane.next_token).contains(&at.token))
            .ok_or(Refused::TicketInvalid)?;
        let found = match lane.live.get(&at.token) {
            Some(live) => Found::Live(live),
            None => Found::Gone(self.gone.get(at.lane, at.token)),
        };
        Ok((lane, found))
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    pub(crate) fn held(&self) -> u64 {
        self.admitted + self.in_checkout
    }

    pub(crate) fn live_count(&self) -> u64 {
        self.waiting() + self.held()
    }

    /// Seats that could be given now.
    pub(crate) fn free(&self) -> u64 {
        if self.deleting {
            return 0;
        }
        u64::from(self.settings.seats).saturating_sub(self.held())
    }

    /// Numbers that could be given now.
    pub(crate) fn room(&self) -> u64 {
        if self.deleting {
            return 0;
        }
        let limit = u64::from(self.settings.seats) + u64::from(self.settings.queue_limit);
        limit.saturating_sub(self.live_count())
    }

    /// Whether something is left to do that one entry could not.
    pub(crate) fn has_job(&self) -> bool {
        self.deleting || (self.free() > 0 && self.waiting() > 0)
    }

    fn admitted_through(&self, lane: &Lane) -> Token {
        if let Some(first) = lane.waiting.first() {
            return first - 1;
        }
        // With several lanes nothing is promised ahead: the free seats may go to another one.
        let free = if self.lanes.len() == 1 {
            self.free()
        } else {
            0
        };
        (lane.issued() + free).min(NUMBER_MAX)
    }
}
