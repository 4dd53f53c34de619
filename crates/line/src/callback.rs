//! Keys that were refused and wait to be told of room: [`crate::Op::Callback`].
//!
//! Each lane has a list, in the order of asking over the whole line. When the lane has room, a line event names the
//! next keys, no more than there is room for, and they are off the list. Being named reserves nothing: whoever enters
//! first has the place. But a place that was offered is not offered again until somebody enters the lane, or for about
//! `claim_timeout_ms`; otherwise one free place would call the whole list within a moment. Only the number of offers
//! is kept for that, not who has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_codec::Codec;

use crate::line::{Lane, Line};
use crate::seldom::Seldom;
use crate::transitions::ApplyCtx;
use crate::waiting::WaitingSet;
use crate::{
    BadField, Forbidden, KEY_BYTES_MAX, LaneName, LaneSettings, LineChange, NUMBER_MAX, Refused,
    Reply, Timestamp,
};

/// The largest `callback_limit`; the smallest is 0.
pub const CALLBACK_LIMIT_MAX: u32 = 1_000_000;
/// The most keys that one [`LineChange::Room`] names.
pub const ROOM_KEYS_MAX: usize = 100;

/// The keys that wait to be told of room in one lane.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    keys: Seldom<Keys>,
    pub(crate) offers: Offers,
}

#[derive(Debug, Default)]
struct Keys {
    /// In the order in which they asked. The times in it are not used.
    numbers: WaitingSet,
    by_number: BTreeMap<u64, Arc<[u8]>>,
}

/// Places that were offered to callers and may not be taken yet.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    /// Made since `since_ms` …
    pub recent: u64,
    /// … and in the period before.
    pub earlier: u64,
    /// On the service clock.
    pub since_ms: u64,
}

/// A key that waits to be told of room.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The lane's id.
    pub lane: u8,
    /// Which one it was of all that ever asked in this line.
    pub number: u64,
    pub key: Arc<[u8]>,
}

impl Offers {
    pub(crate) fn count(self) -> u64 {
        self.recent.saturating_add(self.earlier)
    }

    /// For dumps: whether a lane can have made them.
    pub(crate) fn is_plausible(self) -> bool {
        self.recent.max(self.earlier).max(self.since_ms) <= NUMBER_MAX
    }

    /// An offer counts for one to two periods.
    fn at(self, now_ms: u64, period_ms: u64) -> Self {
        let passed_ms = now_ms.saturating_sub(self.since_ms);
        let (recent, earlier, since_ms) = if passed_ms >= period_ms.saturating_mul(2) {
            (0, 0, now_ms)
        } else if passed_ms >= period_ms {
            (0, self.recent, self.since_ms.saturating_add(period_ms))
        } else {
            return self;
        };
        Self {
            recent,
            earlier,
            since_ms,
        }
    }

    fn add(&mut self, now_ms: u64, period_ms: u64) {
        *self = self.at(now_ms, period_ms);
        if self.count() == 0 {
            self.since_ms = now_ms;
        }
        self.recent = self.recent.saturating_add(1);
    }

    /// Somebody has entered the lane.
    fn take(&mut self, now_ms: u64, period_ms: u64) {
        *self = self.at(now_ms, period_ms);
        if self.earlier > 0 {
            self.earlier -= 1;
        } else {
            self.recent = self.recent.saturating_sub(1);
        }
    }
}

impl Callers {
    pub(crate) fn len(&self) -> u64 {
        self.keys.get().map_or(0, |keys| keys.numbers.len())
    }

    pub(crate) fn add(&mut self, number: u64, key: Arc<[u8]>) {
        let keys = self.keys.get_mut();
        keys.numbers.push(number, Timestamp::default(), ());
        keys.by_number.insert(number, key);
    }

    fn remove(&mut self, number: u64) -> Option<Arc<[u8]>> {
        let keys = self.keys.get_mut();
        keys.numbers.remove(number);
        keys.by_number.remove(&number)
    }

    fn first(&self) -> Option<u64> {
        self.keys.get()?.numbers.first()
    }

    fn position(&self, number: u64) -> u64 {
        self.keys.get().map_or(0, |keys| keys.numbers.rank(number)) + 1
    }

    /// From this place on, 0 being the first.
    pub(crate) fn at(&self, place: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>)> {
        let keys = self.keys.get().into_iter().flat_map(move |keys| {
            let from = keys.numbers.select(place).unwrap_or(u64::MAX);
            keys.by_number.range(from..)
        });
        keys.map(|(number, key)| (*number, key))
    }

    /// For dumps: whether this number is larger than all others.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        let last = self
            .keys
            .get()
            .and_then(|keys| keys.by_number.last_key_value());
        last.is_none_or(|(last, _)| *last < number)
    }
}

impl Line {
    /// The refusal that `callback` would get now. A leader refuses by this without a log entry.
    pub fn would_refuse_callback(
        &self,
        key: &[u8],
        lane: Option<&LaneName>,
        now_ms: u64,
    ) -> Option<Refused> {
        self.callback_now(key, lane, now_ms).err()
    }

    /// The line keeps a place for a repetition until it is being deleted, and room for a key that has a live token: `enter` answers that.
    pub(crate) fn callback(
        &mut self,
        key: &[u8],
        lane: Option<&LaneName>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<Reply, Refused> {
        let position = match self.callback_now(key, lane, ctx.now_ms)? {
            Callback::Room => None,
            Callback::Waits { position } => Some(position),
            Callback::New { lane } => Some(self.add_caller(lane, key.into())),
        };
        Ok(Reply::Callback { position })
    }

    fn add_caller(&mut self, id: u8, key: Arc<[u8]>) -> u64 {
        self.called_back += 1;
        let number = self.called_back;
        self.callers.insert(key.clone(), (id, number));
        let callers = &mut self.lanes[usize::from(id)].callers;
        callers.add(number, key);
        self.next_version();
        self.lanes[usize::from(id)].callers.len()
    }

    fn callback_now(
        &self,
        key: &[u8],
        lane: Option<&LaneName>,
        now_ms: u64,
    ) -> Result<Callback, Refused> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(BadField::new("key", "1 to 128 bytes").into());
        }
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        if let Some((lane, number)) = self.callers.get(key) {
            let callers = &self.lanes[usize::from(*lane)].callers;
            let position = callers.position(*number);
            return Ok(Callback::Waits { position });
        }
        let limit = self.settings.callback_limit;
        if limit == 0 {
            return Err(Forbidden::Callback.into());
        }
        if self.find(key).is_some() {
            return Ok(Callback::Room);
        }
        let (id, lane, set) = self.newcomers_lane(lane)?;
        let renews = self.settings.quota.is_some_and(|it| it.renew.is_some());
        if self.sold_out() && !renews {
            return Err(Refused::SoldOut);
        }
        if lane.callers.len() == 0 && self.has_room_to_offer(lane, set, now_ms) {
            return Ok(Callback::Room);
        }
        if self.callers.len() as u64 >= limit.into() {
            return Err(Refused::CallbacksFull);
        }
        Ok(Callback::New { lane: id })
    }

    /// Whether the lane has room that was not offered to others lately. The line's own room is shared by its lanes.
    fn has_room_to_offer(&self, lane: &Lane, set: &LaneSettings, now_ms: u64) -> bool {
        let period_ms = self.offer_period_ms();
        let offered = |lane: &Lane| lane.callers.offers.at(now_ms, period_ms).count();
        let in_all: u64 = self.listed().map(|(_, lane, _)| offered(lane)).sum();
        self.lane_capacity(lane, set, now_ms) > offered(lane) && self.line_capacity() > in_all
    }

    fn offer_period_ms(&self) -> u64 {
        self.settings.claim_timeout_ms / 2
    }

    /// A key has entered: it needs not be told any more. A newcomer takes a place, which may be one that was offered.
    pub(crate) fn callback_entered(&mut self, key: Option<&[u8]>, id: u8, now_ms: u64) {
        let caller = key.and_then(|key| self.callers.remove(key));
        if let Some((lane, number)) = caller {
            self.lanes[usize::from(lane)].callers.remove(number);
        }
        let period_ms = self.offer_period_ms();
        let offers = &mut self.lanes[usize::from(id)].callers.offers;
        if offers.count() > 0 {
            offers.take(now_ms, period_ms);
        }
    }

    /// Names the next callers while there is room, and drops those of lanes that the settings have no more; as far as
    /// the entry's work limit goes.
    pub(crate) fn tell_callers(&mut self, ctx: &mut ApplyCtx<'_>) {
        while *ctx.work_left > 0
            && let Some(id) = self.next_to_offer(ctx.now_ms)
        {
            self.offer_room(id, ctx);
        }
        while *ctx.work_left > 0
            && let Some(id) = self.lane_of_lost_callers()
        {
            self.drop_first_caller(id);
            *ctx.work_left -= 1;
        }
    }

    /// Whether [`Line::tell_callers`] has something to do.
    pub(crate) fn has_callers_to_tell(&self, now_ms: u64) -> bool {
        self.next_to_offer(now_ms).is_some() || self.lane_of_lost_callers().is_some()
    }

    /// When offers lapse that keep others from being told (service clock).
    pub(crate) fn next_offer_ms(&self, now_ms: u64) -> Option<u64> {
        let waits = |(_, lane, set): (u8, &Lane, &LaneSettings)| {
            lane.callers.len() > 0 && self.lane_capacity(lane, set, now_ms) > 0
        };
        if self.callers.is_empty() || !self.listed().any(waits) {
            return None;
        }
        let period_ms = self.offer_period_ms();
        let offers = self.listed().map(|(_, lane, _)| lane.callers.offers);
        let offers = offers.map(|offers| offers.at(now_ms, period_ms));
        let offers = offers.filter(|offers| offers.count() > 0);
        let lapse = offers.map(|offers| offers.since_ms.saturating_add(period_ms));
        lapse.min()
    }

    /// Drops all callers, as far as the entry's work limit goes: the line is being deleted.
    pub(crate) fn drop_callers(&mut self, ctx: &mut ApplyCtx<'_>) {
        for id in 0..self.lanes.len() as u8 {
            while *ctx.work_left > 0 && self.drop_first_caller(id).is_some() {
                *ctx.work_left -= 1;
            }
        }
    }

    /// One event, of one lane.
    fn offer_room(&mut self, id: u8, ctx: &mut ApplyCtx<'_>) {
        let period_ms = self.offer_period_ms();
        let mut keys = Vec::new();
        while *ctx.work_left > 0
            && keys.len() < ROOM_KEYS_MAX
            && self.next_to_offer(ctx.now_ms) == Some(id)
            && let Some(key) = self.drop_first_caller(id)
        {
            let offers = &mut self.lanes[usize::from(id)].callers.offers;
            offers.add(ctx.now_ms, period_ms);
            keys.push(key);
            *ctx.work_left -= 1;
        }
        let lane = self.lanes[usize::from(id)].name.clone();
        let what = LineChange::Room { lane, keys };
        self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
    }

    /// Of the lanes with room, the one whose first caller asked first.
    fn next_to_offer(&self, now_ms: u64) -> Option<u8> {
        if self.callers.is_empty() {
            return None;
        }
        let first = self.listed().filter_map(|(id, lane, set)| {
            let first = lane.callers.first()?;
            let has_room = self.has_room_to_offer(lane, set, now_ms);
            has_room.then_some((first, id))
        });
        first.min().map(|(_, id)| id)
    }

    fn lane_of_lost_callers(&self) -> Option<u8> {
        if self.callers.is_empty() {
            return None;
        }
        let mut lanes = (0..).zip(&self.lanes);
        let lost = lanes.find(|(id, lane)| lane.callers.len() > 0 && !self.order.contains(id));
        lost.map(|(id, _)| id)
    }

    fn drop_first_caller(&mut self, id: u8) -> Option<Arc<[u8]>> {
        let callers = &mut self.lanes[usize::from(id)].callers;
        let number = callers.first()?;
        let key = callers.remove(number)?;
        self.callers.remove(&key);
        Some(key)
    }
}

/// What becomes of a callback.
enum Callback {
    /// It need not wait: it can enter.
    Room,
    /// It is on the list already.
    Waits { position: u64 },
    /// It goes on the list.
    New { lane: u8 },
}
