//! The operations on one line, in terms of `transition`.

use crate::gone::Gone;
use crate::line::{Found, Line};
use crate::transition::{Ended, Turn};
use crate::{BadField, KEY_BYTES_MAX, LaneName, LineChange, Live, RECYCLE_MAX, Reason};
use crate::{RecycleItem, Refused, SettingsPatch, Stage, Status, Token, TokenChange, TokenRef};

impl Line {
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
        let lane = self.lane_for_newcomer(lane)?;
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
        let deadline_ms = self.checkout_deadline_ms(turn.now_ms, turn.now_ms);
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
        let claimed_at_ms = claim_of(self.live_mut(at)?, Some(epoch))?;
        let new_ms = self.checkout_deadline_ms(turn.now_ms, claimed_at_ms);
        if let Stage::InCheckout { deadline_ms, .. } = &mut self.live_mut(at)?.stage {
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

    fn check_open(&self) -> Result<(), Refused> {
        if self.deleting {
            Err(Refused::LineClosed)
        } else {
            Ok(())
        }
    }

    /// What `enter` would be refused with now; `None` if it would be taken, or answered with the
    /// live token of its key. For a leader that refuses without asking the log.
    pub fn would_refuse_enter(
        &self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
    ) -> Option<Refused> {
        if key.is_some_and(|key| self.find(key).is_some()) {
            return None;
        }
        self.lane_for_newcomer(lane).err()
    }

    /// The lane that a newcomer's number would be of.
    fn lane_for_newcomer(&self, lane: Option<&LaneName>) -> Result<u8, Refused> {
        self.check_open()?;
        let lane = match lane {
            None => 0,
            Some(name) => self.lane_id(name)?,
        };
        if self.room() == 0 {
            return Err(Refused::LineFull);
        }
        Ok(lane)
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
            Found::Live(_) => None,
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
