//! The shoppers' arrivals and behaviour, drawn from one seed; and the times of the line, derived
//! so that a run takes as long as asked for, whatever the number of shoppers and seats.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// Most come within this part of the show, faster than they are served: a crowd waits.
const RUSH: f64 = 1.0 / 3.0;
/// The share that comes in the rush; the others trickle in until [`LAST_ARRIVAL`], so that
/// numbers are still being drawn when the leader dies.
const RUSH_SHARE: f64 = 0.85;
const LAST_ARRIVAL: f64 = 0.65;
/// Share of all shoppers that misbehave in each way, in percent. Together at most 20.
const MOODS: [(Mood, usize); 5] = [
    (Mood::LeavesWaiting, 6),
    (Mood::VanishesWaiting, 4),
    (Mood::NeverClaims, 1),
    (Mood::LeavesCheckout, 3),
    (Mood::VanishesCheckout, 2),
];
/// Percent of shoppers whose `enter` is sent again, with the same key.
const DOUBLE_CLICK_PERCENT: u32 = 5;
/// Share of shoppers that watch the board; the others ask every `poll_after_ms`.
const WATCHERS_PERCENT: usize = 60;
/// How long an admitted shopper takes on average to find out and claim, as measured.
const CLAIM_LAG_S: f64 = 0.35;
const SERVICE_MIN_S: f64 = 0.02;
const SERVICE_MAX_S: f64 = 12.0;

/// The size of a crowd.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub shoppers: u32,
    /// Seats of their line.
    pub seats: u32,
    /// From the first arrival until the last shopper is through, if all goes well.
    pub lasts: Duration,
}

/// The behaviour of a shopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mood {
    /// Waits, claims, completes.
    Buys,
    /// Runs out of patience and leaves the line, unless called before that.
    LeavesWaiting,
    /// Goes silent in the line, unless called before that.
    VanishesWaiting,
    /// Is admitted and does not come.
    NeverClaims,
    /// Leaves in the middle of the checkout.
    LeavesCheckout,
    /// Goes silent in the checkout.
    VanishesCheckout,
}

/// One shopper's part.
#[derive(Debug, Clone)]
pub struct Part {
    /// Tells shoppers apart; also their key.
    pub shopper: u32,
    /// Counted from the start of the show.
    pub arrives: Duration,
    pub mood: Mood,
    /// How long they bear to wait, if their mood is to give up or vanish waiting.
    pub patience: Duration,
    /// How long they need in the checkout.
    pub service: Duration,
    /// They watch the board instead of asking every now and then.
    pub watches: bool,
    /// They press the button twice.
    pub double_clicks: bool,
}

/// The times of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// `waiting_idle_timeout_ms` of the line.
    pub waiting_idle: Duration,
    /// `claim_timeout_ms` of the line.
    pub claim: Duration,
    /// `checkout_timeout_ms` of the line.
    pub checkout: Duration,
    /// How often somebody in the checkout renews.
    pub renew: Duration,
    /// When the leader is killed.
    pub kill: Duration,
    /// When it is started again.
    pub restart: Duration,
    /// By when the show must be over: past it something is badly wrong.
    pub deadline: Duration,
}

impl Times {
    /// Whether a token may be gone for this reason so long after its deadline began at the earliest. `seated`: its claim was
    /// answered.
    pub fn may_expire_in(&self, passed: Duration, reason: &str, seated: bool) -> bool {
        let timeout = match (reason, seated) {
            ("idle", false) => self.waiting_idle,
            ("no_show", false) => self.claim,
            // Before an answer, too: it can be lost.
            ("checkout_expired", _) => self.checkout,
            _ => return false,
        };
        passed >= timeout
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    /// Sorted by `arrives`.
    pub parts: Vec<Part>,
    /// Settings of the line and of the show.
    pub times: Times,
}

impl Plan {
    /// Draws the show; the same arguments give the same plan.
    pub fn draw(seed: u64, size: Size) -> Plan {
        let shoppers = size.shoppers;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut moods = moods(shoppers as usize);
        moods.shuffle(&mut rng);
        let watchers = shoppers as usize * WATCHERS_PERCENT / 100;
        let mut watches: Vec<bool> = (0..shoppers as usize).map(|i| i < watchers).collect();
        watches.shuffle(&mut rng);
        let times = times(size);
        let service_s = mean_service_s(size);
        let mut parts: Vec<Part> = (1..=shoppers)
            .zip(moods.into_iter().zip(watches))
            .map(|(shopper, (mood, watches))| Part {
                shopper,
                arrives: arrival(&mut rng, size.lasts),
                mood,
                patience: Duration::from_secs_f64(rng.random_range(0.5..12.0)),
                service: Duration::from_secs_f64(service_s * rng.random_range(0.5..1.5)),
                watches,
                double_clicks: rng.random_ratio(DOUBLE_CLICK_PERCENT, 100),
            })
            .collect();
        parts.sort_by_key(|part| part.arrives);
        Plan { parts, times }
    }
}

/// Exact shares, rounded down: never more than they add up to give up or vanish.
fn moods(shoppers: usize) -> Vec<Mood> {
    let mut moods = Vec::with_capacity(shoppers);
    for (mood, percent) in MOODS {
        moods.extend(std::iter::repeat_n(mood, shoppers * percent / 100));
    }
    moods.resize(shoppers, Mood::Buys);
    moods
}

fn arrival(rng: &mut StdRng, lasts: Duration) -> Duration {
    let share = if rng.random_bool(RUSH_SHARE) {
        rng.random_range(0.0..RUSH)
    } else {
        rng.random_range(RUSH..LAST_ARRIVAL)
    };
    lasts.mul_f64(share)
}

/// Every seat is free for the next one this often, if all are to get through in time.
fn seat_turn_s(size: Size) -> f64 {
    size.lasts.as_secs_f64() * f64::from(size.seats) / f64::from(size.shoppers.max(1))
}

/// The part of a seat's turn that is left for the checkout itself, after the time in which the seat is empty.
fn mean_service_s(size: Size) -> f64 {
    let turn_s = seat_turn_s(size);
    let times = times(size);
    let share = |mood| {
        let percent = MOODS
            .iter()
            .find(|(m, _)| *m == mood)
            .map_or(0, |(_, percent)| *percent);
        percent as f64 / 100.0
    };
    let wasted_s = share(Mood::NeverClaims) * times.claim.as_secs_f64()
        + share(Mood::VanishesCheckout) * times.checkout.as_secs_f64();
    (turn_s - CLAIM_LAG_S - wasted_s).clamp(SERVICE_MIN_S, SERVICE_MAX_S)
}

fn times(size: Size) -> Times {
    let Size {
        shoppers,
        seats,
        lasts,
    } = size;
    // Clocks are short, as the show is; renewing is what keeps a long checkout alive.
    let checkout = Duration::from_secs_f64((3.0 * seat_turn_s(size)).clamp(3.0, 6.0));
    // A line with too few seats to finish within the demo may take longer.
    let least_s = f64::from(shoppers) * (SERVICE_MIN_S + CLAIM_LAG_S) / f64::from(seats.max(1));
    let kill = lasts / 2;
    Times {
        waiting_idle: Duration::from_secs(9),
        claim: Duration::from_secs(3),
        checkout,
        renew: checkout / 3,
        kill,
        restart: kill + Duration::from_secs(7),
        deadline: lasts * 3 + Duration::from_secs_f64(2.0 * least_s),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn size(shoppers: u32, seats: u32) -> Size {
        Size {
            shoppers,
            seats,
            lasts: Duration::from_secs(60),
        }
    }

    #[test]
    fn one_seed_one_plan() {
        let plan = |seed| format!("{:?}", Plan::draw(seed, size(300, 20)));
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn at_most_a_fifth_gives_up_or_vanishes() {
        for shoppers in [1, 10, 99, 2000] {
            let parts = Plan::draw(3, size(shoppers, 5)).parts;
            assert_eq!(parts.len(), shoppers as usize);
            let strays = parts.iter().filter(|part| part.mood != Mood::Buys).count();
            assert!(strays * 5 <= parts.len(), "{strays} of {shoppers}");
        }
        // And at the default size each kind occurs.
        let parts = Plan::draw(3, size(2000, 50)).parts;
        for (mood, _) in MOODS {
            assert!(parts.iter().any(|part| part.mood == mood), "{mood:?}");
        }
    }

    #[test]
    fn the_default_crowd_waits_when_the_leader_dies() {
        let Plan { parts, times } = Plan::draw(4, size(2000, 50));
        let came = parts
            .iter()
            .filter(|part| part.arrives < times.kill)
            .count() as f64;
        let served = times.kill.as_secs_f64() / seat_turn_s(size(2000, 50));
        assert!(came > served + 500.0, "{came} came, {served} seats turned");
        assert!(
            parts.iter().any(|part| part.arrives > times.kill),
            "nobody comes after the kill"
        );
    }

    #[test]
    fn seats_are_busy_for_most_of_their_turn() {
        let service_s = mean_service_s(size(2000, 50));
        assert!((0.8..1.3).contains(&service_s), "{service_s}");
        // Odd sizes stay within bounds.
        assert!(mean_service_s(size(10_000, 1)) >= SERVICE_MIN_S);
        assert!(mean_service_s(size(10, 1_000)) <= SERVICE_MAX_S);
    }

    /// A shopper that asks in time, and whose requests take long, can learn late that it was admitted.
    #[test]
    fn a_token_is_gone_rightly_only_after_the_timeout_of_its_reason() {
        let times = Plan::draw(6, size(2000, 50)).times;
        for (reason, timeout) in [
            ("idle", times.waiting_idle),
            ("no_show", times.claim),
            ("checkout_expired", times.checkout),
        ] {
            assert!(times.may_expire_in(timeout, reason, false), "{reason}");
            let early = timeout.saturating_sub(Duration::from_millis(1));
            assert!(!times.may_expire_in(early, reason, false), "{reason}");
            let is_of_seats = reason == "checkout_expired";
            assert_eq!(times.may_expire_in(timeout, reason, true), is_of_seats);
        }
        assert!(!times.may_expire_in(Duration::MAX, "kicked", false));
    }

    #[test]
    fn a_checkout_is_renewed_well_before_it_expires() {
        for (shoppers, seats) in [(2000, 50), (100, 10), (10, 50), (5000, 5)] {
            let times = Plan::draw(5, size(shoppers, seats)).times;
            assert!(times.renew * 2 < times.checkout);
            assert!(times.kill < times.restart && times.restart < times.deadline);
        }
    }
}
