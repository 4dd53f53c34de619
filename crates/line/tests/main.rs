//! One binary for all: each would be linked by itself, and what they share compiled again.
#![allow(clippy::unwrap_used)]

mod bounds;
mod callbacks;
mod calls;
mod calls_mixed;
mod common;
mod draws;
mod forecast;
mod gate;
mod held_back;
mod history;
mod hostile;
mod import;
mod journal;
mod jumps;
mod kick;
mod lanes;
mod memory;
mod notes;
mod pace;
mod phases;
mod positions;
mod renewals;
mod rules;
mod schedule;
mod told;
mod turn;
mod units;
mod worked_example;
