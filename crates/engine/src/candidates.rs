//! Nodes that ask to be added to the cluster, and what is checked before members change.

use std::collections::BTreeMap;

use nowserving_protocol::admin::{CandidateStatus, DiskId};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{MembersChange, MembersRefused, MembersRequest};
use nowserving_shard::requests::RequestId;

use crate::delivery::Copy;
use crate::engine::Engine;
use crate::envelope::{Candidate, Welcome};
use crate::io::Output;

/// A candidate that has not asked for so long is gone.
const ASKED_LATELY_US: Micros = 5_000_000;
/// Candidates that are kept at most.
const CANDIDATES_MAX: usize = 16;

/// The candidates that asked lately, by disk.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    asked: BTreeMap<u64, (Candidate, Micros)>,
}

impl Candidates {
    fn note(&mut self, candidate: Candidate, now: Micros) {
        self.asked
            .retain(|_, (_, at)| now.saturating_sub(*at) < ASKED_LATELY_US);
        if self.asked.len() < CANDIDATES_MAX || self.asked.contains_key(&candidate.disk_id) {
            self.asked.insert(candidate.disk_id, (candidate, now));
        }
    }

    fn lately(&self, now: Micros) -> impl Iterator<Item = &Candidate> {
        let asked = self.asked.values();
        let lately = asked.filter(move |(_, at)| now.saturating_sub(*at) < ASKED_LATELY_US);
        lately.map(|(candidate, _)| candidate)
    }
}

impl Engine {
    /// A candidate asks. One that was added is told its number.
    pub(crate) fn note_candidate(&mut self, candidate: Candidate, now: Micros) {
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
            None if self.takes_part(candidate.number, now) => {}
            None => self.candidates.note(candidate, now),
        }
    }

    /// Whether the member with this number takes part, or is this node. That its frames are taken here is not
    /// enough: a node that was just added does not know which disk it should have.
    pub(crate) fn takes_part(&self, number: u64, now: Micros) -> bool {
        let peer = self.ctx.clocks.peers.get(&number);
        number == self.config.id || peer.is_some_and(|peer| peer.alive(now) && peer.in_touch)
    }

    pub(crate) fn candidates(&self, now: Micros) -> Vec<CandidateStatus> {
        let members = &self.membership.wanted;
        let added = |it: &&Candidate| members.with_disk(it.disk_id).is_some();
        let waiting = self.candidates.lately(now).filter(|it| !added(it));
        let status = waiting.map(|it| CandidateStatus {
            disk: DiskId(it.disk_id),
            node: Some(it.number).filter(|number| members.nodes.contains_key(number)),
            reason: it.reason.clone(),
            version: it.version.clone(),
        });
        status.collect()
    }

    /// The shards whose groups do not have the wanted members, as this node knows them.
    pub(crate) fn shards_changing(&self) -> usize {
        let wanted = &self.membership.wanted;
        let differs = |group: &nowserving_replica::ConfState| {
            let voters = group.voters.iter().all(|id| wanted.nodes.contains_key(id));
            let all = group.voters.len() == wanted.nodes.len();
            let over = group.voters_outgoing.is_empty() && group.learners.is_empty();
            !(voters && all && over)
        };
        let groups = self.shards.values().map(|shard| shard.replica.members());
        groups
            .filter(|group| wanted.version > 0 && differs(group))
            .count()
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
        let is_copy = |id| first.is_some_and(|shard| shard.copy_of(id) != Copy::None);
        let is_copy = id.is_some_and(is_copy);
        if let MembersChange::Prefer { shards, to } = &request.change {
            return match *to {
                Some(to) if !is_copy => self.can_lead(to, shards, now),
                _ => Ok(()),
            };
        }
        if let MembersChange::RotateKey(rotation) = &mut request.change {
            let checked = self.check_rotation(rotation);
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
        let changing = self.shards_changing() as u64;
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
        if !is_fit || !self.takes_part(id, now) {
            return Err(MembersRefused::Unfit(id));
        }
        match self.cannot_lead_in(id, shards, now) {
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
        let alive = remain.iter().filter(|id| self.takes_part(**id, now));
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
        let mut shards = self.shards.values();
        shards.any(|shard| {
            let voters = shard.replica.voters();
            voters.iter().any(|id| !wanted.contains_key(id))
        })
    }

    /// Whether no group on this node has this voter.
    fn votes_nowhere(&self, id: u64) -> bool {
        let mut shards = self.shards.values();
        shards.all(|shard| !shard.replica.voters().contains(&id))
    }
}

/// The contract's code for a refused change of the members.
pub(crate) fn refusal(refused: &MembersRefused) -> ApiError {
    let code = match refused {
        MembersRefused::Version(_) => Code::VersionConflict,
        MembersRefused::NoMember(_) | MembersRefused::NotAsking(_) => Code::NodeNotFound,
        MembersRefused::InProgress(_) => Code::MembersChanging,
        MembersRefused::TooMany
        | MembersRefused::Last(_)
        | MembersRefused::DiskInUse(_)
        | MembersRefused::Drained(_)
        | MembersRefused::Unfit(_)
        | MembersRefused::Lags { .. }
        | MembersRefused::KeyNotLoaded { .. }
        | MembersRefused::KeyNotNewer(..)
        | MembersRefused::NoMajority { .. } => Code::MembersRefused,
    };
    let error = ApiError::new(code, refused.to_string());
    match refused {
        // They pass by themselves: a node that asks does so every second, and the leader may not have heard it yet.
        MembersRefused::InProgress(_)
        | MembersRefused::Lags { .. }
        | MembersRefused::NotAsking(_) => error.retry_after_ms(1_000),
        _ => error,
    }
}
