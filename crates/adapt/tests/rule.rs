//! What counts for a step, with few handlers whose times are chosen.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nowserving_adapt::{AutoSeats, LineNow, Outcome, Rule, Target};

const TARGET: Duration = Duration::from_millis(400);

fn rule(target: Target) -> Rule {
    Rule::new(AutoSeats::new(1, 200, target).unwrap(), 0.95)
}

/// Twenty handlers at once, which all had to wait and end alike. The seats of 100 that follow.
fn seats_after(target: Target, took: Duration, outcome: Outcome, held: u64) -> u32 {
    let mut rule = rule(target);
    let began: Vec<_> = (0..20).map(|_| rule.began(Duration::ZERO, true)).collect();
    rule.load(0.1);
    for began in began {
        rule.ended(began, took, outcome);
    }
    let now = took + TARGET * 10;
    rule.step(now, LineNow { seats: 100, held })
}

#[test]
fn slow_failures_are_slow_and_quick_ones_are_not_fast() {
    let latency = Target::Latency(TARGET);
    for outcome in [Outcome::Failed, Outcome::BrokenOff] {
        assert!(seats_after(latency, TARGET * 5, outcome, 100) < 100);
        assert_eq!(seats_after(latency, TARGET / 5, outcome, 100), 100);
        assert_eq!(
            seats_after(Target::Load(0.2), TARGET * 5, Outcome::Failed, 100),
            100
        );
    }
    assert!(seats_after(latency, TARGET / 5, Outcome::Done, 100) > 100);
    assert!(seats_after(Target::Load(0.2), TARGET * 5, Outcome::Done, 100) > 100);
}

#[test]
fn seats_that_are_hardly_used_fall_but_do_not_grow() {
    let latency = Target::Latency(TARGET);
    assert!(seats_after(latency, TARGET * 5, Outcome::Done, 20) < 100);
    assert_eq!(seats_after(latency, TARGET / 5, Outcome::Done, 20), 100);
}

#[test]
fn a_load_does_not_wait_for_handlers_to_end() {
    let mut rule = rule(Target::Load(0.5));
    let running: Vec<_> = (0..100).map(|_| rule.began(Duration::ZERO, true)).collect();
    let second = Duration::from_secs(1);
    // Nothing is reported, so nothing is used up.
    assert!(!rule.is_due(second));
    rule.load(1.0);
    assert!(rule.is_due(second));
    let line = LineNow {
        seats: 100,
        held: 100,
    };
    assert_eq!(rule.step(second, line), 88);
    assert_eq!(running.len(), 100);
}

#[test]
fn few_handlers_are_enough_after_ten_times_the_target() {
    let mut rule = rule(Target::Latency(TARGET));
    let began = rule.began(Duration::ZERO, true);
    rule.ended(began, TARGET * 3, Outcome::Done);
    assert!(!rule.is_due(TARGET * 10 - Duration::from_millis(1)));
    assert!(rule.is_due(TARGET * 10));
}
