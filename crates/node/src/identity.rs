//! The owner of this data directory: one file that is compared with the configuration at every start,
//! and the lock that keeps a second process out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nowserving_engine::envelope::Welcome;
use serde::{Deserialize, Serialize};

use crate::checked_file::{self, FORMAT};
use crate::config::Config;
use crate::{known_peers, members_file};

const IDENTITY_FILE: &str = "identity.toml";
const LOCK_FILE: &str = "lock";
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

impl Identity {
    /// The number in the configuration that this directory belongs to.
    #[must_use]
    pub fn configured(&self) -> u64 {
        match self.configured {
            0 => self.node,
            configured => configured,
        }
    }
}

/// The number of starts that a node lists to its peers: a peer that missed more cannot detect a copy.
pub const STARTS_KEPT: usize = 8;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file system refused.
    #[error("data directory {path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Another process holds the lock.
    #[error(
        "data directory {0} is in use by another process (a node started by hand?): stop it first"
    )]
    InUse(PathBuf),
    /// The identity file cannot be read, or is damaged.
    #[error(transparent)]
    Unreadable(anyhow::Error),
    /// The directory was made for something else.
    #[error(
        "data directory {path} belongs to {what} {found}, the configuration says {configured}{}",
        if *what == "nodes" { FIRST_NODES } else { "" }
    )]
    Mismatch {
        path: PathBuf,
        /// `cluster`, `node`, `shards` or `nodes`.
        what: &'static str,
        /// In the identity file.
        found: String,
        /// In the configuration.
        configured: String,
    },
    /// A log without the identity that belongs to it.
    #[error(
        "data directory {0} has a log but no {IDENTITY_FILE}: put it back, or move the directory away, start with an \
         empty one and run `nowserving cluster replace-node <node>`"
    )]
    Missing(PathBuf),
}

/// A data directory that is ours while this lives.
#[derive(Debug)]
pub struct DataDir {
    pub path: PathBuf,
    /// After this start was counted.
    pub identity: Identity,
    _lock: File,
}

impl DataDir {
    /// Folder of the Raft log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        log_dir(&self.path)
    }

    /// Folder of the shards' snapshots.
    #[must_use]
    pub fn snapshots(&self) -> PathBuf {
        snapshot_dir(&self.path)
    }

    /// Locks the directory (made if missing), compares its identity with `config` and counts this
    /// start.
    ///
    /// # Errors
    /// In use, damaged, or made for another cluster, node, node list or shard count.
    pub fn open(config: &Config) -> Result<Self, IdentityError> {
        let lock = lock(&config.data_dir)?;
        DataDir::open_locked(config, lock)
    }

    /// The same for a directory that this process has locked.
    ///
    /// # Errors
    /// Damaged, or made for another cluster, node, node list or shard count.
    pub fn open_locked(config: &Config, lock: File) -> Result<Self, IdentityError> {
        let path = config.data_dir.clone();
        let io = |source| IdentityError::Io {
            path: path.clone(),
            source,
        };
        // A node that has just got its number has none.
        fs::create_dir_all(snapshot_dir(&path)).map_err(io)?;
        // One without a number waited to be added, and is the node of its configuration now.
        let known = read(&path)?.filter(|it| it.node != 0);
        let mut identity = match known {
            Some(identity) => compare(identity, config)?,
            None if path.join("log").exists() => return Err(IdentityError::Missing(path)),
            None => Identity {
                format: FORMAT,
                cluster: config.cluster.clone(),
                node: config.id,
                configured: config.id,
                shards: config.shards,
                nodes: config.nodes.clone(),
                disk_id: random_u64().map_err(io)?,
                ..Identity::default()
            },
        };
        identity.boots += 1;
        identity.starts.insert(0, random_u64().map_err(io)?);
        identity.starts.truncate(STARTS_KEPT);
        write(&path, &identity).map_err(io)?;
        Ok(DataDir {
            path,
            identity,
            _lock: lock,
        })
    }
}

/// Locks a data directory, which is made if missing, until the file is dropped.
///
/// # Errors
/// It is in use.
pub fn lock(path: &Path) -> Result<File, IdentityError> {
    let io = |source| IdentityError::Io {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(path.join("snap")).map_err(io)?;
    let lock = File::create(path.join(LOCK_FILE)).map_err(io)?;
    take(&lock, path)?;
    Ok(lock)
}

/// The folder of the Raft log in a data directory.
pub(crate) fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// The folder of the shards' snapshots in a data directory.
pub(crate) fn snapshot_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("snap")
}

/// Locks a data directory that a node has used, without a change to it.
///
/// # Errors
/// In use, or no node has used it.
pub(crate) fn lock_existing(data_dir: &Path) -> Result<File, IdentityError> {
    let path = data_dir.join(LOCK_FILE);
    let lock = File::open(&path).map_err(|source| IdentityError::Io { path, source })?;
    take(&lock, data_dir)?;
    Ok(lock)
}

fn take(lock: &File, data_dir: &Path) -> Result<(), IdentityError> {
    let path = data_dir.to_owned();
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(IdentityError::InUse(path)),
        Err(fs::TryLockError::Error(source)) => Err(IdentityError::Io { path, source }),
    }
}

/// Reads the identity of a data directory that a node has used.
///
/// # Errors
/// Missing or damaged.
pub(crate) fn look_at(data_dir: &Path) -> Result<Identity, IdentityError> {
    read(data_dir)?.ok_or_else(|| IdentityError::Missing(data_dir.to_owned()))
}

impl DataDir {
    /// The id of its disk under which this node asks to be added; drawn if it has none yet.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn candidate(&mut self) -> anyhow::Result<u64> {
        if self.identity.candidate == 0 {
            self.identity.candidate = random_u64()?.max(1);
            write(&self.path, &self.identity)?;
        }
        Ok(self.identity.candidate)
    }

    /// This node has lost its disk: what it gets of the cluster comes by snapshots, under another number.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn lose_number(&mut self, members: &[u8], reason: String) -> anyhow::Result<()> {
        members_file::write(&self.path, members)?;
        self.identity.joined = true;
        self.identity.refused = reason;
        self.candidate()?;
        write(&self.path, &self.identity)?;
        Ok(())
    }

    /// The peers of this node refuse its disk: it never takes part again, whatever others say after its next start.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn note_refused(&mut self, reason: &str) -> std::io::Result<()> {
        if !self.identity.refused.is_empty() {
            return Ok(());
        }
        reason.clone_into(&mut self.identity.refused);
        write(&self.path, &self.identity)
    }

    /// This node does not ask to be added.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn forget_candidate(&mut self) -> std::io::Result<()> {
        if self.identity.candidate == 0 {
            return Ok(());
        }
        self.identity.candidate = 0;
        write(&self.path, &self.identity)
    }
}

/// Makes the directory that of the node that was added. What it held of an earlier number goes first: a
/// crash in between leaves the earlier identity, which its peers still refuse.
///
/// # Errors
/// The file system refuses.
pub fn take_number(dir: &Path, welcome: &Welcome, configured: u64) -> anyhow::Result<()> {
    for folder in ["log", "snap"] {
        match fs::remove_dir_all(dir.join(folder)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    known_peers::forget(dir)?;
    members_file::write(dir, &welcome.members)?;
    let identity = Identity {
        format: FORMAT,
        cluster: welcome.cluster.clone(),
        node: welcome.id,
        configured,
        joined: true,
        shards: welcome.shards,
        nodes: welcome.nodes.clone(),
        disk_id: welcome.disk_id,
        ..Identity::default()
    };
    Ok(write(dir, &identity)?)
}

/// A random number from the system.
pub(crate) fn random_u64() -> std::io::Result<u64> {
    getrandom::u64().map_err(std::io::Error::other)
}

/// Reads the identity. That of a new node has only the id with which it asks to be added.
///
/// # Errors
/// It is damaged, or a new one cannot be written down.
pub fn read_or_draw(dir: &Path) -> anyhow::Result<Identity> {
    if let Some(identity) = read(dir)? {
        return Ok(identity);
    }
    let identity = Identity {
        format: 1,
        candidate: random_u64()?.max(1),
        ..Identity::default()
    };
    write(dir, &identity)?;
    Ok(identity)
}

/// Reads the identity, if there is one.
///
/// # Errors
/// It is damaged.
pub fn read(dir: &Path) -> Result<Option<Identity>, IdentityError> {
    checked_file::read(dir, IDENTITY_FILE).map_err(IdentityError::Unreadable)
}

fn compare(identity: Identity, config: &Config) -> Result<Identity, IdentityError> {
    let pairs = [
        ("cluster", identity.cluster.clone(), config.cluster.clone()),
        (
            "node",
            identity.configured().to_string(),
            config.id.to_string(),
        ),
        (
            "shards",
            identity.shards.to_string(),
            config.shards.to_string(),
        ),
        ("nodes", sorted(&identity.nodes), sorted(&config.nodes)),
    ];
    for (what, found, configured) in pairs {
        if found != configured {
            return Err(IdentityError::Mismatch {
                path: config.data_dir.clone(),
                what,
                found,
                configured,
            });
        }
    }
    Ok(identity)
}

/// As a set: the order of nodes in the configuration does not matter.
fn sorted(nodes: &[u64]) -> String {
    let nodes: std::collections::BTreeSet<_> = nodes.iter().collect();
    format!("{nodes:?}")
}

/// Replaces the identity file so that a crash leaves the old or the new one, whole.
fn write(dir: &Path, identity: &Identity) -> std::io::Result<()> {
    let text = toml::to_string(identity).map_err(std::io::Error::other)?;
    checked_file::write(dir, IDENTITY_FILE, &text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(dir: &Path) -> Config {
        Config {
            id: 1,
            nodes: vec![1, 2, 3],
            cluster: "c".into(),
            shards: 16,
            data_dir: dir.join("data"),
            key_file: dir.join("key"),
            nats: "nats://127.0.0.1:4222".into(),
            peer_nats: None,
            metrics_addr: None,
            otlp: None,
            prefix: "nowserving".into(),
            heartbeat_ms: 100,
            election_ms: 1_000,
            snapshot_entries: 100,
            log_bytes_max: 1 << 28,
            ..crate::config::for_tests(&[1, 2, 3], dir.join("data"))
        }
    }

    #[test]
    fn the_file_of_format_1() {
        let kept = Identity {
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
        let path = nowserving_golden::path(
            env!("CARGO_MANIFEST_DIR"),
            "files-1/identity.toml",
            |path| write(path.parent().unwrap(), &kept).unwrap(),
        );
        assert_eq!(read(path.parent().unwrap()).unwrap(), Some(kept));
    }

    #[test]
    fn that_a_disk_is_refused_is_kept_until_the_node_gets_another_number() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let mut data = DataDir::open(&config).unwrap();
        data.note_refused("an older copy").unwrap();
        data.note_refused("again").unwrap();
        drop(data);
        let kept = DataDir::open(&config).unwrap().identity;
        assert_eq!(kept.refused, "an older copy");
        let welcome = Welcome {
            id: 4,
            ..Welcome::default()
        };
        take_number(&config.data_dir, &welcome, 1).unwrap();
        assert_eq!(look_at(&config.data_dir).unwrap().refused, "");
    }

    #[test]
    fn starts_are_counted_and_the_disk_keeps_its_id() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let first = DataDir::open(&config).unwrap().identity;
        let second = DataDir::open(&config).unwrap().identity;
        assert_eq!((first.boots, second.boots), (1, 2));
        assert_eq!(second.starts[1..], first.starts);
        let mut reordered = config.clone();
        reordered.nodes.reverse();
        for _ in 0..2 * STARTS_KEPT {
            DataDir::open(&reordered).unwrap();
        }
        let last = DataDir::open(&config).unwrap().identity;
        assert_eq!(last.starts.len(), STARTS_KEPT);
        assert_eq!(first.disk_id, second.disk_id);
    }

    #[test]
    fn a_node_that_waits_to_be_added_keeps_its_disk_id() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(lock(&config.data_dir).unwrap());
        let first = read_or_draw(&config.data_dir).unwrap();
        assert_eq!(read_or_draw(&config.data_dir).unwrap(), first);
        assert_eq!(first.node, 0);
        let founder = DataDir::open(&config).unwrap().identity;
        assert_eq!((founder.node, founder.candidate), (1, 0));
    }

    #[test]
    fn a_second_process_is_kept_out() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let _held = DataDir::open(&config).unwrap();
        assert!(matches!(
            DataDir::open(&config),
            Err(IdentityError::InUse(_))
        ));
    }

    #[test]
    fn another_shard_count_node_or_cluster_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(DataDir::open(&config).unwrap());
        let changed = [
            Config {
                shards: 8,
                ..config.clone()
            },
            Config {
                id: 2,
                ..config.clone()
            },
            Config {
                cluster: "other".into(),
                ..config.clone()
            },
            Config {
                nodes: vec![1, 2],
                ..config.clone()
            },
        ];
        for (changed, named) in changed.iter().zip(["shards", "node", "cluster", "nodes"]) {
            let error = DataDir::open(changed).unwrap_err();
            assert!(matches!(error, IdentityError::Mismatch { .. }));
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn a_log_without_identity_and_a_damaged_identity_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(DataDir::open(&config).unwrap());
        let other = "format = 2\nnew = true\n";
        checked_file::write(&config.data_dir, IDENTITY_FILE, other).unwrap();
        let error = DataDir::open(&config).unwrap_err().to_string();
        assert!(
            error.contains("has format 2, and this build reads 1"),
            "{error}"
        );
        fs::write(config.data_dir.join(IDENTITY_FILE), "format = ").unwrap();
        assert!(matches!(
            DataDir::open(&config),
            Err(IdentityError::Unreadable(_))
        ));
        fs::remove_file(config.data_dir.join(IDENTITY_FILE)).unwrap();
        fs::create_dir(config.data_dir.join("log")).unwrap();
        assert!(matches!(
            DataDir::open(&config),
            Err(IdentityError::Missing(_))
        ));
    }
}
