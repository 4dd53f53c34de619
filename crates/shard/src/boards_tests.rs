#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet as Set;

use nowserving_line::{
    Admission, Change, LaneName, LineDump, LiveRecord, Op, Opening, Phase, Reason, Settings,
    SettingsPatch, TakeBy, TokenRef,
};
use proptest::prelude::*;

use super::*;
use crate::command::Command;
use crate::test_world::{World, lanes, name};

const SECOND_US: Micros = 1_000_000;

#[test]
fn holes_become_ranges() {
    assert_eq!(to_ranges(vec![5, 3, 4, 9]), vec![[3, 5], [9, 9]]);
    assert!(to_ranges(vec![]).is_empty());
}

fn due(world: &mut World, now_us: Micros) -> Vec<BoardEvent> {
    let now_ms = world.now_ms();
    let now = Timestamp {
        service_ms: now_ms,
        wall_ms: now_ms,
    };
    world
        .leader_state
        .boards
        .due(world.state.lines(), now_us, now)
}

#[test]
fn a_line_that_changes_all_the_time_has_a_whole_board_each_minute() {
    let (mut world, tokens) = crowd(20);
    let mut whole = 0;
    for (tenth, token) in (1..).zip(tokens.iter().skip(1).take(13)) {
        world.leave(*token);
        let boards = due(&mut world, SECOND_US + tenth * 10 * SECOND_US);
        assert_eq!(boards.len(), 1);
        whole += u64::from(boards[0].whole);
    }
    assert_eq!(whole, 2, "in 130 seconds");
}

/// A taken seat and `waiting` waiting tokens; the first board is out.
fn crowd(waiting: usize) -> (World, Vec<TokenRef>) {
    let mut world = World::new(Settings::new(1, 100_000));
    world.enter().unwrap();
    let tokens = (0..waiting).map(|_| world.enter().unwrap()).collect();
    assert_eq!(due(&mut world, SECOND_US).len(), 1);
    (world, tokens)
}

#[test]
fn changes_within_the_interval_share_a_board_that_follows_on_the_last() {
    let (mut world, tokens) = crowd(5);
    let before = world.line().version();
    world.leave(tokens[1]);
    world.leave(tokens[2]);
    assert!(due(&mut world, SECOND_US + 49_999).is_empty());
    world.leave(tokens[4]);
    let boards = due(&mut world, SECOND_US + 50_000);
    assert_eq!(boards.len(), 1);
    assert_eq!(boards[0].prev_version, before);
    assert_eq!(boards[0].board.version, world.line().version());
    let holes = boards[0].board.lanes[0].holes.clone();
    assert_eq!(holes, Some(vec![[3, 4], [6, 6]]));
    assert!(
        due(&mut world, 2 * SECOND_US).is_empty(),
        "published already"
    );
}

#[test]
fn an_unchanged_board_comes_again_each_minute_while_anybody_waits() {
    let (mut world, tokens) = crowd(1);
    let first_us = SECOND_US;
    assert!(due(&mut world, first_us + 60 * SECOND_US - 1).is_empty());
    let again = due(&mut world, first_us + 60 * SECOND_US);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].prev_version, again[0].board.version);
    assert_eq!(due(&mut world, first_us + 120 * SECOND_US).len(), 1);
    world.leave(tokens[0]);
    assert_eq!(due(&mut world, first_us + 121 * SECOND_US).len(), 1);
    assert!(due(&mut world, first_us + 1_000 * SECOND_US).is_empty());
    assert!(world.leader_state.boards.repeat.is_empty());
}

#[test]
fn changes_that_no_board_shows_are_not_published_and_leave_no_gap() {
    let mut world = World::new(Settings::new(1, 10));
    let at = world.enter().unwrap();
    world.claim(at).unwrap();
    let epoch = world.line().status(at, 0).unwrap().epoch.unwrap();
    let board = due(&mut world, SECOND_US).remove(0);
    let line = name("shop");
    world.apply(&Op::Renew { line, at, epoch }).unwrap();
    assert!(due(&mut world, 2 * SECOND_US).is_empty());
    world.leave(at);
    let next = due(&mut world, 3 * SECOND_US).remove(0);
    assert_eq!(next.prev_version, board.board.version);
}

#[test]
fn a_new_leader_publishes_boards_of_lines_with_waiting_tokens_and_watchers_catch_up() {
    let (mut world, tokens) = crowd(2);
    world.create("empty", Settings::new(1, 1));
    let seen = world.line().version();
    world.leave(tokens[0]);
    let found = world.line().version();
    world.change_leader();
    let boards = due(&mut world, SECOND_US);
    assert_eq!(boards.len(), 1);
    assert_eq!(boards[0].board.line, name("shop"));
    assert_eq!(boards[0].prev_version, found);
    assert!(boards[0].prev_version > seen, "a gap for who saw less");
}

#[test]
fn a_new_leader_of_many_lines_is_paced() {
    let mut world = World::new(Settings::new(1, 1));
    let count = 2 * PASS_BOARDS_MAX + 10;
    for n in 0..count {
        let line = format!("line-{n}");
        world.create(&line, Settings::new(1, 1));
        for _ in 0..2 {
            let line = name(&line);
            let (key, lane) = (None, None);
            world.apply(&Op::Enter { line, key, lane }).unwrap();
        }
    }
    world.change_leader();
    let mut passes = Vec::new();
    for pass in 1..=4 {
        passes.push(due(&mut world, SECOND_US + pass * 20_000).len());
    }
    assert!(passes.iter().all(|n| *n <= PASS_BOARDS_MAX), "{passes:?}");
    assert_eq!(passes.iter().sum::<usize>(), count, "{passes:?}");
}

#[test]
fn too_many_holes_are_a_gap() {
    let (mut world, tokens) = crowd(HOLES_MAX + 10);
    for at in &tokens[1..=HOLES_MAX + 1] {
        world.leave(*at);
    }
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    assert_eq!(board.prev_version, board.board.version);
    // They are one range: the board is whole, and who takes it needs no other one.
    assert!(board.whole);
    let last = HOLES_MAX as u64 + 3;
    assert_eq!(board.board.lanes[0].holes, Some(vec![[3, last]]));
}

#[test]
fn a_leader_s_first_board_and_each_repeated_one_list_all_holes() {
    let (mut world, tokens) = crowd(8);
    for nth in [1, 2, 5] {
        world.leave(tokens[nth]);
    }
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    assert!(!board.whole, "it follows on the first");
    world.leave(tokens[6]);
    world.change_leader();
    let first = due(&mut world, 3 * SECOND_US).remove(0);
    let all = Some(vec![[3, 4], [7, 8]]);
    assert!(first.whole);
    assert_eq!(first.board.lanes[0].holes, all);
    let again = due(&mut world, 63 * SECOND_US).remove(0);
    assert!(again.whole);
    assert_eq!(again.board.lanes[0].holes, all);
    world.leave(tokens[3]);
    let next = due(&mut world, 64 * SECOND_US).remove(0);
    assert!(!next.whole);
    assert_eq!(next.board.lanes[0].holes, Some(vec![[5, 5]]));
}

#[test]
fn holes_in_too_many_ranges_are_a_gap() {
    let (mut world, tokens) = crowd(3 * WHOLE_RANGES_MAX);
    for at in tokens.iter().skip(1).step_by(2) {
        world.leave(*at);
    }
    world.change_leader();
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    assert!(!board.whole);
    assert_eq!(board.prev_version, board.board.version);
}

/// A paused line in which some of `numbers` wait in each lane, far apart: the bitmap has all of them.
fn sparse(line: &str, count: usize, numbers: u64) -> LineDump {
    let names = ["a", "b", "c", "d", "e"];
    let mut world = World::new(Settings {
        phase: Phase::Paused,
        lanes: lanes(&names[..count]),
        ..Settings::new(1, 10_000_000)
    });
    world.enter().unwrap();
    let mut dump = world.line().dump();
    dump.name = name(line);
    let first = dump.lanes[0].live[0].1.clone();
    let mut waiting = 0;
    for lane in &mut dump.lanes {
        lane.next_token = numbers + 1;
        lane.live.clear();
        for token in (1..=numbers).step_by(512) {
            let mut live: LiveRecord = first.clone();
            live.entered.version = token;
            lane.live.push((token, live));
        }
        waiting += lane.live.len() as u64;
    }
    dump.version = numbers;
    dump.settings_version = 1;
    let left = usize::from(Reason::Left.code());
    dump.gone_counts[left] = numbers * count as u64 - waiting;
    dump
}

/// A new leader of these lines publishes for three minutes, as often as it may. Returns how many boards of each line
/// were whole; all of them must be.
fn whole_boards(dumps: Vec<LineDump>) -> BTreeMap<LineName, usize> {
    let mut world = World::new(Settings::new(1, 1));
    for dump in dumps {
        world.state.lines.add(dump).unwrap();
    }
    world.change_leader();
    let mut whole = BTreeMap::new();
    for pass in 0..9_000 {
        for board in due(&mut world, SECOND_US + pass * 20_000) {
            assert!(board.whole, "{}", board.board.line);
            *whole.entry(board.board.line).or_default() += 1;
        }
    }
    whole
}

#[test]
fn every_line_has_its_whole_boards_however_many_there_are() {
    let lines = (0..25).map(|n| sparse(&format!("town-{n:02}"), 1, 50_000));
    let lines: Vec<_> = lines.collect();
    let words = lines.len() * 50_000 / 64;
    assert!(words > WHOLE_WORDS_MAX, "one pass cannot read all of them");
    let whole = whole_boards(lines);
    assert_eq!(whole.len(), 25);
    assert!(whole.values().all(|boards| *boards == 3), "{whole:?}");
}

#[test]
fn a_line_that_is_too_long_for_a_pass_with_others_has_whole_boards() {
    let lines = vec![
        sparse("x", 1, 50_000),
        sparse("y", 5, 210_000),
        sparse("z", 1, 50_000),
    ];
    let whole = whole_boards(lines);
    assert_eq!(whole.into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn a_taken_token_is_a_hole_and_a_called_one_is_none() {
    let mut world = World::new(Settings {
        admission: Admission::Called,
        ..Settings::new(9, 9)
    });
    for _ in 0..5 {
        world.enter().unwrap();
    }
    due(&mut world, SECOND_US);
    let take = |token| Op::Take {
        line: name("shop"),
        by: TakeBy::Number {
            lane: LaneName::default(),
            token,
        },
        call_id: None,
    };
    world.apply(&take(4)).unwrap();
    let call = Op::CallNext {
        line: name("shop"),
        n: 2,
        lane: Some(LaneName::default()),
        call_id: "c".into(),
    };
    world.apply(&call).unwrap();
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    let lane = &board.board.lanes[0];
    assert_eq!((lane.admitted_through, lane.waiting), (2, 2));
    assert_eq!(lane.holes, Some(vec![[4, 4]]));
    // The taken one is among the holes of a whole board, too.
    world.change_leader();
    let first = due(&mut world, 3 * SECOND_US).remove(0);
    assert!(first.whole);
    assert_eq!(first.board.lanes[0].holes, Some(vec![[4, 4]]));
}

#[test]
fn a_moved_token_is_a_hole_of_its_lane_whatever_the_lanes_places() {
    let (mut world, tokens) = crowd(3);
    let set = |world: &mut World, names: &[&str]| {
        let lanes = Some(Change::Set(lanes(names)));
        let patch = SettingsPatch {
            lanes,
            ..Default::default()
        };
        world.configure(patch).unwrap();
    };
    set(&mut world, &["vip", "normal"]);
    let first = world.move_to(tokens[1], "vip").unwrap();
    world.leave(first);
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    let names: Vec<_> = board.board.lanes.iter().map(|l| l.lane.as_str()).collect();
    assert_eq!(names, ["vip", "normal"]);
    assert_eq!(board.board.lanes[0].holes, Some(vec![[1, 1]]));
    assert_eq!(board.board.lanes[1].holes, Some(vec![[3, 3]]));
    // Gone with its lane, and not shown to tokens that enter it when it is back.
    let second = world.move_to(tokens[2], "vip").unwrap();
    world.leave(second);
    set(&mut world, &["normal"]);
    let board = due(&mut world, 3 * SECOND_US).remove(0);
    assert_eq!(board.board.lanes.len(), 1);
    assert_eq!(board.board.lanes[0].holes, Some(vec![[4, 4]]));
    set(&mut world, &["normal", "vip"]);
    let board = due(&mut world, 4 * SECOND_US).remove(0);
    assert_eq!(board.board.lanes[1].holes, Some(vec![]));
    assert_eq!(board.board.lanes[1].next_token, 3, "numbers go on");
}

#[test]
fn holes_of_an_earlier_incarnation_are_not_published_for_the_next() {
    let (mut world, tokens) = crowd(3);
    world.leave(tokens[1]);
    let line = name("shop");
    world
        .apply(&Op::Delete {
            line,
            force: true,
            incarnation: None,
        })
        .unwrap();
    world.create("shop", Settings::new(1, 10));
    let board = due(&mut world, 2 * SECOND_US).remove(0);
    assert_eq!(board.board.lanes[0].holes, Some(vec![]));
}

#[test]
fn nothing_is_kept_for_lines_that_are_not_there() {
    let (mut world, _) = crowd(1);
    for n in 0..100 {
        let line = name(&format!("none-{n}"));
        let (key, lane) = (None, None);
        assert!(world.apply(&Op::Enter { line, key, lane }).is_err());
    }
    let line = name("shop");
    world
        .apply(&Op::Delete {
            line,
            force: true,
            incarnation: None,
        })
        .unwrap();
    assert!(due(&mut world, 2 * SECOND_US).is_empty());
    assert!(world.leader_state.boards.published.is_empty());
}

/// A waiting token's watcher, which knows only the boards and one status at the start.
struct Watcher {
    at: TokenRef,
    lane: LaneName,
    version: u64,
    admitted_through: Token,
    holes: Set<Token>,
}

impl Watcher {
    fn ask(world: &World, at: TokenRef) -> Self {
        let poll = world.line().poll(at, 0, true).unwrap();
        let (status, holes) = (poll.status, poll.holes.flatten().unwrap());
        Watcher {
            at: status.at,
            lane: status.lane,
            version: status.version,
            admitted_through: status.admitted_through,
            holes: holes.into_iter().flat_map(|(a, b)| a..=b).collect(),
        }
    }

    /// False: there is a gap.
    fn receive(&mut self, event: &BoardEvent) -> bool {
        if event.board.version < self.version {
            return true;
        }
        if event.prev_version > self.version {
            return false;
        }
        let mut lanes = event.board.lanes.iter();
        self.version = event.board.version;
        let Some(lane) = lanes.find(|lane| lane.lane == self.lane) else {
            // The line has it no more, so nobody waits in it.
            self.admitted_through = self.at.token;
            return true;
        };
        self.admitted_through = lane.admitted_through;
        let ranges = lane.holes.iter().flatten();
        self.holes.extend(ranges.flat_map(|[a, b]| *a..=*b));
        true
    }

    fn position(&self) -> Option<u64> {
        let from = self.admitted_through + 1;
        (self.at.token >= from && !self.holes.contains(&self.at.token))
            .then(|| self.at.token - from + 1)
            .map(|n| n - self.holes.range(from..self.at.token).count() as u64)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enter(usize),
    Leave(usize),
    Claim(usize),
    Move(usize, usize),
    Lanes(usize),
    Phase(Phase),
    Seats(u32),
    Admission(Admission),
    Call(u32, Option<usize>),
    Take(usize),
    Publish,
    ChangeLeader,
}

const NAMES: [&str; 3] = ["normal", "vip", "staff"];

/// Lanes come, go, change places and return.
const LANES: [&[&str]; 5] = [
    &["normal"],
    &["normal", "vip"],
    &["vip", "normal"],
    &["staff", "vip"],
    &["normal", "vip", "staff"],
];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..NAMES.len()).prop_map(Step::Enter),
        2 => (0_usize..64, 0..NAMES.len()).prop_map(|(n, to)| Step::Move(n, to)),
        1 => (0..LANES.len()).prop_map(Step::Lanes),
        1 => prop::sample::select(&[Phase::Open, Phase::Paused][..]).prop_map(Step::Phase),
        4 => (0_usize..64).prop_map(Step::Leave),
        2 => (0_usize..64).prop_map(Step::Claim),
        1 => (1_u32..6).prop_map(Step::Seats),
        1 => prop::sample::select(&Admission::ALL[..]).prop_map(Step::Admission),
        1 => (1_u32..4, prop::option::of(0..NAMES.len())).prop_map(|(n, lane)| Step::Call(n, lane)),
        2 => (0_usize..64).prop_map(Step::Take),
        3 => Just(Step::Publish),
        1 => Just(Step::ChangeLeader),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_watcher_keeps_its_exact_position_from_boards_alone(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut world = World::new(Settings::new(2, 1_000));
        let mut watchers: Vec<Watcher> = Vec::new();
        let mut now_us = SECOND_US;
        let mut leader_changed = false;
        let mut calls = 0;
        for step in steps.into_iter().chain([Step::Publish]) {
            let live: Vec<_> = world.line().live_from((0, 0)).map(|(lane, token, _)| TokenRef {
                incarnation: world.line().incarnation(), lane, token,
            }).collect();
            let pick = |n: usize| live.get(n % live.len().max(1)).copied();
            match step {
                Step::Enter(lane) => {
                    let lane = LaneName::try_from(NAMES[lane]).unwrap();
                    // Refused: the line has no such lane now.
                    if let Some(at) = world.enter_lane(Some(lane)) {
                        watchers.push(Watcher::ask(&world, at));
                    }
                }
                Step::Move(n, to) => if let Some(at) = pick(n) {
                    let _ = world.move_to(at, NAMES[to]);
                },
                // Refused while somebody is in a lane that would go.
                Step::Lanes(n) => {
                    let _ = world.configure(SettingsPatch {
                        lanes: Some(Change::Set(lanes(LANES[n]))),
                        ..Default::default()
                    });
                }
                Step::Phase(phase) => {
                    world.configure(SettingsPatch {
                        phase: Some(Change::Set(phase)),
                        ..Default::default()
                    }).unwrap();
                }
                Step::Leave(n) => if let Some(at) = pick(n) { world.leave(at) },
                Step::Claim(n) => if let Some(at) = pick(n) { let _ = world.claim(at); },
                Step::Seats(n) => {
                    world.configure(SettingsPatch {
                        seats: Some(Change::Set(n)),
                        ..Default::default()
                    }).unwrap();
                }
                Step::Admission(admission) => {
                    world.configure(SettingsPatch {
                        admission: Some(Change::Set(admission)),
                        ..Default::default()
                    }).unwrap();
                }
                Step::Call(n, lane) => {
                    calls += 1;
                    let _ = world.apply(&Op::CallNext {
                        line: name("shop"),
                        n,
                        lane: lane.map(|lane| LaneName::try_from(NAMES[lane]).unwrap()),
                        call_id: calls.to_string().into(),
                    });
                }
                Step::Take(n) => if let Some(at) = pick(n) {
                    let lane = world.line().lane_names().nth(usize::from(at.lane)).cloned().unwrap();
                    let by = TakeBy::Number { lane, token: at.token };
                    let _ = world.apply(&Op::Take { line: name("shop"), by, call_id: None });
                },
                Step::ChangeLeader => {
                    world.change_leader();
                    leader_changed = true;
                }
                Step::Publish => {
                    now_us += SECOND_US;
                    for event in due(&mut world, now_us) {
                        for watcher in &mut watchers {
                            if !watcher.receive(&event) {
                                prop_assert!(leader_changed, "a gap under one leader");
                                *watcher = Watcher::ask(&world, watcher.at);
                            }
                        }
                    }
                    leader_changed = false;
                    watchers.retain(|w| world.line().status(w.at, 0).unwrap().position.is_some());
                    for watcher in &mut watchers {
                        let now = world.line().resolve(watcher.at);
                        if now != watcher.at {
                            prop_assert_eq!(watcher.position(), None, "{:?} moved", watcher.at);
                            *watcher = Watcher::ask(&world, now);
                        }
                    }
                    for watcher in &watchers {
                        let status = world.line().status(watcher.at, 0).unwrap();
                        prop_assert_eq!(watcher.position(), status.position, "{:?}", watcher.at);
                    }
                }
            }
        }
    }
}

/// Whoever waits for a draw asks once when it is done: the board after it lists all holes, and follows on no other.
#[test]
fn boards_say_that_a_draw_is_not_done() {
    let mut world = World::new(Settings {
        opening: Opening::Draw,
        phase: Phase::PreOpen,
        ..Settings::new(1, 100)
    });
    let tokens: Vec<TokenRef> = (0..5).map(|_| world.enter().unwrap()).collect();
    let seal = Op::SealDraw {
        line: name("shop"),
        incarnation: tokens[0].incarnation,
        seed: nowserving_line::Secret([1; 32]),
    };
    world.apply_all(vec![Command::Line(seal)]);
    world.leave(tokens[1]);
    let boards = due(&mut world, SECOND_US);
    assert!(
        boards.iter().all(|it| it.board.undrawn && !it.whole),
        "{boards:?}"
    );
    let patch = SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    };
    world.configure(patch).unwrap();
    let [board] = &due(&mut world, 2 * SECOND_US)[..] else {
        panic!("one board");
    };
    assert!(board.whole && !board.board.undrawn, "{board:?}");
    assert_eq!(board.prev_version, board.board.version);
    let lane = &board.board.lanes[0];
    assert_eq!((lane.admitted_through, lane.waiting), (6, 3));
    assert_eq!(lane.holes, Some(vec![]));
}
