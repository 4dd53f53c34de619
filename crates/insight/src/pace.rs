//! How fast a line moves: from the counts of two refreshes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use nowserving_client::{CountsReply, LineReply};
use serde::Serialize;

/// Over a shorter time there is no rate.
const LEAST_SECONDS: f64 = 0.2;

/// What was asked about one line, beyond the list of lines.
#[derive(Debug, Clone)]
pub struct Detail {
    /// When the answer came.
    pub at: Instant,
    pub shown: LineReply,
    pub newcomer_eta_ms: Option<u64>,
    /// `measured` or `expected`, with a forecast.
    pub newcomer_eta_from: Option<Cow<'static, str>>,
}

/// Per second, between the last two answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pace {
    pub entered: f64,
    pub admitted: f64,
    pub done: f64,
}

impl Pace {
    /// `None` if the two are not of the same line, or too close to each other.
    pub fn between(before: &Detail, after: &Detail) -> Option<Pace> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
        let (old, new) = (&before.shown, &after.shown);
        if seconds < LEAST_SECONDS || old.incarnation != new.incarnation {
            return None;
        }
        let rate = |total: fn(&CountsReply) -> u64| {
            total(&new.counts).saturating_sub(total(&old.counts)) as f64 / seconds
        };
        Some(Pace {
            entered: rate(entered),
            admitted: rate(admitted),
            done: rate(completed),
        })
    }
}

/// Numbers issued to entrants: a token that is moved or drawn gets another number without entering again.
pub fn entered(counts: &CountsReply) -> u64 {
    let again = counts.drawn + gone(counts, "moved");
    counts.issued.saturating_sub(again)
}

/// Tokens that have got a seat.
pub fn admitted(counts: &CountsReply) -> u64 {
    counts
        .issued
        .saturating_sub(counts.drawn + counts.waiting + gone_from(counts, "waiting"))
}

/// Tokens gone with the reason `completed`.
pub fn completed(counts: &CountsReply) -> u64 {
    gone(counts, "completed")
}

fn gone(counts: &CountsReply, reason: &str) -> u64 {
    counts.gone.get(reason).copied().unwrap_or(0)
}

/// Tokens gone from this state, for whatever reason.
pub fn gone_from(counts: &CountsReply, state: &str) -> u64 {
    counts.gone_from.get(state).map_or(0, sum)
}

/// Requests to enter that were refused.
pub fn refused(counts: &CountsReply) -> u64 {
    sum(&counts.refused)
}

fn sum(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}
