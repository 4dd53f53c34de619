//! A group of three replicas in one thread.
#![allow(clippy::unwrap_used)]

mod appends;
mod common;
mod elections;
mod fuzz;
mod leases;
mod refusals;
mod simulation;
