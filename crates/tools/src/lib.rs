//! The tools of development: a cluster on this machine, and what runs one. They are commands of the binary
//! `nowserving`; what a user of a cluster calls is in `cli`.
//!
//! `embedded` starts a nats-server and three nodes as child processes. `dev` keeps such a cluster, `demo` shows a crowd
//! and a leader that dies in front of one; `web` puts a gateway and a shop before either. `crowd` sends a crowd to any
//! cluster. `pictures` draws rate limits, without one.

pub mod crowd;
pub mod demo;
pub mod dev;
pub mod embedded;
pub mod pictures;
mod web;
