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
mod calls_pb;
pub mod clock;
pub mod command;
mod journal_pb;
pub mod kick;
mod kick_pb;
mod kv_pb;
pub mod leader_state;
pub mod limits;
pub mod members;
mod members_pb;
mod op_pb;
mod pb;
pub mod published;
pub mod recycle;
pub mod refusals;
mod renewal;
pub mod requests;
mod requests_pb;
pub mod restore;
mod restore_pb;
mod settings_pb;
pub mod snapshot;
mod snapshot_pb;
pub mod state;
pub mod tallies;
mod token_map;

#[cfg(test)]
mod test_world;
