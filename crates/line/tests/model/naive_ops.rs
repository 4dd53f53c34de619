//! The operations on the naive line.

use nowserving_line::{
    BadField, Change, Gate, Journaled, JournaledToken, KickItem, KickNote, LaneName, LineChange,
    Op, Phase, Reason, RecycleItem, Refused, Settings, SettingsPatch, Shadow, State, Timestamp,
    TokenChange,
};

use crate::naive::{Answer, Events, Id, NaiveLine, Tok};
use crate::shard::Entry;

pub fn bad(field: impl Into<String>) -> Refused {
    let field = field.into();
    BadField::new(field, "").into()
}

impl NaiveLine {
    /// The remaining background work, without that which follows every operation.
    pub fn work(&mut self, entry: &mut Entry<'_>) {
        self.end_or_admit(entry);
        while entry.work > 0 && self.next_scheduled().is_some_and(|ms| ms <= self.wall_ms) {
            entry.work -= 1;
            let change = self.settings.schedule.remove(0);
            let at_ms = change.at_ms;
            let new = patched(&self.settings, &change.set);
            match self.misfit(&new) {
                None => self.switch(new, Some(at_ms), entry),
                Some(_) => self.drop_scheduled(at_ms, entry),
            }
            self.end_or_admit(entry);
        }
    }

    /// When the next change of the schedule can be applied; never while tokens of a closed line are to be ended.
    pub fn next_scheduled(&self) -> Option<u64> {
        let ending = self.phase() == Phase::Closed && (self.deleting || self.live() > 0);
        let next = self.settings.schedule.first().filter(|_| !ending);
        next.map(|change| change.at_ms)
    }

    fn drop_scheduled(&mut self, scheduled_at_ms: u64, entry: &mut Entry<'_>) {
        let what = LineChange::ScheduleFailed {
            scheduled_at_ms,
            wrong: BadField::new("", ""),
        };
        self.line_event(what, entry.events);
        self.settings_version = self.version;
        self.keep(Journaled::ScheduleFailed { scheduled_at_ms });
    }

    /// The field for which the line cannot have these settings.
    fn misfit(&self, new: &Settings) -> Option<&'static str> {
        let listed = |name: &LaneName| new.lanes.iter().any(|set| set.name == *name);
        if new.default_lane.as_ref().is_some_and(|name| !listed(name)) {
            return Some("default_lane");
        }
        let in_use = |lane: u8| {
            let mut tokens = self.tokens.iter();
            tokens.any(|(id, t)| id.0 == lane && t.state != State::Gone)
        };
        let mut table = (0..).zip(&self.table);
        let lost = table.any(|(lane, name)| in_use(lane) && !listed(name));
        lost.then_some("lanes")
    }

    fn end_or_admit(&mut self, entry: &mut Entry<'_>) {
        if self.phase() != Phase::Closed {
            self.run_draw(entry);
            let most = u64::from(entry.work);
            entry.work -= self.admit(most, entry.now_ms, entry.events) as u32;
            return;
        }
        while entry.work > 0 {
            let mut tokens = self.tokens.iter();
            let live = tokens.find(|(_, t)| t.state != State::Gone);
            let Some((id, _)) = live else { break };
            self.end(*id, Reason::Closed, entry.events);
            entry.work -= 1;
        }
        if self.deleting {
            self.drop_callers(entry);
        }
    }

    /// While the line is being deleted, once nobody is left in it.
    fn drop_callers(&mut self, entry: &mut Entry<'_>) {
        while entry.work > 0 && !self.callers.is_empty() {
            entry.work -= 1;
            let first = (0..self.callers.len()).min_by_key(|place| self.callers[*place].0);
            self.callers.remove(first.unwrap());
        }
    }

    /// The work that follows every operation.
    pub fn settle(&mut self, entry: &mut Entry<'_>) {
        self.note_silence(entry.now_ms, entry.events);
        if self.phase() != Phase::Closed {
            self.settle_tokens(entry);
            self.tell_callers(entry);
        }
    }

    fn settle_tokens(&mut self, entry: &mut Entry<'_>) {
        if self.sold_out() {
            for (lane, _) in self.lanes() {
                for token in self.waiting(lane) {
                    if entry.work == 0 {
                        return;
                    }
                    entry.work -= 1;
                    self.end((lane, token), Reason::SoldOut, entry.events);
                }
            }
            return;
        }
        for id in self.to_call() {
            if entry.work == 0 {
                return;
            }
            entry.work -= 1;
            self.tokens.get_mut(&id).unwrap().called = true;
            self.event(id, TokenChange::CallAhead, entry.events);
        }
        while entry.work > 0 {
            let Some((id, position)) = self.to_tell() else {
                return;
            };
            entry.work -= 1;
            self.tell(id, position);
            self.event(id, TokenChange::Position { position }, entry.events);
        }
    }

    pub fn configure(
        &mut self,
        patch: &SettingsPatch,
        if_version: Option<u64>,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if self.deleting || (self.settings.phase == Phase::Closed && self.live() > 0) {
            return Err(Refused::LineClosed);
        }
        if if_version.is_some_and(|v| v < self.settings_version || v > self.version) {
            return Err(Refused::VersionConflict);
        }
        let new = patched(&self.settings, patch);
        // Each by itself, before anything else.
        for (place, change) in new.schedule.iter().enumerate() {
            if contradicts_itself(&change.set) {
                return Err(bad(format!("schedule[{place}].set.default_lane")));
            }
        }
        if let Some(field) = self.misfit(&new) {
            return Err(bad(field));
        }
        if patch.schedule.is_some() {
            let mut then = new.clone();
            for (place, change) in new.schedule.iter().enumerate() {
                then = patched(&then, &change.set);
                if let Some(field) = self.misfit(&then) {
                    return Err(bad(format!("schedule[{place}].set.{field}")));
                }
            }
        }
        if new != self.settings {
            self.switch(new, None, entry);
            self.work(entry);
        }
        Ok(Answer::Line {
            incarnation: self.incarnation,
            version: self.version,
        })
    }

    fn switch(&mut self, new: Settings, scheduled_at_ms: Option<u64>, entry: &mut Entry<'_>) {
        let mut old = std::mem::replace(&mut self.settings, new.clone());
        if scheduled_at_ms.is_some() {
            old.schedule = new.schedule.clone();
        }
        let renew = |settings: &Settings| settings.quota.and_then(|quota| quota.renew);
        if renew(&old) != renew(&new) {
            self.renews_at_ms = None;
        }
        if old.admission_rate != new.admission_rate {
            self.admissions.clear();
            let full = new
                .admission_rate
                .map_or(0, |r| u128::from(r.burst) * 1_000_000_000);
            let kept = old.admission_rate.map_or(full, |_| self.saved);
            self.saved = kept.min(full);
        }
        if old.gate != new.gate {
            if new.gate == Gate::Shadow {
                self.shadow = Shadow::default();
            }
            self.opened += u64::from(new.gate != Gate::On);
        }
        for set in &new.lanes {
            if !self.table.contains(&set.name) {
                self.table.push(set.name.clone());
            }
        }
        self.change_marks(&old.position_events);
        let phase = new.phase;
        if (Settings {
            phase,
            ..old.clone()
        }) != new
            || old.phase == phase
        {
            self.line_event(LineChange::Configured, entry.events);
        }
        if old.phase != phase {
            self.line_event(LineChange::Phase { phase }, entry.events);
        }
        self.settings_version = self.version;
        self.changes.insert(self.version, (old, new));
        self.keep(Journaled::Configured { scheduled_at_ms });
    }

    pub fn delete(&mut self, force: bool, entry: &mut Entry<'_>) -> Result<Answer, Refused> {
        if !self.deleting {
            if self.live() > 0 && !force && self.settings.phase != Phase::Closed {
                return Err(Refused::LineNotEmpty);
            }
            self.deleting = true;
            self.version += 1;
            self.work(entry);
        }
        Ok(Answer::Remaining(self.left_to_delete()))
    }

    /// `shown_ms`: when it is to be shown to have entered, unless that is to come.
    pub fn enter(
        &mut self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        shown_ms: Option<u64>,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        let now_ms = entry.now_ms;
        if let Some(id) = key.and_then(|key| self.find(key)) {
            let tok = self.tokens.get_mut(&id).unwrap();
            tok.last_seen_ms = tok.last_seen_ms.max(now_ms);
            return Ok(Answer::Token(id));
        }
        match self.phase() {
            Phase::Closed => return Err(Refused::LineClosed),
            Phase::Draining => return Err(Refused::LineDraining),
            _ => {}
        }
        let lane = lane.or(self.settings.default_lane.as_ref());
        let mut lanes = self.lanes().into_iter();
        let found = lanes.find(|(_, set)| lane.is_none_or(|lane| set.name == *lane));
        let (lane, set) = found.ok_or_else(|| bad("lane"))?;
        let (_, admitted_through, accepts_through, next) = self.pointers(lane, &set);
        let silent = self.silence_due_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if self.hopeless() {
            return Err(Refused::SoldOut);
        }
        if next > accepts_through {
            return Err(self.full(lane, &set));
        }
        let entered = Timestamp {
            service_ms: now_ms,
            wall_ms: shown_ms.unwrap_or(self.wall_ms).min(self.wall_ms),
        };
        let id = self.issue(lane, Tok::newcomer(key, entered));
        self.note_entered(id, entry.events);
        self.tell_newcomer(id);
        self.caller_entered(key, lane, now_ms);
        if self.count(State::Waiting) == 1 {
            self.admit(1, now_ms, entry.events);
        }
        let promised = next <= admitted_through;
        let waits = self.tokens[&id].state == State::Waiting;
        let kept = silent || !(promised && waits);
        assert!(
            kept,
            "what is promised is kept, unless the backend has fallen silent"
        );
        Ok(Answer::Token(id))
    }

    pub fn recycle(&mut self, items: &[RecycleItem], entry: &mut Entry<'_>) -> Answer {
        if self.phase() == Phase::Closed {
            return Answer::Recycled(0);
        }
        let now_ms = entry.now_ms;
        let (mut ended, mut seats) = (0, 0);
        for item in items {
            if entry.work == 0 {
                break;
            }
            entry.work -= 1;
            let id = (item.lane, item.token);
            let Some(tok) = self.tokens.get(&id) else {
                continue;
            };
            let (clock_ms, due, reason) = match tok.state {
                State::Waiting => {
                    let silent_ms = now_ms.saturating_sub(tok.last_seen_ms);
                    let due = silent_ms > self.settings.waiting_idle_timeout_ms;
                    (tok.last_seen_ms, due, Reason::Idle)
                }
                State::Admitted => (tok.deadline_ms, now_ms >= tok.deadline_ms, Reason::NoShow),
                State::InCheckout => {
                    let due = now_ms >= tok.deadline_ms;
                    (tok.deadline_ms, due, Reason::CheckoutExpired)
                }
                State::Gone => continue,
            };
            let waited_ms = now_ms.saturating_sub(tok.entered.service_ms);
            let too_long = self.settings.max_wait_ms.is_some_and(|ms| waited_ms > ms);
            let end = if too_long && (tok.state, item.state) == (State::Waiting, State::Waiting) {
                Some(Reason::WaitExpired)
            } else {
                let same = (tok.state, clock_ms) == (item.state, item.clock_ms);
                (due && same).then_some(reason)
            };
            if let Some(reason) = end {
                ended += 1;
                seats += u64::from(tok.state != State::Waiting);
                self.end(id, reason, entry.events);
            }
        }
        self.admit(seats, now_ms, entry.events);
        Answer::Recycled(ended)
    }

    pub fn kick(
        &mut self,
        items: &[KickItem],
        note: Option<&KickNote>,
        kept: usize,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if self.phase() == Phase::Closed {
            return Err(Refused::LineClosed);
        }
        let (mut ended, mut seats, mut taken) = (0, 0, 0);
        for item in items {
            if entry.work == 0 {
                break;
            }
            entry.work -= 1;
            taken += 1;
            let id = self.resolve((item.lane, item.token), kept);
            let Some(tok) = self.tokens.get(&id).filter(|t| t.state != State::Gone) else {
                continue;
            };
            let clock_ms = match tok.state {
                State::Waiting => tok.last_seen_ms,
                _ => tok.deadline_ms,
            };
            if item.state.is_some_and(|state| state != tok.state)
                || item.clock_ms.is_some_and(|ms| ms < clock_ms)
            {
                continue;
            }
            seats += u64::from(tok.state != State::Waiting);
            if let Some(note) = note.filter(|_| ended == 0) {
                self.version += 1;
                self.kicks.insert(self.version, note.clone());
                self.keep(Journaled::Kicked);
            }
            ended += 1;
            self.end(id, Reason::Kicked, entry.events);
        }
        self.admit(seats, entry.now_ms, entry.events);
        Ok(Answer::Kicked(ended, taken))
    }

    pub fn token_op(
        &mut self,
        op: &Op,
        kept: usize,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        let at = match op {
            Op::Claim { at, .. }
            | Op::Renew { at, .. }
            | Op::Complete { at, .. }
            | Op::Leave { at, .. } => *at,
            other => panic!("not an operation on a token: {other:?}"),
        };
        self.check(at)?;
        let id = self.resolve((at.lane, at.token), kept);
        let answer = Ok(Answer::Token(id));
        let tok = &self.tokens[&id];
        let reason = tok.reason.filter(|_| self.remembers(tok, kept));
        match (op, reason) {
            // Asking again for what ended it.
            (Op::Leave { .. }, Some(Reason::Left)) => answer,
            (Op::Claim { .. }, Some(Reason::Completed)) if tok.released => answer,
            (Op::Complete { epoch, .. }, Some(Reason::Completed)) => {
                let stale = epoch.is_some() && *epoch != tok.epoch;
                if stale {
                    Err(Refused::EpochStale)
                } else {
                    answer
                }
            }
            _ if tok.state == State::Gone => Err(Refused::TokenGone(reason)),
            _ if self.phase() == Phase::Closed => Err(Refused::LineClosed),
            _ => self.live_op(op, id, entry.now_ms, entry.events).and(answer),
        }
    }

    fn live_op(&mut self, op: &Op, id: Id, now_ms: u64, events: Events<'_>) -> Result<(), Refused> {
        let tok = &self.tokens[&id];
        let state = tok.state;
        let held = u64::from(state != State::Waiting);
        if let Op::Leave { .. } = op {
            self.end(id, Reason::Left, events);
            self.admit(held, now_ms, events);
            return Ok(());
        }
        match (state, op) {
            (State::Waiting, _) => return Err(Refused::NotAdmitted),
            (State::InCheckout, Op::Claim { .. }) => return Ok(()),
            (State::Admitted, Op::Claim { .. }) => {
                self.claim(id, now_ms, events);
                return Ok(());
            }
            (State::Admitted, _) => return Err(Refused::NotClaimed),
            _ => {}
        }
        let given = match op {
            Op::Renew { epoch, .. } => Some(*epoch),
            Op::Complete { epoch, .. } => *epoch,
            _ => None,
        };
        if given.is_some() && given != tok.epoch {
            return Err(Refused::EpochStale);
        }
        if let Op::Renew { .. } = op {
            let s = &self.settings;
            let end_ms = tok.claimed_at_ms + s.checkout_max_ms;
            let new_ms = (now_ms + s.checkout_timeout_ms).min(end_ms);
            let tok = self.tokens.get_mut(&id).unwrap();
            tok.deadline_ms = tok.deadline_ms.max(new_ms);
            self.version += 1;
        } else {
            if let Op::Complete { units, .. } = op {
                let reserved = tok.units;
                let used = units.unwrap_or(reserved);
                if used > reserved {
                    return Err(BadField::new("units", "").into());
                }
                self.tokens.get_mut(&id).unwrap().units = used;
            }
            self.end(id, Reason::Completed, events);
            self.admit(held, now_ms, events);
        }
        Ok(())
    }

    fn claim(&mut self, id: Id, now_ms: u64, events: Events<'_>) {
        self.epoch += 1;
        let s = &self.settings;
        let lasts_ms = s.checkout_timeout_ms.min(s.checkout_max_ms);
        let tok = self.tokens.get_mut(&id).unwrap();
        tok.state = State::InCheckout;
        tok.deadline_ms = now_ms + lasts_ms;
        tok.claimed_at_ms = now_ms;
        tok.epoch = Some(self.epoch);
        tok.released = self.settings.release_on_claim;
        let epoch = self.epoch;
        self.event(id, TokenChange::Claimed { epoch }, events);
        self.note(id, JournaledToken::Claimed { epoch });
        if self.settings.release_on_claim {
            self.end(id, Reason::Completed, events);
            self.admit(1, now_ms, events);
        }
    }
}

/// It names lanes, and as the default another one.
fn contradicts_itself(patch: &SettingsPatch) -> bool {
    match (&patch.lanes, &patch.default_lane) {
        (Some(Change::Set(lanes)), Some(Change::Set(name))) => {
            lanes.iter().all(|set| set.name != *name)
        }
        _ => false,
    }
}

fn patched(old: &Settings, patch: &SettingsPatch) -> Settings {
    use nowserving_line::Change::{Set, Unset};
    let mut new = old.clone();
    macro_rules! set {
        ($($field:ident)*) => {
            $(if let Some(Set(value)) = &patch.$field {
                new.$field = value.clone();
            })*
        };
    }
    set! {
        seats queue_limit waiting_idle_timeout_ms claim_timeout_ms checkout_timeout_ms
        checkout_max_ms lanes call_ahead call_ahead_ms callback_limit position_events phase
        release_on_claim jumps_max schedule event_key admission gate poll_min_ms
        opening
    }
    macro_rules! option {
        ($($field:ident)*) => {
            $(match &patch.$field {
                Some(Set(value)) => new.$field = Some(value.clone()),
                Some(Unset) => new.$field = None,
                None => {}
            })*
        };
    }
    option!(
        seats_when_silent max_wait_ms checkout_expected_ms admission_rate quota position_cap
        default_lane draw_beacon
    );
    new
}
