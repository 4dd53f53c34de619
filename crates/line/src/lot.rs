//! The lots of a draw: everything about it that anybody can compute, with SHA-256 alone.
//!
//! | | |
//! |---|---|
//! | commitment | `H(seed)`: shown before the line opens |
//! | key | `H("draw" ‖ seed ‖ beacon)` |
//! | lot | the first 8 bytes of `H(key ‖ incarnation ‖ lane ‖ number)`, the smallest first; a tie goes to the smaller number |
//! | digest | `H(digest ‖ lane ‖ number)` over all who took part, by lane and number, beginning with 32 zero bytes |
//!
//! The seed has 32 bytes, a lane is its id in one byte, incarnations and numbers are 8 bytes, big-endian. A lot depends on
//! nobody else, so that who leaves during the draw changes nobody's place among the others.

use sha2::{Digest as _, Sha256};

use crate::Token;

/// The longest beacon, in bytes.
pub const BEACON_BYTES_MAX: usize = 128;

/// A hash, or the secret from which all lots of a draw follow.
pub type Hash = [u8; 32];

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
    key: Hash,
    incarnation: u64,
}

impl Lots {
    /// `beacon` may be empty.
    pub fn new(seed: &Hash, beacon: &str, incarnation: u64) -> Self {
        // Without the word, the key of an empty beacon would be the commitment, which everybody knows.
        let key = hash([b"draw", seed, beacon.as_bytes()]);
        Self { key, incarnation }
    }

    /// The lot of a number in the lane with this id.
    pub fn lot(&self, lane: u8, token: Token) -> u64 {
        let incarnation = self.incarnation.to_be_bytes();
        let [a, b, c, d, e, f, g, h, ..] =
            hash([&self.key, &incarnation, &[lane], &token.to_be_bytes()]);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The digest of all that took part, and of one more, which comes after them by lane and number.
pub fn digest_with(digest: &Hash, lane: u8, token: Token) -> Hash {
    hash([digest, &[lane], &token.to_be_bytes()])
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            Lots::new(&seed, "", 4_096).lot(0, 1),
            4_470_146_557_701_678_086
        );
        assert_eq!(
            Lots::new(&seed, "7 12 40", 4_096).lot(3, 9),
            6_318_608_246_156_438_002
        );
        let digest = digest_with(&digest_with(&[0; 32], 0, 1), 3, 9);
        assert_eq!(
            hex(&digest),
            "c781a2bdf6f8e5be08cd0fec4835de665ecfae65955a0239670e401f65641f2c"
        );
    }
}
