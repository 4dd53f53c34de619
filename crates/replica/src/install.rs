//! A snapshot in place of the log.

use crate::{EntryReader, ReadFailed, Restored, Write};

impl Restored {
    /// The write that completes an install which a crash interrupted. A snapshot of another node is on disk
    /// before the log begins anew behind it. If a start finds such a snapshot and the log does not contain
    /// its last entry, the log is dropped. That loses nothing: everything in the snapshot is committed, and
    /// entries that follow another one than the snapshot's last never were. (A log that lost data at its end
    /// looks the same to this function; the log itself notices that.)
    ///
    /// `None`: snapshot and log fit together, or they contradict each other, which
    /// [`Replica::new`](crate::Replica::new) refuses.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn complete_install(
        &self,
        shard: u32,
        reader: &dyn EntryReader,
    ) -> Result<Option<Write>, ReadFailed> {
        let (log, snapshot) = (&self.log, &self.snapshot);
        let lost_entries = log.hard_state.commit > log.last_index;
        if lost_entries || snapshot.index <= log.hard_state.commit.max(log.compact_index) {
            return Ok(None);
        }
        if snapshot.index <= log.last_index && reader.term(shard, snapshot.index)? == snapshot.term
        {
            return Ok(None);
        }
        let hard_state = log.hard_state.clone();
        Ok(Some(Write::restart(shard, snapshot.clone(), hard_state)))
    }
}
