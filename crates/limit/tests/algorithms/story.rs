//! Random limits, and requests at random times.

use nowserving_limit::{Algorithm, Limit, LimitParts, Moment, Now, Unit, Windows, Zone};
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Debug, Clone)]
pub struct Step {
    pub after_us: u64,
    pub hits: u64,
    pub dry_run: bool,
}

#[derive(Debug, Clone)]
pub struct Story {
    pub limit: Limit,
    pub start_us: u64,
    pub steps: Vec<Step>,
}

/// Both clocks read the same.
pub fn at(limit: &Limit, now_us: u64) -> Moment {
    let now = Now {
        service_us: now_us,
        wall_us: now_us,
    };
    Windows::new().moment(limit, now)
}

/// Mostly small limits, some large and some of nothing; none above `requests_max`.
fn limit(algorithm: Algorithm, requests_max: u32) -> impl Strategy<Value = Limit> {
    let largest = || u32::MAX - 9..=u32::MAX;
    let requests = prop_oneof![8 => 1_u32..8, 4 => 1_u32..10_000, 2 => any::<u32>(), 2 => largest(), 1 => Just(0)];
    let burst = prop::option::of(prop_oneof![4 => 1_u32..20, 1 => any::<u32>(), 1 => largest()]);
    let zone = prop::option::of(select(vec![
        "Asia/Taipei",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "Pacific/Apia",
    ]));
    (requests, burst, zone, select(Unit::ALL.to_vec())).prop_map(
        move |(requests, burst, zone, unit)| {
            let small = |number: u32| {
                if number > requests_max {
                    number % requests_max + 1
                } else {
                    number
                }
            };
            let requests_per_unit = match algorithm {
                Algorithm::SlidingWindowLog => requests % 10_001,
                // Its naive model only minds how much it holds.
                Algorithm::LeakingBucket => requests,
                _ => small(requests),
            };
            let has_calendar = algorithm.has_windows() && unit.span().is_some();
            let wanted = burst.filter(|_| algorithm.is_bucket() && requests_per_unit > 0);
            let burst = match requests_per_unit > requests_max {
                true => Some(small(requests_per_unit)),
                false => wanted.map(small),
            };
            let parts = LimitParts {
                algorithm,
                unit,
                requests_per_unit,
                burst,
                zone: zone.filter(|_| has_calendar).and_then(Zone::get),
            };
            Limit::new(parts.clone()).unwrap_or_else(|_| {
                Limit::new(LimitParts {
                    burst: None,
                    ..parts
                })
                .unwrap()
            })
        },
    )
}

/// Times around those at which something happens.
fn after_us(limit: &Limit) -> impl Strategy<Value = u64> + use<> {
    let period_us = limit.period_us();
    let each_us = period_us / u64::from(limit.requests_per_unit().max(1));
    prop_oneof![
        3 => Just(0),
        2 => 0_u64..4,
        4 => each_us.saturating_sub(2)..each_us + 3,
        2 => 0..=each_us.saturating_mul(4),
        3 => 0..=period_us,
        1 => period_us - 2..period_us + 3,
        1 => 0..=period_us * 3,
    ]
}

fn hits(limit: &Limit) -> impl Strategy<Value = u64> + use<> {
    let capacity = u64::from(limit.capacity());
    prop_oneof![
        6 => Just(1),
        2 => 0_u64..4,
        2 => 0..=capacity,
        1 => capacity..=capacity.saturating_add(2),
        2 => capacity.saturating_sub(9)..=capacity,
        1 => 5_u64..15,
        1 => any::<u64>(),
    ]
}

pub fn story(algorithm: Algorithm, requests_max: u32) -> impl Strategy<Value = Story> {
    let start = prop_oneof![
        Just(0),
        0_u64..4_000_000_000_000_000,
        253_000_000_000_000_000_u64..253_100_000_000_000_000,
        0_u64..1 << 60,
        // Times are exact up to 2⁶³.
        1_u64 << 62..(1 << 63) - (1 << 58),
    ];
    (limit(algorithm, requests_max), start).prop_flat_map(|(limit, start_us)| {
        let step = (after_us(&limit), hits(&limit), prop::bool::weighted(0.2));
        let step = step.prop_map(|(after_us, hits, dry_run)| Step {
            after_us,
            hits,
            dry_run,
        });
        prop::collection::vec(step, 1..40).prop_map(move |steps| Story {
            limit: limit.clone(),
            start_us,
            steps,
        })
    })
}
