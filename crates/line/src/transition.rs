//! What changes a line. Numbers are issued in one place, seats given in one, tokens ended in one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gone::{Gone, GoneRing};
use crate::lane::Lane;
use crate::line::{Found, Line};
use crate::{BadField, Event, KEY_BYTES_MAX, LaneName, LineChange, LineName, Live, NUMBER_MAX};
use crate::{RECYCLE_MAX, Reason, RecycleItem, Refused, Settings, SettingsPatch, Stage, State};
use crate::{Status, Token, TokenChange, TokenRef};

/// What an operation works with besides the line.
pub(crate) struct Turn<'a> {
    pub(crate) now_ms: u64,
    /// What is left of the log entry's work limit.
    pub(crate) work_left: &'a mut u32,
    pub(crate) events: &'a mut Vec<Event>,
}

/// What a new line starts from.
pub(crate) struct Birth {
    pub(crate) incarnation: u64,
    pub(crate) version_floor: u64,
    pub(crate) epoch_floor: u64,
    pub(crate) gone_kept: usize,
}

impl Line {
    pub(crate) fn create(
        name: &LineName,
        lane: LaneName,
        settings: &Settings,
        birth: &Birth,
        now_ms: u64,
        events: &mut Vec<Event>,
    ) -> Self {
        let mut line = Self {
            name: name.clone(),
            incarnation: birth.incarnation,
            version: birth.version_floor,
            epoch: birth.epoch_floor,
            settings: settings.clone(),
            settings_version: 0,
            created_at_ms: now_ms,
            deleting: false,
            lanes: vec![Lane::new(lane)],
            keys: BTreeMap::new(),
            gone: GoneRing::new(birth.gone_kept),
            gone_counts: [0; Reason::ALL.len()],
            admitted: 0,
            in_checkout: 0,
        };
        line.settings_version = line.line_event(LineChange::Created, now_ms, events);
        line
    }

    pub(crate) fn configure(
        &mut self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refused> {
        self.check_open()?;
        if let Some(seen) = if_version
            && !(self.settings_version..=self.version).contains(&seen)
        {
            return Err(Refused::VersionConflict);
        }
        let settings = self.settings.with(patch)?;
        if settings != self.settings {
            self.settings = settings;
            self.settings_version =
                self.line_event(LineChange::Configured, turn.now_ms, turn.events);
            self.step(turn);
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, force: bool, turn: &mut Turn<'_>) -> Result<(), Refused> {
        if !self.deleting {
            if self.live_count() > 0 && !force {
                return Err(Refused::LineNotEmpty);
            }
            self.deleting = true;
            // The pointers change with it, so the version must too.
            self.bump();
            self.step(turn);
        }
        Ok(())
    }

    /// Does as much of what is left to do as the entry's work limit allows.
    pub(crate) fn step(&mut self, turn: &mut Turn<'_>) {
        if self.deleting {
            while *turn.work_left > 0
                && let Some((lane, token)) = self.first_live()
            {
                self.end(lane, token, Reason::Closed, turn);
                *turn.work_left -= 1;
            }
        } else {
            let done = self.admit(u64::from(*turn.work_left), turn);
            *turn.work_left = turn.work_left.saturating_sub(done as u32);
        }
    }

    pub(crate) fn enter(
        &mut self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        turn: &mut Turn<'_>,
    ) -> Result<Status, Refused> {
        if let Some(key) = key {
            if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
                return Err(BadField::new("key", "1 to 128 bytes").into());
            }
            if let Some(at) = self.find(key) {
                self.note_heard(at.lane, at.token, turn.now_ms);
                return self.status(at, turn.now_ms);
            }
        }
        self.check_open()?;
        let lane = match lane {
            None => 0,
            Some(name) => self.lane_id(name)?,
        };
        let token = self.issue(lane, key, turn)?;
        // Everybody starts out waiting; who has nobody before it may get a seat at once. While a
        // job still admits those before it there are free seats, and it waits all the same.
        if self.waiting() == 1 {
            self.admit(1, turn);
        }
        self.status(self.token_ref(lane, token), turn.now_ms)
    }

    pub(crate) fn claim(&mut self, at: TokenRef, turn: &mut Turn<'_>) -> Result<Status, Refused> {
        let claim_epoch = self.epoch.saturating_add(1);
        let settings = &self.settings;
        let deadline_ms = checkout_deadline_ms(settings, turn.now_ms, turn.now_ms);
        let live = self.live_mut(at)?;
        match live.stage {
            Stage::Waiting { .. } => return Err(Refused::NotAdmitted),
            Stage::InCheckout { .. } => {}
            Stage::Admitted { .. } => {
                live.stage = Stage::InCheckout {
                    deadline_ms,
                    claimed_at_ms: turn.now_ms,
                    epoch: claim_epoch,
                };
                self.epoch = claim_epoch;
                self.admitted -= 1;
                self.in_checkout += 1;
                self.token_event(at.lane, at.token, TokenChange::Claimed, turn);
            }
        }
        self.status(at, turn.now_ms)
    }

    pub(crate) fn renew(
        &mut self,
        at: TokenRef,
        epoch: u64,
        turn: &mut Turn<'_>,
    ) -> Result<Status, Refused> {
        let settings = self.settings.clone();
        let live = self.live_mut(at)?;
        let claimed_at_ms = claim_of(live, Some(epoch))?;
        if let Stage::InCheckout { deadline_ms, .. } = &mut live.stage {
            let new_ms = checkout_deadline_ms(&settings, turn.now_ms, claimed_at_ms);
            // Never earlier than was told before, also if the timeouts were lowered since.
            *deadline_ms = new_ms.max(*deadline_ms);
        }
        self.bump();
        self.status(at, turn.now_ms)
    }

    pub(crate) fn complete(
        &mut self,
        at: TokenRef,
        epoch: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<Status, Refused> {
        if let Some(gone) = self.gone_as(at, Reason::Completed)? {
            let stale = epoch.is_some() && epoch != gone.epoch;
            return if stale {
                Err(Refused::EpochStale)
            } else {
                self.status(at, turn.now_ms)
            };
        }
        claim_of(self.live_mut(at)?, epoch)?;
        self.end_and_follow(at, Reason::Completed, turn);
        self.status(at, turn.now_ms)
    }

    pub(crate) fn leave(&mut self, at: TokenRef, turn: &mut Turn<'_>) -> Result<Status, Refused> {
        if self.gone_as(at, Reason::Left)?.is_none() {
            self.live_mut(at)?;
            self.end_and_follow(at, Reason::Left, turn);
        }
        self.status(at, turn.now_ms)
    }

    /// Ends the items that are still what the proposer saw and due; returns how many.
    pub(crate) fn recycle(&mut self, items: &[RecycleItem], turn: &mut Turn<'_>) -> u64 {
        if self.deleting {
            return 0;
        }
        let mut ended = Ended::default();
        let most = RECYCLE_MAX.min(*turn.work_left as usize);
        for item in items.iter().take(most) {
            *turn.work_left -= 1;
            let Some(live) = self.live(item.lane, item.token) else {
                continue;
            };
            let unmoved = (live.state(), live.clock_ms()) == (item.state, item.clock_ms);
            if !unmoved || turn.now_ms < self.due_at_ms(live) {
                continue;
            }
            let reason = match live.stage {
                Stage::Waiting { .. } => Reason::Idle,
                Stage::Admitted { .. } => Reason::NoShow,
                Stage::InCheckout { .. } => Reason::CheckoutExpired,
            };
            ended.add(self.end(item.lane, item.token, reason, turn));
        }
        // Only now: a seat given meanwhile could have gone to somebody later in the list.
        self.follow(&ended, turn);
        ended.count()
    }

    /// The token is heard from: while it waits, its idle clock starts again.
    pub(crate) fn note_heard(&mut self, lane: u8, token: Token, heard_ms: u64) {
        let lane = self.lanes.get_mut(usize::from(lane));
        let live = lane.and_then(|lane| lane.live.get_mut(&token));
        if let Some(Stage::Waiting { seen_ms }) = live.map(|live| &mut live.stage) {
            *seen_ms = heard_ms.max(*seen_ms);
        }
    }

    /// The one place that gives numbers.
    fn issue(
        &mut self,
        lane: u8,
        key: Option<&[u8]>,
        turn: &mut Turn<'_>,
    ) -> Result<Token, Refused> {
        if self.room() == 0 {
            return Err(Refused::LineFull);
        }
        let key: Option<Arc<[u8]>> = key.map(Into::into);
        let into = self.lanes.get_mut(usize::from(lane));
        let into = into
            .filter(|lane| lane.next_token <= NUMBER_MAX)
            .ok_or(Refused::LineFull)?;
        let token = into.next_token;
        into.next_token += 1;
        into.waiting.push(token);
        let live = Live {
            key: key.clone(),
            entered_at_ms: turn.now_ms,
            stage: Stage::Waiting {
                seen_ms: turn.now_ms,
            },
        };
        into.live.insert(token, live);
        if let Some(key) = key {
            self.keys.insert(key, (lane, token));
        }
        self.bump();
        Ok(token)
    }

    /// The one place that gives seats: to at most `max` of those who wait, in their order, while
    /// there are free ones. Returns to how many.
    fn admit(&mut self, max: u64, turn: &mut Turn<'_>) -> u64 {
        let mut done = 0;
        while done < max && self.may_admit() && self.admit_next(turn) {
            done += 1;
        }
        done
    }

    /// Whether the next one may have a seat now. (A rate, a quota and phases come in here.)
    fn may_admit(&self) -> bool {
        self.free() > 0
    }

    /// The lane whose first waiting token is next: least order key, a tie to the one listed first.
    fn next_lane(&self) -> Option<u8> {
        let lanes = (0..).zip(&self.lanes);
        let keyed = lanes.filter_map(|(id, lane)| Some((lane.order_key()?, id)));
        keyed.min().map(|(_, id)| id)
    }

    fn admit_next(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(lane_id) = self.next_lane() else {
            return false;
        };
        let deadline_ms = turn.now_ms.saturating_add(self.settings.claim_timeout_ms);
        let lane = &mut self.lanes[usize::from(lane_id)];
        let Some(token) = lane.waiting.first() else {
            return false;
        };
        lane.waiting.remove(token);
        if let Some(live) = lane.live.get_mut(&token) {
            live.stage = Stage::Admitted { deadline_ms };
        }
        self.admitted += 1;
        self.token_event(lane_id, token, TokenChange::Admitted, turn);
        true
    }

    /// The one place that ends tokens. Returns the state it was in; `None` if it was not live.
    fn end(
        &mut self,
        lane_id: u8,
        token: Token,
        reason: Reason,
        turn: &mut Turn<'_>,
    ) -> Option<State> {
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
        let epoch = live.epoch();
        self.gone.push(lane_id, token, Gone { reason, epoch });
        self.gone_counts[usize::from(reason.code())] += 1;
        let was_waiting = !live.holds_seat();
        let what = TokenChange::Gone {
            reason,
            was_waiting,
        };
        self.token_event(lane_id, token, what, turn);
        Some(live.state())
    }

    fn end_and_follow(&mut self, at: TokenRef, reason: Reason, turn: &mut Turn<'_>) {
        let mut ended = Ended::default();
        ended.add(self.end(at.lane, at.token, reason, turn));
        self.follow(&ended, turn);
    }

    /// What departures set in motion: each seat that became free goes to who is next. Who left
    /// while waiting frees none and admits nobody (the hole rule). Seats that are free besides
    /// are the job's, so that the work of an entry stays in proportion to its operations.
    fn follow(&mut self, ended: &Ended, turn: &mut Turn<'_>) {
        self.admit(ended.seats, turn);
        if cfg!(feature = "break-hole-rule") {
            // What the seed article does: every departure moves admission on by one.
            for _ in 0..ended.waiters {
                self.admit_next(turn);
            }
        }
    }

    fn check_open(&self) -> Result<(), Refused> {
        if self.deleting {
            Err(Refused::LineClosed)
        } else {
            Ok(())
        }
    }

    fn lane_id(&self, name: &LaneName) -> Result<u8, Refused> {
        (0..)
            .zip(&self.lanes)
            .find(|(_, lane)| lane.name == *name)
            .map(|(id, _)| id)
            .ok_or_else(|| BadField::new("lane", "a lane of the line").into())
    }

    fn first_live(&self) -> Option<(u8, Token)> {
        let first = self.live_from((0, 0)).next();
        first.map(|(lane, token, _)| (lane, token))
    }

    /// A live token of an open line; gone ones are refused with their reason.
    fn live_mut(&mut self, at: TokenRef) -> Result<&mut Live, Refused> {
        self.check_open()?;
        let (_, found) = self.locate(at)?;
        let gone = match found {
            Found::Gone(gone) => gone.map(|gone| gone.reason),
            Found::Live(_) => None,
        };
        let lane = self.lanes.get_mut(usize::from(at.lane));
        let live = lane.and_then(|lane| lane.live.get_mut(&at.token));
        live.ok_or(Refused::TokenGone(gone))
    }

    /// What is remembered of a token that is gone for this very reason: asking again for what was
    /// done answers the same.
    fn gone_as(&self, at: TokenRef, reason: Reason) -> Result<Option<Gone>, Refused> {
        Ok(match self.locate(at)?.1 {
            Found::Gone(gone) => gone.filter(|gone| gone.reason == reason),
            Found::Live(_) => None,
        })
    }

    fn bump(&mut self) -> u64 {
        self.version = self.version.saturating_add(1);
        self.version
    }

    fn token_event(&mut self, lane_id: u8, token: Token, what: TokenChange, turn: &mut Turn<'_>) {
        let version = self.bump();
        turn.events.push(Event::Token {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version,
            at_ms: turn.now_ms,
            lane: self.lanes[usize::from(lane_id)].name.clone(),
            lane_id,
            token,
            what,
        });
    }

    /// Returns the version of the event.
    pub(crate) fn line_event(
        &mut self,
        what: LineChange,
        at_ms: u64,
        events: &mut Vec<Event>,
    ) -> u64 {
        let version = self.bump();
        events.push(Event::Line {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version,
            at_ms,
            what,
        });
        version
    }
}

/// Tokens that one operation ended.
#[derive(Default)]
struct Ended {
    seats: u64,
    waiters: u64,
}

impl Ended {
    fn add(&mut self, was: Option<State>) {
        match was {
            Some(State::Waiting) => self.waiters += 1,
            Some(State::Admitted | State::InCheckout) => self.seats += 1,
            Some(State::Gone) | None => {}
        }
    }

    fn count(&self) -> u64 {
        self.seats + self.waiters
    }
}

fn checkout_deadline_ms(settings: &Settings, now_ms: u64, claimed_at_ms: u64) -> u64 {
    let next_ms = now_ms.saturating_add(settings.checkout_timeout_ms);
    next_ms.min(claimed_at_ms.saturating_add(settings.checkout_max_ms))
}

/// When the token claimed; refused if it has not, or its epoch is another.
fn claim_of(live: &Live, epoch: Option<u64>) -> Result<u64, Refused> {
    match live.stage {
        Stage::Waiting { .. } => Err(Refused::NotAdmitted),
        Stage::Admitted { .. } => Err(Refused::NotClaimed),
        Stage::InCheckout {
            claimed_at_ms,
            epoch: current,
            ..
        } => {
            if epoch.is_some_and(|epoch| epoch != current) {
                return Err(Refused::EpochStale);
            }
            Ok(claimed_at_ms)
        }
    }
}
