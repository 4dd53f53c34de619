//! The small files of a data directory. They survive crashes.

use std::collections::BTreeMap;

use nowserving_engine::envelope::Welcome;
use nowserving_front::cluster::identity::Identity;
use nowserving_front::cluster::known_peers::KnownPeers;
use nowserving_front::cluster::{File, members_file};
use nowserving_shard::members::Members;

use crate::nats::NodeId;

#[derive(Clone, Debug, Default)]
pub struct Files {
    files: BTreeMap<File, Vec<u8>>,
    /// A copy of the file of peers.
    copied: Option<Vec<u8>>,
}

impl Files {
    /// Those of a node that was added, and has this number in its configuration, or 0.
    #[must_use]
    pub fn added(welcome: &Welcome, configured: NodeId) -> Files {
        let mut files = Files::default();
        files.write(File::Members, members_file::write(&welcome.members));
        files.write_identity(&Identity::added(welcome, configured));
        files
    }

    pub fn write(&mut self, file: File, bytes: Vec<u8>) {
        self.files.insert(file, bytes);
    }

    pub fn write_identity(&mut self, identity: &Identity) {
        self.write(File::Identity, identity.write());
    }

    fn read(&self, file: File) -> Option<&[u8]> {
        self.files.get(&file).map(Vec::as_slice)
    }

    /// `None`: no node was started from this disk.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        Identity::read(self.read(File::Identity)).unwrap_or_default()
    }

    /// How often a node was started from this disk.
    #[must_use]
    pub fn boots(&self) -> u64 {
        self.identity().map_or(0, |it| it.boots)
    }

    #[must_use]
    pub fn peers(&self) -> KnownPeers {
        KnownPeers::read(self.read(File::Peers)).unwrap_or_default()
    }

    #[must_use]
    pub fn members(&self) -> Members {
        members_file::read(self.read(File::Members)).unwrap_or_default()
    }

    /// The file of peers is copied, or put back as it was when it was copied. Returns true for the second.
    pub fn copy_peers(&mut self) -> bool {
        match self.copied.take() {
            Some(earlier) => {
                self.files.insert(File::Peers, earlier);
                true
            }
            None => {
                self.copied = self.files.get(&File::Peers).cloned();
                false
            }
        }
    }

    /// Whether the node knows of this peer's disk a later start than `boots`, or any.
    #[must_use]
    pub fn knows_later(&self, peer: NodeId, boots: Option<u64>) -> bool {
        let peers = self.peers();
        let known = peers.get(peer);
        known.is_some_and(|known| boots.is_none_or(|boots| known.newest().boots > boots))
    }
}
