//! Finds the live token of a key: a table of hashes and tokens. The keys themselves stand with their tokens, and are
//! compared there.
//!
//! The table grows by one page as some tokens come (linear hashing: Litwin, "Linear hashing: a new tool for file and table
//! addressing", 1980): the entries of one page are divided between it and the new one. So no operation takes longer
//! because the table has grown. Its order shows nowhere.
//!
//! A line with few live tokens does without it: their keys are read one after the other. Once it has a table, it loses it
//! when it has no more than half as many.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use crate::line::Line;
use crate::waiting::grow_by_half;
use crate::{Token, TokenRef};

/// So many entries has a page, on average, before there is another one …
const PAGE_ENTRIES: usize = 32;
/// … and so many, or fewer, when there is one less.
const PAGE_ENTRIES_MIN: usize = 8;
/// An id is the lane's above that of the token, which has 53.
const LANE_SHIFT: u32 = 56;

/// 12 bytes: in halves, the id needs no more alignment than the hash.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: u32,
    id: [u32; 2],
}

impl Entry {
    fn new(hash: u32, (lane, token): (u8, Token)) -> Self {
        let id = u64::from(lane) << LANE_SHIFT | token;
        Self {
            hash,
            id: [(id >> 32) as u32, id as u32],
        }
    }

    fn at(self) -> (u8, Token) {
        let [high, low] = self.id;
        let id = u64::from(high) << 32 | u64::from(low);
        ((id >> LANE_SHIFT) as u8, id & ((1 << LANE_SHIFT) - 1))
    }
}

/// See the top of this file.
pub(crate) struct KeyIndex {
    /// Clients choose keys: without it they could choose ones of equal hashes.
    seed: u64,
    pages: Vec<Vec<Entry>>,
    count: u32,
    /// [`crate::Limits::keys_read`]
    keys_read: u8,
    /// It has all keys; otherwise none.
    in_use: bool,
}

/// The same for equal states: neither its order nor whether it is in use.
impl fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyIndex")
    }
}

/// The keys of its live tokens.
impl Line {
    /// The live token that has this key.
    pub fn find(&self, key: &[u8]) -> Option<TokenRef> {
        let (lane, token) = if self.keys.in_use {
            let has_key = |(lane, token): (u8, Token)| {
                let lane = self.lanes.get(usize::from(lane));
                lane.is_some_and(|lane| lane.has_key(token, key))
            };
            self.keys.find(key, has_key)?
        } else {
            let mut lanes = (0..).zip(&self.lanes);
            lanes.find_map(|(id, lane)| Some((id, lane.find(key)?)))?
        };
        Some(self.token_ref(lane, token))
    }

    /// To be called when a token has become live, whether it has a key or not.
    pub(crate) fn add_key(&mut self, key: Option<&[u8]>, at: (u8, Token)) {
        if self.keys.in_use {
            if let Some(key) = key {
                self.keys.add(key, at);
            }
        } else if self.live_in_lanes() > u64::from(self.keys.keys_read) {
            self.keys.in_use = true;
            for (id, lane) in (0..).zip(&self.lanes) {
                for (token, live) in lane.live_range(0..Token::MAX) {
                    if let Some(key) = live.key {
                        self.keys.add(key, (id, token));
                    }
                }
            }
        }
    }

    /// To be called when a token is not live any more, whether it has a key or not.
    pub(crate) fn remove_key(&mut self, key: Option<&[u8]>, at: (u8, Token)) {
        if !self.keys.in_use {
            return;
        }
        if let Some(key) = key {
            self.keys.remove(key, at);
        }
        let KeyIndex {
            seed, keys_read, ..
        } = self.keys;
        if self.live_in_lanes() <= u64::from(keys_read / 2) {
            self.keys = KeyIndex::new(seed, keys_read);
        }
    }

    /// While a line is restored, no lane is listed.
    fn live_in_lanes(&self) -> u64 {
        let lanes = self.lanes.iter().map(|lane| lane.live_count());
        lanes.sum()
    }
}

impl KeyIndex {
    pub(crate) fn new(seed: u64, keys_read: u8) -> Self {
        Self {
            seed,
            pages: Vec::new(),
            count: 0,
            keys_read,
            in_use: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// The token of this key, of those for which `has_key` says so.
    fn find(&self, key: &[u8], has_key: impl Fn((u8, Token)) -> bool) -> Option<(u8, Token)> {
        let hash = self.hash(key);
        let page = self.pages.get(self.page_of(hash))?;
        let mut same = page.iter().filter(|entry| entry.hash == hash);
        same.find_map(|entry| Some(entry.at()).filter(|at| has_key(*at)))
    }

    /// Adds the token of a key that has none.
    fn add(&mut self, key: &[u8], at: (u8, Token)) {
        if self.count as usize >= self.pages.len() * PAGE_ENTRIES {
            self.add_page();
        }
        let entry = Entry::new(self.hash(key), at);
        let page = self.page_of(entry.hash);
        push(&mut self.pages[page], entry);
        self.count += 1;
    }

    fn remove(&mut self, key: &[u8], at: (u8, Token)) {
        let entry = Entry::new(self.hash(key), at);
        let page = self.page_of(entry.hash);
        let Some(page) = self.pages.get_mut(page) else {
            return;
        };
        let Some(place) = page.iter().position(|it| *it == entry) else {
            return;
        };
        page.swap_remove(place);
        if page.capacity() > PAGE_ENTRIES_MIN.max(page.len() * 2) {
            page.shrink_to_fit();
        }
        self.count -= 1;
        let others = self.pages.len() - 1;
        if self.count == 0 || (self.count as usize) < others * PAGE_ENTRIES_MIN {
            self.remove_page();
        }
    }

    /// What the newest page has comes from the one whose number is without its highest bit.
    fn add_page(&mut self) {
        let new = self.pages.len();
        grow_by_half(&mut self.pages);
        self.pages.push(Vec::new());
        let Some(highest) = new.checked_ilog2() else {
            return;
        };
        let divided = std::mem::take(&mut self.pages[new ^ (1 << highest)]);
        for entry in divided {
            let page = self.page_of(entry.hash);
            push(&mut self.pages[page], entry);
        }
    }

    fn remove_page(&mut self) {
        for entry in self.pages.pop().unwrap_or_default() {
            let page = self.page_of(entry.hash);
            if let Some(page) = self.pages.get_mut(page) {
                push(page, entry);
            }
        }
        if self.pages.capacity() > self.pages.len() * 2 {
            self.pages.shrink_to_fit();
        }
    }

    fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(key);
        hasher.finish() as u32
    }

    /// As many low bits of the hash as give the number of a page.
    fn page_of(&self, hash: u32) -> usize {
        let mask = self.pages.len().next_power_of_two() - 1;
        let page = hash as usize & mask;
        match page < self.pages.len() {
            true => page,
            false => page & (mask >> 1),
        }
    }
}

/// With little room besides: there are many pages.
fn push(page: &mut Vec<Entry>, entry: Entry) {
    if page.len() == page.capacity() {
        page.reserve_exact((page.len() / 4).max(2));
    }
    page.push(entry);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            seed: u64,
            steps in prop::collection::vec((0_u8..3, 0_u16..400, 0_u8..3), 1..1_500),
        ) {
            let (mut index, mut plain) = (KeyIndex::new(seed, 0), BTreeMap::new());
            // Mostly additions in the first half, removals in the second.
            let half = steps.len() / 2;
            for (nth, (what, key, lane)) in steps.into_iter().enumerate() {
                let bytes = key.to_be_bytes();
                let known = plain.get(&key).copied();
                let add = if nth < half { what > 0 } else { what == 0 };
                match known {
                    None if add => {
                        let at = (lane, nth as u64 + 1);
                        index.add(&bytes, at);
                        plain.insert(key, at);
                    }
                    Some(at) if !add => {
                        index.remove(&bytes, at);
                        plain.remove(&key);
                    }
                    _ => {}
                }
                let has_key = |at| plain.get(&key) == Some(&at);
                prop_assert_eq!(index.find(&bytes, has_key), plain.get(&key).copied());
                prop_assert_eq!(index.len(), plain.len());
            }
            for (key, at) in &plain {
                prop_assert_eq!(index.find(&key.to_be_bytes(), |it| it == *at), Some(*at));
            }
            for (key, at) in &plain {
                index.remove(&key.to_be_bytes(), *at);
            }
            prop_assert!(index.pages.is_empty(), "{} pages", index.pages.len());
        }
    }

    #[test]
    fn tokens_of_equal_hashes_are_told_apart() {
        let mut index = KeyIndex::new(7, 0);
        for token in [1, crate::NUMBER_MAX] {
            index.add(b"key", (63, token));
        }
        let last = (63, crate::NUMBER_MAX);
        assert_eq!(index.find(b"key", |at| at == last), Some(last));
        index.remove(b"key", last);
        assert_eq!(index.find(b"key", |at| at == last), None);
        assert_eq!(index.find(b"key", |_| true), Some((63, 1)));
    }
}
