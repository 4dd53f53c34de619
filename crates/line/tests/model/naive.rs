//! The rules of one line again, as plainly as they can be written: every token that ever was is in one list,
//! and whatever is asked is found by going through it. Shares no code with the crate but its types.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nowserving_line::{
    Admission, AdmittedBy, Event, JournalEntry, Journaled, JournaledToken, KickNote, LaneName,
    LaneSettings, LineChange, LineName, Phase, Reason, Refused, Settings, Shadow, Stage, State,
    Timestamp, TokenChange, TokenRef,
};

use crate::naive_draw::NaiveDraw;
use crate::shard::Entry;

/// Lane (its place in the table) and number.
pub type Id = (u8, u64);

#[derive(Debug, Clone)]
pub struct Tok {
    pub key: Option<Vec<u8>>,
    pub entered: Timestamp,
    pub entered_version: u64,
    pub last_seen_ms: u64,
    pub deadline_ms: u64,
    /// Units of the quota that its seat reserves.
    pub units: u32,
    pub claimed_at_ms: u64,
    pub epoch: Option<u64>,
    pub state: State,
    pub reason: Option<Reason>,
    /// The state that it left, if that was counted.
    pub left: Option<State>,
    /// Rank in the order of ends; a moved token ends with its successor.
    pub gone_no: Option<usize>,
    pub released: bool,
    pub moved_to: Option<Id>,
    /// The number that the draw gave it, also if it was gone by then.
    pub drawn_to: Option<Id>,
    /// It was not.
    pub renumbered: bool,
    pub jumps: u32,
    pub called: bool,
    /// The `position_events` at or before which it entered, or to which it has come.
    pub told: BTreeSet<u32>,
    /// Rank in the order of entries; a move is not an entry.
    pub entered_no: usize,
    /// Tokens of its lane that entered before it and were admitted while it waited.
    pub before: u64,
    /// Tokens admitted while it waited that had entered after it.
    pub overtaken_by: Vec<Id>,
}

impl Tok {
    pub fn newcomer(key: Option<&[u8]>, entered: Timestamp) -> Self {
        Self {
            key: key.map(Into::into),
            entered,
            entered_version: 0,
            last_seen_ms: entered.service_ms,
            deadline_ms: 0,
            units: 0,
            claimed_at_ms: 0,
            epoch: None,
            state: State::Waiting,
            reason: None,
            left: None,
            gone_no: None,
            released: false,
            moved_to: None,
            drawn_to: None,
            renumbered: false,
            jumps: 0,
            called: false,
            told: BTreeSet::new(),
            entered_no: 0,
            before: 0,
            overtaken_by: Vec::new(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct NaiveLine {
    pub name: LineName,
    pub incarnation: u64,
    pub version: u64,
    pub epoch: u64,
    pub settings: Settings,
    pub settings_version: u64,
    pub deleting: bool,
    /// The wall clock that is shown for events that happen now.
    pub wall_ms: u64,
    /// The ETAs of waiting tokens after the newest operation on the line. How they are made is not modelled.
    pub etas: BTreeMap<Id, u64>,
    /// All lanes that ever were.
    pub table: Vec<LaneName>,
    pub tokens: BTreeMap<Id, Tok>,
    /// By code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Units of the quota that completed visits used.
    pub used: u64,
    pub gone: usize,
    pub entered: usize,
    /// Billionths of an admission that are saved up.
    pub saved: u128,
    /// When tokens were admitted since the rate was last set.
    pub admissions: Vec<u64>,
    /// Everything that ever happened.
    pub journal: Vec<JournalEntry>,
    /// Those of them that are not forgotten.
    pub kept: Vec<JournalEntry>,
    /// The settings before and after each entry `configured`, by its version.
    pub changes: BTreeMap<u64, (Settings, Settings)>,
    /// The lanes and keys that wait to be told of room, in the order in which they asked.
    pub callers: Vec<(u8, Vec<u8>)>,
    /// Of each lane, since when it counts offers, how many it made since, and in the period before.
    pub offers: BTreeMap<u8, (u64, u64, u64)>,
    /// When callers are next to be told, as it was after the newest operation.
    pub callers_due_ms: Option<u64>,
    /// The seats that a backend told, until when, and whether it was found silent.
    pub told: Option<(u32, u64, bool)>,
    /// Those from before it was last renewed, and when it is renewed next.
    pub used_in_past: u64,
    pub renews_at_ms: Option<u64>,
    /// What was said of each kick, by the version of its entry.
    pub kicks: BTreeMap<u64, KickNote>,
    /// The calls that are remembered and the tokens that each admitted, oldest first.
    pub calls: Vec<(String, Vec<Id>)>,
    pub shadow: Shadow,
    /// The newest import, how many of its rows are done, and of how many keys that entered.
    pub imported: Option<(String, u64, u64)>,
    /// How often the gate was set to hold nobody back.
    pub opened: u64,
    pub draw: Option<NaiveDraw>,
}

#[derive(Debug, PartialEq)]
pub enum Answer {
    Token(Id),
    Line {
        incarnation: u64,
        version: u64,
    },
    Remaining(u64),
    Recycled(u64),
    /// The place on the list; none if there is room.
    Callback(Option<u64>),
    /// How many tokens ended, of how many.
    Kicked(u64, u64),
    Called,
    Nothing,
}

pub type Events<'a> = &'a mut Vec<Event>;

pub const UNIT: u128 = 1_000_000_000;

impl NaiveLine {
    pub fn count(&self, state: State) -> u64 {
        self.tokens.values().filter(|t| t.state == state).count() as u64
    }

    pub fn gone_for(&self, reason: Reason) -> u64 {
        let gone = self.tokens.values().filter(|t| t.reason == Some(reason));
        gone.count() as u64
    }

    pub fn gone_from(&self, state: State, reason: Reason) -> u64 {
        let gone = |t: &&Tok| (t.left, t.reason) == (Some(state), Some(reason));
        self.tokens.values().filter(gone).count() as u64
    }

    pub fn held(&self) -> u64 {
        self.count(State::Admitted) + self.count(State::InCheckout)
    }

    pub fn live(&self) -> u64 {
        self.held() + self.count(State::Waiting)
    }

    pub fn phase(&self) -> Phase {
        if self.deleting {
            Phase::Closed
        } else {
            self.settings.phase
        }
    }

    /// The lanes of the settings with their places in the table.
    pub fn lanes(&self) -> Vec<(u8, LaneSettings)> {
        let lanes = self.settings.lanes.iter();
        lanes
            .map(|set| (self.place(&set.name).unwrap(), set.clone()))
            .collect()
    }

    pub fn place(&self, name: &LaneName) -> Option<u8> {
        self.table
            .iter()
            .position(|lane| lane == name)
            .map(|i| i as u8)
    }

    pub fn issued(&self, lane: u8) -> u64 {
        self.tokens.keys().filter(|id| id.0 == lane).count() as u64
    }

    pub fn waiting(&self, lane: u8) -> Vec<u64> {
        let tokens = self.tokens.iter();
        let waiting = tokens.filter(|(id, t)| id.0 == lane && t.state == State::Waiting);
        waiting.map(|(id, _)| id.1).collect()
    }

    pub fn seats(&self) -> u64 {
        let least = self.settings.seats_when_silent.unwrap_or(u32::MAX);
        let seats = match self.told {
            None => self.settings.seats,
            Some((seats, _, false)) => seats,
            Some((seats, _, true)) => seats.min(least),
        };
        seats.into()
    }

    fn free(&self) -> u64 {
        self.seats().saturating_sub(self.held())
    }

    /// A number of seats and for how long; or the setting is in force again.
    pub fn capacity_told(
        &mut self,
        told: Option<(u32, u64)>,
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        let silent = |told: Option<(u32, u64, bool)>| told.is_some_and(|told| told.2);
        let before = (self.seats(), silent(self.told));
        self.told = told.map(|(seats, for_ms)| (seats, entry.now_ms + for_ms, false));
        if before != (self.seats(), false) {
            self.seats_event(entry.events);
            self.work(entry);
        }
        Ok(Answer::Line {
            incarnation: self.incarnation,
            version: self.version,
        })
    }

    fn seats_event(&mut self, events: Events<'_>) {
        let what = LineChange::Seats {
            seats: self.seats() as u32,
            silent: self.told.is_some_and(|told| told.2),
        };
        self.line_event(what, events);
    }

    pub fn silence_due_ms(&self) -> Option<u64> {
        let (_, until_ms, silent) = self.told?;
        (!silent && self.settings.seats_when_silent.is_some()).then_some(until_ms)
    }

    /// Whether there was a silence to take note of.
    pub fn note_silence(&mut self, now_ms: u64, events: Events<'_>) -> bool {
        let due = self.silence_due_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if due {
            self.told = self
                .told
                .map(|(seats, until_ms, _)| (seats, until_ms, true));
            self.seats_event(events);
        }
        due
    }

    /// The seats that are free once a silence is taken note of.
    pub fn free_at(&self, now_ms: u64) -> u64 {
        let least = self.settings.seats_when_silent.unwrap_or(u32::MAX);
        let silent = self.silence_due_ms().is_some_and(|due_ms| due_ms <= now_ms);
        let seats = self.seats();
        let seats = if silent {
            seats.min(least.into())
        } else {
            seats
        };
        seats.saturating_sub(self.held())
    }

    fn renews(&self) -> bool {
        self.settings.quota.is_some_and(|q| q.renew.is_some())
    }

    /// When the line next has something to do by the wall clock.
    pub fn next_by_wall_ms(&self) -> Option<u64> {
        let ending = self.phase() == Phase::Closed && (self.deleting || self.live() > 0);
        let renewal = self.renews().then(|| self.renews_at_ms.unwrap_or(0));
        let renewal = renewal.filter(|_| !ending);
        let seal = self.needs_seed().then_some(0);
        let due = renewal.into_iter().chain(self.next_scheduled());
        due.chain(seal).min()
    }

    pub fn renew_quota(&mut self, next_ms: u64, entry: &mut Entry<'_>) {
        let due_ms = self.renews_at_ms.unwrap_or(0);
        if !self.renews() || due_ms > self.wall_ms || next_ms <= self.wall_ms {
            return;
        }
        let first = self.renews_at_ms.is_none();
        self.renews_at_ms = Some(next_ms);
        if !first {
            self.used_in_past = self.used;
            self.line_event(LineChange::QuotaRenewed, entry.events);
            self.keep(Journaled::QuotaRenewed);
            self.work(entry);
        }
    }

    fn saved_units(&self) -> u64 {
        let rate = self.settings.admission_rate;
        rate.map_or(u64::MAX, |_| (self.saved / UNIT) as u64)
    }

    pub fn may_admit_but_for_rate(&self) -> bool {
        let admits = matches!(self.phase(), Phase::Open | Phase::Draining);
        admits && !self.is_undrawn() && (!self.holds_back() || self.free() > 0 && self.units() > 0)
    }

    pub fn may_admit(&self) -> bool {
        let in_time = !self.holds_back() || self.saved_units() > 0;
        self.may_admit_but_for_rate() && in_time
    }

    pub fn pass(&mut self, ms: u64) {
        if let Some(rate) = self.settings.admission_rate {
            let full = u128::from(rate.burst) * UNIT;
            for _ in 0..ms {
                if self.saved == full {
                    break;
                }
                self.saved = (self.saved + u128::from(rate.per_second_micro)).min(full);
            }
        }
    }

    /// The token to admit next, over all lanes.
    pub fn next(&self) -> Option<Id> {
        let mut best: Option<((bool, i64), Id)> = None;
        for (lane, set) in self.lanes() {
            let Some(first) = self.waiting(lane).first().copied() else {
                continue;
            };
            let entered = self.counts_as_entered(&self.tokens[&(lane, first)]) as i64;
            let key = (!set.absolute, entered - set.boost_ms as i64);
            if best.is_none_or(|(least, _)| key < least) {
                best = Some((key, (lane, first)));
            }
        }
        best.map(|(_, id)| id)
    }

    /// The waiting tokens as they would be admitted if seats became free one after the other.
    pub fn service_order(&self) -> Vec<Id> {
        let queue = |(lane, set): (u8, LaneSettings)| {
            let key = move |token| {
                let entered = self.counts_as_entered(&self.tokens[&(lane, token)]) as i64;
                (
                    (!set.absolute, entered - set.boost_ms as i64),
                    (lane, token),
                )
            };
            self.waiting(lane).into_iter().map(key).collect()
        };
        let mut queues: Vec<VecDeque<_>> = self.lanes().into_iter().map(queue).collect();
        let mut order = Vec::new();
        loop {
            let first = queues.iter_mut().filter(|queue| !queue.is_empty());
            let Some(next) = first.min_by_key(|queue| queue[0].0) else {
                return order;
            };
            order.extend(next.pop_front().map(|(_, id)| id));
        }
    }

    /// How many numbers the lane could give.
    pub fn room(&self, lane: u8, set: &LaneSettings) -> u64 {
        let phase = self.phase();
        if self.hopeless() || phase == Phase::Draining || phase == Phase::Closed {
            return 0;
        }
        let limit = self.seats() + u64::from(self.settings.queue_limit);
        let mut room = limit.saturating_sub(self.live());
        if !self.holds_back() {
            room = self.room_without_gate();
            if phase == Phase::Open && !self.is_undrawn() {
                return room;
            }
            room = room.min(limit.saturating_sub(self.count(State::Waiting)));
        }
        let quota = self
            .settings
            .quota
            .filter(|_| self.holds_back() && !self.awaits_draw());
        if let Some(q) = quota {
            let most = q.total * u64::from(100 + q.standby_percent) / 100;
            room = room.min(
                most.saturating_sub(self.in_all())
                    .div_ceil(self.per_visit()),
            );
        }
        if let Some(own) = set.queue_limit {
            let nobody = self.count(State::Waiting) == 0;
            let nobody = nobody && !self.is_called() && !self.is_undrawn();
            let at_once = if nobody && phase == Phase::Open {
                self.free().min(self.visits()).min(self.saved_units())
            } else {
                0
            };
            let waiting = self.waiting(lane).len() as u64;
            room = room.min((u64::from(own) + at_once).saturating_sub(waiting));
        }
        room
    }

    /// Which limit it is, if the lane has no room.
    pub fn full(&self, lane: u8, set: &LaneSettings) -> Refused {
        let without = LaneSettings {
            queue_limit: None,
            ..set.clone()
        };
        match set.queue_limit {
            Some(limit) if self.room(lane, &without) > 0 => Refused::LaneFull {
                lane: set.name.clone(),
                limit,
            },
            _ if set.absolute && !self.keeps_room(&set.name) => Refused::NoRoomKept {
                lane: set.name.clone(),
            },
            _ => Refused::LineFull,
        }
    }

    /// Also of a lane that was removed.
    pub fn admitted_through(&self, lane: u8) -> u64 {
        let listed = self.lanes();
        let alone = listed.len() == 1 && listed[0].0 == lane;
        match self.waiting(lane).first() {
            Some(first) => first - 1,
            None if alone
                && !self.is_called()
                && self.holds_back()
                && !self.is_undrawn()
                && self.settings.admission_rate.is_none()
                && self.phase() == Phase::Open =>
            {
                self.issued(lane) + self.free().min(self.visits())
            }
            None => self.issued(lane),
        }
    }

    /// (done_through, admitted_through, accepts_through, next_token), as the contract words them.
    pub fn pointers(&self, lane: u8, set: &LaneSettings) -> (u64, u64, u64, u64) {
        let next = self.issued(lane) + 1;
        let gone = |token: &u64| self.tokens[&(lane, *token)].state == State::Gone;
        (
            (1..next).take_while(gone).count() as u64,
            self.admitted_through(lane),
            next - 1 + self.room(lane, set),
            next,
        )
    }

    /// 1 + the number of those still waiting before it.
    pub fn position(&self, id: Id) -> u64 {
        let waiting = self.waiting(id.0);
        1 + waiting.iter().filter(|token| **token < id.1).count() as u64
    }

    pub fn remembers(&self, tok: &Tok, kept: usize) -> bool {
        tok.gone_no.is_some_and(|no| no + kept > self.gone)
    }

    pub fn find(&self, key: &[u8]) -> Option<Id> {
        let mut tokens = self.tokens.iter();
        let found = tokens.find(|(_, t)| t.state != State::Gone && t.key.as_deref() == Some(key));
        found.map(|(id, _)| *id)
    }

    /// The token as which it lives now, after moves.
    pub fn resolve(&self, id: Id, kept: usize) -> Id {
        let mut last = id;
        while let Some(to) = self.tokens.get(&last).and_then(|tok| tok.moved_to) {
            last = to;
        }
        let live = self
            .tokens
            .get(&last)
            .is_some_and(|t| t.state != State::Gone);
        let remembered = self
            .tokens
            .get(&id)
            .is_some_and(|t| self.remembers(t, kept));
        match self.tokens.get(&id).and_then(|tok| tok.drawn_to) {
            _ if live || remembered => last,
            Some(drawn) => self.resolve(drawn, kept),
            None => id,
        }
    }

    pub fn stage(&self, id: Id) -> Option<Stage> {
        let t = &self.tokens[&id];
        Some(match t.state {
            State::Waiting => Stage::Waiting {
                last_seen_ms: t.last_seen_ms,
            },
            State::Admitted => Stage::Admitted {
                deadline_ms: t.deadline_ms,
                units: t.units,
            },
            State::InCheckout => Stage::InCheckout {
                deadline_ms: t.deadline_ms,
                units: t.units,
                claimed_at_ms: t.claimed_at_ms,
                epoch: t.epoch?,
            },
            State::Gone => return None,
        })
    }

    /// The number is the next of its lane.
    pub fn issue(&mut self, lane: u8, tok: Tok) -> Id {
        let id = (lane, self.issued(lane) + 1);
        self.tokens.insert(id, tok);
        self.version += 1;
        id
    }

    /// Nobody is admitted without an operator's call.
    pub fn is_called(&self) -> bool {
        self.settings.admission == Admission::Called && self.holds_back()
    }

    pub fn admit(&mut self, most: u64, now_ms: u64, events: Events<'_>) -> u64 {
        for done in 0..most {
            if self.may_admit() && !self.is_called() && self.next().is_some() {
                self.note_silence(now_ms, events);
            }
            let (true, Some(id)) = (self.may_admit() && !self.is_called(), self.next()) else {
                return done;
            };
            self.admit_token(id, AdmittedBy::Turn, now_ms, events);
        }
        most
    }

    pub fn admit_token(&mut self, id: Id, by: AdmittedBy, now_ms: u64, events: Events<'_>) {
        if self.settings.admission_rate.is_some() {
            self.saved = self.saved.saturating_sub(UNIT);
            if self.holds_back() {
                self.admissions.push(now_ms);
            }
        }
        let shadow = self.count_shadow();
        let most = self.per_visit();
        let units = match self.holds_back() {
            true => most.min(self.units()) as u32,
            false => most as u32,
        };
        let deadline_ms = now_ms + self.settings.claim_timeout_ms;
        let tok = self.tokens.get_mut(&id).unwrap();
        tok.state = State::Admitted;
        tok.deadline_ms = deadline_ms;
        tok.units = units;
        self.note_turn(id);
        // The forecast is not in the model.
        let eta = None;
        self.event(id, TokenChange::Admitted { by, eta, shadow }, events);
        let (_, set) = self.lanes().into_iter().find(|(l, _)| *l == id.0).unwrap();
        let (absolute, boost_ms) = (set.absolute, set.boost_ms);
        self.note(
            id,
            JournaledToken::Admitted {
                absolute,
                boost_ms,
                by,
            },
        );
    }

    pub fn end(&mut self, id: Id, reason: Reason, events: Events<'_>) {
        // The tokens moved to it, oldest first. They may be of any lane, so this follows the moves.
        let mut was = vec![id];
        while let Some((old, _)) = self.tokens.iter().find(|(_, t)| t.moved_to == Some(was[0])) {
            was.insert(0, *old);
        }
        for id in was {
            self.gone += 1;
            self.tokens.get_mut(&id).unwrap().gone_no = Some(self.gone);
        }
        let left = Some(self.tokens[&id].state);
        let tok = self.tokens.get_mut(&id).unwrap();
        let was_waiting = tok.state == State::Waiting;
        tok.state = State::Gone;
        tok.left = left;
        tok.reason = Some(reason);
        let units = (reason == Reason::Completed).then_some(tok.units);
        self.used += u64::from(units.unwrap_or(0));
        let what = TokenChange::Gone {
            reason,
            was_waiting,
            units,
        };
        self.event(id, what, events);
        self.note(id, JournaledToken::Gone { reason, units });
    }

    pub fn check(&self, at: TokenRef) -> Result<(), Refused> {
        let known = at.incarnation == self.incarnation;
        if known && self.tokens.contains_key(&(at.lane, at.token)) {
            Ok(())
        } else {
            Err(Refused::TicketInvalid)
        }
    }
}
