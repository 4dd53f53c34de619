//! Elections after a leader's service connection was closed.
#![allow(clippy::unwrap_used)]

use nowserving_replica::Connection;
use raft::eraftpb::MessageType;

use crate::envelope::ClosedConnection;
use crate::io::Input;
use crate::rig::{Rig, decoded, message};

const FIRST_START: u64 = 20;
const SECOND_START: u64 = 21;

/// A heartbeat of node 2 in this start.
fn heartbeat(rig: &mut Rig, start: u64) {
    let heartbeat = message(MessageType::MsgHeartbeat, 2, 5);
    let mut frame = rig.frame(2, "", vec![heartbeat]);
    frame.header.start = Some(start);
    rig.receive(frame);
}

/// A frame of node 3, to which node 2's connection of this start is closed.
fn node_3_says_closed(rig: &mut Rig, start: u64) {
    let mut frame = rig.frame(3, "", Vec::new());
    let (node, number) = (2, 0);
    let closed = ClosedConnection {
        node,
        start,
        number,
    };
    frame.body.as_mut().unwrap().closed = vec![closed];
    rig.receive(frame);
}

/// Whether node 3 gets this node's vote.
fn votes_for_3(rig: &mut Rig) -> bool {
    rig.sent.clear();
    let term = rig.replica().term() + 1;
    let mut ask = message(MessageType::MsgRequestVote, 3, term);
    (ask.index, ask.log_term) = (100, term - 1);
    rig.hears(3, "", vec![ask]);
    let sent = rig.sent.iter().map(|(_, it)| decoded(it));
    let votes = sent.filter(|it| {
        it.get_msg_type() == MessageType::MsgRequestVoteResponse && it.term == term && !it.reject
    });
    votes.count() == 1
}

#[test]
fn a_proof_is_not_replaced_by_one_about_an_earlier_start() {
    let mut rig = Rig::new(&[1, 2, 3]);
    heartbeat(&mut rig, FIRST_START);
    node_3_says_closed(&mut rig, FIRST_START);
    heartbeat(&mut rig, SECOND_START);
    assert!(!votes_for_3(&mut rig), "node 2 leads");
    let (start, number) = (SECOND_START, 0);
    rig.input(Input::ConnectionClosed {
        peer: 2,
        connection: Connection { start, number },
    });
    // Sent before node 3 knew.
    node_3_says_closed(&mut rig, FIRST_START);
    let told = rig.engine.batch(3, rig.now).closed;
    assert_eq!(
        told.iter().map(|it| it.start).collect::<Vec<_>>(),
        [SECOND_START]
    );
    assert!(votes_for_3(&mut rig));
}

#[test]
fn a_proof_about_an_earlier_start_is_forgotten() {
    let mut rig = Rig::new(&[1, 2, 3]);
    heartbeat(&mut rig, FIRST_START);
    node_3_says_closed(&mut rig, FIRST_START);
    assert_eq!(rig.engine.batch(3, rig.now).closed.len(), 1);
    heartbeat(&mut rig, SECOND_START);
    assert_eq!(rig.engine.batch(3, rig.now).closed, []);
}
