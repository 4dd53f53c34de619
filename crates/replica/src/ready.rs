//! The outcome of a replica's turn.

use raft::Ready as RaftReady;
use raft::eraftpb::{self, Entry, MessageType};

use crate::{Committed, Message, ReadFailed, Ready, Replica, Role, Write};

/// Committed entries handed out in one turn, in bytes (a single larger one is handed out alone), while none wait to
/// be applied.
const COMMITTED_BYTES: u64 = 256 << 10;

/// Messages that wait until a write is on disk.
pub(crate) struct Held {
    pub(crate) write: u64,
    /// The newest of raft's readies that is complete with this write: some write nothing themselves.
    ready: u64,
    messages: Vec<Message>,
}

fn wrapped(messages: Vec<eraftpb::Message>) -> Vec<Message> {
    messages.into_iter().map(Message).collect()
}

impl Replica {
    /// Whether [`Replica::ready`] has something. Also true right after it if a turn's limits stopped it:
    /// the shard should get another turn then.
    pub fn has_ready(&self) -> bool {
        self.raw.has_ready() || self.raw.store().has_news() || self.role_change() != self.reported
    }

    /// Closes a turn. The owner must carry out everything in the result, and the writes in order.
    ///
    /// # Errors
    /// An entry of this node's log can't be read. The process must end.
    pub fn ready(&mut self) -> Result<Option<Ready>, ReadFailed> {
        for context in self.raw.mut_store().next_turn() {
            self.raw.on_entries_fetched(context);
        }
        self.lease.end_turn();
        let mut turn = Ready::default();
        self.report_role(&mut turn);
        let has_ready = self.raw.has_ready() || turn.role.is_some();
        if self.raw.has_ready() {
            // Raft hands out one entry at least. An owner that applies one at least keeps no more than it has.
            let backlog = self.handed_out > self.applied();
            let bytes = if backlog { 0 } else { COMMITTED_BYTES };
            self.raw.raft.set_max_committed_size_per_ready(bytes);
            let ready = self.raw.ready();
            self.take_ready(ready, &mut turn);
        }
        if let Some(failed) = self.raw.mut_store().take_failed() {
            return Err(failed);
        }
        Ok(has_ready.then_some(turn))
    }

    fn report_role(&mut self, turn: &mut Ready) {
        let now = self.role_change();
        if now != self.reported {
            let leads = (now.role == Role::Leader).then_some(now.term);
            turn.reads_failed = self.lease.only(leads);
            turn.role = Some(now);
            self.reported = now;
        }
    }

    fn take_ready(&mut self, mut ready: RaftReady, turn: &mut Ready) {
        let number = ready.number();
        turn.send = wrapped(ready.take_messages());
        if nowserving_bite::is(nowserving_bite::Break::L3) {
            let fits = |message: &Message| message.receiver() != 3 || !message.has_entries();
            turn.send.retain(fits);
        }
        let after_write = wrapped(ready.take_persisted_messages());
        let entries = ready.take_entries();
        let mut hard_state = ready.hs().cloned();
        let start = self.begin_install(&ready);
        if start.is_some() {
            hard_state.get_or_insert_with(|| self.raw.raft.hard_state());
        }
        let mut must_sync = ready.must_sync();
        turn.committed = ready
            .take_committed_entries()
            .into_iter()
            .map(Committed::from)
            .collect();
        if let Some(last) = turn.committed.last() {
            self.handed_out = last.index;
        }
        if turn.committed.iter().any(Committed::changes_members) {
            // After a restart this node must apply it again before it campaigns: its old members may be gone.
            hard_state.get_or_insert_with(|| self.raw.raft.hard_state());
            must_sync = true;
        }
        let applied = self.applied();
        for state in ready.take_read_states() {
            turn.reads
                .extend(self.lease.grant(&state.request_ctx, state.index, applied));
        }
        self.store_entries(number, &entries);
        self.raw.advance_append_async(ready);
        self.hold(number, must_sync, after_write, turn);
        self.note_votes(&turn.send);
        if !entries.is_empty() || hard_state.is_some() {
            turn.write = Some(Write {
                shard: self.shard,
                number,
                entries,
                hard_state,
                must_sync,
                start,
            });
        }
    }

    /// Raft reads them from the store from now on.
    fn store_entries(&mut self, number: u64, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        if first.index <= self.raw.store().last_index() && !self.held.is_empty() {
            self.barrier = number;
        }
        self.raw.mut_store().append(entries);
    }

    /// Holds messages until their promises are on disk.
    fn hold(&mut self, number: u64, must_sync: bool, messages: Vec<Message>, turn: &mut Ready) {
        let messages = match nowserving_bite::is(nowserving_bite::Break::S6) {
            true => {
                turn.send.extend(messages);
                Vec::new()
            }
            false => messages,
        };
        if must_sync {
            self.held.push_back(Held {
                write: number,
                ready: number,
                messages,
            });
        } else if let Some(held) = self.held.back_mut() {
            // They promise nothing new, but may repeat the promise of a held message.
            held.ready = number;
            held.messages.extend(messages);
        } else {
            self.raw.on_persist_ready(number);
            turn.send.extend(messages);
        }
    }

    /// The write of this number is on disk, and all earlier ones are. Returns the messages that waited for
    /// it, to be sent now. Call [`Replica::take_installed`] right after it, and [`Replica::ready`] in the same
    /// turn, as entries may be committed by this.
    #[must_use]
    pub fn on_persisted(&mut self, number: u64) -> Vec<Message> {
        if number < self.barrier {
            // Raft compares the term and index of what was persisted with the newest log. An entry can
            // be written, replaced, and written again. If only the first write is on disk, raft would
            // take that entry for safe, although the second write removes it for a moment.
            return Vec::new();
        }
        let mut messages = Vec::new();
        let mut ready = None;
        while let Some(held) = self.held.pop_front_if(|held| held.write <= number) {
            ready = Some(held.ready);
            messages.extend(held.messages);
        }
        if let Some(ready) = ready {
            self.raw.on_persist_ready(ready);
            self.end_install(ready);
            let persisted = self.raw.raft.raft_log.persisted;
            self.raw.mut_store().evict(persisted);
            self.note_votes(&messages);
        }
        messages
    }

    fn note_votes(&mut self, sent: &[Message]) {
        for message in sent {
            if message.kind() == MessageType::MsgRequestVote {
                self.votes_asked_term = message.0.term;
            }
        }
    }

    /// Everything handed out through `index` is applied.
    pub fn on_applied(&mut self, index: u64) {
        let is_known = index <= self.handed_out;
        nowserving_bite::require(is_known, "applied what was not handed out");
        let index = index.min(self.handed_out);
        if index > self.applied() {
            self.raw.advance_apply_to(index);
            self.lease.applied(index);
        }
    }

    /// Drops the log through `through`, or through the last applied entry if that is less. Returns the index
    /// through which the storage may drop it, too. Everything up to there must be in a snapshot on disk. A
    /// member that lacks some of it gets the snapshot ([`Replica::offer_snapshot`]); better wait, if there is
    /// room, until all members have it ([`Replica::matched_by_all`] of a leader).
    #[must_use]
    pub fn compact(&mut self, through: u64) -> u64 {
        let through = through.min(self.applied());
        if through > self.raw.store().compact_index() {
            self.raw.mut_store().compact(through);
        }
        self.raw.store().compact_index()
    }
}
