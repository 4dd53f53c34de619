//! The place in service order over all lanes, against the order in which tokens are really admitted.

use crate::common::{Shard, cases, shop};
use nowserving_line::{
    Change, LaneSettings, Limits, Settings, SettingsPatch, State, Token, TokenRef,
};
use proptest::prelude::*;

const LANES: [&str; 4] = ["normal", "vip", "web", "staff"];

fn lanes(boosts_ms: [u64; 3], absolute: bool) -> Vec<LaneSettings> {
    let boosts = boosts_ms.into_iter().chain([0]);
    let lanes = LANES.into_iter().zip(boosts);
    let lanes = lanes.map(|(name, boost_ms)| LaneSettings {
        boost_ms,
        absolute: absolute && name == "staff",
        ..LaneSettings::new(name.try_into().unwrap())
    });
    lanes.collect()
}

/// Nobody is admitted.
fn paused(lanes: Vec<LaneSettings>) -> Shard {
    let settings = Settings {
        lanes,
        phase: nowserving_line::Phase::Paused,
        ..Settings::new(1, 10_000_000)
    };
    Shard::with_shop(Limits::default(), settings)
}

fn at(shard: &Shard, (lane, token): (u8, Token)) -> TokenRef {
    TokenRef {
        lane,
        ..shard.at(token)
    }
}

/// The waiting tokens by their turns.
fn by_turn(shard: &Shard) -> Vec<(u8, Token)> {
    let live = shard.line().live_from((0, 0));
    let waiting = live.filter(|(_, _, live)| live.state() == State::Waiting);
    let turns = waiting.map(|(lane, token, _)| {
        let status = shard.line().status(at(shard, (lane, token)), 0).unwrap();
        (status.turn.unwrap(), (lane, token))
    });
    let mut turns: Vec<(u64, (u8, Token))> = turns.collect();
    turns.sort_unstable();
    assert!((1..).zip(&turns).all(|(nth, (turn, _))| nth == *turn));
    turns.into_iter().map(|(_, id)| id).collect()
}

/// Opens the line with one more seat at a time.
fn admits_one(shard: &mut Shard, seats: u32) -> (u8, Token) {
    shard.set(SettingsPatch {
        phase: Some(Change::Set(nowserving_line::Phase::Open)),
        seats: Some(Change::Set(seats)),
        ..SettingsPatch::default()
    });
    let admitted = shard.events.iter().filter_map(|event| match event {
        nowserving_line::Event::Token {
            lane_id,
            token,
            what: nowserving_line::TokenChange::Admitted { .. },
            ..
        } => Some((*lane_id, *token)),
        _ => None,
    });
    let admitted: Vec<_> = admitted.collect();
    assert_eq!(admitted.len(), 1);
    admitted[0]
}

#[derive(Debug, Clone)]
enum Step {
    /// So many enter the lane, this far apart.
    Enter {
        lane: usize,
        count: u64,
        apart_ms: u64,
    },
    /// This share of the waiting tokens leaves, evenly spread.
    Leave { every: usize },
    /// These are moved into the lane.
    Move { every: usize, to: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let lane = 0..LANES.len();
    prop_oneof![
        4 => (lane.clone(), 1..300u64, 0..3u64)
            .prop_map(|(lane, count, apart_ms)| Step::Enter { lane, count, apart_ms }),
        1 => (2..9usize).prop_map(|every| Step::Leave { every }),
        2 => (3..40usize, lane).prop_map(|(every, to)| Step::Move { every, to }),
    ]
}

fn run(shard: &mut Shard, step: &Step) {
    let waiting = by_turn(shard);
    match step {
        Step::Enter {
            lane,
            count,
            apart_ms,
        } => {
            for _ in 0..*count {
                shard.now_ms += apart_ms;
                shard.enter_in(LANES[*lane]).unwrap();
            }
        }
        Step::Leave { every } => {
            for id in waiting.into_iter().step_by(*every) {
                let at = at(shard, id);
                let line = shop();
                shard
                    .status_of(&nowserving_line::Op::Leave { line, at })
                    .unwrap();
            }
        }
        Step::Move { every, to } => {
            for (lane, token) in waiting.into_iter().step_by(*every) {
                if usize::from(lane) != *to {
                    let from = LANES[usize::from(lane)];
                    // A token that was moved too often stays.
                    let _ = shard.move_to(from, token, LANES[*to]);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn tokens_are_admitted_in_the_order_of_their_turns(
        boosts_ms in [0..50u64, 0..800u64, 0..800u64],
        absolute in any::<bool>(),
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let mut shard = paused(lanes(boosts_ms, absolute));
        for step in &steps {
            run(&mut shard, step);
        }
        let order = by_turn(&shard);
        for (seats, id) in (1..).zip(order) {
            prop_assert_eq!(admits_one(&mut shard, seats), id);
        }
    }
}

#[test]
fn a_moved_token_waits_for_those_in_front_of_it() {
    let mut shard = paused(lanes([0, 100, 0], false));
    shard.enter_in("normal").unwrap();
    shard.now_ms += 60;
    shard.enter_in("normal").unwrap();
    shard.now_ms += 90;
    // 50 ms ahead of its time, before the second one.
    let vip = shard.enter_in("vip").unwrap();
    assert_eq!((vip.position, vip.turn), (Some(1), Some(2)));
    assert_eq!(shard.status(2).turn, Some(3));
    // It entered first of all, and goes after the one that is in front of it now.
    let moved = shard.move_to("normal", 1, "vip").unwrap();
    assert_eq!((moved.position, moved.turn), (Some(2), Some(2)));
    assert_eq!(shard.status(2).turn, Some(3));
    // Without that one it is first.
    shard
        .status_of(&nowserving_line::Op::Leave {
            line: shop(),
            at: vip.at,
        })
        .unwrap();
    assert_eq!(shard.line().status(moved.at, 0).unwrap().turn, Some(1));
}

#[test]
fn a_cap_hides_turns_past_it_too() {
    let mut shard = paused(lanes([0, 600_000, 0], false));
    shard.set(SettingsPatch {
        position_cap: Some(Change::Set(3)),
        ..SettingsPatch::default()
    });
    let first = shard.enter_in("normal").unwrap();
    for turn in 1..=3 {
        assert_eq!(shard.enter_in("vip").unwrap().turn, Some(turn));
    }
    let last = shard.enter_in("vip").unwrap();
    assert!(last.position_capped && last.turn.is_none());
    // Its position would not say how many of the others go first.
    let first = shard.line().status(first.at, 0).unwrap();
    assert_eq!((first.position, first.turn), (Some(1), None));
    assert!(!first.position_capped);
}
