//! The operations on one line, one function each, composed of the transitions in `transitions`.

use std::sync::Arc;

use crate::gone::Gone;
use crate::line::{Found, Line};
use crate::schedule;
use crate::transitions::{ApplyCtx, Ended};
use crate::{
    BadField, Entered, Journaled, JournaledToken, KEY_BYTES_MAX, LaneName, LineChange, Live,
    MOVES_MAX, MovedBy, Op, Phase, RECYCLE_MAX, Reason, RecycleItem, Refused, Reply, Settings,
    SettingsChange, SettingsPatch, Stage, State, TOUCH_MAX, Timestamp, Token, TokenChange,
    TokenRef,
};

impl Line {
    /// Runs an operation on this line, and the work that follows every operation. ([`Op::Create`] makes a line, so
    /// [`crate::Lines`] runs it.)
    pub(crate) fn run(&mut self, op: &Op, ctx: &mut ApplyCtx<'_>) -> Result<Reply, Refused> {
        let mut reply = Reply::Nothing;
        match op {
            Op::Create { .. } => return Err(Refused::LineExists),
            Op::Configure {
                patch, if_version, ..
            } => self.configure(patch, *if_version, ctx)?,
            Op::Delete { force, .. } => self.delete(*force, ctx)?,
            Op::Enter { key, lane, .. } => {
                reply = Reply::Token(self.enter(key.as_deref(), lane.as_ref(), None, ctx)?);
            }
            Op::Import {
                import_id,
                first_row,
                rows,
                ..
            } => self.import(import_id, *first_row, rows, ctx)?,
            Op::Callback { key, lane, .. } => reply = self.callback(key, lane.as_ref(), ctx)?,
            Op::Claim { at, .. } => reply = Reply::Token(self.claim(*at, ctx)?),
            Op::Renew { at, epoch, .. } => reply = Reply::Token(self.renew(*at, *epoch, ctx)?),
            Op::Complete {
                at, epoch, units, ..
            } => reply = Reply::Token(self.complete(*at, *epoch, *units, ctx)?),
            Op::Leave { at, .. } => reply = Reply::Token(self.leave(*at, ctx)?),
            Op::Move {
                lane, token, to, ..
            } => reply = Reply::Token(self.move_token(lane, *token, to, ctx)?),
            Op::Jump { by, to, .. } => reply = Reply::Token(self.jump(by, to, ctx)?),
            Op::CallNext {
                n, lane, call_id, ..
            } => reply = self.call_next(*n, lane.as_ref(), call_id, ctx)?,
            Op::Take { by, call_id, .. } => reply = self.take(by, call_id.as_deref(), ctx)?,
            Op::Recycle { tokens, .. } => {
                let count = self.recycle(tokens, ctx);
                reply = Reply::Recycled { count };
            }
            Op::Touch { tokens, .. } => self.touch_all(tokens, ctx.now_ms),
            Op::Kick { tokens, note, .. } => reply = self.kick(tokens, note.as_deref(), ctx)?,
            Op::CountRefused { refused, .. } => {
                self.refused = self.refused.value().plus(refused).into()
            }
            Op::CapacityTold { told, .. } => self.capacity_told(*told, ctx)?,
            Op::RenewQuota { next_ms, .. } => self.renew_quota(*next_ms, ctx),
            Op::SealDraw { seed, .. } => self.seal_draw(*seed, ctx),
            Op::RunBackground { .. } => self.run_background(ctx),
        }
        self.after_operation(ctx);
        Ok(match op {
            Op::Configure { .. } | Op::CapacityTold { .. } | Op::Import { .. } => self.as_reply(),
            Op::Delete { .. } => Reply::Deleted {
                remaining: self.left_to_delete(),
            },
            _ => reply,
        })
    }

    pub(crate) fn as_reply(&self) -> Reply {
        Reply::Line {
            incarnation: self.incarnation,
            version: self.version,
        }
    }

    fn configure(
        &mut self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<(), Refused> {
        let settings = self.would_configure(patch, if_version, None)?;
        if settings != *self.settings {
            self.change_settings(settings, None, ctx);
            self.run_background(ctx);
        }
        Ok(())
    }

    /// The settings that this change would give, under these conditions.
    ///
    /// # Errors
    /// Those of [`Op::Configure`].
    pub fn would_configure(
        &self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        incarnation: Option<u64>,
    ) -> Result<Settings, Refused> {
        if incarnation.is_some_and(|it| it != self.incarnation) {
            return Err(Refused::AnotherIncarnation);
        }
        // A closed line can be opened again only when all its tokens are gone.
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
        if patch.schedule.is_some() {
            schedule::check(&settings, Some(self))?;
        }
        Ok(settings)
    }

    /// Puts settings in force that have been checked and differ from the current ones.
    pub(crate) fn change_settings(
        &mut self,
        settings: Settings,
        scheduled_at_ms: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) {
        let old = std::mem::replace(&mut self.settings, Arc::new(settings));
        self.order_lanes();
        let renew = |settings: &Settings| settings.quota.and_then(|quota| quota.renew);
        if renew(&old) != renew(&self.settings) {
            self.renews_at_ms = None;
        }
        if old.gate != self.settings.gate {
            self.change_gate();
        }
        if old.admission_rate != self.settings.admission_rate {
            self.change_rate(old.admission_rate, ctx.now_ms);
        }
        self.publish_configured(&old, scheduled_at_ms, ctx);
    }

    /// Makes one event for a change of the phase, one for all other changes, and one journal entry.
    fn publish_configured(
        &mut self,
        old: &Settings,
        scheduled_at_ms: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) {
        let phase = self.settings.phase;
        let switched = old.phase != phase;
        let rest = Settings {
            phase,
            ..old.clone()
        } != *self.settings;
        let what = [
            (rest || !switched).then_some(LineChange::Configured),
            switched.then_some(LineChange::Phase { phase }),
        ];
        for what in what.into_iter().flatten() {
            self.settings_version = self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
        }
        self.journal_entry(Journaled::Configured { scheduled_at_ms }, ctx.wall_ms);
        let change = SettingsChange::new(self.version, old, &self.settings);
        self.journal.push_change(change);
    }

    fn delete(&mut self, force: bool, ctx: &mut ApplyCtx<'_>) -> Result<(), Refused> {
        if !self.deleting {
            if self.live_count() > 0 && !force && self.phase() != Phase::Closed {
                return Err(Refused::LineNotEmpty);
            }
            self.deleting = true;
            // Deleting changes the pointers, so it must change the version.
            self.next_version();
            self.run_background(ctx);
        }
        Ok(())
    }

    /// `entered_at_ms`: when it entered the queue that it comes from (wall clock); by default now.
    pub(crate) fn enter(
        &mut self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        entered_at_ms: Option<u64>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        if let Some(key) = key {
            if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
                return Err(BadField::new("key", "1 to 128 bytes").into());
            }
            let known = self
                .find(key)
                .filter(|_| !nowserving_bite::is(nowserving_bite::Break::S13));
            if let Some(at) = known {
                self.touch(at, ctx.now_ms);
                return Ok(at);
            }
        }
        let lane = self.lane_for_newcomer(lane, ctx.now_ms)?;
        let now = ctx.now();
        let shown_ms = entered_at_ms.map_or(now.wall_ms, |ms| ms.min(now.wall_ms));
        let entered = Entered {
            // Only what is shown: the order of lanes, and times to wait, go by the service clock.
            at: Timestamp {
                wall_ms: shown_ms,
                ..now
            },
            version: self.version.saturating_add(1),
        };
        let token = self.issue(lane, Live::newcomer(key, entered), ctx.now_ms)?;
        self.entered_event((lane, token), key, entered, ctx);
        if !self.is_undrawn() {
            self.lanes[usize::from(lane)].mark_newcomer(token);
        }
        self.callback_entered(key, lane, ctx.now_ms);
        // Every token starts out waiting, and may be admitted at once only if no other one waits. Seats
        // can be free while others wait, if background work has yet to admit those.
        if self.waiting() == 1 {
            self.admit(1, ctx);
        }
        self.record_eta(lane, token, ctx.now_ms);
        Ok(self.token_ref(lane, token))
    }

    /// Records the ETA that a waiting newcomer is given: if no guess was in it, it is compared with the true wait on
    /// admission.
    fn record_eta(&mut self, lane: u8, token: Token, now_ms: u64) {
        if !self.lanes[usize::from(lane)].waiting.contains(token) {
            return;
        }
        // It is the last in its lane.
        let position = self.lanes[usize::from(lane)].waiting.len();
        let eta = self.eta(lane, position, now_ms, now_ms);
        let given = eta.and_then(|eta| Some((eta.given()?, eta.from)));
        self.forecast.record_given(given.map(|(_, from)| from));
        let judged = given.filter(|_| !self.is_partly_guessed());
        if let Some((given, _)) = judged {
            let waiting = &mut self.lanes[usize::from(lane)].waiting;
            waiting.set_eta(token, Some(given));
        }
    }

    /// Whether the operator's guess still counts in forecasts.
    fn is_partly_guessed(&self) -> bool {
        let guess = self.settings.checkout_expected_ms;
        guess.is_some_and(|ms| self.forecast.with_guess(ms, self.seats()).is_some())
    }

    /// Under `release_on_claim` the claim also completes the token.
    fn claim(&mut self, at: TokenRef, ctx: &mut ApplyCtx<'_>) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        let done = self.gone_as(at, Reason::Completed)?;
        if done.is_some_and(|gone| gone.released) {
            return Ok(at);
        }
        let claim_epoch = self.epoch.saturating_add(1);
        let claim_epoch = match nowserving_bite::is(nowserving_bite::Break::S9) {
            true => self.epoch.max(1),
            false => claim_epoch,
        };
        let deadline_ms = self.checkout_deadline_ms(ctx.now_ms, ctx.now_ms);
        let live = self.open_live(at)?;
        match live.stage {
            Stage::Waiting { .. } => return Err(Refused::NotAdmitted),
            Stage::InCheckout { .. } => {}
            Stage::Admitted { units, .. } => {
                let entered = live.entered;
                if let Some(stage) = self.seat_mut(at) {
                    *stage = Stage::InCheckout {
                        deadline_ms,
                        claimed_at_ms: ctx.now_ms,
                        epoch: claim_epoch,
                        units,
                    };
                }
                self.epoch = claim_epoch;
                self.admitted -= 1;
                self.in_checkout += 1;
                self.lanes[usize::from(at.lane)].in_checkout += 1;
                let claimed = TokenChange::Claimed { epoch: claim_epoch };
                self.token_event(at.lane, at.token, claimed, ctx);
                let what = JournaledToken::Claimed { epoch: claim_epoch };
                self.journal_token((at.lane, at.token), entered, what, ctx.wall_ms);
                if self.settings.release_on_claim {
                    let gone = Gone {
                        released: true,
                        ..Gone::new(Reason::Completed, None)
                    };
                    self.end_and_fill(at, gone, ctx);
                }
            }
        }
        Ok(at)
    }

    fn renew(
        &mut self,
        at: TokenRef,
        epoch: u64,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        let claimed_at_ms = claim_of(self.open_live(at)?.stage, Some(epoch))?;
        let new_ms = self.checkout_deadline_ms(ctx.now_ms, claimed_at_ms);
        if let Some(Stage::InCheckout { deadline_ms, .. }) = self.seat_mut(at) {
            // The deadline never moves earlier, even if the timeouts were lowered.
            *deadline_ms = new_ms.max(*deadline_ms);
        }
        self.next_version();
        Ok(at)
    }

    fn complete(
        &mut self,
        at: TokenRef,
        epoch: Option<u64>,
        used: Option<u32>,
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
        claim_of(self.open_live(at)?.stage, epoch)?;
        // What it did not use is free again before its seat goes to the next one.
        if let (Some(Stage::InCheckout { units, .. }), Some(used)) = (self.seat_mut(at), used) {
            let reserved = *units;
            let fits = used <= reserved;
            let fits = fits || nowserving_bite::is(nowserving_bite::Break::S10Units);
            if !fits {
                let limit = format!("at most {reserved}: what its seat reserves");
                return Err(BadField::new("units", limit).into());
            }
            *units = used;
            self.reserved = self.reserved.saturating_add(used.into());
            self.reserved -= u64::from(reserved);
        }
        self.end_and_fill(at, Gone::new(Reason::Completed, None), ctx);
        Ok(at)
    }

    fn leave(&mut self, at: TokenRef, ctx: &mut ApplyCtx<'_>) -> Result<TokenRef, Refused> {
        let at = self.resolve(at);
        if self.gone_as(at, Reason::Left)?.is_none() {
            self.open_live(at)?;
            self.end_and_fill(at, Gone::new(Reason::Left, None), ctx);
        }
        Ok(at)
    }

    fn move_token(
        &mut self,
        lane: &LaneName,
        token: Token,
        to: &LaneName,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let from_id = self.lane_id(lane);
        let from_id = from_id.ok_or_else(|| self.no_lane("lane", lane))?;
        let to_id = self.listed_id(to);
        let to_id = to_id.ok_or_else(|| self.no_lane("to", to))?;
        let asked = self.token_ref(from_id, token);
        let at = self.resolve(asked);
        let live = match self.open_live(at) {
            Err(Refused::TicketInvalid) => return Err(Refused::TokenNotFound),
            live => live?,
        };
        let waits = !live.holds_seat();
        let moves = live.moved_from.len();
        if at.lane == to_id {
            // Named by a former number, this is a repetition of the move that has been done.
            return if at == asked {
                Err(BadField::new("to", "it is in this lane already").into())
            } else {
                Ok(at)
            };
        }
        if !waits {
            return Err(Refused::NotWaiting);
        }
        if moves >= MOVES_MAX {
            return Err(BadField::new("token", "moved at most 16 times").into());
        }
        self.check_moves_into(to_id)?;
        self.reissue(at, to_id, MovedBy::Operator, ctx)
    }

    /// Ends a waiting token and issues the next number of another lane in its place.
    pub(crate) fn reissue(
        &mut self,
        at: TokenRef,
        to_id: u8,
        by: MovedBy,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        self.measure(ctx.now_ms);
        let live = self.remove_live(at.lane, at.token);
        let live = live.ok_or(Refused::TicketInvalid)?;
        let mut moved_from = live.moved_from.to_vec();
        moved_from.push((at.lane, at.token));
        let entered = live.entered;
        let live = Live {
            moved_from: &moved_from,
            jumps: live.jumps + u8::from(by == MovedBy::Jump),
            eta_given: None,
            ..live.view()
        };
        let to = self.issue(to_id, live, ctx.now_ms)?;
        for old in moved_from {
            self.moved.get_mut().insert(old, (to_id, to));
        }
        self.count_gone(Reason::Moved, State::Waiting);
        let what = TokenChange::Moved {
            to_lane: self.lanes[usize::from(to_id)].name.clone(),
            to: self.token_ref(to_id, to),
            by,
        };
        self.token_event(at.lane, at.token, what, ctx);
        let what = JournaledToken::Moved {
            to_lane: to_id,
            to,
            by,
        };
        self.journal_token((at.lane, at.token), entered, what, ctx.wall_ms);
        Ok(self.token_ref(to_id, to))
    }

    /// Ends the expired tokens of the list, and returns how many it ended. Tokens that have changed since the
    /// proposer looked are skipped.
    fn recycle(&mut self, items: &[RecycleItem], ctx: &mut ApplyCtx<'_>) -> u64 {
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
            if let Some(reason) = self.expired_for(live, item, ctx.now_ms) {
                ended.add(self.end(item.lane, item.token, reason, ctx));
            }
        }
        // Not before the end of the list: a token later in the list must not be admitted first.
        self.fill_freed_seats(&ended, ctx);
        ended.count()
    }

    /// Whether [`Op::Recycle`] ends the token of this item at this reading of the service clock, if the entry has work
    /// left.
    pub fn has_expired(&self, item: &RecycleItem, now_ms: u64) -> bool {
        let live = self.live(item.lane, item.token);
        self.phase() != Phase::Closed
            && live.is_some_and(|live| self.expired_for(live, item, now_ms).is_some())
    }

    /// The reason for which a token has expired. It must not have changed since the proposer looked, but to be
    /// seen meanwhile does not let a client wait for longer.
    fn expired_for(&self, live: Live<'_>, item: &RecycleItem, now_ms: u64) -> Option<Reason> {
        let is_past = |at_ms: u64| at_ms <= now_ms;
        if self.wait_expires_at_ms(live).is_some_and(is_past) && item.state == State::Waiting {
            return Some(Reason::WaitExpired);
        }
        let unchanged = (live.state(), live.clock_ms()) == (item.state, item.clock_ms);
        let unchanged = unchanged
            && !(matches!(live.stage, Stage::Admitted { .. })
                && nowserving_bite::is(nowserving_bite::Break::L4));
        (unchanged && is_past(self.due_at_ms(live))).then_some(match live.stage {
            Stage::Waiting { .. } => Reason::Idle,
            Stage::Admitted { .. } => Reason::NoShow,
            Stage::InCheckout { .. } => Reason::CheckoutExpired,
        })
    }

    fn touch_all(&mut self, tokens: &[(u8, Token, u64)], now_ms: u64) {
        for (lane, token, seen_ms) in tokens.iter().take(TOUCH_MAX) {
            // A time in the future would keep the token in line although its client is not seen.
            let seen_ms = (*seen_ms).min(now_ms);
            self.touch(self.token_ref(*lane, *token), seen_ms);
        }
    }

    /// Restarts the idle clock of a waiting token.
    fn touch(&mut self, at: TokenRef, seen_ms: u64) {
        let at = self.resolve(at);
        let Some(lane) = self.lanes.get_mut(usize::from(at.lane)) else {
            return;
        };
        let live = lane.waiting.get(at.token);
        if live.is_some_and(|live| live.clock_ms() < seen_ms) {
            lane.waiting.set_seen(at.token, seen_ms);
        }
    }

    /// A live token of an open line. A gone one is refused with its reason.
    pub(crate) fn open_live(&self, at: TokenRef) -> Result<Live<'_>, Refused> {
        let (lane, found) = self.locate(at)?;
        if let Found::Gone(gone) = found {
            return Err(Refused::TokenGone(gone.map(|gone| gone.reason)));
        }
        self.check_open()?;
        let live = match found {
            Found::Seated(live) => Some(live.view()),
            _ => lane.waiting.get(at.token),
        };
        live.ok_or(Refused::TicketInvalid)
    }

    /// The stage of a token with a seat.
    fn seat_mut(&mut self, at: TokenRef) -> Option<&mut Stage> {
        let lane = self.lanes.get_mut(usize::from(at.lane))?;
        Some(&mut lane.seated.get_mut(at.token)?.stage)
    }

    /// The record of a token that is gone for this very reason: the repetition of an operation gets the
    /// same answer.
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

/// When the token claimed. Refused if it has not, or if the epoch is not the one of its claim.
fn claim_of(stage: Stage, epoch: Option<u64>) -> Result<u64, Refused> {
    match stage {
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
