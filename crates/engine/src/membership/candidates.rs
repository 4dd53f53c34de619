//! Nodes that ask to be added to the cluster.

use std::collections::BTreeMap;

use nowserving_protocol::admin::{CandidateStatus, DiskId};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{Members, MembersRefused};

use crate::envelope::Candidate;

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
    pub fn note(&mut self, candidate: Candidate, now: Micros) {
        self.asked
            .retain(|_, (_, at)| now.saturating_sub(*at) < ASKED_LATELY_US);
        if self.asked.len() < CANDIDATES_MAX || self.asked.contains_key(&candidate.disk_id) {
            self.asked.insert(candidate.disk_id, (candidate, now));
        }
    }

    /// Those that were not added yet, to be shown.
    pub fn status(&self, members: &Members, now: Micros) -> Vec<CandidateStatus> {
        let added = |it: &&Candidate| members.with_disk(it.disk_id).is_some();
        let waiting = self.lately(now).filter(|it| !added(it));
        let status = waiting.map(|it| CandidateStatus {
            disk: DiskId(it.disk_id),
            node: Some(it.number).filter(|number| members.nodes.contains_key(number)),
            reason: it.reason.clone(),
            version: it.version.clone(),
        });
        status.collect()
    }

    pub fn lately(&self, now: Micros) -> impl Iterator<Item = &Candidate> {
        let asked = self.asked.values();
        let lately = asked.filter(move |(_, at)| now.saturating_sub(*at) < ASKED_LATELY_US);
        lately.map(|(candidate, _)| candidate)
    }
}

/// The contract's code for a refused change of the members.
pub(crate) fn refusal(refused: &MembersRefused) -> ApiError {
    let code = match refused {
        MembersRefused::Version(_) => Code::VersionConflict,
        MembersRefused::NoMember(_) | MembersRefused::NotAsking(_) => Code::NodeNotFound,
        MembersRefused::InProgress(_) | MembersRefused::NotBegun => Code::MembersChanging,
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
        | MembersRefused::NotBegun
        | MembersRefused::Lags { .. }
        | MembersRefused::NotAsking(_) => error.retry_after_ms(1_000),
        _ => error,
    }
}
