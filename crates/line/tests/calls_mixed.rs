//! Calls beside schedules, notices, callbacks, told seats, renewed quotas, work limits and forecasts.

use crate::common::{Shard, shop};
use nowserving_line::{
    Admission, AdmissionRate, CannotAdmit, Change, Event, LaneName, LaneSettings, Limits,
    LineChange, Op, Quota, Refused, Renew, Reply, ScheduledChange, Settings, SettingsPatch, State,
    TakeBy, Token, TokenChange,
};

fn called(seats: u32, queue_limit: u32) -> Settings {
    Settings {
        admission: Admission::Called,
        ..Settings::new(seats, queue_limit)
    }
}

fn shard(settings: Settings) -> Shard {
    Shard::with_shop(Limits::default(), settings)
}

fn admission(admission: Admission) -> SettingsPatch {
    SettingsPatch {
        admission: Some(Change::Set(admission)),
        ..SettingsPatch::default()
    }
}

/// How many tokens the call admitted.
fn call(shard: &mut Shard, n: u32, id: &str) -> usize {
    let reply = shard.apply(&Op::CallNext {
        line: shop(),
        n,
        lane: None,
        call_id: id.into(),
    });
    assert_eq!(reply, Ok(Reply::Called));
    shard.line().called(id).unwrap().len()
}

fn take(shard: &mut Shard, token: Token) -> Result<Reply, Refused> {
    shard.apply(&Op::Take {
        line: shop(),
        by: TakeBy::Number {
            lane: LaneName::default(),
            token,
        },
        call_id: None,
    })
}

/// The tokens of these events, in their order.
fn told(shard: &Shard, is: impl Fn(&TokenChange) -> bool) -> Vec<Token> {
    let of = shard.events.iter().filter_map(|event| match event {
        Event::Token { token, what, .. } if is(what) => Some(*token),
        _ => None,
    });
    of.collect()
}

fn admitted(shard: &Shard) -> Vec<Token> {
    told(shard, |what| matches!(what, TokenChange::Admitted { .. }))
}

#[test]
fn a_schedule_says_when_tokens_are_called() {
    let mut shard = shard(called(2, 9));
    for _ in 0..4 {
        shard.enter().unwrap();
    }
    let at_ms = shard.wall_ms() + 1_000;
    let changes = [
        (at_ms, admission(Admission::Auto)),
        (at_ms + 1_000, admission(Admission::Called)),
    ];
    let changes = changes.map(|(at_ms, set)| ScheduledChange { at_ms, set });
    shard.set(SettingsPatch {
        schedule: Some(Change::Set(changes.to_vec())),
        ..SettingsPatch::default()
    });
    let incarnation = shard.line().incarnation();
    let line = shop();
    let look = Op::RunBackground { line, incarnation };
    shard.now_ms += 999;
    shard.apply(&look).unwrap();
    assert_eq!(admitted(&shard), [0; 0]);
    shard.now_ms += 1;
    shard.apply(&look).unwrap();
    assert_eq!(admitted(&shard), [1, 2]);
    shard.now_ms += 1_000;
    shard.apply(&look).unwrap();
    shard.serve(1);
    assert_eq!(admitted(&shard), [0; 0]);
    assert_eq!(call(&mut shard, 9, "c"), 1);
}

#[test]
fn notices_follow_calls_and_a_forecast_calls_nobody_ahead() {
    let mut shard = shard(Settings {
        position_events: vec![1],
        call_ahead: 1,
        call_ahead_ms: 600_000,
        ..called(9, 9)
    });
    for _ in 0..5 {
        shard.enter().unwrap();
    }
    take(&mut shard, 3).unwrap();
    let ahead = |what: &TokenChange| *what == TokenChange::CallAhead;
    let position = |what: &TokenChange| matches!(what, TokenChange::Position { .. });
    assert_eq!(told(&shard, ahead), [0; 0]);
    assert_eq!(told(&shard, position), [0; 0], "the first is who it was");
    assert_eq!(call(&mut shard, 2, "c"), 2);
    assert_eq!(told(&shard, ahead), [4], "by place alone");
    assert_eq!(told(&shard, position), [4]);
    assert_eq!(shard.finish_jobs(), 0);
}

#[test]
fn a_call_admits_what_it_can_in_one_entry_and_leaves_the_notices_to_others() {
    let limits = Limits {
        work_max: 4,
        ..Limits::default()
    };
    let settings = Settings {
        call_ahead: 3,
        ..called(9, 20)
    };
    let mut shard = Shard::with_shop(limits, settings);
    for _ in 0..12 {
        shard.enter().unwrap();
    }
    assert_eq!(call(&mut shard, 7, "c"), 7);
    let ahead = |what: &TokenChange| *what == TokenChange::CallAhead;
    assert_eq!(told(&shard, ahead), [0; 0], "its work was used up");
    assert!(shard.finish_job());
    assert_eq!(told(&shard, ahead), [8, 9, 10]);
    assert_eq!(shard.finish_jobs(), 0);
}

#[test]
fn a_call_makes_room_in_a_lane() {
    let lane = LaneSettings {
        queue_limit: Some(2),
        ..LaneSettings::new(LaneName::default())
    };
    let mut shard = shard(Settings {
        lanes: vec![lane],
        callback_limit: 9,
        ..called(5, 9)
    });
    shard.enter().unwrap();
    shard.enter().unwrap();
    assert!(matches!(
        shard.enter(),
        Err(Refused::LaneFull { limit: 2, .. })
    ));
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    assert_eq!(shard.call_back("bob", None), Ok(Some(2)));
    assert_eq!(call(&mut shard, 1, "c"), 1);
    let room = shard.events.iter().find_map(|event| match event {
        Event::Line {
            what: LineChange::Room { keys, .. },
            ..
        } => Some(keys.len()),
        _ => None,
    });
    assert_eq!(room, Some(1), "no more than there is room for");
}

#[test]
fn seats_that_a_backend_tells_are_given_by_calls() {
    let mut shard = shard(called(1, 9));
    for _ in 0..5 {
        shard.enter().unwrap();
    }
    let told = Some((3, 60_000));
    let line = shop();
    shard.apply(&Op::CapacityTold { line, told }).unwrap();
    assert_eq!(admitted(&shard), [0; 0]);
    assert_eq!(call(&mut shard, 9, "c"), 3);
    assert_eq!(take(&mut shard, 5), Err(CannotAdmit::Seats.into()));
}

#[test]
fn a_renewed_quota_lets_calls_go_on() {
    let renew = Some(Renew::Every { ms: 3_600_000 });
    let mut shard = shard(Settings {
        quota: Some(Quota {
            total: 1,
            standby_percent: 500,
            renew,
            per_visit: 1,
        }),
        ..called(5, 9)
    });
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    assert_eq!(call(&mut shard, 9, "c"), 1);
    assert_eq!(take(&mut shard, 3), Err(CannotAdmit::Quota.into()));
    shard.serve(1);
    // Sold out: those that waited were sent away.
    assert_eq!(shard.board().lanes[0].waiting, 0);
    let incarnation = shard.line().incarnation();
    let renewal = |next_ms| Op::RenewQuota {
        line: shop(),
        incarnation,
        next_ms,
    };
    // The first one says when the quota is renewed, the second one renews it.
    let next_ms = shard.wall_ms() + 1_000;
    shard.apply(&renewal(next_ms)).unwrap();
    shard.now_ms += 1_000;
    let next_ms = shard.wall_ms() + 3_600_000;
    shard.apply(&renewal(next_ms)).unwrap();
    let newcomer = shard.enter().unwrap();
    assert_eq!(newcomer.state, State::Waiting);
    assert_eq!(take(&mut shard, newcomer.at.token), {
        Ok(Reply::Token(newcomer.at))
    });
}

#[test]
fn calls_do_not_judge_forecasts() {
    let rated = || {
        let mut shard = shard(Settings {
            admission_rate: Some(AdmissionRate {
                per_second_micro: 1_000_000,
                burst: 1,
            }),
            ..Settings::new(9, 9)
        });
        for _ in 0..3 {
            shard.enter().unwrap();
        }
        assert_eq!(shard.line().forecast_record().eta_given, 2);
        shard
    };
    let judged = |shard: &Shard| shard.line().forecast_record().judged;
    let mut by_itself = rated();
    by_itself.now_ms += 1_000;
    by_itself.finish_jobs();
    assert_eq!(judged(&by_itself), 1);
    let mut shard = rated();
    shard.set(admission(Admission::Called));
    shard.now_ms += 1_000;
    assert_eq!(call(&mut shard, 1, "c"), 1);
    shard.now_ms += 1_000;
    take(&mut shard, 3).unwrap();
    assert_eq!(judged(&shard), 0);
    // One that is taken before its turn is not, either.
    let mut shard = rated();
    shard.now_ms += 1_000;
    take(&mut shard, 3).unwrap();
    assert_eq!(judged(&shard), 0);
}
