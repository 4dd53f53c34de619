//! `auto_seats`, with handlers that take longer the more of them run.

use std::sync::atomic::{AtomicUsize, Ordering};

use nowserving_adapt::{AutoSeats, Outcome, Target};

use super::*;
use crate::guard::auto::{TELL_EVERY, TOLD_FOR};

const KNEE: usize = 8;
const ALONE: Duration = Duration::from_millis(100);
const BOUNDS: std::ops::RangeInclusive<u32> = 2..=64;

/// Twice what a handler takes alone: 16 at once.
fn twice() -> Target {
    Target::Latency(ALONE * 2)
}

fn options(target: Target) -> GuardOptions {
    GuardOptions {
        auto_seats: Some(AutoSeats::new(*BOUNDS.start(), *BOUNDS.end(), target).unwrap()),
        ..GuardOptions::default()
    }
}

fn rig(seats: usize, target: Target) -> Rig {
    Rig::with(seats, 1_000, options(target))
}

/// A service, perhaps behind several guards, and how many of its handlers run.
#[derive(Clone, Default)]
struct Service(Arc<AtomicUsize>);

impl Service {
    async fn handler(&self) {
        let running = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let each = running.max(KNEE) as u32;
        tokio::time::sleep(ALONE * each / KNEE as u32).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn load(&self) -> f64 {
        (self.0.load(Ordering::SeqCst) as f64 / KNEE as f64).min(1.0)
    }

    /// So many callers come again and again.
    fn is_asked_by(&self, rig: &Rig, callers: usize) {
        for _ in 0..callers {
            let (fake, shared, service) = (rig.fake.clone(), rig.shared.clone(), self.clone());
            tokio::spawn(async move {
                loop {
                    let slot = acquire(&fake, &shared, Ask::default()).await.unwrap();
                    slot.run(service.handler()).await.unwrap();
                }
            });
        }
    }
}

/// A second guard over the same line.
fn beside(rig: &Rig, target: Target) -> Rig {
    Rig {
        fake: rig.fake.clone(),
        shared: Arc::new(Shared::new("fake", options(target))),
    }
}

/// The fewest and the most seats in 20 seconds, 45 seconds from now. Not longer: every caller that waits costs the fake something
/// whenever a handler ends.
async fn settled(rig: &Rig) -> (usize, usize) {
    tokio::time::sleep(Duration::from_secs(45)).await;
    let (mut least, mut most) = (usize::MAX, 0);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        least = least.min(rig.fake.seats());
        most = most.max(rig.fake.seats());
    }
    (least, most)
}

fn in_bounds(rig: &Rig) {
    let told = rig.fake.told();
    assert!(told.iter().all(|seats| BOUNDS.contains(seats)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn seats_follow_the_time_of_handlers() {
    for seats in [1, 40, 200] {
        let rig = rig(seats, twice());
        Service::default().is_asked_by(&rig, 40);
        // A seat is held a little longer than its handler runs.
        let (least, most) = settled(&rig).await;
        assert!(least >= 14 && most <= 22, "{seats}: {least} to {most}");
        in_bounds(&rig);
        let counts = rig.counts();
        // The answer to the last one may be on its way.
        let unanswered = rig.fake.told().len() as u64 - counts.seats_told;
        assert!(unanswered <= 1, "{unanswered}");
        assert_eq!(counts.tell_failed, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn fewer_handlers_than_half_of_the_seats_can_be_too_many() {
    let options = GuardOptions {
        auto_seats: Some(AutoSeats::new(2, 200, twice()).unwrap()),
        ..GuardOptions::default()
    };
    let rig = Rig::with(100, 1_000, options);
    Service::default().is_asked_by(&rig, 40);
    let (least, most) = settled(&rig).await;
    assert!(least >= 14 && most <= 22, "{least} to {most}");
}

#[tokio::test(start_paused = true)]
async fn several_processes_decide_together() {
    let one = rig(40, twice());
    let (two, three) = (beside(&one, twice()), beside(&one, twice()));
    let service = Service::default();
    for (rig, callers) in [(&one, 24), (&two, 12), (&three, 4)] {
        service.is_asked_by(rig, callers);
    }
    let (least, most) = settled(&one).await;
    assert!(least >= 13 && most <= 23, "{least} to {most}");
    in_bounds(&one);
}

#[tokio::test(start_paused = true)]
async fn seats_follow_the_load_that_is_reported() {
    let rig = rig(40, Target::Load(0.7));
    let service = Service::default();
    service.is_asked_by(&rig, 40);
    let (reported, shared) = (service.clone(), rig.shared.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            shared.report_load(reported.load());
        }
    });
    // 5.6 handlers at once.
    let (least, most) = settled(&rig).await;
    assert!(least >= 5 && most <= 9, "{least} to {most}");
}

#[tokio::test(start_paused = true)]
async fn the_load_of_an_outage_is_not_that_of_the_seats() {
    let rig = rig(40, Target::Load(0.7));
    let held = rig.acquire().await.unwrap();
    rig.fake.answers(Answers::OnlyReads);
    drop(rig.acquire().await.unwrap());
    drop(rig.acquire().await.unwrap());
    rig.until_away(true).await;
    rig.shared.report_load(1.0);
    let is_due = |rig: &Rig| {
        let auto = rig.shared.auto.as_ref().unwrap();
        auto.is_due()
    };
    assert!(!is_due(&rig));
    rig.fake.answers(Answers::Always);
    rig.until_away(false).await;
    rig.shared.report_load(1.0);
    assert!(is_due(&rig));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn without_reports_the_seats_stay() {
    let rig = rig(40, Target::Load(0.7));
    Service::default().is_asked_by(&rig, 40);
    assert_eq!(settled(&rig).await, (40, 40));
}

#[tokio::test(start_paused = true)]
async fn seats_that_are_not_used_stay_and_are_told_again_before_they_are_silent() {
    const { assert!(TELL_EVERY.as_millis() * 3 < TOLD_FOR.as_millis()) };
    let rig = rig(40, twice());
    Service::default().is_asked_by(&rig, 4);
    assert_eq!(settled(&rig).await, (40, 40));
    let told = rig.fake.told();
    assert!(told.iter().all(|seats| *seats == 40), "{told:?}");
    let seconds = 65;
    let fewest = seconds / (TELL_EVERY.as_secs() as usize * 3 / 2 + 1);
    let most = seconds / TELL_EVERY.as_secs() as usize + 1;
    assert!((fewest..=most).contains(&told.len()), "{}", told.len());
}

#[tokio::test(start_paused = true)]
async fn seats_out_of_bounds_are_brought_into_them_at_once() {
    for (seats, told) in [(1, 2), (200, 64)] {
        let rig = rig(seats, twice());
        drop(rig.acquire().await.unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.fake.told(), [told]);
    }
}

#[tokio::test(start_paused = true)]
async fn handlers_that_fail_at_once_are_not_fast_ones() {
    let rig = rig(4, twice());
    for nth in 0..20 {
        let (fake, shared) = (rig.fake.clone(), rig.shared.clone());
        tokio::spawn(async move {
            loop {
                let mut slot = acquire(&fake, &shared, Ask::default()).await.unwrap();
                tokio::time::sleep(TRIP).await;
                if nth % 2 == 0 {
                    slot.set_outcome(Outcome::Failed);
                    drop(slot);
                } else {
                    let work = async { Err::<(), ()>(()) };
                    slot.run_measured(work, Result::is_ok)
                        .await
                        .unwrap()
                        .unwrap_err();
                }
            }
        });
    }
    assert_eq!(settled(&rig).await, (4, 4));
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_tell_callers_are_served() {
    let rig = rig(4, twice());
    rig.fake.answers(Answers::ForbidsTelling);
    Service::default().is_asked_by(&rig, 20);
    assert_eq!(settled(&rig).await, (4, 4));
    let counts = rig.counts();
    assert!(counts.allowed > 1_000, "{counts:?}");
    assert!((10..=33).contains(&counts.tell_failed), "{counts:?}");
    assert_eq!(counts.seats_told, 0);
    assert!(!rig.shared.is_away());
    rig.fake.answers(Answers::Always);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(rig.fake.seats() > 4);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_while_the_cluster_is_away_nor_by_a_guard_that_is_gone() {
    let rig = rig(40, twice());
    drop(rig.acquire().await.unwrap());
    tokio::time::sleep(Duration::from_secs(60)).await;
    rig.fake.answers(Answers::OnlyReads);
    drop(rig.acquire().await.unwrap());
    drop(rig.acquire().await.unwrap());
    rig.until_away(true).await;
    let before = rig.counts();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let away = rig.counts();
    assert_eq!(away.seats_told, before.seats_told);
    assert!(away.tell_failed <= before.tell_failed + 1, "{away:?}");
    rig.fake.answers(Answers::Always);
    rig.until_away(false).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(rig.counts().seats_told > away.seats_told);
    let told = rig.fake.told().len();
    let Rig { fake, shared } = rig;
    drop(shared);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fake.told().len(), told);
}

#[tokio::test(start_paused = true)]
async fn without_auto_seats_nothing_is_told() {
    let rig = Rig::new(4, 100);
    Service::default().is_asked_by(&rig, 20);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.fake.told(), [0; 0]);
}
