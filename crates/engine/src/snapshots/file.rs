//! The description of a snapshot file, by which a peer knows it.

use nowserving_shard::snapshot::{DIGEST_BYTES, digest_of};

/// A snapshot file: its content is known by the digest at its end. Nodes that make a snapshot of a shard
/// through the same entry make the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its length.
    pub bytes: u64,
    pub digest: [u8; DIGEST_BYTES],
}

impl SnapshotFile {
    /// That of a whole snapshot; `None` if it is too short for one.
    #[must_use]
    pub fn of(snapshot: &[u8]) -> Option<SnapshotFile> {
        Some(SnapshotFile {
            bytes: snapshot.len() as u64,
            digest: digest_of(snapshot)?,
        })
    }

    /// As Raft's messages about snapshots carry it.
    pub(crate) fn to_data(self) -> Vec<u8> {
        [&self.bytes.to_le_bytes(), &self.digest[..]].concat()
    }

    pub(crate) fn from_data(data: &[u8]) -> Option<SnapshotFile> {
        let (bytes, digest) = data.split_first_chunk()?;
        Some(SnapshotFile {
            bytes: u64::from_le_bytes(*bytes),
            digest: digest.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_its_message() {
        let file = SnapshotFile {
            bytes: 1 << 40,
            digest: [7; DIGEST_BYTES],
        };
        let data = file.to_data();
        assert_eq!(SnapshotFile::from_data(&data), Some(file));
        assert_eq!(SnapshotFile::from_data(&data[1..]), None);
        assert_eq!(SnapshotFile::from_data(&[]), None);
    }

    #[test]
    fn fuzz_a_description() {
        nowserving_fuzz::target!(vec![vec![7; 8 + DIGEST_BYTES]], |bytes| {
            if let Some(file) = SnapshotFile::from_data(bytes) {
                assert_eq!(file.to_data(), bytes);
            }
        });
    }
}
