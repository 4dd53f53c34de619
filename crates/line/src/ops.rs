//! The operations on one line, in terms of `transition`.

use crate::TokenRef;
use crate::gone::Gone;
use crate::line::{Found, Line};
use crate::transition::{ApplyCtx, Ended};
use crate::{
    BadField, Journaled, JournaledToken, KEY_BYTES_MAX, LaneName, LineChange, Live, Phase,
    RECYCLE_MAX, Token,
};
use crate::{
    Reason, RecycleItem, Refused, Settings, SettingsChange, SettingsPatch, Stage, TokenChange,
};

impl Line {
    pub(crate) fn configure(
        &mut self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<(), Refused> {
        // Closing runs to its end; then the line can be opened again.
        if self.deleting || (self.phase() == Phase::Closed && self.live_count() > 0) {
            return Err(Refused::LineClosed);
        }
        if let Some(seen) = if_version
            && !(self.settings_version..=self.version).contains(&seen)
        {
            return Err(Refused::VersionConflict);
        }
        let settings = self.settings.with(patch)?;
        self.check_lanes(&settings.lanes)?;
        if settings != self.settings {
            let old = std::mem::replace(&mut self.settings, settings);
            self.order_lanes();
            if old.admission_rate != self.settings.admission_rate {
                self.change_rate(old.admission_rate, ctx.now_ms);
            }
            self.tell_configured(old, ctx);
            self.run_background(ctx);
        }
        Ok(())
    }

    /// One event for the phase, and one for the rest.
    fn tell_configured(&mut self, old: Settings, ctx: &mut ApplyCtx<'_>) {
        let phase = self.settings.phase;
        let switched = old.phase != phase;
        let rest = Settings {
            phase,
            ..old.clone()
        } != self.settings;
        let what = [
            rest.then_some(LineChange::Configured),
            switched.then_some(LineChange::Phase { phase }),
        ];
        for what in what.into_iter().flatten() {
            self.settings_version = self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
        }
        self.journal_entry(Journaled::Configured, ctx.wall_ms);
        let change = SettingsChange::new(self.version, &old, &self.settings);
        self.journal.push_change(change);
    }

    pub(crate) fn delete(&mut self, force: bool, ctx: &mut ApplyCtx<'_>) -> Result<(), Refused> {
        if !self.deleting {
            if self.live_count() > 0 && !force && self.phase() != Phase::Closed {
                return Err(Refused::LineNotEmpty);
            }
            self.deleting = true;
            // The pointers change with it, so the version must too.
            self.bump();
            self.run_background(ctx);
        }
        Ok(())
    }

    pub(crate) fn enter(
        &mut self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        if let Some(key) = key {
            if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
                return Err(BadField::new("key", "1 to 128 bytes").into());
            }
            #[cfg(feature = "bite")]
            let known = self
                .find(key)
                .filter(|_| !nowserving_bite::is(nowserving_bite::Break::S13));
            #[cfg(not(feature = "bite"))]
            let known = self.find(key);
            if let Some(at) = known {
                self.note_heard(at, ctx.now_ms);
                return Ok(at);
            }
        }
        let lane = self.lane_for_newcomer(lane, ctx.now_ms)?;
        let newcomer = Live::newcomer(key, ctx.now(), self.version.saturating_add(1));
        let token = self.issue(lane, newcomer, ctx.now_ms)?;
        // Everybody starts out waiting; who has nobody before it may get a seat at once. While a
        // job still admits those before it there are free seats, and it waits all the same.
        if self.waiting() == 1 {
            self.admit(1, ctx);
        }
        self.tell(lane, token, ctx.now_ms);
        Ok(self.token_ref(lane, token))
    }

    /// Who has to wait is told how long, and that is kept to be judged by the truth.
    fn tell(&mut self, lane: u8, token: Token, now_ms: u64) {
        if self.live(lane, token).is_none_or(Live::holds_seat) {
            return;
        }
        // It came last.
        let into = self.lanes.get(usize::from(lane));
        let position = into.map_or(1, |lane| lane.waiting.len());
        let foreseen = self.foresee(lane, position, now_ms, now_ms);
        let told = foreseen.and_then(|foreseen| foreseen.told());
        self.forecast.told(told);
        let lane = self.lanes.get_mut(usize::from(lane));
        if let Some(live) = lane.and_then(|lane| lane.live.get_mut(&token)) {
            live.told = told;
        }
    }

    /// Also the end of it, if the settings say so.
    pub(crate) fn claim(
        &mut self,
        at: TokenRef,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        let done = self.gone_as(at, Reason::Completed)?;
        if done.is_some_and(|gone| gone.released) {
            return Ok(at);
        }
        let claim_epoch = self.epoch.saturating_add(1);
        #[cfg(feature = "bite")]
        let claim_epoch = match nowserving_bite::is(nowserving_bite::Break::S9) {
            true => self.epoch.max(1),
            false => claim_epoch,
        };
        let deadline_ms = self.checkout_deadline_ms(ctx.now_ms, ctx.now_ms);
        let live = self.live_mut(at)?;
        match live.stage {
            Stage::Waiting { .. } => return Err(Refused::NotAdmitted),
            Stage::InCheckout { .. } => {}
            Stage::Admitted { .. } => {
                let entered = (live.entered, live.entered_version);
                live.stage = Stage::InCheckout {
                    deadline_ms,
                    claimed_at_ms: ctx.now_ms,
                    epoch: claim_epoch,
                };
                self.epoch = claim_epoch;
                self.admitted -= 1;
                self.in_checkout += 1;
                self.token_event(at.lane, at.token, TokenChange::Claimed, ctx);
                let what = JournaledToken::Claimed { epoch: claim_epoch };
                self.journal_token((at.lane, at.token), entered, what, ctx.wall_ms);
                if self.settings.release_on_claim {
                    let gone = Gone {
                        released: true,
                        ..Gone::new(Reason::Completed, None)
                    };
                    self.end_and_follow(at, gone, ctx);
                }
            }
        }
        Ok(at)
    }

    pub(crate) fn renew(
        &mut self,
        at: TokenRef,
        epoch: u64,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        let claimed_at_ms = claim_of(self.live_mut(at)?, Some(epoch))?;
        let new_ms = self.checkout_deadline_ms(ctx.now_ms, claimed_at_ms);
        if let Stage::InCheckout { deadline_ms, .. } = &mut self.live_mut(at)?.stage {
            // Never earlier than was told before, also if the timeouts were lowered since.
            *deadline_ms = new_ms.max(*deadline_ms);
        }
        self.bump();
        Ok(at)
    }

    pub(crate) fn complete(
        &mut self,
        at: TokenRef,
        epoch: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        if let Some(gone) = self.gone_as(at, Reason::Completed)? {
            let stale = epoch.is_some() && epoch != gone.epoch;
            return if stale {
                Err(Refused::EpochStale)
            } else {
                Ok(at)
            };
        }
        claim_of(self.live_mut(at)?, epoch)?;
        self.end_and_follow(at, Gone::new(Reason::Completed, None), ctx);
        Ok(at)
    }

    pub(crate) fn leave(
        &mut self,
        at: TokenRef,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        if self.gone_as(at, Reason::Left)?.is_none() {
            self.live_mut(at)?;
            self.end_and_follow(at, Gone::new(Reason::Left, None), ctx);
        }
        Ok(at)
    }

    /// Ends the items that are still what the proposer saw and due; returns how many.
    pub(crate) fn recycle(&mut self, items: &[RecycleItem], ctx: &mut ApplyCtx<'_>) -> u64 {
        if self.phase() == Phase::Closed {
            return 0;
        }
        let mut ended = Ended::default();
        let most = RECYCLE_MAX.min(*ctx.work_left as usize);
        for item in items.iter().take(most) {
            *ctx.work_left -= 1;
            let Some(live) = self.live(item.lane, item.token) else {
                continue;
            };
            let unmoved = (live.state(), live.clock_ms()) == (item.state, item.clock_ms);
            if !unmoved || ctx.now_ms < self.due_at_ms(live) {
                continue;
            }
            let reason = match live.stage {
                Stage::Waiting { .. } => Reason::Idle,
                Stage::Admitted { .. } => Reason::NoShow,
                Stage::InCheckout { .. } => Reason::CheckoutExpired,
            };
            ended.add(self.end(item.lane, item.token, reason, ctx));
        }
        // Only now: a seat given meanwhile could have gone to somebody later in the list.
        self.follow(&ended, ctx);
        ended.count()
    }

    /// The token is heard from: while it waits, its idle clock starts again.
    pub(crate) fn note_heard(&mut self, at: TokenRef, heard_ms: u64) {
        let at = self.resolve(at);
        let lane = self.lanes.get_mut(usize::from(at.lane));
        let live = lane.and_then(|lane| lane.live.get_mut(&at.token));
        if let Some(Stage::Waiting { seen_ms }) = live.map(|live| &mut live.stage) {
            *seen_ms = heard_ms.max(*seen_ms);
        }
    }

    fn check_open(&self) -> Result<(), Refused> {
        if self.phase() == Phase::Closed {
            Err(Refused::LineClosed)
        } else {
            Ok(())
        }
    }

    /// What `enter` would be refused with now; `None` if it would be taken, or answered with the
    /// live token of its key. For a leader that refuses without asking the log; `now_ms` is its
    /// reading of the service clock, as some of it depends on the admission rate.
    pub fn would_refuse_enter(
        &self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        now_ms: u64,
    ) -> Option<Refused> {
        if key.is_some_and(|key| self.find(key).is_some()) {
            return None;
        }
        self.lane_for_newcomer(lane, now_ms).err()
    }

    /// The lane that a newcomer's number would be of.
    fn lane_for_newcomer(&self, name: Option<&LaneName>, now_ms: u64) -> Result<u8, Refused> {
        self.check_open()?;
        if !self.phase().gives_numbers() {
            return Err(Refused::LineDraining);
        }
        let name = name.or_else(|| self.settings.effective_default_lane());
        let mut listed = self.listed();
        let found = listed.find(|(_, lane, _)| Some(&lane.name) == name);
        let unknown = || self.no_lane("lane", name.unwrap_or(&LaneName::default()));
        let (id, lane, set) = found.ok_or_else(unknown)?;
        if self.quota_room() == 0 {
            return Err(Refused::SoldOut);
        }
        if self.lane_room(lane, set, now_ms) == 0 {
            return Err(self.full(lane, set));
        }
        Ok(id)
    }

    /// A live token of an open line; gone ones are refused with their reason.
    pub(crate) fn live_mut(&mut self, at: TokenRef) -> Result<&mut Live, Refused> {
        if let Found::Gone(gone) = self.locate(at)?.1 {
            return Err(Refused::TokenGone(gone.map(|gone| gone.reason)));
        }
        self.check_open()?;
        let lane = self.lanes.get_mut(usize::from(at.lane));
        let live = lane.and_then(|lane| lane.live.get_mut(&at.token));
        live.ok_or(Refused::TicketInvalid)
    }

    /// What is remembered of a token that is gone for this very reason: asking again for what was
    /// done answers the same.
    fn gone_as(&self, at: TokenRef, reason: Reason) -> Result<Option<Gone>, Refused> {
        Ok(match self.locate(at)?.1 {
            Found::Gone(gone) => gone.filter(|gone| gone.reason == reason),
            Found::Waiting(_) | Found::Seated(_) => None,
        })
    }

    fn checkout_deadline_ms(&self, now_ms: u64, claimed_at_ms: u64) -> u64 {
        let next_ms = now_ms.saturating_add(self.settings.checkout_timeout_ms);
        next_ms.min(claimed_at_ms.saturating_add(self.settings.checkout_max_ms))
    }
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
