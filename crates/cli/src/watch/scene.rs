//! The screen of a watched line.

use std::time::Instant;

use nowserving_client::{BoardReply, InfoReply, StatusReply};
use nowserving_rehearse::duration;

use super::contact::Contact;
use super::happened::Recent;
use super::rates::{PerSecond, Rates};
use crate::gauge::Gauge;
use crate::tables;

/// The text around a bar.
const AROUND_BAR: usize = 32;
const BAR_WIDTHS: std::ops::RangeInclusive<usize> = 8..=40;

/// The known state of the line.
#[derive(Debug)]
pub struct Scene {
    pub board: Option<BoardReply>,
    /// The last answer, for the fields that no board has.
    pub info: Option<InfoReply>,
    pub place: Option<StatusReply>,
    pub rates: Rates,
    pub contact: Contact,
    pub recent: Recent,
}

impl Scene {
    /// The screen at this moment, at most `columns` wide if that is 40 or more.
    pub fn text(&self, now: Instant, columns: usize) -> String {
        let mut lines = Vec::new();
        // First, so that the shortest window shows it.
        let old = self.contact.old(now);
        let is_old = old.is_some();
        lines.extend(old.map(|why| format!("OLD: {why}")));
        if let Some(board) = &self.board {
            lines.extend(self.board_lines(board, columns));
            lines.push(String::new());
            // The board stays, marked as old. Rates and forecasts would be wrong.
            if !is_old {
                lines.extend(self.present_lines(board, now));
            }
        }
        if let Some(place) = &self.place {
            lines.push(String::new());
            lines.extend(place_lines(place));
        }
        let mut recent = self.recent.lines(now).peekable();
        if recent.peek().is_some() {
            lines.push(String::new());
            lines.extend(recent);
        }
        let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }

    fn board_lines(&self, board: &BoardReply, columns: usize) -> Vec<String> {
        let width = columns.saturating_sub(AROUND_BAR);
        let width = width.clamp(*BAR_WIDTHS.start(), *BAR_WIDTHS.end());
        let limit = self.info.as_ref().map(|info| info.settings.queue_limit);
        let gauges = [Gauge::seats(board), Gauge::waiting(board, limit)];
        let gauges = gauges.map(|it| it.label() + &it.bar(width) + &it.words());
        let (name, phase, version) = (board.line.as_str(), &board.phase, board.version);
        let (waits, serving) = ("waiting", "now serving");
        let mut lines = vec![format!("{name}  {phase}, version {version}"), String::new()];
        lines.extend(gauges);
        lines.push(String::new());
        lines.push(format!(
            "{:<13}{waits:>8}{serving:>13}{:>9}",
            "lane", "next"
        ));
        lines.extend(board.lanes.iter().map(|lane| {
            let name: String = lane.lane.as_str().chars().take(12).collect();
            format!(
                "{name:<13}{:>8}{:>13}{:>9}",
                lane.waiting, lane.admitted_through, lane.next_token
            )
        }));
        lines
    }

    /// The rates of the last seconds, and what holds the line back now.
    fn present_lines(&self, board: &BoardReply, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let rates = self.rates.per_second(now);
        lines.push(rates.map_or_else(
            || "a second: not known yet".to_owned(),
            |rates| {
                let PerSecond {
                    entered,
                    admitted,
                    gone,
                } = rates;
                format!("a second: {entered:.1} enter, {admitted:.1} are admitted, {gone:.1} go")
            },
        ));
        if let Some(info) = &self.info {
            lines.push(format!("a newcomer {}", newcomer(board, info)));
            lines.push(tables::held_back(&info.held_back_by));
        }
        lines
    }
}

/// The wait of a newcomer to the default lane, by the line's own forecast.
fn newcomer(board: &BoardReply, info: &InfoReply) -> String {
    let default_lane = info.settings.default_lane.as_ref();
    let lane = board
        .lanes
        .iter()
        .find(|lane| Some(&lane.lane) == default_lane);
    if lane.is_some_and(|lane| lane.next_token > lane.accepts_through) {
        return "is refused".to_owned();
    }
    if matches!(board.phase.as_str(), "pre_open" | "paused") {
        return "waits until the line is open".to_owned();
    }
    match info.newcomer_eta_ms {
        Some(0) => "is admitted at once".to_owned(),
        Some(ms) => {
            let guess = tables::by_guess(info.newcomer_eta_from.as_deref());
            format!("waits for about {}{guess}", whole_seconds(ms))
        }
        None => "waits; there is no forecast yet".to_owned(),
    }
}

fn whole_seconds(ms: u64) -> String {
    duration(ms.div_ceil(1_000) * 1_000)
}

fn place_lines(place: &StatusReply) -> Vec<String> {
    let mut lines = vec![tables::place_line(place)];
    if let (Some(Some(eta_ms)), Some(Some(p90_ms))) = (place.eta_ms, place.eta_p90_ms) {
        let (eta, p90) = (whole_seconds(eta_ms), whole_seconds(p90_ms));
        let guess = tables::by_guess(place.eta_from.as_deref());
        lines.push(format!(
            "forecast when last asked: {eta}, nine in ten wait at most {p90}{guess}"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// As an `info` with these lanes answers it.
    fn info(lanes: &serde_json::Value, phase: &str, eta_ms: Option<u64>) -> InfoReply {
        let info = json!({"line": "shop-1", "incarnation": 1, "version": 4711, "at_ms": 1,
            "phase": phase, "seats": 7, "admitted": 2, "in_checkout": 5, "lanes": lanes,
            "shard": 3, "leader": 1, "held_back_by": {"by": "seats"}, "newcomer_eta_ms": eta_ms,
            "settings": {"seats": 7, "queue_limit": 15, "waiting_idle_timeout_ms": 1_000,
                "claim_timeout_ms": 1_000, "checkout_timeout_ms": 1_000, "checkout_max_ms": 1_000,
                "default_lane": "lane-0", "phase": phase, "token_events": true}});
        serde_json::from_value(info).unwrap()
    }

    fn scene(lanes: usize, phase: &str) -> Scene {
        let lanes: Vec<_> = (0..lanes)
            .map(|nth| {
                json!({"lane": format!("lane-{nth}"), "next_token": 26, "done_through": 3,
                "admitted_through": 10, "accepts_through": 32, "waiting": 15})
            })
            .collect();
        let info = info(&json!(lanes), phase, None);
        Scene {
            board: Some(info.board.clone()),
            info: Some(info),
            place: None,
            rates: Rates::default(),
            contact: Contact::new(Instant::now()),
            recent: Recent::default(),
        }
    }

    #[test]
    fn it_fits_where_it_is_shown() {
        for (columns, lanes) in [(80, 1), (80, 8), (50, 3), (40, 1)] {
            let text = scene(lanes, "open").text(Instant::now(), columns);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() <= columns.max(53), "{columns}:\n{text}");
            assert!(text.lines().count() < 24, "{text}");
        }
    }

    #[test]
    fn it_shows_board_and_forecast() {
        let now = Instant::now();
        let text = scene(3, "open").text(now, 80);
        for words in [
            "shop-1  open",
            "7 of 7",
            "lane-2",
            "45",
            "a newcomer waits; there is no forecast yet",
            "held back by: the seats",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("OLD"), "{text}");
        let paused = scene(1, "paused").text(now, 80);
        assert!(paused.contains("waits until the line is open"), "{paused}");
    }

    #[test]
    fn rates_and_forecasts_are_blank_while_it_is_old() {
        let text = scene(1, "open").text(Instant::now() + Duration::from_secs(5), 80);
        for words in ["OLD: no contact for", "7 of 7", "lane-0"] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        for words in ["a second", "newcomer", "held back by"] {
            assert!(!text.contains(words), "{words}:\n{text}");
        }
    }

    #[test]
    fn a_newcomers_wait_is_the_lines_forecast() {
        let mut scene = scene(1, "open");
        for (eta_ms, words) in [
            (Some(0), "is admitted at once"),
            (Some(61_200), "waits for about 1 min 2 s"),
        ] {
            scene.info.as_mut().unwrap().newcomer_eta_ms = eta_ms;
            let text = scene.text(Instant::now(), 80);
            assert!(text.contains(words), "{words}:\n{text}");
        }
        scene.info.as_mut().unwrap().newcomer_eta_from = Some("expected".into());
        let text = scene.text(Instant::now(), 80);
        let words = "waits for about 1 min 2 s (by the operator's guess)";
        assert!(text.contains(words), "{text}");
        scene.board.as_mut().unwrap().lanes[0].accepts_through = 25;
        let text = scene.text(Instant::now(), 80);
        assert!(text.contains("a newcomer is refused"), "{text}");
    }
}
