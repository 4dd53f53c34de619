//! The replica: raft's node with our rules around it.

use std::collections::VecDeque;

use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, StateRole};

use crate::reads::Reads;
use crate::ready::Held;
use crate::store::Store;
use crate::vote_hold::VoteHold;
use crate::{
    MAX_COMMAND_BYTES, Micros, ProposeError, ReadError, ReadId, RoleChange, StepRefused,
    TransferError,
};

/// Who has more committed entries to apply than this does not ask to lead: raft reads all of them at
/// once for that (it looks for membership changes), and a new leader would serve nobody meanwhile.
const MAX_UNAPPLIED_TO_LEAD: u64 = 1024;

/// One member of one Raft group: no threads, no I/O, no clock of its own.
///
/// A turn of the owner: [`step`](Replica::step), [`propose`](Replica::propose),
/// [`read_index`](Replica::read_index), [`on_persisted`](Replica::on_persisted),
/// [`tick`](Replica::tick) as things come, then one [`ready`](Replica::ready), whose outcome has to
/// be carried out as [`Ready`] says. `now` is read from the clock once a turn or oftener; it never
/// falls.
///
/// Panics are raft's way to say that its state contradicts itself. They must end the process.
pub struct Replica {
    pub(crate) shard: u32,
    pub(crate) raw: RawNode<Store>,
    pub(crate) reads: Reads,
    pub(crate) vote_hold: VoteHold,
    pub(crate) held: VecDeque<Held>,
    /// A write replaced entries of earlier ones that were not on disk yet: none of those may be
    /// reported to raft before this one is. See [`Replica::on_persisted`].
    pub(crate) barrier: u64,
    /// The newest committed entry handed out.
    pub(crate) handed_out: u64,
    /// The term for which votes were asked for, and the requests are out.
    pub(crate) votes_asked_term: u64,
    pub(crate) reported: RoleChange,
}

impl Replica {
    /// One tick of raft's timers. Ticks follow the clock, but after a stall the owner reports few of
    /// the missed ones, or the node floods itself with elections.
    pub fn tick(&mut self, now: Micros) {
        self.vote_hold.clock(now);
        let raft = &self.raw.raft;
        let campaigns = raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if raft.state != StateRole::Leader && campaigns && !self.may_campaign(now) {
            return;
        }
        self.raw.tick();
    }

    /// Tries to be elected at once, instead of waiting for the timeout: for tests and simulations.
    /// Returns false if it must not.
    pub fn campaign(&mut self, now: Micros) -> bool {
        self.vote_hold.clock(now);
        self.raw.raft.state != StateRole::Leader
            && self.may_campaign(now)
            && self.raw.campaign().is_ok()
    }

    /// Neither can be told apart from a vote for oneself, so the rule is that for votes.
    fn may_campaign(&self, now: Micros) -> bool {
        !self.vote_hold.just_started(now)
            && !self.vote_hold.leader_alive(now)
            && !self.is_far_behind()
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
        self.vote_hold.clock(now);
        self.check(&message, now)?;
        #[cfg(feature = "bite")]
        let message = self.misread(message);
        let (kind, from, term) = (message.get_msg_type(), message.from, message.term);
        // Raft's errors here say that it ignored the message, which is its right.
        let _ = self.raw.step(message);
        let led = self.raw.raft.term == term && self.raw.raft.leader_id == from;
        if led && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
            self.vote_hold.heard(now);
        }
        Ok(())
    }

    /// Breaks a rule about what this message means.
    #[cfg(feature = "bite")]
    fn misread(&mut self, mut message: Message) -> Message {
        use nowserving_bite::{Break, is};
        let kind = message.get_msg_type();
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
        message
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
    /// next heartbeat. A round ends up in [`Ready::reads`] or [`Ready::reads_failed`].
    ///
    /// # Errors
    /// [`ReadError`]: no round was begun.
    pub fn read_index(&mut self, now: Micros) -> Result<ReadId, ReadError> {
        self.vote_hold.clock(now);
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
    /// the transfer succeeds or not: the target's votes override the voters' hold, and a late
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

    /// Leads no more, as after an election timeout without a quorum: for an owner that knows that
    /// its peers do not take its messages.
    pub fn step_down(&mut self) {
        if self.raw.raft.state == StateRole::Leader {
            let term = self.term();
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
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
