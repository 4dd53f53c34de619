//! In place of `traces.rs` in a build without the feature `otlp`: no request is traced.

use async_nats::HeaderMap;
use nowserving_engine::ReplyTo;
use nowserving_protocol::header::TraceContext;

use crate::config::Config;

/// Which node has answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Here,
    /// This node has forwarded it.
    ByLeader,
}

/// # Errors
/// Always: this build cannot.
pub fn install(endpoint: &str, _config: &Config) -> anyhow::Result<()> {
    anyhow::bail!("otlp {endpoint}: this build sends no spans: it lacks the feature `otlp`")
}

/// None is recorded.
#[must_use]
pub fn begun(_headers: Option<&HeaderMap>) -> Option<Box<TraceContext>> {
    None
}

/// Records nothing.
pub fn ended(_reply: &ReplyTo, _code: &'static str, _answered: Answered) {}

/// There is nothing to send.
pub async fn flush() {}
