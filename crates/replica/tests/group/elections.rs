//! Elections, transfers and what restarts do to them.

use std::sync::Arc;

use crate::common::{Cluster, ELECTION_TICKS, ELECTION_US, Node, STEP_US, TICK_US, config};
use crate::refusals::message;
use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_replica::{
    ConfState, LogState, NewError, ProposeError, ReadError, Replica, Restored, Role, SnapshotMeta,
    StepRefused, TransferError,
};
use raft::eraftpb::{Message, MessageType};

#[test]
fn one_leader_is_elected_and_known() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed);
        cluster.run_until("all know the leader", |cluster| {
            let leader = cluster.leader();
            leader.is_some()
                && cluster
                    .nodes
                    .iter()
                    .all(|node| node.view().leader() == leader)
        });
        // A group that is born waits for nothing but the timeout.
        assert!(
            cluster.now <= 3 * ELECTION_US,
            "seed {seed}: {} us",
            cluster.now
        );
        let leader = cluster.leader().unwrap();
        cluster.commit(leader, "a");
    }
}

#[test]
fn a_group_of_one_leads_itself() {
    let mut node = Node::in_group_of(&[1], 1, 7);
    node.start(0);
    assert!(node.replica().campaign(2_000_000));
    for now in 0..10 {
        if now == 5 {
            node.replica().propose(b"a".to_vec()).unwrap();
        }
        let (sent, _) = node.turn(now);
        assert!(sent.is_empty());
    }
    assert_eq!(node.view().role(), Role::Leader);
    assert_eq!(
        (node.applied_index(), node.commands()),
        (3, vec!["a".into()])
    );
}

#[test]
fn a_restarted_node_does_not_vote_for_one_timeout() {
    let mut cluster = Cluster::led_by_1(3);
    cluster.commit(1, "a");
    let now = cluster.now;
    cluster.node(3).restart(now);
    let term = cluster.node(3).view().term();
    let clock = cluster.clock(3);
    for kind in [
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestVote,
        MessageType::MsgTimeoutNow,
    ] {
        let mut message = Message {
            from: 2,
            to: 3,
            term: term + 1,
            index: 99,
            log_term: term,
            ..Message::default()
        };
        message.set_msg_type(kind);
        assert_eq!(
            cluster.node(3).replica().step(message.into(), clock),
            Err(StepRefused::JustStarted),
            "{kind:?}"
        );
    }
    assert!(!cluster.node(3).replica().campaign(clock));
    assert_eq!(
        cluster.node(3).view().term(),
        term,
        "not even the term moved"
    );
    // But it follows at once.
    cluster.commit(1, "b");
    assert!(cluster.now - now < ELECTION_US / 2);
    assert_eq!(cluster.node(3).commands(), ["a", "b"]);
}

#[test]
fn restarted_nodes_elect_after_their_vote_hold() {
    let mut cluster = Cluster::led_by_1(5);
    cluster.commit(1, "a");
    let restarted_at = cluster.now;
    for id in 1..=3 {
        cluster.node(id).restart(restarted_at);
    }
    cluster.run_until("somebody leads", |cluster| cluster.leader().is_some());
    assert!(cluster.now >= restarted_at + ELECTION_US);
    let leader = cluster.leader().unwrap();
    cluster.commit(leader, "b");
    assert_eq!(cluster.node(2).commands(), ["a", "b"]);
}

#[test]
fn a_partitioned_node_comes_back_without_a_new_term() {
    let mut cluster = Cluster::led_by_1(11);
    let term = cluster.node(1).view().term();
    cluster.isolate(3);
    cluster.run(10 * ELECTION_US);
    assert_eq!(cluster.node(3).view().role(), Role::Candidate, "it tries");
    assert_eq!(
        cluster.node(3).view().term(),
        term,
        "but pre-vote holds its term down"
    );
    cluster.heal();
    cluster.commit(1, "a");
    assert_eq!(cluster.node(1).view().term(), term);
}

#[test]
fn a_cut_off_leader_steps_down_and_another_takes_over() {
    let mut cluster = Cluster::led_by_1(13);
    cluster.isolate(1);
    let lost = cluster.propose(1, "lost").unwrap();
    cluster.run_until("another leads", |cluster| {
        cluster.leader().is_some_and(|id| id != 1)
    });
    let leader = cluster.leader().unwrap();
    let kept = cluster.propose(leader, "kept").unwrap();
    cluster.run_until("node 1 steps down", |cluster| {
        cluster.node(1).view().role() != Role::Leader
    });
    assert!(matches!(
        cluster.node(1).replica().propose(b"x".to_vec()),
        Err(ProposeError::NotLeader)
    ));
    cluster.heal();
    cluster.run_until("all agree", |cluster| {
        cluster.nodes.iter().all(|node| node.commands() == ["kept"])
    });
    // Term and index tell both outcomes exactly.
    assert_eq!(
        (cluster.checks.outcome(lost), cluster.checks.outcome(kept)),
        (Some(false), Some(true))
    );
}

#[test]
fn an_entry_of_a_lost_leader_can_still_commit() {
    let mut cluster = Cluster::led_by_1(17);
    cluster.blocked.insert((1, 3));
    cluster.blocked.extend([(2, 1), (3, 1)]);
    let open = cluster.propose(1, "open").unwrap();
    cluster.run(5 * STEP_US);
    assert_eq!(cluster.node(2).view().last_index(), open.1);
    assert_eq!(cluster.checks.outcome(open), None);
    cluster.isolate(1);
    cluster.run_until("2 leads", |cluster| cluster.leader() == Some(2));
    cluster.run_until("2 commits it", |cluster| {
        cluster.checks.outcome(open).is_some()
    });
    assert_eq!(
        cluster.checks.outcome(open),
        Some(true),
        "although its leader never learned of it"
    );
    cluster.heal();
    cluster.run_until("1 learns of it", |cluster| {
        cluster.node(1).commands() == ["open"]
    });
}

#[test]
fn leadership_is_handed_over() {
    let mut cluster = Cluster::led_by_1(19);
    cluster.commit(1, "a");
    assert_eq!(
        cluster.node(1).replica().transfer_leader(1),
        Err(TransferError::BadTarget(1))
    );
    assert_eq!(
        cluster.node(1).replica().transfer_leader(9),
        Err(TransferError::BadTarget(9))
    );
    assert!(matches!(
        cluster.node(2).replica().transfer_leader(3),
        Err(TransferError::NotLeader)
    ));
    let started = cluster.now;
    cluster.node(1).replica().transfer_leader(3).unwrap();
    assert_eq!(
        cluster.node(1).replica().propose(b"x".to_vec()),
        Err(ProposeError::Busy)
    );
    cluster.run_until("3 leads", |cluster| cluster.leader() == Some(3));
    assert!(
        cluster.now - started < 20 * STEP_US,
        "no timeout is waited for"
    );
    cluster.commit(3, "b");
}

#[test]
fn a_transfer_that_fails_leaves_a_leader_without_lease() {
    let mut cluster = Cluster::led_by_1(23);
    let now = cluster.clock(1);
    cluster.node(1).replica().read_index(now).unwrap();
    cluster.run(10 * STEP_US);
    assert!(cluster.node(1).view().lease_until().is_some());
    cluster.isolate(3);
    cluster.node(1).replica().transfer_leader(3).unwrap();
    assert_eq!(cluster.node(1).view().lease_until(), None);
    cluster.run(2 * ELECTION_US);
    cluster.heal();
    cluster.commit(1, "goes on");
    let now = cluster.clock(1);
    let id = cluster.node(1).replica().read_index(now).unwrap();
    cluster.run(10 * STEP_US);
    assert!(cluster.node(1).reads.contains_key(&id), "reads still work");
    assert_eq!(
        cluster.node(1).view().lease_until(),
        None,
        "but each needs its round"
    );
}

#[test]
fn the_most_caught_up_peer_is_chosen() {
    let mut cluster = Cluster::led_by_1(29);
    cluster.isolate(2);
    cluster.commit_on(1, "a", &[1, 3]);
    cluster.run(10 * STEP_US);
    let leader = cluster.node(1);
    assert_eq!(leader.view().most_caught_up(&[1, 2, 3]), Some(3));
    assert_eq!(leader.view().most_caught_up(&[2]), Some(2));
    assert_eq!(leader.view().most_caught_up(&[1]), None);
    assert!(leader.view().matched_by_all() < leader.view().last_index());
    assert_eq!(cluster.node(3).view().most_caught_up(&[1, 2]), None);
    cluster.heal();
    cluster.run(ELECTION_US);
    assert_eq!(
        cluster.node(1).view().matched_by_all(),
        cluster.node(1).view().last_index()
    );
    assert_eq!(
        cluster.node(1).view().most_caught_up(&[2, 3]),
        Some(2),
        "the smaller of equals"
    );
}

#[test]
fn nothing_is_taken_in_a_term_without_a_commit() {
    let mut cluster = Cluster::new(31);
    cluster.step();
    // Votes get through, appends don't: a leader that can't commit.
    cluster.filter = Some(Box::new(|message| {
        message.get_msg_type() != MessageType::MsgAppend
    }));
    let now = cluster.clock(1);
    assert!(cluster.node(1).replica().campaign(now));
    cluster.run_until("1 leads", |cluster| cluster.leader() == Some(1));
    assert_eq!(
        cluster.node(1).replica().read_index(now),
        Err(ReadError::NotReady)
    );
    assert!(matches!(
        cluster.node(2).replica().read_index(now),
        Err(ReadError::NotLeader)
    ));
}

#[test]
fn the_disk_says_who_votes() {
    let mut log = Node::in_group_of(&[3, 1, 2], 1, 0).restored().log;
    let new = |id, log: &LogState, snapshot| {
        let (log, reader) = (log.clone(), Arc::new(MemoryLog::new()));
        Replica::new(
            &config(id),
            Restored {
                log,
                snapshot,
                applied: 0,
            },
            reader,
            0,
        )
        .map(|replica| replica.voters())
    };
    assert_eq!(new(1, &log, SnapshotMeta::default()).unwrap(), [1, 2, 3]);
    // It was removed from the group, or is not in it yet.
    assert_eq!(new(4, &log, SnapshotMeta::default()).unwrap(), [1, 2, 3]);
    // Those in a snapshot are newer than those at the group's start.
    (log.compact_index, log.compact_term, log.last_index) = (5, 1, 5);
    log.hard_state.term = 1;
    let snapshot = |voters: &[u64]| SnapshotMeta {
        index: 5,
        term: 1,
        conf_state: ConfState::of_voters(voters),
    };
    assert_eq!(new(4, &log, snapshot(&[4, 2, 3])).unwrap(), [2, 3, 4]);
    assert_eq!(new(1, &log, snapshot(&[4, 2, 3])).unwrap(), [2, 3, 4]);
}

#[test]
fn contradicting_disks_are_refused() {
    let mut cluster = Cluster::led_by_1(37);
    cluster.commit(1, "a");
    let node = &cluster.nodes[0];
    use nowserving_log::LogStore as _;
    let log = node.log.load(0).unwrap();
    let new = |log: &nowserving_replica::LogState, index, term| {
        let snapshot = SnapshotMeta {
            index,
            term,
            conf_state: log.start.conf_state.clone(),
        };
        Replica::new(
            &config(1),
            Restored {
                log: log.clone(),
                snapshot,
                applied: 0,
            },
            node.log.clone(),
            0,
        )
        .map(|_| ())
    };
    let term = log.hard_state.term;
    assert!(new(&log, 2, term).is_ok());
    let foreign = |result| match result {
        Err(NewError::ForeignSnapshot { shard: 0, what }) => what,
        other => panic!("{other:?}"),
    };
    let lost = |result| match result {
        Err(NewError::LogLost { shard: 0, what }) => what,
        other => panic!("{other:?}"),
    };
    assert!(foreign(new(&log, 99, term)).contains("ends at 3, before the snapshot's 99"));
    assert!(foreign(new(&log, 2, term + 1)).contains("entry 2 has term"));
    let mut bad = log.clone();
    bad.start = SnapshotMeta::default();
    assert!(lost(new(&bad, 0, 0)).contains("no start record"));
    bad = log.clone();
    bad.hard_state.commit = 9;
    assert!(lost(new(&bad, 0, 0)).contains("commit index 9 is past the last log entry 3"));
    bad = log.clone();
    bad.hard_state.term = 0;
    assert!(lost(new(&bad, 0, 0)).contains("the term on disk is 0"));
    bad = log;
    (bad.compact_index, bad.compact_term) = (2, term);
    assert!(foreign(new(&bad, 0, 0)).contains("compacted through 2, past the snapshot's 1"));
}

#[test]
fn an_uninitialized_replica_takes_nothing_but_from_leaders() {
    let log = Arc::new(MemoryLog::new());
    let mut replica = Replica::new(&config(4), Restored::default(), log, 0).unwrap();
    assert!(!replica.is_initialized() && replica.voters().is_empty());
    let mut now = 0;
    for _ in 0..10 * ELECTION_TICKS {
        now += TICK_US;
        replica.tick(now);
        assert!(!replica.campaign(now));
    }
    let later = |kind, term| Message {
        index: 9,
        log_term: 2,
        ..message(kind, 1, 4, term)
    };
    for kind in [
        MessageType::MsgRequestVote,
        MessageType::MsgRequestPreVote,
        MessageType::MsgAppendResponse,
        MessageType::MsgTimeoutNow,
    ] {
        let refused = replica.step(later(kind, 3).into(), now);
        assert_eq!(refused, Err(StepRefused::Uninitialized));
    }
    assert_eq!((replica.term(), replica.has_ready()), (0, false));
    let heartbeat = message(MessageType::MsgHeartbeat, 1, 4, 3);
    replica.step(heartbeat.into(), now).unwrap();
    let append = later(MessageType::MsgAppend, 3);
    replica.step(append.into(), now).unwrap();
    let ready = replica.ready().unwrap().unwrap();
    assert_eq!(ready.write.unwrap().hard_state.unwrap().term, 3);
    let rejects = |sent: &Message| sent.reject && sent.reject_hint == 0;
    let sent = replica.on_persisted(1).into_iter().map(Message::from);
    let sent: Vec<_> = sent.collect();
    assert!(
        sent.iter().any(rejects),
        "so that the leader sends a snapshot: {sent:?}"
    );
    assert_eq!(
        (replica.leader(), replica.role()),
        (Some(1), Role::Follower)
    );
}

#[test]
fn an_interrupted_install_is_completed() {
    let mut cluster = Cluster::led_by_1(38);
    cluster.commit(1, "a");
    let node = &cluster.nodes[2];
    let restored = node.restored();
    let (term, last) = (restored.log.hard_state.term, restored.log.last_index);
    let with = |index, term| Restored {
        snapshot: SnapshotMeta {
            index,
            term,
            conf_state: restored.log.start.conf_state.clone(),
        },
        ..restored.clone()
    };
    let complete = |restored: &Restored| restored.complete_install(0, &*node.log).unwrap();
    assert_eq!(complete(&restored), None);
    assert_eq!(complete(&with(last, term)), None, "its own snapshot");
    // Of a later term, past the end of the log; and among entries that were never committed.
    let mut uncommitted = with(last, term + 1);
    uncommitted.log.hard_state.commit = last - 1;
    for restored in [with(last + 5, term + 1), uncommitted] {
        let write = complete(&restored).unwrap();
        assert_eq!(write.start.as_ref(), Some(&restored.snapshot));
        let hard_state = write.hard_state.clone().unwrap();
        assert_eq!(
            (hard_state.term, hard_state.vote, hard_state.commit),
            (term + 1, 0, restored.snapshot.index)
        );
        let log = Arc::new(MemoryLog::new());
        log.write(&[write]).unwrap();
        let again = Restored {
            log: log.load(0).unwrap(),
            ..restored.clone()
        };
        assert_eq!(again.complete_install(0, &*log).unwrap(), None);
        let replica = Replica::new(&config(3), again, log, 0).unwrap();
        assert_eq!(replica.applied(), restored.snapshot.index);
    }
    // A vote in a term that is not over is kept.
    let write = complete(&with(last + 5, term)).unwrap();
    assert_eq!(write.hard_state.unwrap().vote, restored.log.hard_state.vote);
    // What is committed here is never given up.
    assert_eq!(complete(&with(last, term + 1)), None);
}
