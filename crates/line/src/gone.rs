//! The newest gone tokens of a line, with reason and epoch.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use nowserving_codec::Codec;

use crate::seldom::Seldom;
use crate::{Reason, Token};

/// The record that a line keeps of a gone token.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    pub reason: Reason,
    /// Of its claim, if it claimed.
    pub epoch: Option<u64>,
    /// Its claim completed it: a repeated claim gets the same reply.
    pub released: bool,
    /// `Some` exactly with [`Reason::Moved`]: the token (lane id, number) as which it ended.
    pub moved_to: Option<(u8, Token)>,
}

impl Gone {
    pub(crate) fn new(reason: Reason, epoch: Option<u64>) -> Self {
        Self {
            reason,
            epoch,
            released: false,
            moved_to: None,
        }
    }

    pub(crate) fn moved(to: (u8, Token)) -> Self {
        Self {
            moved_to: Some(to),
            ..Self::new(Reason::Moved, None)
        }
    }
}

/// A ring of bounded length with look-up by token. Its order is that of ending and not of numbers, so a token 1
/// that stays for ever neither keeps the others remembered nor is forgotten early itself.
///
/// Ids and values are packed into one word each (at most 64 lanes, numbers and epochs below 2^53), because a busy
/// line has 65,536 of them. A value is 4 bits of reason, 1 of `released`, and 59 of the epoch or, for a moved token
/// (which never claimed), of its new number.
#[derive(Debug)]
pub(crate) struct GoneRing {
    kept: usize,
    ring: Seldom<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    order: VecDeque<u64>,
    by_id: BTreeMap<u64, u64>,
}

const LANE_SHIFT: u32 = 56;
const REASON_BITS: u32 = 4;
const REST_SHIFT: u32 = REASON_BITS + 1;
const TOKEN_BITS: u32 = 53;

fn pack_id(lane: u8, token: Token) -> u64 {
    nowserving_bite::require(token <= crate::NUMBER_MAX, "a number in its range");
    (u64::from(lane) << LANE_SHIFT) | token
}

fn unpack_id(id: u64) -> (u8, Token) {
    let lane = (id >> LANE_SHIFT) as u8;
    (lane, id & ((1 << LANE_SHIFT) - 1))
}

/// Epochs and numbers start at 1, so 0 means none.
fn pack(gone: Gone) -> u64 {
    let rest = match gone.moved_to {
        Some((lane, token)) => (u64::from(lane) << TOKEN_BITS) | token,
        None => gone.epoch.unwrap_or(0),
    };
    (rest << REST_SHIFT) | (u64::from(gone.released) << REASON_BITS) | u64::from(gone.reason.code())
}

fn unpack(word: u64) -> Option<Gone> {
    let code = (word & ((1 << REASON_BITS) - 1)) as u8;
    let reason = Reason::from_code(code)?;
    let rest = word >> REST_SHIFT;
    let some = rest > 0;
    let token = rest & ((1 << TOKEN_BITS) - 1);
    let moved_to = ((rest >> TOKEN_BITS) as u8, token);
    let moved = reason == Reason::Moved;
    Some(Gone {
        reason,
        epoch: (some && !moved).then_some(rest),
        released: word >> REASON_BITS & 1 == 1,
        moved_to: (some && moved).then_some(moved_to),
    })
}

impl GoneRing {
    pub(crate) fn new(kept: usize) -> Self {
        Self {
            kept,
            ring: Seldom::default(),
        }
    }

    /// Adds a token, and forgets the oldest if there are too many. False if it was there already.
    pub(crate) fn push(&mut self, lane: u8, token: Token, gone: Gone) -> bool {
        let id = pack_id(lane, token);
        let ring = self.ring.get_mut();
        if ring.by_id.insert(id, pack(gone)).is_some() {
            return false;
        }
        ring.order.push_back(id);
        if ring.order.len() > self.kept
            && let Some(oldest) = ring.order.pop_front()
        {
            ring.by_id.remove(&oldest);
        }
        true
    }

    pub(crate) fn get(&self, lane: u8, token: Token) -> Option<Gone> {
        let ring = self.ring.get()?;
        unpack(*ring.by_id.get(&pack_id(lane, token))?)
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.get().map_or(0, |ring| ring.order.len())
    }

    /// The tokens at these places below [`GoneRing::len`], oldest first.
    pub(crate) fn range(&self, places: Range<usize>) -> impl Iterator<Item = (u8, Token, Gone)> {
        let ring = self.ring.get().into_iter();
        let ids = ring.flat_map(move |ring| ring.order.range(places.clone()));
        ids.filter_map(|id| {
            let (lane, token) = unpack_id(*id);
            Some((lane, token, self.get(lane, token)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_oldest_and_nothing_else() {
        let mut ring = GoneRing::new(3);
        let gone = |epoch| Gone::new(Reason::Closed, epoch);
        assert!(ring.push(7, crate::NUMBER_MAX, gone(Some(crate::NUMBER_MAX))));
        assert!(ring.push(0, 5, gone(None)));
        assert!(ring.push(1, 5, gone(Some(1))));
        assert_eq!(
            ring.get(7, crate::NUMBER_MAX),
            Some(gone(Some(crate::NUMBER_MAX)))
        );
        assert!(!ring.push(1, 5, gone(Some(1))));
        assert!(ring.push(0, 1, gone(None)));
        assert_eq!(ring.get(7, crate::NUMBER_MAX), None);
        let left: Vec<_> = ring
            .range(0..3)
            .map(|(lane, token, _)| (lane, token))
            .collect();
        assert_eq!(left, [(0, 5), (1, 5), (0, 1)]);
        assert_eq!((ring.len(), ring.ring.get_mut().by_id.len()), (3, 3));
    }

    #[test]
    fn everything_fits_its_word() {
        for reason in Reason::ALL {
            for epoch in [None, Some(1), Some(crate::NUMBER_MAX)] {
                let mut gone = Gone::new(reason, epoch);
                if reason == Reason::Moved {
                    gone = Gone::moved((crate::LANE_TABLE_MAX as u8 - 1, epoch.unwrap_or(2)));
                }
                assert_eq!(unpack(pack(gone)), Some(gone));
                gone.released = true;
                assert_eq!(unpack(pack(gone)), Some(gone));
            }
        }
    }
}
