//! Members are removed, added as learners, and made voters; a leader that is removed; changes that nobody may make.

use nowserving_log::Crash;
use nowserving_replica::{ConfChange, MembersError, Role};

use crate::common::{Cluster, ELECTION_US};

fn promote(id: u64) -> ConfChange {
    set(&[id], &[])
}

fn set(promote: &[u64], remove: &[u64]) -> ConfChange {
    ConfChange::Set {
        promote: promote.to_vec(),
        remove: remove.to_vec(),
    }
}

/// Proposes the change through this node once the one before it is applied.
fn propose(cluster: &mut Cluster, leader: u64, change: &ConfChange) {
    cluster.run_until("the change is taken", |cluster| {
        cluster
            .node(leader)
            .replica()
            .change_members(change)
            .is_ok()
    });
}

/// Makes the change through node 1, and waits until these nodes have these voters.
fn change(cluster: &mut Cluster, change: &ConfChange, on: &[u64], voters: &[u64]) {
    propose(cluster, 1, change);
    cluster.run_until("the members change", |cluster| {
        on.iter().all(|&id| {
            let members = cluster.node(id).view().members();
            members.voters == voters && members.voters_outgoing.is_empty()
        })
    });
}

/// Nodes 1 and 2 vote, node 1 leads, node 3 is a learner.
fn with_learner_3(seed: u64) -> Cluster {
    let mut cluster = Cluster::led_by_1(seed);
    change(&mut cluster, &set(&[], &[3]), &[1, 2], &[1, 2]);
    change(
        &mut cluster,
        &ConfChange::AddLearner(3),
        &[1, 2, 3],
        &[1, 2],
    );
    cluster
}

#[test]
fn a_member_is_removed_and_comes_back_as_a_learner_first() {
    let mut cluster = Cluster::led_by_1(1);
    change(&mut cluster, &set(&[], &[3]), &[1, 2], &[1, 2]);
    let removed_at = cluster.node(3).view().last_index();
    cluster.commit_on(1, "without 3", &[1, 2]);
    assert_eq!(cluster.node(3).view().last_index(), removed_at);
    let learner = ConfChange::AddLearner(3);
    propose(&mut cluster, 1, &learner);
    cluster.run_until("the learner has the log", |cluster| {
        cluster
            .node(1)
            .view()
            .progress_of(3)
            .is_some_and(|it| it.lag == 0)
    });
    let node = cluster.node(1).view();
    assert_eq!(node.members().learners, [3]);
    assert!(node.progress_of(3).is_some_and(|it| !it.votes));
    assert_eq!(node.most_caught_up(&[3]), None, "a learner does not lead");
    // A learner is in no quorum.
    cluster.isolate(2);
    cluster.run(3 * ELECTION_US);
    assert_eq!(cluster.leader(), None);
    cluster.heal();
    cluster.run_until("node 1 or 2 leads", |cluster| cluster.leader().is_some());
    let leader = cluster.leader().unwrap();
    propose(&mut cluster, leader, &promote(3));
    cluster.run_until("node 3 votes", |cluster| {
        cluster
            .nodes
            .iter()
            .all(|it| it.view().voters() == [1, 2, 3])
    });
}

#[test]
fn a_learner_that_has_acknowledged_nothing_is_not_caught_up() {
    let mut cluster = Cluster::led_by_1(6);
    change(&mut cluster, &set(&[], &[3]), &[1, 2], &[1, 2]);
    cluster.isolate(3);
    propose(&mut cluster, 1, &ConfChange::AddLearner(3));
    cluster.run(ELECTION_US);
    let node = cluster.node(1).view();
    assert_eq!(node.members().learners, [3]);
    assert_eq!(node.progress_of(3).map(|it| it.matched), Some(0));
}

/// The others know that it votes, and need it.
#[test]
fn a_learner_votes_before_it_knows_that_it_does() {
    for is_first in [false, true] {
        let mut cluster = with_learner_3(7);
        cluster.node(3).is_first = is_first;
        cluster.run(ELECTION_US);
        cluster.isolate(3);
        propose(&mut cluster, 1, &set(&[3], &[2]));
        cluster.run_until("node 1 needs it", |cluster| {
            cluster.node(1).view().members().voters == [1, 3]
        });
        cluster.run_until("node 1 leads no more", |it| it.leader().is_none());
        cluster.run(2 * ELECTION_US);
        assert_eq!(cluster.node(3).view().members().learners, [3]);
        cluster.heal();
        cluster.run_until("another leads", |it| it.leader().is_some());
    }
}

#[test]
fn one_voter_is_replaced_by_another_at_once() {
    let mut cluster = with_learner_3(2);
    change(&mut cluster, &set(&[3], &[2]), &[1, 3], &[1, 3]);
    cluster.commit_on(1, "without 2", &[1, 3]);
    assert_eq!(cluster.node(1).view().members().voters_outgoing, []);
}

#[test]
fn a_joint_configuration_ends_under_the_next_leader() {
    let mut cluster = with_learner_3(3);
    // Nobody gets the entry that leaves the joint configuration, and then its leader dies.
    let joint = set(&[3], &[2]);
    propose(&mut cluster, 1, &joint);
    cluster.run_until("node 2 or 3 is in the joint configuration", |cluster| {
        let joint = |id: u64| {
            !cluster.nodes[id as usize - 1]
                .view()
                .members()
                .voters_outgoing
                .is_empty()
        };
        joint(2) || joint(3)
    });
    cluster.node(1).crash(Crash::default());
    let now = cluster.now;
    cluster.run(ELECTION_US);
    cluster.node(1).start(now + ELECTION_US);
    cluster.run_until("it ends", |cluster| {
        let members = cluster.leader().map(|it| cluster.node(it).view().members());
        members.is_some_and(|it| it.voters_outgoing.is_empty() && it.voters == [1, 3])
    });
}

#[test]
fn members_survive_a_restart_of_all() {
    let mut cluster = Cluster::led_by_1(4);
    change(&mut cluster, &set(&[], &[3]), &[1, 2], &[1, 2]);
    let now = cluster.now;
    for id in [1, 2, 3] {
        cluster.node(id).crash(Crash::default());
    }
    // The removed node does not stand for election for long once it has learned of its removal, and
    // does not win an election before.
    for id in [1, 2, 3] {
        cluster.node(id).start(now);
    }
    for id in [1, 2] {
        let members = |cluster: &mut Cluster| cluster.node(id).view().voters() == [1, 2];
        cluster.step();
        assert!(
            members(&mut cluster),
            "the commit index of the change is on disk"
        );
    }
    cluster.run_until("they elect a leader", |cluster| cluster.leader().is_some());
    assert_ne!(cluster.leader(), Some(3));
}

#[test]
fn a_second_change_waits_for_the_first_one() {
    let mut cluster = Cluster::led_by_1(5);
    let replica = cluster.node(1).replica();
    let leave = replica.change_members(&ConfChange::LeaveJoint);
    assert_eq!(leave, Err(MembersError::InProgress));
    replica.change_members(&set(&[], &[3])).unwrap();
    let second = replica.change_members(&set(&[], &[2]));
    assert_eq!(second, Err(MembersError::InProgress));
    let follower = cluster.node(2).replica().change_members(&set(&[], &[3]));
    assert_eq!(follower, Err(MembersError::NotLeader));
    assert_eq!(cluster.node(2).view().role(), Role::Follower);
}

#[test]
fn a_leader_that_is_no_member_any_more_steps_down() {
    let mut cluster = Cluster::led_by_1(8);
    propose(&mut cluster, 1, &set(&[], &[1]));
    // As under load: raft would panic when these are acknowledged.
    for command in 0..10 {
        assert!(
            cluster
                .propose(1, &format!("behind it: {command}"))
                .is_some()
        );
    }
    cluster.run_until("another node leads", |cluster| {
        cluster.leader().is_some_and(|id| id != 1)
    });
    let leader = cluster.leader().unwrap();
    cluster.commit_on(leader, "without 1", &[2, 3]);
    assert_eq!(cluster.node(1).view().role(), Role::Follower);
}
