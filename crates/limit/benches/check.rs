//! The cost of a check: the rules of a request, its counter, the answer.
//!
//! `known` asks for keys all over a table of that many counters, in an order that jumps about; `new` for keys that are
//! not there yet; `full` for new keys of a table without room. `rules` only finds rule and key.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nowserving_limit::{
    Algorithm, Ask, HashSeed, Now, Rules, Saved, Table, TableMax, Windows, check, combine,
};
use nowserving_limit::{Live, Matched};

const RULES: &str = "
domain: shop
descriptors:
  - {key: fixed_window, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: sliding_window_log, rate_limit: {unit: hour, requests_per_unit: 4, algorithm: sliding_window_log}}
  - {key: sliding_window_counter, rate_limit: {unit: day, requests_per_unit: 1000000, algorithm: sliding_window_counter}}
  - {key: token_bucket, rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: token_bucket}}
  - {key: leaking_bucket, rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: leaking_bucket}}
";

struct Node {
    rules: Rules,
    windows: Windows,
    table: Table,
    saved: Saved,
    now_us: u64,
}

impl Node {
    fn new(counters: u32) -> Self {
        let max = TableMax {
            counters,
            key_bytes: u64::MAX,
            log_hits: u64::MAX,
        };
        Node {
            rules: Rules::parse(RULES).unwrap(),
            windows: Windows::new(),
            table: Table::new(max, HashSeed([3, 5])),
            saved: Saved::new(max),
            now_us: 1_700_000_000_000_000,
        }
    }

    fn check(&mut self, algorithm: &str, number: u64) -> bool {
        let value = number.to_string();
        let matched = self
            .rules
            .resolve("shop", &[[(algorithm, value.as_str())]])
            .unwrap();
        self.now_us += 1;
        let now = Now {
            service_us: self.now_us,
            wall_us: self.now_us,
        };
        let asks = matched.iter().filter_map(|matched| {
            let Matched::Limited { rule, key } = matched else {
                return None;
            };
            let limit = rule.limit.as_ref()?;
            Some(Ask {
                limit,
                key,
                hits: 1,
                at: self.windows.moment(limit, now),
                max_delay_us: None,
                when_full: rule.when_full,
                is_shadow: rule.is_shadow,
                is_quota: rule.is_quota,
            })
        });
        let asks: Vec<_> = asks.collect();
        let mut live = Live {
            table: &mut self.table,
            saved: &self.saved,
        };
        combine(&check(&mut live, &asks, false, now)).allowed
    }
}

/// The numbers below `count`, in an order that jumps about.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0_u64..).map(move |nth| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count)
}

fn checks(c: &mut Criterion) {
    let mut known = c.benchmark_group("known");
    for counters in [1_000_u32, 1_000_000] {
        for algorithm in Algorithm::ALL.map(Algorithm::name) {
            let mut node = Node::new(counters + 1);
            for number in 0..u64::from(counters) {
                node.check(algorithm, number);
            }
            let mut numbers = scattered(counters.into());
            known.bench_function(BenchmarkId::new(algorithm, counters), |b| {
                b.iter(|| black_box(node.check(algorithm, numbers.next().unwrap())))
            });
        }
    }
    known.finish();

    let mut node = Node::new(u32::MAX);
    let mut number = 0;
    c.bench_function("new", |b| {
        b.iter(|| {
            number += 1;
            black_box(node.check("token_bucket", number))
        })
    });
    let mut node = Node::new(100_000);
    for number in 0..100_000 {
        node.check("fixed_window", number);
    }
    c.bench_function("full", |b| {
        b.iter(|| {
            number += 1;
            black_box(node.check("fixed_window", 1_000_000 + number))
        })
    });
    c.bench_function("rules", |b| {
        b.iter(|| {
            let matched = node
                .rules
                .resolve("shop", &[[("token_bucket", "127.0.0.1")]]);
            matches!(black_box(matched).unwrap()[0], Matched::Limited { .. })
        })
    });
}

criterion_group!(benches, checks);
criterion_main!(benches);
