#![allow(clippy::unwrap_used)]
use nowserving_line::{Change, Gate, LaneSettings, Op, Settings, SettingsPatch};

use super::*;
use crate::test_world::{World, lane, name};

fn of(world: &World) -> Tally {
    *world.leader_state.tallies.of(world.line())
}

fn of_lanes(world: &World) -> Vec<Tally> {
    let ids = 0..world.line().lane_names().count() as u8;
    let of = |id| world.leader_state.tallies.of_lane(world.line(), id);
    ids.map(of).collect()
}

fn gone(tally: &Tally, reason: Reason) -> u64 {
    tally.gone[usize::from(reason.code())]
}

/// One seat, and lanes `normal` and `vip`.
fn two_lanes() -> World {
    let mut settings = Settings::new(1, 3);
    let lanes = ["normal", "vip"].map(|name| LaneSettings::new(lane(name)));
    settings.lanes = lanes.to_vec();
    World::new(settings)
}

#[test]
fn a_wait_is_in_the_first_class_that_is_long_enough() {
    let mut counts = WaitCounts::default();
    for wait_ms in [0, 100, 101, 1_000, 43_200_000, 43_200_001] {
        counts.add(wait_ms);
    }
    let mut expected = [0; 16];
    (expected[0], expected[1], expected[14], expected[15]) = (2, 2, 1, 1);
    assert_eq!(counts.classes, expected);
    assert_eq!(counts.sum_ms, 86_401_202);
}

#[test]
fn a_leader_counts_each_event_once_and_forgets_them_with_its_lead() {
    let mut world = World::new(Settings::new(1, 1));
    let first = world.enter().unwrap();
    let second = world.enter().unwrap();
    assert_eq!(world.enter(), None);
    world.wait(4_000);
    world.leave(first);
    world.claim(second).unwrap();
    let tally = of(&world);
    assert_eq!(tally.entered, 2);
    assert_eq!(gone(&tally, Reason::Left), 1);
    assert_eq!(tally.gone.iter().sum::<u64>(), 1);
    assert_eq!(tally.refused, [1, 0, 0, 0]);
    assert_eq!(tally.waits.classes[..3], [1, 0, 1]);
    assert_eq!(tally.waits.classes.iter().sum::<u64>(), 2);
    let sum_ms = tally.waits.sum_ms;
    assert!((3_000..=4_000).contains(&sum_ms), "{tally:?}");
    assert_eq!(tally.shadow, [0; 3]);
    assert_eq!(of_lanes(&world), [Tally::default()], "it is the line");
    world.change_leader();
    assert_eq!(of(&world), Tally::default());
}

#[test]
fn they_agree_with_the_counts_of_the_state() {
    let mut world = two_lanes();
    let mut tokens = Vec::new();
    for to in ["normal", "vip", "normal", "vip", "normal"] {
        tokens.extend(world.enter_lane(Some(lane(to))));
    }
    assert_eq!(tokens.len(), 4, "then it is full");
    world.move_to(tokens[2], "vip").unwrap();
    world.leave(tokens[0]);
    let (tally, lanes) = (of(&world), of_lanes(&world));
    let counts = world.line().counts();
    assert_eq!(tally.gone, counts.gone);
    assert_eq!(
        tally.entered,
        counts.issued - counts.gone_for(Reason::Moved)
    );
    let sum = lanes[0].plus(&lanes[1]);
    assert_eq!(sum, tally, "each event is of one lane");
    assert_eq!([lanes[0].entered, lanes[1].entered], [2, 2]);
    assert_eq!(gone(&lanes[0], Reason::Moved), 1, "the lane that it left");
    assert_eq!(lanes[0].refused[0], 1);
}

#[test]
fn who_asks_for_an_unknown_lane_is_refused_by_the_line_alone() {
    let mut world = two_lanes();
    assert_eq!(world.enter_lane(Some(lane("none"))), None);
    let code = RefusedCode::BadRequest as usize;
    assert_eq!(of(&world).refused[code], 1);
    assert_eq!(of_lanes(&world), [Tally::default(); 2]);
}

#[test]
fn shadow_and_forecasts_come_with_the_admission() {
    let mut world = World::new(Settings::new(1, 0));
    let gate = |gate| SettingsPatch {
        gate: Some(Change::Set(gate)),
        ..SettingsPatch::default()
    };
    world.configure(gate(Gate::Shadow)).unwrap();
    world.enter().unwrap();
    world.enter().unwrap();
    assert_eq!(of(&world).shadow, [2, 1, 1]);
    // The line's own begin again.
    world.configure(gate(Gate::On)).unwrap();
    world.configure(gate(Gate::Shadow)).unwrap();
    assert_eq!(world.line().shadow().admitted, 0);
    assert_eq!(of(&world).shadow, [2, 1, 1]);

    let mut world = World::new(Settings::new(1, 500));
    let mut tokens: Vec<_> = (0..400).map(|_| world.enter().unwrap()).collect();
    for at in tokens.drain(..300) {
        world.wait(1_000);
        world.leave(at);
        world.enter().unwrap();
    }
    let (tally, record) = (of(&world), world.line().forecast_record());
    for at in tokens {
        world.leave(at);
    }
    assert!(record.judged == tally.judged() && record.off_by == tally.off_by);
    let (tally, record) = (of(&world), world.line().forecast_record());
    assert_eq!(
        (tally.off_by, tally.covered),
        (record.off_by, record.covered)
    );
}

#[test]
fn a_new_creation_of_a_line_begins_at_zero() {
    let mut world = World::new(Settings::new(1, 5));
    world.enter().unwrap();
    let delete = Op::Delete {
        line: name("shop"),
        force: true,
        incarnation: None,
    };
    world.apply(&delete).unwrap();
    for _ in 0..10 {
        world.step(100);
    }
    world.create("shop", Settings::new(1, 5));
    assert_eq!(of(&world), Tally::default());
    world.enter().unwrap();
    assert_eq!(of(&world).entered, 1);
}

#[test]
fn the_bounds_ascend() {
    assert!(WAIT_BOUNDS_MS.is_sorted());
}
