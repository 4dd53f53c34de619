//! The key of a counter: its algorithm, its unit, the domain and the entries of the descriptor.
//!
//! As algorithm and unit are in the key, and whether the limit is exact, a rule that changes them begins with fresh
//! counters, and the old ones expire. Nothing else of a limit is: a changed `requests_per_unit` counts what was counted.
//! (In Lyft's ratelimit a key has the domain, the entries and the begin of the window, with the same effect.)

use crate::{Algorithm, Clock, Unit};

/// The longest key, in bytes. Each text takes its own bytes and two more.
pub const COUNTER_KEY_BYTES_MAX: usize = 2_048;

/// The key is longer than [`COUNTER_KEY_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("domain, keys and values have at most 2048 bytes together, 2 more counted for each")]
pub struct KeyTooLong;

/// What a key says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyParts<'a> {
    pub algorithm: Algorithm,
    pub unit: Unit,
    pub domain: &'a str,
    /// Keys and values.
    pub entries: Vec<(&'a str, &'a str)>,
}

/// Builds a key. Two that differ in any part have different keys.
///
/// # Errors
///
/// [`KeyTooLong`].
pub fn encode<'a>(
    algorithm: Algorithm,
    unit: Unit,
    domain: &'a str,
    entries: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<u8>, KeyTooLong> {
    let mut key = Vec::with_capacity(64);
    key.extend([algorithm_number(algorithm), unit_number(unit)]);
    push(&mut key, domain)?;
    for (name, value) in entries {
        push(&mut key, name)?;
        push(&mut key, value)?;
    }
    Ok(key)
}

/// `None` for bytes that [`encode`] did not make.
pub fn decode(key: &[u8]) -> Option<KeyParts<'_>> {
    let (algorithm, unit) = head(key)?;
    let (domain, mut rest) = text(key.get(2..)?)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (name, after) = text(rest)?;
        let (value, after) = text(after)?;
        entries.push((name, value));
        rest = after;
    }
    Some(KeyParts {
        algorithm,
        unit,
        domain,
        entries,
    })
}

/// Set in the first byte of an exact limit's key: its counter is another one than that of a limit which is not, as one is
/// in the log and the other one in a leader's memory.
const EXACT: u8 = 0x80;

/// Makes it the key of an exact limit.
pub fn set_exact(key: &mut [u8]) {
    if let Some(first) = key.first_mut() {
        *first |= EXACT;
    }
}

/// Whether it is the key of an exact limit.
pub fn is_exact(key: &[u8]) -> bool {
    key.first().is_some_and(|first| first & EXACT != 0)
}

/// The algorithm and the unit of a key.
pub fn head(key: &[u8]) -> Option<(Algorithm, Unit)> {
    let [algorithm, unit, ..] = key else {
        return None;
    };
    let mut algorithms = Algorithm::ALL.into_iter();
    let algorithm = algorithms.find(|known| algorithm_number(*known) == *algorithm & !EXACT)?;
    let mut units = Unit::ALL.into_iter();
    let unit = units.find(|known| unit_number(*known) == *unit)?;
    Some((algorithm, unit))
}

/// The clock by which the counter of a key goes.
pub fn clock(key: &[u8]) -> Clock {
    head(key).map_or(Clock::Service, |(algorithm, _)| algorithm.clock())
}

/// Never reused: keys are in checkpoints.
fn algorithm_number(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow => 1,
        Algorithm::SlidingWindowLog => 2,
        Algorithm::SlidingWindowCounter => 3,
        Algorithm::TokenBucket => 4,
        Algorithm::LeakingBucket => 5,
    }
}

/// Never reused. As in Envoy's `RateLimitResponse.RateLimit.Unit`.
fn unit_number(unit: Unit) -> u8 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

fn push(key: &mut Vec<u8>, text: &str) -> Result<(), KeyTooLong> {
    let length = u16::try_from(text.len()).map_err(|_| KeyTooLong)?;
    key.extend(length.to_be_bytes());
    key.extend(text.as_bytes());
    match key.len() <= COUNTER_KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(KeyTooLong),
    }
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let (text, rest) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_says_what_it_was_made_of(
            algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
            unit in prop::sample::select(Unit::ALL.to_vec()),
            domain in "\\PC{0,10}",
            entries in prop::collection::vec(("\\PC{0,10}", "\\PC{0,10}"), 0..5),
        ) {
            let entries: Vec<_> = entries.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let key = encode(algorithm, unit, &domain, entries.iter().copied()).unwrap();
            let parts = KeyParts { algorithm, unit, domain: &domain, entries };
            prop_assert_eq!(decode(&key), Some(parts));
            prop_assert_eq!(clock(&key), algorithm.clock());
        }

        #[test]
        fn other_bytes_are_no_key(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(parts) = decode(&bytes) {
                let again = encode(parts.algorithm, parts.unit, parts.domain, parts.entries.into_iter());
                let mut again = again.unwrap();
                if bytes[0] & EXACT != 0 {
                    set_exact(&mut again);
                }
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn an_exact_limit_has_a_key_of_its_own() {
        let key = encode(
            Algorithm::TokenBucket,
            Unit::Day,
            "shop",
            [("a", "b")].into_iter(),
        );
        let plain = key.unwrap();
        let mut exact = plain.clone();
        set_exact(&mut exact);
        assert_ne!(exact, plain);
        assert!(is_exact(&exact) && !is_exact(&plain));
        assert_eq!(decode(&exact), decode(&plain));
        assert_eq!(exact[2..], plain[2..]);
    }

    #[test]
    fn keys_are_bounded() {
        let (algorithm, unit) = (Algorithm::FixedWindow, Unit::Day);
        let of_length = |length| {
            let value = "x".repeat(length);
            encode(algorithm, unit, "", [("", value.as_str())].into_iter()).map(|key| key.len())
        };
        let rest = 2 + 3 * 2;
        assert_eq!(
            of_length(COUNTER_KEY_BYTES_MAX - rest),
            Ok(COUNTER_KEY_BYTES_MAX)
        );
        assert_eq!(of_length(COUNTER_KEY_BYTES_MAX - rest + 1), Err(KeyTooLong));
        assert_eq!(of_length(70_000), Err(KeyTooLong));
    }
}
