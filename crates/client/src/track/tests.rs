#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nowserving_protocol::user::{BoardReply, LaneReply};
use proptest::prelude::*;

use super::*;
use crate::place::naive::Naive;

mod contract;

fn status(version: u64, state: State, position: Option<u64>) -> StatusReply {
    StatusReply {
        units: None,
        pass: None,
        pass_expires_in_ms: None,
        line: "shop-1".parse().unwrap(),
        incarnation: 7,
        lane: "normal".parse().unwrap(),
        token: 18,
        state,
        position,
        position_capped: false,
        ahead: position.map(|position| position - 1),
        turn: position,
        eta_ms: None,
        eta_p90_ms: None,
        eta_from: None,
        phase: None,
        held_back_by: None,
        call_ahead: false,
        admitted_through: 10,
        epoch: None,
        expires_at_ms: None,
        expires_in_ms: None,
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
) -> FeedEvent {
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
        undrawn: false,
        seats: 7,
        admitted: 0,
        in_checkout: 7,
        lanes: vec![lane],
    };
    FeedEvent::Board(Arc::new(BoardEvent {
        board,
        prev_version,
        whole: false,
    }))
}

/// The first board of a new leader.
fn whole_board(version: u64, admitted_through: u64, holes: Vec<[u64; 2]>) -> FeedEvent {
    let FeedEvent::Board(event) = board(version, version, admitted_through, Some(holes)) else {
        panic!("not a board");
    };
    FeedEvent::Board(Arc::new(BoardEvent {
        whole: true,
        ..(*event).clone()
    }))
}

/// A view that gave out position 8 at version 100, and when.
fn synced() -> (View, Instant) {
    let now = Instant::now();
    let mut view = View::default();
    assert!(view.wants_holes());
    let given = view.status(waiting(100, 8, Some(vec![])), now).unwrap();
    assert_eq!(given.position, Some(8));
    assert_eq!(given.holes, None);
    assert!(!view.wants_holes());
    (view, now)
}

#[test]
fn boards_move_the_place() {
    let (mut view, now) = synced();
    let given = view
        .event(&board(101, 100, 10, Some(vec![[15, 15]])), now)
        .unwrap();
    assert_eq!(
        (given.position, given.ahead, given.version),
        (Some(7), Some(6), 101)
    );
    let given = view.event(&board(103, 101, 12, Some(vec![])), now).unwrap();
    assert_eq!((given.position, given.admitted_through), (Some(5), 12));
    // Somebody behind left: nothing to tell.
    assert!(
        view.event(&board(104, 103, 12, Some(vec![[20, 20]])), now)
            .is_none()
    );
    assert_eq!(view.next_poll_at, now + Duration::from_secs(3));
}

#[test]
fn a_poll_that_overtakes_a_board_is_not_taken_back() {
    let (mut view, now) = synced();
    let given = view.status(waiting(110, 5, None), now).unwrap();
    assert_eq!(given.position, Some(5));
    // An older board comes late: its holes count, its position is old news.
    assert!(
        view.event(&board(105, 100, 11, Some(vec![[15, 15]])), now)
            .is_none()
    );
    let given = view.event(&board(112, 105, 13, Some(vec![])), now).unwrap();
    assert_eq!(given.position, Some(4));
    // A poll that was overtaken by a board neither.
    assert!(view.status(waiting(111, 5, None), now).is_none());
}

#[test]
fn a_gap_asks_once_and_soon() {
    let (mut view, now) = synced();
    assert!(
        view.event(&board(120, 110, 12, Some(vec![])), now)
            .is_none()
    );
    assert!(view.wants_holes());
    assert!(view.next_poll_at <= now + RESYNC_SPREAD);
    // The line has more holes than can be listed: back to polls, no hurry at each board.
    assert_eq!(
        view.status(waiting(121, 6, None), now).unwrap().position,
        Some(6)
    );
    assert!(view.wants_holes());
    assert!(
        view.event(&board(122, 120, 13, Some(vec![])), now)
            .is_none()
    );
    assert_eq!(view.next_poll_at, now + Duration::from_secs(3));
}

#[test]
fn an_uncountable_position_asks_for_a_status() {
    let resync = FeedEvent::Resync;
    let too_many = board(101, 100, 10, None);
    for event in [resync, too_many] {
        let (mut view, now) = synced();
        assert!(view.event(&event, now).is_none());
        assert!(view.wants_holes());
        assert!(view.next_poll_at <= now + RESYNC_SPREAD);
    }
}

#[test]
fn ones_turn_asks_at_once() {
    let (mut view, now) = synced();
    assert!(
        view.event(&board(130, 100, 18, Some(vec![])), now)
            .is_none()
    );
    assert_eq!(view.next_poll_at, now);
    let given = view
        .status(status(131, State::Admitted, None), now)
        .unwrap();
    assert_eq!(given.state, State::Admitted);
    // From here on boards say nothing of this token.
    assert!(
        view.event(&board(140, 131, 20, Some(vec![])), now)
            .is_none()
    );
    assert_eq!(view.next_poll_at, now + Duration::from_secs(3));
    // The same again is no news; gone is.
    assert!(
        view.status(status(141, State::Admitted, None), now)
            .is_none()
    );
    assert!(view.status(status(150, State::Gone, None), now).is_some());
}

/// A token never waits again, so a board cannot overtake a status that says so.
#[test]
fn that_it_does_not_wait_is_so_whatever_the_version() {
    for state in [State::Admitted, State::Gone] {
        let (mut view, now) = synced();
        view.event(&board(110, 100, 11, Some(vec![])), now).unwrap();
        assert_eq!(view.status(waiting(105, 8, None), now), None);
        let given = view.status(status(105, state, None), now).unwrap();
        assert_eq!((given.state, given.version), (state, 105));
    }
    // Of two such statuses the newer one counts.
    let (mut view, now) = synced();
    assert!(
        view.status(status(120, State::InCheckout, None), now)
            .is_some()
    );
    assert_eq!(view.status(status(115, State::Admitted, None), now), None);
    assert!(view.status(status(130, State::Gone, None), now).is_some());
}

#[test]
fn another_lanes_board_changes_nothing() {
    let (mut view, now) = synced();
    let FeedEvent::Board(event) = board(101, 100, 17, Some(vec![])) else {
        unreachable!()
    };
    let mut event = (*event).clone();
    let mut vip = event.board.lanes[0].clone();
    vip.lane = "vip".parse().unwrap();
    event.board.lanes[0].admitted_through = 10;
    event.board.lanes.insert(0, vip);
    assert!(
        view.event(&FeedEvent::Board(Arc::new(event)), now)
            .is_none()
    );
    assert_eq!(view.place.position(), Some(8));
}

#[test]
fn a_moved_token_is_followed_into_its_lane_even_under_the_same_number() {
    for token in [18, 3] {
        let (mut view, now) = synced();
        // On the board of its lane it is a hole.
        let seen = view.event(&board(101, 100, 10, Some(vec![[18, 18]])), now);
        assert!(seen.is_none());
        assert_eq!(view.next_poll_at, now);
        let there = StatusReply {
            lane: "vip".parse().unwrap(),
            token,
            ticket: Some("new".to_owned()),
            ..waiting(101, 8, None)
        };
        let given = view.status(there.clone(), now).unwrap();
        assert_eq!((given.token, given.lane.as_str()), (token, "vip"));
        // Asked without the holes: it has no place yet, and asks for one.
        assert!(view.wants_holes());
        assert!(view.next_poll_at <= now + RESYNC_SPREAD);
        let synced = StatusReply {
            admitted_through: token - 3,
            holes: Some(vec![]),
            ..there
        };
        view.status(synced, now);
        assert_eq!(view.place.position(), Some(3));
        let FeedEvent::Board(event) = board(102, 101, token - 2, Some(vec![])) else {
            unreachable!()
        };
        let mut event = (*event).clone();
        event.board.lanes[0].lane = "vip".parse().unwrap();
        let given = view.event(&FeedEvent::Board(Arc::new(event)), now).unwrap();
        assert_eq!(given.position, Some(2));
        // Reports of its earlier place are stale, from any node.
        assert!(view.status(waiting(100, 8, Some(vec![])), now).is_none());
        assert_eq!(view.place.position(), Some(2));
    }
}

#[test]
fn a_lane_that_is_no_more_asks_where_its_token_is() {
    let (mut view, now) = synced();
    let FeedEvent::Board(event) = board(101, 100, 10, Some(vec![])) else {
        unreachable!()
    };
    let mut event = (*event).clone();
    event.board.lanes[0].lane = "vip".parse().unwrap();
    assert!(
        view.event(&FeedEvent::Board(Arc::new(event)), now)
            .is_none()
    );
    assert!(view.wants_holes());
    assert!(view.next_poll_at <= now + RESYNC_SPREAD);
}

#[test]
fn past_the_cap_only_the_cap_is_shown() {
    let (mut view, now) = synced();
    // The cap is set while it is watched: its place stays known, and is not shown.
    let capped = StatusReply {
        position_capped: true,
        ..waiting(101, 5, None)
    };
    let given = view.status(capped, now).unwrap();
    assert_eq!((given.position, given.position_capped), (Some(5), true));
    assert!(
        view.event(&board(102, 100, 11, Some(vec![])), now)
            .is_none()
    );
    let given = view.event(&board(103, 102, 13, Some(vec![])), now).unwrap();
    assert_eq!((given.position, given.position_capped), (Some(5), false));
    let given = view.event(&board(104, 103, 15, Some(vec![])), now).unwrap();
    assert_eq!((given.position, given.ahead), (Some(3), Some(2)));
}

#[test]
fn being_called_is_news() {
    let (mut view, now) = synced();
    let called = StatusReply {
        call_ahead: true,
        ..waiting(101, 8, None)
    };
    assert!(view.status(called.clone(), now).unwrap().call_ahead);
    assert!(view.status(called, now).is_none());
}

#[test]
fn a_whole_board_needs_no_board_before_it_and_no_poll() {
    let (mut view, now) = synced();
    let due = view.next_poll_at;
    // Token 18 at position 8 behind 10; two left that no board said, and one more is admitted.
    let shown = view.event(&whole_board(200, 11, vec![[13, 14], [20, 20]]), now);
    assert_eq!(shown.unwrap().position, Some(5));
    assert_eq!(view.next_poll_at, due);
    let gone = view.event(&whole_board(300, 11, vec![[13, 14], [18, 20]]), now);
    assert_eq!(gone, None);
    assert_eq!(view.next_poll_at, now, "what it is now is asked");
}

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Leave(usize),
    Complete(usize),
    /// A board is published: all holes, or those since the last one.
    Publish {
        whole: bool,
    },
    /// A status is answered, which is on its way from then on.
    Answer {
        holes: bool,
    },
    /// The oldest board on its way arrives, or is lost.
    Board {
        lost: bool,
    },
    /// Some status on its way arrives.
    Status(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Enter),
        4 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::Complete),
        4 => prop::bool::weighted(0.1).prop_map(|whole| Step::Publish { whole }),
        4 => prop::bool::weighted(0.8).prop_map(|holes| Step::Answer { holes }),
        5 => prop::bool::weighted(0.1).prop_map(|lost| Step::Board { lost }),
        3 => any::<usize>().prop_map(Step::Status),
    ]
}

/// What is on its way to a watcher.
#[derive(Default)]
struct OnItsWay {
    boards: VecDeque<FeedEvent>,
    statuses: Vec<StatusReply>,
    /// Of the watched token at each version of which anything was said.
    positions: BTreeMap<u64, Option<u64>>,
}

impl OnItsWay {
    fn publish(&mut self, naive: &mut Naive, token: u64, whole: bool) {
        let published = naive.publish();
        let position = published.positions.get(&token).copied();
        self.positions.insert(published.version, position);
        let holes = match whole {
            true => naive.holes_before(naive.next + 1),
            false => published.holes,
        };
        let (version, prev_version) = (published.version, published.prev_version);
        let event = board(
            version,
            prev_version,
            published.admitted_through,
            Some(holes),
        );
        let FeedEvent::Board(event) = event else {
            panic!("not a board");
        };
        let mut event = (*event).clone();
        event.whole = whole;
        event.board.lanes[0].next_token = naive.next + 1;
        self.boards.push_back(FeedEvent::Board(Arc::new(event)));
    }

    fn answer(&mut self, naive: &Naive, token: u64, holes: bool) {
        let position = naive.positions().get(&token).copied();
        self.positions.insert(naive.version, position);
        let state = match position {
            Some(_) => State::Waiting,
            None => State::Gone,
        };
        let holes = holes.then(|| naive.holes_before(token));
        self.statuses.push(StatusReply {
            token,
            admitted_through: naive.admitted_through(),
            holes: holes.filter(|_| position.is_some()),
            ..status(naive.version, state, position)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Boards and statuses overlap, and a status may arrive after a newer board or a newer status.
    #[test]
    fn every_place_that_is_given_is_a_recount_and_none_grows(steps in prop::collection::vec(step(), 1..150)) {
        let mut naive = Naive::new(2);
        let mut token = 0;
        for _ in 0..30 {
            token = naive.enter();
        }
        let (mut view, now) = (View::default(), Instant::now());
        let (mut on_its_way, mut shown) = (OnItsWay::default(), u64::MAX);
        for step in steps {
            let given = match step {
                Step::Enter => {
                    naive.enter();
                    None
                }
                Step::Leave(pick) => {
                    naive.leave_waiting(pick);
                    None
                }
                Step::Complete(pick) => {
                    naive.complete(pick);
                    None
                }
                Step::Publish { whole } => {
                    on_its_way.publish(&mut naive, token, whole);
                    None
                }
                Step::Answer { holes } => {
                    on_its_way.answer(&naive, token, holes);
                    None
                }
                Step::Board { lost } => {
                    let event = on_its_way.boards.pop_front().filter(|_| !lost);
                    event.and_then(|event| view.event(&event, now))
                }
                Step::Status(pick) => {
                    let count = on_its_way.statuses.len();
                    let reply = pick.checked_rem(count).map(|pick| on_its_way.statuses.remove(pick));
                    reply.and_then(|reply| view.status(reply, now))
                }
            };
            let Some(given) = given else { continue };
            prop_assert_eq!(Some(&given.position), on_its_way.positions.get(&given.version));
            let Some(position) = given.position else { break };
            prop_assert!(position <= shown, "from {} to {}", shown, position);
            shown = position;
        }
    }
}

/// Those who wait for a draw have no place, and the first board after it is a reason to ask, whether it lists all holes or not.
#[test]
fn a_draw_is_asked_about_once_when_it_is_done() {
    for is_whole in [true, false] {
        let (mut view, now) = synced();
        let undrawn = |version| {
            let FeedEvent::Board(event) = board(version, version - 1, 10, Some(vec![])) else {
                panic!("not a board");
            };
            let mut event = (*event).clone();
            event.board.undrawn = true;
            FeedEvent::Board(Arc::new(event))
        };
        let poll_at = view.next_poll_at;
        let hidden = view.event(&undrawn(101), now).unwrap();
        assert_eq!(
            (hidden.position, hidden.ahead, hidden.turn),
            (None, None, None)
        );
        assert!(view.event(&undrawn(102), now).is_none(), "it has none");
        assert_eq!(view.next_poll_at, poll_at, "nothing to ask yet");
        assert!(view.wants_holes());
        let after = match is_whole {
            true => whole_board(103, 40, vec![]),
            false => board(103, 103, 40, Some(vec![])),
        };
        assert!(view.event(&after, now).is_none());
        assert!(view.next_poll_at <= now + RESYNC_SPREAD);
        assert!(view.event(&after, now).is_none(), "once");
        let placed = waiting(104, 3, Some(vec![]));
        assert_eq!(view.status(placed, now).unwrap().position, Some(3));
        assert!(view.event(&undrawn(102), now).is_none(), "it comes late");
        assert!(!view.wants_holes());
    }
}
