//! The owner of a data directory: one file that is compared with the configuration at every start.

use nowserving_engine::envelope::Welcome;
use serde::{Deserialize, Serialize};

use super::File;
use super::checked_file::{self, FORMAT, Unusable};

const FIRST_NODES: &str = "; `nodes` stays the list that the cluster began with";

/// The content of the identity file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// [`FORMAT`].
    pub format: u32,
    /// The cluster it was made for.
    pub cluster: String,
    /// The node's number; 0: it waits to be added.
    pub node: u64,
    /// The number in the node's configuration, if it has got another one since; 0: it was configured with
    /// none.
    #[serde(default)]
    pub configured: u64,
    /// It joined a cluster that existed: its groups and their members come by snapshots.
    #[serde(default)]
    pub joined: bool,
    /// The node is new or was refused, and asks to be added under a new number with this as its disk's id. 0: it
    /// does not.
    #[serde(default)]
    pub candidate: u64,
    /// Why its peers refuse its disk, which then never takes part under this number again. Empty: they do not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// The shard count at the cluster's birth.
    pub shards: u32,
    /// The voters at the cluster's birth.
    pub nodes: Vec<u64>,
    /// Drawn at random when the directory was made: tells a wiped disk from the one that voted.
    pub disk_id: u64,
    /// Grows by one with each start.
    pub boots: u64,
    /// A random number for each of the last [`STARTS_KEPT`] starts, the newest first. A copy of the
    /// directory that is put back later counts on from where it was made, but draws others than
    /// those that the peers have seen.
    pub starts: Vec<u64>,
}

/// The number of starts that a node lists to its peers: a peer that missed more cannot detect a copy.
pub const STARTS_KEPT: usize = 8;

/// What a node's configuration says of its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Configured<'a> {
    pub cluster: &'a str,
    pub id: u64,
    pub shards: u32,
    /// The nodes that the cluster began with.
    pub nodes: &'a [u64],
}

/// A data directory was made for something else.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {found}, the configuration says {configured}{}",
    if *what == "nodes" { FIRST_NODES } else { "" }
)]
pub struct Mismatch {
    /// `cluster`, `node`, `shards` or `nodes`.
    pub what: &'static str,
    /// In the identity file.
    pub found: String,
    /// In the configuration.
    pub configured: String,
}

impl Identity {
    /// Reads the file.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(bytes: Option<&[u8]>) -> Result<Option<Identity>, Unusable> {
        let read = bytes.map(|bytes| checked_file::read(File::Identity, bytes));
        read.transpose()
    }

    /// The file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        checked_file::write(self)
    }

    /// The identity of a node that waits to be added; 0 as the `candidate` has another meaning.
    #[must_use]
    pub fn waiting(candidate: u64) -> Identity {
        Identity {
            format: FORMAT,
            candidate: candidate.max(1),
            ..Identity::default()
        }
    }

    /// The identity of an empty disk, whose id is a random number.
    #[must_use]
    pub fn new(configured: Configured<'_>, disk_id: u64) -> Identity {
        Identity {
            format: FORMAT,
            cluster: configured.cluster.to_owned(),
            node: configured.id,
            configured: configured.id,
            shards: configured.shards,
            nodes: configured.nodes.to_vec(),
            disk_id,
            ..Identity::default()
        }
    }

    /// The identity of a node that was added, and has this number in its configuration, or 0.
    #[must_use]
    pub fn added(welcome: &Welcome, configured: u64) -> Identity {
        Identity {
            format: FORMAT,
            cluster: welcome.cluster.clone(),
            node: welcome.id,
            configured,
            joined: true,
            shards: welcome.shards,
            nodes: welcome.nodes.clone(),
            disk_id: welcome.disk_id,
            ..Identity::default()
        }
    }

    /// Counts a start, with a random number.
    pub fn count_start(&mut self, start: u64) {
        self.boots += 1;
        self.starts.insert(0, start);
        self.starts.truncate(STARTS_KEPT);
    }

    /// The number in the configuration that this directory belongs to.
    #[must_use]
    pub fn configured(&self) -> u64 {
        match self.configured {
            0 => self.node,
            configured => configured,
        }
    }

    /// Compares it with the configuration.
    ///
    /// # Errors
    /// It is of another cluster or node, or of another number of shards or list of nodes.
    pub fn compare(&self, configured: Configured<'_>) -> Result<(), Mismatch> {
        let pairs = [
            (
                "cluster",
                self.cluster.clone(),
                configured.cluster.to_owned(),
            ),
            (
                "node",
                self.configured().to_string(),
                configured.id.to_string(),
            ),
            (
                "shards",
                self.shards.to_string(),
                configured.shards.to_string(),
            ),
            ("nodes", sorted(&self.nodes), sorted(configured.nodes)),
        ];
        let differs = pairs.into_iter().find(|(_, found, said)| found != said);
        differs.map_or(Ok(()), |(what, found, configured)| {
            Err(Mismatch {
                what,
                found,
                configured,
            })
        })
    }

    /// The id of its disk under which this node asks to be added: `drawn`, if it has none yet. The second: it is new.
    pub fn ask_as(&mut self, drawn: u64) -> (u64, bool) {
        let is_new = self.candidate == 0;
        if is_new {
            self.candidate = drawn.max(1);
        }
        (self.candidate, is_new)
    }

    /// This node has lost its disk: what it gets of the cluster comes by snapshots, under another number.
    pub fn lose_number(&mut self, reason: String, drawn: u64) {
        self.joined = true;
        self.refused = reason;
        self.ask_as(drawn);
    }

    /// The peers of this node refuse its disk: it never takes part again, whatever others say after its next start.
    /// Returns true if that is new.
    pub fn note_refused(&mut self, reason: &str) -> bool {
        let is_new = self.refused.is_empty();
        if is_new {
            reason.clone_into(&mut self.refused);
        }
        is_new
    }

    /// This node does not ask to be added. Returns true if it did.
    pub fn forget_candidate(&mut self) -> bool {
        std::mem::take(&mut self.candidate) != 0
    }
}

/// As a set: the order of nodes in the configuration does not matter.
fn sorted(nodes: &[u64]) -> String {
    let nodes: std::collections::BTreeSet<_> = nodes.iter().collect();
    format!("{nodes:?}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONFIGURED: Configured<'_> = Configured {
        cluster: "c",
        id: 1,
        shards: 16,
        nodes: &[1, 2, 3],
    };

    #[test]
    fn the_file_of_format_1() {
        let written = Identity {
            format: FORMAT,
            cluster: "prod".to_owned(),
            node: 4,
            configured: 3,
            joined: true,
            candidate: 5,
            refused: String::new(),
            shards: 16,
            nodes: vec![1, 2, 3],
            disk_id: 7,
            boots: 2,
            starts: vec![u64::MAX, 12],
        };
        let kept = nowserving_testkit::golden::bytes(
            env!("CARGO_MANIFEST_DIR"),
            "files-1/identity.toml",
            &written.write(),
        );
        assert_eq!(Identity::read(Some(&kept)).unwrap(), Some(written));
    }

    #[test]
    fn that_a_disk_is_refused_is_kept_until_the_node_gets_another_number() {
        let mut identity = Identity::new(CONFIGURED, 7);
        assert!(identity.note_refused("an older copy"));
        assert!(!identity.note_refused("again"));
        identity = Identity::read(Some(&identity.write())).unwrap().unwrap();
        assert_eq!(identity.refused, "an older copy");
        let welcome = Welcome {
            id: 4,
            ..Welcome::default()
        };
        assert_eq!(Identity::added(&welcome, 1).refused, "");
    }

    #[test]
    fn starts_are_counted_and_a_few_are_kept() {
        let mut identity = Identity::new(CONFIGURED, 7);
        for start in 1..=2 * STARTS_KEPT as u64 {
            identity.count_start(start);
        }
        assert_eq!(identity.boots, 16);
        assert_eq!(identity.starts, [16, 15, 14, 13, 12, 11, 10, 9]);
    }

    #[test]
    fn a_node_keeps_the_disk_id_with_which_it_asks() {
        let mut identity = Identity::new(CONFIGURED, 7);
        assert_eq!(identity.ask_as(0), (1, true));
        assert_eq!(identity.ask_as(5), (1, false));
        assert!(identity.forget_candidate() && !identity.forget_candidate());
        identity.lose_number("lost".to_owned(), 6);
        assert_eq!(identity.ask_as(5), (6, false));
    }

    #[test]
    fn another_shard_count_node_or_cluster_is_refused() {
        let identity = Identity::new(CONFIGURED, 7);
        let reordered = Configured {
            nodes: &[3, 1, 2],
            ..CONFIGURED
        };
        assert_eq!(identity.compare(reordered), Ok(()));
        for (changed, named) in [
            (
                Configured {
                    shards: 8,
                    ..CONFIGURED
                },
                "shards",
            ),
            (
                Configured {
                    id: 2,
                    ..CONFIGURED
                },
                "node",
            ),
            (
                Configured {
                    cluster: "other",
                    ..CONFIGURED
                },
                "cluster",
            ),
            (
                Configured {
                    nodes: &[1, 2],
                    ..CONFIGURED
                },
                "nodes",
            ),
        ] {
            let error = identity.compare(changed).unwrap_err();
            assert_eq!(error.what, named);
        }
    }
}
