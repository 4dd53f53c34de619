//! Proposals, what is written when, and restarts in between.

use std::cell::Cell;
use std::rc::Rc;

use nowserving_log::{Crash, LogStore as _};
use nowserving_replica::{Committed, MAX_COMMAND_BYTES, Payload, ProposeError, Replica};
use protobuf::Message as _;
use raft::eraftpb::{Entry, HardState, Message, MessageType};

use crate::common::{Cluster, ELECTION_US, Node, Persist, STEP_US, config};

#[test]
fn proposals_of_a_turn_are_one_write() {
    let mut cluster = Cluster::led_by_1(1);
    cluster.node(1).persist = Persist::ByHand;
    let mut last = (0, 0);
    for at in 0..100 {
        last = cluster.propose(1, &format!("{at}")).unwrap();
    }
    cluster.step();
    assert_eq!(
        cluster
            .node(1)
            .writes
            .iter()
            .map(|write| write.entries.len())
            .collect::<Vec<_>>(),
        [100]
    );
    cluster.node(1).persist = Persist::AtOnce;
    cluster.run_until("all apply", |cluster| {
        cluster
            .nodes
            .iter()
            .all(|node| node.applied_index() == last.1)
    });
    assert_eq!(
        cluster.node(3).commands(),
        (0..100).map(|at| at.to_string()).collect::<Vec<_>>()
    );
}

#[test]
fn what_cannot_be_taken_is_refused_and_leaves_nothing() {
    let mut cluster = Cluster::led_by_1(2);
    let last = cluster.node(1).view().last_index();
    let replica = cluster.node(1).replica();
    assert_eq!(replica.propose(Vec::new()), Err(ProposeError::Empty));
    let large = vec![b'x'; MAX_COMMAND_BYTES + 1];
    assert_eq!(
        replica.propose(large),
        Err(ProposeError::TooLarge(MAX_COMMAND_BYTES + 1))
    );
    assert_eq!(replica.last_index(), last);
    assert_eq!(
        cluster.node(2).replica().propose(b"a".to_vec()),
        Err(ProposeError::NotLeader)
    );
    assert!(!cluster.node(2).view().has_ready(), "and forwards nothing");
}

#[test]
fn what_waits_for_its_commit_is_bounded() {
    let mut cluster = Cluster::led_by_1(3);
    cluster.isolate(1);
    let large = "x".repeat(MAX_COMMAND_BYTES);
    let taken = (0..100)
        .take_while(|_| cluster.propose(1, &large).is_some())
        .count();
    assert_eq!(taken, (4 << 20) / MAX_COMMAND_BYTES);
    assert_eq!(
        cluster.node(1).replica().propose(b"a".to_vec()),
        Err(ProposeError::Busy)
    );
    cluster.heal();
    let all = cluster.node(1).view().last_index();
    cluster.run_until("all apply", |cluster| {
        cluster.nodes.iter().all(|node| node.applied_index() == all)
    });
    cluster.commit(1, "a");
}

#[test]
fn a_leader_applies_nothing_before_its_own_disk_has_it() {
    let mut cluster = Cluster::led_by_1(4);
    cluster.node(1).persist = Persist::ByHand;
    let at = cluster.propose(1, "a").unwrap();
    cluster.run(20 * STEP_US);
    assert!(
        cluster.node(1).view().committed() >= at.1,
        "the others are a quorum"
    );
    assert_eq!(cluster.node(2).commands(), ["a"]);
    assert!(cluster.node(1).commands().is_empty());
    cluster.node(1).persist = Persist::AtOnce;
    cluster.run(2 * STEP_US);
    assert_eq!(cluster.node(1).commands(), ["a"]);
}

/// Followers need no message for what is committed: the next entries or the heartbeat say it.
#[test]
fn a_group_that_does_not_tell_commits_says_them_with_what_it_says_anyway() {
    let mut cluster = Cluster::led_by_1(5);
    cluster.run(ELECTION_US);
    let empty = Rc::new(Cell::new(0));
    let counted = empty.clone();
    cluster.filter = Some(Box::new(move |message| {
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        counted.set(counted.get() + u32::from(is_append && message.get_entries().is_empty()));
        true
    }));
    for data in ["a", "b"] {
        cluster.commit_on(1, data, &[1]);
    }
    assert!(
        cluster.node(2).commands().len() <= 1,
        "before the heartbeat"
    );
    cluster.run(ELECTION_US);
    // Two for each commit otherwise. A heartbeat's answer that meets an append under way brings one, too.
    assert!(empty.get() < 2 * 2, "{}", empty.get());
    for id in 1..=3 {
        assert_eq!(cluster.node(id).commands(), ["a", "b"], "{id}");
    }
}

fn entry(term: u64, index: u64) -> Entry {
    Entry {
        term,
        index,
        data: format!("{term}/{index}").into_bytes().into(),
        ..Entry::default()
    }
}

fn append(from: u64, term: u64, prev: (u64, u64), entries: Vec<Entry>, commit: u64) -> Message {
    let mut message = Message {
        from,
        to: 3,
        term,
        log_term: prev.0,
        index: prev.1,
        commit,
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgAppend);
    message.set_entries(entries.into());
    message
}

/// Entries are written, replaced while that is on its way to disk, and then written again: the first
/// write must not count for the third.
#[test]
fn a_replaced_entry_does_not_count_as_persisted() {
    for persisted in 0..=3 {
        let mut node = Node::new(3, 0);
        node.start(0);
        let now = node.clock(1);
        let first: Vec<Entry> = (2..=4).map(|index| entry(1, index)).collect();
        let mut again = first.clone();
        again.push(entry(3, 5));
        let appends = [
            append(1, 1, (1, 1), first, 1),
            append(2, 2, (1, 1), vec![entry(2, 2)], 1),
            append(1, 3, (1, 1), again, 5),
        ];
        let (mut sent, mut applied) = (Vec::new(), Vec::new());
        for message in appends {
            node.replica().step(message.into(), now).unwrap();
            node.ready(&mut sent, &mut applied);
        }
        assert!(sent.is_empty(), "followers say nothing before the sync");
        for _ in 0..persisted {
            node.write();
            sent.extend(node.sync());
            node.ready(&mut sent, &mut applied);
        }
        let indexes =
            |applied: &[Committed]| applied.iter().map(|entry| entry.index).collect::<Vec<_>>();
        if persisted < 3 {
            assert_eq!(
                (sent.len(), indexes(&applied)),
                (0, vec![]),
                "after {persisted} writes"
            );
        } else {
            assert_eq!(
                (sent.last().unwrap().index, indexes(&applied)),
                (5, vec![2, 3, 4, 5])
            );
        }
        // Whatever is on disk by now, the node comes back from it and takes the leader's log.
        node.crash(Crash::default());
        node.start(2);
        let now = node.clock(3);
        node.replica()
            .step(
                append(1, 3, (1, 1), vec![entry(1, 2), entry(1, 3)], 3).into(),
                now,
            )
            .unwrap();
        node.ready(&mut Vec::new(), &mut Vec::new());
        node.persist_all();
        node.ready(&mut Vec::new(), &mut Vec::new());
        assert!(node.applied_index() >= 3);
        assert_eq!(
            node.applied[1].payload,
            Payload::Command(b"1/3".to_vec().into())
        );
    }
}

/// Crashes a follower at every point of writing, with every remainder of what was not synced, while it
/// takes entries that a newer leader replaces.
#[test]
fn a_restart_at_any_point_loses_nothing_acknowledged() {
    for point in 0..24 {
        for keep_batches in 0..3 {
            restart_at(point, keep_batches);
        }
    }
}

fn restart_at(point: usize, keep_batches: usize) {
    let mut cluster = Cluster::led_by_1(5);
    cluster.commit(1, "a");
    // Node 1 gives node 3 entries which nobody else gets, and is then deposed.
    cluster.node(3).persist = Persist::ByHand;
    cluster.isolate(2);
    for at in 0..3 {
        cluster.propose(1, &format!("open {at}"));
        cluster.run(3 * STEP_US);
    }
    let mut steps = 0;
    while steps < point {
        match steps % 3 {
            0 => cluster.run(STEP_US),
            1 => cluster.node(3).write(),
            _ => drop(cluster.node(3).sync()),
        }
        steps += 1;
    }
    cluster.node(3).crash(Crash {
        keep_batches,
        keep_shards: 0,
    });
    cluster.heal();
    let now = cluster.now;
    cluster.node(3).start(now);
    cluster.node(3).persist = Persist::AtOnce;
    let all = cluster.node(1).view().last_index();
    cluster.run_until("all apply", |cluster| {
        cluster.nodes.iter().all(|node| node.applied_index() >= all)
    });
    assert_eq!(
        cluster.node(3).commands(),
        ["a", "open 0", "open 1", "open 2"]
    );
    assert!(cluster.now < now + 3 * ELECTION_US);
}

#[test]
fn a_peer_far_behind_is_caught_up_in_small_steps() {
    let mut cluster = Cluster::led_by_1(6);
    cluster.isolate(3);
    let command = "x".repeat(40 << 10);
    let mut last = 0;
    for at in 0..500 {
        last = cluster.commit_on(1, &format!("{at} {command}"), &[1, 2]).1;
    }
    let memory = cluster.node(1).view().memory_bytes();
    assert!(
        memory <= 2 << 20,
        "{memory} bytes in memory for a log of 20 MiB"
    );

    let bytes = Rc::new(Cell::new(0));
    let counted = bytes.clone();
    cluster.filter = Some(Box::new(move |message| {
        counted.set(counted.get() + u64::from(message.compute_size()));
        true
    }));
    cluster.heal();
    let mut most = 0;
    cluster.run_until("node 3 has all", |cluster| {
        most = most.max(bytes.take());
        cluster.node(3).applied_index() == last
    });
    // What is read from disk is limited to half a MiB, and what is in memory anyway comes on top.
    assert!(most <= 2 << 20, "{most} bytes sent in one turn");
    assert!(cluster.node(1).view().memory_bytes() <= 2 << 20);
}

#[test]
fn the_log_is_cut_and_a_restart_goes_on_from_the_snapshot() {
    let mut cluster = Cluster::led_by_1(7);
    for at in 0..20 {
        cluster.commit(1, &format!("{at}"));
    }
    cluster.run(ELECTION_US);
    let floor = cluster.node(1).view().matched_by_all();
    assert!(floor >= 20);
    cluster.commit(1, "above the floor");
    for id in 1..=3 {
        cluster.node(id).snapshot_and_compact(floor);
        assert_eq!(cluster.node(id).log.load(0).unwrap().compact_index, floor);
        assert_eq!(
            cluster.node(id).replica().compact(floor + 1_000),
            floor.max(cluster.node(id).applied_index())
        );
    }
    cluster.commit(1, "later");
    let now = cluster.now;
    for id in 1..=3 {
        cluster.node(id).restart(now);
    }
    cluster.run_until("somebody leads", |cluster| cluster.leader().is_some());
    let leader = cluster.leader().unwrap();
    cluster.commit(leader, "end");
    for id in 1..=3 {
        assert_eq!(
            cluster.node(id).commands().last().map(String::as_str),
            Some("end")
        );
        assert_eq!(cluster.node(id).commands().len(), 23);
    }
}

#[test]
fn a_log_that_cannot_be_read_is_an_error_that_names_the_entries() {
    let node = Node::new(1, 0);
    let writes: Vec<Entry> = (2..=4).map(|index| entry(1, index)).collect();
    let hard_state = Some(HardState {
        term: 1,
        commit: 4,
        ..HardState::default()
    });
    let write = nowserving_replica::Write {
        shard: 0,
        number: 1,
        entries: writes,
        hard_state,
        must_sync: true,
        start: None,
    };
    node.log.write(&[write]).unwrap();
    let mut replica = Replica::new(&config(1), node.restored(), node.log.clone(), 0).unwrap();
    // Somebody takes the disk away.
    let snapshot = node.log.load(0).unwrap();
    node.log.compact(0, snapshot.last_index).unwrap();
    assert!(replica.has_ready());
    let failed = replica.ready().unwrap_err();
    assert_eq!((failed.shard, failed.low, failed.high), (0, 2, 5));
}
