//! Jumps: a waiting token goes into a lane that its card opens.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, Forbidden, LaneSettings, Limits, Lines, MovedBy, Op, Phase, Reason, Refused,
    Settings, SettingsPatch, State, Status, TokenBy, TokenChange,
};

/// One seat, which token 1 holds; `normal` and `card`, which can be jumped into.
fn shard() -> Shard {
    let lane = |name: &str, jump| LaneSettings {
        jump,
        ..LaneSettings::new(name.try_into().unwrap())
    };
    let settings = Settings {
        lanes: vec![
            lane("normal", false),
            lane("card", true),
            lane("gold", true),
        ],
        ..Settings::new(1, 20)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    shard.enter().unwrap();
    shard
}

fn jump(shard: &mut Shard, by: TokenBy, to: &str) -> Result<Status, Refused> {
    shard.status_of(&Op::Jump {
        line: shop(),
        by,
        to: to.try_into().unwrap(),
    })
}

fn key(key: &str) -> TokenBy {
    TokenBy::Key(key.as_bytes().into())
}

#[test]
fn a_jump_is_done_once_and_its_repetition_has_the_same_answer() {
    let mut shard = shard();
    let old = shard.enter_as(Some("k")).unwrap().at;
    let new = jump(&mut shard, TokenBy::At(old), "card").unwrap();
    assert_eq!((new.lane.as_str(), new.at.token), ("card", 1));
    assert!(matches!(
        &shard.events[..],
        [Event::Token { what: TokenChange::Moved { to, by: MovedBy::Jump, .. }, .. }] if *to == new.at
    ));
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    for by in [TokenBy::At(old), TokenBy::At(new.at), key("k")] {
        assert_eq!(jump(&mut shard, by, "card").unwrap().at, new.at);
        assert!(shard.events.is_empty());
    }
    shard.leave(1).unwrap();
    let admitted = jump(&mut shard, key("k"), "card").unwrap();
    assert_eq!(admitted.state, State::Admitted, "whatever its state");
    let leave = Op::Leave {
        line: shop(),
        at: old,
    };
    shard.apply(&leave).unwrap();
    let gone = jump(&mut shard, TokenBy::At(old), "card").unwrap();
    assert_eq!(gone.reason, Some(Some(Reason::Left)));
    assert_eq!(
        jump(&mut shard, key("k"), "card"),
        Err(Refused::TokenNotFound)
    );
}

#[test]
fn every_refusal_of_a_jump() {
    let mut shard = shard();
    let at = shard.enter_as(Some("k")).unwrap().at;
    let no_lane = jump(&mut shard, key("k"), "web").unwrap_err();
    let text = "to: no lane \"web\"; the line has normal, card, gold";
    assert_eq!(no_lane.to_string(), text);
    assert_eq!(
        jump(&mut shard, key("x"), "card"),
        Err(Refused::TokenNotFound)
    );
    let mut astray = at;
    astray.token = 9;
    let none = jump(&mut shard, TokenBy::At(astray), "card");
    assert_eq!(none, Err(Refused::TicketInvalid));
    let seated = TokenBy::At(shard.at(1));
    assert_eq!(jump(&mut shard, seated, "card"), Err(Refused::NotWaiting));

    let back = |shard: &mut Shard| jump(shard, key("k"), "normal");
    jump(&mut shard, key("k"), "card").unwrap();
    assert_eq!(back(&mut shard), Err(Forbidden::Jump.into()));
    let second = jump(&mut shard, key("k"), "gold");
    assert_eq!(second, Err(Forbidden::JumpsMax.into()));
    // An operator's move is none of its jumps, and does not give one back.
    shard.move_to("card", 1, "normal").unwrap();
    let second = jump(&mut shard, key("k"), "gold");
    assert_eq!(second, Err(Forbidden::JumpsMax.into()));
    shard.set(SettingsPatch {
        jumps_max: Some(Change::Set(2)),
        ..SettingsPatch::default()
    });
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    jump(&mut shard, key("k"), "gold").unwrap();

    // A new visit may jump anew.
    let at = shard.line().find(b"k").unwrap();
    shard.apply(&Op::Leave { line: shop(), at }).unwrap();
    let gone = jump(&mut shard, TokenBy::At(at), "card");
    assert_eq!(gone, Err(Refused::TokenGone(Some(Reason::Left))));
    shard.enter_as(Some("k")).unwrap();
    let mut lanes = shard.line().settings().lanes.clone();
    lanes[1].queue_limit = Some(0);
    shard.set(SettingsPatch {
        lanes: Some(Change::Set(lanes)),
        ..SettingsPatch::default()
    });
    let full = jump(&mut shard, key("k"), "card").unwrap_err();
    assert!(matches!(full, Refused::LaneFull { limit: 0, .. }), "{full}");
    shard.set(SettingsPatch {
        phase: Some(Change::Set(Phase::Draining)),
        ..SettingsPatch::default()
    });
    jump(&mut shard, key("k"), "gold").unwrap();
}
