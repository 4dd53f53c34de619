//! Checks that all nodes have the same state.
//!
//! Every second of a shard's service clock each node hashes a part of the shard's state, and the next
//! part a second later. The clock is replicated, so all nodes do that after the same log entry and for the
//! same part. They exchange the hashes in frames and compare them. Hashing everything would block the loop
//! for tenths of a second with a million tokens; a part has about a thousand. A node that replays its log
//! omits most hashes.
//!
//! A node that differs from a majority stops: its state is wrong, and it must neither serve nor replicate
//! it. With fewer hashes it is unknown which node is wrong, so both report it and continue until the other
//! one is started again: equal hashes of the next parts do not repair the part that differed.

use std::collections::{BTreeMap, BTreeSet};

use crate::envelope::StateHash;
use nowserving_shard::snapshot::HASH_FORMAT;

/// Hashes of a shard kept for each node: a peer that lags by more is not compared.
const KEPT: usize = 64;

/// This node's state is not that of the others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "shard {shard}: after log entry {index} the state of this node has the hash {mine}, that of the \
     other nodes {theirs}"
)]
pub struct StateDiffers {
    pub shard: u32,
    /// The last entry that is in the state.
    pub index: u64,
    /// The beginning of this node's hash, in hex.
    pub mine: String,
    /// Of the majority's.
    pub theirs: String,
}

/// The hashes of one shard's state.
#[derive(Debug, Default)]
pub struct Agreement {
    /// By node, this one among them, and log index.
    hashes: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    differs: BTreeSet<u64>,
}

impl Agreement {
    /// The nodes whose state was found to differ since they were started.
    #[must_use]
    pub fn differs(&self) -> Vec<u64> {
        self.differs.iter().copied().collect()
    }

    /// `node` was started again, perhaps with another state.
    pub fn forget(&mut self, node: u64) {
        self.hashes.remove(&node);
        self.differs.remove(&node);
    }

    /// Records a hash of `node` and compares it. Returns the peers that are newly found to differ.
    ///
    /// # Errors
    /// [`StateDiffers`]: a majority of `nodes` agrees on another state than that of node `me`.
    pub fn note(
        &mut self,
        me: u64,
        nodes: usize,
        node: u64,
        hash: StateHash,
    ) -> Result<Vec<u64>, StateDiffers> {
        let StateHash {
            shard,
            index,
            hash,
            format,
        } = hash;
        if format != HASH_FORMAT {
            return Ok(Vec::new());
        }
        let kept = self.hashes.entry(node).or_default();
        kept.insert(index, hash.to_vec());
        while kept.len() > KEPT {
            kept.pop_first();
        }
        let hashes = self.hashes.iter();
        let of_index = hashes.filter_map(|(node, kept)| Some((*node, kept.get(&index)?)));
        let (mine, others): (Vec<_>, Vec<_>) = of_index.partition(|(node, _)| *node == me);
        let [(_, mine)] = mine[..] else {
            return Ok(Vec::new());
        };
        for (_, theirs) in &others {
            let voices = others.iter().filter(|(_, hash)| hash == theirs).count();
            if *theirs != mine && 2 * voices > nodes {
                return Err(StateDiffers {
                    shard,
                    index,
                    mine: short(mine),
                    theirs: short(theirs),
                });
            }
        }
        let mut found = Vec::new();
        for (node, theirs) in others {
            if theirs != mine && self.differs.insert(node) {
                found.push(node);
            }
        }
        Ok(found)
    }
}

fn short(hash: &[u8]) -> String {
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hash(index: u64, state: u8) -> StateHash {
        StateHash {
            shard: 7,
            index,
            hash: vec![state; 32].into(),
            format: HASH_FORMAT,
        }
    }

    #[test]
    fn a_node_that_differs_from_a_majority_stops_and_the_others_name_it() {
        // Node 3 is the odd one, as nodes 1 and 3 see it, in every order in which hashes can come.
        for order in [
            [1, 2, 3],
            [1, 3, 2],
            [2, 1, 3],
            [2, 3, 1],
            [3, 1, 2],
            [3, 2, 1],
        ] {
            let state = |node| if node == 3 { 30 } else { 10 };
            let mut good = Agreement::default();
            let mut odd = Agreement::default();
            let mut stopped = None;
            for node in order {
                good.note(1, 3, node, hash(5, state(node))).unwrap();
                stopped = odd.note(3, 3, node, hash(5, state(node))).err().or(stopped);
            }
            assert_eq!(good.differs(), [3]);
            let stopped = stopped.unwrap().to_string();
            for named in ["shard 7", "entry 5", "1e1e1e1e", "0a0a0a0a"] {
                assert!(stopped.contains(named), "{stopped}");
            }
        }
    }

    #[test]
    fn two_voices_of_three_are_no_majority_and_are_said_once() {
        let mut mine = Agreement::default();
        assert_eq!(mine.note(1, 3, 2, hash(5, 20)), Ok(vec![]));
        assert_eq!(mine.note(1, 3, 1, hash(5, 10)), Ok(vec![2]));
        assert_eq!(mine.note(1, 3, 1, hash(6, 10)), Ok(vec![]));
        assert_eq!(mine.note(1, 3, 2, hash(6, 20)), Ok(vec![]));
        // Another part is equal, which does not repair the first one.
        assert_eq!(mine.note(1, 3, 1, hash(7, 10)), Ok(vec![]));
        assert_eq!(mine.note(1, 3, 2, hash(7, 10)), Ok(vec![]));
        assert_eq!(mine.differs(), [2]);
        mine.forget(2);
        assert!(mine.differs().is_empty());
        // Hashes of the former start for entries to come are forgotten too.
        mine.note(1, 3, 2, hash(9, 20)).unwrap();
        mine.forget(2);
        assert_eq!(mine.note(1, 3, 1, hash(9, 10)), Ok(vec![]));
        assert_eq!(mine.note(1, 3, 2, hash(9, 10)), Ok(vec![]));
        assert!(mine.differs().is_empty());
    }

    #[test]
    fn hashes_of_another_format_are_not_compared() {
        let mut mine = Agreement::default();
        assert_eq!(mine.note(1, 3, 1, hash(5, 10)), Ok(vec![]));
        for node in [2, 3] {
            let other = StateHash {
                format: HASH_FORMAT + 1,
                ..hash(5, 20)
            };
            assert_eq!(mine.note(1, 3, node, other), Ok(vec![]));
        }
        assert!(mine.differs().is_empty());
    }

    #[test]
    fn other_entries_are_not_compared_and_few_are_kept() {
        let mut mine = Agreement::default();
        for index in 0..1_000 {
            assert_eq!(mine.note(1, 3, 1, hash(2 * index, 10)), Ok(vec![]));
            assert_eq!(mine.note(1, 3, 2, hash(2 * index + 1, 20)), Ok(vec![]));
        }
        assert!(mine.hashes.values().all(|kept| kept.len() == KEPT));
    }
}
