//! The whole node without I/O: what it does with the messages of NATS, above the engine.
//!
//! ```text
//! node, simulation: Message, subscription ─► front ─► Input ─► Engine::step
//!                                            front ◄─ Output ◄─┘
//!                   bytes to publish, subscriptions to make and to end, writes, reads ◄─┘
//! ```
//!
//! The same code runs in the daemon and in the simulation. It reads no clock and draws no random number.

mod body;
pub mod cluster;
pub mod encode;
pub mod forward;
#[cfg(test)]
mod fuzz_tests;
pub mod gather;
pub mod keys;
pub mod limits;
pub mod mapping;
mod message;
#[cfg(test)]
mod misspelt_tests;
pub mod parse;
mod parse_admin;
mod parse_limit;
pub mod payload_limit;
pub mod probe;
pub mod routes;
pub mod subscriptions;
#[cfg(test)]
mod testing;
pub mod who;

pub use message::{Headers, Message};
