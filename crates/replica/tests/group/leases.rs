//! Rounds of reads, and the lease. That no two nodes have one at once, and none misses an
//! acknowledged entry, is checked at every step of every test here: see `common::Checks`.

use nowserving_replica::{ReadError, Role, StepRefused};
use raft::eraftpb::{Message, MessageType};

use crate::common::{Cluster, ELECTION_TICKS, ELECTION_US, LEASE_US, Persist, STEP_US};

fn with_lease(seed: u64) -> Cluster {
    let mut cluster = Cluster::led_by_1(seed);
    cluster.read(1).unwrap();
    cluster.run(5 * STEP_US);
    assert!(cluster.node(1).view().lease_until().is_some());
    cluster
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for() {
    let mut cluster = Cluster::led_by_1(1);
    assert_eq!(
        cluster.node(1).view().lease_until(),
        None,
        "none without asking"
    );
    cluster.latency_us = 50_000;
    let asked = cluster.clock(1);
    let id = cluster.read(1).unwrap();
    cluster.run(40_000);
    assert_eq!(cluster.node(1).view().lease_until(), None);
    cluster.run(80_000);
    assert_eq!(cluster.node(1).view().lease_until(), Some(asked + LEASE_US));
    assert!(cluster.node(1).reads.contains_key(&id));
    assert_eq!(cluster.node(2).view().lease_until(), None);
    // An older round that is answered late takes nothing away.
    let later = cluster.clock(1);
    cluster.read(1).unwrap();
    cluster.run(200_000);
    assert_eq!(cluster.node(1).view().lease_until(), Some(later + LEASE_US));
}

#[test]
fn reads_of_a_turn_share_a_round() {
    let mut cluster = Cluster::led_by_1(2);
    let first = cluster.read(1).unwrap();
    assert_eq!(cluster.read(1), Some(first));
    cluster.step();
    let second = cluster.read(1).unwrap();
    assert_ne!(first, second);
    cluster.run(5 * STEP_US);
    assert_eq!(
        cluster.node(1).reads.keys().copied().collect::<Vec<_>>(),
        [first, second]
    );
}

#[test]
fn a_lost_round_is_repeated_by_the_heartbeat() {
    let mut cluster = Cluster::led_by_1(3);
    cluster.isolate(1);
    let asked = cluster.clock(1);
    let id = cluster.read(1).unwrap();
    cluster.run(10 * STEP_US);
    cluster.heal();
    cluster.run_until("it is granted", |cluster| {
        cluster.node(1).reads.contains_key(&id)
    });
    assert_eq!(
        cluster.node(1).view().lease_until(),
        Some(asked + LEASE_US),
        "still from the asking"
    );
}

#[test]
fn rounds_that_wait_are_bounded() {
    let mut cluster = Cluster::led_by_1(4);
    cluster.isolate(1);
    let mut taken = 0;
    let busy = loop {
        let now = cluster.clock(1);
        match cluster.node(1).replica().read_index(now) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        cluster.step();
    };
    assert_eq!((taken, busy), (256, ReadError::Busy));
}

#[test]
fn rounds_of_a_lost_leadership_fail() {
    let mut cluster = with_lease(5);
    cluster.isolate(1);
    let id = cluster.read(1).unwrap();
    cluster.run_until("1 steps down", |cluster| {
        cluster.node(1).view().role() != Role::Leader
    });
    cluster.run(2 * STEP_US);
    assert_eq!(cluster.node(1).reads_failed, [id]);
    assert_eq!(cluster.node(1).view().lease_until(), None);
}

#[test]
fn no_lease_before_its_index_is_applied() {
    let mut cluster = Cluster::led_by_1(6);
    cluster.node(1).persist = Persist::ByHand;
    let at = cluster.propose(1, "a").unwrap();
    cluster.run(10 * STEP_US);
    assert!(cluster.node(1).view().committed() >= at.1);
    let id = cluster.read(1).unwrap();
    cluster.run(10 * STEP_US);
    assert_eq!(cluster.node(1).reads.get(&id), Some(&at.1));
    assert_eq!(
        cluster.node(1).view().lease_until(),
        None,
        "the read is granted, but the state is too old"
    );
    cluster.node(1).persist = Persist::AtOnce;
    cluster.run(5 * STEP_US);
    assert!(cluster.node(1).view().lease_until().is_some());
}

/// Keeps the leader's lease up, cuts it off in some way, and lets the others go on: their first
/// acknowledged entry has to come after the lease's end.
fn lease_ends_before_the_next_leader(seed: u64, cut: impl Fn(&mut Cluster)) {
    let mut cluster = with_lease(seed);
    for _ in 0..20 {
        cluster.read(1);
        cluster.run(37 * STEP_US);
    }
    cluster.read(1);
    cut(&mut cluster);
    let until = cluster.node(1).view().lease_until().unwrap();
    cluster.run_until("another leads", |cluster| {
        cluster.leader().is_some_and(|id| id != 1)
    });
    assert!(cluster.clock(1) >= until);
    let leader = cluster.leader().unwrap();
    cluster.commit_on(leader, "next", &[2, 3]);
    let next = cluster.read(leader);
    cluster.run(10 * STEP_US);
    assert!(next.is_some() && cluster.node(leader).view().lease_until().is_some());
}

#[test]
fn leases_and_partitions() {
    for seed in 0..10 {
        lease_ends_before_the_next_leader(seed, |cluster| cluster.isolate(1));
        // It hears the others, but they don't hear it.
        lease_ends_before_the_next_leader(seed, |cluster| cluster.blocked.extend([(1, 2), (1, 3)]));
        // They hear its appends and nothing else.
        lease_ends_before_the_next_leader(seed, |cluster| {
            cluster.filter = Some(Box::new(|message| {
                message.from != 1 || message.get_msg_type() == MessageType::MsgRequestVoteResponse
            }));
        });
    }
}

#[test]
fn a_paused_leader_comes_back_without_its_lease() {
    for seed in 0..10 {
        let mut cluster = with_lease(seed);
        cluster.read(1);
        cluster.run(5 * STEP_US);
        let reading = cluster.clock(1);
        cluster.node(1).paused = Some(reading);
        assert!(
            cluster.node(1).view().lease_until().unwrap() > reading,
            "it would still serve, by that reading"
        );
        cluster.run_until("another leads", |cluster| {
            cluster.leader().is_some_and(|id| id != 1) || {
                // Node 1 still believes that it leads; look at the others.
                cluster.nodes[1..]
                    .iter()
                    .any(|node| node.view().role() == Role::Leader)
            }
        });
        let leader = cluster.nodes[1..]
            .iter()
            .find(|node| node.view().role() == Role::Leader)
            .unwrap()
            .id;
        cluster.commit_on(leader, "next", &[2, 3]);
        cluster.node(1).resume();
        cluster.run(5 * STEP_US);
        assert!(
            cluster
                .node(1)
                .view()
                .lease_until()
                .is_none_or(|until| until < cluster.clock(1))
        );
        cluster.run_until("1 learns of it", |cluster| {
            cluster.node(1).commands() == ["next"]
        });
    }
}

/// A follower is stopped between reading the clock and taking a heartbeat. Its answer holds up a lease
/// from much later than that reading, so its vote hold must not count from it.
#[test]
fn a_paused_follower_does_not_vote_from_its_answer_on() {
    let mut cluster = with_lease(7);
    let reading = cluster.clock(2);
    cluster.node(2).paused = Some(reading);
    cluster.run(ELECTION_US * 9 / 10);
    // From here on only node 2 keeps the leader's lease up.
    cluster.isolate(3);
    cluster.run(5 * STEP_US);
    cluster.read(1);
    cluster.run(3 * STEP_US);
    cluster.node(2).resume();
    cluster.run(5 * STEP_US);
    let until = cluster.node(1).view().lease_until().unwrap();
    assert!(until > cluster.clock(1));
    // Node 3 has waited long enough by its own clock, and asks node 2.
    cluster.heal();
    cluster.isolate(1);
    cluster.run_until("another leads", |cluster| {
        cluster.leader().is_some_and(|id| id != 1)
    });
    assert!(cluster.clock(1) >= until);
}

/// Ticks of a stall come late and all at once, right after the heartbeat that came in it. By raft's
/// count an election timeout has passed then; by the clock it has not.
#[test]
fn ticks_in_a_burst_do_not_shorten_the_vote_hold() {
    let mut cluster = with_lease(9);
    let reading = cluster.clock(2);
    cluster.node(2).paused = Some(reading);
    cluster.run(2 * ELECTION_US);
    cluster.node(2).resume();
    let (now, term) = (cluster.clock(2), cluster.node(2).view().term());
    assert!(now >= reading + 2 * ELECTION_US);
    // Held back from campaigning, raft counts one tick less than its drawn timeout: with the shortest
    // one its own rule would refuse for one tick more than ours, which is what is tested.
    let replica = cluster.node(2).replica();
    replica.set_randomized_election_ticks(2 * ELECTION_TICKS - 1);
    for _ in 0..30 {
        replica.tick(now);
    }
    let replica = cluster.node(2).replica();
    assert_eq!(
        (replica.role(), replica.term()),
        (Role::Follower, term),
        "it does not campaign"
    );
    let mut request = Message {
        from: 3,
        to: 2,
        term: term + 1,
        index: 99,
        log_term: term,
        ..Message::default()
    };
    request.set_msg_type(MessageType::MsgRequestVote);
    for wait in [0, ELECTION_US - 1] {
        assert_eq!(
            replica.step(request.clone().into(), now + wait),
            Err(StepRefused::LeaderAlive)
        );
    }
    replica.step(request.into(), now + ELECTION_US).unwrap();
    assert_eq!(
        replica.term(),
        term + 1,
        "but it votes when the time is over"
    );
}

#[test]
fn a_lease_ends_when_a_transfer_begins() {
    let mut cluster = with_lease(8);
    let target = cluster.node(1).view().most_caught_up(&[2, 3]).unwrap();
    cluster.node(1).replica().transfer_leader(target).unwrap();
    assert_eq!(cluster.node(1).view().lease_until(), None);
    cluster.run_until("it leads", |cluster| cluster.leader() == Some(target));
    cluster.commit(target, "a");
    cluster.read(target).unwrap();
    cluster.run(5 * STEP_US);
    assert!(
        cluster.node(target).view().lease_until().is_some(),
        "its own, in its own term"
    );
}
