//! From disk to what an engine starts from: the snapshots, and what the log holds after them.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::Context as _;
use nowserving_engine::{Replayed, RestoredShard};
use nowserving_log::LogStore;
use nowserving_replica::{LogState, Restored, SnapshotMeta, Write};
use nowserving_shard::command;
use nowserving_shard::state::State;

use super::snapshots;
use crate::config::Config;

/// Reads all shards, in order, from the parts of the log. If the node did not join an existing cluster, those that were
/// never started on this disk are started with the configured nodes as their voters, in one synced write of each part;
/// from then on the disk says who votes. Installs of snapshots that a crash interrupted are completed. Each core reads
/// another shard.
///
/// # Errors
/// A snapshot or the log is damaged.
pub fn shards(
    config: &Config,
    joined: bool,
    snapshot_dir: &Path,
    logs: &[Arc<dyn LogStore>],
) -> anyhow::Result<Vec<RestoredShard>> {
    let log_of = |id: u32| logs.get(id as usize % logs.len().max(1)).context("no log");
    for (part, log) in logs.iter().enumerate() {
        let mut new = Vec::new();
        for id in (0..config.shards).skip(part).step_by(logs.len()) {
            if !joined && load(id, log)? == LogState::default() {
                new.push(Write::bootstrap(id, &config.nodes));
            }
        }
        log.write(&new)
            .context("writing the voters of new shards")?;
    }
    let next = AtomicU32::new(0);
    let work = || {
        let ids = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let ids = ids.take_while(|id| *id < config.shards);
        let read: anyhow::Result<Vec<_>> = ids
            .map(|id| shard(id, &config.cluster, snapshot_dir, log_of(id)?))
            .collect();
        if read.is_err() {
            // No other one is begun.
            next.store(config.shards, Ordering::Relaxed);
        }
        read
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut shards = thread::scope(|scope| {
        let threads = (0..cores.min(config.shards as usize))
            .map(|_| thread::Builder::new().spawn_scoped(scope, work))
            .collect::<std::io::Result<Vec<_>>>()?;
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        anyhow::Ok(all)
    })?;
    shards.sort_unstable_by_key(|restored| restored.shard);
    Ok(shards)
}

/// Reads one shard, and applies what its log is known to have committed behind the snapshot.
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
    let (snapshot, state, file) = match found {
        Some(found) => (found.meta, found.state, Some(found.file)),
        None => {
            let state = State::with_limits(snapshots::bounds()?);
            (SnapshotMeta::default(), state, None)
        }
    };
    let mut restored = Restored {
        log: load(id, log)?,
        snapshot,
        applied: 0,
    };
    if let Some(write) = restored.complete_install(id, log.as_ref())? {
        tracing::info!(shard = id, "completing the install of a snapshot");
        log.write(&[write])
            .with_context(|| format!("shard {id}: restarting the log after a snapshot"))?;
        restored.log = load(id, log)?;
    }
    let mut shard = RestoredShard {
        shard: id,
        restored,
        state,
        replayed: Replayed::default(),
        file,
    };
    shard.replay(log.as_ref(), command::FORMAT)?;
    Ok(shard)
}

fn load(id: u32, log: &Arc<dyn LogStore>) -> anyhow::Result<LogState> {
    log.load(id)
        .with_context(|| format!("shard {id}: reading the log"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::{Boot, Engine, LoopPlace, Now};
    use nowserving_log::MemoryLog;
    use nowserving_replica::EntryReader;
    use nowserving_shard::members::Members;

    use super::*;

    #[test]
    fn shards_keep_the_voters_that_they_were_started_with() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(MemoryLog::new());
        let log: Arc<dyn LogStore> = memory.clone();
        let reader: Arc<dyn EntryReader> = memory;
        let voters = |nodes: &[u64], joined| -> Vec<Vec<u64>> {
            let config = Config {
                shards: 4,
                ..crate::config::for_tests(nodes, dir.path().to_owned())
            };
            let shards = shards(&config, joined, dir.path(), std::slice::from_ref(&log)).unwrap();
            let (boot, now) = (
                Boot {
                    start: 1,
                    is_candidate: false,
                    disk_refused: None,
                },
                Now { us: 0, wall_ms: 0 },
            );
            let secret = nowserving_line::Secret([1; 32]);
            let config = config.engine(LoopPlace::ONLY, 1, secret, Members::default());
            let engine = Engine::new(config, boot, shards, &reader, now).unwrap();
            engine.shards().map(|it| it.replica.voters()).collect()
        };
        assert_eq!(voters(&[2, 1, 3], true), vec![Vec::<u64>::new(); 4]);
        assert_eq!(log.stats().syncs, 0, "a node that joins writes nothing");
        assert_eq!(voters(&[2, 1, 3], false), vec![vec![1, 2, 3]; 4]);
        assert_eq!(voters(&[1, 2, 4], false), vec![vec![1, 2, 3]; 4]);
        assert_eq!(log.stats().syncs, 1, "the second start writes nothing");
    }
}
