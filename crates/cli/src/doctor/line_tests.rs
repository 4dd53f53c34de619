#![allow(clippy::unwrap_used)]

use clap::Parser as _;
use serde_json::{Value, json};

use super::finding::{Finding, Severity};
use super::line::{LineFacts, findings};
use crate::args::Cli;

/// A line of 2 seats that moves: nobody waits. `change` breaks its reply to `show`.
fn facts(change: impl FnOnce(&mut Value)) -> LineFacts {
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
        seated: Vec::new(),
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
        let mends = found.mend.join("\n");
        assert!(mends.contains(mend), "{by}: {mends}");
        for command in &found.mend {
            let words = command.split_whitespace();
            assert!(Cli::try_parse_from(words).is_ok(), "{command}");
        }
    }
}

#[test]
fn a_quota_keeps_its_other_parts() {
    let mut facts = held_by("quota");
    let mut mend = |renew: Value| {
        let quota = json!({"total": 500, "standby_percent": 20, "renew": renew});
        facts.line.settings.quota = Some(serde_json::from_value(quota).unwrap());
        one(&facts).mend
    };
    assert_eq!(
        mend(json!({"at": "06:00", "zone": "Asia/Taipei"})),
        [
            "nowserving line set shop-1 --quota 1000 --standby-percent 20 --quota-renew '06:00 Asia/Taipei'"
        ]
    );
    assert_eq!(
        mend(json!({"every_ms": 3_600_000})),
        ["nowserving line set shop-1 --quota 1000 --standby-percent 20 --quota-renew 1h"]
    );
}

#[test]
fn a_line_that_nobody_can_enter_is_told_though_nobody_waits() {
    for phase in ["pre_open", "paused", "draining", "closed"] {
        let facts = facts(|line| line["board"]["phase"] = phase.into());
        let found = one(&facts);
        assert_eq!((found.code, found.severity), ("phase", Severity::Note));
        assert_eq!(found.mend, ["nowserving line open shop-1"]);
    }
    let facts = facts(|line| {
        line["settings"]["quota"] = json!({"total": 5});
        line["quota_left"] = 0.into();
    });
    assert_eq!(one(&facts).code, "quota");
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
    let found = one(&facts);
    assert!(found.text.contains("paused"), "{}", found.text);
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
    assert_eq!(found.mend, ["nowserving line set shop-1 --gate on"]);
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
    facts.seated = serde_json::from_value(json!([
        {"lane": "normal", "token": 7, "state": "admitted", "entered_at_ms": 5, "expires_in_ms": 30_000},
        {"lane": "normal", "token": 4, "key": "ann", "state": "in_checkout", "entered_at_ms": 5,
         "claimed_ago_ms": 600_000, "expires_in_ms": 1_000},
    ]))
    .unwrap();
    let found = one(&facts);
    assert!(
        found.details[0].contains("normal 4 (ann): in checkout for 10 min"),
        "{found:?}"
    );
    assert!(
        found.details[1].contains("normal 7: admitted, not claimed; expires in 30 s"),
        "{found:?}"
    );
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
    }
    let mut failed = facts(|_| {});
    failed.journal = serde_json::from_value(json!([
        {"version": 3, "at_ms": 1_000, "what": "schedule_failed", "scheduled_at_ms": 900}
    ]))
    .unwrap();
    assert_eq!(one(&failed).code, "schedule_failed");
}
