//! One line: what it holds, and every question about it. What changes it is in `transition`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::background::Due;
use crate::gone::{Gone, GoneRing};
use crate::journal::Journal;
use crate::lane::Lane;
use crate::pace::poll_after_ms;
use crate::waiting::Place;
use crate::{
    Board, Bucket, Counts, Forecast, JournalEntry, LineName, Live, Phase, Poll, Reason, Refused,
};
use crate::{Settings, SettingsChange, State, Status, Token, TokenRef, Totals};

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
    /// A lane's place here is its id, which is in tickets: lanes are added, never taken out. One
    /// that the settings have no more keeps its counter, and nobody in it is live.
    pub(crate) lanes: Vec<Lane>,
    /// The ids of the lanes that the settings have, in their order.
    pub(crate) order: Vec<u8>,
    /// What is saved up, while there is an admission rate.
    pub(crate) bucket: Option<Bucket>,
    /// Whose live token is which.
    pub(crate) keys: BTreeMap<Arc<[u8]>, (u8, Token)>,
    /// What tokens that were moved are now, while that is live.
    pub(crate) moved: BTreeMap<(u8, Token), (u8, Token)>,
    pub(crate) gone: GoneRing,
    pub(crate) journal: Journal,
    pub(crate) gone_counts: [u64; Reason::ALL.len()],
    pub(crate) admitted: u64,
    pub(crate) in_checkout: u64,
    /// What it measures of itself, to tell how long it takes.
    pub(crate) forecast: Forecast,
    /// As the shard's index of background work has it: kept here so that an operation that changes
    /// nothing about it, as most, looks nothing up.
    pub(crate) background: Option<Due>,
}

/// A token that was issued once.
pub(crate) enum Found<'a> {
    /// Of these `live` is not looked at: there are many, and where they stand says all that polls
    /// ask for.
    Waiting(Place),
    /// Holds a seat.
    Seated(&'a Live),
    /// Gone, and (maybe) remembered.
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

    /// When it was made (wall clock).
    pub fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    /// While it is being deleted: how many live tokens are still to be ended.
    pub fn deleting(&self) -> Option<u64> {
        self.deleting.then(|| self.live_count())
    }

    /// A token as its holder may see it; of one that was moved, what it is now. `now_ms` is the
    /// service clock: what is foreseen counts from it. O(log waiting), no scan; with several lanes
    /// O(log² waiting) for each. See `benches/status.rs`.
    ///
    /// [`Refused::TicketInvalid`] if this line never issued it; a gone token has a status.
    pub fn status(&self, at: TokenRef, now_ms: u64) -> Result<Status, Refused> {
        // Most are live: then there is nothing to resolve, and looking them up once is enough.
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
            Found::Seated(live) => (live.state(), None, Some(live), None),
            Found::Gone(gone) => (State::Gone, None, None, Some(gone)),
        };
        // What is decided goes by the true position, what is shown by the capped one.
        let position = place.map(|place| place.ahead + 1);
        #[cfg(feature = "bite")]
        let position = match nowserving_bite::is(nowserving_bite::Break::S11) {
            true => position.map(|position| position + 1),
            false => position,
        };
        let cap = self.settings.position_cap.map_or(u64::MAX, u64::from);
        let shown = position.map(|position| position.min(cap));
        let call_ahead = u64::from(self.settings.call_ahead);
        let foreseen = place.and_then(|place| {
            self.foresee(at.lane, place.ahead + 1, place.entered.service_ms, now_ms)
        });
        let told = foreseen.and_then(|foreseen| foreseen.told());
        let entered = place.map(|place| place.entered);
        let entered = entered.or(seated.map(|live| live.entered));
        let pause = foreseen.map(|foreseen| foreseen.pause);
        let gone_epoch = gone.flatten().and_then(|gone| gone.epoch);
        Ok(Status {
            at,
            line: self.name.clone(),
            lane: lane.name.clone(),
            state,
            position: shown,
            position_capped: position != shown,
            ahead: shown.map(|shown| shown.saturating_sub(1)),
            eta_ms: told.map(|told| told.eta_ms.into()),
            eta_p90_ms: told.map(|told| told.eta_p90_ms.into()),
            call_ahead: position.is_some_and(|position| position <= call_ahead),
            admitted_through: self.admitted_through(at.lane, lane),
            epoch: seated.and_then(Live::epoch).or(gone_epoch),
            deadline_ms: seated.and_then(Live::deadline_ms),
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
            let shown = (!status.position_capped).then(|| self.holes_before(status.at));
            shown.flatten()
        });
        Ok(Poll { status, holes })
    }

    /// The live token that has this key.
    pub fn find(&self, key: &[u8]) -> Option<TokenRef> {
        let (lane, token) = *self.keys.get(key)?;
        Some(self.token_ref(lane, token))
    }

    /// Whether numbers and seats are given; closed, too, while it is being deleted.
    pub fn phase(&self) -> Phase {
        if self.deleting {
            Phase::Closed
        } else {
            self.settings.phase
        }
    }

    /// The pointers of every lane. Under an admission rate, how many a lane with a `queue_limit`
    /// of its own accepts depends on `now_ms` (service clock); nothing else does.
    pub fn board(&self, now_ms: u64) -> Board {
        let lanes = self.listed();
        let lanes = lanes.map(|(id, lane, set)| self.lane_board(id, lane, set, now_ms));
        Board {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            phase: self.phase(),
            seats: self.settings.seats,
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            lanes: lanes.collect(),
        }
    }

    /// What the journal has of versions after this one, oldest first; for pages, go on from the
    /// last one's version. At most [`crate::JOURNAL_KEPT`] entries are kept.
    pub fn journal_after(&self, version: u64) -> impl Iterator<Item = &JournalEntry> {
        self.journal.after(version)
    }

    /// What the settings were before and after a change, by the version of its journal entry. `None`
    /// once that is not kept any more: see [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn settings_change(&self, version: u64) -> Option<&SettingsChange> {
        self.journal.change(version)
    }

    /// The names of all lanes that the line ever had, by their place in its table.
    pub fn lane_names(&self) -> impl Iterator<Item = &crate::LaneName> {
        self.lanes.iter().map(|lane| &lane.name)
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
            #[cfg(feature = "bite")]
            None if nowserving_bite::is(nowserving_bite::Break::S12) => {
                live.clock_ms() + self.settings.waiting_idle_timeout_ms / 2
            }
            None => live
                .clock_ms()
                .saturating_add(self.settings.waiting_idle_timeout_ms)
                .saturating_add(1),
        }
    }

    /// The ranges of numbers, both ends included, between `admitted_through` of its lane and a
    /// waiting token that do not wait any more: with them its holder can keep its exact position
    /// from boards alone. Empty for a token that doesn't wait; `None` if there is too much to look
    /// at (4,096 words of bitmap) or to list (16,384 ranges). Under a `position_cap` they are not
    /// for holders, as they tell the position that the cap hides.
    pub fn holes_before(&self, at: TokenRef) -> Option<Vec<(Token, Token)>> {
        let at = self.resolve(at);
        match self.locate(at) {
            Ok((lane, Found::Waiting(_))) => lane.waiting.holes_before(at.token),
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

    /// Its part of the shard's sums.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            waiting: self.waiting(),
            admitted: self.admitted,
            in_checkout: self.in_checkout,
            forecasts: self.forecast.record,
        }
    }

    pub(crate) fn token_ref(&self, lane: u8, token: Token) -> TokenRef {
        TokenRef {
            incarnation: self.incarnation,
            lane,
            token,
        }
    }

    /// The lane and what is known of a token that this incarnation issued. One that was moved is
    /// known by what it is now: see [`Line::resolve`].
    pub(crate) fn locate(&self, at: TokenRef) -> Result<(&Lane, Found<'_>), Refused> {
        let lane = self.lanes.get(usize::from(at.lane));
        let lane = lane
            .filter(|_| at.incarnation == self.incarnation)
            .filter(|lane| (1..lane.next_token).contains(&at.token))
            .ok_or(Refused::TicketInvalid)?;
        let found = if let Some(place) = lane.waiting.place(at.token) {
            Found::Waiting(place)
        } else if let Some(live) = lane.live.get(&at.token) {
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
}
