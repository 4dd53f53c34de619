//! The records of the waiting tokens of one chunk, packed: some 12 bytes a token, and its key. Line, key and time of a
//! million waiting tokens are what a node's memory goes into.
//!
//! A record's version and times are differences to others, of 32 bits. The few that don't fit, those of moved tokens, and
//! whatever a damaged dump may have, are kept as they are beside the packed ones.

use std::collections::{BTreeMap, VecDeque};

use crate::seldom::Seldom;
use crate::waiting::{Rows, reserve, shrink};
use crate::{Entered, EtaGiven, Live, LiveRecord, Stage, Timestamp};

/// In [`Packed::version`]: `key` is the number of a record in [`Records::wide`].
const WIDE: u32 = u32::MAX;
/// In [`Packed::key`].
const NO_KEY: u32 = u32::MAX;
/// In [`Packed::eta`]: none was given.
const NO_ETA: [u32; 2] = [u32::MAX, 0];
/// Keys that are gone are left where they are until they take more than this, and more than half of all.
const GONE_BYTES_MIN: usize = 64;
/// The version of a chunk's first record stands in the middle: others may have entered before it.
const FIRST_VERSION: u32 = 1 << 31;

/// The record of a waiting token, beside the time as which it counts between lanes.
#[derive(Debug, Clone, Copy)]
struct Packed {
    /// As many after the chunk's first one as this is above [`FIRST_VERSION`].
    version: u32,
    /// How long after it entered its client was last seen.
    seen_ms: u32,
    /// Where in the bytes its key begins, with its length.
    key: u32,
}

/// What few lines need of a waiting token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extra {
    /// How much before the time as which it counts it entered: only in a draw.
    earlier_ms: u32,
    eta: [u32; 2],
}

const NO_EXTRA: Extra = Extra {
    earlier_ms: 0,
    eta: NO_ETA,
};

/// See the top of this file. The order is that of the numbers.
#[derive(Debug, Default)]
pub(crate) struct Records {
    rows: VecDeque<Packed>,
    /// For none of the rows, or for each.
    extras: Seldom<VecDeque<Extra>>,
    /// Each begins with its length.
    keys: Vec<u8>,
    /// How many of these bytes belong to no token any more.
    gone_bytes: u32,
    first_version: u64,
    /// By a number of their own: places change.
    wide: Seldom<BTreeMap<u32, Box<LiveRecord>>>,
    next_wide: u32,
}

impl Rows for Records {
    /// Of a waiting token.
    type Row<'a> = Live<'a>;

    fn insert(&mut self, place: usize, counts_as: Timestamp, live: Live<'_>) {
        if self.rows.is_empty() {
            self.first_version = live.entered.version;
        }
        let (row, extra) = self.pack(counts_as, live);
        if extra != NO_EXTRA || self.extras.get().is_some() {
            let extras = self.extras(self.rows.len());
            reserve(extras);
            extras.insert(place, extra);
        }
        reserve(&mut self.rows);
        self.rows.insert(place, row);
    }

    fn remove(&mut self, place: usize) {
        if let Some(row) = self.rows.remove(place) {
            self.forget(row);
            self.compact();
        }
        shrink(&mut self.rows);
        if self.rows.is_empty() {
            self.extras = Seldom::default();
        } else if self.extras.get().is_some() {
            let extras = self.extras.get_mut();
            extras.remove(place);
            shrink(extras);
        }
    }
}

impl Records {
    pub(crate) fn get(&self, place: usize, counts_as: Timestamp) -> Option<Live<'_>> {
        let row = self.rows.get(place)?;
        if row.version == WIDE {
            return Some(self.wide.get()?.get(&row.key)?.view());
        }
        let Extra { earlier_ms, eta } = self.extra(place);
        let entered_ms = counts_as.service_ms - u64::from(earlier_ms);
        let [eta_ms, eta_p90_ms] = eta;
        Some(Live {
            key: self.key(row.key),
            entered: Entered {
                at: Timestamp {
                    service_ms: entered_ms,
                    ..counts_as
                },
                version: self.first_version + u64::from(row.version) - u64::from(FIRST_VERSION),
            },
            stage: Stage::Waiting {
                last_seen_ms: entered_ms + u64::from(row.seen_ms),
            },
            moved_from: &[],
            jumps: 0,
            eta_given: (eta != NO_ETA).then_some(EtaGiven { eta_ms, eta_p90_ms }),
        })
    }

    /// The same as the last part of [`Records::get`] says, in less time.
    pub(crate) fn has_key(&self, place: usize, key: &[u8]) -> bool {
        let row = self.rows.get(place);
        row.is_some_and(|row| self.key_of(*row) == Some(key))
    }

    /// The place of the one with this key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let mut rows = self.rows.iter();
        rows.position(|row| self.key_of(*row) == Some(key))
    }

    fn key_of(&self, row: Packed) -> Option<&[u8]> {
        match row.version {
            WIDE => self.wide_key(row.key),
            _ => self.key(row.key),
        }
    }

    pub(crate) fn set(&mut self, place: usize, counts_as: Timestamp, live: &LiveRecord) {
        if let Some(old) = self.rows.get(place).copied() {
            self.forget(old);
            let (row, extra) = self.pack(counts_as, live.view());
            self.rows[place] = row;
            self.set_extra(place, extra);
            self.compact();
        }
    }

    /// Changes its times. Returns the one as which it counts: not before `least_ms`.
    pub(crate) fn shift(
        &mut self,
        place: usize,
        counts_as: Timestamp,
        shifted: &impl Fn(u64) -> u64,
        least_ms: u64,
    ) -> u64 {
        let Some(live) = self.get(place, counts_as) else {
            return counts_as.service_ms;
        };
        let entered_ms = shifted(live.entered.at.service_ms);
        let last_seen_ms = shifted(live.clock_ms());
        let service_ms = entered_ms.max(least_ms);
        let earlier_ms = difference(service_ms, entered_ms);
        let seen_ms = difference(last_seen_ms, entered_ms);
        if let Some((row, (earlier_ms, seen_ms))) =
            self.packed_row(place).zip(earlier_ms.zip(seen_ms))
        {
            row.seen_ms = seen_ms;
            let extra = self.extra(place);
            self.set_extra(
                place,
                Extra {
                    earlier_ms,
                    ..extra
                },
            );
        } else if let Some(live) = self.get(place, counts_as) {
            let mut record = live.to_record();
            record.entered.at.service_ms = entered_ms;
            record.stage = Stage::Waiting { last_seen_ms };
            let counts_as = Timestamp {
                service_ms,
                ..counts_as
            };
            self.set(place, counts_as, &record);
        }
        service_ms
    }

    pub(crate) fn set_seen(&mut self, place: usize, counts_as: Timestamp, last_seen_ms: u64) {
        let stage = Stage::Waiting { last_seen_ms };
        let earlier_ms = self.extra(place).earlier_ms;
        if let Some(row) = self.packed_row(place) {
            let entered_ms = counts_as.service_ms - u64::from(earlier_ms);
            if let Some(seen_ms) = difference(last_seen_ms, entered_ms) {
                row.seen_ms = seen_ms;
                return;
            }
        }
        self.change(place, counts_as, |live| live.stage = stage);
    }

    pub(crate) fn set_eta(&mut self, place: usize, counts_as: Timestamp, eta: Option<EtaGiven>) {
        let is_packed = self.packed_row(place).is_some();
        match packed_eta(eta).filter(|_| is_packed) {
            Some(eta) => {
                let extra = self.extra(place);
                self.set_extra(place, Extra { eta, ..extra });
            }
            None => self.change(place, counts_as, |live| live.eta_given = eta),
        }
    }

    fn extra(&self, place: usize) -> Extra {
        let extras = self.extras.get();
        let extra = extras.and_then(|extras| extras.get(place));
        extra.copied().unwrap_or(NO_EXTRA)
    }

    fn set_extra(&mut self, place: usize, extra: Extra) {
        if extra == self.extra(place) {
            return;
        }
        if let Some(old) = self.extras(self.rows.len()).get_mut(place) {
            *old = extra;
        }
    }

    /// For each of so many rows.
    fn extras(&mut self, rows: usize) -> &mut VecDeque<Extra> {
        let extras = self.extras.get_mut();
        if extras.is_empty() {
            extras.reserve_exact(self.rows.capacity());
            extras.resize(rows, NO_EXTRA);
        }
        extras
    }

    fn wide_key(&self, number: u32) -> Option<&[u8]> {
        let live = self.wide.get()?.get(&number)?;
        live.key.as_deref()
    }

    fn packed_row(&mut self, place: usize) -> Option<&mut Packed> {
        let row = self.rows.get_mut(place)?;
        (row.version != WIDE).then_some(row)
    }

    /// Changes a record that may not be packed, before or after.
    fn change(&mut self, place: usize, counts_as: Timestamp, change: impl Fn(&mut LiveRecord)) {
        if let Some(live) = self.get(place, counts_as) {
            let mut record = live.to_record();
            change(&mut record);
            self.set(place, counts_as, &record);
        }
    }

    fn pack(&mut self, counts_as: Timestamp, live: Live<'_>) -> (Packed, Extra) {
        if let Some((row, extra)) = self.packed(counts_as, live) {
            let key = live.key.map(|key| self.add_key(key));
            let key = key.unwrap_or(NO_KEY);
            return (Packed { key, ..row }, extra);
        }
        let number = self.next_wide;
        self.next_wide += 1;
        let record = Box::new(live.to_record());
        self.wide.get_mut().insert(number, record);
        let row = Packed {
            version: WIDE,
            seen_ms: 0,
            key: number,
        };
        (row, NO_EXTRA)
    }

    /// Without its key; `None` if it does not fit.
    fn packed(&self, counts_as: Timestamp, live: Live<'_>) -> Option<(Packed, Extra)> {
        let Stage::Waiting { last_seen_ms } = live.stage else {
            return None;
        };
        let entered_ms = live.entered.at.service_ms;
        let is_plain = live.moved_from.is_empty()
            && live.jumps == 0
            && live.entered.at.wall_ms == counts_as.wall_ms
            && live.key.is_none_or(|key| key.len() <= usize::from(u8::MAX));
        let version = live.entered.version.checked_add(FIRST_VERSION.into())?;
        let version = difference(version, self.first_version);
        let row = Packed {
            version: version.filter(|version| *version != WIDE)?,
            seen_ms: difference(last_seen_ms, entered_ms)?,
            key: NO_KEY,
        };
        let extra = Extra {
            earlier_ms: difference(counts_as.service_ms, entered_ms)?,
            eta: packed_eta(live.eta_given)?,
        };
        is_plain.then_some((row, extra))
    }

    fn key(&self, at: u32) -> Option<&[u8]> {
        let (length, rest) = self.keys.get(at as usize..)?.split_first()?;
        rest.get(..usize::from(*length))
    }

    fn add_key(&mut self, key: &[u8]) -> u32 {
        let more = key.len() + 1;
        if self.keys.capacity() - self.keys.len() < more {
            self.keys.reserve_exact(more.max(self.keys.len() / 8));
        }
        let at = self.keys.len();
        self.keys.push(key.len() as u8);
        self.keys.extend_from_slice(key);
        at as u32
    }

    /// Its key or its wide record goes. The row is replaced or removed.
    fn forget(&mut self, row: Packed) {
        if row.version == WIDE {
            self.wide.get_mut().remove(&row.key);
        } else if let Some(key) = self.key(row.key) {
            self.gone_bytes += key.len() as u32 + 1;
        }
    }

    /// Drops the keys that are gone, once they are half of all: then it copies at most 66 kB.
    fn compact(&mut self) {
        let gone_bytes = self.gone_bytes as usize;
        if gone_bytes <= GONE_BYTES_MIN.max(self.keys.len() / 2) {
            return;
        }
        let old = std::mem::take(&mut self.keys);
        self.keys.reserve_exact(old.len() - gone_bytes);
        self.gone_bytes = 0;
        let rows = self.rows.iter_mut();
        for row in rows.filter(|row| row.version != WIDE && row.key != NO_KEY) {
            let at = row.key as usize;
            row.key = self.keys.len() as u32;
            self.keys
                .extend_from_slice(&old[at..=at + usize::from(old[at])]);
        }
    }
}

/// `None` if it is none or too large.
fn difference(larger: u64, smaller: u64) -> Option<u32> {
    u32::try_from(larger.checked_sub(smaller)?).ok()
}

/// `None` if it looks as if there were none.
fn packed_eta(eta: Option<EtaGiven>) -> Option<[u32; 2]> {
    let packed = eta.map(|eta| [eta.eta_ms, eta.eta_p90_ms]);
    match packed {
        None => Some(NO_ETA),
        Some(eta) => (eta != NO_ETA).then_some(eta),
    }
}
