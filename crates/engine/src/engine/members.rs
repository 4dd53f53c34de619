//! Changes of the cluster's members, and of what this node knows of them.

use std::collections::BTreeSet;

use nowserving_replica::ConfState;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{Members, MembersChange, MembersRefused, MembersRequest};
use nowserving_shard::requests::RequestId;

use super::Engine;
use crate::envelope::{Candidate, Welcome};
use crate::io::Output;
use crate::loops::groups::Groups;
use crate::peers::contact::{Electorates, PeerHeader};
use crate::requests::decide::Copy;
use crate::shard::Shard;

impl Engine {
    /// Finds out who the members and peers are, when members or a group may have changed.
    pub(super) fn members_changed(&mut self) {
        self.ctx.members_changed = false;
        if !self.config.place.is_first() {
            return self.role.news();
        }
        for own in Groups::of(&self.shards, &self.role).known_members() {
            self.membership.learn(own);
            // Learned before this node's own groups wrote down theirs.
            if self.membership.wanted.contradict(own) {
                self.contact.note_other_cluster();
            } else if self.membership.wanted.are_foreign_to(own.cluster_id) {
                self.membership.wanted = own.clone();
            }
        }
        let mut wanted = self.membership.wanted.clone();
        if wanted.version == 0 {
            wanted = Members::begin(&self.config.nodes, 0);
        }
        self.balance.set_members(&wanted);
        let all = Groups::of(&self.shards, &self.role);
        let groups: Vec<ConfState> = all.configurations().collect();
        let wanted: BTreeSet<u64> = wanted.nodes.into_keys().collect();
        let mut peers: BTreeSet<u64> = groups.iter().flat_map(ConfState::nodes).collect();
        peers.extend(&wanted);
        peers.extend(self.membership.keep_former(all));
        peers.remove(&self.config.id);
        let voters = groups
            .iter()
            .flat_map(|it| [&it.voters, &it.voters_outgoing]);
        let voters = voters.filter(|voters| !voters.is_empty());
        let electorates = Electorates {
            wanted,
            groups: voters.map(|it| it.iter().copied().collect()).collect(),
        };
        // Nobody decides before it is known whose quorum it is.
        let electorates = Some(electorates).filter(|_| all.are_known());
        let electorates = electorates.unwrap_or_default();
        self.contact.set_members(&peers, electorates);
        self.ctx.clocks.peers.retain(|id, _| peers.contains(id));
        self.membership.peers = peers;
        self.check_room();
        self.membership.announce(&mut self.ctx.out);
    }

    /// Learns the members that a frame carries.
    pub(super) fn note_members(&mut self, from: u64, header: &PeerHeader) {
        let members = header.members.as_ref();
        if members.is_some_and(|it| self.membership.learn(it)) {
            self.members_changed();
        }
        self.note_former(from);
    }

    /// Newer members of another cluster of this name, which has a quorum: this one was founded by nodes that had lost
    /// their disks, and gives way.
    pub(super) fn note_other_cluster(&mut self, members: &Members, now: Micros) {
        let known = &self.membership.wanted;
        if members.version <= known.version || members.cluster_id == known.cluster_id {
            return;
        }
        metrics::counter!("nowserving_foreign_members_total").increment(1);
        let contradicts = members.contradict(known);
        self.membership.warn_of_other(members, now);
        if contradicts {
            self.contact.note_other_cluster();
            if self.announced.standing().is_in_touch() {
                self.announce_standing(now);
            }
        }
    }

    /// Stops this node if it was removed and no group has it any more: requests may be on their way to it, so it
    /// drains first. A node that asks for a new number waits for that instead.
    pub(super) fn stop_if_removed(&mut self, now: Micros) {
        let removed = self.membership.wanted.was_removed(self.config.id);
        if removed && self.contact.says_removed() && !self.membership.is_candidate() {
            self.stopping.begin_removed(now);
        }
    }

    /// A node that is no peer sends a frame: it becomes one if it was removed, but may still be in a group.
    fn note_former(&mut self, from: u64) {
        if from != self.config.id
            && self
                .membership
                .note_former(from, Groups::of(&self.shards, &self.role))
        {
            self.members_changed();
        }
    }

    /// A candidate asks. One that was added is told its number.
    pub(super) fn note_candidate(&mut self, candidate: Candidate, now: Micros) {
        let members = &self.membership.wanted;
        match members.with_disk(candidate.disk_id) {
            Some(id) => {
                self.ctx.out.outputs.push(Output::Welcome(Welcome {
                    disk_id: candidate.disk_id,
                    id,
                    cluster: self.config.cluster.clone(),
                    shards: self.config.shards,
                    nodes: self.config.nodes.clone(),
                    members: members.to_bytes().into(),
                }));
            }
            // A member that was refused for a moment, and is in touch now, must not give up its data.
            None if self.ctx.clocks.takes_part(candidate.number, now) => {}
            None => self.candidates.note(candidate, now),
        }
    }

    /// Checks what the replicated state does not know: one change of nodes is finished before the next, and
    /// nodes are added while they run. The log takes the change only if no other one came first.
    pub(crate) fn check_members_request(
        &self,
        request: &mut MembersRequest,
        id: Option<RequestId>,
        now: Micros,
    ) -> Result<(), MembersRefused> {
        let wanted = &self.membership.wanted;
        let first = self.shards.get(&0);
        let begun = first.is_some_and(|shard| shard.state.members().wanted().version > 0);
        if !begun {
            // An added node would be the only member. Those that it begins with are written down in a moment.
            return Err(MembersRefused::NotBegun);
        }
        let is_copy = |id| first.is_some_and(|shard| shard.copy_of(id) != Copy::None);
        let is_copy = id.is_some_and(is_copy);
        if let MembersChange::Prefer { shards, to } = &request.change {
            return match *to {
                Some(to) if !is_copy => self.can_lead(to, shards, now),
                _ => Ok(()),
            };
        }
        if let MembersChange::RotateKey(rotation) = &mut request.change {
            let checked = self.keys.check_rotation(rotation, wanted, &self.ctx.clocks);
            // A node that is added meanwhile may lack the key.
            request.if_version.get_or_insert(wanted.version);
            return if is_copy { Ok(()) } else { checked };
        }
        let (added, removed) = (request.change.added_disk(), request.change.removed());
        if added.is_none() && removed.is_none() {
            return Ok(());
        }
        request.if_version.get_or_insert(wanted.version);
        if is_copy || wanted.made_already(&request.change).is_some() {
            return Ok(());
        }
        if let Some(id) = removed {
            self.leaves_a_majority(id, added.is_some(), now)?;
        }
        // One that never came holds its change up for ever. If it was to replace a node, that node still votes:
        // without both, the cluster would be smaller than before.
        let shrinks = added.is_none() && self.someone_leaves();
        let may_interrupt = removed.is_some_and(|id| self.votes_nowhere(id)) && !shrinks;
        let changing = self.groups().changing(wanted) as u64;
        if changing > 0 && !may_interrupt {
            return Err(MembersRefused::InProgress(changing));
        }
        let asks = |disk: &u64| self.candidates.lately(now).any(|it| it.disk_id == *disk);
        match added.filter(|disk| !asks(disk)) {
            Some(disk) => Err(MembersRefused::NotAsking(disk)),
            None => Ok(()),
        }
    }

    /// A node is preferred as the leader of shards only if it can take them over now.
    fn can_lead(&self, id: u64, shards: &[u32], now: Micros) -> Result<(), MembersRefused> {
        let Some(member) = self.membership.wanted.nodes.get(&id) else {
            return Err(MembersRefused::NoMember(id));
        };
        if member.drained {
            return Err(MembersRefused::Drained(id));
        }
        let peer = self.ctx.clocks.peers.get(&id);
        let is_fit = match id == self.config.id {
            true => self.client_reachable(now) && !self.ctx.disk_full,
            false => peer.is_some_and(|peer| peer.is_fit(now)),
        };
        if !is_fit || !self.ctx.clocks.takes_part(id, now) {
            return Err(MembersRefused::Unfit(id));
        }
        let clocks = &self.ctx.clocks;
        let cannot = |it: &&Shard| self.lagging.cannot_lead(it, id, clocks, now);
        let own = shards.iter().filter_map(|it| self.shards.get(it));
        let reports = self.role.reports().flat_map(|it| it.groups.iter());
        let others = reports.filter(|(shard, group)| {
            let votes = group.members.voters.contains(&id);
            shards.contains(shard) && (!votes || group.lag.contains(&id))
        });
        match own.filter(cannot).count() + others.count() {
            0 => Ok(()),
            lags => Err(MembersRefused::Lags {
                id,
                shards: lags as u64,
            }),
        }
    }

    /// Of the nodes that remain without `removed`, a majority must be alive: no command could bring a cluster
    /// back that has none.
    fn leaves_a_majority(
        &self,
        removed: u64,
        replaced: bool,
        now: Micros,
    ) -> Result<(), MembersRefused> {
        let wanted = self.membership.wanted.nodes.keys();
        let remain: Vec<u64> = wanted.copied().filter(|id| *id != removed).collect();
        let alive = remain
            .iter()
            .filter(|id| self.ctx.clocks.takes_part(**id, now));
        // The new node of a replacement asks, so it is there.
        let new = usize::from(replaced);
        let (alive, all) = (alive.count() + new, remain.len() + new);
        let (enough, alive, all) = (2 * alive > all, alive as u64, all as u64);
        enough
            .then_some(())
            .ok_or(MembersRefused::NoMajority { alive, all })
    }

    /// Whether a node votes in a group on this node, and is no member any more.
    fn someone_leaves(&self) -> bool {
        let wanted = &self.membership.wanted.nodes;
        let mut voters = self.groups().voters().flatten();
        voters.any(|id| !wanted.contains_key(&id))
    }

    /// Whether no group on this node has this voter.
    fn votes_nowhere(&self, id: u64) -> bool {
        let mut voters = self.groups().voters().flatten();
        voters.all(|it| it != id)
    }
}
