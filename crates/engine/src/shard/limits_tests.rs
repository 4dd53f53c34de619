//! Rate limits through a shard with its log: checks write nothing, checkpoints do, and a new leader goes on from them.
#![allow(clippy::unwrap_used)]

use nowserving_limit::{Algorithm, Limit, LimitParts, Unit, WhenFull, combine, key};
use nowserving_protocol::error::Code;
use nowserving_shard::command::FORMAT;
use nowserving_shard::limits::{ApplyRules, LimitAsk, LimitCommand, ResetCounter, verdicts_of};
use nowserving_shard::requests::{Origin, RequestId};
use raft::eraftpb::MessageType;

use crate::delivery::Via;
use crate::io::Input;
use crate::request::{Ask, LimitRequest, Outcome, ReplyBody};
use crate::rig::{Rig, message, name};

const TIMEOUT_US: u64 = 2_000_000;

fn ask() -> LimitAsk {
    let limit = Limit::new(LimitParts {
        algorithm: Algorithm::SlidingWindowCounter,
        ..Limit::fixed_window(5, Unit::Hour).parts().clone()
    })
    .unwrap();
    let entries = [("ip", "a")].into_iter();
    let key = key::encode(limit.algorithm(), limit.unit(), "shop", entries).unwrap();
    LimitAsk {
        limit,
        key: key.into(),
        hits: 1,
        max_delay_us: None,
        when_full: WhenFull::Allow,
        is_shadow: false,
        is_quota: false,
    }
}

fn leader() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    for peer in [2, 3] {
        rig.entry_formats.insert(peer, FORMAT);
        rig.hears(peer, "", Vec::new());
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

fn request(rig: &mut Rig, request: LimitRequest) -> Result<Outcome, Code> {
    let deadline = rig.now + TIMEOUT_US;
    rig.ask(Ask::Limit(Box::new(request)), deadline);
    settle(rig);
    let mut answers = rig.answers();
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0).map_err(|error| error.code)
}

fn allowed(outcome: Result<Outcome, Code>) -> bool {
    match outcome {
        Ok(Outcome::LimitPart(part)) => combine(&verdicts_of(*part).collect::<Vec<_>>()).allowed,
        other => panic!("{other:?}"),
    }
}

fn passed(rig: &mut Rig, checks: usize) -> usize {
    let check = || LimitRequest::Check {
        asks: vec![ask()],
        dry_run: false,
        hold: None,
    };
    (0..checks)
        .filter(|_| allowed(request(rig, check())))
        .count()
}

fn reset_of(key: Box<[u8]>) -> LimitCommand {
    LimitCommand::Reset(ResetCounter {
        domain: name("shop"),
        key,
        descriptor: "ip=127.0.0.1".into(),
        by: "ann".into(),
        reason: String::new(),
    })
}

#[test]
fn checks_write_nothing_and_a_checkpoint_follows() {
    let mut rig = leader();
    let before = rig.replica().last_index();
    let deadline = rig.now + TIMEOUT_US;
    let dry_run = LimitRequest::Check {
        asks: vec![ask()],
        dry_run: true,
        hold: None,
    };
    rig.ask(Ask::Limit(Box::new(dry_run)), deadline);
    rig.turn();
    assert_eq!(rig.answers().len(), 1, "under the lease, at once");
    assert_eq!(rig.replica().last_index(), before);
    assert_eq!(passed(&mut rig, 7), 5);
    for _ in 0..2 {
        rig.pass_ms(200);
        settle(&mut rig);
    }
    assert_eq!(rig.state().limits().saved().len(), 1);
    let after = rig.replica().last_index();
    assert!(after <= before + 2, "{before} {after}");
    for _ in 0..5 {
        rig.pass_ms(200);
        settle(&mut rig);
    }
    assert_eq!(rig.replica().last_index(), after, "nothing changed");
}

#[test]
fn a_new_leader_forgets_at_most_what_the_last_checkpoint_lacks() {
    let mut rig = leader();
    assert_eq!(passed(&mut rig, 1), 1);
    for _ in 0..2 {
        rig.pass_ms(200);
        settle(&mut rig);
    }
    assert_eq!(passed(&mut rig, 2), 2);
    // It loses the lead before the next checkpoint, and gets it again.
    let (term, last) = (rig.replica().term(), rig.replica().last_index());
    let committed = rig.replica().committed();
    rig.overwrite(term + 1, last + 1, committed + 1);
    assert!(rig.shard().leader_state.is_none());
    rig.lead();
    settle(&mut rig);
    let again = passed(&mut rig, 9);
    assert!(
        (2..=4).contains(&again),
        "{again}: the first is in the checkpoint"
    );
}

/// It would be in no checkpoint.
#[test]
fn nothing_is_counted_once_leadership_is_offered() {
    let mut rig = leader();
    assert_eq!(passed(&mut rig, 2), 2);
    rig.input(crate::io::Input::Stop);
    rig.pass_ms(300);
    rig.hears(2, "", Vec::new());
    rig.turn();
    assert!(rig.shard().offer_of_term().is_some());
    rig.acknowledge();
    assert_eq!(rig.state().limits().saved().len(), 1, "written first");
    rig.answers();
    let check = LimitRequest::Check {
        asks: vec![ask()],
        dry_run: false,
        hold: None,
    };
    let deadline = rig.now + TIMEOUT_US;
    rig.ask(Ask::Limit(Box::new(check)), deadline);
    rig.turn();
    rig.acknowledge();
    rig.turn();
    assert!(rig.answers().iter().all(Result::is_err));
}

#[test]
fn hits_on_exact_limits_are_in_the_log_before_they_are_answered() {
    let mut rig = leader();
    let before = rig.replica().last_index();
    let exact = |dry_run| LimitRequest::Exact {
        asks: vec![ask()],
        dry_run,
    };
    let deadline = rig.now + TIMEOUT_US;
    rig.ask(Ask::Limit(Box::new(exact(false))), deadline);
    rig.turn();
    assert!(rig.answers().is_empty(), "not yet committed");
    settle(&mut rig);
    assert!(allowed(Ok(rig.answers().remove(0).unwrap())));
    assert_eq!(rig.replica().last_index(), before + 1);
    for _ in 0..4 {
        assert!(allowed(request(&mut rig, exact(false))));
    }
    assert!(!allowed(request(&mut rig, exact(true))));
    assert!(!allowed(request(&mut rig, exact(false))));
    assert_eq!(rig.state().limits().saved().len(), 1);
}

fn remaining(answer: &Outcome) -> Vec<u32> {
    match answer {
        Outcome::LimitPart(part) => part.verdicts.iter().map(|it| it.remaining).collect(),
        other => panic!("{other:?}"),
    }
}

/// It is neither told that its hits have counted, nor refused as they still count.
#[test]
fn a_copy_of_exact_hits_waits_for_their_give_back_and_counts_anew() {
    let mut rig = leader();
    let send = |rig: &mut Rig, key, request| {
        let far = rig.now + 1_000_000_000;
        let ask = Ask::Limit(Box::new(request));
        let (mut request, delivery) = rig.message(ask, far, Via::Forwarded);
        let origin = Origin::Client;
        request.id = Some(RequestId { key, origin });
        rig.input(Input::Request { request, delivery });
        rig.turn();
    };
    let exact = || LimitRequest::Exact {
        asks: vec![LimitAsk { hits: 5, ..ask() }],
        dry_run: false,
    };
    let back = || LimitRequest::GiveBack {
        name: 7,
        exact: true,
    };
    send(&mut rig, 7, exact());
    settle(&mut rig);
    assert!(allowed(Ok(rig.answers().remove(0).unwrap())));
    send(&mut rig, 8, back());
    send(&mut rig, 7, exact());
    assert!(rig.answers().is_empty(), "not yet applied");
    settle(&mut rig);
    let [Ok(given), Ok(copy)] = &rig.answers()[..] else {
        panic!("not both are answered");
    };
    assert_eq!((remaining(given), remaining(copy)), (vec![5], vec![0]));
    // A late copy of the give-back, and the one of the second try.
    for (key, left) in [(8, vec![]), (9, vec![5])] {
        send(&mut rig, key, back());
        settle(&mut rig);
        assert_eq!(remaining(&rig.answers().remove(0).unwrap()), left, "{key}");
    }
}

/// A caller that is kept out and tries again fills neither the log nor the memory of requests.
#[test]
fn exact_hits_that_are_refused_are_not_in_the_log() {
    let mut rig = leader();
    let exact = || LimitRequest::Exact {
        asks: vec![ask()],
        dry_run: false,
    };
    for _ in 0..5 {
        assert!(allowed(request(&mut rig, exact())));
    }
    let (last, remembered) = (rig.replica().last_index(), rig.state().requests().len());
    for _ in 0..20 {
        let deadline = rig.now + TIMEOUT_US;
        rig.ask(Ask::Limit(Box::new(exact())), deadline);
        rig.turn();
        assert!(!allowed(Ok(rig.answers().remove(0).unwrap())), "at once");
    }
    assert_eq!(rig.replica().last_index(), last);
    assert_eq!(rig.state().requests().len(), remembered);
    let stats = request(&mut rig, LimitRequest::Stats);
    assert!(
        matches!(stats, Ok(Outcome::Reply(ReplyBody::LimitStats(it))) if (it.checks, it.refused) == (25, 20))
    );
}

/// Windows go by the wall clock; other counters need no stamp once they are idle.
#[test]
fn the_clock_is_stamped_while_counters_are_in_use_that_go_by_it() {
    let stamps = |algorithm: Algorithm, unit: Unit, seconds: u64| {
        let mut rig = leader();
        let limit = Limit::new(LimitParts {
            algorithm,
            ..Limit::fixed_window(5, unit).parts().clone()
        })
        .unwrap();
        let entries = [("ip", "a")].into_iter();
        let key = key::encode(limit.algorithm(), unit, "shop", entries).unwrap();
        let ask = LimitAsk {
            limit,
            key: key.into(),
            ..ask()
        };
        let asks = vec![ask];
        let dry_run = false;
        assert!(allowed(request(
            &mut rig,
            LimitRequest::Check {
                asks,
                dry_run,
                hold: None,
            }
        )));
        rig.pass_ms(250);
        settle(&mut rig);
        assert_eq!(rig.state().limits().saved().len(), 1);
        let before = rig.replica().last_index();
        for _ in 0..seconds * 2 {
            rig.pass_ms(500);
            settle(&mut rig);
        }
        rig.replica().last_index() - before
    };
    assert_eq!(stamps(Algorithm::FixedWindow, Unit::Day, 12), 0);
    assert_eq!(stamps(Algorithm::FixedWindow, Unit::Hour, 12), 0);
    assert_eq!(stamps(Algorithm::SlidingWindowLog, Unit::Hour, 12), 2);
    assert!(stamps(Algorithm::SlidingWindowLog, Unit::Second, 22) <= 1);
}

/// Else a crash of the next leader would set the clock back to the last entry, however old.
#[test]
fn a_new_leader_stamps_the_clock_for_counters_that_it_did_not_count() {
    let mut rig = leader();
    let limit = Limit::new(LimitParts {
        algorithm: Algorithm::SlidingWindowLog,
        ..Limit::fixed_window(5, Unit::Hour).parts().clone()
    })
    .unwrap();
    let entries = [("ip", "a")].into_iter();
    let key = key::encode(limit.algorithm(), Unit::Hour, "shop", entries).unwrap();
    let counter = LimitAsk {
        limit,
        key: key.into(),
        ..ask()
    };
    let check = LimitRequest::Check {
        asks: vec![counter],
        dry_run: false,
        hold: None,
    };
    assert!(allowed(request(&mut rig, check)));
    rig.pass_ms(250);
    settle(&mut rig);
    assert_eq!(rig.state().limits().saved().len(), 1);
    let (term, last) = (rig.replica().term(), rig.replica().last_index());
    let committed = rig.replica().committed();
    rig.overwrite(term + 1, last + 1, committed + 1);
    rig.lead();
    settle(&mut rig);
    let stamps = |rig: &mut Rig| {
        let before = rig.replica().last_index();
        for _ in 0..24 {
            rig.pass_ms(500);
            settle(rig);
        }
        rig.replica().last_index() - before
    };
    assert_eq!(stamps(&mut rig), 2);
    rig.pass_ms(3_600_000);
    rig.lead();
    assert!(stamps(&mut rig) <= 1, "it is idle");
}

/// Its log is empty, so the heartbeat tells it that nothing is committed.
#[test]
fn a_follower_that_has_only_got_a_heartbeat_tells_no_rules() {
    let mut rig = Rig::new(&[1, 2, 3]);
    let (term, next) = (5, rig.replica().last_index() + 1);
    for _ in 0..3 {
        rig.step(message(MessageType::MsgHeartbeat, 2, term));
        rig.pass_ms(200);
        rig.turn();
    }
    assert_eq!(rig.replica().leader(), Some(2));
    assert_eq!(rig.replica().applied(), rig.replica().committed());
    assert!(rig.rules.is_empty(), "it may lack any rules");
    rig.overwrite(term, next, next - 1);
    assert!(rig.rules.is_empty(), "not yet committed");
    let mut beat = message(MessageType::MsgHeartbeat, 2, term);
    beat.commit = next;
    rig.step(beat);
    assert_eq!(rig.rules.len(), 1, "an entry of the leader's term");
}

#[test]
fn rules_are_told_and_a_reset_counts_anew() {
    let mut rig = leader();
    let apply = LimitCommand::Apply(ApplyRules {
        domain: name("shop"),
        text: "domain: shop".into(),
        if_version: None,
        by: String::new(),
        reason: String::new(),
    });
    let applied = request(&mut rig, LimitRequest::Command(apply));
    let domain = name("shop");
    let Ok(Outcome::Reply(ReplyBody::LimitRules(rules))) = applied else {
        panic!("{applied:?}");
    };
    assert_eq!((rules.domain, rules.version), (domain, 1));
    assert_eq!(rig.state().limits().rules().version(), 1);
    assert_eq!(passed(&mut rig, 9), 5);
    let reset = reset_of(ask().key);
    assert!(request(&mut rig, LimitRequest::Command(reset)).is_ok());
    assert_eq!(passed(&mut rig, 9), 5);
    let changes = |rig: &mut Rig, domain: Option<&str>| {
        let domain = domain.map(name);
        let Ok(Outcome::Reply(ReplyBody::LimitChanges(reply))) =
            request(rig, LimitRequest::Changes { domain })
        else {
            panic!("no changes")
        };
        let said = reply.changes.into_iter();
        said.map(|it| (it.op, it.version, it.descriptor, it.by))
            .collect::<Vec<_>>()
    };
    let applied = ("apply".into(), Some(1), None, None);
    let descriptor = Some("ip=127.0.0.1".into());
    let reset = ("reset".into(), None, descriptor, Some("ann".into()));
    assert_eq!(changes(&mut rig, Some("shop")), [applied, reset]);
    assert_eq!(changes(&mut rig, None).len(), 2);
    assert_eq!(changes(&mut rig, Some("other")), []);
    let stats = request(&mut rig, LimitRequest::Stats);
    let Ok(Outcome::Reply(ReplyBody::LimitStats(stats))) = stats else {
        panic!("{stats:?}")
    };
    assert_eq!((stats.counters, stats.checks, stats.refused), (1, 18, 8));
}

/// Else each checkpoint would wait for it to be applied.
#[test]
fn a_reset_that_expires_unwritten_keeps_no_checkpoint_out() {
    let mut rig = leader();
    assert_eq!(passed(&mut rig, 1), 1);
    let reset = reset_of(ask().key);
    let term = rig.replica().term();
    let (deadline, last) = (rig.now + TIMEOUT_US, rig.replica().last_index());
    rig.ask(Ask::Limit(Box::new(LimitRequest::Command(reset))), deadline);
    // In the same turn.
    rig.full_disks.extend([2, 3]);
    for peer in [2, 3] {
        let frame = rig.frame(peer, "", Vec::new());
        rig.input(crate::io::Input::Frame(Box::new(frame)));
    }
    rig.turn();
    assert!(rig.answers().is_empty(), "it waits for room");
    while rig.now < deadline {
        rig.pass_ms(200);
        settle(&mut rig);
    }
    assert!(rig.answers().remove(0).is_err());
    assert_eq!(rig.replica().last_index(), last);
    rig.peer_disk(2, false);
    rig.peer_disk(3, false);
    assert_eq!(passed(&mut rig, 1), 1);
    for _ in 0..3 {
        rig.pass_ms(200);
        settle(&mut rig);
    }
    assert_eq!((rig.replica().term(), rig.is_leader()), (term, true));
    let stats = request(&mut rig, LimitRequest::Stats);
    let Ok(Outcome::Reply(ReplyBody::LimitStats(stats))) = stats else {
        panic!("{stats:?}")
    };
    assert_eq!(stats.changed, 0, "all is in a checkpoint");
}
