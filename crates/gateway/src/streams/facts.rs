//! What is the same for all who wait in a line, and the forecasts, of which a few answers give all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nowserving_client::{BoardReply, HeldBackReply, InfoReply, LaneName, State, StatusReply};
use tokio::time::Instant;

use crate::notices::Notice;

/// Older answers say nothing about forecasts any more.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(30);
/// Parts of a doubling of the position in which one answer is kept: positions within a fifth of each other have one.
const PARTS: f64 = 4.0;

/// A line at one moment.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub info: Option<Arc<InfoReply>>,
    board: Option<Arc<BoardReply>>,
    held_back_by: Option<HeldBackReply>,
    /// Of `held_back_by`, by the answering node's clock.
    held_at_ms: u64,
    /// Grows when it is another reason.
    pub held_version: u64,
    /// Grows when the state of the page can be another one for all.
    pub page_version: u64,
    /// The operators' announcement.
    pub notice: Option<Arc<Notice>>,
    curves: BTreeMap<LaneName, Curve>,
}

/// A forecast for a place.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Forecast {
    pub eta_ms: Option<u64>,
    pub eta_p90_ms: Option<u64>,
    pub eta_from: Option<Cow<'static, str>>,
    pub turn: Option<u64>,
}

impl Facts {
    /// Takes what the line's view knows now.
    pub fn update(&mut self, info: Option<Arc<InfoReply>>, board: Option<Arc<BoardReply>>) {
        let before = self.page_key();
        if let Some(info) = info {
            let age = |board: &BoardReply| (board.incarnation, board.version);
            let is_newer = board
                .as_ref()
                .is_none_or(|board| age(board) < age(&info.board));
            self.board = if is_newer {
                Some(Arc::new(info.board.clone()))
            } else {
                board
            };
            self.hold(&info.held_back_by, info.board.at_ms);
            self.info = Some(info);
        } else if board.is_some() {
            self.board = board;
        }
        if self.page_key() != before {
            self.page_version += 1;
        }
    }

    /// Learns from the answer about one token.
    pub fn learn(&mut self, status: &StatusReply, now: Instant) {
        if status.state != State::Waiting {
            return;
        }
        let before = self.page_key();
        if let Some(held_back_by) = &status.held_back_by {
            self.hold(held_back_by, status.at_ms);
        }
        if self.page_key() != before {
            self.page_version += 1;
        }
        if let Some(position) = status.position.filter(|_| !status.position_capped) {
            let forecast = Forecast {
                eta_ms: status.eta_ms.flatten(),
                eta_p90_ms: status.eta_p90_ms.flatten(),
                eta_from: status.eta_from.as_deref().map(eta_from),
                turn: status.turn,
            };
            let curve = self.curves.entry(status.lane.clone()).or_default();
            curve.learn(position, forecast, now);
        }
    }

    fn hold(&mut self, held_back_by: &HeldBackReply, at_ms: u64) {
        if at_ms < self.held_at_ms {
            return;
        }
        self.held_at_ms = at_ms;
        let known = self.held_back_by.as_ref();
        if known
            .is_none_or(|known| known.by != held_back_by.by || known.phase != held_back_by.phase)
        {
            self.held_version += 1;
        }
        self.held_back_by = Some(held_back_by.clone());
    }

    /// What the state of the page of somebody who waits follows from.
    fn page_key(&self) -> (Option<String>, bool, bool, Option<String>) {
        let draw = self.info.as_ref().and_then(|info| info.draw.as_ref());
        let held_by_draw = self
            .held_back_by
            .as_ref()
            .is_some_and(|held| held.by == "draw");
        let phase = self.phase().map(str::to_owned);
        (
            phase,
            self.is_undrawn(),
            held_by_draw,
            draw.map(|draw| draw.state.to_string()),
        )
    }

    pub fn phase(&self) -> Option<&str> {
        self.board.as_ref().map(|board| board.phase.as_str())
    }

    /// A draw is awaited or goes on: nobody has a place.
    pub fn is_undrawn(&self) -> bool {
        self.board.as_ref().is_some_and(|board| board.undrawn)
    }

    pub fn held_back_by(&self) -> Option<&HeldBackReply> {
        self.held_back_by.as_ref()
    }

    /// Larger positions are not shown.
    pub fn position_cap(&self) -> Option<u64> {
        let info = self.info.as_ref()?;
        info.settings.position_cap.map(u64::from)
    }

    pub fn admitted_through(&self, lane: &LaneName) -> Option<u64> {
        let mut lanes = self.board.as_ref()?.lanes.iter();
        lanes
            .find(|it| it.lane == *lane)
            .map(|it| it.admitted_through)
    }

    /// Whether the line has let in all up to this token, as far as is known.
    pub fn is_through(&self, (lane, token): (&LaneName, u64)) -> bool {
        let through = self.admitted_through(lane).filter(|_| !self.is_undrawn());
        through.is_some_and(|through| through >= token)
    }

    /// For this place, from answers about places near it.
    pub fn forecast(&self, lane: &LaneName, position: u64, now: Instant) -> Forecast {
        let curve = self.curves.get(lane);
        let mut forecast = curve.map_or_else(Forecast::default, |curve| curve.at(position, now));
        if self
            .board
            .as_ref()
            .is_some_and(|board| board.lanes.len() == 1)
        {
            forecast.turn = Some(position);
        }
        forecast
    }
}

/// Forecasts by position: between two answers they grow evenly.
#[derive(Debug, Default)]
struct Curve {
    samples: BTreeMap<u32, Sample>,
}

#[derive(Debug)]
struct Sample {
    position: u64,
    forecast: Forecast,
    at: Instant,
}

impl Curve {
    fn learn(&mut self, position: u64, forecast: Forecast, now: Instant) {
        self.samples.insert(
            bucket(position),
            Sample {
                position,
                forecast,
                at: now,
            },
        );
    }

    fn at(&self, position: u64, now: Instant) -> Forecast {
        let is_fresh = |sample: &&Sample| now.saturating_duration_since(sample.at) < SAMPLE_AGE_MAX;
        let at = bucket(position);
        let mut before = self
            .samples
            .range(..=at)
            .rev()
            .map(|(_, sample)| sample)
            .filter(is_fresh);
        let mut after = self
            .samples
            .range(at..)
            .map(|(_, sample)| sample)
            .filter(is_fresh);
        let before = before.find(|sample| sample.position <= position);
        let after = after.find(|sample| sample.position >= position);
        match (before, after) {
            (Some(sample), _) | (_, Some(sample)) if sample.position == position => {
                sample.forecast.clone()
            }
            (Some(before), Some(after)) => between(before, after, position),
            // As many times as long as the way is longer.
            (Some(one), None) | (None, Some(one)) => scaled(one, position),
            (None, None) => Forecast::default(),
        }
    }
}

/// Copied for each visitor: without memory of its own, if the word is known.
fn eta_from(word: &str) -> Cow<'static, str> {
    match word {
        "measured" => Cow::Borrowed("measured"),
        "expected" => Cow::Borrowed("expected"),
        other => Cow::Owned(other.to_owned()),
    }
}

fn bucket(position: u64) -> u32 {
    ((position.max(1) as f64).log2() * PARTS) as u32
}

fn between(before: &Sample, after: &Sample, position: u64) -> Forecast {
    let share = (position - before.position) as f64 / (after.position - before.position) as f64;
    let mix = |part: fn(&Forecast) -> Option<u64>| {
        let (low, high) = part(&before.forecast).zip(part(&after.forecast))?;
        Some((low as f64 + (high as f64 - low as f64) * share) as u64)
    };
    Forecast {
        eta_ms: mix(|it| it.eta_ms),
        eta_p90_ms: mix(|it| it.eta_p90_ms),
        eta_from: after.forecast.eta_from.clone(),
        turn: mix(|it| it.turn),
    }
}

fn scaled(one: &Sample, position: u64) -> Forecast {
    let ratio = position as f64 / one.position.max(1) as f64;
    let scale = |value: Option<u64>| value.map(|value| (value as f64 * ratio) as u64);
    Forecast {
        eta_ms: scale(one.forecast.eta_ms),
        eta_p90_ms: scale(one.forecast.eta_p90_ms),
        eta_from: one.forecast.eta_from.clone(),
        turn: scale(one.forecast.turn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(eta_ms: Option<u64>, turn: u64) -> Forecast {
        Forecast {
            eta_ms,
            eta_p90_ms: eta_ms.map(|ms| 2 * ms),
            eta_from: eta_ms.map(|_| "measured".into()),
            turn: Some(turn),
        }
    }

    #[test]
    fn forecasts_between_two_answers_grow_evenly() {
        let (mut curve, now) = (Curve::default(), Instant::now());
        assert_eq!(curve.at(5, now), Forecast::default());
        curve.learn(100, forecast(Some(1_000), 150), now);
        assert_eq!(curve.at(50, now), forecast(Some(500), 75));
        curve.learn(300, forecast(Some(5_000), 400), now);
        assert_eq!(curve.at(100, now), forecast(Some(1_000), 150));
        assert_eq!(curve.at(200, now), forecast(Some(3_000), 275));
        assert_eq!(curve.at(600, now), forecast(Some(10_000), 800));
        // An answer that knows no forecast says so for all around it.
        curve.learn(290, forecast(None, 390), now);
        assert_eq!(curve.at(200, now).eta_ms, None);
        assert!(curve.samples.len() <= 3);
    }

    #[test]
    fn old_answers_count_no_more_and_few_are_kept() {
        let (mut curve, now) = (Curve::default(), Instant::now());
        for position in 1..100_000 {
            curve.learn(position, forecast(Some(position * 10), position), now);
        }
        assert!(curve.samples.len() < 70, "{}", curve.samples.len());
        for position in [1, 2, 3, 10, 99, 1_000, 12_345, 99_999] {
            let eta_ms = curve.at(position, now).eta_ms.unwrap_or(0);
            assert!(eta_ms.abs_diff(position * 10) <= 1, "{position}: {eta_ms}");
        }
        assert_eq!(curve.at(50, now + SAMPLE_AGE_MAX), Forecast::default());
    }
}
