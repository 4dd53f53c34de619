//! A group of three replicas in one thread: exact times of leases and elections, the shapes of messages, what is
//! written when. Random faults are the business of the simulation of whole clusters (`nowserving-sim`).
#![allow(clippy::unwrap_used)]

mod appends;
mod common;
mod conf_change;
mod elections;
mod fuzz;
mod leases;
mod refusals;
mod snapshots;
