//! One binary for all: each would be linked by itself, and what they share compiled again.
#![allow(clippy::unwrap_used)]

mod admin;
mod common;
mod golden;
mod journal;
mod payloads;
mod replies;
mod settings;
mod settings_parts;
mod tokens;
