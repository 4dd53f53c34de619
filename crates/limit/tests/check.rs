//! Several limits of one request.

use std::collections::BTreeMap;

use crate::common::{ask, key_of, limit, max, now, table};
use nowserving_limit::{
    Algorithm, Answer, Ask, Counter, Limit, LimitParts, Saved, Unit, Verdict, check, combine,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Asked {
    number: u64,
    limit: usize,
    hits: u64,
    is_shadow: bool,
    is_quota: bool,
}

fn asked() -> impl Strategy<Value = Asked> {
    let flag = || prop::bool::weighted(0.25);
    (0_u64..2, 0_usize..5, 0_u64..4, flag(), flag()).prop_map(
        |(number, limit, hits, is_shadow, is_quota)| Asked {
            number,
            limit,
            hits,
            is_shadow,
            is_quota,
        },
    )
}

type Keyed = BTreeMap<Vec<u8>, Counter>;

/// Takes one after the other, and gives everything back if that is refused.
fn naive(counters: &mut Keyed, asks: &[Ask<'_>]) -> bool {
    let before = counters.clone();
    let (mut refused, mut quotas, mut quotas_over) = (false, 0, 0);
    for ask in asks {
        let fresh = || Counter::fresh(ask.limit.algorithm());
        let counter = counters.entry(ask.key.to_vec()).or_insert_with(fresh);
        let allowed = counter.take(ask.limit, &ask.at, ask.hits).allowed;
        let is_over = !allowed && !ask.is_shadow;
        if ask.is_quota {
            quotas += 1;
            quotas_over += u32::from(is_over);
        } else {
            refused |= is_over;
        }
    }
    let allowed = !refused && (quotas == 0 || quotas_over < quotas);
    if !allowed {
        *counters = before;
    }
    allowed
}

fn all_limits() -> Vec<Limit> {
    Vec::from(Algorithm::ALL.map(|algorithm| limit(algorithm, 5, Unit::Second)))
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_096, ..ProptestConfig::with_cases(10_000) })]

    #[test]
    fn all_limits_of_a_request_count_it_or_none(
        requests in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..700_000], prop::collection::vec(asked(), 1..5)), 1..20),
    ) {
        let limits = all_limits();
        let (mut table, mut counters, mut after_us) = (table(100), Keyed::new(), 0);
        for (wait_us, asked) in &requests {
            after_us += wait_us;
            let now = now(after_us);
            let keys: Vec<_> = asked.iter().map(|asked| key_of(&limits[asked.limit], asked.number)).collect();
            let asks = asked.iter().zip(&keys).map(|(asked, key)| Ask {
                is_shadow: asked.is_shadow,
                is_quota: asked.is_quota,
                ..ask(&limits[asked.limit], key, asked.hits, now)
            });
            let asks: Vec<_> = asks.collect();
            let verdicts = check(&mut table, &asks, false, now);
            let overall = combine(&verdicts);
            let expected = naive(&mut counters, &asks);
            prop_assert_eq!(overall.allowed, expected);
            for ask in &asks {
                let counter = counters.get_mut(ask.key);
                let expected = counter.map(|counter| counter.peek(ask.limit, &ask.at, 1));
                let mut has = table.get(ask.key).map(std::borrow::Cow::into_owned);
                let has = has.as_mut().map(|counter| counter.peek(ask.limit, &ask.at, 1));
                let fresh = Counter::fresh(ask.limit.algorithm()).peek(ask.limit, &ask.at, 1);
                prop_assert_eq!(has.unwrap_or(fresh), expected.unwrap_or(fresh));
            }
            retry(&counters, &asks, after_us, overall.shown)?;
        }
    }
}

/// A refused request is allowed at the time that it is told, and not before.
fn retry(
    counters: &Keyed,
    asks: &[Ask<'_>],
    after_us: u64,
    shown: Option<Answer>,
) -> Result<(), TestCaseError> {
    let Some(retry_after_us) = shown.and_then(|answer| answer.retry_after_us) else {
        return Ok(());
    };
    // Those in quota mode with the same counter may pass without each other: no single time is right then.
    let is_simple = asks.iter().all(|ask| !ask.is_quota && !ask.is_shadow);
    if !is_simple {
        return Ok(());
    }
    let allowed_at = |after_us| {
        let now = now(after_us);
        let asks: Vec<_> = asks
            .iter()
            .map(|again| ask(again.limit, again.key, again.hits, now))
            .collect();
        naive(&mut counters.clone(), &asks)
    };
    prop_assert!(!allowed_at(after_us + retry_after_us - 1));
    prop_assert!(allowed_at(after_us + retry_after_us));
    Ok(())
}

fn answer(allowed: bool, remaining: u32, retry_after_us: Option<u64>) -> Answer {
    Answer {
        allowed,
        limit: 10,
        remaining,
        reset_us: 7,
        retry_after_us,
        delay_us: 0,
    }
}

fn verdict(answer: Answer) -> Verdict {
    Verdict {
        answer,
        is_shadow: false,
        is_quota: false,
        is_untracked: false,
    }
}

#[test]
fn nothing_to_ask_is_allowed() {
    let overall = combine(&check(&mut table(1), &[], false, now(0)));
    assert!(overall.allowed && overall.shown.is_none());
}

#[test]
fn the_nearest_limit_is_shown_and_the_longest_refusal() {
    let (far, near) = (
        verdict(answer(true, 9, None)),
        verdict(answer(true, 2, None)),
    );
    assert_eq!(combine(&[far, near]).shown_from, Some(1));
    let soon = verdict(answer(false, 0, Some(5)));
    let late = verdict(answer(false, 0, Some(8)));
    let never = verdict(answer(false, 0, None));
    assert_eq!(combine(&[near, soon, late]).shown_from, Some(2));
    let overall = combine(&[soon, never, late]);
    assert_eq!((overall.allowed, overall.shown_from), (false, Some(1)));
    assert_eq!(overall.shown.unwrap().retry_after_us, None);
}

#[test]
fn the_longest_delay_counts() {
    let delayed = |delay_us| {
        verdict(Answer {
            delay_us,
            ..answer(true, 1, None)
        })
    };
    assert_eq!(
        combine(&[delayed(3), delayed(8), delayed(0)])
            .shown
            .unwrap()
            .delay_us,
        8
    );
    let refused = verdict(answer(false, 0, Some(5)));
    assert_eq!(combine(&[delayed(3), refused]).shown.unwrap().delay_us, 0);
}

/// Twice as many come as the bucket lets through, and none waits for longer than it wants: else a queue that is full of
/// callers that went away would keep all others out.
#[test]
fn callers_that_do_not_wait_for_long_get_the_whole_rate_of_a_leaking_bucket() {
    let limit = Limit::new(LimitParts {
        burst: Some(100),
        ..limit(Algorithm::LeakingBucket, 10, Unit::Second)
            .parts()
            .clone()
    })
    .unwrap();
    let (key, mut table, mut passed) = (key_of(&limit, 1), table(1), 0);
    let max_us = 1_050_000;
    for nth in 0..600 {
        let hasty = |now| Ask {
            max_delay_us: Some(max_us),
            ..ask(&limit, &key, 1, now)
        };
        let after_us = nth * 50_000;
        let answer = check(&mut table, &[hasty(now(after_us))], false, now(after_us))[0].answer;
        passed += u64::from(answer.allowed);
        assert_eq!(answer.allowed, answer.delay_us <= max_us, "{answer:?}");
        if let Some(retry_us) = answer.retry_after_us {
            assert_eq!(retry_us, answer.delay_us - max_us);
            let mut allowed_at = |us| {
                let asks = [hasty(now(after_us + us))];
                check(&mut table, &asks, true, now(after_us + us))[0]
                    .answer
                    .allowed
            };
            assert!(!allowed_at(retry_us - 1) && allowed_at(retry_us));
        }
    }
    assert!((300..=311).contains(&passed), "{passed}");
}

/// The bucket has no room for as many hits, or never will.
#[test]
fn a_refusal_lasts_until_there_is_room_and_the_queue_is_short_enough() {
    let limit = limit(Algorithm::LeakingBucket, 10, Unit::Second);
    let (key, mut table) = (key_of(&limit, 1), table(1));
    check(&mut table, &[ask(&limit, &key, 10, now(0))], false, now(0));
    let mut asked = |hits, max_delay_us| {
        let ask = Ask {
            max_delay_us,
            ..ask(&limit, &key, hits, now(0))
        };
        let answer = check(&mut table, &[ask], false, now(0))[0].answer;
        assert!(!answer.allowed);
        (answer.retry_after_us, answer.delay_us)
    };
    assert_eq!(asked(2, None), (Some(200_000), 0));
    assert_eq!(asked(2, Some(2_000_000)), (Some(200_000), 0));
    assert_eq!(asked(2, Some(900_000)), (Some(200_000), 1_000_000));
    assert_eq!(asked(2, Some(0)), (Some(1_000_000), 1_000_000));
    assert_eq!(asked(11, Some(0)), (None, 1_000_000));
}

/// Its delay is not that of the request.
#[test]
fn a_quota_that_refuses_alone_delays_nobody() {
    let quota = Verdict {
        is_quota: true,
        ..verdict(Answer {
            delay_us: 9,
            ..answer(false, 0, Some(5))
        })
    };
    let other = Verdict {
        is_quota: true,
        ..verdict(answer(true, 1, None))
    };
    assert_eq!(combine(&[quota, other]).shown.unwrap().delay_us, 0);
    assert_eq!(combine(&[quota]).shown.unwrap().delay_us, 9);
}

#[test]
fn a_limit_in_shadow_mode_refuses_nobody_and_is_not_shown() {
    let shadow = Verdict {
        is_shadow: true,
        ..verdict(answer(false, 0, Some(5)))
    };
    let other = verdict(answer(true, 4, None));
    let overall = combine(&[shadow, other]);
    assert!(overall.allowed);
    assert_eq!(overall.shown_from, Some(1));
    assert!(combine(&[shadow]).allowed);
}

#[test]
fn limits_in_quota_mode_refuse_only_together() {
    let quota = |answer| Verdict {
        is_quota: true,
        ..verdict(answer)
    };
    let over = |us| quota(answer(false, 0, Some(us)));
    let fine = quota(answer(true, 3, None));
    assert!(combine(&[over(5), fine]).allowed);
    // The first that is free again is enough.
    let overall = combine(&[over(5), over(3), over(9)]);
    assert_eq!((overall.allowed, overall.shown_from), (false, Some(1)));
    let other = verdict(answer(false, 0, Some(4)));
    assert_eq!(combine(&[over(5), over(3), other]).shown_from, Some(2));
    assert_eq!(combine(&[over(5), fine, other]).shown_from, Some(2));
}

#[test]
fn a_refused_request_is_told_what_is_left_without_it() {
    let (large, small) = (
        limit(Algorithm::LeakingBucket, 10, Unit::Second),
        limit(Algorithm::FixedWindow, 1, Unit::Second),
    );
    let keys = [key_of(&large, 1), key_of(&small, 1)];
    let mut table = table(10);
    let asks = [
        ask(&large, &keys[0], 2, now(0)),
        ask(&small, &keys[1], 2, now(0)),
    ];
    let verdicts = check(&mut table, &asks, false, now(0));
    assert_eq!(verdicts[0].answer.remaining, 10);
    assert!(verdicts[0].answer.allowed && !verdicts[1].answer.allowed);
    assert!(table.is_empty(), "nobody was counted");
}

/// And tells what is left without its own hits.
#[test]
fn a_dry_run_counts_nothing() {
    for algorithm in Algorithm::ALL {
        let limit = limit(algorithm, 5, Unit::Minute);
        let key = key_of(&limit, 1);
        let (mut table, mut saved) = (table(10), Saved::new(max(10)));
        let ask = |hits| [ask(&limit, &key, hits, now(0))];
        let left = |verdicts: &[Verdict]| {
            let answer = &verdicts[0].answer;
            (answer.allowed, answer.remaining)
        };
        for _ in 0..3 {
            assert_eq!(left(&check(&mut table, &ask(5), true, now(0))), (true, 5));
            let answer = saved.dry_run(&ask(5)[0]);
            assert_eq!((answer.allowed, answer.remaining), (true, 5));
        }
        assert!(table.is_empty() && table.dirty() == 0);
        assert_eq!(left(&check(&mut table, &ask(2), false, now(0))), (true, 3));
        check(&mut saved, &ask(2), false, now(0));
        for (hits, allowed) in [(0, true), (1, true), (3, true), (4, false), (6, false)] {
            let dry = check(&mut table, &ask(hits), true, now(0));
            assert_eq!(left(&dry), (allowed, 3), "{algorithm:?} {hits}");
            assert_eq!(saved.dry_run(&ask(hits)[0]), dry[0].answer, "{algorithm:?}");
        }
    }
}

/// How long a leaking bucket lets its request wait is told all the same.
#[test]
fn a_dry_run_of_a_leaking_bucket_has_a_delay() {
    let limit = limit(Algorithm::LeakingBucket, 5, Unit::Minute);
    let key = key_of(&limit, 1);
    let mut table = table(10);
    let asks = [ask(&limit, &key, 1, now(0))];
    check(&mut table, &asks, false, now(0));
    let dry = check(&mut table, &asks, true, now(0))[0].answer;
    let counted = check(&mut table, &asks, false, now(0))[0].answer;
    assert!(dry.delay_us > 0);
    assert_eq!(dry.delay_us, counted.delay_us);
    assert_eq!(dry.remaining, counted.remaining + 1);
}
