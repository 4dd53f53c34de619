//! Each algorithm against a naive model, with 10,000 random stories each.
//!
//! Besides allowed, remaining, reset and delay, each step checks that a refused request is allowed after
//! `retry_after_us` and not a µs earlier, that a request without effect has none, and that a counter that says it is
//! idle answers as a fresh one.

pub mod naive;
pub mod story;

use naive::{Naive, NaiveFixedWindow, NaiveLog, NaiveQueue, NaiveSlidingCounter, NaiveTokens};
use nowserving_limit::{Algorithm, BUCKET_PAUSE_US, Counter, Limit, LimitParts, Moment, Unit};
use proptest::prelude::*;
use story::{Story, at, story};

const CASES: u32 = 10_000;

fn run(story: &Story, naive: &mut dyn Naive) -> Result<(), TestCaseError> {
    let limit = &story.limit;
    let mut counter = Counter::fresh(limit.algorithm());
    let mut now_us = story.start_us;
    for step in &story.steps {
        now_us += step.after_us;
        let moment = at(limit, now_us);
        let before = counter.clone();
        let answer = match step.dry_run {
            true => counter.peek(limit, &moment, step.hits),
            false => counter.take(limit, &moment, step.hits),
        };
        let expected = naive.check(limit, &moment, step.hits, step.dry_run);
        prop_assert_eq!(answer.limit, limit.requests_per_unit());
        prop_assert_eq!(answer.allowed, expected.allowed, "{:?} at {}", step, now_us);
        prop_assert_eq!(
            answer.remaining,
            expected.remaining,
            "{:?} at {}",
            step,
            now_us
        );
        prop_assert_eq!(
            answer.reset_us,
            expected.reset_us,
            "{:?} at {}",
            step,
            now_us
        );
        prop_assert_eq!(
            answer.delay_us,
            expected.delay_us,
            "{:?} at {}",
            step,
            now_us
        );
        if !answer.allowed {
            retries(limit, &counter, now_us, step.hits, answer.retry_after_us)?;
        } else {
            prop_assert_eq!(answer.retry_after_us, None);
        }
        if step.dry_run || !answer.allowed || step.hits == 0 {
            same_answers(limit, &mut before.clone(), &mut counter.clone(), &moment)?;
        }
        idle(limit, &counter, now_us)?;
    }
    Ok(())
}

/// The request is allowed after that time, and not a µs before.
fn retries(
    limit: &Limit,
    counter: &Counter,
    now_us: u64,
    hits: u64,
    after_us: Option<u64>,
) -> Result<(), TestCaseError> {
    let Some(after_us) = after_us else {
        prop_assert!(hits > u64::from(limit.capacity()));
        return Ok(());
    };
    prop_assert!(after_us > 0);
    let peek = |us| counter.clone().peek(limit, &at(limit, us), hits);
    prop_assert!(
        !peek(now_us + after_us - 1).allowed,
        "earlier than in {after_us} µs"
    );
    prop_assert!(peek(now_us + after_us).allowed, "not in {after_us} µs");
    Ok(())
}

fn same_answers(
    limit: &Limit,
    one: &mut Counter,
    other: &mut Counter,
    at: &Moment,
) -> Result<(), TestCaseError> {
    for hits in [0, 1, u64::from(limit.capacity())] {
        prop_assert_eq!(one.peek(limit, at, hits), other.peek(limit, at, hits));
    }
    Ok(())
}

fn idle(limit: &Limit, counter: &Counter, now_us: u64) -> Result<(), TestCaseError> {
    let idle_at_us = counter.idle_at_us().max(now_us);
    let mut fresh = Counter::fresh(limit.algorithm());
    let mut idle = counter.clone();
    same_answers(limit, &mut fresh, &mut idle, &at(limit, idle_at_us))?;
    if idle_at_us > now_us {
        let before = at(limit, idle_at_us - 1);
        let answer = counter.clone().peek(limit, &before, 0);
        prop_assert!(answer.reset_us > 0, "it is idle before {idle_at_us}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn token_bucket(story in story(Algorithm::TokenBucket, u32::MAX)) {
        run(&story, &mut NaiveTokens::default())?;
    }

    #[test]
    fn leaking_bucket(story in story(Algorithm::LeakingBucket, 50)) {
        run(&story, &mut NaiveQueue::default())?;
    }

    #[test]
    fn fixed_window(story in story(Algorithm::FixedWindow, u32::MAX)) {
        run(&story, &mut NaiveFixedWindow::default())?;
    }

    #[test]
    fn sliding_window_log(story in story(Algorithm::SlidingWindowLog, 10_000)) {
        run(&story, &mut NaiveLog::default())?;
    }

    #[test]
    fn sliding_window_counter(story in story(Algorithm::SlidingWindowCounter, u32::MAX)) {
        run(&story, &mut NaiveSlidingCounter::default())?;
    }
}

/// What holds whatever the clock does.
fn run_any_clock(limit: &Limit, times: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let mut counter = Counter::fresh(limit.algorithm());
    let mut latest_us = 0;
    for (now_us, hits) in times {
        let answer = counter.take(limit, &at(limit, *now_us), *hits);
        prop_assert!(answer.remaining <= limit.capacity());
        prop_assert!(!answer.allowed || *hits <= u64::from(limit.capacity()));
        latest_us = latest_us.max(*now_us);
    }
    // However far it leapt: when time has passed it is as good as new.
    if latest_us < 1 << 62 {
        let idle_at_us = counter.idle_at_us().max(latest_us);
        let answer = counter.peek(limit, &at(limit, idle_at_us), u64::from(limit.capacity()));
        prop_assert!(answer.allowed);
    }
    Ok(())
}

/// How many hits may pass from one time to another, whenever they come.
fn most(limit: &Limit, from_us: u64, to_us: u64) -> u64 {
    let (period_us, requests) = (limit.period_us(), u64::from(limit.requests_per_unit()));
    let capacity = u64::from(limit.capacity());
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakingBucket => {
            capacity + (to_us - from_us) * requests / period_us
        }
        Algorithm::SlidingWindowLog => capacity * ((to_us - from_us) / period_us + 1),
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => {
            capacity * (to_us / period_us - from_us / period_us + 1)
        }
    }
}

/// Requests one after the other by a clock that goes on, but is behind each other time.
fn run_slipping(limit: &Limit, steps_us: &[u64], slip_us: u64) -> Result<(), TestCaseError> {
    let mut counter = Counter::fresh(limit.algorithm());
    let from_us = 1 << 50;
    let (mut now_us, mut passed) = (from_us, 0);
    for (nth, step_us) in steps_us.iter().enumerate() {
        now_us += step_us;
        let seen_us = if nth % 2 == 1 {
            now_us - slip_us
        } else {
            now_us
        };
        let answer = counter.take(limit, &at(limit, seen_us), 1);
        passed += u64::from(answer.allowed);
    }
    let most = most(limit, from_us - slip_us, now_us);
    prop_assert!(passed <= most, "{} of {} passed", passed, most);
    Ok(())
}

/// A limit of seconds or minutes, and steps of which several fit the time of one hit.
fn crowded() -> impl Strategy<Value = (Limit, Vec<u64>)> {
    let limit = (
        prop::sample::select(Algorithm::ALL.to_vec()),
        prop::sample::select(vec![Unit::Second, Unit::Minute]),
        1_u32..10,
    );
    limit.prop_flat_map(|(algorithm, unit, requests_per_unit)| {
        let parts = LimitParts {
            algorithm,
            ..Limit::fixed_window(requests_per_unit, unit).parts().clone()
        };
        let limit = Limit::new(parts).unwrap();
        let step_us = limit.period_us() / u64::from(requests_per_unit) / 2;
        let steps_us = prop::collection::vec(0..=step_us, 1..300);
        steps_us.prop_map(move |steps_us| (limit.clone(), steps_us))
    })
}

proptest! {
    #[test]
    fn any_clock_is_harmless(
        story in prop::sample::select(Algorithm::ALL.to_vec()).prop_flat_map(|algorithm| story(algorithm, u32::MAX)),
        times in prop::collection::vec((prop_oneof![any::<u64>(), 0_u64..1 << 52, Just(u64::MAX)], any::<u64>()), 1..30),
    ) {
        run_any_clock(&story.limit, &times)?;
    }

    /// However often a clock goes back by up to 10 s, no more passes than by one that goes on.
    #[test]
    fn a_clock_that_slips_gains_nothing((limit, steps_us) in crowded(), slip_us in 0_u64..=10_000_000) {
        run_slipping(&limit, &steps_us, slip_us)?;
    }
}

/// How many hits of a crowd pass a bucket whose requests come so far apart, by a clock in steps of so many µs.
fn passed_of_a_crowd(limit: &Limit, pauses_us: impl Iterator<Item = u64>, step_us: u64) -> u64 {
    let mut counter = Counter::fresh(limit.algorithm());
    let (mut now_us, mut passed) = (1 << 50, 0);
    for pause_us in pauses_us {
        now_us += pause_us;
        let moment = at(limit, now_us / step_us * step_us);
        while counter.take(limit, &moment, 1).allowed {
            passed += 1;
        }
    }
    passed
}

fn bucket(requests_per_unit: u32, burst: u32) -> Limit {
    let parts = LimitParts {
        algorithm: Algorithm::TokenBucket,
        burst: Some(burst),
        ..Limit::fixed_window(requests_per_unit, Unit::Second)
            .parts()
            .clone()
    };
    Limit::new(parts).unwrap()
}

proptest! {
    /// The burst that a rule's note names is enough, whenever the requests come within the pause that it is made for.
    #[test]
    fn the_whole_rate_passes_a_bucket_of_the_noted_burst(
        requests_per_unit in 26_u32..20_000,
        pauses_us in prop::collection::vec(1..=BUCKET_PAUSE_US, 1..500),
    ) {
        let limit = bucket(requests_per_unit, 1);
        let whole = limit.burst_for_whole_rate().unwrap();
        let limit = bucket(requests_per_unit, whole);
        prop_assert_eq!(limit.burst_for_whole_rate(), None);
        let elapsed_us: u64 = pauses_us.iter().skip(1).sum();
        let passed = passed_of_a_crowd(&limit, pauses_us.into_iter(), 1);
        let rate = u64::from(requests_per_unit) * elapsed_us / 1_000_000;
        prop_assert_eq!(passed, u64::from(whole) + rate);
    }
}

/// Half a hit is in the bucket when the pause begins, and would not fit one that is smaller by one.
#[test]
fn the_noted_burst_is_the_least_that_is_enough() {
    let whole = bucket(2_000, 1).burst_for_whole_rate().unwrap();
    assert_eq!(whole, 33);
    let pauses_us = || {
        let pauses_us = [250, BUCKET_PAUSE_US].into_iter().cycle();
        std::iter::once(0).chain(pauses_us.take(4_000))
    };
    let of = |burst| passed_of_a_crowd(&bucket(2_000, burst), pauses_us(), 1) - u64::from(burst);
    assert_eq!((of(whole), of(whole - 1)), (65_000, 64_000));
}

/// The clock's steps alone take half of 2,000 a second from a bucket of one.
#[test]
fn a_bucket_of_one_passes_one_hit_a_step_of_the_clock() {
    let second_us = || std::iter::repeat_n(100, 10_000);
    assert_eq!(
        passed_of_a_crowd(&bucket(2_000, 1), second_us(), 1_000),
        1_001
    );
    assert_eq!(
        passed_of_a_crowd(&bucket(2_000, 9), second_us(), 1_000),
        2_009
    );
}
