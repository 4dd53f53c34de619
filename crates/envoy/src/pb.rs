//! The messages and the service, as generated from `proto/envoy`.

#![allow(clippy::all, missing_docs)]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

pub use generated::envoy::config::core::v3::HeaderValue;
pub use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
#[cfg(test)]
pub use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
pub use generated::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
