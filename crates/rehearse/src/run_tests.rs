//! Whole runs, with a look at each visit.
#![allow(clippy::unwrap_used)]

use nowserving_line::{
    Admission, AdmissionRate, Change, LaneSettings, Opening, Phase, Quota, ScheduledChange,
    SettingsPatch,
};

use crate::config::{Calls, Config, Polls};
use crate::report::{Run, Visit};

fn rehearsed(config: &Config) -> Run {
    crate::run(config, |_| {}).unwrap().real
}

/// The article's test at a tenth of its size.
fn small_poc() -> Config {
    let mut config = Config::poc();
    config.settings.seats = 50;
    config.crowd.shoppers = 1_000;
    config.crowd.polls = Polls::AsAnswered;
    config
}

fn admissions(run: &Run) -> Vec<u64> {
    let mut times: Vec<u64> = run.visits.iter().filter_map(|v| v.admitted_ms).collect();
    times.sort_unstable();
    times
}

#[test]
fn the_pace_is_kept_over_any_time() {
    const PER_SECOND: u64 = 8;
    const BURST: u64 = 5;
    let mut config = small_poc();
    config.settings.admission_rate = Some(AdmissionRate {
        per_second_micro: PER_SECOND * 1_000_000,
        burst: BURST as u32,
    });
    let times = admissions(&rehearsed(&config));
    assert!(times.len() > 900, "{}", times.len());
    for (no, from_ms) in times.iter().enumerate() {
        for (count, to_ms) in (1..).zip(&times[no..]) {
            let most = BURST + PER_SECOND * (to_ms - from_ms) / 1_000;
            assert!(count <= most, "{count} from {from_ms} to {to_ms} ms");
        }
    }
    let took_s = (times[times.len() - 1] - times[0]) as f64 / 1_000.0;
    let full_s = (times.len() as u64 - BURST) as f64 / PER_SECOND as f64;
    assert!(
        took_s <= full_s * 1.01,
        "nor slower: {took_s} s, not {full_s} s"
    );
}

#[test]
fn nobody_gets_a_seat_before_the_sale_opens_and_the_first_then() {
    let mut config = small_poc();
    config.settings.phase = Phase::PreOpen;
    config.open_at_ms = Some(60_000);
    let run = rehearsed(&config);
    let times = admissions(&run);
    assert_eq!(times[..50], [60_000; 50]);
    assert!(times[50] > 60_000);
    let early = |visit: &&Visit| visit.admitted_ms == Some(60_000);
    let last_ms = run.visits.iter().filter(early).map(|v| v.entered_ms).max();
    let later = run
        .visits
        .iter()
        .filter(|visit| visit.admitted_ms > Some(60_000));
    assert!(
        later.map(|v| v.entered_ms).min() >= last_ms,
        "who came first"
    );
    let summary = run.summary;
    assert_eq!(summary.seat_held_percent, Some(100.0));
    assert_eq!(summary.contended_ms + 60_000, times[times.len() - 1]);
    assert_eq!((summary.still_live, summary.turned_away), (0, 0));
}

/// Who came first has no better chance, and nobody is overtaken once they are drawn.
#[test]
fn a_draw_at_the_opening_lets_in_those_who_waited_in_any_order() {
    let mut config = small_poc();
    config.settings.phase = Phase::PreOpen;
    config.settings.opening = Opening::Draw;
    config.open_at_ms = Some(60_000);
    let run = rehearsed(&config);
    assert!(run.summary.is_sound(), "{:?}", run.summary);
    let mut drawn: Vec<&Visit> = run.visits.iter().filter(|visit| visit.is_drawn).collect();
    assert!(drawn.len() > 300, "{}", drawn.len());
    let times = admissions(&run);
    assert_eq!(times[..50], [60_000; 50]);
    drawn.sort_by_key(|visit| visit.entered_ms);
    let (first, last) = drawn.split_at(drawn.len() / 2);
    let mean = |half: &[&Visit]| {
        let sum: u64 = half.iter().map(|visit| visit.admitted_with).sum();
        sum as f64 / half.len() as f64
    };
    let ratio = mean(first) / mean(last);
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    let order: Vec<u64> = drawn.iter().map(|visit| visit.admitted_with).collect();
    config.seed += 1;
    let other = rehearsed(&config);
    let mut drawn: Vec<&Visit> = other.visits.iter().filter(|visit| visit.is_drawn).collect();
    drawn.sort_by_key(|visit| visit.entered_ms);
    assert_ne!(
        order,
        drawn
            .iter()
            .map(|visit| visit.admitted_with)
            .collect::<Vec<_>>()
    );
}

#[test]
fn each_lane_is_summed_up() {
    let mut config = small_poc();
    let lane = |name: &str, boost_ms| nowserving_line::LaneSettings {
        boost_ms,
        ..nowserving_line::LaneSettings::new(nowserving_line::LaneName::try_from(name).unwrap())
    };
    config.settings.lanes = vec![lane("normal", 0), lane("vip", 60_000), lane("none", 0)];
    config.crowd.lane_mix = vec![4.0, 1.0, 0.0];
    config.compare_naive = true;
    let report = crate::run(&config, |_| {}).unwrap();
    for summary in [&report.real.summary, &report.naive.unwrap().summary] {
        let lanes = &summary.lanes;
        let names: Vec<&str> = lanes.iter().map(|lane| lane.lane.as_str()).collect();
        assert_eq!(names, ["normal", "vip", "none"]);
        let completed: u64 = lanes.iter().map(|lane| lane.completed).sum();
        assert_eq!(completed, summary.completed);
        assert!((100..300).contains(&lanes[1].completed), "{lanes:?}");
        assert_eq!((lanes[2].completed, lanes[2].wait_p50_ms), (0, None));
    }
    let lanes = &report.real.summary.lanes;
    assert!(lanes[1].wait_p99_ms < lanes[0].wait_p50_ms, "{lanes:?}");
}

#[test]
fn checkouts_queue_for_their_transactions_and_hold_their_seats() {
    let mut config = small_poc();
    config.crowd.shoppers = 300;
    config.crowd.give_up_percent = 0.0;
    config.settings.checkout_timeout_ms = 2_000;
    config.transaction_rate = Some(2.0);
    config.compare_naive = true;
    let report = crate::run(&config, |_| {}).unwrap();
    let naive = report.naive.as_ref().unwrap();
    assert_eq!(naive.summary.transaction_wait_p50_ms, None);
    let summary = &report.real.summary;
    assert!(summary.is_sound());
    assert_eq!(summary.completed, 300, "they renew while they queue");
    assert!((149_000..160_000).contains(&summary.virtual_ms));
    assert!(summary.seat_busy_percent >= Some(90.0));
    assert!((40..=50).contains(&summary.transactions_queued_max));
    assert!(summary.transaction_wait_p50_ms >= Some(15_000));
    let queued = report.real.rows.iter().map(|row| row.transacting).max();
    assert!(queued >= Some(40) && queued <= Some(50), "{queued:?}");
    let findings = report.findings();
    let caution = findings.iter().find(|f| f.text.contains("transactions"));
    assert!(caution.is_some(), "{findings:?}");
    config.transaction_rate = Some(1_000.0);
    let fast = rehearsed(&config).summary;
    assert!(fast.transaction_wait_p99_ms < Some(10));
    config.transaction_rate = None;
    assert_eq!(rehearsed(&config).summary.transaction_wait_p50_ms, None);
}

#[test]
fn a_schedule_opens_the_line_and_changes_its_seats_at_its_times() {
    const NOON_MS: u64 = 1_795_320_000_000;
    let mut config = small_poc();
    config.settings.phase = Phase::PreOpen;
    config.starts_at_ms = NOON_MS - 60_000;
    let change = |at_ms, set| ScheduledChange { at_ms, set };
    let seats = |seats| SettingsPatch {
        seats: Some(Change::Set(seats)),
        ..SettingsPatch::default()
    };
    let open = SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    };
    config.settings.schedule = vec![
        change(NOON_MS, open),
        change(NOON_MS + 10_000, seats(80)),
        change(NOON_MS + 20_000, seats(20)),
    ];
    config.compare_naive = true;
    let report = crate::run(&config, |_| {}).unwrap();
    let run = &report.real;
    let times = admissions(run);
    assert_eq!(times[..50], [60_000; 50]);
    let summary = &run.summary;
    assert!(summary.is_sound());
    assert_eq!(summary.seats_held_max, 80);
    assert!(summary.seat_held_percent >= Some(99.0));
    let seats_at = |at_ms| {
        run.rows
            .iter()
            .find(|row| row.at_ms >= at_ms)
            .unwrap()
            .seats
    };
    assert_eq!([0, 70_300, 80_300].map(seats_at), [50, 80, 20]);
    assert_eq!((summary.still_live, summary.turned_away), (0, 0));
    let never_open = report
        .findings()
        .iter()
        .any(|f| f.text.contains("never open"));
    assert!(!never_open && report.naive.unwrap().summary.seat_held_percent.is_some());
}

/// The small test with a dispatcher. All watch: polls would add their own delays.
fn called(calls: Calls) -> Config {
    let mut config = small_poc();
    config.crowd.watch_percent = 100.0;
    config.crowd.give_up_percent = 0.0;
    config.settings.admission = Admission::Called;
    config.calls = Some(calls);
    config
}

#[test]
fn a_dispatcher_calls_the_next_one_for_each_free_seat() {
    let auto = {
        let mut config = called(Calls::PerSeat { after_ms: 0 });
        config.settings.admission = Admission::Auto;
        config.calls = None;
        rehearsed(&config).summary
    };
    let mut last_ms = auto.virtual_ms;
    for after_ms in [0, 1_000, 5_000] {
        let mut config = called(Calls::PerSeat { after_ms });
        config.compare_naive = true;
        let report = crate::run(&config, |_| {}).unwrap();
        let summary = &report.real.summary;
        assert!(summary.is_sound(), "{summary:?}");
        assert_eq!((summary.completed, summary.called), (1_000, 1_000));
        assert_eq!(summary.calls, 1_000, "none in vain");
        assert_eq!(summary.eta_told, 0);
        // Seats stand empty until the call.
        assert!(summary.virtual_ms > last_ms + 10 * after_ms);
        last_ms = summary.virtual_ms;
        // Nobody gets a seat sooner than the dispatcher can know of it.
        let waits = report.real.visits.iter().filter_map(Visit::wait_ms);
        assert_eq!(waits.min(), Some(after_ms + 40));
        let findings = report.findings();
        let about = |words: &str| findings.iter().any(|f| f.text.contains(words));
        assert!(about("no forecasts") && about("the dispatcher let nobody in"));
        assert_eq!(report.naive.unwrap().summary.calls, 0);
    }
}

#[test]
fn a_dispatcher_calls_in_rounds() {
    let config = called(Calls::Rounds {
        every_ms: 2_000,
        n: 20,
    });
    let run = rehearsed(&config);
    let times = admissions(&run);
    assert!(times.iter().all(|at_ms| at_ms % 2_000 == 40));
    for round in times.chunk_by(|a, b| a == b) {
        assert!(round.len() <= 20, "{round:?}");
    }
    let summary = &run.summary;
    assert!(summary.is_sound() && summary.completed == 1_000);
    assert!(summary.seats_held_max > 20 && summary.calls >= 50);
}

#[test]
fn calls_wait_for_the_phase_the_rate_and_the_quota() {
    let mut config = called(Calls::PerSeat { after_ms: 0 });
    config.settings.phase = Phase::PreOpen;
    config.open_at_ms = Some(30_000);
    config.settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 10_000_000,
        burst: 10,
    });
    config.settings.quota = Some(Quota {
        total: 400,
        standby_percent: 1_000,
        renew: None,
        per_visit: 1,
    });
    let run = rehearsed(&config);
    let summary = &run.summary;
    assert!(admissions(&run)[0] >= 30_000);
    assert!(
        summary.is_sound() && summary.completed == 400,
        "{summary:?}"
    );
    // One in vain a second, and as many as are on their way then.
    assert!(summary.calls < 400 + 200 * 10, "{}", summary.calls);
}

/// As an article of which each visitor buys up to four is sold: all of it, and nothing twice.
#[test]
fn baskets_use_up_the_units_and_no_more() {
    let mut config = Config::poc();
    config.settings.seats = 50;
    config.settings.quota = Some(Quota {
        total: 1_001,
        standby_percent: 1_000,
        renew: None,
        per_visit: 4,
    });
    config.crowd.basket_max = 4;
    let summary = rehearsed(&config).summary;
    assert!(
        summary.is_sound() && summary.units_used == 1_001,
        "{summary:?}"
    );
    // Two and a half each, less the last ones who got what was left.
    assert!((380..440).contains(&summary.completed), "{summary:?}");
    assert!(summary.gone["sold_out"] > 0, "{summary:?}");
    // Who wants one, of seats that reserve four, leaves three to others.
    config.crowd.basket_max = 1;
    let summary = rehearsed(&config).summary;
    assert_eq!((summary.units_used, summary.completed), (1_001, 1_001));
}

#[test]
fn a_schedule_can_begin_to_call() {
    const NOON_MS: u64 = 1_795_320_000_000;
    let mut config = called(Calls::PerSeat { after_ms: 2_000 });
    config.settings.admission = Admission::Auto;
    config.starts_at_ms = NOON_MS;
    let set = SettingsPatch {
        admission: Some(Change::Set(Admission::Called)),
        ..SettingsPatch::default()
    };
    let at_ms = NOON_MS + 20_000;
    config.settings.schedule = vec![ScheduledChange { at_ms, set }];
    let run = rehearsed(&config);
    let summary = &run.summary;
    assert!(summary.is_sound() && summary.completed == 1_000);
    let before = admissions(&run)
        .iter()
        .filter(|at_ms| **at_ms < 20_000)
        .count();
    assert!(before > 50, "{before}");
    assert_eq!(summary.called, 1_000 - before as u64);
}

#[test]
fn a_change_of_the_schedule_that_fails_is_reported() {
    const NOON_MS: u64 = 1_795_320_000_000;
    let mut config = small_poc();
    config.starts_at_ms = NOON_MS;
    let other = SettingsPatch {
        lanes: Some(Change::Set(vec![LaneSettings::new(
            "other".try_into().unwrap(),
        )])),
        ..SettingsPatch::default()
    };
    let seats = SettingsPatch {
        seats: Some(Change::Set(90)),
        ..SettingsPatch::default()
    };
    config.settings.schedule = vec![
        ScheduledChange {
            at_ms: NOON_MS + 5_000,
            set: other,
        },
        ScheduledChange {
            at_ms: NOON_MS + 6_000,
            set: seats,
        },
    ];
    let report = crate::run(&config, |_| {}).unwrap();
    let failed = &report.real.summary.schedule_failed;
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].at, "2026-11-22T04:00:05Z");
    assert!(failed[0].error.starts_with("lanes"), "{failed:?}");
    let said = report.findings();
    let said = said.iter().filter(|f| f.text.contains(&failed[0].error));
    assert_eq!(said.count(), 1);
}

#[test]
fn changes_that_are_due_together_are_no_contradiction() {
    const NOON_MS: u64 = 1_795_320_000_000;
    let mut config = called(Calls::PerSeat { after_ms: 2_000 });
    config.settings.phase = Phase::PreOpen;
    config.starts_at_ms = NOON_MS - 20_000;
    let change = |admission, seats| {
        let set = SettingsPatch {
            admission: Some(Change::Set(admission)),
            seats: Some(Change::Set(seats)),
            phase: Some(Change::Set(Phase::Open)),
            ..SettingsPatch::default()
        };
        let at_ms = NOON_MS;
        ScheduledChange { at_ms, set }
    };
    config.settings.schedule = vec![change(Admission::Auto, 80), change(Admission::Called, 20)];
    let run = rehearsed(&config);
    let summary = &run.summary;
    assert!(summary.is_sound(), "{summary:?}");
    assert_eq!(
        (summary.seats_held_max, summary.called),
        (80, 1_000 - 80),
        "admitted between the changes"
    );
    let later = run.rows.iter().find(|row| row.at_ms > 20_000).unwrap();
    assert_eq!(later.seats, 20);
}

#[test]
fn who_is_not_served_is_counted_by_stage_and_by_code() {
    let mut config = small_poc();
    config.settings.queue_limit = 300;
    config.crowd.give_up_percent = 2.0;
    config.crowd.vanish_percent = 50.0;
    config.crowd.no_show_percent = 10.0;
    config.crowd.abandon_percent = 10.0;
    let report = crate::run(&config, |_| {}).unwrap();
    let summary = &report.real.summary;
    let at = |reason: &str| summary.gone_from[reason];
    assert_eq!(at("left").waiting, summary.gone["left"]);
    assert_eq!(at("idle").waiting, summary.gone["idle"]);
    assert_eq!(at("no_show").admitted, summary.gone["no_show"]);
    assert_eq!(
        at("checkout_expired").seated(),
        at("checkout_expired").in_checkout
    );
    assert_eq!(summary.refused.len(), 1);
    assert_eq!(summary.refused["line_full"], summary.turned_away);
    let last = report.real.rows.last().unwrap();
    assert_eq!(last.gone.sum(), summary.gone.values().sum::<u64>());
    assert_eq!(last.gone.waiting, at("left").waiting + at("idle").waiting);
    let rows = report.rows();
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap()[1].clone();
    let refused = format!("{0}: line_full {0}", summary.turned_away);
    assert_eq!(row("turned away without a number"), refused);
    assert!(row("gone before checkout").contains("no_show"));
    assert!(row("gone from checkout").contains("checkout_expired"));
}
