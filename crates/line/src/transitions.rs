//! The transitions of tokens. Each happens in one function, whatever the operation: a number is issued
//! (`issue`), a waiting token is admitted (`admit`), a token ends (`end_as`), and the seats that ended tokens
//! held go to the next ones (`fill_freed_seats`: the hole rule).

use crate::gone::Gone;
use crate::line::Lane;
use crate::line::Line;
use crate::{
    AdmissionRate, AdmittedBy, Bucket, Entered, Event, JournalEntry, Journaled, JournaledToken,
    KickNote, Kicked, LineChange, Live, LiveRecord, NUMBER_MAX, Reason, Refused, Stage, State,
    Timestamp, Token, TokenChange, TokenRef,
};

/// The context in which an operation is applied to a line.
pub(crate) struct ApplyCtx<'a> {
    /// Reading of the service clock.
    pub(crate) now_ms: u64,
    /// The leader's wall clock: it is shown, and schedules go by it.
    pub(crate) wall_ms: u64,
    /// The rest of the log entry's work limit.
    pub(crate) work_left: &'a mut u32,
    /// `None` if the caller wants no events: then none are made.
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

impl Line {
    /// To be called when the rate of the settings differs from `old`.
    pub(crate) fn change_rate(&mut self, old: Option<AdmissionRate>, now_ms: u64) {
        let old = self.bucket.as_deref().copied().zip(old);
        let new = self.settings.admission_rate.as_ref();
        self.bucket = new.map(|new| Box::new(Bucket::change(old, new, now_ms)));
    }

    /// The one place that issues numbers, to newcomers and to moved tokens. The caller has checked the
    /// capacity.
    pub(crate) fn issue(
        &mut self,
        lane: u8,
        live: Live<'_>,
        now_ms: u64,
    ) -> Result<Token, Refused> {
        self.measure(now_ms);
        let counts_as_entered = self.counts_as_entered(live.entered.at);
        let into = self.lanes.get_mut(usize::from(lane));
        let into = into.filter(|lane| lane.has_numbers());
        let into = into.ok_or(Refused::LineFull)?;
        let token = into.next_token;
        into.next_token += 1;
        if nowserving_bite::is(nowserving_bite::Break::S7) && token.is_multiple_of(8) {
            into.next_token += 1;
        }
        into.waiting.push(token, counts_as_entered, live);
        // An operator's move says nothing about how many will enter.
        if live.moved_from.is_empty() {
            into.arrivals.add(now_ms);
        }
        self.add_key(live.key, (lane, token));
        self.next_version();
        Ok(token)
    }

    /// Admits at most `max` waiting tokens in their order, while seats are free. Returns how many; none if tokens are
    /// called.
    pub(crate) fn admit(&mut self, max: u64, ctx: &mut ApplyCtx<'_>) -> u64 {
        let mut done = 0;
        if !self.admits_by_itself() {
            return done;
        }
        while done < max && self.waiting() > 0 && self.may_admit(ctx.now_ms) {
            if self.note_silence(ctx) {
                continue;
            }
            if !self.admit_next(ctx) {
                break;
            }
            done += 1;
        }
        done
    }

    fn admit_next(&mut self, ctx: &mut ApplyCtx<'_>) -> bool {
        let Some(lane_id) = self.next_lane() else {
            return false;
        };
        let lane = &self.lanes[usize::from(lane_id)];
        let Some(token) = lane.waiting.first() else {
            return false;
        };
        let token = match nowserving_bite::is(nowserving_bite::Break::S8) {
            true => second_waiting(lane).unwrap_or(token),
            false => token,
        };
        self.admit_token((lane_id, token), AdmittedBy::Turn, ctx);
        true
    }

    /// The one place that admits: a waiting token, for which there is a free seat.
    pub(crate) fn admit_token(
        &mut self,
        (lane_id, token): (u8, Token),
        by: AdmittedBy,
        ctx: &mut ApplyCtx<'_>,
    ) {
        self.measure(ctx.now_ms);
        let shadow = self.count_shadow();
        let units = self.next_reservation();
        let deadline_ms = ctx.now_ms.saturating_add(self.settings.claim_timeout_ms);
        let lane = &mut self.lanes[usize::from(lane_id)];
        let (mut entered, mut eta_given) = (Entered::default(), None);
        if let Some(mut live) = lane.waiting.take(token) {
            live.stage = Stage::Admitted { deadline_ms, units };
            entered = live.entered;
            eta_given = live.eta_given.take();
            lane.seated.insert(token, live);
        }
        self.admitted += 1;
        self.reserved = self.reserved.saturating_add(units.into());
        self.forecast.seated();
        // An ETA was about the token's turn in a line that admits by itself, and holds people back.
        let is_turn = by == AdmittedBy::Turn && self.admits_by_itself();
        let is_judged = is_turn && self.holds_back();
        let waiting = self.waiting();
        let eta = eta_given.filter(|_| is_judged).map(|given| {
            let wait_ms = ctx.now_ms.saturating_sub(entered.at.service_ms);
            self.forecast.judge(given, wait_ms, waiting)
        });
        if let (Some(rate), Some(bucket)) = (&self.settings.admission_rate, &mut self.bucket) {
            bucket.take(rate, ctx.now_ms);
        }
        let what = TokenChange::Admitted { by, eta, shadow };
        self.token_event(lane_id, token, what, ctx);
        let what = self.journaled_admission(lane_id, by);
        self.journal_token((lane_id, token), entered, what, ctx.wall_ms);
    }

    /// To be called before the number of held seats or of waiting tokens changes: it measures the time
    /// since the last change.
    pub(crate) fn measure(&mut self, now_ms: u64) {
        let (held, waiting) = (self.held(), self.waiting());
        self.forecast.advance(now_ms, held, waiting);
    }

    fn journaled_admission(&self, lane_id: u8, by: AdmittedBy) -> JournaledToken {
        let mut listed = self.listed();
        let set = listed.find(|(id, _, _)| *id == lane_id);
        JournaledToken::Admitted {
            absolute: set.is_some_and(|(_, _, set)| set.absolute),
            boost_ms: set.map_or(0, |(_, _, set)| set.boost_ms),
            by,
        }
    }

    /// Removes a live token from the state. The caller records its end or its move.
    pub(crate) fn remove_live(&mut self, lane_id: u8, token: Token) -> Option<LiveRecord> {
        let lane = self.lanes.get_mut(usize::from(lane_id))?;
        let waiting = lane.waiting.take(token);
        let live = waiting.or_else(|| lane.seated.remove(token))?;
        match live.stage {
            Stage::Waiting { .. } => {}
            Stage::Admitted { .. } => self.admitted -= 1,
            Stage::InCheckout { .. } => {
                self.in_checkout -= 1;
                lane.in_checkout -= 1;
            }
        }
        self.reserved -= u64::from(live.stage.units());
        self.remove_key(live.key.as_deref(), (lane_id, token));
        Some(live)
    }

    pub(crate) fn end(
        &mut self,
        lane_id: u8,
        token: Token,
        reason: Reason,
        ctx: &mut ApplyCtx<'_>,
    ) -> Option<State> {
        self.end_as(lane_id, token, Gone::new(reason, None), ctx)
    }

    /// The one place that ends tokens. Records `gone` with the token's epoch, and returns the state it was in;
    /// `None` if it was not live.
    pub(crate) fn end_as(
        &mut self,
        lane_id: u8,
        token: Token,
        gone: Gone,
        ctx: &mut ApplyCtx<'_>,
    ) -> Option<State> {
        self.measure(ctx.now_ms);
        let live = self.remove_live(lane_id, token)?;
        if live.stage.holds_seat() {
            let seats = self.seats();
            self.forecast.released(gone.reason, seats);
        } else {
            self.forecast.left(gone.reason);
        }
        let (reason, epoch) = (gone.reason, live.stage.epoch());
        // The former numbers go into the ring first, so that they are forgotten before the number they
        // lead to.
        for (old_lane, old) in &live.moved_from {
            self.moved.get_mut().remove(&(*old_lane, *old));
            self.gone
                .push(*old_lane, *old, Gone::moved((lane_id, token)));
        }
        self.gone.push(lane_id, token, Gone { epoch, ..gone });
        self.count_gone(reason, live.stage.state());
        let units = (reason == Reason::Completed).then(|| live.stage.units());
        let used = self.used.saturating_add(units.unwrap_or(0).into());
        self.used = used.min(NUMBER_MAX);
        let was_waiting = !live.stage.holds_seat();
        let what = TokenChange::Gone {
            reason,
            was_waiting,
            units,
        };
        self.next_version();
        self.newest_token_event((lane_id, token), live.key.as_deref(), what, ctx);
        let what = JournaledToken::Gone { reason, units };
        self.journal_token((lane_id, token), live.entered, what, ctx.wall_ms);
        Some(live.stage.state())
    }

    /// The one place that counts departures.
    pub(crate) fn count_gone(&mut self, reason: Reason, from: State) {
        self.gone_counts.get_mut()[usize::from(reason.code())] += 1;
        self.gone_from.get_mut().add(from, reason);
    }

    pub(crate) fn end_and_fill(&mut self, at: TokenRef, gone: Gone, ctx: &mut ApplyCtx<'_>) {
        let mut ended = Ended::default();
        ended.add(self.end_as(at.lane, at.token, gone, ctx));
        self.fill_freed_seats(&ended, ctx);
    }

    /// Admits one token for each seat that became free. A token that ended while waiting frees no seat and
    /// admits nobody (the hole rule). Other free seats are left to background work, so that the work of a log
    /// entry stays in proportion to its operations.
    pub(crate) fn fill_freed_seats(&mut self, ended: &Ended, ctx: &mut ApplyCtx<'_>) {
        self.admit(ended.seats, ctx);
        if nowserving_bite::is(nowserving_bite::Break::S10Holes) {
            for _ in 0..ended.waiters {
                self.admit_next(ctx);
            }
        }
    }

    pub(crate) fn next_version(&mut self) -> u64 {
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
        self.next_version();
        // Looking it up costs time: that is done only for subscribers.
        let live = match &what {
            _ if ctx.events.is_none() || !self.settings.event_key => None,
            TokenChange::Moved { to, .. } => self.live(to.lane, to.token),
            _ => self.live(lane_id, token),
        };
        let key = live.and_then(|live| live.key);
        self.newest_token_event((lane_id, token), key, what, ctx);
    }

    /// A newcomer got its number, with a version of its own: that is the event's. It is the last in its lane.
    pub(crate) fn entered_event(
        &mut self,
        (lane_id, token): (u8, Token),
        key: Option<&[u8]>,
        entered: Entered,
        ctx: &mut ApplyCtx<'_>,
    ) {
        let position = self.lanes[usize::from(lane_id)].waiting.len();
        let what = TokenChange::Entered {
            position: (!self.is_undrawn()).then_some(position),
        };
        self.newest_token_event((lane_id, token), key, what, ctx);
        let what = JournaledToken::Entered { position };
        self.journal_token((lane_id, token), entered, what, ctx.wall_ms);
    }

    /// The event of the change that made the line's version what it is, with the key that the token has or had.
    fn newest_token_event(
        &self,
        (lane_id, token): (u8, Token),
        key: Option<&[u8]>,
        what: TokenChange,
        ctx: &mut ApplyCtx<'_>,
    ) {
        if let Some(events) = &mut ctx.events {
            let key = key.filter(|_| self.settings.event_key);
            events.push(Event::Token {
                line: self.name.clone(),
                incarnation: self.incarnation,
                version: self.version,
                at_ms: ctx.wall_ms,
                lane: self.lanes[usize::from(lane_id)].name.clone(),
                lane_id,
                token,
                key: key.map(Into::into),
                what,
            });
        }
    }

    /// Adds an entry for the newest event.
    pub(crate) fn journal_token(
        &mut self,
        (lane, token): (u8, Token),
        entered: Entered,
        what: JournaledToken,
        at_ms: u64,
    ) {
        let what = Journaled::Token {
            lane,
            token,
            entered,
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

    /// A kick has no event of its own: those of its tokens follow.
    pub(crate) fn journal_kick(&mut self, note: &KickNote, at_ms: u64) {
        let version = self.next_version();
        self.journal_entry(Journaled::Kicked, at_ms);
        let note = note.clone();
        self.journal.push_kick(Kicked { version, note });
    }

    /// Returns the event's version.
    pub(crate) fn line_event(
        &mut self,
        what: LineChange,
        at_ms: u64,
        events: Option<&mut Vec<Event>>,
    ) -> u64 {
        let version = self.next_version();
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

/// How many tokens one operation ended.
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

fn second_waiting(lane: &Lane) -> Option<Token> {
    lane.waiting.select(1)
}
