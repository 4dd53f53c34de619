//! Payloads of operators, and events.

#![allow(clippy::unwrap_used, missing_docs)]

use nowserving_line::{Change, LineName, Op, Settings, SettingsPatch, Stamp};
use nowserving_protocol::admin::*;
use nowserving_protocol::codec::{Format, decode, encode};
use nowserving_protocol::error::Code;
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn payloads(value: &Value) -> [Vec<u8>; 2] {
    [
        serde_json::to_vec(value).unwrap(),
        rmp_serde::to_vec_named(value).unwrap(),
    ]
}

fn refused<T: DeserializeOwned + std::fmt::Debug>(value: Value, words: &[&str]) {
    for payload in payloads(&value) {
        let error = decode::<T>(&payload).unwrap_err();
        assert_eq!(error.code, Code::BadRequest);
        for word in words {
            assert!(error.message.contains(word), "{value}: {}", error.message);
        }
    }
}

fn both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    for format in [Format::Json, Format::MsgPack] {
        assert_eq!(decode::<T>(&encode(value, format)).unwrap(), *value);
    }
}

fn line(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

#[test]
fn create_takes_settings_and_fills_in_the_defaults() {
    for payload in payloads(&json!({"seats": 7, "queue_limit": 15})) {
        let create: Create = decode(&payload).unwrap();
        assert_eq!(create.into_settings().unwrap(), Settings::new(7, 15));
    }
    let all = json!({
        "seats": 1_000_000, "queue_limit": 10_000_000, "waiting_idle_timeout_ms": 100,
        "claim_timeout_ms": 604_800_000, "checkout_timeout_ms": 100, "checkout_max_ms": 100,
        "token_events": false, "labels": {"city": "台北", "empty": ""},
    });
    for payload in payloads(&all) {
        let settings = decode::<Create>(&payload).unwrap().into_settings().unwrap();
        assert_eq!(
            serde_json::to_value(SettingsReply::from(&settings)).unwrap(),
            all
        );
    }
    for missing in [json!({}), json!({"seats": 7}), json!({"queue_limit": 0})] {
        for payload in payloads(&missing) {
            let error = decode::<Create>(&payload)
                .unwrap()
                .into_settings()
                .unwrap_err();
            assert_eq!(error.code, Code::BadRequest);
            assert!(error.message.ends_with(": required"), "{}", error.message);
        }
    }
}

#[test]
fn configure_takes_any_subset_and_null_unsets() {
    for payload in
        payloads(&json!({"if_version": 9, "seats": 8, "labels": null, "token_events": null}))
    {
        let configure: Configure = decode(&payload).unwrap();
        assert_eq!(configure.if_version, Some(9));
        let expected = SettingsPatch {
            seats: Some(Change::Set(8)),
            labels: Some(Change::Unset),
            token_events: Some(Change::Unset),
            ..SettingsPatch::default()
        };
        assert_eq!(configure.settings, expected);
    }
    for payload in [payloads(&json!({})), payloads(&json!({"if_version": null}))].concat() {
        assert_eq!(decode::<Configure>(&payload).unwrap(), Configure::default());
    }
    assert_eq!(decode::<Configure>(b"").unwrap(), Configure::default());
}

#[test]
fn settings_out_of_range_or_mistyped_name_the_field_and_its_limit() {
    let timeouts = [
        "waiting_idle_timeout_ms",
        "claim_timeout_ms",
        "checkout_timeout_ms",
        "checkout_max_ms",
    ];
    let numbers = [
        ("seats", 1_u64, 1_000_000_u64),
        ("queue_limit", 0, 10_000_000),
    ]
    .into_iter()
    .chain(timeouts.map(|field| (field, 100, 604_800_000)));
    for (field, min, max) in numbers {
        let limit = format!("from {min} to {max}");
        let mut wrong = vec![
            json!(max + 1),
            json!(u64::MAX),
            json!(-1),
            json!(i64::MIN),
            json!(1.5),
            json!("7"),
        ];
        wrong.extend([
            json!([7]),
            json!({"set": 7}),
            json!(true),
            json!(4_294_967_297_u64 + max),
        ]);
        if min > 0 {
            wrong.push(json!(min - 1));
        }
        for value in wrong {
            let body = json!({"seats": 1, "queue_limit": 1, "token_events": true});
            let mut body = body.as_object().unwrap().clone();
            body.insert(field.to_owned(), value);
            refused::<Create>(Value::Object(body.clone()), &[&format!("{field}:"), &limit]);
            refused::<Configure>(Value::Object(body), &[&format!("{field}:"), &limit]);
        }
    }
    for required in ["seats", "queue_limit"] {
        refused::<Configure>(json!({ required: null }), &[required, "required"]);
    }
    for value in [json!(1), json!("true"), json!([]), json!({})] {
        refused::<Configure>(
            json!({ "token_events": value }),
            &["token_events:", "true or false"],
        );
    }
    for value in [json!(-1), json!(1.5), json!("9"), json!(1_u64 << 53)] {
        refused::<Configure>(
            json!({ "if_version": value }),
            &["if_version:", "9007199254740991"],
        );
    }
    let nan = [
        &[0x81, 0xa5],
        &b"seats"[..],
        &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert!(
        decode::<Configure>(&nan)
            .unwrap_err()
            .message
            .starts_with("seats:")
    );
}

#[test]
fn labels_are_limited() {
    let many = |count: usize| {
        (0..count)
            .map(|n| (format!("l{n}"), json!("v")))
            .collect::<serde_json::Map<_, _>>()
    };
    for payload in payloads(&json!({ "labels": many(16) })) {
        assert!(decode::<Configure>(&payload).is_ok());
    }
    refused::<Configure>(json!({ "labels": many(17) }), &["labels", "16"]);
    refused::<Configure>(json!({"labels": {"x".repeat(65): "v"}}), &["labels", "64"]);
    refused::<Configure>(json!({"labels": {"x": "v".repeat(65)}}), &["labels", "64"]);
    refused::<Configure>(json!({"labels": {"": "v"}}), &["labels", "64"]);
    refused::<Configure>(json!({"labels": {"x": 1}}), &["labels.x:"]);
    refused::<Configure>(json!({"labels": ["x"]}), &["labels:", "16", "64"]);
    let twice = br#"{"labels": {"x": "1", "x": "2"}}"#;
    assert!(
        decode::<Configure>(twice)
            .unwrap_err()
            .message
            .contains("twice")
    );
    let full = json!({"labels": {"x".repeat(64): "v".repeat(64)}});
    for payload in payloads(&full) {
        assert!(decode::<Configure>(&payload).is_ok());
    }
}

#[test]
fn later_unknown_and_doubled_settings_are_refused() {
    let later = [
        "admission_rate",
        "lanes",
        "call_ahead",
        "quota",
        "phase",
        "position_cap",
        "release_on_claim",
    ];
    for field in later {
        for value in [
            json!(null),
            json!(1),
            json!({"total": 5}),
            json!([{"name": "a"}]),
        ] {
            refused::<Create>(
                json!({"seats": 1, "queue_limit": 1, field: value}),
                &[field, "later release"],
            );
            refused::<Configure>(json!({ field: value }), &[field, "later release"]);
        }
    }
    refused::<Create>(
        json!({"seats": 1, "queue_limit": 1, "seat": 2}),
        &["`seat`", "`seats`"],
    );
    refused::<Configure>(json!({"Seats": 1}), &["`Seats`"]);
    refused::<Create>(
        json!({"seats": 1, "queue_limit": 1, "if_version": 2}),
        &["`if_version`"],
    );
    for field in ["seats", "claim_timeout_ms", "if_version"] {
        let twice = format!(r#"{{"{field}": 100, "{field}": 200}}"#);
        let message = decode::<Configure>(twice.as_bytes()).unwrap_err().message;
        assert!(
            message.contains(field) && message.contains("duplicate"),
            "{message}"
        );
    }
    let null_first = br#"{"labels": null, "labels": {}}"#;
    assert!(
        decode::<Configure>(null_first)
            .unwrap_err()
            .message
            .contains("labels")
    );
}

#[test]
fn the_other_requests_refuse_what_they_do_not_know() {
    assert!(!decode::<Delete>(b"").unwrap().force);
    assert!(decode::<Delete>(br#"{"force": true}"#).unwrap().force);
    refused::<Delete>(json!({"force": 1}), &["force:", "true or false"]);
    refused::<Delete>(json!({"Force": true}), &["`Force`"]);
    refused::<Show>(json!({"x": 1}), &["`x`"]);
    refused::<ClusterStatusRequest>(json!({"x": 1}), &["`x`"]);
    refused::<ListLines>(json!({"label": {}}), &["`label`"]);
    refused::<ListLines>(json!({"after": "a.b"}), &["after:"]);
    for limit in [json!(0), json!(81), json!(-1), json!("5")] {
        refused::<ListLines>(json!({ "limit": limit }), &["limit:", "from 1 to 80"]);
    }
    refused::<ListLines>(json!({"labels": {"x": 1}}), &["labels.x:"]);
    let labels = [("city".to_owned(), "x".to_owned())].into();
    both_ways(&ListLines {
        after: Some(line("a")),
        limit: Some(80),
        labels,
    });
    assert_eq!(encode(&ListLines::default(), Format::Json), b"{}");
    assert_eq!(decode::<ListLines>(b"").unwrap(), ListLines::default());
}

#[test]
fn replies_go_both_ways() {
    let mut lines = nowserving_line::Lines::new();
    let mut events = Vec::new();
    let shop = line("shop-1");
    let ops = [
        Op::Create {
            line: shop.clone(),
            settings: Settings::new(1, 15),
        },
        Op::Enter {
            line: shop.clone(),
            key: None,
            lane: None,
        },
        Op::Delete {
            line: shop.clone(),
            force: true,
        },
    ];
    for (index, op) in (1..).zip(&ops[..2]) {
        lines
            .apply(
                Stamp {
                    index,
                    op_no: 0,
                    now_ms: 5,
                },
                op,
                &mut events,
            )
            .unwrap();
    }
    let reply = LineReply::new(lines.get(&shop).unwrap(), 6);
    both_ways(&reply);
    let json = serde_json::to_value(&reply).unwrap();
    assert_eq!(
        (
            &json["counts"]["issued"],
            &json["counts"]["gone"]["no_show"]
        ),
        (&json!(1), &json!(0))
    );
    assert_eq!(json.get("deleting"), None);
    let summary = LineSummary::from(lines.get(&shop).unwrap());
    both_ways(&LineList {
        lines: vec![summary],
        next: Some(shop.clone()),
    });
    both_ways(&LineList::default());
    both_ways(&DeleteReply {
        line: shop.clone(),
        deleted: false,
        remaining: 3,
    });
    let node = NodeStatus {
        id: 1,
        alive: true,
        last_heard_ms: None,
        leads: 6,
        metrics_addr: None,
        version: None,
    };
    both_ways(&ClusterStatus {
        cluster: "prod".to_owned(),
        nodes: vec![
            node.clone(),
            NodeStatus {
                last_heard_ms: Some(5),
                metrics_addr: Some("x:1".to_owned()),
                ..node
            },
        ],
        shards: vec![ShardStatus {
            shard: 0,
            leader: None,
            term: 1,
            applied: 2,
            committed: 3,
        }],
        lines: 1,
        answered_by: 1,
    });

    lines
        .apply(
            Stamp {
                index: 3,
                op_no: 0,
                now_ms: 7,
            },
            &ops[2],
            &mut events,
        )
        .unwrap();
    let token_words: Vec<_> = events
        .iter()
        .filter_map(|event| TokenEvent::new(event, 1))
        .collect();
    let line_words: Vec<_> = events
        .iter()
        .filter_map(|event| LineEvent::new(event, 1))
        .collect();
    assert_eq!(token_words.len() + line_words.len(), events.len());
    let words: Vec<_> = token_words
        .iter()
        .map(|event| (event.event.as_str(), event.reason.as_deref()))
        .collect();
    assert_eq!(words, [("admitted", None), ("gone", Some("closed"))]);
    let words: Vec<_> = line_words
        .iter()
        .map(|event| event.event.as_str())
        .collect();
    assert_eq!(words, ["created", "deleted"]);
    token_words.iter().for_each(both_ways);
    line_words.iter().for_each(both_ways);
}

#[test]
fn the_largest_page_of_lines_fits_a_message() {
    let words = |last: char| "\u{1}".repeat(63) + &last.to_string();
    let summary = LineSummary {
        line: line(&"x".repeat(64)),
        incarnation: u64::MAX,
        version: u64::MAX,
        phase: "draining".to_owned(),
        seats: u32::MAX,
        queue_limit: u32::MAX,
        waiting: u64::MAX,
        admitted: u64::MAX,
        in_checkout: u64::MAX,
        labels: ('\0'..'\u{10}')
            .map(|last| (words(last), words('\u{1}')))
            .collect(),
    };
    assert_eq!(summary.labels.len(), 16);
    let page = LineList {
        lines: vec![summary; LIST_LINES_MAX as usize],
        next: Some(line(&"x".repeat(64))),
    };
    for format in [Format::Json, Format::MsgPack] {
        assert!(encode(&page, format).len() < 1 << 20);
    }
}

#[test]
fn a_board_event_lists_holes_beside_the_pointers() {
    let mut lines = nowserving_line::Lines::new();
    let create = Op::Create {
        line: line("shop-1"),
        settings: Settings::new(1, 15),
    };
    lines
        .apply(
            Stamp {
                index: 1,
                op_no: 0,
                now_ms: 5,
            },
            &create,
            &mut Vec::new(),
        )
        .unwrap();
    let board = nowserving_protocol::user::BoardReply::from(&lines.iter().next().unwrap().board(5));
    let mut event = BoardEvent {
        board,
        prev_version: 3,
    };
    both_ways(&event);
    event.board.lanes[0].holes = Some(vec![]);
    both_ways(&event);
    event.board.lanes[0].holes = Some(vec![[4, 4], [6, 9]]);
    both_ways(&event);
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(
        (&json["prev_version"], &json["line"]),
        (&json!(3), &json!("shop-1"))
    );
    assert_eq!(json["lanes"][0]["holes"], json!([[4, 4], [6, 9]]));
}

fn change<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Change<T>>> {
    prop_oneof![2 => value.prop_map(|value| Some(Change::Set(value))), 1 => Just(Some(Change::Unset)), 2 => Just(None)]
}

prop_compose! {
    fn patch()(
        seats in proptest::option::of(1_u32..=1_000_000), queue_limit in proptest::option::of(0_u32..=10_000_000),
        idle in change(100_u64..=604_800_000), claim in change(100_u64..=604_800_000),
        checkout in change(100_u64..=604_800_000), max in change(100_u64..=604_800_000),
        token_events in change(any::<bool>()),
        labels in change(proptest::collection::btree_map(".{1,16}", ".{0,16}", 0..16)),
    ) -> SettingsPatch {
        SettingsPatch {
            seats: seats.map(Change::Set),
            queue_limit: queue_limit.map(Change::Set),
            waiting_idle_timeout_ms: idle,
            claim_timeout_ms: claim,
            checkout_timeout_ms: checkout,
            checkout_max_ms: max,
            token_events,
            labels,
        }
    }
}

proptest! {
    #[test]
    fn settings_survive_the_wire(
        settings in patch(), if_version in proptest::option::of(0_u64..(1 << 53)),
    ) {
        both_ways(&Create { settings: settings.clone() });
        both_ways(&Configure { if_version, settings });
    }
}
