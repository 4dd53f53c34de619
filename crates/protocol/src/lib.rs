//! The protocol of clients and operators: subjects, requests, replies, errors, events, tickets.
//!
//! ```text
//! subject ──► subject::Subjects::parse ──► Target: line, shard, operation::Operation
//! payload ──► codec::decode ──► its values, in tape
//!             ──► read ──────────────────► a request of user or admin; its settings are read
//!                                          after the table in crates/line/src/settings
//! ticket ───► ticket::TicketKeys::verify ► the token it names
//! answer of the line crate ─► a reply of user, admin or journal ─► codec::encode ─► payload
//! refusal ──────────────────► error::ApiError, the same way
//! change ───────────────────► event::{BoardEvent, TokenEvent, LineEvent}, the same way
//! ```
//!
//! Payloads are MessagePack or JSON; a reply has the format of its request. Every part of a
//! request that cannot be read is refused with an error that names it; no input panics. This
//! crate does no I/O and draws no random numbers: the caller passes bytes and keys.

#![warn(missing_docs)]

pub mod admin;
#[cfg(feature = "schema")]
pub mod asyncapi;
pub mod backup;
mod board;
mod calls;
pub mod codec;
mod configure_lines;
mod draw;
mod enter;
pub mod error;
pub mod event;
mod fields;
pub mod header;
mod import;
mod journal;
mod key;
pub mod keys;
pub mod kick;
pub mod kv;
pub mod limits;
pub mod members;
pub mod note;
pub mod operation;
pub mod page;
pub mod pass;
mod payloads;
mod read;
mod redact;
pub mod rights;
#[cfg(feature = "schema")]
mod schema;
pub mod servers;
mod settings;
pub mod subject;
mod tape;
pub mod ticket;
pub mod time;
mod tokens;
pub mod user;
mod wire;
mod wrong;

pub use wire::Name as SerdeName;
