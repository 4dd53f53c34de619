//! The records of the waiting tokens of one chunk, packed: some 24 bytes a token, and its key. Line, key and time of a
//! million waiting tokens are what a node's memory goes into.
//!
//! A record's version and times are differences to others, of 32 bits. The few that don't fit, those of moved tokens, and
//! whatever a damaged dump may have, are kept as they are beside the packed ones.

use std::collections::{BTreeMap, VecDeque};

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
    /// How much before the time as which it counts it entered: only in a draw.
    earlier_ms: u32,
    /// How long after that its client was last seen.
    seen_ms: u32,
    eta: [u32; 2],
    /// Where in the bytes its key begins, with its length.
    key: u32,
}

/// See the top of this file. The order is that of the numbers.
#[derive(Debug, Default)]
pub(crate) struct Records {
    rows: VecDeque<Packed>,
    /// Each begins with its length.
    keys: Vec<u8>,
    /// How many of these bytes belong to no token any more.
    gone_bytes: usize,
    first_version: u64,
    /// By a number of their own: places change.
    wide: BTreeMap<u32, Box<LiveRecord>>,
    next_wide: u32,
}

impl Rows for Records {
    /// Of a waiting token.
    type Row<'a> = Live<'a>;

    fn insert(&mut self, place: usize, counts_as: Timestamp, live: Live<'_>) {
        if self.rows.is_empty() {
            self.first_version = live.entered.version;
        }
        let row = self.pack(counts_as, live);
        reserve(&mut self.rows);
        self.rows.insert(place, row);
    }

    fn remove(&mut self, place: usize) {
        if let Some(row) = self.rows.remove(place) {
            self.forget(row);
            self.compact();
        }
        shrink(&mut self.rows);
    }
}

impl Records {
    pub(crate) fn get(&self, place: usize, counts_as: Timestamp) -> Option<Live<'_>> {
        let row = self.rows.get(place)?;
        if row.version == WIDE {
            return Some(self.wide.get(&row.key)?.view());
        }
        let entered_ms = counts_as.service_ms - u64::from(row.earlier_ms);
        let [eta_ms, eta_p90_ms] = row.eta;
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
            eta_given: (row.eta != NO_ETA).then_some(EtaGiven { eta_ms, eta_p90_ms }),
        })
    }

    /// The same as the last part of [`Records::get`] says, in less time.
    pub(crate) fn has_key(&self, place: usize, key: &[u8]) -> bool {
        let Some(row) = self.rows.get(place) else {
            return false;
        };
        let found = match row.version {
            WIDE => self.wide.get(&row.key).and_then(|live| live.key.as_deref()),
            _ => self.key(row.key),
        };
        found == Some(key)
    }

    pub(crate) fn set(&mut self, place: usize, counts_as: Timestamp, live: &LiveRecord) {
        if let Some(old) = self.rows.get(place).copied() {
            self.forget(old);
            let row = self.pack(counts_as, live.view());
            self.rows[place] = row;
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
            (row.earlier_ms, row.seen_ms) = (earlier_ms, seen_ms);
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
        if let Some(row) = self.packed_row(place) {
            let entered_ms = counts_as.service_ms - u64::from(row.earlier_ms);
            if let Some(seen_ms) = difference(last_seen_ms, entered_ms) {
                row.seen_ms = seen_ms;
                return;
            }
        }
        self.change(place, counts_as, |live| live.stage = stage);
    }

    pub(crate) fn set_eta(&mut self, place: usize, counts_as: Timestamp, eta: Option<EtaGiven>) {
        match self.packed_row(place).zip(packed_eta(eta)) {
            Some((row, eta)) => row.eta = eta,
            None => self.change(place, counts_as, |live| live.eta_given = eta),
        }
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

    fn pack(&mut self, counts_as: Timestamp, live: Live<'_>) -> Packed {
        if let Some(row) = self.packed(counts_as, live) {
            let key = live.key.map(|key| self.add_key(key));
            return Packed {
                key: key.unwrap_or(NO_KEY),
                ..row
            };
        }
        let number = self.next_wide;
        self.next_wide += 1;
        self.wide.insert(number, Box::new(live.to_record()));
        Packed {
            version: WIDE,
            earlier_ms: 0,
            seen_ms: 0,
            eta: NO_ETA,
            key: number,
        }
    }

    /// Without its key; `None` if it does not fit.
    fn packed(&self, counts_as: Timestamp, live: Live<'_>) -> Option<Packed> {
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
        is_plain.then_some(Packed {
            version: version.filter(|version| *version != WIDE)?,
            earlier_ms: difference(counts_as.service_ms, entered_ms)?,
            seen_ms: difference(last_seen_ms, entered_ms)?,
            eta: packed_eta(live.eta_given)?,
            key: NO_KEY,
        })
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
            self.wide.remove(&row.key);
        } else if let Some(key) = self.key(row.key) {
            self.gone_bytes += key.len() + 1;
        }
    }

    /// Drops the keys that are gone, once they are half of all: then it copies at most 66 kB.
    fn compact(&mut self) {
        if self.gone_bytes <= GONE_BYTES_MIN.max(self.keys.len() / 2) {
            return;
        }
        let old = std::mem::take(&mut self.keys);
        self.keys.reserve_exact(old.len() - self.gone_bytes);
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
