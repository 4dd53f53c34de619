//! Who a disk belongs to, as the files of a data directory say, and which disks its node has seen under the
//! numbers of its peers.

use nowserving_engine::envelope::{Frame, PeerDisk};
use nowserving_engine::{KnownDisks, NotTaken};
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
    /// Why its peers refuse the disk.
    pub refused: Option<String>,
    /// The disks of its peers.
    known: KnownDisks,
    /// A copy of these.
    copied: Option<KnownDisks>,
    /// The frames that came so far.
    frames: u64,
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

    /// What each frame says of the disk.
    #[must_use]
    pub fn stamp(&self, from: NodeId) -> Frame {
        Frame {
            from,
            disk_id: self.disk_id,
            boots: self.boots,
            starts: self.starts.clone(),
            ..Frame::default()
        }
    }

    /// The disks of its peers that it knows.
    #[must_use]
    pub fn disks(&self) -> Vec<PeerDisk> {
        self.known.report()
    }

    /// Takes note of the sender of a frame. Late frames of one start are taken, as Raft must bear them.
    ///
    /// # Errors
    /// It must not vote, or the frame is dropped.
    pub fn note(&mut self, frame: &Frame, in_touch: bool) -> Result<(), NotTaken> {
        self.frames += 1;
        let frame = Frame {
            seq: self.frames,
            ..frame.clone()
        };
        let version = self.members.version;
        let lacks_disks = self.known.may_lack_some(self.joined, version) && !in_touch;
        let noted = self.known.note(&frame, lacks_disks);
        #[cfg(feature = "bite")]
        let noted = noted.or_else(
            |refused| match is_taken_for_the_known(&self.known, &frame) {
                true => {
                    self.known.0.remove(&frame.from);
                    self.known.note(&frame, false)
                }
                false => Err(refused),
            },
        );
        noted.map(drop)
    }

    /// The file with the disks of its peers is copied, or put back as it was when it was copied. Returns true for the
    /// second.
    pub fn copy_peers(&mut self) -> bool {
        match self.copied.take() {
            Some(earlier) => {
                self.known = earlier;
                true
            }
            None => {
                self.copied = Some(self.known.clone());
                false
            }
        }
    }

    /// Whether the node knows of this peer's disk a later start than `boots`, or any.
    #[must_use]
    pub fn knows_later(&self, peer: NodeId, boots: Option<u64>) -> bool {
        let known = self.known.0.get(&peer);
        known.is_some_and(|known| boots.is_none_or(|boots| known.newest().boots > boots))
    }
}

/// Whether the wrong disk is to be taken for the known one.
#[cfg(feature = "bite")]
fn is_taken_for_the_known(known: &KnownDisks, frame: &Frame) -> bool {
    let known = known.0.get(&frame.from);
    known.is_some_and(|known| {
        nowserving_bite::is(match known.disk_id == frame.disk_id {
            true => nowserving_bite::Break::S5RolledBack,
            false => nowserving_bite::Break::S5Wiped,
        })
    })
}
