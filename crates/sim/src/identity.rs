//! Who a disk belongs to, as the files of a data directory say, and which disks its node has seen under the
//! numbers of its peers.

use std::collections::BTreeMap;

use nowserving_engine::envelope::Frame;
use nowserving_engine::{KnownDisk, NotTaken};
use nowserving_shard::members::Members;

use crate::nats::NodeId;
use crate::random::Random;

/// Starts that a node lists to its peers.
const STARTS_KEPT: usize = 8;

/// The small files of a data directory.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Of the disk.
    pub disk_id: u64,
    /// How often a node was started from it.
    pub boots: u64,
    /// The random numbers of the last of these starts, the newest first.
    pub starts: Vec<u64>,
    /// The node joined a cluster that existed.
    pub joined: bool,
    /// With which id of its disk the node asks to be added; 0: it never did.
    pub candidate: u64,
    /// The newest members that it knew.
    pub members: Members,
    /// The disks of its peers.
    known: BTreeMap<NodeId, KnownDisk>,
}

impl Identity {
    /// That of an empty disk.
    pub fn new(random: &mut Random) -> Identity {
        Identity {
            disk_id: random.next(),
            ..Identity::default()
        }
    }

    /// That of a node which was added with this disk.
    #[must_use]
    pub fn joined(disk_id: u64, members: Members) -> Identity {
        Identity {
            disk_id,
            joined: true,
            members,
            ..Identity::default()
        }
    }

    /// Counts a start.
    pub fn count_start(&mut self, random: &mut Random) {
        self.boots += 1;
        self.starts.insert(0, random.next());
        self.starts.truncate(STARTS_KEPT);
    }

    /// What each frame says of the disk. Its number says nothing: late frames of one start are taken here, as
    /// Raft must bear them.
    #[must_use]
    pub fn stamp(&self, from: NodeId) -> Frame {
        Frame {
            from,
            disk_id: self.disk_id,
            boots: self.boots,
            starts: self.starts.clone(),
            seq: 1,
            ..Frame::default()
        }
    }

    /// Takes note of the sender of a frame.
    ///
    /// # Errors
    /// It must not vote, or the frame is dropped.
    pub fn note(&mut self, frame: &Frame) -> Result<(), NotTaken> {
        if let Some(known) = self.known.get(&frame.from) {
            let checked = known.check(frame);
            #[cfg(feature = "bite")]
            let checked = checked.or_else(|refused| taken_for_the_known(known, frame, refused));
            checked?;
        }
        let known = KnownDisk {
            seq: 0,
            ..KnownDisk::of(frame)
        };
        self.known.insert(frame.from, known);
        Ok(())
    }

    /// Whether the node knows of this peer's disk a later start than `boots`, or any.
    #[must_use]
    pub fn knows_later(&self, peer: NodeId, boots: Option<u64>) -> bool {
        let known = self.known.get(&peer);
        known.is_some_and(|known| boots.is_none_or(|boots| known.boots > boots))
    }
}

/// Takes the wrong disk for the known one.
#[cfg(feature = "bite")]
fn taken_for_the_known(
    known: &KnownDisk,
    frame: &Frame,
    refused: NotTaken,
) -> Result<(), NotTaken> {
    let rule = match known.disk_id == frame.disk_id {
        true => nowserving_bite::Break::S5RolledBack,
        false => nowserving_bite::Break::S5Wiped,
    };
    match nowserving_bite::is(rule) {
        true => Ok(()),
        false => Err(refused),
    }
}
