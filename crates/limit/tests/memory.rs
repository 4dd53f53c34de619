//! The memory that counters take, to the byte: what is allocated, whatever the allocator makes of it.

use crate::common::{SEED, ask, now};
use nowserving_limit::{
    Algorithm, Counters as _, Limit, LimitParts, PortionMax, Saved, Table, TableMax, Unit, key,
};

/// More by so much fails: put the new number here if it is meant. Less by so much too, so that it stays the true one.
const MOST_PERCENT: i64 = 3;

/// In the memory of the shard's leader, and in that of every node, with the key.
const BYTES: [(Algorithm, i64, i64); 4] = [
    (Algorithm::FixedWindow, 64, 28),
    (Algorithm::SlidingWindowCounter, 76, 41),
    (Algorithm::TokenBucket, 64, 28),
    (Algorithm::SlidingWindowLog, 208, 170),
];

const KEY_BYTES: usize = 30;
const COUNTERS: u64 = 200_000;
const PORTION: PortionMax = PortionMax {
    counters: 1_024,
    bytes: 65_536,
};

fn key_of(limit: &Limit, number: u64) -> Vec<u8> {
    let user = format!("{:014x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8);
    let entries = [("user", user.as_str())].into_iter();
    let key = key::encode(limit.algorithm(), limit.unit(), "shop", entries).unwrap();
    assert_eq!(key.len(), KEY_BYTES);
    key
}

/// What is in use after that, and was not before.
fn bytes_of<T>(make: impl FnOnce() -> T) -> (i64, T) {
    let mut made = None;
    let measured = allocation_counter::measure(|| made = Some(make()));
    (measured.bytes_current, made.unwrap())
}

/// Counters as a leader and as every node has them. Of their keys, in no order, 14 bytes differ.
fn measure(limit: &Limit) -> [i64; 2] {
    let max = TableMax {
        counters: 1_000_000,
        key_bytes: 1 << 40,
        log_hits: 1 << 40,
    };
    let (of_leader, mut table) = bytes_of(|| {
        let mut table = Table::new(max, SEED);
        for nth in 0..COUNTERS {
            let key = key_of(limit, nth);
            table.record(&ask(limit, &key, 1, now(nth)), now(nth));
        }
        table
    });
    let (of_each, saved) = bytes_of(|| {
        let mut saved = Saved::new(max);
        while table.dirty() > 0 {
            for change in table.changes(PORTION) {
                assert!(saved.merge(&change));
            }
        }
        saved
    });
    assert_eq!(u64::from(table.len()), COUNTERS);
    assert_eq!(saved.len() as u64, COUNTERS);
    [of_leader, of_each].map(|bytes| bytes / COUNTERS as i64)
}

#[test]
fn counters_take_no_more_memory_than_known() {
    let mut measured = Vec::new();
    for (algorithm, of_leader, of_each) in BYTES {
        let limit = Limit::new(LimitParts {
            algorithm,
            ..Limit::fixed_window(5, Unit::Hour).parts().clone()
        });
        measured.push((algorithm, measure(&limit.unwrap()), [of_leader, of_each]));
    }
    println!("{measured:?}");
    for (algorithm, bytes, known) in measured {
        for (bytes, known) in bytes.into_iter().zip(known) {
            let (low, high) = (known * (100 - MOST_PERCENT), known * (100 + MOST_PERCENT));
            assert!(
                (low..=high).contains(&(bytes * 100)),
                "{algorithm:?}: {bytes} bytes, not {known}: if that is meant, put the new number into tests/memory.rs"
            );
        }
    }
}
