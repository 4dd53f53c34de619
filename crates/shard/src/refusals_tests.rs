#![allow(clippy::unwrap_used)]
use nowserving_line::{Settings, SettingsPatch};
use proptest::prelude::*;

use super::*;
use crate::command::{EntryBuilder, FORMAT};
use crate::test_world::{World, name};

/// Two can be in the line.
fn world() -> World {
    let mut world = World::new(Settings::new(1, 1));
    world.enter().unwrap();
    world.enter().unwrap();
    world
}

fn refused(world: &World, code: RefusedCode) -> u64 {
    let written = world.line().counts().refused;
    let unwritten = world.leader_state.refusals.unwritten(world.line());
    written.plus(&unwritten).get(code)
}

fn written(world: &World) -> u64 {
    world.line().counts().refused.get(RefusedCode::LineFull)
}

/// What the leader proposes, and applies.
fn pass(world: &mut World) -> usize {
    let commands = world.pass().into_iter();
    let counts = |it: &Command| matches!(it, Command::Line(Op::CountRefused { .. }));
    commands.filter(counts).count()
}

#[test]
fn they_are_written_every_five_seconds_while_there_are_any() {
    let mut world = world();
    assert_eq!(pass(&mut world), 0, "nobody was refused");
    assert_eq!(world.enter(), None);
    assert_eq!(pass(&mut world), 1);
    assert_eq!(written(&world), 1);
    for _ in 0..3 {
        assert_eq!(world.enter(), None);
    }
    assert_eq!((pass(&mut world), written(&world)), (0, 1));
    assert_eq!(refused(&world, RefusedCode::LineFull), 4);
    let due = world.leader_state.refusals.next_due();
    assert_eq!(due, Some(world.now + WRITE_INTERVAL_US));
    world.wait(5_000);
    assert_eq!((pass(&mut world), written(&world)), (1, 4));
    world.wait(5_000);
    assert_eq!((pass(&mut world), written(&world)), (0, 4));
    assert_eq!(world.leader_state.refusals.next_due(), None);
}

#[test]
fn a_leader_that_is_lost_takes_those_with_it_that_it_has_not_written() {
    let mut world = world();
    world.enter();
    pass(&mut world);
    world.enter();
    assert_eq!(refused(&world, RefusedCode::LineFull), 2);
    world.change_leader();
    assert_eq!(refused(&world, RefusedCode::LineFull), 1);
}

#[test]
fn one_that_hands_over_takes_none() {
    let mut world = world();
    world.enter();
    pass(&mut world);
    world.enter();
    let now = world.now;
    let last = world.leader_state.refusals.propose_last(now);
    assert_eq!(last.len(), 1);
    assert_eq!(world.leader_state.refusals.propose_last(now), []);
    world.apply_all(last);
    world.change_leader();
    assert_eq!(refused(&world, RefusedCode::LineFull), 2);
}

#[test]
fn one_that_hands_over_many_lines_takes_none() {
    let mut world = world();
    let names: Vec<_> = (0..=LINES_MAX)
        .map(|n| name(&format!("line-{n}")))
        .collect();
    for line in &names {
        world.create(line.as_str(), Settings::new(1, 0));
        for full in [false, true] {
            let (line, key, lane) = (line.clone(), None, None);
            let entered = world.apply(&Op::Enter { line, key, lane });
            assert_eq!(entered.is_err(), full);
        }
    }
    let now = world.now;
    let last = world.leader_state.refusals.propose_last(now);
    assert_eq!(last.len(), names.len());
    // The engine folds them into entries, none of which is longer than others are.
    let mut builder = EntryBuilder::new(FORMAT);
    let rest = last.iter().cloned().filter_map(|it| builder.push(it));
    assert_eq!(rest.count(), 1);
    world.apply_all(last);
    world.change_leader();
    for line in &names {
        let line = world.state.lines().get(line).unwrap();
        assert_eq!(line.counts().refused.get(RefusedCode::LineFull), 1);
    }
}

#[test]
fn only_refusals_of_entrants_count_and_by_their_code() {
    let mut world = world();
    world.enter_lane(Some("vip".try_into().unwrap()));
    world.enter();
    let waits = world.line().live_from((0, 2)).next().unwrap();
    let at = nowserving_line::TokenRef {
        incarnation: world.line().incarnation(),
        lane: waits.0,
        token: waits.1,
    };
    world.claim(at).unwrap_err();
    let close = SettingsPatch {
        phase: Some(nowserving_line::Change::Set(
            nowserving_line::Phase::Draining,
        )),
        ..SettingsPatch::default()
    };
    world.configure(close).unwrap();
    world.enter();
    world.enter();
    pass(&mut world);
    assert_eq!(
        world.line().counts().refused,
        RefusedCounts::new([1, 0, 2, 1])
    );
}

#[test]
fn what_an_older_member_does_not_know_is_kept_and_tried_again() {
    let mut world = world();
    world.enter();
    let now = world.now;
    let refusals = &mut world.leader_state.refusals;
    let proposed = refusals.propose(now);
    let [Command::Line(op)] = &proposed[..] else {
        panic!("{proposed:?}");
    };
    refusals.not_proposed(op);
    assert_eq!(refusals.propose(now), []);
    assert_eq!(refusals.next_due(), Some(now + WRITE_INTERVAL_US));
    world.wait(5_000);
    assert_eq!((pass(&mut world), written(&world)), (1, 1));
}

#[test]
fn nothing_is_kept_for_a_line_that_was_deleted() {
    let mut world = world();
    world.enter();
    let force = true;
    let delete = Op::Delete {
        line: name("shop"),
        force,
        incarnation: None,
    };
    world.apply(&delete).unwrap();
    assert!(world.leader_state.refusals.lines.is_empty());
    assert_eq!(world.leader_state.refusals.next_due(), None);
    world.create("shop", Settings::new(1, 0));
    world.enter().unwrap();
    world.enter();
    assert_eq!(refused(&world, RefusedCode::LineFull), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However refusals, commands and their loss follow each other, none is counted twice, and none is forgotten.
    #[test]
    fn none_is_counted_twice(steps in prop::collection::vec(0..5u8, 1..60)) {
        let mut world = world();
        let mut count = 0;
        let mut in_flight = Vec::new();
        for step in steps {
            match step {
                0 | 1 => {
                    world.enter();
                    count += 1;
                }
                2 => {
                    let now = world.now;
                    in_flight.extend(world.leader_state.refusals.propose(now));
                }
                3 => match in_flight.pop() {
                    Some(Command::Line(op)) if count % 2 == 0 => {
                        world.leader_state.refusals.not_proposed(&op);
                    }
                    command => world.apply_all(command.into_iter().collect()),
                },
                _ => world.wait(3_000),
            }
            prop_assert_eq!(refused(&world, RefusedCode::LineFull), count);
        }
        world.apply_all(in_flight);
        world.wait(10_000);
        pass(&mut world);
        prop_assert_eq!(written(&world), count);
    }
}
