//! The reasons that hold a line back, one by one.

use crate::common::Shard;
use nowserving_line::{
    AdmissionRate, Change, HeldBackBy, Limits, Phase, Quota, Settings, SettingsPatch,
};

fn held_back(shard: &Shard) -> HeldBackBy {
    shard.line().held_back_by(shard.now_ms)
}

#[test]
fn of_several_brakes_it_is_the_one_to_take_away_first() {
    let settings = Settings {
        admission_rate: Some(AdmissionRate {
            per_second_micro: 1_000_000,
            burst: 1,
        }),
        quota: Some(Quota {
            total: 1,
            standby_percent: 900,
            renew: None,
            per_visit: 1,
        }),
        ..Settings::new(1, 100)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    shard.enter().unwrap();
    shard.set(SettingsPatch {
        phase: Some(Change::Set(Phase::Paused)),
        ..SettingsPatch::default()
    });
    assert_eq!(held_back(&shard), HeldBackBy::Nothing, "nobody waits");
    for _ in 0..5 {
        shard.enter().unwrap();
    }
    shard.now_ms += 400;

    // All four at once: each shows once those before it are taken away.
    assert_eq!(held_back(&shard), HeldBackBy::Phase(Phase::Paused));
    shard.set(SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    });
    assert_eq!(held_back(&shard), HeldBackBy::Quota);
    shard.set(SettingsPatch {
        quota: Some(Change::Unset),
        ..SettingsPatch::default()
    });
    assert_eq!(held_back(&shard), HeldBackBy::Seats);
    shard.set(SettingsPatch {
        seats: Some(Change::Set(3)),
        ..SettingsPatch::default()
    });
    let next_at_ms = shard.now_ms + 600;
    assert_eq!(held_back(&shard), HeldBackBy::AdmissionRate { next_at_ms });
    shard.now_ms = next_at_ms - 1;
    assert_eq!(held_back(&shard), HeldBackBy::AdmissionRate { next_at_ms });
    // Then it is the leader's turn to propose that time has come.
    shard.now_ms = next_at_ms;
    assert_eq!(held_back(&shard), HeldBackBy::Admitting);
    assert_eq!(shard.finish_jobs(), 1);
    let next_at_ms = shard.now_ms + 1_000;
    assert_eq!(held_back(&shard), HeldBackBy::AdmissionRate { next_at_ms });
    shard.set(SettingsPatch {
        admission_rate: Some(Change::Unset),
        ..SettingsPatch::default()
    });
    assert_eq!(held_back(&shard), HeldBackBy::Seats, "one more was let in");
}

#[test]
fn the_status_of_a_waiting_token_says_what_holds_the_line_back() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 100));
    let admitted = shard.enter().unwrap();
    let waiting = shard.enter().unwrap();
    let told = |shard: &Shard, at| {
        let status = shard.line().status(at, shard.now_ms).unwrap();
        (status.phase, status.held_back_by)
    };
    assert_eq!(told(&shard, admitted.at), (None, None));
    let seats = (Some(Phase::Open), Some(HeldBackBy::Seats));
    assert_eq!(told(&shard, waiting.at), seats);
    shard.set(SettingsPatch {
        phase: Some(Change::Set(Phase::Paused)),
        ..SettingsPatch::default()
    });
    let paused = Phase::Paused;
    let by_phase = (Some(paused), Some(HeldBackBy::Phase(paused)));
    assert_eq!(told(&shard, waiting.at), by_phase);
    assert_eq!(Some(held_back(&shard)), by_phase.1);
}

#[test]
fn a_job_under_way_holds_nobody_back() {
    let limits = Limits {
        work_max: 2,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 100));
    for _ in 0..9 {
        shard.enter().unwrap();
    }
    shard.set(SettingsPatch {
        seats: Some(Change::Set(100)),
        ..SettingsPatch::default()
    });
    assert_eq!(held_back(&shard), HeldBackBy::Admitting);
    assert!(shard.finish_jobs() > 0);
    assert_eq!(held_back(&shard), HeldBackBy::Nothing);
}
