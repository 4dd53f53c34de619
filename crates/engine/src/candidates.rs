//! Nodes that ask to be added to the cluster, and what is checked before members change.

use std::collections::BTreeMap;

use nowserving_protocol::admin::{CandidateStatus, DiskId};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{MembersChange, MembersRefused, MembersRequest};

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
                    members: members.encode().into(),
                }));
            }
            // A member that was refused for a moment, and is in touch now, must not give up its data.
            None if self.is_heard_of(candidate.number, now) => {}
            None => self.candidates.note(candidate, now),
        }
    }

    /// Whether the member with this number sends frames that are taken, or is this node.
    fn is_heard_of(&self, number: u64, now: Micros) -> bool {
        let peer = self.ctx.clocks.peers.get(&number);
        number == self.config.id || peer.is_some_and(|peer| peer.alive(now))
    }

    pub(crate) fn candidates(&self, now: Micros) -> Vec<CandidateStatus> {
        let added = |it: &&Candidate| self.membership.wanted.with_disk(it.disk_id).is_some();
        let waiting = self.candidates.lately(now).filter(|it| !added(it));
        let status = waiting.map(|it| CandidateStatus {
            disk: DiskId(it.disk_id),
            node: Some(it.number).filter(|number| *number != 0),
            reason: it.reason.clone(),
            version: it.version.clone(),
        });
        status.collect()
    }

    /// The shards whose groups do not have the wanted members, as this node knows them.
    pub(crate) fn shards_changing(&self) -> usize {
        let wanted = &self.membership.wanted;
        let differs = |group: &raft::eraftpb::ConfState| {
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

    /// Checks what the replicated state does not know. One change of nodes is finished before the next, and
    /// nodes are added while they run.
    pub(crate) fn check_members_request(
        &self,
        request: &MembersRequest,
        now: Micros,
    ) -> Result<(), ApiError> {
        let added = match &request.change {
            MembersChange::Add { disk_id } | MembersChange::Replace { disk_id, .. } => {
                Some(disk_id)
            }
            MembersChange::Remove { .. } => None,
            MembersChange::Drain { .. } | MembersChange::Prefer { .. } => return Ok(()),
        };
        if self
            .membership
            .wanted
            .made_already(&request.change)
            .is_some()
        {
            return Ok(());
        }
        self.leaves_a_majority(&request.change, now)?;
        let changing = self.shards_changing();
        if changing > 0 {
            let message = format!(
                "an earlier change of the members is in progress: {changing} shards have it to come"
            );
            return Err(ApiError::new(Code::MembersChanging, message).retry_after_ms(1_000));
        }
        let asks = |disk: &&u64| self.candidates.lately(now).any(|it| it.disk_id == **disk);
        if let Some(disk) = added.filter(|disk| !asks(disk)) {
            let message = format!("no node with disk {} asks to be added", DiskId(*disk));
            return Err(ApiError::new(Code::NodeNotFound, message));
        }
        Ok(())
    }
}

impl Engine {
    /// Of the nodes that remain without the one to be removed, a majority must be alive: no command could bring
    /// a cluster back that has none.
    fn leaves_a_majority(&self, change: &MembersChange, now: Micros) -> Result<(), ApiError> {
        let (MembersChange::Remove { id } | MembersChange::Replace { id, .. }) = change else {
            return Ok(());
        };
        let wanted = self.membership.wanted.nodes.keys();
        let remain: Vec<u64> = wanted.copied().filter(|it| it != id).collect();
        let alive = remain.iter().filter(|it| self.is_heard_of(**it, now));
        // The new node of a replacement asks, so it is there.
        let new = usize::from(matches!(change, MembersChange::Replace { .. }));
        let (alive, all) = (alive.count() + new, remain.len() + new);
        match 2 * alive > all {
            true => Ok(()),
            false => {
                let message = format!(
                    "without node {id} only {alive} of {all} nodes would be alive, which is no majority"
                );
                Err(ApiError::new(Code::MembersRefused, message))
            }
        }
    }
}

/// The contract's code for a refused change of the members.
pub(crate) fn refusal(refused: MembersRefused) -> ApiError {
    let code = match refused {
        MembersRefused::Version(_) => Code::VersionConflict,
        MembersRefused::NoMember(_) => Code::NodeNotFound,
        MembersRefused::TooMany | MembersRefused::Last(_) | MembersRefused::DiskInUse(_) => {
            Code::MembersRefused
        }
    };
    ApiError::new(code, refused.to_string())
}
