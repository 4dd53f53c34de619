//! Writes down the newest members of the cluster.

use std::path::PathBuf;
use std::time::Duration;

use nowserving_front::cluster::{File, members_file};
use tokio::sync::watch;

use crate::data_dir;
use crate::nats::peers::PeerList;

const RETRY: Duration = Duration::from_secs(1);

/// Writes the newest members down whenever they change, until the loop ends. Without them a node may not find its
/// peers at its next start, so what cannot be written (the disk is full?) is tried again.
///
/// # Errors
/// The file is damaged.
pub async fn keep(dir: PathBuf, mut list: watch::Receiver<PeerList>) -> anyhow::Result<()> {
    let mut written = data_dir::members_in(&dir)?.version;
    while list.changed().await.is_ok() {
        let members = list.borrow_and_update().members.clone();
        while members.version > written {
            let (dir, file) = (dir.clone(), members_file::write(&members.to_bytes()));
            let write = move || data_dir::write(&dir, File::Members, &file);
            match tokio::task::spawn_blocking(write).await? {
                Ok(()) => written = members.version,
                Err(error) => {
                    tracing::warn!(%error, "the members were not written down");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
    Ok(())
}
