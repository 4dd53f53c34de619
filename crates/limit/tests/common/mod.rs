//! Limits, keys and times for tests of counters.

use nowserving_limit::{
    Algorithm, Ask, HashSeed, Limit, LimitParts, Now, Table, TableMax, Unit, WhenFull, Windows, key,
};

pub const SEED: HashSeed = HashSeed([3, 5]);

/// Where both clocks begin.
pub const START_US: u64 = 1_700_000_000_000_000;

pub fn now(after_us: u64) -> Now {
    Now {
        service_us: START_US + after_us,
        // Not the same, as it is: what goes by the wrong clock is seen.
        wall_us: START_US + after_us + 3_333_333,
    }
}

pub fn limit(algorithm: Algorithm, requests_per_unit: u32, unit: Unit) -> Limit {
    Limit::new(LimitParts {
        algorithm,
        ..Limit::fixed_window(requests_per_unit, unit).parts().clone()
    })
    .unwrap()
}

pub fn key_of(limit: &Limit, number: u64) -> Vec<u8> {
    let value = number.to_string();
    let entries = [("number", value.as_str())];
    key::encode(limit.algorithm(), limit.unit(), "test", entries.into_iter()).unwrap()
}

pub fn ask<'a>(limit: &'a Limit, key: &'a [u8], hits: u64, now: Now) -> Ask<'a> {
    Ask {
        limit,
        key,
        hits,
        at: Windows::new().moment(limit, now),
        max_delay_us: None,
        when_full: WhenFull::Allow,
        is_shadow: false,
        is_quota: false,
    }
}

pub fn max(counters: u32) -> TableMax {
    TableMax {
        counters,
        key_bytes: 1 << 40,
        log_hits: 1 << 40,
    }
}

pub fn table(counters: u32) -> Table {
    Table::new(max(counters), SEED)
}
