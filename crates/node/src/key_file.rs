//! The file that holds the cluster's key.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nowserving_protocol::keys::{BadKey, ClusterKey, KEY_TEXT_BYTES_MAX};

/// Why a key file cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// [`generate`] never writes over a file.
    #[error("key file {}: there is a file already; a key is never written over", .0.display())]
    Exists(PathBuf),
    /// There is no such file.
    #[error("key file {}: not found", .0.display())]
    NotFound(PathBuf),
    /// The file cannot be read or written; the source says why.
    #[error("key file {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The path names a folder, a device or the like.
    #[error("key file {}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Others than the owner have rights on the file.
    #[error("key file {}: mode {mode:04o} lets others than its owner in; make it 0600 (chmod 600)", path.display())]
    Rights { path: PathBuf, mode: u32 },
    /// Its content is no key.
    #[error("key file {}: {error}", path.display())]
    Malformed { path: PathBuf, error: BadKey },
}

/// Makes a new random key and writes it to `path`, readable by the owner only.
/// The file must not exist yet. It is on disk when this returns.
///
/// # Errors
/// There is a file already, or the system refuses.
pub fn generate(path: &Path) -> Result<ClusterKey, KeyFileError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| failed(io::Error::other(error.to_string())))?;
    let key = ClusterKey::new(secret);
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

/// Reads the key from `path`.
///
/// # Errors
/// The group or others have any right on the file, or it is not exactly a key file.
pub fn load(path: &Path) -> Result<ClusterKey, KeyFileError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => KeyFileError::NotFound(path.to_owned()),
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let file = File::open(path).map_err(failed)?;
    // Asked of the open file, not of the path: nobody can swap it in between.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(KeyFileError::NotAFile(path.to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Rights {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    file.take(KEY_TEXT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    ClusterKey::from_text(&bytes).map_err(|error| KeyFileError::Malformed {
        path: path.to_owned(),
        error,
    })
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

    fn with_file(content: &str, mode: u32) -> Result<ClusterKey, KeyFileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        load(&path)
    }

    #[test]
    fn a_generated_key_is_private_random_and_loads() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let key = generate(&a).unwrap();
        assert_eq!(
            fs::metadata(&a).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        assert_eq!(load(&a).unwrap(), key);
        assert_ne!(generate(&b).unwrap(), key);
        assert!(matches!(generate(&a), Err(KeyFileError::Exists(_))));
        assert_eq!(load(&a).unwrap(), key);
    }

    #[test]
    fn rights_of_others_are_refused() {
        let text = ClusterKey::new([7; 32]).to_text();
        for mode in [0o600, 0o400, 0o700] {
            assert!(with_file(&text, mode).is_ok(), "{mode:o}");
        }
        for bit in 0..6 {
            let mode = 0o600 | 1 << bit;
            assert!(
                matches!(with_file(&text, mode), Err(KeyFileError::Rights { .. })),
                "{mode:o}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_key_is_refused() {
        for text in ["", "a log\n", &" ".repeat(KEY_TEXT_BYTES_MAX + 1)] {
            let error = with_file(text, 0o600).unwrap_err();
            assert!(matches!(error, KeyFileError::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn a_missing_file_and_a_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        let error = load(&none).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("key file {}: not found", none.display())
        );
        // Errors are shown with their sources: what one says, the other does not repeat.
        assert!(std::error::Error::source(&error).is_none());
        assert!(matches!(
            load(folder.path()),
            Err(KeyFileError::NotAFile(_))
        ));
        let inside_nothing = folder.path().join("none/key");
        assert!(matches!(
            generate(&inside_nothing),
            Err(KeyFileError::Io { .. })
        ));
    }
}
