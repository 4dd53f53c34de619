//! The replica: raft's node with our rules around it.

use std::collections::VecDeque;

use raft::eraftpb::MessageType;
use raft::{RawNode, StateRole};

use crate::lease::Lease;
use crate::ready::Held;
use crate::store::Store;
use crate::vote_hold::VoteHold;
use crate::{
    Connection, MAX_COMMAND_BYTES, Message, Micros, ProposeError, ReadError, ReadId, RoleChange,
    SnapshotMeta, StepRefused, TransferError,
};

/// A node with more committed entries to apply than this does not stand for election: raft would read all
/// of them at once (it looks for membership changes), and a new leader can't serve meanwhile.
const MAX_UNAPPLIED_TO_LEAD: u64 = 1024;

/// Ticks after which a pre-vote is repeated: later than the next in turn stands for election, as pre-votes that cross
/// on a slow machine split the votes, and that costs an election timeout.
const PRE_VOTE_TICKS: usize = 6;

/// One member of one Raft group: no threads, no I/O, no clock of its own.
///
/// In a turn the owner calls [`step`](Replica::step), [`propose`](Replica::propose),
/// [`read_index`](Replica::read_index), [`on_persisted`](Replica::on_persisted) and
/// [`tick`](Replica::tick) as needed, then [`ready`](Replica::ready) once, and carries out its result
/// as [`Ready`](crate::Ready) says. The owner reads the clock for `now` at least once a turn; it never
/// falls.
///
/// Raft panics if its state contradicts itself. That must end the process.
pub struct Replica {
    pub(crate) shard: u32,
    pub(crate) raw: RawNode<Store>,
    pub(crate) lease: Lease,
    pub(crate) vote_hold: VoteHold,
    /// As set by [`Replica::set_randomized_election_ticks`].
    pub(crate) election_ticks: usize,
    pub(crate) held: VecDeque<Held>,
    /// A write that replaced entries of earlier writes before those were on disk. None of those may be
    /// reported to raft before this one. See [`Replica::on_persisted`].
    pub(crate) barrier: u64,
    /// The newest committed entry handed out.
    pub(crate) handed_out: u64,
    /// The newest term for which requests for votes were sent.
    pub(crate) votes_asked_term: u64,
    pub(crate) reported: RoleChange,
    /// A snapshot that raft took, and the write that puts it in place of the log.
    pub(crate) installing: Option<(u64, SnapshotMeta)>,
    /// A snapshot that is in place of the log, and not yet of the owner's state.
    pub(crate) installed: Option<SnapshotMeta>,
}

impl Replica {
    /// One tick of raft's timers. Ticks follow the clock, but after a stall the owner makes up for only a
    /// few missed ones: otherwise the node floods itself with elections.
    pub fn tick(&mut self, now: Micros) {
        self.vote_hold.clock(now);
        if self.forget_cut_off_leader() {
            // It does not know that it is cut off, and goes on asking.
            self.campaign_in(self.election_delay() + 1);
        }
        let raft = &self.raw.raft;
        let timeout = match raft.state {
            // A pre-vote costs nothing: it is repeated sooner.
            StateRole::PreCandidate => PRE_VOTE_TICKS + self.election_delay(),
            _ => raft.randomized_election_timeout(),
        };
        if raft.state != StateRole::Leader && raft.election_elapsed + 1 >= timeout {
            if !self.may_campaign(now) {
                // Raft lets it vote for others only once the timeout is over.
                self.raw.raft.election_elapsed += 1;
                return;
            }
            self.campaign_in(1);
        }
        self.raw.tick();
    }

    /// Takes a reading of the clock at the end of a turn: what was answered in it was answered by then.
    pub fn clock(&mut self, now: Micros) {
        self.vote_hold.clock(now);
    }

    /// Stands for election at once, without waiting for the timeout. Returns false if this node may not.
    pub fn campaign(&mut self, now: Micros) -> bool {
        self.vote_hold.clock(now);
        self.raw.raft.state != StateRole::Leader
            && self.may_campaign(now)
            && self.raw.campaign().is_ok()
    }

    /// A candidate votes for itself, so the rule is the one for votes.
    fn may_campaign(&self, now: Micros) -> bool {
        if nowserving_bite::is(nowserving_bite::Break::L1) && self.term() > 0 {
            return false;
        }
        self.raw.raft.promotable()
            && !self.vote_hold.just_started(now)
            && !self.vote_hold.leader_alive(now)
            && !self.is_far_behind()
    }

    pub(crate) fn is_far_behind(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        // Raft would read the entries from the last applied one on, and a snapshot has taken their place.
        log.committed - log.applied > MAX_UNAPPLIED_TO_LEAD || self.installing.is_some()
    }

    /// Takes a peer's message, which the owner has authenticated and which is for this shard. If it is a
    /// snapshot that this node [needs](Replica::needs_snapshot), its file must be on this node's disk.
    ///
    /// # Errors
    /// [`StepRefused`]: the message was not taken, and the state is unchanged. See
    /// [`StepRefused::is_expected`].
    pub fn step(&mut self, message: Message, now: Micros) -> Result<(), StepRefused> {
        self.vote_hold.clock(now);
        self.check(&message.0, now)?;
        let message = self.misread(message);
        let (kind, from, term) = (message.kind(), message.0.from, message.0.term);
        let asks_for_vote = matches!(
            kind,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        );
        if asks_for_vote {
            self.forget_cut_off_leader();
        }
        // An error of raft's says that it ignored the message.
        let _ = self.raw.step(message.0);
        let led = self.raw.raft.term == term && self.raw.raft.leader_id == from;
        if led && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
            self.vote_hold.answers(now, from);
        }
        Ok(())
    }

    /// Breaks a rule about what this message means.
    fn misread(&mut self, message: Message) -> Message {
        use nowserving_bite::{Break, is};
        let kind = message.kind();
        let mut message = message.0;
        let asks_for_vote = matches!(
            kind,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        );
        if is(Break::S1) && kind == MessageType::MsgRequestVote {
            self.raw.raft.vote = raft::INVALID_ID;
        }
        if is(Break::S3) && asks_for_vote {
            message.log_term = self.term();
            message.index = self.last_index();
        }
        if is(Break::S2)
            && kind == MessageType::MsgAppend
            && let Some(own) = self.term_at(message.index)
        {
            message.log_term = own;
        }
        Message(message)
    }

    /// A frame of this peer, whose messages come after this, was sent with this service connection.
    pub fn peer_connection(&mut self, peer: u64, connection: Connection) {
        self.vote_hold.peer_connection(peer, connection);
    }

    /// A server has closed this service connection of a peer. If that peer leads and asked this node with that
    /// connection, this node may vote from now on, and stands for election after its delay
    /// ([`Replica::set_randomized_election_ticks`]). Returns whether that is so.
    pub fn connection_closed(&mut self, peer: u64, connection: Connection, now: Micros) -> bool {
        let was_cut_off = self.vote_hold.cut_off_leader();
        self.vote_hold.connection_closed(peer, connection);
        let news = was_cut_off.is_none() && self.vote_hold.cut_off_leader().is_some();
        if news {
            self.forget_cut_off_leader();
            match self.election_delay() {
                0 => drop(self.campaign(now)),
                ticks => self.campaign_in(ticks),
            }
        }
        news
    }

    /// This node's service connection was lost, or may have been: the lease ends. Must be called before any
    /// request of the next connection is read under a lease.
    pub fn connection_lost(&mut self) {
        self.lease.connection_lost();
    }

    /// Raft has a loyalty of its own to the leader that it knows. Returns whether it ended here.
    fn forget_cut_off_leader(&mut self) -> bool {
        let raft = &mut self.raw.raft;
        let follows = raft.state == StateRole::Follower && raft.leader_id != raft::INVALID_ID;
        let forgets = follows && self.vote_hold.cut_off_leader() == Some(raft.leader_id);
        if forgets {
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
        forgets
    }

    /// How many ticks this node lets others stand for election before it does.
    fn election_delay(&self) -> usize {
        self.election_ticks - self.raw.raft.election_timeout()
    }

    /// Stands for election in so many ticks, if no leader is heard of before that.
    fn campaign_in(&mut self, ticks: usize) {
        self.use_election_ticks();
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader {
            raft.election_elapsed = self.election_ticks.saturating_sub(ticks);
        }
    }

    /// Raft has drawn another timeout if its role changed.
    fn use_election_ticks(&mut self) {
        self.raw
            .raft
            .set_randomized_election_timeout(self.election_ticks);
    }

    /// Puts a command into the log, as leader. Returns its term and index. If the entry committed at
    /// that index has that term, it is this command. If it has another term, this command is lost for good.
    /// Until then the outcome is open, also after leadership was lost.
    ///
    /// # Errors
    /// [`ProposeError`]: nothing was put into the log.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(u64, u64), ProposeError> {
        if self.raw.raft.state != StateRole::Leader {
            // Raft would forward the proposal, and its outcome could not be known.
            return Err(ProposeError::NotLeader);
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

    /// Asks the quorum whether this node still leads; this also renews the lease. All calls of one turn
    /// share one round, as a round costs a heartbeat to every peer. The next heartbeat repeats a lost one.
    /// Each round ends up in [`Ready::reads`](crate::Ready::reads) or
    /// [`Ready::reads_failed`](crate::Ready::reads_failed).
    ///
    /// # Errors
    /// [`ReadError`]: no round was begun.
    pub fn read_index(&mut self, now: Micros) -> Result<ReadId, ReadError> {
        self.vote_hold.clock(now);
        if self.raw.raft.state != StateRole::Leader {
            return Err(ReadError::NotLeader);
        }
        if !self.raw.raft.commit_to_current_term() {
            // Raft would drop it silently.
            return Err(ReadError::NotReady);
        }
        if let Some(id) = self.lease.this_turn() {
            return Ok(id);
        }
        if self.lease.is_full() {
            return Err(ReadError::Busy);
        }
        let id = self.lease.ask(self.term(), now);
        let before = self.raw.raft.pending_read_count() + self.raw.raft.ready_read_count();
        self.raw.read_index(id.0.to_be_bytes().to_vec());
        if self.raw.raft.pending_read_count() + self.raw.raft.ready_read_count() != before + 1 {
            self.lease.take_back();
            return Err(ReadError::NotReady);
        }
        Ok(id)
    }

    /// Tells the followers that this node leads, by a round of [`Replica::read_index`] if one can be begun: so their
    /// answers renew the lease.
    pub fn heartbeat(&mut self, now: Micros) {
        // Raft asks nobody in a group of one voter, which can have learners.
        if self.read_index(now).is_err() || self.raw.raft.prs().is_singleton() {
            self.raw.ping();
        }
    }

    /// Offers leadership to a voter: raft tells it to campaign once it has the whole log. Meanwhile
    /// proposals are refused as busy. The lease ends now, and there is none for the rest of this term,
    /// whether the transfer succeeds or not: the target's request for votes overrides the other voters' vote
    /// hold, and a late message could elect it at any time. If the transfer fails, this node leads on
    /// after one election timeout and takes proposals, but every read needs a round of `read_index`.
    ///
    /// The target should have run for an election timeout: a node that has just started refuses.
    ///
    /// # Errors
    /// [`TransferError`]: not the leader, or not a target; nothing changed.
    pub fn transfer_leader(&mut self, to: u64) -> Result<(), TransferError> {
        if self.raw.raft.state != StateRole::Leader {
            return Err(TransferError::NotLeader);
        }
        if to == self.raw.raft.id || !self.raw.raft.prs().conf().voters().contains(to) {
            return Err(TransferError::BadTarget(to));
        }
        self.lease.end_in_term(self.term());
        self.raw.transfer_leader(to);
        Ok(())
    }

    /// Ends this node's leadership, as raft does after an election timeout without a quorum: for an owner
    /// that knows that its peers do not take its messages.
    pub fn step_down(&mut self) {
        if self.raw.raft.state == StateRole::Leader {
            let term = self.term();
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Replaces raft's random election timeout. Call it before every tick, as raft draws a new one with every
    /// change of role. The value is clamped to `election_ticks..2 * election_ticks`.
    pub fn set_randomized_election_ticks(&mut self, ticks: usize) {
        let least = self.raw.raft.election_timeout();
        self.election_ticks = ticks.clamp(least, 2 * least - 1);
        self.use_election_ticks();
    }
}
