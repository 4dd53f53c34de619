//! How many tokens are gone, by the state that they left and the reason.

use nowserving_codec::Codec;

use crate::{Reason, State};

/// There may be fewer than [`crate::Counts::gone`] has of a reason: numbers that a restore skipped were in no state that is
/// known.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GoneFrom([[u64; Reason::ALL.len()]; GoneFrom::STATES.len()]);

impl GoneFrom {
    /// The states that a token can leave.
    pub const STATES: [State; 3] = [State::Waiting, State::Admitted, State::InCheckout];

    pub fn get(&self, state: State, reason: Reason) -> u64 {
        let of_state = self.0.get(state as usize);
        of_state.map_or(0, |counts| counts[usize::from(reason.code())])
    }

    /// For dumps. Nothing leaves [`State::Gone`].
    pub fn set(&mut self, state: State, reason: Reason, count: u64) {
        if let Some(counts) = self.0.get_mut(state as usize) {
            counts[usize::from(reason.code())] = count;
        }
    }

    /// The counts that are not 0, in the order of the states and of [`Reason::code`].
    pub fn iter(&self) -> impl Iterator<Item = (State, Reason, u64)> + '_ {
        let states = Self::STATES.iter().copied();
        let pairs = states.flat_map(|state| Reason::ALL.map(|reason| (state, reason)));
        let counts = pairs.map(|(state, reason)| (state, reason, self.get(state, reason)));
        counts.filter(|(_, _, count)| *count > 0)
    }

    pub(crate) fn add(&mut self, state: State, reason: Reason) {
        self.set(state, reason, self.get(state, reason).saturating_add(1));
    }

    /// From any state; `None` beyond 2^64.
    pub(crate) fn of(&self, reason: Reason) -> Option<u64> {
        let mut states = Self::STATES.iter();
        states.try_fold(0u64, |sum, state| sum.checked_add(self.get(*state, reason)))
    }
}
