//! The keys that wait to be told of room in the naive line.

use nowserving_line::{
    Forbidden, LaneName, LaneSettings, LineChange, Phase, ROOM_KEYS_MAX, Refused,
};

use crate::naive::{Answer, NaiveLine};
use crate::naive_ops::bad;
use crate::shard::Entry;

impl NaiveLine {
    /// Whether the lanes but this one can hold fewer waiting tokens than the line.
    pub fn keeps_room(&self, name: &LaneName) -> bool {
        let mut left = u64::from(self.settings.queue_limit);
        let mut others = 0;
        for lane in &self.settings.lanes {
            if lane.name == *name {
                continue;
            }
            others += 1;
            let Some(limit) = lane.queue_limit else {
                return false;
            };
            left = left.saturating_sub(limit.into());
        }
        others == 0 || left > 0
    }

    pub fn callback(
        &mut self,
        key: &[u8],
        lane: Option<&LaneName>,
        now_ms: u64,
    ) -> Result<Answer, Refused> {
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        if let Some(place) = self.callers.iter().position(|it| it.1 == key) {
            return Ok(Answer::Callback(Some(self.callers_through(place))));
        }
        let limit = self.settings.callback_limit;
        if limit == 0 {
            return Err(Forbidden::Callback.into());
        }
        if self.find(key).is_some() {
            return Ok(Answer::Callback(None));
        }
        match self.phase() {
            Phase::Closed => return Err(Refused::LineClosed),
            Phase::Draining => return Err(Refused::LineDraining),
            _ => {}
        }
        let lane = lane.or(self.settings.default_lane.as_ref());
        let mut lanes = self.lanes().into_iter();
        let found = lanes.find(|(_, set)| lane.is_none_or(|lane| set.name == *lane));
        let (lane, set) = found.ok_or_else(|| bad("lane"))?;
        let renews = self.settings.quota.is_some_and(|q| q.renew.is_some());
        if self.sold_out() && !renews {
            return Err(Refused::SoldOut);
        }
        let first = self.callers.iter().all(|it| it.0 != lane);
        if first && self.may_offer(lane, &set, now_ms) {
            return Ok(Answer::Callback(None));
        }
        if self.callers.len() >= limit as usize {
            return Err(Refused::CallbacksFull);
        }
        self.callers.push((lane, key.to_vec()));
        self.version += 1;
        let last = self.callers.len() - 1;
        Ok(Answer::Callback(Some(self.callers_through(last))))
    }

    /// How many callers of the same lane there are up to this one.
    fn callers_through(&self, place: usize) -> u64 {
        let lane = self.callers[place].0;
        let before = self.callers[..=place].iter();
        before.filter(|it| it.0 == lane).count() as u64
    }

    pub fn left_to_delete(&self) -> u64 {
        self.live() + self.callers.len() as u64
    }

    fn period_ms(&self) -> u64 {
        self.settings.claim_timeout_ms / 2
    }

    /// Offers count for one period, or two.
    fn offers_at(&self, lane: u8, now_ms: u64) -> (u64, u64, u64) {
        let (mut since_ms, mut recent, mut earlier) =
            self.offers.get(&lane).copied().unwrap_or_default();
        for _ in 0..2 {
            if now_ms >= since_ms + self.period_ms() {
                (since_ms, recent, earlier) = (since_ms + self.period_ms(), 0, recent);
            }
        }
        if recent + earlier == 0 {
            since_ms = now_ms;
        }
        (since_ms, recent, earlier)
    }

    fn may_offer(&self, lane: u8, set: &LaneSettings, now_ms: u64) -> bool {
        let offered = |lane| {
            let (_, recent, earlier) = self.offers_at(lane, now_ms);
            recent + earlier
        };
        let in_all: u64 = self.lanes().iter().map(|(lane, _)| offered(*lane)).sum();
        let without = LaneSettings {
            queue_limit: None,
            ..set.clone()
        };
        self.room(lane, set) > offered(lane) && self.room(lane, &without) > in_all
    }

    /// The first caller whose lane has room.
    fn to_offer(&self, now_ms: u64) -> Option<usize> {
        let lanes = self.lanes();
        self.callers.iter().position(|(lane, _)| {
            let set = lanes.iter().find(|(listed, _)| listed == lane);
            set.is_some_and(|(_, set)| self.may_offer(*lane, set, now_ms))
        })
    }

    /// A caller of the first lane that is not in the settings any more.
    fn lost_caller(&self) -> Option<usize> {
        let lanes = self.lanes();
        let listed = |lane: u8| lanes.iter().any(|it| it.0 == lane);
        let lost = (0..self.callers.len()).filter(|place| !listed(self.callers[*place].0));
        lost.min_by_key(|place| self.callers[*place].0)
    }

    pub fn tell_callers(&mut self, entry: &mut Entry<'_>) {
        while entry.work > 0
            && let Some(first) = self.to_offer(entry.now_ms)
        {
            let lane = self.callers[first].0;
            let mut keys = Vec::new();
            while entry.work > 0
                && keys.len() < ROOM_KEYS_MAX
                && let Some(next) = self.to_offer(entry.now_ms)
                && self.callers[next].0 == lane
            {
                entry.work -= 1;
                let (since_ms, recent, earlier) = self.offers_at(lane, entry.now_ms);
                self.offers.insert(lane, (since_ms, recent + 1, earlier));
                keys.push(self.callers.remove(next).1.into());
            }
            let lane = self.table[usize::from(lane)].clone();
            self.line_event(LineChange::Room { lane, keys }, entry.events);
        }
        while entry.work > 0
            && let Some(lost) = self.lost_caller()
        {
            entry.work -= 1;
            self.callers.remove(lost);
        }
    }

    pub fn caller_entered(&mut self, key: Option<&[u8]>, lane: u8, now_ms: u64) {
        self.callers.retain(|it| Some(&*it.1) != key);
        let (since_ms, mut recent, mut earlier) = self.offers_at(lane, now_ms);
        match earlier {
            0 => recent = recent.saturating_sub(1),
            _ => earlier -= 1,
        }
        self.offers.insert(lane, (since_ms, recent, earlier));
    }

    pub fn note_callers_due(&mut self, now_ms: u64) {
        let now = self.to_offer(now_ms).is_some() || self.lost_caller().is_some();
        let with_room = |lane: u8, set: &LaneSettings| {
            self.callers.iter().any(|it| it.0 == lane) && self.room(lane, set) > 0
        };
        let closed = self.phase() == Phase::Closed;
        let lanes = self.lanes();
        self.callers_due_ms = if now && !closed {
            Some(now_ms)
        } else if lanes.iter().any(|(lane, set)| with_room(*lane, set)) {
            let offers = lanes.iter().map(|(lane, _)| self.offers_at(*lane, now_ms));
            let offers = offers.filter(|(_, recent, earlier)| recent + earlier > 0);
            offers
                .map(|(since_ms, ..)| since_ms + self.period_ms())
                .min()
        } else {
            None
        };
    }
}
