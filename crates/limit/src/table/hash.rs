//! Hashes of keys.

use std::hash::{DefaultHasher, Hasher};

/// Makes the hashes of a table its own: clients choose keys, and must not be able to choose ones of equal hashes. Nothing
/// that can be seen depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HashSeed(pub [u64; 2]);

impl HashSeed {
    pub(super) fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0[0]);
        hasher.write_u64(self.0[1]);
        hasher.write(key);
        let hash = hasher.finish();
        (hash ^ (hash >> 32)) as u32
    }
}
