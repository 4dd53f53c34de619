//! Peers that lack what the leader has dropped from its log.

use nowserving_log::{Crash, LogStore as _};
use nowserving_replica::SnapshotMeta;
use raft::eraftpb::{Message, MessageType};

use crate::common::{Cluster, ELECTION_US, Persist, STEP_US};

/// Node 3 is cut off while the others commit and compact their logs past what it has.
fn left_behind(seed: u64) -> Cluster {
    let mut cluster = Cluster::led_by_1(seed);
    cluster.commit(1, "a");
    cluster.isolate(3);
    for at in 0..20 {
        cluster.commit_on(1, &format!("{at}"), &[1, 2]);
    }
    for id in [1, 2] {
        let all = cluster.node(id).view().applied();
        cluster.node(id).snapshot_and_compact(all);
    }
    cluster.commit_on(1, "after the snapshot", &[1, 2]);
    cluster
}

fn catches_up(cluster: &mut Cluster) {
    cluster.run_until("it is led", |cluster| cluster.leader().is_some());
    let leader = cluster.leader().unwrap();
    let all = cluster.node(leader).view().last_index();
    cluster.run_until("node 3 has all", |cluster| {
        cluster.nodes.iter().all(|node| node.applied_index() >= all)
    });
    let commands = cluster.node(leader).commands();
    assert_eq!(cluster.node(3).commands(), commands);
    cluster.commit(leader, "end");
}

fn is_snapshot(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgSnapshot
}

#[test]
fn a_peer_left_behind_gets_a_snapshot_and_goes_on_from_its_log() {
    let mut cluster = left_behind(1);
    let snapshot = cluster.node(1).snapshot.0.clone();
    cluster.heal();
    catches_up(&mut cluster);
    let log = cluster.node(3).log.load(0).unwrap();
    assert_eq!(log.start, snapshot);
    assert_eq!(cluster.node(3).view().members(), snapshot.conf_state);
    let now = cluster.now;
    cluster.node(3).restart(now);
    cluster.run(2 * ELECTION_US);
    catches_up(&mut cluster);
}

#[test]
fn without_a_snapshot_one_is_wanted() {
    let mut cluster = left_behind(2);
    // After a start they do not know their snapshots before they are told.
    let now = cluster.now;
    for id in [1, 2] {
        cluster.node(id).restart(now);
    }
    cluster.heal();
    cluster.run_until("one is wanted", |cluster| {
        let leader = cluster.leader();
        leader.is_some_and(|id| cluster.node(id).replica().take_snapshot_wanted())
    });
    let leader = cluster.leader().unwrap();
    cluster.node(leader).snapshot_and_compact(0);
    catches_up(&mut cluster);
}

/// Crashes the peer at every point of taking it, also between the snapshot and the log.
#[test]
fn an_install_that_a_crash_interrupts_is_completed() {
    for point in 0..12 {
        let mut cluster = left_behind(3);
        let snapshot = cluster.node(1).snapshot.0.index;
        cluster.node(3).persist = Persist::ByHand;
        cluster.heal();
        cluster.run_until("it has the file", |cluster| {
            cluster.node(3).snapshot.0.index == snapshot
        });
        for step in 0..point {
            match step % 3 {
                0 => cluster.run(STEP_US),
                1 => cluster.node(3).write(),
                _ => drop(cluster.node(3).sync()),
            }
        }
        cluster.node(3).crash(Crash::default());
        let now = cluster.now;
        cluster.node(3).start(now);
        assert!(cluster.node(3).applied_index() >= snapshot);
        cluster.node(3).persist = Persist::AtOnce;
        // Its acknowledgement may have been lost with it.
        cluster.node(1).replica().report_snapshot_failed(3);
        catches_up(&mut cluster);
    }
}

#[test]
fn a_failed_snapshot_is_sent_again() {
    let mut cluster = left_behind(4);
    cluster.filter = Some(Box::new(|message| !is_snapshot(message)));
    cluster.heal();
    cluster.run_until("it is sent", |cluster| {
        cluster.node(1).view().awaits_install(3)
    });
    cluster.run(ELECTION_US);
    assert!(
        cluster.node(1).view().awaits_install(3),
        "raft waits for good"
    );
    cluster.filter = None;
    cluster.node(1).replica().report_snapshot_failed(3);
    catches_up(&mut cluster);
    assert!(!cluster.node(1).view().awaits_install(3));
}

#[test]
fn a_node_does_not_campaign_while_it_installs() {
    let mut cluster = left_behind(5);
    cluster.node(3).persist = Persist::ByHand;
    cluster.heal();
    cluster.run_until("raft has taken it", |cluster| {
        cluster
            .node(3)
            .writes
            .iter()
            .any(|write| write.start.is_some())
    });
    cluster.isolate(3);
    for _ in 0..5 {
        cluster.run(ELECTION_US);
        let now = cluster.clock(3);
        assert!(!cluster.node(3).replica().campaign(now));
    }
    cluster.heal();
    cluster.node(3).persist = Persist::AtOnce;
    catches_up(&mut cluster);
}

#[test]
fn a_snapshot_within_the_log_needs_no_file() {
    let mut cluster = Cluster::led_by_1(6);
    cluster.commit(1, "a");
    let view = cluster.nodes[2].view();
    let mut offer = Message {
        from: 1,
        to: 3,
        term: view.term(),
        ..Message::default()
    };
    offer.set_msg_type(MessageType::MsgSnapshot);
    let meta = SnapshotMeta {
        index: view.last_index(),
        term: view.term(),
        conf_state: view.members(),
    };
    offer.mut_snapshot().set_metadata(meta.into());
    assert!(!view.needs_snapshot(&offer.clone().into()));
    offer.mut_snapshot().mut_metadata().index += 1;
    assert!(view.needs_snapshot(&offer.into()));
}
