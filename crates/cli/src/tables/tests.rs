#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const PLAIN: Output = Output {
    json: false,
    colour: false,
    live: false,
};
const COLOURED: Output = Output {
    json: false,
    colour: true,
    live: true,
};

fn waiting() -> StatusReply {
    serde_json::from_value(json!({
        "line": "shop-1", "incarnation": 4096, "lane": "normal", "token": 18, "state": "waiting",
        "position": 8, "ahead": 7, "eta_ms": null, "eta_p90_ms": null, "call_ahead": false,
        "admitted_through": 10, "poll_after_ms": 3000, "version": 4711, "at_ms": 1000,
        "ticket": "AQEabc"
    }))
    .unwrap()
}

fn a_board() -> BoardReply {
    serde_json::from_value(json!({
        "line": "shop-1", "incarnation": 4096, "version": 4711, "at_ms": 1000, "phase": "open",
        "seats": 7, "admitted": 2, "in_checkout": 5, "lanes": [{
            "lane": "normal", "next_token": 26, "done_through": 3, "admitted_through": 10,
            "accepts_through": 25, "waiting": 15
        }]
    }))
    .unwrap()
}

fn a_cluster() -> ClusterStatus {
    serde_json::from_value(json!({
        "cluster": "dev", "lines": 3, "answered_by": 2,
        "nodes": [
            {"id": 1, "alive": true, "last_heard_ms": 40, "leads": 3, "metrics_addr": "127.0.0.1:9464"},
            {"id": 2, "alive": true, "leads": 2},
            {"id": 3, "alive": false, "leads": 0}
        ],
        "shards": [
            {"shard": 0, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 1, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 2, "leader": 2, "term": 2, "applied": 5, "committed": 5},
            {"shard": 3, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 4, "leader": 2, "term": 2, "applied": 5, "committed": 5},
            {"shard": 5, "leader": null, "term": 3, "applied": 5, "committed": 5}
        ]
    }))
    .unwrap()
}

#[test]
fn a_status_shows_what_matters_and_the_ticket() {
    let text = status(&waiting(), &PLAIN);
    for words in [
        "shop-1", "token", "18", "waiting", "position", "8", "AQEabc",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    assert!(!text.contains("epoch"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn colours_only_where_wanted() {
    assert!(status(&waiting(), &COLOURED).contains('\u{1b}'));
    assert!(board(&a_board(), &COLOURED).contains('\u{1b}'));
    assert!(!board(&a_board(), &PLAIN).contains('\u{1b}'));
}

#[test]
fn places_and_boards_in_one_line() {
    assert_eq!(
        place_line(&waiting()),
        "token 18 waiting, position 8 (7 ahead), version 4711"
    );
    let admitted = StatusReply {
        state: State::Admitted,
        position: None,
        ahead: None,
        expires_at_ms: Some(121_000),
        ..waiting()
    };
    assert_eq!(
        place_line(&admitted),
        "token 18 admitted, for 2 min, version 4711"
    );
    assert_eq!(
        board_line(&a_board()),
        "shop-1 open: 7 of 7 seats held (5 in checkout, 2 admitted), version 4711; normal: \
         15 waiting, next 26, done through 3, admitted through 10, accepts through 25"
    );
}

#[test]
fn a_cluster_groups_shards_by_leader() {
    let text = cluster(&a_cluster(), &PLAIN);
    for words in [
        "node 1",
        "0-1, 3",
        "node 2",
        "2, 4",
        "none",
        "5",
        "this one",
        "40 ms ago",
        "never",
        "silent",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

#[test]
fn a_lines_settings_stand_under_their_names() {
    let reply: LineReply = serde_json::from_value(json!({
        "line": "shop-1", "incarnation": 4096, "version": 4711, "settings_version": 4000,
        "created_at_ms": 1, "deleting": 12,
        "settings": {
            "seats": 7, "queue_limit": 15, "waiting_idle_timeout_ms": 300_000,
            "claim_timeout_ms": 90_000, "checkout_timeout_ms": 600_000,
            "checkout_max_ms": 5_400_000, "token_events": true, "labels": {"city": "Taipei"}
        },
        "board": a_board(),
        "counts": {"issued": 25, "waiting": 15, "admitted": 2, "in_checkout": 5,
            "gone": {"completed": 3, "idle": 0}}
    }))
    .unwrap();
    let text = line(&reply, &PLAIN);
    for words in [
        "claim_timeout_ms",
        "90000 (1 min 30 s)",
        "5400000 (1 h 30 min)",
        "city=Taipei",
        "25 numbers issued; gone: 3 completed",
        "12 tokens still to be ended",
        "token_events",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

#[test]
fn lists_name_their_next_page() {
    let list = LineList {
        lines: vec![],
        next: Some("shop-5".parse().unwrap()),
    };
    assert_eq!(lines(&list, &PLAIN), "no lines\nmore with --after shop-5");
}

#[test]
fn durations_are_short() {
    for (ms, text) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (12_570, "12.5 s"),
        (60_000, "1 min"),
        (3_600_000, "1 h"),
        (86_400_000 * 7, "7 d"),
        (u64::MAX, "213503982334 d 14 h"),
    ] {
        assert_eq!(duration(ms), text);
    }
}

#[test]
fn ranges_merge() {
    assert_eq!(ranges(&[7, 0, 1, 2, 3]), "0-3, 7");
    assert_eq!(ranges(&[]), "");
}
