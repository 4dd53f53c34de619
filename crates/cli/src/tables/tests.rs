#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

pub const PLAIN: Output = Output {
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

#[test]
fn a_status_shows_what_matters_and_the_ticket() {
    let text = status(&waiting(), &PLAIN);
    for words in [
        "shop-1", "token", "18", "waiting", "position", "8", "AQEabc",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    assert!(!text.contains("epoch"), "{text}");
    let held_back = StatusReply {
        phase: Some("paused".into()),
        held_back_by: Some(
            serde_json::from_value(json!({"by": "phase", "phase": "paused"})).unwrap(),
        ),
        ..waiting()
    };
    let text = status(&held_back, &PLAIN);
    assert!(text.contains("the phase, paused"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let guessed = |eta_from: &'static str| StatusReply {
        eta_ms: Some(Some(240_000)),
        eta_p90_ms: Some(Some(400_000)),
        eta_from: Some(eta_from.into()),
        ..waiting()
    };
    let text = status(&guessed("expected"), &PLAIN);
    assert!(text.contains(" min (by the operator's guess)\n"), "{text}");
    let text = status(&guessed("measured"), &PLAIN);
    assert!(!text.contains("guess"), "{text}");
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
    let turn = |turn| StatusReply {
        turn: Some(turn),
        ..waiting()
    };
    assert_eq!(place_line(&turn(8)), place_line(&waiting()));
    assert_eq!(
        place_line(&turn(15)),
        "token 18 waiting, position 8 (7 ahead), turn 15, version 4711"
    );
    assert!(status(&turn(15), &PLAIN).contains("15"));
    let admitted = StatusReply {
        state: State::Admitted,
        position: None,
        ahead: None,
        turn: None,
        expires_at_ms: Some(121_000),
        expires_in_ms: Some(120_000),
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
fn a_lines_settings_stand_under_their_names() {
    let reply: LineReply = serde_json::from_value(json!({
        "line": "shop-1", "incarnation": 4096, "version": 4711, "settings_version": 4000,
        "created_at_ms": 1, "deleting": 12, "shard": 3, "leader": 2, "default_lane": "normal",
        "held_back_by": {"by": "admission_rate", "next_at_ms": 1_340, "next_in_ms": 340},
        "settings": {
            "seats": 7, "queue_limit": 15, "waiting_idle_timeout_ms": 300_000,
            "claim_timeout_ms": 90_000, "checkout_timeout_ms": 600_000,
            "gate": "shadow",
            "checkout_max_ms": 5_400_000, "token_events": true, "labels": {"city": "Taipei"}
        },
        "board": a_board(),
        "counts": {"issued": 25, "waiting": 15, "admitted": 2, "in_checkout": 5,
            "gone": {"completed": 3, "idle": 0},
            "gone_from": {"waiting": {}, "in_checkout": {"completed": 2}},
            "refused": {"line_full": 5, "sold_out": 0}},
        "capacity_told": {"seats": 7, "silent": false, "expires_at_ms": 9, "expires_in_ms": 4_000},
        "shadow": {"admitted": 9, "held_back": 4, "refused": 1, "over_seats": 2, "over_seats_max": 3},
        "imported": {"import_id": "old", "rows": 5, "entered": 4},
        "quota_left": 12, "quota_renews_at_ms": 1_800_000_000_000_u64,
        "forecast": {"told": 16, "untold": 4, "judged": 10, "p90_covered": 9,
            "off_by_percent": [3, 3, 2, 1, 1, 0]}
    }))
    .unwrap();
    let text = line(&reply, &PLAIN);
    for words in [
        "claim_timeout ",
        "1m30s",
        "1h30m",
        "city=Taipei",
        "the backend told 7 seats; for 4 s more\n",
        "the gate is a shadow",
        "9 admitted, 4 would have waited, 1 would have been refused; 2 over the seats now, 3 at most\n",
        "import old: 5 rows done, 4 entered\n",
        "quota: 12 left; renewed at 2027-01-15T08:00:00",
        "25 numbers issued; gone: 3 completed\n",
        "gone from in_checkout: 2 completed\n",
        "entrants refused: 5 line_full\n",
        "12 tokens still to be ended",
        "token_events",
        "held back by: the admission rate, next in 340 ms",
        "shard 3, led by node 2",
        "normal (the first)",
        "told to 80 % of those who had to wait; 10 with a measured one were admitted since: for 60 %",
        "90 % waited no longer than the p90",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

#[test]
fn the_held_back_reason_is_shown_in_words() {
    for (value, words) in [
        (json!({"by": "nothing"}), "nothing, nobody waits"),
        (
            json!({"by": "phase", "phase": "pre_open"}),
            "the phase, pre_open",
        ),
        (json!({"by": "quota"}), "the quota, no unit is left"),
        (json!({"by": "seats"}), "the seats, all are held"),
        (json!({"by": "called"}), "nobody is called: line call-next"),
        (json!({"by": "admitting"}), "being admitted"),
        (json!({"by": "the weather"}), "the weather"),
    ] {
        let text = held_back(&serde_json::from_value(value).unwrap());
        assert!(text.starts_with("held back by: "), "{text}");
        assert!(text.ends_with(words), "{words}: {text}");
    }
    assert_eq!(home(0, None), "shard 0, no leader known");
}

#[test]
fn forecasts_that_nobody_can_judge_yet_are_not_judged() {
    let record = |judged| -> ForecastReply {
        serde_json::from_value(
            json!({"told": 3, "untold": 1, "judged": judged, "p90_covered": 0,
            "off_by_percent": [0, 0, 0, 0, 0, 0]}),
        )
        .unwrap()
    };
    assert_eq!(
        forecast(&record(0)),
        "\nforecasts: told to 75 % of those who had to wait; none judged yet"
    );
    assert!(forecast(&record(1)).contains("for 0 % it was right"));
    let guessed = ForecastReply {
        told_expected: 4,
        ..record(0)
    };
    assert_eq!(
        forecast(&guessed),
        "\nforecasts: told to 87 % of those who had to wait, to 4 by the operator's guess; none judged yet"
    );
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
fn positions_past_the_cap_and_calls_are_said() {
    let capped = StatusReply {
        position_capped: true,
        ..waiting()
    };
    assert_eq!(
        place_line(&capped),
        "token 18 waiting, position 8+, version 4711"
    );
    assert!(status(&capped, &PLAIN).contains("8+"));
    assert!(!status(&capped, &PLAIN).contains("ahead"));
    let called = StatusReply {
        call_ahead: true,
        ..waiting()
    };
    assert!(place_line(&called).contains("(7 ahead), called ahead"));
    assert!(status(&called, &PLAIN).contains("prepare now"));
}

#[test]
fn settings_are_shown_as_they_are_typed() {
    let text = settings_table(
        &json!({
            "admission_rate": {"per_second": 0.5, "burst": 3},
            "lanes": [
                {"name": "normal", "boost_ms": 0, "absolute": false, "queue_limit": null},
                {"name": "vip", "boost_ms": 5_400_000, "absolute": true, "queue_limit": 9, "jump": true}
            ],
            "quota": {"total": 500, "standby_percent": 10}, "phase": "paused",
            "position_cap": null, "release_on_claim": true
        }),
        &PLAIN,
    );
    for words in [
        "0.5/3 (0.5 a second, up to 3 at once)",
        "normal, vip:boost=1h30m:absolute:limit=9:jump",
        "500, standby 10 %",
        "paused\n",
        "true",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    assert!(!text.contains("null"), "{text}");
    let users = settings_table(
        &json!({"lanes": ["normal", "vip"], "quota": {"total": 5}}),
        &PLAIN,
    );
    assert!(
        users.contains("normal, vip") && users.contains("5"),
        "{users}"
    );
}

#[test]
fn a_journal_explains_earlier_admissions() {
    let shown = |value| journal(&serde_json::from_value(value).unwrap(), &PLAIN);
    let text = shown(json!({
        "line": "shop-1", "incarnation": 4096, "next": 60,
        "entries": [
            {"version": 40, "at_ms": 1_766_222_333_444_u64, "what": "configured"},
            {"version": 45, "at_ms": 1_000_000, "what": "configured", "changes": [
                {"setting": "seats", "from": 5, "to": 7},
                {"setting": "claim_timeout_ms", "from": 120_000, "to": 90_000},
                {"setting": "admission_rate", "from": null, "to": {"per_second": 2, "burst": 9}},
                {"setting": "phase", "from": "open", "to": "paused"}
            ]},
            {"version": 46, "at_ms": 0, "what": "entered", "lane": "normal", "token": 16,
                "entered_at_ms": 0, "position": 4},
            {"version": 47, "at_ms": 1_000_000, "what": "claimed", "lane": "normal", "token": 16,
                "entered_at_ms": 0, "epoch": 12},
            {"version": 50, "at_ms": 1_000_000, "what": "moved", "lane": "normal", "token": 17,
                "entered_at_ms": 0, "to_lane": "vip", "to_token": 3, "operator": "ann"},
            {"version": 60, "at_ms": 1_090_000, "what": "admitted", "lane": "vip", "token": 3,
                "entered_at_ms": 0, "boost_ms": 600_000}
        ],
        "explain": {
            "lane": "vip", "token": 3, "entered_at_ms": 0, "own_lane_before": 12,
            "overtakers": [{"lane": "staff", "token": 5, "entered_at_ms": 90_000,
                "admitted_at_ms": 95_000, "version": 30, "by": "absolute"}],
            "overtakers_total": 3, "cut": true
        }
    }));
    for words in [
        "2025-12-20 09:18:53.444",
        "configured: seats 5 → 7; claim_timeout 2m → 1m30s; admission_rate - → 2/9",
        "; phase open → paused",
        "entered at position 4",
        "claimed, epoch 12",
        "moved to vip 3, asked for by ann",
        "admitted, lane boost 10 min",
        "more with --after 60",
        "vip 3 entered at 1970-01-01 00:00:00.000, admitted 18 min 10 s later",
        "admitted before it: 12 earlier tokens of its lane, 3 later tokens",
        "its lane was absolute",
        "1 min 30 s",
        "and 2 more",
        "does not reach back",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let text = shown(json!({
        "line": "shop-1", "incarnation": 4096, "next": null, "entries": [],
        "explain": {"lane": "vip", "token": 3, "entered_at_ms": null, "own_lane_before": 0,
            "overtakers": [], "overtakers_total": 0, "cut": true}
    }));
    assert!(text.contains("nothing is in the journal"), "{text}");
    assert!(text.contains("its entries are no longer kept"), "{text}");
}
