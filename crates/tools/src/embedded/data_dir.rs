//! The directory of an embedded cluster: the lock, the cluster's key, logs, one directory per node.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nowserving_node::key_file;

/// A directory that belongs to this process while the value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Locked; the lock goes with the process, however that ends.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, locks it, makes the cluster's key on first use, and
    /// puts the logs of the last run aside (`*.log.old`).
    ///
    /// # Errors
    /// Another process has it, or the file system refuses; both name the path.
    pub fn open(path: &Path) -> anyhow::Result<DataDir> {
        let shown = path.display();
        fs::create_dir_all(path).with_context(|| format!("cannot make {shown}"))?;
        // Children get absolute paths: theirs must not depend on where they were started.
        let path = path
            .canonicalize()
            .with_context(|| format!("cannot use {shown}"))?;
        let lock = lock(&path)?;
        let dir = DataDir { path, _lock: lock };
        dir.rotate_logs()?;
        let key = dir.key_file();
        if !key.exists() {
            key_file::generate(&key).with_context(|| format!("cannot make {}", key.display()))?;
        }
        Ok(dir)
    }

    /// The directory itself, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Secret of this cluster, for tickets and frames.
    pub fn key_file(&self) -> PathBuf {
        self.path.join("cluster.key")
    }

    /// Where node `id` keeps its data.
    pub fn node(&self, id: u64) -> PathBuf {
        self.path.join(format!("node-{id}"))
    }

    /// The log file of a process of this cluster.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    fn rotate_logs(&self) -> anyhow::Result<()> {
        let logs = self.logs();
        let context = || format!("cannot use {}", logs.display());
        fs::create_dir_all(&logs).with_context(context)?;
        for entry in fs::read_dir(&logs).with_context(context)? {
            let path = entry.with_context(context)?.path();
            if path.extension().is_some_and(|e| e == "log") {
                fs::rename(&path, path.with_extension("log.old")).with_context(context)?;
            }
        }
        Ok(())
    }
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The name of the holder is only for the message.
            let _ = file.read_to_string(&mut holder);
            bail!(
                "{} is in use by another nowserving (pid {}): stop that one, or choose another --data-dir",
                dir.display(),
                holder.trim()
            );
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// The last `count` lines of a log, for error messages; empty if it cannot be read.
pub fn last_lines(path: &Path, count: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_is_made_and_its_key_kept() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a/b");
        let key = {
            let dir = DataDir::open(&path).unwrap();
            fs::write(dir.log("node-1"), "old\n").unwrap();
            fs::read(dir.key_file()).unwrap()
        };
        let dir = DataDir::open(&path).unwrap();
        assert_eq!(fs::read(dir.key_file()).unwrap(), key);
        assert!(!dir.log("node-1").exists());
        assert_eq!(
            fs::read(path.join("logs/node-1.log.old")).unwrap(),
            b"old\n"
        );
    }

    #[test]
    fn the_second_user_of_a_directory_gets_the_holders_name() {
        let tmp = tempfile::tempdir().unwrap();
        let _held = DataDir::open(tmp.path()).unwrap();
        let error = DataDir::open(tmp.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("(pid {})", std::process::id())),
            "{error}"
        );
    }

    #[test]
    fn the_last_lines_are_the_last() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("x.log");
        fs::write(&path, "1\n2\n3\n").unwrap();
        assert_eq!(last_lines(&path, 2), "2\n3");
        assert_eq!(last_lines(&path, 9), "1\n2\n3");
        assert_eq!(last_lines(Path::new("/nonexistent"), 2), "");
    }
}
