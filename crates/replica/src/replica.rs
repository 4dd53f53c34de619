//! The replica: raft's node with our rules around it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use raft::eraftpb::{Entry, Message, MessageType};
use raft::{RawNode, Ready, StateRole};

use crate::reads::Reads;
use crate::silence::Silence;
use crate::store::Store;
use crate::types::micros;
use crate::{
    Committed, Config, EntryReader, MAX_COMMAND_BYTES, Micros, NewError, ProposeError, ReadError,
    ReadId, Restored, Role, RoleChange, StepRefused, TransferError, Turn, Write,
};

/// Entries sent to a peer in one message, in bytes (a single larger one is sent alone).
const MESSAGE_BYTES: u64 = 64 << 10;
/// Committed entries handed out in one turn, and entries that may wait for their commit, in bytes.
const TURN_BYTES: u64 = 4 << 20;
/// Messages on their way to a peer: with [`MESSAGE_BYTES`] at most 4 MiB per shard and peer. Raft's
/// default of 256 would let one returning peer fill 16 MiB of each shard's outbox.
const INFLIGHT_MESSAGES: usize = 64;
/// Who has more committed entries to apply than this does not ask to lead: raft reads all of them at
/// once for that (it looks for membership changes), and a new leader would serve nobody meanwhile.
const MAX_UNAPPLIED_TO_LEAD: u64 = 1024;

/// Messages which wait until a write is on disk.
struct Held {
    /// The write.
    write: u64,
    /// The newest of raft's readies that is done with it: some write nothing themselves.
    ready: u64,
    messages: Vec<Message>,
}

/// One member of one Raft group: no threads, no I/O, no clock of its own.
///
/// A turn of the owner: [`step`](Replica::step), [`propose`](Replica::propose),
/// [`read_index`](Replica::read_index), [`on_persisted`](Replica::on_persisted),
/// [`tick`](Replica::tick) as things come, then one [`ready`](Replica::ready), whose outcome has to
/// be carried out as [`Turn`] says. `now` is read from the clock once a turn or oftener; it never
/// falls.
///
/// Panics are raft's way to say that its own disk can't be trusted any more (own log unreadable).
/// They must end the process; nothing may catch them.
pub struct Replica {
    pub(crate) shard: u32,
    pub(crate) raw: RawNode<Store>,
    pub(crate) reads: Reads,
    pub(crate) silence: Silence,
    held: VecDeque<Held>,
    /// A write replaced entries of earlier ones that were not on disk yet: none of those may be
    /// reported to raft before this one is. See [`Replica::on_persisted`].
    barrier: u64,
    /// The newest committed entry handed out.
    handed_out: u64,
    /// The term for which votes were asked for, and the requests are out.
    pub(crate) votes_asked_term: u64,
    reported: RoleChange,
}

impl Replica {
    /// Goes on where `restored` left off; the default of it is a group that is born now.
    ///
    /// `reader` is asked for entries that are no longer in memory. `now` is the time now.
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
        let Restored { log, snapshot } = restored;
        let mut conf_state = snapshot.conf_state;
        if conf_state.voters.is_empty() {
            conf_state.voters.clone_from(&config.voters);
        }
        let mut hard_state = log.hard_state.clone();
        if hard_state.commit > log.last_index {
            return Err(NewError::CommitPastLog {
                shard,
                commit: hard_state.commit,
                last: log.last_index,
            });
        }
        if snapshot.index > log.last_index {
            return Err(NewError::LogBehindSnapshot {
                shard,
                last: log.last_index,
                snapshot: snapshot.index,
            });
        }
        if snapshot.index < log.cut_index {
            return Err(NewError::SnapshotBehindLog {
                shard,
                cut: log.cut_index,
                snapshot: snapshot.index,
            });
        }
        // The commit index is written without a sync now and then, so a snapshot can be ahead of it;
        // what is in a snapshot was committed.
        hard_state.commit = hard_state.commit.max(snapshot.index);
        let fresh = log.last_index == 0 && hard_state.term == 0;
        let term = hard_state.term;

        let store = Store::open(shard, reader, &log, hard_state, conf_state)?;
        let log_term = store.term_at(snapshot.index).unwrap_or(0);
        if log_term != snapshot.term {
            let (index, snapshot_term) = (snapshot.index, snapshot.term);
            return Err(NewError::SnapshotOfOtherLog {
                shard,
                index,
                log_term,
                snapshot_term,
            });
        }
        let last_term = store.term_at(log.last_index).unwrap_or(0);
        if last_term > term {
            return Err(NewError::TermBehindLog {
                shard,
                term,
                last_term,
            });
        }
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config(config, snapshot.index), store, &logger)
            .map_err(|source| NewError::Raft { shard, source })?;
        Ok(Replica {
            shard,
            raw,
            reads: Reads::new(micros(config.lease)),
            silence: Silence::new(timeout_us, now, fresh),
            held: VecDeque::new(),
            barrier: 0,
            handed_out: snapshot.index,
            votes_asked_term: 0,
            reported: RoleChange {
                role: Role::Follower,
                leader: None,
                term,
            },
        })
    }

    /// One tick of raft's timers. Ticks follow the clock, but after a stall the owner reports few of
    /// the missed ones, or the node floods itself with elections.
    pub fn tick(&mut self, now: Micros) {
        self.silence.clock(now);
        let raft = &self.raw.raft;
        let campaigns = raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if raft.state != StateRole::Leader && campaigns && !self.may_campaign(now) {
            return;
        }
        self.raw.tick();
    }

    /// Tries to be elected at once, instead of waiting for the timeout: for the birth of a cluster,
    /// so that every node gets its share of the leaders. Returns false if it must not.
    pub fn campaign(&mut self, now: Micros) -> bool {
        self.silence.clock(now);
        self.raw.raft.state != StateRole::Leader
            && self.may_campaign(now)
            && self.raw.campaign().is_ok()
    }

    /// Neither can be told apart from a vote for oneself, so the rule is that for votes.
    fn may_campaign(&self, now: Micros) -> bool {
        !self.silence.just_started(now) && !self.silence.leader_alive(now) && !self.is_far_behind()
    }

    pub(crate) fn is_far_behind(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        log.committed - log.applied > MAX_UNAPPLIED_TO_LEAD
    }

    /// Takes a peer's message. The owner has authenticated it, and knows that it is for this shard.
    ///
    /// # Errors
    /// [`StepRefused`]: the message was not taken, and the state is as before. See
    /// [`StepRefused::is_expected`].
    pub fn step(&mut self, message: Message, now: Micros) -> Result<(), StepRefused> {
        self.silence.clock(now);
        self.check(&message, now)?;
        let (kind, from, term) = (message.get_msg_type(), message.from, message.term);
        // Raft's errors here say that it ignored the message, which is its right.
        let _ = self.raw.step(message);
        let led = self.raw.raft.term == term && self.raw.raft.leader_id == from;
        if led && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
            self.silence.heard(now);
        }
        Ok(())
    }

    /// Puts a command into the log, as leader. Returns the term and index it got. Its outcome: if the
    /// entry committed at that index has that term, it is this command; if it has another term, this
    /// command is lost for good. Until then the outcome is open, also after leadership was lost.
    ///
    /// # Errors
    /// [`ProposeError`]: nothing was put into the log.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(u64, u64), ProposeError> {
        if self.raw.raft.state != StateRole::Leader {
            // Asking raft would forward the proposal, and nobody could tell its outcome.
            return Err(ProposeError::NotLeader {
                leader: self.leader(),
            });
        }
        if data.is_empty() {
            return Err(ProposeError::Empty);
        }
        if data.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::TooLarge(data.len()));
        }
        let before = self.last_index();
        let taken = self.raw.propose(Vec::new(), data).is_ok();
        if !taken || self.last_index() != before + 1 {
            return Err(ProposeError::Busy);
        }
        Ok((self.term(), before + 1))
    }

    /// Asks the quorum whether this node still leads; also what renews the lease. All calls of one
    /// turn share one round, as each costs a heartbeat to every peer. Lost ones are repeated by the
    /// next heartbeat. A round ends up in [`Turn::reads`] or [`Turn::reads_failed`].
    ///
    /// # Errors
    /// [`ReadError`]: no round was begun.
    pub fn read_index(&mut self, now: Micros) -> Result<ReadId, ReadError> {
        self.silence.clock(now);
        if self.raw.raft.state != StateRole::Leader {
            return Err(ReadError::NotLeader {
                leader: self.leader(),
            });
        }
        if !self.raw.raft.commit_to_current_term() {
            // Raft would drop it without a word.
            return Err(ReadError::NotReady);
        }
        if let Some(id) = self.reads.this_turn() {
            return Ok(id);
        }
        if self.reads.is_full() {
            return Err(ReadError::Busy);
        }
        let id = self.reads.ask(self.term(), now);
        let before = self.raw.raft.pending_read_count() + self.raw.raft.ready_read_count();
        self.raw.read_index(id.0.to_be_bytes().to_vec());
        if self.raw.raft.pending_read_count() + self.raw.raft.ready_read_count() != before + 1 {
            self.reads.take_back();
            return Err(ReadError::NotReady);
        }
        Ok(id)
    }

    /// Offers leadership to a voter: it is told to campaign once it has the whole log. Proposals are
    /// refused as busy meanwhile. The lease ends now, and there is none any more in this term, whether
    /// the transfer succeeds or not: the target's votes override the voters' silence, and a late
    /// message could elect it at any time. If nothing came of it after one election timeout this node
    /// goes on leading (and takes proposals), but every read needs a round of `read_index`.
    ///
    /// The target should have been heard from for an election timeout: one that has just started
    /// refuses.
    ///
    /// # Errors
    /// [`TransferError`]: not the leader, or not a target; nothing changed.
    pub fn transfer_leader(&mut self, to: u64) -> Result<(), TransferError> {
        if self.raw.raft.state != StateRole::Leader {
            return Err(TransferError::NotLeader {
                leader: self.leader(),
            });
        }
        if to == self.raw.raft.id || !self.raw.raft.prs().conf().voters().contains(to) {
            return Err(TransferError::BadTarget(to));
        }
        self.reads.give_up(self.term());
        self.raw.transfer_leader(to);
        Ok(())
    }

    /// The voter among `live` (without this node) that has most of the log; the smallest id of equals.
    /// `None` unless leader.
    pub fn most_caught_up(&self, live: &[u64]) -> Option<u64> {
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let (prs, me) = (self.raw.raft.prs(), self.raw.raft.id);
        let voters = prs.conf().voters();
        live.iter()
            .filter(|&&id| id != me && voters.contains(id))
            .filter_map(|&id| {
                prs.get(id)
                    .map(|progress| (progress.matched, std::cmp::Reverse(id)))
            })
            .max()
            .map(|(_, std::cmp::Reverse(id))| id)
    }

    /// How many entries of this leader's log a voter is known to lack; `None` unless leader, or if it
    /// is no voter.
    pub fn lag(&self, voter: u64) -> Option<u64> {
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let prs = self.raw.raft.prs();
        let progress = prs
            .conf()
            .voters()
            .contains(voter)
            .then(|| prs.get(voter))??;
        Some(self.last_index().saturating_sub(progress.matched))
    }

    /// Tells raft that messages to a peer were dropped before they left: it then probes what the peer
    /// has instead of sending on.
    pub fn report_unreachable(&mut self, peer: u64) {
        self.raw.report_unreachable(peer);
    }

    /// Whether [`Replica::ready`] has something. Also true right after it, if a turn's limits cut it
    /// short: the shard should get another turn then.
    pub fn has_ready(&self) -> bool {
        self.raw.has_ready()
            || self.raw.store().has_deferred()
            || self.role_change() != self.reported
    }

    /// Closes a turn. Everything in the result has to be carried out; writes in order.
    pub fn ready(&mut self) -> Option<Turn> {
        for context in self.raw.mut_store().next_turn() {
            self.raw.on_entries_fetched(context);
        }
        self.reads.end_turn();
        let mut turn = Turn::default();
        self.report_role(&mut turn);
        if self.raw.has_ready() {
            let ready = self.raw.ready();
            self.take_ready(ready, &mut turn);
        } else if turn.role.is_none() {
            return None;
        }
        Some(turn)
    }

    fn report_role(&mut self, turn: &mut Turn) {
        let now = self.role_change();
        if now != self.reported {
            let leads = (now.role == Role::Leader).then_some(now.term);
            turn.reads_failed = self.reads.only(leads);
            turn.role = Some(now);
            self.reported = now;
        }
    }

    fn take_ready(&mut self, mut ready: Ready, turn: &mut Turn) {
        let number = ready.number();
        turn.send = ready.take_messages();
        let after_write = ready.take_persisted_messages();
        let entries = ready.take_entries();
        let hard_state = ready.hs().cloned();
        let must_sync = ready.must_sync();
        turn.committed = ready
            .take_committed_entries()
            .into_iter()
            .map(Committed::from)
            .collect();
        if let Some(last) = turn.committed.last() {
            self.handed_out = last.index;
        }
        let applied = self.applied();
        for state in ready.take_read_states() {
            turn.reads
                .extend(self.reads.grant(&state.request_ctx, state.index, applied));
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
            });
        }
    }

    /// Raft must be able to read them from now on.
    fn store_entries(&mut self, number: u64, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        if first.index <= self.raw.store().last_index() && !self.held.is_empty() {
            self.barrier = number;
        }
        self.raw.mut_store().append(entries);
    }

    /// Keeps messages back until what they promise is on disk.
    fn hold(&mut self, number: u64, must_sync: bool, messages: Vec<Message>, turn: &mut Turn) {
        if must_sync {
            self.held.push_back(Held {
                write: number,
                ready: number,
                messages,
            });
        } else if let Some(held) = self.held.back_mut() {
            // They promise nothing new, but may repeat what waits.
            held.ready = number;
            held.messages.extend(messages);
        } else {
            self.raw.on_persist_ready(number);
            turn.send.extend(messages);
        }
    }

    /// The write of this number is on disk, and so are all before it. Returns what had to wait for
    /// that, to be sent now; call [`Replica::ready`] in the same turn, as entries may be committed now.
    #[must_use]
    pub fn on_persisted(&mut self, number: u64) -> Vec<Message> {
        if number < self.barrier {
            // Raft compares term and index of what was persisted with the newest log, so it would take
            // an entry for safe that was written, then replaced, then written again, while only the
            // first write is on disk, and the second will take it away for a moment.
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
            let persisted = self.raw.raft.raft_log.persisted;
            self.raw.mut_store().evict(persisted);
            self.note_votes(&messages);
        }
        messages
    }

    fn note_votes(&mut self, sent: &[Message]) {
        for message in sent {
            if message.get_msg_type() == MessageType::MsgRequestVote {
                self.votes_asked_term = message.term;
            }
        }
    }

    /// Everything handed out through `index` is applied.
    pub fn on_applied(&mut self, index: u64) {
        debug_assert!(index <= self.handed_out, "applied what was not handed out");
        let index = index.min(self.handed_out);
        if index > self.applied() {
            self.raw.advance_apply_to(index);
            self.reads.applied(index);
        }
    }

    /// Forgets the log through `through`, or as far as it is applied if that is less; the storage may
    /// cut what this returns. Everything through it must be in a snapshot on disk, and on every member
    /// ([`Replica::matched_by_all`] of a leader, as spread through the log): no peer can be given a
    /// snapshot yet.
    #[must_use]
    pub fn cut(&mut self, through: u64) -> u64 {
        let through = through.min(self.applied());
        if through > self.raw.store().cut_index() {
            self.raw.mut_store().cut(through);
        }
        self.raw.store().cut_index()
    }

    /// Until when this node may answer reads from its applied state without asking anybody. `None`
    /// unless it leads and has a lease. The caller compares it with the clock, read anew: the lease is
    /// good while `now < lease_until`.
    pub fn lease_until(&self) -> Option<Micros> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return None;
        }
        self.reads.lease_until(raft.term)
    }

    /// The last index that is on every member's disk, as far as this leader knows; 0 unless leader.
    pub fn matched_by_all(&self) -> u64 {
        if self.raw.raft.state != StateRole::Leader {
            return 0;
        }
        self.raw
            .raft
            .prs()
            .iter()
            .map(|(_, progress)| progress.matched)
            .min()
            .unwrap_or(0)
    }

    fn role_change(&self) -> RoleChange {
        RoleChange {
            role: self.role(),
            leader: self.leader(),
            term: self.term(),
        }
    }

    /// The shard this replica is of.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The role now; [`Turn::role`] tells of changes.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|&id| id != raft::INVALID_ID)
    }

    /// The term now.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The commit index as known here.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// The last entry, persisted or not.
    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// The term of an entry of the log: for the header of a snapshot. `None` if it was cut or does not
    /// exist.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let in_log = (self.raw.store().cut_index()..=self.last_index()).contains(&index);
        in_log
            .then(|| self.raw.raft.raft_log.term(index).ok())
            .flatten()
    }

    /// The last index reported by [`Replica::on_applied`].
    pub fn applied(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// Entries kept in memory, in bytes: for metrics.
    pub fn memory_bytes(&self) -> u64 {
        self.raw.store().tail_bytes()
    }

    /// Rounds of `read_index` that wait for a quorum: for metrics.
    pub fn pending_reads(&self) -> usize {
        self.reads.pending()
    }

    /// Takes raft's random draw of the election timeout back and sets it: for simulations that have
    /// to run the same way twice. To be called before every tick, as raft draws anew with every
    /// change of role. Brought into `election_ticks..2 * election_ticks`.
    pub fn set_randomized_election_ticks(&mut self, ticks: usize) {
        let least = self.raw.raft.election_timeout();
        self.raw
            .raft
            .set_randomized_election_timeout(ticks.clamp(least, 2 * least - 1));
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
    if !config.voters.contains(&config.id) {
        return refuse("this node is not among the voters");
    }
    Ok(timeout_us)
}

/// Raft's defaults are traps: one entry a message, no check of the quorum, no pre-vote, no limits.
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
        max_uncommitted_size: TURN_BYTES,
        max_committed_size_per_ready: TURN_BYTES,
        ..raft::Config::default()
    }
}
