//! Hits that are given back, against naive models that never had them: no more passes than would have without them, and if no
//! time passes, no less.

use std::collections::{BTreeMap, VecDeque};

use crate::algorithms::naive::{
    Naive, NaiveFixedWindow, NaiveLog, NaiveQueue, NaiveSlidingCounter, NaiveTokens,
};
use crate::algorithms::story::{Step, Story, at, story};
use nowserving_limit::{
    Algorithm, Counted, Counter, HELD_KEY_BYTES_MAX, HELD_MAX, Held, Limit, LimitParts, Now, Unit,
    key,
};
use proptest::prelude::*;

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

/// A command on its way through a log, and when it was proposed.
enum Entry {
    Hits { step: usize, at_us: u64 },
    Back { name: usize, at_us: u64 },
}

/// One counter behind a log, and those of its hits that may be given back.
struct Giving<'a> {
    story: &'a Story,
    fates: &'a [Fate],
    naive: Box<dyn Naive>,
    counter: Counter,
    held: Held,
    /// Not applied yet.
    log: VecDeque<Entry>,
    /// What the entries of the log give back.
    given: BTreeMap<usize, Vec<Counted>>,
}

impl<'a> Giving<'a> {
    fn new(story: &'a Story, fates: &'a [Fate]) -> Self {
        let algorithm = story.limit.algorithm();
        Giving {
            story,
            fates,
            naive: naive_of(algorithm),
            counter: Counter::fresh(algorithm),
            held: Held::default(),
            log: VecDeque::new(),
            given: BTreeMap::new(),
        }
    }

    fn propose_back(&mut self, name: usize, at_us: u64) -> bool {
        let Some(back) = self.held.take(name as u128, now(at_us)) else {
            return false;
        };
        let queued = back.iter().map(|it| (at_us, it.clone()));
        self.held.give_back_queued(name as u128, queued.collect());
        self.given.insert(name, back);
        self.log.push_back(Entry::Back { name, at_us });
        true
    }

    /// But for the newest ones.
    fn apply(&mut self, but: usize) -> Result<(), TestCaseError> {
        while self.log.len() > but
            && let Some(entry) = self.log.pop_front()
        {
            match entry {
                Entry::Hits { step, at_us } => self.hits(step, at_us)?,
                Entry::Back { name, at_us } => {
                    for it in self.given.remove(&name).iter().flatten() {
                        self.counter.give_back(&it.limit, at_us, it.hits, &it.mark);
                    }
                    self.held.give_back_ended(name as u128);
                }
            }
        }
        Ok(())
    }

    fn hits(&mut self, nth: usize, now_us: u64) -> Result<(), TestCaseError> {
        let (limit, step) = (&self.story.limit, &self.story.steps[nth]);
        let moment = at(limit, now_us);
        let expected = self.naive.check(limit, &moment, step.hits, true);
        let answer = match step.dry_run {
            true => self.counter.peek(limit, &moment, step.hits),
            false => self.counter.take(limit, &moment, step.hits),
        };
        prop_assert!(expected.allowed || !answer.allowed, "{step:?} at {now_us}");
        if answer.allowed == expected.allowed {
            prop_assert!(
                answer.remaining <= expected.remaining,
                "{step:?} at {now_us}"
            );
        }
        match self.fates.get(nth) {
            _ if step.dry_run => {}
            Some(Fate::Back { .. }) if answer.allowed => {
                let counted = counted(limit, step.hits, self.counter.mark());
                self.held.hold(nth as u128, vec![counted]);
            }
            _ if answer.allowed => {
                self.naive.check(limit, &moment, step.hits, false);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the answers at the end were the same as without the hits that were given back. After each step so many entries of
/// the log are not applied yet.
fn run(story: &Story, fates: &[Fate], lags: &[usize]) -> Result<bool, TestCaseError> {
    let limit = &story.limit;
    let mut giving = Giving::new(story, fates);
    let mut now_us = story.start_us;
    for (nth, step) in story.steps.iter().enumerate() {
        now_us += step.after_us;
        for (earlier, fate) in fates.iter().enumerate().take(nth) {
            if *fate == (Fate::Back { before: nth }) {
                giving.propose_back(earlier, now_us);
                let again = giving.propose_back(earlier, now_us);
                prop_assert!(!again, "given back twice");
            }
        }
        giving.log.push_back(Entry::Hits {
            step: nth,
            at_us: now_us,
        });
        giving.apply(lags.get(nth).copied().unwrap_or_default())?;
    }
    giving.apply(0)?;
    for name in 0..story.steps.len() {
        giving.propose_back(name, now_us);
    }
    giving.apply(0)?;
    let moment = at(limit, now_us);
    let expected = giving.naive.check(limit, &moment, 0, true);
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

/// Of a leader's memory, or of a log.
fn lags() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        1 => Just(Vec::new()),
        2 => prop::collection::vec(0_usize..5, 40),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_more_passes_than_without_them(
        (story, fates, lags) in prop::sample::select(Algorithm::ALL.to_vec())
            .prop_flat_map(|algorithm| (story(algorithm, 10_000), fates(), lags()))
    ) {
        // The naive queue has a place for each hit.
        prop_assume!(story.limit.capacity() <= 10_000);
        run(&story, &fates, &lags)?;
    }

    #[test]
    fn at_once_all_of_them_is_given_back(
        (mut story, fates, lags) in prop::sample::select(Algorithm::ALL.to_vec())
            .prop_flat_map(|algorithm| (story(algorithm, 10_000), fates(), lags()))
    ) {
        prop_assume!(story.limit.capacity() <= 10_000);
        for step in &mut story.steps {
            step.after_us = 0;
        }
        prop_assert!(run(&story, &fates, &lags)?, "{:?}", story.limit);
    }
}

/// A few hits of a bucket that drains meanwhile.
fn drained() -> impl Strategy<Value = Story> {
    let step = (0_u64..8_000, 1_u64..12).prop_map(|(after_us, hits)| Step {
        after_us,
        hits,
        dry_run: false,
    });
    prop::collection::vec(step, 4..12).prop_map(|steps| Story {
        limit: bucket(),
        start_us: 1_000_000,
        steps,
    })
}

/// 20 hits, of which one drains in a millisecond.
fn bucket() -> Limit {
    let parts = LimitParts {
        algorithm: Algorithm::TokenBucket,
        burst: Some(20),
        ..Limit::fixed_window(1_000, Unit::Second).parts().clone()
    };
    Limit::new(parts).unwrap()
}

fn soon() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        1 => Just(Fate::Stay),
        3 => (1_usize..12).prop_map(|before| Fate::Back { before }),
    ];
    prop::collection::vec(fate, 12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_more_passes_a_bucket_that_drains_than_without_them(
        story in drained(), fates in soon(), lags in prop::collection::vec(0_usize..4, 12),
    ) {
        run(&story, &fates, &lags)?;
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

/// Hits that were counted while the give-back of those before them was on its way.
#[test]
fn a_give_back_on_its_way_makes_room_once() {
    let limit = bucket();
    let mut counter = Counter::fresh(limit.algorithm());
    let mut held = Held::default();
    let start_us = 1_000_000;
    let mut hold = |held: &mut Held, name, now_us| {
        let answer = counter.take(&limit, &at(&limit, now_us), 10);
        assert!(answer.allowed);
        held.hold(name, vec![counted(&limit, 10, counter.mark())]);
    };
    hold(&mut held, 1, start_us);
    let first = held.take(1, now(start_us)).unwrap();
    held.give_back_queued(1, vec![(start_us, first[0].clone())]);
    assert!(held.gives_back(1));
    hold(&mut held, 2, start_us);
    counter.give_back(&limit, start_us, 10, &first[0].mark);
    held.give_back_ended(1);
    assert!(!held.gives_back(1));
    // The second ones have drained by then: there is nothing to give back of them.
    let later_us = start_us + 12_000;
    let others = counter.take(&limit, &at(&limit, later_us), 10);
    assert_eq!(others.remaining, 10);
    let second = held.take(2, now(later_us)).unwrap();
    counter.give_back(&limit, later_us, 10, &second[0].mark);
    let left = counter.peek(&limit, &at(&limit, later_us), 0).remaining;
    assert_eq!(left, 10);
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
