//! One binary for all: each would be linked by itself, and what they share compiled again.
#![allow(clippy::unwrap_used)]

mod command;
mod golden;
mod kv;
mod restore;
mod snapshot;
