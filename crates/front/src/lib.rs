//! The whole node without I/O: what it does with the messages of NATS, above the engine.
//!
//! ```text
//! node, simulation: Message, subscription ─► front ─► Input ─► Engine::step
//!                                            front ◄─ Output ◄─┘
//!                   bytes to publish, subscriptions to make and to end, writes, reads ◄─┘
//! ```
//!
//! The same code runs in the daemon and in the simulation. It reads no clock and draws no random number.

mod message;

pub use message::{Headers, Message};
