//! What the leader of a shard remembers for its periodic duties: a hand-over, the members' logs.

pub(crate) mod balance;
#[cfg(test)]
mod clocks_tests;
pub(crate) mod fit;
pub(crate) mod lagging;
pub(crate) mod reconcile;
#[cfg(test)]
mod rules_tests;

use nowserving_replica::Progress;
use nowserving_shard::clock::Micros;

use crate::snapshots::LAG_MAX;

/// Leadership that was offered to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    term: u64,
    pub since: Micros,
    pub to: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Leading {
    /// The last hand-over that this node began.
    offered: Option<Offer>,
    /// The term in which members were last copied into this shard, and their version.
    members_asked: (u64, u64),
    /// What was committed at the last heartbeat.
    pub told: u64,
    /// The last entry of the log when members were last checked for lag.
    last_look: u64,
}

impl Leading {
    /// Leadership is offered to a peer. Offering it to the same one again does not make it a new offer.
    pub fn offered(&mut self, term: u64, to: u64, now: Micros) {
        let again = self.offer_of(term).filter(|it| it.to == to);
        let since = again.map_or(now, |it| it.since);
        self.offered = Some(Offer { term, since, to });
    }

    /// The hand-over of this term, which has no lease any more after it.
    pub fn offer_of(&self, term: u64) -> Option<Offer> {
        self.offered.filter(|it| it.term == term)
    }

    /// Whether members of this version are copied into the shard for the first time in this term.
    pub fn asks_for_members(&mut self, term: u64, version: u64) -> bool {
        let asked = (term, version);
        std::mem::replace(&mut self.members_asked, asked) != asked
    }

    /// A member keeps up that lacks few entries, or has what the log had at the last look: under load such a member
    /// always lacks the newest ones.
    pub fn keeps_up(&self, progress: &Progress) -> bool {
        let has_last_look = self.last_look > 0 && progress.matched >= self.last_look;
        progress.lag <= LAG_MAX || has_last_look
    }

    pub fn looked(&mut self, last_index: u64) {
        self.last_look = last_index;
    }
}
