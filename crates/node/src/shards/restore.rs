//! From disk to what an engine starts from: the snapshots, and what the log holds after them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use nowserving_engine::snapshot_header::meta_of;
use nowserving_engine::{Engine, RestoredShard};
use nowserving_log::LogStore;
use nowserving_replica::{LogState, Restored, SnapshotMeta, Write};
use nowserving_shard::state::State;

use super::snapshots;
use crate::config::Config;

/// Reads all shards. Those that were never started on this disk are started with the configured
/// nodes as their voters, in one synced write; from then on the disk says who votes. Installs of snapshots
/// that a crash interrupted are completed.
///
/// # Errors
/// A snapshot or the log is damaged.
pub fn shards(
    config: &Config,
    snapshot_dir: &Path,
    log: &Arc<dyn LogStore>,
) -> anyhow::Result<Vec<RestoredShard>> {
    let mut first = Vec::new();
    for id in 0..config.shards {
        if load(id, log)? == LogState::default() {
            first.push(Write::bootstrap(id, &config.nodes));
        }
    }
    log.write(&first)
        .context("writing the voters of new shards")?;
    (0..config.shards)
        .map(|id| shard(id, &config.cluster, snapshot_dir, log))
        .collect()
}

/// Reads one shard.
///
/// # Errors
/// Its snapshot or the log is damaged.
pub fn shard(
    id: u32,
    cluster: &str,
    snapshot_dir: &Path,
    log: &Arc<dyn LogStore>,
) -> anyhow::Result<RestoredShard> {
    let found = snapshots::read(snapshot_dir, cluster, id)?;
    let (snapshot, state) = match found {
        Some((header, state)) => (meta_of(header), state),
        None => (SnapshotMeta::default(), State::new()),
    };
    let mut restored = Restored {
        log: load(id, log)?,
        snapshot,
    };
    if let Some(write) = restored.complete_install(id, log.as_ref())? {
        tracing::info!(shard = id, "completing the install of a snapshot");
        log.write(&[write])
            .with_context(|| format!("shard {id}: restarting the log after a snapshot"))?;
        restored.log = load(id, log)?;
    }
    Ok(RestoredShard {
        shard: id,
        restored,
        state,
    })
}

/// Checks that the configured nodes are the voters of every shard.
///
/// # Errors
/// They are not.
pub fn check_voters(nodes: &[u64], engine: &Engine) -> anyhow::Result<()> {
    let mut configured = nodes.to_vec();
    configured.sort_unstable();
    for view in engine.shards() {
        let (id, voters) = (view.shard, view.replica.voters());
        anyhow::ensure!(
            voters == configured,
            "the voters of shard {id} on disk are nodes {voters:?}, the configuration says {configured:?}"
        );
    }
    Ok(())
}

fn load(id: u32, log: &Arc<dyn LogStore>) -> anyhow::Result<LogState> {
    log.load(id)
        .with_context(|| format!("shard {id}: reading the log"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::{Boot, Now};
    use nowserving_log::MemoryLog;
    use nowserving_replica::EntryReader;

    use super::*;

    #[test]
    fn shards_keep_the_voters_that_they_were_started_with() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(MemoryLog::new());
        let log: Arc<dyn LogStore> = memory.clone();
        let reader: Arc<dyn EntryReader> = memory;
        let restored = |nodes: &[u64]| {
            let config = Config {
                shards: 4,
                ..crate::config::for_tests(nodes, dir.path().to_owned())
            };
            let shards = shards(&config, dir.path(), &log)?;
            let (boot, now) = (Boot { start: 1 }, Now { us: 0, wall_ms: 0 });
            let engine = Engine::new(config.engine(1), boot, shards, &reader, now)?;
            check_voters(nodes, &engine)
        };
        restored(&[2, 1, 3]).unwrap();
        assert_eq!(log.stats().syncs, 1);
        restored(&[1, 2, 3]).unwrap();
        assert_eq!(log.stats().syncs, 1, "the second start writes nothing");
        let refused = restored(&[1, 2, 4]).unwrap_err().to_string();
        for words in ["shard 0", "[1, 2, 3]", "[1, 2, 4]"] {
            assert!(refused.contains(words), "{refused}");
        }
    }
}
