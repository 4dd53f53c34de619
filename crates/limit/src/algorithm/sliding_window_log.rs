//! Sliding window log.
//!
//! The rule: the time of each allowed hit is remembered, and a request is allowed if no more than `requests_per_unit`
//! hits, its own included, lie in the unit of time that ends now. A hit counts for exactly one unit: no longer at the
//! µs at which that is over. Refused requests are not recorded: otherwise a caller that keeps trying would never be
//! let in again. (Figma, "An alternative approach to rate limiting", 2017, describes the log in Redis; it records
//! refused ones.) In no unit of time, wherever it begins, does more than the limit pass.
//!
//! It is the only counter that grows: 16 bytes for each hit at a time of its own, so at most
//! [`LOG_REQUESTS_MAX`](crate::LOG_REQUESTS_MAX) times that. All logs together are bounded as well ([`LogHits`]).
//!
//! Idle: one unit after the newest hit.

use std::collections::VecDeque;

use nowserving_codec::{Codec, Malformed, Reader, Writer};

use super::SLIP_US;
use crate::{Answer, Limit};

/// Hits at one time.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHits {
    pub at_us: u64,
    pub hits: u32,
}

/// Hits that were added to a log since its last checkpoint, or a part of them.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// The log begins anew with this part.
    pub begins: bool,
    /// How long a hit counts, in µs.
    pub period_us: u64,
    /// In ascending order of time, each time once.
    pub hits: Vec<LogHits>,
}

#[derive(Debug, Clone, Default)]
pub struct SlidingWindowLog {
    /// In ascending order of time, each time once, none without hits.
    hits: VecDeque<LogHits>,
    /// How many hits these are.
    total: u32,
    /// How many of the oldest are in the last checkpoint.
    saved: u32,
    /// What the checkpoint has is not the beginning of this log.
    replaces_saved: bool,
    period_us: u64,
}

/// Whole, as in the last checkpoint.
impl Codec for SlidingWindowLog {
    fn encode(&self, to: &mut Writer) {
        self.period_us.encode(to);
        self.hits.encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self::restored(Codec::decode(from)?, Codec::decode(from)?))
    }
}

impl SlidingWindowLog {
    /// Forgets what is over.
    pub fn settle(&mut self, limit: &Limit, now_us: u64) {
        self.period_us = limit.period_us();
        self.forget(now_us);
        let newest_us = self.hits.back().map_or(0, |newest| newest.at_us);
        if newest_us > now_us.saturating_add(SLIP_US) {
            self.come_back(now_us);
        }
    }

    /// After a clock leapt and came back: what it hit in between was hit now.
    fn come_back(&mut self, now_us: u64) {
        let mut hits = 0_u32;
        while let Some(newest) = self.hits.pop_back_if(|newest| newest.at_us >= now_us) {
            hits = hits.saturating_add(newest.hits);
        }
        let at_us = now_us;
        self.hits.push_back(LogHits { at_us, hits });
        self.replaces_saved = true;
    }

    fn forget(&mut self, now_us: u64) {
        while let Some(oldest) = self.hits.front()
            && oldest.at_us.saturating_add(self.period_us) <= now_us
        {
            self.total = self.total.saturating_sub(oldest.hits);
            self.hits.pop_front();
            self.saved = self.saved.saturating_sub(1);
        }
    }

    pub fn decide(&self, limit: &Limit, now_us: u64, hits: u32) -> Answer {
        let with_hits = u64::from(self.total) + u64::from(hits);
        let too_many = with_hits.saturating_sub(limit.capacity().into());
        let allowed = too_many == 0;
        let left = limit.capacity().saturating_sub(self.total);
        let idle_at_us = match (allowed, hits) {
            (true, 1..) => self.time_of(now_us).saturating_add(limit.period_us()),
            _ => self.idle_at_us(),
        };
        Answer {
            allowed,
            limit: limit.requests_per_unit(),
            remaining: if allowed { left - hits } else { left },
            reset_us: idle_at_us.saturating_sub(now_us),
            retry_after_us: (!allowed).then(|| self.free_in_us(too_many, now_us)),
            delay_us: 0,
        }
    }

    /// Counts the hits. Without room for another time they join the newest hits, all at the later time: so some count
    /// longer than they have to, and the limit holds.
    pub fn record(&mut self, now_us: u64, hits: u32, has_room: bool) {
        if hits == 0 {
            return;
        }
        let at_us = self.time_of(now_us);
        self.total = self.total.saturating_add(hits);
        match self.hits.back_mut() {
            Some(newest) if newest.at_us == at_us || !has_room => {
                // The checkpoint would have these hits twice.
                self.replaces_saved |= newest.at_us != at_us;
                newest.at_us = at_us;
                newest.hits = newest.hits.saturating_add(hits);
                self.saved = self.saved.min(self.hits.len() as u32 - 1);
            }
            _ => self.hits.push_back(LogHits { at_us, hits }),
        }
    }

    /// When the newest hits were; 0 without any.
    pub fn newest_us(&self) -> u64 {
        self.hits.back().map_or(0, |newest| newest.at_us)
    }

    /// Gives back hits of this time, if they are not over.
    pub fn give_back(&mut self, now_us: u64, hits: u64, at_us: u64) {
        let place = self.hits.binary_search_by_key(&at_us, |it| it.at_us);
        let is_over = at_us.saturating_add(self.period_us) <= now_us;
        let Some(place) = place.ok().filter(|_| !is_over) else {
            return;
        };
        let Some(there) = self.hits.get_mut(place) else {
            return;
        };
        let given = u32::try_from(hits).unwrap_or(u32::MAX).min(there.hits);
        there.hits -= given;
        self.total = self.total.saturating_sub(given);
        let is_empty = there.hits == 0;
        if place < self.saved as usize {
            // A part only adds to what the checkpoint has.
            self.replaces_saved = true;
            self.saved -= u32::from(is_empty);
        }
        if is_empty {
            self.hits.remove(place);
        }
    }

    pub fn idle_at_us(&self) -> u64 {
        let newest = self.hits.back();
        newest.map_or(0, |hits| hits.at_us.saturating_add(self.period_us))
    }

    /// A log that remembers exactly this, all of it saved: for what a snapshot says. The times ascend.
    pub fn restored(period_us: u64, hits: Vec<LogHits>) -> Self {
        let total = hits.iter().map(|hits| hits.hits);
        Self {
            total: total.fold(0, u32::saturating_add),
            saved: hits.len() as u32,
            hits: hits.into(),
            replaces_saved: false,
            period_us,
        }
    }

    /// How long a hit counts, in µs.
    pub fn period_us(&self) -> u64 {
        self.period_us
    }

    pub fn hits(&self) -> impl ExactSizeIterator<Item = LogHits> {
        self.hits.iter().copied()
    }

    /// The next part of what the last checkpoint lacks, `max` times at most, and whether that is all of it. Those are
    /// then counted as in the checkpoint. A log that begins anew is one part: it replaces what the checkpoint has, and a
    /// leader that dies before the next part must not take that along.
    pub fn next_part(&mut self, max: usize) -> (LogPart, bool) {
        let begins = std::mem::take(&mut self.replaces_saved);
        let max = if begins { usize::MAX } else { max };
        if begins {
            self.saved = 0;
        }
        let saved = self.saved as usize;
        let part: Vec<_> = self.hits.iter().skip(saved).take(max).copied().collect();
        self.saved += part.len() as u32;
        let part = LogPart {
            begins,
            period_us: self.period_us,
            hits: part,
        };
        (part, self.saved as usize == self.hits.len())
    }

    /// The next [`SlidingWindowLog::next_part`] begins with the oldest hit: parts were lost.
    pub fn save_all_again(&mut self) {
        self.replaces_saved = true;
    }

    /// Adds a part of another log, which this one follows. Adding one again changes nothing.
    pub fn merge(&mut self, part: &LogPart) {
        if part.begins {
            self.hits.clear();
            self.total = 0;
        }
        self.period_us = part.period_us;
        for more in &part.hits {
            self.merge_hits(*more);
        }
        // Whatever the time is, it is not before the newest hit.
        self.forget(self.hits.back().map_or(0, |newest| newest.at_us));
        self.saved = self.hits.len() as u32;
    }

    fn merge_hits(&mut self, more: LogHits) {
        let newest = self.hits.back_mut();
        let known = match newest {
            Some(newest) if newest.at_us > more.at_us => return,
            Some(newest) if newest.at_us == more.at_us => {
                let known = newest.hits;
                newest.hits = known.max(more.hits);
                known
            }
            _ => {
                self.hits.push_back(more);
                0
            }
        };
        let added = more.hits.saturating_sub(known);
        self.total = self.total.saturating_add(added);
    }

    /// A clock that went back counts as one that stood still.
    fn time_of(&self, now_us: u64) -> u64 {
        let newest = self.hits.back();
        newest.map_or(now_us, |hits| hits.at_us.max(now_us))
    }

    /// When that many of the oldest hits are over.
    fn free_in_us(&self, hits: u64, now_us: u64) -> u64 {
        let mut freed = 0;
        let mut oldest = self.hits.iter();
        let last = oldest.find(|oldest| {
            freed += u64::from(oldest.hits);
            freed >= hits
        });
        let free_at_us = last.map_or(now_us, |last| last.at_us.saturating_add(self.period_us));
        free_at_us.saturating_sub(now_us)
    }
}

/// Logs are equal if they count the same hits, whatever was saved of them.
impl PartialEq for SlidingWindowLog {
    fn eq(&self, other: &Self) -> bool {
        self.hits == other.hits
    }
}

impl Eq for SlidingWindowLog {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Algorithm, LimitParts, Unit};

    const SECOND_US: u64 = 1_000_000;

    fn limit(requests_per_unit: u32) -> Limit {
        let parts = LimitParts {
            algorithm: Algorithm::SlidingWindowLog,
            ..Limit::fixed_window(requests_per_unit, Unit::Minute)
                .parts()
                .clone()
        };
        Limit::new(parts).unwrap()
    }

    fn takes(log: &mut SlidingWindowLog, limit: &Limit, now_us: u64, has_room: bool) -> bool {
        log.settle(limit, now_us);
        let answer = log.decide(limit, now_us, 1);
        if answer.allowed {
            log.record(now_us, 1, has_room);
        }
        answer.allowed
    }

    /// The article's example, 2 a minute, but for its last step: as the one refused at 0:50 is not recorded, the one at
    /// 1:40 is allowed with room to spare.
    #[test]
    fn two_in_any_minute_and_refused_ones_do_not_count() {
        let (limit, mut log) = (limit(2), SlidingWindowLog::default());
        for (second, allowed) in [
            (1, true),
            (30, true),
            (50, false),
            (100, true),
            (101, true),
            (102, false),
        ] {
            let now_us = second * SECOND_US;
            assert_eq!(takes(&mut log, &limit, now_us, true), allowed, "{second}");
        }
        let refused = log.decide(&limit, 102 * SECOND_US, 1);
        assert_eq!(refused.retry_after_us, Some(58 * SECOND_US));
        assert_eq!(log.idle_at_us(), 161 * SECOND_US);
    }

    #[test]
    fn a_hit_counts_for_exactly_one_unit() {
        let (limit, mut log) = (limit(1), SlidingWindowLog::default());
        assert!(takes(&mut log, &limit, 5, true));
        assert!(!takes(&mut log, &limit, 60 * SECOND_US + 4, true));
        assert!(takes(&mut log, &limit, 60 * SECOND_US + 5, true));
    }

    #[test]
    fn a_hit_by_a_clock_that_slipped_counts_as_late_as_the_newest() {
        let (limit, mut log) = (limit(3), SlidingWindowLog::default());
        assert!(takes(&mut log, &limit, 60 * SECOND_US, true));
        assert!(takes(&mut log, &limit, 55 * SECOND_US, true));
        assert!(takes(&mut log, &limit, 61 * SECOND_US, true));
        let refused = log.decide(&limit, 61 * SECOND_US, 1);
        assert_eq!(refused.retry_after_us, Some(59 * SECOND_US));
        assert_eq!(log.hits().len(), 2);
    }

    #[test]
    fn a_leap_into_the_future_does_not_block() {
        let (limit, mut log) = (limit(3), SlidingWindowLog::default());
        assert!(takes(&mut log, &limit, 5 * SECOND_US, true));
        assert!(takes(&mut log, &limit, 60 * SECOND_US, true));
        assert!(takes(&mut log, &limit, 62 * SECOND_US, true));
        let slipped = log.clone();
        assert!(!takes(&mut log, &limit, 52 * SECOND_US, true), "by 10 s");
        assert_eq!(log, slipped);
        assert!(!takes(&mut log, &limit, 51 * SECOND_US, true));
        let hits: Vec<_> = log
            .hits()
            .map(|hits| (hits.at_us / SECOND_US, hits.hits))
            .collect();
        assert_eq!(hits, [(5, 1), (51, 2)]);
        assert!(takes(&mut log, &limit, 65 * SECOND_US, true));
    }

    #[test]
    fn without_room_hits_count_longer_and_the_limit_holds() {
        let (limit, mut log) = (limit(3), SlidingWindowLog::default());
        assert!(takes(&mut log, &limit, 0, true));
        assert!(takes(&mut log, &limit, 10 * SECOND_US, false));
        assert_eq!(log.hits().len(), 1);
        assert!(takes(&mut log, &limit, 20 * SECOND_US, false));
        assert!(!takes(&mut log, &limit, 60 * SECOND_US, false));
        assert!(takes(&mut log, &limit, 80 * SECOND_US, false));
    }

    #[test]
    fn parts_make_the_same_log_also_when_they_come_twice() {
        let (limit, mut log) = (limit(100), SlidingWindowLog::default());
        let mut copy = SlidingWindowLog::default();
        for second in 0..50 {
            let has_room = second % 7 != 6;
            takes(&mut log, &limit, second * SECOND_US, has_room);
            takes(&mut log, &limit, second * SECOND_US, has_room);
            if second % 5 == 4 {
                save(&mut log, &mut copy);
                assert_eq!(log, copy, "at {second} s");
                assert_eq!(log.total, copy.total);
            }
        }
        log.save_all_again();
        save(&mut log, &mut copy);
        assert_eq!((log.total, log), (copy.total, copy));
    }

    fn save(log: &mut SlidingWindowLog, copy: &mut SlidingWindowLog) {
        loop {
            let (part, is_all) = log.next_part(3);
            copy.merge(&part);
            copy.merge(&LogPart {
                begins: false,
                ..part
            });
            if is_all {
                return;
            }
        }
    }
}
