//! States of lines on which much happens.

use super::*;

/// Seats as told, a quota that is renewed, positions that were told of, and keys that wait for room, one of which was
/// offered some.
pub fn fill(shard: &mut Shard) {
    let line = || name("busy");
    let mut settings = Settings::new(1, 2);
    settings.position_events = vec![2, 1];
    settings.call_ahead_ms = 1_000;
    settings.callback_limit = 5;
    settings.seats_when_silent = Some(1);
    settings.max_wait_ms = Some(86_400_000);
    settings.jumps_max = 2;
    settings.event_key = true;
    settings.quota = Some(Quota {
        total: 50,
        standby_percent: 10,
        renew: Some(Renew::Daily {
            minute: 360,
            zone: ZoneName::new("Asia/Taipei").unwrap(),
        }),
        per_visit: 1,
    });
    settings.schedule = vec![ScheduledChange {
        at_ms: 1 << 40,
        set: SettingsPatch {
            seats: Some(Change::Set(9)),
            quota: Some(Change::Unset),
            ..SettingsPatch::default()
        },
    }];
    shard.apply(Op::Create {
        line: line(),
        settings,
    });
    let tokens: Vec<_> = (0..3_u8).map(|n| shard.enter("busy", Some(&[n]))).collect();
    let incarnation = tokens[0].incarnation;
    shard.apply(Op::RenewQuota {
        line: line(),
        incarnation,
        next_ms: 1 << 41,
    });
    for key in 10..13_u8 {
        shard.apply(Op::Callback {
            line: line(),
            key: [key].into(),
            lane: None,
        });
    }
    shard.apply(Op::Leave {
        line: line(),
        at: tokens[2],
    });
    shard.apply(Op::CapacityTold {
        line: line(),
        told: Some((1, 60_000)),
    });
    let refused = line::RefusedCounts::new([1, 2, 0, 0]);
    shard.apply(Op::CountRefused {
        line: line(),
        incarnation,
        refused,
    });
    shard.apply(Op::RunBackground {
        line: line(),
        incarnation,
    });
    let dump = shard.state.lines().get(&line()).unwrap().dump();
    assert_eq!((dump.called_back, dump.refused), (3, refused));
    assert!(dump.told.is_some() && dump.renews_at_ms == Some(1 << 41));
    let lane = &dump.lanes[0];
    assert_eq!((lane.callers.len(), lane.offers.recent), (2, 1));
    assert!(lane.marks.iter().all(|mark| mark.through > 0));
}

/// A line from which an operator has kicked a token.
pub fn a_shard_with_a_kick() -> State {
    let mut shard = Shard::new();
    let settings = Settings::new(1, 9);
    shard.apply(Op::Create {
        line: name("kicked"),
        settings,
    });
    let at = shard.enter("kicked", Some(b"ann"));
    shard.apply(Op::Kick {
        line: name("kicked"),
        incarnation: at.incarnation,
        tokens: vec![KickItem {
            lane: at.lane,
            token: at.token,
            state: None,
            clock_ms: None,
        }],
        note: Some(Box::new(KickNote {
            selector: KickSelector::Lane(0),
            state: Some(line::State::Waiting),
            reason: Some("rude".into()),
            by: Some("ops".into()),
        })),
    });
    let dump = shard.state.lines().get(&name("kicked")).unwrap().dump();
    assert_eq!(dump.kicks.len(), 1);
    shard.state
}

/// Tokens that were called, and one that was taken.
pub fn a_shard_with_calls() -> State {
    let mut shard = Shard::new();
    let called = || name("called");
    let settings = Settings {
        admission: line::Admission::Called,
        ..Settings::new(9, 9)
    };
    let line = called();
    shard.apply(Op::Create { line, settings });
    let tokens: Vec<_> = (0..4_u8)
        .map(|n| shard.enter("called", Some(&[n])))
        .collect();
    shard.apply(Op::Take {
        line: called(),
        by: line::TakeBy::Key([2][..].into()),
        call_id: Some("t-1".into()),
    });
    for (n, lane, call_id) in [
        (2, None, "n-1"),
        (1, Some("normal"), "n-2"),
        (1, None, "n-3"),
    ] {
        shard.apply(Op::CallNext {
            line: called(),
            n,
            lane: lane.map(|lane| LaneName::try_from(lane).unwrap()),
            call_id: call_id.into(),
        });
    }
    let line = shard.state.lines().get(&called()).unwrap();
    assert_eq!(line.dump().calls.len(), 4 + tokens.len());
    shard.state
}
