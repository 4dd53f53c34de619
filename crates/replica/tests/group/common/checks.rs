//! What must hold at every step (RELIABILITY: S1 to S6, S15 as far as it is the replica's).

use std::collections::BTreeMap;

use nowserving_replica::{Committed, Micros, Payload, Role};
use raft::eraftpb::{Message, MessageType};

use super::Node;

#[derive(Default)]
pub struct Checks {
    /// S1.
    leaders: BTreeMap<u64, u64>,
    /// S2, S4: what every node has to hand out, from index 1 on.
    pub log: Vec<Committed>,
    /// What was proposed, and where it was put.
    proposals: BTreeMap<(u64, u64), String>,
    /// S5: the last index that a client may know to be committed.
    pub acknowledged: u64,
    /// How often a node had a lease.
    pub leases: u64,
    /// Set by a test that wants to see what breaks further on.
    pub skip_promises: bool,
}

impl Checks {
    pub fn proposed(&mut self, at: (u64, u64), data: &str) {
        assert!(
            self.proposals.insert(at, data.into()).is_none(),
            "term and index name two commands"
        );
    }

    /// Whether a proposal was committed; `None` if that is still open.
    pub fn outcome(&self, (term, index): (u64, u64)) -> Option<bool> {
        self.log
            .get(index as usize - 1)
            .map(|entry| entry.term == term)
    }

    pub fn handed_out(&mut self, node: &Node, entries: &[Committed]) {
        let durable = node.log.load_durable(0);
        for entry in entries {
            assert!(
                entry.index <= durable.last_index || self.skip_promises,
                "S6: node {} hands out {} unsynced",
                node.id,
                entry.index
            );
            match self.log.get(entry.index as usize - 1) {
                Some(known) => assert_eq!(known, entry, "S2: node {} disagrees", node.id),
                None => {
                    assert_eq!(entry.index, self.log.len() as u64 + 1);
                    self.log.push(entry.clone());
                    self.proposal_is_exact(entry);
                }
            }
            if node.view().role() == Role::Leader {
                self.acknowledged = self.acknowledged.max(entry.index);
            }
        }
    }

    /// Equal term and index, and only those, mean that it is the proposed command.
    fn proposal_is_exact(&self, entry: &Committed) {
        let proposed = self.proposals.get(&(entry.term, entry.index));
        match &entry.payload {
            Payload::Command(data) => {
                assert_eq!(proposed.map(String::as_bytes), Some(data.as_ref()))
            }
            _ => assert_eq!(proposed, None, "a proposal was swallowed"),
        }
    }

    /// S6: what a message promises is on disk.
    pub fn sent(&self, node: &Node, message: &Message) {
        if self.skip_promises {
            return;
        }
        let durable = node.log.load_durable(0);
        let state = &durable.hard_state;
        let promise = match message.get_msg_type() {
            MessageType::MsgAppendResponse if !message.reject => {
                durable.last_index >= message.index && state.term >= message.term
            }
            MessageType::MsgRequestVote => {
                state.term > message.term || (state.term, state.vote) == (message.term, node.id)
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                state.term > message.term || (state.term, state.vote) == (message.term, message.to)
            }
            _ => true,
        };
        assert!(
            promise,
            "S6: node {} sends {message:?} with {durable:?} on disk",
            node.id
        );
    }

    pub fn every_step(&mut self, nodes: &mut [Node], now: Micros) {
        for node in nodes.iter().filter(|node| node.is_up()) {
            let replica = node.view();
            assert!(replica.applied() <= replica.committed());
            if replica.role() == Role::Leader {
                let first = self.leaders.entry(replica.term()).or_insert(node.id);
                assert_eq!(
                    *first,
                    node.id,
                    "S1: two leaders in term {}",
                    replica.term()
                );
                self.leader_has_all(node);
            }
        }
        self.leases(nodes, now);
    }

    /// S3. By S2 it is enough to look at the last committed entry that is older than the term, and
    /// only if it is not applied (by then it may have been cut).
    fn leader_has_all(&self, node: &Node) {
        let term = node.view().term();
        let older = self.log.partition_point(|entry| entry.term < term);
        if let Some(entry) = older.checked_sub(1).map(|at| &self.log[at])
            && entry.index > node.applied_index()
        {
            assert_eq!(
                node.view().term_at(entry.index),
                Some(entry.term),
                "S3: node {} lacks {entry:?}",
                node.id
            );
        }
    }

    fn leases(&mut self, nodes: &[Node], now: Micros) {
        let holds = |node: &&Node| {
            node.is_up()
                && node
                    .view()
                    .lease_until()
                    .is_some_and(|until| node.clock.read(now) < until)
        };
        let holders: Vec<&Node> = nodes.iter().filter(holds).collect();
        assert!(
            holders.len() <= 1,
            "two leases at once: {:?}",
            holders.iter().map(|n| n.id).collect::<Vec<_>>()
        );
        for node in holders {
            self.leases += 1;
            assert!(
                node.applied_index() >= self.acknowledged,
                "S15: node {} has a lease, but applied {} of {} acknowledged",
                node.id,
                node.applied_index(),
                self.acknowledged
            );
        }
    }
}
