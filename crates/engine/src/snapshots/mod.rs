//! The snapshots of a shard: this node's own ([`own`]), on its way to peers ([`send`]), and a peer's on its way to this
//! node ([`receive`]).

mod fetching;
pub(crate) mod file;
pub mod header;
mod own;
mod receive;
mod send;
#[cfg(test)]
pub(crate) mod snapshots_tests;

use nowserving_replica::Replica;
use nowserving_shard::clock::Micros;

use crate::ctx::NodeCtx;
use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::io::Output;

pub(crate) use fetching::Fetching;
pub(crate) use own::{LogSize, OwnSnapshot};
use receive::Receiving;
pub(crate) use send::LAG_MAX;
use send::SnapshotSends;

/// Those of one shard.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    pub own: OwnSnapshot,
    pub sends: SnapshotSends,
    pub receiving: Receiving,
}

impl Snapshots {
    /// Whether one is due for a log that is applied through `applied`, to a state of this size. One that is fetched is
    /// newer than what could be made.
    pub fn is_due(&self, shard: u32, applied: (u64, u64), entries: u64, now: Micros) -> bool {
        let held = || self.sends.hold_file(now);
        !self.receiving.is_under_way() && self.own.is_due(shard, applied, entries, held, now)
    }

    /// A peer asks for a part of this node's snapshot. Returns whether raft was told that it needs another one.
    pub fn asked(
        &mut self,
        from: u64,
        request: SnapshotRequest,
        replica: &mut Replica,
        ctx: &mut NodeCtx,
    ) -> bool {
        if request.refused || self.own.file_of(&request.digest).is_none() {
            return self.sends.offer_again(from, replica, ctx.now.us);
        }
        self.sends.asked(from, ctx.now.us);
        ctx.out.outputs.push(Output::ReadSnapshot {
            to: from,
            request,
            bytes_max: ctx.payload.content_bytes_max(),
        });
        false
    }

    /// A part of this node's snapshot goes to a peer.
    pub fn part_sent(&mut self, to: u64, chunk: &SnapshotChunk, now: Micros) {
        if let Some(file) = self.own.file_of(&chunk.digest) {
            let through = chunk.offset + chunk.data.len() as u64;
            self.sends.sent(to, through, file.bytes, now);
        }
    }

    /// Of the snapshot that a peer is sent: the bytes that it was sent, and its size.
    pub fn sent_to(&self, peer: u64) -> Option<(u64, u64)> {
        let bytes = self.own.file()?.bytes;
        let sent = self.sends.sent_of(peer, self.own.index(), bytes)?;
        Some((sent, bytes))
    }
}

/// Counters with labels begin at 0, so that an alarm sees the first of each.
pub(crate) fn begin_counters() {
    send::begin_counters();
    receive::begin_counters();
}
