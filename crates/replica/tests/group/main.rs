//! A group of three replicas in one thread.
#![allow(clippy::unwrap_used)]

mod common;
mod elections;
mod simulation;
