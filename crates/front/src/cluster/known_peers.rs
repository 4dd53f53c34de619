//! Remembers the disk from which each peer voted. A peer with another disk has lost its promises: with its
//! vote, acknowledged entries could be lost. So the node writes down the first disk that it sees, and refuses
//! another one under the same id, even after restarts of all nodes.

use std::collections::BTreeMap;

use nowserving_engine::envelope::{Frame, PeerDisk};
use nowserving_engine::{KnownDisk, KnownDisks, NotTaken};

use super::File;
use super::checked_file::{self, Unusable};

/// The peers seen so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownPeers {
    disks: KnownDisks,
    /// As they were before what was noted last, if the caller has to write that down first.
    before: Option<KnownDisks>,
    /// Its peers may know disks that this node does not.
    lacks_disks: bool,
}

impl KnownPeers {
    /// Reads the file.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(bytes: Option<&[u8]>) -> Result<KnownPeers, Unusable> {
        // By id, as text: TOML's keys are strings.
        let peers = bytes.map(|bytes| checked_file::read(File::Peers, bytes));
        let peers: BTreeMap<String, KnownDisk> = peers.transpose()?.unwrap_or_default();
        let disks = peers.into_iter().map(|(id, disk)| Ok((id.parse()?, disk)));
        let disks: Result<_, std::num::ParseIntError> = disks.collect();
        let disks = disks.map_err(|error| Unusable::NotSuch {
            file: File::Peers,
            what: error.to_string(),
        })?;
        Ok(KnownPeers {
            disks: KnownDisks(disks),
            ..KnownPeers::default()
        })
    }

    /// Takes no peer that was never here until a quorum has accepted it, or this node, if other nodes may know disks
    /// that this one does not. The operator can do without. `joined`: as in the node's identity.
    #[must_use]
    pub fn wary(self, joined: bool, members_version: u64, accept_unseen: bool) -> Self {
        let lacks_disks = self.disks.may_lack_some(joined, members_version);
        KnownPeers {
            lacks_disks: lacks_disks && !accept_unseen,
            ..self
        }
    }

    /// This peer, if it has been here.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&KnownDisk> {
        self.disks.0.get(&id)
    }

    /// The known disks, for peers that do not know them.
    #[must_use]
    pub fn report(&self) -> Vec<PeerDisk> {
        self.disks.report()
    }

    /// Takes note of an authentic frame. `in_touch`: this node takes part. Returns the file if it has to be written
    /// before the frame is taken; if that fails, [`KnownPeers::not_written`] follows.
    ///
    /// # Errors
    /// [`NotTaken`]: see [`KnownDisks::note`].
    pub fn note(&mut self, frame: &Frame, in_touch: bool) -> Result<Option<Vec<u8>>, NotTaken> {
        let lacks_disks = self.lacks_disks && !in_touch;
        let before = self.disks.clone();
        let lacks_disks = !self.believes(frame) && lacks_disks;
        if !self.disks.note(frame, lacks_disks)? {
            return Ok(None);
        }
        self.before = Some(before);
        Ok(Some(self.write()))
    }

    /// What was noted last must not be taken from the next frame either.
    pub fn not_written(&mut self) {
        if let Some(before) = self.before.take() {
            self.disks = before;
        }
    }

    fn write(&self) -> Vec<u8> {
        let disks = self.disks.0.iter();
        let disks: BTreeMap<String, &KnownDisk> =
            disks.map(|(id, disk)| (id.to_string(), disk)).collect();
        checked_file::write(&disks)
    }

    /// Whether the wrong disk is taken for the known one.
    fn believes(&mut self, frame: &Frame) -> bool {
        use nowserving_bite::Break;

        let known = self.disks.0.get(&frame.from);
        let broken = known.is_some_and(|known| {
            let rule = match known.disk_id == frame.disk_id {
                true => Break::S5RolledBack,
                false => Break::S5Wiped,
            };
            nowserving_bite::is(rule) && matches!(known.check(frame), Err(NotTaken::Refused(_)))
        });
        if broken {
            self.disks.0.remove(&frame.from);
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// From node 2's start with this history, newest first.
    fn frame(disk_id: u64, boots: u64, starts: &[u64], seq: u64) -> Frame {
        Frame {
            from: 2,
            disk_id,
            boots,
            starts: starts.to_vec(),
            seq,
            ..Frame::default()
        }
    }

    /// As a later start of this node reads them.
    fn again(peers: &KnownPeers) -> KnownPeers {
        KnownPeers::read(Some(&peers.write())).unwrap()
    }

    #[test]
    fn the_file_of_format_1() {
        let mut peers = KnownPeers::default();
        let written = peers.note(&frame(20, 5, &[15], 7), false).unwrap();
        let of = env!("CARGO_MANIFEST_DIR");
        let kept = nowserving_testkit::golden::bytes(of, "files-1/peers.toml", &written.unwrap());
        let known = KnownDisk {
            disk_id: 20,
            boots: 5,
            start: 15,
            seq: 0,
            reported: None,
        };
        let peers = KnownPeers::read(Some(&kept)).unwrap().disks;
        assert_eq!(peers, KnownDisks([(2, known)].into()));
    }

    #[test]
    fn another_disk_is_refused_also_after_a_restart() {
        let mut peers = KnownPeers::default();
        assert!(peers.note(&frame(20, 1, &[11], 1), true).unwrap().is_some());
        assert!(peers.note(&frame(20, 1, &[11], 2), true).unwrap().is_none());
        assert!(peers.note(&frame(21, 1, &[12], 3), true).is_err());
        let mut peers = again(&peers);
        let refused = peers.note(&frame(21, 1, &[12], 1), true);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("another disk"), "{refused}");
        peers.note(&frame(20, 2, &[13, 11], 1), true).unwrap();
    }

    #[test]
    fn doubles_and_replays_of_an_earlier_start_are_refused() {
        let mut peers = KnownPeers::default();
        peers.note(&frame(20, 5, &[15], 7), true).unwrap();
        assert!(peers.note(&frame(20, 5, &[15], 7), true).is_err());
        peers.note(&frame(20, 6, &[16, 15], 1), true).unwrap();
        assert!(peers.note(&frame(20, 5, &[15], 8), true).is_err());
        assert!(peers.note(&frame(20, 6, &[16, 15], 1), true).is_err());
        peers.note(&frame(20, 6, &[16, 15], 2), true).unwrap();
    }

    #[test]
    fn a_copy_of_the_disk_that_is_put_back_is_refused_however_often_it_starts() {
        let mut peers = KnownPeers::default();
        // Copied after start 5; start 6 went on without the copy.
        peers.note(&frame(20, 5, &[15], 7), true).unwrap();
        peers.note(&frame(20, 6, &[16, 15], 100), true).unwrap();
        let copies = [
            frame(20, 6, &[26, 15], 1_000),
            frame(20, 7, &[27, 26, 15], 1),
            frame(20, 8, &[28, 27, 26, 15], 1),
        ];
        for _ in 0..2 {
            for copy in &copies {
                let refused = peers.note(copy, true).unwrap_err().to_string();
                assert!(refused.contains("older copy"), "{refused}");
            }
            // Also by an observer that was started anew.
            peers = again(&peers);
        }
        // The disk itself may come back, also after starts that nobody saw.
        let own = frame(20, 8, &[18, 17, 16, 15], 1);
        peers.note(&own, true).unwrap();
        peers.note(&frame(20, 20, &[40, 39, 38], 1), true).unwrap();
    }

    #[test]
    fn a_node_that_joined_takes_no_peer_that_was_never_here_unless_the_operator_says_so() {
        for accept_unseen in [false, true] {
            let mut peers = KnownPeers::default().wary(true, 1, accept_unseen);
            let noted = peers.note(&frame(20, 1, &[11], 1), false);
            assert_eq!(noted.is_ok(), accept_unseen, "{noted:?}");
            peers.note(&frame(20, 1, &[11], 2), true).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_written_down_is_not_taken() {
        let mut peers = KnownPeers::default();
        for seq in 1..4 {
            let noted = peers.note(&frame(20, 1, &[11], seq), true).unwrap();
            assert!(noted.is_some());
            peers.not_written();
            assert_eq!(peers.get(2), None);
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let error = KnownPeers::read(Some(b"[2]\ndisk_id = \"x\"")).unwrap_err();
        assert!(error.to_string().contains("peers.toml"));
    }
}
