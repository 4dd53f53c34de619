//! One shard: its replicated state, and the duties of its leader.
//!
//! ```text
//! commands ─► EntryBuilder ─► log entry ─► State::apply_entry ─► State ─► snapshot, hashes
//!                                              │
//!                                              └─► Observer: answers, and LeaderState:
//!                                                  what the leader proposes and publishes next
//! ```
//!
//! A leader folds [`command::Command`]s into an [`command::Entry`]. Every replica applies the committed
//! entry to its [`state::State`], in one function; only the leader watches that with an
//! [`state::Observer`], in order to answer and to publish. [`leader_state::LeaderState`] is all that a
//! leader knows beyond the replicated state. [`snapshot`] is a state as a file.
//!
//! Pure: no I/O, no threads, no clock, no randomness. Time comes in as numbers.

pub mod boards;
mod by_wall;
pub mod clock;
pub mod command;
pub mod kick;
pub mod leader_state;
pub mod limits;
pub mod members;
pub mod published;
pub mod recycle;
pub mod refusals;
pub mod requests;
pub mod restore;
pub mod snapshot;
pub mod state;
pub mod tallies;
mod token_map;

#[cfg(test)]
mod test_world;
