//! Whether the node takes part, with its peers played by hand.

use std::sync::Arc;

use nowserving_log::MemoryLog;
use nowserving_replica::BOOTSTRAP_TERM;
use raft::eraftpb::MessageType;

use super::rig::{Rig, message};

/// As when a copy of its data directory was started elsewhere.
#[test]
fn a_leader_that_is_refused_leads_no_more() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    rig.hears(3, "another start", Vec::new());
    assert!(rig.is_leader(), "one peer alone may be misled");
    rig.hears(2, "another start", Vec::new());
    assert!(!rig.is_leader() && rig.shard().leader_state.is_none());
    let (term, last) = (rig.replica().term(), rig.replica().last_index());

    // Accepted again, it has to be elected again.
    rig.hears(2, "", Vec::new());
    rig.hears(3, "", Vec::new());
    assert!(!rig.is_leader());
    assert_eq!(rig.replica().last_index(), last);
    rig.lead();
    assert!(rig.replica().term() > term);
}

#[test]
fn without_a_quorum_it_handles_no_message_and_does_not_tick() {
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()));
    rig.hears(
        2,
        "another disk",
        vec![message(MessageType::MsgAppend, 2, 5)],
    );
    for _ in 0..100 {
        rig.now += 1_000_000;
        rig.turn();
    }
    assert_eq!(rig.replica().term(), BOOTSTRAP_TERM);
    assert!(rig.sent.is_empty());
}
