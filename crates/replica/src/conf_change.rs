//! Changes of a group's members.
//!
//! The owner compares [`Replica::members`] with the members that it wants, and proposes one change at a
//! time: a new node as a learner first, which has no vote, then one [`ConfChange`] that makes voters of
//! learners and removes others. A change of several nodes at once is a joint one: until it is over, commits
//! and elections need a majority of both halves, and raft ends it by itself.

use protobuf::Message as _;
use raft::StateRole;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2};

use crate::{MembersError, Replica};

/// One change of a group's members, which takes effect when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfChange {
    /// Adds a node that gets the log and has no vote.
    AddLearner(u64),
    /// Removes nodes, and makes voters of learners.
    Set { promote: Vec<u64>, remove: Vec<u64> },
    /// Ends a joint configuration that nobody else ends.
    LeaveJoint,
}

/// How far a member of a group is, as its leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The last index that is on its disk. 0: it has not acknowledged anything.
    pub matched: u64,
    /// The entries of the leader's log that it may lack.
    pub lag: u64,
    pub votes: bool,
}

impl ConfChange {
    fn encode(&self) -> ConfChangeV2 {
        let single = |kind, id: &u64| {
            let mut single = ConfChangeSingle::default();
            single.set_change_type(kind);
            single.node_id = *id;
            single
        };
        let changes: Vec<_> = match self {
            ConfChange::AddLearner(id) => vec![single(ConfChangeType::AddLearnerNode, id)],
            ConfChange::Set { promote, remove } => {
                let promote = promote.iter();
                let promote = promote.map(|id| single(ConfChangeType::AddNode, id));
                let remove = remove.iter();
                let remove = remove.map(|id| single(ConfChangeType::RemoveNode, id));
                promote.chain(remove).collect()
            }
            ConfChange::LeaveJoint => Vec::new(),
        };
        ConfChangeV2 {
            changes: changes.into(),
            ..ConfChangeV2::default()
        }
    }
}

impl Replica {
    /// Puts a change of the members into the log, as leader.
    ///
    /// # Errors
    /// [`MembersError`]: nothing was put into the log. Raft itself would put an empty entry there, and
    /// report success, while an earlier change is not applied.
    pub fn change_members(&mut self, change: &ConfChange) -> Result<(), MembersError> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(MembersError::NotLeader);
        }
        let is_joint = !self.members().voters_outgoing.is_empty();
        if raft.has_pending_conf() || is_joint != (*change == ConfChange::LeaveJoint) {
            return Err(MembersError::InProgress);
        }
        let before = self.last_index();
        let taken = self.raw.propose_conf_change(Vec::new(), change.encode());
        if taken.is_err() || self.last_index() != before + 1 {
            return Err(MembersError::Busy);
        }
        Ok(())
    }

    /// Applies a committed change of the members; then call [`Replica::on_applied`]. A change that does not
    /// fit the members has no effect: it has none on any node.
    ///
    /// # Errors
    /// The bytes are no such change, so this build cannot apply it.
    pub fn apply_members(&mut self, data: &[u8]) -> Result<(), protobuf::ProtobufError> {
        let change = ConfChangeV2::parse_from_bytes(data)?;
        // An error leaves the members as they were.
        let _ = self.raw.apply_conf_change(&change);
        let raft = &self.raw.raft;
        if raft.prs().get(raft.id).is_none() {
            // Raft keeps its role and panics at the next acknowledgement. It happens to a leader that only the
            // outgoing voters had: nobody else may have had the whole log.
            self.step_down();
        }
        Ok(())
    }

    /// How far this leader knows a member to be. `None` unless leader, or if that node is no member.
    pub fn progress_of(&self, id: u64) -> Option<Progress> {
        let raft = &self.raw.raft;
        let progress = raft.prs().get(id);
        let progress = progress.filter(|_| raft.state == StateRole::Leader)?;
        Some(Progress {
            matched: progress.matched,
            lag: self.last_index().saturating_sub(progress.matched),
            votes: raft.prs().conf().voters().contains(id),
        })
    }
}
