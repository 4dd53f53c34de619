//! What changes a line, whatever the operation: numbers are issued in one place, seats given in
//! one, tokens ended in one, and what a departure sets in motion is in one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gone::{Gone, GoneRing};
use crate::lane::Lane;
use crate::line::Line;
use crate::{Event, LaneName, LineChange, LineName, Live, NUMBER_MAX, Reason, Refused, Settings};
use crate::{Stage, State, Token, TokenChange, TokenRef};

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

    /// The one place that gives numbers. Whoever asks has seen that there is room.
    pub(crate) fn issue(
        &mut self,
        lane: u8,
        key: Option<&[u8]>,
        turn: &mut Turn<'_>,
    ) -> Result<Token, Refused> {
        debug_assert!(self.room() > 0, "a number beyond the limit");
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
    pub(crate) fn admit(&mut self, max: u64, turn: &mut Turn<'_>) -> u64 {
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
    pub(crate) fn end(
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

    pub(crate) fn end_and_follow(&mut self, at: TokenRef, reason: Reason, turn: &mut Turn<'_>) {
        let mut ended = Ended::default();
        ended.add(self.end(at.lane, at.token, reason, turn));
        self.follow(&ended, turn);
    }

    /// What departures set in motion: each seat that became free goes to who is next. Who left
    /// while waiting frees none and admits nobody (the hole rule). Seats that are free besides
    /// are the job's, so that the work of an entry stays in proportion to its operations.
    pub(crate) fn follow(&mut self, ended: &Ended, turn: &mut Turn<'_>) {
        self.admit(ended.seats, turn);
        if cfg!(feature = "break-hole-rule") {
            // What the seed article does: every departure moves admission on by one.
            for _ in 0..ended.waiters {
                self.admit_next(turn);
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
        turn: &mut Turn<'_>,
    ) {
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
