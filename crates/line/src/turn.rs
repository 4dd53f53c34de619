//! The place of a waiting token in the order in which seats are given, over all lanes.
//!
//! [`Line::next_lane`] takes again and again the lane whose first token has the least order key. A token with a small key
//! that stands behind one with a larger key, as it was moved there, has to wait for that one. So a token goes as if its key
//! were the largest of its own and those in front of it in its lane. By these keys all waiting tokens are in order, and
//! of each other lane exactly the tokens with smaller keys (or equal ones, if the lane is listed first) go before a token:
//! the one with the largest key in front of it can't be first of all lanes before they have gone, nor they before it
//! otherwise. The keys never fall along a lane, so each other lane's share is found without looking at its tokens.

use crate::TokenRef;
use crate::line::{Lane, Line, order_key};
use crate::waiting::Place;

impl Line {
    /// 1 + the number of tokens that would be admitted before this one, as things are now. O(lanes × log waiting).
    pub(crate) fn turn(&self, at: TokenRef, place: Place) -> u64 {
        let alone = self.order.len() == 1;
        let others = if alone { 0 } else { self.others_before(at) };
        1 + place.ahead + others
    }

    /// How many tokens of the other lanes would be admitted before this one, or before the number if it does not wait.
    fn others_before(&self, at: TokenRef) -> u64 {
        let mut listed = self.listed();
        let Some((_, own, set)) = listed.find(|(id, _, _)| *id == at.lane) else {
            return 0;
        };
        let absolute = set.absolute;
        let own_key = order_key(own.waiting.latest_through(at.token), set.boost_ms);
        let mut is_listed_before = true;
        let mut before = 0;
        for (id, lane, set) in self.listed() {
            if id == at.lane {
                is_listed_before = false;
                continue;
            }
            before += match (set.absolute, absolute) {
                (true, false) => lane.waiting.len(),
                (false, true) => 0,
                _ => {
                    // Of equal keys the lane listed first goes first.
                    let last_key = own_key - i128::from(!is_listed_before);
                    entered_through(lane, last_key + i128::from(set.boost_ms))
                }
            };
        }
        before
    }
}

/// How many wait in the lane before the first one that entered after this time.
fn entered_through(lane: &Lane, last_ms: i128) -> u64 {
    match u64::try_from(last_ms) {
        Ok(last_ms) => lane.waiting.first_after(last_ms),
        Err(_) if last_ms < 0 => 0,
        Err(_) => lane.waiting.len(),
    }
}
