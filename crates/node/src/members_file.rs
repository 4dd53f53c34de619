//! The newest members that the node knew: at its next start it finds its peers with them, also if those
//! that it began with are gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nowserving_shard::members::Members;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::checked_file;
use crate::nats::peers::PeerList;

pub(crate) const FILE: &str = "members.toml";
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// [`Members::encode`], in hexadecimal.
    members: String,
}

/// Reads the members; those of version 0 if none were written.
///
/// # Errors
/// The file is damaged.
pub fn read(dir: &Path) -> anyhow::Result<Members> {
    let Some(content) = checked_file::read::<Content>(dir, FILE)? else {
        return Ok(Members::default());
    };
    let members = from_hex(&content.members).and_then(|bytes| Members::decode(&bytes));
    let path = || dir.join(FILE).display().to_string();
    members.context("no members").with_context(path)
}

/// Writes encoded members.
///
/// # Errors
/// The file cannot be written.
pub fn write(dir: &Path, members: &[u8]) -> anyhow::Result<()> {
    let members = members.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = toml::to_string(&Content { members })?;
    Ok(checked_file::write(dir, FILE, &text)?)
}

/// Writes the newest members down whenever they change, until the loop ends. Without them a node may not find its
/// peers at its next start, so what cannot be written (the disk is full?) is tried again.
///
/// # Errors
/// The file is damaged.
pub async fn keep(dir: PathBuf, mut list: watch::Receiver<PeerList>) -> anyhow::Result<()> {
    let mut written = read(&dir)?.version;
    while list.changed().await.is_ok() {
        let members = list.borrow_and_update().members.clone();
        while members.version > written {
            let (dir, encoded) = (dir.clone(), members.encode());
            match tokio::task::spawn_blocking(move || write(&dir, &encoded)).await? {
                Ok(()) => written = members.version,
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the members were not written down"
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
    Ok(())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let starts = (0..text.len()).step_by(2);
    starts
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_of_format_1() {
        let mut members = Members::begin(&[1, 2, 5], 9);
        let fifth = members.nodes.entry(5).or_default();
        (fifth.disk_id, fifth.drained) = (7, true);
        members.preferred.insert(3, 5);
        let path =
            nowserving_golden::path(env!("CARGO_MANIFEST_DIR"), "files-1/members.toml", |path| {
                write(path.parent().unwrap(), &members.encode()).unwrap()
            });
        assert_eq!(read(path.parent().unwrap()).unwrap(), members);
    }

    #[test]
    fn members_come_back_and_damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Members::default());
        let mut members = Members::begin(&[1, 2, 5], 9);
        members.nodes.entry(5).or_default().disk_id = u64::MAX;
        write(dir.path(), &members.encode()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), members);
        checked_file::write(dir.path(), FILE, "members = \"0\"").unwrap();
        assert!(format!("{:#}", read(dir.path()).unwrap_err()).contains(FILE));
    }
}
