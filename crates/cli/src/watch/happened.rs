//! The events of a watched line, and of the token that is followed.

use std::collections::VecDeque;
use std::time::Instant;

use futures::stream::{self, StreamExt as _};
use nowserving_client::{
    EventStream, Key, LaneName, Line, LineEvent, Result, StatusReply, TokenEvent,
};
use nowserving_rehearse::duration;
use serde::Serialize;

use crate::tables;

/// How many events a screen keeps.
const KEPT: usize = 5;
/// How many keys a screen shows of one event, which names up to a hundred.
const KEYS_SHOWN: usize = 3;

/// An event, printed as it was published.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Happened {
    Line(LineEvent),
    Token(TokenEvent),
}

impl Happened {
    /// In words, with all keys.
    pub fn text(&self) -> String {
        let version = match self {
            Happened::Line(event) => event.version,
            Happened::Token(event) => event.version,
        };
        format!("{}, version {version}", self.words(usize::MAX))
    }

    fn words(&self, keys_shown: usize) -> String {
        match self {
            Happened::Line(event) => of_line(event, keys_shown),
            Happened::Token(event) => of_token(event),
        }
    }
}

fn of_line(event: &LineEvent, keys_shown: usize) -> String {
    let lane = event.lane.as_ref().map_or("", LaneName::as_str);
    match event.event.as_str() {
        "configured" => "settings changed".to_owned(),
        "phase" => format!("phase {}", event.phase.as_deref().unwrap_or_default()),
        "schedule_failed" => {
            let why = event.message.as_deref().unwrap_or_default();
            format!("a change of the schedule failed: {why}")
        }
        "room" => format!("room in {lane} for {}", keys(event, keys_shown)),
        "seats" => {
            let silent = event.silent.unwrap_or(false);
            let silent = if silent {
                ", the backend is silent"
            } else {
                ""
            };
            format!("seats {}{silent}", event.seats.unwrap_or_default())
        }
        "quota_renewed" => "quota renewed".to_owned(),
        "draw_sealed" => {
            let commitment = event.commitment.as_deref().unwrap_or_default();
            format!("draw sealed, commitment {commitment}")
        }
        "draw_begun" => {
            let seed = event.seed.as_deref().unwrap_or_default();
            let took_part = event.took_part.unwrap_or_default();
            let beacon = event.beacon.as_ref();
            let beacon = beacon.map_or(String::new(), |beacon| format!(", beacon {beacon}"));
            format!("draw begun, {took_part} take part, seed {seed}{beacon}")
        }
        "drawn" => {
            let digest = event.digest.as_deref().unwrap_or_default();
            format!("drawn, digest {digest}")
        }
        // `created`, `deleted`, `restored`, and what later releases have.
        other => other.replace('_', " "),
    }
}

/// `ann, bob and 12 more`
fn keys(event: &LineEvent, shown: usize) -> String {
    let keys = event.keys.as_deref().unwrap_or_default();
    let names: Vec<String> = keys.iter().take(shown).map(key).collect();
    let names = names.join(", ");
    match keys.len().saturating_sub(shown) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

fn key(key: &Key) -> String {
    tables::key_text(key)
}

fn of_token(event: &TokenEvent) -> String {
    let mut text = format!("token {} of {}: ", event.token, event.lane);
    let position = event.position.unwrap_or_default();
    match event.event.as_str() {
        "entered" if event.position.is_none() => text.push_str("entered, and waits for the draw"),
        "entered" => text.push_str(&format!("entered at position {position}")),
        "position" => text.push_str(&format!("has come to position {position}")),
        "moved" => {
            let lane = event.to_lane.as_ref().map_or("", LaneName::as_str);
            let token = event.to_token.unwrap_or_default();
            text.push_str(&format!("moved, now token {token} of {lane}"));
        }
        "call_ahead" => text.push_str("called ahead"),
        other => text.push_str(&other.replace('_', " ")),
    }
    for more in [&event.reason, &event.by].into_iter().flatten() {
        text.push_str(&format!(", {more}"));
    }
    if let Some(units) = event.units.filter(|units| *units != 1) {
        text.push_str(&format!(", {units} units"));
    }
    text
}

/// The newest events, for a screen.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(Instant, String)>);

impl Recent {
    pub fn add(&mut self, event: &Happened, now: Instant) {
        self.0.push_front((now, event.words(KEYS_SHOWN)));
        self.0.truncate(KEPT);
    }

    /// Newest first, so that a short window shows it.
    pub fn lines(&self, now: Instant) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .map(move |(at, words)| match now.duration_since(*at).as_secs() {
                0 => format!("now: {words}"),
                seconds => format!("{} ago: {words}", duration(seconds * 1_000)),
            })
    }
}

/// The events of a line, and of one token of it.
pub struct Events {
    line: Line,
    of_line: EventStream<LineEvent>,
    of_token: EventStream<TokenEvent>,
    followed: Option<(LaneName, u64)>,
}

impl Events {
    /// From now on, those of the line.
    pub async fn of(line: &Line) -> Result<Events> {
        Ok(Events {
            line: line.clone(),
            of_line: line.events().await?,
            of_token: stream::pending().boxed(),
            followed: None,
        })
    }

    /// From now on, also those of the token with this status.
    pub async fn follow(&mut self, status: &StatusReply) -> Result<()> {
        let token = (status.lane.clone(), status.token);
        if self.followed.as_ref() != Some(&token) {
            self.of_token = self.line.token_events(&token.0, token.1).await?;
            self.followed = Some(token);
        }
        Ok(())
    }

    /// `None` once the connection is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Happened>> {
        tokio::select! {
            event = self.of_line.next() => event.map(|event| event.map(Happened::Line)),
            event = self.of_token.next() => event.map(|event| event.map(Happened::Token)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn event(mut more: Value) -> Value {
        let common = json!({"line": "shop-1", "incarnation": 1, "version": 7, "prev_version": 5,
            "at_ms": 1});
        let fields = more.as_object_mut().unwrap();
        fields.extend(common.as_object().unwrap().clone());
        more
    }

    fn line(more: Value) -> Happened {
        Happened::Line(serde_json::from_value(event(more)).unwrap())
    }

    fn token(mut more: Value) -> Happened {
        more["lane"] = json!("vip");
        more["token"] = json!(3);
        Happened::Token(serde_json::from_value(event(more)).unwrap())
    }

    #[test]
    fn events_of_lines_are_told_in_words() {
        for (event, words) in [
            (
                json!({"event": "room", "lane": "vip", "keys": ["ann", [255]]}),
                "room in vip for ann, \u{fffd}, version 7",
            ),
            (
                json!({"event": "phase", "phase": "open"}),
                "phase open, version 7",
            ),
            (
                json!({"event": "configured"}),
                "settings changed, version 7",
            ),
            (
                json!({"event": "seats", "seats": 2, "silent": true}),
                "seats 2, the backend is silent, version 7",
            ),
            (
                json!({"event": "seats", "seats": 9, "silent": false}),
                "seats 9, version 7",
            ),
            (
                json!({"event": "schedule_failed", "scheduled_at_ms": 1, "code": "bad_request",
                    "message": "lanes: vip is not empty"}),
                "a change of the schedule failed: lanes: vip is not empty, version 7",
            ),
            (
                json!({"event": "quota_renewed"}),
                "quota renewed, version 7",
            ),
            (json!({"event": "of_tomorrow"}), "of tomorrow, version 7"),
        ] {
            assert_eq!(line(event).text(), words);
        }
    }

    #[test]
    fn events_of_tokens_are_told_in_words() {
        for (event, words) in [
            (
                json!({"event": "position", "position": 10}),
                "token 3 of vip: has come to position 10, version 7",
            ),
            (
                json!({"event": "moved", "to_lane": "normal", "to_token": 9, "by": "jump"}),
                "token 3 of vip: moved, now token 9 of normal, jump, version 7",
            ),
            (
                json!({"event": "gone", "reason": "wait_expired"}),
                "token 3 of vip: gone, wait_expired, version 7",
            ),
            (
                json!({"event": "call_ahead"}),
                "token 3 of vip: called ahead, version 7",
            ),
        ] {
            assert_eq!(token(event).text(), words);
        }
    }

    #[test]
    fn a_screen_has_the_newest_and_few_keys() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        for position in 1..=9 {
            let event = token(json!({"event": "position", "position": position}));
            recent.add(&event, start);
        }
        let keys: Vec<String> = (0..100).map(|nth| format!("k{nth}")).collect();
        let room = line(json!({"event": "room", "lane": "vip", "keys": keys}));
        recent.add(&room, start + Duration::from_secs(2));
        let lines: Vec<String> = recent
            .lines(start + Duration::from_millis(62_900))
            .collect();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(
            lines[0],
            "1 min ago: room in vip for k0, k1, k2 and 97 more"
        );
        assert_eq!(
            lines[1],
            "1 min 2 s ago: token 3 of vip: has come to position 9"
        );
    }
}
