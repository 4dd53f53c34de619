//! An operator's kick through a shard with its log: over several entries, up to its deadline, and over a change of
//! leader.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Op, Settings};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::kick::{Kick, KickReply};
use nowserving_shard::clock::Micros;
use nowserving_shard::command::FORMAT;

use crate::request::{Ask, Outcome, ReplyBody};
use crate::requests::age::LATE_MAX_US;
use crate::rig::{Rig, name};

const TIMEOUT_US: Micros = 2_000_000;

fn crowd(count: u32) -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    for peer in [2, 3] {
        rig.entry_formats.insert(peer, FORMAT);
        rig.hears(peer, "", Vec::new());
    }
    rig.write(Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 10_000),
    });
    settle(&mut rig);
    for n in 0..count {
        rig.enter(&n.to_string());
    }
    settle(&mut rig);
    rig.answers();
    rig
}

fn settle(rig: &mut Rig) {
    for _ in 0..4 {
        rig.turn();
        rig.acknowledge();
    }
}

fn kick(rig: &mut Rig, dry_run: bool) {
    let ask = Kick {
        all: true,
        dry_run,
        ..Kick::default()
    };
    let deadline = rig.now + TIMEOUT_US;
    rig.ask(Ask::Kick(Box::new(ask)), deadline);
}

fn answer(rig: &mut Rig) -> Option<Result<KickReply, Code>> {
    let mut answers = rig.answers();
    assert!(answers.len() <= 1, "{answers:?}");
    answers.pop().map(|answer| match answer {
        Ok(Outcome::Reply(ReplyBody::Kicked(reply))) => Ok(*reply),
        Ok(other) => panic!("{other:?}"),
        Err(ApiError { code, .. }) => Err(code),
    })
}

fn live(rig: &Rig) -> u64 {
    let counts = rig.lines().get(&name("shop")).unwrap().counts();
    counts.waiting + counts.admitted
}

#[test]
fn the_answer_is_the_exact_number_after_the_last_entry() {
    let mut rig = crowd(2_000);
    let before = rig.replica().last_index();
    kick(&mut rig, true);
    for _ in 0..3 {
        rig.pass_ms(3);
        rig.turn();
    }
    let counted = answer(&mut rig).unwrap().unwrap();
    assert_eq!((counted.kicked, counted.dry_run), (2_000, true));
    assert_eq!(
        rig.replica().last_index(),
        before,
        "a dry run writes nothing"
    );
    kick(&mut rig, false);
    for _ in 0..4 {
        assert_eq!(answer(&mut rig), None);
        rig.pass_ms(3);
        settle(&mut rig);
        if live(&rig) == 0 {
            break;
        }
    }
    let done = answer(&mut rig).unwrap().unwrap();
    assert_eq!((done.kicked, done.dry_run), (2_000, false));
    assert_eq!(rig.replica().last_index(), before + 2);
}

#[test]
fn at_its_deadline_the_outcome_is_unknown_and_a_second_later_it_ends() {
    let mut rig = crowd(3_000);
    kick(&mut rig, false);
    rig.pass_ms(3);
    settle(&mut rig);
    assert_eq!(live(&rig), 3_000 - 1_024);
    // Nobody acknowledges any more.
    rig.now += TIMEOUT_US;
    rig.turn();
    assert_eq!(answer(&mut rig), Some(Err(Code::OutcomeUnknown)));
    assert!(
        rig.shard().pending.owes_answers(),
        "the sender may repeat it"
    );
    rig.now += LATE_MAX_US;
    rig.turn();
    assert!(!rig.shard().pending.owes_answers());
    settle(&mut rig);
    rig.pass_ms(3);
    settle(&mut rig);
    let ended_late = 3_000 - live(&rig);
    assert!(ended_late <= 2 * 1_024, "what was in flight, and no more");
}

#[test]
fn with_the_lead_a_kick_is_lost() {
    let mut rig = crowd(2_000);
    kick(&mut rig, false);
    rig.pass_ms(3);
    settle(&mut rig);
    let (term, last) = (rig.replica().term(), rig.replica().last_index());
    let committed = rig.replica().committed();
    rig.overwrite(term + 1, last + 1, committed);
    assert_eq!(answer(&mut rig), Some(Err(Code::OutcomeUnknown)));
    assert!(!rig.shard().pending.owes_answers());
}

#[test]
fn a_dry_run_that_takes_longer_than_its_request_is_answered_to_a_repetition() {
    let mut rig = crowd(3_000);
    kick(&mut rig, true);
    rig.now += TIMEOUT_US;
    rig.turn();
    assert_eq!(answer(&mut rig), Some(Err(Code::Unavailable)));
    for _ in 0..3 {
        rig.pass_ms(3);
        rig.turn();
    }
    kick(&mut rig, true);
    rig.turn();
    assert_eq!(answer(&mut rig).unwrap().unwrap().kicked, 3_000);
}

#[test]
fn the_count_of_a_dry_run_is_not_answered_without_a_lease() {
    let mut rig = crowd(3_000);
    let ask = Kick {
        all: true,
        dry_run: true,
        ..Kick::default()
    };
    rig.ask(Ask::Kick(Box::new(ask)), rig.now + 1_000_000_000_000);
    // Later than any lease, and nobody has acknowledged anything since.
    rig.now += 50_000_000;
    for _ in 0..4 {
        rig.turn();
        let answer = answer(&mut rig);
        assert!(!matches!(answer, Some(Ok(_))), "{answer:?}");
    }
}
