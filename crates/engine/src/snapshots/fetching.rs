//! Which shard of a node asks for the next part of a peer's snapshot.

use crate::envelope::SnapshotRequest;

#[derive(Debug, Default)]
pub(crate) struct Fetching {
    /// The shard that asked last.
    last: u32,
    /// Parts that were asked for since the last maintenance.
    parts_asked: usize,
}

impl Fetching {
    /// The next interval of maintenance begins.
    pub fn begin_interval(&mut self) {
        self.parts_asked = 0;
    }

    /// The next part to `ask` for, and whom: one at most, and in each interval of maintenance as many as have 256 KiB
    /// (`parts_max`): that keeps the fetching of snapshots from delaying everything else, and makes it no slower where
    /// the transport takes small messages. The shards take turns.
    pub fn next(
        &mut self,
        mut shards: Vec<u32>,
        mut ask: impl FnMut(u32) -> Option<(u64, SnapshotRequest)>,
        parts_max: usize,
    ) -> Option<(u64, SnapshotRequest)> {
        if self.parts_asked >= parts_max {
            return None;
        }
        let last = self.last;
        shards.sort_by_key(|id| (*id <= last, *id));
        for id in shards {
            let request = ask(id);
            if request.is_some() {
                self.last = id;
                self.parts_asked += 1;
                return request;
            }
        }
        None
    }
}
