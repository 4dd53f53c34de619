#![allow(clippy::unwrap_used)]

use clap::Parser as _;
use serde_json::{Value, json};

use nowserving_insight::finding::{Finding, Severity};
use nowserving_insight::line::{LineFacts, Seated, findings};

use crate::commands::Cli;

/// A line of 2 seats that moves: nobody waits. `change` breaks its reply to `show`.
pub fn facts(change: impl FnOnce(&mut Value)) -> LineFacts {
    let mut line = json!({
        "line": "shop-1", "incarnation": 1, "version": 9, "settings_version": 1, "created_at_ms": 5,
        "shard": 3, "leader": 1, "held_back_by": {"by": "nothing"},
        "settings": {
            "seats": 2, "queue_limit": 10_000, "claim_timeout_ms": 120_000, "phase": "open",
            "admission": "auto", "schedule": [],
        },
        "board": {
            "line": "shop-1", "incarnation": 1, "version": 9, "at_ms": 600_000, "phase": "open", "seats": 2,
            "admitted": 0, "in_checkout": 2, "lanes": [],
        },
        "counts": {"issued": 12, "waiting": 0, "admitted": 0, "in_checkout": 2, "gone": {}},
    });
    change(&mut line);
    LineFacts {
        line: serde_json::from_value(line).unwrap(),
        seated: Seated::default(),
        journal: Vec::new(),
        at_ms: 600_000,
    }
}

fn held_by(by: &str) -> LineFacts {
    facts(|line| line["held_back_by"] = json!({"by": by, "phase": "paused", "next_in_ms": 40}))
}

fn one(facts: &LineFacts) -> Finding {
    let found = findings(facts);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn a_line_that_moves_has_no_findings() {
    assert_eq!(findings(&facts(|_| {})), []);
    assert_eq!(findings(&held_by("admitting")), []);
}

#[test]
fn each_reason_has_a_command_that_mends_it() {
    for (by, mend) in [
        ("phase", "nowserving line open shop-1"),
        ("quota", "nowserving line set shop-1 --quota"),
        ("seats", "nowserving line tokens shop-1 --state in_checkout"),
        ("called", "nowserving line call-next shop-1"),
        ("admission_rate", "--unset admission_rate"),
    ] {
        let found = one(&held_by(by));
        assert_eq!(found.code, by);
        assert_eq!(found.severity, Severity::Note, "{by}");
        let mends = found.commands().join("\n");
        assert!(mends.contains(mend), "{by}: {mends}");
        can_be_run(&found);
    }
}

#[test]
fn a_draw_that_the_line_has_missed_is_told() {
    let missed = one(&facts(|line| line["settings"]["opening"] = "draw".into()));
    assert_eq!(
        (missed.code, missed.severity),
        ("draw_unused", Severity::Note)
    );
    can_be_run(&missed);
    let awaited = facts(|line| {
        line["settings"]["opening"] = "draw".into();
        line["draw"] = json!({"state": "done", "commitment": "00"});
    });
    assert_eq!(findings(&awaited), []);
}

#[test]
fn a_draw_ends_by_itself() {
    let begins = one(&held_by("draw"));
    assert_eq!((begins.code, begins.severity), ("draw", Severity::Note));
    let drawing = one(&facts(|line| {
        line["held_back_by"] = json!({"by": "draw"});
        line["draw"] =
            json!({"state": "running", "commitment": "00", "took_part": 900, "drawn": 17});
    }));
    assert!(drawing.text.contains("17 of 900 are drawn"), "{drawing:?}");
}

/// All that is printed as a command.
fn can_be_run(found: &Finding) {
    for command in found.commands() {
        let words = shlex::split(command).unwrap();
        let parsed = Cli::try_parse_from(words);
        assert!(parsed.is_ok(), "{command}: {:?}", parsed.err());
    }
}

#[test]
fn a_quota_keeps_its_other_parts() {
    let mut facts = held_by("quota");
    let mut mend = |renew: Value| {
        let quota = json!({"total": 500, "standby_percent": 20, "renew": renew});
        facts.line.settings.quota = Some(serde_json::from_value(quota).unwrap());
        let found = one(&facts);
        can_be_run(&found);
        found.commands().join("\n")
    };
    assert_eq!(
        mend(json!({"at": "06:00", "zone": "Asia/Taipei"})),
        "nowserving line set shop-1 --quota 1000 --standby-percent 20 --quota-renew '06:00 Asia/Taipei'"
    );
    assert_eq!(
        mend(json!({"every_ms": 3_600_000})),
        "nowserving line set shop-1 --quota 1000 --standby-percent 20 --quota-renew 1h"
    );
    let quota = json!({"total": 500, "per_visit": 4});
    facts.line.settings.quota = Some(serde_json::from_value(quota).unwrap());
    let found = one(&facts);
    can_be_run(&found);
    let again = "nowserving line set shop-1 --quota 1000 --quota-per-visit 4";
    assert_eq!(found.commands(), [again]);
}

#[test]
fn a_line_that_nobody_can_enter_is_told_though_nobody_waits() {
    for phase in ["pre_open", "paused", "draining", "closed"] {
        let facts = facts(|line| line["board"]["phase"] = phase.into());
        let found = one(&facts);
        assert_eq!((found.code, found.severity), ("phase", Severity::Note));
        assert_eq!(found.commands(), ["nowserving line open shop-1"]);
    }
    let facts = facts(|line| {
        line["settings"]["quota"] = json!({"total": 5});
        line["quota_left"] = 0.into();
    });
    assert_eq!(one(&facts).code, "quota");
}

#[test]
fn a_used_up_quota_says_whether_units_return() {
    let told = |used: u64, held: u64, renews: Option<u64>| {
        let found = one(&facts(|line| {
            line["settings"]["quota"] = json!({"total": 5});
            if renews.is_some() {
                line["settings"]["quota"]["renew"] = json!({"every_ms": 3_600_000});
                line["quota_renews_at_ms"] = json!(renews);
            }
            line["quota_left"] = 0.into();
            line["quota_used"] = used.into();
            line["counts"]["in_checkout"] = held.into();
            line["board"]["in_checkout"] = held.into();
        }));
        can_be_run(&found);
        assert!(found.commands()[0].starts_with("nowserving line set shop-1 --quota 10"));
        found.details.join("; ")
    };
    assert_eq!(told(5, 0, None), "5 are used: no unit returns");
    assert_eq!(
        told(7, 2, None),
        "7 are used: no unit returns",
        "it was lowered"
    );
    let held = told(3, 2, None);
    assert!(
        held.starts_with("3 are used, and 2 seats are held: units return if a seat expires"),
        "{held}"
    );
    assert!(told(4, 1, None).contains("1 seat is held"));
    let renewed = told(5, 0, Some(0));
    assert!(
        renewed.starts_with("5 are used: no unit returns; it is renewed at 1970"),
        "{renewed}"
    );
    assert!(told(3, 2, Some(0)).starts_with("3 are used, and 2 seats are held"));
}

#[test]
fn a_pause_says_who_and_why_and_until_when() {
    let mut facts = held_by("phase");
    facts.line.board.phase = "paused".to_owned();
    facts.line.settings.schedule = serde_json::from_value(json!([
        {"at": "2026-12-01T10:00:00Z", "set": {"phase": "open"}}
    ]))
    .unwrap();
    facts.journal = serde_json::from_value(json!([
        {"version": 3, "at_ms": 1_000, "what": "configured", "by": "ann", "reason": "till 4 jams",
         "changes": [{"setting": "phase", "from": "open", "to": "paused"}]},
        {"version": 4, "at_ms": 2_000, "what": "configured",
         "changes": [{"setting": "seats", "from": 1, "to": 2}]},
    ]))
    .unwrap();
    let all = findings(&facts);
    let [found, next] = &all[..] else {
        panic!("{all:?}");
    };
    assert!(found.text.contains("paused"), "{}", found.text);
    assert_eq!(next.code, "schedule");
    let details = found.details.join("\n");
    for words in ["9 min 59 s ago by ann: till 4 jams", "opens at 2026-12-01"] {
        assert!(details.contains(words), "{details}");
    }
}

#[test]
fn a_gate_that_holds_nobody_back_is_told() {
    let with_gate = |held: u64| {
        facts(|line| {
            line["settings"]["gate"] = "shadow".into();
            line["board"]["in_checkout"] = held.into();
            line["counts"]["in_checkout"] = held.into();
        })
    };
    let mut facts = with_gate(2);
    facts.journal = serde_json::from_value(json!([
        {"version": 3, "at_ms": 1_000, "what": "configured", "by": "ann",
         "changes": [{"setting": "gate", "from": "on", "to": "shadow"}]},
    ]))
    .unwrap();
    let found = one(&facts);
    assert_eq!((found.code, found.severity), ("gate", Severity::Note));
    assert!(found.details[0].contains("by ann"), "{found:?}");
    assert_eq!(found.commands(), ["nowserving line set shop-1 --gate on"]);
    let found = one(&with_gate(5));
    assert_eq!(
        (found.code, found.severity),
        ("gate_over_seats", Severity::Warning)
    );
    assert!(found.details[0].contains("3 over"), "{found:?}");
    let found = one(&with_gate(10_002));
    assert_eq!(found.code, "gate_over_seats", "it is not full");
}

#[test]
fn held_seats_are_listed_with_their_holders() {
    let mut facts = held_by("seats");
    let token = |token: u64, claimed_ago_ms: Option<u64>| {
        let state = if claimed_ago_ms.is_some() {
            "in_checkout"
        } else {
            "admitted"
        };
        json!({"lane": "normal", "token": token, "state": state, "entered_at_ms": 5,
               "claimed_ago_ms": claimed_ago_ms, "expires_in_ms": 30_000})
    };
    let mut tokens = vec![token(7, None), token(8, None), token(4, Some(590_000))];
    tokens[2]["key"] = "ann".into();
    tokens.extend((10..300).map(|nth| token(nth, Some(nth))));
    facts.seated.tokens = serde_json::from_value(tokens.into()).unwrap();
    facts.journal = serde_json::from_value(json!([
        {"version": 3, "at_ms": 540_000, "what": "admitted", "lane": "normal", "token": 7},
    ]))
    .unwrap();
    let found = one(&facts);
    assert_eq!(
        found.details[..3],
        [
            "normal 4 (ann): in checkout for 9 min 50 s; free again in 30 s unless renewed",
            "normal 7: admitted for 1 min; free again in 30 s unless claimed",
            "normal 299: in checkout for 299 ms; free again in 30 s unless renewed",
        ]
    );
    let kick = found.commands().last().copied().unwrap().to_owned();
    assert!(
        kick.starts_with("nowserving line kick shop-1 --token normal:4 --token normal:7 --token"),
        "{kick}"
    );
    can_be_run(&found);
    facts.seated.more = true;
    let found = one(&facts);
    assert!(found.details[0].contains("first 293 holders"), "{found:?}");
    facts.seated.tokens.truncate(2);
    let unknown = one(&facts).details;
    assert!(
        unknown[2].starts_with("normal 8: admitted; free"),
        "{unknown:?}"
    );
}

/// After seats were lowered, or while the gate held nobody back: twice the seats may admit nobody.
#[test]
fn more_seats_than_are_held_are_proposed() {
    let mut facts = held_by("seats");
    let board = &mut facts.line.board;
    (board.seats, board.admitted, board.in_checkout) = (2, 2, 6);
    let found = one(&facts);
    let says = "all 2 seats are held, and 6 over the limit: 2 admitted";
    assert!(found.text.starts_with(says), "{found:?}");
    assert!(found.details.is_empty(), "most are in checkout: {found:?}");
    let commands = found.mend.iter().filter_map(|it| it.command.as_deref());
    let commands: Vec<&str> = commands.collect();
    assert!(
        commands.contains(&"nowserving line set shop-1 --seats 9"),
        "{commands:?}"
    );
}

#[test]
fn one_seat_and_none_are_said_in_words() {
    let with_seats = |seats: u64| {
        let mut facts = held_by("seats");
        facts.line.board.seats = seats as u32;
        facts.line.board.in_checkout = 1;
        facts.line.counts.waiting = 1;
        facts
    };
    let found = one(&with_seats(1));
    assert!(
        found.text.starts_with("the only seat is held: 0"),
        "{found:?}"
    );
    let mut none = with_seats(0);
    none.line.capacity_told = serde_json::from_value(
        json!({"seats": 0, "silent": false, "expires_at_ms": 1, "expires_in_ms": 5}),
    )
    .unwrap();
    let found = one(&none);
    assert_eq!(found.code, "no_seats");
    assert_eq!(
        found.commands(),
        ["nowserving line capacity shop-1 --forget"]
    );
}

#[test]
fn the_next_scheduled_change_is_told() {
    let facts = facts(|line| {
        line["settings"]["schedule"] = json!([
            {"at": "1970-01-01T00:20:00Z", "set": {"phase": "paused"}},
            {"at": "1970-01-01T00:15:00Z", "set": {"phase": "draining", "seats": 3}},
            {"at": "1970-01-01T00:05:00Z", "set": {"seats": 9}},
        ]);
    });
    let found = one(&facts);
    assert_eq!((found.code, found.severity), ("schedule", Severity::Note));
    for words in [
        "in 5 min",
        "1970-01-01T00:15:00Z",
        "phase draining",
        "seats 3",
    ] {
        assert!(found.text.contains(words), "{}", found.text);
    }
    assert_eq!(found.details, ["and 1 change after that"]);
    assert_eq!(
        found.commands()[1],
        "nowserving line set shop-1 --unset schedule"
    );
    can_be_run(&found);
}

#[test]
fn each_full_lane_is_told_with_all_lanes() {
    let facts = facts(|line| {
        line["settings"]["lanes"] = json!([
            {"name": "normal", "boost_ms": 0, "absolute": false},
            {"name": "vip", "boost_ms": 600_000, "absolute": true, "queue_limit": 1, "jump": true},
            {"name": "staff", "queue_limit": 9},
        ]);
        let lane = |lane: &str, waiting: u64| {
            json!({"lane": lane, "next_token": 9, "done_through": 2, "admitted_through": 3,
                   "accepts_through": 10, "waiting": waiting})
        };
        line["board"]["lanes"] = json!([lane("normal", 5), lane("vip", 1), lane("staff", 8)]);
    });
    let found = one(&facts);
    assert_eq!(
        (found.code, found.severity),
        ("lane_full", Severity::Warning)
    );
    assert!(found.text.contains("lane vip is full"), "{}", found.text);
    assert_eq!(
        found.commands(),
        [
            "nowserving line set shop-1 --lane normal --lane vip:boost=10m:absolute:limit=2:jump --lane staff:limit=9"
        ]
    );
    can_be_run(&found);
}

#[test]
fn faults_beside_the_reason_are_found() {
    type Break = fn(&mut Value);
    let cases: [(&str, Severity, Break); 6] = [
        ("no_leader", Severity::Problem, |line| {
            line["leader"] = Value::Null
        }),
        ("deleting", Severity::Note, |line| {
            line["deleting"] = 3.into()
        }),
        ("backend_silent", Severity::Warning, |line| {
            line["capacity_told"] =
                json!({"seats": 4, "silent": true, "expires_at_ms": 1, "expires_in_ms": 0});
        }),
        ("line_full", Severity::Warning, |line| {
            line["counts"]["waiting"] = 10_000.into()
        }),
        ("line_nearly_full", Severity::Warning, |line| {
            line["counts"]["waiting"] = 9_500.into()
        }),
        ("forecast_off", Severity::Warning, |line| {
            line["forecast"] = json!({"told": 90, "untold": 0, "judged": 50, "p90_covered": 20,
                                      "off_by_percent": [0, 0, 0, 0, 0, 50]});
        }),
    ];
    for (code, severity, change) in cases {
        let found = one(&facts(change));
        assert_eq!((found.code, found.severity), (code, severity));
        can_be_run(&found);
    }
    let mut failed = facts(|_| {});
    failed.journal = serde_json::from_value(json!([
        {"version": 3, "at_ms": 1_000, "what": "schedule_failed", "scheduled_at_ms": 900}
    ]))
    .unwrap();
    assert_eq!(one(&failed).code, "schedule_failed");
}
