//! Lanes: the order of admission, overtaking, and moves between lanes.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, LANE_TABLE_MAX, LaneSettings, Limits, Lines, MOVES_MAX, MovedBy, Op, Reason,
    Refused, Settings, SettingsPatch, State, Status, TokenChange, TokenRef,
};
use proptest::prelude::*;

fn lane(name: &str, boost_ms: u64) -> LaneSettings {
    LaneSettings {
        boost_ms,
        ..LaneSettings::new(name.try_into().unwrap())
    }
}

fn with_lanes(seats: u32, queue_limit: u32, lanes: Vec<LaneSettings>) -> Shard {
    let settings = Settings {
        lanes,
        ..Settings::new(seats, queue_limit)
    };
    Shard::with_shop(Limits::default(), settings)
}

fn lanes(lanes: Vec<LaneSettings>) -> SettingsPatch {
    SettingsPatch {
        lanes: Some(Change::Set(lanes)),
        ..SettingsPatch::default()
    }
}

fn refused_field<T: std::fmt::Debug>(refused: Result<T, Refused>) -> String {
    match refused {
        Err(Refused::BadField(bad)) => bad.field.into_owned(),
        other => panic!("{other:?}"),
    }
}

/// The token admitted last, as (lane in the table, number).
fn newest(shard: &Shard) -> (u8, u64) {
    *admitted_now(shard).last().unwrap()
}

/// The tokens admitted by the last operation.
fn admitted_now(shard: &Shard) -> Vec<(u8, u64)> {
    let admitted = shard.events.iter().filter_map(|event| match event {
        Event::Token {
            lane_id,
            token,
            what: TokenChange::Admitted { .. },
            ..
        } => Some((*lane_id, *token)),
        _ => None,
    });
    admitted.collect()
}

fn leave(shard: &mut Shard, (lane, token): (u8, u64)) {
    let at = TokenRef {
        lane,
        ..shard.at(token)
    };
    shard.status_of(&Op::Leave { line: shop(), at }).unwrap();
}

#[test]
fn a_boost_of_ten_minutes_overtakes_ten_minutes() {
    let minutes = 60_000;
    let mut shard = with_lanes(1, 20, vec![lane("normal", 0), lane("vip", 10 * minutes)]);
    shard.enter().unwrap();
    let start_ms = shard.now_ms;
    let early = shard.enter().unwrap().at;
    shard.now_ms = start_ms + 1;
    let later = shard.enter().unwrap().at;
    // Ten minutes after the first of them, and less than that after the second.
    shard.now_ms = start_ms + 10 * minutes;
    let vip = shard.enter_in("vip").unwrap();
    assert_eq!(vip.position, Some(1), "positions are of the lane");
    let mut order = Vec::new();
    let mut holder = (0, 1);
    for _ in 0..3 {
        leave(&mut shard, holder);
        holder = newest(&shard);
        order.push(holder);
    }
    // The first of them ties with the boosted one: the lane listed first.
    assert_eq!(order, [(0, early.token), (1, 1), (0, later.token)]);
}

#[test]
fn nobody_of_the_others_is_admitted_before_an_absolute_lane() {
    let staff = LaneSettings {
        absolute: true,
        ..lane("staff", 0)
    };
    let mut shard = with_lanes(1, 20, vec![lane("normal", 600_000), staff]);
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    shard.now_ms += 1_000_000;
    shard.enter_in("staff").unwrap();
    shard.leave(1).unwrap();
    assert_eq!(newest(&shard), (1, 1));
    let explanation = shard.line().explain(shard.at(2)).unwrap();
    assert_eq!(explanation.overtakers.len(), 1);
}

#[test]
fn a_lanes_own_limit_counts_only_tokens_that_wait() {
    let tight = LaneSettings {
        queue_limit: Some(1),
        ..lane("vip", 0)
    };
    let mut shard = with_lanes(2, 10, vec![lane("normal", 0), tight]);
    assert_eq!(
        shard.board().lanes[1].accepts_through,
        3,
        "two seats and one that waits"
    );
    for token in 1..=3 {
        assert_eq!(shard.enter_in("vip").unwrap().at.token, token);
    }
    let full = shard.enter_in("vip").unwrap_err();
    let vip = "vip".try_into().unwrap();
    assert_eq!(
        full,
        Refused::LaneFull {
            lane: vip,
            limit: 1
        }
    );
    let board = shard.board();
    assert_eq!(board.lanes[1].accepts_through, 3);
    assert_eq!(board.lanes[0].accepts_through, 9, "the line has room");
    assert_eq!(board.lanes[0].admitted_through, 0, "nothing is promised");
    shard.enter_in("normal").unwrap();
    assert_eq!(shard.move_to("normal", 1, "vip"), Err(full));
    for _ in 0..8 {
        shard.enter_in("normal").unwrap();
    }
    assert_eq!(shard.enter_in("vip"), Err(Refused::LineFull), "all of it");
}

#[test]
fn a_full_line_says_how_room_is_kept_for_its_absolute_lane() {
    let staff = LaneSettings {
        absolute: true,
        ..lane("staff", 0)
    };
    let limited = |limit| LaneSettings {
        queue_limit: Some(limit),
        ..lane("normal", 0)
    };
    let full = |mut shard: Shard| loop {
        if let Err(refused) = shard.enter_in("staff") {
            return refused;
        }
    };
    let kept = Refused::NoRoomKept {
        lane: "staff".try_into().unwrap(),
    };
    let says = kept.to_string();
    assert!(
        says.contains("lane staff") && says.contains("limit=N"),
        "{says}"
    );
    for other in [lane("normal", 0), limited(5)] {
        assert_eq!(full(with_lanes(1, 5, vec![other, staff.clone()])), kept);
    }
    // It has used what was kept for it, or has the line for itself.
    for lanes in [vec![limited(4), staff.clone()], vec![staff]] {
        assert_eq!(full(with_lanes(1, 5, lanes)), Refused::LineFull);
    }
}

#[test]
fn a_lane_goes_when_it_is_empty_and_returns_with_its_counter() {
    let mut shard = with_lanes(1, 20, vec![lane("normal", 0), lane("vip", 0)]);
    let gone = shard.enter_in("vip").unwrap().at;
    assert_eq!(
        refused_field(shard.try_set(lanes(vec![lane("normal", 0)]))),
        "lanes"
    );
    leave(&mut shard, (1, 1));
    shard.set(lanes(vec![lane("normal", 0)]));
    assert_eq!(shard.board().lanes.len(), 1);
    assert_eq!(shard.lane().admitted_through, 1, "one lane promises again");
    assert_eq!(refused_field(shard.enter_in("vip")), "lane");
    let status = shard.line().status(gone, 0).unwrap();
    assert_eq!((status.state, status.lane.as_str()), (State::Gone, "vip"));
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.set(lanes(vec![
        lane("vip", 7),
        lane("web", 0),
        lane("normal", 0),
    ]));
    let board = shard.board();
    let shown = board
        .lanes
        .iter()
        .map(|lane| (lane.lane.as_str(), lane.lane_id));
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown, [("vip", 1), ("web", 2), ("normal", 0)]);
    assert_eq!(
        shard.enter().unwrap().at.token,
        2,
        "the first is the default; numbers go on"
    );
}

#[test]
fn a_line_knows_at_most_64_names() {
    let mut shard = with_lanes(1, 20, vec![lane("lane-0", 0)]);
    for n in 1..LANE_TABLE_MAX {
        shard.set(lanes(vec![lane(&format!("lane-{n}"), 0)]));
    }
    let one_more = shard.try_set(lanes(vec![lane("lane-64", 0)]));
    assert_eq!(refused_field(one_more), "lanes");
    shard.set(lanes(vec![lane("lane-7", 0)]));
    shard.enter().unwrap();
    let dump = shard.lines.dump();
    assert_eq!(Lines::restore(dump.clone()).unwrap().dump(), dump);
}

#[test]
fn a_moved_token_is_found_by_every_old_ticket() {
    let mut shard = with_lanes(1, 20, vec![lane("normal", 0), lane("vip", 0)]);
    shard.enter().unwrap();
    let entered_at_ms = shard.wall_ms();
    let first = shard.enter_as(Some("k")).unwrap().at;
    shard.now_ms += 5_000;
    let (mut here, mut there, mut token) = ("normal", "vip", first.token);
    for n in 0..MOVES_MAX {
        let moved = shard.move_to(here, token, there).unwrap();
        assert_eq!(moved.entered_at_ms, Some(entered_at_ms));
        assert_eq!(
            shard.move_to(here, token, there).unwrap().at,
            moved.at,
            "again: the same"
        );
        assert_eq!(shard.line().status(first, 0).unwrap().at, moved.at);
        assert_eq!(shard.line().find(b"k"), Some(moved.at));
        assert_eq!(shard.line().counts().gone_for(Reason::Moved), n as u64 + 1);
        token = moved.at.token;
        std::mem::swap(&mut here, &mut there);
    }
    let too_often = shard.move_to(here, token, there);
    assert_eq!(refused_field(too_often), "token");
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    leave(&mut shard, (0, 1));
    let last = shard.line().status(first, 0).unwrap();
    assert_eq!((last.at.token, last.state), (token, State::Admitted));
    assert_eq!(shard.move_to(here, token, there), Err(Refused::NotWaiting));
    let claimed = shard.status_of(&Op::Claim {
        line: shop(),
        at: first,
    });
    assert_eq!(claimed.unwrap().at, last.at);
    leave(&mut shard, (first.lane, first.token));
    let status = shard.line().status(first, 0).unwrap();
    assert_eq!(
        (status.at, status.reason),
        (last.at, Some(Some(Reason::Left)))
    );
    let again = shard.move_to("normal", first.token, "vip");
    assert_eq!(again, Err(Refused::TokenGone(Some(Reason::Left))));
}

#[test]
fn any_of_its_numbers_moves_the_token() {
    let names = ["normal", "vip", "web"];
    let mut shard = with_lanes(1, 20, names.map(|name| lane(name, 0)).into());
    shard.enter().unwrap();
    let first = shard.enter().unwrap().at;
    shard.move_to("normal", 2, "vip").unwrap();
    let last = shard.move_to("normal", 2, "web").unwrap().at;
    let moves = shard.line().counts().gone_for(Reason::Moved);
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    for (from, token) in [("normal", 2), ("vip", 1)] {
        assert_eq!(shard.move_to(from, token, "web").unwrap().at, last);
        assert!(shard.events.is_empty(), "asked again, nothing is moved");
    }
    assert_eq!(shard.line().counts().gone_for(Reason::Moved), moves);
    let back = shard.move_to("normal", 2, "vip").unwrap().at;
    assert_eq!((back.lane, back.token), (1, 2));
    let home = shard.move_to("vip", 1, "normal").unwrap().at;
    assert_eq!((home.lane, home.token), (0, 3));
    assert_eq!(shard.line().status(first, 0).unwrap().at, home);
}

#[test]
fn every_refusal_of_a_move() {
    let mut shard = with_lanes(1, 20, vec![lane("normal", 0), lane("vip", 0)]);
    shard.enter().unwrap();
    shard.enter().unwrap();
    let none = "no lane \"web\"; the line has normal, vip";
    let refused = |refused: Result<Status, Refused>| refused.unwrap_err().to_string();
    let text = refused(shard.enter_in("web"));
    assert_eq!(text, format!("lane: {none}"));
    let text = refused(shard.move_to("web", 2, "vip"));
    assert_eq!(text, format!("lane: {none}"));
    let text = refused(shard.move_to("normal", 2, "web"));
    assert_eq!(text, format!("to: {none}"));
    let text = refused(shard.move_to("normal", 2, "normal"));
    assert_eq!(text, "to: it is in this lane already");
    assert_eq!(
        shard.move_to("normal", 3, "vip"),
        Err(Refused::TokenNotFound)
    );
    assert_eq!(
        shard.move_to("normal", 0, "vip"),
        Err(Refused::TokenNotFound)
    );
    assert_eq!(shard.move_to("normal", 1, "vip"), Err(Refused::NotWaiting));
    shard.move_to("normal", 2, "vip").unwrap();
    assert!(matches!(
        &shard.events[..],
        [Event::Token { lane_id: 0, token: 2, what: TokenChange::Moved { to_lane, to, by: MovedBy::Operator }, .. }]
            if to_lane.as_str() == "vip" && (to.lane, to.token) == (1, 1)
    ));
    assert_eq!(shard.board().lanes[0].admitted_through, 2, "it left a hole");
}

#[test]
fn an_entrant_that_names_no_lane_enters_the_default_one() {
    let default = |name: Option<&str>| SettingsPatch {
        default_lane: Some(
            name.map_or(Change::Unset, |name| Change::Set(name.try_into().unwrap())),
        ),
        ..SettingsPatch::default()
    };
    let mut shard = with_lanes(1, 20, vec![lane("vip", 0), lane("normal", 0)]);
    assert_eq!(shard.enter().unwrap().lane.as_str(), "vip", "the first");
    shard.set(default(Some("normal")));
    assert_eq!(shard.enter().unwrap().lane.as_str(), "normal");
    assert_eq!(shard.enter_in("vip").unwrap().lane.as_str(), "vip");
    let refused = shard.try_set(default(Some("web"))).unwrap_err();
    let text = "default_lane: no lane \"web\"; one of vip, normal, or null for the first";
    assert_eq!(refused.to_string(), text);
    leave(&mut shard, (1, 1));
    // It does not go unseen, nor does it change unseen.
    let one = lanes(vec![lane("vip", 0)]);
    let refused = shard.try_set(one.clone()).unwrap_err();
    let text = "default_lane: no lane \"normal\"; one of vip, or null for the first";
    assert_eq!(refused.to_string(), text);
    shard.set(SettingsPatch {
        lanes: one.lanes.clone(),
        ..default(None)
    });
    assert_eq!(shard.enter().unwrap().lane.as_str(), "vip");
    shard.set(SettingsPatch {
        lanes: Some(Change::Set(vec![lane("vip", 0), lane("web", 0)])),
        ..default(Some("web"))
    });
    assert_eq!(shard.enter().unwrap().lane.as_str(), "web");
}

#[derive(Debug, Clone)]
struct Come {
    after_ms: u64,
    lane: usize,
    /// This one of those who hold a seat gives it back, too.
    serve: Option<usize>,
}

fn come() -> impl Strategy<Value = Come> {
    // Often several in one millisecond.
    let after_ms = prop_oneof![1 => Just(0), 2 => 0..400u64];
    let serve = prop::option::weighted(0.4, 0..4usize);
    (after_ms, 0..3usize, serve).prop_map(|(after_ms, lane, serve)| Come {
        after_ms,
        lane,
        serve,
    })
}

proptest! {
    #![proptest_config(crate::common::cases(1_000))]

    /// Somebody who entered later is admitted earlier only if it entered less later than its boost
    /// is larger, or just that much later, in a lane listed before. So it is in lanes that are not
    /// absolute; those that are overtake without bound.
    #[test]
    fn the_published_overtaking_bound(
        seats in 1..5u32,
        boosts in prop::collection::vec(0..2_000u64, 3),
        coming in prop::collection::vec(come(), 1..60),
    ) {
        let names = ["a", "b", "c"];
        let set = names.iter().zip(&boosts).map(|(name, boost_ms)| lane(name, *boost_ms));
        let mut shard = with_lanes(seats, 1_000, set.collect());
        // In the order of entering, with the time.
        let mut entered: Vec<((u8, u64), i64)> = Vec::new();
        let mut holders: Vec<(u8, u64)> = Vec::new();
        for come in coming {
            shard.now_ms += come.after_ms;
            let at = shard.enter_in(names[come.lane]).unwrap().at;
            entered.push(((at.lane, at.token), shard.now_ms as i64));
            let mut admitted = admitted_now(&shard);
            if let Some(holder) = come.serve.filter(|_| !holders.is_empty()) {
                let holder = holders.swap_remove(holder % holders.len());
                leave(&mut shard, holder);
                admitted.extend(admitted_now(&shard));
            }
            holders.extend(&admitted);
            prop_assert!(holders.len() <= seats as usize);
            for first in admitted {
                let place = entered.iter().position(|(id, _)| *id == first).unwrap();
                let first_ms = entered[place].1;
                let boost = |lane: u8| boosts[usize::from(lane)] as i64;
                for ((lane, token), entered_ms) in &entered[..place] {
                    let live = shard.line().live(*lane, *token);
                    if live.is_some_and(|live| live.state() == State::Waiting) {
                        let (later_ms, more_ms) = (first_ms - entered_ms, boost(first.0) - boost(*lane));
                        let tie = later_ms == more_ms && first.0 < *lane;
                        prop_assert!(later_ms < more_ms || tie, "{first:?} before {:?}", (lane, token));
                    }
                }
            }
        }
    }
}
