//! Lines whose tokens are called: the next ones, and one out of order.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Admission, AdmissionRate, AdmittedBy, CALL_MAX, CannotAdmit, Change, Event, HeldBackBy,
    LaneSettings, Limits, Lines, Op, OvertookBy, Phase, Quota, Reason, Refused, Reply, Settings,
    SettingsPatch, State, TakeBy, Token, TokenChange,
};

/// Three seats; `normal`, and `vip`, which goes first.
fn shard() -> Shard {
    let lane = |name: &str, boost_ms| LaneSettings {
        boost_ms,
        ..LaneSettings::new(name.try_into().unwrap())
    };
    let settings = Settings {
        admission: Admission::Called,
        lanes: vec![lane("normal", 0), lane("vip", 600_000)],
        ..Settings::new(3, 100)
    };
    Shard::with_shop(Limits::default(), settings)
}

fn next(shard: &mut Shard, n: u32, lane: Option<&str>, id: &str) -> Result<Reply, Refused> {
    shard.apply(&Op::CallNext {
        line: shop(),
        n,
        lane: lane.map(|lane| lane.try_into().unwrap()),
        call_id: id.into(),
    })
}

fn take(shard: &mut Shard, by: TakeBy, id: Option<&str>) -> Result<Reply, Refused> {
    shard.apply(&Op::Take {
        line: shop(),
        by,
        call_id: id.map(Into::into),
    })
}

fn number(lane: &str, token: Token) -> TakeBy {
    TakeBy::Number {
        lane: lane.try_into().unwrap(),
        token,
    }
}

fn key(key: &str) -> TakeBy {
    TakeBy::Key(key.as_bytes().into())
}

/// Whom the call admitted, as is remembered.
fn called(shard: &Shard, id: &str) -> Vec<(u8, Token)> {
    let tokens = shard.line().called(id).unwrap().iter();
    tokens.map(|it| (it.lane, it.token)).collect()
}

fn set(shard: &mut Shard, patch: SettingsPatch) {
    shard.set(patch);
}

#[test]
fn nobody_is_admitted_who_is_not_called() {
    let mut shard = shard();
    let first = shard.enter_as(Some("ann")).unwrap();
    assert_eq!((first.state, first.position), (State::Waiting, Some(1)));
    assert_eq!((first.eta_ms, first.eta_p90_ms), (None, None));
    assert_eq!(
        first.poll_after_ms.max(15_000),
        first.poll_after_ms,
        "the cap, spread"
    );
    shard.enter().unwrap();
    shard.enter_in("vip").unwrap();
    assert_eq!(shard.finish_jobs(), 0, "no work is left");
    assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Called);
    let board = shard.board();
    assert_eq!(board.lanes[0].admitted_through, 0);

    assert_eq!(next(&mut shard, 2, None, "one"), Ok(Reply::Called));
    assert_eq!(called(&shard, "one"), [(1, 1), (0, 1)], "in service order");
    let admitted = shard.line().called("one").unwrap();
    assert_eq!(admitted[1].key.as_deref(), Some(&b"ann"[..]));
    // Again, and after a restart: the same answer, and nobody else.
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(next(&mut shard, 2, None, "one"), Ok(Reply::Called));
    assert!(shard.events.is_empty());
    assert_eq!(called(&shard, "one").len(), 2);
    // As far as seats are free.
    shard.enter().unwrap();
    next(&mut shard, CALL_MAX, None, "two").unwrap();
    assert_eq!(called(&shard, "two"), [(0, 2)]);
    assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Seats);
    // A seat that is given back admits nobody.
    shard.serve(1);
    assert_eq!(shard.status(3).state, State::Waiting);
    next(&mut shard, 5, None, "three").unwrap();
    assert_eq!(called(&shard, "three"), [(0, 3)]);
    next(&mut shard, 5, None, "four").unwrap();
    assert_eq!(called(&shard, "four"), []);
}

#[test]
fn one_lane_can_be_called_alone() {
    let mut shard = shard();
    shard.enter_in("vip").unwrap();
    let normal = shard.enter_in("normal").unwrap();
    next(&mut shard, 1, Some("normal"), "n").unwrap();
    assert_eq!(called(&shard, "n"), [(0, normal.at.token)]);
    let Event::Token { what, .. } = &shard.events[0] else {
        panic!("{:?}", shard.events);
    };
    let by = AdmittedBy::Call;
    let (eta, shadow) = (None, None);
    assert_eq!(*what, TokenChange::Admitted { by, eta, shadow });
    let vip = nowserving_line::TokenRef {
        lane: 1,
        ..shard.at(1)
    };
    let explained = shard.line().explain(vip).unwrap();
    assert_eq!(explained.overtakers[0].by, OvertookBy::Called);
}

#[test]
fn a_token_is_taken_out_of_order_and_leaves_a_hole() {
    let mut shard = shard();
    for key in ["ann", "bob", "cat", "dan"] {
        shard.enter_as(Some(key)).unwrap();
    }
    assert_eq!(
        take(&mut shard, key("cat"), None),
        Ok(Reply::Token(shard.at(3)))
    );
    let [Event::Token { what, token: 3, .. }] = &shard.events[..] else {
        panic!("{:?}", shard.events);
    };
    let by = AdmittedBy::Take;
    let (eta, shadow) = (None, None);
    assert_eq!(*what, TokenChange::Admitted { by, eta, shadow });
    assert_eq!(shard.status(3).state, State::Admitted);
    let board = shard.board();
    assert_eq!(
        (board.lanes[0].admitted_through, board.lanes[0].waiting),
        (0, 3)
    );
    let dan = shard.line().poll(shard.at(4), 0, true).unwrap();
    assert_eq!(dan.status.position, Some(3));
    assert_eq!(dan.holes, Some(Some(vec![(3, 3)])));
    let explained = shard.line().explain(shard.at(1)).unwrap();
    assert_eq!(explained.overtakers[0].token, 3);
    assert_eq!(explained.overtakers[0].by, OvertookBy::Taken);
    // One who holds a seat is the answer, in checkout too; once gone only by the id of the call.
    assert_eq!(
        take(&mut shard, number("normal", 3), Some("c")),
        Ok(Reply::Called)
    );
    shard.claim(3).unwrap();
    assert_eq!(
        take(&mut shard, key("cat"), None),
        Ok(Reply::Token(shard.at(3)))
    );
    assert!(shard.events.is_empty());
    shard.complete(3, None).unwrap();
    let gone = Err(Refused::TokenGone(Some(Reason::Completed)));
    assert_eq!(take(&mut shard, number("normal", 3), None), gone);
    assert_eq!(
        take(&mut shard, key("cat"), None),
        Err(Refused::TokenNotFound)
    );
    assert_eq!(take(&mut shard, key("cat"), Some("c")), Ok(Reply::Called));
    assert_eq!(called(&shard, "c"), [(0, 3)]);
    // By a former number.
    shard.move_to("normal", 4, "vip").unwrap();
    take(&mut shard, number("normal", 4), Some("d")).unwrap();
    assert_eq!(called(&shard, "d"), [(1, 1)]);
}

#[test]
fn every_refusal() {
    let mut shard = shard();
    shard.enter().unwrap();
    let field = |refused: Result<Reply, Refused>| match refused {
        Err(Refused::BadField(bad)) => bad.to_string(),
        other => panic!("{other:?}"),
    };
    let long = "x".repeat(65);
    for id in ["", "a b", "é", long.as_str()] {
        let text = "call_id: 1 to 64 visible ASCII characters";
        assert_eq!(field(next(&mut shard, 1, None, id)), text);
        assert_eq!(field(take(&mut shard, number("normal", 1), Some(id))), text);
    }
    for n in [0, CALL_MAX + 1] {
        assert_eq!(field(next(&mut shard, n, None, "n")), "n: 1 to 1024");
    }
    let unknown = "lane: no lane \"web\"; the line has normal, vip";
    assert_eq!(field(next(&mut shard, 1, Some("web"), "n")), unknown);
    assert_eq!(field(take(&mut shard, number("web", 1), None)), unknown);
    for by in [number("normal", 2), number("normal", 0), key("nobody")] {
        assert_eq!(take(&mut shard, by, None), Err(Refused::TokenNotFound));
    }

    let mut refused = |patch: SettingsPatch, why: CannotAdmit| {
        set(&mut shard, patch.clone());
        let by = number("normal", 1);
        assert_eq!(take(&mut shard, by, Some("t")), Err(why.into()));
        next(&mut shard, 1, None, &format!("{why:?}")).unwrap();
        assert_eq!(called(&shard, &format!("{why:?}")), [], "{why:?}");
    };
    let paused = SettingsPatch {
        phase: Some(Change::Set(Phase::Paused)),
        ..SettingsPatch::default()
    };
    refused(paused, CannotAdmit::Phase);
    set(
        &mut shard,
        SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            seats: Some(Change::Set(1)),
            ..SettingsPatch::default()
        },
    );
    next(&mut shard, 1, None, "seated").unwrap();
    shard.enter().unwrap();
    let by = || number("normal", 2);
    let seats = CannotAdmit::Seats.into();
    assert_eq!(take(&mut shard, by(), None), Err(seats));
    let quota = Quota {
        total: 1,
        standby_percent: 500,
        renew: None,
        per_visit: 1,
    };
    set(
        &mut shard,
        SettingsPatch {
            quota: Some(Change::Set(quota)),
            ..SettingsPatch::default()
        },
    );
    let quota = CannotAdmit::Quota.into();
    assert_eq!(take(&mut shard, by(), None), Err(quota));
    let rate = AdmissionRate {
        per_second_micro: 1_000,
        burst: 1,
    };
    set(
        &mut shard,
        SettingsPatch {
            quota: Some(Change::Unset),
            seats: Some(Change::Set(9)),
            admission_rate: Some(Change::Set(rate)),
            ..SettingsPatch::default()
        },
    );
    assert_eq!(
        shard.line().next_by_rate_ms(),
        None,
        "nothing comes by itself"
    );
    take(&mut shard, by(), None).unwrap();
    shard.enter().unwrap();
    let rate = CannotAdmit::AdmissionRate.into();
    assert_eq!(take(&mut shard, number("normal", 3), None), Err(rate));
    set(
        &mut shard,
        SettingsPatch {
            phase: Some(Change::Set(Phase::Closed)),
            ..SettingsPatch::default()
        },
    );
    assert_eq!(next(&mut shard, 1, None, "z"), Err(Refused::LineClosed));
    // What was answered is answered again.
    assert_eq!(next(&mut shard, 1, None, "seated"), Ok(Reply::Called));
}

#[test]
fn a_line_is_switched_while_tokens_wait() {
    let mut shard = shard();
    for _ in 0..5 {
        shard.enter().unwrap();
    }
    let switch = |to| SettingsPatch {
        admission: Some(to),
        ..SettingsPatch::default()
    };
    shard.set(switch(Change::Set(Admission::Auto)));
    assert_eq!(
        shard.board().admitted,
        3,
        "the free seats are given at once"
    );
    shard.set(switch(Change::Set(Admission::Called)));
    shard.leave(1).unwrap();
    assert_eq!(shard.board().admitted, 2);
    // A call in a line that admits by itself finds no free seat, unless something else holds the line back.
    shard.set(switch(Change::Unset));
    assert_eq!(shard.board().admitted, 3);
    next(&mut shard, 1, None, "x").unwrap();
    assert_eq!(called(&shard, "x"), []);
}

#[test]
fn the_answers_of_the_newest_calls_are_kept() {
    let limits = Limits {
        calls_kept: 3,
        called_kept: 5,
        ..Limits::default()
    };
    let settings = Settings {
        admission: Admission::Called,
        ..Settings::new(100, 100)
    };
    let mut shard = Shard::with_shop(limits, settings);
    for _ in 0..40 {
        shard.enter().unwrap();
    }
    let known = |shard: &Shard| {
        let ids = ["a", "b", "c", "d", "e"];
        let known = ids
            .into_iter()
            .filter(|id| shard.line().called(id).is_some());
        known.collect::<String>()
    };
    for (n, id, kept) in [
        (2, "a", "a"),
        (1, "b", "ab"),
        (1, "c", "abc"),
        (1, "d", "bcd"),
    ] {
        next(&mut shard, n, None, id).unwrap();
        assert_eq!(known(&shard), kept);
    }
    // One that is larger than all that is kept is kept alone.
    next(&mut shard, 9, None, "e").unwrap();
    assert_eq!(known(&shard), "e");
    let again = Lines::restore_with(limits, shard.lines.dump()).unwrap();
    assert_eq!(again.dump(), shard.lines.dump());
    // One that is forgotten is a new call.
    next(&mut shard, 1, None, "a").unwrap();
    assert_eq!(called(&shard, "a"), [(0, 15)]);
}
