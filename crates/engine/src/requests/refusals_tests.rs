//! Entrants that are refused, counted by the leader: what it shows, what it writes, and what the next leader knows.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::{Op, RefusedCounts, Settings};
use nowserving_protocol::error::Code;

use crate::request::{Ask, Outcome, ReplyBody};
use crate::rig::{Rig, name};

/// A leader of one, with a line for one.
fn full() -> Rig {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 0));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.enter("in");
    rig.turn();
    rig.answers();
    rig
}

fn refuse(rig: &mut Rig, count: u64) {
    for n in 0..count {
        rig.enter(&n.to_string());
    }
    rig.turn();
    rig.acknowledge();
    let refused = rig.numbers();
    assert_eq!(refused.len() as u64, count);
    assert!(refused.iter().all(|it| *it == Err(Code::LineFull)));
}

fn shown(rig: &mut Rig) -> u64 {
    let far = rig.now + 1_000_000;
    rig.ask(Ask::Show, far);
    rig.turn();
    match &rig.answers()[..] {
        [Ok(Outcome::Reply(ReplyBody::Line(reply)))] => reply.counts.refused["line_full"],
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_refusal_is_shown_at_once_and_an_entry_every_five_seconds_is_all_they_cost() {
    let mut rig = full();
    let before = rig.replica().last_index();
    refuse(&mut rig, 3);
    assert_eq!(shown(&mut rig), 3);
    assert_eq!(rig.replica().last_index(), before + 1);
    for round in 1..=4 {
        rig.pass_ms(1_000);
        // Its lease is renewed.
        rig.turn();
        refuse(&mut rig, 10);
        assert_eq!(shown(&mut rig), 3 + 10 * round);
    }
    assert_eq!(rig.replica().last_index(), before + 1);
    rig.pass_ms(1_000);
    rig.turn();
    assert_eq!(rig.replica().last_index(), before + 2);
    assert_eq!(shown(&mut rig), 43);
}

#[test]
fn the_next_leader_knows_what_was_written_down() {
    let mut rig = full();
    refuse(&mut rig, 3);
    refuse(&mut rig, 4);
    assert_eq!(shown(&mut rig), 7);
    let mut next = Rig::open(&[1], None, Arc::clone(&rig.log));
    next.lead();
    assert_eq!(shown(&mut next), 3);
    refuse(&mut next, 1);
    assert_eq!(shown(&mut next), 4);
}

/// Without a lease, or if the line fills up meanwhile, it is the entry that refuses.
#[test]
fn those_that_an_entry_refuses_count_too() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 1));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.answers();
    for key in ["a", "b", "c", "d"] {
        rig.enter(key);
    }
    rig.turn();
    let full = Err(Code::LineFull);
    assert_eq!(rig.numbers(), [Ok(1), Ok(2), full, full]);
    assert_eq!(shown(&mut rig), 2);
    rig.turn();
    let mut next = Rig::open(&[1], None, Arc::clone(&rig.log));
    next.lead();
    assert_eq!(shown(&mut next), 2);
}

#[test]
fn nothing_is_lost_with_a_leader_that_hands_over() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    for peer in [2, 3] {
        let newest = nowserving_shard::command::FORMAT;
        rig.entry_formats.insert(peer, newest);
        rig.hears(peer, "", Vec::new());
    }
    let (line, settings) = (name("shop"), Settings::new(1, 0));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    rig.enter("in");
    rig.turn();
    rig.acknowledge();
    rig.answers();
    for _ in 0..2 {
        refuse(&mut rig, 2);
    }
    let unwritten = |rig: &Rig| {
        let leader_state = rig.shard().leader_state.as_ref().unwrap();
        let line = rig.lines().get(&name("shop")).unwrap();
        leader_state.refusals.unwritten(line)
    };
    assert_eq!(unwritten(&rig), RefusedCounts::new([2, 0, 0, 0]));
    rig.input(crate::io::Input::Stop);
    rig.pass_ms(300);
    rig.hears(2, "", Vec::new());
    rig.turn();
    assert!(rig.shard().offer_of_term().is_some());
    rig.acknowledge();
    assert!(unwritten(&rig).is_empty());
    let line = rig.lines().get(&name("shop")).unwrap();
    assert_eq!(line.counts().refused, RefusedCounts::new([4, 0, 0, 0]));
}
