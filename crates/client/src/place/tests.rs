#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::naive::{Board, Naive};
use super::*;

#[test]
fn knows_nothing_before_the_first_sync() {
    let mut place = Place::new(18);
    assert_eq!(place.position(), None);
    assert_eq!(place.board(5, 4, 10, &[]), Seen::Gap);
}

#[test]
fn the_contracts_example() {
    // 18 entered while admitted_through was 10; 15 leaves; then two seats are given on.
    let mut place = Place::new(18);
    place.sync(30, 10, &[]);
    assert_eq!(place.position(), Some(8));
    assert_eq!(place.board(31, 30, 10, &[[15, 15]]), Seen::Position(7));
    assert_eq!(place.board(33, 31, 12, &[]), Seen::Position(5));
    assert_eq!(place.board(36, 33, 15, &[]), Seen::Position(3));
    assert_eq!(place.board(39, 36, 18, &[]), Seen::Passed);
    assert_eq!(place.position(), None);
}

#[test]
fn doubles_and_late_boards_change_nothing() {
    let mut place = Place::new(9);
    place.sync(10, 2, &[[4, 4]]);
    assert_eq!(place.board(12, 10, 3, &[[6, 7]]), Seen::Position(3));
    assert_eq!(place.board(12, 10, 3, &[[6, 7]]), Seen::Stale);
    assert_eq!(place.board(11, 10, 2, &[[6, 6]]), Seen::Stale);
    assert_eq!(place.position(), Some(3));
    // A status that was overtaken by a board is no news either.
    place.sync(11, 2, &[]);
    assert_eq!(place.position(), Some(3));
}

#[test]
fn holes_listed_twice_count_once() {
    let mut place = Place::new(20);
    place.sync(10, 0, &[[5, 8], [10, 10]]);
    assert_eq!(place.position(), Some(15));
    // The board builds on something older than the status: part of it is known already.
    assert_eq!(place.board(11, 9, 0, &[[7, 11]]), Seen::Position(13));
    assert_eq!(place.holes, BTreeMap::from([(5, 11)]));
}

#[test]
fn a_gap_needs_a_sync() {
    let mut place = Place::new(9);
    place.sync(10, 0, &[]);
    assert_eq!(place.board(14, 12, 1, &[]), Seen::Gap);
    assert_eq!(place.position(), None);
    assert_eq!(place.board(15, 14, 1, &[]), Seen::Gap);
    place.sync(15, 1, &[[2, 2]]);
    assert_eq!(place.position(), Some(7));
}

#[test]
fn gone_while_waiting_is_passed() {
    let mut place = Place::new(9);
    place.sync(10, 0, &[]);
    assert_eq!(place.board(11, 10, 0, &[[8, 12]]), Seen::Passed);
    assert_eq!(place.board(12, 11, 0, &[]), Seen::Passed);
}

#[test]
fn too_many_ranges_are_given_up() {
    let token = 4 * RANGES_MAX as u64;
    let holes: Vec<[u64; 2]> = (1..=RANGES_MAX as u64 + 1)
        .map(|n| [2 * n, 2 * n])
        .collect();
    let mut place = Place::new(token);
    place.sync(10, 0, &holes);
    assert_eq!(place.position(), None);
    assert!(place.holes.is_empty());
}

#[test]
fn nonsense_does_not_panic() {
    let all = [[0, u64::MAX], [5, 3], [u64::MAX, u64::MAX]];
    for token in [0, 1, 7, u64::MAX] {
        let mut place = Place::new(token);
        place.sync(0, 0, &all);
        let _ = place.position();
        let _ = place.board(1, 0, u64::MAX, &all);
        let _ = place.board(u64::MAX, 0, 3, &all);
        let _ = place.position();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enter {
        watched: bool,
    },
    Leave(usize),
    Complete(usize),
    /// whether each watcher gets this board, by bit; whether it comes twice
    Publish {
        lost: u8,
        twice: bool,
    },
    /// the board is held back and delivered after the next one
    PublishLate,
    ChangeLeader {
        lost: u8,
    },
    /// A token that already waits begins to watch.
    Join(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<bool>().prop_map(|watched| Step::Enter { watched }),
        3 => any::<usize>().prop_map(Step::Leave),
        3 => any::<usize>().prop_map(Step::Complete),
        4 => (prop_oneof![3 => Just(0u8), 1 => any::<u8>()], any::<bool>())
            .prop_map(|(lost, twice)| Step::Publish { lost, twice }),
        1 => Just(Step::PublishLate),
        1 => prop_oneof![Just(0u8), any::<u8>()].prop_map(|lost| Step::ChangeLeader { lost }),
        1 => any::<usize>().prop_map(Step::Join),
    ]
}

/// One watcher takes in one board; whatever it then says must be what the naive line said at that
/// version. Returns whether it would ask `status` now.
fn take(place: &mut Place, board: &Board) -> Result<bool, TestCaseError> {
    let before = place.version();
    match place.board(
        board.version,
        board.prev_version,
        board.admitted_through,
        &board.holes,
    ) {
        Seen::Position(position) => {
            let expected = board.positions.get(&place.token()).copied();
            prop_assert_eq!(Some(position), expected, "token {}", place.token());
        }
        Seen::Passed => {
            prop_assert!(!board.positions.contains_key(&place.token()));
        }
        Seen::Stale => prop_assert!(before >= Some(board.version)),
        Seen::Gap => {
            prop_assert!(before.is_none_or(|known| is_gap(known, board.prev_version)));
            return Ok(true);
        }
    }
    Ok(false)
}

/// Delivers a board to the watchers that get it; a watcher stops when `status` says that its wait is over.
fn deliver(
    naive: &Naive,
    watchers: &mut Vec<Place>,
    board: &Board,
    lost: u8,
) -> Result<(), TestCaseError> {
    let mut over = Vec::new();
    for (number, place) in watchers.iter_mut().enumerate() {
        if lost >> (number % 8) & 1 == 1 {
            continue;
        }
        if take(place, board)? && !naive.sync(place) {
            over.push(place.token());
        }
    }
    watchers.retain(|place| !over.contains(&place.token()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_position_is_the_naive_one(seats in 1usize..5, steps in prop::collection::vec(step(), 1..120)) {
        let mut naive = Naive::new(seats);
        let mut watchers: Vec<Place> = Vec::new();
        let mut late: Option<Board> = None;
        for step in steps {
            let mut sent = None;
            match step {
                Step::Enter { watched } => {
                    let token = naive.enter();
                    if watched {
                        watchers.push(Place::new(token));
                        naive.sync(watchers.last_mut().unwrap());
                    }
                }
                Step::Leave(pick) => naive.leave_waiting(pick),
                Step::Complete(pick) => naive.complete(pick),
                Step::Publish { lost, twice } => {
                    sent = Some((naive.publish(), lost, twice));
                }
                Step::PublishLate => late = Some(naive.publish()),
                Step::ChangeLeader { lost } => {
                    sent = Some((naive.change_leader(), lost, false));
                }
                Step::Join(pick) => {
                    let token = naive.waiting.iter().nth(pick % naive.waiting.len().max(1)).copied();
                    if let Some(token) = token {
                        watchers.push(Place::new(token));
                        naive.sync(watchers.last_mut().unwrap());
                    }
                }
            }
            if let Some((board, lost, twice)) = sent {
                deliver(&naive, &mut watchers, &board, lost)?;
                if twice {
                    deliver(&naive, &mut watchers, &board, lost)?;
                }
                if let Some(board) = late.take() {
                    deliver(&naive, &mut watchers, &board, 0)?;
                }
            }
        }
        // Whatever was lost on the way: one last board that arrives puts everybody right.
        let board = naive.publish();
        deliver(&naive, &mut watchers, &board, 0)?;
        let positions = naive.positions();
        for place in &watchers {
            prop_assert_eq!(place.position(), positions.get(&place.token()).copied());
        }
    }
}
