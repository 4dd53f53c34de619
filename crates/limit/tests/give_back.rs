//! Hits that are given back, against naive models that never had them: no more passes than would have without them, and if no
//! time passes, no less.
#![allow(clippy::unwrap_used)]

#[path = "algorithms/naive.rs"]
mod naive;
#[path = "algorithms/story.rs"]
mod story;

use naive::{Naive, NaiveFixedWindow, NaiveLog, NaiveQueue, NaiveSlidingCounter, NaiveTokens};
use nowserving_limit::{
    Algorithm, Counted, Counter, HELD_KEY_BYTES_MAX, HELD_MAX, Held, Limit, Now, Unit, key,
};
use proptest::prelude::*;
use story::{Story, at, story};

fn naive_of(algorithm: Algorithm) -> Box<dyn Naive> {
    match algorithm {
        Algorithm::FixedWindow => Box::<NaiveFixedWindow>::default(),
        Algorithm::SlidingWindowLog => Box::<NaiveLog>::default(),
        Algorithm::SlidingWindowCounter => Box::<NaiveSlidingCounter>::default(),
        Algorithm::TokenBucket => Box::<NaiveTokens>::default(),
        Algorithm::LeakingBucket => Box::<NaiveQueue>::default(),
    }
}

fn now(now_us: u64) -> Now {
    Now {
        service_us: now_us,
        wall_us: now_us,
    }
}

fn counted(limit: &Limit, hits: u64, mark: nowserving_limit::Drain) -> Counted {
    let entries = [("ip", "a")].into_iter();
    let key = key::encode(limit.algorithm(), limit.unit(), "shop", entries);
    Counted {
        key: key.unwrap().into(),
        limit: limit.clone(),
        hits,
        mark,
    }
}

/// What happens to the hits of a step: they are given back before a later step, at the end, or never.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Stay,
    Back { before: usize },
}

/// One counter, and those of its hits that may be given back.
struct Giving {
    counter: Counter,
    held: Held,
}

impl Giving {
    fn give_back(&mut self, name: usize, now_us: u64) -> bool {
        let back = self.held.take(name as u128, now(now_us));
        for it in back.iter().flatten() {
            let at_us = now_us;
            self.counter.give_back(&it.limit, at_us, it.hits, &it.mark);
        }
        back.is_some()
    }
}

/// Whether the answers at the end were the same as without the hits that were given back.
fn run(story: &Story, fates: &[Fate]) -> Result<bool, TestCaseError> {
    let limit = &story.limit;
    let mut naive = naive_of(limit.algorithm());
    let mut giving = Giving {
        counter: Counter::fresh(limit.algorithm()),
        held: Held::default(),
    };
    let mut now_us = story.start_us;
    for (nth, step) in story.steps.iter().enumerate() {
        now_us += step.after_us;
        let moment = at(limit, now_us);
        for (earlier, fate) in fates.iter().enumerate().take(nth) {
            if *fate == (Fate::Back { before: nth }) {
                giving.give_back(earlier, now_us);
                let again = giving.give_back(earlier, now_us);
                prop_assert!(!again, "given back twice");
            }
        }
        let expected = naive.check(limit, &moment, step.hits, true);
        let counter = &mut giving.counter;
        let answer = match step.dry_run {
            true => counter.peek(limit, &moment, step.hits),
            false => counter.take(limit, &moment, step.hits),
        };
        prop_assert!(expected.allowed || !answer.allowed, "{step:?} at {now_us}");
        if answer.allowed == expected.allowed {
            prop_assert!(
                answer.remaining <= expected.remaining,
                "{step:?} at {now_us}"
            );
        }
        match fates.get(nth) {
            _ if step.dry_run => {}
            Some(Fate::Back { .. }) if answer.allowed => {
                let counted = counted(limit, step.hits, giving.counter.mark());
                giving.held.hold(nth as u128, vec![counted]);
            }
            _ if answer.allowed => {
                naive.check(limit, &moment, step.hits, false);
            }
            _ => {}
        }
    }
    for name in 0..story.steps.len() {
        giving.give_back(name, now_us);
    }
    let moment = at(limit, now_us);
    let expected = naive.check(limit, &moment, 0, true);
    let answer = giving.counter.take(limit, &moment, 0);
    Ok((answer.remaining, answer.allowed) == (expected.remaining, expected.allowed))
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        2 => Just(Fate::Stay),
        3 => (0_usize..50).prop_map(|before| Fate::Back { before }),
    ];
    prop::collection::vec(fate, 40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_more_passes_than_without_them(
        (story, fates) in prop::sample::select(Algorithm::ALL.to_vec())
            .prop_flat_map(|algorithm| (story(algorithm, 10_000), fates()))
    ) {
        // The naive queue has a place for each hit.
        prop_assume!(story.limit.capacity() <= 10_000);
        run(&story, &fates)?;
    }

    #[test]
    fn at_once_all_of_them_is_given_back(
        (mut story, fates) in prop::sample::select(Algorithm::ALL.to_vec())
            .prop_flat_map(|algorithm| (story(algorithm, 10_000), fates()))
    ) {
        prop_assume!(story.limit.capacity() <= 10_000);
        for step in &mut story.steps {
            step.after_us = 0;
        }
        prop_assert!(run(&story, &fates)?, "{:?}", story.limit);
    }
}

fn fixed_window(counter: &mut Counter, limit: &Limit, now_us: u64, hits: u64) -> u32 {
    counter.take(limit, &at(limit, now_us), hits).remaining
}

#[test]
fn hits_of_a_window_that_has_ended_are_not_given_back() {
    let limit = Limit::fixed_window(5, Unit::Second);
    let mut counter = Counter::fresh(limit.algorithm());
    fixed_window(&mut counter, &limit, 7_900_000, 3);
    let mark = counter.mark();
    fixed_window(&mut counter, &limit, 8_000_000, 2);
    counter.give_back(&limit, 8_000_000, 3, &mark);
    assert_eq!(fixed_window(&mut counter, &limit, 8_000_000, 0), 3);
}

/// Hits that were counted after a reset are of others.
#[test]
fn what_was_reset_is_not_given_back() {
    let limit = Limit::fixed_window(5, Unit::Second);
    let mut counter = Counter::fresh(limit.algorithm());
    fixed_window(&mut counter, &limit, 7_000_000, 3);
    let mut held = Held::default();
    let back = counted(&limit, 3, counter.mark());
    held.hold(1, vec![back.clone()]);
    held.forget(&back.key);
    let left = held.take(1, now(7_000_000)).unwrap();
    assert_eq!(left[0].hits, 0);
}

#[test]
fn the_newest_are_remembered() {
    let limit = Limit::fixed_window(5, Unit::Second);
    let one = |bytes: usize| {
        let of = counted(&limit, 1, nowserving_limit::Drain::default());
        vec![Counted {
            key: vec![0; bytes].into(),
            ..of
        }]
    };
    let known = |held: &mut Held, names: u128| {
        let names = 0..names;
        names
            .filter(|name| held.take(*name, now(0)).is_some())
            .count()
    };
    let mut held = Held::default();
    for name in 0..HELD_MAX as u128 + 10 {
        held.hold(name, one(1));
    }
    assert_eq!(known(&mut held, 10), 0);
    assert_eq!(known(&mut held, HELD_MAX as u128 + 10), HELD_MAX);
    let large = HELD_KEY_BYTES_MAX / 4;
    for name in 0..9 {
        held.hold(name, one(large));
    }
    held.keep(8);
    assert_eq!(known(&mut held, 5), 0);
    assert_eq!(known(&mut held, 9), 3);
}
