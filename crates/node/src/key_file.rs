//! The file that holds the cluster's keys: one, or two while the key is rotated.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nowserving_protocol::keys::{BadKey, ClusterKey, KEY_TEXT_BYTES_MAX, LacksKey, LoadedKeys};

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
    /// It lacks the key in force.
    #[error("key file {}: {error}", path.display())]
    Lacks { path: PathBuf, error: LacksKey },
}

/// Makes a new random key and writes it to `path`, readable by the owner only.
/// The file must not exist yet. It is on disk when this returns.
///
/// # Errors
/// There is a file already, or the system refuses.
pub fn generate(path: &Path) -> Result<LoadedKeys, KeyFileError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let key = LoadedKeys::from(ClusterKey::new(random().map_err(failed)?));
    // create_new is O_EXCL: neither an existing file nor a planted link is followed.
    let mut file = create(path).map_err(failed)?;
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

/// Adds a new random key to the file at `path`, for a rotation, and returns the keys that it has then. It has the old
/// content or the new one, whatever happens, and the same owner.
///
/// # Errors
/// As [`load`]; it has two keys already; or the system refuses.
pub fn add_next(path: &Path) -> Result<LoadedKeys, KeyFileError> {
    let failed = |source: io::Error| KeyFileError::Io {
        path: path.to_owned(),
        source,
    };
    let keys = load(path)?.with_next(random().map_err(failed)?);
    let keys = keys.map_err(|error| KeyFileError::Malformed {
        path: path.to_owned(),
        error,
    })?;
    // A link stays one.
    let path = std::fs::canonicalize(path).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = replace(&path, &new, &keys);
    if let Err(error) = written {
        // Of another run, if it was there before.
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(&new);
        }
        return Err(KeyFileError::Io {
            path: new,
            source: error,
        });
    }
    Ok(keys)
}

/// Writes keys to the file `new`, which then takes the place of `path`.
fn replace(path: &Path, new: &Path, keys: &LoadedKeys) -> io::Result<()> {
    let old = std::fs::metadata(path)?;
    let mut file = create(new)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.write_all(keys.to_text().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    sync_folder_of(path)
}

/// A new file that only its owner may read.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn random() -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(secret)
}

/// Reads the keys from `path`.
///
/// # Errors
/// The group or others have any right on the file, or it is not exactly a key file.
pub fn load(path: &Path) -> Result<LoadedKeys, KeyFileError> {
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
    LoadedKeys::from_text(&bytes).map_err(|error| KeyFileError::Malformed {
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

    fn with_file(content: &str, mode: u32) -> Result<LoadedKeys, KeyFileError> {
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
    fn a_next_key_is_added_once_and_the_file_stays_private() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("key"), folder.path().join("link"));
        let first = generate(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let both = add_next(&link).unwrap();
        assert_eq!(load(&path).unwrap(), both);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let ids: Vec<u8> = both.iter().map(ClusterKey::id).collect();
        assert_eq!((ids, both.iter().next()), (vec![1, 2], first.iter().next()));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(matches!(
            add_next(&path),
            Err(KeyFileError::Malformed { .. })
        ));
        assert_eq!(load(&path).unwrap(), both);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn rights_of_others_are_refused() {
        let text = LoadedKeys::from(ClusterKey::new([7; 32])).to_text();
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
