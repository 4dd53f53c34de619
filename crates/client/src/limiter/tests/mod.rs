#![allow(clippy::unwrap_used)]

mod fake;

use futures::future::join_all;
use nowserving_protocol::limits::Entry;

use self::fake::{Answers, Fake, TRIP};
use super::slices::Sliced;
use super::*;

const PATIENCE: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn check(hits: u32) -> Check {
    Check {
        hits: Some(hits),
        ..Check::new(vec![vec![Entry::new("ip", "127.0.0.1")]])
    }
}

fn of(value: &str) -> Check {
    Check::new(vec![vec![Entry::new("ip", value)]])
}

/// Over a fixed window of a minute with this limit.
fn core(limit: u32) -> (Fake, Core<Fake>) {
    with(limit, LimiterOptions::default())
}

fn when_away(on_unavailable: LimitFallback) -> (Fake, Core<Fake>) {
    let options = LimiterOptions {
        on_unavailable,
        ..LimiterOptions::default()
    };
    with(3, options)
}

fn with(limit: u32, options: LimiterOptions) -> (Fake, Core<Fake>) {
    let fake = Fake::new(limit, MINUTE);
    let domain = LineName::try_from("shop").unwrap();
    (fake.clone(), Core::new(fake, domain, options))
}

impl Core<Fake> {
    async fn passed(&self, checks: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..checks {
            passed += u32::from(self.check(&check(1), None).await.unwrap().allowed);
        }
        passed
    }

    fn counts(&self) -> LimiterCounts {
        self.shared.counts.snapshot()
    }
}

impl Sliced<Fake> {
    async fn passed(&self, checks: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..checks {
            passed += u32::from(self.check(&check(1)).await.unwrap().allowed);
        }
        passed
    }
}

#[tokio::test(start_paused = true)]
async fn over_the_limit_is_an_answer_and_is_counted() {
    let (_, core) = core(3);
    assert_eq!(core.passed(5).await, 3);
    let dry = Check {
        dry_run: true,
        ..check(1)
    };
    assert!(!core.check(&dry, None).await.unwrap().allowed);
    let counts = core.counts();
    assert_eq!((counts.allowed, counts.refused), (3, 2));
    assert_eq!((counts.unavailable, counts.failed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_window_does_and_never_after_its_deadline() {
    let (fake, core) = core(3);
    let begin = Instant::now();
    assert_eq!(core.passed(3).await, 3);
    // It knows at once that this is too short.
    let asked = fake.checks();
    let late = core.wait_until_allowed(&check(1), MINUTE / 2).await;
    assert_eq!(late.unwrap(), None);
    assert_eq!(fake.checks(), asked + 1);
    let waited = core.wait_until_allowed(&check(1), 2 * MINUTE).await;
    assert!(waited.unwrap().unwrap().allowed);
    let took = begin.elapsed();
    assert!(
        (MINUTE..MINUTE + 2 * SPREAD_MAX).contains(&took),
        "{took:?}"
    );
    // More than the limit is never allowed.
    let never = core.wait_until_allowed(&check(4), 9 * MINUTE).await;
    assert_eq!(never.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leaking_bucket_is_waited_for_within_the_deadline() {
    let (fake, core) = core(3);
    fake.answers(Answers::Delayed(Duration::from_secs(2)));
    let begin = Instant::now();
    let passes = core
        .wait_until_allowed(&check(1), Duration::from_secs(5))
        .await;
    assert!(passes.unwrap().unwrap().allowed);
    assert!(begin.elapsed() >= Duration::from_secs(2));
    // It knows at once that this is too short, and waits in nobody's way.
    let begin = Instant::now();
    let late = core
        .wait_until_allowed(&check(1), Duration::from_secs(1))
        .await;
    assert_eq!(late.unwrap(), None);
    assert!(begin.elapsed() < 2 * TRIP);
    assert_eq!(fake.counted(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_says_how_long_a_delay_it_accepts() {
    let (fake, core) = core(3);
    fake.answers(Answers::Delayed(Duration::from_secs(2)));
    let hasty = check(1).with_max_delay(Duration::from_millis(1_999));
    let refused = core.check(&hasty, None).await.unwrap();
    assert!(!refused.allowed && fake.counted() == 0);
    assert_eq!(
        (refused.retry_after_ms, refused.delay_ms),
        (Some(1), Some(2_000))
    );
    let patient = check(1).with_max_delay(Duration::MAX);
    assert!(core.check(&patient, None).await.unwrap().allowed);
    // It asks again: by then the delay may be short enough.
    let waits = core.wait_until_allowed(&hasty, Duration::from_secs(60));
    let heals = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        fake.answers(Answers::Delayed(Duration::from_secs(1)));
    };
    let (waited, ()) = tokio::join!(waits, heals);
    assert_eq!(waited.unwrap().unwrap().delay_ms, Some(1_000));
}

#[tokio::test(start_paused = true)]
async fn without_the_cluster_requests_pass_by_default_and_are_counted() {
    let (fake, core) = when_away(LimitFallback::default());
    fake.answers(Answers::Never);
    let reply = core.check(&check(1), None).await.unwrap();
    assert!(reply.allowed && reply.without_cluster);
    assert_eq!(reply.descriptors.len(), 1);
    assert!(!core.shared.health.is_away(), "one answer may get lost");
    assert_eq!(core.passed(9).await, 9);
    assert!(core.shared.health.is_away());
    let counts = core.counts();
    assert_eq!((counts.allowed, counts.unavailable), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_is_asked_now_and_then_and_is_back_with_its_first_answer() {
    let (fake, core) = when_away(LimitFallback::Deny);
    fake.answers(Answers::Never);
    assert_eq!(core.passed(2).await, 0);
    assert!(core.shared.health.is_away());
    let begin = Instant::now();
    let asked = fake.checks();
    assert_eq!(core.passed(100).await, 0);
    assert_eq!((begin.elapsed(), fake.checks()), (Duration::ZERO, asked));
    tokio::time::advance(PROBE_EVERY * 3 / 2).await;
    // One of them asks, the others do not wait for it.
    let together = check(1);
    let together = join_all((0..10).map(|_| core.check(&together, None))).await;
    assert!(together.iter().all(|it| !it.as_ref().unwrap().allowed));
    assert_eq!(fake.checks(), asked + 1);
    fake.answers(Answers::Always);
    tokio::time::advance(PROBE_EVERY * 3 / 2).await;
    assert!(core.check(&check(1), None).await.unwrap().allowed);
    assert!(!core.shared.health.is_away());
    assert_eq!(core.passed(9).await, 2, "and counts as before");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_without_the_cluster_tells_when_to_come_again() {
    let (fake, core) = when_away(LimitFallback::Deny);
    fake.answers(Answers::Never);
    let reply = core.check(&check(1), None).await.unwrap();
    assert!(!reply.allowed && reply.without_cluster);
    assert_eq!(reply.retry_after_ms, Some(500));
    let heals = fake.clone();
    tokio::spawn(async move {
        tokio::time::sleep(3 * PATIENCE).await;
        heals.answers(Answers::Always);
    });
    let waited = core.wait_until_allowed(&check(1), MINUTE).await;
    assert!(!waited.unwrap().unwrap().without_cluster);
}

#[tokio::test(start_paused = true)]
async fn a_process_counts_by_itself_for_each_list_of_descriptors() {
    let limit = LocalLimit {
        hits: 2,
        per: Duration::from_secs(10),
    };
    let (fake, core) = when_away(LimitFallback::Local(limit));
    fake.answers(Answers::Never);
    assert_eq!(core.passed(2).await, 2);
    let refused = core.check(&check(1), None).await.unwrap();
    assert!(!refused.allowed && refused.without_cluster);
    assert_eq!((refused.limit, refused.remaining), (Some(2), Some(0)));
    let retry = Duration::from_millis(refused.retry_after_ms.unwrap());
    assert!(core.check(&of("other"), None).await.unwrap().allowed);
    assert_eq!(
        core.check(&check(3), None).await.unwrap().retry_after_ms,
        None,
        "never"
    );
    tokio::time::advance(retry).await;
    assert_eq!(core.shared.local.check(&check(1), limit).remaining, Some(0));
    tokio::time::advance(limit.per).await;
    assert_eq!(core.shared.local.check(&check(1), limit).remaining, Some(1));
}

#[test]
fn local_limits_of_any_size_are_counted_without_a_panic() {
    let local = LocalCounters::default();
    for hits in [0, 1, u32::MAX] {
        for per in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            for asked in [0, 1, u32::MAX] {
                let reply = local.check(&check(asked), LocalLimit { hits, per });
                assert!(!reply.allowed || asked <= hits);
            }
        }
    }
    for key in 0..20_000 {
        let limit = LocalLimit {
            hits: 1,
            per: MINUTE,
        };
        local.check(&of(&key.to_string()), limit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_may_want_the_error() {
    let (fake, core) = when_away(LimitFallback::Fail);
    fake.answers(Answers::Never);
    for asked in 1..4 {
        let error = core.check(&check(1), None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(fake.checks(), asked, "each asks");
    }
    assert_eq!(core.counts().failed, 3);
    fake.answers(Answers::Forbids);
    let (fake, core) = when_away(LimitFallback::Allow);
    fake.answers(Answers::Forbids);
    let error = core.check(&check(1), None).await.unwrap_err();
    assert_eq!(
        error.kind(),
        Kind::Forbidden,
        "nothing that passes by itself"
    );
}

#[tokio::test(start_paused = true)]
async fn a_busy_cluster_is_not_away() {
    let (fake, core) = when_away(LimitFallback::Allow);
    fake.answers(Answers::Busy);
    assert_eq!(core.passed(5).await, 5);
    assert!(!core.shared.health.is_away());
    assert_eq!(core.counts().unavailable, 5);
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_taken_once_and_spent_without_asking() {
    let (fake, core) = core(100);
    let sliced = Sliced::new(core.clone(), 50);
    let first = sliced.check(&check(1)).await.unwrap();
    assert_eq!((first.limit, first.remaining), (Some(100), Some(99)));
    let begin = Instant::now();
    assert_eq!(sliced.passed(49).await, 49);
    assert_eq!((fake.checks(), begin.elapsed()), (1, Duration::ZERO));
    let next = sliced.check(&check(1)).await.unwrap();
    assert_eq!((fake.checks(), next.remaining), (2, Some(49)));
    assert_eq!(sliced.passed(200).await, 49, "never more than the limit");
    let counts = core.counts();
    assert_eq!((counts.allowed, counts.sliced, counts.slices), (100, 98, 2));
}

#[tokio::test(start_paused = true)]
async fn callers_that_come_together_share_a_slice() {
    let (fake, core) = core(1_000);
    let sliced = Sliced::new(core, 50);
    let one = check(1);
    let all = join_all((0..40).map(|_| sliced.check(&one))).await;
    assert!(all.iter().all(|it| it.as_ref().unwrap().allowed));
    assert_eq!(fake.checks(), 1);
    // Each list of descriptors has its own.
    sliced.check(&of("other")).await.unwrap();
    assert_eq!(fake.checks(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slice_ends_with_its_window_and_is_not_given_back() {
    let (fake, core) = core(100);
    let sliced = Sliced::new(core, 60);
    assert_eq!(sliced.passed(10).await, 10);
    tokio::time::advance(MINUTE).await;
    assert_eq!(sliced.passed(1).await, 1);
    assert_eq!(fake.checks(), 2, "what was left is of the earlier window");
    assert_eq!(fake.counted(), 60);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_limit_is_used_up_one_by_one_and_slices_begin_again() {
    let (fake, core) = core(100);
    let sliced = Sliced::new(core, 60);
    assert_eq!(sliced.passed(300).await, 100, "40 of them one by one");
    assert_eq!(fake.counted(), 100);
    let waits = Duration::from_secs(61);
    tokio::time::advance(waits).await;
    let asked = fake.checks();
    assert_eq!(sliced.passed(60).await, 60);
    assert_eq!(fake.checks(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_is_larger_than_the_limit_is_no_slice() {
    let (_, core) = core(10);
    let sliced = Sliced::new(core.clone(), 50);
    assert_eq!(sliced.passed(30).await, 10);
    assert_eq!(core.counts().slices, 0);
    // Nor is a check that is as large.
    assert!(!sliced.check(&check(50)).await.unwrap().allowed);
}

#[tokio::test(start_paused = true)]
async fn without_the_cluster_a_slice_is_spent_and_then_each_hit_is_decided() {
    let limit = LocalLimit {
        hits: 5,
        per: MINUTE,
    };
    let (fake, core) = when_away(LimitFallback::Local(limit));
    fake.limit(100);
    let sliced = Sliced::new(core.clone(), 10);
    assert_eq!(sliced.passed(1).await, 1);
    fake.answers(Answers::Never);
    assert_eq!(sliced.passed(20).await, 9 + 5, "not ten hits each");
    assert_eq!(core.counts().unavailable, 11);
}

#[tokio::test(start_paused = true)]
async fn slices_of_what_nothing_limits_are_short() {
    let (fake, core) = core(3);
    fake.answers(Answers::Unlimited);
    let sliced = Sliced::new(core, 10);
    assert_eq!(sliced.passed(10).await, 10);
    assert_eq!(fake.checks(), 1);
    assert_eq!(sliced.passed(1).await, 1);
    fake.answers(Answers::Always);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(sliced.passed(9).await, 3, "rules are noticed");
}

/// Each fallback, and a cluster that has too many requests: it is never away.
#[tokio::test(start_paused = true)]
async fn callers_of_a_slice_do_not_queue_for_a_cluster_that_does_not_answer() {
    let local = LocalLimit {
        hits: 5,
        per: MINUTE,
    };
    for answers in [Answers::Never, Answers::Busy] {
        for fallback in [
            LimitFallback::Allow,
            LimitFallback::Deny,
            LimitFallback::Local(local),
            LimitFallback::Fail,
        ] {
            let (fake, core) = when_away(fallback);
            fake.answers(answers);
            let sliced = Sliced::new(core, 2);
            // While it is in doubt, and while it is away.
            for _ in 0..4 {
                let begin = Instant::now();
                let one = check(1);
                join_all((0..20).map(|_| sliced.check(&one))).await;
                let took = begin.elapsed();
                assert!(took <= PATIENCE + TRIP, "{fallback:?}: {took:?}");
            }
            let begin = Instant::now();
            let late = (0..50).map(|nth| {
                let sliced = sliced.clone();
                async move {
                    tokio::time::sleep(PATIENCE * nth / 10).await;
                    let came = Instant::now();
                    let _ = sliced.check(&check(1)).await;
                    came.elapsed()
                }
            });
            let longest = join_all(late).await.into_iter().max().unwrap();
            assert!(longest <= PATIENCE + TRIP, "{fallback:?}: {longest:?}");
            assert!(begin.elapsed() <= 6 * PATIENCE);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_there_for_the_others_if_its_caller_goes() {
    let (fake, core) = core(100);
    let sliced = Sliced::new(core.clone(), 50);
    let one = check(1);
    let goes = tokio::time::timeout(TRIP / 2, sliced.check(&one)).await;
    assert!(goes.is_err());
    assert_eq!(sliced.passed(49).await, 49);
    assert_eq!((fake.checks(), fake.counted()), (1, 50));
    assert_eq!(core.counts().slices, 1);
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_early_find_out_that_the_cluster_is_away() {
    for with_slices in [false, true] {
        let (fake, core) = when_away(LimitFallback::Allow);
        fake.answers(Answers::Never);
        let sliced = Sliced::new(core.clone(), 2);
        let one = check(1);
        let ask = async || {
            let early = PATIENCE / 10;
            match with_slices {
                true => tokio::time::timeout(early, sliced.check(&one)).await,
                false => tokio::time::timeout(early, core.check(&one, None)).await,
            }
        };
        let mut given_up = 0;
        while ask().await.is_err() {
            given_up += 1;
            assert!(given_up < 25, "two calls, one after the other");
        }
        assert!(core.shared.health.is_away());
        fake.answers(Answers::Always);
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!ask().await.unwrap().unwrap().without_cluster);
    }
}

/// Also while the cluster is away.
#[tokio::test(start_paused = true)]
async fn a_check_that_nodes_would_refuse_is_refused_here_and_nothing_is_kept_of_it() {
    let local = LocalLimit {
        hits: 5,
        per: MINUTE,
    };
    let (fake, core) = when_away(LimitFallback::Local(local));
    let sliced = Sliced::new(core.clone(), 10);
    fake.answers(Answers::Never);
    assert_eq!(core.passed(2).await, 2);
    assert!(core.shared.health.is_away());
    let asked = fake.checks();
    for (bad, names) in [
        (of(&"x".repeat(1 << 20)), "descriptors[0][0].value: "),
        (Check::new(Vec::new()), "descriptors: "),
        (Check::new(vec![Vec::new()]), "descriptors[0]: "),
    ] {
        for refused in [core.check(&bad, None).await, sliced.check(&bad).await] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), Kind::BadArgument);
            assert!(error.message().starts_with(names), "{error}");
        }
    }
    assert_eq!((fake.checks(), sliced.slots()), (asked, 0));
}

/// Its last check would have been sent when nobody waits for it any more.
#[tokio::test(start_paused = true)]
async fn waiting_ends_within_its_time_and_nothing_is_counted_after_it() {
    for extra_ms in 1..60 {
        let (fake, core) = core(1);
        assert_eq!(core.passed(1).await, 1);
        let within = MINUTE - TRIP + Duration::from_millis(extra_ms);
        let begin = Instant::now();
        let waited = core.wait_until_allowed(&check(1), within).await.unwrap();
        assert!(begin.elapsed() <= within + TRIP, "{extra_ms}");
        tokio::time::sleep(MINUTE / 2).await;
        assert_eq!(waited.is_some(), fake.counted() == 1, "{extra_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_for_a_fast_limit_do_not_ask_all_the_time() {
    let fake = Fake::new(1, Duration::from_millis(1));
    let domain = LineName::try_from("shop").unwrap();
    let core = Core::new(fake.clone(), domain, LimiterOptions::default());
    fake.answers(Answers::Full);
    let waited = core
        .wait_until_allowed(&check(1), Duration::from_secs(10))
        .await;
    assert_eq!(waited.unwrap(), None);
    assert!(fake.checks() < 70, "{}", fake.checks());
}

/// Not by `Allow`: the cluster is there, and the last attempt had too little time.
#[tokio::test(start_paused = true)]
async fn a_refused_caller_whose_time_ends_is_not_let_through() {
    for fallback in [LimitFallback::Allow, LimitFallback::Fail] {
        let (fake, core) = when_away(fallback);
        fake.answers(Answers::Full);
        let dies = fake.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE * 3 / 2).await;
            dies.answers(Answers::Never);
        });
        let waited = core.wait_until_allowed(&check(1), 2 * PATIENCE).await;
        assert_eq!(waited.unwrap(), None);
        assert_eq!(core.counts().unavailable, 0);
    }
    // One that has had no answer at all is decided by the fallback.
    let (fake, core) = when_away(LimitFallback::Allow);
    fake.answers(Answers::Never);
    let waited = core.wait_until_allowed(&check(1), PATIENCE / 2).await;
    assert!(waited.unwrap().unwrap().without_cluster);
}
