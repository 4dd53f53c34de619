//! S18: the cluster's members change only as an operator asked, once a call, and each change is recorded with
//! who asked and why. And how far the groups have come with that; L5: a node that must catch up has no vote yet.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_replica::ConfState;
use nowserving_shard::members::{Members, MembersRequest, MembersState};

use crate::calls::{Answer, Calls, What};
use crate::disk::FIRST_NODES;
use crate::env::Env;
use crate::nats::NodeId;

/// A node that gets its vote has all but so many entries.
const LACKS_MAX: u64 = 64;

/// The members, as the shards have them.
#[derive(Debug)]
pub struct Operators {
    /// Those that shard 0 decided on, from the first version on.
    versions: Vec<Members>,
    /// Numbers of nodes that were removed.
    removed: BTreeSet<NodeId>,
    /// The reasons of the recorded changes: each is of one call.
    reasons: BTreeSet<String>,
    /// By shard: the version that it has.
    known: BTreeMap<u32, u64>,
    /// By shard: the newest group that a node has applied, and the entry through which.
    groups: BTreeMap<u32, (u64, ConfState)>,
    /// By node and shard: the voters that this node has applied last.
    known_voters: BTreeMap<(NodeId, u32), [BTreeSet<NodeId>; 2]>,
    shards: u32,
    /// The nodes of the last change that all groups completed.
    completed: BTreeSet<NodeId>,
    /// How many they were.
    pub changes: u64,
}

fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
    nodes.iter().copied().collect()
}

/// Each half needs a majority, unless it is empty.
fn halves(group: &ConfState) -> [BTreeSet<NodeId>; 2] {
    [set(&group.voters), set(&group.voters_outgoing)]
}

impl Operators {
    /// Of a cluster that was never started.
    #[must_use]
    pub fn new(shards: u32) -> Operators {
        Operators {
            versions: Vec::new(),
            removed: BTreeSet::new(),
            reasons: BTreeSet::new(),
            known: BTreeMap::new(),
            groups: BTreeMap::new(),
            known_voters: BTreeMap::new(),
            shards,
            completed: set(&FIRST_NODES),
            changes: 0,
        }
    }

    /// The newest members.
    #[must_use]
    pub fn members(&self) -> Members {
        let newest = self.versions.last().cloned();
        newest.unwrap_or_else(|| Members::begin(&FIRST_NODES, 0))
    }

    /// The voters of all groups: each of these sets needs a majority.
    #[must_use]
    pub fn electorates(&self) -> Vec<BTreeSet<NodeId>> {
        let groups = self.groups.values();
        let halves = groups.flat_map(|(_, group)| halves(group));
        halves.filter(|voters| !voters.is_empty()).collect()
    }

    /// Whether every member has applied the newest voters of its groups. One that has not may need the votes of nodes
    /// that were removed since; if only a node that is then lost has, none of the others can lead.
    #[must_use]
    pub fn are_known(&self) -> bool {
        let members = self.members();
        let knows = |id: &NodeId, shard: u32, group: &ConfState| {
            let known = self.known_voters.get(&(*id, shard));
            known.is_none_or(|known| *known == halves(group))
        };
        let mut groups = self.groups.iter();
        groups.all(|(shard, (_, group))| members.nodes.keys().all(|id| knows(id, *shard, group)))
    }

    /// An entry of a shard was applied, after which it has these members.
    pub fn applied(&mut self, env: &mut Env, shard: u32, members: &MembersState) {
        let wanted = members.wanted();
        let before = self.known.insert(shard, wanted.version).unwrap_or(0);
        if wanted.version == before {
            return;
        }
        let checked = match shard {
            0 => self.decided(&env.calls, before, members),
            _ => self.adopted(before, wanted),
        };
        if let Err(what) = checked {
            env.violated("S18", format!("shard {shard}: {what}"));
        }
    }

    /// Shard 0 has newer members.
    fn decided(
        &mut self,
        calls: &Calls,
        before: u64,
        members: &MembersState,
    ) -> Result<(), String> {
        let wanted = members.wanted();
        let changes: Vec<_> = members.changes().filter(|it| it.version > before).collect();
        // The first version is written down by the first leader.
        let begun = u64::from(before == 0);
        if wanted.version != before + begun + changes.len() as u64 {
            let (version, count) = (wanted.version, changes.len());
            return Err(format!(
                "members of version {version} after {before}, and {count} changes were recorded"
            ));
        }
        for change in changes {
            if !asked(calls, &change.request) {
                return Err(format!("nobody asked for {:?}", change.request));
            }
            if !self.reasons.insert(change.request.reason.clone()) {
                return Err(format!("{:?} was carried out twice", change.request));
            }
        }
        if let Some(last) = self.versions.last() {
            let removed = last
                .nodes
                .keys()
                .filter(|id| !wanted.nodes.contains_key(id));
            self.removed.extend(removed);
        }
        if wanted.nodes.keys().any(|id| self.removed.contains(id)) {
            let removed = &self.removed;
            return Err(format!(
                "a number is used again: {wanted:?}, removed {removed:?}"
            ));
        }
        self.versions.push(wanted.clone());
        Ok(())
    }

    /// Another shard has newer members.
    fn adopted(&self, before: u64, wanted: &Members) -> Result<(), String> {
        let decided = self.versions.iter().any(|it| it == wanted);
        match decided && wanted.version > before {
            true => Ok(()),
            false => Err(format!("{wanted:?}, which shard 0 did not decide on")),
        }
    }

    /// A node has applied a shard through an entry, after which its group is this one. `held`: the last entry that
    /// a node has had in its log.
    pub fn group(
        &mut self,
        env: &mut Env,
        (id, shard): (NodeId, u32),
        applied: u64,
        group: ConfState,
        held: impl Fn(NodeId) -> u64,
    ) {
        self.known_voters.insert((id, shard), halves(&group));
        let known = self.groups.get(&shard);
        if known.is_some_and(|(through, _)| *through >= applied) {
            return;
        }
        if known.is_some_and(|(_, known)| *known == group) {
            self.groups.insert(shard, (applied, group));
            return;
        }
        let nodes = group.voters.iter().chain(&group.voters_outgoing);
        let nodes = nodes.chain(&group.learners).chain(&group.learners_next);
        let member = |id: &u64| {
            FIRST_NODES.contains(id) || self.versions.iter().any(|it| it.nodes.contains_key(id))
        };
        if let Some(id) = nodes.copied().find(|id| !member(id)) {
            let what = format!("node {id} is in the group of shard {shard}, and nobody added it");
            env.violated("S18", what);
        }
        if let Some((before, known)) = self.groups.get(&shard) {
            // The entry that gives the vote comes after those that were applied before it.
            let late = |id: &&u64| !known.voters.contains(id) && held(**id) + LACKS_MAX < *before;
            if let Some(id) = group.voters.iter().find(late) {
                let what = format!(
                    "node {id} got its vote in shard {shard} behind entry {before}, and its log ended at {}",
                    held(*id)
                );
                env.violated("L5", what);
            }
        }
        self.groups.insert(shard, (applied, group));
        self.note_completed(env);
    }

    fn note_completed(&mut self, env: &mut Env) {
        let wanted = self.members().nodes.into_keys().collect();
        if self.is_complete() && self.completed != wanted {
            self.changes += 1;
            env.note(format_args!("all shards have the members {wanted:?}"));
            self.completed = wanted;
        }
    }

    /// Whether every group has the newest members.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let wanted: BTreeSet<NodeId> = self.members().nodes.into_keys().collect();
        let over = |group: &ConfState| {
            set(&group.voters) == wanted
                && group.learners.is_empty()
                && group.voters_outgoing.is_empty()
        };
        self.groups.len() == self.shards as usize
            && self.groups.values().all(|(_, group)| over(group))
    }

    /// L3: after everything was healed, changes come to their end.
    pub fn all_completed(&self, env: &mut Env) {
        if !self.is_complete() {
            let what = format!(
                "the members {:?} were decided on long ago, and the groups are {:?}",
                self.members().nodes.keys(),
                self.groups
            );
            env.violated("L3", what);
        }
    }

    /// S18: an operator was answered that a change is made.
    pub fn answered(&self, env: &mut Env, request: &MembersRequest, answer: &Answer) {
        let Ok(Outcome::Reply(ReplyBody::MembersChanged(reply))) = answer.as_ref() else {
            return;
        };
        let mut versions = self.versions.iter();
        let members = versions.find(|it| it.version == reply.members_version);
        let made = members.and_then(|it| it.made_already(&request.change));
        if made.is_none() {
            let what = format!("{request:?} was answered as made in {reply:?}: {members:?}");
            env.violated("S18", what);
        }
    }
}

/// Whether an operator has asked for it, in these words.
fn asked(calls: &Calls, request: &MembersRequest) -> bool {
    calls.all.iter().any(|call| match &call.query.what {
        What::Members(asked) => {
            (&asked.change, &asked.by, &asked.reason)
                == (&request.change, &request.by, &request.reason)
        }
        _ => false,
    })
}
