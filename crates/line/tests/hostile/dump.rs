//! A dump that is good, and changes to it.

use nowserving_line::{
    AdmissionRate, CallItem, CalledToken, Change, Entered, GoneFrom, Journaled, JournaledToken,
    KickItem, KickNote, KickSelector, LaneSettings, Limits, LineDump, LiveRecord, NUMBER_MAX, Op,
    PositionMark, Reason, RefusedCounts, Settings, SettingsPatch, Stage, State, TakeBy, Timestamp,
    Token, Told,
};
use proptest::prelude::*;

use super::{number, number32, settings};
use crate::common::{Dump, Restart, Shard, shop};

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![
        number().prop_map(|last_seen_ms| Stage::Waiting { last_seen_ms }),
        (number(), number32())
            .prop_map(|(deadline_ms, units)| Stage::Admitted { deadline_ms, units }),
        (number(), number(), number(), number32()).prop_map(
            |(deadline_ms, claimed_at_ms, epoch, units)| {
                Stage::InCheckout {
                    deadline_ms,
                    claimed_at_ms,
                    epoch,
                    units,
                }
            }
        ),
    ]
}

/// One change to a dump that was good.
pub fn tamper() -> impl Strategy<Value = (u8, u64, Stage, Settings)> {
    (0..48u8, number(), stage(), settings())
}

pub fn apply_tampering(dump: &mut Dump, (what, n, stage, settings): (u8, u64, Stage, Settings)) {
    let line = &mut dump.lines[0];
    let lane = &mut line.lanes[0];
    match what {
        0 => dump.head.now_ms = n,
        1 => dump.head.version_floor = n,
        2 => dump.head.epoch_floor = n,
        3 => line.incarnation = n,
        4 => line.version = n,
        5 => line.epoch = n,
        6 => line.settings = settings,
        7 => line.settings_version = n,
        8 => line.created_at_ms = n,
        9 => line.deleting = true,
        10 => line.gone_counts[0] = n,
        11 => lane.next_token = n,
        12 => lane.live[0].0 = n,
        13 => lane.live[0].1.stage = stage,
        14 => lane.live[0].1.entered.at.service_ms = n,
        15 => line.gone[0].1 = n,
        16 => line.gone[0].0 = (n % 256) as u8,
        17 => line.bucket.as_mut().unwrap().level_nano = n,
        18 => line.bucket.as_mut().unwrap().at_ms = n,
        19 => lane.called_through = n,
        31 => mark(line, n),
        32 => line.called_back = n,
        41 => lane.offers.recent = n,
        39 => line.used = n,
        37 => line.used_in_past = n,
        38 => line.renews_at_ms = Some(n),
        36 => {
            line.told = Some(Told {
                seats: n as u32,
                until_ms: n,
                silent: n % 2 == 0,
            });
        }
        42 => lane.offers.since_ms = n,
        35 => {
            line.called_back = 9;
            lane.callers = vec![(n % 16, b"caller"[..].into())];
        }
        20 => move_from(&mut lane.live[0].1, (0, n)),
        21 => line.gone[0].2.moved_to = Some(((n % 256) as u8, n)),
        22 => line.gone[0].2.reason = Reason::Moved,
        23 => line.journal[0].version = n,
        24 => {
            line.journal[0].what = Journaled::Token {
                lane: (n % 256) as u8,
                token: n,
                entered: Entered {
                    at: Timestamp {
                        service_ms: n,
                        wall_ms: n,
                    },
                    version: n,
                },
                what: JournaledToken::Gone {
                    reason: Reason::Left,
                    units: None,
                },
            };
        }
        25 => lane.live[0].1.entered.version = n,
        26 => line.settings_changes[0].version = n,
        28 => lane.live[0].1.jumps = n as u8,
        29 => line.kicks[0].version = n,
        30 => line.kicks[0].note.selector = KickSelector::Lane((n % 256) as u8),
        34 => line.refused = RefusedCounts::new([n, n, 0, 0]),
        33 => line.gone_from.set(State::Waiting, Reason::Left, n % 3),
        45 => line.calls.swap(0, 1),
        46 => {
            let key = Some(vec![b'x'; n as usize % 200].into());
            let (lane, token) = ((n % 256) as u8, n);
            let token = CalledToken { lane, token, key };
            line.calls.push(CallItem::Admitted(token));
        }
        47 => line
            .calls
            .push(CallItem::Call("x".repeat(n as usize % 70).into())),
        27 => line.settings_changes[0].to.seats = Some(Change::Set(n as u32)),
        _ => {
            // A shard about to run out of numbers, which adds up all the same.
            lane.next_token = NUMBER_MAX - n % 4;
            let lanes = line.lanes.iter();
            let gone = lanes.map(|lane| lane.next_token - 1 - lane.live.len() as u64);
            line.gone_counts = [0; Reason::ALL.len()];
            line.gone_from = GoneFrom::default();
            line.gone_counts[1] = gone.sum();
        }
    }
}

/// Adds a former number to a token.
pub fn move_from(live: &mut LiveRecord, old: (u8, Token)) {
    live.moved_from = live.moved_from.iter().copied().chain([old]).collect();
}

/// The line has one position, to which the tokens up to this one have come.
pub fn mark(line: &mut LineDump, through: Token) {
    line.settings.position_events = vec![3];
    for lane in &mut line.lanes {
        lane.marks = vec![PositionMark {
            position: 3,
            through: 0,
        }];
    }
    line.lanes[0].marks[0].through = through;
}

/// Two keys asked to be told of room.
pub fn call_back(line: &mut LineDump, callers: &[(u64, &str)]) {
    line.called_back = 2;
    let callers = callers
        .iter()
        .map(|(number, key)| (*number, key.as_bytes().into()));
    line.lanes[0].callers = callers.collect();
}

pub fn lane_settings(name: &str) -> LaneSettings {
    LaneSettings::new(name.try_into().unwrap())
}

pub fn good_dump() -> Dump {
    let settings = Settings {
        admission_rate: Some(AdmissionRate {
            per_second_micro: 5_000_000,
            burst: 3,
        }),
        lanes: ["normal", "vip"].map(lane_settings).into(),
        ..Settings::new(2, 4)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for key in ["a", "b", "c", "d"] {
        shard.enter_as(Some(key)).unwrap();
    }
    shard.serve(1);
    shard.claim(2).unwrap();
    shard.enter().unwrap();
    shard.move_to("normal", 5, "vip").unwrap();
    shard.enter().unwrap();
    shard.move_to("normal", 6, "vip").unwrap();
    let mut at = shard.at(2);
    at.lane = 1;
    let line = shop();
    shard.apply(&Op::Leave { line, at }).unwrap();
    shard.set(SettingsPatch {
        call_ahead: Some(Change::Set(1)),
        ..SettingsPatch::default()
    });
    shard
        .apply(&Op::Take {
            line: shop(),
            by: TakeBy::Key(b"c"[..].into()),
            call_id: Some("c-1".into()),
        })
        .unwrap();
    let newest = shard.enter_in("vip").unwrap().at;
    let incarnation = newest.incarnation;
    shard
        .apply(&Op::Kick {
            line: shop(),
            incarnation,
            tokens: vec![KickItem {
                lane: newest.lane,
                token: newest.token,
                state: None,
                clock_ms: None,
            }],
            note: Some(Box::new(KickNote {
                selector: KickSelector::Lane(1),
                state: None,
                reason: Some("rude".into()),
                by: None,
            })),
        })
        .unwrap();
    shard.lines.dump()
}
