//! Random numbers from a seed: SplitMix64, small and the same everywhere.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// One step of SplitMix64's output function: also a good hash of a number.
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// A stream of its own, so that what draws from it does not change what others draw.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// A number that is at most `most` away from 0.
    pub fn off_by(&mut self, most: i64) -> i64 {
        self.between(0, 2 * most.unsigned_abs()) as i64 - most
    }

    /// True so many times in a million.
    pub fn chance(&mut self, millionths: u32) -> bool {
        self.below(1_000_000) < u64::from(millionths)
    }

    /// About `mean` on average, exponentially spread as far as whole numbers go: from a sixteenth
    /// to four times that.
    pub fn around(&mut self, mean: u64) -> u64 {
        // The number of leading zeros of a random number is geometric with mean 1.
        let zeros = u64::from(self.next().leading_zeros().min(3));
        let part = self.between(1, 16);
        mean.saturating_mul(part + 16 * zeros) / 24
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}
