//! A snapshot in place of the log, as the node that lacks entries and as the leader that dropped them.
//!
//! Raft's message says only which snapshot it is. The owner of a replica that needs it fetches the file,
//! makes it the snapshot on its disk, and then steps the message. The next [`Ready`](crate::Ready) has the
//! write that drops the log behind it. Once that is on disk, the snapshot counts as applied
//! ([`Replica::take_installed`]), and the owner goes on from the state in it.

use raft::eraftpb::Snapshot;
use raft::{ProgressState, Ready as RaftReady, SnapshotStatus};

use crate::{
    EntryReader, Message, Micros, ReadFailed, Replica, Restored, Role, SnapshotMeta, StepRefused,
    Write,
};

impl Replica {
    /// Describes the snapshot on this node's disk to peers that need one: `data` tells their owners how to
    /// get it.
    pub fn offer_snapshot(&mut self, meta: SnapshotMeta, data: Vec<u8>) {
        let mut snapshot = Snapshot::default();
        snapshot.set_metadata(meta.into());
        snapshot.set_data(data.into());
        self.raw.mut_store().offer(snapshot);
    }

    /// Whether a peer needed a snapshot since the last call, and this node has none.
    pub fn take_snapshot_wanted(&mut self) -> bool {
        self.raw.mut_store().take_snapshot_wanted()
    }

    /// Whether this leader waits for a peer to install a snapshot; it sends that peer nothing else.
    pub fn awaits_install(&self, peer: u64) -> bool {
        let progress = self.raw.raft.prs().get(peer);
        let waits = progress.is_some_and(|it| it.state == ProgressState::Snapshot);
        waits && self.role() == Role::Leader
    }

    /// A message to a peer was lost on the way out. As a leader, this replica finds out anew what the peer has before it
    /// sends more.
    pub fn report_unreachable(&mut self, peer: u64) {
        self.raw.report_unreachable(peer);
    }

    /// A peer did not get the snapshot that it was told of: it is probed, and told of the newest one if it
    /// still needs one. (That it has installed one, raft learns from its acknowledgement.)
    pub fn report_snapshot_failed(&mut self, peer: u64) {
        self.raw.report_snapshot(peer, SnapshotStatus::Failure);
    }

    /// Checks a leader's message about a snapshot, without taking it.
    ///
    /// # Errors
    /// [`StepRefused`], as for [`Replica::step`].
    pub fn check_snapshot(&mut self, message: &Message, now: Micros) -> Result<(), StepRefused> {
        self.vote_hold.clock(now);
        self.check(&message.0, now)
    }

    /// Whether this message is about a snapshot whose entries are not all in this log. Raft answers any
    /// other one from what it has.
    pub fn needs_snapshot(&self, message: &Message) -> bool {
        let meta = message.0.get_snapshot().get_metadata();
        let has = meta.index <= self.committed() || self.term_at(meta.index) == Some(meta.term);
        message.0.term >= self.term() && !has
    }

    /// The snapshot that has just taken the place of the log. Everything in it counts as applied, so the
    /// owner must take the state in it for its own before anything else.
    pub fn take_installed(&mut self) -> Option<SnapshotMeta> {
        self.installed.take()
    }

    /// Raft has taken a snapshot: the log begins anew behind it.
    pub(crate) fn begin_install(&mut self, ready: &RaftReady) -> Option<SnapshotMeta> {
        if ready.snapshot().is_empty() {
            return None;
        }
        let meta = SnapshotMeta::from(ready.snapshot().get_metadata().clone());
        if !self.held.is_empty() {
            self.barrier = ready.number();
        }
        self.raw.mut_store().reset(meta.index, meta.term);
        self.handed_out = meta.index;
        self.installing = Some((ready.number(), meta.clone()));
        Some(meta)
    }

    /// What raft handed out through `ready` is on disk.
    pub(crate) fn end_install(&mut self, ready: u64) {
        let done = self.installing.take_if(|(number, _)| *number <= ready);
        if let Some((_, meta)) = done {
            self.raw.advance_apply_to(meta.index);
            self.lease.applied(meta.index);
            self.installed = Some(meta);
        }
    }
}

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
        Ok(Some(Write::reset(shard, snapshot.clone(), hard_state)))
    }
}
