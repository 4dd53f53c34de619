//! S7 to S10: a line as one would keep it by hand, from what operations were answered and which events
//! came of them. Knows nothing of how the real one keeps its books.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{
    Admission, AdmittedBy, Event, LaneName, Line, LineName, MovedBy, Op, Reason, Refused, Reply,
    ScheduledChange, Status, Token, TokenChange,
};

mod draw;
mod imports;
mod places;
mod settings;
mod told;

use self::draw::Draw;
use self::imports::Imports;
use self::told::Told;
use super::{Place, SLOW_CLOCK_PERCENT};
use crate::env::Env;
use crate::replay::Applied;
use crate::timeline::Time;

/// A seat whose time is over is free again after this, and half its time for a change of leader.
const OVERDUE_MS: u64 = 2_000;

/// A token's lane and number.
pub type Id = (u8, Token);

/// All lines of a shard that ever were.
#[derive(Debug, Default)]
pub struct Shadow {
    /// By incarnation.
    pub lines: BTreeMap<u64, ShadowLine>,
    epochs: BTreeMap<LineName, u64>,
    versions: BTreeMap<LineName, u64>,
    /// Lines that were replaced by those of a backup: by incarnation, each with the version of the new one.
    replaced: BTreeMap<u64, Vec<(u64, ShadowLine)>>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct ShadowLine {
    /// Every token it gave.
    pub tokens: BTreeMap<Id, Kept>,
    waiting: BTreeMap<u8, BTreeSet<Token>>,
    held: BTreeSet<Id>,
    keys: BTreeMap<Box<[u8]>, Id>,
    gone: BTreeMap<Reason, u64>,
    /// Tokens that left the waiting ones other than by a seat: by version.
    holes: BTreeMap<u64, Id>,
    /// Any number while the gate holds nobody back.
    seats: u64,
    claim_timeout_ms: u64,
    checkout_timeout_ms: u64,
    /// The lanes into which tokens may jump.
    jump_lanes: BTreeSet<u8>,
    jumps_max: u32,
    schedule: Vec<ScheduledChange>,
    /// Nobody is admitted who is not called.
    called: bool,
    told: Told,
    imports: Imports,
    draw: Draw,
}

/// One token.
#[derive(Clone, Debug)]
pub struct Kept {
    key: Option<Box<[u8]>>,
    /// The line's version at which it stopped waiting.
    pub left_at: Option<u64>,
    /// The line's version at which it was issued, at the latest.
    pub issued_at: u64,
    /// The line's version when its key entered, at the latest: before all moves.
    entered_at: u64,
    /// The fencing number of its claim.
    epoch: Option<u64>,
    /// What it was moved to.
    moved_to: Option<Id>,
    /// When the clock that runs on it was last started, and by what.
    pub since: Time,
    jumps: u32,
}

impl Kept {
    /// A number that was issued, and that nobody has.
    fn nobody() -> Self {
        Kept {
            key: None,
            left_at: Some(0),
            issued_at: 0,
            entered_at: 0,
            epoch: None,
            moved_to: None,
            since: 0,
            jumps: 0,
        }
    }
}

impl Shadow {
    /// An operation was applied.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &Applied<'_>) {
        if let Err((invariant, what)) = self.take(place, applied) {
            let (shard, index) = (place.shard, place.index);
            let op = applied.op;
            env.violated(
                invariant,
                format!("shard {shard}, entry {index}: {what} ({op:?})"),
            );
        }
    }

    fn take(&mut self, place: Place, applied: &Applied<'_>) -> Result<(), Broken> {
        let Applied {
            op, result, events, ..
        } = applied;
        if let (Op::Create { line, .. }, Ok(Reply::Line { incarnation, .. })) = (op, result) {
            let mut new = ShadowLine::default();
            if let Some(line) = applied.state.lines().get(line) {
                new.set(line, applied.state.now_ms());
                new.draw.set(line);
            }
            if self.lines.insert(*incarnation, new).is_some() {
                return Err(("S7", format!("incarnation {incarnation} was given twice")));
            }
            return Ok(());
        }
        let name = op.line();
        let now = applied.state.lines().get(name);
        if let Some(line) = now {
            self.versions.insert(name.clone(), line.version());
        }
        let incarnation = match (now, events.first()) {
            (Some(line), _) => line.incarnation(),
            // It ended with this operation.
            (None, Some(Event::Token { incarnation, .. } | Event::Line { incarnation, .. })) => {
                *incarnation
            }
            (None, None) => return Ok(()),
        };
        let Some(line) = self.lines.get_mut(&incarnation) else {
            return Err(("S7", format!("incarnation {incarnation} was never made")));
        };
        let now_ms = applied.state.now_ms();
        if let Some(now) = now {
            let settings = now.settings();
            if !matches!(op, Op::Configure { .. }) {
                line.keeps_schedule(settings, applied.wall_ms)?;
            }
            line.keeps_called(op, settings, events)?;
            line.told.operation(op, result, settings, now_ms)?;
            let passing = line.seats_passing(op, settings);
            line.set(now, now_ms);
            line.seats = line.seats.max(passing);
        }
        if let (Op::Enter { key, .. }, Some(status)) = (op, &applied.status) {
            let id = (status.at.lane, status.at.token);
            let is_new = line.entered(key.as_deref(), status, applied.version_before, place)?;
            if is_new != (entered(events) == Some((id, applied.version_before + 1))) {
                return Err((
                    "S16",
                    format!("{id:?} has no event `entered`, or a second one"),
                ));
            }
        }
        let mut importing = line.importing(op, result)?;
        let mut last_version = applied.version_before;
        for event in *events {
            if event.version() <= last_version {
                return Err(("S16", format!("an event has version {}", event.version())));
            }
            last_version = event.version();
            if let Some(importing) = &mut importing {
                line.imports(importing, event, now, place)?;
            }
            line.event(event, place)?;
            line.draws(now, event)?;
            if let Some(now) = now {
                line.tells(event, now.settings())?;
            }
        }
        if let Some(now) = now {
            line.set(now, now_ms);
            line.draw.set(now);
            line.knows_imported(importing, now)?;
        }
        line.answered(op, result, place)?;
        if let Some(epoch) = line.claimed(op, applied.status.as_ref(), events)? {
            let last = self.epochs.entry(name.clone()).or_insert(0);
            if epoch <= *last {
                return Err(("S9", format!("epoch {epoch} is not above {last}")));
            }
            *last = epoch;
        }
        now.map_or(Ok(()), |now| line.counts_are(now))
    }

    /// The newest version that a line of this name had.
    #[must_use]
    pub fn last_version(&self, name: &LineName) -> u64 {
        self.versions.get(name).copied().unwrap_or(0)
    }

    /// A line is that of a backup now, made so long ago. S7: the numbers that were issued since are gone.
    pub fn replace(
        &mut self,
        (line, now_ms): (&Line, u64),
        backup: &Shadow,
        since_us: Time,
    ) -> Result<(), Broken> {
        let (incarnation, version) = (line.incarnation(), line.version());
        let Some(saved) = backup.lines.get(&incarnation) else {
            let what = format!("incarnation {incarnation} was not in the backup");
            return Err(("S10", what));
        };
        self.versions.insert(line.name().clone(), version);
        let mut saved = saved.clone();
        saved.told.put_back(line);
        saved.draw.put_back();
        saved.draw.set(line);
        saved.set(line, now_ms);
        let present = self.lines.remove(&incarnation).unwrap_or_default();
        let lanes = (0..).zip(line.dump().lanes);
        for (id, lane) in lanes {
            if lane.next_token < present.next_token(id) {
                let what = format!("number {} of lane {id} is issued again", lane.next_token);
                return Err(("S7", what));
            }
            saved.skip(id, lane.next_token);
        }
        for token in saved.tokens.values_mut() {
            token.entered_at = version;
            token.since += since_us;
        }
        let replaced = self.replaced.entry(incarnation).or_default();
        replaced.push((version, present));
        let last = self.epochs.get(line.name()).copied().unwrap_or(0);
        let counts = saved.counts_are(line);
        self.lines.insert(incarnation, saved);
        match line.dump().epoch < last {
            true => Err(("S9", format!("epochs go on below {last}"))),
            false => counts,
        }
    }

    /// The line of an incarnation, as it was at one of its versions.
    #[must_use]
    pub fn line_at(&self, incarnation: u64, version: u64) -> Option<&ShadowLine> {
        let replaced = self.replaced.get(&incarnation).into_iter().flatten();
        let mut later = replaced.filter(|(new, _)| version < *new);
        match later.next() {
            Some((_, line)) => Some(line),
            None => self.line(incarnation),
        }
    }

    /// The line of an incarnation.
    #[must_use]
    pub fn line(&self, incarnation: u64) -> Option<&ShadowLine> {
        self.lines.get(&incarnation)
    }
}

/// The invariant that is broken, and how.
pub type Broken = (&'static str, String);

/// The token whose event `entered` comes first, and its version; no other event is of that kind.
fn entered(events: &[Event]) -> Option<(Id, u64)> {
    let mut entered = events.iter().filter_map(|event| match event {
        Event::Token {
            version,
            lane_id,
            token,
            what: TokenChange::Entered { .. },
            ..
        } => Some(((*lane_id, *token), *version)),
        _ => None,
    });
    let first = entered.next();
    first.filter(|_| entered.next().is_none())
}

impl ShadowLine {
    fn set(&mut self, line: &Line, now_ms: u64) {
        let settings = line.settings();
        let jumps_into =
            |name: &LaneName| settings.lanes.iter().any(|it| it.jump && it.name == *name);
        let lanes = (0..).zip(line.lane_names());
        let lanes = lanes.filter(|(_, name)| jumps_into(name));
        self.jump_lanes = lanes.map(|(id, _)| id).collect();
        self.jumps_max = settings.jumps_max;
        self.schedule.clone_from(&settings.schedule);
        let holds_back = settings.gate.holds_back();
        self.called = settings.admission == Admission::Called && holds_back;
        self.seats = match holds_back {
            true => self.told.seats(settings, now_ms),
            false => u64::MAX,
        };
        self.claim_timeout_ms = settings.claim_timeout_ms;
        self.checkout_timeout_ms = settings.checkout_timeout_ms;
    }

    /// What a token is now.
    fn resolve(&self, mut id: Id) -> Id {
        while let Some(to) = self.tokens.get(&id).and_then(|token| token.moved_to) {
            id = to;
        }
        id
    }

    /// The next number of a lane.
    fn next_token(&self, lane: u8) -> Token {
        let last = self.tokens.range((lane, 0)..=(lane, u64::MAX)).next_back();
        last.map_or(1, |((_, token), _)| token + 1)
    }

    /// The numbers of a lane before this one are issued: those that are not known are gone.
    fn skip(&mut self, lane: u8, next: Token) {
        for token in self.next_token(lane)..next {
            self.tokens.insert((lane, token), Kept::nobody());
            *self.gone.entry(Reason::Kicked).or_insert(0) += 1;
        }
    }

    fn issue(&mut self, id: Id, token: Kept) -> Result<(), Broken> {
        let next = self.next_token(id.0);
        if id.1 != next {
            return Err((
                "S7",
                format!("number {} of lane {}, not {next}", id.1, id.0),
            ));
        }
        if let Some(key) = &token.key {
            self.keys.insert(key.clone(), id);
        }
        self.waiting.entry(id.0).or_default().insert(id.1);
        self.tokens.insert(id, token);
        Ok(())
    }

    fn entered(
        &mut self,
        key: Option<&[u8]>,
        status: &Status,
        version_before: u64,
        place: Place,
    ) -> Result<bool, Broken> {
        let id = (status.at.lane, status.at.token);
        if let Some(live) = key.and_then(|key| self.keys.get(key)) {
            if *live != id {
                return Err((
                    "S13",
                    format!("the key has {live:?}, and was answered {id:?}"),
                ));
            }
            return Ok(false);
        }
        let token = Kept {
            key: key.map(Into::into),
            left_at: None,
            issued_at: version_before + 1,
            entered_at: version_before + 1,
            epoch: None,
            moved_to: None,
            since: place.appended_at,
            jumps: 0,
        };
        self.issue(id, token).and(Ok(true))
    }

    fn event(&mut self, event: &Event, place: Place) -> Result<(), Broken> {
        let Event::Token {
            version,
            lane_id,
            token,
            what,
            ..
        } = event
        else {
            return Ok(());
        };
        let id = (*lane_id, *token);
        match what {
            TokenChange::Entered { position } => {
                let waiting = self.waiting.get(&id.0).map_or(0, BTreeSet::len) as u64;
                let counted = (!self.draw.is_undrawn()).then_some(waiting);
                (*position == counted).then_some(()).ok_or((
                    "S11",
                    format!("{id:?} enters at position {position:?}, not {counted:?}"),
                ))
            }
            TokenChange::Admitted { by, .. } => {
                self.is_drawn(id)?;
                self.admitted(id, *by, *version, place)
            }
            TokenChange::Claimed { .. } => {
                let held = self.held.contains(&id);
                self.restart_clock(id, place);
                held.then_some(())
                    .ok_or(("S9", format!("{id:?} claims a seat that it has not")))
            }
            TokenChange::Gone {
                reason,
                was_waiting,
                ..
            } => self.gone(id, *reason, *was_waiting, *version, place),
            TokenChange::Moved {
                to,
                by: MovedBy::Draw,
                ..
            } => self.drawn(id, (to.lane, to.token), *version),
            TokenChange::Moved { to, by, .. } => {
                self.moved(id, (to.lane, to.token), *version)?;
                match by {
                    MovedBy::Jump => self.jumped((to.lane, to.token)),
                    MovedBy::Operator | MovedBy::Draw => Ok(()),
                }
            }
            TokenChange::CallAhead | TokenChange::Position { .. } => Ok(()),
        }
    }

    fn restart_clock(&mut self, id: Id, place: Place) {
        if let Some(token) = self.tokens.get_mut(&id) {
            token.since = place.appended_at;
        }
    }

    fn stops_waiting(&mut self, id: Id, version: u64) -> bool {
        if let Some(token) = self.tokens.get_mut(&id) {
            token.left_at = Some(version);
        }
        let lane = self.waiting.get_mut(&id.0);
        lane.is_some_and(|lane| lane.remove(&id.1))
    }

    fn admitted(
        &mut self,
        id: Id,
        by: AdmittedBy,
        version: u64,
        place: Place,
    ) -> Result<(), Broken> {
        let taken = by == AdmittedBy::Take;
        let first = self
            .waiting
            .get(&id.0)
            .and_then(|lane| lane.first().copied());
        if taken {
            self.holes.insert(version, id);
        } else if first != Some(id.1) {
            return Err((
                "S8",
                format!("{id:?} is admitted, and {first:?} is first in its lane"),
            ));
        }
        self.stops_waiting(id, version);
        self.restart_clock(id, place);
        self.held.insert(id);
        let (held, seats) = (self.held.len() as u64, self.seats);
        match held <= seats {
            true => Ok(()),
            false => Err((
                "S10",
                format!("{id:?} is admitted to seat {held} of {seats}"),
            )),
        }
    }

    fn gone(
        &mut self,
        id: Id,
        reason: Reason,
        was_waiting: bool,
        version: u64,
        place: Place,
    ) -> Result<(), Broken> {
        self.in_its_time(id, reason, place)?;
        let waited = self.stops_waiting_if(id, version);
        let held = self.held.remove(&id);
        if waited != was_waiting || waited == held {
            return Err((
                "S10",
                format!("{id:?} is gone that was not there: {reason:?}"),
            ));
        }
        if waited {
            self.holes.insert(version, id);
        }
        *self.gone.entry(reason).or_insert(0) += 1;
        self.forget(id);
        Ok(())
    }

    /// S12: a seat is taken away when its time is over, and no sooner.
    fn in_its_time(&self, id: Id, reason: Reason, place: Place) -> Result<(), Broken> {
        let timeout_ms = match reason {
            Reason::NoShow => self.claim_timeout_ms,
            Reason::CheckoutExpired => self.checkout_timeout_ms,
            _ => return Ok(()),
        };
        let since = self.tokens.get(&id).map_or(0, |token| token.since);
        let least_us = timeout_ms * 100_000 / SLOW_CLOCK_PERCENT;
        match place.appended_at >= since + least_us {
            true => Ok(()),
            false => Err((
                "S12",
                format!(
                    "{id:?} goes by {reason:?} at {} us, its clock of {timeout_ms} ms since {since} us",
                    place.appended_at
                ),
            )),
        }
    }

    /// Who has a seat, each with when its clock began.
    pub fn seats(&self) -> impl Iterator<Item = (Id, Time)> {
        let held = self.held.iter();
        held.filter_map(|id| Some((*id, self.tokens.get(id)?.since)))
    }

    /// L4: how long a seat is held at most after its clock began, by the service clock.
    pub fn seat_ms_max(&self) -> u64 {
        self.claim_timeout_ms.max(self.checkout_timeout_ms) * 3 / 2 + OVERDUE_MS
    }

    fn stops_waiting_if(&mut self, id: Id, version: u64) -> bool {
        let waits = self
            .waiting
            .get(&id.0)
            .is_some_and(|lane| lane.contains(&id.1));
        waits && self.stops_waiting(id, version)
    }

    fn forget(&mut self, id: Id) {
        if let Some(key) = self.tokens.get(&id).and_then(|token| token.key.as_ref())
            && self.keys.get(key) == Some(&id)
        {
            self.keys.remove(key);
        }
    }

    fn moved(&mut self, id: Id, to: Id, version: u64) -> Result<(), Broken> {
        if !self.stops_waiting_if(id, version) {
            return Err(("S10", format!("{id:?} is moved and did not wait")));
        }
        self.holes.insert(version, id);
        *self.gone.entry(Reason::Moved).or_insert(0) += 1;
        let Some(old) = self.tokens.get(&id).cloned() else {
            return Ok(());
        };
        self.forget(id);
        if let Some(token) = self.tokens.get_mut(&id) {
            token.moved_to = Some(to);
        }
        let new = Kept {
            left_at: None,
            issued_at: version,
            moved_to: None,
            ..old
        };
        self.issue(to, new)
    }

    /// S8: nobody gets before others by a jump that the settings do not allow.
    fn jumped(&mut self, to: Id) -> Result<(), Broken> {
        let allowed = self.jump_lanes.contains(&to.0);
        let Some(token) = self.tokens.get_mut(&to) else {
            return Ok(());
        };
        token.jumps += 1;
        match allowed && token.jumps <= self.jumps_max {
            true => Ok(()),
            false => Err(("S8", format!("jump {} to {to:?}", token.jumps))),
        }
    }

    /// The key under which a token entered.
    #[must_use]
    pub fn key_of(&self, id: Id) -> Option<&[u8]> {
        self.tokens.get(&id)?.key.as_deref()
    }

    /// Live tokens that entered at this version of the line or before.
    pub fn live_through(&self, version: u64) -> impl Iterator<Item = Id> {
        let live = self.waiting().chain(self.held.iter().copied());
        live.filter(move |id| {
            let entered_at = self.tokens.get(id).map(|token| token.entered_at);
            entered_at.is_some_and(|at| at <= version)
        })
    }

    /// S9: a renewal or completion by another epoch than the claim's is refused.
    fn answered(
        &mut self,
        op: &Op,
        result: &Result<Reply, Refused>,
        place: Place,
    ) -> Result<(), Broken> {
        let (at, epoch) = match op {
            Op::Renew { at, epoch, .. } => (at, Some(*epoch)),
            Op::Complete { at, epoch, .. } => (at, *epoch),
            _ => return Ok(()),
        };
        let id = self.resolve((at.lane, at.token));
        let of_claim = self.tokens.get(&id).and_then(|token| token.epoch);
        if result.is_ok() && epoch.is_some() && epoch != of_claim {
            return Err((
                "S9",
                format!("epoch {epoch:?} is taken for {id:?} of {of_claim:?}"),
            ));
        }
        if result.is_ok() {
            self.restart_clock(id, place);
        }
        Ok(())
    }

    /// The fencing number of a claim, if this was one.
    fn claimed(
        &mut self,
        op: &Op,
        status: Option<&Status>,
        events: &[Event],
    ) -> Result<Option<u64>, Broken> {
        let (Op::Claim { .. }, Some(status)) = (op, status) else {
            return Ok(None);
        };
        let id = (status.at.lane, status.at.token);
        let Some(epoch) = status.epoch else {
            return Err(("S9", format!("a claim of {id:?} without an epoch")));
        };
        let is_new = events.iter().any(|event| {
            matches!(event, Event::Token { what: TokenChange::Claimed { .. }, token, lane_id, .. }
                if (*lane_id, *token) == id)
        });
        let Some(token) = self.tokens.get_mut(&id) else {
            return Ok(None);
        };
        if is_new {
            token.epoch = Some(epoch);
            return Ok(Some(epoch));
        }
        match token.epoch == Some(epoch) {
            true => Ok(None),
            false => Err(("S13", format!("a second claim of {id:?} has another epoch"))),
        }
    }

    /// S10: what was issued is somewhere, once.
    fn counts_are(&self, line: &Line) -> Result<(), Broken> {
        let counts = line.counts();
        let waiting: usize = self.waiting.values().map(BTreeSet::len).sum();
        let gone: u64 = counts.gone.iter().sum();
        let ours = (
            self.tokens.len() as u64,
            waiting as u64,
            self.held.len() as u64,
        );
        let theirs = (
            counts.issued,
            counts.waiting,
            counts.admitted + counts.in_checkout,
        );
        let reasons = Reason::ALL
            .iter()
            .all(|reason| self.gone.get(reason).copied().unwrap_or(0) == counts.gone_for(*reason));
        let sum = counts.waiting + counts.admitted + counts.in_checkout + gone + counts.drawn;
        let reasons = reasons && counts.drawn == self.draw.took_part();
        match ours == theirs && reasons && sum == counts.issued {
            true => Ok(()),
            false => Err((
                "S10",
                format!("counts are {counts:?}, not {ours:?} {:?}", self.gone),
            )),
        }
    }
}
