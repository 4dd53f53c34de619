#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use nowserving_line::{BadField, Refused, TokenRef};
use proptest::prelude::*;

use super::*;
use crate::limits::HitsAnswer;
use crate::requests::{RequestId, Requests};

/// The memory as trees: by key, and the keys in order of time.
#[derive(Default)]
struct Trees {
    by_key: BTreeMap<u128, Remembered>,
    order: BTreeMap<(u64, u64), u128>,
    next: u64,
}

impl Trees {
    fn remember(&mut self, key: u128, remembered: Remembered) {
        let now_ms = remembered.at_ms;
        self.remove(key);
        self.order.insert((now_ms, self.next), key);
        self.next += 1;
        self.by_key.insert(key, remembered);
        self.forget(now_ms);
    }

    fn forget(&mut self, now_ms: u64) {
        while let Some(((at_ms, _), key)) = self.order.first_key_value()
            && (at_ms + MEMORY_MS <= now_ms || self.order.len() > REQUESTS_MAX)
        {
            let key = *key;
            self.remove(key);
        }
    }

    fn remove(&mut self, key: u128) {
        if self.by_key.remove(&key).is_some() {
            self.order.retain(|_, it| *it != key);
        }
    }

    fn in_order(&self) -> Vec<(u128, Remembered)> {
        let keys = self.order.values();
        keys.map(|key| (*key, self.by_key[key].clone())).collect()
    }
}

/// Short and long ones.
fn answer() -> impl Strategy<Value = Answer> {
    let number = prop_oneof![0_u64..300, 0_u64..1 << 53];
    let token = (number.clone(), any::<u8>(), number.clone());
    prop_oneof![
        token.prop_map(|(incarnation, lane, token)| {
            Answer::Token(TokenRef {
                incarnation,
                lane,
                token,
            })
        }),
        number.prop_map(|remaining| Answer::Deleted { remaining }),
        Just(Answer::Refused(Refused::NotAdmitted)),
        "[a-z]{0,40}"
            .prop_map(|limit| Answer::Refused(Refused::BadField(BadField::new("units", limit)))),
        (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(limits, allowed, delay_us)| {
            Answer::LimitHits(HitsAnswer {
                limits,
                allowed,
                untracked: 0,
                delay_us,
            })
        }),
    ]
}

fn origin() -> impl Strategy<Value = Origin> {
    prop_oneof![
        Just(Origin::Client),
        Just(Origin::Direct),
        Just(Origin::Forwarder)
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Remember(u128, Origin, Answer),
    Remove(u128),
    Wait(u64),
    Reseed(u128),
    /// The node starts from a snapshot.
    Restore,
}

/// Few keys, some of which share their slots with others whatever the seed: equal halves but for the last bits.
fn key() -> impl Strategy<Value = u128> {
    prop_oneof![0_u128..24, (0_u128..24).prop_map(|key| key << 64)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (key(), origin(), answer()).prop_map(|(key, origin, it)| Step::Remember(key, origin, it)),
        2 => key().prop_map(Step::Remove),
        3 => (0_u64..30_000).prop_map(Step::Wait),
        1 => any::<u128>().prop_map(Step::Reseed),
        1 => Just(Step::Restore),
    ]
}

/// A memory of the same answers, as one that starts from a snapshot has it.
fn restored(requests: &Requests, seed: u128) -> Requests {
    let mut restored = Requests::new(seed);
    for (key, remembered) in requests.iter_from(0) {
        restored.add(key, remembered).unwrap();
    }
    restored
}

proptest! {
    #[test]
    fn as_trees_have_it(
        begin_ms in prop_oneof![Just(0), Just(u64::from(u32::MAX) - 40_000), 0_u64..1 << 53],
        before_wrap in 0_u32..60,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let (mut requests, mut trees) = (Requests::default(), Trees::default());
        // The numbers of places begin again.
        requests.0.first = NUMBERS - 1 - before_wrap;
        let mut now_ms = begin_ms;
        for step in steps {
            match step {
                Step::Remember(key, origin, answer) => {
                    requests.remember(RequestId { key, origin }, answer.clone(), now_ms);
                    trees.remember(key, Remembered { origin, at_ms: now_ms, answer });
                }
                Step::Remove(key) => {
                    requests.0.remove(key);
                    trees.remove(key);
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    requests.forget(now_ms);
                    trees.forget(now_ms);
                }
                Step::Reseed(seed) => requests.set_seed(seed),
                Step::Restore => requests = restored(&requests, 7),
            }
            let expected = trees.in_order();
            if expected.is_empty() {
                let memory = (requests.0.places.capacity(), requests.0.table.capacity());
                prop_assert_eq!(memory, (0, 0));
            }
            prop_assert_eq!(requests.len(), expected.len());
            for first in [0, 1, expected.len() / 2, expected.len(), expected.len() + 1] {
                let rest = expected.iter().skip(first).cloned();
                prop_assert!(requests.iter_from(first).eq(rest), "{first}");
            }
            prop_assert_eq!(requests.0.newest(), expected.last().cloned());
            for key in (0..24).chain((0..24).map(|key| key << 64)) {
                prop_assert_eq!(requests.0.get(key), trees.by_key.get(&key).cloned());
            }
        }
    }
}

#[test]
fn keys_that_share_a_slot_are_found_while_others_come_and_go() {
    let mut ring = Ring::new(0);
    let home = ring.home(halves(1));
    let alike: Vec<u128> = (1..)
        .filter(|key| ring.home(halves(*key << 64 | 1 << 32)) == home)
        .map(|key| key << 64 | 1 << 32)
        .take(6)
        .collect();
    for key in &alike {
        ring.push(*key, line(5));
    }
    for gone in [2, 0, 5] {
        ring.remove(alike[gone]);
        assert!(ring.get(alike[gone]).is_none());
    }
    for left in [1, 3, 4] {
        assert!(ring.get(alike[left]).is_some(), "{left}");
    }
}

fn line(at_ms: u64) -> Remembered {
    Remembered {
        origin: Origin::Client,
        at_ms,
        answer: Answer::Line,
    }
}

/// A client that sends one message over and over leaves removed places behind.
#[test]
fn the_ring_is_bounded_however_often_a_key_is_repeated() {
    let mut ring = Ring::new(3);
    ring.push(1, line(5));
    for nth in 0..3 * PLACES_MAX as u128 {
        ring.push(2 + nth % 2, line(5));
        assert!(ring.places.len() <= PLACES_MAX);
    }
    assert_eq!(ring.len(), 3);
    assert!((1..4).all(|key| ring.get(key).is_some()));
}

#[test]
fn memory_goes_after_a_rush() {
    let mut ring = Ring::new(7);
    let remembered = |at_ms| Remembered {
        origin: Origin::Client,
        at_ms,
        answer: Answer::Line,
    };
    (0..20_000).for_each(|key| ring.push(key, remembered(5)));
    (20_000..20_300).for_each(|key| ring.push(key, remembered(9)));
    assert!(ring.places.capacity() >= 20_300);
    ring.forget(5 + MEMORY_MS);
    assert_eq!((ring.len(), ring.places.capacity()), (300, PLACES_KEPT));
    assert_eq!(ring.get(20_299), Some(remembered(9)));
    assert_eq!(ring.get(19_999), None);
    ring.forget(9 + MEMORY_MS);
    assert_eq!((ring.places.capacity(), ring.table.capacity()), (0, 0));
    assert_eq!(ring.get(20_299), None);
    ring.push(3, remembered(10 + MEMORY_MS));
    assert_eq!(ring.get(3), Some(remembered(10 + MEMORY_MS)));
    ring.remove(3);
    assert_eq!((ring.places.capacity(), ring.table.capacity()), (0, 0));
}
