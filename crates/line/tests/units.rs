//! Units of a quota: what a seat reserves, what a visit used, and what is free again.

use nowserving_line::{
    BadField, Change, Limits, Quota, Reason, Refused, Settings, SettingsPatch, State,
};

use crate::common::Shard;

fn quota(total: u64, per_visit: u32) -> Quota {
    Quota {
        total,
        standby_percent: 100,
        renew: None,
        per_visit,
    }
}

/// So many enter, and as many as there are seats for claim them.
fn begin(total: u64, per_visit: u32, seats: u32, enter: u64) -> Shard {
    let settings = Settings {
        quota: Some(quota(total, per_visit)),
        ..Settings::new(seats, 100)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..enter {
        shard.enter().unwrap();
    }
    for token in 1..=enter {
        if shard.status(token).state == State::Admitted {
            shard.claim(token).unwrap();
        }
    }
    shard
}

#[test]
fn what_a_visit_did_not_use_is_free_again() {
    let mut shard = begin(10, 4, 2, 5);
    assert_eq!(shard.status(1).units, Some(4));
    assert_eq!(shard.line().quota_left(), 2);
    shard.complete_units(1, 1).unwrap();
    // Three of its four units are back, and the next seat has reserved four.
    assert_eq!(shard.status(3).units, Some(4));
    assert_eq!(shard.line().quota_left(), 1);
    // A repetition has the first answer, whatever it says.
    assert_eq!(shard.complete_units(1, 4).unwrap().state, State::Gone);
    assert_eq!(shard.line().quota_left(), 1);
    shard.leave(2).unwrap();
    assert_eq!(
        (shard.status(4).units, shard.line().quota_left()),
        (Some(4), 1)
    );
}

#[test]
fn more_than_a_seat_reserves_is_refused() {
    let mut shard = begin(10, 4, 1, 2);
    let refused = shard.complete_units(1, 5).unwrap_err();
    let limit = "at most 4: what its seat reserves";
    assert_eq!(refused, BadField::new("units", limit).into());
    assert_eq!(shard.status(1).state, State::InCheckout);
    assert_eq!(shard.complete_units(2, 1), Err(Refused::NotAdmitted));
    // By default it has used all.
    shard.complete(1, None).unwrap();
    assert_eq!(
        shard.line().quota_left(),
        2,
        "6 left, of which the next seat has 4"
    );
}

#[test]
fn the_last_seat_reserves_what_is_left() {
    let mut shard = begin(6, 4, 2, 4);
    assert_eq!(shard.status(2).units, Some(2));
    let full = shard.complete_units(2, 3).unwrap_err();
    let limit = "at most 2: what its seat reserves";
    assert_eq!(full, BadField::new("units", limit).into());
    shard.complete(1, None).unwrap();
    assert_eq!(
        shard.status(3).state,
        State::Waiting,
        "all units are reserved"
    );
    shard.complete_units(2, 1).unwrap();
    assert_eq!(
        shard.status(3).units,
        Some(1),
        "and so exactly six are sold"
    );
    shard.claim(3).unwrap();
    shard.complete(3, None).unwrap();
    shard.finish_jobs();
    assert_eq!(shard.status(4).reason, Some(Some(Reason::SoldOut)));
    assert_eq!(shard.enter().unwrap_err(), Refused::SoldOut);
}

#[test]
fn a_change_of_per_visit_is_for_seats_to_come() {
    let mut shard = begin(10, 1, 2, 4);
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(10, 4))),
        ..SettingsPatch::default()
    });
    assert_eq!(
        (shard.status(1).units, shard.line().quota_left()),
        (Some(1), 8)
    );
    let limit = "at most 1: what its seat reserves";
    let refused = shard.complete_units(1, 2).unwrap_err();
    assert_eq!(refused, BadField::new("units", limit).into());
    shard.complete(1, None).unwrap();
    assert_eq!(
        (shard.status(3).units, shard.line().quota_left()),
        (Some(4), 4)
    );
}

/// Seats are free, and all units are reserved: those who wait are not told that their turn has come.
#[test]
fn a_short_quota_is_waited_for_like_seats() {
    let mut shard = begin(30, 4, 10, 7);
    for token in 1..=7 {
        shard.complete_units(token, 1).unwrap();
    }
    // As each used one of four, the 23 that are left are expected to be enough for all of these; six can have seats now.
    for token in 8..=15 {
        shard.enter().unwrap();
        if token <= 13 {
            shard.claim(token).unwrap();
        }
    }
    assert_eq!(shard.line().quota_left(), 0);
    let status = shard.status(14);
    assert_eq!((status.state, status.eta_ms), (State::Waiting, None));
}

#[test]
fn without_a_quota_a_visit_uses_one() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 9));
    shard.enter().unwrap();
    shard.claim(1).unwrap();
    assert_eq!(shard.status(1).units, None);
    assert!(shard.complete_units(1, 2).is_err());
    shard.complete_units(1, 0).unwrap();
    shard.enter().unwrap();
    shard.claim(2).unwrap();
    shard.complete(2, None).unwrap();
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(3, 2))),
        ..SettingsPatch::default()
    });
    assert_eq!(
        shard.line().quota_left(),
        2,
        "one was used before there was a quota"
    );
}
