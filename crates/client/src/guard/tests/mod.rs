#![allow(clippy::unwrap_used)]

mod auto;
mod fake;

use std::sync::Mutex;

use futures::FutureExt;
use tokio::task::JoinHandle;

use self::fake::{Answers, CHECKOUT, CHECKOUT_MAX, Fake, PATIENCE, TRIP};
use super::away::PROBE_EVERY;
use super::*;

struct Rig {
    fake: Fake,
    shared: Arc<Shared>,
}

impl Rig {
    fn new(seats: usize, queue_limit: usize) -> Rig {
        Rig::with(seats, queue_limit, GuardOptions::default())
    }

    fn with(seats: usize, queue_limit: usize, options: GuardOptions) -> Rig {
        Rig {
            fake: Fake::new(seats, queue_limit),
            shared: Arc::new(Shared::new("fake", options)),
        }
    }

    fn when_away(on_unavailable: OnUnavailable) -> Rig {
        let options = GuardOptions {
            on_unavailable,
            ..GuardOptions::default()
        };
        Rig::with(2, 10, options)
    }

    async fn acquire(&self) -> Result<Slot, Refused> {
        acquire(&self.fake, &self.shared, Ask::default()).await
    }

    /// A caller in a task of its own.
    fn asks(&self) -> JoinHandle<Result<Slot, Refused>> {
        let (fake, shared) = (self.fake.clone(), self.shared.clone());
        tokio::spawn(async move { acquire(&fake, &shared, Ask::default()).await })
    }

    /// A caller that waits in line already.
    async fn waits(&self) -> JoinHandle<Result<Slot, Refused>> {
        let waiting = self.fake.live().0;
        let asks = self.asks();
        while self.fake.live().0 == waiting {
            tokio::time::sleep(TRIP).await;
        }
        asks
    }

    async fn until_live(&self, live: (usize, usize)) {
        for _ in 0..4_000 {
            if self.fake.live() == live {
                return;
            }
            tokio::time::sleep(TRIP).await;
        }
        panic!("{:?} instead of {live:?}", self.fake.live());
    }

    /// Until the cluster is away, or is not.
    async fn until_away(&self, away: bool) {
        for _ in 0..4_000 {
            if self.shared.is_away() == away {
                return;
            }
            tokio::time::sleep(TRIP).await;
        }
        panic!("away: {}", !away);
    }

    fn counts(&self) -> GuardCounts {
        self.shared.counts.snapshot()
    }

    async fn all_is_free(&self) {
        self.until_live((0, 0)).await;
        self.shared.drained().await;
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_run_as_there_are_seats() {
    let rig = Rig::new(3, 100);
    let running = Arc::new(Mutex::new((0, 0)));
    let handlers = (0..40).map(|nth| {
        let (asks, running) = (rig.asks(), running.clone());
        tokio::spawn(async move {
            let slot = asks.await.unwrap().unwrap();
            {
                let mut running = running.lock().unwrap();
                running.0 += 1;
                running.1 = running.0.max(running.1);
            }
            tokio::time::sleep(Duration::from_millis(10 + nth % 7)).await;
            running.lock().unwrap().0 -= 1;
            drop(slot);
        })
    });
    let handlers: Vec<_> = handlers.collect();
    for handler in handlers {
        handler.await.unwrap();
    }
    assert_eq!(running.lock().unwrap().1, 3);
    rig.all_is_free().await;
    let counts = rig.counts();
    assert_eq!((counts.allowed, counts.blocked), (40, 0));
    assert_eq!((counts.enqueued, counts.dequeued), (37, 37));
}

#[tokio::test(start_paused = true)]
async fn slots_are_given_in_the_order_of_the_line() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    let began = Arc::new(Mutex::new(Vec::new()));
    let mut handlers = Vec::new();
    for nth in 0..6 {
        let (waits, began) = (rig.waits().await, began.clone());
        handlers.push(tokio::spawn(async move {
            let slot = waits.await.unwrap().unwrap();
            began.lock().unwrap().push((nth, slot.token()));
            drop(slot);
        }));
    }
    drop(slot);
    for handler in handlers {
        handler.await.unwrap();
    }
    let in_order: Vec<_> = (0..6).map(|nth| (nth, Some(nth + 2))).collect();
    assert_eq!(*began.lock().unwrap(), in_order);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_comes_free_however_its_handler_ends() {
    let rig = Rig::new(1, 10);
    drop(rig.acquire().await.unwrap());
    let slot = rig.acquire().await.unwrap();
    let panics = tokio::spawn(slot.run(async { panic!("as the test wants") }));
    assert!(panics.await.unwrap_err().is_panic());
    let slot = rig.acquire().await.unwrap();
    let hangs = tokio::spawn(slot.run(std::future::pending::<()>()));
    tokio::task::yield_now().await;
    hangs.abort();
    let slot = rig.acquire().await.unwrap();
    assert_eq!(slot.run(async { 7 }).await, Ok(7));
    let slot = rig.acquire().await.unwrap();
    assert_eq!(rig.fake.live(), (0, 1));
    slot.release().await;
    assert_eq!(rig.fake.live(), (0, 0));
    assert_eq!(rig.fake.admitted(), [1, 2, 3, 4, 5]);
    assert_eq!(rig.counts().lost, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_waiting_is_out_of_the_line() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    let (second, third) = (rig.waits().await, rig.waits().await);
    second.abort();
    rig.until_live((1, 1)).await;
    assert_eq!(rig.fake.reason(2), "left");
    // Gone before the answer to `enter` was there.
    let fourth = rig.asks();
    tokio::time::sleep(TRIP + TRIP / 2).await;
    assert_eq!(rig.fake.live(), (2, 1));
    fourth.abort();
    rig.until_live((1, 1)).await;
    drop(slot);
    let slot = third.await.unwrap().unwrap();
    assert_eq!(slot.token(), Some(3));
    assert_eq!(rig.counts().left, 2);
    drop(slot);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_it_is_admitted_frees_the_seat() {
    let rig = Rig::new(1, 10);
    let first = rig.asks();
    // `enter` is answered, and `claim` is under way.
    tokio::time::sleep(TRIP * 2 + TRIP / 2).await;
    first.abort();
    let slot = rig.acquire().await.unwrap();
    assert_eq!(slot.token(), Some(2));
    assert_eq!(rig.fake.reason(1), "completed");
    drop(slot);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_line_and_a_long_wait_are_told_apart() {
    let rig = Rig::new(1, 1);
    let slot = rig.acquire().await.unwrap();
    let ask = Ask::default().max_wait(Duration::from_secs(5));
    let (fake, shared) = (rig.fake.clone(), rig.shared.clone());
    let waits = tokio::spawn(async move { acquire(&fake, &shared, ask).await });
    rig.until_live((1, 1)).await;
    let full = rig.acquire().await.unwrap_err();
    assert!(matches!(full, Refused::Full { .. }), "{full}");
    assert_eq!(full.retry_after(), Some(Duration::from_secs(3)));
    let late = waits.await.unwrap().unwrap_err();
    let Refused::WaitedTooLong { waited } = late else {
        panic!("{late}");
    };
    assert_eq!(waited, Duration::from_secs(5));
    // The line's own limit.
    rig.until_live((0, 1)).await;
    let waits = rig.waits().await;
    rig.fake.end(3, "wait_expired");
    let late = waits.await.unwrap().unwrap_err();
    assert!(matches!(late, Refused::WaitedTooLong { .. }), "{late}");
    let waits = rig.waits().await;
    rig.fake.end(4, "kicked");
    let kicked = waits.await.unwrap().unwrap_err();
    assert!(matches!(&kicked, Refused::Removed { reason } if reason == "kicked"));
    let counts = rig.counts();
    assert_eq!((counts.blocked, counts.full, counts.late), (4, 1, 2));
    assert_eq!(counts.left, 0);
    drop(slot);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_renewed_while_the_slot_is_held() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    let waits = rig.waits().await;
    tokio::time::sleep(CHECKOUT * 9).await;
    assert_eq!(rig.fake.live(), (1, 1));
    assert!(slot.lost().now_or_never().is_none());
    let renewals = rig.fake.renewals();
    assert!((26..=27).contains(&renewals), "{renewals}");
    // `checkout_max_ms` is over: the slot is lost before the next one is admitted.
    let begin = Instant::now();
    slot.lost().await;
    assert!(begin.elapsed() <= CHECKOUT_MAX - CHECKOUT * 9);
    assert_eq!(rig.fake.live(), (1, 1));
    assert_eq!(rig.counts().lost, 1);
    let next = waits.await.unwrap().unwrap();
    assert!(next.epoch() > slot.epoch());
    drop((slot, next));
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_seat_was_taken_away_is_told() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    rig.fake.end(1, "kicked");
    assert_eq!(slot.run(std::future::pending::<()>()).await, Err(Lost));
    assert_eq!(rig.counts().lost, 1);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_cluster_callers_are_allowed_by_default() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    let held = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::Never);
    let begin = Instant::now();
    let first = rig.acquire().await.unwrap();
    assert_eq!(first.kind(), SlotKind::Allowed);
    assert_eq!((first.token(), first.epoch()), (None, None));
    assert_eq!(begin.elapsed(), TRIP + PATIENCE);
    rig.until_away(true).await;
    // From now on nobody waits for it.
    let begin = Instant::now();
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Allowed);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    // The cluster's clock stands still: the seat is kept, however long it takes.
    tokio::time::sleep(CHECKOUT * 3).await;
    assert!(held.lost().now_or_never().is_none());
    rig.fake.answers(Answers::Always);
    rig.until_away(false).await;
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Seat);
    assert_eq!(rig.counts().unavailable, 2);
    tokio::time::sleep(CHECKOUT * 3).await;
    assert!(held.lost().now_or_never().is_none());
    assert_eq!(rig.counts().lost, 0);
    drop((first, held));
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_cluster_callers_can_be_denied_and_seats_end_by_our_clock() {
    let rig = Rig::when_away(OnUnavailable::Deny);
    let held = rig.acquire().await.unwrap();
    let begin = Instant::now();
    rig.fake.answers(Answers::Never);
    for _ in 0..2 {
        let denied = rig.acquire().await.unwrap_err();
        assert!(matches!(denied, Refused::Unavailable), "{denied}");
    }
    held.lost().await;
    // No later than the cluster could give it to another.
    assert!(begin.elapsed() <= CHECKOUT);
    assert!(begin.elapsed() >= CHECKOUT - TRIP * 4);
    drop(held);
    rig.fake.answers(Answers::Always);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_cluster_a_process_can_limit_itself() {
    let options = GuardOptions {
        on_unavailable: OnUnavailable::Local(2),
        max_wait: Some(Duration::from_secs(20)),
        ..GuardOptions::default()
    };
    let rig = Rig::with(2, 10, options);
    rig.fake.answers(Answers::Never);
    let (first, second) = (rig.acquire().await.unwrap(), rig.acquire().await.unwrap());
    assert_eq!(second.kind(), SlotKind::Local);
    let late = rig.acquire().await.unwrap_err();
    assert!(matches!(late, Refused::WaitedTooLong { .. }), "{late}");
    let third = rig.asks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!third.is_finished());
    drop(first);
    drop(third.await.unwrap().unwrap());
    drop(second);
    rig.shared.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_decided_by_its_own_next_poll_when_the_cluster_goes() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    let seats = (rig.acquire().await.unwrap(), rig.acquire().await.unwrap());
    let waits = rig.waits().await;
    rig.fake.answers(Answers::Never);
    let slot = waits.await.unwrap().unwrap();
    assert_eq!(slot.kind(), SlotKind::Allowed);
    assert!(slot.waited() > PATIENCE);
    // Its place is given up when the cluster is back; it gets no seat as well.
    drop(seats);
    tokio::time::sleep(PATIENCE * 3).await;
    rig.fake.answers(Answers::Always);
    rig.until_live((0, 0)).await;
    assert_eq!(rig.fake.reason(3), "left");
    drop(slot);
    rig.all_is_free().await;
    assert_eq!(rig.counts().abandoned, 0);
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_in_the_process_enter_the_line_when_the_cluster_is_back() {
    for limit in [0, 1] {
        let rig = Rig::when_away(OnUnavailable::Local(limit));
        rig.fake.answers(Answers::Never);
        let mut slots = Vec::new();
        for _ in 0..limit {
            slots.push(rig.acquire().await.unwrap());
        }
        let waits = rig.asks();
        rig.until_away(true).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(!waits.is_finished());
        rig.fake.answers(Answers::Always);
        let slot = waits.await.unwrap().unwrap();
        assert_eq!(slot.kind(), SlotKind::Seat);
        drop((slot, slots));
        rig.all_is_free().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_entrant_without_an_answer_does_not_stay_in_line() {
    for answers in [Answers::NotToEnter, Answers::EnterLate] {
        let rig = Rig::when_away(OnUnavailable::Deny);
        rig.fake.answers(answers);
        assert!(rig.acquire().await.is_err());
        rig.until_live((0, 1)).await;
        rig.all_is_free().await;
        assert_eq!(rig.fake.reason(1), "left");
        assert_eq!(rig.counts().abandoned, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_without_an_answer_does_not_make_the_cluster_away() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    rig.fake.answers(Answers::NotToEnter);
    // For this one caller the choice decides.
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Allowed);
    rig.fake.answers(Answers::Always);
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Seat);
    for _ in 0..1_000 {
        assert!(!rig.shared.is_away());
        tokio::time::sleep(TRIP).await;
    }
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_answers_only_reads_is_away_until_a_write_is_answered() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    rig.fake.answers(Answers::OnlyReads);
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Allowed);
    assert!(!rig.shared.is_away(), "a read is answered");
    assert_eq!(rig.acquire().await.unwrap().kind(), SlotKind::Allowed);
    assert!(rig.shared.is_away());
    for _ in 0..1_000 {
        assert!(rig.shared.is_away());
        tokio::time::sleep(PROBE_EVERY).await;
    }
    rig.fake.answers(Answers::Always);
    rig.until_away(false).await;
    // The probe has left the line.
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_cluster_is_not_away() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    rig.fake.answers(Answers::Busy);
    for _ in 0..3 {
        let busy = rig.acquire().await.unwrap_err();
        assert!(matches!(busy, Refused::Overloaded { .. }), "{busy}");
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(2)));
        assert!(!rig.shared.is_away());
    }
}

#[tokio::test(start_paused = true)]
async fn seats_are_given_back_after_an_outage_of_any_length() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    let slot = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::Never);
    drop(slot);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    rig.fake.answers(Answers::Always);
    rig.all_is_free().await;
    assert_eq!(rig.fake.reason(1), "completed");
    assert_eq!(rig.counts().abandoned, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_the_cluster_refuses_is_counted() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::Forbids);
    slot.release().await;
    assert_eq!(rig.counts().abandoned, 1);
    // Of a token that is gone there is nothing to give back.
    rig.fake.answers(Answers::Always);
    rig.fake.end(1, "kicked");
    let slot = rig.acquire().await.unwrap();
    rig.fake.end(2, "kicked");
    slot.release().await;
    assert_eq!(rig.counts().abandoned, 1);
}

#[tokio::test(start_paused = true)]
async fn a_moved_token_is_claimed_by_its_new_ticket() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    let (second, third) = (rig.waits().await, rig.waits().await);
    rig.fake.moves(2);
    rig.fake.moves(3);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The new ticket is the one to leave with, too.
    third.abort();
    rig.until_live((1, 1)).await;
    assert_eq!(rig.fake.reason(3), "left");
    drop(slot);
    assert_eq!(second.await.unwrap().unwrap().token(), Some(2));
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_covers_entering_and_may_be_any_duration() {
    let rig = Rig::new(1, 10);
    let ask = Ask::default().max_wait(Duration::MAX);
    drop(acquire(&rig.fake, &rig.shared, ask).await.unwrap());
    rig.fake.answers(Answers::NotToEnter);
    let ask = Ask::default().max_wait(PATIENCE / 2);
    let begin = Instant::now();
    let late = acquire(&rig.fake, &rig.shared, ask).await.unwrap_err();
    assert!(matches!(late, Refused::WaitedTooLong { .. }), "{late}");
    assert_eq!(begin.elapsed(), PATIENCE / 2);
    rig.fake.answers(Answers::Always);
    rig.all_is_free().await;
    let counts = rig.counts();
    assert_eq!((counts.late, counts.left), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_told_too_early_is_not_claimed_in_a_loop() {
    let rig = Rig::new(1, 10);
    let slot = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::Early);
    let waits = rig.asks();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let claims = rig.fake.claims();
    assert!((10..=41).contains(&claims), "{claims}");
    drop(slot);
    assert_eq!(waits.await.unwrap().unwrap().token(), Some(2));
    rig.all_is_free().await;
}

/// Without a runtime nobody renews the claim, and nobody asks whether the cluster is back.
#[test]
fn a_seat_is_lost_with_the_runtime_that_renews_it() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let (rig, slot, given_back) = runtime.block_on(async {
        let rig = Rig::when_away(OnUnavailable::Allow);
        let (slot, second) = (rig.acquire().await.unwrap(), rig.acquire().await.unwrap());
        let given_back = second.lost();
        second.release().await;
        rig.fake.answers(Answers::Never);
        let _ = rig.acquire().await;
        rig.until_away(true).await;
        (rig, slot, given_back)
    });
    assert!(slot.lost().now_or_never().is_none());
    drop(runtime);
    assert!(slot.lost().now_or_never().is_some());
    assert!(given_back.now_or_never().is_none());
    assert!(!rig.shared.is_away());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_drains_refuses_and_waits_for_all_slots() {
    let rig = Rig::when_away(OnUnavailable::Allow);
    let seat = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::Never);
    let allowed = rig.acquire().await.unwrap();
    assert_eq!(allowed.kind(), SlotKind::Allowed);
    rig.fake.answers(Answers::Always);
    let shared = rig.shared.clone();
    let drains = tokio::spawn(async move { shared.drained().await });
    tokio::task::yield_now().await;
    let refused = rig.acquire().await.unwrap_err();
    assert!(matches!(refused, Refused::Busy), "{refused}");
    seat.release().await;
    tokio::time::sleep(CHECKOUT).await;
    assert!(!drains.is_finished());
    drop(allowed);
    drains.await.unwrap();
    // Also afterwards, with and without the cluster; and it can be called again.
    rig.shared.drained().await;
    assert!(rig.acquire().await.is_err());
    assert!(Outside::new(&rig.shared).is_err());
    assert_eq!(rig.fake.live(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn each_step_of_a_count_is_an_event() {
    let rig = Rig::new(1, 10);
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let push = move |event: GuardEvent| seen.lock().unwrap().push(event);
    assert!(rig.shared.counts.observe(Box::new(push)));
    assert!(!rig.shared.counts.observe(Box::new(|_| {})));
    let slot = rig.acquire().await.unwrap();
    let waits = rig.waits().await;
    tokio::time::sleep(TRIP * 4).await;
    // The waiting caller's own decision is not made yet.
    let first = vec![GuardEvent::Allowed, GuardEvent::Enqueued];
    assert_eq!(*events.lock().unwrap(), first);
    waits.abort();
    rig.until_live((0, 1)).await;
    let then = [GuardEvent::Left, GuardEvent::Dequeued];
    assert_eq!(events.lock().unwrap()[2..], then);
    drop(slot);
    rig.all_is_free().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_bounded_and_can_be_waited_for() {
    let options = GuardOptions {
        in_flight_max: 2,
        ..GuardOptions::default()
    };
    let rig = Rig::with(2, 10, options);
    let (first, second) = (rig.acquire().await.unwrap(), rig.acquire().await.unwrap());
    let busy = rig.acquire().await.unwrap_err();
    assert!(matches!(busy, Refused::Busy), "{busy}");
    drop(second);
    rig.until_live((0, 1)).await;
    assert!(rig.shared.drained().now_or_never().is_none());
    drop(first);
    rig.shared.drained().await;
    assert_eq!(rig.fake.live(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn each_visit_has_a_key_of_its_own_that_begins_with_the_label() {
    let rig = Rig::new(2, 10);
    let ask = || acquire(&rig.fake, &rig.shared, Ask::default().label("billing"));
    let _slots = (ask().await.unwrap(), ask().await.unwrap());
    let keys = rig.fake.keys();
    assert!(keys.iter().all(|key| key.starts_with(b"billing-")));
    assert_ne!(keys[0], keys[1]);
    let bad = Ask::default().label("x".repeat(65));
    let bad = acquire(&rig.fake, &rig.shared, bad).await.unwrap_err();
    assert!(matches!(bad, Refused::Failed(_)), "{bad}");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_releases_on_claim_guards_nothing() {
    let rig = Rig::new(1, 10);
    rig.fake.release_on_claim();
    let failed = rig.acquire().await.unwrap_err();
    assert!(failed.to_string().contains("release_on_claim"), "{failed}");
}
