//! `move` and `journal`, and the events that come of them.

use crate::common::{both_ways, payloads, refused};
use nowserving_line::{
    AdmissionRate, Change, Event, LaneName, LaneSettings, Line, LineName, Lines, Op, Phase, Quota,
    Settings, SettingsPatch, Stamp,
};
use nowserving_protocol::admin::*;
use nowserving_protocol::codec::{Format, MAX_PAYLOAD_MIN, decode, encode};
use nowserving_protocol::error::Code;
use nowserving_protocol::event::{LineEvent, TokenEvent};
use serde_json::json;

fn shop() -> LineName {
    LineName::try_from("shop-1").unwrap()
}

fn lane(name: &str) -> LaneName {
    LaneName::try_from(name).unwrap()
}

struct Shard {
    lines: Lines,
    events: Vec<Event>,
    index: u64,
}

impl Shard {
    fn apply(&mut self, op: Op) {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.index * 1_000,
            wall_ms: self.index * 1_000 + 7,
        };
        self.lines
            .apply(stamp, &op, Some(&mut self.events))
            .unwrap();
    }

    fn enter(&mut self, name: &str) {
        self.apply(Op::Enter {
            line: shop(),
            key: None,
            lane: Some(lane(name)),
        });
    }

    fn move_token(&mut self, token: u64, to: &str) {
        self.apply(Op::Move {
            line: shop(),
            lane: lane("normal"),
            token,
            to: lane(to),
        });
    }

    fn configure(&mut self, patch: SettingsPatch) {
        self.apply(Op::Configure {
            line: shop(),
            patch: patch.into(),
            if_version: None,
            incarnation: None,
        });
    }

    fn line(&self) -> &Line {
        self.lines.get(&shop()).unwrap()
    }

    fn journal(&self, request: &Journal) -> JournalReply {
        let reply = JournalReply::new(self.line(), request).unwrap();
        both_ways(&reply);
        reply
    }
}

/// One seat, `normal` and two lanes before it. normal-1 has the seat, normal-2 and normal-3 wait,
/// then one comes to `vip` and one to `vvip`; normal-3 is moved to `vip`. Then there are seats for
/// all but one.
fn a_shard() -> Shard {
    let mut shard = Shard {
        lines: Lines::new(),
        events: Vec::new(),
        index: 0,
    };
    let mut settings = Settings::new(1, 15);
    settings.call_ahead = 1;
    settings.lanes = vec![
        LaneSettings::default(),
        LaneSettings {
            boost_ms: 60_000,
            ..LaneSettings::new(lane("vip"))
        },
        LaneSettings {
            absolute: true,
            ..LaneSettings::new(lane("vvip"))
        },
    ];
    shard.apply(Op::Create {
        line: shop(),
        settings,
    });
    for name in ["normal", "normal", "normal", "vip", "vvip"] {
        shard.enter(name);
    }
    shard.move_token(3, "vip");
    shard.configure(SettingsPatch {
        seats: Some(Change::Set(4)),
        phase: Some(Change::Set(Phase::Draining)),
        ..SettingsPatch::default()
    });
    shard
}

#[test]
fn events_say_what_happened() {
    let shard = a_shard();
    let tokens: Vec<_> = shard
        .events
        .iter()
        .filter_map(|event| TokenEvent::new(event, 1))
        .collect();
    tokens.iter().for_each(both_ways);
    let entered: Vec<_> = tokens
        .iter()
        .filter(|event| event.event == "entered")
        .map(|event| (event.lane.as_str(), event.token, event.position))
        .collect();
    let expected = [
        ("normal", 1, Some(1)),
        ("normal", 2, Some(1)),
        ("normal", 3, Some(2)),
        ("vip", 1, Some(1)),
        ("vvip", 1, Some(1)),
    ];
    assert_eq!(entered, expected);
    let moved = tokens.iter().find(|event| event.event == "moved").unwrap();
    let json = serde_json::to_value(moved).unwrap();
    assert_eq!(
        (
            &json["lane"],
            &json["token"],
            &json["to_lane"],
            &json["to_token"]
        ),
        (&json!("normal"), &json!(3), &json!("vip"), &json!(2))
    );
    assert_eq!(json.get("reason"), None);
    let called = tokens.iter().find(|event| event.event == "call_ahead");
    let json = serde_json::to_value(called.unwrap()).unwrap();
    assert_eq!(
        (&json["lane"], &json["token"]),
        (&json!("normal"), &json!(2))
    );
    assert_eq!((json.get("to_lane"), json.get("to_token")), (None, None));
    let lines: Vec<_> = shard
        .events
        .iter()
        .filter_map(|event| LineEvent::new(event, 1))
        .collect();
    lines.iter().for_each(both_ways);
    let words: Vec<_> = lines
        .iter()
        .map(|event| (event.event.as_str(), event.phase.as_deref()))
        .collect();
    let expected = [
        ("created", None),
        ("configured", None),
        ("phase", Some("draining")),
    ];
    assert_eq!(words, expected);
}

#[test]
fn the_journal_tells_everything_page_by_page() {
    let shard = a_shard();
    let whole = shard.journal(&Journal::default());
    assert_eq!((whole.next, &whole.explain), (None, &None));
    let words: Vec<_> = whole
        .entries
        .iter()
        .map(|entry| {
            let lane = entry.lane.as_ref().map_or("", LaneName::as_str);
            (entry.what.as_str(), lane, entry.token.unwrap_or(0))
        })
        .collect();
    let expected = [
        ("entered", "normal", 1),
        ("admitted", "normal", 1),
        ("entered", "normal", 2),
        ("entered", "normal", 3),
        ("entered", "vip", 1),
        ("entered", "vvip", 1),
        ("moved", "normal", 3),
    ];
    assert_eq!(words[..7], expected);
    let configured = words.iter().position(|word| *word == ("configured", "", 0));
    let changes = whole.entries[configured.unwrap()].changes.as_ref();
    let changes = serde_json::to_value(changes.unwrap()).unwrap();
    let expected = json!([
        {"setting": "seats", "from": 1, "to": 4},
        {"setting": "phase", "from": "open", "to": "draining"},
    ]);
    assert_eq!(changes, expected);
    let last = words.len() - 3;
    let expected = [
        ("admitted", "vvip", 1),
        ("admitted", "vip", 1),
        ("admitted", "vip", 2),
    ];
    assert_eq!(words[last..], expected);
    let json = serde_json::to_value(&whole.entries).unwrap();
    assert_eq!(
        (&json[6]["to_lane"], &json[6]["to_token"]),
        (&json!("vip"), &json!(2))
    );
    assert_eq!(json[3]["position"], 2);
    assert_eq!(json[6].get("position"), None);
    assert_eq!(
        (&json[last]["absolute"], json[last].get("boost_ms")),
        (&json!(true), None)
    );
    assert_eq!(json[last + 1]["boost_ms"], 60_000);
    assert_eq!(
        json[last + 2]["entered_at_ms"],
        4_007,
        "moved: when it came"
    );

    let mut paged = Vec::new();
    let mut request = Journal {
        limit: Some(2),
        ..Journal::default()
    };
    loop {
        let page = shard.journal(&request);
        assert!(page.entries.len() <= 2);
        paged.extend(page.entries);
        request.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(paged, whole.entries);

    let vip = shard.journal(&Journal {
        lane: Some(lane("vip")),
        ..Journal::default()
    });
    let words: Vec<_> = vip
        .entries
        .iter()
        .map(|entry| entry.what.as_str())
        .collect();
    assert_eq!(words, ["entered", "moved", "admitted", "admitted"]);

    let of_line = shard.journal(&Journal {
        of_line: true,
        ..Journal::default()
    });
    let of_tokens = |entry: &&JournalEntryReply| entry.token.is_some();
    let others = whole.entries.iter().filter(|it| !of_tokens(it)).cloned();
    assert_eq!(of_line.entries, others.collect::<Vec<_>>());
    assert!(!of_line.entries.is_empty());
}

#[test]
fn a_token_is_explained_also_by_its_old_number() {
    let shard = a_shard();
    let asked = |lane: Option<LaneName>, token| Journal {
        lane,
        token: Some(token),
        ..Journal::default()
    };
    let second = shard.journal(&asked(None, 2));
    let words: Vec<_> = second.entries.iter().map(|entry| &*entry.what).collect();
    assert_eq!(words, ["entered"]);
    let explanation = second.explain.unwrap();
    assert_eq!(
        (explanation.lane.as_str(), explanation.token),
        ("normal", 2)
    );
    assert_eq!(
        (explanation.entered_at_ms, explanation.overtakers_total),
        (Some(3_007), 3)
    );
    let by: Vec<_> = explanation
        .overtakers
        .iter()
        .map(|other| (other.lane.as_str(), other.by.as_str(), other.boost_ms))
        .collect();
    let expected = [
        ("vvip", "absolute", None),
        ("vip", "boost", Some(60_000)),
        ("vip", "boost", Some(60_000)),
    ];
    assert_eq!(by, expected);
    let moved = shard.journal(&asked(Some(lane("normal")), 3));
    assert_eq!(moved, shard.journal(&asked(Some(lane("vip")), 2)));
    let words: Vec<_> = moved
        .entries
        .iter()
        .map(|entry| entry.what.as_str())
        .collect();
    assert_eq!(words, ["entered", "moved", "admitted"]);
    assert_eq!(moved.explain.unwrap().token, 2);

    let refusal = |request| JournalReply::new(shard.line(), &request).unwrap_err();
    for token in [0, 4, 1 << 52] {
        assert_eq!(refusal(asked(None, token)).code, Code::TokenNotFound);
    }
    let error = refusal(asked(Some(lane("gold")), 1));
    assert_eq!(error.code, Code::BadRequest);
    let message = "lane: no lane \"gold\"; the line has normal, vip, vvip";
    assert_eq!(error.message, message);
}

#[test]
fn every_change_of_settings_has_name_and_values() {
    let mut shard = a_shard();
    shard.configure(SettingsPatch {
        queue_limit: Some(Change::Set(20)),
        waiting_idle_timeout_ms: Some(Change::Set(1_000)),
        claim_timeout_ms: Some(Change::Set(2_000)),
        checkout_timeout_ms: Some(Change::Set(3_000)),
        checkout_max_ms: Some(Change::Set(4_000)),
        admission_rate: Some(Change::Set(AdmissionRate {
            per_second_micro: 500_000,
            burst: 3,
        })),
        default_lane: Some(Change::Set(lane("vip"))),
        quota: Some(Change::Set(Quota {
            total: 500,
            standby_percent: 10,
            renew: None,
            per_visit: 1,
        })),
        position_cap: Some(Change::Set(9)),
        release_on_claim: Some(Change::Set(true)),
        token_events: Some(Change::Set(false)),
        labels: Some(Change::Set([("city".into(), "Oslo".into())].into())),
        ..SettingsPatch::default()
    });
    shard.configure(SettingsPatch {
        admission_rate: Some(Change::Unset),
        lanes: Some(Change::Set(
            ["normal", "vip", "vvip"]
                .map(lane)
                .map(LaneSettings::new)
                .into(),
        )),
        ..SettingsPatch::default()
    });
    let entries = shard.journal(&Journal::default()).entries;
    let changes = entries.iter().filter_map(|entry| entry.changes.as_ref());
    let changes: Vec<_> = changes
        .map(|all| serde_json::to_value(all).unwrap())
        .collect();
    let expected = json!([
        {"setting": "queue_limit", "from": 15, "to": 20},
        {"setting": "waiting_idle_timeout_ms", "from": 300_000, "to": 1_000},
        {"setting": "claim_timeout_ms", "from": 120_000, "to": 2_000},
        {"setting": "checkout_timeout_ms", "from": 600_000, "to": 3_000},
        {"setting": "checkout_max_ms", "from": 3_600_000, "to": 4_000},
        {"setting": "admission_rate", "from": null, "to": {"per_second": 0.5, "burst": 3}},
        {"setting": "default_lane", "from": null, "to": "vip"},
        {"setting": "quota", "from": null, "to": {"total": 500, "standby_percent": 10}},
        {"setting": "position_cap", "from": null, "to": 9},
        {"setting": "release_on_claim", "from": false, "to": true},
        {"setting": "token_events", "from": true, "to": false},
        {"setting": "labels", "from": {}, "to": {"city": "Oslo"}},
    ]);
    assert_eq!(changes[1], expected);
    let of = |name: &str, boost_ms: u64, absolute: bool| json!({"name": name, "boost_ms": boost_ms, "absolute": absolute, "queue_limit": null});
    let expected = json!([
        {"setting": "admission_rate", "from": {"per_second": 0.5, "burst": 3}, "to": null},
        {
            "setting": "lanes",
            "from": [of("normal", 0, false), of("vip", 60_000, false), of("vvip", 0, true)],
            "to": [of("normal", 0, false), of("vip", 0, false), of("vvip", 0, false)],
        },
    ]);
    assert_eq!(changes[2], expected);
}

/// The largest kept history of a line's settings, and its longest form in JSON.
#[test]
fn a_page_of_the_largest_changes_fits_a_message() {
    let mut shard = a_shard();
    shard.configure(SettingsPatch {
        phase: Some(Change::Set(Phase::PreOpen)),
        queue_limit: Some(Change::Set(1_000)),
        ..SettingsPatch::default()
    });
    for n in 0..200 {
        // As JSON such a byte takes six.
        let labels = (0..16_u8).map(|label| {
            let name = [vec![b'\x01'; 62], vec![1 + label, 1 + n % 2]].concat();
            (String::from_utf8(name).unwrap(), "\x01".repeat(64))
        });
        shard.configure(SettingsPatch {
            labels: Some(Change::Set(labels.collect())),
            ..SettingsPatch::default()
        });
        for _ in 0..4 {
            shard.enter("vvip");
        }
    }
    let mut page = Journal {
        limit: Some(JOURNAL_LIMIT_MAX),
        ..Journal::default()
    };
    let (mut pages, mut entries, mut with_changes) = (0, 0, 0);
    loop {
        let reply = shard.journal(&page);
        for format in [Format::Json, Format::MsgPack] {
            let bytes = encode(&reply, format).len();
            assert!(bytes + 1_024 < MAX_PAYLOAD_MIN, "{bytes}");
        }
        pages += 1;
        entries += reply.entries.len();
        let changed = reply.entries.iter().filter(|entry| entry.changes.is_some());
        with_changes += changed.count();
        page.after = reply.next;
        if page.after.is_none() {
            break;
        }
    }
    assert!(pages > 2 && with_changes > 10, "{pages}, {with_changes}");
    assert!(entries > 800, "{entries}");
}

#[test]
fn requests_look_as_in_the_contract() {
    for payload in payloads(&json!({"lane": "normal", "token": 7, "to": "vip"})) {
        let expected = Move {
            lane: lane("normal"),
            token: 7,
            to: lane("vip"),
        };
        assert_eq!(decode::<Move>(&payload).unwrap(), expected);
        both_ways(&expected);
    }
    for field in ["lane", "token", "to"] {
        let mut request = json!({"lane": "normal", "token": 7, "to": "vip"});
        request.as_object_mut().unwrap().remove(field);
        refused::<Move>(request.clone(), &[&format!("{field}: required")]);
        request[field] = json!(-1);
        refused::<Move>(request, &[&format!("{field}:")]);
    }
    refused::<Move>(
        json!({"lane": "a", "token": 7, "to": "b", "key": "x"}),
        &["`key`"],
    );

    assert_eq!(decode::<Journal>(b"").unwrap(), Journal::default());
    assert_eq!(encode(&Journal::default(), Format::Json), b"{}");
    both_ways(&Journal {
        after: Some(4711),
        limit: Some(JOURNAL_LIMIT_MAX),
        lane: Some(lane("vip")),
        token: Some(17),
        of_line: false,
    });
    both_ways(&Journal {
        of_line: true,
        ..Journal::default()
    });
    for limit in [json!(0), json!(1_001), json!("5")] {
        refused::<Journal>(json!({ "limit": limit }), &["limit:", "from 1 to 1000"]);
    }
    refused::<Journal>(json!({"after": -1}), &["after:"]);
    refused::<Journal>(json!({"lane": "a.b"}), &["lane:"]);
    refused::<Journal>(json!({"token": 1.5}), &["token:"]);
    refused::<Journal>(json!({"tokens": 1}), &["`tokens`"]);
}
