//! The data directory: the lock that keeps a second process out, and the small files that say whose it is and what its
//! node knows of the cluster.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nowserving_engine::envelope::Welcome;
use nowserving_front::cluster::checked_file::Unusable;
use nowserving_front::cluster::identity::{Configured, Identity, Mismatch};
use nowserving_front::cluster::known_peers::KnownPeers;
use nowserving_front::cluster::{self, members_file};
use nowserving_shard::members::Members;

use crate::config::Config;

const LOCK_FILE: &str = "lock";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
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
    /// A small file cannot be used.
    #[error("data directory {path}: {source}")]
    File { path: PathBuf, source: Unusable },
    /// The directory was made for something else.
    #[error("data directory {path} belongs to {source}")]
    Mismatch { path: PathBuf, source: Mismatch },
    /// A log without the identity that belongs to it.
    #[error(
        "data directory {path} has a log but no {}: put it back, or move the directory away, start with an \
         empty one and run `nowserving cluster replace-node <node>`",
        cluster::File::Identity.name()
    )]
    Missing { path: PathBuf },
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
    pub fn open(config: &Config) -> Result<Self, DataDirError> {
        let lock = lock(&config.data_dir)?;
        DataDir::open_locked(config, lock)
    }

    /// The same for a directory that this process has locked.
    ///
    /// # Errors
    /// Damaged, or made for another cluster, node, node list or shard count.
    pub fn open_locked(config: &Config, lock: File) -> Result<Self, DataDirError> {
        let path = config.data_dir.clone();
        let io = |source| DataDirError::Io {
            path: path.clone(),
            source,
        };
        // A node that has just got its number has none.
        fs::create_dir_all(snapshot_dir(&path)).map_err(io)?;
        let configured = Configured {
            cluster: &config.cluster,
            id: config.id,
            shards: config.shards,
            nodes: &config.nodes,
        };
        // One without a number waited to be added, and is the node of its configuration now.
        let known = identity_in(&path)?.filter(|it| it.node != 0);
        let mut identity = match known {
            Some(identity) => identity,
            None if nowserving_log::parts::are_there(&log_dir(&path)) => {
                return Err(DataDirError::Missing { path });
            }
            None => Identity::new(configured, random_u64().map_err(io)?),
        };
        let same = identity.compare(configured);
        same.map_err(|source| DataDirError::Mismatch {
            path: path.clone(),
            source,
        })?;
        identity.count_start(random_u64().map_err(io)?);
        let mut data = DataDir {
            path: path.clone(),
            identity,
            _lock: lock,
        };
        data.write_identity().map_err(io)?;
        Ok(data)
    }

    /// Writes the identity down as it is now.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write_identity(&mut self) -> std::io::Result<()> {
        write(&self.path, cluster::File::Identity, &self.identity.write())
    }
}

/// Locks a data directory, which is made if missing, until the file is dropped.
///
/// # Errors
/// It is in use.
pub fn lock(path: &Path) -> Result<File, DataDirError> {
    let io = |source| DataDirError::Io {
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
pub(crate) fn lock_existing(data_dir: &Path) -> Result<File, DataDirError> {
    let path = data_dir.join(LOCK_FILE);
    let lock = File::open(&path).map_err(|source| DataDirError::Io { path, source })?;
    take(&lock, data_dir)?;
    Ok(lock)
}

fn take(lock: &File, data_dir: &Path) -> Result<(), DataDirError> {
    let path = data_dir.to_owned();
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(DataDirError::InUse(path)),
        Err(fs::TryLockError::Error(source)) => Err(DataDirError::Io { path, source }),
    }
}

/// Makes the directory that of the node that was added. What it held of an earlier number goes first: a
/// crash in between leaves the earlier identity, which its peers still refuse.
///
/// # Errors
/// The file system refuses.
pub fn take_number(dir: &Path, welcome: &Welcome, configured: u64) -> anyhow::Result<()> {
    let gone = |removed: std::io::Result<()>| match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    nowserving_log::parts::remove(&log_dir(dir))?;
    gone(fs::remove_dir_all(snapshot_dir(dir)))?;
    gone(fs::remove_file(dir.join(cluster::File::Peers.name())))?;
    let members = members_file::write(&welcome.members);
    write(dir, cluster::File::Members, &members)?;
    let identity = Identity::added(welcome, configured).write();
    Ok(write(dir, cluster::File::Identity, &identity)?)
}

/// A random number from the system.
pub(crate) fn random_u64() -> std::io::Result<u64> {
    getrandom::u64().map_err(std::io::Error::other)
}

/// From the operating system: nobody can guess it.
pub(crate) fn random_secret() -> std::io::Result<nowserving_line::Secret> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
    Ok(nowserving_line::Secret(secret))
}

/// Reads the identity. That of a new node has only the id with which it asks to be added.
///
/// # Errors
/// It is damaged, or a new one cannot be written down.
pub fn identity_or_new(dir: &Path) -> anyhow::Result<Identity> {
    if let Some(identity) = identity_in(dir)? {
        return Ok(identity);
    }
    let identity = Identity::waiting(random_u64()?);
    write(dir, cluster::File::Identity, &identity.write())?;
    Ok(identity)
}

/// Reads the identity of a data directory that a node has used.
///
/// # Errors
/// Missing or damaged.
pub(crate) fn identity_of(dir: &Path) -> Result<Identity, DataDirError> {
    identity_in(dir)?.ok_or_else(|| DataDirError::Missing { path: dir.into() })
}

fn identity_in(dir: &Path) -> Result<Option<Identity>, DataDirError> {
    read_as(dir, cluster::File::Identity, Identity::read)
}

/// Reads the peers that the node has seen.
///
/// # Errors
/// The file is damaged.
pub fn peers_in(dir: &Path) -> Result<KnownPeers, DataDirError> {
    read_as(dir, cluster::File::Peers, KnownPeers::read)
}

/// Reads the members that the node knew; those of version 0 if none were written.
///
/// # Errors
/// The file is damaged.
pub fn members_in(dir: &Path) -> Result<Members, DataDirError> {
    read_as(dir, cluster::File::Members, |bytes| {
        members_file::read(bytes)
    })
}

fn read_as<T>(
    dir: &Path,
    file: cluster::File,
    read: impl Fn(Option<&[u8]>) -> Result<T, Unusable>,
) -> Result<T, DataDirError> {
    let path = dir.to_owned();
    let bytes = match fs::read(dir.join(file.name())) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(DataDirError::Io { path, source }),
    };
    read(bytes.as_deref()).map_err(|source| DataDirError::File { path, source })
}

/// Replaces a file, so that a crash leaves the old or the new one, whole.
///
/// # Errors
/// The file system refuses.
pub fn write(dir: &Path, file: cluster::File, bytes: &[u8]) -> std::io::Result<()> {
    write_atomically(dir, file.name(), bytes)
}

/// Writes `name` in `dir`: to a temporary file, synced, renamed, the folder synced.
pub(crate) fn write_atomically(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(name))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(dir: &Path) -> Config {
        Config {
            shards: 16,
            ..crate::config::for_tests(&[1, 2, 3], dir.join("data"))
        }
    }

    #[test]
    fn starts_are_counted_and_the_disk_keeps_its_id() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let first = DataDir::open(&config).unwrap().identity;
        let second = DataDir::open(&config).unwrap().identity;
        assert_eq!((first.boots, second.boots), (1, 2));
        assert_eq!(second.starts[1..], first.starts);
        assert_eq!(first.disk_id, second.disk_id);
    }

    #[test]
    fn a_node_that_waits_to_be_added_keeps_its_disk_id() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(lock(&config.data_dir).unwrap());
        let first = identity_or_new(&config.data_dir).unwrap();
        assert_eq!(identity_or_new(&config.data_dir).unwrap(), first);
        assert_eq!(first.node, 0);
        let founder = DataDir::open(&config).unwrap().identity;
        assert_eq!((founder.node, founder.candidate), (1, 0));
    }

    #[test]
    fn with_a_number_nothing_is_left_of_the_earlier_one() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let data = DataDir::open(&config).unwrap();
        fs::create_dir(data.log()).unwrap();
        write(&data.path, cluster::File::Peers, b"damaged").unwrap();
        let members = Members::begin(&[1, 2, 4], 7);
        let welcome = Welcome {
            id: 4,
            members: members.to_bytes().into(),
            ..Welcome::default()
        };
        take_number(&data.path, &welcome, 1).unwrap();
        assert!(!data.log().exists() && !data.snapshots().exists());
        assert_eq!(peers_in(&data.path).unwrap(), KnownPeers::default());
        assert_eq!(members_in(&data.path).unwrap(), members);
        let identity = identity_of(&data.path).unwrap();
        assert_eq!((identity.node, identity.configured()), (4, 1));
    }

    #[test]
    fn a_second_process_is_kept_out() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let _held = DataDir::open(&config).unwrap();
        assert!(matches!(
            DataDir::open(&config),
            Err(DataDirError::InUse(_))
        ));
    }

    #[test]
    fn another_configuration_a_log_without_identity_and_a_damaged_identity_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(DataDir::open(&config).unwrap());
        let other = Config {
            shards: 8,
            ..config.clone()
        };
        let error = DataDir::open(&other).unwrap_err().to_string();
        assert!(
            error.ends_with("shards 16, the configuration says 8"),
            "{error}"
        );
        let name = cluster::File::Identity.name();
        fs::write(config.data_dir.join(name), "format = ").unwrap();
        let error = DataDir::open(&config).unwrap_err().to_string();
        assert!(error.contains("identity.toml is damaged"), "{error}");
        fs::remove_file(config.data_dir.join(name)).unwrap();
        fs::create_dir(config.data_dir.join("log")).unwrap();
        assert!(matches!(
            DataDir::open(&config),
            Err(DataDirError::Missing { .. })
        ));
    }
}
