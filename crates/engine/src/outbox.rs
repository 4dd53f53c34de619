//! What the steps of one turn come to, and what every step of a shard needs of its node.

use std::collections::BTreeMap;

use crate::envelope::StateHash;
use nowserving_protocol::error::ApiError;
use nowserving_replica::Write;
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::published::OutEvent;
use raft::eraftpb::Message;

use crate::balance::Peer;
use crate::delivery::{Action, LeaderTime, decide_after_lead, decide_at_deadline};
use crate::forwards::{Forwards, Leader};
use crate::frames::OutMessage;
use crate::io::{Now, Output};
use crate::refusals::{late, outcome_unknown, unavailable};
use crate::request::{Outcome, ReplyTo};
use crate::shard::{Shard, Waiter};

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

/// By which a node tells the time on another node's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks<'a> {
    pub me: u64,
    /// This start of this node.
    pub start: u64,
    pub peers: &'a BTreeMap<u64, Peer>,
}

impl Clocks<'_> {
    /// The leader of a shard, as its replica here knows it.
    pub fn leader(&self, shard: &Shard, now: Micros) -> Leader {
        let time = shard.replica.leader().and_then(|id| match id == self.me {
            true => Some(LeaderTime {
                start: self.start,
                us: now,
            }),
            false => self.peers.get(&id)?.clock(now),
        });
        Leader {
            time,
            since: shard.leader_since().unwrap_or_default(),
        }
    }
}

/// What every step of a shard needs of its node.
#[derive(Debug)]
pub(crate) struct TurnCtx<'a> {
    pub now: Now,
    pub clocks: Clocks<'a>,
    /// The time in which clients could reach this node.
    pub reachability: &'a ClientReachability,
    pub out: &'a mut Outbox,
    pub forwards: &'a mut Forwards,
}

impl TurnCtx<'_> {
    /// Does what there is to do about a request that this node had taken as the leader of `shard`, when
    /// it leads no more.
    pub fn lead_lost(&mut self, waiter: Waiter, shard: &Shard) {
        let action = decide_after_lead(waiter.delivery.via, waiter.effect);
        self.pass_on(action, waiter, Some(shard));
    }

    /// Answers a request that this node had taken as the leader, at its deadline, if nothing happened.
    pub fn at_deadline(&mut self, waiter: Waiter) {
        let action = decide_at_deadline(waiter.delivery.via, waiter.effect);
        self.pass_on(action, waiter, None);
    }

    /// Does what there is to do about a request that is not this node's; `shard` if it holds that.
    pub fn pass_on(&mut self, action: Action, mut waiter: Waiter, shard: Option<&Shard>) {
        match action {
            Action::Ignore => {
                // The node counts its requests, so it gets an outcome of each.
                waiter.reply.inbox = None;
                self.out.refuse(waiter.reply, ApiError::not_leader(None));
            }
            Action::Forward { shared } => {
                let leader = shard.map(|shard| self.clocks.leader(shard, self.now.us));
                let leader = leader.unwrap_or_default();
                self.forwards
                    .start(waiter, shared, leader, self.now.us, self.out);
            }
            Action::RefuseNotLeader => {
                let leader = shard.and_then(|shard| shard.replica.leader());
                self.out.refuse(waiter.reply, ApiError::not_leader(leader));
            }
            Action::RefuseLate => self.out.refuse(waiter.reply, late()),
            Action::RefuseUnknown => self.out.refuse(waiter.reply, outcome_unknown()),
            // The first two are for a request that this node can answer, so not for this one.
            Action::AnswerLocally | Action::Take | Action::RefuseUnavailable => {
                self.out.refuse(waiter.reply, unavailable());
            }
        }
    }
}
