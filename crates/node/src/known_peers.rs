//! Remembers the disk from which each peer voted. A peer with another disk has lost its promises: with its
//! vote, acknowledged entries could be lost. So the node writes down the first disk that it sees, and refuses
//! another one under the same id, even after restarts of all nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nowserving_engine::envelope::Frame;
use nowserving_engine::{KnownDisk, NotTaken};

use crate::checked_file;

const FILE: &str = "peers.toml";

/// The peers seen so far, in memory and on disk.
#[derive(Debug)]
pub struct KnownPeers {
    dir: PathBuf,
    // By id, as text: TOML's keys are strings.
    peers: BTreeMap<String, KnownDisk>,
}

impl KnownPeers {
    /// Reads what is known in the data directory `dir`.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        Ok(KnownPeers {
            dir: dir.to_owned(),
            peers: checked_file::read(dir, FILE)?.unwrap_or_default(),
        })
    }

    /// Whether this peer has been here.
    #[must_use]
    pub fn knows(&self, id: u64) -> bool {
        self.peers.contains_key(&id.to_string())
    }

    /// Takes note of an authentic frame. A start that was not known yet is on disk when this returns.
    ///
    /// # Errors
    /// [`NotTaken`]: another disk, an older copy of it, an older start, or a frame that is not newer
    /// than the last.
    pub fn note(&mut self, frame: &Frame) -> Result<(), NotTaken> {
        let id = frame.from.to_string();
        let known = self.peers.get(&id).copied();
        if let Some(known) = known {
            known.check(frame)?;
        }
        let now = KnownDisk::of(frame);
        if known.is_none_or(|known| known.boots != now.boots) {
            let mut peers = self.peers.clone();
            peers.insert(id.clone(), now);
            let text = toml::to_string(&peers).map_err(not_written)?;
            checked_file::write(&self.dir, FILE, &text).map_err(not_written)?;
        }
        // Only now: what could not be written must not be taken from the next frame either.
        self.peers.insert(id, now);
        Ok(())
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
        let peers = KnownPeers::open(path.parent().unwrap()).unwrap().peers;
        let known = KnownDisk {
            disk_id: 20,
            boots: 5,
            start: 15,
            seq: 0,
        };
        assert_eq!(peers, [("2".to_owned(), known)].into());
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
