//! One visitor with open streams: what is known of the token, and what the streams were told. No I/O.

use std::sync::Arc;

use axum::body::Bytes;
use nowserving_client::{LaneName, Standing, State, StatusReply};
use tokio::time::Instant;

use super::event::{self, PlaceData, Whole};
use super::facts::{Facts, Forecast};
use super::outlet::Outlet;
use crate::config::LineRule;
use crate::visit::Visit;

/// Streams of one ticket; one browser has one for all its tabs.
pub(super) const OUTLETS_MAX: usize = 8;
/// A forecast is told anew if it differs by a tenth, and by this.
const ETA_STEP_MS: u64 = 10_000;
/// Replies show one deadline with differences up to this.
const SAME_DEADLINE_MS: u64 = 1_000;

/// A visitor. The streams of one token share it.
pub(super) struct Visitor {
    pub ticket: String,
    /// The last answer, with the place of the last board; `None` while the line has not answered yet.
    pub status: Option<StatusReply>,
    pub outlets: Vec<Arc<Outlet>>,
    told: Told,
    /// The token has another number than the streams know.
    is_renumbered: bool,
    /// A question about it is under way, or waits for its turn.
    pub is_asking: bool,
    /// Not asked before. While a place is known this is not needed.
    pub ask_at: Option<Instant>,
    /// When it is to be marked as seen.
    pub seen_at: Instant,
}

/// What the streams know.
#[derive(Debug, Default)]
struct Told {
    page: Option<&'static str>,
    page_version: u64,
    held_version: u64,
    position: Option<u64>,
    position_capped: bool,
    turn: Option<u64>,
    eta_ms: Option<u64>,
    call_ahead: bool,
    is_draining: bool,
    expires_at_ms: Option<u64>,
}

/// The consequences of an answer of the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It goes on.
    Stays,
    /// Its streams were told, and end.
    Ends,
}

impl Visitor {
    /// `status`: `None` if the line has not answered.
    pub fn new(ticket: String, status: Option<StatusReply>, seen_at: Instant) -> Visitor {
        Visitor {
            ticket,
            status,
            outlets: Vec::new(),
            told: Told::default(),
            is_renumbered: false,
            is_asking: false,
            ask_at: None,
            seen_at,
        }
    }

    /// The number, once it is known.
    pub fn token(&self) -> Option<(&LaneName, u64)> {
        self.status
            .as_ref()
            .map(|status| (&status.lane, status.token))
    }

    pub fn state(&self) -> Option<State> {
        self.status.as_ref().map(|status| status.state)
    }

    pub fn is_waiting(&self) -> bool {
        self.state() == Some(State::Waiting)
    }

    /// Waits in a line that takes nobody new.
    fn is_draining(&self) -> bool {
        let phase = self
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        self.is_waiting() && phase == Some("draining")
    }

    /// Takes an answer of the line. Tells the streams if the state of the page is another one; the place follows with the
    /// next of all.
    pub fn answered(&mut self, mut status: StatusReply, facts: &Facts, rule: &LineRule) -> Next {
        if let Some(ticket) = status.ticket.take() {
            self.ticket = ticket;
        }
        status.pass = None;
        status.holes = None;
        let known = self.status.as_ref();
        let is_same =
            known.is_some_and(|known| (known.token, &known.lane) == (status.token, &status.lane));
        if let Some(known) = known.filter(|known| known.state == State::Waiting && is_same)
            && status.state == State::Waiting
            && let Some(position) = known.position
            && !known.position_capped
        {
            // A board has overtaken the answer: a place never grows.
            status.position = status.position.map(|it| it.min(position));
            status.ahead = status.position.map(|it| it.saturating_sub(1));
        }
        self.is_renumbered |= !is_same;
        self.status = Some(status);
        self.tell_whole(facts, rule).1
    }

    /// Its token has this number now.
    pub fn moved(&mut self, lane: LaneName, token: u64) {
        if let Some(status) = &mut self.status {
            (status.lane, status.token) = (lane, token);
            self.is_renumbered = true;
        }
        self.forget_place();
    }

    /// What was known of its place is of another line, or of another lane.
    pub fn forget_place(&mut self) {
        if let Some(status) = self
            .status
            .as_mut()
            .filter(|status| status.state == State::Waiting)
        {
            (status.position, status.position_capped) = (None, false);
        }
    }

    /// An error that stays, or the end of the line: the streams end.
    pub fn ended(&mut self, visit: &Visit) {
        let event = event::whole(Whole::Gone, visit, None);
        for outlet in &self.outlets {
            outlet.whole(event.clone());
            outlet.end(None);
        }
    }

    /// The line does not answer.
    pub fn away(&mut self) {
        let visit = Visit::unavailable(true, None);
        if self.told.page.replace(visit.page) != Some(visit.page) {
            // The page goes on to show what it knows.
            let event = event::whole(Whole::Phase, &visit, None);
            self.outlets
                .iter()
                .for_each(|outlet| outlet.whole(event.clone()));
        }
    }

    /// Whether the streams believe that the line does not answer, or have heard nothing yet.
    pub fn is_left_away(&self) -> bool {
        self.told.page.is_none_or(|page| page == "unavailable")
    }

    /// Begins a stream.
    pub fn join(&mut self, outlet: Arc<Outlet>, facts: &Facts, rule: &LineRule) {
        if let Some((name, visit)) = self.whole(facts, rule) {
            outlet.whole(whole_for(&outlet, name, &visit, facts));
            if self.outlets.is_empty() {
                self.note(facts, visit.page);
            }
        }
        self.outlets.push(outlet);
        if self.outlets.len() > OUTLETS_MAX
            && let Some(last) = self.outlets.pop()
        {
            last.end(None);
        }
    }

    /// Takes the place as events say it. Tells the streams if it has changed, or what holds the line back: whether it did.
    pub fn placed(
        &mut self,
        standing: Standing,
        facts: &Facts,
        rule: &LineRule,
        now: Instant,
    ) -> bool {
        let Some(status) = self
            .status
            .as_mut()
            .filter(|status| status.state == State::Waiting)
        else {
            return false;
        };
        if let Some(phase) = facts.phase()
            && status.phase.as_deref() != Some(phase)
        {
            status.phase = Some(phase.to_owned().into());
        }
        if facts.held_version != self.told.held_version || status.held_back_by.is_none() {
            status.held_back_by = facts.held_back_by().cloned();
        }
        if facts.is_undrawn() {
            (status.position, status.position_capped) = (None, false);
        } else if let Standing::Position(position) = standing {
            let cap = facts.position_cap().filter(|cap| position > *cap);
            // It never grows; past the cap it is not known.
            let known = status.position.filter(|_| !status.position_capped);
            let position = known.map_or(position, |known| known.min(position));
            (status.position, status.position_capped) =
                (Some(cap.unwrap_or(position)), cap.is_some());
        }
        status.ahead = status.position.map(|position| position.saturating_sub(1));
        let through = facts.admitted_through(&status.lane);
        status.admitted_through = status.admitted_through.max(through.unwrap_or(0));
        if let Some(position) = status.position {
            let forecast = facts.forecast(&status.lane, position, now);
            let Forecast {
                eta_ms,
                eta_p90_ms,
                eta_from,
                turn,
            } = forecast;
            (status.eta_ms, status.eta_p90_ms) = (Some(eta_ms), Some(eta_p90_ms));
            (status.eta_from, status.turn) = (eta_from, turn.filter(|_| !status.position_capped));
        } else {
            (status.eta_ms, status.eta_p90_ms) = (Some(None), Some(None));
            (status.eta_from, status.turn) = (None, None);
        }
        if self.tell_whole(facts, rule).0 {
            return true;
        }
        let has_changed = self.place_has_changed(facts);
        if has_changed {
            let page = self.told.page.unwrap_or("waiting");
            if let Some(event) = self.place() {
                self.outlets
                    .iter()
                    .for_each(|outlet| outlet.place(event.clone()));
            }
            self.note(facts, page);
        }
        has_changed
    }

    /// Tells the streams if they know another state of the page, number or deadline. Whether it did.
    fn tell_whole(&mut self, facts: &Facts, rule: &LineRule) -> (bool, Next) {
        let Some(status) = &self.status else {
            return (false, Next::Stays);
        };
        let told = &self.told;
        let may_be_other = told.page_version != facts.page_version
            || told.call_ahead != status.call_ahead
            || !self.is_waiting()
            || self.is_left_away();
        let deadline_moved = match (told.expires_at_ms, status.expires_at_ms) {
            (Some(told), Some(new)) => told.abs_diff(new) > SAME_DEADLINE_MS,
            (told, new) => told.is_some() != new.is_some(),
        };
        // The page of somebody who waits says so, and is the same page.
        let drains = told.is_draining != self.is_draining();
        let must = self.is_renumbered || deadline_moved || drains;
        if !must && !may_be_other {
            return (false, Next::Stays);
        }
        let Some((name, visit)) = self.whole(facts, rule) else {
            return (false, Next::Stays);
        };
        if !must && self.told.page == Some(visit.page) {
            self.told.page_version = facts.page_version;
            return (false, Next::Stays);
        }
        for outlet in &self.outlets {
            outlet.whole(whole_for(outlet, name, &visit, facts));
        }
        self.note(facts, visit.page);
        self.is_renumbered = false;
        if self.state() != Some(State::Gone) {
            return (true, Next::Stays);
        }
        self.outlets.iter().for_each(|outlet| outlet.end(None));
        (true, Next::Ends)
    }

    /// A whole visit, and as which event it is told.
    fn whole(&self, facts: &Facts, rule: &LineRule) -> Option<(Whole, Visit)> {
        let status = self.status.as_ref()?;
        let name = match status.state {
            State::Waiting => Whole::Phase,
            State::Admitted | State::InCheckout => Whole::Admitted,
            State::Gone => Whole::Gone,
        };
        let visit = Visit::of_status(status, facts.info.as_deref(), rule);
        Some((name, visit))
    }

    fn place(&self) -> Option<Bytes> {
        let status = self.status.as_ref()?;
        Some(event::place(&PlaceData {
            position: status.position,
            position_capped: status.position_capped,
            ahead: status.ahead,
            turn: status.turn,
            eta_ms: status.eta_ms.flatten(),
            eta_p90_ms: status.eta_p90_ms.flatten(),
            eta_from: status.eta_from.as_ref(),
            held_back_by: status.held_back_by.as_ref(),
            call_ahead: status.call_ahead,
            admitted_through: status.admitted_through,
        }))
    }

    fn place_has_changed(&self, facts: &Facts) -> bool {
        let Some(status) = &self.status else {
            return false;
        };
        let told = &self.told;
        let eta_moved = match (told.eta_ms, status.eta_ms.flatten()) {
            (Some(told), Some(new)) => told.abs_diff(new) > ETA_STEP_MS.max(told / 10),
            (told, new) => told.is_some() != new.is_some(),
        };
        eta_moved
            || (told.position, told.position_capped, told.turn)
                != (status.position, status.position_capped, status.turn)
            || told.held_version != facts.held_version
    }

    fn note(&mut self, facts: &Facts, page: &'static str) {
        let Some(status) = &self.status else {
            return;
        };
        self.told = Told {
            page: Some(page),
            page_version: facts.page_version,
            held_version: facts.held_version,
            position: status.position,
            position_capped: status.position_capped,
            turn: status.turn,
            eta_ms: status.eta_ms.flatten(),
            call_ahead: status.call_ahead,
            is_draining: self.is_draining(),
            expires_at_ms: status.expires_at_ms,
        };
    }

    /// Drops streams that nobody reads. Whether any is left.
    pub fn has_readers(&mut self) -> bool {
        self.outlets.retain(|outlet| !outlet.is_over());
        !self.outlets.is_empty()
    }
}

/// With the announcement in the language of the stream's reader: the page takes a whole visit in place of all that it knows.
fn whole_for(outlet: &Outlet, name: Whole, visit: &Visit, facts: &Facts) -> Bytes {
    let notice = facts.notice.as_deref();
    let notice = notice.map(|notice| (notice, &*outlet.language));
    event::whole(name, visit, notice)
}

#[cfg(test)]
mod tests;
