//! One node without I/O: its state, and its reaction to every input.
//!
//! ```text
//! node: bytes ─► Input ─► Engine::step ─► Vec<Output> ─► node: bytes, files, subscriptions
//!
//! fn Engine::new(Config, Boot, Vec<RestoredShard>, &Arc<dyn EntryReader>, Now) -> Result<Engine, NewError>
//! fn Engine::step(&mut self, Now, Input) -> Vec<Output>
//! fn Engine::next_due(&self) -> Micros      // EndTurn is due at this time at the latest
//! ```
//!
//! Requests and peers' messages are answered from state, or collected. [`Input::EndTurn`] folds the collected
//! ones into at most one batch of log entries a shard, one [`Output::Persist`], and one [`Output::Frame`] a
//! peer. The engine reads no clock, draws no random number and iterates over
//! nothing in hash order: the same inputs at the same times give the same outputs.

mod age;
pub mod agreement;
mod apply;
mod balance;
mod candidates;
mod compaction;
mod contact;
mod delivery;
mod disk_room;
mod elections;
mod electorates;
mod engine;
pub mod envelope;
pub mod facts;
mod forwards;
pub mod frame_parts;
mod frames;
mod gauges;
mod io;
mod keys;
mod kicks;
mod known_disk;
mod kv;
mod lagging;
mod limits;
mod listing;
mod maintenance;
mod membership;
mod outbox;
mod payload;
mod peer;
mod peer_refusal;
mod reconcile;
pub mod refusals;
mod request;
mod shard;
mod snapshot_file;
mod snapshot_frames;
pub mod snapshot_header;
mod snapshot_receive;
mod snapshot_send;
mod staging;
mod standing;
mod status;
#[cfg(test)]
mod tests;
mod waiter;
mod waiting_reads;

pub use age::{lay_unread, left_by_sender_ms};
pub use contact::{PeerHeader, Refusal, Standing};
pub use delivery::{Delivery, LeaderTime, ShardDelivery, Via, turned_away};
pub use engine::{Engine, ShardView, WRITES_IN_FLIGHT_MAX};
pub use frames::{FrameBody, OutMessage, PeerBatch, PeerFrame};
pub use io::{
    Boot, Config, Dropped, ExitReason, ForwardId, ForwardResult, ForwardTry, Input, NotInstalled,
    Now, Output, ReadFailure, ReceivedState, RelayedAnswer, RestoredShard, Subscription,
};
pub use known_disk::{KnownDisk, KnownDisks, NotTaken};
pub use request::{Ask, Effect, Inbox, LimitRequest, Outcome, Question, ReplyTo, Request};
pub use snapshot_file::SnapshotFile;

/// Generated from `proto/frame.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}
