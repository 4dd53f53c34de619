//! The cluster's key: the one secret that all nodes share. The keys for tickets
//! and for frames are derived from it, each for its own purpose only.
//!
//! The file is text, so that it survives being pasted into a secret store:
//!
//! ```text
//! nowserving-cluster-key-v1
//! 1 <64 hex digits>
//! ```
//!
//! The number is the key's id, which stands in every ticket. A rotation will add
//! a second key line; this release wants exactly one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER_PERMISSIVE;

use crate::frame::FrameKey;
use crate::ticket::TicketKeys;

const MAGIC: &str = "nowserving-cluster-key-v1";
/// Far more than the file has; so that a wrong path (a log, a disk) is not read whole.
const FILE_MAX_BYTES: u64 = 4_096;
const TICKET_CONTEXT: &str = "nowserving cluster key v1: tickets";
const FRAME_CONTEXT: &str = "nowserving cluster key v1: frames";

/// The secret of a cluster. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    id: u8,
    secret: [u8; 32],
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey(id {}, …)", self.id)
    }
}

/// Why a key file cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// [`ClusterKey::generate`] never writes over a file.
    #[error("key file {}: there is a file already; a key is never written over", .0.display())]
    Exists(PathBuf),
    /// There is no such file.
    #[error("key file {}: not found", .0.display())]
    NotFound(PathBuf),
    /// The file cannot be read or written; the source says why.
    #[error("key file {}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is a folder, a device or the like.
    #[error("key file {}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Others than the owner have rights on the file.
    #[error("key file {}: mode {mode:04o} lets others than its owner in; make it 0600 (chmod 600)", path.display())]
    Rights {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is not a key file, or a damaged one. Never quotes what it contains.
    #[error("key file {}: {what}", path.display())]
    Malformed {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl ClusterKey {
    /// Makes a new random key and writes it to `path`, readable by the owner only.
    /// The file must not exist yet. It is on disk when this returns.
    pub fn generate(path: &Path) -> Result<ClusterKey, KeyError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyError::Exists(path.to_owned()),
            _ => KeyError::Io {
                path: path.to_owned(),
                source,
            },
        };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| failed(io::Error::other(error.to_string())))?;
        let key = ClusterKey { id: 1, secret };
        // create_new is O_EXCL: neither an existing file nor a planted link is followed.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let written = file
            .write_all(key.to_text().as_bytes())
            .and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| sync_folder_of(path)) {
            // Ours, and half written: in the way of the next attempt.
            let _ = std::fs::remove_file(path);
            return Err(failed(error));
        }
        Ok(key)
    }

    /// Reads the key from `path`. Refuses a file on which the group or others have
    /// any right, and one that is not exactly a key file.
    pub fn load(path: &Path) -> Result<ClusterKey, KeyError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => KeyError::NotFound(path.to_owned()),
            _ => KeyError::Io {
                path: path.to_owned(),
                source,
            },
        };
        let file = File::open(path).map_err(failed)?;
        // Asked of the open file, not of the path: nobody can swap it in between.
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(KeyError::NotAFile(path.to_owned()));
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Rights {
                path: path.to_owned(),
                mode,
            });
        }
        let mut bytes = Vec::new();
        file.take(FILE_MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        parse(&bytes).map_err(|what| KeyError::Malformed {
            path: path.to_owned(),
            what,
        })
    }

    /// The keys that sign and check tickets.
    pub fn ticket_keys(&self) -> TicketKeys {
        TicketKeys::new(self.id, blake3::derive_key(TICKET_CONTEXT, &self.secret))
    }

    /// The key that seals frames between nodes.
    pub fn frame_key(&self) -> FrameKey {
        FrameKey::new(blake3::derive_key(FRAME_CONTEXT, &self.secret))
    }

    fn to_text(&self) -> String {
        format!(
            "{MAGIC}\n{} {}\n",
            self.id,
            HEXLOWER_PERMISSIVE.encode(&self.secret)
        )
    }
}

/// Blank lines and spaces around lines are allowed (secret stores add and drop
/// newlines), nothing else is.
fn parse(bytes: &[u8]) -> Result<ClusterKey, &'static str> {
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err("too long for a cluster key file");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "not a cluster key file: not text")?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if lines.next() != Some(MAGIC) {
        return Err("not a cluster key file: its first line must be `nowserving-cluster-key-v1`");
    }
    let line = lines.next().ok_or("the key file has no key line")?;
    if lines.next().is_some() {
        return Err("the key file has more than one key line; this release takes exactly one");
    }
    let (id, digits) = line
        .split_once(' ')
        .ok_or("the key line must be `<id> <64 hex digits>`")?;
    let id = id
        .parse::<u8>()
        .map_err(|_| "the key's id must be a number from 0 to 255")?;
    let secret = HEXLOWER_PERMISSIVE
        .decode(digits.as_bytes())
        .map_err(|_| "the key must be 64 hex digits")?;
    let secret = <[u8; 32]>::try_from(secret)
        .map_err(|_| "the key must be exactly 64 hex digits, 32 bytes")?;
    if secret == [0; 32] {
        return Err("the key is all zeros: a placeholder, not a secret");
    }
    Ok(ClusterKey { id, secret })
}

/// Makes the file's name as durable as its content.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn with_file(content: &[u8], mode: u32) -> Result<ClusterKey, KeyError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        ClusterKey::load(&path)
    }

    #[test]
    fn a_generated_key_is_private_random_and_loads() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let key = ClusterKey::generate(&a).unwrap();
        assert_eq!(
            fs::metadata(&a).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        assert_eq!(ClusterKey::load(&a).unwrap(), key);
        assert_ne!(ClusterKey::generate(&b).unwrap(), key);
        assert!(matches!(ClusterKey::generate(&a), Err(KeyError::Exists(_))));
        assert_eq!(ClusterKey::load(&a).unwrap(), key);
    }

    #[test]
    fn rights_of_others_are_refused() {
        let text = format!("{MAGIC}\n1 {}\n", "ab".repeat(32));
        for mode in [0o600, 0o400, 0o700] {
            assert!(with_file(text.as_bytes(), mode).is_ok(), "{mode:o}");
        }
        for bit in 0..6 {
            let mode = 0o600 | 1 << bit;
            assert!(
                matches!(
                    with_file(text.as_bytes(), mode),
                    Err(KeyError::Rights { .. })
                ),
                "{mode:o}"
            );
        }
    }

    #[test]
    fn malformed_files_are_refused_and_not_quoted() {
        let digits = "ab".repeat(32);
        for text in [
            String::new(),
            digits.clone(),
            format!("nowserving-cluster-key-v2\n1 {digits}\n"),
            format!("{MAGIC}\n"),
            format!("{MAGIC}\n{digits}\n"),
            format!("{MAGIC}\n256 {digits}\n"),
            format!("{MAGIC}\n1 {}\n", &digits[2..]),
            format!("{MAGIC}\n1 {digits}ab\n"),
            format!("{MAGIC}\n1 {}g\n", &digits[1..]),
            format!("{MAGIC}\n1 {}\n", "00".repeat(32)),
            format!("{MAGIC}\n1 {digits}\n2 {digits}\n"),
            format!("{MAGIC}\n1 {digits}\n{}", " ".repeat(5_000)),
        ] {
            let error = with_file(text.as_bytes(), 0o600).unwrap_err();
            assert!(
                matches!(error, KeyError::Malformed { .. }),
                "{text:?}: {error}"
            );
            assert!(!error.to_string().contains("abab"), "{error}");
        }
        assert!(with_file(b"\xff\xfe", 0o600).is_err());
        assert!(with_file(format!("\n {MAGIC} \r\n 1 {digits}").as_bytes(), 0o600).is_ok());
    }

    #[test]
    fn a_missing_file_and_a_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        let error = ClusterKey::load(&none).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("key file {}: not found", none.display())
        );
        // Errors are shown with their sources: what one says, the other does not repeat.
        assert!(std::error::Error::source(&error).is_none());
        assert!(matches!(
            ClusterKey::load(folder.path()),
            Err(KeyError::NotAFile(_))
        ));
        let inside_nothing = folder.path().join("none/key");
        assert!(matches!(
            ClusterKey::generate(&inside_nothing),
            Err(KeyError::Io { .. })
        ));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let key = with_file(
            format!("{MAGIC}\n1 {}\n", "ab".repeat(32)).as_bytes(),
            0o600,
        )
        .unwrap();
        let printed = format!("{key:?} {:?} {:?}", key.ticket_keys(), key.frame_key());
        assert!(
            !printed.contains("ab") && !printed.contains("171"),
            "{printed}"
        );
    }
}
