//! Free capacity: seats, numbers, the quota and the admission rate. Here a full line is refused, and here
//! stands the reason why the next token is not admitted.

use crate::line::{Lane, Line};
use crate::{
    LaneBoard, LaneName, LaneSettings, NUMBER_MAX, Phase, QUEUE_LIMIT_MAX, Reason, Refused,
    RefusedCode, SEATS_MAX, Token,
};

/// The most live tokens of a line that holds nobody back: as many as settings can allow. Memory is bounded.
pub(crate) const LIVE_MAX: u64 = SEATS_MAX as u64 + QUEUE_LIMIT_MAX as u64;

/// A forecast of how many the quota is enough for begins as if so many visits had used all that their seats reserved.
const VISITS_ASSUMED: u128 = 4;

/// The reason why the next waiting token is not admitted. Of several reasons, the first in this order:
/// removing a later one alone would admit nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBackBy {
    /// No token waits.
    Nothing,
    /// The phase does not admit.
    Phase(Phase),
    /// Those who waited for the opening are being numbered anew.
    Draw,
    /// The quota is used up.
    Quota,
    /// Every seat is held.
    Seats,
    /// Nobody is admitted who is not called ([`crate::Admission::Called`]).
    Called,
    /// The token bucket of the admission rate is empty.
    AdmissionRate {
        /// When it lets the next token pass (service clock).
        next_at_ms: u64,
    },
    /// No reason is left: the waiting tokens are being admitted, at most [`crate::WORK_MAX`] a log entry.
    Admitting,
}

/// What a lane of the settings holds, and how much more it takes: for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneUse<'a> {
    /// The lane's id, as in events.
    pub id: u8,
    pub lane: &'a LaneName,
    pub waiting: u64,
    /// Tokens with a seat that they have not claimed.
    pub admitted: u64,
    /// Tokens with a seat that they have claimed.
    pub in_checkout: u64,
    /// The lane's own.
    pub queue_limit: Option<u32>,
    /// So many more newcomers would get a number, before one is refused because the line or the lane is full. `None`
    /// while fullness is not what refuses them: the gate holds nobody back, or the phase gives no numbers.
    pub room: Option<u64>,
}

impl HeldBackBy {
    /// What [`HeldBackBy::as_str`] gives for a line in which somebody waits.
    pub const WORDS: [&str; 7] = [
        "phase",
        "draw",
        "quota",
        "seats",
        "called",
        "admission_rate",
        "admitting",
    ];

    /// As the protocol spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldBackBy::Nothing => "nothing",
            HeldBackBy::Phase(_) => "phase",
            HeldBackBy::Draw => "draw",
            HeldBackBy::Quota => "quota",
            HeldBackBy::Seats => "seats",
            HeldBackBy::Called => "called",
            HeldBackBy::AdmissionRate { .. } => "admission_rate",
            HeldBackBy::Admitting => "admitting",
        }
    }
}

impl Line {
    pub(crate) fn free_seats(&self) -> u64 {
        if nowserving_bite::is(nowserving_bite::Break::S10) {
            return u64::from(self.seats() + 1).saturating_sub(self.held());
        }
        u64::from(self.seats()).saturating_sub(self.held())
    }

    /// How many more tokens may be live by `seats` and `queue_limit`. While the gate holds nobody back, seats do not
    /// count, so only those are counted who wait for the phase.
    fn capacity(&self) -> u64 {
        let limit = u64::from(self.seats()) + u64::from(self.settings.queue_limit);
        if self.holds_back() {
            return limit.saturating_sub(self.live_count());
        }
        let room = LIVE_MAX.saturating_sub(self.live_count());
        match self.phase().admits() && !self.is_undrawn() {
            true => room,
            false => room.min(limit.saturating_sub(self.waiting())),
        }
    }

    /// How many more tokens may enter, over all lanes.
    pub(crate) fn line_capacity(&self) -> u64 {
        self.capacity().min(self.quota_capacity())
    }

    /// The units used by those who completed that count against the quota: since it was last renewed.
    pub fn used_lately(&self) -> u64 {
        self.used.saturating_sub(self.used_in_past)
    }

    /// How many units a seat reserves if enough are left.
    fn per_visit(&self) -> u32 {
        self.settings.quota.map_or(1, |quota| quota.per_visit)
    }

    /// How many units of the quota are neither used nor reserved.
    pub fn quota_left(&self) -> u64 {
        let taken = self.used_lately().saturating_add(self.reserved);
        let quota = self.settings.quota.as_ref();
        quota.map_or(u64::MAX, |quota| quota.total.saturating_sub(taken))
    }

    /// How many units the next seat reserves: the last one what is left, so that exactly `total` can be used. While the
    /// gate holds nobody back, the quota is only counted.
    pub(crate) fn next_reservation(&self) -> u32 {
        let most = self.per_visit();
        match u32::try_from(self.quota_left()) {
            Ok(left) if self.holds_back() => most.min(left.max(1)),
            _ => most,
        }
    }

    /// How many more tokens the quota lets be admitted if each uses all that its seat reserves.
    fn quota_seats(&self) -> u64 {
        self.quota_left().div_ceil(self.per_visit().into())
    }

    /// How many more tokens can be admitted without a seat or a unit that comes back.
    pub(crate) fn admissible(&self) -> u64 {
        self.free_seats().min(self.quota_seats())
    }

    /// How many more tokens are to be expected until the quota is used up, those with seats not counted, if each uses as
    /// many units as those before it did.
    pub(crate) fn quota_visits(&self) -> u64 {
        let Some(quota) = &self.settings.quota else {
            return u64::MAX;
        };
        let per_visit = u128::from(quota.per_visit);
        let visits = u128::from(self.gone_counts.value()[usize::from(Reason::Completed.code())]);
        let used = u128::from(self.used).min(visits * per_visit);
        let left = u128::from(quota.total.saturating_sub(self.used_lately()));
        // Until there are some visits, as if each used all.
        let (visits, used) = (visits + VISITS_ASSUMED, used + VISITS_ASSUMED * per_visit);
        let to_come = (left * visits).div_ceil(used);
        u64::try_from(to_come)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.held())
    }

    /// Whether all units of the quota are used: waiting tokens cannot be admitted any more.
    pub(crate) fn sold_out(&self) -> bool {
        let quota = self.settings.quota.as_ref();
        let quota = quota.filter(|_| self.holds_back());
        quota.is_some_and(|quota| self.used_lately() >= quota.total)
    }

    /// How many more tokens the quota lets enter: any number while a draw is awaited. None once it is used up, even if the standby share has
    /// space: a newcomer would be ended at once.
    pub(crate) fn quota_capacity(&self) -> u64 {
        let quota = self.settings.quota.as_ref();
        let Some(quota) = quota.filter(|_| self.holds_back()) else {
            return u64::MAX;
        };
        if self.sold_out() {
            return 0;
        }
        // The draw decides who gets a unit: not who came first.
        if self.awaits_draw() {
            return u64::MAX;
        }
        let per_visit = u64::from(quota.per_visit);
        let wanted = self.waiting().saturating_mul(per_visit);
        let taken = self.used_lately().saturating_add(self.reserved);
        let taken = taken.saturating_add(wanted);
        quota
            .entries_max()
            .saturating_sub(taken)
            .div_ceil(per_visit)
    }

    /// How many tokens the admission rate lets be admitted now.
    fn rate_units(&self, now_ms: u64) -> u64 {
        match (&self.settings.admission_rate, &self.bucket) {
            (Some(rate), Some(bucket)) => bucket.units(rate, now_ms),
            _ => u64::MAX,
        }
    }

    pub(crate) fn may_admit_ignoring_rate(&self) -> bool {
        let has_room = || self.free_seats() > 0 && self.quota_left() > 0;
        let admits = self.phase().admits() && !self.is_undrawn();
        let admits = match nowserving_bite::is(nowserving_bite::Break::S8Draw) {
            true => self.phase().admits(),
            false => admits,
        };
        admits && (!self.holds_back() || has_room())
    }

    /// Whether the next waiting token may be admitted now.
    pub(crate) fn may_admit(&self, now_ms: u64) -> bool {
        let in_time = || !self.holds_back() || self.rate_units(now_ms) > 0;
        self.may_admit_ignoring_rate() && in_time()
    }

    /// How many newcomers would be admitted on entering now.
    fn admitted_at_once(&self, now_ms: u64) -> u64 {
        if self.phase() != Phase::Open || self.is_undrawn() {
            return 0;
        }
        if !self.holds_back() {
            return u64::MAX;
        }
        if self.waiting() > 0 || !self.admits_by_itself() {
            return 0;
        }
        self.admissible().min(self.rate_units(now_ms))
    }

    /// How many numbers the lane could issue now.
    pub(crate) fn lane_capacity(&self, lane: &Lane, set: &LaneSettings, now_ms: u64) -> u64 {
        if !self.phase().gives_numbers() {
            return 0;
        }
        self.lane_room(lane, set, now_ms).min(self.quota_capacity())
    }

    /// How many numbers the lane could issue now if there were neither phase nor quota.
    fn lane_room(&self, lane: &Lane, set: &LaneSettings, now_ms: u64) -> u64 {
        let room = self.capacity();
        let room = room.min(NUMBER_MAX.saturating_sub(lane.issued()));
        match set.queue_limit {
            None => room,
            Some(limit) => {
                let most = u64::from(limit).saturating_add(self.admitted_at_once(now_ms));
                room.min(most.saturating_sub(lane.waiting.len()))
            }
        }
    }

    /// The lanes of the settings, in their order.
    pub fn lane_uses(&self, now_ms: u64) -> impl Iterator<Item = LaneUse<'_>> {
        let fills_up = self.holds_back() && self.phase().gives_numbers();
        self.listed().map(move |(id, lane, set)| LaneUse {
            id,
            lane: &lane.name,
            waiting: lane.waiting.len(),
            admitted: lane.admitted(),
            in_checkout: lane.in_checkout,
            queue_limit: set.queue_limit,
            room: fills_up.then(|| self.lane_room(lane, set, now_ms)),
        })
    }

    /// Whether a newcomer of the default lane would be refused now because the line or the lane is full.
    pub fn is_full(&self, now_ms: u64) -> bool {
        let refused = self.would_refuse_enter(None, None, now_ms);
        refused.is_some_and(|it| RefusedCode::of(&it) == Some(RefusedCode::LineFull))
    }

    /// The id of the lane that a newcomer who names this one asks for.
    pub fn newcomers_lane_id(&self, name: Option<&LaneName>) -> Option<u8> {
        self.listed_id(name.or_else(|| self.settings.effective_default_lane())?)
    }

    /// The refusal by a lane without capacity: it names the limit that was reached.
    fn full(&self, lane: &Lane, set: &LaneSettings) -> Refused {
        match set.queue_limit {
            Some(limit) if self.capacity() > 0 && lane.has_numbers() => Refused::LaneFull {
                lane: lane.name.clone(),
                limit,
            },
            _ if set.absolute && !self.keeps_room_for(set) => Refused::NoRoomKept {
                lane: lane.name.clone(),
            },
            _ => Refused::LineFull,
        }
    }

    /// Whether the other lanes cannot fill the line, or there are none.
    fn keeps_room_for(&self, set: &LaneSettings) -> bool {
        let lanes = self.settings.lanes.iter();
        let others = lanes.filter(|lane| lane.name != set.name);
        let limits = others.map(|lane| lane.queue_limit.map(u64::from));
        // `None`: one of them has no limit.
        let most: Option<u64> = limits.sum();
        self.settings.lanes.len() == 1
            || most.is_some_and(|most| most < self.settings.queue_limit.into())
    }

    pub(crate) fn check_open(&self) -> Result<(), Refused> {
        if self.phase() == Phase::Closed {
            Err(Refused::LineClosed)
        } else {
            Ok(())
        }
    }

    /// The refusal that `enter` would get now; `None` if it would get a number, or the live token of its
    /// key. A leader refuses by this without a log entry. `now_ms` is its reading of the service clock: how
    /// many tokens the admission rate lets pass depends on it.
    pub fn would_refuse_enter(
        &self,
        key: Option<&[u8]>,
        lane: Option<&LaneName>,
        now_ms: u64,
    ) -> Option<Refused> {
        if key.is_some_and(|key| self.find(key).is_some()) {
            return None;
        }
        self.lane_for_newcomer(lane, now_ms).err()
    }

    /// The lane that would issue a newcomer's number.
    pub(crate) fn lane_for_newcomer(
        &self,
        name: Option<&LaneName>,
        now_ms: u64,
    ) -> Result<u8, Refused> {
        let (id, lane, set) = self.newcomers_lane(name)?;
        if self.quota_capacity() == 0 {
            return Err(Refused::SoldOut);
        }
        if self.lane_capacity(lane, set, now_ms) == 0 {
            return Err(self.full(lane, set));
        }
        Ok(id)
    }

    /// The lane that a newcomer asks for, whether it has room or not.
    pub(crate) fn newcomers_lane(
        &self,
        name: Option<&LaneName>,
    ) -> Result<(u8, &Lane, &LaneSettings), Refused> {
        self.check_open()?;
        if !self.phase().gives_numbers() {
            return Err(Refused::LineDraining);
        }
        let name = name.or_else(|| self.settings.effective_default_lane());
        let mut listed = self.listed();
        let found = listed.find(|(_, lane, _)| Some(&lane.name) == name);
        let unknown = || self.no_lane("lane", name.unwrap_or(&LaneName::default()));
        Ok(found.ok_or_else(unknown)?)
    }

    /// Refuses a move into a full lane. The line's own limits do not matter, as the number of live tokens
    /// stays the same.
    pub(crate) fn check_moves_into(&self, to_id: u8) -> Result<(), Refused> {
        let mut listed = self.listed();
        let to = listed.find(|(id, _, _)| *id == to_id);
        let (_, lane, set) = to.ok_or(Refused::LineFull)?;
        match set.queue_limit {
            _ if !lane.has_numbers() => Err(Refused::LineFull),
            Some(limit) if lane.waiting.len() >= limit.into() => Err(Refused::LaneFull {
                lane: lane.name.clone(),
                limit,
            }),
            _ => Ok(()),
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
            accepts_through: lane.issued() + self.lane_capacity(lane, set, now_ms),
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

    /// How many of the next numbers of the lane are certain not to wait. None if the line has several lanes,
    /// as the free seats may go to another lane, or an admission rate, as too many may enter at once, or if tokens are
    /// called. Nor while the gate holds nobody back: then seats say nothing.
    fn promised(&self, id: u8) -> u64 {
        let alone = self.order == [id] && self.admits_by_itself() && self.holds_back();
        if alone
            && !self.is_undrawn()
            && self.settings.admission_rate.is_none()
            && self.phase() == Phase::Open
        {
            self.admissible()
        } else {
            0
        }
    }

    /// Why the next waiting token is not admitted at `now_ms` (service clock).
    pub fn held_back_by(&self, now_ms: u64) -> HeldBackBy {
        if self.waiting() == 0 {
            HeldBackBy::Nothing
        } else if !self.phase().admits() {
            HeldBackBy::Phase(self.phase())
        } else if self.is_undrawn() {
            HeldBackBy::Draw
        } else if !self.holds_back() {
            HeldBackBy::Admitting
        } else if self.quota_left() == 0 {
            HeldBackBy::Quota
        } else if self.held() >= self.seats_at(now_ms).into() {
            HeldBackBy::Seats
        } else if !self.admits_by_itself() {
            HeldBackBy::Called
        } else if self.may_admit(now_ms) {
            HeldBackBy::Admitting
        } else {
            let next_at_ms = self.next_by_rate_ms().unwrap_or(now_ms);
            HeldBackBy::AdmissionRate { next_at_ms }
        }
    }
}
