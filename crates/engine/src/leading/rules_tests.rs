//! The rules that a clock or an operator sets going, through a shard with its log.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::{
    AdmissionRate, Change, Op, Phase, Settings, SettingsPatch, Status, TokenBy, TokenRef,
};
use nowserving_protocol::admin::Journal;
use nowserving_protocol::error::Code;
use nowserving_protocol::user::Consistency;

use crate::request::{Ask, Outcome, ReplyBody};
use crate::rig::Rig;
use crate::rig::{lane, lanes, name};

/// A line of which a seat is to be had each 100 ms of the service clock.
fn paced() -> Settings {
    let mut settings = Settings::new(100, 1_000);
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 10_000_000,
        burst: 1,
    });
    settings
}

fn create(rig: &mut Rig, settings: Settings) {
    let line = name("shop");
    rig.write(Op::Create { line, settings });
    settle(rig);
}

/// A turn, with a quorum for what came of it.
fn settle(rig: &mut Rig) {
    rig.turn();
    rig.acknowledge();
    assert!(rig.answers().iter().all(Result::is_ok));
}

fn enter(rig: &mut Rig, count: u32) {
    for n in 0..count {
        rig.enter(&n.to_string());
    }
    settle(rig);
}

fn configure(rig: &mut Rig, patch: SettingsPatch) {
    rig.write(Op::Configure {
        line: name("shop"),
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    });
    settle(rig);
}

fn admitted(rig: &Rig) -> u64 {
    let line = rig.lines().get(&name("shop")).unwrap();
    line.counts().admitted
}

/// Whether the leader has nothing to wake up for soon: boards are repeated after a minute.
fn is_idle(rig: &Rig) -> bool {
    rig.next_duty_us().is_none_or(|us| us > 10_000_000)
}

fn entries(rig: &Rig) -> u64 {
    rig.replica().last_index()
}

#[test]
fn a_paced_line_admits_by_the_clock_and_an_entry_each_is_all_it_takes() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, paced());
    enter(&mut rig, 4);
    assert_eq!(admitted(&rig), 1);
    for round in 2..=4 {
        let before = entries(&rig);
        assert!(rig.next_duty_us().unwrap() <= 100_000);
        rig.pass_ms(99);
        rig.turn();
        assert_eq!((admitted(&rig), entries(&rig)), (round - 1, before));
        assert_eq!(rig.next_duty_us(), Some(1_000));
        rig.pass_ms(1);
        settle(&mut rig);
        assert_eq!((admitted(&rig), entries(&rig)), (round, before + 1));
    }
    rig.pass_ms(100);
    rig.turn();
    assert!(is_idle(&rig), "nobody waits");
}

#[test]
fn the_next_leader_goes_on_with_the_pace_and_gives_nothing_twice() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, paced());
    enter(&mut rig, 3);
    rig.pass_ms(100);
    settle(&mut rig);
    assert_eq!(admitted(&rig), 2);
    rig.pass_ms(60);
    rig.turn();
    let mut next = Rig::open(&[1], None, Arc::clone(&rig.log));
    next.lead();
    assert_eq!(admitted(&next), 2);
    // What the first one's clock had run since its last entry is not known any more.
    next.pass_ms(99);
    next.turn();
    assert_eq!(admitted(&next), 2);
    next.pass_ms(1);
    next.turn();
    assert_eq!(admitted(&next), 3);
}

#[test]
fn while_nobody_is_heard_the_pace_stands_and_the_loop_does_not_spin() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, paced());
    enter(&mut rig, 2);
    rig.pass_ms(50);
    rig.unreachable_ms(10_000);
    // The clock ran on for as long as it may without an echo, and that was enough for one.
    let before = entries(&rig);
    settle(&mut rig);
    assert_eq!((admitted(&rig), entries(&rig)), (2, before + 1));
    rig.enter("late");
    settle(&mut rig);
    rig.unreachable_ms(10_000);
    settle(&mut rig);
    assert_eq!(admitted(&rig), 2);
    assert!(is_idle(&rig));
    rig.pass_ms(100);
    settle(&mut rig);
    assert_eq!(admitted(&rig), 3);
}

#[test]
fn without_a_quorum_one_step_is_under_way_and_no_more() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    create(&mut rig, paced());
    enter(&mut rig, 3);
    rig.pass_ms(100);
    rig.turn();
    let before = entries(&rig);
    for _ in 0..50 {
        assert!(is_idle(&rig));
        rig.pass_ms(20);
        rig.turn();
    }
    assert_eq!((entries(&rig), admitted(&rig)), (before, 1));
    rig.acknowledge();
    assert_eq!(admitted(&rig), 2);
    // Time went on: the next one is due, a little apart.
    rig.pass_ms(5);
    settle(&mut rig);
    assert_eq!(admitted(&rig), 3);
}

#[test]
fn opening_admits_at_once_and_a_crowd_entry_by_entry() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    let mut settings = Settings::new(1_500, 1_000_000);
    settings.phase = Phase::PreOpen;
    create(&mut rig, settings);
    enter(&mut rig, 2_000);
    rig.pass_ms(100);
    rig.turn();
    assert!(is_idle(&rig) && admitted(&rig) == 0);
    let before = entries(&rig);
    configure(
        &mut rig,
        SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            ..Default::default()
        },
    );
    // What is too much for one entry is done by the next.
    assert_eq!(entries(&rig), before + 2);
    assert_eq!(admitted(&rig), 1_500);
    rig.pass_ms(100);
    rig.turn();
    assert!(is_idle(&rig));
}

#[test]
fn a_long_job_does_not_hold_up_a_paced_line() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, paced());
    enter(&mut rig, 2);
    let (line, settings) = (name("another"), Settings::new(1, 1_000_000));
    rig.write(Op::Create { line, settings });
    for _ in 0..8_000 {
        let (line, key, lane) = (name("another"), None, None);
        rig.write(Op::Enter { line, key, lane });
    }
    settle(&mut rig);
    rig.pass_ms(100);
    // Takes all of its entry, and as much of each of the next ones as it is given.
    let (line, force) = (name("another"), true);
    rig.write(Op::Delete {
        line,
        force,
        incarnation: None,
    });
    settle(&mut rig);
    let left = |rig: &Rig| {
        let line = rig.lines().get(&name("another"));
        line.map_or(0, |line| line.counts().live())
    };
    for _ in 0..2 {
        rig.pass_ms(5);
        settle(&mut rig);
    }
    assert_eq!(admitted(&rig), 2);
    assert!((1..7_000).contains(&left(&rig)), "{}", left(&rig));
}

/// A line of one seat and two lanes, with somebody admitted and two who wait; the second one's
/// token.
fn two_lanes(rig: &mut Rig, position_cap: Option<u32>) -> TokenRef {
    rig.lead();
    let mut settings = Settings::new(1, 1_000);
    settings.lanes = lanes(&["normal", "vip"]);
    settings.position_cap = position_cap;
    create(rig, settings);
    enter(rig, 3);
    TokenRef {
        incarnation: rig.lines().get(&name("shop")).unwrap().incarnation(),
        lane: 0,
        token: 3,
    }
}

/// The last answer: the status, whether with its ticket, and the holes.
fn status(rig: &mut Rig) -> (Status, bool, Option<Vec<(u64, u64)>>) {
    match rig.answers().pop() {
        Some(Ok(Outcome::Status {
            status,
            with_ticket,
            holes,
            ..
        })) => (*status, with_ticket, holes.flatten()),
        other => panic!("{other:?}"),
    }
}

fn ask(rig: &mut Rig, at: TokenRef) -> (Status, bool, Option<Vec<(u64, u64)>>) {
    let consistency = Consistency::Local;
    let far = rig.now + 1_000_000_000_000;
    let holes = true;
    rig.ask(
        Ask::Status {
            token: TokenBy::At(at),
            consistency,
            holes,
        },
        far,
    );
    status(rig)
}

#[test]
fn who_was_moved_gets_the_new_ticket_with_every_answer_to_the_old_one() {
    let mut rig = Rig::new(&[1]);
    let old = two_lanes(&mut rig, None);
    assert!(!ask(&mut rig, old).1);
    let to_vip = Op::Move {
        line: name("shop"),
        lane: lane("normal"),
        token: 3,
        to: lane("vip"),
    };
    rig.write(to_vip.clone());
    rig.turn();
    let (moved, with_ticket, _) = status(&mut rig);
    assert!(with_ticket);
    assert_eq!((moved.lane.as_str(), moved.at.token), ("vip", 1));
    rig.write(to_vip);
    rig.turn();
    assert_eq!(status(&mut rig).0.at, moved.at, "asked again");
    let (now, with_ticket, holes) = ask(&mut rig, old);
    assert_eq!((now.at, with_ticket), (moved.at, true));
    assert_eq!(holes, Some(vec![]));
    let (now, with_ticket, _) = ask(&mut rig, moved.at);
    assert_eq!((now.at, with_ticket), (moved.at, false));
    let (line, at) = (name("shop"), old);
    rig.write(Op::Leave { line, at });
    rig.turn();
    let (gone, with_ticket, _) = status(&mut rig);
    assert_eq!((gone.at, with_ticket), (moved.at, true));
}

#[test]
fn holes_are_not_told_past_the_cap() {
    let mut rig = Rig::new(&[1]);
    let last = two_lanes(&mut rig, Some(1));
    let (capped, _, holes) = ask(&mut rig, last);
    assert_eq!((capped.position, capped.position_capped), (Some(1), true));
    assert_eq!(holes, None);
    let (first, _, holes) = ask(&mut rig, TokenRef { token: 2, ..last });
    assert_eq!((first.position, first.position_capped), (Some(1), false));
    assert_eq!(holes, Some(vec![]));
}

#[test]
fn the_journal_is_read_as_any_state_is() {
    let mut rig = Rig::new(&[1]);
    two_lanes(&mut rig, None);
    let mut journal = |token| {
        let ask = Journal {
            token,
            ..Journal::default()
        };
        let far = rig.now + 1_000_000_000_000;
        rig.ask(Ask::Journal(ask), far);
        rig.turn();
        rig.answers().pop().unwrap()
    };
    let Ok(Outcome::Reply(ReplyBody::Journal(page))) = journal(None) else {
        panic!("no journal")
    };
    let what: Vec<_> = page.entries.iter().map(|entry| &entry.what[..]).collect();
    assert_eq!(what, ["entered", "admitted", "entered", "entered"]);
    let Ok(Outcome::Reply(ReplyBody::Journal(page))) = journal(Some(3)) else {
        panic!("no journal")
    };
    // The first one had its seat before this one came.
    assert_eq!(page.explain.unwrap().own_lane_before, 0);
    let refused = journal(Some(4)).map_err(|error| error.code);
    assert!(matches!(refused, Err(Code::TokenNotFound)), "{refused:?}");
}
