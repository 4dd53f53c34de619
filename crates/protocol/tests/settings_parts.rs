//! Settings that have parts, in operators' requests: to the ends of their ranges, and every part
//! that is wrong by its name.

use crate::common::{both_ways, part_both_ways, payloads, refused};
use nowserving_line::{
    AdmissionRate, Change, LaneName, LaneSettings, Phase, Quota, RATE_MICRO_MAX, RATE_MICRO_MIN,
    Settings,
};
use nowserving_protocol::admin::*;
use nowserving_protocol::codec::decode;
use serde_json::{Value, json};

/// The settings after `value` alone was set.
fn with(value: Value) -> Settings {
    let mut settings = Vec::new();
    for payload in payloads(&value) {
        let configure: Configure = decode(&payload).unwrap();
        settings.push(Settings::new(1, 0).with(&configure.settings).unwrap());
    }
    assert_eq!(settings[0], settings[1]);
    settings.remove(0)
}

fn vip() -> LaneName {
    LaneName::try_from("vip").unwrap()
}

#[test]
fn settings_with_parts_are_taken_to_the_ends_of_their_ranges() {
    for (per_second, micro) in [
        (json!(0.001), RATE_MICRO_MIN),
        (json!(1_000_000), RATE_MICRO_MAX),
        (json!(1e6), RATE_MICRO_MAX),
        (json!(1), 1_000_000),
        (json!(2.5), 2_500_000),
        (json!(1.000_003), 1_000_003),
        (json!(0.1), 100_000),
        // Between two millionths: cut down.
        (json!(1.000_003_9), 1_000_003),
        (json!(999_999.999_999_9), RATE_MICRO_MAX - 1),
    ] {
        for burst in [1, 1_000_000] {
            let rate = json!({"admission_rate": {"per_second": per_second, "burst": burst}});
            let expected = AdmissionRate {
                per_second_micro: micro,
                burst,
            };
            assert_eq!(with(rate).admission_rate, Some(expected), "{per_second}");
        }
    }
    for (total, standby_percent) in [(1, 0), (1_000_000_000, 1_000)] {
        let quota = json!({"quota": {"total": total, "standby_percent": standby_percent}});
        let expected = Quota {
            total,
            standby_percent,
            renew: None,
            per_visit: 1,
        };
        assert_eq!(with(quota).quota, Some(expected));
    }
    let alone = with(json!({"quota": {"total": 7}})).quota.unwrap();
    assert_eq!(alone.standby_percent, 0);
    for phase in Phase::ALL {
        assert_eq!(with(json!({"phase": phase.as_str()})).phase, phase);
    }
    let lanes = json!([
        {"name": "vip", "boost_ms": 604_800_000, "absolute": true, "queue_limit": 10_000_000, "jump": true},
        {"name": "x".repeat(64), "boost_ms": null, "absolute": null, "queue_limit": null},
        {"name": "normal", "queue_limit": 0},
    ]);
    let expected = [
        LaneSettings {
            name: vip(),
            boost_ms: 604_800_000,
            absolute: true,
            queue_limit: Some(10_000_000),
            jump: true,
        },
        LaneSettings::new(LaneName::try_from("x".repeat(64).as_str()).unwrap()),
        LaneSettings {
            queue_limit: Some(0),
            ..LaneSettings::default()
        },
    ];
    assert_eq!(with(json!({ "lanes": lanes })).lanes, expected);
    let eight: Vec<_> = (0..8).map(|n| json!({"name": format!("l{n}")})).collect();
    assert_eq!(with(json!({ "lanes": eight })).lanes.len(), 8);
}

#[test]
fn null_unsets_settings_with_parts() {
    let unset = json!({
        "admission_rate": null, "lanes": null, "call_ahead": null, "quota": null, "phase": null,
        "position_cap": null, "release_on_claim": null, "default_lane": null,
    });
    let mut settings = Settings::new(1, 0);
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 1_000,
        burst: 1,
    });
    settings.lanes = vec![LaneSettings::new(vip())];
    settings.default_lane = Some(vip());
    settings.call_ahead = 5;
    settings.quota = Some(Quota {
        total: 1,
        standby_percent: 0,
        renew: None,
        per_visit: 1,
    });
    settings.phase = Phase::Draining;
    settings.position_cap = Some(5);
    settings.release_on_claim = true;
    for payload in payloads(&unset) {
        let patch = decode::<Configure>(&payload).unwrap().settings;
        assert_eq!(settings.with(&patch).unwrap(), Settings::new(1, 0));
        both_ways(&Configure {
            settings: patch,
            ..Configure::default()
        });
    }
}

#[test]
fn a_default_lane_is_one_of_the_lanes_beside_it() {
    for wrong in [json!(""), json!("a.b"), json!(1), json!(["vip"])] {
        refused::<Configure>(
            json!({ "default_lane": wrong }),
            &["default_lane:", "1 to 64"],
        );
    }
    // Whether the line has it is not known here, unless its lanes come with it.
    for payload in payloads(&json!({"default_lane": "vip"})) {
        let patch = decode::<Configure>(&payload).unwrap().settings;
        assert_eq!(patch.default_lane, Some(Change::Set(vip())));
    }
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    for payload in payloads(&json!({"default_lane": "vip", "lanes": lanes})) {
        let patch = decode::<Configure>(&payload).unwrap().settings;
        let settings = Settings::new(1, 0).with(&patch).unwrap();
        assert_eq!(settings.effective_default_lane(), Some(&vip()));
    }
    for lanes in [lanes, json!(null)] {
        let body = json!({"default_lane": "web", "lanes": lanes});
        refused::<Configure>(body, &["default_lane:", "\"web\"", "normal"]);
    }
}

#[test]
fn every_part_that_is_wrong_is_named() {
    let rate = |parts: Value, words: &[&str]| {
        refused::<Configure>(json!({ "admission_rate": parts }), words);
    };
    let limit = "from 0.001 to 1000000";
    for wrong in [
        json!(0.000_999_9),
        json!(0),
        json!(-1),
        json!(1_000_000.1),
        json!(1_000_001),
        json!(u64::MAX),
        json!(1e300),
        json!("1"),
        json!(null),
        json!([1]),
        json!(true),
    ] {
        let parts = json!({"per_second": wrong, "burst": 1});
        rate(parts, &["admission_rate.per_second:", limit]);
    }
    for wrong in [
        json!(0),
        json!(1_000_001),
        json!(1.5),
        json!("1"),
        json!(null),
    ] {
        let parts = json!({"per_second": 1, "burst": wrong});
        rate(parts, &["admission_rate.burst:", "from 1 to 1000000"]);
    }
    rate(
        json!({"burst": 1}),
        &["admission_rate.per_second: required"],
    );
    rate(
        json!({"per_second": 1}),
        &["admission_rate.burst: required"],
    );
    let parts = json!({"per_second": 1, "burst": 1, "per_minute": 60});
    rate(parts, &["admission_rate", "`per_minute`"]);
    for wrong in [json!(5), json!([1, 1]), json!("5/s"), json!(true)] {
        rate(wrong, &["admission_rate:", "`per_second`"]);
    }

    for wrong in [
        json!(0),
        json!(1_000_000_001),
        json!(-1),
        json!(1.5),
        json!(null),
    ] {
        let quota = json!({"quota": {"total": wrong}});
        refused::<Configure>(quota, &["quota.total:", "from 1 to 1000000000"]);
    }
    for wrong in [json!(1_001), json!(-1), json!(0.5), json!("5")] {
        let quota = json!({"quota": {"total": 1, "standby_percent": wrong}});
        refused::<Configure>(quota, &["quota.standby_percent:", "from 0 to 1000"]);
    }
    refused::<Configure>(json!({"quota": {}}), &["quota.total: required"]);
    refused::<Configure>(json!({"quota": {"total": 1, "x": 1}}), &["quota", "`x`"]);
    refused::<Configure>(json!({"quota": 5}), &["quota:", "`total`"]);

    for wrong in [
        json!("Open"),
        json!("opened"),
        json!(""),
        json!(1),
        json!(["open"]),
        json!({}),
    ] {
        refused::<Configure>(json!({ "phase": wrong }), &["phase:", "pre_open, open"]);
    }
    let null = rmp_serde::to_vec_named(&json!({"admission_rate": {"burst": 1}})).unwrap();
    let mut nan = [&[0x81, 0xae], &b"admission_rate"[..], &[0x81, 0xaa]].concat();
    nan.extend_from_slice(b"per_second");
    nan.extend_from_slice(&[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0]);
    for payload in [null, nan] {
        let message = decode::<Configure>(&payload).unwrap_err().message;
        assert!(message.contains("per_second"), "{message}");
    }
    // Numbers for names, which a derived reader would take for the fields' places.
    let numbered = [&[0x81, 0xa5], &b"quota"[..], &[0x81, 0x00, 0x05]].concat();
    let message = decode::<Configure>(&numbered).unwrap_err().message;
    assert!(message.starts_with("quota"), "{message}");
    let twice = br#"{"quota": {"total": 1, "total": 2}}"#;
    let message = decode::<Configure>(twice).unwrap_err().message;
    assert!(
        message.contains("quota") && message.contains("`total`"),
        "{message}"
    );
}

#[test]
fn every_lane_that_is_wrong_is_named() {
    let third = |lane: Value, words: &[&str]| {
        let lanes = json!([{"name": "a"}, {"name": "b"}, lane]);
        refused::<Configure>(json!({ "lanes": lanes }), words);
        let create = json!({"seats": 1, "queue_limit": 1, "lanes": lanes});
        refused::<Create>(create, words);
    };
    let week = "from 0 to 604800000";
    for wrong in [
        json!(604_800_001),
        json!(-1),
        json!(0.5),
        json!("5"),
        json!(true),
    ] {
        third(
            json!({"name": "c", "boost_ms": wrong}),
            &["lanes[2].boost_ms:", week],
        );
    }
    for wrong in [json!(10_000_001), json!(-1), json!(1.5), json!("5")] {
        let lane = json!({"name": "c", "queue_limit": wrong});
        third(lane, &["lanes[2].queue_limit:", "from 0 to 10000000"]);
    }
    for wrong in [json!(1), json!("true")] {
        let lane = json!({"name": "c", "absolute": wrong});
        third(lane, &["lanes[2].absolute:", "true or false"]);
        let lane = json!({"name": "c", "jump": wrong});
        third(lane, &["lanes[2].jump:", "true or false"]);
    }
    for wrong in [
        json!(""),
        json!("a.b"),
        json!("*"),
        json!("票"),
        json!(1),
        json!(null),
    ] {
        third(json!({ "name": wrong }), &["lanes[2].name:", "1 to 64"]);
    }
    third(
        json!({"name": "x".repeat(65)}),
        &["lanes[2].name:", "1 to 64"],
    );
    third(json!({"name": "a"}), &["lanes[2]: name:", "another lane"]);
    third(json!({"boost_ms": 1}), &["lanes[2].name: required"]);
    third(json!({"name": "c", "boost": 1}), &["lanes[2]", "`boost`"]);
    for wrong in [json!("c"), json!(["c"]), json!(null), json!(7)] {
        third(wrong, &["lanes[2]:", "`name`"]);
    }
    for wrong in [
        json!([]),
        json!({}),
        json!("a"),
        json!(2),
        json!({"name": "a"}),
    ] {
        refused::<Configure>(json!({ "lanes": wrong }), &["lanes:", "1 to 8"]);
    }
    let nine: Vec<_> = (0..9).map(|n| json!({"name": format!("l{n}")})).collect();
    refused::<Configure>(json!({ "lanes": nine }), &["lanes[8]:", "1 to 8"]);
}

#[test]
fn a_rate_is_written_as_it_is_read() {
    for micro in [
        1_000,
        1_001,
        1_000_000,
        1_000_003,
        333_333,
        12_345_678_901,
        RATE_MICRO_MAX,
    ] {
        let per_second = PerSecond::from_micro(micro);
        part_both_ways(&AdmissionRateReply {
            per_second,
            burst: 1,
        });
        assert_eq!(PerSecond::from_f64(per_second.as_f64()), Some(per_second));
    }
    let written = |micro| serde_json::to_string(&PerSecond::from_micro(micro)).unwrap();
    assert_eq!(written(2_500_000), "2.5");
    assert_eq!(written(10_000_000), "10");
    assert_eq!(PerSecond::from_micro(2_500_000).to_string(), "2.5");
    for wrong in [f64::NAN, f64::INFINITY, 0.0, -1.0, 0.000_999, 1_000_000.5] {
        assert_eq!(PerSecond::from_f64(wrong), None);
    }
}
