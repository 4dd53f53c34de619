//! What the steps of one turn come to, and what every step of a shard needs of its node.

use std::collections::BTreeMap;

use crate::envelope::StateHash;
use nowserving_protocol::error::ApiError;
use nowserving_replica::Write;
use nowserving_shard::clock::ClientReachability;
use nowserving_shard::published::OutEvent;
use raft::eraftpb::Message;

use crate::delivery::{Action, decide_after_lead};
use crate::forwards::Forwards;
use crate::frames::OutMessage;
use crate::io::{Now, Output};
use crate::refusals::{outcome_unknown, unavailable};
use crate::request::{Outcome, ReplyTo};
use crate::shard::Waiter;

/// Collected output. Writes and messages wait for the end of the turn, so that each receiver is
/// woken once.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Leaves with this step.
    pub outputs: Vec<Output>,
    /// To peers.
    pub messages: BTreeMap<u64, Vec<OutMessage>>,
    /// To the disk.
    pub writes: Vec<Write>,
    /// Hashes of shards' states, to every peer and to be compared with theirs.
    pub state_hashes: Vec<StateHash>,
}

impl Outbox {
    /// Answers a request.
    pub fn answer(&mut self, to: ReplyTo, result: Result<Outcome, ApiError>) {
        self.outputs.push(Output::Reply { to, result });
    }

    /// Refuses a request.
    pub fn refuse(&mut self, to: ReplyTo, error: ApiError) {
        self.answer(to, Err(error));
    }

    /// Publishes events.
    pub fn publish(&mut self, events: impl IntoIterator<Item = OutEvent>) {
        self.outputs.extend(events.into_iter().map(Output::Event));
    }

    /// Queues Raft messages of a shard for their peers.
    pub fn send(&mut self, shard: u32, messages: Vec<Message>) {
        for message in messages {
            if let Some(encoded) = OutMessage::encode(shard, &message) {
                self.messages.entry(message.to).or_default().push(encoded);
            }
        }
    }
}

/// What every step of a shard needs of its node.
#[derive(Debug)]
pub(crate) struct TurnCtx<'a> {
    pub now: Now,
    /// The time in which clients could reach this node.
    pub reachability: &'a ClientReachability,
    pub out: &'a mut Outbox,
    pub forwards: &'a mut Forwards,
}

impl TurnCtx<'_> {
    /// Does what there is to do about a request that this node had taken as the leader, when it leads
    /// no more. `leader` is the next one, if known.
    pub fn lead_lost(&mut self, waiter: Waiter, leader: Option<u64>) {
        let action = decide_after_lead(waiter.delivery, waiter.effect);
        self.pass_on(action, waiter, leader);
    }

    /// Does what there is to do about a request that is not this node's.
    pub fn pass_on(&mut self, action: Action, waiter: Waiter, leader: Option<u64>) {
        match action {
            Action::Forward { in_doubt } => {
                self.forwards.start(waiter, in_doubt, self.now.us, self.out);
            }
            Action::Hold => self.forwards.hold(waiter, self.out),
            Action::RefuseNotLeader => self.out.refuse(waiter.reply, ApiError::not_leader(leader)),
            Action::RefuseUnknown => self.out.refuse(waiter.reply, outcome_unknown()),
            // The first two are for a request that this node can answer, so not for this one.
            Action::AnswerLocally | Action::Take | Action::RefuseUnavailable => {
                self.out.refuse(waiter.reply, unavailable());
            }
        }
    }
}
