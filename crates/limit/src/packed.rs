//! Counters in as few bytes as they need. What keeps a million of them has no room for the enum.

use std::borrow::Cow;

use crate::algorithm::{Drain, FixedWindow, SlidingWindowCounter};
use crate::paged::Paged;
use crate::{Algorithm, Clock, Counter};

/// The most bytes of a packed counter.
const WIDTH_MAX: usize = 24;

/// What a packed counter is. Its number has two bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    FixedWindow,
    Log,
    SlidingWindowCounter,
    Bucket,
}

impl Kind {
    pub const BITS: u32 = 2;
    const ALL: [Self; 4] = [
        Self::FixedWindow,
        Self::Log,
        Self::SlidingWindowCounter,
        Self::Bucket,
    ];

    /// By the lowest bits of a number.
    #[inline]
    pub fn of_bits(bits: usize) -> Self {
        Self::ALL[bits % Self::ALL.len()]
    }

    /// By which its counters go.
    #[inline]
    pub fn clock(self) -> Clock {
        match self {
            Self::FixedWindow | Self::SlidingWindowCounter => Clock::Wall,
            Self::Log | Self::Bucket => Clock::Service,
        }
    }

    /// How many bytes it has.
    #[inline]
    pub fn width(self) -> usize {
        match self {
            Self::FixedWindow | Self::Bucket => 12,
            Self::Log => 4,
            Self::SlidingWindowCounter => WIDTH_MAX,
        }
    }
}

/// A counter without its key. The bytes of a log are its place in [`Logs`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed {
    pub kind: Kind,
    bytes: [u8; WIDTH_MAX],
}

impl Packed {
    /// Takes a log into `logs`.
    #[inline]
    pub fn of(counter: Counter, logs: &mut Logs) -> Self {
        let mut bytes = [0; WIDTH_MAX];
        let mut to = &mut bytes[..];
        let kind = match counter {
            Counter::FixedWindow(it) => {
                put(&mut to, it.end_us.to_le_bytes());
                put(&mut to, it.count.to_le_bytes());
                Kind::FixedWindow
            }
            Counter::SlidingWindowLog(_) => {
                put(&mut to, logs.add(counter).to_le_bytes());
                Kind::Log
            }
            Counter::SlidingWindowCounter(it) => {
                put(&mut to, it.end_us.to_le_bytes());
                put(&mut to, it.next_end_us.to_le_bytes());
                put(&mut to, it.last.to_le_bytes());
                put(&mut to, it.this.to_le_bytes());
                Kind::SlidingWindowCounter
            }
            Counter::Bucket(it) => {
                put(&mut to, it.empty_us.to_le_bytes());
                put(&mut to, it.part.to_le_bytes());
                Kind::Bucket
            }
        };
        Self { kind, bytes }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.kind.width()]
    }
}

/// The counter that is packed in these bytes.
pub(crate) fn read<'a>(kind: Kind, bytes: &[u8], logs: &'a Logs) -> Cow<'a, Counter> {
    Cow::Owned(match kind {
        Kind::FixedWindow => Counter::FixedWindow(fixed_window(bytes)),
        Kind::Log => return Cow::Borrowed(logs.get(half(&mut &*bytes))),
        Kind::SlidingWindowCounter => Counter::SlidingWindowCounter(sliding_window_counter(bytes)),
        Kind::Bucket => Counter::Bucket(bucket(bytes)),
    })
}

#[inline]
fn fixed_window(mut bytes: &[u8]) -> FixedWindow {
    FixedWindow {
        end_us: number(&mut bytes),
        count: half(&mut bytes),
    }
}

#[inline]
fn sliding_window_counter(mut bytes: &[u8]) -> SlidingWindowCounter {
    SlidingWindowCounter {
        end_us: number(&mut bytes),
        next_end_us: number(&mut bytes),
        last: half(&mut bytes),
        this: half(&mut bytes),
    }
}

#[inline]
fn bucket(mut bytes: &[u8]) -> Drain {
    Drain {
        empty_us: number(&mut bytes),
        part: half(&mut bytes),
    }
}

/// [`Counter::idle_at_us`] of the counter that is packed in these bytes.
#[inline]
pub(crate) fn idle_at_us(kind: Kind, bytes: &[u8], logs: &Logs) -> u64 {
    match kind {
        Kind::FixedWindow => fixed_window(bytes).idle_at_us(),
        Kind::Log => logs.get(half(&mut &*bytes)).idle_at_us(),
        Kind::SlidingWindowCounter => sliding_window_counter(bytes).idle_at_us(),
        Kind::Bucket => bucket(bytes).idle_at_us(),
    }
}

/// The counter that is packed in these bytes. A log is taken out of `logs`. Packed again it has the same bytes.
#[inline]
pub(crate) fn take(kind: Kind, bytes: &[u8], logs: &mut Logs) -> Counter {
    match kind {
        Kind::FixedWindow => Counter::FixedWindow(fixed_window(bytes)),
        Kind::Log => logs.remove(half(&mut &*bytes)),
        Kind::SlidingWindowCounter => Counter::SlidingWindowCounter(sliding_window_counter(bytes)),
        Kind::Bucket => Counter::Bucket(bucket(bytes)),
    }
}

fn put<const N: usize>(to: &mut &mut [u8], bytes: [u8; N]) {
    let (now, rest) = std::mem::take(to).split_at_mut(N);
    now.copy_from_slice(&bytes);
    *to = rest;
}

#[inline]
fn number(from: &mut &[u8]) -> u64 {
    u64::from_le_bytes(chunk(from))
}

#[inline]
fn half(from: &mut &[u8]) -> u32 {
    u32::from_le_bytes(chunk(from))
}

fn chunk<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (chunk, rest) = from.split_first_chunk().unwrap_or((&[0; N], &[]));
    *from = rest;
    *chunk
}

/// Sliding window logs: these alone have memory of their own.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    all: Paged<Counter>,
    vacant: Vec<u32>,
    /// For places without one: there are none that are asked for.
    none: Counter,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            all: Paged::new(),
            vacant: Vec::new(),
            none: Counter::fresh(Algorithm::FixedWindow),
        }
    }
}

impl Logs {
    fn add(&mut self, log: Counter) -> u32 {
        if let Some(place) = self.vacant.pop()
            && let Some(there) = self.all.get_mut(place)
        {
            *there = log;
            return place;
        }
        self.all.push(log);
        self.all.len() as u32 - 1
    }

    fn get(&self, place: u32) -> &Counter {
        self.all.get(place).unwrap_or(&self.none)
    }

    fn remove(&mut self, place: u32) -> Counter {
        let none = self.none.clone();
        let Some(there) = self.all.get_mut(place) else {
            return none;
        };
        self.vacant.push(place);
        std::mem::replace(there, none)
    }
}
