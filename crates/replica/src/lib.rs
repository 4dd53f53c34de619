//! One Raft group on one node: messages and proposals in; writes, messages, committed commands and
//! read grants out. Synchronous, without I/O, without a clock: `raft` 0.7 with the rules around it
//! that its users had to learn.
//!
//! - Messages that promise something leave only after what they promise is on disk
//!   ([`Replica::on_persisted`]); a leader's others leave at once.
//! - Committed entries are handed out in order, once, and only when they are on this node's own disk
//!   too: raft 0.7 holds a leader to that although a quorum without it would do.
//! - A message that would make raft panic is refused with a type that says why ([`StepRefused`]).
//! - A leader's lease is our own ([`Replica::lease_until`]), and every node keeps its side of it by
//!   the clock: no vote within an election timeout after it answered a leader or started.
//!
//! Membership is fixed in this release and peers are not given snapshots, but entries of either kind
//! have their place: [`Payload::ConfChange`], [`SnapshotMeta`].

mod errors;
mod message_check;
mod reads;
mod ready;
mod replica;
mod setup;
mod store;
mod terms;
mod types;
mod view;
mod vote_hold;

pub use errors::{NewError, ProposeError, ReadError, ReadFailed, StepRefused, TransferError};
pub use replica::Replica;
pub use store::EntryReader;
pub use types::{
    Committed, Config, LogState, MAX_COMMAND_BYTES, Micros, Payload, ReadGrant, ReadId, Ready,
    Restored, Role, RoleChange, SnapshotMeta, Write,
};
