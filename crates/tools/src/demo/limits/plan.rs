//! The limits of the show, and how much is asked of each.

use std::time::Duration;

use nowserving_limit::{Algorithm, Unit, key};
use nowserving_shard::limits::home_of;

pub const DOMAIN: &str = "demo";
/// Each with a connection of its own.
pub const CLIENTS: u32 = 8;
/// Of each limit but the exact one.
pub const PER_SECOND: u32 = 100;
pub const BURST_OF_BUCKETS: u32 = PER_SECOND / 2;
/// Of the exact limit, in all: reached after the kill.
pub const EXACT: u32 = 1_800;
pub const SHOW: Duration = Duration::from_secs(40);
pub const KILL: Duration = Duration::from_secs(20);
pub const RESTART: Duration = Duration::from_secs(27);

/// Requests a second of all clients together: calm for three seconds, then a burst for five: so long
/// that a limit which is too wide by a fifth shows, whatever the algorithm (see `verdict`).
const CALM: f64 = 60.0;
const BURST: f64 = 250.0;
const CALM_S: f64 = 3.0;
const CYCLE_S: f64 = 8.0;
/// Of the exact limit: it goes through the log.
const EXACT_DEMAND: f64 = 60.0;
/// Of the limit by which forgotten hits are counted.
const COUNTED_DEMAND: f64 = 200.0;

/// One limit of the show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// [`PER_SECOND`] by this algorithm.
    Of(Algorithm),
    /// [`EXACT`] in all.
    Exact,
    /// Never refuses: its `remaining` tells how many hits the leader knows.
    Counted,
}

impl Shown {
    pub const ALL: [Shown; 7] = [
        Shown::Of(Algorithm::FixedWindow),
        Shown::Of(Algorithm::SlidingWindowCounter),
        Shown::Of(Algorithm::SlidingWindowLog),
        Shown::Of(Algorithm::TokenBucket),
        Shown::Of(Algorithm::LeakingBucket),
        Shown::Exact,
        Shown::Counted,
    ];

    /// Also the key of its descriptor.
    pub fn name(self) -> &'static str {
        match self {
            Shown::Of(algorithm) => algorithm.name(),
            Shown::Exact => "exact",
            Shown::Counted => "counted",
        }
    }

    fn rule(self) -> String {
        match self {
            Shown::Of(algorithm) => {
                let burst = match algorithm.is_bucket() {
                    true => format!(", burst: {BURST_OF_BUCKETS}"),
                    false => String::new(),
                };
                let name = algorithm.name();
                format!("unit: second, requests_per_unit: {PER_SECOND}, algorithm: {name}{burst}")
            }
            // By the year, so that no window ends in the midst of the show.
            Shown::Exact => format!("unit: year, requests_per_unit: {EXACT}, exact: true"),
            Shown::Counted => format!("unit: year, requests_per_unit: {}", u32::MAX),
        }
    }

    /// Requests a second of one client.
    pub fn demand(self, at: Duration) -> f64 {
        let all = match self {
            Shown::Of(_) if at.as_secs_f64() % CYCLE_S < CALM_S => CALM,
            Shown::Of(_) => BURST,
            Shown::Exact => EXACT_DEMAND,
            Shown::Counted => COUNTED_DEMAND,
        };
        all / f64::from(CLIENTS)
    }

    /// A value with which its counter is in this shard, so that one leader has all counters of the show.
    pub fn value_in(self, shard: u32, shards: u32) -> Option<String> {
        (0..10_000_u32)
            .map(|nth| format!("key-{nth}"))
            .find(|value| {
                // Algorithm and unit do not count.
                let entries = [(self.name(), value.as_str())];
                let counter = key::encode(
                    Algorithm::FixedWindow,
                    Unit::Second,
                    DOMAIN,
                    entries.into_iter(),
                );
                counter.is_ok_and(|counter| home_of(&counter, shards) == shard)
            })
    }
}

/// The YAML of all limits.
pub fn rules() -> String {
    let rule = |shown: Shown| {
        let (name, rule) = (shown.name(), shown.rule());
        format!("  - {{key: {name}, rate_limit: {{{rule}}}}}\n")
    };
    let rules: String = Shown::ALL.into_iter().map(rule).collect();
    format!("domain: {DOMAIN}\ndescriptors:\n{rules}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rules_are_valid_and_all_counters_can_be_in_one_shard() {
        nowserving_limit::Rules::parse(&rules()).unwrap();
        for shown in Shown::ALL {
            assert!(shown.value_in(15, 16).is_some(), "{shown:?}");
        }
    }

    #[test]
    fn bursts_are_over_the_limit_and_calm_is_below() {
        let clients = f64::from(CLIENTS);
        let fixed = Shown::Of(Algorithm::FixedWindow);
        assert!(fixed.demand(Duration::ZERO) * clients < PER_SECOND.into());
        assert!(fixed.demand(Duration::from_secs(5)) * clients > 2.0 * f64::from(PER_SECOND));
        let asked = EXACT_DEMAND * SHOW.as_secs_f64();
        assert!(asked > f64::from(EXACT) && EXACT_DEMAND * KILL.as_secs_f64() < f64::from(EXACT));
    }
}
