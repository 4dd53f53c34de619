//! Makes a replica from the data on disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use raft::RawNode;

use crate::lease::Lease;
use crate::store::Store;
use crate::types::micros;
use crate::vote_hold::VoteHold;
use crate::{
    BOOTSTRAP_INDEX, BOOTSTRAP_TERM, Config, EntryReader, Micros, NewError, ReadFailed, Replica,
    Restored, Role, RoleChange, SnapshotMeta,
};

/// Entries sent to a peer in one message, in bytes (a single larger one is sent alone).
const MESSAGE_BYTES: u64 = 64 << 10;
/// Entries that may wait for their commit, in bytes.
const UNCOMMITTED_BYTES: u64 = 4 << 20;
/// Unacknowledged messages to a peer: with [`MESSAGE_BYTES`] at most 4 MiB per shard and peer. Raft's
/// default of 256 would let one returning peer fill 16 MiB of each shard's outbox.
const INFLIGHT_MESSAGES: usize = 64;

impl Replica {
    /// Continues from `restored`. If the group was never started on this disk, the replica is
    /// *uninitialized*: it has no members and no log, neither votes nor campaigns, and takes from a leader
    /// what leads to a snapshot. The replica reads entries that are no longer in memory through `reader`.
    ///
    /// # Errors
    /// [`NewError`]: the configuration is wrong, or log and snapshot contradict each other.
    pub fn new(
        config: &Config,
        restored: Restored,
        reader: Arc<dyn EntryReader>,
        now: Micros,
    ) -> Result<Replica, NewError> {
        let shard = config.shard;
        let timeout_us = check_config(config)?;
        let snapshot = restored.first_snapshot();
        let Restored { log, applied, .. } = restored;
        let log_lost = |what| Err(NewError::LogLost { shard, what });
        let foreign_snapshot = |what| Err(NewError::ForeignSnapshot { shard, what });
        let mut hard_state = log.hard_state.clone();
        let (last, commit, covers) = (log.last_index, hard_state.commit, snapshot.index);
        if log.start.index == 0 && last > 0 {
            return log_lost("the log has entries, but no start record".to_owned());
        }
        if commit > last {
            return log_lost(format!(
                "commit index {commit} is past the last log entry {last}: the log lost entries"
            ));
        }
        if covers > last {
            return foreign_snapshot(format!(
                "the log ends at {last}, before the snapshot's {covers}"
            ));
        }
        if covers < log.compact_index {
            return foreign_snapshot(format!(
                "the log was compacted through {}, past the snapshot's {covers}",
                log.compact_index
            ));
        }
        // The commit index is written without a sync now and then, so a snapshot can be ahead of it;
        // all entries in a snapshot were committed.
        hard_state.commit = commit.max(covers);
        let applied = applied.clamp(covers, hard_state.commit);
        let fresh = hard_state.term <= BOOTSTRAP_TERM;
        let term = hard_state.term;

        let store = Store::open(shard, reader, &log, hard_state, snapshot.conf_state)?;
        let log_term = store.term_at(covers).unwrap_or(0);
        if log_term != snapshot.term {
            return foreign_snapshot(format!(
                "entry {covers} has term {log_term}, in the snapshot {}",
                snapshot.term
            ));
        }
        let last_term = store.term_at(last).unwrap_or(0);
        if last_term > term {
            return log_lost(format!(
                "the term on disk is {term}, but the last entry is of term {last_term}"
            ));
        }
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config(config, applied), store, &logger).map_err(|error| {
            let problem = error.to_string();
            NewError::Config { shard, problem }
        })?;
        Ok(Replica {
            shard,
            raw,
            lease: Lease::new(micros(config.lease)),
            vote_hold: VoteHold::new(timeout_us, now, fresh),
            election_ticks: config.election_ticks,
            held: VecDeque::new(),
            barrier: 0,
            handed_out: applied,
            votes_asked_term: 0,
            reported: RoleChange {
                role: Role::Follower,
                leader: None,
                term,
            },
            installing: None,
            installed: None,
        })
    }
}

impl Restored {
    /// The newest snapshot, or that of the group's start.
    fn first_snapshot(&self) -> SnapshotMeta {
        match self.snapshot.index == 0 && self.log.start.index == BOOTSTRAP_INDEX {
            true => self.log.start.clone(),
            false => self.snapshot.clone(),
        }
    }

    /// The last entry in the snapshot, and the last one that is known to be committed, if there is any behind the
    /// snapshot. None, too, if log and snapshot contradict each other, which [`Replica::new`] refuses.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn to_replay(
        &self,
        shard: u32,
        reader: &dyn EntryReader,
    ) -> Result<Option<(u64, u64)>, ReadFailed> {
        let (log, snapshot) = (&self.log, self.first_snapshot());
        let (covers, commit) = (snapshot.index, log.hard_state.commit);
        let fits = log.start.index > 0 && log.compact_index <= covers && commit <= log.last_index;
        if !fits || commit <= covers || reader.term(shard, covers)? != snapshot.term {
            return Ok(None);
        }
        Ok(Some((covers, commit)))
    }
}

/// Returns the election timeout in µs.
fn check_config(config: &Config) -> Result<Micros, NewError> {
    let refuse = |problem: &str| {
        Err(NewError::Config {
            shard: config.shard,
            problem: problem.into(),
        })
    };
    let timeout_us = config.election_timeout();
    if config.tick == Duration::ZERO {
        return refuse("a tick takes no time");
    }
    if micros(config.lease) > timeout_us / 10 * 9 {
        return refuse("the lease is longer than nine tenths of the election timeout");
    }
    Ok(timeout_us)
}

/// Raft's defaults are unsafe here: one entry a message, no check of the quorum, no pre-vote, no limits.
fn raft_config(config: &Config, applied: u64) -> raft::Config {
    raft::Config {
        id: config.id,
        election_tick: config.election_ticks,
        heartbeat_tick: config.heartbeat_ticks,
        applied,
        max_size_per_msg: MESSAGE_BYTES,
        max_inflight_msgs: INFLIGHT_MESSAGES,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: UNCOMMITTED_BYTES,
        skip_bcast_commit: !config.tells_commits,
        ..raft::Config::default()
    }
}
