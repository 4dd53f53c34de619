//! In which state of the page a visitor is, and what the page may know: from what the cluster answers.
//!
//! The states, and the order in which they are decided, are those of `page/README.md`.

use std::time::{SystemTime, UNIX_EPOCH};

use nowserving_client::{BoardReply, Code, Error, InfoReply, Kind, State, StatusReply};
use serde_json::{Map, Value};

use crate::config::LineRule;

/// After how long a page asks again whose answer did not say.
const RETRY_AFTER_MS: u64 = 5_000;
/// A `seen` comes this much later than it should, at most.
const SEEN_LATE_MS: u64 = 2_000;
/// Not for the page, which every script of the shop can read.
const SECRET: [&str; 7] = [
    "ticket",
    "pass",
    "pass_expires_in_ms",
    "epoch",
    "key",
    "holes",
    "units",
];

/// A visit as the page and its script know it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Visit {
    pub page: &'static str,
    pub fields: Map<String, Value>,
}

impl Visit {
    /// What a status says. `info` of the line adds how long the place is kept, and the draw.
    pub fn of_status(status: &StatusReply, info: Option<&InfoReply>, rule: &LineRule) -> Visit {
        let page = page_of(status, info);
        let mut fields = match serde_json::to_value(status) {
            Ok(Value::Object(fields)) => fields,
            // It has no keys but strings.
            _ => Map::new(),
        };
        for secret in SECRET {
            fields.remove(secret);
        }
        let mut visit = Visit { page, fields };
        if let Some(info) = info {
            visit.add_info(info);
        }
        if let Some(opens_at_ms) = rule
            .opens_at_ms
            .filter(|_| status.phase.as_deref() == Some("pre_open"))
        {
            visit.put("opens_at_ms", opens_at_ms);
            visit.put("opens_in_ms", opens_at_ms.saturating_sub(now_ms()));
        }
        visit
    }

    /// What a refusal, or no answer, says. `has_ticket`: the visitor has a place that may go on.
    pub fn of_error(error: &Error, has_ticket: bool) -> Visit {
        let retry_after_ms = error.retry_after().map(|after| after.as_millis() as u64);
        match error.kind() {
            Kind::Refused(Code::SoldOut) => Visit::plain("sold_out"),
            Kind::Refused(Code::LineClosed) => Visit::plain("closed"),
            Kind::Refused(Code::LineFull) => Visit::again("full", retry_after_ms),
            Kind::Refused(Code::TicketInvalid) => Visit::plain("forgotten"),
            // It was there when the ticket was given.
            Kind::Refused(Code::LineNotFound) if has_ticket => {
                Visit::again("uncertain", retry_after_ms)
            }
            // It is in the configuration, and not there yet.
            Kind::Refused(Code::LineNotFound) => Visit::unavailable(false, retry_after_ms),
            Kind::Refused(Code::TokenGone) => {
                let reason = error.api().and_then(|api| api.reason.as_deref());
                Visit::plain(gone(reason))
            }
            Kind::Refused(
                Code::Overloaded | Code::NotLeader | Code::Unavailable | Code::OutcomeUnknown,
            )
            | Kind::Unavailable
            | Kind::OutcomeUnknown
            | Kind::Connection
            | Kind::BadReply
            | Kind::Forbidden => Visit::unavailable(has_ticket, retry_after_ms),
            _ => Visit::plain("error"),
        }
    }

    /// The cluster cannot be reached.
    pub fn unavailable(has_ticket: bool, retry_after_ms: Option<u64>) -> Visit {
        let page = match has_ticket {
            true => "unavailable",
            false => "unavailable_new",
        };
        Visit::again(page, retry_after_ms)
    }

    /// The visitor's address has asked too often. Nothing has happened to a ticket.
    pub fn limited(retry_after_ms: u64) -> Visit {
        Visit::again("limited", Some(retry_after_ms))
    }

    /// Whether somebody who comes now can enter, as far as is known. `board`: the newest one.
    pub fn of_newcomer(info: Option<&InfoReply>, board: Option<&BoardReply>) -> Visit {
        let Some((info, board)) = info.map(|info| (info, board.unwrap_or(&info.board))) else {
            return Visit::unavailable(false, None);
        };
        match board.phase.as_str() {
            "closed" => return Visit::plain("closed"),
            "draining" => return Visit::plain("draining"),
            _ => {}
        }
        let default_lane = info.settings.default_lane.as_ref();
        let mut lanes = board.lanes.iter();
        let lane = lanes.find(|lane| default_lane.is_none_or(|name| *name == lane.lane));
        match lane.is_some_and(|lane| lane.accepts_through < lane.next_token) {
            true if info.held_back_by.by == "quota" => Visit::plain("sold_out"),
            true => Visit::again("full", None),
            false => Visit::plain("enter"),
        }
    }

    /// The cluster cannot be reached, or has no such line.
    pub fn is_without_line(&self) -> bool {
        matches!(self.page, "unavailable" | "unavailable_new" | "uncertain")
    }

    /// A state with nothing else.
    pub fn plain(page: &'static str) -> Visit {
        Visit {
            page,
            fields: Map::new(),
        }
    }

    /// With a time to ask again after.
    fn again(page: &'static str, retry_after_ms: Option<u64>) -> Visit {
        let mut visit = Visit::plain(page);
        let retry_after_ms = retry_after_ms.unwrap_or(RETRY_AFTER_MS);
        visit.put("retry_after_ms", retry_after_ms.max(1_000));
        visit
    }

    /// `closed` for a line that takes nobody new, and goes on for those in it, is `draining`.
    pub fn in_phase(self, info: Option<&InfoReply>) -> Visit {
        let is_draining = info.is_some_and(|info| info.board.phase == "draining");
        match (self.page, is_draining) {
            ("closed", true) => Visit::plain("draining"),
            _ => self,
        }
    }

    /// Sets a field.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// A field that is a whole number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.fields.get(name).and_then(Value::as_u64)
    }

    /// `{"page": …, …}`, as the script takes it.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        all.insert("page".to_owned(), self.page.into());
        all.extend(self.fields.clone());
        Value::Object(all)
    }

    /// After how long somebody without a script should ask again, in whole seconds; `None` where asking changes nothing.
    pub fn asks_again_after_s(&self) -> Option<u64> {
        let after_ms = match self.page {
            // A visitor that asks sooner is refused again.
            "limited" => {
                let after_ms = self.number("retry_after_ms");
                return after_ms.map(|after_ms| after_ms.div_ceil(1_000).max(5));
            }
            "full" | "unavailable" | "unavailable_new" | "uncertain" => {
                self.number("retry_after_ms")
            }
            "waiting" | "call_ahead" | "paused" | "pre_open" | "pre_open_draw" | "drawing"
            | "admitted" | "in_checkout" => self.number("poll_after_ms"),
            _ => return None,
        };
        Some(
            after_ms
                .unwrap_or(RETRY_AFTER_MS)
                .div_ceil(1_000)
                .clamp(5, 60),
        )
    }

    fn add_info(&mut self, info: &InfoReply) {
        let settings = &info.settings;
        let is_live = !self.fields.contains_key("reason");
        if is_live {
            // `seen` says that a visitor is there each third of it, and a little later.
            let idle_ms = settings.waiting_idle_timeout_ms;
            self.put(
                "keeps_ms",
                (idle_ms - idle_ms / 3).saturating_sub(SEEN_LATE_MS),
            );
            self.put("claim_timeout_ms", settings.claim_timeout_ms);
        }
        let draw = info
            .draw
            .as_ref()
            .and_then(|draw| serde_json::to_value(draw).ok());
        if let Some(draw) = draw.filter(|_| is_live) {
            self.put("draw", draw);
        }
    }
}

fn page_of(status: &StatusReply, info: Option<&InfoReply>) -> &'static str {
    let held_back_by = status.held_back_by.as_ref().map(|held| held.by.as_ref());
    let draw = info.and_then(|info| info.draw.as_ref());
    let is_draw_awaited = draw.is_some_and(|draw| draw.state == "awaited");
    match status.state {
        State::Admitted => "admitted",
        State::InCheckout => "in_checkout",
        State::Gone => gone(status.reason.as_deref()),
        State::Waiting => match status.phase.as_deref() {
            _ if held_back_by == Some("draw") => "drawing",
            Some("pre_open") if is_draw_awaited => "pre_open_draw",
            Some("pre_open") => "pre_open",
            Some("paused") => "paused",
            _ if status.call_ahead => "call_ahead",
            _ => "waiting",
        },
    }
}

/// The state of somebody whose token is gone for this reason.
pub(crate) fn gone(reason: Option<&str>) -> &'static str {
    match reason {
        Some("completed") => "completed",
        Some("left") => "left",
        Some("idle") => "idle",
        Some("no_show") => "no_show",
        Some("checkout_expired") => "checkout_expired",
        Some("wait_expired") => "wait_expired",
        Some("kicked") => "kicked",
        Some("sold_out") => "sold_out_gone",
        Some("closed") => "closed_gone",
        _ => "forgotten",
    }
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
