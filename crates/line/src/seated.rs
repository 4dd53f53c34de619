//! The tokens of a lane that have a seat, by number. Most lanes have few, in a list that takes no more than they do; a
//! tree, whose smallest node takes 200 bytes, holds more of them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::{LiveRecord, Token};

/// So many are in a list.
const FEW: usize = 8;

type Record = Box<LiveRecord>;

/// See the top of this file.
pub(crate) struct Seated(Kept);

enum Kept {
    /// In the order of the numbers.
    Few(Vec<(Token, Record)>),
    Many(BTreeMap<Token, Record>),
}

impl Default for Seated {
    fn default() -> Self {
        Self(Kept::Few(Vec::new()))
    }
}

/// The same for equal ones, however they are kept.
impl fmt::Debug for Seated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.range(0..Token::MAX)).finish()
    }
}

impl Seated {
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Kept::Few(list) => list.len(),
            Kept::Many(tree) => tree.len(),
        }
    }

    /// The smallest number.
    pub(crate) fn first(&self) -> Option<Token> {
        match &self.0 {
            Kept::Few(list) => list.first().map(|(token, _)| *token),
            Kept::Many(tree) => tree.first_key_value().map(|(token, _)| *token),
        }
    }

    pub(crate) fn get(&self, token: Token) -> Option<&LiveRecord> {
        match &self.0 {
            Kept::Few(list) => place(list, token).ok().map(|place| &*list[place].1),
            Kept::Many(tree) => tree.get(&token).map(|live| &**live),
        }
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut LiveRecord> {
        match &mut self.0 {
            Kept::Few(list) => {
                let place = place(list, token).ok()?;
                Some(&mut *list[place].1)
            }
            Kept::Many(tree) => tree.get_mut(&token).map(|live| &mut **live),
        }
    }

    /// A number that is there already gets the new record.
    pub(crate) fn insert(&mut self, token: Token, live: LiveRecord) {
        let live = Box::new(live);
        match &mut self.0 {
            Kept::Few(list) => match place(list, token) {
                Ok(place) => list[place].1 = live,
                Err(_) if list.len() == FEW => {
                    let few = std::mem::take(list).into_iter();
                    self.0 = Kept::Many(few.chain([(token, live)]).collect());
                }
                Err(place) => {
                    if list.len() == list.capacity() {
                        list.reserve_exact(list.len().max(1));
                    }
                    list.insert(place, (token, live));
                }
            },
            Kept::Many(tree) => {
                tree.insert(token, live);
            }
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<LiveRecord> {
        match &mut self.0 {
            Kept::Few(list) => {
                let (_, live) = list.remove(place(list, token).ok()?);
                Some(*live)
            }
            Kept::Many(tree) => {
                let live = tree.remove(&token)?;
                if tree.len() <= FEW / 2 {
                    let few = std::mem::take(tree).into_iter();
                    self.0 = Kept::Few(few.collect());
                }
                Some(*live)
            }
        }
    }

    /// Those with these numbers, in order.
    pub(crate) fn range(
        &self,
        numbers: Range<Token>,
    ) -> impl Iterator<Item = (Token, &LiveRecord)> {
        let (list, tree) = match &self.0 {
            Kept::Few(list) => (&list[places(list, &numbers)], None),
            Kept::Many(tree) => (&[][..], Some(tree.range(numbers))),
        };
        let list = list.iter().map(|(token, live)| (*token, &**live));
        let tree = tree.into_iter().flatten();
        list.chain(tree.map(|(token, live)| (*token, &**live)))
    }

    /// The records of those with these numbers.
    pub(crate) fn range_mut(
        &mut self,
        numbers: Range<Token>,
    ) -> impl Iterator<Item = &mut LiveRecord> {
        let (list, tree) = match &mut self.0 {
            Kept::Few(list) => {
                let places = places(list, &numbers);
                (&mut list[places], None)
            }
            Kept::Many(tree) => (&mut [][..], Some(tree.range_mut(numbers))),
        };
        let list = list.iter_mut().map(|(_, live)| &mut **live);
        let tree = tree.into_iter().flatten();
        list.chain(tree.map(|(_, live)| &mut **live))
    }
}

fn place(list: &[(Token, Record)], token: Token) -> Result<usize, usize> {
    list.binary_search_by_key(&token, |(token, _)| *token)
}

fn places(list: &[(Token, Record)], numbers: &Range<Token>) -> Range<usize> {
    let place = |number| list.partition_point(|(token, _)| *token < number);
    place(numbers.start)..place(numbers.end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Entered, Live};

    fn record(version: u64) -> LiveRecord {
        let entered = Entered {
            version,
            ..Entered::default()
        };
        Live::newcomer(None, entered).to_record()
    }

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((any::<bool>(), 0..30_u64, 0..9_u64), 0..120),
            from in 0..20_u64,
        ) {
            let (mut seated, mut plain) = (Seated::default(), BTreeMap::new());
            for (insert, token, version) in steps {
                if insert {
                    seated.insert(token, record(version));
                    plain.insert(token, record(version));
                } else {
                    prop_assert_eq!(seated.remove(token), plain.remove(&token));
                }
                if let Some(live) = seated.get_mut(version) {
                    live.jumps += 1;
                    plain.entry(version).and_modify(|live| live.jumps += 1);
                }
                prop_assert_eq!(seated.len(), plain.len());
                prop_assert_eq!(seated.first(), plain.keys().next().copied());
                prop_assert_eq!(seated.get(token), plain.get(&token));
                let in_plain = plain.range(from..20).map(|(token, live)| (*token, live));
                prop_assert!(seated.range(from..20).eq(in_plain));
                seated.range_mut(from..from + 3).for_each(|live| live.entered.version += 1);
                plain.range_mut(from..from + 3).for_each(|(_, live)| live.entered.version += 1);
            }
            prop_assert_eq!(format!("{seated:?}"), format!("{plain:?}"));
        }
    }
}
