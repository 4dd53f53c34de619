//! A set of 512 consecutive numbers: which of them are in it, how many before one, and which is the nth.

use nowserving_codec::Codec;

use crate::Token;

const WORDS: usize = 8;
const WORD_BITS: u64 = 64;
/// The numbers of a [`Bits`].
pub(crate) const BITS: u64 = WORDS as u64 * WORD_BITS;

/// Which [`Bits`] has a number, of those that follow each other from 0 on, and the number's place in it.
pub(crate) fn split(token: Token) -> (u64, usize) {
    (token / BITS, (token % BITS) as usize)
}

#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bits([u64; WORDS]);

impl Bits {
    pub(crate) const WORDS: usize = WORDS;

    pub(crate) fn contains(&self, bit: usize) -> bool {
        self.0[bit / 64] & (1 << (bit % 64)) != 0
    }

    pub(crate) fn set(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    pub(crate) fn clear(&mut self, bit: usize) {
        self.0[bit / 64] &= !(1 << (bit % 64));
    }

    pub(crate) fn count(&self) -> u64 {
        let ones = self.0.iter().map(|word| u64::from(word.count_ones()));
        ones.sum()
    }

    /// How many bits below `bit` are set.
    pub(crate) fn rank(&self, bit: usize) -> usize {
        let (word, bit) = (bit / 64, bit % 64);
        let before: u32 = self.0[..word].iter().map(|w| w.count_ones()).sum();
        let within = self.0[word] & ((1 << bit) - 1);
        (before + within.count_ones()) as usize
    }

    /// The `nth` (from 0) bit that is set.
    pub(crate) fn select(&self, mut nth: u64) -> Option<u64> {
        for (base, word) in self.words() {
            let ones = u64::from(word.count_ones());
            if nth >= ones {
                nth -= ones;
                continue;
            }
            let mut rest = word;
            for _ in 0..nth {
                rest &= rest - 1;
            }
            return Some(base + u64::from(rest.trailing_zeros()));
        }
        None
    }

    /// Those that are set, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.iter_from(0)
    }

    /// Those from this one on.
    pub(crate) fn iter_from(&self, bit: usize) -> impl Iterator<Item = u64> + use<> {
        let first = bit as u64 / WORD_BITS * WORD_BITS;
        let words = self.words().skip(bit / WORD_BITS as usize);
        words.flat_map(move |(base, word)| {
            let below = if base == first { bit % 64 } else { 0 };
            let mut rest = word & (u64::MAX << below);
            std::iter::from_fn(move || {
                let next = (rest != 0).then(|| base + u64::from(rest.trailing_zeros()))?;
                rest &= rest - 1;
                Some(next)
            })
        })
    }

    /// The words, each with the bit that it begins with.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bases = (0..).map(|i| i * WORD_BITS);
        bases.zip(self.0)
    }
}
