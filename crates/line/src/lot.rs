//! The lots of a draw: everything about it that anybody can compute, with SHA-256 alone.
//!
//! | | |
//! |---|---|
//! | commitment | `H(seed)`: shown before the line opens |
//! | key | `H("draw" ‖ seed ‖ beacon)` |
//! | lot | the first 8 bytes of `H(key ‖ incarnation ‖ number ‖ lane)`, the smallest first; a tie goes to the smaller number |
//! | digest of a lane | `H(digest ‖ number)` over its numbers that took part, beginning with 32 zero bytes |
//! | digest | `H(digest ‖ digest of the lane ‖ lane)` over the lanes in which anybody took part, in the order of their names, beginning with 32 zero bytes |
//!
//! The seed has 32 bytes, incarnations and numbers are 8 bytes, big-endian, and a lane is its name. A lot depends on nobody
//! else, so that who leaves during the draw changes nobody's place among the others.

use std::collections::BTreeMap;
use std::fmt;

use nowserving_codec::Codec;
use sha2::{Digest as _, Sha256};

use crate::{LaneName, Token};

/// The longest beacon, in bytes.
pub const BEACON_BYTES_MAX: usize = 128;

/// A hash, or a seed that everybody may see.
pub type Hash = [u8; 32];

/// One that nobody may see before the line opens: it is not in debug output.
#[derive(Codec, Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub Hash);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn hash<const N: usize>(parts: [&[u8]; N]) -> Hash {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// What is shown of a seed before the draw: it fixes the seed, and does not tell it.
pub fn commitment(seed: &Hash) -> Hash {
    hash([seed])
}

/// The lots of one draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lots {
    key: Secret,
    incarnation: u64,
}

impl Lots {
    /// `beacon` may be empty.
    pub fn new(seed: &Hash, beacon: &str, incarnation: u64) -> Self {
        // Without the word, the key of an empty beacon would be the commitment, which everybody knows.
        let key = Secret(hash([b"draw", seed, beacon.as_bytes()]));
        Self { key, incarnation }
    }

    /// The lot of a number in a lane.
    pub fn lot(&self, lane: &LaneName, token: Token) -> u64 {
        let (incarnation, lane) = (self.incarnation.to_be_bytes(), lane.as_str().as_bytes());
        let [a, b, c, d, e, f, g, h, ..] =
            hash([&self.key.0, &incarnation, &token.to_be_bytes(), lane]);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The digest of those of a lane that took part, and of one more, with a larger number.
pub fn digest_with(digest: &Hash, token: Token) -> Hash {
    hash([digest, &token.to_be_bytes()])
}

/// The digest of all that took part, from those of their lanes.
pub fn digest_of<'a>(lanes: impl Iterator<Item = (&'a LaneName, Hash)>) -> Hash {
    let by_name: BTreeMap<&LaneName, Hash> = lanes.collect();
    by_name
        .iter()
        .fold(Hash::default(), |digest, (lane, of_lane)| {
            hash([&digest, of_lane, lane.as_str().as_bytes()])
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The values are those of Python's hashlib.
    #[test]
    fn lots_are_those_that_anybody_computes() {
        let seed = std::array::from_fn(|i| i as u8);
        let commitment = hex(&commitment(&seed));
        assert_eq!(
            commitment,
            "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd"
        );
        let [normal, vip] = ["normal", "vip"].map(|name| LaneName::try_from(name).unwrap());
        let lot = Lots::new(&seed, "", 4_096).lot(&normal, 1);
        assert_eq!(lot, 7_312_674_452_601_540_266);
        let lot = Lots::new(&seed, "7 12 40", 4_096).lot(&vip, 9);
        assert_eq!(lot, 14_331_362_546_066_105_267);
        let of_normal = digest_with(&digest_with(&[0; 32], 1), 3);
        let lanes = [(&vip, digest_with(&[0; 32], 9)), (&normal, of_normal)];
        let digest = hex(&digest_of(lanes.into_iter()));
        assert_eq!(
            digest,
            "b38daa1f733225c17c0e5a41c39d13c10d878a9ec4c95c1b2d207d419abd6ea2"
        );
    }
}
