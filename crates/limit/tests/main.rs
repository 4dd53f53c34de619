//! One binary for all: each would be linked by itself, and what they share compiled again.
#![allow(clippy::unwrap_used)]

mod algorithms;
mod check;
mod common;
mod give_back;
mod memory;
mod rules;
mod table;
