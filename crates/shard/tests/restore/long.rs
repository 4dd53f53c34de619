//! Lines with long settings: no part is larger than nodes read.

use super::*;

/// A name of the greatest length.
fn long(nth: usize) -> String {
    format!("{nth:0>LABEL_BYTES_MAX$}")
}

fn long_labels(first: usize) -> SettingsPatch {
    let labels = (first..first + LABELS_MAX).map(|nth| (long(nth), long(nth)));
    SettingsPatch {
        labels: Some(Change::Set(labels.collect())),
        ..SettingsPatch::default()
    }
}

fn long_lanes(names: std::ops::Range<usize>) -> SettingsPatch {
    let lanes = names.clone().map(|nth| LaneSettings {
        boost_ms: BOOST_MS_MAX,
        absolute: true,
        queue_limit: Some(QUEUE_LIMIT_MAX),
        jump: true,
        ..LaneSettings::new(LaneName::try_from(&*long(nth)).unwrap())
    });
    SettingsPatch {
        lanes: Some(Change::Set(lanes.collect())),
        default_lane: Some(Change::Set(
            LaneName::try_from(&*long(names.start)).unwrap(),
        )),
        ..SettingsPatch::default()
    }
}

/// The settings that are neither lanes nor labels, with values that are as long as can be.
fn long_values() -> SettingsPatch {
    let time = || Some(Change::Set(TIMEOUT_MS_MAX));
    let positions = (0..POSITION_EVENTS_MAX as u32).map(|nth| POSITION_EVENT_MAX - nth);
    SettingsPatch {
        seats: Some(Change::Set(SEATS_MAX)),
        seats_when_silent: Some(Change::Set(SEATS_MAX)),
        queue_limit: Some(Change::Set(QUEUE_LIMIT_MAX)),
        waiting_idle_timeout_ms: time(),
        max_wait_ms: Some(Change::Set(30 * 24 * 60 * 60 * 1_000)),
        claim_timeout_ms: time(),
        checkout_timeout_ms: time(),
        checkout_max_ms: time(),
        admission: Some(Change::Set(Admission::Called)),
        admission_rate: Some(Change::Set(AdmissionRate {
            per_second_micro: RATE_MICRO_MAX,
            burst: RATE_BURST_MAX,
        })),
        jumps_max: Some(Change::Set(16)),
        call_ahead: Some(Change::Set(CALL_AHEAD_MAX)),
        call_ahead_ms: time(),
        callback_limit: Some(Change::Set(CALLBACK_LIMIT_MAX)),
        position_events: Some(Change::Set(positions.collect())),
        quota: Some(Change::Set(Quota {
            total: QUOTA_TOTAL_MAX,
            standby_percent: STANDBY_PERCENT_MAX,
            renew: Some(Renew::Daily {
                minute: 1_439,
                zone: ZoneName::new(&"Z".repeat(ZONE_BYTES_MAX)).unwrap(),
            }),
            per_visit: 1,
        })),
        phase: Some(Change::Set(Phase::Paused)),
        position_cap: Some(Change::Set(POSITION_CAP_MAX)),
        release_on_claim: Some(Change::Set(true)),
        token_events: Some(Change::Set(false)),
        event_key: Some(Change::Set(true)),
        ..SettingsPatch::default()
    }
}

/// As many of these changes as a schedule takes.
fn long_schedule(set: &SettingsPatch) -> Vec<ScheduledChange> {
    let change = || ScheduledChange {
        at_ms: WALL_MS_MAX,
        set: set.clone(),
    };
    let schedules = (1..=SCHEDULE_MAX).map(|count| vec![change(); count]);
    let fits = |schedule: &Vec<_>| {
        let patch = SettingsPatch {
            schedule: Some(Change::Set(schedule.clone())),
            ..SettingsPatch::default()
        };
        patch.validate().is_ok()
    };
    schedules.take_while(fits).last().unwrap()
}

fn configure(patch: SettingsPatch) -> Op {
    Op::Configure {
        line: name("shop"),
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    }
}

#[test]
fn a_schedule_takes_no_more_bytes_than_its_limit_says() {
    let unset = SettingsPatch {
        max_wait_ms: Some(Change::Unset),
        ..SettingsPatch::default()
    };
    let mut counts = Vec::new();
    for set in [
        long_labels(0),
        long_lanes(0..LANES_MAX),
        long_values(),
        unset,
    ] {
        let schedule = long_schedule(&set);
        counts.push(schedule.len());
        let entry = Entry {
            commands: vec![Command::Line(configure(SettingsPatch {
                schedule: Some(Change::Set(schedule)),
                ..SettingsPatch::default()
            }))],
            ..Entry::default()
        };
        // The rest of the entry is short.
        let bytes = command::encode(&entry).len();
        assert!(bytes <= SCHEDULE_BYTES_MAX + 64, "{counts:?}: {bytes}");
    }
    assert!(
        counts[0] > 6 && counts[1] > 15 && counts[2] > 28,
        "{counts:?}"
    );
    assert_eq!(counts[3], SCHEDULE_MAX);
}

/// A line with the longest names and labels, which were changed again and again, and so was its schedule: it has as
/// many of the one change as it takes, then of the other.
fn a_long_line(scheduled: [&SettingsPatch; 2]) -> Shard {
    let mut shard = Shard::new(1_000_000);
    shard.apply(Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 1),
    });
    for round in 0..LANE_TABLE_MAX.div_ceil(LANES_MAX) {
        let first = round * LANES_MAX;
        // One name is that of the line's first lane.
        let lanes = long_lanes(first..(first + LANES_MAX).min(LANE_TABLE_MAX - 1));
        let schedule = long_schedule(scheduled[round % 2]);
        shard.apply(configure(SettingsPatch {
            schedule: Some(Change::Set(schedule.clone())),
            lanes: lanes.lanes,
            default_lane: lanes.default_lane,
            labels: long_labels(round).labels,
            ..long_values()
        }));
        assert_eq!(shard.line().settings().schedule, schedule);
    }
    assert_eq!(shard.line().dump().lanes.len(), LANE_TABLE_MAX);
    shard
}

#[test]
fn a_line_with_long_schedules_comes_back() {
    let (labels, values) = (long_labels(0), long_values());
    // With the others, the journal has one change with both schedules; with these, two.
    for (other, changes) in [(long_labels(200), 1), (values, 2)] {
        let shard = a_long_line([&labels, &other]);
        let backup = shard.back_up();
        let mut other = Shard::new(5_000);
        other.send(9, &backup);
        done(other.finish(9, &backup, false));
        let (old, new) = (shard.line().dump(), other.line().dump());
        assert_eq!(new.settings, old.settings);
        assert_eq!(new.settings_changes, old.settings_changes);
        assert_eq!(new.settings_changes.len(), changes);
    }
}

#[test]
fn the_first_part_of_a_line_fits_whatever_its_numbers() {
    let mut dump = a_long_line([&long_labels(0); 2]).line().dump();
    let largest = NUMBER_MAX;
    for lane in &mut dump.lanes {
        lane.next_token = largest + 1;
        lane.called_through = largest;
        for mark in &mut lane.marks {
            mark.through = largest;
        }
        lane.arrivals = Arrivals {
            count: largest,
            since_ms: largest,
            began_ms: largest,
            last_ms: largest,
        };
        lane.offers = Offers {
            recent: largest,
            earlier: largest,
            since_ms: largest,
        };
    }
    let reasons = dump.gone_counts.len() as u64;
    let issued = largest * dump.lanes.len() as u64;
    dump.gone_counts = dump.gone_counts.map(|_| issued / reasons);
    dump.gone_counts[0] += issued % reasons;
    for numbers in [
        &mut dump.incarnation,
        &mut dump.version,
        &mut dump.epoch,
        &mut dump.settings_version,
        &mut dump.created_at_ms,
        &mut dump.used,
        &mut dump.used_in_past,
        &mut dump.called_back,
    ] {
        *numbers = largest;
    }
    dump.renews_at_ms = Some(largest);
    dump.told = Some(Told {
        seats: SEATS_MAX,
        until_ms: largest,
        silent: true,
    });
    let window = Window {
        releases: largest,
        seat_ms: largest,
    };
    dump.forecast.windows = [window; FORECAST_WINDOWS].into();
    let mut lines = Lines::from_head(Limits::default(), Default::default()).unwrap();
    lines.add(dump).unwrap();
    let (parts, _) = parts_of(lines.get(&name("shop")).unwrap());
    // A kilobyte is left for departures by state and reason, and refusals by code.
    assert!(
        parts[0].len() + 1_024 <= PART_BYTES_MAX,
        "{}",
        parts[0].len()
    );
}
