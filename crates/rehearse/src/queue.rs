//! The interface between shoppers and a queue, for every algorithm.

use nowserving_line::{Reason, State, Token};
use nowserving_protocol::error::Code;

use crate::report::FailedChange;

/// Which number, in which lane (by its place in the line's table).
pub(crate) type Place = (u8, Token);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) place: Place,
    pub(crate) state: State,
    /// While waiting: the forecast, if there is one.
    pub(crate) eta_ms: Option<u64>,
    pub(crate) eta_p90_ms: Option<u64>,
    /// When to ask again, if the algorithm says.
    pub(crate) poll_after_ms: Option<u64>,
    /// The fencing number of the claim.
    pub(crate) epoch: Option<u64>,
    /// How many units of the quota its seat reserves, if there is one.
    pub(crate) units: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    Enter {
        lane: u8,
    },
    Poll(Place),
    Claim(Place),
    Renew(Place, Option<u64>),
    /// By this claim, having used so many units of the quota.
    Complete(Place, Option<u64>, u32),
    Leave(Place),
}

/// An event in the queue.
#[derive(Debug, Clone)]
pub(crate) enum Happened {
    /// The settings are these now.
    Configured {
        seats: u64,
        admits: bool,
        /// Nobody is admitted but by a call.
        called: bool,
    },
    /// So many seats are in force, by what the backend has told.
    Seats(u64),
    ScheduleFailed(FailedChange),
    /// Those who waited for the opening are drawn now: they count as having entered now.
    DrawBegun,
    /// The draw has given a token another place.
    Drawn {
        from: Place,
        to: Place,
    },
    Admitted(Place),
    Gone {
        place: Place,
        reason: Reason,
        /// How many units of the quota it used.
        units: u32,
    },
}

/// The four pointers of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pointers {
    pub(crate) next_token: Token,
    pub(crate) done_through: Token,
    pub(crate) admitted_through: Token,
    pub(crate) accepts_through: Token,
}

/// A queue under rehearsal, with all that its server does of itself.
pub(crate) trait Queue {
    /// Handles a shopper's message when it reaches the server.
    ///
    /// # Errors
    /// Only to `Enter`: turned away, with this code.
    fn ask(&mut self, now_ms: u64, shopper: u32, ask: Ask) -> Result<Answer, Code>;

    /// The server's own work: expires tokens and continues background work.
    fn upkeep(&mut self, now_ms: u64);

    /// The latest time for the next [`Queue::upkeep`] if no message arrives before.
    fn next_upkeep_ms(&self) -> u64;

    /// The sale begins: from now on it gives seats.
    fn open(&mut self, now_ms: u64);

    /// A dispatcher's message gets to the server: the next `n` are admitted, as far as seats are free.
    fn call(&mut self, now_ms: u64, n: u32);

    /// A backend's message gets to the server: so many seats are to be in force.
    fn seats_told(&mut self, now_ms: u64, seats: u32);

    /// The events since the last call, in order.
    fn happened(&mut self) -> Vec<Happened>;

    /// Of every lane, in the order of the table.
    fn pointers(&self, now_ms: u64) -> Vec<Pointers>;

    /// The key of the order of admission: a smaller one goes first.
    fn order_key(&self, lane: u8, entered_ms: u64) -> (bool, i64);

    /// The `eta_ms` that an entrant of the first lane would get now.
    fn newcomer_eta_ms(&self, now_ms: u64) -> Option<u64>;
}
