//! Over the chunks of waiting numbers: how many there are before one, and the latest of their times.

use crate::max_tree::MaxTree;
use crate::waiting::grow_by_half;

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Fenwick tree over their counts; index 0 stands for slot 1 of the textbooks.
    pub(crate) tree: Vec<u64>,
    /// When the latest token of each entered (service clock); 0 if it has none.
    pub(crate) latest: MaxTree,
}

impl Sums {
    pub(crate) fn with_slots(slots: usize) -> Box<Self> {
        Box::new(Self {
            tree: Vec::with_capacity(slots),
            latest: MaxTree::with_slots(slots),
        })
    }

    /// The next slot has so many.
    pub(crate) fn push(&mut self, count: u64, latest_ms: u64) {
        self.latest.set(self.tree.len(), latest_ms);
        // A node sums as many slots, up to its own, as its lowest set bit says.
        let node = self.tree.len() + 1;
        let reach = node - lowest_bit(node);
        let (mut sum, mut child) = (count, node - 1);
        while child > reach {
            sum += self.tree[child - 1];
            child -= lowest_bit(child);
        }
        grow_by_half(&mut self.tree);
        self.tree.push(sum);
    }

    /// A slot has so many more.
    pub(crate) fn add(&mut self, slot: usize, change: i64) {
        let mut node = slot + 1;
        while node <= self.tree.len() {
            let sum = &mut self.tree[node - 1];
            *sum = sum.saturating_add_signed(change);
            node += lowest_bit(node);
        }
    }

    /// How many the slots before this one have.
    pub(crate) fn before(&self, slot: usize) -> u64 {
        let (mut sum, mut node) = (0, slot);
        while node > 0 {
            sum += self.tree[node - 1];
            node -= lowest_bit(node);
        }
        sum
    }
}

fn lowest_bit(n: usize) -> usize {
    n & n.wrapping_neg()
}
