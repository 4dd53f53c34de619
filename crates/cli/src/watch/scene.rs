//! What a watched line looks like on a terminal.

use std::time::Instant;

use nowserving_client::{BoardReply, InfoReply, StatusReply};
use nowserving_rehearse::duration;

use super::contact::Contact;
use super::rates::{PerSecond, Rates};
use crate::bar::bar;
use crate::tables;

/// The text around a bar.
const AROUND_BAR: usize = 32;
const BAR_WIDTHS: std::ops::RangeInclusive<usize> = 8..=40;

/// All that is known of the line.
#[derive(Debug)]
pub struct Scene {
    pub board: Option<BoardReply>,
    /// The last answer, for what no board has: the settings, what holds the line back.
    pub info: Option<InfoReply>,
    pub place: Option<StatusReply>,
    pub rates: Rates,
    pub contact: Contact,
}

impl Scene {
    /// The screen, by now; `columns` wide at most, if that is 40 or more.
    pub fn text(&self, now: Instant, columns: usize) -> String {
        let mut lines = Vec::new();
        // First, where the shortest window shows it.
        lines.extend(self.contact.old(now).map(|why| format!("OLD: {why}")));
        if let Some(board) = &self.board {
            lines.extend(self.board_lines(board, now, columns));
        }
        if let Some(place) = &self.place {
            lines.push(String::new());
            lines.extend(place_lines(place));
        }
        let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }

    fn board_lines(&self, board: &BoardReply, now: Instant, columns: usize) -> Vec<String> {
        let width = columns.saturating_sub(AROUND_BAR);
        let width = width.clamp(*BAR_WIDTHS.start(), *BAR_WIDTHS.end());
        let held = board.admitted + board.in_checkout;
        let waiting: u64 = board.lanes.iter().map(|lane| lane.waiting).sum();
        let room = self
            .info
            .as_ref()
            .map(|info| info.settings.queue_limit.into());
        let room = room.unwrap_or(waiting);
        let mut lines = vec![
            format!(
                "{}  {}, version {}",
                board.line.as_str(),
                board.phase,
                board.version
            ),
            String::new(),
            format!(
                "seats    {}  {held} of {}",
                bar(held, board.seats.into(), width),
                board.seats
            ),
            format!(
                "waiting  {}  {waiting} of {room}",
                bar(waiting, room, width)
            ),
            String::new(),
            format!(
                "{:<13}{:>8}{:>13}{:>9}",
                "lane", "waiting", "now serving", "next"
            ),
        ];
        lines.extend(board.lanes.iter().map(|lane| {
            let name: String = lane.lane.as_str().chars().take(12).collect();
            format!(
                "{name:<13}{:>8}{:>13}{:>9}",
                lane.waiting, lane.admitted_through, lane.next_token
            )
        }));
        lines.push(String::new());
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
        lines.push(format!(
            "who enters now {}",
            newcomer(board, waiting, held, rates)
        ));
        if let Some(info) = &self.info {
            lines.push(tables::held_back(&info.held_back_by));
        }
        lines
    }
}

/// What somebody who enters the line now has to expect. By the pace of the last seconds, over all
/// lanes: a board knows no forecast.
fn newcomer(board: &BoardReply, waiting: u64, held: u64, rates: Option<PerSecond>) -> String {
    match board.phase.as_str() {
        "closed" | "draining" => return "is refused".to_owned(),
        "pre_open" | "paused" => return "waits until the line is open".to_owned(),
        _ => {}
    }
    if waiting == 0 && held < board.seats.into() {
        return "is admitted at once".to_owned();
    }
    match rates.map(|rates| rates.admitted).filter(|pace| *pace > 0.0) {
        Some(pace) => {
            let seconds = ((waiting + 1) as f64 / pace).ceil() as u64;
            format!("waits for about {}", duration(seconds * 1_000))
        }
        None => "waits, nobody knows how long".to_owned(),
    }
}

fn place_lines(place: &StatusReply) -> Vec<String> {
    let mut lines = vec![tables::place_line(place)];
    if let (Some(Some(eta_ms)), Some(Some(p90_ms))) = (place.eta_ms, place.eta_p90_ms) {
        let passed = |ms: u64| duration(ms.div_ceil(1_000) * 1_000);
        let (eta, p90) = (passed(eta_ms), passed(p90_ms));
        lines.push(format!(
            "forecast when last asked: {eta}, nine in ten wait at most {p90}"
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

    fn scene(lanes: usize, phase: &str) -> Scene {
        let lanes: Vec<_> = (0..lanes)
            .map(|nth| {
                json!({"lane": format!("lane-{nth}"), "next_token": 26, "done_through": 3,
                "admitted_through": 10, "accepts_through": 25, "waiting": 15})
            })
            .collect();
        let board = json!({"line": "shop-1", "incarnation": 1, "version": 4711, "at_ms": 1,
            "phase": phase, "seats": 7, "admitted": 2, "in_checkout": 5, "lanes": lanes});
        Scene {
            board: Some(serde_json::from_value(board).unwrap()),
            info: None,
            place: None,
            rates: Rates::default(),
            contact: Contact::new(Instant::now()),
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
    fn it_shows_what_matters() {
        let now = Instant::now();
        let text = scene(3, "open").text(now, 80);
        for words in [
            "shop-1  open",
            "7 of 7",
            "lane-2",
            "45",
            "nobody knows how long",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("OLD"), "{text}");
        let later = scene(1, "paused").text(now + Duration::from_secs(5), 80);
        assert!(later.contains("OLD: no contact for"), "{later}");
        assert!(later.contains("waits until the line is open"), "{later}");
    }
}
