//! Which disk each peer voted from. A peer that comes back with another one has forgotten what it
//! promised: with its vote, entries that were acknowledged could be lost. So what was seen first is
//! written down, and another disk under the same id is refused, over restarts of everybody.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::identity::write_atomically;

const FILE: &str = "peers.toml";

/// A peer as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    disk_id: u64,
    boots: u64,
    /// Of the newest frame; only within this process.
    #[serde(skip)]
    seq: u64,
}

/// The peers seen so far, in memory and on disk.
#[derive(Debug)]
pub struct KnownPeers {
    dir: PathBuf,
    // By id, as text: TOML's keys are strings.
    peers: BTreeMap<String, Known>,
}

impl KnownPeers {
    /// Reads what is known in the data directory `dir`.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FILE);
        let peers = match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).with_context(|| path.display().to_string())?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        Ok(KnownPeers {
            dir: dir.to_owned(),
            peers,
        })
    }

    /// Takes note of an authentic frame of node `id`: from this disk, from the `boots`-th start on
    /// it, the `seq`-th of that start. A start that was not known yet is on disk when this returns.
    ///
    /// # Errors
    /// Another disk, an older start, or a frame that is not newer than the last: not to be taken.
    pub fn note(&mut self, id: u64, disk_id: u64, boots: u64, seq: u64) -> anyhow::Result<()> {
        let known = self.peers.get(&id.to_string()).copied();
        if let Some(known) = known {
            anyhow::ensure!(
                known.disk_id == disk_id,
                "node {id} came back with another disk and must not vote: give it its old one back, \
                 or take it into the cluster under a new id"
            );
            anyhow::ensure!(
                (boots, seq) > (known.boots, known.seq),
                "a late or doubled frame of node {id}, or an older copy of its disk: start {boots} \
                 frame {seq}, after start {} frame {}",
                known.boots,
                known.seq
            );
        }
        let is_new_start = known.is_none_or(|known| known.boots != boots);
        let now = Known {
            disk_id,
            boots,
            seq,
        };
        self.peers.insert(id.to_string(), now);
        if is_new_start {
            let text = toml::to_string(&self.peers)?;
            write_atomically(&self.dir, FILE, text.as_bytes()).context(FILE)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn another_disk_is_refused_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        peers.note(2, 20, 1, 1).unwrap();
        peers.note(2, 20, 1, 2).unwrap();
        assert!(peers.note(2, 21, 1, 3).is_err());
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        let refused = peers.note(2, 21, 1, 1).unwrap_err().to_string();
        assert!(refused.contains("another disk"), "{refused}");
        peers.note(2, 20, 2, 1).unwrap();
    }

    #[test]
    fn doubles_replays_of_an_earlier_start_and_old_copies_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut peers = KnownPeers::open(dir.path()).unwrap();
        peers.note(2, 20, 5, 7).unwrap();
        assert!(peers.note(2, 20, 5, 7).is_err());
        peers.note(2, 20, 6, 1).unwrap();
        assert!(peers.note(2, 20, 5, 8).is_err());
        assert!(peers.note(2, 20, 6, 1).is_err());
        peers.note(3, u64::MAX, 1, 1).unwrap();
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "[2]\ndisk_id = \"x\"").unwrap();
        let error = KnownPeers::open(dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains(FILE));
    }
}
