//! A shard with its log and peers played by hand: who gets which answer.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::{Op, Settings, TokenBy, TokenRef};
use nowserving_log::{Crash, LogStore as _};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::Consistency;
use nowserving_replica::SnapshotMeta;
use nowserving_shard::command::FORMAT;
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::snapshot;
use raft::eraftpb::MessageType;

use crate::delivery::{LeaderTime, ShardDelivery, Via};
use crate::io::{ExitReason, ForwardResult, Input, RelayedAnswer};
use crate::request::{Ask, Outcome, ReplyBody};
use crate::rig::name;
use crate::rig::{Rig, SHARD, START, enter, message};

fn create(rig: &mut Rig, seats: u32, queue_limit: u32) {
    let (line, settings) = (name("shop"), Settings::new(seats, queue_limit));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    assert!(rig.answers().iter().all(Result::is_ok));
}

/// A leader of one, with a line.
fn alone() -> Rig {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, 1, 1_000_000);
    rig
}

/// A leader of three, with a line.
fn of_three() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    create(&mut rig, 1, 1_000_000);
    rig
}

const TIMEOUT_MS: u64 = 8_000;

/// The same, with these keys in line, which are idle after a while.
fn of_three_with_timeout(keys: &[&str]) -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    let mut settings = Settings::new(1, 10);
    settings.waiting_idle_timeout_ms = TIMEOUT_MS;
    let line = name("shop");
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    for key in keys {
        rig.enter(key);
    }
    rig.turn();
    rig.acknowledge();
    rig.answers();
    rig
}

#[test]
fn everybody_gets_the_answer_to_their_own_operation() {
    let mut rig = alone();
    rig.enter("a");
    rig.enter("b");
    rig.enter("a");
    assert!(rig.answers().is_empty(), "before it is in the log");
    rig.turn();
    assert_eq!(rig.numbers(), [Ok(1), Ok(2), Ok(1)]);
    let line = name("none");
    rig.write(Op::Delete {
        line,
        force: true,
        incarnation: None,
    });
    rig.turn();
    assert_eq!(rig.numbers(), [Err(Code::LineNotFound)]);
}

#[test]
fn what_came_in_one_turn_is_one_entry() {
    let mut rig = alone();
    let before = rig.replica().last_index();
    for n in 0..100 {
        rig.enter(&n.to_string());
    }
    rig.turn();
    assert_eq!(rig.replica().last_index(), before + 1);
    assert_eq!(rig.numbers().len(), 100);
}

#[test]
fn nobody_is_answered_before_a_quorum_has_it() {
    let mut rig = of_three();
    rig.enter("a");
    rig.turn();
    assert!(rig.answers().is_empty());
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Ok(1)]);
}

#[test]
fn who_was_overwritten_hears_that_nothing_happened() {
    let mut rig = of_three();
    rig.enter("a");
    rig.turn();
    let (term, index) = (rig.replica().term(), rig.replica().last_index());
    rig.overwrite(term + 1, index, index - 1);
    assert!(rig.answers().is_empty(), "it could still be committed");
    let mut beat = message(MessageType::MsgHeartbeat, 2, term + 1);
    beat.commit = index;
    rig.step(beat);
    assert_eq!(rig.numbers(), [Err(Code::NotLeader)]);
    assert_eq!(rig.lines().get(&name("shop")).unwrap().counts().issued, 0);
}

#[test]
fn who_was_taken_over_by_the_next_leader_hears_what_happened() {
    let mut rig = of_three();
    rig.enter("a");
    rig.turn();
    let (term, index) = (rig.replica().term(), rig.replica().last_index());
    rig.overwrite(term + 1, index + 1, index + 1);
    assert!(!rig.is_leader());
    assert_eq!(rig.numbers(), [Ok(1)]);
}

/// The indexes of two terms of one leader overlap, and the later one is the lower.
#[test]
fn a_leader_that_comes_back_at_lower_indexes_mixes_nobody_up() {
    let mut rig = of_three();
    for n in 0..6 {
        rig.enter(&format!("old-{n}"));
        rig.turn();
    }
    let (term, last) = (rig.replica().term(), rig.replica().last_index());
    let first = last - 5;
    rig.overwrite(term + 1, first, first - 1);
    assert_eq!(rig.replica().last_index(), first);
    rig.lead();
    for n in 0..6 {
        rig.enter(&format!("new-{n}"));
        rig.turn();
        rig.acknowledge();
    }
    let answers = rig.numbers();
    let refused = answers.iter().filter(|a| **a == Err(Code::NotLeader));
    assert_eq!(refused.count(), 6, "{answers:?}");
    let numbers: Vec<_> = answers.iter().filter_map(|a| a.as_ref().ok()).collect();
    assert_eq!(numbers, [&1, &2, &3, &4, &5, &6]);
    assert!(!rig.shard().pending.owes_answers());
}

#[test]
fn what_is_not_in_the_log_yet_is_refused_with_the_lead() {
    let mut rig = of_three();
    rig.enter("a");
    let term = rig.replica().term();
    rig.step(message(MessageType::MsgHeartbeat, 2, term + 1));
    assert_eq!(rig.numbers(), [Err(Code::NotLeader)]);
}

/// A node unsubscribes from the forward subjects when it stops leading. It refuses requests that had arrived, and
/// the forwarding node tries again.
#[test]
fn a_poll_that_was_passed_on_to_a_node_that_leads_no_more_is_refused() {
    let mut rig = of_three();
    let term = rig.replica().term();
    rig.step(message(MessageType::MsgHeartbeat, 2, term + 1));
    rig.turn();
    assert!(rig.answers().is_empty());
    rig.ask(Ask::Find(b"a"[..].into()), rig.now + 1_000_000);
    rig.turn();
    let [Err(error)] = &rig.answers()[..] else {
        panic!("not one error");
    };
    assert_eq!((error.code, error.leader), (Code::NotLeader, Some(2)));
}

#[test]
fn at_the_deadline_the_outcome_is_unknown_once_it_is_in_the_log_and_nothing_before() {
    let mut rig = of_three();
    let soon = rig.now + 30_000;
    rig.request(Ask::Write(enter("in-log")), soon, Via::Plain);
    rig.turn();
    rig.request(Ask::Write(enter("queued")), soon, Via::Plain);
    rig.now = soon;
    rig.turn();
    assert_eq!(
        rig.numbers(),
        [Err(Code::Unavailable), Err(Code::OutcomeUnknown)]
    );
    // What comes of it later is told to nobody; and what was refused does not happen.
    rig.turn();
    rig.acknowledge();
    assert!(rig.answers().is_empty());
    assert_eq!(rig.lines().get(&name("shop")).unwrap().counts().issued, 1);
}

#[test]
fn what_is_late_already_does_not_happen() {
    let mut rig = alone();
    let now = rig.now;
    rig.request(Ask::Write(enter("late")), now, Via::Plain);
    assert_eq!(rig.numbers(), [Err(Code::Unavailable)]);
    rig.turn();
    assert_eq!(rig.lines().get(&name("shop")).unwrap().counts().issued, 0);
}

#[test]
fn a_full_queue_refuses_at_once() {
    let mut rig = alone();
    for n in 0..8_192 {
        rig.enter(&n.to_string());
    }
    assert!(rig.answers().is_empty());
    let far = rig.now + 1_000_000_000;
    rig.request(Ask::Write(enter("one too many")), far, Via::Plain);
    assert_eq!(rig.numbers(), [Err(Code::Overloaded)]);
    rig.enter("one too many, forwarded");
    assert_eq!(rig.numbers(), [Err(Code::OutcomeUnknown)]);
    rig.turn();
    assert_eq!(rig.numbers().len(), 8_192);
}

#[test]
fn a_node_that_ends_answers_everybody() {
    let mut rig = of_three();
    rig.enter("in-log");
    rig.turn();
    rig.enter("queued");
    rig.input(Input::Stop);
    rig.turn();
    assert!(rig.answers().is_empty(), "a quorum may still answer");
    rig.now += 6_000_000;
    rig.turn();
    assert_eq!(
        rig.numbers(),
        [Err(Code::OutcomeUnknown), Err(Code::OutcomeUnknown)]
    );
    assert!(!rig.shard().pending.owes_answers());
    // What its subscriptions still bring goes to the next leader.
    let far = rig.now + 10_000_000;
    let draining = Via::Shard(ShardDelivery::Draining);
    rig.request(Ask::Write(enter("late")), far, draining);
    let forwarded = rig.forwards.pop().unwrap();
    rig.now += 600_000;
    rig.turn();
    assert_eq!(rig.exit, None, "it waits for the leader's answer");
    let answer = RelayedAnswer {
        headers: Vec::new(),
        payload: Vec::new().into(),
    };
    let result = ForwardResult::Answered {
        error: None,
        answer,
    };
    let id = forwarded.id;
    rig.input(Input::Forwarded { id, result });
    rig.turn();
    assert_eq!(rig.exit, Some(ExitReason::Stopped));
    rig.request(Ask::Write(enter("too late")), far, Via::Plain);
    assert_eq!(rig.numbers(), [Err(Code::Unavailable)]);
}

/// L4: no peer may be able to take its shards for seconds, and its service clock runs on meanwhile.
#[test]
fn a_node_that_is_to_stop_and_still_leads_ends_expired_tokens() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    let mut settings = Settings::new(1, 10);
    settings.waiting_idle_timeout_ms = 3_000;
    let line = name("shop");
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    rig.enter("a");
    rig.enter("b");
    rig.turn();
    rig.acknowledge();
    rig.answers();
    rig.pass_ms(3_100);
    // It waits for this answer.
    rig.enter("c");
    rig.input(Input::Stop);
    rig.turn();
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Ok(3)]);
    let line = rig.lines().get(&name("shop")).unwrap();
    assert!(line.live(0, 2).is_none());
    assert!(line.live(0, 3).is_some());
}

/// It would serve nobody until that peer has fetched a snapshot.
#[test]
fn a_node_that_is_to_stop_does_not_offer_its_shards_to_a_peer_that_lacks_much() {
    let mut rig = of_three();
    for n in 0..70 {
        rig.enter(&n.to_string());
        rig.turn();
        rig.acknowledge();
    }
    rig.peer_disk(2, true);
    rig.input(Input::Stop);
    rig.pass_ms(300);
    rig.hears(3, "", Vec::new());
    assert_eq!(rig.shard().offer_of_term(), None);
    assert!(rig.shard().serves_as_leader());
    let mut have = message(MessageType::MsgAppendResponse, 3, rig.replica().term());
    have.index = rig.replica().last_index();
    rig.hears(3, "", vec![have]);
    rig.pass_ms(300);
    rig.hears(3, "", Vec::new());
    let offered_at = rig.shard().offer_of_term().map(|it| it.since);
    assert_eq!(offered_at, Some(rig.now));
}

#[test]
fn a_full_line_costs_no_entry_once_there_is_a_lease() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    create(&mut rig, 1, 0);
    rig.enter("a");
    rig.turn();
    assert_eq!(rig.numbers(), [Ok(1)]);
    let before = rig.replica().last_index();
    rig.enter("b");
    assert_eq!(rig.numbers(), [Err(Code::LineFull)]);
    rig.enter("a");
    rig.turn();
    assert_eq!(rig.numbers(), [Ok(1)], "the key comes first");
    assert_eq!(rig.replica().last_index(), before + 1);
}

#[test]
fn a_read_without_lease_waits_for_a_quorum_and_with_one_asks_nobody() {
    let mut rig = of_three();
    rig.enter("a");
    rig.turn();
    rig.acknowledge();
    rig.answers();
    let at = TokenRef {
        incarnation: rig.lines().get(&name("shop")).unwrap().incarnation(),
        lane: 0,
        token: 1,
    };
    let status = |consistency| Ask::Status {
        token: TokenBy::At(at),
        consistency,
        holes: false,
    };
    let far = rig.now + 1_000_000_000_000;
    rig.ask(status(Consistency::Local), far);
    assert_eq!(rig.numbers(), [Ok(1)]);
    // Later than any lease, and no turn since.
    rig.now += 50_000_000;
    rig.ask(status(Consistency::Leader), far);
    rig.sent.clear();
    rig.turn();
    assert!(rig.answers().is_empty());
    rig.confirm();
    assert_eq!(rig.numbers(), [Ok(1)]);
    // That round gave a lease.
    rig.now += 20_000;
    rig.turn();
    rig.sent.clear();
    rig.ask(status(Consistency::Leader), far);
    assert_eq!(rig.numbers(), [Ok(1)]);
    rig.turn();
    assert!(rig.sent.is_empty(), "sent something for a poll");
    rig.ask(status(Consistency::Linearizable), far);
    assert!(rig.answers().is_empty());
    rig.turn();
    rig.confirm();
    assert_eq!(rig.numbers(), [Ok(1)]);
}

/// S12: were this leader lost now, the next one would know nothing of such a poll.
#[test]
fn a_poll_after_a_long_pause_is_answered_once_a_quorum_has_it() {
    let mut rig = of_three_with_timeout(&["a", "b"]);
    let at = TokenRef {
        incarnation: rig.lines().get(&name("shop")).unwrap().incarnation(),
        lane: 0,
        token: 2,
    };
    let status_of = |token| Ask::Status {
        token,
        consistency: Consistency::Leader,
        holes: false,
    };
    let status = || status_of(TokenBy::At(at));
    let far = rig.now + 1_000_000_000_000;
    rig.pass_ms(3_100);
    let before = rig.replica().last_index();
    rig.ask(status_of(TokenBy::Key(b"b"[..].into())), far);
    rig.ask(status(), far);
    rig.turn();
    assert_eq!(rig.numbers(), []);
    assert_eq!(rig.replica().last_index(), before + 1);
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Ok(2), Ok(2)]);
    rig.ask(status(), far);
    assert_eq!(rig.numbers(), [Ok(2)]);
    // In the log, and the lead is lost: another node may answer it.
    rig.pass_ms(3_100);
    rig.ask(status(), far);
    rig.turn();
    let (term, index) = (rig.replica().term() + 1, rig.replica().last_index());
    rig.overwrite(term, index, index);
    rig.turn();
    assert!(rig.replies.iter().all(Result::is_err));
    assert_eq!(rig.forwards.len() + rig.replies.len(), 1);
}

/// S12, of many at once: one command of the log for all that need one.
#[test]
fn many_that_are_seen_after_a_long_pause_are_answered_once_a_quorum_has_them() {
    let mut rig = of_three_with_timeout(&["a", "b", "c", "d", "e"]);
    let incarnation = rig.lines().get(&name("shop")).unwrap().incarnation();
    let at = |token, incarnation| {
        let lane = 0;
        let at = TokenRef {
            incarnation,
            lane,
            token,
        };
        Some(TokenBy::At(at))
    };
    let line = name("shop");
    let leave = |at| Op::Leave { line, at };
    if let Some(TokenBy::At(third)) = at(3, incarnation) {
        rig.write(leave(third));
    }
    rig.turn();
    rig.acknowledge();
    rig.answers();
    // The first holds a seat, the third has left, the others are of no token of the line.
    let tokens = vec![
        at(1, incarnation),
        at(2, incarnation),
        at(3, incarnation),
        None,
        at(4, incarnation),
        at(5, incarnation + 1),
        at(9, incarnation),
    ];
    let far = rig.now + 1_000_000_000_000;
    rig.pass_ms(3_100);
    let before = rig.replica().last_index();
    rig.ask(Ask::Seen(tokens.clone()), far);
    rig.turn();
    assert!(rig.answers().is_empty(), "the next leader would not know");
    assert_eq!(rig.replica().last_index(), before + 1);
    rig.acknowledge();
    let told = |rig: &mut Rig| match &rig.answers()[..] {
        [Ok(Outcome::Reply(ReplyBody::Seen(it)))] => {
            assert_eq!(it.poll_after_ms, TIMEOUT_MS / 3);
            (it.seen, it.gone.clone(), it.invalid.clone())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&mut rig), (3, vec![2], vec![3, 5, 6]));
    // At once now, and without the log.
    rig.ask(Ask::Seen(tokens), far);
    assert_eq!(told(&mut rig), (3, vec![2], vec![3, 5, 6]));
    assert_eq!(rig.replica().last_index(), before + 1);
}

/// S17, over a power loss.
#[test]
fn snapshot_and_the_rest_of_the_log_make_the_same_state_as_the_whole_log() {
    let mut rig = alone();
    let churn = |rig: &mut Rig, from: u32| {
        for n in from..from + 40 {
            rig.enter(&n.to_string());
            rig.turn();
            if n % 3 == 0
                && let Some(Ok(Outcome::Status { status, .. })) = rig.answers().pop()
            {
                let (line, at) = (name("shop"), status.at);
                rig.write(Op::Leave { line, at });
                rig.turn();
            }
        }
    };
    churn(&mut rig, 0);
    let index = rig.replica().applied();
    let header = snapshot::Header {
        cluster: "test".into(),
        shard: 0,
        index,
        term: rig.replica().term_at(index).unwrap(),
        voters: vec![1],
        ..snapshot::Header::default()
    };
    let bytes = snapshot::encode(&header, rig.state());
    churn(&mut rig, 1_000);
    let expected = snapshot::encode(&header, rig.state());
    let log = Arc::clone(&rig.log);
    log.crash(Crash::default());

    let replay = |snapshot| {
        let mut again = Rig::open(&[1], snapshot, Arc::clone(&log));
        again.lead();
        assert!(snapshot::encode(&header, again.state()) == expected);
        again.replica().applied()
    };
    let snapshot = || {
        let (header, state) = snapshot::decode(bytes.clone().into(), FORMAT, "test", 0).unwrap();
        let meta = SnapshotMeta {
            index: header.index,
            term: header.term,
            ..SnapshotMeta::default()
        };
        Some((meta, state))
    };
    replay(None);
    replay(snapshot());
    log.compact(0, index).unwrap();
    assert!(replay(snapshot()) > index);
}

#[test]
fn a_second_of_the_clock_is_hashed_once_and_a_replayed_log_not_each_second_of_it() {
    let mut rig = Rig::new(&[1, 2]);
    rig.lead();
    create(&mut rig, 1, 1_000_000);
    rig.state_hashes.clear();
    let second = |rig: &mut Rig, key: u32| {
        rig.pass_ms(1_000);
        rig.enter(&key.to_string());
        rig.turn();
        rig.acknowledge();
        std::mem::take(&mut rig.state_hashes)
    };
    let mut live = Vec::new();
    for key in 0..20 {
        let hashes = second(&mut rig, key);
        assert_eq!(hashes.len(), 1);
        live.extend(hashes);
    }
    rig.log.crash(Crash::default());

    let mut again = Rig::open(&[1, 2], None, Arc::clone(&rig.log));
    again.lead();
    assert!(again.replica().applied() > rig.replica().applied());
    let replayed = std::mem::take(&mut again.state_hashes);
    assert!((1..=2).contains(&replayed.len()), "{replayed:?}");
    let at = |index| live.iter().find(|hash| hash.index == index);
    assert!(
        replayed
            .iter()
            .all(|hash| at(hash.index).is_none_or(|live| live == hash))
    );
    assert_eq!(second(&mut again, 20).len(), 1);
}

/// What becomes of a write on a shard's subject if this node leads no more when its turn comes.
#[test]
fn a_write_that_another_node_may_have_is_passed_on_or_in_doubt() {
    let mut rig = of_three();
    let far = rig.now + 10_000_000;
    rig.request(Ask::Write(enter("a")), far, SHARD);
    rig.request(Ask::Write(enter("b")), far, Via::Plain);
    rig.now += 1;
    let term = rig.replica().term();
    rig.step(message(MessageType::MsgHeartbeat, 2, term + 1));
    // The next leader knows nothing of what this one may have refused.
    assert_eq!(rig.numbers(), [Err(Code::OutcomeUnknown)]);
    assert_eq!(rig.forwards.len(), 1, "the one that no other node has");
    rig.now = far;
    rig.turn();
    assert_eq!(rig.numbers(), [Err(Code::OutcomeUnknown)]);
}

/// Another node got the message too, and asks for the leader's answer to it.
#[test]
fn a_shared_copy_gets_the_answer_of_the_leaders_own_and_is_never_executed() {
    let mut rig = of_three();
    let far = rig.now + 1_000_000_000;
    let send = |rig: &mut Rig, origin, via, shared| {
        let (mut request, mut delivery) = rig.message(Ask::Write(enter("a")), far, via);
        request.id = Some(RequestId { key: 7, origin });
        delivery.shared = shared;
        rig.input(Input::Request { request, delivery });
    };
    let shared = |rig: &mut Rig| send(rig, Origin::Forwarder, Via::Forwarded, true);
    shared(&mut rig);
    rig.turn();
    assert_eq!(rig.numbers(), [Err(Code::NotLeader)], "not seen itself");
    send(
        &mut rig,
        Origin::Direct,
        Via::Shard(ShardDelivery::Leader),
        false,
    );
    shared(&mut rig);
    rig.turn();
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Ok(1), Ok(1)]);
    shared(&mut rig);
    assert_eq!(rig.numbers(), [Ok(1)]);
    assert_eq!(rig.lines().get(&name("shop")).unwrap().counts().issued, 1);
}

/// A node that was cut off forwards by what it knew of an earlier term of this leader. Meanwhile another one may have led,
/// and have refused a copy from its state.
#[test]
fn a_named_write_that_was_forwarded_to_an_earlier_term_is_never_executed() {
    let mut rig = of_three();
    let far = rig.now + 1_000_000_000;
    let term = rig.replica().term();
    let send = |rig: &mut Rig, origin, term| {
        let (mut request, mut delivery) = rig.message(Ask::Write(enter("a")), far, Via::Forwarded);
        request.id = Some(RequestId { key: 7, origin });
        delivery.term = Some(term);
        rig.input(Input::Request { request, delivery });
        rig.turn();
        rig.acknowledge();
        rig.numbers()
    };
    let earlier = send(&mut rig, Origin::Client, term - 1);
    assert_eq!(earlier, [Err(Code::NotLeader)]);
    assert_eq!(send(&mut rig, Origin::Client, term), [Ok(1)]);
    let known = send(&mut rig, Origin::Client, term - 1);
    assert_eq!(known, [Ok(1)], "answered, and not executed");
    assert_eq!(rig.lines().get(&name("shop")).unwrap().counts().issued, 1);
}

/// A forward that took long to arrive, and then waits in the queue.
#[test]
fn a_forwarded_write_is_not_executed_later_than_it_was_sent_for() {
    let mut rig = of_three();
    let timeout_us = 700_000;
    let forwarded = |rig: &mut Rig, key: &str, age_us| {
        let ask = Ask::Write(enter(key));
        let (request, mut delivery) = rig.message(ask, rig.now + timeout_us, Via::Forwarded);
        delivery.forwarded_at = Some(LeaderTime {
            start: START,
            us: rig.now - age_us,
        });
        rig.input(Input::Request { request, delivery });
    };
    forwarded(&mut rig, "in time", 600_000);
    rig.now += 99_999;
    rig.turn();
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Ok(1)]);
    forwarded(&mut rig, "too late", 600_000);
    rig.now += 100_000;
    rig.turn();
    rig.acknowledge();
    assert_eq!(rig.numbers(), [Err(Code::NotLeader)]);
}
