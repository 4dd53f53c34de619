//! Whole clusters of the real engine in one thread, from one seed.
//!
//! ```text
//! seed ─► weather (what goes wrong how often) ─► World: one timeline of events
//!           clients ─► calls ─► nats ─► service ─► node (engine) ─► disk, peers, nats ─► clients
//!                                                    └─► check: every step, and at the end
//! ```
//!
//! Things go wrong for half a minute of the simulation's time; then everything is mended, and a majority
//! must make progress. No real clock, no threads, no order of a hash: the same seed gives the same trace,
//! byte for byte.

mod backend;
mod backups;
pub mod bite;
mod bounds;
mod calls;
mod check;
mod clients;
mod clock;
mod direct;
mod disk;
mod env;
mod faults;
mod files;
mod founding;
mod hits;
mod ill;
mod joining;
mod loops;
mod lost_disks;
mod nats;
mod node;
mod operator;
mod peers;
mod random;
mod replay;
mod service;
mod settings;
mod timeline;
mod trace;
mod transfers;
mod trouble;
mod upgrade;
mod witness;
mod world;

pub use env::Violation;
pub use faults::Counts;
pub use world::{Options, Run, run};
