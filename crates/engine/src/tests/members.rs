//! A node that does not know its peers.

use std::sync::Arc;

use nowserving_log::MemoryLog;

use nowserving_shard::members::Members;

use super::rig::{Rig, START};
use crate::contact::{PeerHeader, Standing};
use crate::envelope::Verdict;
use crate::frames::{PeerBatch, PeerFrame};
use crate::io::{Input, Now, Output};

/// A frame of node 4 that is not taken; returns the frames that node 1 sends to it.
fn frame(rig: &mut Rig, members: Option<Members>, refused: &str) -> Vec<PeerBatch> {
    rig.now += 1_000_000;
    let verdict = Verdict {
        start: START,
        refused: refused.to_owned(),
        removed: false,
    };
    let frame = PeerFrame {
        from: 4,
        header: PeerHeader {
            start: Some(4),
            in_touch: true,
            verdicts: vec![verdict],
            members_version: 5,
            members,
        },
        body: Err("node 4 is no member".to_owned()),
    };
    let now = Now {
        us: rig.now,
        wall_ms: 0,
    };
    let outputs = rig.engine.step(now, Input::Frame(frame)).into_iter();
    let to_4 = |output| match output {
        Output::Frame { to: 4, batch } => Some(batch),
        _ => None,
    };
    outputs.filter_map(to_4).collect()
}

/// Its disk is empty, and the nodes in its configuration are gone.
#[test]
fn a_node_learns_of_its_peers_from_nodes_that_it_does_not_know() {
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()));
    let asked = frame(&mut rig, None, "another disk");
    let versions: Vec<u64> = asked.iter().map(|it| it.members_version).collect();
    assert_eq!(versions, [0], "it says how old its members are");
    let members = Members {
        version: 5,
        ..Members::begin(&[1, 4, 5])
    };
    frame(&mut rig, Some(members), "another disk");
    assert!(rig.engine.membership.peers.contains(&4));
    frame(&mut rig, None, "another disk");
    assert!(matches!(
        rig.engine.contact.standing(rig.now),
        Standing::Refused(_)
    ));
}
