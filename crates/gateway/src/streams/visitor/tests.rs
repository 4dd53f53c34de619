#![allow(clippy::unwrap_used)]
use std::sync::atomic::AtomicUsize;

use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use nowserving_client::{BoardReply, InfoReply};
use serde_json::{Value, json};

use super::super::outlet::{Events, Place};
use super::*;

/// A line, its one visitor, and a stream that is read.
struct Scene {
    facts: Facts,
    visitor: Visitor,
    rule: LineRule,
    events: Events,
    board: Value,
    info: Value,
    at_ms: u64,
}

fn board() -> Value {
    json!({
        "line": "sale", "incarnation": 1, "version": 10, "at_ms": 1_000, "phase": "open", "seats": 1, "admitted": 0,
        "in_checkout": 1, "lanes": [{
            "lane": "normal", "next_token": 200, "done_through": 0, "admitted_through": 10, "accepts_through": 999,
            "waiting": 150,
        }],
    })
}

fn info() -> Value {
    let mut info = board();
    let more = json!({
        "shard": 0, "leader": 1, "held_back_by": {"by": "seats"}, "settings": {
            "seats": 1, "queue_limit": 900, "waiting_idle_timeout_ms": 60_000, "claim_timeout_ms": 20_000,
            "checkout_timeout_ms": 60_000, "checkout_max_ms": 600_000, "token_events": true,
        },
    });
    info.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    info
}

fn status(state: &str, position: Option<u64>) -> Value {
    let mut status = json!({
        "line": "sale", "incarnation": 1, "lane": "normal", "token": 100, "state": state, "admitted_through": 10,
        "call_ahead": false, "poll_after_ms": 5_000, "version": 10, "at_ms": 1_000,
    });
    if let Some(position) = position {
        let more = json!({
            "position": position, "ahead": position - 1, "turn": position, "eta_ms": position * 10_000,
            "eta_p90_ms": position * 15_000, "eta_from": "measured", "phase": "open", "held_back_by": {"by": "seats"},
        });
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
    }
    status
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl Scene {
    fn new(first: &Value) -> Scene {
        let outlet = Outlet::new(Bytes::new(), "en");
        let place = Place::take(&Arc::new(AtomicUsize::new(0)), 1).unwrap();
        let events = Events {
            outlet: Arc::clone(&outlet),
            _place: place,
        };
        let mut scene = Scene {
            facts: Facts::default(),
            visitor: Visitor::new("ticket".to_owned(), Some(read(first)), Instant::now()),
            rule: LineRule::new("sale".parse().unwrap()),
            events,
            board: board(),
            info: info(),
            at_ms: 1_000,
        };
        scene.update();
        scene.facts.learn(&read(first), Instant::now());
        scene.visitor.join(outlet, &scene.facts, &scene.rule);
        scene
    }

    fn update(&mut self) {
        self.at_ms += 1;
        self.board["at_ms"] = json!(self.at_ms);
        self.info["at_ms"] = json!(self.at_ms);
        let (info, board): (InfoReply, BoardReply) = (read(&self.info), read(&self.board));
        self.facts
            .update(Some(Arc::new(info)), Some(Arc::new(board)));
    }

    fn placed(&mut self, standing: Standing) {
        self.update();
        self.visitor
            .placed(standing, &self.facts, &self.rule, Instant::now());
    }

    fn at(&mut self, position: u64) {
        self.placed(Standing::Position(position));
    }

    fn answered(&mut self, status: &Value) -> Next {
        self.visitor.answered(read(status), &self.facts, &self.rule)
    }

    /// The events that were sent meanwhile, with their data.
    fn sent(&mut self) -> Vec<(String, Value)> {
        let mut text = String::new();
        while let Some(Some(Ok(frame))) = self.events.frame().now_or_never() {
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        events
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let name = name.strip_prefix("event: ").unwrap().to_owned();
                (
                    name,
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
                )
            })
            .collect()
    }

    fn names(&mut self) -> Vec<String> {
        self.sent().into_iter().map(|(name, _)| name).collect()
    }
}

#[test]
fn a_stream_begins_with_the_whole_visit_and_then_tells_places_that_change() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    let sent = scene.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, "phase");
    assert_eq!(
        (&sent[0].1["page"], &sent[0].1["position"]),
        (&json!("waiting"), &json!(50))
    );
    assert!(sent[0].1.get("ticket").is_none());
    scene.at(50);
    assert!(scene.sent().is_empty(), "nothing new");
    scene.board["lanes"][0]["admitted_through"] = json!(12);
    scene.board["version"] = json!(11);
    scene.at(48);
    let expected = json!({
        "position": 48, "ahead": 47, "turn": 48, "eta_ms": 480_000, "eta_p90_ms": 720_000, "eta_from": "measured",
        "held_back_by": {"by": "seats"}, "call_ahead": false, "admitted_through": 12,
    });
    assert_eq!(scene.sent(), [("place".to_owned(), expected)]);
    scene.placed(Standing::Unknown);
    assert!(scene.sent().is_empty(), "the last place stands");
}

#[test]
fn a_place_never_grows() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    scene.at(51);
    assert!(scene.sent().is_empty());
    scene.at(49);
    assert_eq!(scene.sent()[0].1["position"], 49);
    // An answer that boards have overtaken.
    assert_eq!(scene.answered(&status("waiting", Some(50))), Next::Stays);
    scene.at(49);
    assert!(scene.sent().is_empty());
    // But it does in a line that was put back.
    scene.visitor.forget_place();
    scene.at(60);
    assert_eq!(scene.sent()[0].1["position"], 60);
}

#[test]
fn another_reason_and_another_forecast_are_told_without_a_move() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    scene.info["held_back_by"] =
        json!({"by": "admission_rate", "next_in_ms": 100, "next_at_ms": 9});
    scene.at(50);
    assert_eq!(scene.sent()[0].1["held_back_by"]["by"], "admission_rate");
    // The time of the next unit alone is no news.
    scene.info["held_back_by"] = json!({"by": "admission_rate", "next_in_ms": 50, "next_at_ms": 7});
    scene.at(50);
    assert!(scene.sent().is_empty());
    for (eta_ms, is_told) in [(505_000, false), (600_000, true), (605_000, false)] {
        let mut sample = status("waiting", Some(50));
        sample["eta_ms"] = json!(eta_ms);
        scene.facts.learn(&read(&sample), Instant::now());
        scene.at(50);
        assert_eq!(scene.names().is_empty(), !is_told, "{eta_ms}");
    }
}

#[test]
fn the_page_changes_with_the_phase_of_the_line_without_a_question() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    scene.board["phase"] = json!("paused");
    scene.board["version"] = json!(11);
    scene.at(50);
    let sent = scene.sent();
    assert_eq!(
        (sent[0].0.as_str(), &sent[0].1["page"]),
        ("phase", &json!("paused"))
    );
    assert_eq!(sent.len(), 1);
    scene.at(49);
    assert_eq!(scene.names(), ["place"]);
    scene.board["phase"] = json!("open");
    scene.board["version"] = json!(12);
    scene.at(49);
    assert_eq!(scene.sent()[0].1["page"], "waiting");
}

/// The page of somebody who waits has the same name, and says that nobody new comes.
#[test]
fn that_the_line_takes_nobody_new_is_told_and_taken_back() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    for (version, phase) in [(11, "draining"), (12, "open")] {
        scene.board["phase"] = json!(phase);
        scene.board["version"] = json!(version);
        scene.at(50);
        let sent = scene.sent();
        assert_eq!(sent.len(), 1);
        let (event, visit) = &sent[0];
        assert_eq!(
            (event.as_str(), &visit["page"], &visit["phase"]),
            ("phase", &json!("waiting"), &json!(phase))
        );
        scene.at(50);
        assert!(scene.sent().is_empty());
    }
}

#[test]
fn admission_checkout_and_the_end_are_told_whole_and_the_end_ends_the_stream() {
    let mut scene = Scene::new(&status("waiting", Some(1)));
    scene.sent();
    let mut admitted = status("admitted", None);
    (admitted["expires_at_ms"], admitted["expires_in_ms"]) = (json!(21_000), json!(20_000));
    assert_eq!(scene.answered(&admitted), Next::Stays);
    assert_eq!(scene.names(), ["admitted"]);
    scene.placed(Standing::Passed);
    assert!(scene.sent().is_empty());
    admitted["expires_at_ms"] = json!(21_300);
    scene.answered(&admitted);
    assert!(scene.sent().is_empty(), "the same deadline");
    let mut checkout = admitted.clone();
    (checkout["state"], checkout["expires_at_ms"]) = (json!("in_checkout"), json!(61_000));
    scene.answered(&checkout);
    assert_eq!(scene.sent()[0].1["page"], "in_checkout");
    checkout["expires_at_ms"] = json!(90_000);
    scene.answered(&checkout);
    assert_eq!(scene.sent()[0].1["expires_at_ms"], 90_000, "it was renewed");
    let mut gone = status("gone", None);
    gone["reason"] = json!("completed");
    assert_eq!(scene.answered(&gone), Next::Ends);
    let sent = scene.sent();
    assert_eq!(
        (sent[0].0.as_str(), &sent[0].1["page"]),
        ("gone", &json!("completed"))
    );
    assert!(!scene.visitor.has_readers());
    assert!(scene.events.frame().now_or_never().unwrap().is_none());
}

#[test]
fn while_the_line_is_away_the_stream_says_so_once_and_then_all_again() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    scene.visitor.away();
    scene.visitor.away();
    let sent = scene.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].0.as_str(), &sent[0].1["page"]),
        ("phase", &json!("unavailable"))
    );
    assert!(scene.visitor.is_left_away());
    scene.at(50);
    let sent = scene.sent();
    assert_eq!(
        (&sent[0].1["page"], &sent[0].1["position"]),
        (&json!("waiting"), &json!(50))
    );
    assert!(!scene.visitor.is_left_away());
}

#[test]
fn a_moved_token_has_its_new_number_at_once() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    scene.visitor.moved("vip".parse().unwrap(), 7);
    scene.at(90);
    let sent = scene.sent();
    assert_eq!(sent[0].0, "phase");
    assert_eq!(
        (
            &sent[0].1["lane"],
            &sent[0].1["token"],
            &sent[0].1["position"]
        ),
        (&json!("vip"), &json!(7), &json!(90))
    );
    scene.at(89);
    assert_eq!(scene.names(), ["place"]);
}

#[test]
fn before_a_draw_nobody_has_a_place() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    scene.sent();
    (scene.board["undrawn"], scene.board["version"]) = (json!(true), json!(11));
    scene.placed(Standing::Unknown);
    let (name, data) = scene.sent().remove(0);
    assert_eq!(name, "place");
    assert!(data.get("position").is_none() && data.get("eta_ms").is_none());
    (scene.board["undrawn"], scene.board["version"]) = (json!(false), json!(12));
    scene.at(77);
    assert_eq!(
        scene.sent()[0].1["position"],
        77,
        "the draw may put anybody back"
    );
}

#[test]
fn places_past_the_cap_are_not_told() {
    let mut capped = status("waiting", Some(10));
    capped["position_capped"] = json!(true);
    let mut scene = Scene::new(&capped);
    scene.info["settings"]["position_cap"] = json!(10);
    scene.sent();
    scene.at(50);
    scene.sent();
    scene.at(49);
    assert!(scene.sent().is_empty());
    scene.at(10);
    let (_, data) = scene.sent().remove(0);
    assert_eq!(
        (&data["position"], data.get("position_capped")),
        (&json!(10), None)
    );
}

#[test]
fn streams_of_one_ticket_are_bounded_and_all_are_told() {
    let mut scene = Scene::new(&status("waiting", Some(50)));
    let more: Vec<_> = (0..2 * OUTLETS_MAX)
        .map(|_| Outlet::new(Bytes::new(), "en"))
        .collect();
    for outlet in &more {
        scene
            .visitor
            .join(Arc::clone(outlet), &scene.facts, &scene.rule);
    }
    let open = more.iter().filter(|outlet| !outlet.is_over()).count();
    assert_eq!(
        (open, scene.visitor.outlets.len()),
        (OUTLETS_MAX - 1, OUTLETS_MAX)
    );
    scene.sent();
    scene.visitor.ended(&Visit::plain("forgotten"));
    assert_eq!(scene.names(), ["gone"]);
    assert!(more.iter().all(|outlet| outlet.is_over()));
}

/// So that a visitor costs far less than its connection.
#[test]
fn a_visitor_is_small() {
    assert!(size_of::<Visitor>() < 1_024, "{}", size_of::<Visitor>());
}
