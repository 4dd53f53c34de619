//! From disk to a running shard: the snapshot, then the log after it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nowserving_log::LogStore;
use nowserving_replica::{self as replica, LogState, Replica, Restored, SnapshotMeta, Write};
use raft::eraftpb::ConfState;

use super::TICKS_PER_HEARTBEAT;
use super::group::Shard;
use super::snapshots;
use crate::config::Config;
use nowserving_shard::clock::Micros;
use nowserving_shard::state::State;

/// A lease is shorter than the election timeout by this factor: room for clocks that differ.
const LEASE_PERCENT: u64 = 80;

/// Brings all shards back. Those that were never started on this disk are started with the configured
/// nodes as their voters, in one synced write; from then on the disk says who votes.
///
/// # Errors
/// A snapshot or the log is damaged, or they don't fit each other, or their voters are not the
/// configured nodes.
pub fn shards(
    config: &Config,
    snapshot_dir: &Path,
    log: &Arc<dyn LogStore>,
    now: Micros,
) -> anyhow::Result<Vec<Shard>> {
    let mut first = Vec::new();
    for id in 0..config.shards {
        if load(id, log)?.first_members.voters.is_empty() {
            first.push(Write::first_voters(id, &config.nodes));
        }
    }
    log.write(&first)
        .context("writing the voters of new shards")?;
    (0..config.shards)
        .map(|id| shard(id, config, snapshot_dir, log, now))
        .collect()
}

fn shard(
    id: u32,
    config: &Config,
    snapshot_dir: &Path,
    log: &Arc<dyn LogStore>,
    now: Micros,
) -> anyhow::Result<Shard> {
    let found = snapshots::read(snapshot_dir, &config.cluster, id)?;
    let (snapshot, state) = match found {
        Some((header, state)) => (
            SnapshotMeta {
                index: header.index,
                term: header.term,
                conf_state: ConfState {
                    voters: header.voters,
                    ..ConfState::default()
                },
            },
            state,
        ),
        None => (SnapshotMeta::default(), State::new()),
    };
    let restored = Restored {
        log: load(id, log)?,
        snapshot,
    };
    let snapshot_index = restored.snapshot.index;
    let replica = Replica::new(&replica_config(id, config), restored, log.clone(), now)
        .with_context(|| format!("shard {id}"))?;
    let mut configured = config.nodes.clone();
    configured.sort_unstable();
    let voters = replica.voters();
    anyhow::ensure!(
        voters == configured,
        "the voters of shard {id} on disk are nodes {voters:?}, the configuration says {configured:?}"
    );
    Ok(Shard::new(id, replica, state, snapshot_index))
}

fn load(id: u32, log: &Arc<dyn LogStore>) -> anyhow::Result<LogState> {
    log.load(id)
        .with_context(|| format!("shard {id}: reading the log"))
}

fn replica_config(shard: u32, config: &Config) -> replica::Config {
    let tick = Duration::from_millis(config.heartbeat_ms) / TICKS_PER_HEARTBEAT as u32;
    let election_ticks = config.election_ms * TICKS_PER_HEARTBEAT / config.heartbeat_ms;
    replica::Config {
        shard,
        id: config.id,
        election_ticks: usize::try_from(election_ticks).unwrap_or(usize::MAX),
        heartbeat_ticks: TICKS_PER_HEARTBEAT as usize,
        tick,
        lease: Duration::from_millis(config.election_ms * LEASE_PERCENT / 100),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_log::MemoryLog;

    use super::*;
    use crate::shards::test_rig;

    #[test]
    fn shards_keep_the_voters_that_they_were_started_with() {
        let dir = tempfile::tempdir().unwrap();
        let log: Arc<dyn LogStore> = Arc::new(MemoryLog::new());
        let restored = |nodes: &[u64], count| {
            let config = Config {
                shards: count,
                ..test_rig::config(nodes, dir.path().to_owned())
            };
            shards(&config, dir.path(), &log, 0).map(|shards| shards.len())
        };
        assert_eq!(restored(&[2, 1, 3], 4).unwrap(), 4);
        assert_eq!(log.stats().syncs, 1);
        assert_eq!(restored(&[1, 2, 3], 4).unwrap(), 4);
        assert_eq!(log.stats().syncs, 1, "the second start writes nothing");
        let refused = restored(&[1, 2, 4], 4).unwrap_err().to_string();
        for words in ["shard 0", "[1, 2, 3]", "[1, 2, 4]"] {
            assert!(refused.contains(words), "{refused}");
        }
    }
}
