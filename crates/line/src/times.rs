//! The times of the waiting numbers of a chunk, in 8 bytes each: differences to the time of the first one that came.

use std::collections::VecDeque;
use std::fmt;

use crate::Timestamp;
use crate::seldom::Seldom;
use crate::waiting::{reserve, shrink};

/// The first one's difference stands in the middle: others may have entered before it.
const MIDDLE: u64 = 1 << 31;

/// See the top of this file.
#[derive(Default)]
pub(crate) struct Times {
    first: Timestamp,
    /// On the service clock and on the wall clock.
    near: VecDeque<[u32; 2]>,
    /// All of them, once one differs by more than 24 days: an import, a put-back or a draw may bring any.
    far: Seldom<VecDeque<Timestamp>>,
}

/// The same for equal ones, however they are kept.
impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Times {
    pub(crate) fn len(&self) -> usize {
        self.far.get().map_or(self.near.len(), |far| far.len())
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        let far = self.far.get().map_or(0, |far| far.capacity());
        self.near.capacity() + far
    }

    #[cfg(test)]
    pub(crate) fn are_near(&self) -> bool {
        self.far.get().is_none()
    }

    pub(crate) fn get(&self, place: usize) -> Option<Timestamp> {
        match self.far.get() {
            None => Some(self.read(*self.near.get(place)?)),
            Some(far) => far.get(place).copied(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Timestamp> {
        let far = self
            .far
            .get()
            .into_iter()
            .flat_map(|far| far.iter().copied());
        far.chain(self.near.iter().map(|near| self.read(*near)))
    }

    /// As of a slice.
    pub(crate) fn partition_point(&self, is_before: impl Fn(Timestamp) -> bool) -> usize {
        match self.far.get() {
            None => self
                .near
                .partition_point(|near| is_before(self.read(*near))),
            Some(far) => far.partition_point(|at| is_before(*at)),
        }
    }

    pub(crate) fn insert(&mut self, place: usize, at: Timestamp) {
        if self.len() == 0 {
            *self = Self {
                first: at,
                near: std::mem::take(&mut self.near),
                far: Seldom::default(),
            };
        }
        if let Some(near) = self.near(at) {
            reserve(&mut self.near);
            self.near.insert(place, near);
        } else {
            let far = self.far();
            reserve(far);
            far.insert(place, at);
        }
    }

    pub(crate) fn set(&mut self, place: usize, at: Timestamp) {
        let near = self.near(at);
        match near.and_then(|near| Some((self.near.get_mut(place)?, near))) {
            Some((old, near)) => *old = near,
            None => {
                if let Some(old) = self.far().get_mut(place) {
                    *old = at;
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, place: usize) -> Option<Timestamp> {
        if self.far.get().is_some() {
            let far = self.far.get_mut();
            let removed = far.remove(place);
            shrink(far);
            return removed;
        }
        let removed = self.near.remove(place)?;
        shrink(&mut self.near);
        Some(self.read(removed))
    }

    /// In 8 bytes each again, if they fit. To be called when all of them have changed: with the first change none fitted.
    pub(crate) fn narrow(&mut self) {
        let Some(far) = self.far.get() else {
            return;
        };
        let narrow = Self {
            first: far.front().copied().unwrap_or_default(),
            ..Self::default()
        };
        let mut all = VecDeque::with_capacity(far.len());
        for at in far {
            let Some(near) = narrow.near(*at) else {
                return;
            };
            all.push_back(near);
        }
        *self = Self {
            near: all,
            ..narrow
        };
    }

    fn read(&self, [service, wall]: [u32; 2]) -> Timestamp {
        let read = |near: u32, first: u64| (first + u64::from(near)).saturating_sub(MIDDLE);
        Timestamp {
            service_ms: read(service, self.first.service_ms),
            wall_ms: read(wall, self.first.wall_ms),
        }
    }

    /// `None` if it does not fit, or another one did not.
    fn near(&self, at: Timestamp) -> Option<[u32; 2]> {
        let near = |at: u64, first: u64| {
            let near = at.checked_add(MIDDLE)?.checked_sub(first)?;
            u32::try_from(near).ok()
        };
        // So the sums can be read.
        let first = self.first;
        let fits = first.service_ms.max(first.wall_ms) <= crate::NUMBER_MAX;
        let service = near(at.service_ms, first.service_ms)?;
        let wall = near(at.wall_ms, first.wall_ms)?;
        (fits && self.far.get().is_none()).then_some([service, wall])
    }

    fn far(&mut self) -> &mut VecDeque<Timestamp> {
        if self.far.get().is_none() {
            let far = self.iter().collect();
            self.near = VecDeque::new();
            *self.far.get_mut() = far;
        }
        self.far.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_plain_list_has_them(
            far in prop::sample::select(vec![0, 1, 1 << 30, u64::MAX - 50]),
            steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..40_u64, 0..40_u64), 0..100),
        ) {
            let (mut times, mut plain) = (Times::default(), Vec::new());
            for (what, place, service_ms, wall_ms) in steps {
                let at = Timestamp {
                    service_ms: 1_000_000_000_000 + service_ms,
                    wall_ms: (2_000_000_000_000 + wall_ms).max(if wall_ms == 7 { far } else { 0 }),
                };
                let at = match (far == 1, service_ms) {
                    (true, 3) => Timestamp { service_ms: 0, ..at },
                    _ => at,
                };
                if what == 3 {
                    times.narrow();
                } else if what < 2 || plain.is_empty() {
                    let place = place.index(plain.len() + 1);
                    times.insert(place, at);
                    plain.insert(place, at);
                } else {
                    let place = place.index(plain.len());
                    if wall_ms < 20 {
                        times.set(place, at);
                        plain[place] = at;
                    } else {
                        prop_assert_eq!(times.remove(place), Some(plain.remove(place)));
                    }
                }
                prop_assert_eq!(times.len(), plain.len());
                prop_assert!(times.iter().eq(plain.iter().copied()));
                prop_assert_eq!(times.get(place.index(plain.len() + 1)), plain.get(place.index(plain.len() + 1)).copied());
            }
            plain.sort_unstable_by_key(|at| at.wall_ms);
            let mut times = Times::default();
            plain.iter().enumerate().for_each(|(place, at)| times.insert(place, *at));
            let before = |at: Timestamp| at.wall_ms < 2_000_000_000_020;
            prop_assert_eq!(times.partition_point(before), plain.partition_point(|at| before(*at)));
        }
    }
}
