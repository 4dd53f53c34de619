//! Why was X before me?

use crate::common::{Restart, Shard};
use nowserving_line::{
    AdmittedBy, Change, JOURNAL_KEPT, Journaled, JournaledToken, LaneSettings, Limits, Lines,
    MOVES_MAX, MovedBy, OVERTAKERS_MAX, OvertookBy, Reason, Refused, Settings, SettingsPatch,
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
fn explains_earlier_admissions() {
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
        let line = crate::common::shop();
        shard
            .apply(&nowserving_line::Op::Leave { line, at })
            .unwrap();
    }
    shard.leave(2).unwrap();
    let explanation = shard.line().explain(shard.at(3)).unwrap();
    assert_eq!(
        explanation.own_lane_before, 1,
        "token 2: 1 had its seat already"
    );
    let by: Vec<_> = explanation
        .overtakers
        .iter()
        .map(|o| (o.lane.as_str(), o.token, o.by))
        .collect();
    let boost = OvertookBy::Boost { ms: 59_000 };
    assert_eq!(by, [("staff", 1, OvertookBy::Absolute), ("vip", 1, boost)]);
    assert_eq!((explanation.overtakers_total, explanation.cut), (2, false));
    let mine = explanation.entries.iter().map(|entry| entry.what);
    assert!(matches!(
        &mine.collect::<Vec<_>>()[..],
        [
            Journaled::Token {
                token: 3,
                what: JournaledToken::Entered { position: 2 },
                ..
            },
            Journaled::Token {
                token: 3,
                what: JournaledToken::Admitted {
                    boost_ms: 1_000,
                    ..
                },
                ..
            }
        ]
    ));
    // Of the last one nothing has happened but that it entered, and those before it have had their turn.
    let explanation = shard.line().explain(shard.at(4)).unwrap();
    assert_eq!(
        (explanation.entries.len(), explanation.overtakers_total),
        (1, 0)
    );
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
        let explanation = shard.line().explain(shard.at(2)).unwrap();
        assert_eq!((explanation.at.lane, explanation.at.token), (2, 1));
        let what = explanation.entries.iter().map(|entry| match entry.what {
            Journaled::Token { lane, what, .. } => (lane, what),
            _ => panic!("not of a token"),
        });
        let moved = |to_lane| JournaledToken::Moved {
            to_lane,
            to: 1,
            by: MovedBy::Operator,
        };
        let gone = JournaledToken::Gone {
            reason: Reason::Left,
            units: None,
        };
        let what: Vec<_> = what.collect();
        let entered = JournaledToken::Entered { position: 1 };
        assert_eq!(
            what,
            [(0, entered), (0, moved(1)), (1, moved(2)), (2, gone)]
        );
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
    assert!(matches!(oldest.what, Journaled::Configured { .. }));
    for token in 1..=JOURNAL_KEPT as u64 {
        shard.enter_in("staff").unwrap();
        if token == 1 {
            shard.leave(1).unwrap();
        } else {
            let at = shard.at(token - 1);
            let at = nowserving_line::TokenRef { lane: 2, ..at };
            let line = crate::common::shop();
            shard
                .apply(&nowserving_line::Op::Leave { line, at })
                .unwrap();
        }
    }
    let line = shard.line();
    let versions: Vec<u64> = line.journal_after(0).map(|entry| entry.version).collect();
    // And the change of the settings.
    assert_eq!(versions.len(), JOURNAL_KEPT + 1);
    assert!(versions.is_sorted_by(|a, b| a < b));
    let rest = line.journal_after(versions[99]).map(|entry| entry.version);
    assert!(rest.eq(versions[100..].iter().copied()));
    let explanation = line.explain(first).unwrap();
    assert!(explanation.cut, "what was before is not known any more");
    assert_eq!(explanation.overtakers.len(), OVERTAKERS_MAX);
    // Each of them entered, was admitted, and left.
    assert_eq!(
        explanation.overtakers_total,
        JOURNAL_KEPT.div_ceil(3) as u64
    );
    let restored = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(restored.dump(), shard.lines.dump());
}

#[test]
fn a_claim_is_in_it_with_its_epoch() {
    let mut shard = three_lanes(20);
    shard.enter().unwrap();
    shard.now_ms += 7;
    let epoch = shard.claim(1).unwrap().epoch.unwrap();
    shard.claim(1).unwrap();
    shard.complete(1, None).unwrap();
    let explanation = shard.line().explain(shard.at(1)).unwrap();
    let what = explanation.entries.iter().map(|entry| match entry.what {
        Journaled::Token { what, .. } => what,
        _ => panic!("not of a token"),
    });
    let admitted = JournaledToken::Admitted {
        absolute: false,
        boost_ms: 1_000,
        by: AdmittedBy::Turn,
    };
    let claimed = JournaledToken::Claimed { epoch };
    let gone = JournaledToken::Gone {
        reason: Reason::Completed,
        units: Some(1),
    };
    let entered = JournaledToken::Entered { position: 1 };
    let expected = [entered, admitted, claimed, gone];
    assert_eq!(what.collect::<Vec<_>>(), expected, "once");
}

#[test]
fn a_change_of_settings_is_in_it_as_long_as_there_is_room() {
    let set = |seats| SettingsPatch {
        seats: Some(Change::Set(seats)),
        ..SettingsPatch::default()
    };
    let limits = Limits {
        journal_kept: 8,
        journal_changes_bytes: 4 * 512,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 20));
    shard.set(set(1));
    assert_eq!(shard.line().journal_after(0).count(), 0, "it is the same");
    for seats in 2..8 {
        shard.set(set(seats));
    }
    let changes = |shard: &Shard| {
        let line = shard.line();
        let versions = line.journal_after(0).map(|entry| entry.version);
        let changes = versions.map(|version| {
            let change = line.settings_change(version)?;
            assert_eq!(change.version, version);
            Some((change.from.clone(), change.to.clone()))
        });
        changes.collect::<Vec<_>>()
    };
    let newest =
        |seats: std::ops::Range<u32>| seats.map(|seats| Some((set(seats - 1), set(seats))));
    let expected: Vec<_> = [None, None].into_iter().chain(newest(4..8)).collect();
    assert_eq!(changes(&shard), expected);
    shard.lines = Lines::restore_with(limits, shard.lines.dump()).unwrap();
    assert_eq!(changes(&shard), expected);

    // One that is large takes the room of many; those whose entry goes, go with it.
    let labels = (0..16).map(|n| (format!("{n:064}"), "v".repeat(64)));
    shard.set(SettingsPatch {
        labels: Some(Change::Set(labels.collect())),
        ..SettingsPatch::default()
    });
    assert_eq!(
        changes(&shard),
        vec![None; 7],
        "more than all the room there is"
    );
    shard.set(set(9));
    assert_eq!(changes(&shard).last().unwrap(), &Some((set(7), set(9))));
}

/// A crowd, or a kick that ends it, takes no operator's action out of the journal.
#[test]
fn what_operators_did_is_kept_however_many_tokens_come_and_go() {
    let limits = Limits {
        journal_kept: 8,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 100));
    shard.set(SettingsPatch {
        queue_limit: Some(Change::Set(200)),
        ..SettingsPatch::default()
    });
    let changed = shard.line().journal_after(0).next().unwrap();
    assert!(!changed.is_of_token());
    for _ in 0..50 {
        shard.enter().unwrap();
    }
    let entries = |shard: &Shard| -> Vec<_> { shard.line().journal_after(0).collect() };
    let kept = entries(&shard);
    assert_eq!(kept.len(), 1 + 8);
    assert_eq!(kept[0], changed);
    assert!(shard.line().settings_change(changed.version).is_some());
    assert!(kept[1..].iter().all(|it| it.is_of_token()));
    shard.lines = Lines::restore_with(limits, shard.lines.dump()).unwrap();
    assert_eq!(entries(&shard), kept, "restored");
    // Those about the line are bounded, too.
    for seats in 2..20 {
        if seats % 3 == 0 {
            shard.enter().unwrap();
        }
        shard.set(SettingsPatch {
            seats: Some(Change::Set(seats)),
            ..SettingsPatch::default()
        });
    }
    let of_line = |entries: &[nowserving_line::JournalEntry]| {
        entries.iter().filter(|it| !it.is_of_token()).count()
    };
    assert_eq!(of_line(&entries(&shard)), 8);
    assert!(shard.line().settings_change(changed.version).is_none());
    let kept = entries(&shard);
    assert!(kept.is_sorted_by(|a, b| a.version < b.version));
    for nth in 0..=kept.len() {
        let rest: Vec<_> = shard.line().journal_after(0).skip(nth).collect();
        assert_eq!(rest, kept[nth..], "after {nth}");
    }
}

#[test]
fn the_journal_of_a_dump_fits_together() {
    let mut shard = three_lanes(20);
    shard.enter().unwrap();
    shard.set(SettingsPatch {
        seats: Some(Change::Set(2)),
        phase: Some(Change::Set(nowserving_line::Phase::Paused)),
        ..SettingsPatch::default()
    });
    let good = shard.lines.dump();
    assert!(Lines::restore(good.clone()).is_ok());
    let refused = |spoil: fn(&mut nowserving_line::LineDump)| {
        let mut dump = good.clone();
        spoil(&mut dump.lines[0]);
        assert_eq!(Lines::restore(dump).unwrap_err().what, "not a journal");
    };
    refused(|line| line.settings_changes[0].version -= 1);
    refused(|line| line.settings_changes[0].version = line.journal[0].version);
    refused(|line| line.settings_changes.push(line.settings_changes[0].clone()));
    refused(|line| {
        let labels = (0..2_000).map(|n| (n.to_string(), String::new()));
        line.settings_changes[0].to.labels = Some(Change::Set(labels.collect()));
    });
}

/// Gives the only seat back and returns its next holder, as (lane in the table, number).
fn give_back(shard: &mut Shard, (lane, token): (u8, u64)) {
    let at = nowserving_line::TokenRef {
        lane,
        ..shard.at(token)
    };
    let line = crate::common::shop();
    shard
        .apply(&nowserving_line::Op::Leave { line, at })
        .unwrap();
}

fn by(explanation: &nowserving_line::Explanation) -> Vec<(&str, u64, OvertookBy)> {
    let overtakers = explanation.overtakers.iter();
    let by = overtakers.map(|o| (o.lane.as_str(), o.token, o.by));
    by.collect()
}

/// A crowd that comes within one log entry has one time: the versions hold the order.
#[test]
fn a_token_admitted_before_another_entered_did_not_overtake_it() {
    let settings = Settings::new(2, 20);
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..4 {
        shard.enter().unwrap();
    }
    let explanation = shard.line().explain(shard.at(3)).unwrap();
    assert_eq!(
        explanation.own_lane_before, 0,
        "both had their seats already"
    );
    shard.leave(1).unwrap();
    shard.leave(2).unwrap();
    let explanation = shard.line().explain(shard.at(4)).unwrap();
    assert_eq!(
        (explanation.own_lane_before, explanation.overtakers_total),
        (1, 0)
    );
}

#[test]
fn overtaking_within_a_millisecond_is_overtaking() {
    let mut shard = three_lanes(20);
    shard.enter().unwrap();
    shard.enter().unwrap();
    shard.enter_in("vip").unwrap();
    give_back(&mut shard, (0, 1));
    let explanation = shard.line().explain(shard.at(2)).unwrap();
    let boost = OvertookBy::Boost { ms: 59_000 };
    assert_eq!(by(&explanation), [("vip", 1, boost)]);
    assert_eq!(
        (explanation.own_lane_before, explanation.overtakers_total),
        (0, 1)
    );
}

#[test]
fn a_tie_goes_to_the_lane_listed_first() {
    let lanes = vec![lane("web", 0, false), lane("shop", 0, false)];
    let settings = Settings {
        lanes,
        ..Settings::new(1, 20)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    shard.enter().unwrap();
    let tied = shard.enter_in("shop").unwrap().at;
    shard.enter_in("web").unwrap();
    shard.leave(1).unwrap();
    let explanation = shard.line().explain(tied).unwrap();
    assert_eq!(by(&explanation), [("web", 2, OvertookBy::ListedFirst)]);
}

#[test]
fn a_token_moved_behind_a_later_one_was_overtaken_by_it() {
    let mut shard = three_lanes(20);
    shard.enter().unwrap();
    let moved = shard.enter().unwrap().at;
    shard.now_ms += 5;
    shard.enter_in("vip").unwrap();
    shard.now_ms += 5;
    shard.move_to("normal", 2, "vip").unwrap();
    give_back(&mut shard, (0, 1));
    give_back(&mut shard, (1, 1));
    let explanation = shard.line().explain(moved).unwrap();
    assert_eq!(by(&explanation), [("vip", 1, OvertookBy::BehindItsLane)]);
    assert_eq!(
        (explanation.own_lane_before, explanation.overtakers_total),
        (0, 1)
    );
}

/// Nothing of the gone is gone through for it: its story is in the journal.
#[test]
fn a_chain_of_moves_is_one_story_behind_a_full_memory() {
    let settings = Settings {
        lanes: vec![lane("normal", 0, false), lane("vip", 0, false)],
        ..Settings::new(1, 20)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    shard.enter().unwrap();
    for token in 2..=65_000 {
        shard.enter().unwrap();
        shard.leave(token).unwrap();
    }
    let first = shard.enter().unwrap().at;
    let (mut here, mut there, mut last) = ("normal", "vip", first.token);
    for _ in 0..MOVES_MAX {
        last = shard.move_to(here, last, there).unwrap().at.token;
        std::mem::swap(&mut here, &mut there);
    }
    shard.leave(1).unwrap();
    let story = |shard: &Shard| {
        let explanation = shard.line().explain(first).unwrap();
        assert_eq!((explanation.at.lane, explanation.at.token), (0, last));
        assert_eq!(
            (explanation.own_lane_before, explanation.overtakers_total),
            (0, 0)
        );
        let what = explanation.entries.iter().map(|entry| entry.what);
        let moves = what.filter(|what| {
            let Journaled::Token { what, .. } = what else {
                panic!("not of a token");
            };
            matches!(what, JournaledToken::Moved { .. })
        });
        (moves.count(), explanation.entries.len(), explanation.cut)
    };
    assert_eq!(story(&shard), (MOVES_MAX, MOVES_MAX + 2, false), "it lives");
    shard.leave(first.token).unwrap();
    assert_eq!(story(&shard), (MOVES_MAX, MOVES_MAX + 3, false), "gone");
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(story(&shard), (MOVES_MAX, MOVES_MAX + 3, false), "restored");
}
