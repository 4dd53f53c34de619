//! `nowserving node --check`: verifies the data directory of a node that does not run, and changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nowserving_front::cluster::identity::Identity;
use nowserving_log::{LogStore, parts};
use nowserving_replica::{Config, LogState, Replica};
use serde::Serialize;

use crate::{damage, data_dir, shards};

/// The state of a data directory.
#[derive(Debug, Serialize)]
pub struct Report {
    pub data_dir: PathBuf,
    /// Nothing is wrong.
    pub ok: bool,
    /// The node that the directory belongs to, if that can be read.
    pub node: Option<Owner>,
    /// The shards in which nothing is wrong.
    pub shards: Vec<ShardReport>,
    pub problems: Vec<Problem>,
}

/// The owner of a data directory.
#[derive(Debug, Serialize)]
pub struct Owner {
    pub cluster: String,
    pub id: u64,
    pub shards: u32,
    /// The number of starts on this disk.
    pub starts: u64,
}

/// A shard as it would be restored.
#[derive(Debug, Serialize)]
pub struct ShardReport {
    pub shard: u32,
    pub term: u64,
    /// The last log entry in the snapshot; 0: there is no snapshot.
    pub snapshot_index: u64,
    pub last_index: u64,
}

/// Something that keeps the node from starting with this directory.
#[derive(Debug, Serialize)]
pub struct Problem {
    pub what: String,
    /// What the operator can do.
    pub advice: Option<&'static str>,
}

/// Verifies `data_dir`.
#[must_use]
pub fn run(data_dir: &Path) -> Report {
    let mut report = Report {
        data_dir: data_dir.to_owned(),
        ok: false,
        node: None,
        shards: Vec::new(),
        problems: Vec::new(),
    };
    // Held while the files are read: no node starts meanwhile.
    let lock = report.unless_wrong(data_dir::lock_existing(data_dir).map_err(Into::into));
    if lock.is_some() {
        report.check_files(data_dir);
    }
    report.ok = report.problems.is_empty();
    report
}

impl Report {
    fn check_files(&mut self, data_dir: &Path) {
        self.unless_wrong(data_dir::peers_in(data_dir).map_err(Into::into));
        self.unless_wrong(data_dir::members_in(data_dir).map_err(Into::into));
        let identity = data_dir::identity_of(data_dir).map_err(Into::into);
        let log = parts::look_at(&data_dir::log_dir(data_dir)).context("reading the log");
        let identity = self.unless_wrong(identity);
        if identity.as_ref().is_some_and(|it| it.node == 0) {
            // It waits to be added, and has nothing yet.
            return;
        }
        let log = self.unless_wrong(log);
        let Some(identity) = identity else { return };
        // Without the log each snapshot is still read.
        let log = log.map(|log| Arc::new(log) as Arc<dyn LogStore>);
        for shard in 0..identity.shards {
            let checked = check_shard(data_dir, &identity, shard, log.as_ref());
            let checked = self.unless_wrong(checked);
            self.shards.extend(checked.flatten());
        }
        self.node = Some(Owner {
            cluster: identity.cluster,
            id: identity.node,
            shards: identity.shards,
            starts: identity.boots,
        });
    }

    fn unless_wrong<T>(&mut self, result: anyhow::Result<T>) -> Option<T> {
        let error = match result {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        self.problems.push(Problem {
            what: format!("{error:#}"),
            advice: damage::advice_for(&error),
        });
        None
    }
}

/// Reads a shard's snapshot, and restores the shard from it and the log.
fn check_shard(
    data_dir: &Path,
    identity: &Identity,
    shard: u32,
    log: Option<&Arc<dyn LogStore>>,
) -> anyhow::Result<Option<ShardReport>> {
    let snapshots = data_dir::snapshot_dir(data_dir);
    let Some(log) = log else {
        return shards::snapshots::read(&snapshots, &identity.cluster, shard).map(|_| None);
    };
    let restored = shards::recover::shard(shard, &identity.cluster, &snapshots, log)?.restored;
    let report = ShardReport {
        shard,
        term: restored.log.hard_state.term,
        snapshot_index: restored.snapshot.index,
        last_index: restored.log.last_index,
    };
    // A node that ended before its first write begins anew.
    if restored.log != LogState::default() {
        Replica::new(
            &replica_config(shard, identity.node),
            restored,
            log.clone(),
            0,
        )?;
    }
    Ok(Some(report))
}

/// Any that is valid: the replica never ticks.
fn replica_config(shard: u32, id: u64) -> Config {
    Config {
        shard,
        id,
        election_ticks: 10,
        heartbeat_ticks: 1,
        tick: Duration::from_millis(100),
        lease: Duration::from_millis(500),
        tells_commits: false,
    }
}
