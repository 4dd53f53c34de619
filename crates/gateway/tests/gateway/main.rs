//! A gateway asked as browsers, proxies and worse ask it. With a nats-server and a made-up cluster behind it, or with nothing.
#![allow(clippy::unwrap_used)]

mod cluster;
mod common;
mod completes;
mod dashboard;
mod frames;
mod hostile;
mod http2;
mod tls;
mod troubles;
mod two_steps;
mod without_cluster;
