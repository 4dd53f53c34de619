//! The history of tokens: keys in events, departures by the state that was left.

use std::collections::BTreeMap;

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, Journaled, JournaledToken, LaneSettings, Limits, Lines, Op, Reason, Settings,
    SettingsPatch, State, TokenChange,
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
                TokenChange::Admitted { .. } => "admitted",
                TokenChange::Claimed { .. } => "claimed",
                TokenChange::Gone { .. } => "gone",
                TokenChange::Moved { .. } => "moved",
                TokenChange::CallAhead => "call_ahead",
                TokenChange::Position { .. } => "position",
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

/// Everybody who left, by the state that they left and by reason, as the journal has it.
fn by_the_journal(shard: &Shard) -> Vec<(State, Reason, u64)> {
    let (mut states, mut gone) = (BTreeMap::new(), BTreeMap::new());
    for entry in shard.line().journal_after(0) {
        let Journaled::Token {
            lane, token, what, ..
        } = entry.what
        else {
            continue;
        };
        let id = (lane, token);
        let (now, reason) = match what {
            JournaledToken::Entered { .. } => (State::Waiting, None),
            JournaledToken::Admitted { .. } => (State::Admitted, None),
            JournaledToken::Claimed { .. } => (State::InCheckout, None),
            JournaledToken::Gone { reason, .. } => (State::Gone, Some(reason)),
            JournaledToken::Moved { to_lane, to, .. } => {
                states.insert((to_lane, to), State::Waiting);
                (State::Gone, Some(Reason::Moved))
            }
        };
        let left = states.insert(id, now);
        if let Some(reason) = reason {
            *gone.entry((left.unwrap(), reason)).or_insert(0) += 1;
        }
    }
    let gone = gone.into_iter();
    gone.map(|((state, reason), n)| (state, reason, n))
        .collect()
}

/// One token ends in each way; its former number is gone, too.
fn a_day() -> Shard {
    let mut shard = shard(false);
    for _ in 0..7 {
        shard.enter().unwrap();
    }
    shard.leave(7).unwrap();
    shard.move_to("normal", 6, "vip").unwrap();
    shard.now_ms += 300_001;
    // The first has had its seat for too long, and token 2 has waited in silence.
    let late = vec![shard.item(1), shard.item(2)];
    shard.recycle(late);
    shard.serve(3);
    shard.claim(4).unwrap();
    shard.now_ms += 3_600_001;
    let late = vec![shard.item(4)];
    shard.recycle(late);
    shard.leave(5).unwrap();
    shard.set(SettingsPatch {
        phase: Some(Change::Set(nowserving_line::Phase::Closed)),
        ..SettingsPatch::default()
    });
    shard
}

#[test]
fn departures_are_counted_by_the_state_that_they_leave() {
    let mut shard = a_day();
    let counts = shard.line().counts();
    let expected = [
        (State::Waiting, Reason::Left, 1),
        (State::Waiting, Reason::Idle, 1),
        (State::Waiting, Reason::Moved, 1),
        (State::Admitted, Reason::Left, 1),
        (State::Admitted, Reason::NoShow, 1),
        (State::Admitted, Reason::Closed, 1),
        (State::InCheckout, Reason::Completed, 1),
        (State::InCheckout, Reason::CheckoutExpired, 1),
    ];
    assert_eq!(counts.gone_from.iter().collect::<Vec<_>>(), expected);
    assert_eq!(by_the_journal(&shard), expected);
    assert_eq!(counts.gone.iter().sum::<u64>(), expected.len() as u64);
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(shard.line().counts(), counts);
}
