//! Small text files of the data directory, with a checksum in their last line.
//!
//! A flipped bit in a number leaves valid TOML: a node with another disk id or start count than its
//! peers know is refused by them for good, and one that misremembers its peers refuses theirs.
//!
//! Their `format` is read before anything else in them, as the fields of another one are not known. A file without
//! it has format 1: `peers.toml` and `members.toml` are written without it, for builds that do not know it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The format of these files that this build writes and reads.
pub const FORMAT: u32 = 1;

const LABEL: &str = "# checksum ";

/// A file whose content has changed since it was written.
#[derive(Debug, thiserror::Error)]
#[error("{} is damaged: {what}", path.display())]
pub struct Damaged {
    pub path: PathBuf,
    pub what: String,
}

/// A file of a build that writes it in another way.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} has format {found}, and this build reads {FORMAT}: start the build that wrote it",
    path.display()
)]
pub struct OtherFormat {
    pub path: PathBuf,
    pub found: u32,
}

/// What a file of any format has.
#[derive(Deserialize)]
struct Head {
    format: Option<u32>,
}

/// Reads `name` in `dir`; `None` if there is no such file.
///
/// # Errors
/// [`Damaged`], [`OtherFormat`], the file can't be read, or is not such a file.
pub fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> anyhow::Result<Option<T>> {
    let Some(text) = read_text(dir, name)? else {
        return Ok(None);
    };
    let path = dir.join(name);
    let context = || path.display().to_string();
    let head: Head = toml::from_str(&text).with_context(context)?;
    match head.format {
        Some(found) if found != FORMAT => Err(OtherFormat { path, found }.into()),
        _ => Ok(Some(toml::from_str(&text).with_context(context)?)),
    }
}

/// The content without the checksum's line.
fn read_text(dir: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let path = dir.join(name);
    let damaged = |what: String| Damaged {
        path: path.clone(),
        what,
    };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(anyhow::Error::from(error).context(path.display().to_string())),
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        damaged(format!("byte {at} is not text"))
    })?;
    let content = text.rfind(LABEL).and_then(|at| text.get(..at));
    let content = content.ok_or_else(|| damaged("its checksum is missing".into()))?;
    if text != sealed(content) {
        return Err(damaged("its checksum does not hold".into()).into());
    }
    Ok(Some(content.to_owned()))
}

/// Replaces `name` in `dir`, so that a crash leaves the old or the new file, whole.
///
/// # Errors
/// The file can't be written.
pub fn write(dir: &Path, name: &str, content: &str) -> std::io::Result<()> {
    write_atomically(dir, name, sealed(content).as_bytes())
}

pub(crate) fn sealed(content: &str) -> String {
    format!("{content}{LABEL}{}\n", blake3::hash(content.as_bytes()))
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

    #[test]
    fn the_format_is_read_first() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Content {
            #[serde(default)]
            format: u32,
            boots: u64,
        }
        let dir = tempfile::tempdir().unwrap();
        let boots = u64::MAX;
        for (format, content) in [(1, "format = 1\n"), (0, "")] {
            let content = format!("{content}boots = {boots}\n");
            write(dir.path(), "file.toml", &content).unwrap();
            let read = read::<Content>(dir.path(), "file.toml").unwrap();
            assert_eq!(read, Some(Content { format, boots }));
        }
        write(dir.path(), "file.toml", "format = 2\nnew = true\n").unwrap();
        let error = read::<Content>(dir.path(), "file.toml").unwrap_err();
        assert!(error.is::<OtherFormat>(), "{error}");
        let clear = "file.toml has format 2, and this build reads 1: start the build that wrote it";
        assert!(error.to_string().ends_with(clear), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.toml");
        let read = || read_text(dir.path(), "file.toml");
        assert!(read().unwrap().is_none());
        let content = "boots = 12\nstarts = [1, 2]\n";
        write(dir.path(), "file.toml", content).unwrap();
        assert_eq!(read().unwrap().unwrap(), content);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read().expect_err(what);
            assert!(error.is::<Damaged>(), "{what}: {error}");
            assert!(error.to_string().contains("file.toml"), "{what}: {error}");
        };
        for at in 0..whole.len() {
            refused(&whole[..at], &format!("cut at {at}"));
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                refused(&flipped, &format!("bit {bit} of byte {at}"));
            }
        }
    }
}
