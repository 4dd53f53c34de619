//! Events of a stream as bytes: the contract is `page/README.md`.

use std::borrow::Cow;

use axum::body::Bytes;
use nowserving_client::HeldBackReply;
use rand::RngExt as _;
use serde::Serialize;

use crate::notices::{self, Notice};
use crate::visit::Visit;

/// When browsers come back after a stream has ended: spread, so that all those of a gateway that has stopped do not come
/// at once.
const RETRY_MS: std::ops::RangeInclusive<u32> = 2_000..=10_000;

/// The names of events that bring a whole visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    Phase,
    Admitted,
    Gone,
}

/// A place alone. A field that is missing is not known.
#[derive(Debug, Default, Serialize)]
pub(super) struct PlaceData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub position_capped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_p90_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_from: Option<&'a Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<&'a HeldBackReply>,
    pub call_ahead: bool,
    pub admitted_through: u64,
}

/// `notice`: with the language of the stream's reader.
pub(super) fn whole(name: Whole, visit: &Visit, notice: Option<(&Notice, &str)>) -> Bytes {
    let name = match name {
        Whole::Phase => "phase",
        Whole::Admitted => "admitted",
        Whole::Gone => "gone",
    };
    let mut visit = visit.to_json();
    if let Some((notice, language)) = notice {
        visit["notice"] = notice.for_reader(language);
    }
    event(name, &visit)
}

/// The announcement has changed, or is what it is when the stream begins.
pub(super) fn notice(notice: Option<&Notice>, language: &str) -> Bytes {
    event("notice", &notices::event_data(notice, language))
}

pub(super) fn place(data: &PlaceData<'_>) -> Bytes {
    event("place", data)
}

pub(super) fn beat() -> Bytes {
    Bytes::from_static(b"event: beat\ndata: {}\n\n")
}

/// Another time for each stream.
pub(super) fn retry() -> Bytes {
    format!("retry: {}\n\n", rand::rng().random_range(RETRY_MS)).into()
}

fn event(name: &str, data: &impl Serialize) -> Bytes {
    let mut text = Vec::with_capacity(512);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    // JSON on one line: it has no line feeds of its own, and none of these types can fail.
    if serde_json::to_writer(&mut text, data).is_err() {
        text.extend_from_slice(b"{}");
    }
    text.extend_from_slice(b"\n\n");
    text.shrink_to_fit();
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_as_the_page_expects_them() {
        let held_back_by = HeldBackReply {
            by: "seats".into(),
            phase: None,
            next_at_ms: None,
            next_in_ms: None,
        };
        let from = "measured".into();
        let data = PlaceData {
            position: Some(237),
            ahead: Some(236),
            turn: Some(240),
            eta_ms: Some(717_000),
            eta_p90_ms: Some(946_000),
            eta_from: Some(&from),
            held_back_by: Some(&held_back_by),
            admitted_through: 4480,
            ..PlaceData::default()
        };
        let expected = "event: place\ndata: {\"position\":237,\"ahead\":236,\"turn\":240,\"eta_ms\":717000,\
            \"eta_p90_ms\":946000,\"eta_from\":\"measured\",\"held_back_by\":{\"by\":\"seats\"},\"call_ahead\":false,\
            \"admitted_through\":4480}\n\n";
        assert_eq!(place(&data), expected);
        let mut visit = Visit::plain("unavailable");
        visit.put("note", "two\nlines");
        let expected =
            "event: phase\ndata: {\"note\":\"two\\nlines\",\"page\":\"unavailable\"}\n\n";
        assert_eq!(whole(Whole::Phase, &visit, None), expected);
        assert_eq!(
            notice(None, "en"),
            "event: notice\ndata: {\"text\":null}\n\n"
        );
        assert_eq!(beat(), "event: beat\ndata: {}\n\n");
    }

    #[test]
    fn browsers_come_back_at_different_times() {
        let times: std::collections::BTreeSet<u32> = (0..200)
            .filter_map(|_| String::from_utf8(retry().to_vec()).ok())
            .filter_map(|text| text.strip_prefix("retry: ")?.trim_end().parse().ok())
            .collect();
        assert!(times.len() > 150, "{}", times.len());
        assert!(times.iter().all(|ms| RETRY_MS.contains(ms)));
    }
}
