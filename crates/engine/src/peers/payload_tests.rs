//! Frames that the transport refuses, as they are larger than what it takes.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Op, Settings};
use raft::eraftpb::{Message, MessageType};

use crate::io::Input;
use crate::rig::{Rig, decoded, message, name};
use crate::snapshots::snapshots_tests::leader_with_a_slow_peer;

/// What was sent to a peer since the last call.
fn sent(rig: &mut Rig, peer: u64) -> Vec<Message> {
    let sent = std::mem::take(&mut rig.sent).into_iter();
    let sent = sent.filter(|(to, _)| *to == peer);
    sent.map(|(_, message)| decoded(&message)).collect()
}

/// Behind which index the entries begin that were sent to peer 2 since the last call, and how many there are.
fn appended(rig: &mut Rig) -> Vec<(u64, usize)> {
    let sent = sent(rig, 2).into_iter();
    let appends = sent.filter(|it| !it.entries.is_empty());
    appends.map(|it| (it.index, it.entries.len())).collect()
}

fn enter(rig: &mut Rig, key: &str) {
    rig.enter(key);
    rig.turn();
}

fn refused(rig: &mut Rig, to: u64) {
    let shards = vec![0, 9];
    rig.input(Input::FrameRefused { to, shards });
    rig.turn();
}

#[test]
fn entries_that_were_refused_are_sent_again_before_those_that_follow_them() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 1_000));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    rig.sent.clear();
    let last = rig.replica().last_index();
    enter(&mut rig, "a");
    enter(&mut rig, "b");
    assert_eq!(appended(&mut rig), [(last, 1), (last + 1, 1)]);
    refused(&mut rig, 2);
    enter(&mut rig, "c");
    assert_eq!(appended(&mut rig), [(last, 3)]);
    // Nothing more until the peer answers.
    enter(&mut rig, "d");
    assert_eq!(appended(&mut rig), []);
    rig.acknowledge();
    enter(&mut rig, "e");
    assert_eq!(appended(&mut rig), [(last + 4, 1)]);
}

#[test]
fn a_snapshot_whose_offer_was_refused_is_offered_again_at_once() {
    let (mut rig, index) = leader_with_a_slow_peer();
    rig.sent.clear();
    refused(&mut rig, 2);
    assert!(rig.replica().awaits_install(3), "it was another peer's");
    refused(&mut rig, 3);
    assert!(!rig.replica().awaits_install(3));
    let heard = message(MessageType::MsgHeartbeatResponse, 3, rig.replica().term());
    rig.hears(3, "", vec![heard]);
    let sent = sent(&mut rig, 3).into_iter();
    let offers = sent.filter(|it| it.get_msg_type() == MessageType::MsgSnapshot);
    let offers = offers.map(|it| it.get_snapshot().get_metadata().index);
    assert_eq!(offers.collect::<Vec<_>>(), [index]);
}
