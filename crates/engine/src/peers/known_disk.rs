//! The disk and start under which a peer was last seen. A peer with another disk, or an older copy of it, has
//! lost its promises: with its vote, acknowledged entries could be lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::envelope::{Frame, PeerDisk};

/// The known disks of the other nodes, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownDisks(pub BTreeMap<u64, KnownDisk>);

impl KnownDisks {
    /// Takes note of an authentic frame. Returns true if a disk or a start in it was not known.
    ///
    /// A node that lacks disks, and does not take part yet, may be the only one that does not know the disk of
    /// another: it takes a node that it has never seen only if a quorum has accepted that node. The nodes that accept
    /// it report the disks that they know, so that it knows them before it takes part.
    ///
    /// # Errors
    /// [`NotTaken`]: as [`KnownDisk::check`], or the sender was never seen.
    pub fn note(&mut self, frame: &Frame, lacks_disks: bool) -> Result<bool, NotTaken> {
        let in_touch = frame.facts.as_ref().is_some_and(|facts| facts.in_touch);
        let known = self.0.get(&frame.from);
        match known {
            Some(known) => known.check(frame)?,
            None if lacks_disks && !in_touch => {
                let id = frame.from;
                let why = format!("node {id} was never here, and no quorum has accepted it yet");
                return Err(NotTaken::Dropped(why));
            }
            None => {}
        }
        let now = KnownDisk::of(frame);
        let mut news = known.is_none_or(|known| known.boots != now.boots);
        self.0.insert(frame.from, now);
        let reported = frame.disks.iter();
        for disk in reported.filter(|it| in_touch && it.node != frame.to) {
            news |= self.note_reported(disk);
        }
        Ok(news)
    }

    /// Returns true if it was not known. Who reports it may have been misled: what this node knows counts as well.
    fn note_reported(&mut self, disk: &PeerDisk) -> bool {
        let Some(known) = self.0.get_mut(&disk.node) else {
            self.0.insert(disk.node, KnownDisk::reported(disk));
            return true;
        };
        let later = known.disk_id == disk.disk_id && disk.boots > known.newest().boots;
        if later {
            known.reported = Some(KnownStart {
                boots: disk.boots,
                start: disk.start,
            });
        }
        later
    }

    /// Whether other nodes may know disks of members that this one does not: it joined later, or has lost what it
    /// knew, though it has heard of members.
    #[must_use]
    pub fn may_lack_some(&self, joined: bool, members_version: u64) -> bool {
        joined || (members_version > 0 && self.0.is_empty())
    }

    /// For the frames to a node that does not take part.
    #[must_use]
    pub fn report(&self) -> Vec<PeerDisk> {
        let report = self.0.iter().map(|(node, known)| {
            let KnownStart { boots, start } = known.newest();
            PeerDisk {
                node: *node,
                disk_id: known.disk_id,
                boots,
                start,
            }
        });
        report.collect()
    }
}

/// A peer as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownDisk {
    pub disk_id: u64,
    pub boots: u64,
    /// The random number of that start.
    pub start: u64,
    /// Of the newest frame; only within this process.
    #[serde(skip)]
    pub seq: u64,
    /// A later start of which a node that takes part has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<KnownStart>,
}

/// One start of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownStart {
    /// Its count.
    pub boots: u64,
    /// Its random number.
    pub start: u64,
}

/// Why a frame is not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// Its sender must not vote.
    #[error("{0}")]
    Refused(String),
    /// This frame is dropped: that says nothing about its sender.
    #[error("{0}")]
    Dropped(String),
}

impl KnownDisk {
    /// The sender of a frame.
    #[must_use]
    pub fn of(frame: &Frame) -> KnownDisk {
        KnownDisk {
            disk_id: frame.disk_id,
            boots: frame.boots,
            start: frame.starts.first().copied().unwrap_or_default(),
            seq: frame.seq,
            reported: None,
        }
    }

    fn reported(disk: &PeerDisk) -> KnownDisk {
        KnownDisk {
            disk_id: disk.disk_id,
            boots: disk.boots,
            start: disk.start,
            seq: 0,
            reported: None,
        }
    }

    fn last_seen(&self) -> KnownStart {
        KnownStart {
            boots: self.boots,
            start: self.start,
        }
    }

    /// The newest start of which this node knows.
    #[must_use]
    pub fn newest(&self) -> KnownStart {
        self.reported.unwrap_or(self.last_seen())
    }

    /// Checks a frame against the known disk and starts of its sender.
    ///
    /// # Errors
    /// [`NotTaken`]: another disk, an older copy of it, an older start, or a frame that is not newer than the
    /// last.
    pub fn check(&self, frame: &Frame) -> Result<(), NotTaken> {
        let (id, boots) = (frame.from, frame.boots);
        if self.disk_id != frame.disk_id {
            return Err(NotTaken::Refused(format!(
                "node {id} came back with another disk and must not vote: give it its old one back"
            )));
        }
        for known in [self.last_seen(), self.newest()] {
            if !known.is_among(frame) {
                return Err(NotTaken::Refused(format!(
                    "node {id} came back with an older copy of its disk and must not vote: start {boots}, \
                     after start {}",
                    known.boots
                )));
            }
        }
        if (boots, frame.seq) <= (self.boots, self.seq) {
            return Err(NotTaken::Dropped(format!(
                "a late or doubled frame of node {id}: frame {}, after frame {} of that start",
                frame.seq, self.seq
            )));
        }
        Ok(())
    }
}

impl KnownStart {
    /// Whether the sender's disk may have made this start. A copy of the disk counts its starts on from where it was
    /// made, and may get as far as the disk itself had come; but it draws other numbers. A node that missed more
    /// starts than a frame lists cannot notice it.
    fn is_among(self, frame: &Frame) -> bool {
        let since = frame.boots.checked_sub(self.boots);
        let same = since.and_then(|since| frame.starts.get(usize::try_from(since).ok()?));
        since.is_some() && same.is_none_or(|start| *start == self.start)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::envelope::NodeFacts;

    /// From a start of node `from`, with what it says of disks.
    fn frame(from: u64, starts: &[u64], in_touch: bool, disks: Vec<PeerDisk>) -> Frame {
        Frame {
            from,
            to: 5,
            disk_id: 10 * from,
            boots: starts.len() as u64,
            starts: starts.to_vec(),
            seq: 1,
            facts: Some(NodeFacts {
                in_touch,
                ..NodeFacts::default()
            }),
            disks,
            ..Frame::default()
        }
    }

    /// Node 3 has started for the third time; then a copy of its disk of the first start is put back.
    #[test]
    fn a_node_that_comes_later_knows_the_disks_before_it_takes_part() {
        let mut first = KnownDisks::default();
        first
            .note(&frame(3, &[33, 32, 31], true, vec![]), false)
            .unwrap();
        let copy = frame(3, &[92, 31], false, vec![]);
        let mut newcomer = KnownDisks::default();
        let early = newcomer.note(&copy, true);
        assert!(matches!(early, Err(NotTaken::Dropped(_))), "{early:?}");
        let news = newcomer.note(&frame(1, &[11], true, first.report()), true);
        assert!(news.unwrap());
        for lacks_disks in [true, false] {
            let refused = newcomer.note(&copy, lacks_disks);
            assert!(matches!(refused, Err(NotTaken::Refused(_))), "{refused:?}");
        }
        let next = frame(3, &[34, 33, 32, 31], false, vec![]);
        assert!(newcomer.note(&next, true).unwrap());
    }

    fn reported(boots: u64, start: u64) -> PeerDisk {
        PeerDisk {
            node: 3,
            disk_id: 30,
            boots,
            start,
        }
    }

    #[test]
    fn nodes_that_take_part_report_disks_and_what_a_node_has_seen_itself_stays() {
        let mut known = KnownDisks::default();
        let mut report = |from, in_touch, disks| {
            let frame = frame(from, &[10 + from], in_touch, disks);
            known.note(&frame, false).unwrap();
            known.0.get(&3).map(|it| it.start)
        };
        assert_eq!(report(1, false, vec![reported(9, 1)]), None);
        let of_itself = PeerDisk {
            node: 5,
            ..reported(9, 1)
        };
        assert_eq!(report(2, true, vec![reported(9, 2), of_itself]), Some(2));
        assert_eq!(report(4, true, vec![reported(9, 3)]), Some(2));
        assert!(!known.0.contains_key(&5));
    }

    /// This node, or who reported first, has missed starts of node 3.
    #[test]
    fn a_copy_must_descend_from_the_start_that_is_known_and_from_a_later_one_that_is_reported() {
        let mut known = KnownDisks::default();
        let first = frame(3, &[32, 31], false, vec![]);
        known.note(&first, false).unwrap();
        let other_disk = PeerDisk {
            disk_id: 99,
            ..reported(9, 1)
        };
        let report = frame(1, &[11], true, vec![reported(3, 33), other_disk]);
        assert!(known.note(&report, false).unwrap());
        let refuses = |starts: &[u64]| {
            let noted = known.clone().note(&frame(3, starts, true, vec![]), false);
            matches!(noted, Err(NotTaken::Refused(_)))
        };
        // A copy of start 2, and starts that do not descend from it.
        assert!(refuses(&[93, 32, 31]));
        assert!(refuses(&[94, 93, 32, 31]));
        assert!(refuses(&[33, 92, 31]));
        assert!(!refuses(&[33, 32, 31]));
        let next = frame(3, &[34, 33, 32, 31], false, vec![]);
        assert!(known.note(&next, false).unwrap());
        assert_eq!(known.0[&3], KnownDisk::of(&next));
        // Who reports it may have been misled itself: what this node has seen still counts.
        let report = frame(2, &[12], true, vec![reported(5, 95)]);
        assert!(known.note(&report, false).unwrap());
        let copy = frame(3, &[95, 94, 93, 32, 31], false, vec![]);
        assert!(matches!(
            known.note(&copy, false),
            Err(NotTaken::Refused(_))
        ));
    }
}
