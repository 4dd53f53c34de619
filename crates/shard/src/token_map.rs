//! A map by token whose every operation is short. A hash table moves all of its entries at once when it grows:
//! with a million tokens that kept a whole shard waiting for a tenth of a second. It also knows the name of each token's
//! line, once for some neighbouring tokens, and which of these neighbours are due first: an entry in the order of time for
//! each token would take more than all else that is kept of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nowserving_line::{LineName, Token, TokenRef};

/// The numbers of a page.
const PAGE: u64 = 64;

/// Incarnation of the line, and in one number the lane and, below it, the number divided by [`PAGE`].
type PageKey = (u64, u64);

const LANE_SHIFT: u32 = 56;

/// What is kept of a token has a time.
pub(crate) trait Due {
    fn due_ms(&self) -> u64;
}

/// Pages of neighbouring numbers, which are few enough to be found quickly in a tree.
#[derive(Debug)]
pub(crate) struct TokenMap<T> {
    /// None is empty.
    pages: BTreeMap<PageKey, Page<T>>,
    /// Each page by the earliest time of its tokens.
    by_due: BTreeSet<(u64, PageKey)>,
    len: usize,
}

#[derive(Debug)]
struct Page<T> {
    line: LineName,
    /// Which numbers are there: a bit each.
    numbers: u64,
    /// In ascending order of their numbers. Most tokens are the first of their page when they are removed.
    tokens: VecDeque<T>,
    /// The earliest of their times; of a page that was just made, no time.
    due_ms: u64,
}

impl<T> Default for TokenMap<T> {
    fn default() -> Self {
        TokenMap {
            pages: BTreeMap::new(),
            by_due: BTreeSet::new(),
            len: 0,
        }
    }
}

impl<T: Due> Page<T> {
    /// Where this token is.
    fn place(&self, token: Token) -> Option<usize> {
        let bit = 1 << (token % PAGE);
        (self.numbers & bit != 0).then(|| self.before(token))
    }

    /// How many have smaller numbers.
    fn before(&self, token: Token) -> usize {
        let smaller = (1 << (token % PAGE)) - 1;
        (self.numbers & smaller).count_ones() as usize
    }

    fn earliest_ms(&self) -> u64 {
        let due_ms = self.tokens.iter().map(Due::due_ms);
        due_ms.min().unwrap_or(u64::MAX)
    }

    /// Within the page.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        (0..PAGE).filter(|number| self.numbers & (1 << number) != 0)
    }
}

impl<T: Due> TokenMap<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, at: TokenRef) -> Option<&T> {
        let page = self.pages.get(&page_of(at))?;
        page.tokens.get(page.place(at.token)?)
    }

    /// Its time must stay the same.
    pub fn get_mut(&mut self, at: TokenRef) -> Option<&mut T> {
        let page = self.pages.get_mut(&page_of(at))?;
        let place = page.place(at.token)?;
        page.tokens.get_mut(place)
    }

    /// The earliest time of any token.
    pub fn first_due_ms(&self) -> Option<u64> {
        self.by_due.first().map(|(due_ms, _)| *due_ms)
    }

    /// The tokens of one page, whose time has come, the earliest first, and the name of their line.
    pub fn due(&self, now_ms: u64) -> Option<(LineName, Vec<TokenRef>)> {
        let (_, key) = self.by_due.first().filter(|(due, _)| *due <= now_ms)?;
        let page = self.pages.get(key)?;
        let tokens = page.numbers().zip(&page.tokens);
        let due = tokens.map(|(number, value)| (value.due_ms(), number));
        let mut due: Vec<_> = due.filter(|(due_ms, _)| *due_ms <= now_ms).collect();
        due.sort_unstable();
        let tokens = due.into_iter().map(|(_, number)| token_of(*key, number));
        Some((page.line.clone(), tokens.collect()))
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (TokenRef, &T)> {
        self.pages.iter().flat_map(|(key, page)| {
            let tokens = page.numbers().zip(&page.tokens);
            tokens.map(|(number, value)| (token_of(*key, number), value))
        })
    }

    /// Returns what it replaces. `line`: the name of the token's line.
    pub fn insert(&mut self, line: &LineName, at: TokenRef, value: T) -> Option<T> {
        let key = page_of(at);
        let page = self.pages.entry(key).or_insert_with(|| Page {
            line: line.clone(),
            numbers: 0,
            tokens: VecDeque::new(),
            due_ms: u64::MAX,
        });
        let due_ms = value.due_ms();
        let replaced = match page.place(at.token) {
            Some(place) => page
                .tokens
                .get_mut(place)
                .map(|it| std::mem::replace(it, value)),
            None => {
                // Doubling would leave as much unused as a small line needs.
                let len = page.tokens.len();
                if len == page.tokens.capacity() {
                    let left = PAGE as usize - len;
                    page.tokens.reserve_exact((len / 2).clamp(2, 16).min(left));
                }
                page.tokens.insert(page.before(at.token), value);
                page.numbers |= 1 << (at.token % PAGE);
                self.len += 1;
                None
            }
        };
        let earliest_ms = match &replaced {
            Some(old) if old.due_ms() == page.due_ms => page.earliest_ms(),
            _ => page.due_ms.min(due_ms),
        };
        list(&mut self.by_due, key, page, earliest_ms);
        replaced
    }

    pub fn remove(&mut self, at: TokenRef) -> Option<T> {
        let key = page_of(at);
        let page = self.pages.get_mut(&key)?;
        let removed = page.tokens.remove(page.place(at.token)?)?;
        page.numbers &= !(1 << (at.token % PAGE));
        self.len -= 1;
        if page.tokens.is_empty() {
            self.by_due.remove(&(page.due_ms, key));
            self.pages.remove(&key);
        } else if removed.due_ms() == page.due_ms {
            let earliest_ms = page.earliest_ms();
            list(&mut self.by_due, key, page, earliest_ms);
        }
        Some(removed)
    }
}

/// Lists a page by this time.
fn list<T>(by_due: &mut BTreeSet<(u64, PageKey)>, key: PageKey, page: &mut Page<T>, due_ms: u64) {
    // Times that are none at all are listed, too.
    if page.due_ms != due_ms || due_ms == u64::MAX {
        by_due.remove(&(page.due_ms, key));
        page.due_ms = due_ms;
        by_due.insert((due_ms, key));
    }
}

fn page_of(at: TokenRef) -> PageKey {
    let page = at.token / PAGE;
    (at.incarnation, u64::from(at.lane) << LANE_SHIFT | page)
}

fn token_of((incarnation, page): PageKey, number: u64) -> TokenRef {
    TokenRef {
        incarnation,
        lane: (page >> LANE_SHIFT) as u8,
        token: (page & ((1 << LANE_SHIFT) - 1)) * PAGE + number,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Due for (u64, usize) {
        fn due_ms(&self) -> u64 {
            self.0
        }
    }

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((any::<bool>(), 1_u64..3, 0_u8..2, 0_u64..200, 0_u64..50), 1..500),
        ) {
            let (mut map, mut plain) = (TokenMap::default(), BTreeMap::new());
            let line = LineName::try_from("shop").unwrap();
            for (nth, (insert, incarnation, lane, token, due_ms)) in steps.into_iter().enumerate() {
                let value = (due_ms, nth);
                let at = TokenRef { incarnation, lane, token };
                match insert {
                    true => prop_assert_eq!(map.insert(&line, at, value), plain.insert(at, value)),
                    false => prop_assert_eq!(map.remove(at), plain.remove(&at)),
                }
                prop_assert_eq!(map.get(at), plain.get(&at));
                prop_assert_eq!(map.get_mut(at), plain.get_mut(&at));
                prop_assert_eq!(map.len(), plain.len());
                prop_assert_eq!(map.by_due.len(), map.pages.len());
                let first = plain.iter().min_by_key(|(_, value)| value.0);
                prop_assert_eq!(map.first_due_ms(), first.map(|(_, value)| value.0));
                let due = map.due(25).map_or(Vec::new(), |(_, due)| due);
                prop_assert_eq!(due.is_empty(), first.is_none_or(|(_, value)| value.0 > 25));
                for at in &due {
                    let others = plain.iter().filter(|(it, _)| page_of(**it) == page_of(*at));
                    let are_due = others.filter(|(_, value)| value.0 <= 25);
                    prop_assert_eq!(are_due.count(), due.len());
                }
                prop_assert!(due.is_sorted_by_key(|at| plain[at].0));
            }
            prop_assert!(map.iter().eq(plain.iter().map(|(at, value)| (*at, value))));
            prop_assert!(map.pages.values().all(|page| !page.tokens.is_empty()));
        }
    }
}
