//! The disk and start under which a peer was last seen. A peer with another disk, or an older copy of it, has
//! lost its promises: with its vote, acknowledged entries could be lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::envelope::{Frame, PeerDisk};

/// The known disks of the other nodes, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownDisks(pub BTreeMap<u64, KnownDisk>);

impl KnownDisks {
    /// Takes note of an authentic frame. Returns true if it tells of a disk or a start that was not known.
    ///
    /// A node that came later than its peers, and does not take part yet, may be the only one that does not know the
    /// disk of another: it takes a node that it has never seen only if a quorum has accepted that node. It is told the
    /// disks by the nodes that accept it, and so knows them before it takes part.
    ///
    /// # Errors
    /// [`NotTaken`]: as [`KnownDisk::check`], or the sender was never seen.
    pub fn note(&mut self, frame: &Frame, came_later: bool) -> Result<bool, NotTaken> {
        let in_touch = frame.facts.as_ref().is_some_and(|facts| facts.in_touch);
        let known = self.0.get(&frame.from);
        match known {
            Some(known) => known.check(frame)?,
            None if came_later && !in_touch => {
                let id = frame.from;
                let why = format!("node {id} was never here, and no quorum has accepted it yet");
                return Err(NotTaken::Dropped(why));
            }
            None => {}
        }
        let now = KnownDisk::of(frame);
        let mut news = known.is_none_or(|known| known.boots != now.boots);
        self.0.insert(frame.from, now);
        // Of a disk that this node knows itself, it cannot tell whether another start descends from that one.
        for told in frame
            .disks
            .iter()
            .filter(|it| in_touch && it.node != frame.to)
        {
            self.0.entry(told.node).or_insert_with(|| {
                news = true;
                KnownDisk::told(told)
            });
        }
        Ok(news)
    }

    /// For the frames to a node that does not take part.
    #[must_use]
    pub fn tell(&self) -> Vec<PeerDisk> {
        let disks = self.0.iter();
        let tell = disks.map(|(node, known)| PeerDisk {
            node: *node,
            disk_id: known.disk_id,
            boots: known.boots,
            start: known.start,
        });
        tell.collect()
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
        }
    }

    fn told(told: &PeerDisk) -> KnownDisk {
        KnownDisk {
            disk_id: told.disk_id,
            boots: told.boots,
            start: told.start,
            seq: 0,
        }
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
        // A copy of the disk counts its starts on from where it was made, and may get as far as the
        // disk itself had come; but it draws other numbers. A node that missed more starts than a frame lists
        // cannot notice it.
        let since = boots.checked_sub(self.boots);
        let same = since.and_then(|since| frame.starts.get(usize::try_from(since).ok()?));
        if since.is_none() || same.is_some_and(|start| *start != self.start) {
            return Err(NotTaken::Refused(format!(
                "node {id} came back with an older copy of its disk and must not vote: start {boots}, \
                 after start {}",
                self.boots
            )));
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
        let news = newcomer.note(&frame(1, &[11], true, first.tell()), true);
        assert!(news.unwrap());
        for came_later in [true, false] {
            let refused = newcomer.note(&copy, came_later);
            assert!(matches!(refused, Err(NotTaken::Refused(_))), "{refused:?}");
        }
        let next = frame(3, &[34, 33, 32, 31], false, vec![]);
        assert!(newcomer.note(&next, true).unwrap());
    }

    #[test]
    fn nodes_that_take_part_tell_of_disks_and_what_a_node_has_seen_itself_stays() {
        let told = |start| PeerDisk {
            node: 3,
            disk_id: 30,
            boots: 9,
            start,
        };
        let of_itself = PeerDisk { node: 5, ..told(1) };
        let mut known = KnownDisks::default();
        known
            .note(&frame(1, &[11], false, vec![told(1)]), false)
            .unwrap();
        assert!(!known.0.contains_key(&3));
        let disks = vec![told(2), of_itself];
        known.note(&frame(2, &[12], true, disks), false).unwrap();
        known
            .note(&frame(4, &[14], true, vec![told(3)]), false)
            .unwrap();
        assert_eq!((known.0[&3].start, known.0.contains_key(&5)), (2, false));
    }
}
