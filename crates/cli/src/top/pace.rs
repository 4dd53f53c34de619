//! How fast a line moves: from the counts of two refreshes.

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
fn entered(counts: &CountsReply) -> u64 {
    let again = counts.drawn + gone(counts, "moved");
    counts.issued.saturating_sub(again)
}

/// Tokens that have got a seat.
fn admitted(counts: &CountsReply) -> u64 {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::top::scenes;

    fn counts(detail: &mut Detail, issued: u64, waiting: u64, gone: [u64; 3]) {
        let [completed, left, moved] = gone;
        let counts = &mut detail.shown.counts;
        counts.issued = issued;
        counts.waiting = waiting;
        counts.gone = [("completed", completed), ("left", left), ("moved", moved)]
            .map(|(reason, count)| (reason.to_owned(), count))
            .into();
        let from_waiting = [("left", left), ("moved", moved)]
            .map(|(reason, count)| (reason.to_owned(), count))
            .into();
        counts.gone_from = [("waiting".to_owned(), from_waiting)].into();
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let start = Instant::now();
        let mut before = scenes::detail("shop-1", start);
        counts(&mut before, 100, 40, [50, 3, 2]);
        let mut after = scenes::detail("shop-1", start + Duration::from_secs(2));
        // 20 numbers, 2 of them for tokens that were moved; 10 admitted; 8 completed; 4 left while they waited.
        counts(&mut after, 120, 44, [58, 7, 4]);
        let pace = Pace::between(&before, &after).unwrap();
        assert_eq!(
            pace,
            Pace {
                entered: 9.0,
                admitted: 5.0,
                done: 4.0
            }
        );
        after.shown.incarnation += 1;
        assert_eq!(Pace::between(&before, &after), None);
        assert_eq!(Pace::between(&before, &before), None);
    }
}
