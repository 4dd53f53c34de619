//! Lists of live tokens, read from where the last page ended.
//!
//! A page ends at a number in each lane. In both orders the tokens of a lane come by their numbers, so every token that
//! lives throughout is on exactly one page, whatever departs, enters or is admitted between two pages.

use std::collections::BTreeMap;

use crate::line::{Lane, Line, order_key};
use crate::{LaneSettings, Live, Token};

/// How far a list has come: the last number of each lane, by id. Lanes without one have not begun.
pub type ListedThrough = BTreeMap<u8, Token>;

/// The order of a list of waiting tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// Lane by lane as the settings list them, each by its numbers.
    #[default]
    Number,
    /// As they would be admitted if seats became free now, over all lanes.
    Service,
}

/// The next waiting token of a lane.
struct Head<'a> {
    id: u8,
    lane: &'a Lane,
    set: &'a LaneSettings,
    /// How many of the lane wait before it.
    nth: u64,
}

impl Line {
    /// The live tokens after these, lane by lane; only of one lane, if given. O(log live) for the first of each lane.
    pub fn live_after<'a>(
        &'a self,
        lane: Option<u8>,
        after: &ListedThrough,
    ) -> impl Iterator<Item = (u8, Token)> + use<'a> {
        let lanes = self.lanes_from(lane, after);
        lanes.into_iter().flat_map(|(id, lane, _, first)| {
            let live = lane.live_range(first..Token::MAX);
            live.map(move |(token, _)| (id, token))
        })
    }

    /// The waiting tokens after these. O(lanes × log waiting) for each.
    pub fn waiting_after<'a>(
        &'a self,
        order: ListOrder,
        lane: Option<u8>,
        after: &ListedThrough,
    ) -> impl Iterator<Item = (u8, Token)> + use<'a> {
        let lanes = self.lanes_from(lane, after).into_iter();
        let heads = lanes.map(|(id, lane, set, first)| Head {
            id,
            lane,
            set,
            nth: lane.waiting.rank(first),
        });
        let mut heads: Vec<Head<'_>> = heads.collect();
        std::iter::from_fn(move || {
            let mut waiting = heads.iter_mut().filter(|head| head.key().is_some());
            // Of equal keys the first one is taken.
            let next = match order {
                ListOrder::Number => waiting.next(),
                ListOrder::Service => waiting.min_by_key(|head| head.key()),
            };
            let next = next?;
            let token = next.lane.waiting.select(next.nth)?;
            next.nth += 1;
            Some((next.id, token))
        })
    }

    /// The place of a waiting token, whatever the line's `position_cap`: its position in its lane, and its turn over all
    /// lanes as in [`crate::Status::turn`]. `None` if it does not wait, or waits for a draw.
    pub fn place_of(&self, lane: u8, token: Token) -> Option<(u64, u64)> {
        let place = self.lanes.get(usize::from(lane))?.waiting.place(token)?;
        if self.is_undrawn() {
            return None;
        }
        let turn = self.turn(self.token_ref(lane, token), place);
        Some((place.ahead + 1, turn))
    }

    /// A live token and its reference, by lane id and number.
    pub fn live_at(&self, lane: u8, token: Token) -> Option<(crate::TokenRef, Live<'_>)> {
        Some((self.token_ref(lane, token), self.live(lane, token)?))
    }

    /// The lanes of the settings, each with the first number after those listed.
    fn lanes_from(
        &self,
        only: Option<u8>,
        after: &ListedThrough,
    ) -> Vec<(u8, &Lane, &LaneSettings, Token)> {
        let lanes = self.listed();
        let lanes = lanes.filter(|(id, _, _)| only.is_none_or(|only| only == *id));
        let from = lanes.map(|(id, lane, set)| {
            let last = after.get(&id).copied().unwrap_or(0);
            (id, lane, set, last.saturating_add(1))
        });
        from.collect()
    }
}

impl Head<'_> {
    /// `None` if no more of its lane wait.
    fn key(&self) -> Option<(bool, i128)> {
        let entered_at_ms = self.lane.waiting.entered_at_ms(self.nth)?;
        let key = order_key(entered_at_ms, self.set.boost_ms);
        Some((!self.set.absolute, key))
    }
}
