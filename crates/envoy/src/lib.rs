//! Envoy's rate limit service v3 in front of a cluster's rate limits, for Envoy and all that is built on it.
//!
//! How a request flows:
//!
//! 1. `server`: gRPC by tonic, with the standard health service.
//! 2. `request`: Envoy's descriptors become [`Check`](nowserving_client::limits::Check)s of the SDK. Values that are too
//!    long for the cluster are shortened, so that no client of Envoy's can make its request undecidable.
//! 3. `service`: asks the cluster, with bounded patience, and decides what a request gets that it does not decide.
//! 4. `response`: the answers become one status for each descriptor.
//!
//! The messages are Envoy's, cut down to what is used (`proto/envoy`).

#![warn(missing_docs)]

mod pb;
mod request;
mod response;
mod server;
mod service;

pub use server::{Options, Server};
pub use service::OnUnavailable;
