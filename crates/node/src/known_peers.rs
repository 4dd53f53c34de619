//! Remembers the disk from which each peer voted. A peer with another disk has lost its promises: with its
//! vote, acknowledged entries could be lost. So the node writes down the first disk that it sees, and refuses
//! another one under the same id, even after restarts of all nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nowserving_engine::envelope::{Frame, PeerDisk};
use nowserving_engine::{KnownDisk, KnownDisks, NotTaken, Standing};
use tokio::sync::watch;

use crate::checked_file;
use crate::identity::Identity;

const FILE: &str = "peers.toml";

/// The peers seen so far, in memory and on disk.
#[derive(Debug)]
pub struct KnownPeers {
    dir: PathBuf,
    disks: KnownDisks,
    /// If its peers may know disks that this node does not: whether it takes part by now.
    lacks_disks: Option<watch::Receiver<Standing>>,
    report: watch::Sender<Vec<PeerDisk>>,
}

impl KnownPeers {
    /// Reads what is known in the data directory `dir`.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        // By id, as text: TOML's keys are strings.
        let peers: Option<BTreeMap<String, KnownDisk>> = checked_file::read(dir, FILE)?;
        let peers = peers.unwrap_or_default().into_iter();
        let disks = peers.map(|(id, disk)| anyhow::Ok((id.parse()?, disk)));
        let disks = disks.collect::<anyhow::Result<_>>().context(FILE)?;
        let disks = KnownDisks(disks);
        Ok(KnownPeers {
            dir: dir.to_owned(),
            report: watch::Sender::new(disks.report()),
            disks,
            lacks_disks: None,
        })
    }

    /// Takes no peer that was never here until a quorum has accepted it, or this node, if other nodes may know disks
    /// that this one does not. The operator can do without.
    #[must_use]
    pub fn wary(
        self,
        identity: &Identity,
        members_version: u64,
        accept_unseen: bool,
        standing: watch::Receiver<Standing>,
    ) -> Self {
        let lacks_disks = self.disks.may_lack_some(identity.joined, members_version);
        KnownPeers {
            lacks_disks: (lacks_disks && !accept_unseen).then_some(standing),
            ..self
        }
    }

    /// Whether this peer has been here.
    #[must_use]
    pub fn knows(&self, id: u64) -> bool {
        self.disks.0.contains_key(&id)
    }

    /// The known disks, for peers that do not know them.
    #[must_use]
    pub fn report(&self) -> watch::Receiver<Vec<PeerDisk>> {
        self.report.subscribe()
    }

    /// Takes note of an authentic frame. A start that was not known yet is on disk when this returns.
    ///
    /// # Errors
    /// [`NotTaken`]: see [`KnownDisks::note`].
    pub fn note(&mut self, frame: &Frame) -> Result<(), NotTaken> {
        let standing = self.lacks_disks.as_ref();
        let lacks_disks = standing.is_some_and(|standing| !standing.borrow().is_in_touch());
        let mut disks = self.disks.clone();
        if disks.note(frame, lacks_disks)? {
            self.write(&disks).map_err(not_written)?;
            self.report.send_replace(disks.report());
        }
        // Only now: what could not be written must not be taken from the next frame either.
        self.disks = disks;
        Ok(())
    }

    fn write(&self, disks: &KnownDisks) -> anyhow::Result<()> {
        let disks = disks.0.iter();
        let disks: BTreeMap<String, &KnownDisk> =
            disks.map(|(id, disk)| (id.to_string(), disk)).collect();
        let text = toml::to_string(&disks)?;
        Ok(checked_file::write(&self.dir, FILE, &text)?)
    }
}

/// Forgets all peers, as the node starts anew under another number.
///
/// # Errors
/// The file system refuses.
pub fn forget(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn not_written(error: impl std::fmt::Display) -> NotTaken {
    NotTaken::Dropped(format!("{FILE}: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    /// From node 2's start with this history, newest first.
    fn frame(disk_id: u64, boots: u64, starts: &[u64], seq: u64) -> Frame {
        Frame {
            from: 2,
            disk_id,
            boots,
            starts: starts.to_vec(),
            seq,
            ..Frame::default()
        }
    }

    #[test]
    fn the_file_of_format_1() {
        let path =
            nowserving_golden::path(env!("CARGO_MANIFEST_DIR"), "files-1/peers.toml", |path| {
                let mut peers = KnownPeers::open(path.parent().unwrap()).unwrap();
                peers.note(&frame(20, 5, &[15], 7)).unwrap();
            });
        let peers = KnownPeers::open(path.parent().unwrap()).unwrap().disks;
        let known = KnownDisk {
            disk_id: 20,
            boots: 5,
            start: 15,
            seq: 0,
            reported: None,
        };
        assert_eq!(peers, KnownDisks([(2, known)].into()));
    }

    #[test]
    fn another_disk_is_refused_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        peers.note(&frame(20, 1, &[11], 1)).unwrap();
        peers.note(&frame(20, 1, &[11], 2)).unwrap();
        assert!(peers.note(&frame(21, 1, &[12], 3)).is_err());
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        let refused = peers.note(&frame(21, 1, &[12], 1)).unwrap_err().to_string();
        assert!(refused.contains("another disk"), "{refused}");
        peers.note(&frame(20, 2, &[13, 11], 1)).unwrap();
    }

    #[test]
    fn doubles_and_replays_of_an_earlier_start_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        peers.note(&frame(20, 5, &[15], 7)).unwrap();
        assert!(peers.note(&frame(20, 5, &[15], 7)).is_err());
        peers.note(&frame(20, 6, &[16, 15], 1)).unwrap();
        assert!(peers.note(&frame(20, 5, &[15], 8)).is_err());
        assert!(peers.note(&frame(20, 6, &[16, 15], 1)).is_err());
        peers.note(&frame(20, 6, &[16, 15], 2)).unwrap();
    }

    #[test]
    fn a_copy_of_the_disk_that_is_put_back_is_refused_however_often_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        // Copied after start 5; start 6 went on without the copy.
        peers.note(&frame(20, 5, &[15], 7)).unwrap();
        peers.note(&frame(20, 6, &[16, 15], 100)).unwrap();
        let copies = [
            frame(20, 6, &[26, 15], 1_000),
            frame(20, 7, &[27, 26, 15], 1),
            frame(20, 8, &[28, 27, 26, 15], 1),
        ];
        for _ in 0..2 {
            for copy in &copies {
                let refused = peers.note(copy).unwrap_err().to_string();
                assert!(refused.contains("older copy"), "{refused}");
            }
            // Also by an observer that was started anew.
            peers = KnownPeers::open(dir.path()).unwrap();
        }
        // The disk itself may come back, also after starts that nobody saw.
        peers.note(&frame(20, 8, &[18, 17, 16, 15], 1)).unwrap();
        peers.note(&frame(20, 20, &[40, 39, 38], 1)).unwrap();
    }

    #[test]
    fn a_node_that_joined_takes_no_peer_that_was_never_here_unless_the_operator_says_so() {
        let joined = Identity {
            joined: true,
            ..Identity::default()
        };
        for accept_unseen in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let standing = watch::Sender::new(Standing::Waiting("starting".to_owned()));
            let peers = KnownPeers::open(dir.path()).unwrap();
            let mut peers = peers.wary(&joined, 1, accept_unseen, standing.subscribe());
            let noted = peers.note(&frame(20, 1, &[11], 1));
            assert_eq!(noted.is_ok(), accept_unseen, "{noted:?}");
            standing.send_replace(Standing::InTouch);
            peers.note(&frame(20, 1, &[11], 2)).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_written_down_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        drop(dir);
        for seq in 1..4 {
            assert!(peers.note(&frame(20, 1, &[11], seq)).is_err());
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "[2]\ndisk_id = \"x\"").unwrap();
        let error = KnownPeers::open(dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains(FILE));
    }
}
