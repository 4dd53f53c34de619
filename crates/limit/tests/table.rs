//! The table of a leader, its checkpoints and failovers, against a plain map.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::common::{SEED, ask, key_of, limit, max, now, table};
use nowserving_limit::{
    Algorithm, Change, ChangedState, Counter, Limit, Live, Now, PortionMax, Saved, Table, TableMax,
    Unit, WhenFull, Windows, check, key,
};
use proptest::prelude::*;

type Keyed = BTreeMap<Vec<u8>, Counter>;

/// Small, so that tables become full. All slots are swept before a key finds no room.
const COUNTERS: u32 = 6;
const EVERYTHING: PortionMax = PortionMax {
    counters: usize::MAX,
    bytes: usize::MAX,
};

#[derive(Debug, Clone)]
enum Step {
    Check {
        number: u64,
        limit: usize,
        hits: u64,
        dry_run: bool,
    },
    Wait {
        us: u64,
    },
    /// Everything in portions.
    Checkpoint {
        counters: usize,
        bytes: usize,
    },
    /// A portion does not get into the log.
    Lose {
        counters: usize,
        bytes: usize,
    },
    Failover,
    Reset {
        number: u64,
        limit: usize,
    },
    Sweep {
        slots: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let portion = || (1_usize..4, prop_oneof![Just(1_usize), 1_usize..300]);
    prop_oneof![
        30 => (0_u64..6, 0_usize..6, 0_u64..3, prop::bool::weighted(0.1))
            .prop_map(|(number, limit, hits, dry_run)| Step::Check { number, limit, hits, dry_run }),
        6 => prop_oneof![0_u64..10, 0_u64..1_000_000, 0_u64..4_000_000].prop_map(|us| Step::Wait { us }),
        4 => portion().prop_map(|(counters, bytes)| Step::Checkpoint { counters, bytes }),
        2 => portion().prop_map(|(counters, bytes)| Step::Lose { counters, bytes }),
        1 => Just(Step::Failover),
        1 => (0_u64..6, 0_usize..6).prop_map(|(number, limit)| Step::Reset { number, limit }),
        1 => (0_u32..10).prop_map(|slots| Step::Sweep { slots }),
    ]
}

fn limits() -> Vec<Limit> {
    let mut limits = Vec::from(Algorithm::ALL.map(|algorithm| limit(algorithm, 3, Unit::Second)));
    limits.push(limit(Algorithm::FixedWindow, 2, Unit::Day));
    limits
}

struct World {
    limits: Vec<Limit>,
    table: Table,
    saved: Saved,
    after_us: u64,
    /// What the table is to have, idle counters perhaps included.
    counters: Keyed,
    /// What checkpoints have.
    checkpoint: Keyed,
}

impl World {
    fn new() -> Self {
        Self {
            limits: limits(),
            table: table(COUNTERS),
            saved: Saved::new(max(1_000)),
            after_us: 0,
            counters: Keyed::new(),
            checkpoint: Keyed::new(),
        }
    }

    fn now(&self) -> Now {
        now(self.after_us)
    }

    fn is_in_use(&self, key: &[u8], counter: &Counter) -> bool {
        counter.idle_at_us() > self.now().by(key::clock(key))
    }

    fn in_use(&self) -> usize {
        let counters = self.counters.iter();
        counters
            .filter(|(key, counter)| self.is_in_use(key, counter))
            .count()
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Check {
                number,
                limit,
                hits,
                dry_run,
            } => self.check(number, limit, hits, dry_run)?,
            Step::Wait { us } => self.after_us += us,
            Step::Checkpoint { counters, bytes } => {
                self.checkpoint(PortionMax { counters, bytes })?
            }
            Step::Lose { counters, bytes } => {
                let lost = self.table.changes(PortionMax { counters, bytes });
                self.table.put_back(&lost);
            }
            Step::Failover => {
                self.table = table(COUNTERS);
                self.counters.clear();
            }
            Step::Reset { number, limit } => self.reset(number, limit)?,
            Step::Sweep { slots } => {
                let now = self.now();
                self.table.sweep(now, slots);
            }
        }
        self.recount()
    }

    fn check(
        &mut self,
        number: u64,
        limit: usize,
        hits: u64,
        dry_run: bool,
    ) -> Result<(), TestCaseError> {
        let (limit, now) = (self.limits[limit].clone(), self.now());
        let key = key_of(&limit, number);
        let ask = ask(&limit, &key, hits, now);
        // A counter that is idle and not swept yet needs no other room: after a failover there can be more counters in
        // use than a table has by itself.
        let may_be_there = self.table.get(&key).is_some();
        let (table, saved) = (&mut self.table, &self.saved);
        let verdicts = check(&mut Live { table, saved }, &[ask], dry_run, now);
        // A counter of the last checkpoint is found there.
        let known = self
            .counters
            .get(&key)
            .filter(|counter| self.is_in_use(&key, counter));
        let restored = self
            .checkpoint
            .get(&key)
            .filter(|counter| self.is_in_use(&key, counter));
        let has_room = self.in_use() < COUNTERS as usize;
        let is_known = known.or(restored).is_some();
        let counter = known.or(restored).cloned();
        let mut counter = counter.unwrap_or_else(|| Counter::fresh(limit.algorithm()));
        let answer = match dry_run {
            true => {
                let uncounted = counter.peek(&limit, &ask.at, 0);
                let answer = counter.peek(&limit, &ask.at, hits);
                match answer.allowed {
                    true => answer.without_hits(&uncounted),
                    false => answer,
                }
            }
            false => counter.take(&limit, &ask.at, hits),
        };
        prop_assert_eq!(verdicts[0].answer, answer);
        let is_untracked = verdicts[0].is_untracked;
        let finds_none = !is_known && !has_room;
        prop_assert!(is_untracked == finds_none || (finds_none && may_be_there));
        let is_counted = !dry_run && answer.allowed && hits > 0;
        if is_known || (!is_untracked && is_counted) {
            self.counters.insert(key, counter);
        }
        Ok(())
    }

    fn checkpoint(&mut self, max: PortionMax) -> Result<(), TestCaseError> {
        while self.table.dirty() > 0 {
            let changes = self.table.changes(max);
            prop_assert!(changes.len() <= max.counters);
            let bytes: usize = changes.iter().map(Change::bytes).sum();
            let last = changes.last().map_or(0, |change| match &change.state {
                ChangedState::LogPart(part) if part.begins => change.bytes() + 1,
                _ => change.key.len() + 48,
            });
            prop_assert!(
                bytes < max.bytes + last,
                "{} bytes for {}",
                bytes,
                max.bytes
            );
            for change in &changes {
                prop_assert!(self.saved.merge(change));
                // Twice: a change is absolute.
                self.saved.merge(change);
            }
        }
        // Idle counters are dropped without a word.
        for (key, counter) in self.counters.clone() {
            if self.is_in_use(&key, &counter) {
                self.checkpoint.insert(key, counter);
            }
        }
        Ok(())
    }

    fn reset(&mut self, number: u64, limit: usize) -> Result<(), TestCaseError> {
        let key = key_of(&self.limits[limit], number);
        let counter = self.counters.remove(&key);
        let was_in_use = counter.is_some_and(|counter| self.is_in_use(&key, &counter));
        let was_there = self.table.remove(&key);
        prop_assert!(was_there || !was_in_use);
        self.saved.remove(&key);
        self.checkpoint.remove(&key);
        Ok(())
    }

    /// Nothing that is in use was lost, nothing else is in use, and the sums are right.
    fn recount(&mut self) -> Result<(), TestCaseError> {
        let now = self.now();
        let (mut count, mut key_bytes, mut log_hits) = (0, 0, 0);
        let expected = std::mem::take(&mut self.counters);
        for limit in &self.limits {
            for number in 0..6 {
                let key = key_of(limit, number);
                let has = self.table.get(&key);
                if let Some(counter) = &has {
                    count += 1;
                    key_bytes += key.len() as u64;
                    log_hits += counter.log_len() as u64;
                }
                let fresh = || Counter::fresh(limit.algorithm());
                let mut has = has.map(Cow::into_owned).unwrap_or_else(fresh);
                let mut expected = expected.get(&key).cloned().unwrap_or_else(fresh);
                let at = Windows::new().moment(limit, now);
                prop_assert_eq!(has.peek(limit, &at, 1), expected.peek(limit, &at, 1));
            }
        }
        self.counters = expected;
        prop_assert_eq!(self.table.len(), count);
        prop_assert_eq!(self.table.key_bytes(), key_bytes);
        prop_assert_eq!(self.table.log_hits(), log_hits);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_096, ..ProptestConfig::with_cases(10_000) })]

    #[test]
    fn as_a_plain_map_has_it(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
    }
}

/// A thousand new keys a second against ten counters in use, in a table of a hundred.
#[test]
fn a_flood_of_new_keys_pushes_out_nobody() {
    let hourly = limit(Algorithm::SlidingWindowLog, 50, Unit::Hour);
    let flooded = limit(Algorithm::FixedWindow, 5, Unit::Second);
    let mut table = table(100);
    let (mut passed, mut tracked) = (0, 0);
    for step in 0..20_000_u64 {
        let now = now(step * 1_000);
        if step % 200 == 0 {
            for number in 0..10 {
                let key = key_of(&hourly, number);
                let verdict = check(&mut table, &[ask(&hourly, &key, 1, now)], false, now)[0];
                assert!(!verdict.is_untracked);
                passed += u32::from(verdict.answer.allowed);
            }
        }
        let key = key_of(&flooded, 1_000 + step);
        let verdict = check(&mut table, &[ask(&flooded, &key, 1, now)], false, now)[0];
        assert!(verdict.answer.allowed, "by the rule's default");
        tracked += u32::from(!verdict.is_untracked);
        assert!(table.len() <= 100);
    }
    assert_eq!(passed, 10 * 50, "each as often as it may");
    // Each second 90 of them find room.
    assert!((1_700..1_900).contains(&tracked), "{tracked}");
}

#[test]
fn what_finds_no_room_is_refused_if_its_rule_says_so() {
    let limit = limit(Algorithm::FixedWindow, 5, Unit::Second);
    let mut table = table(0);
    let key = key_of(&limit, 1);
    let mut ask = ask(&limit, &key, 1, now(0));
    ask.when_full = WhenFull::Deny;
    let verdict = check(&mut table, &[ask], false, now(0))[0];
    assert!(verdict.is_untracked && !verdict.answer.allowed);
    assert!(verdict.answer.retry_after_us.is_some());
    assert!(table.is_empty());
}

/// Each of the new counters of a request needs room of its own.
#[test]
fn room_for_one_is_not_room_for_two() {
    let limit = limit(Algorithm::FixedWindow, 5, Unit::Second);
    let keys = [1, 2, 2].map(|number| key_of(&limit, number));
    let mut asks = keys.each_ref().map(|key| ask(&limit, key, 1, now(0)));
    for ask in &mut asks {
        ask.when_full = WhenFull::Deny;
    }
    let verdicts = check(&mut table(1), &asks, false, now(0));
    let untracked: Vec<_> = verdicts
        .iter()
        .map(|verdict| verdict.is_untracked)
        .collect();
    assert_eq!(untracked, [false, true, true]);
    let verdicts = check(&mut table(2), &asks, false, now(0));
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.answer.allowed && !verdict.is_untracked)
    );
}

#[test]
fn keys_take_no_more_bytes_than_they_may() {
    let limit = limit(Algorithm::FixedWindow, 5, Unit::Second);
    let key = key_of(&limit, 1);
    let max = TableMax {
        key_bytes: 2 * key.len() as u64,
        ..max(100)
    };
    let mut table = Table::new(max, SEED);
    let untracked = (0..5).filter(|number| {
        let key = key_of(&limit, *number);
        check(&mut table, &[ask(&limit, &key, 1, now(0))], false, now(0))[0].is_untracked
    });
    assert_eq!(untracked.count(), 3);
    assert_eq!(table.key_bytes(), max.key_bytes);
}

#[test]
fn logs_take_no_more_room_than_they_may_and_hold_their_limits() {
    let limit = limit(Algorithm::SlidingWindowLog, 100, Unit::Minute);
    let max = TableMax {
        log_hits: 30,
        ..max(100)
    };
    let mut table = Table::new(max, SEED);
    let mut passed = [0; 3];
    for step in 0..600_u64 {
        let (number, now) = (step % 3, now(step * 100_000));
        let key = key_of(&limit, number);
        let verdict = check(&mut table, &[ask(&limit, &key, 1, now)], false, now)[0];
        passed[number as usize] += u32::from(verdict.answer.allowed);
        assert!(table.log_hits() <= 30 + 3);
    }
    assert_eq!(passed, [100; 3], "in a minute");
}

/// After a failover counters of the checkpoint have room, whatever came before them.
#[test]
fn a_flood_after_a_failover_keeps_out_nobody() {
    let limit = limit(Algorithm::TokenBucket, 1, Unit::Hour);
    let mut saved = Saved::new(max(10));
    let mut before = table(10);
    for number in 0..10 {
        let key = key_of(&limit, number);
        check(&mut before, &[ask(&limit, &key, 1, now(0))], false, now(0));
    }
    for change in before.changes(EVERYTHING) {
        assert!(saved.merge(&change));
    }
    let mut after = table(10);
    let mut live = Live {
        table: &mut after,
        saved: &saved,
    };
    for number in (100..200).chain(0..10) {
        let key = key_of(&limit, number);
        let verdict = check(&mut live, &[ask(&limit, &key, 1, now(1))], false, now(1))[0];
        assert_eq!(verdict.answer.allowed, number >= 100, "{number}");
    }
    assert_eq!(after.len(), 20, "twice its size, and no more");
}

#[test]
fn a_checkpoint_without_room_keeps_what_it_has() {
    let limit = limit(Algorithm::FixedWindow, 1, Unit::Hour);
    let mut table = table(10);
    let mut saved = Saved::new(max(3));
    for number in 0..5 {
        let key = key_of(&limit, number);
        check(&mut table, &[ask(&limit, &key, 1, now(0))], false, now(0));
    }
    let changes = table.changes(EVERYTHING);
    let kept: Vec<_> = changes.iter().map(|change| saved.merge(change)).collect();
    assert_eq!(kept, [true, true, true, false, false]);
    // An hour later these are idle.
    let later = now(3_600_000_000);
    assert_eq!(saved.expire(later, 3), 3);
    assert!(saved.merge(&changes[4]));
    assert!(saved.len() <= 3);
}

/// A counter that finds no room is no limit.
#[test]
fn a_flood_of_other_keys_leaves_exact_limits_their_share() {
    let others = limit(Algorithm::SlidingWindowLog, 5, Unit::Hour);
    let mut table = table(1_000);
    let mut saved = Saved::new(TableMax {
        log_hits: 12,
        ..max(12)
    });
    for number in 0..100 {
        let key = key_of(&others, number);
        check(&mut table, &[ask(&others, &key, 1, now(0))], false, now(0));
    }
    let changes = table.changes(EVERYTHING);
    let kept = changes.iter().filter(|change| saved.merge(change)).count();
    assert_eq!(kept, 12, "as many as a table has");
    assert!(saved.merge(&changes[0]), "it has its place");
    // Exact hits with other keys, too.
    let key = key_of(&others, 777);
    let verdicts = check(&mut saved, &[ask(&others, &key, 1, now(0))], false, now(0));
    assert!(verdicts[0].is_untracked);
    for number in 0..5 {
        let mut key = key_of(&others, number);
        key::set_exact(&mut key);
        for hit in 0..7 {
            let now = now(hit);
            let verdicts = check(&mut saved, &[ask(&others, &key, 1, now)], false, now);
            let has_room = number < 3;
            assert_eq!(verdicts[0].is_untracked, !has_room, "{number}");
            assert_eq!(verdicts[0].answer.allowed, !has_room || hit < 5);
        }
    }
    assert_eq!(saved.len(), 15);
    // Its own three, and the first time of each of two more logs.
    assert_eq!(saved.log_hits(), 12 + 3 + 2);
    let copy = {
        let mut copy = Saved::new(TableMax {
            log_hits: 12,
            ..max(12)
        });
        for (key, counter) in all_of(&saved) {
            copy.put(&key, counter);
        }
        copy.set_expired_to(saved.expired_to().map(Box::from));
        copy
    };
    assert_eq!(copy, saved, "a snapshot has the same room");
}

fn all_of(saved: &Saved) -> Keyed {
    let mut all = Keyed::new();
    saved.each_after(None, |key, counter| {
        all.insert(key.to_vec(), counter.clone());
        ControlFlow::Continue(())
    });
    all
}

#[test]
fn idle_counters_of_a_checkpoint_expire_a_few_at_a_time() {
    // Those in use are first in the order of their keys.
    let (short, long) = (
        limit(Algorithm::TokenBucket, 1, Unit::Second),
        limit(Algorithm::FixedWindow, 1, Unit::Hour),
    );
    let mut saved = Saved::new(max(1_000));
    for number in 0..50 {
        for limit in [&short, &long] {
            let key = key_of(limit, number);
            let ask = ask(limit, &key, 1, now(0));
            check(&mut saved, &[ask], false, now(0));
        }
    }
    let later = now(2_000_000);
    let mut dropped = Vec::new();
    for _ in 0..15 {
        dropped.push(saved.expire(later, 7));
    }
    assert!(dropped.iter().all(|count| *count <= 7));
    assert_eq!(dropped.iter().sum::<usize>(), 50);
    assert_eq!(saved.len(), 50);
    assert!(
        all_of(&saved)
            .keys()
            .all(|key| key::head(key) == Some((Algorithm::FixedWindow, Unit::Hour)))
    );
}

#[test]
fn a_dry_run_of_an_exact_limit_changes_nothing() {
    let limit = limit(Algorithm::SlidingWindowLog, 2, Unit::Second);
    let mut saved = Saved::new(max(10));
    let key = key_of(&limit, 1);
    check(&mut saved, &[ask(&limit, &key, 2, now(0))], false, now(0));
    let before = saved.clone();
    let (early, late) = (
        ask(&limit, &key, 1, now(999_999)),
        ask(&limit, &key, 1, now(1_000_000)),
    );
    assert!(!saved.dry_run(&early).allowed && saved.dry_run(&late).allowed);
    assert_eq!(saved, before);
    assert_eq!(saved.log_hits(), 1);
}

#[test]
fn changes_come_in_the_order_in_which_they_happened_first() {
    let limit = limit(Algorithm::TokenBucket, 5, Unit::Hour);
    let mut table = table(10);
    for number in [3, 1, 2, 3] {
        let key = key_of(&limit, number);
        check(
            &mut table,
            &[ask(&limit, &key, 1, now(number))],
            false,
            now(number),
        );
    }
    let keys: Vec<_> = table
        .changes(EVERYTHING)
        .into_iter()
        .map(|change| change.key)
        .collect();
    let expected = [3, 1, 2].map(|number| Box::from(key_of(&limit, number)));
    assert_eq!(keys, expected);
    assert!(table.changes(EVERYTHING).is_empty() && table.dirty() == 0);
}

/// A log that is longer than a portion goes over several.
#[test]
fn a_long_log_is_cut_into_portions() {
    let limit = limit(Algorithm::SlidingWindowLog, 1_000, Unit::Minute);
    let mut table = table(10);
    let key = key_of(&limit, 1);
    for step in 0..1_000 {
        check(
            &mut table,
            &[ask(&limit, &key, 1, now(step))],
            false,
            now(step),
        );
    }
    let mut saved = Saved::new(max(10));
    let portion = PortionMax {
        counters: 10,
        bytes: 1_000,
    };
    let mut portions = 0;
    while table.dirty() > 0 {
        let changes = table.changes(portion);
        assert!(matches!(
            &changes[..],
            [Change {
                state: ChangedState::LogPart(_),
                ..
            }]
        ));
        assert!(changes[0].bytes() <= portion.bytes);
        saved.merge(&changes[0]);
        portions += 1;
    }
    assert!((16..30).contains(&portions), "{portions}");
    assert_eq!(saved.get(&key), table.get(&key));
    assert_eq!(saved.log_hits(), 1_000);
}

/// A leader may die after any portion.
#[test]
fn a_log_that_is_sent_anew_is_never_half_in_a_checkpoint() {
    let limit = limit(Algorithm::SlidingWindowLog, 1_000, Unit::Hour);
    let (mut table, mut saved) = (table(10), Saved::new(max(10)));
    let key = key_of(&limit, 1);
    for hit in 0..500 {
        let now = now(hit);
        check(&mut table, &[ask(&limit, &key, 1, now)], false, now);
    }
    let changes = table.changes(EVERYTHING);
    assert!(changes.iter().all(|change| saved.merge(change)));
    // The next one does not get into the log.
    let now = now(500);
    check(&mut table, &[ask(&limit, &key, 1, now)], false, now);
    let lost = table.changes(EVERYTHING);
    table.put_back(&lost);
    let portion = PortionMax {
        counters: 1,
        bytes: 100,
    };
    for change in table.changes(portion) {
        saved.merge(&change);
        assert_eq!(saved.log_hits(), 501);
    }
    assert_eq!(saved.log_hits(), 501);
}
