//! Snapshots of all shards: which one is made, and which part of a peer's is asked for.

use std::cmp::Reverse;

use nowserving_replica::SnapshotMeta;
use nowserving_shard::clock::Micros;
use nowserving_shard::leader_state::LeaderState;

use super::Engine;
use crate::envelope::SnapshotChunk;
use crate::io::{NotInstalled, Output, ReceivedState};
use crate::shard::Shard;
use crate::snapshots::file::SnapshotFile;
use crate::snapshots::{LogSize, Snapshots};

/// Concurrent snapshots at most, of all loops; but one in each.
const SNAPSHOTS_MAX: usize = 4;

impl Engine {
    /// Starts one snapshot at most: of the largest log that is due. By number, the first shards of a busy node would
    /// be due again before the last ones' turn.
    pub(super) fn start_snapshot(&mut self, now: Micros) {
        self.each_shard(|shard, _| shard.snapshots.own.look(now));
        let own = |shard: &Shard| shard.snapshots.own.is_under_way();
        let most = (SNAPSHOTS_MAX / self.config.place.count as usize).max(1);
        if self.shards.values().filter(|it| own(it)).count() >= most {
            return;
        }
        let entries = self.config.snapshot_entries;
        let due = |shard: &&mut Shard| {
            let applied = (shard.replica.applied(), shard.state.size());
            shard.snapshots.is_due(shard.id, applied, entries, now)
        };
        let due = self.shards.values_mut().filter(due);
        let size = |shard: &&mut Shard| (shard.replica.log_entries(), Reverse(shard.id));
        if let Some(shard) = due.max_by_key(size) {
            let written = shard.snapshots.own.write(shard.id, &shard.replica);
            self.ctx.out.outputs.push(written);
        }
    }

    /// The log has so many bytes, which is over its bound, and these shards keep its oldest files alive: a
    /// snapshot of each is due, and their logs are compacted through it.
    pub(super) fn files_pinned(&mut self, shards: &[u32], log_bytes: u64) {
        let size = match log_bytes > self.config.log_bytes_max.saturating_mul(2) {
            true => LogSize::OverTwice,
            false => LogSize::Over,
        };
        for id in shards {
            let Some(shard) = self.shards.get_mut(id) else {
                continue;
            };
            // Followers learn the compact floor from an entry.
            let leader_state = shard.leader_state.as_mut();
            let stamp = leader_state.and_then(LeaderState::propose_stamp);
            shard.pending.push_own(stamp);
            let through = shard.snapshots.own.pinned(size, &mut shard.replica);
            let shard = shard.id;
            self.ctx
                .out
                .outputs
                .push(Output::Compact { shard, through });
        }
    }

    pub(super) fn snapshot_written(
        &mut self,
        shard: u32,
        written: Option<(SnapshotMeta, SnapshotFile)>,
        now: Micros,
    ) {
        let Some(it) = self.shards.get_mut(&shard) else {
            return;
        };
        let through = it.snapshots.own.written(written, &mut it.replica, now);
        let compact = through.map(|through| Output::Compact { shard, through });
        self.ctx.out.outputs.extend(compact);
    }

    pub(super) fn snapshot_stored(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        offset: Option<u64>,
        now: Micros,
    ) {
        if let Some(it) = self.shards.get_mut(&shard) {
            let receiving = &mut it.snapshots.receiving;
            receiving.stored(shard, file, offset, now, &mut self.ctx.out);
        }
        self.ask_for_snapshot(now);
    }

    pub(super) fn snapshot_received(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        state: Result<ReceivedState, NotInstalled>,
        now: Micros,
    ) {
        let Some(it) = self.shards.get_mut(&shard) else {
            return;
        };
        let Snapshots { own, receiving, .. } = &mut it.snapshots;
        let own = (own, &mut it.replica);
        match receiving.received(shard, file, state, own, now) {
            Ok(given) => it.dirty |= given,
            Err(refusal) => self.send_request(refusal, now),
        }
    }

    /// In how many shards this node has just refused a snapshot.
    pub(crate) fn refuses_snapshots(&self, now: Micros) -> u32 {
        let others = self.role.reports().map(|it| it.refuses_snapshots);
        self.refuses_snapshots_itself(now) + others.sum::<u32>()
    }

    /// In how many of this engine's shards.
    pub(super) fn refuses_snapshots_itself(&self, now: Micros) -> u32 {
        let shards = self.shards.values();
        let refuses = shards.filter(|shard| shard.snapshots.receiving.has_refused(now));
        refuses.count() as u32
    }

    /// Asks for the next part of a peer's snapshot, if one is due.
    pub(super) fn ask_for_snapshot(&mut self, now: Micros) {
        let loops = self.config.place.count as usize;
        let parts_max = self.ctx.payload.snapshot_parts_max().div_ceil(loops);
        let ids: Vec<u32> = self.shards.keys().copied().collect();
        let ask = |id| {
            let shard = self.shards.get_mut(&id)?;
            shard.snapshots.receiving.ask(id, now)
        };
        if let Some(request) = self.fetching.next(ids, ask, parts_max) {
            self.send_request(request, now);
        }
    }

    pub(super) fn send_snapshot_part(&mut self, to: u64, chunk: SnapshotChunk, now: Micros) {
        if let Some(shard) = self.shards.get_mut(&chunk.shard) {
            shard.snapshots.part_sent(to, &chunk, now);
        }
        self.send_chunk(to, chunk, now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use nowserving_log::{LogStore as _, MemoryLog};
    use nowserving_replica::{EntryReader, Restored, Write};
    use raft::eraftpb::Entry;

    use super::*;
    use crate::io::{Config, Now, RestoredShard};
    use crate::rig::{BOOT, config};

    #[test]
    fn the_largest_log_that_is_due_is_first() {
        let log = Arc::new(MemoryLog::new());
        let shard = |(shard, entries): (u32, u64)| {
            let mut write = Write::bootstrap(shard, &[1]);
            let entry = |index| Entry {
                term: 1,
                index,
                ..Entry::default()
            };
            write.entries = (2..2 + entries).map(entry).collect();
            log.write(&[write]).unwrap();
            RestoredShard {
                shard,
                restored: Restored {
                    log: log.load(shard).unwrap(),
                    snapshot: log.load(shard).unwrap().start,
                    applied: 0,
                },
                ..RestoredShard::default()
            }
        };
        let shards = [(0, 2), (1, 5), (2, 9), (3, 5)].map(shard).into();
        let config = Config {
            shards: 4,
            ..config(&[1])
        };
        let now = Now { us: 1, wall_ms: 1 };
        let reader: Arc<dyn EntryReader> = log.clone();
        let mut engine = Engine::new(config, BOOT, shards, &reader, now).unwrap();
        for shard in engine.shards.values_mut().filter(|it| it.id != 2) {
            shard.snapshots.own.back_up(u64::MAX);
        }
        let mut begun = || {
            engine.start_snapshot(1);
            match engine.ctx.out.outputs.pop() {
                Some(Output::WriteSnapshot { shard, .. }) => Some(shard),
                _ => None,
            }
        };
        let begun = [begun(), begun(), begun(), begun()];
        assert_eq!(begun, [Some(1), Some(3), Some(0), None]);
    }
}
