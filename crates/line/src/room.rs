//! What is free: seats, numbers, units of the quota and of the rate; and the pointers that say so.

use crate::lane::Lane;
use crate::line::Line;
use crate::{LaneBoard, LaneSettings, NUMBER_MAX, Phase, Reason, Refused, Token};

impl Line {
    /// Seats that nobody holds.
    pub(crate) fn free(&self) -> u64 {
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S10) {
            return u64::from(self.settings.seats + 1).saturating_sub(self.held());
        }
        u64::from(self.settings.seats).saturating_sub(self.held())
    }

    /// How many more may be live, by the line's limits.
    fn room(&self) -> u64 {
        let limit = u64::from(self.settings.seats) + u64::from(self.settings.queue_limit);
        limit.saturating_sub(self.live_count())
    }

    fn completed(&self) -> u64 {
        self.gone_counts[usize::from(Reason::Completed.code())]
    }

    /// How many more the quota lets be admitted.
    pub(crate) fn units_left(&self) -> u64 {
        let taken = self.completed().saturating_add(self.held());
        let quota = self.settings.quota.as_ref();
        quota.map_or(u64::MAX, |quota| quota.total.saturating_sub(taken))
    }

    /// Whether all of the quota has been completed: who waits then waits for nothing.
    pub(crate) fn sold_out(&self) -> bool {
        let quota = self.settings.quota.as_ref();
        quota.is_some_and(|quota| self.completed() >= quota.total)
    }

    /// How many more the quota lets enter. Once it is completed nobody, whatever its standby share:
    /// a newcomer would be sent away at once.
    pub(crate) fn quota_room(&self) -> u64 {
        let Some(quota) = &self.settings.quota else {
            return u64::MAX;
        };
        if self.sold_out() {
            return 0;
        }
        let taken = self.completed().saturating_add(self.live_count());
        quota.entries_max().saturating_sub(taken)
    }

    /// How many more the rate lets be admitted now.
    fn rate_units(&self, now_ms: u64) -> u64 {
        match (&self.settings.admission_rate, &self.bucket) {
            (Some(rate), Some(bucket)) => bucket.units(rate, now_ms),
            _ => u64::MAX,
        }
    }

    /// Whether the next one may have a seat, once the rate allows it.
    pub(crate) fn may_admit_but_for_rate(&self) -> bool {
        self.phase().admits() && self.free() > 0 && self.units_left() > 0
    }

    /// Whether the next one may have a seat now.
    pub(crate) fn may_admit(&self, now_ms: u64) -> bool {
        self.may_admit_but_for_rate() && self.rate_units(now_ms) > 0
    }

    /// How many newcomers would be admitted on entering now.
    fn at_once(&self, now_ms: u64) -> u64 {
        if self.phase() != Phase::Open || self.waiting() > 0 {
            return 0;
        }
        let seats = self.free().min(self.units_left());
        seats.min(self.rate_units(now_ms))
    }

    /// How many numbers the lane could give now.
    pub(crate) fn lane_room(&self, lane: &Lane, set: &LaneSettings, now_ms: u64) -> u64 {
        if !self.phase().gives_numbers() {
            return 0;
        }
        let room = self.room().min(self.quota_room());
        let room = room.min(NUMBER_MAX.saturating_sub(lane.issued()));
        match set.queue_limit {
            None => room,
            Some(limit) => {
                let most = u64::from(limit).saturating_add(self.at_once(now_ms));
                room.min(most.saturating_sub(lane.waiting.len()))
            }
        }
    }

    /// What a lane without room answers: which limit it is.
    pub(crate) fn full(&self, lane: &Lane, set: &LaneSettings) -> Refused {
        match set.queue_limit {
            Some(limit) if self.room() > 0 && lane.has_numbers() => Refused::LaneFull {
                lane: lane.name.clone(),
                limit,
            },
            _ => Refused::LineFull,
        }
    }

    pub(crate) fn lane_board(
        &self,
        id: u8,
        lane: &Lane,
        set: &LaneSettings,
        now_ms: u64,
    ) -> LaneBoard {
        LaneBoard {
            lane: lane.name.clone(),
            lane_id: id,
            done_through: lane.done_through(),
            admitted_through: self.admitted_through(id, lane),
            accepts_through: lane.issued() + self.lane_room(lane, set, now_ms),
            next_token: lane.next_token,
            waiting: lane.waiting.len(),
        }
    }

    pub(crate) fn admitted_through(&self, id: u8, lane: &Lane) -> Token {
        if let Some(first) = lane.waiting.first() {
            return first - 1;
        }
        let ahead = self.promised(id);
        lane.issued().saturating_add(ahead).min(NUMBER_MAX)
    }

    /// Numbers of the lane, not yet issued, that are sure not to wait. With several lanes the free
    /// seats may go to another one, with a rate too many may come at once: then none.
    fn promised(&self, id: u8) -> u64 {
        let alone = self.order == [id];
        if alone && self.settings.admission_rate.is_none() && self.phase() == Phase::Open {
            self.free().min(self.units_left())
        } else {
            0
        }
    }
}
