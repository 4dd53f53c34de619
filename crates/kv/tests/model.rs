//! Random operations against a list that is searched and recounted, checked after every step.
#![allow(clippy::unwrap_used)]

use nowserving_kv::{
    Change, EXPIRE_MAX, Entry, Event, Full, Limits, OVERHEAD_BYTES, Op, Refused, Reply, Store,
};
use proptest::prelude::*;

/// Small, so that a handful of keys runs into them.
const LIMITS: Limits = Limits {
    bucket_keys: 3,
    bucket_bytes: 3 * OVERHEAD_BYTES + 12,
    buckets: 3,
    bytes: 5 * OVERHEAD_BYTES + 20,
};
const BUCKETS: [&str; 4] = ["a", "b", "c", "d"];
const KEYS: [&str; 5] = ["k", "k1", "k12", "l", "z"];

#[derive(Clone, Debug)]
struct Held {
    bucket: &'static str,
    key: &'static str,
    value: Vec<u8>,
    revision: u64,
    expires_at_ms: Option<u64>,
}

#[derive(Default)]
struct Naive {
    revision: u64,
    held: Vec<Held>,
}

impl Naive {
    fn cost<'a>(held: impl Iterator<Item = &'a Held>) -> u64 {
        held.map(|it| (it.key.len() + it.value.len()) as u64 + OVERHEAD_BYTES)
            .sum()
    }

    fn expired(&mut self, which: impl Fn(&Held) -> bool, max: usize) -> Vec<Event> {
        let mut due: Vec<Held> = self.held.iter().filter(|it| which(it)).cloned().collect();
        due.sort_by_key(|it| (it.expires_at_ms, it.revision));
        due.truncate(max);
        let mut events = Vec::new();
        for it in due {
            self.held.retain(|held| held.revision != it.revision);
            self.revision += 1;
            events.push(self.event(it.bucket, it.key, Change::Expired));
        }
        events
    }

    fn event(&self, bucket: &str, key: &str, what: Change) -> Event {
        Event {
            bucket: bucket.into(),
            key: key.into(),
            what,
            revision: self.revision,
        }
    }

    fn full(&self, new: &Held) -> Option<Full> {
        let mut after = self.held.clone();
        after.retain(|it| (it.bucket, it.key) != (new.bucket, new.key));
        after.push(new.clone());
        let in_bucket = || after.iter().filter(|it| it.bucket == new.bucket);
        let mut buckets: Vec<_> = after.iter().map(|it| it.bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        if buckets.len() > LIMITS.buckets {
            Some(Full::Buckets)
        } else if in_bucket().count() > LIMITS.bucket_keys {
            Some(Full::BucketKeys)
        } else if Naive::cost(in_bucket()) > LIMITS.bucket_bytes {
            Some(Full::BucketBytes)
        } else if Naive::cost(after.iter()) > LIMITS.bytes {
            Some(Full::Bytes)
        } else {
            None
        }
    }

    fn apply(&mut self, now_ms: u64, step: &Step) -> (Result<Reply, Refused>, Vec<Event>) {
        let (bucket, key) = (step.bucket, step.key);
        let is_it = |it: &Held| (it.bucket, it.key) == (bucket, key);
        let due = |it: &Held| is_it(it) && it.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let mut events = self.expired(due, 1);
        let revision = self.held.iter().find(|it| is_it(it)).map(|it| it.revision);
        let result = (|| {
            if step.value.is_none() && revision.is_none() {
                return Err(Refused::KeyNotFound);
            }
            let revision = revision.unwrap_or(0);
            if step.if_revision.is_some_and(|wanted| wanted != revision) {
                return Err(Refused::VersionConflict { revision });
            }
            let Some(value) = &step.value else {
                self.held.retain(|it| !is_it(it));
                self.revision += 1;
                events.push(self.event(bucket, key, Change::Deleted));
                return Ok(Reply {
                    revision: self.revision,
                });
            };
            let new = Held {
                bucket,
                key,
                value: value.clone(),
                revision: self.revision.max(step.above) + 1,
                expires_at_ms: step.ttl_ms.map(|ttl_ms| now_ms + ttl_ms),
            };
            if let Some(full) = self.full(&new) {
                return Err(Refused::Full(full));
            }
            self.revision = new.revision;
            self.held.retain(|it| !is_it(it));
            self.held.push(new);
            events.push(self.event(bucket, key, Change::Put));
            Ok(Reply {
                revision: self.revision,
            })
        })();
        (result, events)
    }
}

#[derive(Clone, Debug)]
struct Step {
    pause_ms: u64,
    bucket: &'static str,
    key: &'static str,
    /// `None`: delete.
    value: Option<Vec<u8>>,
    if_revision: Option<u64>,
    ttl_ms: Option<u64>,
    above: u64,
    sweeps: bool,
    restarts: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let what = (
        0_u64..4,
        prop::sample::select(&BUCKETS[..]),
        prop::sample::select(&KEYS[..]),
        prop::option::weighted(0.7, prop::collection::vec(any::<u8>(), 0..8)),
        prop::option::weighted(0.4, 0_u64..12),
    );
    let how = (
        prop::option::weighted(0.4, 0_u64..8),
        prop::sample::select(vec![0_u64, 0, 0, 0, 9]),
        any::<bool>(),
        prop::bool::weighted(0.1),
    );
    (what, how).prop_map(
        |((pause_ms, bucket, key, value, if_revision), (ttl_ms, above, sweeps, restarts))| Step {
            pause_ms,
            bucket,
            key,
            value,
            if_revision,
            ttl_ms,
            above,
            sweeps,
            restarts,
        },
    )
}

fn op(step: &Step) -> Op {
    let (bucket, key) = (step.bucket.into(), step.key.into());
    let if_revision = step.if_revision;
    match &step.value {
        Some(value) => Op::Put {
            bucket,
            key,
            value: value.as_slice().into(),
            if_revision,
            ttl_ms: step.ttl_ms,
            above: step.above,
        },
        None => Op::Delete {
            bucket,
            key,
            if_revision,
        },
    }
}

/// As from a snapshot.
fn restarted(store: &Store) -> Store {
    let mut new = Store::new(LIMITS, store.revision());
    for (bucket, key, entry) in store.iter_from(0) {
        new.add(bucket, key, entry.clone()).unwrap();
    }
    new
}

fn check(store: &Store, naive: &Naive, now_ms: u64) {
    let mut all = naive.held.clone();
    all.sort_by_key(|it| (it.bucket, it.key));
    let entry = |it: &Held| Entry {
        value: it.value.as_slice().into(),
        revision: it.revision,
        expires_at_ms: it.expires_at_ms,
    };
    let expected: Vec<_> = all
        .iter()
        .map(|it| (it.bucket, it.key, entry(it)))
        .collect();
    let there = store
        .iter_from(0)
        .map(|(b, k, entry)| (b, k, entry.clone()));
    assert_eq!(there.collect::<Vec<_>>(), expected);
    assert_eq!(store.len(), all.len());
    assert_eq!(store.iter_from(2).count(), all.len().saturating_sub(2));
    assert_eq!(store.revision(), naive.revision);
    let deadlines = all.iter().filter_map(|it| it.expires_at_ms);
    assert_eq!(store.next_expiry_ms(), deadlines.min());
    let alive = |it: &&Held| it.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms);
    for bucket in BUCKETS {
        for key in KEYS {
            let found = all.iter().filter(alive);
            let found = { found }.find(|it| (it.bucket, it.key) == (bucket, key));
            let shown = store.get(now_ms, bucket, key).cloned();
            assert_eq!(shown, found.map(entry));
        }
        for prefix in ["", "k", "k1", "x"] {
            for after in [None, Some("k"), Some("k1"), Some("m")] {
                let listed = store.list(now_ms, bucket, prefix, after);
                let listed: Vec<_> = listed.map(|(key, _)| key).collect();
                let in_page = all.iter().filter(alive).filter(|it| {
                    it.bucket == bucket
                        && it.key.starts_with(prefix)
                        && after.is_none_or(|after| it.key > after)
                });
                assert_eq!(listed, in_page.map(|it| it.key).collect::<Vec<_>>());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_recount(steps in prop::collection::vec(step(), 1..40)) {
        let (mut store, mut naive, mut now_ms) = (Store::new(LIMITS, 0), Naive::default(), 0);
        for step in steps {
            now_ms += step.pause_ms;
            let mut events = Vec::new();
            if step.sweeps {
                store.expire(now_ms, Some(&mut events));
                let due = |it: &Held| it.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms);
                prop_assert_eq!(std::mem::take(&mut events), naive.expired(due, EXPIRE_MAX));
            }
            let expected = naive.apply(now_ms, &step);
            let result = store.apply(now_ms, &op(&step), Some(&mut events));
            prop_assert_eq!((result, events), expected);
            if step.restarts {
                store = restarted(&store);
            }
            check(&store, &naive, now_ms);
        }
    }
}
