//! What is told of times is the wall clock of the node that says it, whatever the service clock reads.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::{Op, Settings, TokenBy, TokenRef};
use nowserving_protocol::admin::{Journal, JournalEntryReply, JournalReply};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::{Consistency, StatusReply};
use proptest::prelude::*;

use crate::delivery::Via;
use crate::io::Input;
use crate::request::{Ask, Outcome, ReplyBody};
use crate::rig::name;
use crate::rig::{Rig, SHARD, WALL_MS, config, enter};
use nowserving_shard::published::OutEvent;

const CLAIM_MS: u64 = 120_000;
const HOUR_MS: u64 = 3_600_000;

fn rig(seats: u32) -> Rig {
    let mut rig = Rig::new(&[1]);
    // Nobody is recycled.
    rig.inbox_empty = false;
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(seats, 1_000));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.answers();
    rig
}

/// The last answer, as it is sent.
fn status(rig: &mut Rig) -> StatusReply {
    match rig.answers().pop() {
        Some(Ok(Outcome::Status { status, now, .. })) => StatusReply::new(&status, now),
        other => panic!("{other:?}"),
    }
}

fn check(rig: &Rig, status: &StatusReply) {
    assert_eq!(status.at_ms, rig.wall_ms);
    let sum = status.expires_in_ms.map(|ms| status.at_ms + ms);
    assert_eq!(status.expires_at_ms, sum);
}

/// Node 1 dies, and comes back from its log after this time by the wall clock.
fn restart(rig: Rig, away_ms: u64) -> Rig {
    let mut next = Rig::open(&[1], None, Arc::clone(&rig.log));
    next.inbox_empty = rig.inbox_empty;
    next.wall_ms = rig.wall_ms + away_ms;
    next.lead();
    next
}

/// A write that is late by its header alone: by how much is said, and not that it may be repeated as it is.
#[test]
fn a_header_in_seconds_is_named() {
    for (via, code) in [
        (Via::Plain, Code::Unavailable),
        (SHARD, Code::OutcomeUnknown),
    ] {
        let mut rig = with_line();
        rig.answers();
        let (mut request, delivery) = rig.message(Ask::Write(enter("a")), rig.now + 2_000_000, via);
        request.sent_ms = Some(WALL_MS / 1_000);
        rig.input(Input::Request { request, delivery });
        let error = rig.answers().pop().unwrap().unwrap_err();
        assert_eq!((error.code, error.retry_after_ms), (code, None));
        let ago_ms = (rig.wall_ms - WALL_MS / 1_000).to_string();
        for part in ["Nowserving-Sent-Ms", &ago_ms] {
            assert!(error.message.contains(part), "{error}");
        }
    }
}

/// Node 1 leads, and has a line.
fn with_line() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 10));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    rig
}

#[test]
fn after_the_service_clock_stood_still_a_deadline_is_still_told_in_full() {
    let mut first = rig(2);
    first.enter("a");
    first.turn();
    let before = status(&mut first);
    check(&first, &before);
    assert_eq!(before.expires_in_ms, Some(CLAIM_MS));

    let mut next = restart(first, HOUR_MS);
    next.enter("b");
    next.turn();
    let after = status(&mut next);
    check(&next, &after);
    assert_eq!(after.at_ms, WALL_MS + HOUR_MS);
    assert_eq!(after.entered_at_ms, Some(WALL_MS + HOUR_MS));
    assert_eq!(after.expires_at_ms, Some(WALL_MS + HOUR_MS + CLAIM_MS));
    // Of the first one nothing is lost: it was told less than it has.
    next.enter("a");
    next.turn();
    let first = status(&mut next);
    assert_eq!(first.entered_at_ms, before.entered_at_ms);
    assert_eq!(first.expires_in_ms, Some(CLAIM_MS));
}

#[test]
fn an_answer_that_took_long_tells_what_remains_by_then() {
    let mut rig = with_line();
    rig.answers();
    rig.enter("a");
    rig.turn();
    rig.pass_ms(700);
    rig.wall_ms += 700;
    rig.acknowledge();
    let told = status(&mut rig);
    check(&rig, &told);
    assert_eq!(told.entered_at_ms, Some(WALL_MS));
    assert_eq!(told.expires_in_ms, Some(CLAIM_MS - 700));
}

fn service_ms(rig: &Rig) -> u64 {
    let reachability = &rig.engine.ctx.reachability;
    rig.shard().service_ms(reachability).unwrap()
}

/// A leader keeps its lease from peers that answer heartbeats and cannot append: they lack a snapshot, say.
#[test]
fn while_nothing_is_committed_the_service_clock_stands_still() {
    let mut rig = with_line();
    let began_ms = service_ms(&rig);
    rig.enter("a");
    rig.turn();
    for _ in 0..12 {
        rig.pass_ms(10_000);
        rig.turn();
        rig.confirm();
    }
    rig.turn();
    assert!(rig.is_leader());
    let stood_ms = service_ms(&rig);
    assert_eq!(stood_ms, began_ms + config(&[]).election_ms);
    rig.acknowledge();
    rig.turn();
    assert_eq!(
        service_ms(&rig),
        stood_ms,
        "the time that it stood is not made up for"
    );
    rig.pass_ms(10_000);
    assert_eq!(service_ms(&rig), stood_ms + 10_000);
}

/// No poll is answered in a term in which leadership was offered, whether another node takes it or not.
#[test]
fn once_leadership_was_offered_the_service_clock_stands_still() {
    let mut rig = with_line();
    rig.enter("a");
    rig.turn();
    rig.acknowledge();
    rig.pass_ms(300);
    rig.input(Input::Stop);
    rig.hears(2, "", Vec::new());
    assert!(rig.shard().offer_of_term().is_some());
    let offered_ms = service_ms(&rig);
    for _ in 0..4 {
        rig.pass_ms(1_000);
        rig.hears(2, "", Vec::new());
        rig.acknowledge();
    }
    assert!(rig.is_leader());
    assert_eq!(service_ms(&rig), offered_ms);
}

#[test]
fn what_is_overdue_remains_for_no_time() {
    let mut rig = rig(1);
    rig.enter("a");
    rig.turn();
    rig.answers();
    rig.pass_ms(CLAIM_MS + 5_000);
    rig.enter("a");
    rig.turn();
    let told = status(&mut rig);
    check(&rig, &told);
    assert_eq!(told.expires_in_ms, Some(0));
}

#[derive(Debug, Clone)]
enum Step {
    /// Both clocks go on.
    Pass(u16),
    /// The wall clock is set to so much after (or before) where it began.
    Set(i32),
    /// Nobody is heard: the service clock stands.
    Deaf(u16),
    Restart {
        away_ms: u32,
    },
    Enter(u8),
    Leave(u8),
    Claim(u8),
    Poll {
        token: u8,
        local: bool,
    },
    Info,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..2_000u16).prop_map(Step::Pass),
        1 => any::<i32>().prop_map(Step::Set),
        1 => (0..2_000u16).prop_map(Step::Deaf),
        1 => any::<u32>().prop_map(|away_ms| Step::Restart { away_ms }),
        4 => (0..20u8).prop_map(Step::Enter),
        2 => (1..20u8).prop_map(Step::Leave),
        2 => (1..20u8).prop_map(Step::Claim),
        3 => (1..20u8, any::<bool>()).prop_map(|(token, local)| Step::Poll { token, local }),
        1 => Just(Step::Info),
    ]
}

/// What was shown of a token when it entered: that must stay.
type Entered = std::collections::BTreeMap<u64, u64>;

struct Run {
    rig: Rig,
    entered: Entered,
    /// As it was shown last.
    journal: Vec<JournalEntryReply>,
}

impl Run {
    fn step(&mut self, step: Step) {
        let rig = &mut self.rig;
        match step {
            Step::Pass(ms) => {
                rig.pass_ms(ms.into());
                rig.wall_ms += u64::from(ms);
            }
            Step::Set(ms) => rig.wall_ms = WALL_MS.saturating_add_signed(ms.into()),
            Step::Deaf(ms) => {
                rig.unreachable_ms(ms.into());
                rig.wall_ms += u64::from(ms);
            }
            Step::Restart { away_ms } => {
                let old = std::mem::replace(rig, Rig::new(&[1]));
                *rig = restart(old, away_ms.into());
            }
            Step::Enter(key) => rig.write(enter(&key.to_string())),
            Step::Leave(token) => self.write(token, |line, at| Op::Leave { line, at }),
            Step::Claim(token) => self.write(token, |line, at| Op::Claim { line, at }),
            Step::Poll { token, local } => {
                let consistency = if local {
                    Consistency::Local
                } else {
                    Consistency::Leader
                };
                let at = self.at(token);
                let far = self.rig.now + 1_000_000_000_000;
                self.rig.ask(
                    Ask::Status {
                        token: TokenBy::At(at),
                        consistency,
                        holes: false,
                    },
                    far,
                );
            }
            Step::Info => {
                let far = self.rig.now + 1_000_000_000_000;
                self.rig.ask(Ask::Info(Consistency::Leader), far);
            }
        }
        self.rig.turn();
        self.check();
    }

    fn at(&self, token: u8) -> TokenRef {
        let line = self.rig.lines().get(&name("shop")).unwrap();
        TokenRef {
            incarnation: line.incarnation(),
            lane: 0,
            token: token.into(),
        }
    }

    fn write(&mut self, token: u8, op: impl FnOnce(nowserving_line::LineName, TokenRef) -> Op) {
        let at = self.at(token);
        self.rig.write(op(name("shop"), at));
    }

    fn check(&mut self) {
        for answer in self.rig.answers() {
            match answer {
                Ok(Outcome::Status { status, now, .. }) => {
                    let told = StatusReply::new(&status, now);
                    check(&self.rig, &told);
                    assert!(
                        told.expires_in_ms
                            .is_none_or(|ms| ms <= CLAIM_MS.max(600_000))
                    );
                    if let Some(ms) = told.entered_at_ms {
                        let first = *self.entered.entry(told.token).or_insert(self.rig.wall_ms);
                        assert_eq!(ms, first, "when {} entered", told.token);
                    }
                }
                Ok(Outcome::Reply(ReplyBody::Info(info))) => {
                    assert_eq!(info.board.at_ms, self.rig.wall_ms)
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        for event in std::mem::take(&mut self.rig.events) {
            let at_ms = match event {
                OutEvent::Board(event) => event.board.at_ms,
                OutEvent::Token(event) => event.at_ms,
                OutEvent::Line(event) => event.at_ms,
                OutEvent::Kv(event) => event.at_ms,
            };
            assert_eq!(at_ms, self.rig.wall_ms);
        }
        let line = self.rig.lines().get(&name("shop")).unwrap();
        let all = Journal {
            limit: Some(1_000),
            ..Journal::default()
        };
        let entries = JournalReply::new(line, &all).unwrap().entries;
        let (old, new) = entries.split_at(self.journal.len());
        assert_eq!(old, self.journal);
        for entry in new {
            assert_eq!(entry.at_ms, self.rig.wall_ms);
            let token = entry.token.unwrap();
            assert_eq!(entry.entered_at_ms, self.entered.get(&token).copied());
        }
        self.journal = entries;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the clocks do.
    #[test]
    fn every_time_that_is_told_is_of_the_wall_clock(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut run = Run { rig: rig(3), entered: Entered::new(), journal: Vec::new() };
        run.rig.events.clear();
        for step in steps {
            run.step(step);
        }
    }
}
