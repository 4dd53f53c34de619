//! The admission rate: never too fast over any stretch of time, and never slower than it may be.

use crate::common::{Restart, Shard};
use nowserving_line::{
    AdmissionRate, Change, Limits, Lines, Phase, Settings, SettingsPatch, State,
};
use proptest::prelude::*;

const UNIT: u128 = 1_000_000_000;

fn rate(per_second_micro: u64, burst: u32) -> AdmissionRate {
    AdmissionRate {
        per_second_micro,
        burst,
    }
}

fn set_rate(rate: AdmissionRate) -> SettingsPatch {
    SettingsPatch {
        admission_rate: Some(Change::Set(rate)),
        ..SettingsPatch::default()
    }
}

fn set_phase(phase: Phase) -> SettingsPatch {
    SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    }
}

fn paced(rate: AdmissionRate) -> Shard {
    let settings = Settings {
        admission_rate: Some(rate),
        ..Settings::new(100_000, 100_000)
    };
    Shard::with_shop(Limits::default(), settings)
}

/// Goes on to this time, as a leader does that proposes steps when they are due.
fn run_until(shard: &mut Shard, end_ms: u64) {
    while let Some(wake_ms) = shard.lines.next_background_ms().filter(|ms| *ms <= end_ms) {
        shard.now_ms = shard.now_ms.max(wake_ms);
        assert!(shard.finish_jobs() > 0, "a due line is listed");
    }
    shard.now_ms = end_ms;
    shard.move_clock();
}

#[test]
fn exactly_as_many_as_the_rate_gives() {
    let mut shard = paced(rate(7_300_000, 5));
    for n in 0..2_000 {
        let state = shard.enter().unwrap().state;
        let at_once = if n < 5 {
            State::Admitted
        } else {
            State::Waiting
        };
        assert_eq!(state, at_once, "a burst of 5, immediate ones, too");
    }
    let start_ms = shard.now_ms;
    for second in [1, 2, 10, 100] {
        run_until(&mut shard, start_ms + second * 1_000);
        let admitted = shard.line().counts().admitted;
        assert_eq!(admitted, 5 + second * 73 / 10);
    }
    assert_eq!(
        shard.lane().admitted_through,
        735,
        "nothing is promised ahead"
    );
    // Nobody is due over a restart, and then just in time.
    let wake_ms = shard.lines.next_background_ms();
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(shard.lines.next_background_ms(), wake_ms);
    assert_eq!(shard.lines.background_work(wake_ms.unwrap() - 1).count(), 0);
    assert_eq!(shard.lines.background_work(wake_ms.unwrap()).count(), 1);
}

#[test]
fn opening_admits_within_the_rate() {
    let mut shard = paced(rate(1_000_000, 10));
    shard.set(set_phase(Phase::PreOpen));
    for _ in 0..50 {
        assert_eq!(shard.enter().unwrap().state, State::Waiting);
    }
    assert_eq!(
        shard.lines.next_background_ms(),
        None,
        "the phase is not a matter of time"
    );
    shard.now_ms += 1_000_000;
    shard.set(set_phase(Phase::Open));
    assert_eq!(shard.line().counts().admitted, 10);
    assert_eq!(shard.lines.next_background_ms(), Some(shard.now_ms + 1_000));
}

#[test]
fn a_lane_without_room_to_wait_takes_newcomers_at_the_rate() {
    let mut shard = paced(rate(1_000_000, 1));
    let mut lanes = shard.line().settings().lanes.clone();
    lanes[0].queue_limit = Some(0);
    shard.set(SettingsPatch {
        lanes: Some(Change::Set(lanes)),
        ..SettingsPatch::default()
    });
    for _ in 0..3 {
        let refuses = |shard: &Shard| shard.line().would_refuse_enter(None, None, shard.now_ms);
        assert_eq!(refuses(&shard), None);
        assert_eq!(shard.enter().unwrap().state, State::Admitted);
        shard.now_ms += 999;
        assert!(refuses(&shard).is_some());
        assert!(shard.enter().is_err());
        shard.now_ms += 1;
    }
}

#[derive(Debug, Clone)]
enum Turn {
    Pass(u64),
    Rate(AdmissionRate),
    Phase(bool),
    Serve,
    Restart,
}

fn turn() -> impl Strategy<Value = Turn> {
    let rates = (1_000..20_000_000u64, 1..20u32);
    prop_oneof![
        12 => (0..700u64).prop_map(Turn::Pass),
        2 => rates.prop_map(|(micro, burst)| Turn::Rate(rate(micro, burst))),
        1 => any::<bool>().prop_map(Turn::Phase),
        3 => Just(Turn::Serve),
        1 => Just(Turn::Restart),
    ]
}

proptest! {
    #![proptest_config(crate::common::cases(500))]

    /// From any admission to any later one there are no more than the burst at the first, and what
    /// the rates since have given: also over changes of the rate, pauses and restarts.
    #[test]
    fn never_too_fast_over_any_stretch(turns in prop::collection::vec(turn(), 1..80)) {
        let first = rate(3_000_000, 4);
        let mut shard = paced(first);
        let mut now = first;
        for _ in 0..400 {
            shard.enter().unwrap();
        }
        // The burst then, and all that the rates had given until then.
        let mut admissions: Vec<(u128, u128)> = vec![(u128::from(now.burst), 0); 4];
        let mut given: u128 = 0;
        for turn in turns {
            match turn {
                Turn::Pass(ms) => {
                    shard.now_ms += ms;
                    given += u128::from(ms) * u128::from(now.per_second_micro);
                    shard.finish_jobs();
                }
                Turn::Rate(rate) => {
                    now = rate;
                    shard.set(set_rate(rate));
                }
                Turn::Phase(open) => shard.set(set_phase(if open { Phase::Open } else { Phase::Paused })),
                Turn::Serve => {
                    let mut live = shard.line().live_from((0, 0));
                    let held = live.find(|(_, _, live)| live.state() == State::Admitted);
                    let held = held.map(|(_, token, _)| token);
                    drop(live);
                    if let Some(token) = held {
                        shard.serve(token);
                    }
                }
                Turn::Restart => shard.lines = Lines::restore(shard.lines.dump()).unwrap(),
            }
            let counts = shard.line().counts();
            let total = counts.issued - counts.waiting;
            while (admissions.len() as u64) < total {
                admissions.push((now.burst.into(), given));
            }
            for (i, (burst, given_then)) in admissions.iter().enumerate() {
                let many = (admissions.len() - i) as u128 * UNIT;
                prop_assert!(many <= burst * UNIT + given - given_then, "since the {i}th");
            }
        }
    }
}
