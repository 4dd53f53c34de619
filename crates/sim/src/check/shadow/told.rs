//! What a line is told and tells beside its tokens, as one would keep it by hand: keys that wait to be told of room, the
//! capacity that a backend tells, and what of the quota is used up.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{
    Event, LaneName, Line, LineChange, Op, Refused, Renew, Reply, Settings, TokenChange,
};

use super::{Broken, Id, ShadowLine};

/// Of one line.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Keys that wait to be told of room: by lane, in the order in which they asked.
    callers: BTreeMap<LaneName, Vec<Box<[u8]>>>,
    /// Seats that a backend told, and until when they hold (service clock).
    capacity: Option<(u64, u64)>,
    /// The window of the quota that was begun last.
    window: Option<u64>,
    /// How many of its units were used since.
    used: u64,
    /// How many of them each seat reserves.
    reserved: BTreeMap<Id, u64>,
    /// Of which places tokens were told.
    positions: BTreeSet<(Id, u64)>,
}

impl Told {
    /// A line that was put back: what it is told is as it has it.
    pub fn put_back(&mut self, line: &Line) {
        let told = line.told();
        self.capacity = told.map(|told| (told.seats.into(), told.until_ms));
        let live = line.live_from((0, 0));
        let held = live.filter(|(_, _, live)| live.units() > 0);
        self.reserved = held
            .map(|(lane, token, live)| ((lane, token), live.units().into()))
            .collect();
        let dump = line.dump();
        self.used = dump.used.saturating_sub(dump.used_in_past);
        let names: Vec<&LaneName> = line.lane_names().collect();
        self.callers.clear();
        for (name, lane) in names.iter().zip(dump.lanes) {
            let keys = lane.callers.into_iter();
            let keys = keys.map(|(_, key)| key.as_ref().into());
            self.callers.insert((*name).clone(), keys.collect());
        }
    }

    /// The seats that are in force at this reading of the service clock.
    #[must_use]
    pub fn seats(&self, settings: &Settings, now_ms: u64) -> u64 {
        let least = settings.seats_when_silent.map(u64::from);
        match (self.capacity, least) {
            (None, _) => settings.seats.into(),
            (Some((seats, until_ms)), Some(least)) if until_ms <= now_ms => seats.min(least),
            (Some((seats, _)), _) => seats,
        }
    }

    /// An operation is done, of which no event is taken in yet.
    pub fn operation(
        &mut self,
        op: &Op,
        result: &Result<Reply, Refused>,
        settings: &Settings,
        now_ms: u64,
    ) -> Result<(), Broken> {
        match (op, result) {
            (Op::CapacityTold { told, .. }, Ok(_)) => {
                self.capacity =
                    told.map(|(seats, for_ms)| (seats.into(), now_ms.saturating_add(for_ms)));
                Ok(())
            }
            (Op::Enter { key: Some(key), .. }, Ok(_)) => {
                self.entered(key);
                Ok(())
            }
            (Op::Callback { key, lane, .. }, Ok(Reply::Callback { position })) => {
                let lane = lane.as_ref().or(settings.effective_default_lane());
                self.asked(key, lane.cloned().unwrap_or_default(), *position)
            }
            _ => Ok(()),
        }
    }

    /// A key has entered: it needs not be told any more.
    pub fn entered(&mut self, key: &[u8]) {
        for keys in self.callers.values_mut() {
            keys.retain(|it| **it != *key);
        }
    }

    /// S8: keys are told in the order in which they asked, and each knows its place in it.
    fn asked(&mut self, key: &[u8], lane: LaneName, told: Option<u64>) -> Result<(), Broken> {
        let mut lists = self.callers.values();
        let before =
            lists.find_map(|keys| Some(keys.iter().position(|it| **it == *key)? as u64 + 1));
        let counted = match (before, told) {
            (Some(place), _) => Some(place),
            (None, None) => None,
            (None, Some(_)) => {
                let keys = self.callers.entry(lane).or_default();
                keys.push(key.into());
                Some(keys.len() as u64)
            }
        };
        match counted == told {
            true => Ok(()),
            false => Err((
                "S8",
                format!("a key waits for room at {counted:?}, and is told {told:?}"),
            )),
        }
    }

    /// An event came of the operation.
    pub fn event(&mut self, event: &Event, settings: &Settings) -> Result<(), Broken> {
        let Event::Line { what, at_ms, .. } = event else {
            return Ok(());
        };
        match what {
            LineChange::Room { lane, keys } => self.room(lane, keys.iter().map(AsRef::as_ref)),
            LineChange::QuotaRenewed => self.renewed(settings, *at_ms),
            _ => Ok(()),
        }
    }

    /// S8: the next keys are named, each once.
    fn room<'a>(
        &mut self,
        lane: &LaneName,
        named: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Broken> {
        let keys = self.callers.entry(lane.clone()).or_default();
        for key in named {
            if keys.first().map(AsRef::as_ref) != Some(key) {
                let first = keys.first();
                return Err((
                    "S8",
                    format!("{key:?} is told of room in {lane}, and {first:?} is first"),
                ));
            }
            keys.remove(0);
        }
        Ok(())
    }

    /// S10: a quota is renewed once a window, however leaders change and whatever their clocks show.
    fn renewed(&mut self, settings: &Settings, wall_ms: u64) -> Result<(), Broken> {
        let renew = settings.quota.as_ref().and_then(|quota| quota.renew);
        let window = match renew {
            Some(Renew::Every { ms }) => wall_ms / ms.max(1),
            _ => return Err(("S10", "a quota is renewed that is not to be".to_owned())),
        };
        let last = self.window.replace(window);
        self.used = 0;
        match last.is_none_or(|last| last < window) {
            true => Ok(()),
            false => Err((
                "S10",
                format!("the quota is renewed in window {window}, after {last:?}"),
            )),
        }
    }

    /// S10: nobody is admitted if no unit of the quota is left, unless the gate holds nobody back. A seat reserves what a
    /// visit may use; the last one what is left.
    fn admitted(&mut self, id: Id, settings: &Settings) -> Result<(), Broken> {
        let quota = settings.quota.as_ref();
        let per_visit = quota.map_or(1, |quota| quota.per_visit.into());
        let quota = quota.filter(|_| settings.gate.holds_back());
        let taken = self.used + self.reserved.values().sum::<u64>();
        let left = quota.map_or(per_visit, |quota| quota.total.saturating_sub(taken));
        self.reserved.insert(id, per_visit.min(left).max(1));
        match left > 0 {
            true => Ok(()),
            false => Err((
                "S10",
                format!("{id:?} is admitted, and {taken} of {quota:?} are taken"),
            )),
        }
    }

    /// S10: a visit uses no more units than its seat has reserved.
    fn gone(&mut self, id: Id, used: Option<u32>) -> Result<(), Broken> {
        let reserved = self.reserved.remove(&id).unwrap_or(0);
        let used = used.map_or(0, u64::from);
        self.used += used;
        match used <= reserved {
            true => Ok(()),
            false => Err((
                "S10",
                format!("{id:?} uses {used} units and has reserved {reserved}"),
            )),
        }
    }

    /// S16: a token is told once that it came to a position, and stands there or before it.
    pub fn position(&mut self, id: Id, told: u64, counted: Option<u64>) -> Result<(), Broken> {
        let is_new = self.positions.insert((id, told));
        match is_new && counted == Some(told) {
            true => Ok(()),
            false => Err((
                "S16",
                format!(
                    "{id:?} is told position {told} (for the first time: {is_new}), counted {counted:?}"
                ),
            )),
        }
    }
}

impl ShadowLine {
    /// What an event that is taken in says beside what became of tokens.
    pub(super) fn tells(&mut self, event: &Event, settings: &Settings) -> Result<(), Broken> {
        let Event::Token {
            lane_id,
            token,
            what,
            ..
        } = event
        else {
            return self.told.event(event, settings);
        };
        let id = (*lane_id, *token);
        match what {
            TokenChange::Admitted { .. } => self.told.admitted(id, settings),
            TokenChange::Gone { units, .. } => self.told.gone(id, *units),
            TokenChange::Position { position } => {
                let waiting = self.waiting.get(lane_id);
                let counted = waiting.filter(|it| it.contains(token));
                let counted = counted.map(|it| it.range(..=*token).count() as u64);
                self.told.position(id, *position, counted)
            }
            _ => Ok(()),
        }
    }
}
