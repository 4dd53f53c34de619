//! One line: its state, its lanes, and the questions about it that change nothing.
//!
//! Changes are in `operations` and `transitions`, ETAs in `eta`, free capacity in `capacity`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::background::Due;
use crate::callback::Callers;
use crate::calls::Calls;
use crate::draw_pages::Draw;
use crate::eta::poll_after_ms;
use crate::gone::{Gone, GoneRing};
use crate::journal::Journal;
use crate::key_index::KeyIndex;
use crate::records::Records;
use crate::seated::Seated;
use crate::seldom::Seldom;
use crate::settings::lane_names;
use crate::waiting::{Place, WaitingSet};
use crate::{
    Arrivals, BadField, Board, Bucket, Counts, Event, Forecast, GoneFrom, Imported, JournalEntry,
    LANE_TABLE_MAX, LaneName, LaneSettings, Limits, LineChange, LineName, Live, LiveRecord,
    NUMBER_MAX, Phase, Poll, PositionMark, Reason, Refused, RefusedCounts, Settings,
    SettingsChange, Shadow, State, Status, Timestamp, Token, TokenBy, TokenRef, Told, Totals,
};

#[derive(Debug)]
pub struct Line {
    pub(crate) name: LineName,
    pub(crate) incarnation: u64,
    pub(crate) version: u64,
    /// The newest epoch issued.
    pub(crate) epoch: u64,
    /// See `shared`.
    pub(crate) settings: Arc<Settings>,
    pub(crate) settings_version: u64,
    pub(crate) created_at_ms: u64,
    pub(crate) deleting: bool,
    /// The lane table. A lane's index is its id, which tickets contain, so lanes are never taken out. A
    /// lane that was removed from the settings keeps its counter and has no live tokens.
    pub(crate) lanes: Vec<Lane>,
    /// The ids of the lanes that the settings have, in their order.
    pub(crate) order: Vec<u8>,
    /// What a backend has told of its capacity.
    pub(crate) told: Option<Box<Told>>,
    /// `Some` exactly while there is an admission rate.
    pub(crate) bucket: Option<Box<Bucket>>,
    /// The live token of each key.
    pub(crate) keys: KeyIndex,
    /// The keys that wait to be told of room, by the lane and their number.
    pub(crate) callers: BTreeMap<Arc<[u8]>, (u8, u64)>,
    /// The number of the newest one that asked for that.
    pub(crate) called_back: u64,
    /// From the former numbers of moved tokens to the current ones, while these are live.
    pub(crate) moved: Seldom<BTreeMap<(u8, Token), (u8, Token)>>,
    pub(crate) gone: GoneRing,
    /// That of its opening, awaited, going on or done.
    pub(crate) draw: Option<Box<Draw>>,
    pub(crate) calls: Calls,
    pub(crate) journal: Journal,
    pub(crate) gone_counts: Seldom<[u64; Reason::ALL.len()]>,
    pub(crate) gone_from: Seldom<GoneFrom>,
    /// Those that leaders have written down.
    pub(crate) refused: Seldom<RefusedCounts>,
    /// Units of the quota that completed visits used, also those which a restore has undone.
    pub(crate) used: u64,
    /// Those of them that were used before the quota was last renewed: they do not count any more.
    pub(crate) used_in_past: u64,
    /// Units that held seats reserve.
    pub(crate) reserved: u64,
    /// How far the newest import has come.
    pub(crate) imported: Option<Box<Imported>>,
    /// What was counted while the gate held nobody back.
    pub(crate) shadow: Seldom<Shadow>,
    /// When it is renewed next, on the leader's wall clock; `None` until a leader has found out.
    pub(crate) renews_at_ms: Option<u64>,
    pub(crate) admitted: u64,
    pub(crate) in_checkout: u64,
    /// The measurements behind the ETAs.
    pub(crate) forecast: Forecast,
    /// A copy of this line's entry in the shard's index of background work. Most operations do not
    /// change it, and need not touch the index then.
    pub(crate) background: Option<Due>,
    /// The same of its entry by the wall clock.
    pub(crate) due_by_wall_ms: Option<u64>,
}

/// The starting point of a new line.
pub(crate) struct NewLine {
    pub(crate) incarnation: u64,
    pub(crate) version_floor: u64,
    pub(crate) epoch_floor: u64,
    pub(crate) limits: Limits,
    pub(crate) now: Timestamp,
}

/// A token that this incarnation has issued.
pub(crate) enum Found<'a> {
    /// Its place is all that a poll needs.
    Waiting(Place),
    Seated(&'a LiveRecord),
    /// Gone; `None` once that is forgotten.
    Gone(Option<Gone>),
}

/// A FIFO with numbers of its own. Seats and `queue_limit` are the line's, shared by its lanes.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: LaneName,
    pub(crate) next_token: Token,
    pub(crate) waiting: WaitingSet<Records>,
    /// The tokens with a seat, by number. They are few beside the waiting ones.
    pub(crate) seated: Seated,
    /// How many of these have claimed it.
    pub(crate) in_checkout: u64,
    /// `call_ahead` events were sent for the waiting numbers up to this one.
    pub(crate) called_through: Token,
    /// One for each of the line's `position_events`, in their order.
    pub(crate) marks: Vec<PositionMark>,
    pub(crate) callers: Callers,
    pub(crate) arrivals: Arrivals,
}

impl Line {
    pub(crate) fn create(
        name: &LineName,
        settings: Arc<Settings>,
        new: &NewLine,
        events: Option<&mut Vec<Event>>,
    ) -> Self {
        let mut line = Self {
            name: name.clone(),
            incarnation: new.incarnation,
            version: new.version_floor,
            epoch: new.epoch_floor,
            settings,
            settings_version: 0,
            created_at_ms: new.now.wall_ms,
            deleting: false,
            lanes: Vec::new(),
            order: Vec::new(),
            told: None,
            bucket: None,
            keys: KeyIndex::new(new.limits.hash_seed, new.limits.keys_read),
            callers: BTreeMap::new(),
            called_back: 0,
            moved: Seldom::default(),
            gone: GoneRing::new(new.limits.gone_kept),
            draw: None,
            calls: Calls::new(new.limits),
            journal: Journal::new(new.limits),
            gone_counts: Seldom::default(),
            gone_from: Seldom::default(),
            refused: Seldom::default(),
            used: 0,
            used_in_past: 0,
            reserved: 0,
            imported: None,
            shadow: Seldom::default(),
            renews_at_ms: None,
            admitted: 0,
            in_checkout: 0,
            forecast: Forecast::new(new.now.service_ms),
            background: None,
            due_by_wall_ms: None,
        };
        line.order_lanes();
        line.change_rate(None, new.now.service_ms);
        line.settings_version = line.line_event(LineChange::Created, new.now.wall_ms, events);
        line
    }

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

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The version at which its settings last changed.
    pub fn settings_version(&self) -> u64 {
        self.settings_version
    }

    /// When it was made (wall clock).
    pub fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    /// While it is being deleted: how many live tokens, and keys that wait to be told of room, are still to be ended.
    pub fn deleting(&self) -> Option<u64> {
        self.deleting.then(|| self.left_to_delete())
    }

    pub(crate) fn left_to_delete(&self) -> u64 {
        self.live_count() + self.callers.len() as u64
    }

    /// A token as its holder may see it; for a moved token, the token that it has become. The ETA counts
    /// from `now_ms` (service clock). O(log waiting), no scan; with several lanes O(log² waiting) for
    /// each. See `benches/status.rs`.
    ///
    /// [`Refused::TicketInvalid`] if this line never issued the token. A gone token has a status.
    pub fn status(&self, at: TokenRef, now_ms: u64) -> Result<Status, Refused> {
        // Most tokens are live. They need no resolving, and one look-up is enough.
        let (at, lane, found) = match self.locate(at)? {
            (_, Found::Gone(_)) => {
                let at = self.resolve(at);
                let (lane, found) = self.locate(at)?;
                (at, lane, found)
            }
            (lane, found) => (at, lane, found),
        };
        let (state, place, seated, gone) = match found {
            Found::Waiting(place) => (State::Waiting, Some(place), None, None),
            Found::Seated(live) => (live.stage.state(), None, Some(live), None),
            Found::Gone(gone) => (State::Gone, None, None, Some(gone)),
        };
        // Decisions go by the true position; only the one that is shown is capped.
        let drawn = place.filter(|_| !self.is_undrawn());
        let position = drawn.map(|place| place.ahead + 1);
        let position = match nowserving_bite::is(nowserving_bite::Break::S11) {
            true => position.map(|position| position + 1),
            false => position,
        };
        let cap = self.settings.position_cap.map_or(u64::MAX, u64::from);
        let shown = position.map(|position| position.min(cap));
        let turn = drawn.map(|place| self.turn(at, place));
        let eta = place
            .and_then(|place| self.eta(at.lane, place.ahead + 1, place.entered.service_ms, now_ms));
        let given = eta.and_then(|eta| eta.given());
        let entered = place.map(|place| place.entered);
        let entered = entered.or(seated.map(|live| live.entered.at));
        let eta_from = eta.filter(|_| given.is_some()).map(|eta| eta.from);
        let pause = eta.map(|eta| eta.pause);
        let gone_epoch = gone.flatten().and_then(|gone| gone.epoch);
        Ok(Status {
            at,
            line: self.name.clone(),
            lane: lane.name.clone(),
            state,
            position: shown,
            position_capped: position != shown,
            ahead: shown.map(|shown| shown.saturating_sub(1)),
            turn: turn.filter(|turn| *turn <= cap),
            eta_ms: given.map(|given| given.eta_ms.into()),
            eta_p90_ms: given.map(|given| given.eta_p90_ms.into()),
            eta_from,
            phase: place.map(|_| self.phase()),
            held_back_by: place.map(|_| self.held_back_by(now_ms)),
            call_ahead: position.is_some_and(|it| self.is_called(lane, at.token, it)),
            admitted_through: self.admitted_through(at.lane, lane),
            epoch: seated.and_then(|live| live.stage.epoch()).or(gone_epoch),
            deadline_ms: seated.and_then(|live| live.stage.deadline_ms()),
            units: seated
                .filter(|_| self.settings.quota.is_some())
                .map(|live| live.stage.units()),
            reason: gone.map(|gone| gone.map(|gone| gone.reason)),
            entered_at_ms: entered.map(|entered| entered.wall_ms),
            poll_after_ms: poll_after_ms(&self.settings, state, pause, at.token),
            version: self.version,
        })
    }

    /// The answer to a poll: the status and, if asked for, the holes before the token. Without holes
    /// the cost is that of [`Line::status`]; with them, up to 4,096 words of bitmap are read.
    pub fn poll(&self, at: TokenRef, now_ms: u64, want_holes: bool) -> Result<Poll, Refused> {
        let status = self.status(at, now_ms)?;
        let holes = want_holes.then(|| {
            // Holes would reveal the position that the cap hides.
            let hidden = status.position_capped || self.is_undrawn();
            let shown = (!hidden).then(|| self.holes_before(status.at));
            shown.flatten()
        });
        Ok(Poll { status, holes })
    }

    /// The token that a request names; [`Line::resolve`] says what it is called now.
    pub fn token_by(&self, by: &TokenBy) -> Result<TokenRef, Refused> {
        match by {
            TokenBy::At(at) => Ok(*at),
            TokenBy::Key(key) => self.find(key).ok_or(Refused::TokenNotFound),
        }
    }

    /// The phase of the settings; [`Phase::Closed`] while the line is being deleted.
    pub fn phase(&self) -> Phase {
        if self.deleting {
            Phase::Closed
        } else {
            self.settings.phase
        }
    }

    /// The pointers of every lane. `now_ms` (service clock) matters only under an admission rate, for
    /// `accepts_through` of lanes with a `queue_limit` of their own.
    pub fn board(&self, now_ms: u64) -> Board {
        let lanes = self.listed();
        let lanes = lanes.map(|(id, lane, set)| self.lane_board(id, lane, set, now_ms));
        Board {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            phase: self.phase(),
            undrawn: self.is_undrawn(),
            seats: self.seats(),
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            lanes: lanes.collect(),
        }
    }

    /// The journal's entries after this version, oldest first. To read in pages, continue from the version
    /// of the last entry. At most [`crate::JOURNAL_KEPT`] entries about tokens are kept, and as many others.
    pub fn journal_after(&self, version: u64) -> impl Iterator<Item = JournalEntry> {
        self.journal.after(version)
    }

    /// The changed settings before and after a change, by the version of its journal entry. `None` once
    /// they are forgotten: see [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn settings_change(&self, version: u64) -> Option<&SettingsChange> {
        self.journal.change(version)
    }

    /// The names of all lanes that the line ever had, by id.
    pub fn lane_names(&self) -> impl Iterator<Item = &LaneName> {
        self.lanes.iter().map(|lane| &lane.name)
    }

    /// A live token, by lane id and number.
    pub fn live(&self, lane: u8, token: Token) -> Option<Live<'_>> {
        self.lanes.get(usize::from(lane))?.live(token)
    }

    /// Live tokens in the order of (lane id, number), from `cursor` on.
    pub fn live_from(&self, cursor: (u8, Token)) -> impl Iterator<Item = (u8, Token, Live<'_>)> {
        let lanes = (0..).zip(&self.lanes).skip(usize::from(cursor.0));
        lanes.flat_map(move |(id, lane): (u8, &Lane)| {
            let from = if id == cursor.0 { cursor.1 } else { 0 };
            let live = lane.live_range(from..Token::MAX);
            live.map(move |(token, live)| (id, token, live))
        })
    }

    /// When a live token expires by its clock: a waiting one as its client was not seen for longer than the
    /// timeout, which is 1 ms past it. From then on [`crate::Op::Recycle`] ends it.
    pub fn due_at_ms(&self, live: Live<'_>) -> u64 {
        match live.deadline_ms() {
            Some(deadline_ms) => deadline_ms,
            None if nowserving_bite::is(nowserving_bite::Break::S12) => {
                live.clock_ms() + self.settings.waiting_idle_timeout_ms / 2
            }
            None => live
                .clock_ms()
                .saturating_add(self.settings.waiting_idle_timeout_ms)
                .saturating_add(1),
        }
    }

    /// When a waiting token has waited for longer than `max_wait_ms`, 1 ms past it. A move does not change that.
    pub fn wait_expires_at_ms(&self, live: Live<'_>) -> Option<u64> {
        let most_ms = self.settings.max_wait_ms.filter(|_| !live.holds_seat())?;
        let entered_ms = live.entered.at.service_ms;
        Some(entered_ms.saturating_add(most_ms).saturating_add(1))
    }

    /// The holes before a waiting token: the ranges of numbers, both ends included, between its lane's
    /// `admitted_through` and the token that do not wait any more. With them its holder keeps its exact
    /// position from boards alone. Empty for a token that does not wait; `None` if there are too many to
    /// read (4,096 words of bitmap) or to list (16,384 ranges).
    fn holes_before(&self, at: TokenRef) -> Option<Vec<(Token, Token)>> {
        match self.locate(at) {
            Ok((lane, Found::Waiting(_))) => lane.waiting.holes_before(at.token),
            _ => Some(Vec::new()),
        }
    }

    /// All holes of each lane of the settings, in their order: the ranges of numbers between its `admitted_through` and
    /// its newest number that do not wait. `None` if they are too many to read (4,096 words of bitmap a lane), or more
    /// than `most` ranges, or while a draw is awaited or goes on.
    pub fn all_holes(&self, most: usize) -> Option<Vec<Vec<(Token, Token)>>> {
        if self.is_undrawn() {
            return None;
        }
        let mut left = most;
        let holes = self.listed().map(|(_, lane, _)| {
            let holes = lane.waiting.holes_before(lane.next_token)?;
            left = left.checked_sub(holes.len())?;
            Some(holes)
        });
        holes.collect()
    }

    /// How many words of bitmaps [`Line::all_holes`] reads at most.
    pub fn hole_words(&self) -> usize {
        let lanes = self.listed();
        lanes.map(|(_, lane, _)| lane.waiting.hole_words()).sum()
    }

    pub fn counts(&self) -> Counts {
        Counts {
            issued: self.lanes.iter().map(Lane::issued).sum(),
            drawn: self.draw.as_ref().map_or(0, |draw| draw.took_part()),
            waiting: self.waiting(),
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            gone: self.gone_counts.value(),
            gone_from: self.gone_from.value(),
            refused: self.refused.value(),
        }
    }

    /// This line's share of [`crate::Lines::totals`].
    pub fn totals(&self) -> Totals {
        Totals {
            waiting: self.waiting(),
            admitted: self.admitted,
            in_checkout: self.in_checkout,
        }
    }

    pub(crate) fn token_ref(&self, lane: u8, token: Token) -> TokenRef {
        TokenRef {
            incarnation: self.incarnation,
            lane,
            token,
        }
    }

    /// Looks a token up as it is; a moved token's former number is gone. See [`Line::resolve`].
    pub(crate) fn locate(&self, at: TokenRef) -> Result<(&Lane, Found<'_>), Refused> {
        let lane = self.lanes.get(usize::from(at.lane));
        let lane = lane
            .filter(|_| at.incarnation == self.incarnation)
            .filter(|lane| (1..lane.next_token).contains(&at.token))
            .ok_or(Refused::TicketInvalid)?;
        let found = if let Some(place) = lane.waiting.place(at.token) {
            Found::Waiting(place)
        } else if let Some(live) = lane.seated.get(at.token) {
            Found::Seated(live)
        } else {
            Found::Gone(self.gone.get(at.lane, at.token))
        };
        Ok((lane, found))
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.listed().map(|(_, lane, _)| lane.waiting.len()).sum()
    }

    pub(crate) fn held(&self) -> u64 {
        self.admitted + self.in_checkout
    }

    pub(crate) fn live_count(&self) -> u64 {
        self.waiting() + self.held()
    }

    /// The current reference of a token that was moved; any other one as it is. Every operation and
    /// question goes through this, so that a ticket from before a move stays valid.
    pub fn resolve(&self, at: TokenRef) -> TokenRef {
        let lane = self.lanes.get(usize::from(at.lane));
        let issued = lane.is_some_and(|lane| at.token < lane.next_token);
        if at.incarnation != self.incarnation || !issued || self.is_live((at.lane, at.token)) {
            return at;
        }
        let (lane, token) = self.resolve_number((at.lane, at.token));
        self.token_ref(lane, token)
    }

    fn is_live(&self, (lane, token): (u8, Token)) -> bool {
        let lane = self.lanes.get(usize::from(lane));
        lane.is_some_and(|lane| lane.is_live(token))
    }

    /// That of a number which is not live.
    fn resolve_number(&self, at: (u8, Token)) -> (u8, Token) {
        let moved = self.moved.get().and_then(|moved| moved.get(&at));
        if let Some(to) = moved {
            return *to;
        }
        if let Some(gone) = self.gone.get(at.0, at.1) {
            return gone.moved_to.unwrap_or(at);
        }
        match self.drawn_as(at) {
            // It may have been moved since.
            Some(token) if !self.is_live((at.0, token)) => self.resolve_number((at.0, token)),
            Some(token) => (at.0, token),
            None => at,
        }
    }
}

/// The lanes of a line, and which of them is next.
impl Line {
    /// The lanes of the settings, in their order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (u8, &Lane, &LaneSettings)> {
        let ids = self.order.iter().zip(&self.settings.lanes);
        ids.filter_map(|(id, set)| Some((*id, self.lanes.get(usize::from(*id))?, set)))
    }

    /// The lane whose first waiting token is next: absolute lanes first, then the least order key; a tie
    /// goes to the lane listed first.
    pub(crate) fn next_lane(&self) -> Option<u8> {
        let keyed = self.listed().filter_map(|(id, lane, set)| {
            let entered_at_ms = lane.waiting.first_entered_at_ms()?;
            Some((!set.absolute, order_key(entered_at_ms, set.boost_ms), id))
        });
        // Of equal keys `min_by_key` returns the first.
        let next = keyed.min_by_key(|(yields, key, _)| (*yields, *key));
        next.map(|(_, _, id)| id)
    }

    /// The id of a lane, including lanes that were removed from the settings.
    pub(crate) fn lane_id(&self, name: &LaneName) -> Option<u8> {
        let mut lanes = (0..).zip(&self.lanes);
        let found = lanes.find(|(_, lane)| lane.name == *name);
        found.map(|(id, _)| id)
    }

    /// The id of a lane of the settings.
    pub(crate) fn listed_id(&self, name: &LaneName) -> Option<u8> {
        let mut listed = self.listed();
        let found = listed.find(|(_, lane, _)| lane.name == *name);
        found.map(|(id, _, _)| id)
    }

    /// The error for a field that names a lane which is not in the settings.
    pub fn no_lane(&self, field: &'static str, name: &LaneName) -> BadField {
        let lanes = lane_names(&self.settings.lanes);
        BadField::new(field, format!("no lane \"{name}\"; the line has {lanes}"))
    }

    /// Checks that these can become the lanes: every lane with live tokens is among them, and the table
    /// has space for the new names.
    pub(crate) fn check_lanes(&self, lanes: &[LaneSettings]) -> Result<(), BadField> {
        let kept = |lane: &Lane| lanes.iter().any(|set| set.name == lane.name);
        let in_use = self
            .lanes
            .iter()
            .find(|lane| lane.live_count() > 0 && !kept(lane));
        if let Some(lane) = in_use {
            let limit = format!("`{}` stays until nobody is in it", lane.name);
            return Err(BadField::new("lanes", limit));
        }
        let new = lanes.iter().filter(|set| self.lane_id(&set.name).is_none());
        if self.lanes.len() + new.count() > LANE_TABLE_MAX {
            return Err(too_many_lane_names());
        }
        Ok(())
    }

    /// Updates the table, the order and the marks of positions after a change of settings that [`Line::check_lanes`] has accepted.
    pub(crate) fn order_lanes(&mut self) {
        self.order.clear();
        for i in 0..self.settings.lanes.len() {
            let name = self.settings.lanes[i].name.clone();
            let id = self.lane_id(&name).unwrap_or_else(|| {
                self.lanes.reserve_exact(1);
                self.lanes.push(Lane::new(name));
                (self.lanes.len() - 1) as u8
            });
            self.order.push(id);
        }
        self.mark_positions();
    }
}

impl Lane {
    pub(crate) fn new(name: LaneName) -> Self {
        Self {
            name,
            next_token: 1,
            waiting: WaitingSet::default(),
            seated: Seated::default(),
            in_checkout: 0,
            called_through: 0,
            marks: Vec::new(),
            callers: Callers::default(),
            arrivals: Arrivals::default(),
        }
    }

    /// Tokens with a seat that they have not claimed.
    pub(crate) fn admitted(&self) -> u64 {
        (self.seated.len() as u64).saturating_sub(self.in_checkout)
    }

    /// The largest number issued.
    pub(crate) fn issued(&self) -> u64 {
        self.next_token - 1
    }

    /// Whether another number can be issued: numbers must stay exact in JSON.
    pub(crate) fn has_numbers(&self) -> bool {
        self.next_token <= NUMBER_MAX
    }

    /// The end of the longest prefix of gone numbers.
    pub(crate) fn done_through(&self) -> Token {
        let first = self
            .waiting
            .first()
            .into_iter()
            .chain(self.seated.first())
            .min();
        first.map_or(self.issued(), |first| first - 1)
    }

    pub(crate) fn live_count(&self) -> u64 {
        self.waiting.len() + self.seated.len() as u64
    }

    /// A token after all others, whether it waits or has a seat.
    pub(crate) fn add(&mut self, token: Token, counts_as_entered: Timestamp, live: Live<'_>) {
        if live.stage.holds_seat() {
            self.seated.insert(token, live.to_record());
        } else {
            self.waiting.push(token, counts_as_entered, live);
        }
    }

    pub(crate) fn is_live(&self, token: Token) -> bool {
        self.waiting.contains(token) || self.seated.get(token).is_some()
    }

    pub(crate) fn live(&self, token: Token) -> Option<Live<'_>> {
        let seated = || Some(self.seated.get(token)?.view());
        self.waiting.get(token).or_else(seated)
    }

    pub(crate) fn has_key(&self, token: Token, key: &[u8]) -> bool {
        let seated = self.seated.get(token);
        let has_seat = seated.is_some_and(|live| live.key.as_deref() == Some(key));
        has_seat || self.waiting.has_key(token, key)
    }

    /// The live token that has this key. O(live).
    pub(crate) fn find(&self, key: &[u8]) -> Option<Token> {
        let mut seated = self.seated.range(0..Token::MAX);
        let seated = seated.find(|(_, live)| live.key.as_deref() == Some(key));
        let seated = seated.map(|(token, _)| token);
        seated.or_else(|| self.waiting.find(key))
    }

    /// Live tokens with these numbers, in order.
    pub(crate) fn live_range(
        &self,
        numbers: Range<Token>,
    ) -> impl Iterator<Item = (Token, Live<'_>)> {
        let mut waiting = self.waiting.range(numbers.clone()).peekable();
        let mut seated = self.seated.range(numbers).peekable();
        std::iter::from_fn(move || {
            let of_seated = seated.peek().map_or(Token::MAX, |(token, _)| *token);
            match waiting.peek() {
                Some((token, _)) if *token < of_seated => waiting.next(),
                _ => seated.next().map(|(token, live)| (token, live.view())),
            }
        })
    }
}

/// The first waiting token with the least key among the lanes is next.
pub(crate) fn order_key(entered_at_ms: u64, boost_ms: u64) -> i128 {
    i128::from(entered_at_ms) - i128::from(boost_ms)
}

pub(crate) fn too_many_lane_names() -> BadField {
    let limit = format!("at most {LANE_TABLE_MAX} names over the life of a line");
    BadField::new("lanes", limit)
}
