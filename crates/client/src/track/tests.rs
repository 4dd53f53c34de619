#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_protocol::user::{BoardReply, LaneReply};

use super::*;

fn status(version: u64, state: State, position: Option<u64>) -> StatusReply {
    StatusReply {
        line: "shop-1".parse().unwrap(),
        incarnation: 7,
        lane: "normal".parse().unwrap(),
        token: 18,
        state,
        position,
        ahead: position.map(|position| position - 1),
        eta_ms: None,
        eta_p90_ms: None,
        call_ahead: false,
        admitted_through: 10,
        epoch: None,
        expires_at_ms: None,
        reason: None,
        entered_at_ms: None,
        poll_after_ms: 3_000,
        version,
        at_ms: version,
        ticket: None,
        holes: None,
    }
}

fn waiting(version: u64, position: u64, holes: Option<Vec<[u64; 2]>>) -> StatusReply {
    StatusReply {
        holes,
        ..status(version, State::Waiting, Some(position))
    }
}

fn board(
    version: u64,
    prev_version: u64,
    admitted_through: u64,
    holes: Option<Vec<[u64; 2]>>,
) -> Beat {
    let lane = LaneReply {
        lane: "normal".parse().unwrap(),
        next_token: 30,
        done_through: 0,
        admitted_through,
        accepts_through: 30,
        waiting: 3,
        holes,
    };
    let board = BoardReply {
        line: "shop-1".parse().unwrap(),
        incarnation: 7,
        version,
        at_ms: version,
        phase: "open".to_owned(),
        seats: 7,
        admitted: 0,
        in_checkout: 7,
        lanes: vec![lane],
    };
    Beat::Board(Arc::new(BoardEvent {
        board,
        prev_version,
    }))
}

/// A view that was told position 8 at version 100, and when.
fn synced() -> (View, Instant) {
    let now = Instant::now();
    let mut view = View::default();
    assert!(view.wants_holes());
    let told = view.status(waiting(100, 8, Some(vec![])), now).unwrap();
    assert_eq!(told.position, Some(8));
    assert_eq!(told.holes, None);
    assert!(!view.wants_holes());
    (view, now)
}

#[test]
fn boards_move_the_place() {
    let (mut view, now) = synced();
    let told = view
        .beat(&board(101, 100, 10, Some(vec![[15, 15]])), now)
        .unwrap();
    assert_eq!(
        (told.position, told.ahead, told.version),
        (Some(7), Some(6), 101)
    );
    let told = view.beat(&board(103, 101, 12, Some(vec![])), now).unwrap();
    assert_eq!((told.position, told.admitted_through), (Some(5), 12));
    // Somebody behind left: nothing to tell.
    assert!(
        view.beat(&board(104, 103, 12, Some(vec![[20, 20]])), now)
            .is_none()
    );
    assert_eq!(view.ask_at, now + Duration::from_secs(3));
}

#[test]
fn a_poll_that_overtakes_a_board_is_not_taken_back() {
    let (mut view, now) = synced();
    let told = view.status(waiting(110, 5, None), now).unwrap();
    assert_eq!(told.position, Some(5));
    // An older board comes late: its holes count, its position is old news.
    assert!(
        view.beat(&board(105, 100, 11, Some(vec![[15, 15]])), now)
            .is_none()
    );
    let told = view.beat(&board(112, 105, 13, Some(vec![])), now).unwrap();
    assert_eq!(told.position, Some(4));
    // A poll that was overtaken by a board neither.
    assert!(view.status(waiting(111, 5, None), now).is_none());
}

#[test]
fn a_gap_asks_once_and_soon() {
    let (mut view, now) = synced();
    assert!(view.beat(&board(120, 110, 12, Some(vec![])), now).is_none());
    assert!(view.wants_holes());
    assert!(view.ask_at <= now + RESYNC_SPREAD);
    // The line has more holes than can be listed: back to polls, no hurry at each board.
    assert_eq!(
        view.status(waiting(121, 6, None), now).unwrap().position,
        Some(6)
    );
    assert!(view.wants_holes());
    assert!(view.beat(&board(122, 120, 13, Some(vec![])), now).is_none());
    assert_eq!(view.ask_at, now + Duration::from_secs(3));
}

#[test]
fn what_cannot_be_counted_asks() {
    let resync = Beat::Resync;
    let too_many = board(101, 100, 10, None);
    for beat in [resync, too_many] {
        let (mut view, now) = synced();
        assert!(view.beat(&beat, now).is_none());
        assert!(view.wants_holes());
        assert!(view.ask_at <= now + RESYNC_SPREAD);
    }
}

#[test]
fn ones_turn_asks_at_once() {
    let (mut view, now) = synced();
    assert!(view.beat(&board(130, 100, 18, Some(vec![])), now).is_none());
    assert_eq!(view.ask_at, now);
    let told = view
        .status(status(131, State::Admitted, None), now)
        .unwrap();
    assert_eq!(told.state, State::Admitted);
    // From here on boards say nothing of this token.
    assert!(view.beat(&board(140, 131, 20, Some(vec![])), now).is_none());
    assert_eq!(view.ask_at, now + Duration::from_secs(3));
    // The same again is no news; gone is.
    assert!(
        view.status(status(141, State::Admitted, None), now)
            .is_none()
    );
    assert!(view.status(status(150, State::Gone, None), now).is_some());
}

#[test]
fn another_lanes_board_changes_nothing() {
    let (mut view, now) = synced();
    let Beat::Board(event) = board(101, 100, 17, Some(vec![])) else {
        unreachable!()
    };
    let mut event = (*event).clone();
    event.board.lanes[0].lane = "vip".parse().unwrap();
    assert!(view.beat(&Beat::Board(Arc::new(event)), now).is_none());
    assert_eq!(view.place.position(), Some(8));
}
