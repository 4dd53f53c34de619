//! Disks that lose what their nodes have promised: wiped ones, and older copies that are put back.
//!
//! The peers must refuse such a node until the operator replaces it. That is allowed only if
//! - no other member's disk is lost or damaged, and without this one the voters of every group still have a
//!   majority, also after the change of members that is under way, and every member knows these voters: else
//!   acknowledged data may be gone for good, or no node can lead;
//! - every other node that votes has written down the disk, and of a copy a start after it was made: one that has not
//!   cannot know it;
//! - these know each other's disks as well: one whose file of peers was put back may hold another for a copy until a
//!   quorum without the lost disk has accepted it, and there is none;
//! - no node is being replaced meanwhile: the new one could not know the disk either.

use std::collections::BTreeSet;

use crate::disk::Disk;
use crate::faults::Fault;
use crate::files::Files;
use crate::nats::NodeId;
use crate::node::Node;
use crate::world::{Event, World};

/// A member whose disk lost what it had promised.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Its number.
    pub id: NodeId,
    /// With which disk its machine asks to be added, if it does so as a new one.
    pub asks_as: Option<u64>,
}

impl World {
    /// Whether the others of every group have a majority without this member, and no other is lost.
    pub fn can_lose(&mut self, id: NodeId) -> bool {
        self.lost_is_mended();
        if self.lost.is_some()
            || !self.checks.voters_are_known()
            || self.damaged().is_some_and(|damaged| damaged != id)
        {
            return false;
        }
        let wanted = self.checks.members();
        let after = self.operator.after(&wanted);
        let mut sets: Vec<BTreeSet<NodeId>> = self.checks.electorates();
        let groups = sets.len();
        sets.push(wanted.nodes.into_keys().collect());
        sets.push(after.nodes.into_keys().collect());
        // A change that adds it would wait for it: it votes everywhere already.
        let votes = sets.iter().take(groups).all(|set| set.contains(&id));
        let mut with_it = sets.iter().filter(|set| set.contains(&id));
        votes && with_it.all(|set| 2 * (set.len() - 1) > set.len())
    }

    /// Whether every other member and voter could tell that this one lost its disk, or has a copy of it from an
    /// earlier start than they know, and know each other.
    fn is_known(&self, id: NodeId, boots: Option<u64>) -> bool {
        let members = self.checks.members();
        let voters = self.checks.electorates().into_iter().flatten();
        let mut others: BTreeSet<NodeId> = voters.chain(members.nodes.keys().copied()).collect();
        others.remove(&id);
        let knows = |node: &Node| {
            let files = &node.disk.files;
            let mut rest = others.iter().filter(|it| **it != node.id);
            files.knows_later(id, boots) && rest.all(|it| files.knows_later(*it, None))
        };
        let mut nodes = others.iter().map(|it| self.nodes.get(it));
        members.nodes.contains_key(&id)
            && !self.operator.replaces()
            && nodes.all(|it| it.is_some_and(knows))
    }

    /// A disk is wiped: that with a damaged log, if there is one.
    pub fn wipe_disk(&mut self, id: NodeId) {
        let id = self.damaged().unwrap_or(id);
        if !self.can_lose(id) || !self.is_known(id, None) {
            return;
        }
        self.env.counts.add(Fault::DiskWiped);
        self.env.note(format_args!("n{id}: its disk is wiped"));
        let loops = self.setup.draw_loops(&mut self.env.random);
        let disk = Disk::new(Files::default(), self.setup.log_bytes_max, loops);
        self.lose_disk(id, disk);
    }

    /// A copy of a disk is made; it is put back later.
    pub fn copy_disk(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if !node.is_awake() || self.lost.is_some() {
            return;
        }
        let copy = Box::new(node.disk.copy());
        self.env
            .note(format_args!("n{id}: a copy of its disk is made"));
        self.crash(id);
        let delay = 1_000_000 + self.env.random.around(3_000_000);
        self.env
            .timeline
            .after(delay, Event::RollBack { node: id, copy });
    }

    pub fn roll_back(&mut self, id: NodeId, copy: Disk) {
        let boots = copy.files.boots();
        let disk_id = |disk: &Disk| disk.files.identity().map(|it| it.disk_id);
        let same = |node: &Node| disk_id(&node.disk) == disk_id(&copy);
        if self.healed
            || !self.nodes.get(&id).is_some_and(same)
            || !self.can_lose(id)
            || self.damaged().is_some()
            || !self.is_known(id, Some(boots))
        {
            return;
        }
        self.env.counts.add(Fault::DiskRolledBack);
        self.env
            .note(format_args!("n{id}: the copy of its disk is put back"));
        self.lose_disk(id, copy);
    }

    /// A node forgets later starts of its peers, and restarts. The others know all, so that they can tell it. If a disk
    /// is lost, that disk has its refusal on it by then: its node restarts too, and must heed that.
    pub fn roll_back_peers(&mut self, id: NodeId) {
        let lost = self.lost.map(|lost| lost.id);
        let refused = |id| {
            let node = self.nodes.get(&id);
            let identity = node.and_then(|node| node.disk.files.identity());
            identity.is_some_and(|it| !it.refused.is_empty())
        };
        let members = self.checks.members();
        let knows_all = |other: &NodeId| {
            let files = self.nodes.get(other).map(|node| &node.disk.files);
            let mut all = members.nodes.keys().filter(|it| *it != other);
            files.is_some_and(|files| all.all(|it| files.knows_later(*it, None)))
        };
        let mut others = members.nodes.keys().filter(|it| **it != id);
        if lost.is_some_and(|lost| lost == id || !refused(lost)) || !others.all(knows_all) {
            return;
        }
        let node = self.nodes.get_mut(&id);
        if !node.is_some_and(|node| node.disk.files.copy_peers()) {
            return;
        }
        self.env.counts.add(Fault::PeersRolledBack);
        self.env
            .note(format_args!("n{id}: its file of peers is put back"));
        self.crash(id);
        if let Some(lost) = lost {
            self.crash(lost);
        }
    }

    /// The machine starts again with this disk. One that joined begins as a new machine if there is nothing on it.
    fn lose_disk(&mut self, id: NodeId, disk: Disk) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.end(&mut self.env, true);
        let is_new = node.configured.is_none() && disk.files.boots() == 0;
        let asks_as = match is_new {
            true => {
                self.nodes.remove(&id);
                Some(self.new_machine())
            }
            false => {
                node.disk = disk;
                let delay = self.env.random.around(500_000);
                let start = Event::StartNode { node: id };
                self.env.timeline.after(delay, start);
                None
            }
        };
        self.lost = Some(Lost { id, asks_as });
    }

    /// A node whose disk is lost must be refused.
    pub fn lost_takes_no_part(&mut self, id: NodeId) {
        if self.lost.is_none_or(|lost| lost.id != id) {
            return;
        }
        let running = self.nodes.get(&id).and_then(|node| node.running.as_ref());
        if running.is_some_and(|it| it.is_in_touch()) {
            let what = format!("node {id} takes part with a disk that lost what it had promised");
            self.env.violated("S5", what);
        }
    }

    /// The lost node counts as lost until no group has it any more.
    pub fn lost_is_mended(&mut self) {
        let members = self.checks.members();
        let complete = self.checks.is_complete() && self.checks.voters_are_known();
        self.lost
            .take_if(|lost| complete && !members.nodes.contains_key(&lost.id));
    }
}
