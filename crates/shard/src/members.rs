//! The members of the cluster, as its operators want them.
//!
//! Shard 0 decides on changes. The leader of every other shard copies the newest [`Members`] into its own
//! shard before it changes the members of its Raft group. So a later leader of that shard never works
//! towards an older version. Nothing but the wanted members is stored: each leader compares them with its
//! group, so every change can be interrupted at any point and continues later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nowserving_codec::{self as codec, Codec, Reader};
use nowserving_protocol::keys::Rotation;

use crate::command::{FORMAT, FORMAT_MIN};

/// The most nodes of a cluster.
pub const MEMBERS_MAX: usize = 7;
/// The newest changes that are kept.
const CHANGES_KEPT: usize = 64;

/// The wanted members.
#[derive(Codec, Clone, Debug, Default, PartialEq, Eq)]
#[codec(check = Members::check)]
pub struct Members {
    /// Grows by one with each change. 0: the members are those that the cluster began with.
    pub version: u64,
    /// The number of the next node: numbers are never used again.
    pub next_id: u64,
    pub nodes: BTreeMap<u64, Member>,
    /// By shard, the node that an operator wants to lead it.
    pub preferred: BTreeMap<u32, u64>,
    /// The nodes that the cluster began with.
    pub first: BTreeSet<u64>,
    /// Random: tells these members from those of another cluster that has the same name. 0 in version 0.
    pub cluster_id: u64,
    /// The newest rotation of the cluster's key. `None`: the key is that which the cluster began with.
    pub rotation: Option<Rotation>,
}

/// One node of [`Members`].
#[derive(Codec, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The disk that may vote under this number. 0: the first one that its peers saw.
    pub disk_id: u64,
    /// It shall lead no shard.
    pub drained: bool,
}

/// A command about the members.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub enum MembersCommand {
    /// Writes down the members that the cluster began with.
    Begin {
        nodes: Vec<u64>,
        /// Drawn by the leader.
        cluster_id: u64,
    },
    Request(MembersRequest),
    /// Copies the members from shard 0, if they are newer.
    Adopt(Members),
}

/// An operator's request.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub struct MembersRequest {
    pub change: MembersChange,
    /// Only if the members have this version.
    pub if_version: Option<u64>,
    /// The operator's name and reason, as given in the request.
    pub by: String,
    pub reason: String,
}

/// A change of the members. A change that was made already has no effect and the same answer.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub enum MembersChange {
    /// Adds a node with this disk, under the next number.
    Add {
        disk_id: u64,
    },
    Remove {
        id: u64,
    },
    /// Removes node `id`, and adds one with this disk under the next number.
    Replace {
        id: u64,
        disk_id: u64,
    },
    Drain {
        id: u64,
        drained: bool,
    },
    /// Wants node `to` to lead these shards; with `None` they are led where they are balanced.
    Prefer {
        shards: Vec<u32>,
        to: Option<u64>,
    },
    /// Puts the key `current` in force, or only changes until when the one before it is accepted. The leader fills in
    /// the fingerprints, and the key in force so far as `old`.
    RotateKey(Rotation),
}

impl MembersChange {
    /// The disk of the node that is added.
    #[must_use]
    pub fn added_disk(&self) -> Option<u64> {
        match self {
            MembersChange::Add { disk_id } | MembersChange::Replace { disk_id, .. } => {
                Some(*disk_id)
            }
            _ => None,
        }
    }

    /// The node that is removed.
    #[must_use]
    pub fn removed(&self) -> Option<u64> {
        match self {
            MembersChange::Remove { id } | MembersChange::Replace { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The answer to a [`MembersRequest`].
#[derive(Codec, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembersChanged {
    /// The version that has the change.
    pub version: u64,
    /// The node that the change was about: of an added one its number.
    pub id: Option<u64>,
}

/// Why a [`MembersRequest`] is refused.
#[derive(Codec, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersRefused {
    #[error("the members have changed meanwhile: they have version {0}")]
    Version(u64),
    #[error("node {0} is no member")]
    NoMember(u64),
    #[error("a cluster has at most {MEMBERS_MAX} nodes: remove one first")]
    TooMany,
    #[error("node {0} is the last member")]
    Last(u64),
    #[error("this disk is that of node {0} already")]
    DiskInUse(u64),
    /// Decided by the leader before it proposes the change, like those that follow.
    #[error("node {0} is drained: end that first with `cluster drain {0} --undo`")]
    Drained(u64),
    #[error(
        "node {0} cannot lead now: it is silent, out of the clients' reach, or its disk is full"
    )]
    Unfit(u64),
    #[error(
        "node {id} has not caught up in {shards} of these shards: `cluster status --wait` waits until it has"
    )]
    Lags { id: u64, shards: u64 },
    #[error("an earlier change of the members is in progress: {0} shards have it to come")]
    InProgress(u64),
    #[error("the cluster begins: its first members are not written down yet")]
    NotBegun,
    #[error("no node with disk {0:016x} asks to be added: `cluster status` shows those that do")]
    NotAsking(u64),
    #[error(
        "key {key} is not loaded by {}: add its line to the key files there; `cluster status` shows the keys that each \
         node has loaded", named(.nodes)
    )]
    KeyNotLoaded { key: u8, nodes: Vec<u64> },
    #[error("key {0} cannot replace key {1}: only a key with a higher id can")]
    KeyNotNewer(u8, u8),
    #[error("only {alive} of {all} nodes would be alive afterwards, which is no majority")]
    NoMajority { alive: u64, all: u64 },
}

/// `node 1, node 3`
fn named(nodes: &[u64]) -> String {
    let nodes = nodes.iter().map(|id| format!("node {id}"));
    nodes.collect::<Vec<_>>().join(", ")
}

/// A change that was made, with its operator and reason.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub struct RecordedChange {
    /// The version that it made.
    pub version: u64,
    /// On the wall clock, to be shown.
    pub at_ms: u64,
    pub request: MembersRequest,
}

/// The members as a shard replicates them.
#[derive(Codec, Debug, Default, PartialEq, Eq)]
pub struct MembersState {
    pub(crate) wanted: Members,
    /// The oldest first.
    pub(crate) changes: VecDeque<RecordedChange>,
}

impl MembersState {
    #[must_use]
    pub fn wanted(&self) -> &Members {
        &self.wanted
    }

    /// The newest changes, the oldest first.
    pub fn changes(&self) -> impl Iterator<Item = &RecordedChange> {
        self.changes.iter()
    }

    /// `None`: the command was no operator's.
    pub(crate) fn apply(
        &mut self,
        command: &MembersCommand,
        wall_ms: u64,
    ) -> Option<Result<MembersChanged, MembersRefused>> {
        match command {
            MembersCommand::Begin { nodes, cluster_id } if self.wanted.version == 0 => {
                self.wanted = Members::begin(nodes, *cluster_id);
            }
            MembersCommand::Adopt(members) if members.supersede(&self.wanted) => {
                self.wanted = members.clone();
            }
            MembersCommand::Begin { .. } | MembersCommand::Adopt(_) => {}
            MembersCommand::Request(request) => return Some(self.request(request, wall_ms)),
        }
        None
    }

    fn request(
        &mut self,
        request: &MembersRequest,
        wall_ms: u64,
    ) -> Result<MembersChanged, MembersRefused> {
        let version = self.wanted.version;
        if let Some(id) = self.wanted.made_already(&request.change) {
            return Ok(MembersChanged { version, id });
        }
        if request.if_version.is_some_and(|it| it != version) {
            return Err(MembersRefused::Version(version));
        }
        let id = self.wanted.make(&request.change)?;
        self.wanted.version += 1;
        let version = self.wanted.version;
        self.remember(RecordedChange {
            version,
            at_ms: wall_ms,
            request: request.clone(),
        });
        Ok(MembersChanged { version, id })
    }

    pub(crate) fn remember(&mut self, change: RecordedChange) {
        if nowserving_bite::is(nowserving_bite::Break::S18) {
            return;
        }
        self.changes.push_back(change);
        if self.changes.len() > CHANGES_KEPT {
            self.changes.pop_front();
        }
    }
}

impl Members {
    /// For frames between nodes, and files: the oldest format that has all of it, and it in that.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let format = self.first_format();
        codec::encode(&(format, self.clone()), format)
    }

    /// `None`: these are no [`Members`] that this build can read.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Members> {
        let mut from = Reader::new(bytes, FORMAT_MIN);
        let format = u32::decode(&mut from).ok()?;
        if !(FORMAT_MIN..=FORMAT).contains(&format) {
            return None;
        }
        from.set_format(format);
        let members = Codec::decode(&mut from).ok()?;
        from.end().ok()?;
        Some(members)
    }

    fn check(&self) -> Result<(), &'static str> {
        let numbered = !self.nodes.contains_key(&0);
        numbered.then_some(()).ok_or("a member without a number")
    }

    /// The members of a cluster that begins with these nodes.
    #[must_use]
    pub fn begin(nodes: &[u64], cluster_id: u64) -> Members {
        let first: BTreeSet<u64> = nodes.iter().copied().collect();
        Members {
            version: 1,
            next_id: first.last().map_or(1, |id| id + 1),
            nodes: first.iter().map(|id| (*id, Member::default())).collect(),
            preferred: BTreeMap::new(),
            first,
            cluster_id,
            rotation: None,
        }
    }

    /// Whether these are newer members of the same cluster. Nothing is known about the cluster of version 0.
    #[must_use]
    pub fn supersede(&self, known: &Members) -> bool {
        let same_cluster = known.version == 0 || self.cluster_id == known.cluster_id;
        same_cluster && self.version > known.version
    }

    /// Whether these are of another cluster of the same name, which is older: its members have changed more often.
    #[must_use]
    pub fn contradict(&self, known: &Members) -> bool {
        self.are_foreign_to(known.cluster_id) && self.version > known.version
    }

    /// Whether this is another cluster's identity. Of 0 nothing is known.
    #[must_use]
    pub fn are_foreign_to(&self, cluster_id: u64) -> bool {
        self.cluster_id != cluster_id && self.cluster_id != 0 && cluster_id != 0
    }

    /// The cluster's identity as text; `None` while none is known.
    #[must_use]
    pub fn identity(&self) -> Option<String> {
        (self.cluster_id != 0).then(|| format!("{:016x}", self.cluster_id))
    }

    /// The node that this disk belongs to.
    #[must_use]
    pub fn with_disk(&self, disk_id: u64) -> Option<u64> {
        let mut nodes = self.nodes.iter();
        let found = nodes.find(|(_, member)| disk_id != 0 && member.disk_id == disk_id);
        found.map(|(id, _)| *id)
    }

    /// Whether the node with this number was a member once.
    #[must_use]
    pub fn was_removed(&self, id: u64) -> bool {
        let added = self.first.last().is_none_or(|last| id > *last) && id < self.next_id;
        (added || self.first.contains(&id)) && !self.nodes.contains_key(&id)
    }

    /// `Some` if these members have the change; in it is the node that the change was about.
    #[must_use]
    pub fn made_already(&self, change: &MembersChange) -> Option<Option<u64>> {
        match change {
            MembersChange::Add { disk_id } => self.with_disk(*disk_id).map(Some),
            MembersChange::Remove { id } => self.was_removed(*id).then_some(Some(*id)),
            MembersChange::Replace { id, disk_id } => {
                let added = self.with_disk(*disk_id);
                added.filter(|_| self.was_removed(*id)).map(Some)
            }
            MembersChange::Drain { id, drained } => {
                let member = self.nodes.get(id)?;
                (member.drained == *drained).then_some(Some(*id))
            }
            MembersChange::Prefer { shards, to } => {
                let as_asked = |shard: &u32| self.preferred.get(shard) == to.as_ref();
                shards.iter().all(as_asked).then_some(*to)
            }
            MembersChange::RotateKey(rotation) => {
                let known = self.rotation.filter(|it| it.current == rotation.current)?;
                (known.old_until_ms == rotation.old_until_ms).then_some(None)
            }
        }
    }

    /// Returns the node that the change was about.
    fn make(&mut self, change: &MembersChange) -> Result<Option<u64>, MembersRefused> {
        let id = match change {
            MembersChange::Add { disk_id } => self.add(*disk_id)?,
            MembersChange::Remove { id } => {
                self.check_member(*id)?;
                if self.nodes.len() == 1 {
                    return Err(MembersRefused::Last(*id));
                }
                self.remove(*id);
                *id
            }
            MembersChange::Replace { id, disk_id } => {
                self.check_member(*id)?;
                if let Some(other) = self.with_disk(*disk_id) {
                    return Err(MembersRefused::DiskInUse(other));
                }
                self.remove(*id);
                self.add(*disk_id)?
            }
            MembersChange::Drain { id, drained } => {
                let member = self.nodes.get_mut(id);
                member.ok_or(MembersRefused::NoMember(*id))?.drained = *drained;
                *id
            }
            MembersChange::Prefer { shards, to } => {
                self.prefer(shards, *to)?;
                return Ok(*to);
            }
            MembersChange::RotateKey(rotation) => {
                self.rotate(rotation)?;
                return Ok(None);
            }
        };
        Ok(Some(id))
    }

    fn rotate(&mut self, rotation: &Rotation) -> Result<(), MembersRefused> {
        if let Some(known) = &mut self.rotation
            && known.current == rotation.current
        {
            known.old_until_ms = rotation.old_until_ms;
            return Ok(());
        }
        let old = self.rotation.map_or(rotation.old, |known| known.current);
        if rotation.current.id <= old.id {
            return Err(MembersRefused::KeyNotNewer(rotation.current.id, old.id));
        }
        self.rotation = Some(Rotation { old, ..*rotation });
        Ok(())
    }

    fn check_member(&self, id: u64) -> Result<(), MembersRefused> {
        let found = self.nodes.contains_key(&id);
        found.then_some(()).ok_or(MembersRefused::NoMember(id))
    }

    fn add(&mut self, disk_id: u64) -> Result<u64, MembersRefused> {
        if self.nodes.len() >= MEMBERS_MAX {
            return Err(MembersRefused::TooMany);
        }
        let id = self.next_id;
        let member = Member {
            disk_id,
            drained: false,
        };
        self.nodes.insert(id, member);
        self.next_id += 1;
        Ok(id)
    }

    fn remove(&mut self, id: u64) {
        self.nodes.remove(&id);
        self.preferred.retain(|_, node| *node != id);
    }

    fn prefer(&mut self, shards: &[u32], to: Option<u64>) -> Result<(), MembersRefused> {
        let Some(to) = to else {
            self.preferred.retain(|shard, _| !shards.contains(shard));
            return Ok(());
        };
        self.check_member(to)?;
        self.preferred
            .extend(shards.iter().map(|shard| (*shard, to)));
        Ok(())
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
