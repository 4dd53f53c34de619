//! A map by token whose every operation is short. A hash table moves all of its entries at once when it grows:
//! with a million tokens that kept a whole shard waiting for a tenth of a second. It also knows the name of each token's
//! line, once for some neighbouring tokens.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{LineName, Token, TokenRef};

/// The numbers of a page.
const PAGE: u64 = 64;

/// Incarnation of the line, and in one number the lane and, below it, the number divided by [`PAGE`].
type PageKey = (u64, u64);

const LANE_SHIFT: u32 = 56;

/// Pages of neighbouring numbers, which are few enough to be found quickly in a tree.
#[derive(Debug)]
pub(crate) struct TokenMap<T> {
    /// None is empty.
    pages: BTreeMap<PageKey, Page<T>>,
    len: usize,
}

#[derive(Debug)]
struct Page<T> {
    line: LineName,
    /// In ascending order. Most tokens are the first of their page when they are removed.
    tokens: VecDeque<(Token, T)>,
}

impl<T> Default for TokenMap<T> {
    fn default() -> Self {
        TokenMap {
            pages: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<T> TokenMap<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, at: TokenRef) -> Option<&T> {
        let page = &self.pages.get(&page_of(at))?.tokens;
        let place = find(page, at.token).ok()?;
        Some(&page[place].1)
    }

    /// The name of a token's line.
    pub fn line(&self, at: TokenRef) -> Option<&LineName> {
        let page = self.pages.get(&page_of(at))?;
        find(&page.tokens, at.token).ok()?;
        Some(&page.line)
    }

    pub fn get_mut(&mut self, at: TokenRef) -> Option<&mut T> {
        let page = &mut self.pages.get_mut(&page_of(at))?.tokens;
        let place = find(page, at.token).ok()?;
        Some(&mut page[place].1)
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (TokenRef, &T)> {
        let pages = self.pages.iter();
        pages.flat_map(|((incarnation, page_no), page)| {
            page.tokens.iter().map(move |(token, value)| {
                let at = TokenRef {
                    incarnation: *incarnation,
                    lane: (page_no >> LANE_SHIFT) as u8,
                    token: *token,
                };
                (at, value)
            })
        })
    }

    /// Returns what it replaces. `line`: the name of the token's line.
    pub fn insert(&mut self, line: &LineName, at: TokenRef, value: T) -> Option<T> {
        let page = self.pages.entry(page_of(at)).or_insert_with(|| Page {
            line: line.clone(),
            tokens: VecDeque::new(),
        });
        let page = &mut page.tokens;
        match find(page, at.token) {
            Ok(place) => Some(std::mem::replace(&mut page[place].1, value)),
            Err(place) => {
                // Doubling would leave as much unused as a small line needs.
                if page.len() == page.capacity() {
                    page.reserve_exact((page.len() / 2).clamp(2, 16));
                }
                page.insert(place, (at.token, value));
                self.len += 1;
                None
            }
        }
    }

    pub fn remove(&mut self, at: TokenRef) -> Option<T> {
        let key = page_of(at);
        let page = &mut self.pages.get_mut(&key)?.tokens;
        let place = find(page, at.token).ok()?;
        let (_, removed) = page.remove(place)?;
        if page.is_empty() {
            self.pages.remove(&key);
        }
        self.len -= 1;
        Some(removed)
    }
}

fn page_of(at: TokenRef) -> PageKey {
    let page = at.token / PAGE;
    (at.incarnation, u64::from(at.lane) << LANE_SHIFT | page)
}

fn find<T>(page: &VecDeque<(Token, T)>, token: Token) -> Result<usize, usize> {
    // Mostly no number is missing behind the first one.
    let first = page.front().map_or(token, |(first, _)| *first);
    let guess = token.saturating_sub(first) as usize;
    match page.get(guess) {
        Some((found, _)) if *found == token => Ok(guess),
        _ => page.binary_search_by_key(&token, |(token, _)| *token),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((any::<bool>(), 1_u64..3, 0_u8..2, 0_u64..200), 1..500),
        ) {
            let (mut map, mut plain) = (TokenMap::default(), BTreeMap::new());
            let line = LineName::try_from("shop").unwrap();
            for (nth, (insert, incarnation, lane, token)) in steps.into_iter().enumerate() {
                let at = TokenRef { incarnation, lane, token };
                match insert {
                    true => prop_assert_eq!(map.insert(&line, at, nth), plain.insert(at, nth)),
                    false => prop_assert_eq!(map.remove(at), plain.remove(&at)),
                }
                prop_assert_eq!(map.get(at), plain.get(&at));
                prop_assert_eq!(map.line(at).is_some(), plain.contains_key(&at));
                prop_assert_eq!(map.get_mut(at), plain.get_mut(&at));
                prop_assert_eq!(map.len(), plain.len());
            }
            prop_assert!(map.iter().eq(plain.iter().map(|(at, value)| (*at, value))));
            prop_assert!(map.pages.values().all(|page| !page.tokens.is_empty()));
        }
    }
}
