//! The state that the shards of a node share: clocks, forwards, and the output of the current turn.

use std::collections::BTreeMap;

use crate::envelope::StateHash;
use nowserving_protocol::error::ApiError;
use nowserving_replica::{ConfState, Message, Write};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command;
use nowserving_shard::published::OutEvent;

use crate::age::Age;
use crate::delivery::{Action, LeaderTime, Role, decide_unexecuted};
use crate::forwards::{Forwards, Leader};
use crate::frames::OutMessage;
use crate::io::{Now, Output};
use crate::payload::Payload;
use crate::peer::Peer;
use crate::refusals::{late, outcome_unknown, unavailable};
use crate::request::{Inbox, Outcome, ReplyTo};
use crate::shard::Shard;
use crate::waiter::Waiter;

/// Collected output. Writes and messages wait for the end of the turn, so that each receiver is
/// woken once.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Returned by this step.
    pub outputs: Vec<Output>,
    /// By peer.
    pub messages: BTreeMap<u64, Vec<OutMessage>>,
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
                let to = self.messages.entry(message.receiver()).or_default();
                to.push(encoded);
            }
        }
    }
}

/// The clocks of all nodes, as far as this node knows them.
#[derive(Debug)]
pub(crate) struct Clocks {
    pub me: u64,
    /// The number of this start of this node.
    pub start: u64,
    pub peers: BTreeMap<u64, Peer>,
}

impl Clocks {
    /// The leader of a shard, as the replica on this node knows it.
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

/// The state of a node that all its shards share.
#[derive(Debug)]
pub(crate) struct NodeCtx {
    /// The time of the current step.
    pub now: Now,
    pub clocks: Clocks,
    /// The time in which clients could reach this node.
    pub reachability: ClientReachability,
    /// Of this node.
    pub disk_full: bool,
    /// Entries proposed now can be written and committed (see `disk_room`).
    pub has_room: bool,
    /// The newest format of log entries that this node reads.
    pub entry_format: u32,
    /// What the transport takes in one message.
    pub payload: Payload,
    pub out: Outbox,
    pub forwards: Forwards,
    /// The members in a shard's state, or a group's members, have changed.
    pub members_changed: bool,
    /// Rules of rate limits in a shard's state have changed.
    pub rules_changed: bool,
    /// [`crate::Config::seed`].
    pub seed: u64,
    /// How much work on log entries is left for this turn.
    pub work_left: usize,
}

impl NodeCtx {
    /// The newest format of log entries that all members of a group read, according to their newest frames. Of a
    /// member that has sent none since this node's start, nothing is assumed.
    pub fn entry_format(&self, group: &ConfState) -> u32 {
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S4Builds) {
            return self.entry_format;
        }
        let others = group.nodes().filter(|id| *id != self.clocks.me);
        let formats = others.map(|id| self.clocks.peers.get(&id).map_or(0, |it| it.entry_format));
        let least = formats.fold(self.entry_format, u32::min);
        least.max(command::FORMAT_MIN)
    }

    /// Forwards or refuses a request that this node took as the leader of `shard` and did not execute
    /// before it lost the lead.
    pub fn lead_lost(&mut self, waiter: Waiter, shard: &Shard) {
        // It was not late when it was taken, and its deadline has not come.
        let (via, effect) = (waiter.delivery.via, waiter.effect);
        let action = decide_unexecuted(via, effect, Role::NotLeader, Age::Fresh);
        self.forward_or_refuse(action, waiter, Some(shard));
    }

    /// Refuses a request that this node took as the leader and did not execute before its deadline.
    pub fn at_deadline(&mut self, waiter: Waiter) {
        let (via, effect) = (waiter.delivery.via, waiter.effect);
        let action = decide_unexecuted(via, effect, Role::Leader, Age::Over);
        self.forward_or_refuse(action, waiter, None);
    }

    /// Forwards or refuses a request, as decided. `shard`: its shard, if this node holds it.
    pub fn forward_or_refuse(&mut self, action: Action, mut waiter: Waiter, shard: Option<&Shard>) {
        match action {
            Action::Ignore => {
                // The node counts open requests, so every request needs an outcome.
                waiter.reply.inbox = Inbox::None;
                self.out.refuse(waiter.reply, ApiError::not_leader(None));
            }
            Action::Forward { shared } => {
                let leader = shard.map(|shard| self.clocks.leader(shard, self.now.us));
                let leader = leader.unwrap_or_default();
                self.forwards
                    .start(waiter, shared, leader, self.now.us, &mut self.out);
            }
            Action::RefuseNotLeader => {
                let leader = shard.and_then(|shard| shard.replica.leader());
                self.out.refuse(waiter.reply, ApiError::not_leader(leader));
            }
            Action::RefuseLate => self.out.refuse(waiter.reply, late()),
            Action::RefuseUnknown => self.out.refuse(waiter.reply, outcome_unknown()),
            // The first two are decided only for requests that this node answers, which do not come here.
            Action::AnswerLocally | Action::Take | Action::RefuseUnavailable => {
                self.out.refuse(waiter.reply, unavailable());
            }
        }
    }
}
