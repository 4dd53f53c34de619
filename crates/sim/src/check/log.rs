//! S1 to S3 and S6: who leads, what the logs hold, and what is promised before it is on disk.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_replica::{Committed, Message, Payload, Promise, Replica, Role, Write};

use super::FIRST_INDEX;
use crate::env::Env;
use crate::nats::NodeId;
use crate::node::Node;
use crate::timeline::Time;
use crate::trace::fnv1a64;

/// What is known of one shard's logs.
#[derive(Debug, Default)]
pub struct LogCheck {
    /// By term: the leader, and since when.
    leaders: BTreeMap<u64, (NodeId, Time)>,
    entries: BTreeMap<(u64, u64), Known>,
    /// When a leader put an entry into its log; the disk gets it later if it is slow.
    proposed: BTreeMap<(u64, u64), Time>,
    /// The last of them by term.
    last_proposed: BTreeMap<u64, u64>,
    /// By node: the last entry that its log has had, or that was in a snapshot of a peer.
    held: BTreeMap<NodeId, u64>,
    /// Terms whose leaders have told another node to take over.
    handed_over: BTreeSet<u64>,
    /// Elections of a cluster in which nothing fails, but for those after a hand-over.
    pub elections_without_cause: u64,
    committed: Vec<Committed>,
}

/// An entry that some node has had in its log.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: u64,
    appended_at: Time,
}

fn hash(entry: Committed) -> u64 {
    match entry.payload {
        Payload::Empty => fnv1a64(0, &[]),
        Payload::Command(data) => fnv1a64(0, &data),
        Payload::ConfChange(data) => fnv1a64(2, &data),
    }
}

impl LogCheck {
    /// How many terms had a leader.
    #[must_use]
    pub fn leaders(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// S2: a node puts entries into its log.
    pub fn appended(&mut self, env: &mut Env, node: &Node, write: &Write, now: Time) {
        let started_at = write.start.as_ref().map(|it| it.index);
        let last = write.entries.last().map(|it| it.index).or(started_at);
        let held = self.held.entry(node.id).or_insert(0);
        *held = last.unwrap_or(0).max(*held);
        for entry in &write.entries {
            let new = Known {
                hash: hash(entry.clone().into()),
                appended_at: now,
            };
            let known = *self.entries.entry((entry.index, entry.term)).or_insert(new);
            if known.hash != new.hash {
                let (node, shard) = (node.id, write.shard);
                let what = format!(
                    "node {node} has another entry {} of term {} in shard {shard}",
                    entry.index, entry.term
                );
                env.violated("S2", what);
            }
        }
    }

    /// The last entry that a node has had in its log.
    #[must_use]
    pub fn held(&self, node: NodeId) -> u64 {
        self.held.get(&node).copied().unwrap_or(0)
    }

    /// A node sends this Raft message.
    pub fn sent(&mut self, message: &Message) {
        self.handed_over.extend(message.hands_over());
    }

    /// When an entry came into any node's log.
    #[must_use]
    pub fn appended_at(&self, index: u64, term: u64) -> Time {
        let known = self.entries.get(&(index, term));
        let appended_at = known.map(|known| known.appended_at);
        let proposed_at = self.proposed.get(&(index, term)).copied();
        proposed_at.or(appended_at).unwrap_or(0)
    }

    /// Since when this term has had a leader.
    #[must_use]
    pub fn led_since(&self, term: u64) -> Time {
        self.leaders.get(&term).map_or(0, |(_, since)| *since)
    }

    /// S1 and S3: what a node says of itself.
    pub fn role(&mut self, env: &mut Env, node: NodeId, shard: u32, replica: &Replica) {
        if replica.role() != Role::Leader {
            return;
        }
        let term = replica.term();
        self.note_proposals(replica, env.timeline.now());
        match self.leaders.get(&term) {
            Some((leader, _)) if *leader == node => {}
            Some((leader, _)) => {
                let what = format!("nodes {leader} and {node} lead shard {shard} in term {term}");
                env.violated("S1", what);
            }
            None => {
                env.note(format_args!("n{node}: leads shard {shard} in term {term}"));
                if let Some((before, _)) = self.leaders.last_key_value()
                    && env.timeline.now() >= env.answers_from
                    && env.slow_disks.is_empty()
                    && env.full_disks.is_empty()
                    && !self.handed_over.contains(before)
                {
                    self.elections_without_cause += 1;
                }
                self.leaders.insert(term, (node, env.timeline.now()));
                self.has_all(env, node, shard, replica);
            }
        }
    }

    fn note_proposals(&mut self, leader: &Replica, now: Time) {
        let (term, last) = (leader.term(), leader.last_index());
        let known = self.last_proposed.insert(term, last);
        for index in known.unwrap_or(last.saturating_sub(1)) + 1..=last {
            self.proposed.entry((index, term)).or_insert(now);
        }
    }

    /// By S2 it is enough to look at the last committed entry of an earlier term.
    fn has_all(&self, env: &mut Env, node: NodeId, shard: u32, replica: &Replica) {
        let term = replica.term();
        let older = self.committed.partition_point(|entry| entry.term < term);
        let Some(last) = older.checked_sub(1).and_then(|at| self.committed.get(at)) else {
            return;
        };
        let has = replica.term_at(last.index) == Some(last.term);
        if !has && last.index > replica.applied() {
            let index = last.index;
            let what = format!("leader {node} of shard {shard} in term {term} lacks entry {index}");
            env.violated("S3", what);
        }
    }

    /// S2: a node has applied an entry; true if it is the first to.
    pub fn committed(
        &mut self,
        env: &mut Env,
        node: NodeId,
        shard: u32,
        entry: &Committed,
    ) -> bool {
        let at = entry.index.saturating_sub(FIRST_INDEX) as usize;
        match self.committed.get(at) {
            Some(known) if known == entry => false,
            Some(_) => {
                let index = entry.index;
                let what =
                    format!("node {node} has applied another entry {index} of shard {shard}");
                env.violated("S2", what);
                false
            }
            None => {
                if at != self.committed.len() {
                    let index = entry.index;
                    let what = format!("node {node} skips to entry {index} of shard {shard}");
                    env.violated("S2", what);
                    return false;
                }
                self.committed.push(entry.clone());
                true
            }
        }
    }

    /// Whether this entry was committed.
    pub fn is_committed(&self, index: u64, term: u64) -> bool {
        let at = index.checked_sub(FIRST_INDEX);
        let known = at.and_then(|at| self.committed.get(at as usize));
        known.is_some_and(|known| known.term == term)
    }

    /// The committed entries through this one.
    pub fn entries_through(&self, index: u64) -> impl Iterator<Item = &Committed> {
        self.committed
            .iter()
            .take_while(move |entry| entry.index <= index)
    }
}

/// S6: what a message promises is on disk.
pub fn promises(env: &mut Env, node: &Node, shard: u32, message: &Message) {
    if !is_kept(node, shard, message) {
        let node = node.id;
        let what = format!("node {node} sends {message} of shard {shard} before it is synced");
        env.violated("S6", what);
    }
}

fn is_kept(node: &Node, shard: u32, message: &Message) -> bool {
    let Some(promise) = message.promise() else {
        return true;
    };
    let durable = node.disk.log(shard).load_durable(shard);
    let state = durable.hard_state;
    match promise {
        // A later leader may have replaced meanwhile what was synced; its followers heed no earlier term.
        Promise::Log { term, through } => {
            state.term > term || (state.term == term && durable.last_index >= through)
        }
        Promise::Vote { term, candidate } => {
            state.term > term || (state.term, state.vote) == (term, candidate)
        }
    }
}
