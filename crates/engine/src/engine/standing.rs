//! Whether this node takes part, serves, and is subscribed to requests. Until it takes part, the engine greets its peers,
//! handles no Raft message, does not tick, leads no shard, and is subscribed to no requests.
//!
//! Full disks. While this node's disk is full, or those of so many nodes that no entry can be committed, a
//! leader refuses writes and proposes nothing, and its service clock stands still: nobody expires, and polls
//! are answered under the lease. A node with a full disk hands its shards over to one with room, if there is
//! one. It fetches no snapshots and deletes what it has fetched: what room is left is for votes, for entries, and for
//! snapshots of its own, behind which the log is compacted.

use nowserving_replica::Connection;
use nowserving_shard::clock::Micros;

use super::Engine;
use crate::io::{Output, Subscription};
use crate::leading::balance::UNREACHABLE_MAX;
use crate::peers::contact::{PeerHeader, Refusal, Standing};

impl Engine {
    pub(super) fn note_header(
        &mut self,
        from: u64,
        header: &PeerHeader,
        refused: Option<&Refusal>,
        now: Micros,
    ) {
        if self.contact.note_header(from, header, refused, now) {
            self.send_to(from, Vec::new(), Vec::new(), now);
        }
        if self.announced.is_outdated(&self.contact) {
            self.announce_standing(now);
        }
    }

    /// Tells the node whether this engine takes part and serves, if that has changed.
    pub(crate) fn announce_standing(&mut self, now: Micros) {
        if !self.config.place.is_first() {
            // The first loop's counts.
            return self.update_subscriptions(now);
        }
        let standing = self.contact.standing(now);
        let removed = self.contact.says_removed();
        let out = &mut self.ctx.out;
        self.announced.announce(&standing, removed, now, out);
        self.membership.note_standing(&standing, removed);
        self.update_subscriptions(now);
        self.role.news();
        let serves = self.serves(&standing, now);
        self.announced.serves(serves, &mut self.ctx.out);
    }

    /// Whether this node serves requests, with the reason if it does not.
    fn serves(&self, standing: &Standing, now: Micros) -> Result<(), String> {
        let mut problems = Vec::new();
        if self.stopping.has_begun() {
            problems.push("the node is stopping".to_owned());
        }
        if self.ctx.reachability.unreachable_for(now) > UNREACHABLE_MAX {
            problems.push("requests do not reach this node: is NATS there?".to_owned());
        }
        if self.ctx.disk_full {
            problems.push("the disk is full".to_owned());
        }
        problems.extend(self.ctx.payload.problem());
        problems.extend(self.problem_of_loops(now));
        match standing {
            Standing::InTouch => problems.extend(self.no_quorum(now)),
            Standing::Waiting(reason) | Standing::Refused(Refusal { reason, .. }) => {
                problems.push(reason.clone());
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.join("; ")),
        }
    }

    /// The problem that too few nodes are alive, if that is so.
    fn no_quorum(&self, now: Micros) -> Option<String> {
        let peers = &self.ctx.clocks.peers;
        let silent = |id: &u64| !peers.get(id).is_some_and(|peer| peer.alive(now));
        let silent: Vec<String> = self
            .membership
            .peers
            .iter()
            .filter(|id| silent(id))
            .map(|id| id.to_string())
            .collect();
        let all = self.membership.peers.len() + 1;
        let quorum = all / 2 + 1;
        (all - silent.len() < quorum).then(|| {
            format!(
                "no quorum: of {all} nodes {quorum} are needed, and nothing is heard of {}",
                silent.join(", ")
            )
        })
    }

    /// Whether this node takes part, and its transport takes answers and entries.
    pub(super) fn takes_requests(&self, now: Micros) -> bool {
        self.takes_part(now) && self.ctx.payload.problem().is_none()
    }

    /// Whether clients can reach this node, by each of its loops, and it is not about to stop. Peers hand shards over
    /// only to such a node.
    pub(super) fn client_reachable(&self, now: Micros) -> bool {
        !self.stopping.has_begun()
            && self.takes_requests(now)
            && self.ctx.reachability.unreachable_for(now) <= UNREACHABLE_MAX
            && self.problem_of_loops(now).is_none()
    }

    /// Decides on the subscriptions of each shard: a leader in its lease subscribes, and while no node leads,
    /// all nodes do, so that some node answers. A node that does not take part never subscribes.
    pub(super) fn update_subscriptions(&mut self, now: Micros) {
        let stopping = self.stopping.has_begun();
        let takes_part = self.takes_requests(now) && !self.stopping.is_drained();
        for shard in self.shards.values_mut() {
            let wanted = if !takes_part {
                Subscription::No
            } else if shard.in_lease(now) {
                let term = shard.replica.term();
                Subscription::Leader { term }
            } else if shard.leads() || (shard.replica.leader().is_none() && !stopping) {
                Subscription::Leaderless
            } else {
                Subscription::No
            };
            if shard.subscription != wanted {
                shard.subscription = wanted;
                self.ctx.out.outputs.push(Output::Subscribe {
                    shard: shard.id,
                    subscription: wanted,
                });
            }
        }
    }

    /// The disk of this node is full, or has room again.
    pub(super) fn disk_full(&mut self, full: bool) {
        let full = full || nowserving_bite::is(nowserving_bite::Break::L5Room);
        self.ctx.disk_full = full;
        if full {
            self.each_shard(|shard, ctx| {
                let receiving = &mut shard.snapshots.receiving;
                receiving.make_room(shard.id, &mut ctx.out);
            });
        }
        match full {
            true => tracing::error!(
                "the disk is full: this node takes no writes and hands over what it leads, until there is room"
            ),
            false => tracing::info!("the disk has room again"),
        }
        self.check_room();
    }

    /// To be called when a disk of any node has become full, or has room again, and when members have changed.
    pub(super) fn check_room(&mut self) {
        if !self.config.place.is_first() {
            return;
        }
        let peers = &self.ctx.clocks.peers;
        let has_room = |id| match id == self.config.id {
            true => !self.ctx.disk_full,
            false => !peers.get(&id).is_some_and(|peer| peer.disk_full),
        };
        let has_room = !self.ctx.disk_full && self.contact.majority_of_groups(has_room);
        if std::mem::replace(&mut self.ctx.has_room, has_room) != has_room {
            self.role.news();
        }
    }

    /// This node was connected to another server, or to one with another limit.
    pub(super) fn max_payload(&mut self, bytes: usize, now: Micros) {
        let was = std::mem::replace(&mut self.ctx.payload.max, bytes);
        let problem = self.ctx.payload.problem();
        match problem {
            Some(problem) => tracing::error!(problem, "this node serves nobody"),
            None if was < self.ctx.payload.min => {
                tracing::info!(max_payload = bytes, "the NATS server takes enough again");
            }
            None => tracing::info!(
                max_payload = bytes,
                "bytes that the NATS server takes in one message"
            ),
        }
        self.announce_standing(now);
    }

    /// This node's service connection was lost, or may have been: no lease of before is used any more. Its
    /// peers are told at once, so that the end of the old one does not start elections.
    pub(super) fn connection_number(&mut self, number: u64, now: Micros) {
        self.connection = number;
        for shard in self.shards.values_mut() {
            shard.replica.connection_lost();
            shard.heartbeat(now);
        }
        self.links.tell_all();
        self.role.news();
        self.timers.hurry();
    }

    /// A server has closed a service connection of a peer: where that peer leads with it, the shard needs
    /// another leader. The other nodes are told at once. Word of an earlier start of the peer must not replace that of
    /// the present one, and is of no use.
    pub(super) fn connection_closed(&mut self, peer: u64, connection: Connection, now: Micros) {
        let Some(known) = self.ctx.clocks.peers.get(&peer) else {
            return;
        };
        if !known.has(connection) || !self.closed.note(peer, connection) {
            return;
        }
        if let Some(first) = self.role.first_mut() {
            first.news = true;
        }
        let mut cut_off = 0;
        let shards = self.shards.values_mut();
        for shard in shards.filter(|it| known.is_of(it.id, connection)) {
            shard.set_election_delay(self.config.id, self.election_ticks);
            if shard.replica.connection_closed(peer, connection, now) {
                cut_off += 1;
                shard.dirty = true;
                shard.note_leader(now);
            }
        }
        if cut_off > 0 {
            tracing::info!(
                peer,
                cut_off,
                "a leader's connection to NATS is closed: electing others"
            );
            self.links.tell_all();
            self.timers.hurry();
        }
    }
}
