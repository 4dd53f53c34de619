//! Each leader brings its group to the wanted members, one step at a time.
//!
//! Nothing about a change under way is stored: every leader compares its group with the wanted members and
//! takes the next step, so a change goes on under any leader after any interruption.

use std::collections::BTreeSet;

use nowserving_replica::{ConfChange, ConfState};
use nowserving_shard::command::Command;
use nowserving_shard::members::{Members, MembersCommand};

use super::fit::FitPeers;
use crate::ctx::NodeCtx;
use crate::shard::{Shard, Shards};

/// A learner that lacks more of the log gets no vote yet: commits would wait for it.
const PROMOTED_LAG_MAX: u64 = 64;

/// The next step of a leader towards the wanted members.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The group has the wanted members.
    Done,
    /// A node has to catch up, or a node that can lead must come back.
    Wait,
    Change(ConfChange),
    /// The leader is to be removed: one of these takes over.
    HandOver(Vec<u64>),
}

/// Decides on the step of the leader `me`. `caught_up`: whether a member lacks little of the log.
fn next_step(
    me: u64,
    group: &ConfState,
    wanted: &BTreeSet<u64>,
    caught_up: impl Fn(u64) -> bool,
) -> Step {
    if !group.voters_outgoing.is_empty() {
        // Raft ends it by itself, unless the leader changed at the wrong moment.
        return Step::Change(ConfChange::LeaveJoint);
    }
    let voters: BTreeSet<u64> = group.voters.iter().copied().collect();
    let learners: BTreeSet<u64> = group.learners.iter().copied().collect();
    let missing = wanted.iter().copied();
    let missing = missing.filter(|id| !voters.contains(id) && !learners.contains(id));
    if let Some(id) = missing.min() {
        return Step::Change(ConfChange::AddLearner(id));
    }
    let promote: Vec<u64> = wanted.difference(&voters).copied().collect();
    let members = voters.union(&learners).copied();
    let remove: Vec<u64> = members.filter(|id| !wanted.contains(id)).collect();
    if promote.is_empty() && remove.is_empty() {
        return Step::Done;
    }
    if !promote.iter().all(|id| caught_up(*id)) {
        return Step::Wait;
    }
    if wanted.contains(&me) {
        return Step::Change(ConfChange::Set { promote, remove });
    }
    let successors: Vec<u64> = wanted.intersection(&voters).copied().collect();
    match successors.is_empty() {
        // Nobody could take over: first the new nodes get their votes.
        true => Step::Change(ConfChange::Set {
            promote,
            remove: Vec::new(),
        }),
        false => Step::HandOver(successors),
    }
}

/// Every led shard takes its next step towards the wanted members. `begin_with`: the first members of a new cluster.
pub(crate) fn reconcile(
    shards: &mut Shards,
    newest: &Members,
    begin_with: &MembersCommand,
    fit: &FitPeers,
    ctx: &mut NodeCtx,
) {
    for shard in shards.values_mut() {
        if shard.leader_state.is_none() || shard.offer_of_term().is_some() {
            continue;
        }
        if let Some(command) = members_to_copy(shard, newest, begin_with) {
            shard.pending.push_own([Command::Members(command)]);
            continue;
        }
        let wanted = shard.state.members().wanted();
        if wanted.version == 0 {
            continue;
        }
        let wanted = wanted.nodes.keys().copied().collect();
        // Of a short log a node that never came lacks few entries, too.
        let caught_up = |id| {
            let progress = shard.replica.progress_of(id);
            progress.is_some_and(|it| it.matched > 0 && it.lag <= PROMOTED_LAG_MAX)
        };
        let caught_up =
            |id| caught_up(id) || nowserving_bite::is(nowserving_bite::Break::L5Promoted);
        match next_step(ctx.clocks.me, &shard.replica.members(), &wanted, caught_up) {
            Step::Done | Step::Wait => {}
            Step::Change(change) => change_members(shard, &change),
            Step::HandOver(to) => {
                let target = fit.best_for(shard, |id| to.contains(&id));
                if let Some(target) = target {
                    shard.offer(target, ctx);
                }
            }
        }
    }
}

/// The command that brings the newest known members into this shard's state, if they are not there.
fn members_to_copy(
    shard: &mut Shard,
    newest: &Members,
    begin_with: &MembersCommand,
) -> Option<MembersCommand> {
    let known = shard.state.members().wanted();
    let (due, version) = match shard.id {
        0 => (known.version == 0, 1),
        _ => (newest.supersede(known), newest.version),
    };
    let term = shard.replica.term();
    let asks = due && shard.leading.asks_for_members(term, version);
    asks.then(|| match shard.id {
        0 => begin_with.clone(),
        _ => MembersCommand::Adopt(newest.clone()),
    })
}

fn change_members(shard: &mut Shard, change: &ConfChange) {
    match shard.replica.change_members(change) {
        Ok(()) => {
            tracing::info!(shard = shard.id, ?change, "changing members");
            shard.dirty = true;
        }
        Err(error) => tracing::debug!(shard = shard.id, ?change, %error, "no change of members"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(voters: &[u64], learners: &[u64]) -> ConfState {
        ConfState {
            learners: learners.to_vec(),
            ..ConfState::of_voters(voters)
        }
    }

    fn set(promote: &[u64], remove: &[u64]) -> Step {
        Step::Change(ConfChange::Set {
            promote: promote.to_vec(),
            remove: remove.to_vec(),
        })
    }

    /// The step of leader 1; all but `behind` are caught up.
    fn step(group: &ConfState, wanted: &[u64], behind: &[u64]) -> Step {
        let wanted = wanted.iter().copied().collect();
        next_step(1, group, &wanted, |id| !behind.contains(&id))
    }

    #[test]
    fn new_nodes_learn_first_and_then_all_changes_are_one() {
        let learner = |id| Step::Change(ConfChange::AddLearner(id));
        for (group, wanted, behind, expected) in [
            (group(&[1, 2, 3], &[]), &[1, 2, 3][..], &[][..], Step::Done),
            (group(&[1, 2, 3], &[]), &[1, 2, 3, 4, 5], &[], learner(4)),
            (group(&[1, 2, 3], &[4]), &[1, 2, 3, 4, 5], &[4], learner(5)),
            (
                group(&[1, 2, 3], &[4, 5]),
                &[1, 2, 3, 4, 5],
                &[5],
                Step::Wait,
            ),
            (
                group(&[1, 2, 3], &[4, 5]),
                &[1, 2, 3, 4, 5],
                &[],
                set(&[4, 5], &[]),
            ),
            // Replaced: also the learner of a change that was given up goes.
            (
                group(&[1, 2, 3], &[4, 5]),
                &[1, 2, 5],
                &[4],
                set(&[5], &[3, 4]),
            ),
            (
                group(&[1, 2, 3, 4, 5], &[]),
                &[1, 2, 3],
                &[],
                set(&[], &[4, 5]),
            ),
        ] {
            assert_eq!(
                step(&group, wanted, behind),
                expected,
                "{group:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn a_leader_that_is_removed_hands_over_first() {
        assert_eq!(
            step(&group(&[1, 2, 3], &[4]), &[2, 3, 4], &[]),
            Step::HandOver(vec![2, 3])
        );
        // There is no other voter: the new one gets its vote first.
        assert_eq!(step(&group(&[1], &[2]), &[2], &[]), set(&[2], &[]));
        assert_eq!(
            step(&group(&[1, 2], &[]), &[2], &[]),
            Step::HandOver(vec![2])
        );
    }

    #[test]
    fn a_joint_configuration_ends_before_anything_else() {
        let mut joint = group(&[1, 2, 4], &[]);
        joint.voters_outgoing = vec![1, 2, 3];
        let leave = Step::Change(ConfChange::LeaveJoint);
        assert_eq!(step(&joint, &[1, 2], &[]), leave);
    }
}
