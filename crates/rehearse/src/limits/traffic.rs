//! The requests, and what each limit does with them.

use nowserving_limit::{Algorithm, BadLimit, Counter, Limit, LimitParts, Now, Unit, Windows};
use serde::Serialize;

pub(super) const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
/// How long it all takes.
pub(super) const SHOW_S: u64 = 360;
/// All limits allow so many a minute.
pub(super) const PER_MINUTE: u32 = 60;
/// The burst of the second token bucket.
const SMALL_BURST: u32 = 10;
/// The show begins with a window: windows begin with the minutes of the clock.
const BEGIN_US: u64 = 1_000_000 * MINUTE_US;

/// Requests at equal distances, from and to in seconds.
#[derive(Debug, Clone, Copy)]
struct Phase {
    from_s: u64,
    to_s: u64,
    requests: u64,
}

/// Half of what is allowed; then nobody.
const CALM: Phase = phase(0, 60, 30);
/// Twice what a minute allows, around the edge of a window.
const BURST: Phase = phase(115, 125, 120);
/// Twice what is allowed, for two minutes.
const OVERLOAD: Phase = phase(180, 300, 240);

const fn phase(from_s: u64, to_s: u64, requests: u64) -> Phase {
    Phase {
        from_s,
        to_s,
        requests,
    }
}

impl Phase {
    fn arrivals(self) -> impl Iterator<Item = u64> {
        let length_us = (self.to_s - self.from_s) * SECOND_US;
        let nth_us = move |nth| self.from_s * SECOND_US + nth * length_us / self.requests;
        (0..self.requests).map(nth_us)
    }

    fn has(self, at_us: u64) -> bool {
        (self.from_s * SECOND_US..self.to_s * SECOND_US).contains(&at_us)
    }
}

/// When the requests come, in µs since the start.
pub(super) fn arrivals() -> Vec<u64> {
    let phases = [CALM, BURST, OVERLOAD].into_iter();
    phases.flat_map(Phase::arrivals).collect()
}

/// What a limit did.
#[derive(Debug)]
pub(super) struct Run {
    /// `token_bucket, burst 10`
    pub(super) name: String,
    /// The same as a part of a file's name.
    pub(super) file: String,
    /// Of the requests that were allowed: when each came, and when it went on, in µs since the start.
    allowed: Vec<(u64, u64)>,
}

/// The limits that are compared, with the bursts of buckets.
const COMPARED: [(Algorithm, Option<u32>); 6] = [
    (Algorithm::FixedWindow, None),
    (Algorithm::SlidingWindowCounter, None),
    (Algorithm::SlidingWindowLog, None),
    (Algorithm::TokenBucket, Some(PER_MINUTE)),
    (Algorithm::TokenBucket, Some(SMALL_BURST)),
    (Algorithm::LeakingBucket, Some(PER_MINUTE)),
];

/// What each of them does with the same requests.
pub(super) fn runs() -> Result<Vec<Run>, BadLimit> {
    let compared = COMPARED.into_iter();
    compared
        .map(|(algorithm, burst)| run(algorithm, burst))
        .collect()
}

fn run(algorithm: Algorithm, burst: Option<u32>) -> Result<Run, BadLimit> {
    let limit = Limit::new(LimitParts {
        algorithm,
        unit: Unit::Minute,
        requests_per_unit: PER_MINUTE,
        burst,
        zone: None,
    })?;
    let (mut counter, mut windows) = (Counter::fresh(algorithm), Windows::new());
    let allowed = arrivals().into_iter().filter_map(|at_us| {
        let now = Now {
            service_us: BEGIN_US + at_us,
            wall_us: BEGIN_US + at_us,
        };
        let answer = counter.take(&limit, &windows.moment(&limit, now), 1);
        answer.allowed.then_some((at_us, at_us + answer.delay_us))
    });
    let name = algorithm.name();
    let burst = burst.map(|burst| format!(", burst {burst}"));
    let small = burst.is_some() && limit.capacity() < PER_MINUTE;
    Ok(Run {
        file: format!("{name}{}", if small { "_small" } else { "" }),
        name: format!("{name}{}", burst.unwrap_or_default()),
        allowed: allowed.collect(),
    })
}

impl Run {
    /// When the allowed requests went on, in order.
    pub(super) fn went_on(&self) -> Vec<u64> {
        let mut went_on: Vec<u64> = self.allowed.iter().map(|(_, on_us)| *on_us).collect();
        went_on.sort_unstable();
        went_on
    }

    fn allowed_of(&self, phase: Phase) -> u64 {
        let came = self.allowed.iter().filter(|(at_us, _)| phase.has(*at_us));
        came.count() as u64
    }

    fn row(&self) -> LimitRow {
        let went_on = self.went_on();
        let delays = self.allowed.iter().map(|(at_us, on_us)| on_us - at_us);
        LimitRow {
            limit: self.name.clone(),
            of_burst: self.allowed_of(BURST),
            most_in_a_second: most_within(&went_on, SECOND_US),
            most_in_a_minute: most_within(&went_on, MINUTE_US),
            of_overload: self.allowed_of(OVERLOAD),
            longest_delay_ms: delays.max().unwrap_or_default().div_ceil(1_000),
        }
    }
}

/// The most of these times that lie within any stretch of that length, its end excluded.
fn most_within(times_us: &[u64], length_us: u64) -> u64 {
    let mut first = 0;
    let mut most = 0;
    for (nth, at_us) in times_us.iter().enumerate() {
        while times_us[first] + length_us <= *at_us {
            first += 1;
        }
        most = most.max(nth + 1 - first);
    }
    most as u64
}

/// How many of these times lie in the stretch before each whole second, by the second.
pub(super) fn in_the_last(times_us: &[u64], length_us: u64) -> Vec<(u64, u64)> {
    let count = |second: u64| {
        let end_us = second * SECOND_US;
        let from = times_us.partition_point(|at_us| *at_us < end_us.saturating_sub(length_us));
        let to = times_us.partition_point(|at_us| *at_us < end_us);
        (second, (to - from) as u64)
    };
    (0..=SHOW_S).map(count).collect()
}

/// What one limit did, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitRow {
    /// The algorithm, and the burst of a bucket.
    pub limit: String,
    /// Of the burst: 120 requests in ten seconds.
    pub of_burst: u64,
    /// The most that went on within one second.
    pub most_in_a_second: u64,
    /// The most that went on within any minute.
    pub most_in_a_minute: u64,
    /// Of the overload: 240 requests in two minutes.
    pub of_overload: u64,
    /// The longest that a request was told to wait.
    pub longest_delay_ms: u64,
}

impl LimitRow {
    pub const HEADER: &str =
        "limit, of the burst, most in a second, most in a minute, of the overload, longest delay";

    /// The cells under [`LimitRow::HEADER`].
    pub fn cells(&self) -> Vec<String> {
        let delay = match self.longest_delay_ms {
            0 => "none".to_owned(),
            ms => crate::text::duration(ms),
        };
        vec![
            self.limit.clone(),
            format!("{} of {}", self.of_burst, BURST.requests),
            self.most_in_a_second.to_string(),
            self.most_in_a_minute.to_string(),
            format!("{} of {}", self.of_overload, OVERLOAD.requests),
            delay,
        ]
    }
}

/// What each limit of 60 a minute did with the same requests.
///
/// # Errors
/// Never: the limits are valid.
pub fn limit_rows() -> Result<Vec<LimitRow>, BadLimit> {
    Ok(runs()?.iter().map(Run::row).collect())
}
