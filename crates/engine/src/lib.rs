//! One node without I/O: its state, and its reaction to every input.
//!
//! ```text
//! node: bytes ─► Input ─► Engine::step ─► Vec<Output> ─► node: bytes, files, subscriptions
//!
//! fn Engine::new(Config, Boot, Vec<RestoredShard>, &Arc<dyn EntryReader>, Now) -> Result<Engine, NewError>
//! fn Engine::step(&mut self, Now, Input, &mut Vec<Output>)
//! fn Engine::next_due(&self) -> Micros      // EndTurn is due at this time at the latest
//! ```
//!
//! Requests and peers' messages are answered from state, or collected. [`Input::EndTurn`] folds the collected
//! ones into at most one batch of log entries a shard, one [`Output::Persist`], and one [`Output::Frame`] a
//! peer. The engine reads no clock, draws no random number and iterates over
//! nothing in hash order: the same inputs at the same times give the same outputs.
//!
//! A node can have several loops, each with an engine and a part of the shards: what they tell each other is in `loops`.
//!
//! State is kept in parts, each with its own: `requests` that wait, what a leader does (`leading`) and what a follower
//! knows (`following`), `snapshots`, `membership`, `peers`. A part borrows only what it needs of the others. `shard` has
//! those of one shard, `engine` those of the node, `ctx` what all shards of a node share. Uses go one way: a part names
//! neither `engine` nor its neighbours' insides.

pub mod agreement;
mod ctx;
mod delivery;
mod draw;
mod engine;
pub mod envelope;
pub mod facts;
#[cfg(test)]
mod facts_tests;
mod following;
pub mod frame_parts;
mod frames;
mod io;
mod kv;
mod leading;
mod listing;
mod loops;
mod membership;
mod outbox;
mod payload;
mod peers;
pub mod refusals;
pub mod replay;
mod request;
mod requests;
#[cfg(test)]
mod rig;
mod shard;
mod snapshots;
mod stopping;
mod timers;

pub use delivery::{Delivery, LeaderTime, ShardDelivery, Via};
pub use engine::{Engine, ShardView, WRITES_IN_FLIGHT_MAX};
pub use frames::{FrameBody, OutMessage, PeerBatch, PeerFrame};
pub use io::{
    Boot, Config, Dropped, ExitReason, ForwardId, ForwardResult, ForwardTry, Input, NotInstalled,
    Now, Output, ReadFailure, ReceivedState, RelayedAnswer, Replayed, RestoredShard, Subscription,
};
pub use loops::{Decision, FromLoop, LOOPS_MAX, LoopPlace, ToLoop, connections_of};
pub use peers::contact::{PeerHeader, Refusal, Standing};
pub use peers::known_disk::{KnownDisk, KnownDisks, NotTaken};
pub use request::{
    Ask, Effect, Inbox, LimitRequest, Outcome, Question, ReplyBody, ReplyTo, Request,
};
pub use requests::age::{lay_unread, left_by_sender_ms};
pub use requests::decide::{turned_away, unless_in_doubt};
pub use snapshots::file::SnapshotFile;
pub use snapshots::header as snapshot_header;

/// Generated from `proto/frame.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}
