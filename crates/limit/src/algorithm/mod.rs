//! The five algorithms, one file each.
//!
//! Each counter has the same four functions. `settle` brings it up to the time of a check, which changes what is
//! stored and not what it means. `decide` answers and changes nothing; it expects a settled counter and at most
//! [`Limit::capacity`](crate::Limit::capacity) hits, of which there is at least one for each limit here. `record`
//! counts the hits of an allowed request; refused ones are never counted. `idle_at_us` says from when on the counter
//! equals a fresh one, so that it can be dropped.
//!
//! # Clocks that go back
//!
//! A clock that goes back by at most [`SLIP_US`] counts as one that stands still until it has caught up: an edge that is
//! passed again and again lets nothing more pass. If it goes back by more, it leapt before: nobody may be blocked
//! until it is there again. Then what was counted is kept, and counts as if hit now.
//!
//! All is whole numbers. Products of a rate and a time are 128 bits wide, and nothing is rounded but the answers:
//! so there is no drift.

/// How far a clock can go back without having leapt, in µs: 10 s. A new leader's service clock can be behind that of
/// the one before by the time since the last log entry, and wall clocks of two nodes differ.
pub const SLIP_US: u64 = 10_000_000;

mod drain;
mod fixed_window;
pub(crate) mod leaking_bucket;
mod sliding_window_counter;
mod sliding_window_log;
pub(crate) mod token_bucket;

pub use drain::Drain;
pub use fixed_window::FixedWindow;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::{LogHits, LogPart, SlidingWindowLog};
