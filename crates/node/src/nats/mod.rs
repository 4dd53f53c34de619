//! This node's side of NATS: connections, requests in, answers and events out, frames between the
//! nodes, discovery.

pub mod candidates;
pub mod connect;
pub mod discovery;
pub mod forward;
pub mod founding;
pub mod limits;
pub mod many_lines;
pub mod mapping;
mod message;
pub mod neighbours;
mod node_request;
pub mod payload_limit;
pub mod peers;
pub mod probe;
pub mod public_keys;
pub mod respond;
pub mod rights;
pub mod service;
pub mod stats;
pub mod subscriptions;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod witness;
