//! One shard: what it replicates, and the duties of its leader.
//!
//! ```text
//! operations ─► command (log entry bytes) ─► apply ─► State ─► snapshot (file bytes, hashes)
//!                                              └─► events ─► recycle, boards: what the leader
//!                                                            proposes and publishes next
//! ```
//!
//! Pure: no I/O, no threads, no clock, no randomness. Time comes in as numbers.

pub mod boards;
pub mod clock;
pub mod command;
mod command_pb;
mod forecast_pb;
mod journal_pb;
pub mod leader_state;
pub mod published;
pub mod recycle;
mod settings_pb;
pub mod snapshot;
mod snapshot_pb;

#[cfg(test)]
mod test_world;

/// What prost makes of `proto/{batch,settings,snapshot}.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}
