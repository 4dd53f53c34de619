//! Settings in operators' requests and replies: accepted and refused values, and that a refusal
//! names the field and its limit. Those that have parts: see `settings_parts`.

use crate::common::{part_both_ways, payloads, refused};
use nowserving_line::{
    AdmissionRate, Change, LaneName, LaneSettings, Phase, Quota, RATE_MICRO_MAX, RATE_MICRO_MIN,
    SETTINGS, SettingDefault, SettingKind, SettingValue, Settings, SettingsPatch,
};
use nowserving_protocol::admin::*;
use nowserving_protocol::codec::{Format, decode, encode};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::UserSettings;
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn create_takes_settings_and_fills_in_the_defaults() {
    for payload in payloads(&json!({"seats": 7, "queue_limit": 15})) {
        let create: Create = decode(&payload).unwrap();
        assert_eq!(create.into_settings().unwrap(), Settings::new(7, 15));
    }
    let all = json!({
        "seats": 1_000_000, "queue_limit": 10_000_000, "waiting_idle_timeout_ms": 100,
        "claim_timeout_ms": 604_800_000, "checkout_timeout_ms": 100, "checkout_max_ms": 100,
        "checkout_expected_ms": 240_000, "gate": "shadow",
        "admission": "called",
        "admission_rate": {"per_second": 0.5, "burst": 20},
        "lanes": [
            {"name": "vip", "boost_ms": 600_000, "absolute": false, "queue_limit": 5},
            {"name": "normal", "boost_ms": 0, "absolute": true, "queue_limit": null},
        ],
        "default_lane": "normal",
        "max_wait_ms": 1_000, "jumps_max": 16, "seats_when_silent": 0, "callback_limit": 7,
        "call_ahead_ms": 5_000, "position_events": [10, 1],
        "call_ahead": 3, "quota": {"total": 100, "standby_percent": 20}, "phase": "pre_open",
        "opening": "draw", "draw_beacon": "7 12 40",
        "schedule": [
            {"at": "2026-11-22T04:00:00Z", "set": {"phase": "open", "seats": 9}},
            {"at": "2026-11-22T22:00:00.5Z", "set": {"labels": null, "quota": null}},
        ],
        "position_cap": 1_000, "release_on_claim": true,
        "token_events": false, "event_key": true, "labels": {"city": "台北", "empty": ""},
        "poll_min_ms": 30_000,
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

/// docs/protocol/settings.md has a row for each setting, in the order of the table.
#[test]
fn the_contract_lists_every_setting_with_its_default_and_range() {
    let contract = include_str!("../../../docs/protocol/settings.md");
    let rows = contract.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells.first()?.strip_prefix("| `")?.strip_suffix('`')?;
        Some((name, *cells.get(1)?, *cells.get(2)?))
    });
    let rows: Vec<_> = rows
        .skip_while(|(name, ..)| *name != SETTINGS[0].name)
        .collect();
    for (setting, (name, default, range)) in SETTINGS.iter().zip(rows) {
        assert_eq!(name, setting.name);
        let expected = match (setting.default, setting.default_value()) {
            (SettingDefault::Required, _) => "required".to_owned(),
            (_, Some(SettingValue::Number(number))) => number.to_string(),
            (_, Some(SettingValue::Flag(flag))) => flag.to_string(),
            (_, Some(SettingValue::Phase(phase))) => format!("`{}`", phase.as_str()),
            (_, Some(SettingValue::Admission(it))) => format!("`{}`", it.as_str()),
            (_, Some(SettingValue::Gate(it))) => format!("`{}`", it.as_str()),
            _ => continue,
        };
        assert_eq!(default.replace(',', ""), expected, "{name}");
        let expected = match setting.kind {
            SettingKind::Number { least, most } => format!("{least} to {most}"),
            SettingKind::TimeMs { least, most } if most < 86_400_000 => {
                format!("{least} to {most}")
            }
            SettingKind::TimeMs { least, most } => {
                format!("{least} to {} days", most / 86_400_000)
            }
            _ => continue,
        };
        assert_eq!(range.replace(',', ""), expected, "{name}");
    }
}

#[test]
fn a_schedule_is_read_and_its_errors_name_the_field() {
    let set = |at: &str, set: Value| json!({"at": at, "set": set});
    let schedule = json!({"schedule": [
        set("2026-11-22T01:00:00Z", json!({"seats": 1})),
        set("2026-11-22T12:00:00+08:00", json!({"seats": 2})),
        set("2026-11-22T04:00:00Z", json!({"seats": 3})),
    ]});
    for payload in payloads(&schedule) {
        let patch = decode::<Configure>(&payload).unwrap().settings;
        let Some(Change::Set(schedule)) = patch.schedule else {
            panic!("{patch:?}");
        };
        let seats = schedule.iter().map(|change| change.set.seats.clone());
        let seats: Vec<_> = seats.collect();
        assert_eq!(seats, [1, 2, 3].map(|n| Some(Change::Set(n))));
    }
    let noon = "2026-11-22T12:00:00+08:00";
    let good = || set(noon, json!({"seats": 1}));
    for (schedule, named) in [
        (
            json!([good(), set(noon, json!({"seats": 0}))]),
            "schedule[1].set.seats",
        ),
        (json!([good(), set("noon", json!({}))]), "schedule[1].at"),
        (
            json!([set("1969-01-01T00:00:00Z", json!({}))]),
            "1970 to 9999",
        ),
        (json!([{"at": noon}]), "schedule[0].set: required"),
        (
            json!([good(), set(noon, json!({}))]),
            "schedule[1].set: at least one setting",
        ),
        (
            json!([set(noon, json!({"schedule": []}))]),
            "no schedule within",
        ),
        (json!([set(noon, json!({"seets": 1}))]), "seets"),
        (json!(vec![good(); 65]), "at most 64"),
        (json!({}), "schedule"),
    ] {
        for payload in payloads(&json!({"schedule": schedule})) {
            let error = decode::<Configure>(&payload).unwrap_err();
            assert!(error.message.contains(named), "{named}: {}", error.message);
        }
    }
}

#[test]
fn configure_takes_any_subset_and_null_unsets() {
    for payload in payloads(
        &json!({"if_version": 9, "incarnation": 4_097, "seats": 8, "labels": null, "token_events": null}),
    ) {
        let configure: Configure = decode(&payload).unwrap();
        assert_eq!(
            (configure.if_version, configure.incarnation),
            (Some(9), Some(4_097))
        );
        let expected = SettingsPatch {
            seats: Some(Change::Set(8)),
            labels: Some(Change::Unset),
            token_events: Some(Change::Unset),
            ..SettingsPatch::default()
        };
        assert_eq!(configure.settings, expected);
    }
    let nulls = json!({"if_version": null, "incarnation": null});
    for payload in [payloads(&json!({})), payloads(&nulls)].concat() {
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
        ("call_ahead", 0, 10_000_000),
        ("position_cap", 1, 10_000_000),
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
    // Their names would not fit into a message.
    refused::<Configure>(
        json!({"color": 1}),
        &[
            "color: unknown field `color`, none of the ",
            " known ones is similar",
        ],
    );
    for field in ["token_events", "event_key", "release_on_claim"] {
        for value in [json!(1), json!("true"), json!([]), json!({})] {
            refused::<Configure>(
                json!({ field: value }),
                &[&format!("{field}:"), "true or false"],
            );
        }
    }
    for value in [json!(-1), json!(1.5), json!("9"), json!(1_u64 << 53)] {
        for field in ["if_version", "incarnation"] {
            let named = format!("{field}:");
            refused::<Configure>(json!({ field: value }), &[&named, "9007199254740991"]);
        }
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
fn unknown_and_doubled_settings_are_refused() {
    refused::<Create>(
        json!({"seats": 1, "queue_limit": 1, "seat": 2}),
        &["`seat`", "`seats`"],
    );
    refused::<Configure>(json!({"Seats": 1}), &["`Seats`"]);
    for condition in ["if_version", "incarnation"] {
        refused::<Create>(
            json!({"seats": 1, "queue_limit": 1, condition: 2}),
            &[&format!("`{condition}`")],
        );
    }
    for field in [
        "seats",
        "claim_timeout_ms",
        "call_ahead",
        "if_version",
        "incarnation",
    ] {
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
fn a_reply_of_settings_can_be_sent_back() {
    let mut settings = Settings::new(5, 6);
    for changed in [false, true] {
        if changed {
            settings
                .lanes
                .push(LaneSettings::new(LaneName::try_from("vip").unwrap()));
            settings.phase = Phase::Paused;
            settings.position_cap = Some(9);
            settings.default_lane = Some(LaneName::try_from("vip").unwrap());
        }
        let reply = SettingsReply::from(&settings);
        part_both_ways(&reply);
        for format in [Format::Json, Format::MsgPack] {
            let create: Create = decode(&encode(&reply, format)).unwrap();
            assert_eq!(create.into_settings().unwrap(), settings);
        }
    }
}

#[test]
fn users_see_only_settings_for_users() {
    let mut settings = Settings::new(5, 6);
    let seen = serde_json::to_value(UserSettings::from(&settings)).unwrap();
    assert_eq!(seen["lanes"], json!(["normal"]));
    assert_eq!(seen["default_lane"], "normal");
    assert_eq!((seen.get("quota"), seen.get("position_cap")), (None, None));
    settings.lanes = vec![
        LaneSettings {
            boost_ms: 7,
            ..LaneSettings::new(LaneName::try_from("vip").unwrap())
        },
        LaneSettings::default(),
    ];
    settings.quota = Some(Quota {
        total: 100,
        standby_percent: 20,
        renew: None,
        per_visit: 1,
    });
    settings.position_cap = Some(50);
    settings.call_ahead = 3;
    settings.release_on_claim = true;
    settings.labels.insert("city".to_owned(), "x".to_owned());
    let reply = UserSettings::from(&settings);
    part_both_ways(&reply);
    let expected = json!({
        "seats": 5, "queue_limit": 6, "waiting_idle_timeout_ms": 300_000,
        "claim_timeout_ms": 120_000, "checkout_timeout_ms": 600_000, "checkout_max_ms": 3_600_000,
        "lanes": ["vip", "normal"], "default_lane": "vip", "call_ahead": 3, "quota": {"total": 100}, "phase": "open",
        "position_cap": 50, "release_on_claim": true, "token_events": true,
    });
    assert_eq!(serde_json::to_value(reply).unwrap(), expected);
}

fn change<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Change<T>>> {
    prop_oneof![2 => value.prop_map(|value| Some(Change::Set(value))), 1 => Just(Some(Change::Unset)), 2 => Just(None)]
}

fn lanes() -> impl Strategy<Value = Vec<LaneSettings>> {
    let name = "[A-Za-z0-9_-]{1,64}";
    let set = (
        0_u64..=604_800_000,
        any::<bool>(),
        proptest::option::of(0_u32..=10_000_000),
        any::<bool>(),
    );
    proptest::collection::btree_map(name, set, 1..=8).prop_map(|lanes| {
        let lanes = lanes.into_iter();
        let lane = |(name, (boost_ms, absolute, queue_limit, jump)): (String, _)| LaneSettings {
            name: LaneName::try_from(name.as_str()).unwrap(),
            boost_ms,
            absolute,
            queue_limit,
            jump,
        };
        lanes.map(lane).collect()
    })
}

fn rate() -> impl Strategy<Value = AdmissionRate> {
    let rate = (RATE_MICRO_MIN..=RATE_MICRO_MAX, 1_u32..=1_000_000);
    rate.prop_map(|(per_second_micro, burst)| AdmissionRate {
        per_second_micro,
        burst,
    })
}

prop_compose! {
    fn first_patch()(
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
            ..SettingsPatch::default()
        }
    }
}

prop_compose! {
    fn patch()(
        first in first_patch(), admission_rate in change(rate()), lanes in change(lanes()),
        call_ahead in change(0_u32..=10_000_000),
        quota in change((1_u64..=1_000_000_000, 0_u32..=1_000, 1_u32..=1_000)),
        phase in change(proptest::sample::select(&Phase::ALL[..])),
        position_cap in change(1_u32..=10_000_000), release_on_claim in change(any::<bool>()),
    ) -> SettingsPatch {
        let quota = quota.map(|change| match change {
            Change::Set((total, standby_percent, per_visit)) => {
                Change::Set(Quota { total, standby_percent, renew: None, per_visit })
            }
            Change::Unset => Change::Unset,
        });
        SettingsPatch {
            admission_rate, lanes, call_ahead, quota, phase, position_cap, release_on_claim,
            ..first
        }
    }
}

proptest! {
    #[test]
    fn settings_survive_the_wire(
        settings in patch(),
        if_version in proptest::option::of(0_u64..(1 << 53)),
        incarnation in proptest::option::of(0_u64..(1 << 53)),
        dry_run: bool,
    ) {
        part_both_ways(&Create { settings: settings.clone() });
        part_both_ways(&Configure { if_version, incarnation, dry_run, settings });
    }
}
