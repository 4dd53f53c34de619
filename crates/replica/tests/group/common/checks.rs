//! What must hold at every step of every test here: what is handed out is the same everywhere, and leases.

use std::collections::BTreeSet;

use nowserving_replica::{BOOTSTRAP_INDEX, Committed, Micros, Payload, Role};

use super::Node;

const FIRST_INDEX: u64 = BOOTSTRAP_INDEX + 1;

#[derive(Default)]
pub struct Checks {
    /// What every node has to hand out, from the first entry on.
    log: Vec<Committed>,
    /// Where commands were put.
    proposals: BTreeSet<(u64, u64)>,
    /// The last index that a client may know to be committed.
    acknowledged: u64,
}

impl Checks {
    pub fn proposed(&mut self, at: (u64, u64)) {
        assert!(
            self.proposals.insert(at),
            "term and index name two commands"
        );
    }

    /// Whether a proposal was committed; `None` if that is still open.
    pub fn outcome(&self, (term, index): (u64, u64)) -> Option<bool> {
        self.log
            .get((index - FIRST_INDEX) as usize)
            .map(|entry| entry.term == term)
    }

    pub fn handed_out(&mut self, node: &Node, entries: &[Committed]) {
        for entry in entries {
            match self.log.get((entry.index - FIRST_INDEX) as usize) {
                Some(known) => assert_eq!(known, entry, "node {} disagrees", node.id),
                None => {
                    assert_eq!(entry.index, self.log.len() as u64 + FIRST_INDEX);
                    let proposed = self.proposals.contains(&(entry.term, entry.index));
                    let is_command = matches!(entry.payload, Payload::Command(_));
                    assert_eq!(is_command, proposed, "{entry:?}");
                    self.log.push(entry.clone());
                }
            }
            if node.view().role() == Role::Leader {
                self.acknowledged = self.acknowledged.max(entry.index);
            }
        }
    }

    /// One node has a lease at most, and it has applied what was acknowledged.
    pub fn leases(&self, nodes: &[Node], now: Micros) {
        let holds = |node: &&Node| {
            let until = node.is_up().then(|| node.view().lease_until()).flatten();
            until.is_some_and(|until| node.clock(now) < until)
        };
        let holders: Vec<&Node> = nodes.iter().filter(holds).collect();
        let ids: Vec<u64> = holders.iter().map(|node| node.id).collect();
        assert!(ids.len() <= 1, "leases at once: {ids:?}");
        for node in holders {
            let applied = node.applied_index();
            assert!(
                applied >= self.acknowledged,
                "node {} has a lease, but applied {applied} of {} acknowledged",
                node.id,
                self.acknowledged
            );
        }
    }
}
