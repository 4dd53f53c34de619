//! Settings as they are typed.

use nowserving_client::LaneSettingsReply;
use serde::Serialize;
use serde_json::Value;

use nowserving_words::typed;

/// A setting's value as it is typed.
pub fn text(name: &str, value: &Value) -> String {
    match (name, value) {
        (_, Value::Null) => "-".to_owned(),
        (_, Value::String(word)) => word.clone(),
        ("lanes", Value::Array(lanes)) => {
            let lanes: Vec<String> = lanes.iter().map(lane).collect();
            lanes.join(", ")
        }
        ("schedule", Value::Array(changes)) => {
            let changes: Vec<String> = changes.iter().map(scheduled).collect();
            changes.join("; ")
        }
        ("position_events", Value::Array(positions)) => {
            let positions: Vec<String> = positions.iter().map(Value::to_string).collect();
            positions.join(",")
        }
        ("admission_rate", Value::Object(rate)) => {
            let part = |name| rate.get(name).map(Value::to_string).unwrap_or_default();
            let (per_second, burst) = (part("per_second"), part("burst"));
            format!("{per_second}/{burst} ({per_second} a second, up to {burst} at once)")
        }
        ("quota", Value::Object(quota)) => {
            let total = quota.get("total").unwrap_or(value);
            let mut text = total.to_string();
            if let Some(units) = quota.get("per_visit") {
                text.push_str(&format!(", {units} a visit"));
            }
            if let Some(percent) = quota.get("standby_percent").and_then(Value::as_u64) {
                text.push_str(&format!(", standby {percent} %"));
            }
            if let Some(renew) = quota.get("renew") {
                text.push_str(&format!(", renewed {}", renewed(renew)));
            }
            text
        }
        (_, Value::Object(words)) => {
            let words = words
                .iter()
                .map(|(name, word)| format!("{name}={}", word.as_str().unwrap_or_default()));
            words.collect::<Vec<_>>().join(", ")
        }
        (name, value) => match value.as_u64().filter(|_| name.ends_with("_ms")) {
            Some(ms) => typed(ms),
            None => value.to_string(),
        },
    }
}

/// `at 06:00 Asia/Taipei` or `every 1day`
fn renewed(renew: &Value) -> String {
    let word = |name| renew[name].as_str().unwrap_or_default();
    match renew["every_ms"].as_u64() {
        Some(ms) => format!("every {}", typed(ms)),
        None => format!("at {} {}", word("at"), word("zone")),
    }
}

/// `2026-11-22T04:00:00Z phase open, seats 40`
pub fn scheduled_text(change: &impl Serialize) -> String {
    scheduled(&serde_json::to_value(change).unwrap_or_default())
}

/// A lane as `--lane` takes it.
pub fn lane_typed(lane: &LaneSettingsReply) -> String {
    self::lane(&serde_json::to_value(lane).unwrap_or_default())
}

fn scheduled(change: &Value) -> String {
    let set = change["set"].as_object();
    let set = set.into_iter().flatten().map(|(name, value)| {
        let shown = shown_name(name);
        format!("{shown} {}", text(name, value))
    });
    let set: Vec<String> = set.collect();
    let at = change["at"].as_str().unwrap_or_default();
    format!("{at} {}", set.join(", "))
}

/// As `--lane` takes it; users see the name alone.
fn lane(lane: &Value) -> String {
    if let Some(name) = lane.as_str() {
        return name.to_owned();
    }
    let mut text = lane["name"].as_str().unwrap_or_default().to_owned();
    if let Some(boost_ms) = lane["boost_ms"].as_u64().filter(|ms| *ms > 0) {
        text.push_str(&format!(":boost={}", typed(boost_ms)));
    }
    if lane["absolute"].as_bool() == Some(true) {
        text.push_str(":absolute");
    }
    if let Some(limit) = lane["queue_limit"].as_u64() {
        text.push_str(&format!(":limit={limit}"));
    }
    if lane["jump"].as_bool() == Some(true) {
        text.push_str(":jump");
    }
    text
}

/// The name of a setting on the command line, where times have units of their own; it may be of another release.
pub fn shown_name(name: &str) -> &str {
    match name {
        // Beside the number of places, which is `call_ahead`.
        "call_ahead_ms" => "call_ahead_time",
        name => name.trim_end_matches("_ms"),
    }
}
