//! Quotas that are renewed: once a window, by the wall clock of the entry.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, Limits, LineChange, Lines, Op, Quota, Refused, Renew, Settings, SettingsPatch,
    ZoneName,
};

const HOUR_MS: u64 = 3_600_000;

fn quota(renew: Option<Renew>) -> Quota {
    Quota {
        total: 2,
        standby_percent: 0,
        renew,
        per_visit: 1,
    }
}

fn shard() -> Shard {
    let settings = Settings {
        quota: Some(quota(Some(Renew::Every { ms: HOUR_MS }))),
        ..Settings::new(1, 9)
    };
    Shard::with_shop(Limits::default(), settings)
}

/// What a leader proposes. Returns whether the quota was renewed.
fn propose(shard: &mut Shard, next_ms: u64) -> bool {
    let (line, incarnation) = (shop(), shard.line().incarnation());
    shard
        .apply(&Op::RenewQuota {
            line,
            incarnation,
            next_ms,
        })
        .unwrap();
    shard.events.iter().any(|event| {
        let renewed = |what: &LineChange| *what == LineChange::QuotaRenewed;
        matches!(event, Event::Line { what, .. } if renewed(what))
    })
}

fn sell_out(shard: &mut Shard) {
    for _ in 0..2 {
        let token = shard.enter().unwrap().at.token;
        shard.serve(token);
    }
    assert_eq!(shard.enter().unwrap_err(), Refused::SoldOut);
}

#[test]
fn what_counts_starts_again_once_a_window() {
    let mut shard = shard();
    let due = |shard: &Shard| shard.lines.due_by_wall_clock(shard.wall_ms()).count();
    assert_eq!(
        due(&shard),
        1,
        "a leader finds out when the next window begins"
    );
    let noon_ms = shard.wall_ms() + HOUR_MS;
    assert!(!propose(&mut shard, noon_ms));
    assert_eq!(
        (due(&shard), shard.line().renews_at_ms()),
        (0, Some(noon_ms))
    );
    sell_out(&mut shard);
    // Another leader's clock is ahead: the entry has its time, and nothing is done too early.
    assert!(!propose(&mut shard, noon_ms + HOUR_MS));
    assert_eq!(shard.enter().unwrap_err(), Refused::SoldOut);
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.now_ms += HOUR_MS;
    assert_eq!(due(&shard), 1);
    assert!(propose(&mut shard, noon_ms + HOUR_MS));
    // The next leader had proposed it, too.
    assert!(!propose(&mut shard, noon_ms + HOUR_MS));
    assert_eq!(shard.line().quota_left(), 2);
    sell_out(&mut shard);
}

#[test]
fn a_seat_that_is_held_counts_in_the_window_in_which_it_is_completed() {
    let mut shard = shard();
    let next_ms = shard.wall_ms() + HOUR_MS;
    propose(&mut shard, next_ms);
    let token = shard.enter().unwrap().at.token;
    shard.claim(token).unwrap();
    assert_eq!(shard.line().quota_left(), 1);
    shard.now_ms += HOUR_MS;
    assert!(propose(&mut shard, next_ms + HOUR_MS));
    assert_eq!(shard.line().quota_left(), 1);
    shard.complete(token, None).unwrap();
    assert_eq!(shard.line().quota_left(), 1);
}

#[test]
fn a_change_of_the_windows_begins_with_the_one_under_way() {
    let mut shard = shard();
    let next_ms = shard.wall_ms() + HOUR_MS;
    propose(&mut shard, next_ms);
    sell_out(&mut shard);
    let zone = ZoneName::new("Asia/Taipei").unwrap();
    assert_eq!(zone.as_str(), "Asia/Taipei");
    let daily = Renew::Daily { minute: 360, zone };
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(Some(daily)))),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.line().renews_at_ms(), None);
    assert_eq!(shard.line().renewal_due(0), Some(daily));
    assert!(!propose(&mut shard, next_ms));
    assert_eq!(shard.enter().unwrap_err(), Refused::SoldOut);
    // A line that is sold out for good takes no callbacks.
    shard.set(SettingsPatch {
        callback_limit: Some(Change::Set(5)),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota(None))),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.call_back("bob", None), Err(Refused::SoldOut));
    assert_eq!(shard.line().renewal_due(u64::MAX), None);
}

#[test]
fn names_of_zones_are_short_and_plain() {
    for bad in ["", "Asia Taipei", "\u{e9}", &"x".repeat(41)] {
        assert_eq!(ZoneName::new(bad), None, "{bad}");
    }
}
