//! The bitmap against a plain sorted list.

use super::*;
use crate::{Entered, Stage};
use proptest::prelude::*;

/// The holes as a scan of the numbers finds them.
fn holes_by_scan(list: &[Token], token: Token) -> Vec<(Token, Token)> {
    let mut holes: Vec<(Token, Token)> = Vec::new();
    let Some(first) = list.first() else {
        return holes;
    };
    for number in *first..token {
        if list.binary_search(&number).is_ok() {
            continue;
        }
        match holes.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => holes.push((number, number)),
        }
    }
    holes
}

/// Of some chunks not in the order of the numbers: a moved token may have entered before the ones in front of it.
fn entered_at_ms(token: Token) -> u64 {
    if token / CHUNK_BITS % 3 == 1 {
        token / 100 % 1_000
    } else {
        token * 7_919 % 1_000
    }
}

fn entered(token: Token) -> Timestamp {
    at(entered_at_ms(token))
}

fn at(service_ms: u64) -> Timestamp {
    Timestamp {
        service_ms,
        wall_ms: service_ms * 31 + 5,
    }
}

fn check_memory(set: &WaitingSet) {
    let slots = set.time_slots();
    let most = 4 * set.len as usize + TIMES_MIN * set.chunks.len();
    assert!(slots <= most, "{slots} > {most}");
}

fn check(set: &WaitingSet, list: &[Token], probes: &[Token]) {
    assert_eq!(set.len(), list.len() as u64);
    assert_eq!(set.first(), list.first().copied());
    let first_ms = list.first().map(|first| entered_at_ms(*first));
    assert_eq!(set.first_entered_at_ms(), first_ms);
    for probe in probes {
        let rank = list.partition_point(|token| token < probe) as u64;
        assert_eq!(set.rank(*probe), rank, "rank of {probe}");
        let place = list.binary_search(probe).is_ok().then(|| Place {
            ahead: rank,
            entered: entered(*probe),
        });
        assert_eq!(set.place(*probe), place);
        let through = list.iter().take_while(|token| **token <= *probe);
        let latest = through.map(|token| entered_at_ms(*token)).max();
        assert_eq!(set.latest_through(*probe), latest.unwrap_or(0));
    }
    for ms in [0, 1, 250, 990, 998, 999, 1_000] {
        let first = list.iter().position(|token| entered_at_ms(*token) > ms);
        let first = first.unwrap_or(list.len()) as u64;
        assert_eq!(set.first_after(ms), first, "first after {ms} ms");
    }
    for nth in [0, list.len() / 2, list.len().saturating_sub(1), list.len()] {
        let token = list.get(nth).copied();
        assert_eq!(set.select(nth as u64), token);
        assert_eq!(set.entered_at_ms(nth as u64), token.map(entered_at_ms));
    }
    let full = set.chunks.iter().filter(|c| c.count() > 0).count();
    assert_eq!(set.chunks.len() - full, set.empty);
    assert!(set.chunks.len() <= 2 * full + EMPTY_SLOTS_MIN);
    let slots = set.sums.as_ref().map(|sums| sums.tree.len());
    assert_eq!(slots.unwrap_or(1), set.chunks.len().max(1));
    check_memory(set);
}

#[derive(Debug, Clone)]
enum Step {
    /// So many numbers come, this far apart.
    Push { count: u64, apart: u64 },
    /// The one at this share of the list goes.
    Remove(prop::sample::Index),
    /// A run of them goes.
    RemoveRun(prop::sample::Index, usize),
    /// One that may not be there goes.
    RemoveAny(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..600u64, prop_oneof![Just(1), 1..4u64, 1..3_000u64])
            .prop_map(|(count, apart)| Step::Push { count, apart }),
        any::<prop::sample::Index>().prop_map(Step::Remove),
        (any::<prop::sample::Index>(), 1..2_000usize).prop_map(|(at, n)| Step::RemoveRun(at, n)),
        (0..100_000u64).prop_map(Step::RemoveAny),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_a_sorted_list(steps in prop::collection::vec(step(), 1..60)) {
        let mut set = WaitingSet::<()>::default();
        let mut list: Vec<Token> = Vec::new();
        let mut next = 1;
        for step in steps {
            match step {
                Step::Push { count, apart } => for _ in 0..count {
                    set.push(next, entered(next), ());
                    list.push(next);
                    next += apart;
                },
                Step::Remove(at) => if !list.is_empty() {
                    let token = list.remove(at.index(list.len()));
                    assert!(set.remove(token));
                },
                Step::RemoveRun(at, n) => if !list.is_empty() {
                    let from = at.index(list.len());
                    let to = (from + n).min(list.len());
                    for token in list.drain(from..to) {
                        assert!(set.remove(token));
                    }
                },
                Step::RemoveAny(token) => match list.binary_search(&token) {
                    Ok(at) => {
                        list.remove(at);
                        assert!(set.remove(token));
                    }
                    Err(_) => assert!(!set.remove(token)),
                },
            }
            let some: Vec<Token> = list.iter().step_by(97).copied().collect();
            check(&set, &list, &some);
            check(&set, &list, &[0, 1, 511, 512, 513, 1_024, next, u64::MAX]);
        }
        if next < 200_000 && let Some(last) = list.last() {
            prop_assert_eq!(set.holes_before(*last), Some(holes_by_scan(&list, *last)));
            let middle = list[list.len() / 2];
            prop_assert_eq!(set.holes_before(middle), Some(holes_by_scan(&list, middle)));
        }
    }
}

#[test]
fn the_ends_of_words_and_chunks() {
    let mut set = WaitingSet::<()>::default();
    for token in 1..=2_048 {
        set.push(token, at(token), ());
    }
    for token in [1, 63, 64, 65, 511, 512, 513, 2_047] {
        assert_eq!(set.rank(token), token - 1);
        assert_eq!(set.select(token - 1), Some(token));
    }
    for token in 64..=127 {
        assert!(set.remove(token));
    }
    assert!(set.remove(2_047));
    let holes = vec![(64, 127), (2_047, 2_047)];
    assert_eq!(set.holes_before(2_048), Some(holes));
    assert_eq!(set.holes_before(1), Some(Vec::new()));
}

#[test]
fn too_many_holes_are_given_up() {
    let mut set = WaitingSet::<()>::default();
    for token in 1..=600_000 {
        set.push(token, at(token), ());
    }
    // Few holes, but too many words on the way.
    assert_eq!(set.holes_before(250_000), Some(Vec::new()));
    assert_eq!(set.holes_before(600_000), None);
    // Few words, but too many holes.
    for token in (2..=100_000).step_by(2) {
        set.remove(token);
    }
    assert_eq!(
        set.holes_before(101),
        Some((1..=50).map(|n| (2 * n, 2 * n)).collect())
    );
    assert_eq!(set.holes_before(100_001), None);
}

#[test]
fn memory_follows_the_number_of_waiting_tokens() {
    let mut set = WaitingSet::<()>::default();
    set.push(1, at(1), ());
    for token in 2..=2_000_000 {
        set.push(token, at(token), ());
        if token > 1_000 {
            assert!(set.remove(token - 900));
        }
        assert!(set.chunks() <= 20, "{} chunks", set.chunks());
        check_memory(&set);
    }
    assert_eq!(set.first(), Some(1));
    assert_eq!(set.rank(2_000_000), set.len() - 1);
}

#[test]
fn a_full_chunk_that_empties_gives_its_room_back() {
    let mut set = WaitingSet::<()>::default();
    for token in 0..CHUNK_BITS {
        set.push(CHUNK_BITS + token, at(token), ());
    }
    for token in 0..CHUNK_BITS - 1 {
        assert!(set.remove(CHUNK_BITS + token));
        check_memory(&set);
    }
    let last = Place {
        ahead: 0,
        entered: at(CHUNK_BITS - 1),
    };
    assert_eq!(set.place(2 * CHUNK_BITS - 1), Some(last));
    assert!(set.time_slots() <= TIMES_MIN);
}

#[test]
fn a_line_in_which_few_wait_has_few_chunks_however_long_it_lives() {
    let mut set = WaitingSet::<()>::default();
    for token in 1..=100_000 {
        set.push(token, at(token), ());
        if token > 10 {
            assert!(set.remove(token - 10));
        }
        assert!(set.chunks() <= 3, "{} chunks", set.chunks());
    }
}

/// As when a line is put back a year later.
#[test]
fn times_take_no_more_memory_once_all_of_them_are_shifted() {
    const YEAR_MS: u64 = 365 * 86_400_000;
    let mut set = WaitingSet::<Records>::default();
    for token in 1..=1_000 {
        let live = Live {
            key: None,
            entered: Entered {
                at: at(token),
                version: token,
            },
            stage: Stage::Waiting {
                last_seen_ms: token,
            },
            moved_from: &[],
            jumps: 0,
            eta_given: None,
        };
        set.push(token, at(token), live);
    }
    assert_eq!(set.shift(0..2_048, &|ms| ms + YEAR_MS, 0), 1_000);
    assert!(set.chunks.iter().all(|chunk| chunk.entered.are_near()));
    for token in 1..=1_000 {
        let entered = Timestamp {
            service_ms: token + YEAR_MS,
            ..at(token)
        };
        let place = set.place(token);
        assert_eq!(place.map(|place| place.entered), Some(entered));
    }
}
