//! The state that the shards of a node share: clocks, forwards, and the output of the current turn.

use std::collections::BTreeMap;

use nowserving_protocol::error::ApiError;
use nowserving_replica::ConfState;
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command;

use crate::delivery::LeaderTime;
use crate::io::Now;
use crate::outbox::Outbox;
use crate::payload::Payload;
use crate::peers::peer::Peer;
use crate::refusals::{late, outcome_unknown, unavailable};
use crate::request::Inbox;
use crate::requests::age::Age;
use crate::requests::decide::{Action, Role, decide_unexecuted};
use crate::requests::forwards::{Forwards, Leader};
use crate::requests::waiter::Waiter;

/// The leader of a shard, as this node knows it. The default: it knows none, or does not hold the shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KnownLeader {
    pub id: Option<u64>,
    pub term: u64,
    /// When this node learned that it leads.
    pub since: Micros,
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
    /// Whether the member with this number takes part, or is this node. That its frames are taken here is not
    /// enough: a node that was just added does not know which disk it should have.
    pub fn takes_part(&self, number: u64, now: Micros) -> bool {
        let peer = self.peers.get(&number);
        number == self.me || peer.is_some_and(|peer| peer.alive(now) && peer.in_touch)
    }

    /// Whether a peer does not take part, as far as this node knows.
    pub fn is_out_of_touch(&self, id: u64) -> bool {
        !self.peers.get(&id).is_some_and(|peer| peer.in_touch)
    }

    /// The leader of a shard, with its clock.
    pub fn leader(&self, known: KnownLeader, now: Micros) -> Leader {
        let time = known.id.and_then(|id| match id == self.me {
            true => Some(LeaderTime {
                start: self.start,
                us: now,
            }),
            false => self.peers.get(&id)?.clock(now),
        });
        Leader {
            time,
            term: known.term,
            since: known.since,
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
    /// [`crate::Config::draw_secret`].
    pub draw_secret: nowserving_line::Secret,
    /// How much work on log entries is left for this turn.
    pub work_left: usize,
}

impl NodeCtx {
    /// The newest format of log entries that all members of a group read, according to their newest frames. Of a
    /// member that has sent none since this node's start, nothing is assumed.
    pub fn entry_format(&self, group: &ConfState) -> u32 {
        if nowserving_bite::is(nowserving_bite::Break::S4Builds) {
            return self.entry_format;
        }
        let others = group.nodes().filter(|id| *id != self.clocks.me);
        let formats = others.map(|id| self.clocks.peers.get(&id).map_or(0, |it| it.entry_format));
        let least = formats.fold(self.entry_format, u32::min);
        least.max(command::FORMAT_MIN)
    }

    /// Forwards or refuses a request that this node took as the leader and did not execute before it lost the lead.
    pub fn lead_lost(&mut self, waiter: Waiter, leader: KnownLeader) {
        // It was not late when it was taken, and its deadline has not come.
        let (via, effect) = (waiter.delivery.via, waiter.effect);
        let action = decide_unexecuted(via, effect, Role::NotLeader, Age::Fresh);
        self.forward_or_refuse(action, waiter, leader);
    }

    /// Refuses a request that this node took as the leader and did not execute before its deadline.
    pub fn at_deadline(&mut self, waiter: Waiter) {
        let (via, effect) = (waiter.delivery.via, waiter.effect);
        let action = decide_unexecuted(via, effect, Role::Leader, Age::Over);
        self.forward_or_refuse(action, waiter, KnownLeader::default());
    }

    /// Forwards or refuses a request, as decided.
    pub fn forward_or_refuse(&mut self, action: Action, mut waiter: Waiter, known: KnownLeader) {
        match action {
            Action::Ignore => {
                // The node counts open requests, so every request needs an outcome.
                waiter.reply.inbox = Inbox::None;
                self.out.refuse(waiter.reply, ApiError::not_leader(None));
            }
            Action::Forward { shared } => {
                let leader = self.clocks.leader(known, self.now.us);
                self.forwards
                    .start(waiter, shared, leader, self.now.us, &mut self.out);
            }
            Action::RefuseNotLeader => {
                self.out
                    .refuse(waiter.reply, ApiError::not_leader(known.id));
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
