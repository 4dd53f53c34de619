//! What subscribers get of a token's history: the keys in its events.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Shard, shop};
use nowserving_line::{
    Change, Event, LaneSettings, Limits, Op, Settings, SettingsPatch, TokenChange,
};

/// One seat, the lanes `normal` and `vip`; the first who waits is called ahead.
fn shard(event_key: bool) -> Shard {
    let lane = |name: &str| LaneSettings::new(name.try_into().unwrap());
    let settings = Settings {
        lanes: vec![lane("normal"), lane("vip")],
        call_ahead: 1,
        event_key,
        ..Settings::new(1, 20)
    };
    Shard::with_shop(Limits::default(), settings)
}

/// Of each token event of the last operation what happened, and the key.
fn keys(shard: &Shard) -> Vec<(&'static str, Option<&str>)> {
    let events = shard.events.iter().filter_map(|event| match event {
        Event::Token { key, what, .. } => {
            let word = match what {
                TokenChange::Entered { .. } => "entered",
                TokenChange::Admitted => "admitted",
                TokenChange::Claimed => "claimed",
                TokenChange::Gone { .. } => "gone",
                TokenChange::Moved { .. } => "moved",
                TokenChange::CallAhead => "call_ahead",
            };
            let key = key.as_deref().map(|key| std::str::from_utf8(key).unwrap());
            Some((word, key))
        }
        Event::Line { .. } => None,
    });
    events.collect()
}

#[test]
fn every_event_of_a_token_carries_its_key_if_that_is_set() {
    for shown in [true, false] {
        let of = |key| shown.then_some(key);
        let mut shard = shard(shown);
        shard.enter_as(Some("ann")).unwrap();
        assert_eq!(
            keys(&shard),
            [("entered", of("ann")), ("admitted", of("ann"))]
        );
        shard.claim(1).unwrap();
        assert_eq!(keys(&shard), [("claimed", of("ann"))]);
        shard.enter_as(Some("bob")).unwrap();
        let expected = [("entered", of("bob")), ("call_ahead", of("bob"))];
        assert_eq!(keys(&shard), expected);
        shard.move_to("normal", 2, "vip").unwrap();
        let expected = [("moved", of("bob")), ("call_ahead", of("bob"))];
        assert_eq!(keys(&shard), expected);
        shard.complete(1, None).unwrap();
        assert_eq!(keys(&shard), [("gone", of("ann")), ("admitted", of("bob"))]);
        shard.enter().unwrap();
        let expected = [("entered", None), ("call_ahead", None)];
        assert_eq!(keys(&shard), expected, "it has none");
    }
}

#[test]
fn the_setting_counts_at_the_time_of_the_event() {
    let mut shard = shard(false);
    shard.enter_as(Some("ann")).unwrap();
    let set = |event_key| SettingsPatch {
        event_key: Some(event_key),
        ..SettingsPatch::default()
    };
    shard.set(set(Change::Set(true)));
    shard.claim(1).unwrap();
    assert_eq!(keys(&shard), [("claimed", Some("ann"))]);
    shard.set(set(Change::Unset));
    let (line, at) = (shop(), shard.at(1));
    shard.apply(&Op::Leave { line, at }).unwrap();
    assert_eq!(keys(&shard), [("gone", None)]);
}
