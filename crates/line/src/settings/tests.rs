#![allow(clippy::unwrap_used)]
use crate::AdmissionRate;

use super::*;

fn patch(seats: u32, queue_limit: u32) -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(seats)),
        queue_limit: Some(Change::Set(queue_limit)),
        ..SettingsPatch::default()
    }
}

#[test]
fn required_settings_and_defaults() {
    let made = Settings::create(&patch(7, 15));
    assert_eq!(made, Ok(Settings::new(7, 15)));
    let none = Settings::create(&SettingsPatch::default());
    assert_eq!(none.map_err(|e| e.field), Err("seats".into()));
    let unset = SettingsPatch {
        queue_limit: Some(Change::Unset),
        ..patch(1, 0)
    };
    assert_eq!(
        Settings::create(&unset).map_err(|e| e.field),
        Err("queue_limit".into())
    );
    assert_eq!(
        unset.validate().map_err(|e| e.field),
        Err("queue_limit".into())
    );
}

#[test]
fn range_limits_of_sizes_and_timeouts() {
    for (seats, queue_limit, ok) in [
        (0, 0, false),
        (1, 0, true),
        (SEATS_MAX, QUEUE_LIMIT_MAX, true),
        (SEATS_MAX + 1, 0, false),
        (1, QUEUE_LIMIT_MAX + 1, false),
        (u32::MAX, u32::MAX, false),
    ] {
        assert_eq!(patch(seats, queue_limit).validate().is_ok(), ok);
    }
    for (timeout_ms, ok) in [
        (0, false),
        (99, false),
        (100, true),
        (TIMEOUT_MS_MAX, true),
        (TIMEOUT_MS_MAX + 1, false),
        (u64::MAX, false),
    ] {
        let mut p = patch(1, 0);
        p.checkout_max_ms = Some(Change::Set(timeout_ms));
        assert_eq!(p.validate().is_ok(), ok, "{timeout_ms}");
    }
}

#[test]
fn labels_are_limited_in_number_and_length() {
    let labels = |n: usize, name: usize, value: usize| SettingsPatch {
        labels: Some(Change::Set(
            (0..n)
                .map(|i| (format!("{i:0name$}"), "v".repeat(value)))
                .collect(),
        )),
        ..SettingsPatch::default()
    };
    assert!(labels(16, 64, 64).validate().is_ok());
    assert!(labels(17, 4, 4).validate().is_err());
    assert!(labels(1, 65, 1).validate().is_err());
    assert!(labels(1, 1, 65).validate().is_err());
    let empty = [(String::new(), String::new())].into();
    let empty = SettingsPatch {
        labels: Some(Change::Set(empty)),
        ..SettingsPatch::default()
    };
    assert!(empty.validate().is_err());
}

#[test]
fn unset_restores_the_default() {
    let mut p = patch(3, 4);
    p.claim_timeout_ms = Some(Change::Set(5_000));
    p.token_events = Some(Change::Set(false));
    let Ok(set) = Settings::create(&p) else {
        panic!("valid")
    };
    let back = SettingsPatch {
        claim_timeout_ms: Some(Change::Unset),
        token_events: Some(Change::Unset),
        ..SettingsPatch::default()
    };
    assert_eq!(set.with(&back), Ok(Settings::new(3, 4)));
}

#[test]
fn every_entry_of_the_table_has_its_own_name() {
    for (no, setting) in SETTINGS.iter().enumerate() {
        let others = &SETTINGS[..no];
        assert!(others.iter().all(|other| other.name != setting.name));
        let is_time = matches!(setting.kind, SettingKind::TimeMs { .. });
        assert_eq!(setting.name.ends_with("_ms"), is_time, "{}", setting.name);
        assert!(!setting.text.ends_with('.'), "{}", setting.text);
    }
    assert_eq!(Settings::new(1, 0).validate(), Ok(()), "defaults are valid");
}

/// A setting without a number of [`super::table`]'s formats, or with that of another one, would not come back.
#[test]
fn all_settings_come_back_from_their_bytes() {
    let mut full = SettingsPatch::default();
    let mut unset = SettingsPatch::default();
    for setting in SETTINGS {
        let value = match setting.kind {
            SettingKind::Number { most, .. } | SettingKind::TimeMs { most, .. } => {
                SettingValue::Number(most)
            }
            SettingKind::Flag => match setting.default_value() {
                Some(SettingValue::Flag(default)) => SettingValue::Flag(!default),
                other => panic!("{}: {other:?}", setting.name),
            },
            SettingKind::Phase => SettingValue::Phase(Phase::Closed),
            SettingKind::Admission => SettingValue::Admission(Admission::Called),
            SettingKind::Gate => SettingValue::Gate(Gate::Off),
            SettingKind::Opening => SettingValue::Opening(Opening::Draw),
            SettingKind::Text { most } => SettingValue::Text("x".repeat(most)),
            SettingKind::LaneName => SettingValue::LaneName(LaneName::default()),
            SettingKind::AdmissionRate => SettingValue::AdmissionRate(AdmissionRate {
                per_second_micro: 1_000,
                burst: 7,
            }),
            SettingKind::Quota => SettingValue::Quota(Quota {
                total: 9,
                standby_percent: 3,
                renew: ZoneName::new("Europe/Oslo").map(|zone| Renew::Daily { minute: 5, zone }),
                per_visit: 1,
            }),
            SettingKind::Lanes => SettingValue::Lanes(vec![LaneSettings {
                boost_ms: 3,
                absolute: true,
                queue_limit: Some(4),
                jump: true,
                ..LaneSettings::default()
            }]),
            SettingKind::Positions => SettingValue::Positions(vec![20, 10]),
            SettingKind::Schedule => SettingValue::Schedule(vec![ScheduledChange {
                at_ms: 6,
                set: SettingsPatch {
                    jumps_max: Some(Change::Unset),
                    ..SettingsPatch::default()
                },
            }]),
            SettingKind::Labels => {
                SettingValue::Labels([("city".to_owned(), "Oslo".to_owned())].into())
            }
        };
        setting.set_change(&mut full, Change::Set(value)).unwrap();
        setting.set_change(&mut unset, Change::Unset).unwrap();
    }
    let newest = full.first_format();
    for patch in [&SettingsPatch::default(), &full, &unset] {
        let bytes = nowserving_codec::encode(patch, newest);
        assert_eq!(nowserving_codec::decode(&bytes, newest).as_ref(), Ok(patch));
    }
    let settings = Settings::create(&full).unwrap();
    let bytes = nowserving_codec::encode(&settings, newest);
    assert_eq!(nowserving_codec::decode(&bytes, newest), Ok(settings));
}

#[test]
fn patches_that_are_none_are_refused() {
    let read = |bytes: &[u8]| nowserving_codec::decode::<SettingsPatch>(bytes, 1);
    assert!(read(&[1, 0, 5, 0]).is_ok());
    for (bytes, why) in [
        (&[1, 0, 5, 1, 1, 0][..], "twice"),
        (&[2, 1, 1, 1, 0], "out of order"),
        (&[200, 1, 0], "unknown"),
        (&[1, 0, 5], "cut off"),
    ] {
        assert!(read(bytes).is_err(), "{why}");
    }
    let nested = SettingsPatch {
        schedule: Some(Change::Set(vec![ScheduledChange {
            at_ms: 1,
            set: SettingsPatch {
                schedule: Some(Change::Unset),
                ..SettingsPatch::default()
            },
        }])),
        ..SettingsPatch::default()
    };
    assert!(read(&nowserving_codec::encode(&nested, 1)).is_err());
}

fn is_ok(change: impl FnOnce(&mut SettingsPatch)) -> bool {
    let mut patch = SettingsPatch::default();
    change(&mut patch);
    patch.validate().is_ok()
}

#[test]
fn range_limits_of_rules() {
    for (per_second_micro, burst, ok) in [
        (999, 1, false),
        (1_000, 1, true),
        (1_000_000_000_000, 1_000_000, true),
        (1_000_000_000_001, 1, false),
        (1_000, 0, false),
        (1_000, 1_000_001, false),
    ] {
        let rate = AdmissionRate {
            per_second_micro,
            burst,
        };
        assert_eq!(is_ok(|p| p.admission_rate = Some(Change::Set(rate))), ok);
    }
    for (total, standby_percent, ok) in [
        (0, 0, false),
        (1, 1_000, true),
        (1_000_000_000, 0, true),
        (1_000_000_001, 0, false),
        (1, 1_001, false),
    ] {
        let quota = Quota {
            total,
            standby_percent,
            renew: None,
            per_visit: 1,
        };
        assert_eq!(is_ok(|p| p.quota = Some(Change::Set(quota))), ok);
    }
    for (n, ok) in [(0, true), (10_000_000, true), (10_000_001, false)] {
        assert_eq!(is_ok(|p| p.call_ahead = Some(Change::Set(n))), ok);
        let capped = is_ok(|p| p.position_cap = Some(Change::Set(n)));
        assert_eq!(capped, ok && n > 0);
    }
    let quota = Quota {
        total: 3,
        standby_percent: 50,
        renew: None,
        per_visit: 1,
    };
    assert_eq!(quota.entries_max(), 4, "rounded down");
}

#[test]
fn lanes_are_1_to_8_with_unique_names() {
    let lanes = |n: usize| -> Vec<LaneSettings> {
        let names = (0..n).map(|n| crate::LaneName::try_from(format!("lane-{n}").as_str()));
        names.flatten().map(LaneSettings::new).collect()
    };
    let set = |lanes| is_ok(|p| p.lanes = Some(Change::Set(lanes)));
    for (n, ok) in [(0, false), (1, true), (8, true), (9, false)] {
        assert_eq!(set(lanes(n)), ok, "{n}");
    }
    assert!(!set([lanes(2), lanes(1)].concat()), "one name twice");
    let with = |boost_ms, queue_limit| {
        let mut lanes = lanes(1);
        lanes[0].boost_ms = boost_ms;
        lanes[0].queue_limit = queue_limit;
        set(lanes)
    };
    assert!(with(BOOST_MS_MAX, Some(0)) && with(0, Some(QUEUE_LIMIT_MAX)));
    assert!(!with(BOOST_MS_MAX + 1, None) && !with(0, Some(QUEUE_LIMIT_MAX + 1)));
}

#[test]
fn phases_keep_their_codes_and_words() {
    for (code, phase) in [1, 0, 2, 3, 4].into_iter().zip(Phase::ALL) {
        assert_eq!(phase.code(), code);
        assert_eq!(Phase::from_code(code), Some(phase));
        assert_eq!(Phase::parse(phase.as_str()), Some(phase));
    }
    assert_eq!((Phase::from_code(5), Phase::parse("shut")), (None, None));
}

#[test]
fn positions_are_in_range_and_each_stands_once() {
    let positions = |positions: &[u32]| SettingsPatch {
        position_events: Some(Change::Set(positions.to_vec())),
        ..SettingsPatch::default()
    };
    for (named, field) in [
        (&[POSITION_EVENT_MAX, 1][..], None),
        (&[0], Some("position_events[0]")),
        (&[5, POSITION_EVENT_MAX + 1], Some("position_events[1]")),
        (&[5, 5], Some("position_events")),
        (&[1, 5], Some("position_events")),
    ] {
        let refused = positions(named).validate().err();
        assert_eq!(
            refused.map(|it| it.field),
            field.map(Into::into),
            "{named:?}"
        );
    }
}

#[test]
fn a_quota_is_renewed_at_a_minute_of_a_day() {
    for (minute, ok) in [(0, true), (24 * 60 - 1, true), (24 * 60, false)] {
        let zone = ZoneName::new("Asia/Tokyo").unwrap();
        let quota = Quota {
            total: 5,
            standby_percent: 0,
            renew: Some(Renew::Daily { minute, zone }),
            per_visit: 1,
        };
        assert_eq!(quota.validate().is_ok(), ok, "{minute}");
    }
}
