//! Which nodes have loaded the key that can be put in force: the same one, or different ones of one number.

use std::collections::BTreeMap;

use nowserving_client::ClusterStatus;

use crate::words::nodes_text;

/// The next key, by node.
pub struct NextKey {
    pub id: u8,
    /// The nodes that have no key of this number.
    pub lacking: Vec<u64>,
    /// The nodes by the fingerprint of their key of this number.
    pub by_fingerprint: BTreeMap<String, Vec<u64>>,
}

impl NextKey {
    /// `None`: no node has loaded a key that is newer than the one in force.
    pub fn of(status: &ClusterStatus) -> Option<NextKey> {
        let key = status.key.as_ref()?;
        let members = || status.nodes.iter().filter(|node| !node.leaving);
        let loaded = members().flat_map(|node| node.keys.iter().map(|it| it.id));
        let newest = loaded.max().filter(|id| *id > key.in_force);
        // The node that answers may be the one that lacks it.
        let id = key.next.or(newest)?;
        let (mut lacking, mut by_fingerprint) = (Vec::new(), BTreeMap::<_, Vec<u64>>::new());
        for node in members() {
            match node.keys.iter().find(|it| it.id == id) {
                Some(key) => {
                    let nodes = by_fingerprint.entry(key.fingerprint.clone());
                    nodes.or_default().push(node.id);
                }
                None => lacking.push(node.id),
            }
        }
        Some(NextKey {
            id,
            lacking,
            by_fingerprint,
        })
    }

    /// Nodes have different keys of this number.
    pub fn differs(&self) -> bool {
        self.by_fingerprint.len() > 1
    }

    /// Which nodes have which of them: `nodes 1, 3 (00000000000000ff)`.
    pub fn variants(&self) -> Vec<String> {
        let variants = self.by_fingerprint.iter();
        variants
            .map(|(print, nodes)| format!("{} ({print})", nodes_text(nodes)))
            .collect()
    }
}
