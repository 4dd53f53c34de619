//! Token events that say how far a waiting token has come.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, LaneSettings, Limits, Lines, Op, Settings, SettingsPatch, TokenChange, WORK_MAX,
};

fn positions(positions: &[u32]) -> SettingsPatch {
    SettingsPatch {
        position_events: Some(Change::Set(positions.to_vec())),
        ..SettingsPatch::default()
    }
}

/// One seat, taken, and so many that wait.
fn shard(marks: &[u32], waiting: u64) -> Shard {
    let settings = Settings {
        position_events: marks.to_vec(),
        ..Settings::new(1, 1_000_000)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..=waiting {
        shard.enter().unwrap();
    }
    shard
}

/// Tokens that were told, with their positions.
fn told(shard: &Shard) -> Vec<(u64, u64)> {
    let told = shard.events.iter().filter_map(|event| match event {
        Event::Token {
            token,
            what: TokenChange::Position { position },
            ..
        } => Some((*token, *position)),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_token_is_told_when_its_place_falls_to_a_position() {
    let mut shard = shard(&[3, 1], 0);
    for _ in 0..5 {
        shard.enter().unwrap();
        assert_eq!(told(&shard), [], "where it enters is no news");
    }
    // 2 to 6 wait.
    shard.leave(3).unwrap();
    assert_eq!(told(&shard), [(5, 3)]);
    shard.serve(1);
    assert_eq!(
        told(&shard),
        [(4, 1), (6, 3)],
        "the first in line comes first"
    );
    shard.serve(2);
    assert_eq!(told(&shard), [(5, 1)]);
}

#[test]
fn a_place_that_falls_past_several_positions_is_told_once() {
    let mut shard = shard(&[50, 10, 5], 60);
    let gone: Vec<_> = (3..=58).map(kicked).collect();
    kick(&mut shard, gone);
    assert_eq!(told(&shard), [(59, 2), (60, 3), (61, 4)]);
    shard.serve(1);
    assert_eq!(told(&shard), [], "10 and 50 are past, too");
}

#[test]
fn a_position_that_is_new_is_no_news_to_those_before_it() {
    let mut shard = shard(&[], 5);
    shard.set(positions(&[4, 2]));
    assert_eq!(told(&shard), []);
    shard.serve(1);
    // 3 to 6 wait, at 1 to 4.
    assert_eq!(told(&shard), [(4, 2), (6, 4)]);
    shard.set(positions(&[3, 2]));
    assert_eq!(told(&shard), []);
    shard.serve(2);
    assert_eq!(told(&shard), [(5, 2), (6, 3)]);
    shard.set(positions(&[]));
    shard.serve(3);
    assert_eq!(told(&shard), []);
}

#[test]
fn each_lane_has_its_own_places_and_a_moved_token_is_told_of_its_new_one() {
    let mut shard = shard(&[2], 3);
    shard.set(SettingsPatch {
        lanes: Some(Change::Set(
            ["normal", "vip"]
                .map(|name| LaneSettings::new(name.try_into().unwrap()))
                .to_vec(),
        )),
        ..SettingsPatch::default()
    });
    shard.enter_in("vip").unwrap();
    assert_eq!(told(&shard), []);
    shard.move_to("normal", 2, "vip").unwrap();
    // Number 4 of the lane that it left has come to the second place, it itself is second in the other one.
    assert_eq!(told(&shard), [(4, 2), (2, 2)]);
}

#[test]
fn many_are_told_in_steps_and_none_twice_over_a_restart() {
    let most = u64::from(WORK_MAX);
    let mut shard = shard(&[5_000, 1], 12_000);
    let mut all = Vec::new();
    let mut next = 3;
    // So many go that 2,000 come to the larger position.
    while next < 2_003 {
        let page: Vec<_> = (next..2_003.min(next + 1_000)).map(kicked).collect();
        next += page.len() as u64;
        kick(&mut shard, page);
        all.extend(told(&shard));
    }
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    while shard.finish_job() {
        assert!(told(&shard).len() as u64 <= most);
        all.extend(told(&shard));
    }
    let tokens: Vec<u64> = all.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, (5_002..=7_001).collect::<Vec<_>>());
    assert!(all.iter().all(|(_, position)| *position <= 5_000));
}

fn kicked(token: u64) -> nowserving_line::KickItem {
    nowserving_line::KickItem {
        lane: 0,
        token,
        state: None,
        clock_ms: None,
    }
}

fn kick(shard: &mut Shard, tokens: Vec<nowserving_line::KickItem>) {
    let incarnation = shard.line().incarnation();
    shard
        .apply(&Op::Kick {
            line: shop(),
            incarnation,
            tokens,
            note: None,
        })
        .unwrap();
}
