//! The disk and start under which a peer was last seen. A peer with another disk, or an older copy of it, has
//! lost its promises: with its vote, acknowledged entries could be lost.

use serde::{Deserialize, Serialize};

use crate::envelope::Frame;

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
