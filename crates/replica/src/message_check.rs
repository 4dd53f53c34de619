//! Checks a peer's message before raft gets it.
//!
//! Raft trusts its peers and panics where they break a rule. The frame was authenticated, but its sender
//! may run on a disk that lost something, be of another build, or have a bug. That must not end this
//! node.

use std::collections::BTreeSet;

use protobuf::Message as _;
use raft::StateRole;
use raft::eraftpb::{ConfChangeV2, ConfState, EntryType, Message, MessageType};

use crate::{Micros, Replica, StepRefused};

/// No index gets this large; sums of an index and a count stay below the limits of the type.
const MAX_INDEX: u64 = 1 << 62;
/// A term moves by one an election: an election every second for 136 years.
const MAX_TERM_STEP: u64 = 1 << 32;

impl Replica {
    pub(crate) fn check(&self, message: &Message, now: Micros) -> Result<(), StepRefused> {
        let raft = &self.raw.raft;
        if message.to != raft.id {
            return Err(StepRefused::WrongTo(message.to));
        }
        check_kind(message)?;
        self.check_sender(message)?;
        self.check_numbers(message)?;
        match message.get_msg_type() {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                self.check_vote_hold(message, now)
            }
            // Raft ignores older terms, or answers so that the sender learns of the newer one.
            _ if message.term < raft.term => Ok(()),
            MessageType::MsgAppend => {
                self.check_leader(message)?;
                check_entries(message)?;
                self.check_conflict(message)
            }
            MessageType::MsgHeartbeat => {
                self.check_leader(message)?;
                let (commit, last) = (message.commit, self.last_index());
                if commit > last {
                    Err(StepRefused::CommitPastLog { commit, last })
                } else {
                    Ok(())
                }
            }
            MessageType::MsgSnapshot => {
                self.check_leader(message)?;
                self.check_snapshot_meta(message)
            }
            MessageType::MsgTimeoutNow => self.check_takeover(message, now),
            MessageType::MsgRequestVoteResponse => self.check_vote(message),
            MessageType::MsgAppendResponse => self.check_ack(message),
            _ => Ok(()),
        }
    }

    /// A member that this node does not know yet may lead already, or stand for election. A replica that
    /// waits for its first snapshot takes what leaders send.
    fn check_sender(&self, message: &Message) -> Result<(), StepRefused> {
        let from = message.from;
        if from == self.raw.raft.id || from == raft::INVALID_ID {
            return Err(StepRefused::WrongFrom(from));
        }
        let of_leader = matches!(
            message.get_msg_type(),
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
        );
        let taken = of_leader || self.is_initialized();
        taken.then_some(()).ok_or(StepRefused::Uninitialized)
    }

    fn check_numbers(&self, message: &Message) -> Result<(), StepRefused> {
        // Raft takes term 0 for a message from within, and believes it everything.
        if message.term == 0 || message.term > self.term().saturating_add(MAX_TERM_STEP) {
            return Err(StepRefused::AbsurdTerm(message.term));
        }
        if message.log_term > message.term {
            return Err(StepRefused::AbsurdTerm(message.log_term));
        }
        for index in [message.index, message.commit, message.reject_hint] {
            if index >= MAX_INDEX {
                return Err(StepRefused::AbsurdIndex(index));
            }
        }
        Ok(())
    }

    /// The votes of a transfer override a lease: the leader gave it up before it began the transfer.
    fn check_vote_hold(&self, message: &Message, now: Micros) -> Result<(), StepRefused> {
        if self.vote_hold.just_started(now) {
            return Err(StepRefused::JustStarted);
        }
        let in_transfer = message.context == raft::CAMPAIGN_TRANSFER;
        if message.term >= self.term() && !in_transfer && self.vote_hold.leader_alive(now) {
            return Err(StepRefused::LeaderAlive);
        }
        Ok(())
    }

    /// For kinds that only the leader of a term sends.
    fn check_leader(&self, message: &Message) -> Result<(), StepRefused> {
        let (claims, leads) = (message.from, self.raw.raft.leader_id);
        if message.term == self.term() && leads != raft::INVALID_ID && leads != claims {
            return Err(StepRefused::SecondLeader { claims, leads });
        }
        Ok(())
    }

    /// A correct leader never contradicts a committed entry. Raft 0.7 answers such a message with the
    /// commit index, whereupon the leader goes on as if all were well.
    fn check_conflict(&self, message: &Message) -> Result<(), StepRefused> {
        let compacted = self.raw.store().compact_index();
        let first = (message.index, message.log_term);
        let rest = message
            .entries
            .iter()
            .map(|entry| (entry.index, entry.term));
        for (index, term) in std::iter::once(first).chain(rest) {
            if index > self.committed() {
                break;
            }
            if index >= compacted && self.term_at(index) != Some(term) {
                return Err(StepRefused::ConflictsWithCommitted(index));
            }
        }
        Ok(())
    }

    fn check_snapshot_meta(&self, message: &Message) -> Result<(), StepRefused> {
        let meta = message.get_snapshot().get_metadata();
        if !(1..MAX_INDEX).contains(&meta.index) {
            return Err(StepRefused::AbsurdIndex(meta.index));
        }
        if !(1..=message.term).contains(&meta.term) {
            return Err(StepRefused::AbsurdTerm(meta.term));
        }
        let known = self.raw.store().compact_index()..=self.committed();
        if known.contains(&meta.index)
            && self.is_initialized()
            && self.term_at(meta.index) != Some(meta.term)
        {
            return Err(StepRefused::ConflictsWithCommitted(meta.index));
        }
        let fit = members_fit(meta.get_conf_state(), self.raw.raft.id);
        fit.then_some(()).ok_or(StepRefused::Members)
    }

    fn check_takeover(&self, message: &Message, now: Micros) -> Result<(), StepRefused> {
        self.check_leader(message)?;
        if self.vote_hold.just_started(now) {
            return Err(StepRefused::JustStarted);
        }
        if self.is_far_behind() {
            return Err(StepRefused::FarBehind);
        }
        Ok(())
    }

    /// Raft asserts that its own vote is on disk when it wins.
    fn check_vote(&self, message: &Message) -> Result<(), StepRefused> {
        let raft = &self.raw.raft;
        let counts = raft.state == StateRole::Candidate && message.term == raft.term;
        if counts && self.votes_asked_term != raft.term {
            Err(StepRefused::UnaskedVote)
        } else {
            Ok(())
        }
    }

    fn check_ack(&self, message: &Message) -> Result<(), StepRefused> {
        if message.request_snapshot != raft::INVALID_INDEX {
            return Err(StepRefused::Snapshot);
        }
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || message.term != raft.term {
            return Ok(());
        }
        let (index, last) = (message.index.max(message.reject_hint), self.last_index());
        if index > last {
            Err(StepRefused::AckPastLog { index, last })
        } else {
            Ok(())
        }
    }
}

fn check_kind(message: &Message) -> Result<(), StepRefused> {
    match message.get_msg_type() {
        MessageType::MsgAppend
        | MessageType::MsgAppendResponse
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgSnapshot
        | MessageType::MsgTimeoutNow => Ok(()),
        kind => Err(StepRefused::Kind(kind)),
    }
}

fn check_entries(message: &Message) -> Result<(), StepRefused> {
    // No log begins before its start record. And raft says that an entry past the end has term 0, so that
    // would match any log.
    if message.index == 0 || message.log_term == 0 {
        return Err(StepRefused::MalformedEntries(message.index));
    }
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in &message.entries {
        index += 1;
        if entry.index != index || !(term..=message.term).contains(&entry.term) {
            return Err(StepRefused::MalformedEntries(index));
        }
        let readable = match entry.get_entry_type() {
            EntryType::EntryNormal => true,
            EntryType::EntryConfChangeV2 => ConfChangeV2::parse_from_bytes(&entry.data).is_ok(),
            EntryType::EntryConfChange => false,
        };
        if !readable {
            return Err(StepRefused::ConfChange(index));
        }
        term = entry.term;
    }
    Ok(())
}

/// Whether raft can make a configuration of these members, with `me` among them.
fn members_fit(members: &ConfState, me: u64) -> bool {
    let (voters, learners) = (&members.voters, &members.learners);
    let (outgoing, next) = (&members.voters_outgoing, &members.learners_next);
    let distinct = |ids: &Vec<u64>| {
        let set: BTreeSet<u64> = ids.iter().copied().collect();
        set.len() == ids.len() && !set.contains(&raft::INVALID_ID)
    };
    let votes = |id: &u64| voters.contains(id) || outgoing.contains(id);
    let becomes_learner =
        |id: &u64| outgoing.contains(id) && !voters.contains(id) && !learners.contains(id);
    [voters, learners, outgoing, next].into_iter().all(distinct)
        && !voters.is_empty()
        && !learners.iter().any(votes)
        && next.iter().all(becomes_learner)
        && (!members.auto_leave || !outgoing.is_empty())
        && (votes(&me) || learners.contains(&me))
}
