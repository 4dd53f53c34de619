//! One Raft group on one node: `raft` 0.7 with the rules that its users had to learn. Synchronous, without
//! I/O, without a clock.
//!
//! The owner gives a [`Replica`] its inputs in any order: messages from peers
//! ([`Replica::step`]; `message_check` refuses what would make raft panic), commands
//! ([`Replica::propose`]), reads ([`Replica::read_index`]), time ([`Replica::tick`]) and finished writes
//! ([`Replica::on_persisted`]). Then it calls [`Replica::ready`] once and carries out the [`Ready`]:
//! messages to send, one [`Write`] for the disk, committed entries to apply ([`Replica::on_applied`]),
//! reads that can be answered. The newest entries stay in memory (`store`); older ones are read
//! through the [`EntryReader`]. At a start, [`Restored`] describes the log, the snapshot and the members on
//! disk; a replica whose disk names none (`install`) waits for a snapshot. [`Replica::compact`] drops entries that are in a snapshot.
//!
//! - Messages that promise something leave only after the promise is on disk
//!   ([`Replica::on_persisted`]); a leader's others leave at once.
//! - Committed entries are handed out in order, once, and only when they are on this node's own disk
//!   too: raft 0.7 holds a leader to that although a quorum without it would do.
//! - A message that would make raft panic is refused with a type that says why ([`StepRefused`]).
//! - A leader's lease is our own ([`Replica::lease_until`]). Every node keeps its side of it by the
//!   clock: it does not vote for one election timeout after it answered a leader or started
//!   (`vote_hold`), unless that leader's service connection is known to be closed ([`Connection`]).
//! - The members of a group change one step at a time (`conf_change`).
//!
//! A leader that has dropped entries which a peer lacks tells it of a snapshot instead (`install`).
//!
//! The types of raft's protobuf stay in this crate and in the log: owners see a [`Message`] as bytes and a receiver.

mod conf_change;
#[cfg(test)]
mod connection_model;
mod errors;
mod install;
mod lease;
mod message;
mod message_check;
mod ready;
mod replica;
mod setup;
mod store;
mod terms;
mod types;
mod view;
mod vote_hold;

pub use conf_change::{ConfChange, Progress};
pub use errors::{
    MembersError, NewError, ProposeError, ReadError, ReadFailed, StepRefused, TransferError,
};
pub use message::{Message, Promise};
pub use replica::Replica;
pub use store::EntryReader;
pub use types::{
    BOOTSTRAP_INDEX, BOOTSTRAP_TERM, Committed, ConfState, Config, Connection, LogState,
    MAX_COMMAND_BYTES, Micros, Payload, ReadGrant, ReadId, Ready, Restored, Role, RoleChange,
    SnapshotMeta, Write,
};
