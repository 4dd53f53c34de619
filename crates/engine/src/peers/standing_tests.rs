//! Whether the node takes part, with its peers played by hand.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_log::MemoryLog;
use nowserving_replica::BOOTSTRAP_TERM;
use raft::eraftpb::MessageType;

use crate::io::Boot;
use crate::peers::contact::Standing;

use crate::rig::{BOOT, Rig, message};

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
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()), BOOT);
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

/// It would give up a disk that is well.
#[test]
fn a_node_that_is_refused_for_its_configuration_does_not_ask_for_another_number() {
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()), BOOT);
    for (disk, asks) in [(false, false), (true, true)] {
        let mut refusal = rig.frame(2, "refused", Vec::new());
        refusal.header.verdicts[0].disk = disk;
        rig.receive(refusal);
        rig.engine.announce_standing(rig.now);
        let Standing::Refused(refusal) = rig.engine.standing() else {
            panic!("{:?}", rig.engine.standing());
        };
        assert_eq!(
            (refusal.needs_number(), rig.engine.membership.is_candidate()),
            (asks, asks)
        );
    }
}

/// A new member, which never saw the disk before, accepts an older copy of it; another peer knows better, and is
/// heard first or last.
#[test]
fn a_disk_that_a_peer_refuses_never_takes_part_again_whatever_others_say() {
    let log = Arc::new(MemoryLog::new());
    let mut rig = Rig::waiting(&[1, 2, 3], None, log.clone(), BOOT);
    let mut refusal = rig.frame(2, "an older copy", Vec::new());
    refusal.header.verdicts[0].disk = true;
    rig.receive(refusal);
    let standing = rig.engine.standing().clone();
    let Standing::Refused(refusal) = standing else {
        panic!("{standing:?}");
    };
    assert!(refusal.disk);
    let restarted = Boot {
        disk_refused: Some(refusal.reason),
        ..BOOT
    };
    for mut rig in [rig, Rig::waiting(&[1, 2, 3], None, log, restarted)] {
        rig.hears(3, "", vec![message(MessageType::MsgAppend, 3, 5)]);
        rig.hears(2, "", Vec::new());
        rig.pass_ms(10_000);
        rig.turn();
        assert!(rig.engine.standing().is_disk_refused());
        assert_eq!(rig.replica().term(), BOOTSTRAP_TERM);
    }
}
