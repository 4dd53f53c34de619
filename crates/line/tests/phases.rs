//! Phases, the quota, calling ahead, the position cap and releasing on claim.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    AdmittedBy, Change, Event, Limits, LineChange, Lines, Op, Phase, Quota, Reason, Refused, Reply,
    Settings, SettingsPatch, State, TokenChange, WORK_MAX,
};

const WORK: u64 = WORK_MAX as u64;

fn open(settings: Settings) -> Shard {
    Shard::with_shop(Limits::default(), settings)
}

fn phase(phase: Phase) -> SettingsPatch {
    SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    }
}

fn quota(total: u64, standby_percent: u32) -> Option<Quota> {
    Some(Quota {
        total,
        standby_percent,
        renew: None,
        per_visit: 1,
    })
}

fn called(shard: &Shard) -> Vec<u64> {
    let called = shard.events.iter().filter_map(|event| match event {
        Event::Token {
            token,
            what: TokenChange::CallAhead,
            ..
        } => Some(*token),
        _ => None,
    });
    called.collect()
}

#[test]
fn each_phase_issues_and_admits_as_documented() {
    for (now, numbers, seats) in [
        (Phase::PreOpen, true, false),
        (Phase::Open, true, true),
        (Phase::Paused, true, false),
        (Phase::Draining, false, true),
        (Phase::Closed, false, false),
    ] {
        let mut shard = open(Settings::new(2, 10));
        for _ in 0..4 {
            shard.enter_as(None).unwrap();
        }
        shard.enter_as(Some("k")).unwrap();
        shard.set(phase(now));
        let lane = shard.lane();
        assert_eq!(shard.board().phase, now);
        assert_eq!(
            lane.accepts_through > lane.next_token - 1,
            numbers,
            "{now:?}"
        );
        let refused = shard.enter().err();
        let expected = match now {
            Phase::Closed => Some(Refused::LineClosed),
            Phase::Draining => Some(Refused::LineDraining),
            _ => None,
        };
        assert_eq!((refused.is_none(), refused), (numbers, expected), "{now:?}");
        if now == Phase::Closed {
            continue;
        }
        assert_eq!(
            shard.enter_as(Some("k")).unwrap().at.token,
            5,
            "its key is known"
        );
        shard.serve(1);
        assert_eq!(shard.status(3).state == State::Admitted, seats, "{now:?}");
        shard.set(phase(Phase::Open));
        assert_eq!(shard.status(3).state, State::Admitted, "{now:?}");
    }
}

#[test]
fn a_phase_has_an_event_of_its_own() {
    let mut shard = open(Settings::new(1, 1));
    shard.set(SettingsPatch {
        seats: Some(Change::Set(2)),
        ..phase(Phase::Paused)
    });
    let whats = shard.events.iter().map(|event| match event {
        Event::Line { what, .. } => what.clone(),
        other => panic!("{other:?}"),
    });
    let phase = LineChange::Phase {
        phase: Phase::Paused,
    };
    assert_eq!(whats.collect::<Vec<_>>(), [LineChange::Configured, phase]);
    assert_eq!(shard.line().settings_version(), shard.line().version());
}

#[test]
fn closing_a_crowd_takes_many_entries_and_can_be_undone_then() {
    let crowd = 3 * WORK;
    let mut shard = open(Settings::new(1, crowd as u32));
    for _ in 0..crowd {
        shard.enter().unwrap();
    }
    shard.set(phase(Phase::Closed));
    assert_eq!(shard.line().counts().gone_for(Reason::Closed), WORK);
    assert_eq!(shard.leave(crowd), Err(Refused::LineClosed));
    assert!(shard.enter().is_err());
    let reopen = shard.try_set(phase(Phase::Open));
    assert_eq!(reopen, Err(Refused::LineClosed), "not before it is done");
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(shard.finish_jobs(), 2);
    assert_eq!(shard.line().counts().live(), 0);
    assert_eq!(shard.lines.len(), 1, "closed, not deleted");
    assert_eq!(shard.enter(), Err(Refused::LineClosed));
    shard.set(phase(Phase::Open));
    assert_eq!(shard.enter().unwrap().at.token, crowd + 1, "numbers go on");
}

#[test]
fn a_closed_line_needs_no_force_to_be_deleted() {
    let delete = |force| Op::Delete {
        line: shop(),
        force,
        incarnation: None,
    };
    let limits = Limits {
        work_max: 1,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 9));
    for _ in 0..4 {
        shard.enter().unwrap();
    }
    assert_eq!(shard.apply(&delete(false)), Err(Refused::LineNotEmpty));
    shard.set(phase(Phase::Closed));
    let remaining = Reply::Deleted { remaining: 2 };
    assert_eq!(
        shard.apply(&delete(false)),
        Ok(remaining),
        "still being closed"
    );
    shard.finish_jobs();
    assert!(shard.lines.is_empty());
}

#[test]
fn a_quota_is_not_exceeded_and_unused_units_come_back() {
    let mut shard = open(Settings {
        quota: quota(3, 50),
        ..Settings::new(10, 10)
    });
    let lane = shard.lane();
    assert_eq!((lane.admitted_through, lane.accepts_through), (3, 4));
    for _ in 0..4 {
        shard.enter().unwrap();
    }
    assert_eq!(shard.enter(), Err(Refused::SoldOut));
    assert_eq!(
        shard.status(4).state,
        State::Waiting,
        "seats are free, units are not"
    );
    assert_eq!(shard.lines.background_work(u64::MAX).count(), 0);
    shard.serve(1);
    assert_eq!(
        shard.status(4).state,
        State::Waiting,
        "completing uses the unit up"
    );
    shard.leave(2).unwrap();
    assert_eq!(
        shard.status(4).state,
        State::Admitted,
        "leaving gives it back"
    );
    assert_eq!(
        shard.enter().unwrap().state,
        State::Waiting,
        "a place to hope for"
    );
    shard.serve(3);
    shard.serve(4);
    assert_eq!(shard.status(5).reason, Some(Some(Reason::SoldOut)));
    assert_eq!(shard.enter(), Err(Refused::SoldOut));
    let lane = shard.lane();
    assert_eq!((lane.admitted_through, lane.accepts_through), (5, 5));
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(4, 0).unwrap())),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.enter().unwrap().state, State::Admitted);
    assert_eq!(shard.enter(), Err(Refused::SoldOut));
}

#[test]
fn a_crowd_that_is_sold_out_goes_over_many_entries() {
    let crowd = 2 * WORK;
    let mut shard = open(Settings {
        quota: quota(1, 1_000),
        ..Settings::new(1, crowd as u32)
    });
    assert_eq!(shard.lane().accepts_through, 11);
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(crowd, 0).unwrap())),
        ..SettingsPatch::default()
    });
    for _ in 0..crowd {
        shard.enter().unwrap();
    }
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(1, 0).unwrap())),
        ..SettingsPatch::default()
    });
    assert_eq!(
        shard.line().counts().waiting,
        crowd - 1,
        "throws nobody out"
    );
    shard.serve(1);
    assert_eq!(shard.line().counts().gone_for(Reason::SoldOut), WORK);
    assert_eq!(shard.finish_jobs(), 1);
    assert_eq!(shard.line().counts().live(), 0);
}

#[test]
fn each_is_called_once_as_it_comes_near() {
    let mut shard = open(Settings {
        call_ahead: 2,
        ..Settings::new(1, 10)
    });
    shard.enter().unwrap();
    assert_eq!(called(&shard), [0; 0], "who is admitted at once is not");
    assert!(shard.enter().unwrap().call_ahead);
    assert_eq!(called(&shard), [2]);
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    assert!(!shard.status(4).call_ahead);
    shard.leave(3).unwrap();
    assert_eq!(called(&shard), [4]);
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.serve(1);
    assert_eq!(called(&shard), [5]);
    shard.leave(4).unwrap();
    assert_eq!(called(&shard), [0; 0]);
}

#[test]
fn a_crowd_is_called_over_many_entries() {
    let crowd = 3 * WORK;
    let mut shard = open(Settings::new(1, crowd as u32));
    for _ in 0..=crowd {
        shard.enter().unwrap();
    }
    shard.set(SettingsPatch {
        call_ahead: Some(Change::Set(10_000_000)),
        ..SettingsPatch::default()
    });
    assert_eq!(called(&shard).len() as u64, WORK);
    assert_eq!(shard.finish_jobs(), 2);
    assert_eq!(called(&shard).last(), Some(&(crowd + 1)));
}

#[test]
fn a_capped_position_is_shown_as_the_cap() {
    let mut shard = open(Settings {
        position_cap: Some(2),
        call_ahead: 3,
        ..Settings::new(1, 10)
    });
    for _ in 0..5 {
        shard.enter().unwrap();
    }
    let shown = |token| {
        let status = shard.status(token);
        (
            status.position,
            status.ahead,
            status.position_capped,
            status.call_ahead,
        )
    };
    assert_eq!(shown(1), (None, None, false, false));
    assert_eq!(shown(2), (Some(1), Some(0), false, true));
    assert_eq!(shown(3), (Some(2), Some(1), false, true));
    assert_eq!(shown(4), (Some(2), Some(1), true, true));
    assert_eq!(shown(5), (Some(2), Some(1), true, false));
}

#[test]
fn a_claim_can_also_complete() {
    let mut shard = open(Settings {
        release_on_claim: true,
        ..Settings::new(1, 10)
    });
    shard.enter().unwrap();
    shard.enter().unwrap();
    let claimed = shard.claim(1).unwrap();
    assert_eq!((claimed.state, claimed.epoch), (State::Gone, Some(1)));
    assert_eq!(claimed.reason, Some(Some(Reason::Completed)));
    let whats = shard.events.iter().map(|event| match event {
        Event::Token { token, what, .. } => (*token, what.clone()),
        other => panic!("{other:?}"),
    });
    let gone = TokenChange::Gone {
        reason: Reason::Completed,
        was_waiting: false,
        units: Some(1),
    };
    let whats: Vec<_> = whats.collect();
    let by = AdmittedBy::Turn;
    let (eta, shadow) = (None, None);
    let admitted = TokenChange::Admitted { by, eta, shadow };
    let claimed = TokenChange::Claimed { epoch: 1 };
    assert_eq!(whats, [(1, claimed), (1, gone), (2, admitted)]);
    // Also when the setting has changed since, and over a restart.
    shard.set(SettingsPatch {
        release_on_claim: Some(Change::Unset),
        ..SettingsPatch::default()
    });
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    let again = shard.claim(1).unwrap();
    assert_eq!((again.state, again.epoch), (State::Gone, Some(1)));
    assert_eq!(shard.complete(1, Some(1)).unwrap().epoch, Some(1));
    shard.serve(2);
    let gone = Refused::TokenGone(Some(Reason::Completed));
    assert_eq!(shard.claim(2), Err(gone), "that one completed on its own");
}
