#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;

fn status(more: Value) -> StatusReply {
    let mut all = json!({
        "line": "sale", "incarnation": 3, "lane": "normal", "token": 18, "state": "waiting", "position": 8,
        "ahead": 7, "turn": 8, "eta_ms": null, "eta_p90_ms": null, "phase": "open", "held_back_by": {"by": "seats"},
        "call_ahead": false, "admitted_through": 10, "poll_after_ms": 3_001, "version": 4711, "at_ms": 5,
        "ticket": "secret-ticket", "pass": "secret-pass", "pass_expires_in_ms": 5, "epoch": 7,
    });
    let all = all.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    serde_json::from_value(Value::Object(all.clone())).unwrap()
}

fn info(more: Value) -> InfoReply {
    let mut all = json!({
        "line": "sale", "incarnation": 3, "version": 1, "at_ms": 5, "phase": "open", "seats": 2, "admitted": 0,
        "in_checkout": 0, "shard": 0, "leader": 1, "held_back_by": {"by": "nothing"},
        "lanes": [{"lane": "normal", "next_token": 5, "done_through": 0, "admitted_through": 2,
            "accepts_through": 9, "waiting": 2}],
        "settings": {"seats": 2, "queue_limit": 5, "waiting_idle_timeout_ms": 300_000, "claim_timeout_ms": 120_000,
            "checkout_timeout_ms": 1, "checkout_max_ms": 1, "phase": "open",
            "default_lane": "normal", "token_events": true},
    });
    let all = all.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    serde_json::from_value(Value::Object(all.clone())).unwrap()
}

fn rule() -> LineRule {
    LineRule::new("sale".parse().unwrap())
}

#[test]
fn each_status_has_its_state() {
    for (more, page) in [
        (json!({}), "waiting"),
        (json!({"call_ahead": true}), "call_ahead"),
        (json!({"phase": "paused", "call_ahead": true}), "paused"),
        (json!({"phase": "pre_open"}), "pre_open_draw"),
        (
            json!({"phase": "open", "held_back_by": {"by": "draw"}}),
            "drawing",
        ),
        (json!({"phase": "draining"}), "waiting"),
        (json!({"phase": "of a later release"}), "waiting"),
        (json!({"state": "admitted"}), "admitted"),
        (json!({"state": "in_checkout"}), "in_checkout"),
        (json!({"state": "gone", "reason": "completed"}), "completed"),
        (json!({"state": "gone", "reason": "idle"}), "idle"),
        (
            json!({"state": "gone", "reason": "sold_out"}),
            "sold_out_gone",
        ),
        (json!({"state": "gone", "reason": "closed"}), "closed_gone"),
        (
            json!({"state": "gone", "reason": "of a later release"}),
            "forgotten",
        ),
        (json!({"state": "gone"}), "forgotten"),
    ] {
        let info = info(json!({"draw": {"state": "awaited", "commitment": "abc"}}));
        let visit = Visit::of_status(&status(more.clone()), Some(&info), &rule());
        assert_eq!(visit.page, page, "{more}");
    }
    let visit = Visit::of_status(&status(json!({"phase": "pre_open"})), None, &rule());
    assert_eq!(visit.page, "pre_open");
}

/// Every state that is named here has made-up data, and so words.
#[test]
fn every_reason_of_a_line_has_a_state_of_its_own() {
    for reason in [
        "completed",
        "left",
        "idle",
        "no_show",
        "checkout_expired",
        "wait_expired",
        "kicked",
    ] {
        assert_eq!(gone(Some(reason)), reason);
    }
}

#[test]
fn the_page_gets_no_secrets() {
    let visit = Visit::of_status(&status(json!({"holes": [[1, 2]]})), None, &rule());
    let text = visit.to_json().to_string();
    assert!(!text.contains("secret"), "{text}");
    for name in SECRET {
        assert!(!visit.fields.contains_key(name), "{name}");
    }
    assert_eq!(visit.to_json()["page"], "waiting");
    assert_eq!(visit.to_json()["position"], 8);
    assert_eq!(visit.asks_again_after_s(), Some(5));
}

#[test]
fn info_says_how_long_a_place_is_kept() {
    let info = info(json!({"draw": {"state": "done", "commitment": "abc", "seed": "def"}}));
    let visit = Visit::of_status(&status(json!({})), Some(&info), &rule());
    assert_eq!(visit.number("keeps_ms"), Some(198_000));
    assert_eq!(visit.number("claim_timeout_ms"), Some(120_000));
    assert_eq!(visit.fields["draw"]["seed"], "def");
    let gone = status(json!({"state": "gone", "reason": "left"}));
    let gone = Visit::of_status(&gone, Some(&info), &rule());
    assert_eq!(gone.number("keeps_ms"), None);
    assert_eq!(gone.asks_again_after_s(), None);
}

#[test]
fn the_opening_is_said_before_it() {
    let mut rule = rule();
    rule.opens_at_ms = Some(now_ms() + 100_000);
    let visit = Visit::of_status(&status(json!({"phase": "pre_open"})), None, &rule);
    assert_eq!(visit.number("opens_at_ms"), rule.opens_at_ms);
    assert!((90_000..=100_000).contains(&visit.number("opens_in_ms").unwrap()));
    let visit = Visit::of_status(&status(json!({})), None, &rule);
    assert_eq!(visit.number("opens_at_ms"), None);
}

#[test]
fn a_newcomer_learns_whether_it_can_enter() {
    let lane = |accepts_through: u64| {
        json!([{"lane": "normal", "next_token": 5, "done_through": 0, "admitted_through": 2,
            "accepts_through": accepts_through, "waiting": 2}])
    };
    let full = |more: Value| {
        let mut all = json!({"lanes": lane(4)});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    for (more, page) in [
        (json!({}), "enter"),
        (json!({"phase": "paused"}), "enter"),
        (json!({"phase": "closed"}), "closed"),
        (json!({"phase": "draining"}), "draining"),
        (full(json!({})), "full"),
        (full(json!({"held_back_by": {"by": "quota"}})), "sold_out"),
    ] {
        assert_eq!(
            Visit::of_newcomer(Some(&info(more.clone())), None).page,
            page,
            "{more}"
        );
    }
    assert_eq!(Visit::of_newcomer(None, None).page, "unavailable_new");
    let newer = info(json!({"phase": "closed"})).board;
    assert_eq!(
        Visit::of_newcomer(Some(&info(json!({}))), Some(&newer)).page,
        "closed"
    );
}

#[test]
fn over_the_limit_nobody_is_asked_to_come_before_it_is_of_use() {
    let visit = Visit::limited(3_599_001);
    assert_eq!(visit.page, "limited");
    assert_eq!(visit.asks_again_after_s(), Some(3_600));
    assert_eq!(Visit::limited(1).asks_again_after_s(), Some(5));
}
