//! From disk to a running shard: the snapshot, then the log after it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nowserving_line::Lines;
use nowserving_log::LogStore;
use nowserving_replica::{self as replica, Replica, Restored, SnapshotMeta};
use raft::eraftpb::ConfState;

use super::TICKS_PER_HEARTBEAT;
use super::group::Shard;
use super::snapshots;
use crate::config::Config;
use nowserving_shard::clock::Micros;

/// A lease is shorter than the election timeout by this factor: room for clocks that differ.
const LEASE_PERCENT: u64 = 80;

/// Brings one shard back.
///
/// # Errors
/// The snapshot or the log is damaged, or they don't fit each other.
pub fn shard(
    id: u32,
    config: &Config,
    snapshot_dir: &Path,
    log: &Arc<dyn LogStore>,
    now: Micros,
) -> anyhow::Result<Shard> {
    let found = snapshots::read(snapshot_dir, &config.cluster, id)?;
    let (snapshot, lines) = match found {
        Some((header, lines)) => (
            SnapshotMeta {
                index: header.index,
                term: header.term,
                conf_state: ConfState {
                    voters: header.voters,
                    ..ConfState::default()
                },
            },
            lines,
        ),
        None => (SnapshotMeta::default(), Lines::new()),
    };
    let restored = Restored {
        log: log
            .load(id)
            .with_context(|| format!("shard {id}: reading the log"))?,
        snapshot,
    };
    let snapshot_index = restored.snapshot.index;
    let replica = Replica::new(&replica_config(id, config), restored, log.clone(), now)
        .with_context(|| format!("shard {id}"))?;
    Ok(Shard::new(id, replica, lines, snapshot_index))
}

fn replica_config(shard: u32, config: &Config) -> replica::Config {
    let tick = Duration::from_millis(config.heartbeat_ms) / TICKS_PER_HEARTBEAT as u32;
    let election_ticks = config.election_ms * TICKS_PER_HEARTBEAT / config.heartbeat_ms;
    replica::Config {
        shard,
        id: config.id,
        voters: config.nodes.clone(),
        election_ticks: usize::try_from(election_ticks).unwrap_or(usize::MAX),
        heartbeat_ticks: TICKS_PER_HEARTBEAT as usize,
        tick,
        lease: Duration::from_millis(config.election_ms * LEASE_PERCENT / 100),
    }
}
