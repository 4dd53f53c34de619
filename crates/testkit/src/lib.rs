//! What tests of several crates share: golden files ([`golden`]), a nats-server ([`nats`]), and fuzz targets for parsers. In
//! no build of a node.
//!
//! A target takes good inputs and changes them: a few bytes, a cut, bytes behind the end. So it comes past the checks
//! that random bytes fail at once. Targets of public parsers are in `tests/parsers`, those of private ones beside
//! them, in the `fuzz_tests.rs` of their crates or as tests named `fuzz_…`.
//!
//! `cargo nextest run` runs each target on 2,000 inputs, `BOLERO_RANDOM_ITERATIONS=1000000` on more, and
//! `cargo bolero test -p nowserving-testkit <target>` guided by coverage (needs `cargo install cargo-bolero` and clang).

pub mod golden;
pub mod nats;

use bolero::{TypeGenerator, generator};

pub use bolero;

/// Inputs that each target is given in a test run, unless `BOLERO_RANDOM_ITERATIONS` says otherwise.
pub const ITERATIONS: usize = 2_000;

/// How an input is made of a good one.
#[derive(Clone, Debug, TypeGenerator)]
pub struct Mutation {
    /// Which good input.
    seed: u16,
    /// What is done to it, one after the other.
    #[generator(generator::produce::<Vec<Step>>().with().len(0usize..=4))]
    steps: Vec<Step>,
}

/// A change. Places are taken modulo the length.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Step {
    Set(u16, u8),
    Flip(u16, u8),
    Insert(u16, u8),
    Remove(u16),
    Cut(u16),
    /// Some bytes from there are repeated at the end.
    Repeat(u16, u8),
    /// A byte that parsers give a meaning takes its place.
    Special(u16, u8),
}

/// Bytes with a meaning in JSON, MessagePack, YAML, TOML, protobuf or subjects.
const SPECIAL: &[u8] = b"{}[]\":,.*>-\n\t \\0\x00\xff\x80\x7f\xc0\xc1\xdb\xdd\xdf\xfe&|#'=%";

impl Step {
    fn apply(self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let at = |place: u16| usize::from(place) % len.max(1);
        match self {
            Step::Insert(place, byte) => bytes.insert(at(place), byte),
            _ if len == 0 => {}
            Step::Set(place, byte) => bytes[at(place)] = byte,
            Step::Flip(place, bit) => bytes[at(place)] ^= 1 << (bit % 8),
            Step::Remove(place) => drop(bytes.remove(at(place))),
            Step::Cut(place) => bytes.truncate(at(place)),
            Step::Repeat(place, length) => {
                let from = at(place);
                bytes.extend_from_within(from..len.min(from + usize::from(length)));
            }
            Step::Special(place, which) => {
                bytes[at(place)] = SPECIAL[usize::from(which) % SPECIAL.len()];
            }
        }
    }
}

impl Mutation {
    /// One of `seeds`, changed.
    #[must_use]
    pub fn of(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let seed = seeds.get(usize::from(self.seed) % seeds.len().max(1));
        let mut bytes = seed.cloned().unwrap_or_default();
        self.steps.iter().for_each(|step| step.apply(&mut bytes));
        bytes
    }
}

/// A text as JSON, and the same as MessagePack.
///
/// # Panics
/// The text is no JSON.
#[must_use]
pub fn both_formats(json: &str) -> [Vec<u8>; 2] {
    #[allow(clippy::expect_used, reason = "a seed of a test")]
    let value: serde_json::Value = serde_json::from_str(json).expect("a seed is JSON");
    let msgpack = rmp_serde::to_vec_named(&value).unwrap_or_default();
    [json.as_bytes().to_vec(), msgpack]
}

/// Fuzzes `$parse`, a function of bytes, with inputs made of `$seeds` (`Vec<Vec<u8>>`). It must not panic. Stands alone
/// in a `#[test]`.
#[macro_export]
macro_rules! target {
    ($seeds:expr, $parse:expr) => {{
        let seeds: Vec<Vec<u8>> = $seeds;
        $crate::bolero::check!()
            .with_iterations($crate::ITERATIONS)
            .with_type::<$crate::Mutation>()
            .for_each(move |mutation: &$crate::Mutation| {
                let input = mutation.of(&seeds);
                let parse: fn(&[u8]) = $parse;
                parse(&input);
            });
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_changed_step_by_step() {
        let seeds = [b"abc".to_vec()];
        let changed = |steps: Vec<Step>| Mutation { seed: 5, steps }.of(&seeds);
        assert_eq!(changed(vec![]), b"abc");
        assert_eq!(changed(vec![Step::Set(4, b'x')]), b"axc");
        assert_eq!(changed(vec![Step::Cut(1), Step::Insert(0, b'x')]), b"xa");
        assert_eq!(changed(vec![Step::Repeat(1, 9)]), b"abcbc");
        assert_eq!(changed(vec![Step::Cut(0), Step::Remove(7)]), b"");
    }

    #[test]
    #[should_panic(expected = "test failed")]
    fn a_target_fails_if_its_parser_panics() {
        target!(vec![b"ok".to_vec()], |bytes| assert!(
            bytes == b"ok",
            "found"
        ));
    }
}
