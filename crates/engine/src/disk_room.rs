//! Full disks. While this node's disk is full, or those of so many nodes that no entry can be committed, a
//! leader refuses writes and proposes nothing, and its service clock stands still: nobody expires, and polls
//! are answered under the lease. A node with a full disk hands its shards over to one with room, if there is
//! one. It fetches no snapshots and deletes what it has fetched: what room is left is for votes, for entries, and for
//! snapshots of its own, behind which the log is compacted.

use crate::engine::Engine;
use crate::shard::Shard;

impl Engine {
    /// The disk of this node is full, or has room again.
    pub(crate) fn disk_full(&mut self, full: bool) {
        #[cfg(feature = "bite")]
        let full = full || nowserving_bite::is(nowserving_bite::Break::L5Room);
        self.ctx.disk_full = full;
        if full {
            self.each_shard(Shard::drop_incoming);
        }
        match full {
            true => tracing::error!(
                "the disk is full: this node takes no writes and hands over what it leads, until there is room"
            ),
            false => tracing::info!("the disk has room again"),
        }
        self.check_room();
    }

    /// To be called when a disk of any node has become full, or has room again, and when members have changed.
    pub(crate) fn check_room(&mut self) {
        let peers = &self.ctx.clocks.peers;
        let has_room = |id| match id == self.config.id {
            true => !self.ctx.disk_full,
            false => !peers.get(&id).is_some_and(|peer| peer.disk_full),
        };
        self.ctx.has_room = !self.ctx.disk_full && self.contact.majority_of_groups(has_room);
    }
}
