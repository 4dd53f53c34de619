//! This node's side of NATS: connections, requests in, answers and events out, frames between the
//! nodes, discovery.

pub mod candidates;
pub mod connect;
pub mod discovery;
pub mod forward;
pub mod founding;
pub mod gathering;
pub mod mapping;
mod message;
pub mod neighbours;
pub mod payload_limit;
pub mod peers;
pub mod probe;
pub mod public_keys;
pub mod respond;
pub mod rights;
pub mod service;
pub mod stats;
pub mod subscriptions;
#[cfg(test)]
mod testing;
pub mod witness;
