//! The largest of some values, by slot: changing one, the largest of the first so many, and the first one above a bound
//! are O(log slots).

/// A complete binary tree. Slots without a value count as 0.
#[derive(Debug, Default)]
pub(crate) struct MaxTree {
    /// The root is at 1, the children of `n` at `2n` and `2n + 1`, the slots in the second half.
    nodes: Vec<u64>,
}

impl MaxTree {
    pub(crate) fn with_slots(slots: usize) -> Self {
        let mut tree = Self::default();
        tree.grow(slots);
        tree
    }

    pub(crate) fn set(&mut self, slot: usize, value: u64) {
        if slot >= self.slots() {
            self.grow(slot + 1);
        }
        let mut node = self.slots() + slot;
        self.nodes[node] = value;
        while node > 1 {
            node /= 2;
            let largest = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
            if self.nodes[node] == largest {
                break;
            }
            self.nodes[node] = largest;
        }
    }

    /// Of the slots before this one; 0 if there are none.
    pub(crate) fn max_before(&self, slot: usize) -> u64 {
        if slot >= self.slots() {
            return self.nodes.get(1).copied().unwrap_or(0);
        }
        let (mut node, mut largest) = (self.slots() + slot, 0);
        while node > 1 {
            if node % 2 == 1 {
                largest = self.nodes[node - 1].max(largest);
            }
            node /= 2;
        }
        largest
    }

    pub(crate) fn first_above(&self, bound: u64) -> Option<usize> {
        self.nodes.get(1).filter(|largest| **largest > bound)?;
        let mut node = 1;
        while node < self.slots() {
            node *= 2;
            node += usize::from(self.nodes[node] <= bound);
        }
        Some(node - self.slots())
    }

    fn slots(&self) -> usize {
        self.nodes.len() / 2
    }

    fn grow(&mut self, slots: usize) {
        let (had, has) = (self.slots(), slots.next_power_of_two());
        let mut nodes = vec![0; 2 * has];
        nodes[has..has + had].copy_from_slice(&self.nodes[had..]);
        for node in (1..has).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        self.nodes = nodes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_scan(
            changes in prop::collection::vec((0..70usize, 0..9u64), 0..200),
            slots in 0..5usize,
        ) {
            let mut tree = MaxTree::with_slots(slots);
            let mut list = vec![0; 130];
            for (slot, value) in changes {
                tree.set(slot, value);
                list[slot] = value;
                for n in 0..list.len() {
                    let largest = list[..n].iter().max().copied();
                    prop_assert_eq!(tree.max_before(n), largest.unwrap_or(0));
                }
                for bound in 0..10 {
                    let first = list.iter().position(|value| *value > bound);
                    prop_assert_eq!(tree.first_above(bound), first);
                }
            }
        }
    }
}
