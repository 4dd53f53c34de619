//! Why was X before me?
#![allow(clippy::unwrap_used)]

mod common;

use common::Shard;
use nowserving_line::{
    Change, JOURNAL_KEPT, Journaled, JournaledToken, LaneSettings, Limits, Lines, OVERTAKERS_MAX,
    OvertookBy, Reason, Refused, Settings, SettingsPatch,
};

fn lane(name: &str, boost_ms: u64, absolute: bool) -> LaneSettings {
    LaneSettings {
        boost_ms,
        absolute,
        ..LaneSettings::new(name.try_into().unwrap())
    }
}

fn three_lanes(queue_limit: u32) -> Shard {
    let lanes = vec![
        lane("normal", 1_000, false),
        lane("vip", 60_000, false),
        lane("staff", 0, true),
    ];
    let settings = Settings {
        lanes,
        ..Settings::new(1, queue_limit)
    };
    Shard::with_shop(Limits::default(), settings)
}

#[test]
fn who_was_before_and_why() {
    let mut shard = three_lanes(20);
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    shard.now_ms += 10_000;
    shard.enter_in("vip").unwrap();
    shard.enter_in("staff").unwrap();
    shard.enter_in("normal").unwrap();
    shard.leave(1).unwrap();
    for lane in [2, 1] {
        let at = shard.at(1);
        let at = nowserving_line::TokenRef { lane, ..at };
        let line = common::shop();
        shard
            .apply(&nowserving_line::Op::Leave { line, at })
            .unwrap();
    }
    shard.leave(2).unwrap();
    let told = shard.line().explain(shard.at(3)).unwrap();
    assert_eq!(told.own_lane_before, 2, "tokens 1 and 2");
    let by: Vec<_> = told
        .overtakers
        .iter()
        .map(|o| (o.lane.as_str(), o.token, o.by))
        .collect();
    let boost = OvertookBy::Boost { ms: 59_000 };
    assert_eq!(by, [("staff", 1, OvertookBy::Absolute), ("vip", 1, boost)]);
    assert_eq!((told.overtakers_total, told.cut), (2, false));
    let mine = told.entries.iter().map(|entry| entry.what);
    assert!(matches!(
        &mine.collect::<Vec<_>>()[..],
        [Journaled::Token {
            token: 3,
            what: JournaledToken::Admitted {
                boost_ms: 1_000,
                ..
            },
            ..
        }]
    ));
    // Of the last one nothing has happened yet, but those before it have had their turn.
    let told = shard.line().explain(shard.at(4)).unwrap();
    assert_eq!((told.entries.len(), told.overtakers_total), (0, 0));
    let unknown = shard.line().explain(shard.at(5));
    assert_eq!(unknown, Err(Refused::TicketInvalid));
}

#[test]
fn a_moved_token_is_one_story() {
    let mut shard = three_lanes(20);
    shard.enter().unwrap();
    shard.enter().unwrap();
    shard.now_ms += 5;
    shard.move_to("normal", 2, "vip").unwrap();
    shard.move_to("vip", 1, "staff").unwrap();
    shard.leave(2).unwrap();
    for restart in [false, true] {
        if restart {
            shard.lines = Lines::restore(shard.lines.dump()).unwrap();
        }
        let told = shard.line().explain(shard.at(2)).unwrap();
        assert_eq!((told.at.lane, told.at.token), (2, 1));
        let what = told.entries.iter().map(|entry| match entry.what {
            Journaled::Token { lane, what, .. } => (lane, what),
            Journaled::Configured => panic!("not of a token"),
        });
        let moved = |to_lane| JournaledToken::Moved { to_lane, to: 1 };
        let gone = JournaledToken::Gone(Reason::Left);
        let what: Vec<_> = what.collect();
        assert_eq!(what, [(0, moved(1)), (1, moved(2)), (2, gone)]);
    }
}

#[test]
fn it_is_bounded_and_read_in_pages() {
    let mut shard = three_lanes(10_000);
    shard.set(SettingsPatch {
        seats: Some(Change::Set(2)),
        ..SettingsPatch::default()
    });
    shard.enter().unwrap();
    shard.enter().unwrap();
    let first = shard.enter().unwrap().at;
    shard.now_ms += 1;
    let oldest = shard.line().journal_after(0).next().unwrap();
    assert_eq!(oldest.what, Journaled::Configured);
    for token in 1..=JOURNAL_KEPT as u64 {
        shard.enter_in("staff").unwrap();
        if token == 1 {
            shard.leave(1).unwrap();
        } else {
            let at = shard.at(token - 1);
            let at = nowserving_line::TokenRef { lane: 2, ..at };
            let line = common::shop();
            shard
                .apply(&nowserving_line::Op::Leave { line, at })
                .unwrap();
        }
    }
    let line = shard.line();
    let versions: Vec<u64> = line.journal_after(0).map(|entry| entry.version).collect();
    assert_eq!(versions.len(), JOURNAL_KEPT);
    assert!(versions.is_sorted_by(|a, b| a < b));
    let rest = line.journal_after(versions[99]).map(|entry| entry.version);
    assert!(rest.eq(versions[100..].iter().copied()));
    let told = line.explain(first).unwrap();
    assert!(told.cut, "what was before is not known any more");
    assert_eq!(told.overtakers.len(), OVERTAKERS_MAX);
    assert_eq!(told.overtakers_total, JOURNAL_KEPT as u64 / 2);
    let restored = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(restored.dump(), shard.lines.dump());
}
