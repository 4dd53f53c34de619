//! A small file system of a node's own, which a test can fill.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const BALLAST: &str = "ballast";

/// A tmpfs of this size. Dropped, it is gone.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Whether this process may mount one.
    ///
    /// # Errors
    /// There is no temporary folder.
    pub fn is_available() -> Result<bool> {
        let folder = tempfile::tempdir()?;
        Ok(SmallDisk::mount(&folder.path().join("disk"), 1 << 20).is_ok())
    }

    /// Mounts one at `path`, which is made.
    ///
    /// # Errors
    /// This process may not.
    pub fn mount(path: &Path, bytes: u64) -> Result<SmallDisk> {
        fs::create_dir_all(path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        let done = mount.arg(path).output().context("mount")?;
        let why = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "cannot mount a tmpfs: {why}");
        Ok(SmallDisk {
            path: path.to_owned(),
        })
    }

    /// Takes all its room but `left` bytes.
    ///
    /// # Errors
    /// The file that takes it cannot be written.
    pub fn fill(&self, left: u64) -> Result<()> {
        let mut ballast = File::create(self.path.join(BALLAST))?;
        let mut piece = vec![1; 64 << 10];
        while !piece.is_empty() {
            match ballast.write_all(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    piece.truncate(piece.len() / 2);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let taken = ballast.metadata()?.len();
        Ok(ballast.set_len(taken.saturating_sub(left))?)
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// The file that takes it cannot be removed.
    pub fn clear(&self) -> Result<()> {
        Ok(fs::remove_file(self.path.join(BALLAST))?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
