#![allow(clippy::unwrap_used)]
use nowserving_protocol::user::BoardReply;

use super::*;

fn normal() -> LaneName {
    "normal".parse().unwrap()
}

/// A board of one lane: its pointers, who waits, and the holes.
fn board(
    (version, prev_version): (u64, u64),
    (admitted_through, next_token): (u64, u64),
    waiting: u64,
    holes: &[[u64; 2]],
) -> BoardEvent {
    let lane = LaneReply {
        lane: normal(),
        next_token,
        done_through: 0,
        admitted_through,
        accepts_through: 100,
        waiting,
        holes: Some(holes.to_vec()),
    };
    BoardEvent {
        board: BoardReply {
            line: "shop".parse().unwrap(),
            incarnation: 7,
            version,
            at_ms: 0,
            phase: "open".to_owned(),
            undrawn: false,
            seats: 1,
            admitted: 0,
            in_checkout: 1,
            lanes: vec![lane],
        },
        prev_version,
        whole: false,
    }
}

fn whole(event: BoardEvent) -> BoardEvent {
    BoardEvent {
        whole: true,
        ..event
    }
}

fn token(version: u64, event: &str, token: u64, position: Option<u64>) -> TokenEvent {
    TokenEvent {
        units: None,
        line: "shop".parse().unwrap(),
        incarnation: 7,
        version,
        prev_version: version - 1,
        at_ms: 0,
        event: event.to_owned(),
        lane: normal(),
        token,
        key: None,
        position,
        epoch: None,
        reason: None,
        to_lane: None,
        to_token: None,
        by: None,
    }
}

fn at(places: &PlacesFromEvents, token: u64) -> Standing {
    places.standing(&normal(), token)
}

#[test]
fn newcomers_have_the_place_where_they_entered_until_a_board_knows_them() {
    let mut places = PlacesFromEvents::new();
    assert_eq!(at(&places, 1), Standing::Unknown);
    places.token(&token(3, "entered", 1, Some(1)));
    places.token(&token(4, "admitted", 1, None));
    places.token(&token(5, "entered", 2, Some(1)));
    places.token(&token(6, "entered", 3, Some(2)));
    assert_eq!(at(&places, 1), Standing::Passed);
    assert_eq!(at(&places, 3), Standing::Position(2));
    // Nobody but these entered, and nobody left: the board is whole by its numbers.
    assert!(places.board(&board((6, 2), (1, 4), 2, &[])));
    assert_eq!(at(&places, 2), Standing::Position(1));
    assert_eq!(at(&places, 3), Standing::Position(2));
    assert!(!places.board(&board((6, 2), (1, 4), 2, &[])), "the same");
    places.token(&token(8, "entered", 4, Some(2)));
    places.token(&token(6, "entered", 3, Some(9)));
    assert!(places.board(&board((7, 6), (1, 4), 1, &[[2, 2]])));
    assert_eq!(at(&places, 2), Standing::Passed);
    assert_eq!(at(&places, 3), Standing::Position(1));
    assert_eq!(at(&places, 4), Standing::Position(2), "not on a board yet");
}

#[test]
fn a_missed_hole_shows_and_a_whole_board_mends_it() {
    let mut places = PlacesFromEvents::new();
    places.board(&whole(board((10, 10), (2, 9), 5, &[[4, 4]])));
    assert_eq!(at(&places, 5), Standing::Position(2));
    // Another board is missing.
    places.board(&board((20, 15), (2, 9), 3, &[[7, 7]]));
    for waits in [3, 5, 8] {
        assert_eq!(at(&places, waits), Standing::Unknown);
    }
    assert_eq!(at(&places, 2), Standing::Passed);
    places.board(&whole(board((20, 20), (2, 9), 3, &[[4, 5], [7, 7]])));
    assert_eq!(at(&places, 3), Standing::Position(1));
    assert_eq!(at(&places, 6), Standing::Position(2));
    assert_eq!(at(&places, 8), Standing::Position(3));
    // Holes go with admission.
    places.board(&board((21, 20), (6, 9), 1, &[]));
    assert_eq!(at(&places, 8), Standing::Position(1));
}

#[test]
fn a_token_that_is_taken_leaves_a_hole_whether_a_board_knew_it_or_not() {
    let taken = |version, of| TokenEvent {
        by: Some("take".to_owned()),
        ..token(version, "admitted", of, None)
    };
    let mut places = PlacesFromEvents::new();
    places.board(&whole(board((10, 10), (0, 5), 4, &[])));
    // It waited when the last board came …
    places.token(&taken(11, 3));
    places.token(&token(12, "entered", 5, Some(4)));
    places.token(&token(13, "entered", 6, Some(5)));
    // … and this one is on no board yet.
    places.token(&taken(14, 5));
    assert_eq!(at(&places, 5), Standing::Passed);
    assert!(places.board(&board((14, 10), (0, 7), 4, &[[3, 3], [5, 5]])));
    for (token, standing) in [
        (1, Standing::Position(1)),
        (3, Standing::Passed),
        (4, Standing::Position(3)),
        (5, Standing::Passed),
        (6, Standing::Position(4)),
    ] {
        assert_eq!(at(&places, token), standing, "{token}");
    }
    // One that is called is no hole: it was the first.
    places.token(&token(15, "admitted", 1, None));
    assert!(places.board(&board((15, 14), (1, 7), 3, &[])));
    assert_eq!(at(&places, 1), Standing::Passed);
    assert_eq!(at(&places, 6), Standing::Position(3));
}

#[test]
fn another_incarnation_and_a_restored_line_begin_anew() {
    let mut places = PlacesFromEvents::new();
    places.board(&whole(board((10, 10), (2, 9), 5, &[[4, 4]])));
    let mut restored = LineEvent {
        line: "shop".parse().unwrap(),
        incarnation: 7,
        version: 11,
        prev_version: 1,
        at_ms: 0,
        event: "configured".to_owned(),
        phase: None,
        lane: None,
        keys: None,
        seats: None,
        silent: None,
        commitment: None,
        seed: None,
        beacon: None,
        took_part: None,
        digest: None,
        scheduled_at_ms: None,
        code: None,
        message: None,
    };
    places.line(&restored);
    assert_eq!(at(&places, 5), Standing::Position(2));
    restored.event = "restored".to_owned();
    places.line(&restored);
    assert_eq!(at(&places, 5), Standing::Unknown);
    let mut next = board((12, 0), (0, 3), 2, &[]);
    next.board.incarnation = 8;
    assert!(places.board(&next));
    assert_eq!(at(&places, 2), Standing::Position(2));
    assert!(!places.board(&whole(board((99, 9), (2, 9), 5, &[[4, 4]]))));
}

/// Nobody has a place before a draw is done, whatever was known before.
#[test]
fn a_board_before_a_draw_gives_no_place() {
    let mut places = PlacesFromEvents::new();
    assert!(places.board(&whole(board((10, 0), (3, 9), 5, &[]))));
    assert_eq!(places.standing(&normal(), 5), Standing::Position(2));
    let mut undrawn = board((11, 10), (3, 9), 5, &[]);
    undrawn.board.undrawn = true;
    assert!(places.board(&undrawn));
    places.token(&token(12, "entered", 9, None));
    for number in [5, 9] {
        assert_eq!(places.standing(&normal(), number), Standing::Unknown);
    }
    assert!(places.board(&whole(board((13, 13), (9, 16), 6, &[]))));
    assert_eq!(places.standing(&normal(), 5), Standing::Passed);
    assert_eq!(places.standing(&normal(), 11), Standing::Position(2));
}
