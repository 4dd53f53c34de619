//! Draws without randomness.

/// A pseudo-random number that depends only on these (the finalizer of SplitMix64 over each).
pub(crate) fn draw<const N: usize>(numbers: [u64; N]) -> u64 {
    numbers.iter().fold(0, |sum, number| {
        let mut z = (sum ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}
