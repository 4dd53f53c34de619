//! Keys that were refused and are told when there is room.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, Forbidden, LaneSettings, Limits, LineChange, Lines, Op, Phase, Quota,
    ROOM_KEYS_MAX, Refused, Settings, SettingsPatch, WORK_MAX,
};

fn limit(callback_limit: u32) -> SettingsPatch {
    SettingsPatch {
        callback_limit: Some(Change::Set(callback_limit)),
        ..SettingsPatch::default()
    }
}

/// A line that is full: one seat and one more place.
fn full(callback_limit: u32) -> Shard {
    let settings = Settings {
        callback_limit,
        ..Settings::new(1, 1)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    shard.enter_as(Some("first")).unwrap();
    shard.enter_as(Some("second")).unwrap();
    shard
}

/// The keys that were named, by lane.
fn named(shard: &Shard) -> Vec<(String, Vec<String>)> {
    let named = shard.events.iter().filter_map(|event| match event {
        Event::Line {
            what: LineChange::Room { lane, keys },
            ..
        } => {
            let keys = keys
                .iter()
                .map(|key| String::from_utf8(key.to_vec()).unwrap());
            Some((lane.to_string(), keys.collect()))
        }
        _ => None,
    });
    named.collect()
}

fn room(lane: &str, keys: &[&str]) -> Vec<(String, Vec<String>)> {
    let keys = keys.iter().map(|key| (*key).to_owned());
    vec![(lane.to_owned(), keys.collect())]
}

/// What a leader proposes at this time.
fn look(shard: &mut Shard) {
    shard.finish_jobs();
}

#[test]
fn a_key_keeps_its_place_and_is_named_once() {
    let mut shard = full(10);
    assert_eq!(shard.enter_as(Some("ann")).unwrap_err(), Refused::LineFull);
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    assert_eq!(shard.call_back("bob", None), Ok(Some(2)));
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    shard.leave(2).unwrap();
    assert_eq!(named(&shard), room("normal", &["ann"]));
    assert_eq!(shard.call_back("bob", None), Ok(Some(1)));
    // The place was offered, so it is not offered again, and nobody else is told that there is one.
    assert_eq!(named(&shard), []);
    assert_eq!(shard.call_back("eve", None), Ok(Some(2)));
    assert!(shard.enter_as(Some("ann")).is_ok());
    shard.leave(3).unwrap();
    assert_eq!(named(&shard), room("normal", &["bob"]));
}

#[test]
fn an_offer_that_nobody_takes_goes_to_the_next_one() {
    let mut shard = full(10);
    for key in ["ann", "bob"] {
        shard.call_back(key, None).unwrap();
    }
    shard.leave(2).unwrap();
    let claim_ms = shard.line().settings().claim_timeout_ms;
    let mut told_ms = None;
    let began_ms = shard.now_ms;
    while told_ms.is_none() {
        let due_ms = shard.lines.next_background_ms().unwrap();
        shard.now_ms = due_ms;
        look(&mut shard);
        told_ms = (named(&shard) == room("normal", &["bob"])).then_some(due_ms - began_ms);
    }
    assert!((claim_ms / 2..=claim_ms).contains(&told_ms.unwrap()));
}

#[test]
fn whoever_enters_first_has_the_place() {
    let mut shard = full(10);
    shard.call_back("ann", None).unwrap();
    shard.leave(2).unwrap();
    assert_eq!(named(&shard), room("normal", &["ann"]));
    assert!(shard.enter_as(Some("eve")).is_ok());
    assert_eq!(shard.enter_as(Some("ann")).unwrap_err(), Refused::LineFull);
    assert_eq!(
        shard.call_back("ann", None),
        Ok(Some(1)),
        "at the end again"
    );
}

#[test]
fn a_key_that_enters_is_taken_off_the_list() {
    let mut shard = full(10);
    for key in ["ann", "bob"] {
        shard.call_back(key, None).unwrap();
    }
    shard.set(SettingsPatch {
        queue_limit: Some(Change::Set(2)),
        ..SettingsPatch::default()
    });
    assert_eq!(named(&shard), room("normal", &["ann"]));
    // Bob does not wait to be told.
    assert!(shard.enter_as(Some("bob")).is_ok());
    shard.leave(2).unwrap();
    assert_eq!(named(&shard), []);
    assert_eq!(shard.call_back("bob", None), Ok(None), "it is in the line");
}

#[test]
fn the_refusals_say_what_the_matter_is() {
    let mut shard = full(0);
    let off = Err(Refused::Forbidden(Forbidden::Callback));
    assert_eq!(shard.call_back("ann", None), off);
    shard.set(limit(1));
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    assert_eq!(shard.call_back("bob", None), Err(Refused::CallbacksFull));
    shard.set(limit(0));
    assert_eq!(
        shard.call_back("ann", None),
        Ok(Some(1)),
        "it keeps its place"
    );
    shard.set(limit(5));
    for bad in [String::new(), "x".repeat(129)] {
        let refused = shard.call_back(&bad, None);
        assert!(matches!(refused, Err(Refused::BadField(_))), "{refused:?}");
    }
    let refused = shard.call_back("bob", Some("nowhere"));
    assert!(matches!(refused, Err(Refused::BadField(_))), "{refused:?}");
    let phase = |phase| SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    };
    shard.set(phase(Phase::Draining));
    assert_eq!(shard.call_back("bob", None), Err(Refused::LineDraining));
    shard.set(phase(Phase::Closed));
    assert_eq!(shard.call_back("bob", None), Err(Refused::LineClosed));
    // Ann is told when the line opens.
    shard.set(phase(Phase::Open));
    assert_eq!(named(&shard), room("normal", &["ann"]));
    assert_eq!(
        shard.call_back("bob", None),
        Ok(None),
        "there is room for two"
    );
}

#[test]
fn a_line_that_is_being_deleted_keeps_no_place() {
    let mut shard = full(2_000);
    for caller in 0..1_500 {
        shard.call_back(&format!("key-{caller}"), None).unwrap();
    }
    let delete = Op::Delete {
        line: shop(),
        force: true,
        incarnation: None,
    };
    shard.apply(&delete).unwrap();
    assert!(shard.line().deleting().is_some(), "its callers are many");
    assert_eq!(
        shard.call_back("key-1499", None),
        Err(Refused::LineClosed),
        "nobody will be told of room any more"
    );
}

#[test]
fn a_sold_out_line_takes_none_and_a_unit_that_comes_back_is_offered() {
    let mut shard = full(5);
    shard.set(SettingsPatch {
        quota: Some(Change::Set(Quota {
            total: 2,
            standby_percent: 0,
            renew: None,
            per_visit: 1,
        })),
        queue_limit: Some(Change::Set(9)),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.enter_as(Some("ann")).unwrap_err(), Refused::SoldOut);
    assert_eq!(shard.call_back("ann", None), Ok(Some(1)));
    shard.leave(2).unwrap();
    assert_eq!(named(&shard), room("normal", &["ann"]));
    shard.enter_as(Some("ann")).unwrap();
    shard.serve(1);
    shard.serve(3);
    assert_eq!(shard.call_back("bob", None), Err(Refused::SoldOut));
}

#[test]
fn lanes_share_the_room_of_the_line_and_a_removed_lane_forgets() {
    let mut shard = full(10);
    let lanes = |names: &[&str]| SettingsPatch {
        lanes: Some(Change::Set(
            names
                .iter()
                .map(|name| LaneSettings::new((*name).try_into().unwrap()))
                .collect(),
        )),
        ..SettingsPatch::default()
    };
    shard.set(lanes(&["normal", "vip"]));
    assert_eq!(shard.call_back("ann", Some("vip")), Ok(Some(1)));
    assert_eq!(shard.call_back("bob", None), Ok(Some(1)), "of its lane");
    assert_eq!(shard.call_back("eve", Some("vip")), Ok(Some(2)));
    assert_eq!(
        shard.call_back("eve", None),
        Ok(Some(2)),
        "where it asked first"
    );
    shard.leave(2).unwrap();
    assert_eq!(named(&shard), room("vip", &["ann"]), "it asked first");
    shard.set(lanes(&["normal"]));
    assert_eq!(
        named(&shard),
        room("normal", &["bob"]),
        "the offer went with its lane"
    );
    shard.enter_as(Some("ann")).unwrap();
    assert_eq!(shard.call_back("eve", None), Ok(Some(1)), "asked anew");
}

#[test]
fn a_large_list_is_told_in_steps_over_a_restart_and_deleted_in_steps() {
    let many = 2_500;
    let mut shard = full(1_000_000);
    for n in 0..many {
        shard.call_back(&format!("key-{n}"), None).unwrap();
    }
    shard.set(SettingsPatch {
        queue_limit: Some(Change::Set(1 + 2_000)),
        ..SettingsPatch::default()
    });
    let mut told = Vec::new();
    loop {
        let named = named(&shard);
        let keys: Vec<String> = named.into_iter().flat_map(|(_, keys)| keys).collect();
        assert!(keys.len() <= WORK_MAX as usize);
        told.extend(keys);
        shard.lines = Lines::restore(shard.lines.dump()).unwrap();
        if !shard.finish_job() {
            break;
        }
        let all = shard.events.iter().all(|event| match event {
            Event::Line {
                what: LineChange::Room { keys, .. },
                ..
            } => keys.len() <= ROOM_KEYS_MAX,
            _ => true,
        });
        assert!(all, "an event names at most so many");
    }
    let first: Vec<String> = (0..2_000).map(|n| format!("key-{n}")).collect();
    assert_eq!(told, first, "in order, and no more than there is room for");
    for n in 2_500..5_000 {
        shard.call_back(&format!("key-{n}"), None).unwrap();
    }
    shard
        .apply(&Op::Delete {
            line: shop(),
            force: true,
            incarnation: None,
        })
        .unwrap();
    assert_eq!(shard.finish_jobs(), 2, "beside the first entry");
    assert!(shard.lines.is_empty());
}
