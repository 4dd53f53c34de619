//! Snapshots in frames: who is asked for the next part, and whose part goes out.

use nowserving_shard::clock::Micros;

use crate::engine::Engine;
use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::frames::PeerBatch;
use crate::io::{NotInstalled, Output, ReceivedState};
use crate::snapshot_file::SnapshotFile;

impl Engine {
    /// What a frame has about snapshots.
    pub(crate) fn snapshot_parts(
        &mut self,
        from: u64,
        request: Option<SnapshotRequest>,
        chunk: Option<Box<SnapshotChunk>>,
    ) {
        if let Some(request) = request
            && let Some(shard) = self.shards.get_mut(&request.shard)
        {
            shard.snapshot_asked(from, request, &mut self.ctx);
        }
        if let Some(chunk) = chunk
            && let Some(shard) = self.shards.get_mut(&chunk.shard)
        {
            shard.snapshot_part(*chunk, &mut self.ctx);
        }
    }

    /// Asks for one part of a peer's snapshot at most, and in each interval of maintenance for as many as have
    /// 256 KiB: that keeps the fetching of snapshots from delaying everything else, and makes it no slower where
    /// the transport takes small messages. The shards take turns.
    pub(crate) fn ask_for_snapshot(&mut self, now: Micros) {
        if self.parts_asked >= self.ctx.payload.snapshot_parts_max() {
            return;
        }
        let last = self.asked_for_snapshot;
        let mut order: Vec<u32> = self.shards.keys().copied().collect();
        order.sort_by_key(|id| (*id <= last, *id));
        for id in order {
            let shard = self.shards.get_mut(&id);
            let request = shard.and_then(|shard| shard.ask_for_snapshot(now));
            if request.is_some() {
                self.asked_for_snapshot = id;
                self.parts_asked += 1;
                return self.send_request(request, now);
            }
        }
    }

    /// In how many shards this node has just refused a snapshot.
    pub(crate) fn refuses_snapshots(&self, now: Micros) -> u32 {
        let shards = self.shards.values();
        shards.filter(|shard| shard.refuses_snapshot(now)).count() as u32
    }

    pub(crate) fn snapshot_stored(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        offset: Option<u64>,
        now: Micros,
    ) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.snapshot_stored(file, offset, &mut self.ctx);
        }
        self.ask_for_snapshot(now);
    }

    pub(crate) fn snapshot_received(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        state: Result<ReceivedState, NotInstalled>,
        now: Micros,
    ) {
        let shard = self.shards.get_mut(&shard);
        let refusal = shard.and_then(|it| it.snapshot_received(file, state, &mut self.ctx));
        self.send_request(refusal, now);
    }

    pub(crate) fn send_snapshot_part(&mut self, to: u64, chunk: SnapshotChunk, now: Micros) {
        if let Some(shard) = self.shards.get_mut(&chunk.shard) {
            shard.snapshot_part_sent(to, &chunk, now);
        }
        let batch = PeerBatch {
            snapshot_chunk: Some(Box::new(chunk)),
            ..self.batch(to, now)
        };
        self.ctx.out.outputs.push(Output::Frame { to, batch });
    }

    /// Asks a peer for a part of its snapshot, or refuses it.
    fn send_request(&mut self, request: Option<(u64, SnapshotRequest)>, now: Micros) {
        if let Some((to, request)) = request {
            let batch = PeerBatch {
                snapshot_request: Some(request),
                ..self.batch(to, now)
            };
            self.ctx.out.outputs.push(Output::Frame { to, batch });
        }
    }
}
