//! The waiting numbers of a lane and when they entered: a bitmap in chunks, a Fenwick tree over the counts of the
//! chunks, and in each chunk the packed times, and rows of whatever else belongs to the numbers (`records`).
//!
//! A poll of a waiting token needs no more than bitmap and time. Rank (how many wait before a number) and select are O(log chunks). Empty chunks are
//! dropped, so memory follows the waiting tokens and not the numbers issued. A balanced tree with counts would do the
//! same with thirty more bytes a token; the bitmap takes one or two bits.
//!
//! A lane serves its tokens by their numbers, so a token that was moved into it, and entered long ago, goes no sooner than
//! those in front of it: between lanes it counts as if it had entered when the latest of these did. A second tree, over
//! the latest time of each chunk, finds that time, and the first token that is later than some time, in O(log chunks).

use std::collections::VecDeque;
use std::ops::Range;

use crate::bits::{BITS as CHUNK_BITS, Bits, split};
use crate::records::Records;
use crate::sums::Sums;
use crate::times::Times;
use crate::{EtaGiven, Live, LiveRecord, Timestamp, Token};

const PAGE_CHUNKS: u64 = 8;
/// Fewer empty chunks are not worth compacting: a line that has one chunk keeps it.
const EMPTY_SLOTS_MIN: usize = 2;
/// A smaller capacity for times is not worth shrinking.
const TIMES_MIN: usize = 8;
/// A list of holes is not made if it takes reading more words than this …
const HOLE_WORDS_MAX: usize = 4_096;
/// … or has more ranges than this.
const HOLE_RANGES_MAX: usize = 16_384;

#[cfg(test)]
thread_local! {
    /// How many words of bitmap were read to list holes.
    pub(crate) static WORDS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The place of a waiting token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// How many wait before it.
    pub(crate) ahead: u64,
    pub(crate) entered: Timestamp,
}

/// What else is kept of the numbers of a chunk, in their order.
pub(crate) trait Rows: Default {
    type Row<'a>;

    /// `counts_as`: the time with which its number is added.
    fn insert(&mut self, place: usize, counts_as: Timestamp, row: Self::Row<'_>);

    fn remove(&mut self, place: usize);
}

/// Nothing else.
impl Rows for () {
    type Row<'a> = ();

    fn insert(&mut self, _: usize, _: Timestamp, (): ()) {}

    fn remove(&mut self, _: usize) {}
}

#[derive(Debug)]
struct Chunk<R> {
    /// The chunk has the numbers from `no * 512` on.
    no: u64,
    bits: Bits,
    /// When the tokens entered, in the order of their numbers. Most are removed at the ends, which costs nothing; a
    /// removal in the middle shifts at most 4 kB.
    entered: Times,
    /// The largest of them (service clock); 0 if there are none.
    latest_ms: u64,
    /// Each is as large as the one before it: no token was moved in since the chunk was last empty.
    in_order: bool,
    rows: R,
}

impl<R: Rows> Chunk<R> {
    fn new(no: u64) -> Self {
        Self {
            no,
            bits: Bits::default(),
            entered: Times::default(),
            latest_ms: 0,
            in_order: true,
            rows: R::default(),
        }
    }

    fn count(&self) -> u64 {
        self.entered.len() as u64
    }

    fn push(&mut self, bit: usize, entered: Timestamp, row: R::Row<'_>) {
        self.rows.insert(self.entered.len(), entered, row);
        self.bits.set(bit);
        self.in_order =
            self.count() == 0 || (self.in_order && self.latest_ms <= entered.service_ms);
        self.latest_ms = self.latest_ms.max(entered.service_ms);
        self.entered.insert(self.entered.len(), entered);
    }

    /// The same of a number that may not be the last one.
    fn insert(&mut self, bit: usize, entered: Timestamp, row: R::Row<'_>) {
        let place = self.bits.rank(bit);
        if place == self.entered.len() {
            return self.push(bit, entered, row);
        }
        self.rows.insert(place, entered, row);
        self.bits.set(bit);
        let service_ms = |place| self.entered.get(place).map(|at| at.service_ms);
        let after_last = place
            .checked_sub(1)
            .is_none_or(|it| service_ms(it) <= Some(entered.service_ms));
        let before_next = Some(entered.service_ms) <= service_ms(place);
        self.in_order = self.in_order && after_last && before_next;
        self.latest_ms = self.latest_ms.max(entered.service_ms);
        self.entered.insert(place, entered);
    }

    fn remove(&mut self, bit: usize) {
        let place = self.bits.rank(bit);
        let removed = self.entered.remove(place);
        self.rows.remove(place);
        self.bits.clear(bit);
        if removed.is_some_and(|it| it.service_ms == self.latest_ms) {
            self.latest_ms = self.latest_of_first(self.entered.len());
        }
    }

    /// The place of a number in the chunk, if it waits.
    fn place(&self, bit: usize) -> Option<(usize, Timestamp)> {
        let within = self.bits.contains(bit).then(|| self.bits.rank(bit))?;
        Some((within, self.entered.get(within)?))
    }

    /// When the latest of the first so many entered (service clock); 0 if there are none. Where nobody was moved in it
    /// is the last one.
    fn latest_of_first(&self, count: usize) -> u64 {
        let latest = match count.checked_sub(1) {
            Some(last) if self.in_order => self.entered.get(last).map(|at| at.service_ms),
            _ => self
                .entered
                .iter()
                .take(count)
                .map(|at| at.service_ms)
                .max(),
        };
        latest.unwrap_or(0)
    }

    /// How many come before the first one that entered after this time.
    fn first_after(&self, ms: u64) -> usize {
        if self.in_order {
            return self.entered.partition_point(|at| at.service_ms <= ms);
        }
        let mut entered = self.entered.iter();
        let found = entered.position(|at| at.service_ms > ms);
        found.unwrap_or(self.entered.len())
    }

    /// The number before which exactly `nth` (from 0) of the chunk wait.
    fn select(&self, nth: u64) -> Option<Token> {
        Some(self.no * CHUNK_BITS + self.bits.select(nth)?)
    }
}

/// Makes room for one more. Doubling would leave more unused than a small line has in use.
pub(crate) fn reserve<T>(list: &mut VecDeque<T>) {
    let len = list.len();
    if len == list.capacity() {
        let left = (CHUNK_BITS as usize).saturating_sub(len);
        list.reserve_exact((len / 2).clamp(4, left.max(4)));
    }
}

/// Gives memory back once less than a quarter of it is used.
pub(crate) fn shrink<T>(list: &mut VecDeque<T>) {
    let (len, capacity) = (list.len(), list.capacity());
    if capacity > TIMES_MIN && capacity >= len * 4 {
        list.shrink_to((len * 2).max(TIMES_MIN));
    }
}

/// The waiting numbers of a lane. They come in ascending order, except in a draw, and leave in any.
#[derive(Debug, Default)]
pub(crate) struct WaitingSet<R = ()> {
    /// Ascending by `no`; some may be empty until the next compaction.
    chunks: Vec<Chunk<R>>,
    /// `None` while there is at most one chunk.
    sums: Option<Box<Sums>>,
    /// The slot of the first chunk that is not empty, so that finding the first number is O(1).
    front: usize,
    empty: usize,
    /// The largest number ever added.
    last: Token,
    len: u64,
}

impl<R: Rows> WaitingSet<R> {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// For how many times memory is allocated.
    #[cfg(test)]
    pub(crate) fn time_slots(&self) -> usize {
        self.chunks.iter().map(|c| c.entered.capacity()).sum()
    }

    /// Adds a number larger than any before it; others are ignored. (Numbers are issued in order, and no token
    /// waits again.)
    pub(crate) fn push(&mut self, token: Token, entered: Timestamp, row: R::Row<'_>) {
        nowserving_bite::require(self.last < token, "numbers come in order");
        if token <= self.last {
            return;
        }
        self.last = token;
        let (no, bit) = split(token);
        if self.chunks.last().is_none_or(|last| last.no < no) {
            grow_by_half(&mut self.chunks);
            self.push_chunk(Chunk::new(no));
        }
        let slot = self.chunks.len() - 1;
        let chunk = &mut self.chunks[slot];
        self.empty -= usize::from(chunk.count() == 0);
        chunk.push(bit, entered, row);
        self.changed(slot, 1);
        if self.len == 0 {
            self.front = slot;
        }
        self.len += 1;
    }

    /// Adds a number that may be smaller than others; one that waits already is ignored. Where its chunk is missing the
    /// chunks are counted anew, as in a compaction.
    pub(crate) fn insert(&mut self, token: Token, entered: Timestamp, row: R::Row<'_>) {
        if token > self.last {
            return self.push(token, entered, row);
        }
        let (no, bit) = split(token);
        let slot = match self.slot(no) {
            Ok(slot) => slot,
            Err(slot) => {
                self.chunks.insert(slot, Chunk::new(no));
                self.rebuild();
                slot
            }
        };
        let chunk = &mut self.chunks[slot];
        if chunk.bits.contains(bit) {
            return;
        }
        self.empty -= usize::from(chunk.count() == 0);
        chunk.insert(bit, entered, row);
        self.changed(slot, 1);
        self.front = match self.len {
            0 => slot,
            _ => self.front.min(slot),
        };
        self.len += 1;
    }

    /// Which numbers wait, 512 in one: those that begin at its number times 512. A copy of 64 bytes for each.
    pub(crate) fn bits(&self) -> impl Iterator<Item = (u64, Bits)> + '_ {
        let chunks = self.chunks.iter().filter(|chunk| chunk.count() > 0);
        chunks.map(|chunk| (chunk.no, chunk.bits))
    }

    /// Numbers from a little before this one on, of whole chunks.
    pub(crate) fn page_at(token: Token) -> Range<Token> {
        let first = token / CHUNK_BITS * CHUNK_BITS;
        first..first + PAGE_CHUNKS * CHUNK_BITS
    }

    /// False if the number was not there.
    pub(crate) fn remove(&mut self, token: Token) -> bool {
        let (no, bit) = split(token);
        let Ok(slot) = self.slot(no) else {
            return false;
        };
        let chunk = &mut self.chunks[slot];
        if !chunk.bits.contains(bit) {
            return false;
        }
        chunk.remove(bit);
        let emptied = chunk.count() == 0;
        self.changed(slot, -1);
        self.len -= 1;
        if emptied {
            self.empty += 1;
            self.compact();
            let empty = |chunk: &&Chunk<R>| chunk.count() == 0;
            self.front += self.chunks[self.front..].iter().take_while(empty).count();
        }
        true
    }

    /// `None` if the number does not wait.
    pub(crate) fn place(&self, token: Token) -> Option<Place> {
        let (no, bit) = split(token);
        let slot = self.slot(no).ok()?;
        let (within, entered) = self.chunks.get(slot)?.place(bit)?;
        Some(Place {
            entered,
            ahead: self.sum_before(slot) + within as u64,
        })
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        let (no, bit) = split(token);
        let slot = self.slot(no).ok();
        slot.is_some_and(|slot| self.chunks[slot].bits.contains(bit))
    }

    /// How many smaller numbers wait.
    pub(crate) fn rank(&self, token: Token) -> u64 {
        let (no, bit) = split(token);
        match self.slot(no) {
            Ok(slot) => self.sum_before(slot) + self.chunks[slot].bits.rank(bit) as u64,
            Err(slot) => self.sum_before(slot),
        }
    }

    /// The smallest number that waits.
    pub(crate) fn first(&self) -> Option<Token> {
        self.chunks.get(self.front)?.select(0)
    }

    /// When the first one entered (service clock).
    pub(crate) fn first_entered_at_ms(&self) -> Option<u64> {
        let first = self.chunks.get(self.front)?.entered.get(0)?;
        Some(first.service_ms)
    }

    /// When the latest of the waiting numbers up to this one entered (service clock); 0 if there are none.
    pub(crate) fn latest_through(&self, token: Token) -> u64 {
        let (no, bit) = split(token);
        match self.slot(no) {
            Ok(slot) => {
                let chunk = &self.chunks[slot];
                let through = chunk.bits.rank(bit) + usize::from(chunk.bits.contains(bit));
                let within = chunk.latest_of_first(through);
                within.max(self.latest_before(slot))
            }
            Err(slot) => self.latest_before(slot),
        }
    }

    /// How many wait before the first number that entered after this time (service clock); all, if none did.
    pub(crate) fn first_after(&self, ms: u64) -> u64 {
        let slot = match &self.sums {
            Some(sums) => sums.latest.first_above(ms),
            None => self.chunks.iter().position(|it| it.latest_ms > ms),
        };
        let Some((slot, chunk)) = slot.and_then(|slot| Some((slot, self.chunks.get(slot)?))) else {
            return self.len;
        };
        self.sum_before(slot) + chunk.first_after(ms) as u64
    }

    /// The number before which exactly `nth` wait.
    pub(crate) fn select(&self, nth: u64) -> Option<Token> {
        let (chunk, within) = self.chunk_of(nth)?;
        chunk.select(within)
    }

    /// When the first one entered (service clock).
    pub(crate) fn entered_at_ms(&self, nth: u64) -> Option<u64> {
        let (chunk, within) = self.chunk_of(nth)?;
        Some(chunk.entered.get(within as usize)?.service_ms)
    }

    /// The chunk of the number before which exactly `nth` wait, and how many of these `nth` are in the chunk.
    fn chunk_of(&self, nth: u64) -> Option<(&Chunk<R>, u64)> {
        if nth >= self.len {
            return None;
        }
        let (mut slot, mut left) = (0, nth);
        let tree = self.sums.as_ref().map_or(&[][..], |sums| &sums.tree);
        let mut step = tree.len().next_power_of_two();
        while step > 0 {
            if let Some(count) = tree.get(slot + step - 1)
                && *count <= left
            {
                left -= count;
                slot += step;
            }
            step /= 2;
        }
        Some((self.chunks.get(slot)?, left))
    }

    /// The ranges of numbers, both ends included, between the first waiting one and `token` that do not wait; `None` if
    /// there is too much to read or to list.
    pub(crate) fn holes_before(&self, token: Token) -> Option<Vec<(Token, Token)>> {
        let mut holes = Vec::new();
        let Some(first) = self.first().filter(|first| *first < token) else {
            return Some(holes);
        };
        let mut words = 0;
        // Every number below `next` waits or is in a listed hole.
        let mut next = first;
        for chunk in &self.chunks[self.front..] {
            if chunk.no * CHUNK_BITS >= token {
                break;
            }
            words += Bits::WORDS;
            #[cfg(test)]
            WORDS_READ.with(|read| read.set(read.get() + Bits::WORDS));
            if words > HOLE_WORDS_MAX || holes.len() > HOLE_RANGES_MAX {
                return None;
            }
            for (bit, word) in chunk.bits.words() {
                let base = chunk.no * CHUNK_BITS + bit;
                next = list_holes(base, word, token, next, &mut holes);
            }
        }
        if next < token {
            holes.push((next, token - 1));
        }
        (holes.len() <= HOLE_RANGES_MAX).then_some(holes)
    }

    /// How many words [`WaitingSet::holes_before`] reads at most.
    pub(crate) fn hole_words(&self) -> usize {
        let chunks = self.chunks.len().saturating_sub(self.front);
        (chunks * Bits::WORDS).min(HOLE_WORDS_MAX)
    }

    /// The slot of a chunk, or where it would be.
    fn slot(&self, no: u64) -> Result<usize, usize> {
        let end = self.chunks.len();
        let Some(back) = self.chunks.last().and_then(|last| last.no.checked_sub(no)) else {
            return Err(end);
        };
        // If no chunk after this one was dropped, this is its slot. That holds for nearly all numbers, as the
        // waiting ones are the newest, and saves a binary search. Otherwise its slot is further up.
        let low = (end - 1).saturating_sub(back as usize);
        if self.chunks[low].no == no {
            return Ok(low);
        }
        let found = self.chunks[low..].binary_search_by_key(&no, |chunk| chunk.no);
        found.map(|slot| low + slot).map_err(|slot| low + slot)
    }

    fn push_chunk(&mut self, chunk: Chunk<R>) {
        let of_chunk = |chunk: &Chunk<R>| (chunk.count(), chunk.latest_ms);
        let (count, latest_ms) = of_chunk(&chunk);
        self.empty += usize::from(count == 0);
        if self.sums.is_none()
            && let Some((count, latest_ms)) = self.chunks.first().map(of_chunk)
        {
            self.sums.insert(Sums::with_slots(2)).push(count, latest_ms);
        }
        if let Some(sums) = &mut self.sums {
            sums.push(count, latest_ms);
        }
        self.chunks.push(chunk);
    }

    /// The chunk in this slot has so many more tokens.
    fn changed(&mut self, slot: usize, more: i64) {
        if let Some(sums) = &mut self.sums {
            sums.latest.set(slot, self.chunks[slot].latest_ms);
            sums.add(slot, more);
        }
    }

    fn sum_before(&self, slot: usize) -> u64 {
        match &self.sums {
            Some(sums) => sums.before(slot),
            None => self.chunks[..slot].iter().map(Chunk::count).sum(),
        }
    }

    /// When the latest of the tokens in the slots before this one entered; 0 if there are none.
    fn latest_before(&self, slot: usize) -> u64 {
        match &self.sums {
            Some(sums) => sums.latest.max_before(slot),
            None => self.chunks[..slot]
                .iter()
                .fold(0, |ms, it| it.latest_ms.max(ms)),
        }
    }

    /// Drops empty chunks once they are half of all, which is O(1) amortised over the removals that emptied them. Ten
    /// million waiting tokens are some 20,000 chunks: well under 1 ms.
    fn compact(&mut self) {
        if self.empty < EMPTY_SLOTS_MIN || self.empty * 2 < self.chunks.len() {
            return;
        }
        self.chunks.retain(|chunk| chunk.count() > 0);
        self.rebuild();
    }

    /// Counts the chunks anew.
    fn rebuild(&mut self) {
        let slots = self.chunks.len();
        let old = std::mem::replace(&mut self.chunks, Vec::with_capacity(slots));
        self.sums = (slots > 1).then(|| Sums::with_slots(slots));
        self.empty = 0;
        let first = old.iter().position(|chunk| chunk.count() > 0);
        self.front = first.unwrap_or(0);
        for chunk in old {
            self.push_chunk(chunk);
        }
    }
}

impl WaitingSet<Records> {
    /// The record of a token that waits.
    pub(crate) fn get(&self, token: Token) -> Option<Live<'_>> {
        let (no, bit) = split(token);
        let chunk = &self.chunks[self.slot(no).ok()?];
        let (place, entered) = chunk.place(bit)?;
        chunk.rows.get(place, entered)
    }

    pub(crate) fn has_key(&self, token: Token, key: &[u8]) -> bool {
        let (no, bit) = split(token);
        let chunk = self.slot(no).ok().map(|slot| &self.chunks[slot]);
        chunk.is_some_and(|chunk| {
            let place = chunk.place(bit);
            place.is_some_and(|(place, _)| chunk.rows.has_key(place, key))
        })
    }

    /// The number that has this key. O(waiting).
    pub(crate) fn find(&self, key: &[u8]) -> Option<Token> {
        let mut chunks = self.chunks[self.front..].iter();
        chunks.find_map(|chunk| chunk.select(chunk.rows.find(key)? as u64))
    }

    /// Removes a token that waits.
    pub(crate) fn take(&mut self, token: Token) -> Option<LiveRecord> {
        let record = self.get(token)?.to_record();
        self.remove(token);
        Some(record)
    }

    pub(crate) fn set_seen(&mut self, token: Token, last_seen_ms: u64) {
        if let Some((rows, place, entered)) = self.rows_of(token) {
            rows.set_seen(place, entered, last_seen_ms);
        }
    }

    pub(crate) fn set_eta(&mut self, token: Token, eta: Option<EtaGiven>) {
        if let Some((rows, place, entered)) = self.rows_of(token) {
            rows.set_eta(place, entered, eta);
        }
    }

    fn rows_of(&mut self, token: Token) -> Option<(&mut Records, usize, Timestamp)> {
        let (no, bit) = split(token);
        let slot = self.slot(no).ok()?;
        let chunk = &mut self.chunks[slot];
        let (place, entered) = chunk.place(bit)?;
        Some((&mut chunk.rows, place, entered))
    }

    /// Those with these numbers, in order.
    pub(crate) fn range(&self, numbers: Range<Token>) -> impl Iterator<Item = (Token, Live<'_>)> {
        let (no, bit) = split(numbers.start);
        let (Ok(slot) | Err(slot)) = self.slot(no);
        // Up to half of all chunks are empty and before the first one with tokens.
        let slot = slot.max(self.front);
        let records = self.chunks[slot..].iter().flat_map(move |chunk| {
            #[cfg(test)]
            WORDS_READ.with(|read| read.set(read.get() + Bits::WORDS));
            let first_bit = if chunk.no == no { bit } else { 0 };
            let places = chunk.bits.rank(first_bit)..;
            let bits = chunk.bits.iter_from(first_bit).zip(places);
            bits.filter_map(|(bit, place)| {
                let live = chunk.rows.get(place, chunk.entered.get(place)?)?;
                Some((chunk.no * CHUNK_BITS + bit, live))
            })
        });
        records.take_while(move |(token, _)| *token < numbers.end)
    }

    /// Changes the times of the tokens of a page, on the service clock. None counts as having entered before `least_ms`.
    /// Returns how many they are.
    pub(crate) fn shift(
        &mut self,
        page: Range<Token>,
        shifted: &impl Fn(u64) -> u64,
        least_ms: u64,
    ) -> usize {
        let slot = |token| {
            let no = token / CHUNK_BITS;
            self.chunks.partition_point(|chunk| chunk.no < no)
        };
        let mut tokens = 0;
        for slot in slot(page.start)..slot(page.end) {
            let chunk = &mut self.chunks[slot];
            for place in 0..chunk.entered.len() {
                if let Some(at) = chunk.entered.get(place) {
                    let service_ms = chunk.rows.shift(place, at, shifted, least_ms);
                    chunk.entered.set(place, Timestamp { service_ms, ..at });
                }
            }
            chunk.entered.narrow();
            tokens += chunk.entered.len();
            // Not the shifted one: an empty chunk has 0.
            chunk.latest_ms = chunk.latest_of_first(chunk.entered.len());
            self.changed(slot, 0);
        }
        tokens
    }
}

/// Room for one more, and for some besides: not for twice as many, and no more than one in a small line.
pub(crate) fn grow_by_half<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 2).max(1));
    }
}

/// Adds the holes in one word, run by run, so that a word without holes costs one step. Returns the new `next`.
fn list_holes(
    base: u64,
    word: u64,
    token: Token,
    mut next: Token,
    holes: &mut Vec<(Token, Token)>,
) -> Token {
    let mut rest = word;
    while rest != 0 {
        let start = rest.trailing_zeros();
        let run = (rest >> start).trailing_ones();
        let first = base + u64::from(start);
        if first >= token {
            break;
        }
        if first > next {
            holes.push((next, first - 1));
        }
        next = first + u64::from(run);
        if start + run >= 64 {
            break;
        }
        rest &= u64::MAX << (start + run);
    }
    next
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
