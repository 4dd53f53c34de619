//! A draw as data: who took part, page by page, the order of their lots, and the numbers that they were given.
//!
//! The former numbers stay known as long as the line lives: 4 bytes each beside the bitmap of who took part. Ten million
//! are some 42 MB, and need as many entries in the order of the lots, until their lane is done.

use std::collections::BTreeSet;

use nowserving_codec::Codec;

use crate::bits::{BITS, Bits, split};
use crate::capacity::LIVE_MAX;
use crate::lot::{self, BEACON_BYTES_MAX, Hash, Lots, Secret};
use crate::settings::is_text;
use crate::{LaneDump, LaneName, NUMBER_MAX, Token};

/// A draw without the lists of who took part.
#[derive(Codec, Debug, Clone, Default, PartialEq, Eq)]
pub struct DrawHead {
    /// The line was in phase `pre_open`, and was to open by a draw; no more once it has opened in order.
    pub awaited: bool,
    /// `None` until a leader has brought it in.
    pub seed: Option<Secret>,
    /// `None` until the line opens.
    pub begun: Option<DrawBegun>,
}

#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct DrawBegun {
    /// The setting `draw_beacon` at the opening; empty without one.
    pub beacon: String,
    /// When it began (service clock): between lanes all who took part count as having entered then.
    pub opened_at_ms: u64,
    /// The lanes that the line had then, by id.
    pub lanes: Vec<DrawBlock>,
}

impl DrawBegun {
    pub(crate) fn took_part(&self) -> u64 {
        let counts = self.lanes.iter().map(|block| u64::from(block.count));
        counts.sum()
    }
}

/// The new numbers of a lane.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrawBlock {
    /// The last number before them.
    pub after: Token,
    /// How many these are: as many as took part.
    pub count: u32,
    /// Of all in the lane whose lots are computed.
    pub digest: Hash,
}

/// Those of 512 consecutive numbers of a lane that took part, and their new numbers.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct DrawPage {
    /// The numbers are those from `no * 512` on.
    pub no: u64,
    pub took_part: Bits,
    /// The place of each in the block, from 1 on; 0 while it is not drawn. Empty until their lots are computed.
    pub drawn: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Draw {
    pub(crate) head: DrawHead,
    pub(crate) lanes: Vec<DrawnLane>,
    /// The lane that is drawn now: an index of `lanes`, or their number once all are done.
    at: usize,
    /// By their lots, those of this lane that are still to be drawn: each lot, and how many took part before it by number.
    order: BTreeSet<(u64, u32)>,
}

/// Who took part in a lane.
#[derive(Debug, Default)]
pub(crate) struct DrawnLane {
    pub(crate) pages: Vec<DrawPage>,
    /// By page, how many took part before it.
    before: Vec<u32>,
    /// How many of the pages have lots.
    with_lots: usize,
    pub(crate) drawn: u32,
    /// While it is made from a dump: the places that were given, and the largest of them.
    seen: Vec<Bits>,
    largest: u32,
}

pub(crate) enum Step {
    Lots { count: u32 },
    Drew { lane: u8, from: Token, to: Token },
}

impl DrawnLane {
    pub(crate) fn push(&mut self, page: DrawPage) {
        self.before.push(self.count());
        self.with_lots += usize::from(!page.drawn.is_empty());
        self.drawn += page.drawn.iter().filter(|new| **new > 0).count() as u32;
        self.pages.push(page);
    }

    pub(crate) fn count(&self) -> u32 {
        let last = self.before.last().zip(self.pages.last());
        last.map_or(0, |(before, page)| before + page.took_part.count() as u32)
    }

    fn has_lots(&self) -> bool {
        self.with_lots == self.pages.len()
    }

    fn is_done(&self) -> bool {
        self.has_lots() && self.drawn == self.count()
    }

    /// The new number of a participant, from 1 on; `Some(0)` while it is not drawn, `None` if it did not take part.
    pub(crate) fn new_of(&self, token: Token) -> Option<u32> {
        let (no, bit) = split(token);
        let page = self.pages.binary_search_by_key(&no, |page| page.no).ok()?;
        let page = self.pages.get(page)?;
        let took_part = page.took_part.contains(bit);
        took_part.then(|| {
            page.drawn
                .get(page.took_part.rank(bit))
                .copied()
                .unwrap_or(0)
        })
    }

    /// Gives the participant before whom so many took part the next new number.
    fn draw(&mut self, nth: u32) -> Option<(Token, u32)> {
        let page = self
            .before
            .partition_point(|before| *before <= nth)
            .checked_sub(1)?;
        let within = nth - self.before[page];
        let page = &mut self.pages[page];
        let token = page.no * BITS + page.took_part.select(within.into())?;
        self.drawn += 1;
        *page.drawn.get_mut(within as usize)? = self.drawn;
        Some((token, self.drawn))
    }
}

impl DrawHead {
    /// For dumps with these lanes: whether a line can have it.
    pub(crate) fn is_plausible<L>(&self, lanes: &[LaneDump<L>]) -> bool {
        self.begun.as_ref().is_none_or(|begun| {
            let beacon = &begun.beacon;
            let beacon_fits = beacon.is_empty() || is_text(beacon, BEACON_BYTES_MAX);
            let mut blocks = begun.lanes.iter().zip(lanes);
            let issued = blocks.all(|(block, lane)| {
                let last = block.after.checked_add(block.count.into());
                last.is_some_and(|last| last < lane.next_token)
            });
            let has_lanes = (1..=lanes.len()).contains(&begun.lanes.len());
            let in_time = begun.opened_at_ms <= NUMBER_MAX;
            let can_wait = begun.took_part() <= LIVE_MAX;
            self.seed.is_some() && beacon_fits && issued && has_lanes && in_time && can_wait
        })
    }
}

impl Draw {
    /// One that is made from its dump: [`Draw::add`] adds the pages.
    pub(crate) fn from_head(head: DrawHead) -> Self {
        let lanes = head.begun.as_ref().map_or(0, |begun| begun.lanes.len());
        Self {
            head,
            lanes: (0..lanes).map(|_| DrawnLane::default()).collect(),
            ..Self::default()
        }
    }

    fn lots(&self, incarnation: u64) -> Option<Lots> {
        let (seed, begun) = (self.head.seed.as_ref()?, self.head.begun.as_ref()?);
        Some(Lots::new(&seed.0, &begun.beacon, incarnation))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.head.begun.is_some() && self.at == self.lanes.len()
    }

    /// How many took part: so many numbers were issued beside those with which they entered.
    pub(crate) fn took_part(&self) -> u64 {
        self.head.begun.as_ref().map_or(0, DrawBegun::took_part)
    }

    /// The next page of a dump.
    ///
    /// # Errors
    /// No draw has such a page there.
    pub(crate) fn add(
        &mut self,
        (lane, name): (u8, &LaneName),
        page: DrawPage,
        incarnation: u64,
    ) -> Result<(), &'static str> {
        const WRONG: &str = "a draw of others";
        let lots = self.lots(incarnation).ok_or(WRONG)?;
        let blocks = self.head.begun.as_ref().map(|begun| begun.lanes.as_slice());
        let block = *blocks
            .unwrap_or_default()
            .get(usize::from(lane))
            .ok_or(WRONG)?;
        let count = page.took_part.count();
        let last = count
            .checked_sub(1)
            .and_then(|last| page.took_part.select(last));
        let last = page
            .no
            .saturating_mul(BITS)
            .saturating_add(last.ok_or(WRONG)?);
        let into = self.lanes.get_mut(usize::from(lane)).ok_or(WRONG)?;
        let in_order = into.pages.last().is_none_or(|last| last.no < page.no);
        let fits = count + u64::from(into.count()) <= block.count.into();
        let has_lots = !page.drawn.is_empty();
        let lots_in_order = !has_lots || into.with_lots == into.pages.len();
        let is_whole = !has_lots || page.drawn.len() as u64 == count;
        let drawn = page.drawn.iter().all(|new| *new <= block.count);
        let numbers = !page.took_part.contains(0) || page.no > 0;
        if !(in_order
            && fits
            && lots_in_order
            && is_whole
            && drawn
            && numbers
            && last <= block.after)
        {
            return Err(WRONG);
        }
        let before = into.count();
        let waits = page
            .took_part
            .iter()
            .zip(0..)
            .filter(|(_, nth)| page.drawn.get(*nth as usize) == Some(&0));
        let waits = waits
            .map(|(bit, nth): (u64, u32)| (lots.lot(name, page.no * BITS + bit), before + nth));
        let waits: Vec<_> = waits.collect();
        // Lots are kept of one lane at a time.
        if !waits.is_empty() {
            let is_first = self.order.is_empty() || self.at == usize::from(lane);
            if !is_first {
                return Err(WRONG);
            }
            self.at = usize::from(lane);
            self.order.extend(waits);
        }
        if !into.sees(&page) {
            return Err(WRONG);
        }
        into.push(page);
        Ok(())
    }

    /// All pages of a dump were added.
    ///
    /// # Errors
    /// No draw can have come so far.
    pub(crate) fn restored(&mut self) -> Result<(), &'static str> {
        let lots_of = self.at;
        self.at = 0;
        self.pass_drawn();
        let Some(begun) = &self.head.begun else {
            return Ok(());
        };
        let of_lane = self.order.is_empty() || lots_of == self.at;
        let mut to_come = self.lanes.iter().skip(self.at + 1);
        let untouched = to_come.all(|lane| lane.with_lots == 0);
        let mut blocks = begun.lanes.iter().zip(&self.lanes);
        let whole = blocks.all(|(block, lane)| lane.count() == block.count);
        // Places are given once all lots of the lane are there, and in turn.
        let fits = |lane: &mut DrawnLane| {
            lane.seen = Vec::new();
            let largest = std::mem::take(&mut lane.largest);
            largest == lane.drawn && (lane.drawn == 0 || lane.has_lots())
        };
        let drawn = self.lanes.iter_mut().all(fits);
        match of_lane && untouched && whole && drawn {
            true => Ok(()),
            false => Err("a draw that contradicts itself"),
        }
    }

    /// The lane that is drawn now.
    pub(crate) fn lane(&self) -> usize {
        self.at
    }

    /// `name`: that of [`Draw::lane`].
    pub(crate) fn step(&mut self, incarnation: u64, name: &LaneName) -> Option<Step> {
        let needs_lots = !self.lanes.get(self.at)?.has_lots();
        let lots = needs_lots.then(|| self.lots(incarnation)).flatten();
        let lane = self.lanes.get_mut(self.at)?;
        let block = self.head.begun.as_mut()?.lanes.get_mut(self.at)?;
        if let (Some(lots), Some(page)) = (lots, lane.pages.get_mut(lane.with_lots)) {
            let before = lane.before.get(lane.with_lots)?;
            for (bit, nth) in page.took_part.iter().zip(*before..) {
                let token = page.no * BITS + bit;
                block.digest = lot::digest_with(&block.digest, token);
                let lot = lots.lot(name, token);
                let lot = match nowserving_bite::is(nowserving_bite::Break::S7Lots) {
                    true => token,
                    false => lot,
                };
                self.order.insert((lot, nth));
            }
            let count = page.took_part.count() as u32;
            page.drawn = vec![0; count as usize];
            lane.with_lots += 1;
            return Some(Step::Lots { count });
        }
        let (_, nth) = self.order.pop_first()?;
        let (from, new) = lane.draw(nth)?;
        let (id, to) = (self.at as u8, block.after + u64::from(new));
        self.pass_drawn();
        Some(Step::Drew { lane: id, from, to })
    }

    /// Goes on to the first lane that is not done.
    pub(crate) fn pass_drawn(&mut self) {
        let mut rest = self.lanes.iter().skip(self.at);
        let next = rest.position(|lane| !lane.is_done());
        self.at = next.map_or(self.lanes.len(), |next| self.at + next);
    }
}

impl DrawnLane {
    /// Takes note of the places of a page; false if one was given before.
    fn sees(&mut self, page: &DrawPage) -> bool {
        let given = page.drawn.iter().filter(|place| **place > 0);
        given.copied().all(|place| {
            let (no, bit) = split(place.into());
            let no = no as usize;
            self.largest = self.largest.max(place);
            self.seen
                .resize(self.seen.len().max(no + 1), Bits::default());
            let is_new = !self.seen[no].contains(bit);
            self.seen[no].set(bit);
            is_new
        })
    }
}
