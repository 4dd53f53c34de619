//! What changes a line, whatever the operation: numbers are issued in one place, seats given in
//! one, tokens ended in one, and what a departure sets in motion is in one.

use std::collections::BTreeMap;

use crate::TokenRef;
use crate::gone::{Gone, GoneRing};
use crate::journal::Journal;
use crate::line::Line;
use crate::{
    AdmissionRate, Bucket, Event, Forecast, JournalEntry, Journaled, JournaledToken, Limits,
    LineChange, LineName,
};
use crate::{Live, Reason, Refused, Settings, Stage, State, Timestamp, Token, TokenChange};

/// What an operation works with besides the line.
pub(crate) struct ApplyCtx<'a> {
    /// The service clock.
    pub(crate) now_ms: u64,
    /// The leader's wall clock, to be shown.
    pub(crate) wall_ms: u64,
    /// What is left of the log entry's work limit.
    pub(crate) work_left: &'a mut u32,
    /// Where events go; `None` where nobody wants them: then none are made.
    pub(crate) events: Option<&'a mut Vec<Event>>,
}

impl ApplyCtx<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp {
            service_ms: self.now_ms,
            wall_ms: self.wall_ms,
        }
    }
}

/// What a new line starts from.
pub(crate) struct Birth {
    pub(crate) incarnation: u64,
    pub(crate) version_floor: u64,
    pub(crate) epoch_floor: u64,
    pub(crate) limits: Limits,
    pub(crate) now: Timestamp,
}

impl Line {
    pub(crate) fn create(
        name: &LineName,
        settings: &Settings,
        birth: &Birth,
        events: Option<&mut Vec<Event>>,
    ) -> Self {
        let mut line = Self {
            name: name.clone(),
            incarnation: birth.incarnation,
            version: birth.version_floor,
            epoch: birth.epoch_floor,
            settings: settings.clone(),
            settings_version: 0,
            created_at_ms: birth.now.wall_ms,
            deleting: false,
            lanes: Vec::new(),
            order: Vec::new(),
            bucket: None,
            keys: BTreeMap::new(),
            moved: BTreeMap::new(),
            gone: GoneRing::new(birth.limits.gone_kept),
            journal: Journal::new(birth.limits),
            gone_counts: [0; Reason::ALL.len()],
            admitted: 0,
            in_checkout: 0,
            forecast: Forecast::new(birth.now.service_ms),
            background: None,
        };
        line.order_lanes();
        line.change_rate(None, birth.now.service_ms);
        line.settings_version = line.line_event(LineChange::Created, birth.now.wall_ms, events);
        line
    }

    /// The rate in the settings is another than `old`.
    pub(crate) fn change_rate(&mut self, old: Option<AdmissionRate>, now_ms: u64) {
        let old = self.bucket.zip(old);
        let new = self.settings.admission_rate.as_ref();
        self.bucket = new.map(|new| Bucket::change(old, new, now_ms));
    }

    /// The one place that gives numbers, to newcomers and to those who are moved. Whoever asks has
    /// seen that there is room.
    pub(crate) fn issue(&mut self, lane: u8, live: Live, now_ms: u64) -> Result<Token, Refused> {
        self.measure(now_ms);
        let into = self.lanes.get_mut(usize::from(lane));
        let into = into.filter(|lane| lane.has_numbers());
        let into = into.ok_or(Refused::LineFull)?;
        let token = into.next_token;
        into.next_token += 1;
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S7) && token % 8 == 0 {
            into.next_token += 1;
        }
        into.waiting.push(token, live.entered);
        // A move is an operator's doing: it says nothing of how many will come.
        if live.moved_from.is_empty() {
            into.arrivals.one_more(now_ms);
        }
        if let Some(key) = &live.key {
            self.keys.insert(key.clone(), (lane, token));
        }
        into.live.insert(token, live);
        self.bump();
        Ok(token)
    }

    /// The one place that gives seats: to at most `max` of those who wait, in their order, while
    /// there are free ones. Returns to how many.
    pub(crate) fn admit(&mut self, max: u64, ctx: &mut ApplyCtx<'_>) -> u64 {
        let mut done = 0;
        while done < max && self.may_admit(ctx.now_ms) && self.admit_next(ctx) {
            done += 1;
        }
        done
    }

    fn admit_next(&mut self, ctx: &mut ApplyCtx<'_>) -> bool {
        let Some(lane_id) = self.next_lane() else {
            return false;
        };
        self.measure(ctx.now_ms);
        let deadline_ms = ctx.now_ms.saturating_add(self.settings.claim_timeout_ms);
        let lane = &mut self.lanes[usize::from(lane_id)];
        let Some(token) = lane.waiting.first() else {
            return false;
        };
        #[cfg(feature = "bite")]
        let token = match nowserving_bite::is(nowserving_bite::Break::S8) {
            true => second_waiting(lane).unwrap_or(token),
            false => token,
        };
        lane.waiting.remove(token);
        let (mut entered, mut told) = ((Timestamp::default(), 0), None);
        if let Some(live) = lane.live.get_mut(&token) {
            live.stage = Stage::Admitted { deadline_ms };
            entered = (live.entered, live.entered_version);
            told = live.told.take();
        }
        self.admitted += 1;
        self.forecast.seated();
        if let Some(told) = told {
            let wait_ms = ctx.now_ms.saturating_sub(entered.0.service_ms);
            self.forecast.judge(told, wait_ms, self.waiting());
        }
        if let (Some(rate), Some(bucket)) = (&self.settings.admission_rate, &mut self.bucket) {
            bucket.take(rate, ctx.now_ms);
        }
        self.token_event(lane_id, token, TokenChange::Admitted, ctx);
        let what = self.journaled_admission(lane_id);
        self.journal_token((lane_id, token), entered, what, ctx.wall_ms);
        true
    }

    /// Time has gone on since the numbers of held seats and of those who wait last changed.
    pub(crate) fn measure(&mut self, now_ms: u64) {
        let (held, waiting) = (self.held(), self.waiting());
        self.forecast.advance(now_ms, held, waiting);
    }

    fn journaled_admission(&self, lane_id: u8) -> JournaledToken {
        let mut listed = self.listed();
        let set = listed.find(|(id, _, _)| *id == lane_id);
        JournaledToken::Admitted {
            absolute: set.is_some_and(|(_, _, set)| set.absolute),
            boost_ms: set.map_or(0, |(_, _, set)| set.boost_ms),
        }
    }

    /// Takes a live token out of all that knows it. What it is then is the caller's to say.
    pub(crate) fn take_out(&mut self, lane_id: u8, token: Token) -> Option<Live> {
        let lane = self.lanes.get_mut(usize::from(lane_id))?;
        let live = lane.live.remove(&token)?;
        match live.stage {
            Stage::Waiting { .. } => {
                lane.waiting.remove(token);
            }
            Stage::Admitted { .. } => self.admitted -= 1,
            Stage::InCheckout { .. } => self.in_checkout -= 1,
        }
        if let Some(key) = &live.key {
            self.keys.remove(key);
        }
        Some(live)
    }

    /// Ends a token; see [`Line::end_as`].
    pub(crate) fn end(
        &mut self,
        lane_id: u8,
        token: Token,
        reason: Reason,
        ctx: &mut ApplyCtx<'_>,
    ) -> Option<State> {
        self.end_as(lane_id, token, Gone::new(reason, None), ctx)
    }

    /// The one place that ends tokens, as `gone` with their epoch. Returns the state it was in;
    /// `None` if it was not live.
    pub(crate) fn end_as(
        &mut self,
        lane_id: u8,
        token: Token,
        gone: Gone,
        ctx: &mut ApplyCtx<'_>,
    ) -> Option<State> {
        self.measure(ctx.now_ms);
        let live = self.take_out(lane_id, token)?;
        if live.holds_seat() {
            self.forecast.released(gone.reason, self.settings.seats);
        } else {
            self.forecast.left(gone.reason);
        }
        let (reason, epoch) = (gone.reason, live.epoch());
        // Before it, so that they are not remembered longer than what they lead to.
        for (old_lane, old) in &live.moved_from {
            self.moved.remove(&(*old_lane, *old));
            self.gone
                .push(*old_lane, *old, Gone::moved((lane_id, token)));
        }
        self.gone.push(lane_id, token, Gone { epoch, ..gone });
        self.gone_counts[usize::from(reason.code())] += 1;
        let was_waiting = !live.holds_seat();
        let what = TokenChange::Gone {
            reason,
            was_waiting,
        };
        self.token_event(lane_id, token, what, ctx);
        let what = JournaledToken::Gone(reason);
        let entered = (live.entered, live.entered_version);
        self.journal_token((lane_id, token), entered, what, ctx.wall_ms);
        Some(live.state())
    }

    pub(crate) fn end_and_follow(&mut self, at: TokenRef, gone: Gone, ctx: &mut ApplyCtx<'_>) {
        let mut ended = Ended::default();
        ended.add(self.end_as(at.lane, at.token, gone, ctx));
        self.follow(&ended, ctx);
    }

    /// What departures set in motion: each seat that became free goes to who is next. Who left
    /// while waiting frees none and admits nobody (the hole rule). Seats that are free besides
    /// are the job's, so that the work of an entry stays in proportion to its operations.
    pub(crate) fn follow(&mut self, ended: &Ended, ctx: &mut ApplyCtx<'_>) {
        self.admit(ended.seats, ctx);
        if cfg!(feature = "break-hole-rule") {
            // What the seed article does: every departure moves admission on by one.
            for _ in 0..ended.waiters {
                self.admit_next(ctx);
            }
        }
    }

    pub(crate) fn bump(&mut self) -> u64 {
        self.version = self.version.saturating_add(1);
        self.version
    }

    pub(crate) fn token_event(
        &mut self,
        lane_id: u8,
        token: Token,
        what: TokenChange,
        ctx: &mut ApplyCtx<'_>,
    ) {
        let version = self.bump();
        if let Some(events) = &mut ctx.events {
            events.push(Event::Token {
                line: self.name.clone(),
                incarnation: self.incarnation,
                version,
                at_ms: ctx.wall_ms,
                lane: self.lanes[usize::from(lane_id)].name.clone(),
                lane_id,
                token,
                what,
            });
        }
    }

    /// Notes what the newest event was about.
    pub(crate) fn journal_token(
        &mut self,
        (lane, token): (u8, Token),
        (entered, entered_version): (Timestamp, u64),
        what: JournaledToken,
        at_ms: u64,
    ) {
        let what = Journaled::Token {
            lane,
            token,
            entered,
            entered_version,
            what,
        };
        self.journal_entry(what, at_ms);
    }

    pub(crate) fn journal_entry(&mut self, what: Journaled, at_ms: u64) {
        self.journal.push(JournalEntry {
            version: self.version,
            at_ms,
            what,
        });
    }

    /// Returns the version of the event.
    pub(crate) fn line_event(
        &mut self,
        what: LineChange,
        at_ms: u64,
        events: Option<&mut Vec<Event>>,
    ) -> u64 {
        let version = self.bump();
        if let Some(events) = events {
            events.push(Event::Line {
                line: self.name.clone(),
                incarnation: self.incarnation,
                version,
                at_ms,
                what,
            });
        }
        version
    }
}

/// Tokens that one operation ended.
#[derive(Default)]
pub(crate) struct Ended {
    seats: u64,
    waiters: u64,
}

impl Ended {
    pub(crate) fn add(&mut self, was: Option<State>) {
        match was {
            Some(State::Waiting) => self.waiters += 1,
            Some(State::Admitted | State::InCheckout) => self.seats += 1,
            Some(State::Gone) | None => {}
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.seats + self.waiters
    }
}

#[cfg(feature = "bite")]
fn second_waiting(lane: &crate::lane::Lane) -> Option<Token> {
    let live = lane.live.iter();
    let mut waiting = live.filter(|(_, live)| !live.holds_seat());
    waiting.nth(1).map(|(token, _)| *token)
}
